"""Risks that come true: a site's own constant, thresholds of decisions, missing-value indicators, changed defaults."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.optimize import minimize

import vitrail as vt
from vitrail.core.losses import CrossEntropy, Evidence, Hazard, SquaredError
from vitrail.data.encoding import Encoder, columns
from vitrail.data.readers.source import PassedOverWarning
from vitrail.export.safe_file import read_safe
from vitrail.export.writer import export_model
from vitrail.metrics.recalibration import INTERVAL_PENALTY, PENALTY, TIME_PENALTY, fit_constant, placed
from vitrail.metrics.scores import score
from vitrail.study.model import TrainingSpec

RATES = {"low": -2.4, "high": 0.0}  # a site's own log odds, beyond what the columns explain


def federation(seed: int = 1, rows: int = 700) -> dict[str, pd.DataFrame]:
    rng, out = np.random.default_rng(seed), {}
    for site, constant in RATES.items():
        x = rng.normal(size=(rows, 3))
        risk = 1 / (1 + np.exp(-(constant + x @ [1.0, -0.7, 0.0])))
        out[site] = pd.DataFrame(x, columns=list("abc")).assign(ill=(rng.random(rows) < risk).astype(int))
    return out


def study_of(sites: dict[str, pd.DataFrame], **training: object) -> vt.Study:
    return vt.Study.infer(sites, "ill", screen={"ask": False}, training={"rounds": 30, **training})


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("loss", [CrossEntropy(), Evidence()])
def test_constants_maximise_the_likelihood(classes: int, loss: CrossEntropy | Evidence) -> None:
    """Against a general optimiser; rows count for what they stand for."""
    rng = np.random.default_rng(classes)
    z, w = torch.from_numpy(rng.normal(size=(200, classes))), rng.integers(1, 4, 200).astype(float)
    y = np.eye(classes)[rng.integers(0, classes, 200)]

    def penalised(c: np.ndarray) -> float:
        p = placed(loss, torch.from_numpy(c)).predictions(z).numpy()
        return float(-(np.log((p * y).sum(1)) * w).sum() + PENALTY * (c**2).sum())

    best = minimize(penalised, np.zeros(classes), method="BFGS", options={"gtol": 1e-8}).x
    assert fit_constant(loss, z, y, w) == pytest.approx(best, abs=1e-4)


def test_a_constant_brings_the_mean_risk_to_what_is_observed() -> None:
    rng = np.random.default_rng(0)
    z = rng.normal(size=5000)
    happened = rng.random(5000) < 1 / (1 + np.exp(-(z - 2)))
    scores, y = torch.from_numpy(np.stack([0 * z, z], 1)), np.stack([~happened, happened], 1).astype(float)
    constant = fit_constant(CrossEntropy(), scores, y, np.ones(5000))
    assert constant is not None
    risk = placed(CrossEntropy(), torch.from_numpy(constant)).predictions(scores)[:, 1]
    assert float(CrossEntropy().predictions(scores)[:, 1].mean()) > 2 * happened.mean()  # the control: without it
    assert float(risk.mean()) == pytest.approx(happened.mean(), abs=0.001)
    assert constant[1] - constant[0] == pytest.approx(-2, abs=0.15)


def test_numbers_have_a_constant_too() -> None:
    rng = np.random.default_rng(3)
    z = torch.from_numpy(rng.normal(size=(400, 1)))
    constant = fit_constant(SquaredError(), z, z.numpy() + 2.5, np.ones(400))
    assert constant == pytest.approx([2.5 * 400 / (400 + PENALTY)])


def test_times_have_a_constant_for_each_interval() -> None:
    """Against a general optimiser, and against what the events were drawn with; rows count for what they stand for."""
    rng, shifts = np.random.default_rng(3), np.array([-1, -1, -1, -1, 0.5])
    z, w = rng.normal(-1, 0.3, (4000, 5)), rng.integers(1, 4, 4000).astype(float)
    drawn = rng.random(z.shape) < 1 / (1 + np.exp(-(z + shifts)))
    y = np.where(np.cumsum(drawn, 1) - drawn > 0, -1.0, drawn.astype(float))  # nothing is seen after the event

    def penalised(c: np.ndarray) -> float:
        """c: what all intervals have in common, and what each has beyond that."""
        moved = z + c[0] + c[1:]
        loss = ((np.logaddexp(0, moved) - moved * y) * (y >= 0) * w[:, None]).sum()
        return float(loss + (TIME_PENALTY * c[0] ** 2 + INTERVAL_PENALTY * (c[1:] ** 2).sum()) / 2)

    best = minimize(penalised, np.zeros(6), method="BFGS").x
    constant = fit_constant(Hazard(), torch.from_numpy(z), y, w)
    assert constant == pytest.approx(best[0] + best[1:], abs=1e-3)
    assert constant == pytest.approx(shifts, abs=0.2)
    few = fit_constant(Hazard(), torch.from_numpy(z[:40]), y[:40], np.ones(40))
    assert few is not None
    assert np.ptp(few) < np.ptp(shifts) / 2  # what a small site has in common is fitted before its intervals


@pytest.mark.parametrize("events", [0, 1])
def test_a_very_small_site_keeps_a_small_constant(events: int) -> None:
    y = np.eye(2)[[1] * events + [0] * (4 - events)]
    constant = fit_constant(CrossEntropy(), torch.zeros(4, 2), y, np.ones(4))
    assert constant is not None
    assert np.isfinite(constant).all()
    assert abs(constant[1] - constant[0]) < 2


def test_scores_that_are_no_numbers_have_no_constant() -> None:
    z = torch.full((3, 2), torch.nan)
    assert fit_constant(CrossEntropy(), z, np.eye(2)[[0, 1, 1]], np.ones(3)) == pytest.approx([0, 0])


@pytest.mark.parametrize("weights", ["none", "inverse"])
def test_risks_come_true_at_every_site(weights: str, tmp_path: Path) -> None:
    """Also where classes are weighed in training, in every way in which a model is used; without the constants they do
    not, which is the control."""
    sites = federation()
    run = vt.federate(study_of(sites, class_weights=weights), sites, seed=1)
    fresh = federation(seed=2)
    expected = {}
    for site, frame in fresh.items():
        risk, rate = run.predict(site, frame)["1"], frame.ill.mean()
        mine = run.model_of(site)
        bare = mine._replace(encoder=replace(mine.encoder, constants={})).predict(frame)["1"].mean()
        expected[site] = float(bare / rate)
        assert risk.mean() / rate == pytest.approx(1, abs=0.3)
        known = score(("log_loss", "brier"), frame.ill.to_numpy(), np.stack([1 - risk, risk], 1))
        always = score(("log_loss", "brier"), frame.ill.to_numpy(), np.tile([1 - rate, rate], (len(frame), 1)))
        assert all(known[m] < always[m] for m in known)
        file = tmp_path / f"{site}.vitrail"
        export_model(mine, site, "0123456789abcdef", file)
        assert read_safe(file).model.predict(frame)["1"].to_numpy() == pytest.approx(risk.to_numpy(), abs=1e-6)
        some = list(frame.index[:50])
        explained = run.explain(site, frame, rows=some)
        odds = np.log(risk[some] / (1 - risk[some]))
        assert (explained.base_values + explained.values.sum(1)) == pytest.approx(odds.to_numpy(), abs=1e-3)
    assert max(expected.values()) > (2 if weights == "inverse" else 1.5)


def test_a_saved_run_keeps_its_constants(tmp_path: Path) -> None:
    sites = federation(rows=80)
    run = vt.federate(study_of(sites), sites, seed=1, out=tmp_path / "run")
    back = vt.Run.load(tmp_path / "run")
    assert back.encoders["low"].constants == run.encoders["low"].constants != {}
    pd.testing.assert_frame_equal(back.predict("low", sites["low"]), run.predict("low", sites["low"]))


def test_rows_with_a_privacy_budget_are_given_neither_constant_nor_threshold() -> None:
    """Both would follow from training rows without noise, and a score that leaves the site would tell of them."""
    sites = federation(rows=200)
    plain = study_of(sites, rounds=2).with_changes(standardise="none")
    study = plain.with_changes(protect={"clip": 1.0, "rows": {"epsilon": 8.0}})
    encoder = vt.federate(study, sites, seed=1).encoders["low"]
    assert encoder.constants == {}
    assert encoder.thresholds == [0.5, 0.5]
    assert vt.federate(plain, sites, seed=1).encoders["low"].thresholds[1] < 0.3  # the control: the site's own rate
    stated = study.with_changes(target={"threshold": 0.2})  # which was agreed on, and follows from no row
    assert vt.federate(stated, sites, seed=1).encoders["low"].thresholds == [0.8, 0.2]


def test_decisions_are_made_at_the_sites_own_rate_unless_the_study_states_a_threshold() -> None:
    sites = federation()
    study = study_of(sites)
    for threshold in (None, 0.3):
        run = vt.federate(study.with_changes(target={"threshold": threshold}), sites, seed=1)
        scores = run.scores().set_index(["site", "metric"]).value
        cut = run.encoders["low"].thresholds[1]
        assert cut == pytest.approx(threshold or sites["low"].ill.mean(), abs=0.02)
        assert scores["low", "balanced_accuracy"] > 0.6 if threshold is None else True
    half = vt.federate(study.with_changes(target={"threshold": 0.5}), sites, seed=1).scores()
    rare = half.set_index(["site", "metric"]).value["low", "balanced_accuracy"]
    own = vt.federate(study, sites, seed=1).scores().set_index(["site", "metric"]).value["low", "balanced_accuracy"]
    assert own > rare + 0.05  # at one half hardly anybody with a rare outcome is found


def test_an_indicator_tells_the_model_where_a_value_is_missing() -> None:
    """Here nothing but being missing tells of the outcome."""
    rng, sites = np.random.default_rng(5), {}
    for site in ("one", "two"):
        ill = rng.random(400) < 0.4
        lab = np.where(rng.random(400) < np.where(ill, 0.7, 0.1), np.nan, rng.normal(size=400))
        sites[site] = pd.DataFrame({"lab": lab, "age": rng.normal(60, 9, 400), "ill": ill.astype(int)})
    study = study_of(sites).with_changes(network={"kind": "linear"})
    assert study.features["lab"].indicator
    assert not study.features["age"].indicator
    assert columns(study) == ["lab", "lab is missing", "age"]
    without = study.with_changes(
        features={n: {**f.model_dump(), "indicator": False} for n, f in study.features.items()}
    )
    with_it, control = (
        vt.federate(s, sites, seed=1).scores().query("metric == 'auc'").value.min() for s in (study, without)
    )
    assert with_it > 0.7 > 0.6 > control


def test_the_first_category_is_the_reference() -> None:
    plain = study_of(federation(rows=50)).model_dump()
    plain["features"] = {"cp": {"kind": "categorical", "categories": (1, 2, 3), "indicator": True}}
    table = vt.Study.parse(plain)
    encoder = Encoder(table, {}, {})
    assert encoder.columns == ["cp=2", "cp=3", "cp is missing"]
    rows = encoder.matrix(pd.DataFrame({"cp": [0.0, 1.0, 2.0, np.nan]}))
    assert rows.tolist() == [[0, 0, 0], [1, 0, 0], [0, 1, 0], [1 / 3, 1 / 3, 1]]
    before = table.with_changes(reference_level=False)
    assert columns(before) == ["cp=1", "cp=2", "cp=3", "cp is missing"]


def test_an_older_study_file_keeps_its_defaults_and_says_so_once(tmp_path: Path) -> None:
    plain = study_of(federation(rows=50)).to_toml()
    left_out = ("reference_level", "class_weights", "dropout", "lr", "weight_decay", "standardise", "format")
    text = "\n".join(line for line in plain.splitlines() if not line.startswith(left_out))
    for stated, changed in (("1.2", True), ("1.3", False), ("", False)):
        file = tmp_path / f"study{stated}.toml"
        file.write_text((f'format = "{stated}"\n' if stated else "") + text)
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            study = vt.Study.load(file)
        notes = [str(w.message) for w in seen if issubclass(w.category, PassedOverWarning)]
        assert len(notes) == changed
        assert study.training.class_weights == ("inverse" if changed else "none")
        assert study.standardise == ("local" if changed else "global")
        assert study.reference_level is not changed
        if changed:
            assert 'training.class_weights = "inverse"' in notes[0]


def test_a_papers_protocol_is_available_by_its_name() -> None:
    study = study_of(federation(rows=50)).model_dump()
    bare = {k: v for k, v in study.items() if k in ("target", "features")}
    assert vt.Study.parse({**bare, "paper": "ifedavg"}).training.class_weights == "inverse"
    assert vt.Study.parse({**bare, "paper": "ifedavg", "training": {"lr": 0.1}}).training.lr == 0.1
    with pytest.raises(vt.VitrailError, match="paper"):
        vt.Study.parse({**bare, "paper": "ifedavgg"})


def test_the_drafted_study_states_right_risks_of_a_rare_event() -> None:
    """As `vitrail init` and `vitrail run` come: risks of new rows, of an event in 4 to 9 of 100 rows."""
    constants = {"a": -4.0, "b": -3.4, "c": -2.9}

    def drawn(seed: int) -> dict[str, pd.DataFrame]:
        rng, out = np.random.default_rng(seed), {}
        for site, constant in constants.items():
            x = rng.normal(size=(1500, 4))
            happened = rng.random(1500) < 1 / (1 + np.exp(-(constant + x @ [1.0, -0.8, 0.4, 0.0])))
            out[site] = pd.DataFrame(x, columns=list("wxyz")).assign(ill=happened.astype(int))
        return out

    sites, fresh = drawn(1), drawn(2)
    run = vt.federate(vt.Study.infer(sites, "ill", screen={"ask": False}), sites, seed=1)
    for site, frame in fresh.items():
        risk, happened = run.predict(site, frame)["1"].to_numpy(), frame.ill.to_numpy()
        rate = sites[site].ill.mean()
        assert 0.02 < rate < 0.12
        assert happened.mean() / risk.mean() == pytest.approx(1, abs=0.25)
        loss = score(("log_loss",), happened, np.stack([1 - risk, risk], 1))["log_loss"]
        own_rate = score(("log_loss",), happened, np.tile([1 - rate, rate], (len(frame), 1)))["log_loss"]
        assert loss < 0.95 * own_rate


def test_training_is_drafted_from_target_and_rows() -> None:
    """The penalty over all rows is the same whatever their number; what is given stays, and so does a paper's way."""
    small, large = (study_of(federation(rows=rows)).training for rows in (50, 500))
    assert small.weight_decay == pytest.approx(10 * large.weight_decay, rel=0.05)
    assert small.weight_decay_alone == pytest.approx(len(RATES) * small.weight_decay, rel=0.05)
    assert (small.rounds, small.lr) == (30, large.lr)
    assert small.lr > TrainingSpec().lr
    assert study_of(federation(rows=50), lr=0.3).training.lr == 0.3
    numbers = vt.Study.infer(federation(rows=50), "a", screen={"ask": False}).training
    assert numbers.lr == TrainingSpec().lr
    paper = vt.Study.infer(federation(rows=50), "ill", paper="ifedavg").training
    assert (paper.weight_decay, paper.weight_decay_alone) == (0.0, None)
    assert paper.lr < TrainingSpec().lr


def test_a_site_that_trains_alone_has_the_penalty_of_its_own_rows() -> None:
    """For every run that trains sites alone; it makes them better there, which is the yardstick of joining."""
    wards = {f"{s} {i}": f[60 * i : 60 * i + 60] for s, f in federation(rows=300).items() for i in range(5)}
    study = study_of(wards, rounds=60)
    same = study.with_changes(training={"weight_decay_alone": None})
    fresh = federation(seed=2)
    losses = []
    for agreed in (study, same):
        run = vt.federate(agreed, wards, "local", seed=1)
        new = {ward: fresh[ward.split()[0]] for ward in wards}
        risks = {ward: run.predict(ward, frame)[["0", "1"]].to_numpy(float) for ward, frame in new.items()}
        losses.append(np.mean([score(("log_loss",), new[w].ill.to_numpy(), p)["log_loss"] for w, p in risks.items()]))
    assert losses[0] < losses[1] - 0.02


def test_ditto_is_not_local_on_the_shipped_hospitals() -> None:
    """Its default lambda once had so little weight that both gave the same risks."""
    sites = vt.datasets.heart_disease()
    study = vt.Study.infer(sites, "disease", screen={"ask": False}, training={"weight_decay_alone": None})
    risks = [
        np.concatenate([run.predict(site, frame)["1"].to_numpy(float) for site, frame in sites.items()])
        for run in (vt.federate(study, sites, method, seed=1) for method in ("ditto", "local"))
    ]
    assert 0.5 < np.corrcoef(*risks)[0, 1] < 0.99
