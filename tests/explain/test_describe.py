"""The sentence of a finding: who, what, which way, how much, why, and what to ask."""

from __future__ import annotations

import pytest

from vitrail.explain.evidence import LABEL
from vitrail.explain.shifts import Alarm
from vitrail.explain.words import describe_alarm

CASES = [
    ("chol", "numeric", 1.3, 1.05, "shifted", ["too low", "adds 1.30 standard deviations", "missing values"]),
    ("chol", "numeric", -1.3, 1.4, "shifted", ["too high", "takes away 1.30", "then multiplies it by 1.40"]),
    ("chol", "numeric", 0.02, 2.5, "stretched", ["counts more", "multiplies it by 2.50", "the unit"]),
    ("age", "numeric", 0.2, -0.8, "reversed", ["other way round", "-0.80"]),
    ("ca", "numeric", 0.2, 0.1, "uninformative", ["tells little", "0.10"]),
    ("sex", "binary", 0.1, 1.9, "stretched", ["counts more", "1.90"]),
    ("cp", "categorical", 0.4, 1.2, "recoded", ["categories", "by +0.40", "1.20", "code book"]),
    (LABEL, "label", 0.1, -1.1, "swapped label", ["outcome", "yes and no are swapped", "how the outcome is coded"]),
]


@pytest.mark.parametrize(("variable", "kind", "shift", "factor", "trouble", "words"), CASES)
def test_sentence(variable, kind, shift, factor, trouble, words) -> None:
    got, strength, confidence, text = describe_alarm(
        Alarm("va", variable, 40.0, 1e-7, shift, factor), kind, 1e-3, 0.05, "standard deviations"
    )
    assert got == trouble
    assert strength == pytest.approx(abs(factor - 1) if variable == LABEL else max(abs(shift), abs(factor - 1)))
    assert text.startswith(f"va, {'label' if variable == LABEL else variable}: ")
    for part in (*words, "likely ", "ask the site "):
        assert part in text
    assert 0.99999 < confidence < 1


@pytest.mark.parametrize(
    ("p_value", "odds"),
    [
        (0.9e-3, "once in 20 runs"),
        (0.9e-4, "once in 200 runs"),
        (3e-7, "once in 50,000 runs"),
        (0.0, "once in a million"),
    ],
)
def test_how_often_chance_alone_would_say_so(p_value, odds) -> None:
    """Never more often than it does: 0.05 * p / level, rounded to the safe side."""
    *_, text = describe_alarm(Alarm("va", "age", 9.0, p_value, 1.0, 1.0), "numeric", 1e-3, 0.05, "standard deviations")
    assert f"less than {odds}" in text
