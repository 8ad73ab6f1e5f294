"""Risks in per cent, effects as factors: what is written is what the numbers mean."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vitrail.report.charts.effect_scale import EffectScale, percent, three

values = st.floats(-6, 6)


@given(values)
def test_a_share_and_its_place_belong_together(value: float) -> None:
    for scale in (EffectScale("odds"), EffectScale("hazard")):
        share = scale.share(value)
        assert 0 <= share <= 1
        if 1e-9 < share < 1 - 1e-9:
            assert scale.place(share) == pytest.approx(value, abs=1e-5)


def test_the_risk_of_a_hazard_is_one_less_survival() -> None:
    for hazard in (0.01, 0.3, 2.0):
        assert EffectScale("hazard").share(np.log(hazard)) == pytest.approx(1 - np.exp(-hazard))
    assert EffectScale("odds").share(np.log(3.0)) == pytest.approx(0.75)
    assert EffectScale("share").share(0.25) == 0.25


@given(values, values)
def test_factors_multiply_as_values_add(a: float, b: float) -> None:
    scale = EffectScale("odds", 6.0)
    first, second, both = (float(scale.effect(v).removeprefix("× ")) for v in (a, b, a + b))
    assert first * second == pytest.approx(both, rel=0.02, abs=1e-5)


@given(st.floats(-1e6, 1e6))
def test_at_most_three_digits_unless_a_number_is_longer(value: float) -> None:
    text = three(value)
    digits = text.replace("−", "").replace(".", "").lstrip("0")
    assert len(digits) <= max(3, len(str(int(abs(value)))) + (abs(value) > 99))
    assert float(text.replace("−", "-")) == pytest.approx(value, rel=0.006, abs=1e-9)


@given(st.floats(0, 1))
def test_a_risk_has_at_most_three_digits(share: float) -> None:
    text = percent(share)
    (number,) = re.findall(r"[\d.]+", text)
    assert len(number.replace(".", "")) <= 3
    if not text.startswith(("below", "above")):
        assert float(number) == pytest.approx(100 * share, abs=0.51)


@given(values, st.floats(0.05, 6))
def test_ticks_lie_inside_apart_and_where_they_say(low: float, length: float) -> None:
    for kind in ("odds", "hazard"):
        scale, high = EffectScale(kind, 1.0), low + length  # type: ignore[arg-type]
        for ticks in (scale.answer_ticks(low, high), scale.effect_ticks(low, high)):
            places = [at for at, _ in ticks]
            assert all(low <= at <= high for at in places)
            assert all(b - a >= (high - low) / 9 for a, b in itertools.pairwise(places))
        for at, words in scale.answer_ticks(low, high):
            assert 100 * scale.share(at) == pytest.approx(float(words.removesuffix(" %")), rel=1e-6)
        for at, words in scale.effect_ticks(low, high):
            assert np.exp(at) == pytest.approx(float(words.removeprefix("× ")), rel=0.005)


def test_an_axis_of_any_length_has_ticks() -> None:
    for low, high in ((-3.0, 3.0), (-0.4, 0.1), (1.0, 1.2), (-6.0, -5.0)):
        for kind in ("odds", "hazard"):
            assert len(EffectScale(kind).answer_ticks(low, high)) >= 2, (kind, low, high)  # type: ignore[arg-type]
    assert len(EffectScale("odds").effect_ticks(-1.0, 1.0)) >= 3


def test_a_share_is_in_points_and_a_number_in_its_unit() -> None:
    assert EffectScale("share", 0.2).effect(0.034) == "+3.4 points"
    assert EffectScale("number", 2.0).effect(1.234) == "+1.23"
    assert EffectScale("number", 2.0).size(-1.234) == "1.23"
    assert EffectScale("number").answer(12.345) == "12.3"
    assert EffectScale("odds").span(-0.1, np.log(2)) == "× 1.00 to 2.00"
    assert EffectScale("odds").size(float("nan")) == "not known"
