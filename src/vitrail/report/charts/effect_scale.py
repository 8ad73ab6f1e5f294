"""How answers of a model and Shapley values are written: risks in per cent, effects as factors, never as logarithms.

What is explained is a number, a share, or the logarithm of odds or of a hazard. Of logarithms a Shapley value of v is a
factor of e^v, and a mean size of s a typical factor of e^s. At most three digits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from vitrail.analysis.explanations.rows import Explanation, Scale
from vitrail.core.text import decimals, number, signed
from vitrail.report.charts.axes import Ticks, tick_labels, ticks

ABOUT = 6  # ticks of an axis
PERCENT = (50, 10, 90, 20, 80, 30, 70, 40, 60, 5, 95, 1, 99, 2, 98, 0.1, 99.9, 0.01, 99.99)  # the roundest first
FACTORS = (1, 2, 5, 10, 3, 20, 50, 100, 1.5, 1.2, 1.1, 1.05, 1.02, 1.01, 1000, 10_000)


class EffectScale(NamedTuple):
    scale: Scale
    largest: float = 0.0  # Shapley value, in size

    @property
    def factors(self) -> bool:
        """Whether effects are factors: of odds, or of a hazard."""
        return self.scale in ("odds", "hazard")

    def share(self, value: float) -> float:
        """The answer as a share between 0 and 1; of a number it is not defined."""
        match self.scale:
            case "odds":
                return 1 / (1 + math.exp(-value)) if value > -700 else 0.0
            case "hazard":
                return -math.expm1(-math.exp(min(value, 700.0)))
            case "share":
                return value
        return math.nan

    def place(self, share: float) -> float:
        """Where this share lies on the axis."""
        match self.scale:
            case "odds":
                return math.log(share / (1 - share))
            case "hazard":
                return math.log(-math.log1p(-share))
        return share

    def answer(self, value: float) -> str:
        """60 %; 1.24."""
        return three(value) if self.scale == "number" else percent(self.share(value))

    def effect(self, value: float) -> str:
        """A Shapley value: × 1.86; +3 points; +0.62."""
        if self.factors:
            return f"× {three(math.exp(value))}"
        if self.scale == "share":
            return f"{signed(100 * value, 1)} points"
        return signed(value, decimals(self.largest))

    def size(self, value: float) -> str:
        """A mean size: × 1.86; 3 points; 0.62."""
        if not math.isfinite(value):
            return "not known"
        return self.effect(abs(value)).removeprefix("+")

    def span(self, low: float, high: float) -> str:
        """An interval of mean sizes: × 1.58 to 1.74."""
        low = max(low, 0.0)
        return f"{self.size(low)} to {self.size(high).removeprefix('× ')}"

    def answer_ticks(self, low: float, high: float, about: int = ABOUT) -> Ticks:
        if self.scale == "number":
            return tick_labels(low, high, about)
        ends = 100 * self.share(low), 100 * self.share(high)
        even = ticks(*ends, about) if ends[1] > ends[0] else []
        shares = [p for p in dict.fromkeys([*(p for p in PERCENT if ends[0] <= p <= ends[1]), *even]) if 0 < p < 100]
        return spread_out(((self.place(p / 100), f"{p:g} %") for p in shares), low, high, about)

    def effect_ticks(self, low: float, high: float, about: int = ABOUT) -> Ticks:
        if self.scale == "share":
            return [(v / 100, words) for v, words in tick_labels(100 * low, 100 * high, about, signed)]
        if not self.factors:
            return tick_labels(low, high, about, signed)
        sides = [(sign * math.log(k), k**sign) for k in FACTORS for sign in ((1,) if k == 1 else (1, -1))]
        return spread_out(((at, f"× {factor:.3g}") for at, factor in sides), low, high, about)

    def size_ticks(self, low: float, high: float, about: int = ABOUT) -> Ticks:
        """As of effects, without signs."""
        return [(at, words.removeprefix("+")) for at, words in self.effect_ticks(low, high, about)]


def scale_of(e: Explanation) -> EffectScale:
    return EffectScale(e.scale, float(np.abs(e.values).max(initial=0.0)))


def spread_out(marks: Iterable[tuple[float, str]], low: float, high: float, about: int) -> Ticks:
    """Of the marks within the axis, in the order given, those that lie far enough from the ones before.

    >>> spread_out([(0.0, "a"), (0.05, "b"), (1.0, "c"), (3.0, "d")], 0.0, 2.0, 4)
    [(0.0, 'a'), (1.0, 'c')]
    """
    out = list[tuple[float, str]]()
    for at, words in marks:
        if low <= at <= high and all(abs(at - other) >= (high - low) / (1.4 * about) for other, _ in out):
            out.append((at, words))
    return sorted(out)


def three(value: float) -> str:
    """At most three digits, and no more than a number has before its point.

    >>> three(0.5432), three(12.345), three(-1234.6), three(0.0), three(0.00012)
    ('0.543', '12.3', '−1235', '0', '0.00012')
    """
    if not math.isfinite(value) or value == 0:
        return "0" if value == 0 else number(value)
    rounded = float(f"{value:.3g}") if abs(value) < 100 else float(round(value))
    places = max(0, 2 - math.floor(math.log10(abs(rounded))))
    text = number(rounded, places)
    return text.rstrip("0").rstrip(".") if places > 2 else text


def percent(share: float) -> str:
    """A risk for people.

    >>> percent(0.4862), percent(0.0421), percent(0.00001), percent(0.99999), percent(1.0)
    ('49 %', '4.2 %', 'below 0.1 %', 'above 99.9 %', '100 %')
    """
    value = 100 * share
    if 0 < value < 0.1 or 99.9 < value < 100:
        return "below 0.1 %" if value < 50 else "above 99.9 %"
    return f"{number(value, 0 if 10 <= value <= 90 or value in (0, 100) else 1)} %"
