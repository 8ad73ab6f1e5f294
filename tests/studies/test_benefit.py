"""Is joining worth it, from the losses of rows not trained on: made by hand, where the answer is known."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import vitrail as vt
from vitrail.stats.intervals import LEVEL, interval, level_of
from vitrail.studies.benefit import HARM, NO, NO_HARM, UNSURE, YES, SiteLosses, decide, why
from vitrail.studies.contribution.coalition_loss import CoalitionLoss
from vitrail.studies.cross_validation import same_loss
from vitrail.studies.site_benefit import own_verdict

REPEATS, FOLDS, ROWS = 5, 10, 120


def folds(seed: int = 0, rows: int = ROWS, repeats: int = REPEATS) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.stack([rng.permutation(np.arange(rows) % FOLDS) for _ in range(repeats)])


def losses(gain: float, spread: float, methods: int = 1, seed: int = 0, rows: int = ROWS) -> SiteLosses:
    """A row's luck is the same in every repeat, but for a little. Elsewhere one method or another is best, by luck."""
    rng = np.random.default_rng(seed)
    shape = (methods, 1, rows)
    luck = rng.normal(0, spread, shape) + rng.normal(0, spread / 5, (methods, REPEATS, rows))
    alone = np.full((REPEATS, rows), 0.6)
    return SiteLosses(alone, alone - gain + luck, folds(seed, rows), 1 / FOLDS, rng.normal(size=methods))


def test_known_truths() -> None:
    assert decide(losses(0.2, 0.1)).verdict == YES
    assert decide(losses(-0.2, 0.1)).verdict == NO
    assert decide(losses(0.0, 0.1), harm=0.1).verdict == NO_HARM
    assert decide(losses(0.0, 0.1), harm=0.001).verdict == UNSURE
    assert decide(losses(0.0, 0.4), harm=0.02).verdict == UNSURE, "it may harm"
    little = decide(losses(-0.01, 0.01), harm=0.02)
    assert little.high < 0
    assert little.verdict == NO_HARM, "a loss that is told for sure, and does not matter"


def test_a_harm_is_not_called_none() -> None:
    """Where joining loses twice what may be lost, "no harm" is said no oftener than the interval allows."""
    said = [decide(losses(-0.04, 0.15, seed=s, rows=60), harm=0.02).verdict for s in range(300)]
    assert np.mean([v == NO_HARM for v in said]) <= 0.025 + 2 * math.sqrt(0.025 * 0.975 / 300)
    assert NO in said


def test_interval_by_hand() -> None:
    """Two repeats of three folds of two rows: the variance is widened by 1/6 + 1/2; two of the five per cent lie below
    the interval, three above."""
    fold = np.array([[0, 0, 1, 1, 2, 2], [0, 1, 2, 0, 1, 2]])
    apart = np.array([[0.1, 0.3, 0.2, 0.4, 0.0, 0.2], [0.2, 0.2, 0.1, 0.3, 0.1, 0.3]])
    found = decide(SiteLosses(apart + 1, np.ones((1, 2, 6)), fold, 1 / 3))
    gains = [0.2, 0.3, 0.1, 0.25, 0.15, 0.2]
    error = np.std(gains, ddof=1) * math.sqrt(1 / 6 + 1 / 2)
    assert found.gain == pytest.approx(0.2)
    assert (found.low, found.high) == (pytest.approx(0.2 - 2.7565085 * error), pytest.approx(0.2 + 2.4215847 * error))
    assert (found.alone, found.joined) == (pytest.approx(1.2), pytest.approx(1.0))


def test_folds_of_unequal_size_weigh_by_their_rows() -> None:
    fold = np.array([[0, 0, 0, 1]])
    found = decide(SiteLosses(np.array([[1.0, 1.0, 1.0, 3.0]]), np.zeros((1, 1, 4)), fold, 0.5))
    assert found.gain == pytest.approx(1.5)


def test_repeats_are_no_new_rows() -> None:
    """More repeats of the same rows narrow the interval, but by far less than as many new rows would."""
    many = losses(0.05, 0.2)
    widths = [decide(many.first(r)) for r in (1, 2, 5)]
    widths = [w.high - w.low for w in widths]
    assert widths[0] > widths[1] > widths[2] > 0.55 * widths[0]


def test_what_could_have_been_seen() -> None:
    """With the smallest gain that would be seen in four of five, four of five are seen; half of it takes four times
    the rows."""
    told = decide(losses(0.0, 0.3))
    seen = [decide(losses(told.least, 0.3, seed=s)).verdict == YES for s in range(200)]
    assert 0.6 < np.mean(seen) < 0.97
    half = decide(losses(told.least / 2, 0.3))
    assert half.needed == pytest.approx(ROWS * (half.least / half.gain) ** 2)
    assert half.needed > ROWS


def test_luck_that_comes_again_is_not_a_gain() -> None:
    """40 methods of noise that is the rows' own: what shines in one repeat shines in all. The best of 40 would "gain";
    chosen by the site's rows outside each fold it would be told so, or the opposite, far too often; chosen by other
    sites' rows it is not."""
    sets = [losses(0.0, 0.3, methods=40, seed=s, rows=60) for s in range(200)]
    assert np.mean([0.6 - one.joined.mean((1, 2)).min() for one in sets]) > 0.06
    by_own, by_others = ([decide(one._replace(**how)).verdict for one in sets] for how in ({"elsewhere": None}, {}))
    assert np.mean([v in (YES, NO) for v in by_own]) > 0.1
    for side in (YES, NO):
        assert np.mean([v == side for v in by_others]) <= 0.025 + 2 * math.sqrt(0.025 * 0.975 / 200)
    assert abs(np.mean([decide(one).gain for one in sets])) < 0.01


def test_a_method_that_diverged_is_not_chosen() -> None:
    two = losses(0.1, 0.1, methods=2)
    joined = np.where(np.arange(2)[:, None, None] == 0, math.nan, two.joined)
    for elsewhere in (None, np.array([math.nan, 3.0])):
        found = decide(two._replace(joined=joined, elsewhere=elsewhere))
        assert (found.best, found.verdict) == (1, YES)
    none = decide(two._replace(joined=np.full_like(joined, math.nan)))
    assert none.verdict == UNSURE
    assert math.isnan(none.gain)
    assert "The log loss is not defined" in why(none, "FedAvg", "log loss", "row", ROWS, 0.02, REPEATS, True)


@pytest.mark.parametrize("looks", [1, 2, 3, 7])
def test_looks_spend_the_level_once(looks: int) -> None:
    levels = [level_of(i, looks) for i in range(1, looks + 1)]
    assert sum(levels) == pytest.approx(LEVEL)
    assert levels[-1] >= 0.9 * LEVEL
    assert all(early < levels[-1] / 5 for early in levels[:-1])


def test_a_look_at_a_smaller_level_is_wider() -> None:
    values = [0.1, 0.2, 0.4, 0.3]
    wide, narrow = (interval(values, 0.25, level=level_of(i, 2)) for i in (1, 2))
    assert wide[1] < narrow[1] < narrow[2] < wide[2]


def test_settled_is_clear_either_way_or_within_harm() -> None:
    assert decide(losses(0.2, 0.1)).settled(0.0)
    assert decide(losses(-0.2, 0.1)).settled(0.0)
    near = decide(losses(0.0, 0.1), harm=0.1)
    assert near.settled(0.1)
    assert not near.settled(0.01)
    hopeful = decide(losses(0.08, 0.5), harm=0.1)
    assert hopeful.verdict == NO_HARM
    assert not hopeful.settled(0.1), "more seeds may yet show that it gains"


def test_reasons_say_the_numbers() -> None:
    harm = HARM * math.log(2)

    def told(gain: float, spread: float) -> str:
        return why(decide(losses(gain, spread), harm), "Ditto", "log loss", "row", ROWS, harm, REPEATS, True)

    assert "Ditto saves 0." in told(0.2, 0.05)
    assert "Ditto costs 0." in told(-0.2, 0.05)
    assert f"costs less than {harm:.3f}, which counts as no harm" in told(0.0, 0.02)
    unsure = told(0.005, 0.5)
    assert f"too close to zero to decide from {ROWS} rows" in unsure
    assert "Four of five such studies would detect a change of" in unsure
    assert "takes about" in unsure


@pytest.mark.parametrize("share", [0.01, 0.2])
def test_the_harm_that_is_ruled_out_is_a_part_of_the_baselines_loss(share: float) -> None:
    """Losses of 20 times the size would otherwise make every loss seem harmless, or none."""
    rng = np.random.default_rng(1)
    y = rng.integers(0, 2, 80)
    lots = np.stack([np.arange(80) % 4])
    study = vt.Study.parse(
        {
            "target": {"column": "y", "classes": [0, 1], "positive": 1},
            "features": {"a": {"kind": "numeric"}},
            "verdict": {"folds": 4, "seeds": 1, "harm": share},
        }
    )
    risk = np.full((80, 2), 0.5)
    told = own_verdict(study, y, lots, [risk], [risk])
    assert told["harm"] == pytest.approx(share * same_loss(study, y))
    assert told["same"] == pytest.approx(same_loss(study, y))


@pytest.mark.parametrize(
    ("target", "train", "test", "wanted"),
    [
        ({"classes": [0, 1], "positive": 1}, [0] * 9 + [1], [1, 1], -math.log(1.5 / 11)),
        ({"kind": "number", "scale": 2.0}, [1.0, 3.0], [5.0, 5.0], 36.0),
    ],
)
def test_the_baseline_of_credits_knows_training_rows_alone(
    target: dict[str, Any], train: list[float], test: list[float], wanted: float
) -> None:
    """Held-out rows of one class only would otherwise make it perfect."""
    study = vt.Study.parse({"target": {"column": "y", **target}, "features": {"a": {"kind": "numeric"}}})
    data = SimpleNamespace(train_y=np.array(train), test_y=np.array(test))
    tested: Any = SimpleNamespace(run=SimpleNamespace(study=study), data=data)
    assert CoalitionLoss.baseline(tested).mean() == pytest.approx(wanted)
