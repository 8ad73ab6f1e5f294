"""Numbers that figures and sentences draw are those that their words name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from vitrail.metrics.calibration import RiskCounts
from vitrail.report.pages.contribution import _lead
from vitrail.report.sections import calibration
from vitrail.report.sections.scores.spread import MethodSpread, spread_figure
from vitrail.report.text import Interval
from vitrail.study.model import Study


def test_the_median_site_is_the_median() -> None:
    """Five sites of which one is far off: median .8, mean .66."""
    dots = [("a", 0.8), ("b", 0.82), ("c", 0.79), ("d", 0.81), ("e", 0.1)]
    figure = str(spread_figure([MethodSpread("FedAvg", False, dots, "e", Interval(0.1))], "AUC", False))
    assert "median site: 0.800" in figure
    assert "median 0.800" in figure


@pytest.mark.parametrize(("start", "end", "words"), [(0.7, 0.5, "fell from"), (0.5, 0.7, "rose from")])
def test_a_loss_that_rose_is_not_said_to_have_fallen(start: float, end: float, words: str) -> None:
    contribution: Any = SimpleNamespace(
        gain=start - end, rows=40, row_word="row", unit="log loss", start=start, end=end, same=0.6
    )
    assert words in _lead(contribution)
    assert f"a {'gain' if start > end else 'loss'} of 0.200" in _lead(contribution)


def test_sites_whose_risks_are_farthest_off_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice too few and twice too many are equally far."""

    def counts(observed: float) -> RiskCounts:
        rows = np.array([40.0, 40.0])
        return RiskCounts(np.array([0.0, 0.5]), rows, rows * [0.2, 0.4] * observed, rows * [0.2, 0.4])

    told = {"right": counts(1.0), "little": counts(1.3), "half": counts(0.5), "nearly": counts(0.95)}
    study = Study.parse(
        {"target": {"column": "y", "classes": [0, 1], "positive": 1}, "features": {"a": {"kind": "numeric"}}}
    )
    monkeypatch.setattr(calibration, "risk_counts_of", lambda run: told)
    run: Any = SimpleNamespace(study=study, sites=[*told, "silent"])
    shown = calibration.contents_of(run)
    assert [row[0] for row in shown["rows"]] == ["half", "little", "nearly", "right"]
    assert shown["silent"] == ["silent"]
