"""The tables of a page: means over seeds with intervals, worst sites, what crossed the wire."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pandas as pd
from markupsafe import Markup

from vitrail.metrics.skill import standings, worst_site
from vitrail.report.text import Interval, listed, name, why_not
from vitrail.stats.intervals import interval, says_nothing
from vitrail.study.model import LOWER_IS_BETTER

if TYPE_CHECKING:
    from vitrail.report.pages.run import Page


WIDEST = 10  # columns that fit the page


class SiteScore(NamedTuple):
    """One site under one method: mean over the seeds in which the metric is defined."""

    value: float
    half: float  # half the width of the interval, NaN with one seed
    missing: int  # seeds in which it is not defined
    vague: bool = False  # its interval says nothing, and is left out
    worst: bool = False


class ScoreTable(NamedTuple):
    """The table site x method of one metric on one split."""

    metric: str
    split: str
    methods: list[str]
    rows: list[tuple[str, list[SiteScore]]]
    means: list[Interval]
    worsts: list[tuple[str | None, Interval]]
    chance: dict[str, float] = {}  # noqa: RUF012  site -> of always the same answer
    why: Sequence[Markup] = ()  # where a score is not defined, and for what reason
    vague: bool = False  # some interval says nothing, and is left out
    lower: bool = False  # less is better

    def scores_of(self, method: str) -> dict[str, float]:
        """By site."""
        column = self.methods.index(method)
        return {site: scores[column].value for site, scores in self.rows}

    def standings_of(self, method: str) -> dict[str, float]:
        """By site, how well it is served with that method; larger is better (metrics/skill.py)."""
        return standings(self.scores_of(method), self.chance, self.lower)

    @property
    def chance_mean(self) -> float:
        values = [v for v in self.chance.values() if math.isfinite(v)]
        return sum(values) / len(values) if values else math.nan

    @property
    def turned(self) -> bool:
        """Methods down and sites across: more methods than a page is wide for, and fewer sites."""
        return len(self.methods) > WIDEST and len(self.rows) + 2 < len(
            self.methods
        )  # and the columns of mean and worst

    @property
    def undefined(self) -> bool:
        return any(math.isnan(c.value) for _, scores in self.rows for c in scores)

    @property
    def partial(self) -> bool:
        return any(c.missing and not math.isnan(c.value) for _, scores in self.rows for c in scores)


def score_table(page: Page, metric: str, split: str = "test") -> ScoreTable:
    """Means, intervals and worst sites of one metric."""
    lower = page.lower_is_better if metric == page.metric else metric in LOWER_IS_BETTER
    scores = where(page.scores, metric=metric, split=split)
    methods, sites = methods_of(page), sites_of(page)
    groups = scores.groupby(["method", "site"])["value"] if len(scores) else ()
    by_method = {key: values.astype(float).tolist() for key, values in groups}
    sizes = {r["site"]: (r["train_rows"], r["test_rows"]) for r in page.sites.to_dict("records")}
    shares = {site: test / (test + train) for site, (train, test) in sizes.items() if train > 0}
    chance = page.chance_in(metric) if split == "test" else {}
    best = 0.0 if lower else 1.0
    folds = _by_fold(page, metric) if split == "test" else {}
    columns, means, worsts = [], [], []
    for method in methods:
        column = []
        for site in sites:
            share, same = shares.get(site, math.nan), chance.get(site, math.nan)
            values, by_fold = by_method.get((method, site), []), folds.get((method, site), [])
            column.append(_score(values, share, same, best, by_fold, page))
        values = [c.value for c in column]
        defined = [v for v in values if not math.isnan(v)]
        summaries = where(page.summary, method=method, metric=metric) if split == "test" else pd.DataFrame()
        summary = summaries.iloc[0] if len(summaries) else None
        means.append(_interval(float(np.mean(defined)) if defined else math.nan, summary, "mean"))
        worst: tuple[str | None, Interval] = (None, Interval(math.nan))
        served_worst = worst_site(dict(zip(sites, values, strict=True)), chance, lower)
        if len(defined) > 1 and served_worst is not None:
            at = sites.index(served_worst)
            lowest = column[at] = column[at]._replace(worst=True)
            own = Interval(lowest.value, lowest.value - lowest.half, lowest.value + lowest.half)
            same = summary is not None and summary["worst_site"] == served_worst
            worst = served_worst, _interval(lowest.value, summary, "worst") if same else own
        worsts.append(worst)
        columns.append(column)
    rows = [(site, [column[i] for column in columns]) for i, site in enumerate(sites)]
    baselines = {s: chance[s] for s in sites if s in chance}
    table = ScoreTable(metric, split, methods, rows, means, worsts, baselines, lower=lower)
    clear = [_informative_interval(m, page.draws, table.chance_mean, best) for m in means]
    clear_worst = [(s, _informative_interval(w, page.draws, chance.get(s or "", math.nan), best)) for s, w in worsts]
    before, after = (
        [m.known for m in (*all_, *(w for _, w in of))] for all_, of in ((means, worsts), (clear, clear_worst))
    )
    vague = before != after or any(score.vague for _, scores in rows for score in scores)
    why = _why(page, table, {key for key, values in by_method.items() if values})
    return table._replace(means=clear, worsts=clear_worst, why=why, vague=vague)


def _informative_interval(whole: Interval, seeds: int, chance: float, best: float) -> Interval:
    """Without its ends where they say nothing."""
    return Interval(whole.value) if says_nothing(whole.low, whole.high, seeds, chance, best) else whole


def _by_fold(page: Page, metric: str) -> dict[tuple[str, str], list[float]]:
    """(method, site) -> what each fold of each seed adds to the score."""
    mine = where(page.folds, metric=metric)
    if mine.empty:
        return {}
    return {(str(m), str(s)): v.astype(float).tolist() for (m, s), v in mine.groupby(["method", "site"])["value"]}


def _score(
    values: list[float], test_share: float, chance: float, best: float, folds: list[float], page: Page
) -> SiteScore:
    defined = [v for v in values if math.isfinite(v)]
    mean, low, high = interval(defined, test_share)
    if folds:
        middle, low, high = interval(folds, 1 / page.crossed)
        low, high = mean + (low - middle), mean + (high - middle)
    vague = says_nothing(low, high, len(folds) or len(defined), chance, best)
    return SiteScore(mean, math.nan if vague else (high - low) / 2, len(values) - len(defined), vague)


def _why(page: Page, table: ScoreTable, scored: set[Any]) -> list[Markup]:
    """Where a score is not defined, and for what reason: one line for a site, or for its methods."""
    held = {r["site"]: r["test_rows"] for r in page.sites.to_dict("records")}
    out = []
    for site, scores in table.rows:
        missing = [m for m, score in zip(table.methods, scores, strict=True) if math.isnan(score.value)]
        silent = [m for m in missing if (m, site) not in scored]
        astray = [m for m in missing if m not in silent]
        if astray and math.isnan(table.chance.get(site, 0.0)):
            why = why_not(table.metric, int(held.get(site, 0)), page.row_word)
            out.append(Markup("{}: {}").format(name(site), why))
        elif astray and site in table.chance:
            words = "{}, {}: the model gave no numbers as answers, so that nothing could be scored."
            if page.rounded:
                words = "{}, {}: the site did not tell its score, since it has few held-out patients."
            out.append(Markup(words).format(name(site), listed([page.titles[m] for m in astray])))
        if silent:
            words = "{}, {}: the site told no score."
            out.append(Markup(words).format(name(site), listed([page.titles[m] for m in silent])))
    return out


def _interval(value: float, summary: Any, what: str) -> Interval:
    if summary is None:
        return Interval(value)
    return Interval(value, float(summary[f"{what}_low"]), float(summary[f"{what}_high"]))


def where(frame: pd.DataFrame, **equal: str) -> pd.DataFrame:
    """The rows with these values; an empty table may lack its columns."""
    for column, value in equal.items():
        if not frame.empty:
            frame = frame[frame[column] == value]
    return frame


def methods_of(page: Page) -> list[str]:
    seen = set() if page.scores.empty else set(page.scores["method"])
    return [m for m in page.titles if m in seen]


def lead_method(page: Page, methods: Sequence[str]) -> str | None:
    """The method the words are about where one must stand for all: the first federated one of the table of methods."""
    return next((m for m in page.federated if m in methods), next(iter(methods), None))


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
        ledger = where(page.ledger, method=method)
        for site in sites_of(page):
            here = where(ledger, site=site)
            sides = [where(here, direction=d) for d in ("from site", "to site")]
            totals = [0 if s.empty else int(s[c].sum()) for s in sides for c in ("messages", "bytes")]
            same.setdefault((totals[0], totals[1], totals[2], totals[3]), []).append(site)
        lines += [Traffic(method, sites, *totals) for totals, sites in same.items()]
    return lines
