"""How unsure a model is: what predict says, what a run tells of it, and what stays untouched by that."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pandas.testing as pdt
import pytest

import vitrail as vt
from vitrail.analysis.selective_prediction import gain, kept_share, together
from vitrail.data.splitting import split_rows
from vitrail.metrics.scores import DOUBT, SUREST, decide, surest_shares
from vitrail.runs.plan import Plan
from vitrail.runs.result import Model
from vitrail.runs.setup import COVERAGE, MAJORITY

CONSTANT = f"test:{MAJORITY}"  # told with the counts, before the first round: no ledger of one machine holds those

LOSSES = ["likelihood", "evidence"]


def world(
    rows: dict[str, int], knows: bool = True, classes: tuple[str, ...] = ("no", "yes"), *draw: int
) -> dict[str, pd.DataFrame]:
    """Far from the boundary labels are right, near it they are noise; or they are noise everywhere."""
    out = {}
    for i, (site, n) in enumerate(rows.items()):
        rng = np.random.default_rng([i, n, *draw])
        x = rng.uniform(-3, 3, (n, 2))
        place = np.digitize(x[:, 0], np.linspace(-3, 3, len(classes) + 1)[1:-1])
        edge = np.abs(x[:, [0]] - np.linspace(-3, 3, len(classes) + 1)[1:-1]).min(1)
        noisy = (edge < 0.6) | (not knows)
        label = np.where(noisy, rng.integers(0, len(classes), n), place)
        out[site] = pd.DataFrame({"x": x[:, 0], "other": x[:, 1], "ill": np.array(classes)[label]})
    return out


def study_of(sites: dict[str, pd.DataFrame], loss: str = "likelihood", **training: object) -> vt.Study:
    settings = {"rounds": 12, "lr": 0.05, "total": "mean", "weight_decay": 0.01, "loss": loss, **training}
    return vt.Study.infer(sites, target="ill").with_changes(training=settings, network={"hidden": [8], "dropout": 0.0})


@pytest.mark.parametrize("loss", LOSSES)
def test_where_doubt_knows_the_surest_are_right(loss: str) -> None:
    sites = world({"a": 600, "b": 450, "c": 310})
    run = vt.federate(study_of(sites, loss), sites, method="fedavg")
    table = run.uncertainty()
    assert (table.auroc > 0.8).all()
    assert (table.accuracy_kept > table.accuracy).all()
    curve = together(run.coverage()).set_index("share").accuracy
    assert list(curve.index) == sorted(SUREST)
    assert curve[50] > curve[100] + 0.08
    assert curve[50] > 0.95
    whole = gain(curve_of(run), kept_share(run.coverage()))
    assert whole is not None
    assert whole.low > 0


@pytest.mark.parametrize("loss", LOSSES)
def test_where_labels_are_drawn_by_lot_nothing_is_gained(loss: str) -> None:
    """Of ten intervals of 95 % at most two miss what is true: more would happen once in a hundred times."""
    missed = 0
    for draw in range(10):
        sites = world({"a": 900, "b": 900, "c": 900}, False, ("no", "yes"), draw)
        run = vt.federate(study_of(sites, loss), sites, method="fedavg")
        assert run.uncertainty().auroc.to_numpy() == pytest.approx(0.5, abs=0.1)
        curve = together(run.coverage()).set_index("share").accuracy
        assert curve[50] == pytest.approx(curve[100], abs=0.05)
        whole = gain(curve_of(run), kept_share(run.coverage()))
        assert whole is not None
        missed += not whole.low < 0 < whole.high
    assert missed <= 2


def curve_of(run: vt.Run) -> pd.DataFrame:
    return together(run.coverage())


@pytest.mark.parametrize("engine", ["vectorised", "looped"])
@pytest.mark.parametrize(
    ("method", "loss"), [("apfl", "likelihood"), ("fedper", "evidence"), ("centralized", "evidence")]
)
def test_what_is_told_is_what_predict_says_of_the_hold_out_rows(method: str, loss: str, engine: str) -> None:
    sites = world({"a": 90, "b": 60}, classes=("low", "mid", "high"))
    run = vt.federate(study_of(sites, loss), sites, method=method, engine=engine)
    table, curves = run.uncertainty().set_index("site"), run.coverage().set_index(["site", "share"])
    for site, frame in sites.items():
        y = frame.ill.map(run.study.target.levels.index).to_numpy()
        rows = frame.iloc[split_rows(y, run.study, run.seed, site)[1]]
        told = run.predict(site, rows)
        shares, levels = told.drop(columns="unsure"), np.array(run.study.target.levels)
        right = rows.ill == levels[decide(shares.to_numpy(np.float64), np.array(run.encoders[site].thresholds))]
        assert told.unsure.between(0, 1).all()
        assert table.loc[site, "rows"] == len(rows)
        assert table.loc[site, "doubt"] == pytest.approx(told.unsure.mean(), abs=1e-5)
        assert table.loc[site, "accuracy"] == pytest.approx(right.mean())
        sure = right[told.unsure.sort_values(kind="stable").index]
        for share in SUREST:
            at = curves.loc[(site, share)]
            assert np.isnan(at.accuracy) == (share not in surest_shares(len(rows)))
            assert np.isnan(at.accuracy) or at.accuracy == pytest.approx(sure.iloc[: int(at.rows)].mean())


def test_a_class_may_be_called_unsure() -> None:
    sites = world({"a": 60, "b": 60}, classes=("no", "unsure", "unsure_"))
    run = vt.federate(study_of(sites), sites, rounds=1)
    told = run.predict("a", sites["a"])
    assert list(told.columns) == [*run.study.target.levels, "unsure__"]
    assert told.columns.is_unique
    assert np.allclose(told[list(run.study.target.levels)].sum(axis=1), 1, atol=1e-5)
    assert run.model_of("a").note.startswith("unsure__: ")


def test_the_column_is_entropy_or_evidence() -> None:
    sites = world({"a": 90, "b": 60})
    notes = []
    for loss in LOSSES:
        run = vt.federate(study_of(sites, loss), sites)
        told, notes = run.predict("a", sites["a"]), [*notes, run.model_of("a").note]
        p = told[["no", "yes"]].to_numpy()
        entropy = -(p * np.log2(p)).sum(1)
        assert np.allclose(told.unsure, entropy, atol=1e-4) == (loss == "likelihood")
        if loss == "evidence":  # K / S bounds what any class can have: 1 / S is the least
            assert (p.min(1) >= told.unsure / 2 - 1e-6).all()
            assert told.unsure.max() < 1
    assert notes[0] != notes[1]


def test_small_sites_tell_no_number_about_few_rows() -> None:
    sites = world({"large": 600, "small": 60, "tiny": 30, "two": 4})
    run = vt.federate(study_of(sites), sites, rounds=2)
    table, curves = run.uncertainty().set_index("site"), run.coverage()
    assert table["rows"].between(1, 9).sum() == 1, table
    assert table.loc["two", ["doubt", "auroc", "accuracy", "accuracy_kept"]].isna().all()
    for _, told in curves.dropna().groupby("site"):
        assert np.diff(sorted(told["rows"]), prepend=0).min() >= 10, "nor of few rows by taking differences"
    assert curves[curves.site == "small"].accuracy.isna().any()
    assert curves[curves.site == "large"].accuracy.notna().all()
    told = run.history[run.history.split == COVERAGE]
    assert sorted(told.metric.unique()) == sorted(DOUBT)
    assert len(told) == len(sites) * len(DOUBT), "once, after the last round"


def test_the_scores_that_were_asked_for_stay_as_they_were() -> None:
    """Nothing of this is among the study's own metrics, in a comparison, or on the wire of numbers."""
    sites = world({"a": 60, "b": 60})
    study = study_of(sites).with_changes(metrics=["auc"])
    run = vt.federate(study, sites, rounds=2)
    for split in ("test", "train"):
        assert set(run.scores(split).metric) == {"auc"}
    assert set(run.curve().metric) == {"auc"}
    assert run.companion_scores().empty
    compared = vt.compare(study, sites, ["fedavg", "local"], seeds=[1], rounds=2)
    assert set(compared.scores.metric) == {"auc"}
    lines = [x for x in Plan(study, run.method).wire() if x.name.endswith(f", {COVERAGE}")]
    assert sum(x.bytes * x.rounds for x in lines) == 8 * len(DOUBT)
    sent = run.ledger[(run.ledger.stage == "scores") & (run.ledger.site == "a")].bytes.item()
    mine = run.history[(run.history.site == "a") & ~run.history.split.isin(["train", CONSTANT])]
    assert sent == 8 * len(mine)


def test_of_numbers_there_is_none(tmp_path: Path) -> None:
    sites = {k: v.assign(ill=v.x + 0.1 * v.other) for k, v in world({"a": 60, "b": 60}).items()}
    study = vt.Study.infer(sites, target="ill")
    run = vt.federate(study, sites, rounds=2, out=tmp_path / "run")
    assert list(run.predict("a", sites["a"]).columns) == ["ill"]
    assert run.model_of("a").note == ""
    assert COVERAGE not in set(run.history.split)
    assert not [x for x in Plan(study, run.method).wire() if COVERAGE in x.name]
    for ask in (run.uncertainty, vt.Run.load(tmp_path / "run").coverage):
        with pytest.raises(vt.VitrailError, match="its target is a number"):
            ask()


def test_saved_and_loaded_it_is_the_same(tmp_path: Path) -> None:
    sites = world({"007": 60, "NA": 15})
    run = vt.federate(study_of(sites, "evidence"), sites, out=tmp_path / "run")
    again = vt.Run.load(tmp_path / "run")
    pdt.assert_frame_equal(again.uncertainty(), run.uncertainty())
    pdt.assert_frame_equal(again.coverage(), run.coverage())
    assert run.coverage().accuracy.isna().any()
    assert isinstance(again.model_of("007"), Model)


def test_a_newcomer_tells_it_too() -> None:
    sites = world({"a": 150, "b": 120, "late": 90})
    early = {k: v for k, v in sites.items() if k != "late"}
    grown = vt.federate(study_of(sites), early, method="ifedavg", rounds=3).adopt("late", sites["late"])
    table = grown.uncertainty()
    assert table.site.tolist() == ["a", "b", "late"]
    assert table.accuracy.notna().all()
    late = grown.history[(grown.history.site == "late") & (grown.history.split != CONSTANT)]
    sent = grown.ledger[(grown.ledger.site == "late") & (grown.ledger.stage == "scores")]
    assert sent.bytes.item() == 8 * len(late)
    assert sent.messages.item() == len(late[["stage", "round"]].drop_duplicates())
