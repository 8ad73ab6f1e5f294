"""Numbers as they are summed under masks: exact to their last place, refused where they would wrap."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrail.core.errors import VitrailError
from vitrail.privacy.secure_sum.fixed_point import ZEROS
from vitrail.privacy.secure_sum.spec import SumSpec, draw

SHAPES = {"products": (4, 4), "rows": (), "none": (0,)}
TERMS = SumSpec("study run sum", SHAPES, {"products": 1e6, "rows": 1e3, "none": 1.0}, most=8)


def values_of(seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {k: rng.uniform(-1, 1, shape) * TERMS.clip[k] for k, shape in SHAPES.items()}


def test_the_sum_of_what_is_encoded_is_the_plain_sum() -> None:
    parts = [values_of(seed) for seed in range(8)]
    total = TERMS.decode(np.sum([TERMS.encode(part) for part in parts], axis=0, dtype=np.uint64))
    for k, shape in SHAPES.items():
        assert total[k].shape == shape
        assert np.abs(total[k] - sum(part[k] for part in parts)).max(initial=0) < 1e-9 * TERMS.clip[k]


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(-5.0, 5.0), min_size=3, max_size=7), st.floats(5.0, 1e9))
def test_any_values_up_to_the_clip(values: list[float], clip: float) -> None:
    terms = SumSpec("x", {"v": (1,)}, {"v": clip}, most=7)
    parts = [*values[:-1], clip if values[-1] > 0 else -clip]  # one of them at the very edge
    total = terms.decode(np.sum([terms.encode({"v": np.array([v])}) for v in parts], axis=0, dtype=np.uint64))
    assert abs(total["v"][0] - sum(parts)) < 1e-6 * clip


@pytest.mark.parametrize("place", range(ZEROS))
def test_where_zeros_do_not_add_up_nothing_is_opened(place: int) -> None:
    total = TERMS.encode(values_of(0))
    total[len(total) - 1 - place] += np.uint64(1)
    with pytest.raises(VitrailError, match="do not cancel"):
        TERMS.decode(total)


def refuses(change: Callable[[dict[str, np.ndarray]], Any], match: str) -> None:
    values = values_of(0)
    change(values)
    with pytest.raises(VitrailError, match=match):
        TERMS.encode(values)


@pytest.mark.parametrize("bad", [1.01e6, -1e300, np.inf, np.nan])
def test_beyond_the_clip_nothing_is_encoded(bad: float) -> None:
    refuses(lambda v: v["products"].__setitem__((3, 3), bad), "larger than")


def test_other_names_or_shapes() -> None:
    refuses(lambda v: v.pop("rows"), "rows")
    refuses(lambda v: v.update(products=np.zeros(3)), "products")
    refuses(lambda v: v.update(more=np.zeros(3)), "more")


def test_streams_differ_by_key() -> None:
    one, other = draw(bytes(32), 1000), draw(bytes(31) + b"\1", 1000)
    assert len(np.intersect1d(one, other)) == 0
    assert np.array_equal(one, draw(bytes(32), 1000))
