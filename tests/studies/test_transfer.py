"""The adapted Ndoye factor: whose model carries over to whose rows, before anything is trained together."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pandas.testing as pdt
import pytest
import torch

import vitrail as vt
from tests.support.command import vitrail
from tests.support.small import spoil_hold_out
from vitrail.data.encoding import prepare
from vitrail.data.splitting import split_rows
from vitrail.methods.local import Local
from vitrail.runs.setup import build_task
from vitrail.studies.folds import folds_of
from vitrail.studies.own_models import model_losses
from vitrail.studies.transfer import train_together, transfer_lines

FEATURES = {f"x{i}": {"kind": "numeric"} for i in range(3)}
SIZES = {"a": 40, "b": 33, "c": 27, "odd": 36}


def make_sites(kind: str = "number", flipped: str = "odd") -> dict[str, pd.DataFrame]:
    """One relation everywhere, the other way round at one site."""
    out = {}
    for i, (name, n) in enumerate(SIZES.items()):
        rng = np.random.default_rng(i)
        x = rng.normal(i, 1 + i, (n, 3))
        z = (x - i) / (1 + i)
        y = (-1 if name == flipped else 1) * (2 * z[:, 0] - z[:, 1]) + 0.3 * rng.normal(size=n)
        frame = pd.DataFrame(x, columns=list(FEATURES))
        out[name] = frame.assign(y=10 + 5 * y if kind == "number" else np.where(y > 0, "ill", "well"))
    return out


def make_study(kind: str = "number", network: str = "linear", **training: object) -> vt.Study:
    target = {"column": "y", "kind": "number", "center": 10.0, "scale": 5.0}
    if kind == "classes":
        target = {"column": "y", "classes": ["well", "ill"], "positive": "ill"}
    return vt.Study.parse(
        {
            "target": target,
            "features": FEATURES,
            "network": {"kind": network, "hidden": [5], "dropout": 0.0},
            "training": {"rounds": 12, "batch": 8, "lr": 0.02, **training},
            "split": {"at_least": 5},
            "standardise": "local",  # as the tables are made: each site has a scale of its own
        }
    )


def test_against_plain_gradient_descent() -> None:
    """Linear regression, full batches: every model of every fold again in numpy, one after the other."""
    study = make_study(batch=64, momentum=0.0, decays=0, lr=0.01, weight_decay=0.0)
    sites, folds, seed = make_sites(), 4, 3
    found = vt.transfer(study, sites, folds, seed)
    start = {k: v.double().numpy() for k, v in build_task(study, Local(), seed).start.items()}

    def learn(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        w, b = start["head.weight"][:, 0].copy(), start["head.bias"][0]
        for _ in range(12):
            wrong = x @ w + b - y
            w, b = w - 0.01 * 2 * x.T @ wrong, b - 0.01 * 2 * wrong.sum()
        return np.append(w, b)

    def squared(f: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return (25 * (x @ f[:-1] + f[-1] - y) ** 2).astype(float)

    data = {s.name: s for s in prepare(sites, study, seed)}
    models = {n: learn(s.train_x, s.train_y) for n, s in data.items()}
    errors: dict[str, list[np.ndarray]] = {n: [] for n in sites}
    for fold in folds_of(sites, study, seed, folds):
        for s in fold:
            errors[s.name].append(squared(learn(s.train_x, s.train_y), s.test_x, s.test_y))
    for row in found.table.itertuples():
        user = data[row.user]
        there = squared(models[row.site], user.train_x, user.train_y).mean()
        assert row.loss_on_user == pytest.approx(there, rel=1e-4)
        assert row.cv_loss == pytest.approx(np.concatenate(errors[row.site]).mean(), rel=1e-4)
        assert row.transfer == pytest.approx(row.loss_on_user - row.cv_loss, abs=1e-9)
    for row in found.feedback.itertuples():  # of a linear model, the effects are the weights, here per unit of y
        at = [*FEATURES, "(intercept)"].index(row.column)
        assert row.site_effect == pytest.approx(5 * models[row.site][at], rel=1e-3, abs=1e-4)
        assert row.user_effect == pytest.approx(5 * models[row.user][at], rel=1e-3, abs=1e-4)
        assert row.difference == pytest.approx(row.site_effect - row.user_effect)


@pytest.mark.parametrize("network", ["linear", "mlp"])
@pytest.mark.parametrize("kind", ["number", "classes"])
def test_a_flipped_relation_ranks_last_for_every_honest_user(kind: str, network: str) -> None:
    found = vt.transfer(make_study(kind, network, rounds=30), make_sites(kind))
    assert len(found.table) == 4 * 3
    for user in ("a", "b", "c"):
        assert found.ranking(user)[-1] == "odd"
        mine = found.table[found.table.user == user].set_index("site")
        assert mine.transfer["odd"] > mine.transfer.drop("odd").max() + mine.error["odd"]
        assert sorted(mine["rank"]) == [1, 2, 3]
        x0 = found.feedback.query("user == @user and site == 'odd' and column == 'x0'").iloc[0]
        assert x0.user_effect > 0 > x0.site_effect
        assert found.most_different(user, "odd").startswith("x0 -")
    assert np.isnan(np.diag(found.matrix())).all()


def test_the_best_single_answer_is_weighed_as_the_losses_are() -> None:
    """Where both classes weigh the same, it is one half for each, which loses log 2."""
    sites = make_sites("classes")
    for user, same in vt.transfer(make_study("classes", class_weights="inverse"), sites).same.items():
        assert same == pytest.approx(np.log(2)), user
    for user, same in vt.transfer(make_study("classes"), sites).same.items():
        share = float((sites[user].y == "ill").mean())
        assert same == pytest.approx(-(share * np.log(share) + (1 - share) * np.log(1 - share)), abs=0.02), user


def test_a_model_of_evidence_is_judged_by_the_shares_that_it_says() -> None:
    study, sites = make_study("classes", loss="evidence"), make_sites("classes")
    task, site = build_task(study, Local(), 1), prepare(sites, study, 1)[0]
    params, y = {k: v[None].double() for k, v in task.start.items()}, site.train_y.astype(int)
    shares = task.loss.predictions(task.output(params, torch.from_numpy(site.train_x).double()[None]))[0].numpy()
    told = model_losses(study, task, params, site.train_x, site.train_y)
    np.testing.assert_allclose(told[0], -np.log(shares[np.arange(len(y)), y]))


def test_all_at_once_is_one_after_the_other() -> None:
    study, sites = make_study("classes", "mlp"), make_sites("classes")
    one, other = (vt.transfer(study, sites, engine=e) for e in ("vectorised", "looped"))
    pdt.assert_frame_equal(one.table, other.table, rtol=1e-4, atol=1e-6)


def test_slopes_of_a_network_are_those_of_its_answers() -> None:
    study, sites = make_study("classes", "mlp"), make_sites("classes")
    found = vt.transfer(study, sites)
    alone = vt.federate(study, sites, method="local", seed=found.seed)  # the same models
    rows = sites["a"].iloc[split_rows((sites["a"].y == "ill").astype(int).to_numpy(), study, found.seed, "a")[0]]
    step = 1e-2

    def odds(frame: pd.DataFrame) -> np.ndarray:
        p = alone.predict("a", frame)
        return np.log(p["ill"] / p["well"]).to_numpy()

    sd = alone.encoders["a"].sd["x1"]
    up, down = (odds(rows.assign(x1=rows.x1 + s * step * sd)) for s in (1, -1))
    effect = found.feedback.query("user == 'a' and column == 'x1'").user_effect.unique()
    assert effect == pytest.approx([(up - down).mean() / (2 * step)], abs=2e-3)


def test_hold_out_rows_are_not_touched() -> None:
    study, sites = make_study(), make_sites()
    garbage = spoil_hold_out(study, sites)
    one, other = vt.transfer(study, sites), vt.transfer(study, garbage)
    pdt.assert_frame_equal(one.table, other.table)
    pdt.assert_frame_equal(one.feedback, other.feedback)


@pytest.mark.parametrize("kind", ["number", "classes"])
def test_folds_share_the_training_rows_out(kind: str) -> None:
    study, sites = make_study(kind).with_changes(standardise="none"), make_sites(kind)
    parts = folds_of(sites, study, 7, 4)
    for i, site in enumerate(prepare(sites, study, 7)):
        fold = [p[i] for p in parts]
        everyone = sorted(site.train_x.tolist())
        assert sorted(np.concatenate([f.test_x for f in fold]).tolist()) == everyone
        for f in fold:
            assert sorted(np.concatenate([f.train_x, f.test_x]).tolist()) == everyone
            assert abs(len(f.test_y) - len(everyone) / 4) < 1
            if kind == "classes":
                assert abs(f.test_y.sum() - site.train_y.sum() / 4) < 2
    again = folds_of(dict(reversed(sites.items())), study, 7, 4)
    assert all(
        (a.test_x == b.test_x).all() for p, q in zip(parts, again, strict=True) for a, b in zip(p, q[::-1], strict=True)
    )


def test_folds_are_standardised_by_what_is_trained_on() -> None:
    for fold in folds_of(make_sites(), make_study(), 1, 3):
        for s in fold:
            assert s.train_x.mean(0) == pytest.approx(0, abs=1e-6)
            assert abs(s.test_x.mean()) > 1e-4


def test_choosing() -> None:
    found = vt.transfer(make_study(rounds=30), make_sites())
    ranking = found.ranking("b")
    mine = found.table[found.table.user == "b"].set_index("site").transfer
    assert found.choose("b", "top:2") == ranking[:2]
    assert found.choose("b", "top:99") == ranking
    edge = float(mine[ranking[1]])
    assert found.choose("b", f"below:{edge}") == ranking[:1]
    assert found.choose("b", "below:-1e9") == []
    assert found.choose("b", "c, a,b") == ["c", "a"]
    found.table.loc[found.table.site == ranking[0], "transfer"] = np.nan
    assert ranking[0] not in found.choose("b", "top:3")


def test_training_with_the_chosen(tmp_path) -> None:
    study, sites = make_study(rounds=20), make_sites()
    found = vt.transfer(study, sites)
    scores = train_together(found, sites, "a,c", ["b"])
    assert list(scores.trained.unique()) == ["alone", "chosen", "all sites"]

    def rmse(run: vt.Run) -> float:
        return float(run.scores().query("site == 'b' and metric == 'rmse'").value.iloc[0])

    got = scores[scores.metric == "rmse"].set_index("trained").value
    assert got["alone"] == rmse(vt.federate(study, sites, method="local"))
    assert got["all sites"] == rmse(vt.federate(study, sites, method="fedavg"))
    assert got["chosen"] == rmse(vt.federate(study, {n: sites[n] for n in "abc"}, method="fedavg"))
    assert got["chosen"] < got["all sites"], "without the odd one"
    pdt.assert_frame_equal(train_together(found, sites, "a,c", ["b"], workers=2), scores)
    everyone = train_together(found, sites, "top:1", method="fedprox")
    assert set(everyone.user) == set(sites)
    found.save(tmp_path / "t", scores)
    said = json.loads((tmp_path / "t" / "transfer.json").read_text())
    assert said["ranking"]["b"] == found.ranking("b")
    assert said["matrix"][0][0] is None
    assert "nobody can check them" in said["trust"]
    kept = pd.read_csv(tmp_path / "t" / "transfer.csv")
    pdt.assert_frame_equal(kept[list(found.table.columns)], found.table)
    assert set(found.few) == set(SIZES), "each trains on fewer than 50 rows"
    assert list(kept.few_rows) == [found.few[u] for u in found.table.user]
    for user, frame in sites.items():  # what one answer to all training rows would lose: they vary about their mean
        assert found.same[user] == pytest.approx(frame.y.var(), rel=0.4)
    of_b = vt.federate(study, sites, method="local").baseline().query("site == 'b' and metric == 'rmse'").value.iloc[0]
    assert set(scores[scores.metric == "rmse"].same) == {of_b}
    assert scores.few_rows.str.contains("row").all()
    assert (tmp_path / "t" / "scores.csv").exists()


def test_what_it_reveals() -> None:
    study = make_study(network="mlp")
    size = sum(v.numel() for v in build_task(study, Local(), 0).start.values()) * 4
    lines = transfer_lines(study, 6)
    models = {
        d: sum(x.bytes for x in lines if x.direction == d and x.name.startswith("model/"))
        for d in ("from site", "to site")
    }
    assert models == {"from site": size, "to site": 5 * size}
    assert any("trusted" in x.words for x in lines)
    assert not [x for x in lines if x.stage == "standardise"]
    more = transfer_lines(study.with_changes(standardise="global"), 6, folds=3)
    assert {x.rounds for x in more if x.stage == "standardise"} == {4}


WRONG = {
    "folds 1": (lambda s, t: vt.transfer(s, t, folds=1), ["at least 2"]),
    "few rows": (lambda s, t: vt.transfer(s, t, folds=25), ["b", "c", "25 folds"]),
    "one site": (lambda s, t: vt.transfer(s, {"a": t["a"]}), ["two sites"]),
    "unknown user": (lambda s, t: vt.transfer(s, t).ranking("od"), ["no site 'od'", "'odd'"]),
    "top 0": (lambda s, t: vt.transfer(s, t).choose("a", "top:0"), ["top:K with a whole number K of at least 1"]),
    "below nothing": (lambda s, t: vt.transfer(s, t).choose("a", "below:x"), ["below:NUMBER"]),
    "empty": (lambda s, t: vt.transfer(s, t).choose("a", " ,"), ["empty"]),
    "unknown names": (lambda s, t: vt.transfer(s, t).choose("a", "bb,cc"), ["no site 'bb'", "no site 'cc'"]),
    "unknown method": (lambda s, t: train_together(vt.transfer(s, t), t, "top:1", ["a"], "fedavgg"), ["'fedavg'"]),
}


@pytest.mark.parametrize("case", WRONG)
def test_mistakes_are_told(case: str) -> None:
    do, words = WRONG[case]
    with pytest.raises(vt.VitrailError) as caught:
        do(make_study(rounds=1), make_sites())
    assert all(w in str(caught.value) for w in words), caught.value


def test_a_model_that_diverges_ranks_last() -> None:
    sites = make_sites()
    sites["b"] = sites["b"].assign(y=sites["b"].y * 1e39)
    found = vt.transfer(make_study(rounds=30, lr=0.05), sites)
    assert found.ranking("a")[-1] == "b"
    assert "b" not in found.choose("a", "top:3")
    assert torch.isnan(torch.tensor(found.matrix().loc["a", "b"]))


def test_on_the_command_line(tmp_path) -> None:
    (tmp_path / "data").mkdir()
    for name, frame in make_sites().items():
        frame.to_csv(tmp_path / "data" / f"{name}.csv", index=False)
    make_study().save(tmp_path / "study.toml")

    run = ["transfer", "study.toml", "--data", "data", "--out", "t", "--folds", "3", "--train-with", "top:2"]
    done = vitrail(*run, "--user", "a", "--workers", 1, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "nobody can check them" in done.stdout
    lines = [line.replace("†", "").split() for line in done.stdout.splitlines()]
    assert [w[:2] for w in lines if w[:1] == ["a"] and w[1:2] in (["alone"], ["chosen"], ["all"])] == [
        ["a", "alone"],
        ["a", "chosen"],
        ["a", "all"],
    ]
    assert pd.read_csv(tmp_path / "t" / "transfer.csv").query("user == 'a' and site == 'odd'")["rank"].item() == 3
    wrong = vitrail(*run, "--user", "zz", cwd=tmp_path)
    assert wrong.returncode == 2
    assert "no site 'zz'" in wrong.stderr
    assert "Traceback" not in wrong.stderr
    assert "reported and trusted" in vitrail("wire", "ndoye", "study.toml", "--sites", "3", cwd=tmp_path).stdout
