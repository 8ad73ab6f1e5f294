"""A site that comes after training fits its own layers; nothing of the others changes. And sites that come and go."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pandas.testing as pdt
import pytest
import torch
from typer.testing import CliRunner

import vitrail as vt
from vitrail.analysis.private_layers import paper_flags
from vitrail.cli import app
from vitrail.core.errors import VitrailError
from vitrail.core.tensors import flatten
from vitrail.data.encoding import prepare
from vitrail.engine.local import Engine
from vitrail.metrics.recalibration import fit_constant, placed
from vitrail.metrics.scores import decide
from vitrail.report.pages.builder import page_of, write_report
from vitrail.runs.setup import absence, build_task, resolve, training_of, training_rows
from vitrail.runs.site.newcomer import gains

LATE, COLUMN = "cleveland", "oldpeak"


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """The tensors are tiny: on a busy machine a second thread is only waited for."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def sites() -> dict[str, pd.DataFrame]:
    return vt.datasets.heart_disease()


@pytest.fixture(scope="module")
def study() -> vt.Study:
    """Standardised together: a site's own standardisation would undo a shift before the model sees it."""
    agreed = vt.Study.load(vt.datasets.packaged("heart_disease.toml"))
    plain = {n: {**f.model_dump(), "indicator": False} for n, f in agreed.features.items()}
    training = {"rounds": 12, "class_weights": "inverse", "weight_decay": 0.0}
    return agreed.with_changes(
        training=training,
        network={"hidden": [8], "dropout": 0.2},
        standardise="global",
        reference_level=False,
        features=plain,
    )


@pytest.fixture(scope="module")
def run(study, sites) -> vt.Run:
    return vt.federate(study, {k: v for k, v in sites.items() if k != LATE}, method="ifedavg", seed=1)


@pytest.fixture(scope="module")
def shifted(sites) -> pd.DataFrame:
    return sites[LATE].assign(**{COLUMN: sites[LATE][COLUMN] + 4})


@pytest.fixture(scope="module")
def grown(run, shifted) -> vt.Run:
    return run.adopt("late", shifted)


def files(folder: Path) -> dict[str, bytes]:
    """But for the hashes of what is private, which are drawn anew whenever a run is written."""
    found = [p for p in folder.rglob("*") if p.is_file() and p.name != "marks.json"]
    return {str(p.relative_to(folder)): p.read_bytes() for p in found}


def test_fitting_undoes_a_shift(run, grown, sites) -> None:
    """Values four too high: the shared model is lost, the fitted one takes some away and is not."""
    table = grown.shifts()
    learned = table[(table.feature == COLUMN) & (table.layer == "b_in")].set_index("site").value
    assert learned["late"] < learned.drop("late").min() - 0.05
    worth = gains(grown).set_index("metric")
    assert worth.after["balanced_accuracy"] > worth.before["balanced_accuracy"] + 0.03  # a constant alone does much
    plain = gains(run.adopt("late", sites[LATE])).set_index("metric")  # the same rows, nothing wrong with them
    assert worth.after["balanced_accuracy"] > plain.after["balanced_accuracy"] - 0.1


def test_its_scores_are_its_models(run, grown, shifted) -> None:
    """`gains` says what `predict` does on the hold-out rows; before fitting, with the others' mean layers."""
    encoder = run.encoders["va"]
    (data,) = prepare({"late": shifted}, run.study, run.seed, encoder)
    late = grown.encoders["late"]
    assert (late.mean, late.sd) == (encoder.mean, encoder.sd), "the federation's own mean and standard deviation"
    assert grown.encoders["late"].mean[COLUMN] < shifted[COLUMN].mean() - 2
    task = build_task(run.study, run.method, run.seed)
    x = torch.from_numpy(data.test_x).float()[None]
    for moment in ("before", "after"):
        params = {k.removeprefix("params/"): v[None] for k, v in grown.models["late"].items()}
        if moment == "before":
            params |= {k: run.facts[k].value.mean(0)[None] for k in ("input.shift", "input.scale")}
        with torch.no_grad():
            seen = task.output(params, torch.from_numpy(data.train_x).float()[None])[0]
            constant = fit_constant(task.loss, seen, np.eye(2)[data.train_y.astype(int)], np.ones(len(seen)))
            answers = (
                placed(task.loss, torch.from_numpy(constant)).predictions(task.output(params, x)[0].double()).numpy()
            )
        right = decide(answers, np.array(late.thresholds)) == data.test_y
        worth = gains(grown).set_index("metric")
        assert worth[moment]["accuracy"] == pytest.approx(right.mean())
        assert worth.same["accuracy"] == pytest.approx(np.bincount(data.test_y).max() / len(data.test_y))
    assert list(grown.sizes.set_index("site").loc["late"][["train_rows", "test_rows"]]) == [
        len(data.train_y),
        len(data.test_y),
    ]


def test_nothing_of_the_others_changes(run, grown, tmp_path) -> None:
    run.save(tmp_path / "old")
    before = files(tmp_path / "old")
    grown.save(tmp_path / "new")
    assert files(tmp_path / "old") == before
    after = files(tmp_path / "new")
    kept = [k for k in before if k.startswith("sites/") or k == "coordinator/shared.safetensors"]
    assert len(kept) == 3 * 4 + 1
    assert all(after[k] == before[k] for k in kept)
    assert {k for k in after if k.startswith("sites/")} - set(kept) == {
        "sites/late/model.safetensors",
        "sites/late/encoder.json",
        "sites/late/held_out.csv",
        "sites/late/held_out_summary.json",
    }
    shared = {k: v for k, v in grown.models["late"].items() if not k.startswith("params/input")}
    assert shared.keys() == run.shared.keys()
    assert all(torch.equal(v, run.shared[k]) for k, v in shared.items()), "the shared model stood still"
    again = vt.Run.load(tmp_path / "new")
    pdt.assert_frame_equal(again.shifts(), grown.shifts(), check_dtype=False)
    pdt.assert_frame_equal(gains(again), gains(grown))
    old = run.scores()
    pdt.assert_frame_equal(grown.scores()[lambda t: t.site != "late"].reset_index(drop=True), old)


def test_its_row_in_the_heatmap(run, grown) -> None:
    old, new = run.shifts(), grown.shifts()
    assert list(new.columns) == list(old.columns)
    others = new[new.site != "late"].drop(columns="flagged_paper").reset_index(drop=True)
    pdt.assert_frame_equal(others, old.drop(columns="flagged_paper"), check_dtype=False)
    late = new[new.site == "late"]
    assert len(late) == len(old) / 3
    assert late.value.notna().all()
    for _, part in new.groupby("layer"):
        values = part.pivot(index="site", columns="feature", values="value")
        o, x = paper_flags(values.to_numpy())
        want = np.char.add(np.where(o, "O", ""), np.where(x, "x", ""))
        got = part.pivot(index="site", columns="feature", values="flagged_paper")
        assert (got.to_numpy().astype(str) == want).all()
    names = list(dict.fromkeys(new.site))
    at = names.index("late")
    assert torch.equal(grown.facts["input.shift"].value[at], grown.models["late"]["params/input.shift"])
    assert grown.facts["agreed"].value.tolist() == [True] * 4


def test_with_layers_at_both_ends_and_twice(study, sites, tmp_path) -> None:
    few = study.with_changes(training={"rounds": 2})
    both = vt.federate(few, {k: v for k, v in sites.items() if k != LATE}, method=vt.methods.IFedAvg(output="scalar"))
    grown = both.adopt("late", sites[LATE]).adopt("later", sites[LATE].head(60))
    assert grown.sites[-2:] == ["late", "later"]
    for name in ("late", "later"):
        moved = grown.models[name]
        assert all((moved[f"params/{k}"] != both.facts[k].value.mean(0)).any() for k in ("input.scale", "output.scale"))
    text = write_report(grown, tmp_path / "page.html").read_text()
    assert "later came after training" in text
    assert f"{len(both.sites)} sites trained together with iFedAvg: 1 seed, 2 rounds. late and later came" in text
    assert len(grown.shifts()) == 5 * len(both.shifts()) / 3


def test_the_identity_pulls_a_newcomer_too(run, grown, shifted) -> None:
    held = replace(run, method=replace(run.method, identity=50.0)).adopt("late", shifted)
    free, close = (r.models["late"]["params/input.shift"].abs().max() for r in (grown, held))
    assert close < free / 2


def test_mistakes_are_told(run, grown, study, sites, tmp_path) -> None:
    for name in ("va", " "):
        with pytest.raises(VitrailError, match=r"already|expected a name"):
            run.adopt(name, sites[LATE])
    with pytest.raises(VitrailError, match="already"):
        grown.adopt("late", sites[LATE])
    with pytest.raises(VitrailError, match=r"late, .*oldpeak"):
        run.adopt("late", sites[LATE].drop(columns="oldpeak"))
    plain = vt.federate(study, sites, method="fedavg", rounds=1)
    with pytest.raises(VitrailError, match="no private layers"):
        plain.adopt("late", sites[LATE])


def test_the_command(run, shifted, tmp_path) -> None:
    run.save(tmp_path / "old")
    shifted.to_csv(tmp_path / "late.csv", index=False)
    given = ["adopt", str(tmp_path / "old"), "--site", "late", "--data", str(tmp_path / "late.csv")]
    done = CliRunner().invoke(app, [*given, "--out", str(tmp_path / "new")])
    assert done.exit_code == 0, done.output
    assert "balanced_accuracy" in done.output
    again = vt.Run.load(tmp_path / "new")
    assert "late" in again.sites
    assert any("late came after training" in note for note in page_of(again).notes)
    assert "late came after training" in (tmp_path / "new" / "report.html").read_text()
    refused = CliRunner().invoke(app, [*given, "--out", str(tmp_path / "new")])
    assert isinstance(refused.exception, VitrailError)  # nothing is overwritten


@pytest.mark.parametrize(
    ("rate", "away"), [(0.3, {}), (0.0, {"va": [(2, 5)], "cleveland": [(1, 1), (12, 12)]})], ids=["rate", "away"]
)
def test_sites_that_come_and_go(rate, away, study, sites) -> None:
    """In a round that a site is absent its private layers do not move; in one that it is present they do."""
    agreed, method = resolve(study, "ifedavg", None)
    data = prepare(sites, agreed, 1)
    rows = training_rows(data, agreed, method, "cpu")
    absent = absence(rows.names, 1, rate, away, [], method.plan(agreed.training.rounds))
    engine = Engine(build_task(agreed, method, 1), method, rows, training_of(agreed), 1, absent=absent)
    before = {k: v.clone() for k, v in flatten(engine.start().state)}
    missed = 0
    for moment in engine.run():
        if moment.stage:
            break
        now = {k: v.clone() for k, v in flatten(moment.state)}
        for i, here in enumerate(moment.present.tolist()):
            still = [torch.equal(now[k][i], before[k][i]) for k in now]
            assert not any(still) if here else all(still)
            missed += not here
        before = now
    assert missed == 6 if away else 4 <= missed <= 28  # of 4 x 12; 0.3 of them are 14
    whole = vt.federate(study, sites, method="ifedavg", seed=1, dropout_rate=rate, away=away)
    scores = whole.scores()[lambda t: t.metric == "balanced_accuracy"].set_index("site").value
    assert scores.mean() > 0.65
    assert scores.between(0.45, 1).all()
