"""Private layers: what is published of them, and the paper's marks."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

import vitrail as vt
from vitrail.analysis.private_layers import paper_flags
from vitrail.engine.contract import trace
from vitrail.runs import Plan
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
    return vt.partition.iid(make_table(rows * count, seed), count, seed)


def spoil(sites: dict[str, pd.DataFrame], site: str, column: str, f) -> dict[str, pd.DataFrame]:
    bad = sites[site].copy()
    bad[column] = f(bad[column])
    return {**sites, site: bad}


def run_of(sites: dict[str, pd.DataFrame], clean: dict[str, pd.DataFrame], seed: int = 1, **given) -> vt.Run:
    method = vt.methods.IFedAvg(**{k: given.pop(k) for k in ("output", "identity") if k in given})
    return vt.federate(make_study(clean), sites, method=method, seed=seed, **given)


def test_papers_rule_to_the_letter() -> None:
    rng = np.random.default_rng(3)
    values = rng.normal(0, 0.1, (12, 20))
    values[4, 7] = 2.0
    values[:, 9] *= 0.001  # a feature that hardly varies: below the floor of 0.05 nothing is marked
    values[2, 9] = 0.01
    o, x = paper_flags(values)
    mean, sd = values.mean(0), values.std(0)
    by_hand = [[abs(values[i, j] - mean[j]) > 2 * sd[j] and sd[j] > 0.05 for j in range(20)] for i in range(12)]
    assert o.tolist() == by_hand
    assert o[4, 7]
    assert not o[:, 9].any()
    assert x.tolist() == [s > sd.mean() + 2 * sd.std() for s in sd]
    assert x[7]
    four = rng.normal(0, 1, (4, 50))
    four[0] = 1e6
    assert not paper_flags(four)[0].any(), "with four sites the mark cannot appear, whatever the values"


def test_a_site_can_refuse_to_publish(tmp_path) -> None:
    clean = sites_of(5, 5)
    run = run_of(clean, clean, refuse=["site-4"], out=tmp_path / "run")
    shifts = run.shifts()
    assert list(shifts.columns) == ["site", "feature", "layer", "value", "flagged_paper"]
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
    said = {x.stage for x in Plan(study, method).wire()}
    assert {"train", "publish"} <= said


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


def test_other_methods_have_no_shifts() -> None:
    clean = sites_of(9, 3, 60)
    with pytest.raises(vt.VitrailError, match="learns no private layers"):
        vt.federate(make_study(clean, 2), clean, method="fedavg").shifts()
