"""A run of Weight Erosion: facts of every round in the order of the sites, models beside, resume, refusal."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import vitrail as vt
from tests.support.small import opposed_tables
from vitrail.core.errors import VitrailError
from vitrail.core.facts import ALONE, ALONE_WEIGHT, OWN, SHARED
from vitrail.report.pages.builder import page_of
from vitrail.report.pages.run import render
from vitrail.report.sections.learning.sources import read_learned
from vitrail.runs.result import Run

ROWS = {"small": 60, "large": 150, "middle": 100}


@pytest.fixture(scope="module")
def tables() -> dict[str, pd.DataFrame]:
    return opposed_tables(ROWS)


@pytest.fixture(scope="module")
def study(tables: dict[str, pd.DataFrame]) -> vt.Study:
    drawn = vt.Study.infer(tables, target="sick")
    training = {"rounds": 12, "batch": 32, "total": "mean", "lr": 0.3}
    return drawn.with_changes(network={"kind": "linear"}, training=training, method={"name": "weight_erosion"})


@pytest.fixture(scope="module")
def run(study: vt.Study, tables: dict[str, pd.DataFrame], tmp_path_factory: pytest.TempPathFactory) -> Run:
    return vt.federate(study, tables, seed=3, out=tmp_path_factory.mktemp("runs") / "one")


def test_facts_are_in_the_order_of_the_runs_sites(run: Run, study: vt.Study, tables: dict[str, pd.DataFrame]) -> None:
    trust = run.trust()
    assert trust.sites == run.sites
    assert trust.alpha.shape == (12, 3, 3)
    assert trust.rounds.tolist() == list(range(1, 13))
    odd = run.sites.index("middle")
    for user in range(3):
        assert trust.final[user, user] == 1
        if user != odd:
            other = 3 - odd - user
            assert trust.final[user, odd] < trust.final[user, other], "the flipped site is trusted least"
    for i, site in enumerate(run.sites):  # what a site showed is the local model it keeps
        shown, kept = run.fact(ALONE_WEIGHT), run.model_of(site).models()[ALONE]
        assert shown is not None
        assert any(torch.equal(shown[i], tensor) for tensor in kept.values())


def test_all_three_models_are_scored_in_one_run(run: Run) -> None:
    beside = run.companion_scores()
    assert set(beside["model"]) == {SHARED, ALONE}
    own = run.scores().set_index(["site", "metric"])["value"]
    last = beside[(beside["round"] == 12) & (beside["metric"] == "auc")].set_index(["site", "model"])["value"]
    assert own["middle", "auc"] > last["middle", SHARED], "where a decision falls does not matter here"


def test_the_ledger_holds_what_the_contract_declares(run: Run) -> None:
    sent = run.ledger.set_index(["site", "stage", "direction"])
    models = 4 * (3 + 1) * (2 + 1) * 2  # three users and Global; two features and a constant for two classes
    for site in run.sites:
        assert sent.loc[(site, "train", "from site"), "bytes"] == 12 * (models + 5 * 4)
        assert sent.loc[(site, "show", "from site"), "bytes"] == 4 * (2 + 1) * 2


def test_the_wire_names_all_that_travels(run: Run) -> None:
    whole = run.plan.wire()
    lines = {(x.stage, x.direction, x.name): x for x in whole}
    update = lines["train", "from site", "update/head.weight"]
    assert (update.shape, update.rounds, update.seen) == ((4, 2, 2), 12, "each")
    assert lines["train", "to site", "models/head.bias"].shape == (4, 2)
    assert ("show", "from site", "shown/head.weight") in lines
    assert ("scores", "from site", f"{run.study.metrics[0]}, {SHARED}") in lines
    for direction in ("from site", "to site"):
        declared = sum(x.bytes * x.rounds for x in whole if x.direction == direction)
        counted = run.ledger[run.ledger["direction"] == direction].groupby("site")["bytes"].sum()
        assert set(counted) == {declared}


def test_each_site_predicts_with_its_own_model(run: Run, tables: dict[str, pd.DataFrame]) -> None:
    rows = tables["small"].head(20)
    for site in run.sites:
        model, (mean, sd) = run.models[site], (run.encoders[site].mean, run.encoders[site].sd)
        x = np.stack([(rows[k] - mean[k]) / sd[k] for k in ("age", "dose")], 1)
        z = x @ model["params/head.weight"].numpy() + model["params/head.bias"].numpy()
        z = z + run.encoders[site].constants[OWN]  # the site's own
        assert np.allclose(run.predict(site, rows)["yes"], 1 / (1 + np.exp(z[:, 0] - z[:, 1])), atol=1e-4)
    assert not torch.equal(run.models["small"]["params/head.bias"], run.models["middle"]["params/head.bias"])


def test_stop_and_resume_keeps_every_round(
    study: vt.Study, tables: dict[str, pd.DataFrame], run: Run, tmp_path: Path
) -> None:
    def stop(done: int, total: int) -> None:
        if done == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        vt.federate(study, tables, seed=3, out=tmp_path / "two", progress=stop, checkpoint_seconds=0)
    again = vt.federate(study, tables, seed=3, out=tmp_path / "two", resume=True)
    for name, fact in run.facts.items():
        same = again.facts[name]
        assert fact[1:] == same[1:]
        assert torch.equal(torch.nan_to_num(fact.value), torch.nan_to_num(same.value)), name
    loaded = Run.load(tmp_path / "two")
    assert np.array_equal(loaded.trust().alpha, run.trust().alpha)


def test_a_site_that_refuses_shows_no_local_weights(study: vt.Study, tables: dict[str, pd.DataFrame]) -> None:
    shy = vt.federate(study, tables, seed=3, rounds=2, refuse=["large"])
    learned = read_learned(shy)
    assert learned is not None
    assert learned.refused == ["large"]
    assert learned.weights is not None
    shown = learned.weights[learned.weights["model"] == ALONE]["site"].unique()
    assert set(shown) == {"small", "middle"}
    assert "large did not show its local model" in render(page_of(shy))


def test_weights_are_differences_between_the_two_answers(run: Run) -> None:
    learned = read_learned(run)
    assert learned is not None
    assert learned.weights is not None
    row = learned.weights[(learned.weights["site"] == "small") & (learned.weights["model"] == OWN)]
    got = row.set_index("feature")["value"]
    assert set(row["answer"]) == {"yes"}
    weight = run.models["small"]["params/head.weight"]
    assert got["age"] == pytest.approx(float(weight[0, 1] - weight[0, 0]))
    assert got["age"] > 0 > got["dose"]


def test_other_methods_have_no_trust(study: vt.Study, tables: dict[str, pd.DataFrame]) -> None:
    plain = vt.federate(study, tables, "fedavg", rounds=1, seed=3)
    with pytest.raises(VitrailError, match="no trust"):
        plain.trust()
    assert plain.companion_scores().empty
    assert read_learned(plain) is None
