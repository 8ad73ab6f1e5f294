"""Coalitions trained again, and reports carried over to what training again would have made of them."""

from __future__ import annotations

import itertools
import sys

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

import vitrail as vt
from vitrail.data.splitting import split_rows
from vitrail.report.pages.contribution import render_contribution
from vitrail.runs.folder import UPDATES
from vitrail.studies.contribution.reliability import spot, strain
from vitrail.studies.contribution.replay import UpdateReplay
from vitrail.studies.contribution.retraining import CoalitionRetraining
from vitrail.studies.contribution.values import AGAIN, CARRIED, ROUND, contribution

# --- reports carried to other models ----------------------------------------------------------------------------------


def all_coalitions(players: int) -> np.ndarray:
    return np.array(list(itertools.product((False, True), repeat=players)))


def test_of_the_user_alone_and_of_everybody_it_is_training_again(study, sites, tmp_path) -> None:
    """After ten rounds: after three the models have moved so little that reports as given are no worse."""
    vt.federate(study, sites, rounds=10, out=tmp_path / "run", keep_updates=True)
    run = vt.Run.load(tmp_path / "run")
    record, again = (
        UpdateReplay(run, tmp_path / "run", "va", sites["va"]),
        CoalitionRetraining(run, "va", sites, [run.seed]),
    )
    assert record.names == again.names
    masks = all_coalitions(4)
    trained, rebuilt = again.losses(again.models(masks, run.seed)).mean(1), record.losses(record.carried(masks)).mean(1)
    same = [0, 2 ** (3 - record.at), 15]
    assert rebuilt[same] == pytest.approx(trained[same], abs=1e-6)
    others = np.setdiff1d(np.arange(16), same)
    assert np.abs(rebuilt - trained)[others].max() > 1e-4, "of the others it is a guess"
    as_given = record.losses(record.rebuilt(masks)).mean(1)
    assert np.abs(rebuilt - trained).mean() < 0.7 * np.abs(as_given - trained).mean()


def test_where_reports_bend_alike_it_is_training_again(tmp_path) -> None:
    """A linear model of a number, whole batches, the same features everywhere and other targets: a report is then a
    straight function of the model, with the same slope at all sites."""
    rng, n = np.random.default_rng(0), 60
    common = pd.DataFrame(rng.normal(size=(n, 3)), columns=list("xyz"))

    def draft(name: str, turned: np.ndarray) -> pd.DataFrame:
        whole = common.sample(n, replace=True, random_state=1).reset_index(drop=True)
        train, _ = split_rows(np.arange(n, dtype=float), agreed, 5, name)
        whole.iloc[np.sort(train)] = common.iloc[: len(train)]
        return whole.assign(target=whole.to_numpy() @ turned)

    first = common.assign(target=common.to_numpy().sum(1) * 3.0)
    agreed = vt.Study.infer({"a": first, "b": first}, "target", network={"kind": "linear"})
    agreed = agreed.with_changes(training={"rounds": 8, "lr": 0.004, "batch": 200}, method={"name": "fedavg"})
    sites = {name: draft(name, rng.normal(size=3)) for name in "abcd"}
    vt.federate(agreed, sites, seed=5, out=tmp_path / "run", keep_updates=True)
    run = vt.Run.load(tmp_path / "run")
    record, again = UpdateReplay(run, tmp_path / "run", "b", sites["b"]), CoalitionRetraining(run, "b", sites, [5])
    masks = all_coalitions(4)
    trained = again.losses(again.models(masks, 5)).mean(1)
    carried, given = (record.losses(made(masks)).mean(1) for made in (record.carried, record.rebuilt))
    assert carried == pytest.approx(trained, rel=1e-4)
    assert np.abs(given - trained).max() > 0.1 * np.abs(trained).max()
    assert spot(record, again, 1.0) == pytest.approx(0, abs=1e-4)


def test_strain_by_hand(sites, kept) -> None:
    """Of FedAvg with equal weights: what a site's report alone changes is its report."""
    run = vt.Run.load(kept)
    record = UpdateReplay(run, kept, "va", sites["va"])
    files = [load_file(f) for f in sorted((kept / UPDATES).iterdir())]
    told = np.stack([np.hstack([v.flatten(1) for k, v in sorted(f.items()) if "change" in k]) for f in files])
    moved = told.mean(1)  # [round, number]
    apart = np.sqrt(((told.sum(0) - moved.sum(0)) ** 2).sum(1).mean() / (moved.sum(0) ** 2).sum())
    bend = -np.einsum("rin,rn->i", np.diff(told, axis=0), moved[:-1])
    unlike = np.abs(np.log(np.delete(bend, record.at) / bend[record.at]).clip(-3, 3)).mean()
    assert strain(record) == pytest.approx(apart * (0.2 + unlike), rel=1e-4)


# --- training again ---------------------------------------------------------------------------------------------------


def test_few_sites_are_trained_again_and_seeds_differ(study, sites, kept) -> None:
    told = contribution(kept, "va", sites, seeds=3)
    assert (told.kind, told.seeds, told.doubt()) == (AGAIN, 3, "")
    assert (told.main().chance > 0).all(), "half of the interval over seeds"
    assert told.main().value.sum() == pytest.approx(told.gain, abs=1e-9)
    page = render_contribution(told)
    assert "trained again" in page
    assert "seeds; the interval includes their noise" in page
    one = contribution(kept, "va", sites, seeds=1)
    assert not one.main().chance.any()
    assert "the noise of the seed is unknown" in one.reliance()
    rebuilt = contribution(kept, "va", sites, retrain=False)
    assert (one.same, one.end) == pytest.approx((rebuilt.same, rebuilt.end), abs=1e-5), "the first seed is the run's"
    assert rebuilt.kind == CARRIED
    assert rebuilt.spot is None


def test_nobody_is_worth_the_baseline_and_not_a_model_drawn_by_lot(sites, kept) -> None:
    run = vt.Run.load(kept)
    again = CoalitionRetraining(run, "va", sites, [run.seed, 7])
    nobody, none = np.zeros((1, 4), dtype=bool), -again.baseline()
    for seed in again.seeds:
        assert again.worth(nobody, seed)[0] == pytest.approx(none)
    started = again.losses([again.start])[0]
    assert abs(started.mean() + none.mean()) > 1e-3, "the first model has another loss"


def test_training_again_is_a_run_with_fewer_sites(study, sites, tmp_path) -> None:
    """And needs no updates. Standardised at each site, so that a run of two sites prepares them as one of four does."""
    away, study = {"va": [(2, 2)]}, study.with_changes(standardise="local")
    vt.federate(study, sites, out=tmp_path / "run", away=away)
    run = vt.Run.load(tmp_path / "run")
    again = CoalitionRetraining(run, "va", sites, [run.seed])
    two = {s: sites[s] for s in ("va", "hungarian")}
    (model,) = again.models(np.array([[s in two for s in again.names]]), run.seed)
    right = vt.federate(study, two, away=away)
    assert all(torch.allclose(v, right.shared[f"params/{k}"].double(), atol=1e-6) for k, v in model.params.items())
    assert dict(zip(again.names, again.took_part, strict=True)) == {
        s: study.training.rounds - (s == "va") for s in sites
    }
    told = contribution(tmp_path / "run", "va", sites, method="loo", seeds=1)
    without = vt.federate(study, {s: v for s, v in sites.items() if s != "hungarian"}, away=away)
    _, test = split_rows(sites["va"].disease.to_numpy(), study, run.seed, "va")
    rows = sites["va"].iloc[test]
    at = (np.arange(len(rows)), rows.disease.to_numpy())
    worse, loss = (-np.log(r.predict("va", rows).to_numpy()[at]).mean() for r in (without, run))
    assert told.main().value["hungarian"] == pytest.approx(worse - loss, abs=1e-5)


def test_more_sites_are_checked_at_single_ones(study, sites, tmp_path, monkeypatch, kept) -> None:
    monkeypatch.setattr(sys.modules[contribution.__module__], "FEW", 3)
    told = contribution(kept, "va", sites, "shapley")
    assert told.kind == CARRIED
    run = vt.Run.load(kept)
    record, again = UpdateReplay(run, kept, "va", sites["va"]), CoalitionRetraining(run, "va", sites, [run.seed])
    alone = np.vstack([np.zeros((1, 4), dtype=bool), np.eye(4, dtype=bool)])
    off = record.losses(record.carried(alone)).mean(1) - again.losses(again.models(alone, run.seed)).mean(1)
    first, baseline = record.losses([record.start]).mean(), record.baseline().mean()
    size = (told.main().value + (first - baseline) / 4).abs().sum()
    assert told.spot == pytest.approx(np.delete(np.abs(off[1:]), record.at).mean() / size, rel=1e-4)
    assert told.spot > 0
    assert contribution(kept, "va", sites, "shapley", retrain=True, seeds=1).kind == AGAIN


def test_what_is_ones_own_cannot_be_trained_again(study, sites, tmp_path) -> None:
    vt.federate(study, sites, method="fedper", out=tmp_path / "run", keep_updates=True)
    assert contribution(tmp_path / "run", "va", sites, "loo").kind == ROUND
    with pytest.raises(vt.VitrailError, match="a part of its own"):
        contribution(tmp_path / "run", "va", sites, retrain=True)
