"""One site as the user: its score, whom it trusts, how far its model is from others, and what a linear one looks at.

Lines of models are drawn in ink and grey, so that colour is left for sites: each has one colour wherever it appears.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np
import pandas as pd
from markupsafe import Markup

from vitrail.core.facts import ALONE, OWN, RECEIVED, SHARED
from vitrail.core.text import shorten, shorten_all, signed
from vitrail.report.charts import svg
from vitrail.report.charts.axes import domain, round_ticks
from vitrail.report.charts.curves import Curves, Panel, Series, curves, last_values
from vitrail.report.charts.interval_rows import IntervalRow, IntervalRows, RowMark, interval_rows
from vitrail.report.sections.learning.sources import MODELS, LearningSources
from vitrail.report.sections.learning.wording import words_of
from vitrail.report.text import SAME, Interval
from vitrail.runs.setup import MAJORITY

STYLES = {OWN: "series strong m6", SHARED: "series yard again", ALONE: "series yard", RECEIVED: "series yard"}
SHAPES = {OWN: RowMark(0.0, "dot", "of-own", 4.5), SHARED: RowMark(0.0, "block", "of-shared", 7)}
OTHER = RowMark(0.0, "dot", "of-alone", 5)  # models are told apart by shape, not by colour alone
SHOWN = 26  # features in the figure of weights
SPANS = 8  # of a run, over which weights that jump are averaged


# its rounds


def user_figure(learned: LearningSources, site: str, words: str) -> Markup:
    """Score, trust and distances of one user, one below the other over the same rounds."""
    user = learned.trust.sites.index(site)
    panels = [_scores(learned, site, words), _weights(learned, user)]
    if np.isfinite(learned.trust.between[:, user]).any():
        panels.append(_distances(learned, user))
    return svg.twice(lambda width: _stack(site, panels, float(learned.trust.rounds[-1]), width))


def _scores(learned: LearningSources, site: str, words: str) -> Panel:
    here, series = learned.curves[learned.curves["site"] == site], []
    for model in MODELS:
        of = here[here["model"] == model].sort_values("round")
        if len(of):
            rounds, values = (of[column].to_numpy(float).tolist() for column in ("round", "value"))
            series.append(Series(learned.called(model), "", STYLES[model], rounds, values))
    constant = here.loc[here["model"] == MAJORITY, "value"]
    level = (SAME, float(constant.iloc[0])) if constant.notna().any() else None
    shown = [v for s in series for v in s.y] + ([level[1]] if level else [])
    return Panel(f"{words} at {site}", series, *domain(shown), level)


def _weights(learned: LearningSources, user: int) -> Panel:
    trust, series = learned.trust, []
    start = [0.0, *trust.rounds.astype(float)]
    span = max(1, len(trust.rounds) // SPANS) if trust.shares else 1  # they jump from round to round
    paths = recent(trust.alpha[:, user], span)
    for i, other in enumerate(trust.sites):
        before = np.nan if trust.shares or math.isnan(trust.alpha[0, user, i]) else 1.0
        kind = f"series {svg.colour(i)}" + (" strong" if i == user else "")
        if i != user or trust.shares:
            series.append(Series(other, "", kind, start, [before, *paths[:, i]]))
    which = f"mean of {span} rounds" if span > 1 else "round by round"
    return Panel(words_of(trust).panel.format(trust.sites[user], which), series, -0.03, 1.04)


def _distances(learned: LearningSources, user: int) -> Panel:
    then = (learned.trust.rounds.astype(float) - 1).tolist()
    far = {ALONE: learned.trust.to_local[:, user].tolist(), SHARED: learned.trust.to_global[:, user].tolist()}
    series = [Series(f"to {learned.called(model)}", "", STYLES[model], then, values) for model, values in far.items()]
    shown = domain([0.0, *(v for values in far.values() for v in values)])
    return Panel(f"distance of the model of {learned.trust.sites[user]}", series, *shown)


def recent(path: np.ndarray, span: int) -> np.ndarray:
    """[round, site]: each round's mean with those before it, `span` in all; rounds that are not known do not count."""
    finite = np.isfinite(path)
    total, count = (
        np.cumsum(np.r_[np.zeros((span, path.shape[1])), a], 0) for a in (np.where(finite, path, 0), finite)
    )
    count = count[span:] - count[:-span]
    return np.where(finite, (total[span:] - total[:-span]) / np.maximum(count, 1), np.nan).clip(0, 1)


def _stack(site: str, panels: Sequence[Panel], last: float, width: int) -> Markup:
    short = shorten_all(sorted({s.name for p in panels for s in p.series}), 14 if svg.is_narrow(width) else 24)
    named = [p._replace(series=[s._replace(label=short[s.name]) for s in p.series]) for p in panels]
    text = ". ".join(f"{panel.axis} at the end: {last_values(panel.series, 2)}" for panel in panels)
    last = max(last, 1)
    figure = Curves(f"{site} as the user", f"{text}.", named, "round", 0.0, last, round_ticks(0.0, last, 4))
    return curves(figure, width)


# its linear model


def weights_figures(learned: LearningSources, site: str) -> list[tuple[str, Markup, int]]:
    """For each answer: the weights of the models side by side, and how many features are left out."""
    if learned.weights is None:
        return []
    here, out = learned.weights[learned.weights["site"] == site], []
    for answer, part in here.groupby("answer", sort=False):
        table = part.pivot(index="feature", columns="model", values="value").reindex(part["feature"].unique())
        size = table.abs().max(axis=1).sort_values(ascending=False, kind="stable")
        largest = table.loc[[f for f in table.index if f in set(size.index[:SHOWN])]]
        titles = {m: learned.called(m) for m in MODELS if m in largest}
        drawn = svg.twice(partial(_marks, titles, site, str(answer), largest))
        out.append((str(answer), drawn, len(table) - len(largest)))
    return out


def _marks(titles: dict[str, str], site: str, answer: str, table: pd.DataFrame, width: int) -> Markup:
    """One row per feature, one mark per model."""
    far, rows = float(np.nanmax(np.abs(table.to_numpy(float)))) * 1.06 or 0.1, []
    for i, feature in enumerate(table.index):
        values = {m: float(table.iloc[i][m]) for m in titles if math.isfinite(table.iloc[i][m])}
        words = f"{feature}: " + ", ".join(f"{titles[m]} {signed(v, 2)}" for m, v in values.items())
        marks = [SHAPES.get(m, OTHER)._replace(value=values[m]) for m in reversed(MODELS) if m in values]
        span = Interval(math.nan, min(values.values()), max(values.values()))
        rows.append(IntervalRow(str(feature), words, span, marks, line="rail"))
    key = [SHAPES.get(model, OTHER)._replace(words=title) for model, title in titles.items()]
    title, axis = f"Learned weights of {site} towards {answer}", f"weight towards {shorten(answer, 40)}"
    return interval_rows(IntervalRows(title, rows, axis, -far, far, signed, (22.0, 40.0), key=key), width)
