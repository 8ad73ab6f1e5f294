"""The rates that pages, messages and documents promise: how rarely something sound is blamed, and how often an interval
holds the truth.

Each promise is a simulation of worlds in which the truth is known, counted against the binomial distribution
(tests/support/rates.py). Numbers are written down here as they are promised, and not taken from the source: a constant
that is halved or doubled there fails here (tests/mutants/rates.toml).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

import vitrail as vt
from tests.support.rates import assert_rate
from tests.support.scripts import load_script
from vitrail.analysis import uncertainty
from vitrail.analysis.calibration import counts_test, fit_line, judge, net_benefit
from vitrail.analysis.calibration import wilson as wilson_of_events
from vitrail.analysis.explanations.rows import Explanation
from vitrail.analysis.harm import expect_worse
from vitrail.analysis.selective_prediction import newcombe, wilson
from vitrail.analysis.shortcuts import detector
from vitrail.core.exchange import Release
from vitrail.core.facts import ALONE_LEFT_OUT, ERROR_LEFT_OUT, LEFT_OUT
from vitrail.data.drafting.leaks import find_leaks
from vitrail.data.readers.tables import clean
from vitrail.metrics.calibration import EDGES, RiskCounts, counted, merged
from vitrail.metrics.holdout_summary import PER_CENT
from vitrail.metrics.roc import roc_area
from vitrail.metrics.score_intervals import interval_of_counts
from vitrail.metrics.scores import score
from vitrail.metrics.survival import GROUPS, by_risk, in_intervals, kaplan_meier, limits, thirds
from vitrail.privacy.noise import Generator, blurred_report
from vitrail.privacy.release import released
from vitrail.privacy.score_rounding import of_hits, rounded, rounding_variance
from vitrail.quality.checks.missing_by_class import depends_on_class
from vitrail.quality.screening import screen
from vitrail.report.sections import protection
from vitrail.report.sections.scores import site_status
from vitrail.report.sections.survival_by_risk import MORE, Curve, compare_groups
from vitrail.runs.site.card import _scores
from vitrail.runs.site.local_model import rests_on
from vitrail.stats.intervals import interval, level_of
from vitrail.stats.random_effects import predict_further
from vitrail.stats.shapley import Values, exact, paired_mean
from vitrail.studies.benefit import NO, YES, SiteLosses, decide
from vitrail.studies.contribution.ledger import between
from vitrail.studies.contribution.retraining import CoalitionRetraining
from vitrail.vertical.guest_value import guest_values

STUDY = vt.Study.parse(
    {
        "target": {"column": "y", "classes": [0, 1], "positive": 1},
        "features": {
            "a": {"kind": "numeric"},
            "b": {"kind": "numeric"},
            "c": {"kind": "binary", "categories": [0, 1]},
        },
        "metrics": ["accuracy"],
    }
)


# intervals over seeds and folds, and verdicts


def test_an_interval_over_seeds_holds_the_truth_in_95_of_100() -> None:
    scores = np.random.default_rng(0).normal(0.7, 0.1, (6000, 5))
    ends = np.array([interval(seeds.tolist(), 0.0) for seeds in scores])
    for missed in (ends[:, 1] > 0.7, ends[:, 2] < 0.7):
        assert_rate(missed.sum(), 6000, 0.025, 0.025)


def one_row_a_fold(gains: np.ndarray) -> SiteLosses:
    rows = len(gains)
    return SiteLosses(gains[None], np.zeros((1, 1, rows)), np.arange(rows)[None], 0.0)


def test_where_joining_changes_nothing_2_in_100_are_told_yes_and_3_in_100_no() -> None:
    verdicts = [decide(one_row_a_fold(g)).verdict for g in np.random.default_rng(1).normal(size=(6000, 12))]
    assert_rate(verdicts.count(YES), 6000, 0.02, 0.02)
    assert_rate(verdicts.count(NO), 6000, 0.03, 0.03)


def test_folds_that_share_rows_give_no_more_verdicts_than_promised() -> None:
    """Five repeats of ten folds, as between hospitals: the same rows again and again."""
    rng, verdicts = np.random.default_rng(2), []
    for _ in range(1500):
        fold = np.stack([rng.permutation(60) % 10 for _ in range(5)])
        luck = rng.normal(0, 0.3, 60) + rng.normal(0, 0.06, (5, 60))
        verdicts.append(decide(SiteLosses(luck, np.zeros((1, 5, 60)), fold, 0.1)).verdict)
    assert_rate(verdicts.count(YES), 1500, 0.0, 0.02)
    assert_rate(verdicts.count(NO), 1500, 0.0, 0.03)


def test_the_smallest_gain_that_would_be_seen_is_seen_in_four_of_five() -> None:
    noise = np.random.default_rng(3).normal(size=(4000, 12))
    least = float(np.mean([decide(one_row_a_fold(g)).least for g in noise[:1000]]))
    seen = [decide(one_row_a_fold(g + least)).verdict == YES for g in noise[1000:]]
    assert_rate(sum(seen), 3000, 0.75, 0.87)


def test_whoever_looks_three_times_is_wrong_no_oftener_than_who_looks_once() -> None:
    scores, wrong = np.random.default_rng(4).normal(size=(4000, 12)), 0
    for seeds in scores:
        looks = [interval(seeds[: 4 * k].tolist(), 0.0, level=level_of(k, 3)) for k in (1, 2, 3)]
        wrong += any(low > 0 or high < 0 for _, low, high in looks)
    assert_rate(wrong, 4000, 0.04, 0.05)


@pytest.mark.parametrize(
    ("sites", "between", "low", "high"),
    [(3, 0.25, 0.95, 0.99), (5, 0.25, 0.94, 0.98), (10, 0.25, 0.94, 0.97), (10, 0.6, 0.91, 0.95), (3, 0.6, 0.85, 0.9)],
)
def test_a_further_site_lies_in_the_interval_that_others_give_in_95_of_100(
    sites: int, between: float, low: float, high: float
) -> None:
    """What a column would bring, where sites differ by a share of the gain as large as the prior's. Where they differ
    more, and there are few of them, it is less."""
    rng, held = np.random.default_rng(31), 0
    for _ in range(3000):
        variances = rng.uniform(0.02, 0.1, sites) ** 2
        values = 1 + rng.normal(0, between, sites) + rng.normal(0, np.sqrt(variances))
        further = predict_further(values, variances)
        held += further.low <= 1 + rng.normal(0, between) <= further.high
    assert_rate(held, 3000, low, high)


# risks


def risks_that_come_true(rng: np.random.Generator, rows: int) -> tuple[np.ndarray, np.ndarray]:
    risk = 1 / (1 + np.exp(-rng.normal(0, 1.3, rows)))
    return risk, rng.random(rows) < risk


def test_a_model_whose_risks_come_true_is_blamed_once_in_twenty_times() -> None:
    rng, blamed, lines = np.random.default_rng(5), 0, []
    for _ in range(3000):
        risk, event = risks_that_come_true(rng, 1000)
        line = fit_line(risk, event)
        assert line is not None
        lines.append(line)
        blamed += judge(counted(risk, event, EDGES), line) != "no sign that its risks are off"
    assert_rate(blamed, 3000, 0.047, 0.053)
    assert_rate(sum(line.slope.low <= 1 <= line.slope.high for line in lines), 3000, 0.94, 0.96)
    assert_rate(sum(line.intercept.low <= 0 <= line.intercept.high for line in lines), 3000, 0.94, 0.96)


def test_counts_alone_blame_it_no_oftener() -> None:
    rng = np.random.default_rng(6)
    groups = [merged(counted(*risks_that_come_true(rng, 300), EDGES)) for _ in range(3000)]
    blamed = [judge(counts) != "no sign that its risks are off" for counts in groups]
    assert_rate(sum(blamed), 3000, 0.02, 0.05)
    assert sum(blamed) == sum(counts_test(counts) < 0.05 for counts in groups)


@pytest.mark.parametrize("way", ["counts", "shares"])
def test_the_interval_of_a_share_holds_it_in_95_of_100(way: str) -> None:
    """Exactly, over all counts that can come: of shares from 5 to 95 in 100 on average, and of none much less."""
    held = []
    for share in np.arange(0.05, 0.951, 0.01):
        hits = np.arange(121)
        ends = [wilson_of_events(k, 120)[1:] if way == "counts" else wilson(k / 120, 120) for k in hits]
        inside = np.array([low <= share <= high for low, high in ends])
        held.append(stats.binom.pmf(hits, 120, share) @ inside)
    assert 0.945 <= np.mean(held) <= 0.957
    assert min(held) >= 0.92


def test_the_interval_of_what_handing_over_gains_holds_it_in_95_of_100() -> None:
    held = []
    for kept, given in ((0.8, 0.8), (0.8, 0.4), (0.95, 0.6), (0.6, 0.5)):
        p, q = (stats.binom.pmf(np.arange(n + 1), n, share) for n, share in ((135, kept), (15, given)))
        ends = [[newcombe(i / 135, 135, j / 15, 15) for j in range(16)] for i in range(136)]
        held.append(p @ np.array([[low <= kept - given <= high for low, high in row] for row in ends]) @ q)
    assert all(0.94 <= rate <= 0.975 for rate in held)


def test_net_benefit_lies_in_its_interval_in_95_of_100() -> None:
    rng = np.random.default_rng(7)
    risk, event = risks_that_come_true(rng, 10**6)
    true = (event & (risk >= 0.3)).mean() - (~event & (risk >= 0.3)).mean() * 3 / 7
    found = [net_benefit(counted(*risks_that_come_true(rng, 500), (0.3,)), draws=200, seed=i) for i in range(2000)]
    assert_rate(sum(f.low[0] <= true <= f.high[0] for f in found), 2000, 0.93, 0.95)


def test_a_model_that_knows_nothing_is_said_to_help_in_5_of_100_samples_at_most() -> None:
    rng, wrongly = np.random.default_rng(8), 0
    edges = tuple(k / 20 for k in range(1, 20))
    for seed in range(1000):
        risk = np.clip(rng.normal(0.3, 0.1, 200), 0.01, 0.99)
        wrongly += net_benefit(counted(risk, rng.random(200) < 0.3, edges), 200, seed).useful is not None
    assert_rate(wrongly, 1000, 0.0, 0.05)


def times(rng: np.random.Generator, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Outcomes in four intervals, with many who leave; and what a model says of them by chance."""
    event, left = rng.exponential(5, rows), rng.uniform(0, 10, rows)
    p = np.ones((rows, 4))
    p[:, -1] = rng.random(rows)
    return in_intervals(np.minimum(event, left), event <= left, (1.0, 2.0, 3.0, 4.0)), p


def test_where_a_model_tells_no_risks_apart_one_site_in_forty_is_named() -> None:
    """And a Kaplan-Meier curve lies in its interval in 95 of 100."""
    rng, named, held = np.random.default_rng(9), 0, np.zeros(2)
    size = np.bincount(thirds(300))
    for _ in range(2500):
        free, left = by_risk(*times(rng, 300), np.ones(300), 10).reshape(2, 3, 4)
        curves = {}
        for g, group in enumerate(GROUPS):
            told = np.isfinite(free[g])
            low, high = limits(free[g][told], left[g][told], int(size[g]))
            ends = np.flatnonzero(told) + 1.0
            curves[group] = Curve(int(size[g]), *(v.tolist() for v in (ends, free[g][told], left[g][told], low, high)))
            truth = np.exp(-ends / 5)
            held += ((low <= truth) & (truth <= high))[-1:].sum(), len(ends[-1:])
        gap = compare_groups(curves)
        named += gap is not None and gap.verdict == MORE
    assert_rate(named, 2500, 0.02, 0.03)
    assert_rate(held[0], int(held[1]), 0.94, 0.96)


# sites against each other


def like_sites(rng: np.random.Generator, sites: int = 4, rows: int = 60) -> dict[str, pd.DataFrame]:
    out = {}
    for k in range(sites):
        a = rng.normal(60, 10, rows)
        b, c = 80 + a + rng.normal(0, 12, rows), (rng.random(rows) < 0.4).astype(int)
        y = ((a - 60) / 8 + c + rng.logistic(0, 0.8, rows) > 0).astype(int)
        out[f"site-{k}"] = clean(pd.DataFrame({"a": a.round(1), "b": b.round(1), "c": c, "y": y}), STUDY)
    return out


def test_of_federations_of_like_sites_5_in_100_at_most_are_told_that_data_is_likely_wrong() -> None:
    rng = np.random.default_rng(10)
    alarms = sum(bool(screen(like_sites(rng), STUDY).wrong) for _ in range(80))
    assert_rate(alarms, 80, 0.0, 0.05)


def test_of_clean_federations_5_in_100_at_most_are_told_of_a_shortcut() -> None:
    bench, rng, alarms = load_script("planted_bias_rule"), np.random.default_rng(11), 0
    mixed = [(3, 2, 20, "natural"), (4, 2, 40, "at home"), (3, 4, 10, "alike"), (5, 5, 8, "natural")]
    for i in range(300):
        sites, classes, rows, world = mixed[i % len(mixed)]
        found = detector.judge(**bench.simulate(rng, sites, classes, rows, bench.WORLDS[world], None))
        alarms += found is not None and bool(found.found)
    assert_rate(alarms, 300, 0.0, 0.05)


def test_models_surer_at_home_by_nature_raise_no_more_alarms_than_promised() -> None:
    """Cells differ with tails heavier than a normal law's, as those of real pictures did."""
    rng, alarms, at = np.random.default_rng(14), 0, np.arange(4)
    for _ in range(150):
        margin = np.full((4, 4, 6, 2), 40.0)
        margin[..., 0] = 20 + rng.normal(0, 0.2, (4, 4, 6))
        margin[at, at, :, 0] += rng.standard_t(5, (4, 6))
        found = detector.judge(margin=margin)
        alarms += found is not None and bool(found.found)
    assert_rate(alarms, 150, 0.0, 0.05)


def test_where_one_signal_is_known_the_rule_spends_its_5_in_100() -> None:
    """At few sites, where little of it is lost to counting cells: else the promise could be kept by never accusing."""
    bench, rng, alarms = load_script("planted_bias_rule"), np.random.default_rng(12), 0
    for world in ("alike", "at home", "natural") * 500:
        piece = bench.simulate(rng, 3, 2, 20, bench.WORLDS[world], None)["piece"]
        found = detector.judge(piece=piece)
        alarms += found is not None and bool(found.found)
    assert_rate(alarms, 1500, 0.045, 0.05)


def test_a_worse_shared_model_by_chance_alone_is_blamed_at_one_site_of_twenty() -> None:
    more = np.random.default_rng(13).normal(0, 0.01, 5000)
    told = [rests_on({LEFT_OUT: 0.5 + m, ALONE_LEFT_OUT: 0.5, ERROR_LEFT_OUT: 0.01}, "row") for m in more]
    assert_rate(sum("alone is better" in words for words in told), 5000, 0.05, 0.05)


def test_how_many_sites_are_served_worse_lies_in_its_interval_in_90_of_100() -> None:
    """Or oftener: the interval is that of as many other sites, and these are the ones that were seen."""
    rng, held = np.random.default_rng(14), 0
    for _ in range(1000):
        truth = rng.normal(-0.01, 0.03, 20)
        d = truth + rng.normal(0, 0.02, 20)
        worse = expect_worse([20, d.sum(), (d**2).sum(), 20 * 0.02**2])
        assert worse is not None
        held += worse.low <= (truth > 0).sum() <= worse.high
    assert_rate(held, 1000, 0.9, 1.0)


@pytest.mark.parametrize(("sites", "related"), [(8, 0.0), (20, 0.0), (20, 0.5)])
def test_a_rank_correlation_lies_in_its_interval_in_95_of_100(sites: int, related: float) -> None:
    rng, held = np.random.default_rng(15), 0
    truth = 6 / math.pi * math.asin(related / 2)
    for _ in range(2000):
        one = rng.normal(size=sites)
        told = uncertainty.rank_correlation(one, related * one + math.sqrt(1 - related**2) * rng.normal(size=sites))
        held += not (told.low > truth or told.high < truth)
    assert_rate(held, 2000, 0.94, 0.965)


def test_matrices_that_have_nothing_in_common_agree_by_chance_as_often_as_is_said(monkeypatch: Any) -> None:
    monkeypatch.setattr(uncertainty, "SHUFFLES", 99)
    rng = np.random.default_rng(16)
    chances = np.array([uncertainty.rank_agreement(*rng.normal(size=(2, 6, 6)))[1] for _ in range(1000)])
    assert_rate((chances <= 0.2).sum(), 1000, 0.2, 0.2)
    assert_rate((chances <= 0.05).sum(), 1000, 0.05, 0.05)


def test_a_column_that_tells_nothing_is_asked_about_once_in_10000_sites() -> None:
    rng, asked = np.random.default_rng(17), 0
    for rows in (20, 40) * 800:
        event = rng.permutation(np.arange(rows) % 2).astype(float)
        column = {"x": {"here": pd.Series(rng.normal(size=rows))}}
        asked += bool(find_leaks(column, {"x": {"kind": "numeric"}}, "y", [{"here": event}])[1])
    assert_rate(asked, 1600, 0.0, 1e-4)


def test_a_table_whose_values_are_missing_by_chance_is_blamed_once_in_a_hundred() -> None:
    """Of thirty columns in which values are missing, none more in one class than in the other."""
    rng, blamed = np.random.default_rng(23), 0
    for _ in range(250):
        y = rng.random(200) < 0.4
        absent = rng.random((30, 200)) < 0.15
        blamed += any(depends_on_class(column, (y, ~y), tests=30) for column in absent)
    assert_rate(blamed, 250, 0.0, 0.01)


def test_how_rarely_the_honest_are_named_is_the_exact_binomial_limit(monkeypatch: Any) -> None:
    for wrong, runs in ((0, 100), (3, 100), (1, 40)):
        monkeypatch.setattr(protection, "HONEST", (wrong, runs))
        most = stats.binomtest(wrong, runs, alternative="less").proportion_ci(0.95).high
        assert f"in at most {100 * most:.0f} of 100 such runs (with 95 % certainty)" in protection.sure()


# values


def a_game(rng: np.random.Generator, players: int) -> Callable[[np.ndarray], np.ndarray]:
    """Each player alone, and in twos and threes."""
    one, two = rng.normal(size=players), rng.normal(size=(players, players))
    three = rng.normal(size=(players, players, players)) / 3

    def worth(masks: np.ndarray) -> np.ndarray:
        m = masks.astype(float)
        both = np.einsum("ci,ij,cj->c", m, two, m)
        return (m @ one + both + np.einsum("ci,cj,ck,ijk->c", m, m, m, three))[:, None]

    return worth


def test_a_shapley_value_of_drawn_coalitions_lies_in_its_interval_in_95_of_100() -> None:
    rng, held = np.random.default_rng(18), 0
    for _ in range(120):
        worth = a_game(rng, 11)
        drawn = paired_mean(worth, 11, 100, rng)
        held += (abs(drawn.mean - exact(worth, 11).mean) <= drawn.half).sum()
    assert_rate(held, 120 * 11, 0.93, 0.97)


def test_what_taking_part_brought_lies_in_its_interval_in_95_of_100() -> None:
    """Over test rows alone, and with as much uncertainty from drawing coalitions as from the rows."""
    rng, n = np.random.default_rng(19), 100
    draws = rng.multinomial(n, [1 / n] * n, 400) / n
    for half in (0.0, 1.96 / math.sqrt(n)):
        rows = rng.normal(size=(2000, n)) + rng.normal(size=(2000, 1)) * half / 1.96
        _, low, high = between(rows.mean(1), draws @ rows.T, np.full(2000, half))
        assert_rate(((low <= 0) & (high >= 0)).sum(), 2000, 0.925, 0.96)


def test_a_value_over_seeds_of_training_lies_in_its_interval_in_95_of_100() -> None:
    rng = np.random.default_rng(20)
    game: Any = SimpleNamespace(seeds=range(5), names=["site"] * 2000, worth=lambda *_: None)
    solve = lambda worth, players: Values(rng.normal(size=(players, 1)), np.zeros(players), 1)  # noqa: E731
    got = CoalitionRetraining.by_seed(game, solve, lambda *_: None)
    assert_rate((abs(got.mean) <= got.half).sum(), 2000, 0.95, 0.95)


def test_the_mean_size_of_a_features_value_lies_in_its_interval_in_95_of_100() -> None:
    values = np.random.default_rng(21).normal(5, 1, (30, 2000))
    names = [f"f{k}" for k in range(2000)]
    told = Explanation(values, np.zeros(30), np.zeros((30, 2000)), names, np.zeros((30, 2000)), "median")
    sizes = told.importance()
    assert_rate(sum(s["low"] <= 5 <= s["high"] for s in sizes), 2000, 0.95, 0.95)


def test_scores_of_a_card_and_of_guests_lie_in_their_intervals_in_95_of_100() -> None:
    rng, held = np.random.default_rng(22), np.zeros(3)
    for seed in range(300):
        y = rng.integers(0, 2, 120)
        hosts, guests = (np.where(rng.random(120) < share, y, 1 - y) for share in (0.7, 0.75))
        p, q = (np.stack([1 - said, said], 1).astype(float) for said in (hosts, guests))
        ends = [_scores(STUDY, y, p, seed=seed)[0].estimate[1:]]
        worth = guest_values(STUDY, y.astype(float), {"host": p, "both": q}, seed, draws=200).iloc[:2]
        ends += [tuple(worth[["low", "high"]].iloc[0]), tuple(worth[["gain_low", "gain_high"]].iloc[1])]
        held += [low <= truth <= high for (low, high), truth in zip(ends, (0.7, 0.7, 0.05), strict=True)]
    for hits in held:
        assert_rate(hits, 300, 0.92, 0.97)


def rows_by_risk(rng: np.random.Generator, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """The event, and a risk that tells something of it; a third of the rows are alike."""
    event = rng.random(rows) < 0.4
    return event, 1 / (1 + np.exp(-(1.2 * event + rng.normal(size=rows) - 0.6)))


def test_the_area_under_a_roc_curve_lies_in_its_interval_in_95_of_100() -> None:
    rng, held = np.random.default_rng(30), 0
    event, risk = rows_by_risk(rng, 200_000)
    truth = score(("auc",), event.astype(np.int64), np.stack([1 - risk, risk], 1))["auc"]
    for _ in range(1500):
        event, risk = rows_by_risk(rng, 120)
        _, low, high = roc_area(counted(risk, event, PER_CENT))
        held += low <= truth <= high
    assert_rate(held, 1500, 0.94, 0.965)


@pytest.mark.parametrize("rounding", [False, True])
@pytest.mark.parametrize("metric", ["accuracy", "balanced_accuracy", "auc"])
def test_a_score_told_without_its_rows_lies_in_its_interval_in_95_of_100(metric: str, rounding: bool) -> None:
    """Also where it left its site as counts of patients that were rounded; balanced accuracy is never less sure than
    is said."""
    rng, held = np.random.default_rng(31), 0
    event, risk = rows_by_risk(rng, 200_000)
    (truth,) = score((metric,), event.astype(np.int64), np.stack([1 - risk, risk], 1)).values()
    for _ in range(1000):
        event, risk = rows_by_risk(rng, 200)
        y, p = event.astype(np.int64), np.stack([1 - risk, risk], 1)
        (value,) = score((metric,), y, p).values()
        true, more = np.bincount(y, minlength=2).astype(float), 0.0
        if rounding:
            more = rounding_variance(metric, 200.0, true.min())
            hits = [float((p[y == k].argmax(1) == k).sum()) for k in (0, 1)]
            sums = of_hits(np.array([rounded(n, 200, rng.random()) for n in hits]), true)
            value = sums.get(metric, rounded(value * true.min(), true.min(), rng.random()) / true.min())
        told = interval_of_counts(metric, min(1.0, value), 200.0, true.min(), more)
        held += told.low <= truth <= told.high
    assert_rate(held, 1000, 0.94, 0.98)


def test_of_federations_whose_risks_come_true_1_in_20_at_most_has_a_site_whose_risks_are_called_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rng, named = np.random.default_rng(32), 0
    risk, rows = np.array([0.1, 0.2, 0.35, 0.5, 0.65, 0.85]), np.full(6, 25.0)
    shown: Any = SimpleNamespace(run=object())
    for _ in range(1000):
        told = {f"s{k}": RiskCounts(risk, rows, rng.binomial(25, risk).astype(float), rows * risk) for k in range(8)}
        monkeypatch.setattr(site_status, "risk_counts_of", lambda run, told=told: told)
        named += any(site_status.risks_off(shown, site) for site in told)
    assert_rate(named, 1000, 0.03, 0.05)


@pytest.mark.parametrize("rows", [30, 120])
def test_a_step_of_a_survival_curve_lies_in_its_interval_in_95_of_100(rows: int) -> None:
    rng, held = np.random.default_rng(33), 0
    for _ in range(1500):
        event, leave = rng.exponential(10, rows), rng.uniform(0, 30, rows)
        curve = kaplan_meier(np.minimum(event, leave), event <= leave, 20.0)
        _, low, high = curve.at_time(6.0)
        held += low <= math.exp(-0.6) <= high
    assert_rate(held, 1500, 0.935, 0.96)


def test_prototypes_shown_under_a_budget_tell_two_sites_apart_no_better_than_it_says() -> None:
    """The two answers farthest apart, and the best guess whose an answer is: right in P of its answers and wrong in Q
    of the other's, P <= e^epsilon Q + delta; there it is level, so that less noise would break it."""
    epsilon, delta, shape, trials = 1.0, 0.1, (1, 3, 4), 2000
    towards, generator = torch.ones(shape, dtype=torch.double), Generator("a site")
    sides = []
    for side in (1.0, -1.0):
        answers = []
        for i in range(trials):
            name = (side, i)
            told = released(
                {"v": side * 5 * towards},
                Release(0.5, epsilon, delta),
                lambda rows, clip, noise, name=name: blurred_report(rows[0], clip, noise, generator, *name)[None],
            )
            answers.append(float((told["v"] * towards).sum()) / towards.norm().item())
        sides.append(np.array(answers))
    reach = 0.5 * 3**0.5
    line = epsilon * np.std(sides[0]) ** 2 / (2 * reach)  # where one is e^epsilon times as likely as the other
    right, wrong = ((s > line).mean() for s in sides)
    assert right == pytest.approx(math.exp(epsilon) * wrong + delta, abs=0.04)
    assert abs(np.mean(sides[0]) - reach) < 0.1 * np.std(sides[0])
