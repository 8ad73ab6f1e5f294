"""Whose data does not fit: both rules, on federations where the truth is known."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

import vitrail as vt
from vitrail.engines.wire import trace
from vitrail.explain.evidence import LABEL, Evidence
from vitrail.explain.shifts import paper_marks, weigh
from vitrail.runs import wire_lines
from vitrail.runs.setup import build_task

TARGET = "outcome"


def make_table(rows: int, seed: int) -> pd.DataFrame:
    """Two features that matter, one binary, one categorical, two that do not matter, one of them rare."""
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({f"x{i}": rng.normal(50, 10, rows) for i in range(3)})
    frame["sex"] = rng.choice(["f", "m"], rows)
    frame["stage"] = rng.choice(["a", "b", "c"], rows)
    frame["rare"] = (rng.random(rows) < 0.03).astype(int)
    push = 0.12 * (frame.x0 - 50) - 0.1 * (frame.x1 - 50) + 1.2 * (frame.sex == "m") + 2.5 * (frame.stage == "c") - 1.3
    frame[TARGET] = (rng.random(rows) < 1 / (1 + np.exp(-push))).astype(int)
    return frame


def make_study(sites: dict[str, pd.DataFrame], rounds: int = 30) -> vt.Study:
    study = vt.Study.infer(sites, TARGET)
    return study.with_changes(training={"rounds": rounds, "lr": 0.004}, network={"hidden": [16], "dropout": 0.0})


def sites_of(seed: int, count: int = 6, rows: int = 300) -> dict[str, pd.DataFrame]:
    return vt.cut.iid(make_table(rows * count, seed), count, seed)


def spoil(sites: dict[str, pd.DataFrame], site: str, column: str, f) -> dict[str, pd.DataFrame]:
    bad = sites[site].copy()
    bad[column] = f(bad[column])
    return {**sites, site: bad}


def run_of(sites: dict[str, pd.DataFrame], clean: dict[str, pd.DataFrame], seed: int = 1, **given) -> vt.Run:
    method = vt.methods.IFedAvg(**{k: given.pop(k) for k in ("output", "identity") if k in given})
    return vt.federate(make_study(clean), sites, method=method, seed=seed, **given)


FAULTS = {
    "reversed": ("x0", lambda v: v.max() + v.min() - v),
    "swapped code": ("sex", lambda v: v.map({"f": "m", "m": "f"})),
    "permuted": ("stage", lambda v: v.map({"a": "b", "b": "c", "c": "a"})),
    "noise": ("x0", lambda v: pd.Series(np.random.default_rng(0).permutation(v), index=v.index)),
    "flipped label": (TARGET, lambda v: 1 - v),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("count", [3, 6])
def test_a_planted_fault_is_found_and_nothing_else(fault, count) -> None:
    column, f = FAULTS[fault]
    clean = sites_of(11, count)
    run = run_of(spoil(clean, "site-2", column, f), clean, output="each")
    cell = LABEL if column == TARGET else column
    assert [(x.site, x.feature) for x in run.findings()] == [("site-2", cell)]
    finding = run.findings()[0]
    assert finding.confidence > 0.95
    assert "site-2" in finding.text
    if fault == "flipped label":
        assert finding.kind == "swapped label"
    if fault in ("reversed", "swapped code"):
        assert finding.kind == "reversed"
    shifts = run.shifts()
    flagged = shifts[shifts.flagged]
    assert set(flagged.site) == {"site-2"}
    assert list(shifts.columns) == ["site", "feature", "layer", "value", "score", "p_value", "flagged_paper", "flagged"]


def test_without_a_fault_it_is_silent() -> None:
    alarms = 0
    for seed in range(12):
        clean = sites_of(100 + seed, 4, 150)
        alarms += bool(run_of(clean, clean, seed).findings())
    assert alarms <= 2  # promised: 5 in 100; three of twelve would be one chance in fifty


def test_p_values_are_uniform_without_a_fault() -> None:
    """Small p-values come no more often than they should, over many cells."""
    p = np.concatenate([run_of(sites_of(200 + s), sites_of(200 + s), s).shifts().p_value.unique() for s in range(8)])
    assert len(p) > 200
    assert (p < 0.05).mean() < 0.09
    assert (p < 0.5).mean() < 0.62


def test_a_harmless_fault_stays_silent() -> None:
    """Undone by standardisation, or in a feature that does not matter."""
    clean = sites_of(7)
    assert run_of(spoil(clean, "site-3", "x0", lambda v: v * 12 + 5), clean).findings() == []
    shuffled = spoil(clean, "site-3", "x2", lambda v: pd.Series(np.random.default_rng(1).permutation(v), index=v.index))
    assert run_of(shuffled, clean).findings() == []


def test_a_column_without_values_is_named_without_a_test() -> None:
    clean = sites_of(7, 4, 150)
    run = run_of(spoil(clean, "site-3", "x2", lambda v: v * 0), clean)
    assert [(f.site, f.feature, f.kind) for f in run.findings()] == [("site-3", "x2", "not measured")]
    shifts = run.shifts()
    assert set(shifts[shifts.flagged].feature) == {"x2"}
    nowhere = {k: v.assign(x2=0.0) for k, v in clean.items()}
    assert run_of(nowhere, clean).findings() == [], "where nobody measures it, nobody is asked"


def test_papers_rule_to_the_letter() -> None:
    rng = np.random.default_rng(3)
    values = rng.normal(0, 0.1, (12, 20))
    values[4, 7] = 2.0
    values[:, 9] *= 0.001  # a feature that hardly varies: below the floor of 0.05 nothing is marked
    values[2, 9] = 0.01
    o, x = paper_marks(values)
    mean, sd = values.mean(0), values.std(0)
    by_hand = [[abs(values[i, j] - mean[j]) > 2 * sd[j] and sd[j] > 0.05 for j in range(20)] for i in range(12)]
    assert o.tolist() == by_hand
    assert o[4, 7]
    assert not o[:, 9].any()
    assert x.tolist() == [s > sd.mean() + 2 * sd.std() for s in sd]
    assert x[7]
    four = rng.normal(0, 1, (4, 50))
    four[0] = 1e6
    assert not paper_marks(four)[0].any(), "with four sites the mark cannot appear, whatever the values"


def test_a_site_can_refuse_to_publish(tmp_path) -> None:
    clean = sites_of(5, 5)
    run = run_of(clean, clean, refuse=["site-4"], out=tmp_path / "run")
    shifts = run.shifts()
    assert shifts[shifts.site == "site-4"].value.isna().all()
    assert shifts[shifts.site != "site-4"].value.notna().all()
    sent = run.ledger.query("stage == 'publish' and direction == 'from site'").set_index("site").messages
    assert sent["site-4"] == 0
    assert (sent.drop("site-4") == 1).all()
    loaded = vt.Run.load(tmp_path / "run")
    pd.testing.assert_frame_equal(loaded.shifts(), shifts.fillna({"flagged_paper": ""}))
    assert loaded.findings() == run.findings()
    with pytest.raises(vt.VitrailError, match="no site 'site-9'"):
        run_of(clean, clean, refuse=["site-9"])


def test_private_layers_are_not_on_the_wire_while_training() -> None:
    clean = sites_of(5, 3)
    study, method = make_study(clean), vt.methods.IFedAvg(output="each")
    (training,), (publish,) = trace(build_task(study, method, 1), method, 5)
    for spec in (training.up, training.down):
        assert spec
        assert not [n for n in spec if "input" in n or "output" in n]
    assert {n.split("/")[-1] for n in publish.up} == {"input.shift", "input.scale", "output.shift", "output.scale"}
    said = {x.stage for x in wire_lines(study, method)}
    assert {"train", "publish", "evidence"} <= said


def test_private_layers_follow_a_shift() -> None:
    """Rows moved by a known amount, not undone by standardisation: the layer learns to move them back."""
    clean = sites_of(9, 4, 500)
    moved = spoil(clean, "site-1", "x0", lambda v: v + 20)
    study = make_study(clean, rounds=150).with_changes(standardise="global")
    shifts = vt.federate(study, moved, method="ifedavg", seed=2).shifts()
    b = shifts[(shifts.feature == "x0") & (shifts.layer == "b_in")].set_index("site").value
    assert b.idxmin() == "site-1"
    assert b["site-1"] < b.drop("site-1").min() - 0.2


def test_pull_to_the_identity() -> None:
    clean = sites_of(9, 4)
    free, held = (run_of(clean, clean, identity=lam).shifts() for lam in (0.0, 50.0))
    away = [
        (s[s.layer == "b_in"].value.abs().mean(), (s[s.layer == "w_in"].value - 1).abs().mean()) for s in (free, held)
    ]
    assert away[1][0] < away[0][0] / 3
    assert away[1][1] < away[0][1] / 3


def test_ifedavg_without_its_layers_is_fedavg() -> None:
    """Held fast at the identity, what is left is FedAvg."""
    clean = sites_of(9, 3)
    study = make_study(clean, 5)
    plain = vt.federate(study, clean, method="fedavg", seed=1)
    fast = vt.federate(study, clean, method=vt.methods.IFedAvg(identity=240.0), seed=1)
    for k, v in plain.models["site-1"].items():
        assert torch.allclose(fast.models["site-1"][k], v, atol=0.02)


def test_a_site_is_weighed_by_mahalanobis_distance() -> None:
    cov = np.array([[2.0, 0.3], [0.3, 1.0]])
    away = np.array([0.9, -0.5])
    said = [Evidence(100, [np.zeros(2)], [cov], [80.0], [True]) for _ in range(4)]
    score, p = weigh([*said, Evidence(50, [away], [cov * 9], [40.0], [True])])  # its own covariance does not count
    assert score[4, 0] == pytest.approx(away @ np.linalg.inv(cov) @ away / (1 / 50 + 1 / 400))
    assert p[4, 0] < 0.001
    assert weigh([*said, Evidence(50, [away], [cov], [3.0], [True])])[1][4, 0] > 10 * p[4, 0], (
        "few rows carry it: a heavier tail"
    )
    flat = [e._replace(cov=[np.zeros((2, 2))]) for e in said]
    assert weigh(flat)[1].min() == 1.0, "a feature that answers nothing accuses nobody"


def test_sites_that_differ_anyway_raise_the_bar() -> None:
    """phi: what the others differ by among each other is no one's fault; an accused site does not raise it."""
    rng = np.random.default_rng(0)
    means = [np.array([m]) for m in (*rng.normal(0, 0.1, 7), 0.7)]
    calm = [Evidence(100, [m], [np.eye(1)], [80.0], [True]) for m in means]
    wild = [Evidence(100, [m * 6 if i < 7 else m], [np.eye(1)], [80.0], [True]) for i, m in enumerate(means)]
    assert weigh(calm)[0][7, 0] > 3 * weigh(wild)[0][7, 0]
    odd = [calm[7], *calm[1:6], *(calm[7]._replace(mean=[np.array([m])]) for m in (9.0, -9.0))]
    assert weigh(odd, accused=[6, 7])[0][0, 0] > 3 * weigh(odd)[0][0, 0]


def test_of_two_that_differ_neither_is_accused() -> None:
    said = [Evidence(100, [np.array([m])], [np.eye(1)], [80.0], [True]) for m in (0.0, 5.0, 50.0)]
    assert weigh(said)[1][2, 0] < 1e-6
    assert weigh(said, accused=[2])[1][:2].min() == 1.0


def test_other_methods_have_no_shifts() -> None:
    clean = sites_of(9, 3, 60)
    with pytest.raises(vt.VitrailError, match="learns no private layers"):
        vt.federate(make_study(clean, 2), clean, method="fedavg").shifts()
