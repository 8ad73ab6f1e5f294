"""A site that refuses to show something: it trains, nothing of it is shown, and it is not asked about its rows. And
facts of sites stand in the run's own order."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch

import vitrail as vt
from vitrail.core.exchange import Stage
from vitrail.core.facts import AGREED, Fact, find_value, in_order, private_layers_of
from vitrail.data.splitting import split_rows
from vitrail.methods.blocks.basics import Reveal
from vitrail.quality.screening.result import Finding, Screening
from vitrail.runs.setup import absence
from vitrail.runs.site.inspection import behind

ENDS = ("input.shift", "input.scale")


@pytest.fixture(scope="module")
def sites() -> dict[str, pd.DataFrame]:
    return vt.datasets.heart_disease()


@pytest.fixture(scope="module")
def study() -> vt.Study:
    agreed = vt.Study.load(vt.datasets.packaged("heart_disease.toml"))
    return agreed.with_changes(training={"rounds": 3}, network={"hidden": [8]})


def test_who_refuses_trains_and_shows_nothing(study, sites) -> None:
    run = vt.federate(study, sites, method="ifedavg", refuse=["va"])
    names = sorted(sites)
    at = names.index("va")
    agreed = find_value(run.facts, AGREED)
    assert agreed is not None
    assert agreed.tolist() == [n != "va" for n in names]
    layers = private_layers_of(run.facts)
    assert layers
    assert all(not bool(v[at].any()) for v in layers.values())
    table = run.shifts().set_index("site")
    assert table.loc["va", "value"].isna().all()
    assert table.drop("va").value.notna().all()
    assert "va" not in {f.site for f in run.findings()}
    shown = run.ledger.query("stage == 'publish' and direction == 'from site' and messages > 0")
    assert set(shown.site) == set(sites) - {"va"}
    # but it trained: its layers are no longer where all began
    assert not torch.equal(run.models["va"]["params/input.shift"], torch.zeros_like(layers["input.shift"][at]))
    open_ = vt.federate(study, sites, method="ifedavg")
    assert all(torch.equal(v, open_.models["va"][k]) for k, v in run.models["va"].items())


def test_whoever_is_asked_by_consent_is_waited_for_and_may_refuse() -> None:
    """Whatever the stages are called; and absence by chance or by plan is of the others."""
    shows = Reveal(lambda task, state: {}, lambda name: ((), ""), "something")
    stages = (Stage("a", (vt.methods.FedAvg(),), 9), Stage("b", (shows,), 1))
    names = ("one", "two", "three")
    absent = absence(names, 1, 0.999999, {"two": [(1, 9)]}, ["three"], stages)
    assert absent is not None
    assert absent(0, 0).tolist() == [True, True, True]
    assert absent(1, 0).tolist() == [False, False, True]
    planned = absence(names, 1, 0.0, {"two": [(2, 3)]}, ["three"], stages)
    assert planned is not None
    assert [planned(0, r).tolist() for r in range(4)] == [[False, r in (1, 2), False] for r in range(4)]
    assert absence(names, 1, 0.0, {}, [], stages) is None


def test_every_axis_of_sites_is_put_in_order() -> None:
    value = torch.arange(2 * 3 * 3 * 4).view(2, 3, 3, 4)
    at = torch.tensor([2, 0, 1])
    got = in_order(Fact(value, ("user", "site", "input")), at, 1).value
    assert torch.equal(got, value[:, at][:, :, at])
    square = torch.arange(9).view(3, 3)
    assert torch.equal(in_order(Fact(square, ("user", "site")), at).value, square[at][:, at])
    assert torch.equal(in_order(Fact(square, ("input", "site")), at).value, square[:, at])
    assert torch.equal(in_order(Fact(square, ("input", "output")), at).value, square)


@pytest.mark.parametrize("method", ["weight_erosion", "influence"])
def test_facts_stand_in_the_runs_order(method, study, sites) -> None:
    """The engine puts the largest site first; a run has its sites as they were given."""
    names, linear = sorted(sites), study.with_changes(network={"kind": "linear"})
    refuse = ["va"] if method == "weight_erosion" else []
    orders = ({n: sites[n] for n in order} for order in (names, names[::-1]))
    runs = [vt.federate(linear, tables, method=method, refuse=refuse) for tables in orders]
    assert runs[0].sites == runs[1].sites[::-1]
    at = torch.tensor([runs[1].sites.index(n) for n in runs[0].sites])
    checked = 0
    for k, fact in runs[0].facts.items():
        other = in_order(runs[1].facts[k], at, int(fact.every))
        assert other.axes == fact.axes
        np.testing.assert_array_equal(fact.value.numpy(), other.value.numpy(), err_msg=k)
        checked += "site" in fact.axes or "user" in fact.axes
    assert checked >= 1


def test_layers_are_told_under_the_name_of_their_site(study, sites) -> None:
    """Published under the names in their order, whatever the sizes: each row of the table is that site's own model."""
    run = vt.federate(study, {n: sites[n] for n in sorted(sites)[::-1]}, method="ifedavg")
    table = run.shifts()
    for name in sites:
        mine = table[(table.site == name) & (table.layer == "b_in")].value.to_numpy()
        np.testing.assert_allclose(mine, run.models[name]["params/input.shift"].double().numpy(), rtol=1e-12)


def test_a_newcomer_starts_at_the_mean_of_those_who_published(study, sites) -> None:
    """Not drawn towards zero by sites that showed nothing. With a rate of 0 that is where it stays."""
    others = {n: f for n, f in sites.items() if n != "cleveland"}
    run = vt.federate(study, others, method="ifedavg", refuse=["va"])
    grown = replace(run, method=replace(run.method, lr=0.0)).adopt("late", sites["cleveland"])
    layers = {k: torch.stack([run.models[n][f"params/{k}"] for n in ("hungarian", "switzerland")]) for k in ENDS}
    for k, v in layers.items():
        torch.testing.assert_close(grown.models["late"][f"params/{k}"], v.mean(0))


def test_a_run_is_resumed_with_the_refusals_it_began_with(study, sites, tmp_path) -> None:
    """And who was absent is in the log, by name and round."""
    out = tmp_path / "run"
    vt.federate(study, sites, method="ifedavg", refuse=["va"], away={"hungarian": [(2, 2)]}, out=out)
    events = [json.loads(line) for line in (out / "events.jsonl").read_text().splitlines()]
    gone = [(e["stage"], e["round"], e["sites"]) for e in events if e["event"] == "absent"]
    assert gone == [(0, 2, ["hungarian"]), (1, 1, ["va"])]
    with pytest.raises(vt.VitrailError, match="refuse"):
        vt.federate(study, sites, method="ifedavg", away={"hungarian": [(2, 2)]}, out=out, resume=True)


def test_a_number_is_scored_in_its_own_unit(sites) -> None:
    frames = {k: v.dropna(subset=["thalach"]) for k, v in sites.items()}
    study = vt.Study.infer(frames, target="thalach").with_changes(training={"rounds": 2})
    run = vt.federate(study, frames, method="fedavg", seed=3)
    told_ = run.scores()[lambda t: t.metric == "rmse"].set_index("site").value
    for site, frame in frames.items():
        rows = frame.iloc[split_rows(frame.thalach.to_numpy(), study, 3, site)[1]]
        wrong = run.predict(site, rows).thalach.to_numpy() - rows.thalach.to_numpy()
        assert told_[site] == pytest.approx(np.sqrt((wrong**2).mean()), rel=1e-4)


def test_a_site_is_told_the_mean_of_the_others(study, sites) -> None:
    """Those who published, without its own; and its own findings only."""
    run = vt.federate(study, sites, method="ifedavg", refuse=["va"])
    found = [Finding(site, "chol", "offset", True, 1.0, f"about {site}") for site in ("cleveland", "hungarian")]
    judged = pd.DataFrame({"site": list(sites), "judged": [name != "va" for name in sites]})
    run.screening = Screening(found, pd.DataFrame(), judged, 0.05)
    for site, others in (
        ("cleveland", ["hungarian", "switzerland"]),
        ("va", ["cleveland", "hungarian", "switzerland"]),
    ):
        found = behind(run, site)
        assert found.others == len(others)
        assert found.judged == (site != "va")
        assert [f.text for f in found.findings] == ([f"about {site}"] if site != "va" else [])
        for k in ENDS:
            mean = torch.stack([run.models[n][f"params/{k}"].double() for n in others]).mean(0)
            torch.testing.assert_close(found.layers[k], mean, rtol=1e-9, atol=1e-12)
