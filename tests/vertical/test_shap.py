"""Federated SHAP: Shapley values of the host's features and one united feature of each guest."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.support.vertical.talks import WIDTHS, naive, people, talk
from vitrail.analysis.explanations.comparison import compare_whole
from vitrail.analysis.explanations.rows import MEDIAN, NOTHING, explain_rows
from vitrail.core.errors import VitrailError
from vitrail.core.optimizers import SGD, Adam
from vitrail.core.tensors import Params, medians
from vitrail.stats.shapley import exact, paired
from vitrail.vertical.shap import BACKGROUND, GuestColumns, explain, explain_whole, split_answer
from vitrail.vertical.training.dialogue import Dialogue
from vitrail.vertical.training.guest import Guest
from vitrail.vertical.training.host import answer_scores
from vitrail.vertical.training.knn import KnnGuest
from vitrail.vertical.training.ration import RationAccount
from vitrail.vertical.training.split_network import features

HOST = ["age", "sex", "weight", "pulse"]


def middle(rows: Tensor) -> Tensor:
    """numpy's median: of an even number of rows the mean of the two in the middle."""
    return torch.from_numpy(np.median(rows.numpy(), 0))


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
    off = torch.cat([middle(d.host.columns[d.terms.train]), *(answer_scores(a)[0] for a in d.off().values())]).numpy()

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
    own = (d.host.columns[rows] - middle(d.host.columns[d.terms.train])) * d.host.params["weight"][0, :, 0]
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


@pytest.mark.parametrize("rows", [1, 2, 7, 8])
def test_medians_are_those_of_numpy(rows: int) -> None:
    x = torch.randn(rows, 3, generator=torch.Generator().manual_seed(rows), dtype=torch.float64)
    assert torch.equal(medians(x), middle(x))
    assert (rows % 2 == 0) == (not torch.equal(medians(x), x.median(0).values)), "torch takes the lower one of two"


def test_the_reference_is_the_true_median_at_every_party() -> None:
    d = trained("logistic", epochs=2)
    train = d.terms.train
    assert len(train) % 2 == 0
    g = d.guests[0]
    assert torch.allclose(g.reference, middle(g.columns[train]), atol=0)
    assert torch.equal(d.host.usual("lab"), middle(d.host.said["lab"][train]))
    assert torch.equal(KnnGuest("lab", g.columns, train, trust="simulation").reference, middle(g.columns[train]))
    e = explain(d, d.terms.test[:20], HOST)
    lower = explain(d, d.terms.test[:20], HOST, reference=d.host.columns[train].median(0).values)
    assert np.abs(e.values - lower.values).max() > 1e-5, "the lower one of the two would give other values"
    at_the_median = d.host.scores(
        torch.cat([middle(d.host.columns[train])[None], *(answer_scores(a) for a in d.off().values())], 1)
    )
    assert e.base_values[0] == pytest.approx(float(at_the_median[0, 1] - at_the_median[0, 0]), abs=1e-12)


class Stump:
    """A model that takes missing values: a step at 0 for each column, and a score of its own where it is missing."""

    takes_missing = True
    steps = torch.tensor([0.5, -1.0, 2.0, 0.25], dtype=torch.float64)
    missing = torch.tensor([0.1, 0.7, -0.3, 0.0], dtype=torch.float64)

    def scores(self, params: Params, x: Tensor, answers: Tensor) -> Tensor:
        own = torch.where(x.isnan(), self.missing, (x > 0) * self.steps)
        z = own.sum(1) + own[:, 0] * own[:, 2] + answers.sum(1) * own[:, 1] + 0 * sum(p.sum() for p in params.values())
        return torch.stack([torch.zeros_like(z), z], 1)


class StumpGuest(Guest):
    takes_missing = True

    def scores(self, columns: Tensor) -> Tensor:
        return torch.where(columns.isnan(), 0.3, (columns > 0).to(columns)).sum(1, keepdim=True)


def test_a_missing_value_is_the_reference_of_a_model_that_takes_it() -> None:
    d = talk("logistic", guests=1)
    offer, columns = d.terms.offers[0], d.guests[0].columns
    guest = StumpGuest(offer, d.terms, columns, SGD(0.1), RationAccount("lab", len(columns), 50, 5000), secret=b"0")
    assert guest.reference.isnan().all()
    d.host.joint = Stump()
    d = Dialogue(d.host, [guest])
    rows = d.terms.test[:6]
    e = explain(d, rows, HOST)
    assert e.reference == NOTHING
    whole = torch.cat([d.host.columns[rows], guest.scores(columns[rows])], 1).numpy()
    off = np.array([np.nan] * 4 + [0.3 * columns.shape[1]])

    def f(x: np.ndarray) -> np.ndarray:
        z = Stump().scores({}, torch.from_numpy(x[:, :4]), torch.from_numpy(x[:, 4:]))
        return (z[:, 1] - z[:, 0]).numpy()

    for i in range(len(rows)):
        assert np.allclose(e.values[i], naive(f, whole[i], off, [[c] for c in range(5)]), atol=1e-10)
    typical = explain(d, rows, HOST, reference=middle(d.host.columns[d.terms.train]))
    assert typical.reference == MEDIAN, "a reference that is given is taken"
    assert np.abs(typical.values - e.values).max() > 0.1


def plain_mean(f: Any, row: np.ndarray, off: np.ndarray) -> np.ndarray:
    """Line 6 of the paper's algorithm 1, as printed: every coalition of the others counts alike."""
    p, out = len(row), []
    for j in range(p):
        others = [i for i in range(p) if i != j]
        coalitions = [c for size in range(p) for c in itertools.combinations(others, size)]
        pairs = []
        for some in coalitions:
            x = off.copy()
            x[list(some)] = row[list(some)]
            more = x.copy()
            more[j] = row[j]
            pairs.append(float(f(more[None])[0] - f(x[None])[0]))
        out.append(sum(pairs) / len(pairs))
    return np.array(out)


def test_the_plain_mean_of_algorithm_1_does_not_sum_to_what_is_explained() -> None:
    row, off = np.array([1.0, 1.0, 1.0]), np.zeros(3)

    def f(x: np.ndarray) -> np.ndarray:
        return np.asarray(x[:, 0] * x[:, 1] * x[:, 2] + x[:, 0])

    e = explain_rows(f, row[None], off, ["a", "b", "c"])
    printed = plain_mean(f, row, off)
    assert e.values[0] == pytest.approx([4 / 3, 1 / 3, 1 / 3]), "they sum to f(row) - f(off) = 2"
    assert printed == pytest.approx([1.25, 0.25, 0.25]), "and these to 1.75"
    assert np.allclose(e.values[0], naive(f, row, off, [[0], [1], [2]]))


def whole_of(d: Dialogue, rows: Tensor) -> Any:
    united = explain(d, rows, HOST)
    guests = [
        GuestColumns(
            g.name, g.columns[rows], g.reference, g.scores, [f"c{i}" for i in range(g.columns.shape[1])],
            [[i] for i in range(g.columns.shape[1])], g.columns[rows].numpy(),
        )
        for g in d.guests
    ]  # fmt: skip
    ref = middle(d.host.columns[d.terms.train])
    x = d.host.columns[rows]
    return explain_whole(united, d.host.scores, d.host.loss, x, ref, [[0], [1], [2], [3]], guests)


def test_the_whole_space_beside_the_united_values() -> None:
    d = trained("split", bits=0)
    rows = d.terms.test[:30]
    e = whole_of(d, rows)
    assert e.whole is not None
    of_all = e.whole.explanation
    assert of_all.feature_names == [*HOST, "lab: c0", "lab: c1", "lab: c2", "insurer: c0", "insurer: c1"]
    assert e.whole.owners == ("", "", "", "", "lab", "lab", "lab", "insurer", "insurer")
    z = d.predict(rows).scores
    assert np.allclose(of_all.total, (z[:, 1] - z[:, 0]).numpy(), atol=1e-12), "they sum to the same answer"
    assert np.allclose(of_all.base_values, e.base_values, atol=1e-12), "from the same reference"

    def f(x: np.ndarray) -> np.ndarray:
        parts = torch.from_numpy(x).split(list(WIDTHS), 1)
        answers = [g.scores(part) for g, part in zip(d.guests, parts[1:], strict=True)]
        scores = d.host.scores(torch.cat([parts[0], *answers], 1))
        return (scores[:, 1] - scores[:, 0]).numpy()

    row = torch.cat([d.host.columns[rows[0]], *(g.columns[rows[0]] for g in d.guests)]).numpy()
    off = torch.cat([middle(d.host.columns[d.terms.train]), *(g.reference for g in d.guests)]).numpy()
    assert np.allclose(of_all.values[0], naive(f, row, off, [[c] for c in range(9)]), atol=1e-10)
    compared = compare_whole(e, e.whole)
    assert [one.feature for one in compared.features] == [*HOST, "lab", "insurer"]
    assert [sorted(n for n, _ in one.hidden) for one in compared.features[4:]] == [
        ["lab: c0", "lab: c1", "lab: c2"],
        ["insurer: c0", "insurer: c1"],
    ]
    own = np.corrcoef(e.values[:, :4].ravel(), of_all.values[:, :4].ravel())[0, 1]
    assert compared.correlation == pytest.approx(own)
    lab = of_all.values[:, 4:7].sum(1)
    assert compared.features[4].whole == pytest.approx(np.abs(lab).mean())
    assert compared.features[4].largest == pytest.approx(np.abs(lab - e.values[:, 4]).max())
    assert len(e[3:5].whole.explanation) == 2, "some rows of it are some rows of both"  # type: ignore[union-attr]
    assert replace(e, whole=None) == e, "an explanation is the same with or without"


def test_of_a_linear_model_the_whole_space_is_what_united_values_sum() -> None:
    d = trained("logistic", bits=0)
    e = whole_of(d, d.terms.test[:20])
    assert e.whole is not None
    compared = compare_whole(e, e.whole)
    assert max(one.largest for one in compared.features) < 1e-10
    assert (compared.correlation, compared.same_first) == (pytest.approx(1), 1)


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
    off = torch.cat([middle(d.host.columns[d.terms.train]), *(answer_scores(a)[0] for a in d.off().values())]).numpy()

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
