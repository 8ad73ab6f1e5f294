"""Contribution: Shapley values against brute force, updates that survive a kill, credits that sum to the gain."""

from __future__ import annotations

import dataclasses
import itertools
import json
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file, save_file

import vitrail as vt
from tests.support.report.pages import without_script
from tests.support.small import make_sites, models, train
from vitrail.core.losses import CrossEntropy
from vitrail.data.splitting import split_rows
from vitrail.metrics.recalibration import fit_constant
from vitrail.report.pages.builder import page_of
from vitrail.report.pages.contribution import render_contribution, write_contribution
from vitrail.runs.folder import UPDATES
from vitrail.runs.integrity import seal_again
from vitrail.stats.shapley import Values, exact, leave_one_out, paired, paired_mean
from vitrail.studies.contribution.ledger import credits_of, ledger_of
from vitrail.studies.contribution.reliability import AS_GIVEN, SPOT, STRAIN
from vitrail.studies.contribution.values import (
    CARRIED,
    LOO,
    ROUND,
    SHAPLEY,
    WHOLE,
    contribution,
    to_text,
    write_tables,
)

# --- the values of a game ---------------------------------------------------------------------------------------------


class Game:
    """A game with a worth for every coalition and row, drawn by lot; counts what it is asked."""

    def __init__(self, players: int, rows: int = 3, seed: int = 0) -> None:
        self.table = np.random.default_rng(seed).normal(size=(2**players, rows))
        self.bits, self.asked = 2 ** np.arange(players), 0

    def __call__(self, masks: np.ndarray) -> np.ndarray:
        self.asked += len(masks)
        return self.table[masks @ self.bits]


def brute_force(worth, players: int) -> np.ndarray:
    """The definition: mean over all orders of what a player adds when it arrives. [player, row]"""
    total, count, seen = 0.0, 0, {}

    def of(here: np.ndarray) -> np.ndarray:
        if here.tobytes() not in seen:
            seen[here.tobytes()] = worth(here[None])[0]
        return seen[here.tobytes()]

    for order in itertools.permutations(range(players)):
        here = np.zeros(players, dtype=bool)
        adds = np.zeros((players, len(of(here))))
        for player in order:
            before = of(here)
            here[player] = True
            adds[player] = of(here) - before
        total, count = total + adds, count + 1
    return total / count


@pytest.mark.parametrize("players", [1, 2, 5])
def test_exact_is_the_mean_over_all_orders(players) -> None:
    game = Game(players)
    got = exact(game, players)
    assert game.asked == 2**players == got.asked
    assert got.rows == pytest.approx(brute_force(game, players), abs=1e-12)
    assert got.rows.sum(0) == pytest.approx(game.table[-1] - game.table[0]), "efficiency"


def test_twins_share_and_a_dummy_gets_nothing() -> None:
    """Players 0 and 1 can stand for each other; player 3 changes nothing."""
    inner = Game(3)

    def worth(masks: np.ndarray) -> np.ndarray:
        first = masks[:, 0] | masks[:, 1]
        both = masks[:, 0] & masks[:, 1]
        return inner(np.stack([first, both, masks[:, 2]], 1))

    got = exact(worth, 4)
    assert got.rows[0] == pytest.approx(got.rows[1], abs=1e-12)
    assert got.rows[3] == pytest.approx(0, abs=1e-12)
    assert np.abs(got.rows[0]).min() > 1e-3


def test_pairs_by_lot_come_near_and_say_how_near() -> None:
    """The interval is that of the mean over rows, which is narrower than the rows' own where their errors differ."""
    game, players = Game(11, rows=40, seed=3), 11
    right, inside = exact(game, players), []
    for seed in range(20):
        some = paired_mean(game, players, 300, np.random.default_rng(seed))
        assert some.asked == 302
        assert some.rows.sum(0) == pytest.approx(right.rows.sum(0)), "efficiency"
        inside += list(np.abs(some.mean - right.mean) < some.half)
    assert 0.9 < np.mean(inside) <= 1
    assert some.half.mean() < 0.5 * paired(game, players, 300, np.random.default_rng(0)).half.mean()
    assert not paired_mean(game, players, 2**players, np.random.default_rng(0)).half.any(), "all: no lot"


def test_leave_one_out_is_the_last_to_arrive() -> None:
    game = Game(3)
    got = leave_one_out(game, 3)
    assert got.rows[1] == pytest.approx(game.table[0b111] - game.table[0b101])
    assert got.asked == 4


def test_credits_follow_the_rule() -> None:
    all_three, both = np.ones(3, dtype=bool), np.ones(2, dtype=bool)
    assert credits_of(np.array([0.4, -0.1, 0.1]), all_three) == pytest.approx([0.32, 0, 0.08])
    assert credits_of(np.array([[0.1, -0.3], [0.2, 0.2]]), both) == pytest.approx(np.array([[0, 0], [0.2, 0.2]]))
    assert credits_of(np.array([0.4, -0.1, 0.1]), np.array([True, True, False])) == pytest.approx([0.4, 0, 0])
    assert not credits_of(np.zeros(3), all_three).any()


def test_only_sure_values_are_paid() -> None:
    """The second site's value is as large in the mean, and may as well be nothing."""
    rng = np.random.default_rng(0)
    rows = np.stack([0.1 + 0.1 * rng.normal(size=200), 0.1 + 4 * rng.normal(size=200)])
    got = Values(rows - rows.mean(1, keepdims=True) + 0.1, np.zeros(2), 4)
    draws = rng.multinomial(200, [1 / 200] * 200, 500) / 200
    ledger = ledger_of(["sure", "unsure"], np.array([3, 3]), got, draws).set_index("site")
    assert ledger.low["sure"] > 0 > ledger.low["unsure"]
    assert ledger.value.to_numpy() == pytest.approx([0.1, 0.1])
    assert ledger.credit.to_dict() == {"sure": pytest.approx(0.2), "unsure": 0.0}
    assert ledger.credit_high["unsure"] == 0


# --- what is kept -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", [vt.methods.FedAvg(weights="rows"), vt.methods.Scaffold()])
def test_keeping_reports_changes_no_bit(method) -> None:
    absent = lambda stage, round_: torch.tensor([False, round_ == 3, False, False, False])  # noqa: E731
    (plain, one), (keeping, other) = (train(method, absent=absent, keep_reports=k, chunk=2) for k in (False, True))
    a, b = models(plain, one), models(keeping, other)
    assert all(torch.equal(v, b[site][k]) for site, model in a.items() for k, v in model.items())
    assert plain.reports is None
    gone = keeping.sites.names.index(make_sites().names[1])
    for name, tensor in keeping.reports._asdict().items():
        for value in tensor.values() if isinstance(tensor, dict) else (tensor,):
            assert not value[gone].any(), name
            assert value[0].any(), name


def test_stopped_and_resumed_keeps_the_same(study, sites, kept, tmp_path) -> None:
    class Killed(BaseException):
        pass

    def stop(done: int, total: int) -> None:
        if done == 2:
            raise Killed

    out = tmp_path / "run"
    with pytest.raises(Killed):
        vt.federate(study, sites, out=out, keep_updates=True, checkpoint_seconds=0, progress=stop)
    (out / UPDATES / "round-00002.safetensors").write_bytes(b"half of it")  # a later round is written anew
    at = json.loads((out / "checkpoint.json").read_text())["round"]
    assert at == 2
    (out / "checkpoint.json").unlink()  # as if killed before the first checkpoint
    with pytest.raises(vt.VitrailError, match="keep_updates"):
        vt.federate(study, sites, out=out, resume=True)
    vt.federate(study, sites, out=out, keep_updates=True, resume=True)
    mine, whole = (sorted((p / UPDATES).iterdir()) for p in (out, kept))
    assert [f.name for f in mine] == [f"round-{r:05d}.safetensors" for r in range(1, study.training.rounds + 1)]
    assert [f.read_bytes() for f in mine] == [f.read_bytes() for f in whole]


def test_only_what_crossed_the_wire_is_kept(study, sites, tmp_path) -> None:
    vt.federate(study, sites, method="fedper", out=tmp_path / "run", keep_updates=True, away={"va": [(2, 2)]})
    wire = pd.read_csv(tmp_path / "run" / "wire.csv")
    declared = set(wire[(wire.stage == "train") & (wire.direction == "from site")].name)
    for r, present in ((1, 4), (2, 3)):
        file = load_file(tmp_path / "run" / UPDATES / f"round-{r:05d}.safetensors")
        assert {k.removeprefix("report/") for k in file} == {*declared, "present"}
        assert {len(v) for k, v in file.items() if k != "present"} == {present}
    assert set(wire[wire.stage == "train"].seen) == {"each"}, "with updates kept, the coordinator sees each report"
    shown = page_of(vt.Run.load(tmp_path / "run"))
    assert set(shown.wire[shown.wire.stage == "train"].seen) == {"each"}
    assert any("kept its updates" in note for note in shown.notes)


@pytest.mark.parametrize(
    ("method", "why"), [("local", "report nothing"), ("centralized", "rows are in one"), ("ditto", "model of its own")]
)
def test_refused_where_there_is_nothing_to_rebuild_from(method, why, study, sites, tmp_path) -> None:
    with pytest.raises(vt.VitrailError, match=why):
        vt.federate(study, sites, method=method, out=tmp_path / "run", keep_updates=True)
    assert not (tmp_path / "run").exists()
    with pytest.raises(vt.VitrailError, match="no folder"):
        vt.federate(study, sites, keep_updates=True)


# --- contributions ----------------------------------------------------------------------------------------------------


def test_against_averages_and_orders_by_hand(study, sites, kept) -> None:
    """FedAvg with equal weights: a coalition's model is the plain mean of its sites' models. To the answers of each the
    user adds a constant, from its training rows."""
    run, user = vt.Run.load(kept), "hungarian"
    training, rows = (sites[user].iloc[at] for at in split_rows(sites[user].disease.to_numpy(), study, run.seed, user))
    bare = {user: dataclasses.replace(run.encoders[user], constants={})}
    names = json.loads(json.loads(_words(kept / UPDATES / "round-00001.safetensors"))["sites"])

    def loss(model: dict[str, torch.Tensor]) -> np.ndarray:
        mine = dataclasses.replace(run, models={user: model}, encoders=bare)
        train, test = (torch.from_numpy(mine.predict(user, f)[["0", "1"]].to_numpy()).log() for f in (training, rows))
        y = training.disease.to_numpy()
        test = (test + fit_constant(CrossEntropy(), train, np.eye(2)[y], np.ones(len(y)))).log_softmax(1).numpy()
        return -test[np.arange(len(rows)), rows.disease.to_numpy()]

    start = vt.federate(study.with_changes(training={"lr": 1e-30}), sites, seed=run.seed).models[user]
    right, before = 0.0, start
    for r in range(1, study.training.rounds + 1):
        file = load_file(kept / UPDATES / f"round-{r:05d}.safetensors")
        changes = {k.replace("report/change", "params"): v for k, v in file.items() if "change" in k}

        def worth(masks: np.ndarray, changes=changes, before=before) -> np.ndarray:
            made = [
                {k: before[k] + v[torch.from_numpy(m)].mean(0) for k, v in changes.items()} if m.any() else before
                for m in masks
            ]
            return np.array([-loss(model) for model in made])

        right = right + brute_force(worth, len(names))
        before = {k: before[k] + v.mean(0) for k, v in changes.items()}
    told = contribution(kept, user, sites[user])
    got = told.values[(told.values.way == SHAPLEY) & (told.values.kind == ROUND)].set_index("site").value
    above = loss(start).mean() - told.same
    assert got[names].to_numpy() == pytest.approx(right.mean(1) - above / len(names), abs=1e-5)
    assert abs(above) > 1e-3
    assert np.abs(right.mean(1)).max() > 1e-3
    assert told.end == pytest.approx(loss(run.models[user]).mean(), abs=1e-5)
    assert told.rows == len(rows)


def _words(path: Path) -> str:
    raw = path.read_bytes()
    return json.dumps(json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])["__metadata__"])


@pytest.mark.parametrize("method", ["fedprox", "fedper", "apfl", "scaffold", "fine_tune", "ifedavg"])
def test_every_method_like_fedavg_sums_to_the_gain(method, study, sites, tmp_path) -> None:
    shy = list(sites) if method == "ifedavg" else []  # publishing would only take time here
    vt.federate(study, sites, method=method, out=tmp_path / "run", keep_updates=True, dropout_rate=0.3, refuse=shy)
    told = contribution(tmp_path / "run", "cleveland", sites["cleveland"])
    sums = told.values.groupby(["way", "kind"]).value.sum()[SHAPLEY]
    assert set(sums.index) == {ROUND, WHOLE} | ({CARRIED} if told.kind == CARRIED else set())
    assert (told.kind == ROUND) == (method in ("fedper", "apfl", "ifedavg")), "what is its own is nobody else's"
    assert sums.to_numpy() == pytest.approx(told.gain, abs=1e-6)
    paid = bool(len(told.ledger)) and (told.ledger.low > 0).any()
    assert told.ledger.get("credit", pd.Series(dtype=float)).sum() == pytest.approx(paid * sums[told.kind], abs=1e-9)
    assert (told.values.low <= told.values.value).all()
    assert (told.values.value <= told.values.high).all()
    cost = told.costs.set_index(["way", "kind"]).evaluations
    answered = told.ledger.set_index("site").rounds
    assert cost[LOO, ROUND] == answered.sum() + study.training.rounds, (
        "everybody but each, and everybody, in every round"
    )
    assert bool(told.notes) == (method in ("fedper", "apfl", "ifedavg", "fine_tune"))


def test_a_number_as_target(sites, tmp_path) -> None:
    frames = {k: v.dropna(subset=["thalach"]) for k, v in sites.items()}
    study = vt.Study.infer(frames, target="thalach").with_changes(training={"rounds": 4}, standardise="global")
    run = vt.federate(study, frames, out=tmp_path / "run", keep_updates=True)
    told = contribution(tmp_path / "run", "va", frames["va"], method="shapley")
    rmse = run.scores().query("site == 'va' and metric == 'rmse'").value.item()
    assert told.end == pytest.approx(rmse**2, rel=1e-4), "in the target's own unit, squared"


def test_who_was_away_gets_nothing(study, sites, tmp_path) -> None:
    vt.federate(study, sites, out=tmp_path / "run", keep_updates=True, away={"va": [(1, study.training.rounds)]})
    told = contribution(tmp_path / "run", "cleveland", sites["cleveland"])
    assert not told.values[told.values.site == "va"].value.any()
    row = told.ledger.set_index("site").loc["va"]
    assert (row.rounds, row.credit) == (0, 0)


@pytest.mark.parametrize("learns", [True, False])
def test_no_credits_for_a_model_that_is_no_better_than_one_answer(learns: bool, tmp_path: Path) -> None:
    """Outcomes that follow from a column, and outcomes by lot with a learning rate under which the model is wild."""
    tables = {}
    for i, site in enumerate(("north", "south", "west")):
        rng = np.random.default_rng(i)
        x = rng.normal(size=90)
        sick = (x if learns else rng.normal(size=90)) + 0.3 * rng.normal(size=90) > 0
        tables[site] = pd.DataFrame({"x": x, "z": rng.normal(size=90), "sick": np.where(sick, "yes", "no")})
    training = {"rounds": 5, "lr": 0.02 if learns else 0.5, "class_weights": "none"}
    study = vt.Study.infer(tables, target="sick", training=training, network={"kind": "linear"})
    vt.federate(study, tables, out=tmp_path / "run", keep_updates=True)
    told = contribution(tmp_path / "run", "north", tables["north"], method="shapley")
    assert (told.end < told.same) == learns
    assert told.by_shapley
    assert bool(len(told.ledger)) == learns, "the values are told, the credits are not computed"
    assert (told.unpaid() == "") == learns
    html, text = render_contribution(told), to_text(told)[0]
    assert ("No credits were computed, because the model of all sites" in text) == (not learns)
    assert ("No credits were computed" in html) == (not learns)
    assert ("share of credits" in html) == learns
    assert "on average over all orders" in html, "they are Shapley values, paid or not"
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "ledger.csv").write_text("of before")
    write_tables(told, tmp_path / "out")
    assert (tmp_path / "out" / "ledger.csv").exists() == learns


def forge(kept: Path, out: Path, change) -> Path:
    """The run with other reports in its files, and the last shared model that follows from them."""
    shutil.copytree(kept, out)
    last = load_file(out / "coordinator" / "shared.safetensors")
    for path in sorted((out / UPDATES).iterdir()):
        words, before = json.loads(_words(path)), load_file(path)
        after = {k: change(v) if "change" in k else v for k, v in before.items()}
        save_file(after, path, words)
        for k in last:
            name = k.replace("params", "report/change")
            last[k] = last[k] + after[name].mean(0) - before[name].mean(0)
    save_file(last, out / "coordinator" / "shared.safetensors")
    seal_again(out, "forged")
    return out


def test_two_sites_that_say_the_same_get_the_same(sites, kept, tmp_path) -> None:
    out = forge(kept, tmp_path / "run", lambda v: torch.cat([v[:1], v[:1], v[2:]]))
    told = contribution(out, "switzerland", sites["switzerland"])
    wide = told.values.pivot(index="site", columns=["way", "kind"], values="value")
    first, second = json.loads(json.loads(_words(next((out / UPDATES).iterdir())))["sites"])[:2]
    for (way, kind), value in wide.loc[first].items():
        near = 1e-7 if kind == CARRIED else 1e-12  # what is carried over was trained at the user in single precision
        assert value == pytest.approx(wide.loc[second, (way, kind)], abs=near)
    assert wide.loc[first].abs().min() > 1e-5


def test_who_says_what_the_others_say_on_average_is_not_missed(sites, kept, tmp_path) -> None:
    out = forge(kept, tmp_path / "run", lambda v: torch.cat([v[:-1], v[:-1].mean(0, keepdim=True)]))
    last = json.loads(json.loads(_words(next((out / UPDATES).iterdir())))["sites"])[-1]
    told = contribution(out, "switzerland", sites["switzerland"], method="loo")
    assert told.values[told.values.site == last].value.to_numpy() == pytest.approx(0, abs=1e-6)
    assert told.values[told.values.site != last].value.abs().min() > 1e-5
    assert told.ledger.empty, "leave-one-out does not sum to the gain, so that nothing is paid by it"
    assert "credits" not in render_contribution(told).partition("In short")[2].partition("</section>")[0]


def test_updates_of_another_run_are_noticed(sites, kept, tmp_path) -> None:
    out = forge(kept, tmp_path / "run", lambda v: v + 1)
    (out / "coordinator" / "shared.safetensors").write_bytes((kept / "coordinator" / "shared.safetensors").read_bytes())
    seal_again(out, "forged")
    with pytest.raises(vt.VitrailError, match="do not add up to the last shared model"):
        contribution(out, "va", sites["va"])


def test_many_sites_are_drawn_by_lot(study, sites, tmp_path) -> None:
    many = vt.partition.iid(pd.concat(sites.values(), ignore_index=True), 11, 1)
    agreed = study.with_changes(training={"rounds": 2})
    vt.federate(agreed, many, out=tmp_path / "run", keep_updates=True)
    user = next(iter(many))
    told, right = (
        contribution(tmp_path / "run", user, many[user], "shapley", coalitions=k).main() for k in (200, 2**11)
    )
    assert (told.chance > 0).all()
    assert not right.chance.any()
    assert (np.abs(told.value - right.value) < 2 * told.chance).all()
    assert (told.high - told.low > right.high - right.low - 1e-3).all()
    assert told.value.sum() == pytest.approx(right.value.sum(), abs=1e-6)


def test_mistakes_are_told(sites, kept, study, tmp_path) -> None:
    with pytest.raises(vt.VitrailError, match="Did you mean 'cleveland'"):
        contribution(kept, "clevelnd", sites["cleveland"])
    with pytest.raises(vt.VitrailError, match="that the run used"):
        contribution(kept, "cleveland", sites["cleveland"].assign(age=50))
    with pytest.raises(vt.VitrailError) as caught:
        contribution(kept, "cleveland", sites["cleveland"], method="banzhaf", coalitions=1, seeds=0)
    assert len(caught.value.problems) == 3
    with pytest.raises(vt.VitrailError, match="of 3 of 4 sites are not available here"):
        contribution(kept, "cleveland", sites["cleveland"], retrain=True)
    vt.federate(study, sites, out=tmp_path / "run")
    with pytest.raises(vt.VitrailError, match="--keep-updates"):
        contribution(tmp_path / "run", "cleveland", sites["cleveland"])


def test_it_says_when_not_to_rely_on_it(sites, kept) -> None:
    told = contribution(kept, "cleveland", sites["cleveland"], method="shapley")
    calm, far = (dataclasses.replace(told, strain=STRAIN.limit * by) for by in (0.99, 1.01))
    near, off = (dataclasses.replace(told, strain=9.0, spot=SPOT.limit * by) for by in (0.99, 1.01))
    for quiet, loud, rule in ((calm, far, STRAIN), (near, off, SPOT)):
        assert not quiet.doubt()
        assert rule.said(False) in quiet.reliance()
        assert rule.said(True) in loud.doubt()
        assert "Not settled" in render_contribution(loud)
        assert "Not settled" not in render_contribution(quiet)
        assert rule.said(False) in render_contribution(quiet)
    given = dataclasses.replace(told, values=told.values[told.values.kind != CARRIED])
    assert (given.kind, given.rule) == (ROUND, AS_GIVEN)
    assert "as they were sent" in given.doubt()


def test_page_and_tables(sites, kept, tmp_path) -> None:
    told = contribution(kept, "cleveland", sites["cleveland"])
    evil = "<b>x</b>"
    named = dataclasses.replace(
        told,
        user=evil,
        values=told.values.replace({"site": {"cleveland": evil}}),
        ledger=told.ledger.replace({"site": {"cleveland": evil}}),
    )
    html = render_contribution(named)
    assert "<b>x</b>" not in html.replace("<b>&lt;b&gt;x&lt;/b&gt;</b>", "")
    assert "<script" not in without_script(html)
    page = write_contribution(told, tmp_path / "out")
    assert write_contribution(told, tmp_path / "out") == page, "our own is written over"
    ledger = pd.read_csv(tmp_path / "out" / "ledger.csv")
    assert ledger.credit.sum() == pytest.approx(max(0, told.gain))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.txt").write_text("mine")
    with pytest.raises(vt.VitrailError, match="nothing was overwritten"):
        write_contribution(told, tmp_path / "other")


def test_on_the_command_line(study, sites, tmp_path, monkeypatch, capsys) -> None:
    from vitrail.cli import app

    def vitrail(*words: str) -> str:
        app(list(words), standalone_mode=False)
        return capsys.readouterr().out

    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    for name, frame in sites.items():
        frame.to_csv(Path("data") / f"{name}.csv", index=False)
    study.save("study.toml")
    told = vitrail("run", "study.toml", "--data", "data", "--out", "run", "--keep-updates")
    assert "Updates kept: 3 rounds" in told
    said = vitrail("contribution", "run", "--user", "va", "--data", "data", "--seeds", "2")
    assert "trained again, from 2 seeds" in said
    assert "model evaluations" in said
    said = vitrail("contribution", "run", "--user", "va", "--data", "data/va.csv")
    assert "carried over" in said
    said = vitrail("contribution", "run", "--user", "va", "--data", "data", "--no-retrain")
    assert "carried over" in said
    written = {p.name for p in Path("contribution-va").iterdir()}
    paid = {"ledger.csv", "rewards.csv"} if "No credits were computed" not in said else set()
    assert written == {"contribution.html", "values.csv", "costs.csv"} | paid
    with pytest.raises(vt.VitrailError, match="not the rows"):
        vitrail("contribution", "run", "--user", "va", "--data", "data/cleveland.csv")
    Path("data/va.csv").rename("data/elsewhere.csv")
    with pytest.raises(vt.VitrailError, match="one file for site 'va' here, got 0"):
        vitrail("contribution", "run", "--user", "va", "--data", "data")
    with pytest.raises(vt.VitrailError, match="cannot be computed") as caught:
        vitrail("contribution", "run", "--user", "hungarain", "--data", "nowhere.csv", "--method", "lo")
    name, way, file = map(str, caught.value.problems)
    assert "no site 'hungarain'" in name
    assert "Did you mean 'hungarian'" in name
    assert "'lo'" in way
    assert "nowhere.csv" in file
