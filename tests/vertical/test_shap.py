"""Federated SHAP: Shapley values of the host's features and one united feature of each guest."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from tests.support.vertical.talks import WIDTHS, naive, people, talk
from vitrail.analysis.explanations.rows import NOTHING, explain_rows
from vitrail.core.errors import VitrailError
from vitrail.core.optimizers import Adam
from vitrail.stats.shapley import exact, paired
from vitrail.vertical.shap import BACKGROUND, explain, split_answer
from vitrail.vertical.training.dialogue import Dialogue
from vitrail.vertical.training.host import answer_scores
from vitrail.vertical.training.split_network import features

HOST = ["age", "sex", "weight", "pulse"]


def trained(kind: str = "split", **more: Any) -> Dialogue:
    d = talk(kind, rule=Adam(0.03), **{"epochs": 15, **more})
    d.train()
    return d


def test_values_sum_to_what_is_explained_and_are_the_naive_ones() -> None:
    d = trained()
    rows = d.terms.test[:7]
    e = explain(d, rows, HOST)
    assert e.feature_names == [*HOST, "lab", "insurer"]
    z = d.predict(rows).scores
    assert np.allclose(e.values.sum(1) + e.base_values, (z[:, 1] - z[:, 0]).numpy(), atol=1e-12)
    whole = torch.cat([d.host.columns[rows], *(answer_scores(a) for a in d.ask(rows).values())], 1).numpy()
    off = torch.cat(
        [d.host.columns[d.terms.train].median(0).values, *(answer_scores(a)[0] for a in d.off().values())]
    ).numpy()

    def f(x: np.ndarray) -> np.ndarray:
        scores = d.host.scores(torch.from_numpy(x))
        return (scores[:, 1] - scores[:, 0]).numpy()

    for i in range(2):
        assert np.allclose(e.values[i], naive(f, whole[i], off, [[c] for c in range(6)]), atol=1e-10)
    assert np.isnan(e.data[:, 4:]).all(), "the host does not know a guest's values"
    assert np.array_equal(e.data[:, :4], d.host.columns[rows].numpy())
    assert not e.half.any()


def test_a_guest_answers_twice_a_row_however_many_features() -> None:
    d = trained(epochs=2)
    for groups in ([[0, 1, 2, 3]], [[0], [1], [2], [3]]):
        before = d.wire.ledger["lab", "clinic", "Levels" if d.guests[0].offer.bits else "Numbers"].rows
        explain(d, d.terms.test[:50], HOST[: len(groups)], groups)
        after = d.wire.ledger["lab", "clinic", "Levels" if d.guests[0].offer.bits else "Numbers"].rows
        assert after - before == 50 + 1, "on for each, off once for all"


def test_of_a_linear_model_united_is_the_sum_of_what_it_hides() -> None:
    d = trained("logistic", bits=0)
    rows = d.terms.test[:20]
    e = explain(d, rows, HOST)
    for i, g in enumerate(d.guests):
        hidden = (g.columns[rows] - g.reference) * g.params["weight"][0, :, 0]
        assert np.allclose(e.values[:, 4 + i], hidden.sum(1).numpy(), atol=1e-10)
    own = (d.host.columns[rows] - d.host.columns[d.terms.train].median(0).values) * d.host.params["weight"][0, :, 0]
    assert np.allclose(e.values[:, :4], own.numpy(), atol=1e-10)


def test_a_constant_guest_gets_nothing() -> None:
    d = trained()
    d.guests[1].columns = torch.ones_like(d.guests[1].columns)
    d.guests[1].reference = torch.ones(WIDTHS[2], dtype=torch.float64)
    e = explain(d, d.terms.test[:10], HOST)
    assert np.abs(e.values[:, 5]).max() < 1e-12
    assert np.abs(e.values[:, 4]).max() > 0.01


def test_background_rows_stand_for_off() -> None:
    d = trained(epochs=3)
    rows, back = d.terms.test[:5], d.terms.train[:6]
    e = explain(d, rows, HOST, background=back)
    assert e.reference == BACKGROUND
    one = [explain(d, rows, HOST, background=back[i : i + 1]) for i in range(6)]
    assert np.allclose(e.values, np.mean([o.values for o in one], 0), atol=1e-12)
    z = d.predict(back).scores
    assert np.allclose(e.base_values, float((z[:, 1] - z[:, 0]).mean()), atol=1e-12)


def test_shares_are_explained_too() -> None:
    d = trained(epochs=3)
    e = explain(d, d.terms.test[:5], HOST, of="share", output=0)
    share = d.predict(d.terms.test[:5]).answers[:, 0]
    assert np.allclose(e.values.sum(1) + e.base_values, share.numpy(), atol=1e-12)


def test_a_guest_splits_its_answer_for_itself() -> None:
    d = trained(epochs=3)
    crossed = dict(d.wire.ledger)
    g, x = d.guests[0], people()[0][1]
    e = split_answer(g, x[:9], g.reference, ["a", "b", "c"])
    z = g.scores(x[:9]) - g.scores(g.reference[None])
    assert np.allclose(e.values.sum(1), z[:, 0].numpy(), atol=1e-12)
    assert d.wire.ledger == crossed, "nothing crosses"
    bent = features(x, 4, 1)
    g.params = {"weight": torch.randn(1, 7, 1, dtype=torch.float64)}
    e = split_answer(g, x[:9], x[0], ["a", "b", "c"], features=lambda v: features(v, 4, 1))
    assert np.allclose(e.values.sum(1), ((bent[:9] - bent[0]) @ g.params["weight"][0])[:, 0].numpy(), atol=1e-12)


def game(players: int, rows: int = 12) -> Any:
    rng = np.random.default_rng(4)
    w, x = rng.normal(size=(players, 6)), rng.normal(size=(rows, players))

    def worth(masks: np.ndarray) -> np.ndarray:
        z = np.tanh((masks[:, None, :] * x) @ w)
        return np.asarray(z.sum(2) + 3 * z[..., 0] * z[..., 1])

    return worth


@pytest.mark.parametrize("sizes", ["kernel", "leverage"])
def test_pairs_are_near_and_their_intervals_cover(sizes: Any) -> None:
    worth, covered, far = game(12), [], []
    true = exact(worth, 12).rows
    for seed in range(12):
        v = paired(worth, 12, 300, np.random.default_rng(seed), sizes)
        assert v.asked <= 302
        assert np.allclose(v.rows.sum(0), true.sum(0), atol=1e-10)
        covered.append(np.abs(v.rows - true) <= v.half)
        far.append(np.abs(v.rows - true).max(0) / np.abs(true).sum(0))
    assert np.mean(covered) > 0.93
    assert np.mean(far) < 0.04
    most = paired(game(9), 9, 500, np.random.default_rng(1), sizes).rows  # of 512
    assert np.abs(most - exact(game(9), 9).rows).max() < 0.02, "nearly all coalitions, nearly the values"
    wide = [paired(worth, 12, n, np.random.default_rng(1), sizes).half.mean() for n in (150, 1200)]
    assert wide[1] < wide[0] / 2


def test_an_additive_game_is_solved_by_any_pairs() -> None:
    x = np.random.default_rng(1).normal(size=(5, 20))
    v = paired(lambda masks: masks @ x.T + 2.0, 20, 200, np.random.default_rng(2))
    assert np.allclose(v.rows, x.T, atol=1e-9)
    assert v.half.max() < 1e-9


def test_more_than_sixteen_features_are_sampled_with_an_interval() -> None:
    rng = np.random.default_rng(5)
    x, w = rng.normal(size=(4, 18)), rng.normal(size=(18, 5))

    def f(a: np.ndarray) -> np.ndarray:
        return np.asarray(np.tanh(a @ w).sum(1))

    e = explain_rows(f, x, np.zeros(18), [f"c{i}" for i in range(18)], asked=1024)
    assert e.asked == 1026
    assert (e.half > 0).all()
    assert np.allclose(e.values.sum(1) + e.base_values, f(x), atol=1e-10)
    whole = exact(lambda m: np.stack([f(m * row) for row in x], 1), 18).rows.T
    assert np.mean(np.abs(e.values - whole) <= e.half) > 0.9


def test_missing_values_as_reference_and_what_is_refused() -> None:
    x = np.array([[1.0, 2.0]])

    def takes(a: np.ndarray) -> np.ndarray:
        return np.asarray(np.nansum(a, 1))

    e = explain_rows(takes, x, np.array([np.nan, np.nan]), ["a", "b"], means=NOTHING)
    assert e.values.tolist() == [[1.0, 2.0]]
    assert e.reference == NOTHING
    with pytest.raises(VitrailError, match="accepts no missing values"):
        explain_rows(lambda a: np.asarray(a.sum(1)), x, np.array([np.nan, np.nan]), ["a", "b"])
    with pytest.raises(VitrailError) as told:
        explain_rows(takes, x[:0], np.zeros(3), ["a"], [[0], [0]])
    assert len(told.value.problems) == 4


def test_importance_and_some_of_the_rows() -> None:
    d = trained(epochs=5)
    e = explain(d, d.terms.test[:100], HOST)
    rows = e.importance()
    assert [r["size"] for r in rows] == sorted((r["size"] for r in rows), reverse=True)
    assert all(r["low"] < r["size"] < r["high"] for r in rows)
    assert np.array_equal(e[3].values[0], e.values[3])
    assert len(e[10:20]) == 10


def test_shap_draws_and_agrees() -> None:
    shap = pytest.importorskip("shap")
    d = trained()
    rows = d.terms.test[:4]
    e = explain(d, rows, HOST)
    whole = torch.cat([d.host.columns[rows], *(answer_scores(a) for a in d.ask(rows).values())], 1).numpy()
    off = torch.cat(
        [d.host.columns[d.terms.train].median(0).values, *(answer_scores(a)[0] for a in d.off().values())]
    ).numpy()

    def f(x: np.ndarray) -> np.ndarray:
        scores = d.host.scores(torch.from_numpy(x))
        return (scores[:, 1] - scores[:, 0]).numpy()

    theirs = shap.ExactExplainer(f, shap.maskers.Independent(off[None], max_samples=1))(whole)
    assert np.abs(theirs.values - e.values).max() < 1e-6
    plots = pytest.importorskip("matplotlib.pyplot")
    plots.switch_backend("Agg")
    shap.plots.waterfall(e.for_shap()[0], show=False)
    shap.plots.beeswarm(e.for_shap(), show=False)
    shap.plots.bar(e.for_shap(), show=False)
    plots.close("all")
