"""What the shared model takes a site's values for: the line from the site's values to the others', with its sign."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from vitrail.data.schema import Feature
from vitrail.quality.repair.effective_values import InputLayers, read_levels, read_number

AGE = Feature(kind="numeric", unit="years")
PAIN = Feature(kind="categorical", categories=("none", "some", "much"))


def layers(b: float, w: float, others_b: float, others_w: float, columns: int = 1) -> InputLayers:
    return InputLayers(*(np.full(columns, v) for v in (b, w, others_b, others_w)), 3)


@pytest.mark.parametrize(("b", "w", "others_b", "others_w"), [(0.5, 1, 0, 1), (0, 1, 0.5, 1), (0.3, 2, -0.2, 0.5)])
def test_a_number_is_read_as_the_equation_says(b: float, w: float, others_b: float, others_w: float) -> None:
    """x' = mean + sd ((z + b) w / w' - b'), for values on both sides of the mean."""
    mean, sd = 50.0, 10.0
    values = pd.Series([30.0, 50.0, 80.0])
    words, factor, start = read_number(AGE, 0, layers(b, w, others_b, others_w), mean, sd, values)
    assert factor is not None
    wanted = mean + sd * (((values - mean) / sd + b) * w / others_w - others_b)
    np.testing.assert_allclose(factor * values + start, wanted)
    shift = float(wanted.mean() - values.mean())
    assert f"{shift:+.3g} years" in words


def test_the_level_that_differs_most_is_named_also_beside_a_reference_level() -> None:
    ends = layers(0.0, 1.0, 0.0, 1.0, columns=2)._replace(w=np.array([1.0, 3.0]))
    words, read = read_levels(PAIN, [0, 1], ends)  # columns of "some" and "much"
    assert "weights much most differently: by a factor of 3.00" in words
    assert len(read) == 3
    assert math.isnan(read[0][0])
    assert read[1:] == ((1.0, 0.0), (3.0, 0.0))
    every = layers(0.0, 1.0, 0.0, 1.0, columns=3)._replace(w=np.array([1.0, 3.0, 1.0]))
    words, read = read_levels(PAIN, [0, 1, 2], every)  # without a reference level
    assert "weights some most differently" in words
    assert read == ((1.0, 0.0), (3.0, 0.0), (1.0, 0.0))
