"""What doubt is worth: intervals that hold what they promise, and sites that are counted together like with like."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from vitrail.analysis.selective_prediction import coverage, gain, kept_share, together, uncertainty, wilson
from vitrail.metrics.scores import FEWEST, SUREST, score_uncertainty, surest


def told(rows: dict[str, int], knows: float, seed: int = 0) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Scores and sizes of sites whose model is wrong in 0.3 + knows * (doubt - 0.5) of the rows with that doubt."""
    rng, scores = np.random.default_rng(seed), []
    for site, n in rows.items():
        unsure = rng.random(n)
        wrong = rng.random(n) < 0.3 + knows * (unsure - 0.5)
        p = np.column_stack([wrong, ~wrong]).astype(float)
        found = score_uncertainty(np.ones((1, n), int), p[None], unsure[None], np.ones((1, n), bool))
        scores += [(site, metric, float(v[0])) for metric, v in found.items()]
    sizes = pd.DataFrame({"site": list(rows), "train_rows": 1, "test_rows": list(rows.values())})
    return pd.DataFrame(scores, columns=["site", "metric", "value"]), sizes


@pytest.mark.parametrize(("hits", "rows"), [(0, 12), (7, 12), (12, 12), (430, 500)])
def test_the_interval_of_a_share_is_wilsons(hits: int, rows: int) -> None:
    want = stats.binomtest(hits, rows).proportion_ci(method="wilson")
    assert wilson(hits / rows, rows) == pytest.approx((want.low, want.high), abs=1e-6)


def test_the_gain_is_in_its_interval_as_often_as_promised() -> None:
    """Of 150 rows 15 are handed over, where the model is right as often as in the others, or less often."""
    rng, inside, clear = np.random.default_rng(1), 0, {0.8: 0, 0.4: 0}
    for handed in clear:
        for kept_right, given_right in zip(rng.binomial(135, 0.8, 500), rng.binomial(15, handed, 500), strict=True):
            shares = [(kept_right + given_right) / 150, kept_right / 135]
            found = gain(pd.DataFrame({"share": [100, 90], "rows": [150, 135], "accuracy": shares}), 90)
            assert found is not None
            inside += found.low <= 0.1 * (0.8 - handed) <= found.high
            clear[handed] += found.low > 0
    assert 0.93 < inside / 1000 < 0.98
    assert clear[0.8] < 0.05 * 500, "where doubt knows nothing, it is seldom said to help"
    assert clear[0.4] > 0.8 * 500, "where it knows, it mostly is"


def test_all_sites_are_counted_by_rows_and_only_like_with_like() -> None:
    scores, sizes = told({"big": 400, "small": 60, "tiny": 40, "nobody": 3}, 0.4)
    curves = coverage(scores, sizes)
    assert list(curves.columns) == ["site", "share", "rows", "accuracy"]
    assert len(curves) == 4 * len(SUREST)
    assert kept_share(curves) == 80, "two of the three that tell of a part tell of this one"
    whole = together(curves)
    assert whole.share.tolist() == [20, 40, 60, 80, 100], "a fifth of 60 is twelve"
    for share, rows, accuracy in whole[["share", "rows", "accuracy"]].itertuples(index=False):
        parts = curves[(curves.share == share) & curves.site.isin(["big", "small"])]
        assert rows == surest(400, share) + surest(60, share)
        assert accuracy == pytest.approx(np.average(parts.accuracy, weights=parts.rows))
    assert kept_share(curves[curves.site != "small"]) == 90, "of two, one is half"
    assert together(curves[curves.site == "tiny"]).share.tolist() == [60, 100]
    assert gain(curves[curves.site == "tiny"], 80) is None
    assert together(curves[curves.site == "nobody"]).empty


def test_who_takes_the_difference_of_two_numbers_learns_of_ten_rows_or_none() -> None:
    """From any two numbers of a site follows how many answers were right in the rows that lie between them."""
    least = math.inf
    for n in range(1, 320):
        scores, sizes = told({"here": n}, 0.4, seed=n)
        seen = coverage(scores, sizes).dropna()
        for one, other in itertools.combinations(seen.itertuples(), 2):
            assert one.rows - other.rows >= FEWEST, (n, one, other)
            least = min(least, one.rows - other.rows)
            between = one.rows * one.accuracy - other.rows * other.accuracy  # what he finds out
            assert between == pytest.approx(round(between), abs=1e-6)
        assert (seen["rows"] >= FEWEST).all()
    assert least == FEWEST, "no coarser than it must be"


def test_an_earlier_run_that_told_more_shows_no_more() -> None:
    scores, sizes = told({"here": 61}, 0.4)
    scores.loc[scores.metric.isin(["accuracy@90", "accuracy@70"]), "value"] = 0.5
    assert coverage(scores, sizes).dropna().share.tolist() == [100, 80, 60, 40, 20]
    assert uncertainty(scores, sizes).kept.tolist() == [49]


def test_the_table_says_what_was_told() -> None:
    scores, sizes = told({"b": 61, "a": 12, "none": 9}, 0.4)
    table = uncertainty(scores, sizes).set_index("site")
    assert list(table.index) == ["b", "a", "none"], "in the order of the run"
    assert table["rows"].tolist() == [61, 12, 9]
    assert table["kept"].tolist() == [49, 10, 8]
    value = scores.set_index(["site", "metric"])["value"]
    names = {"doubt": "doubt", "auroc": "auroc", "accuracy": "accuracy@100", "accuracy_kept": "accuracy@80"}
    assert all(table.loc["b", column] == value["b", metric] for column, metric in names.items())
    assert table.loc["a", "accuracy"] == value["a", "accuracy@100"]
    assert math.isnan(table.loc["a", "accuracy_kept"])
    assert table.loc["none", list(names)].isna().all(), f"fewer than {FEWEST} rows"


def test_gain_by_hand() -> None:
    curve = pd.DataFrame({"share": [100, 90], "rows": [100, 90], "accuracy": [0.8, 76 / 90]})
    found = gain(curve, 90)  # of ten handed over four are right
    assert found is not None
    assert (found.rows, found.kept) == (100, 90)
    assert found.value == pytest.approx(76 / 90 - 0.8)
    (l1, u1), (l2, u2) = (stats.binomtest(*x).proportion_ci(method="wilson") for x in ((76, 90), (4, 10)))
    p, q = 76 / 90, 0.4
    want = p - q - math.hypot(p - l1, u2 - q), p - q + math.hypot(u1 - p, q - l2)
    assert (10 * found.low, 10 * found.high) == pytest.approx(want, abs=1e-5), "a tenth is handed over"
