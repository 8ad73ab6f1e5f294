"""The tables of a page: means over seeds with their intervals, the worst site of each method, what crossed the wire."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd

from vitrail.core.intervals import interval
from vitrail.report.words import Interval

if TYPE_CHECKING:
    from vitrail.report.page import Page

class Cell(NamedTuple):
    """One site under one method: mean over the seeds in which the metric is defined."""

    value: float
    half: float  # half the width of the interval, NaN with one seed
    missing: int  # seeds in which it is not defined
    worst: bool = False


class Matrix(NamedTuple):
    """The table site x method of one metric on one split."""

    metric: str
    split: str
    methods: list[str]
    rows: list[tuple[str, list[Cell]]]
    means: list[Interval]
    worsts: list[tuple[str | None, Interval]]

    @property
    def undefined(self) -> bool:
        return any(math.isnan(c.value) for _, cells in self.rows for c in cells)

    @property
    def partial(self) -> bool:
        return any(c.missing and not math.isnan(c.value) for _, cells in self.rows for c in cells)


def half_interval(values: Sequence[float], train_rows: float, test_rows: float) -> float:
    """Half of the 95 % interval of a mean over seeds whose splits share rows (Nadeau and Bengio 2003).

    t * sd * sqrt(1 / seeds + test rows / train rows): the second term is the price of shared rows.
    """
    n = len(values)
    if n < 2 or not train_rows > 0:
        return math.nan
    t = STUDENT[min(n - 1, len(STUDENT)) - 1]
    return float(t * np.std(values, ddof=1) * math.sqrt(1 / n + test_rows / train_rows))


def matrix(page: Page, metric: str, split: str = "test") -> Matrix:
    """Means, intervals and worst sites of one metric."""
    lower = page.lower_is_better if metric == page.metric else metric in ("log_loss", "rmse", "mae")
    scores = _where(page.scores, metric=metric, split=split)
    methods, sites = methods_of(page), sites_of(page)
    found = (
        {k: g["value"].astype(float) for k, g in scores.groupby(["method", "site"])} if len(scores) else {}
    )
    rows = {r["site"]: (r["train_rows"], r["test_rows"]) for r in page.sites.to_dict("records")}
    columns: list[list[Cell]] = []
    worsts: list[tuple[str | None, Interval]] = []
    means: list[Interval] = []
    for method in methods:
        column = []
        for site in sites:
            values = found.get((method, site), pd.Series(dtype=float))
            defined = values[np.isfinite(values)]
            half = half_interval(defined.tolist(), *rows.get(site, (math.nan, math.nan)))
            mean = float(defined.mean()) if len(defined) else math.nan
            column.append(Cell(mean, half, len(values) - len(defined)))
        values_ = [c.value for c in column]
        defined_ = [v for v in values_ if not math.isnan(v)]
        known = _where(page.summary, method=method, metric=metric) if split == "test" else pd.DataFrame()
        summary = known.iloc[0] if len(known) else None
        means.append(_interval(float(np.mean(defined_)) if defined_ else math.nan, summary, "mean"))
        worst = None
        if len(defined_) > 1:
            at = values_.index((max if lower else min)(defined_))
            column[at] = column[at]._replace(worst=True)
            worst = sites[at]
            cell = column[at]
            interval = Interval(cell.value, cell.value - cell.half, cell.value + cell.half)
            if summary is not None and summary["worst_site"] == worst:
                interval = _interval(cell.value, summary, "worst")
            worsts.append((worst, interval))
        else:
            worsts.append((None, Interval(math.nan)))
        columns.append(column)
    rows_ = [(site, [column[i] for column in columns]) for i, site in enumerate(sites)]
    return Matrix(metric, split, methods, rows_, means, worsts)


def _interval(value: float, summary: Any, what: str) -> Interval:
    if summary is None:
        return Interval(value)
    return Interval(value, float(summary[f"{what}_low"]), float(summary[f"{what}_high"]))


def _where(frame: pd.DataFrame, **equal: str) -> pd.DataFrame:
    """The rows with these values; an empty table may lack its columns."""
    for column, value in equal.items():
        if not frame.empty:
            frame = frame[frame[column] == value]
    return frame


def methods_of(page: Page) -> list[str]:
    seen = set() if page.scores.empty else set(page.scores["method"])
    return [m for m in page.titles if m in seen]


def lead_method(page: Page, methods: Sequence[str]) -> str | None:
    """The method the words are about where one must stand for all: FedAvg, else the first federated one."""
    federated = [m for m in methods if m not in page.yardsticks]
    return "fedavg" if "fedavg" in federated else next(iter([*federated, *methods]), None)


def sites_of(page: Page) -> list[str]:
    given = [] if page.sites.empty else list(page.sites["site"])
    seen = [] if page.scores.empty else list(page.scores["site"])
    return list(dict.fromkeys([*given, *seen]))


class Traffic(NamedTuple):
    """What crossed the wire between the coordinator and these sites, each, under one method and one seed."""

    method: str
    sites: list[str]
    messages_out: int
    out: int  # bytes from the site
    messages_in: int
    into: int  # bytes to the site


def traffic(page: Page) -> list[Traffic]:
    """Totals per method and site; sites with the same totals share a line."""
    lines = []
    for method in methods_of(page):
        same: dict[tuple[int, int, int, int], list[str]] = {}
        ledger = _where(page.ledger, method=method)
        for site in sites_of(page):
            here = _where(ledger, site=site)
            sides = [_where(here, direction=d) for d in ("from site", "to site")]
            totals = [0 if s.empty else int(s[c].sum()) for s in sides for c in ("messages", "bytes")]
            same.setdefault((totals[0], totals[1], totals[2], totals[3]), []).append(site)
        lines += [Traffic(method, sites, *totals) for totals, sites in same.items()]
    return lines
