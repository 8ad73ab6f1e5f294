"""One rule for "this site's class stands out": exact where it claims to be, calm where nothing is, and it finds what is
planted. The federations are those of benchmarks/pictures/planted_bias_rule.py."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from tests.support.scripts import load_script
from vitrail.analysis.shortcuts import outliers
from vitrail.analysis.shortcuts.detector import (
    LEVEL,
    WEIGHTS,
    ShortcutSignals,
    _product,
    _sides,
    judge,
    least_to_largest,
    read_standing,
    too_few,
)
from vitrail.analysis.shortcuts.outliers import GRID, expected
from vitrail.analysis.shortcuts.wording import calm, labels_of, sentences, to_text
from vitrail.core import facts as means
from vitrail.core.facts import Fact

bench = load_script("planted_bias_rule")
MIXED = [(3, 2, 20, "natural"), (4, 2, 40, "at home"), (3, 4, 10, "alike"), (8, 3, 12, "natural"), (5, 5, 8, "natural")]


def federation(seed: int, sites: int, classes: int, rows: float, world: str, mark: Any = None) -> dict[str, Any]:
    made: dict[str, Any] = bench.simulate(np.random.default_rng(seed), sites, classes, rows, bench.WORLDS[world], mark)
    return made


def judged(**facts: Any) -> ShortcutSignals:
    found = judge(**facts)
    assert found is not None
    return found


@pytest.fixture(scope="module")
def clean() -> list[ShortcutSignals]:
    """400 federations, 80 of each kind."""
    return [judged(**federation(1000 + seed, *MIXED[seed % len(MIXED)])) for seed in range(400)]


# the promise


def test_of_clean_federations_at_most_the_promised_share_raises_an_alarm(clean: list[ShortcutSignals]) -> None:
    assert np.mean([bool(s.found) for s in clean]) <= LEVEL


@pytest.mark.parametrize("signal", ["piece", "margin", "travel", "easy", "distance"])
def test_each_signal_alone_keeps_it_too(clean: list[ShortcutSignals], signal: str) -> None:
    least = [np.nanmin(p) * np.isfinite(p).sum() for s in clean if (p := s.chances.get(signal)) is not None]
    assert len(least) > 390
    assert np.mean(np.array(least) <= LEVEL) <= LEVEL + 0.02  # two standard errors of 400


def test_the_promise_needs_its_parts(clean: list[ShortcutSignals]) -> None:
    """Without counting the cells, or by naming the largest distance, clean federations are accused: so that the tests
    above can fail."""
    assert np.mean([np.nanmin(s.chance) <= LEVEL for s in clean]) > 2 * LEVEL
    assert all((least_to_largest(s.distance) == 1).sum() == 1 for s in clean)


def test_a_site_that_differs_in_all_classes_is_not_named_for_one() -> None:
    named = [bool(judged(**federation(seed, 6, 6, 15, "one odd site")).found) for seed in range(60)]
    assert np.mean(named) <= 2 * LEVEL


# what is planted


@pytest.mark.parametrize(
    ("sites", "classes", "rows", "world", "mark", "at_least"),
    [
        (4, 2, 60, "natural", bench.Mark(), 0.9),
        (4, 5, 12, "alike", bench.Mark(home=0.8), 0.75),
        (8, 5, 12, "alike", bench.Mark(), 0.9),
        (4, 2, 60, "natural", bench.Mark(home=0.7, away=0.6), 0.75),
    ],
)
def test_a_shortcut_is_found(sites: int, classes: int, rows: int, world: str, mark: Any, at_least: float) -> None:
    told = [judged(**federation(seed, sites, classes, rows, world, mark)) for seed in range(40)]
    cells = [[(f.site, f.label) for f in s.found] for s in told]
    assert np.mean([(0, 1) in c for c in cells]) >= at_least
    assert np.mean([any(other != (0, 1) for other in c) for c in cells]) <= 2 * LEVEL
    assert np.mean([bool({"piece", "margin", "travel"} & set(s.found[0].by)) for s in told if s.found]) > 0.8
    assert all(0 <= f.chance <= LEVEL for s in told for f in s.found)


def test_travel_of_eight_against_one_in_ten() -> None:
    """Counts as plain as can be: at home 10 of 12, elsewhere 1 of 12 at each of three sites; all others 8 of 12."""
    travel = np.full((4, 4, 3, 2), 8.0)
    travel[..., 1] = 12
    travel[1, :, 2, 0] = 1
    travel[1, 1, 2, 0] = 10
    found = judged(travel=travel)
    assert [(f.site, f.label, f.by) for f in found.found] == [(1, 2, ("travel",))]
    assert found.found[0].chance < 0.01
    assert (found.home[1, 2], found.away[1, 2]) == (10 / 12, 1 / 12)
    assert 0.02 < found.usual["travel"][1, 2] < 0.3
    travel[1, 1, 2, 0] = 1  # as bad at home: a poor model, no shortcut
    assert judged(travel=travel).found == []
    travel[1, :, 2, 0] = 10  # as good elsewhere: a good one
    assert judged(travel=travel).found == []


def test_a_piece_that_convinces_one_model_alone() -> None:
    rng = np.random.default_rng(0)
    piece = 1 + 0.2 * rng.normal(size=(5, 5, 4))
    piece[2, 2, 0] += 4
    found = judged(piece=piece)
    assert [(f.site, f.label, f.by) for f in found.found] == [(2, 0, ("piece",))]
    assert found.piece[2, 0] == pytest.approx(piece[2, 2, 0] - np.delete(piece[2, :, 0], 2).mean())
    assert -0.5 < found.usual["piece"][2, 0] < 0.5
    piece[2, :, 0] = 5  # it convinces everybody: it belongs to the class
    assert judged(piece=piece).found == []


def test_a_model_that_did_not_go_round_is_not_compared_with() -> None:
    piece = 1 + 0.2 * np.random.default_rng(0).normal(size=(5, 5, 4))
    piece[2, 2, 0] += 4
    piece[:, 1] = 0  # as those are told who refused
    found = judged(piece=piece)
    assert found.piece[2, 0] == pytest.approx(piece[2, 2, 0] - piece[2, [0, 3, 4], 0].mean())
    assert np.isnan(found.piece[1]).all()
    assert (2, 0) in [(f.site, f.label) for f in found.found]


def test_a_model_that_is_surer_at_home_than_elsewhere() -> None:
    """All models find site 3 easier, and one model is surer everywhere: neither is a shortcut."""
    rng = np.random.default_rng(0)
    margin = np.full((5, 5, 4, 2), 20.0)
    margin[..., 0] = 20 * (0.6 + 0.02 * rng.normal(size=(5, 5, 4)))
    margin[:, 3, :, 0] += 4
    margin[1, ..., 0] += 3
    assert judged(margin=margin).found == []
    margin[2, 2, 0, 0] += 4
    margin[2, [0, 1, 3, 4], 0, 0] -= 2
    found = judged(margin=margin)
    assert [(f.site, f.label, f.by) for f in found.found] == [(2, 0, ("margin",))]
    above = margin[..., 0, 0] / 20 * 8
    others = [above[[u for u in range(5) if u not in (2, t)], t].mean() for t in range(5)]
    elsewhere = np.mean([above[2, t] - others[t] for t in (0, 1, 3, 4)])
    assert found.margin[2, 0] == pytest.approx(above[2, 2] - others[2] - elsewhere)
    assert "its model gives the right class odds" in sentences(found, "abcde", "wxyz")[0].what
    margin[4] = margin[:, 4] = 0  # a site that refused is not compared with
    assert [(f.site, f.label) for f in judged(margin=margin).found] == [(2, 0)]


def test_learned_at_once_is_a_signal_and_learned_late_is_none() -> None:
    rng = np.random.default_rng(0)
    easy = np.exp(0.1 * rng.normal(size=(6, 5)))
    easy[3, 3] *= 0.02
    assert [(f.site, f.label) for f in judged(easy=easy).found] == [(3, 3)]
    easy[3, 3] = 50
    assert judged(easy=easy).found == []


def test_weak_signals_speak_together() -> None:
    """None of them suffices; together they do."""
    rng, found = np.random.default_rng(5), []
    for seed in range(30):
        facts = federation(seed, 6, 4, 14, "alike")
        facts["travel"][0, :, 1, 0] = np.round(facts["travel"][0, :, 1, 1] * 0.35)
        facts["travel"][0, 0, 1, 0] = np.round(facts["travel"][0, 0, 1, 1] * 0.9)
        facts["piece"][0, 0, 1] += rng.normal(1.6, 0.2)
        found += [f for f in judged(**facts).found if (f.site, f.label) == (0, 1)]
    assert len(found) > 5
    assert any(len(f.by) > 1 for f in found)


# any part may be missing


def test_any_subset_of_the_facts_will_do() -> None:
    whole = federation(3, 4, 3, 40, "natural", bench.Mark())
    assert judge() is None
    assert (0, 1) in [(f.site, f.label) for f in judged(**whole).found]
    for name in whole:
        rest = {k: v for k, v in whole.items() if k != name}
        told = judged(**rest)
        assert (told.cells > 0) == bool(set(rest) - {"distance"})
        assert set(told.chances) == set(rest)
    only = judged(distance=whole["distance"])
    assert (only.cells, only.found) == (0, [])
    assert "the distance between prototypes alone cannot show it" in calm(only)


def test_silent_sites_and_few_pictures_are_left_out() -> None:
    facts = federation(4, 5, 4, 40, "natural", bench.Mark())
    for name in ("travel", "margin"):
        facts[name][4] = facts[name][:, 4] = 0  # refused: nothing was counted
        facts[name][:, 2, 3] = (2, 4)
    facts["piece"][4] = facts["piece"][:, 4] = 0
    facts["easy"][4], facts["distance"][4] = 0, 0
    told = judged(**facts)
    assert not np.isfinite(told.chance[4]).any()
    assert told.cells == 16
    assert not np.isfinite(told.home[2, 3])
    assert np.isnan([told.easy[4], told.distance[4], told.piece[4], told.margin[4]]).all()
    assert not np.isfinite(told.margin[2, 3])
    assert np.isfinite(told.chance[2, 3])  # by the other signals
    assert (0, 1) in [(f.site, f.label) for f in told.found]


def test_two_sites_cannot_tell() -> None:
    told = judged(**federation(1, 2, 5, 60, "alike", bench.Mark()))
    assert told.found == []
    assert too_few(told)
    assert "If two differ, nobody can say which of them is unusual" in calm(told)
    assert not too_few(judged(**federation(1, 3, 5, 60, "alike")))


def test_the_order_of_sites_and_classes_does_not_matter() -> None:
    facts = federation(8, 5, 4, 15, "natural", bench.Mark())
    one, rows, columns = judged(**facts), [3, 0, 4, 1, 2], [2, 3, 0, 1]
    turned = {k: v[rows][:, columns] for k, v in facts.items() if k in ("easy", "distance")}
    turned |= {k: facts[k][rows][:, rows][:, :, columns] for k in ("travel", "margin", "piece")}
    two = judged(**turned)
    np.testing.assert_allclose(two.chance, one.chance[rows][:, columns], rtol=1e-6)


def test_many_cells_are_judged_at_once() -> None:
    told = judged(**federation(2, 40, 10, 8, "natural", bench.Mark()))
    assert told.cells == 400
    assert np.nanmin(told.chance) > 0


# the arithmetic


def test_the_sides_of_travel() -> None:
    """Model u at site s gets 100 u + s right: who is counted where."""
    travel = np.array([[[[100.0 * u + s, 900.0]] for s in range(4)] for u in range(4)])
    home, away, others, elsewhere = (side[2, 0] for side in _sides(travel))
    assert home.tolist() == [202, 900]
    assert away.tolist() == [200 + 201 + 203, 2700]
    assert others.tolist() == [2 + 102 + 302, 2700]
    assert elsewhere.tolist() == [1 + 3 + 100 + 103 + 300 + 301, 5400]


@pytest.mark.parametrize(("a", "n", "b", "m"), [(6, 6, 2, 19), (0, 5, 3, 20), (7, 12, 30, 40), (5, 5, 20, 20)])
def test_tails_are_those_of_the_laws(a: int, n: int, b: int, m: int) -> None:
    support = np.arange(max(0, a + b - m), min(n, a + b) + 1)
    half = np.exp(outliers._log_tail(support, n, m, a, a + b))
    for i in range(40, 90, 7):
        law = stats.nchypergeom_fisher(n + m, a + b, n, np.exp(GRID[i]))
        assert half[i] == pytest.approx(law.sf(a) + law.pmf(a) / 2, rel=1e-6)


def test_what_the_others_say_is_what_a_fit_without_the_cell_says() -> None:
    rng = np.random.default_rng(0)
    y, variance, same = (
        rng.normal(size=(4, 3)),
        rng.random((4, 3)) + 0.2,
        np.stack([np.ones((4, 3)), rng.random((4, 3))]),
    )
    sd, known = np.array([3, 0.5, 0.4, 0.4, 0.4, 0.4, 1, 1, 1.0]), np.ones((4, 3), bool)
    known[2, 1] = False
    told = outliers._foretell(np.where(known, y, 0), known, variance[None], same, sd[None])
    mean, var, density = (part[0, known] for part in told)
    x = np.column_stack([*same.reshape(2, -1), np.eye(4)[np.repeat(range(4), 3)], np.eye(3)[np.tile(range(3), 4)]])
    x, z = x[known.ravel()], y[known]
    whole, logs = np.diag(variance[known]) + (x * sd**2) @ x.T, []
    for i in range(11):
        rest = [j for j in range(11) if j != i]
        inner = whole[np.ix_(rest, rest)]
        pull = np.linalg.solve(inner, whole[rest, i])
        assert mean[i] == pytest.approx(pull @ z[rest])
        assert var[i] == pytest.approx(whole[i, i] - pull @ whole[rest, i])
        logs.append(stats.multivariate_normal(np.zeros(10), inner).logpdf(z[rest]))
    np.testing.assert_allclose(np.diff(density), np.diff(logs), atol=1e-9)


def test_a_cell_has_no_say_in_what_is_expected_of_it() -> None:
    rng = np.random.default_rng(1)
    y, chance = rng.normal(size=(4, 5)), np.full((4, 5), 0.3)
    before = expected(y, chance)
    y[2, 3] += 40
    after = expected(y, chance)
    assert before is not None
    assert after is not None
    assert after.middle[2, 3] == pytest.approx(before.middle[2, 3], abs=1e-6)
    assert after.middle[2, 2] != pytest.approx(before.middle[2, 2], abs=1e-2)


def test_brown_is_fisher_where_nothing_is_related(monkeypatch: pytest.MonkeyPatch) -> None:
    p = np.array([[0.01], [0.2], [np.nan]])
    monkeypatch.setattr("vitrail.analysis.shortcuts.detector.RELATED", 0.0)
    assert _product(p)[0] == pytest.approx(stats.combine_pvalues([0.01, 0.2]).pvalue)
    monkeypatch.setattr("vitrail.analysis.shortcuts.detector.RELATED", 0.5)
    assert _product(p)[0] > 1.2 * stats.combine_pvalues([0.01, 0.2]).pvalue
    assert np.isnan(_product(p[2:])[0])
    assert sum(WEIGHTS.values()) == pytest.approx(1)


# facts and words


def test_facts_are_found_by_their_meaning() -> None:
    made = federation(3, 4, 3, 40, "natural", bench.Mark())
    wanted = {
        "travel": means.TRAVEL,
        "margin": means.MARGIN,
        "piece": means.PIECE,
        "easy": means.EASY,
        "distance": means.PROTOTYPE_DISTANCE,
    }
    facts = {f"f{i}": Fact(torch.from_numpy(made[k]), (), what) for i, (k, what) in enumerate(wanted.items())}
    told = read_standing(facts)
    assert told is not None
    np.testing.assert_array_equal(told.chance, judged(**made).chance)
    assert read_standing({}) is None


def test_words() -> None:
    travel = np.full((4, 4, 2, 2), 8.0)
    travel[..., 1] = 12
    travel[1, :, 1, 0], travel[1, 1, 1, 0] = 1, 11
    told = judged(travel=travel)
    sites = ["a", "b", "c", "d"]
    (said,) = sentences(told, sites, labels_of(["cat", "dog"], told))
    assert said.text.startswith(
        "Site b, class dog: its model classifies 92 % of these pictures correctly at its own site and 8 % at the other"
    )
    assert said.sure == "Probability that a federation without any shortcut shows as much at any site: below 0.001."
    text = to_text(told, sites, ["cat", "dog"])
    assert "To ask b: look at your pictures of class dog for a mark, a tube, a text or a device" in text
    assert "vitrail look RUN --site NAME --data PICTURES" in text
    assert labels_of(["only one"], told) == ["1", "2"]
    travel[...] = (8, 12)
    assert "No class at any site stands out: nothing in 8" in to_text(judged(travel=travel), sites, ["cat", "dog"])
