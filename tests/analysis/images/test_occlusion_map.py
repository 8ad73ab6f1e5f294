"""What decides when it is hidden: found where it is known, and not found where there is nothing."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from vitrail.analysis.images.occlusion_map import MOST, OcclusionMap, hide

Pictures = NDArray[np.uint8]


def noise(rows: int, size: int = 28, channels: int = 1) -> Pictures:
    return np.random.default_rng(size).integers(60, 190, (rows, channels, size, size), dtype=np.uint8)


def brightness_at(y: int, x: int, side: int, times: float = 10.0):  # type: ignore[no-untyped-def]
    """A model of two classes that looks at one square and nothing else."""

    def answer(rows: Pictures) -> NDArray[np.float64]:
        seen = rows[:, :, y : y + side, x : x + side].mean((1, 2, 3)) / 255
        return np.stack([np.zeros(len(rows)), times * (seen - 0.75)], 1)

    return answer


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize(("size", "y", "x"), [(28, 0, 0), (28, 9, 17), (28, 22, 22), (64, 40, 3), (96, 70, 70)])
def test_the_place_that_the_model_answers_by_is_found(size: int, y: int, x: int, channels: int) -> None:
    side = 6 * size // 28
    pictures = noise(40, size, channels)
    pictures[:, :, y : y + side, x : x + side] = 255
    told = hide(brightness_at(y, x, side), pictures, 1)
    top, left, bottom, right = told.strongest
    covered = (min(bottom, y + side) - max(top, y)) * (min(right, x + side) - max(left, x)) / side**2
    assert covered > 0.8, (told.strongest, (y, x, side))
    assert told.decides
    assert told.share > 0.5
    assert told.pictures == MOST
    over = told.over(size, size)
    inside = over[y : y + side, x : x + side].mean()
    assert inside > 3 * over.mean()


def test_a_mark_on_a_quarter_of_the_pictures_is_the_strongest() -> None:
    """Though the mean over all falls more where something lies that all of them have."""
    pictures = noise(20)
    pictures[:, :, 12:18, 12:18] = 255
    pictures[:5, :, :6, :6] = 255

    def answer(rows: Pictures) -> NDArray[np.float64]:
        own, mark = (brightness_at(at, at, 6, times)(rows)[:, 1] for at, times in ((12, 4.0), (0, 10.0)))
        return np.stack([np.zeros(len(rows)), own + np.maximum(mark, 0)], 1)

    told = hide(answer, pictures, 1)
    assert told.strongest[0] < 4
    assert told.strongest[1] < 4
    assert told._replace(much=told.fall).strongest[0] > 8, "the control: by the mean"


def test_a_model_that_looks_everywhere_has_no_place_that_decides() -> None:
    def answer(rows: Pictures) -> NDArray[np.float64]:
        return np.stack([np.zeros(len(rows)), rows.mean((1, 2, 3)) / 64], 1)

    told = hide(answer, noise(10), 1)
    assert not told.decides
    assert told.share < 0.1
    assert told.pictures == 10


def test_log_odds_are_against_all_other_classes() -> None:
    """Scores moved by a constant, or a third class far below, change nothing."""
    two = hide(brightness_at(3, 3, 6), noise(5), 1)
    plain = brightness_at(3, 3, 6)
    three = hide(lambda r: np.hstack([plain(r) + 7, np.full((len(r), 1), -500.0)]), noise(5), 1)
    np.testing.assert_allclose(three.fall, two.fall, atol=1e-9)
    assert three.whole == pytest.approx(two.whole)


def test_pictures_are_left_as_they_were() -> None:
    pictures = noise(3)
    before = pictures.copy()
    hide(brightness_at(0, 0, 4), pictures, 0)
    np.testing.assert_array_equal(pictures, before)


def test_where_hiding_only_raises_the_score_nothing_decides() -> None:
    """A fall below zero is no fall: neither a share of the log-odds nor a shade on the picture."""
    places = np.array([0, 4])
    raised = OcclusionMap(*[np.array([[-1.0, -3.0], [-2.0, -0.5]])] * 2, places, places, 4, 5, 2.0)
    assert raised.share == 0.0
    assert not raised.decides
    assert not raised.over(8, 8).any()
    fallen = raised._replace(fall=-raised.fall, much=-raised.fall)  # the control
    assert fallen.share == 1.0
    assert fallen.over(8, 8).all()
