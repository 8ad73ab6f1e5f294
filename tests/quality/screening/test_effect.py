"""What differs comes in the order of what it would do to a model."""

from __future__ import annotations

import numpy as np
import pandas as pd

import vitrail as vt
from vitrail.data.readers.tables import clean
from vitrail.quality.screening import Finding, screen
from vitrail.quality.screening.result import EFFECT, Screening, by_column
from vitrail.quality.screening.text import SHOWN, to_text


def screened(shift: float) -> Screening:
    """Hospitals whose ages and heights differ by as much; ages go with the outcome closely, heights hardly."""
    raw = {}
    for k in range(6):
        rng = np.random.default_rng(k)
        age, height, other = rng.normal(0, 1, (3, 300))
        y = (age + 0.15 * height + rng.normal(0, 0.6, 300) > 0).astype(int)
        away = shift * (k - 2.5) / 2.5
        raw[f"site-{k}"] = pd.DataFrame(
            {"height": (height + away).round(2), "age": (age + away).round(2), "other": other.round(2), "y": y}
        )
    study = vt.Study.infer(raw, "y")
    return screen({name: clean(frame, study) for name, frame in raw.items()}, study)


def test_a_column_that_predicts_comes_first() -> None:
    maybe = screened(0.6).maybe
    order = [findings[0].feature for findings in by_column(maybe)]
    assert {"age", "height"} <= set(order)
    assert order.index("age") < order.index("height")
    most = {name: max(f.numbers[EFFECT] for f in maybe if f.feature == name) for name in ("age", "height")}
    assert most["age"] > 5 * most["height"]


def test_at_most_a_screen_of_what_may_be_real() -> None:
    """46 cells of 56 are ten lines, and how many columns more."""
    findings = [
        Finding(f"s{k}", f"f{c:02d}", "differs", False, 2.0, "It differs.", {EFFECT: 0.001 * (c + k)})
        for c in range(14)
        for k in range(4)
    ]
    sites = pd.DataFrame({"site": ["s0"], "judged": [True], "why not": [""], "same rows": [""]})
    lines = to_text(Screening(findings, pd.DataFrame(), sites, 0.05)).splitlines()
    shown = [line for line in lines if line.startswith("  - ")]
    assert len(shown) == SHOWN == 10
    assert "f13" in shown[0]
    assert "Also at" in shown[0]
    assert lines[-1] == "  and 4 more columns, of less effect"
