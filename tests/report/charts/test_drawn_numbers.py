"""Numbers that figures and sentences draw are those that their words name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from vitrail.metrics.calibration import RiskCounts
from vitrail.report.charts.density import outline
from vitrail.report.pages.contribution import _lead
from vitrail.report.pages.run import Page
from vitrail.report.sections import calibration
from vitrail.report.sections.scores import spread
from vitrail.report.sections.scores.spread import MethodSpread, spread_figure
from vitrail.report.text import Interval
from vitrail.study.model import Study


def test_the_median_site_is_the_median() -> None:
    """Five sites of which one is far off: median .8, mean .66."""
    dots = [("a", 0.8), ("b", 0.82), ("c", 0.79), ("d", 0.81), ("e", 0.1)]
    figure = str(spread_figure([MethodSpread("FedAvg", False, dots, "e", Interval(0.1))], "AUC", False))
    assert "median site: 0.800" in figure
    assert "median 0.800" in figure


def spread_page(sites: int, seeds: int) -> tuple[Page, pd.DataFrame]:
    """Two methods; under each seed another score."""
    rng = np.random.default_rng(3)
    names = [f"s{i}" for i in range(sites)]
    every = [(m, k, s, "test", "auc") for m in ("local", "fedavg") for k in range(seeds) for s in names]
    scores = pd.DataFrame(every, columns=["method", "seed", "site", "split", "metric"])
    scores["value"] = rng.uniform(0.6, 0.9, len(scores))
    about = pd.DataFrame({"site": names, "train_rows": 80, "test_rows": 40})
    empty = {k: pd.DataFrame() for k in ("curves", "summary", "verdicts", "ledger", "wire")}
    titles = {"fedavg": "FedAvg", "local": "Local"}
    words = "t", "compare", "", [], 3, "auc", False, titles, ("fedavg",), "local", ()
    return Page(*words, scores, sites=about, notes=[], **empty), scores


@pytest.mark.parametrize(("sites", "seeds", "drawn"), [(8, 3, (2, 2)), (8, 2, (2, 0)), (7, 3, (0, 0)), (9, 5, (2, 2))])
def test_violins_need_sites_and_their_bars_need_seeds(sites: int, seeds: int, drawn: tuple[int, int]) -> None:
    page, _ = spread_page(sites, seeds)
    given = spread.contents(page)
    figure = str(given["figure"])
    assert figure.count('class="violin"') == 2 * drawn[0], "wide and narrow"
    assert figure.count("SD over seeds of the median site") == 4 * drawn[1], "for who listens and under the pointer"
    assert (given["violins"], given["errors"]) == (bool(drawn[0]), bool(drawn[1]))


def test_the_bar_is_the_deviation_over_seeds_of_the_median_over_sites() -> None:
    page, scores = spread_page(9, 4)
    for method, title in page.titles.items():
        mine = scores[scores.method == method]
        medians = [float(np.median(mine.value[mine.seed == k])) for k in range(4)]
        sd = np.sqrt(sum((m - np.mean(medians)) ** 2 for m in medians) / 3)
        middle = np.median(mine.groupby("site").value.mean())
        assert spread.seed_deviations(page)[method] == pytest.approx(sd)
        text = str(spread.contents(page)["figure"])
        assert f"{title}, SD over seeds of the median site {sd:.3f}" in text
        assert f"{title}, median site: {middle:.3f}" in text


def test_a_violin_is_widest_where_sites_are_and_ends_at_the_last() -> None:
    values = [0.1, 0.2, 0.7, 0.71, 0.72, 0.73, 0.74, 0.9]
    shape = outline(values)
    assert (shape[0][0], shape[-1][0]) == (0.1, 0.9)
    assert max(height for _, height in shape) == 1
    assert 0.68 < max(shape, key=lambda point: point[1])[0] < 0.76
    thick = np.array([height for _, height in shape])
    assert thick[0] < 0.6 > thick[-1]
    assert outline([0.5] * 9) == outline([0.5]) == []
    assert len(outline([0.5, float("nan"), 0.6])) > 2
    assert len(outline([0.5] * 7 + [0.6])) > 2, "also where the middle half are all the same"


@pytest.mark.parametrize(("end", "words"), [(0.4, "a gain of 0.200"), (0.8, "a loss of 0.200")])
def test_a_loss_above_the_baseline_is_no_gain(end: float, words: str) -> None:
    contribution: Any = SimpleNamespace(gain=0.6 - end, rows=40, row_word="row", unit="log loss", end=end, same=0.6)
    assert words in _lead(contribution)


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
