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
from vitrail.report.sections.learning.sources import MODELS, LearningSources
from vitrail.report.sections.learning.wording import words_of
from vitrail.report.text import SAME
from vitrail.runs.setup import MAJORITY

STYLES = {OWN: "series strong m6", SHARED: "series yard again", ALONE: "series yard", RECEIVED: "series yard"}
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


def _scores(learned: LearningSources, site: str, words: str) -> svg.Panel:
    here, series = learned.curves[learned.curves["site"] == site], []
    for model in MODELS:
        of = here[here["model"] == model].sort_values("round")
        if len(of):
            rounds, values = (of[column].to_numpy(float).tolist() for column in ("round", "value"))
            series.append(svg.Series(learned.called(model), "", STYLES[model], rounds, values))
    constant = here.loc[here["model"] == MAJORITY, "value"]
    level = (SAME, float(constant.iloc[0])) if constant.notna().any() else None
    shown = [v for s in series for v in s.y] + ([level[1]] if level else [])
    return svg.Panel(f"{words} at {site}", series, *svg.domain(shown), level)


def _weights(learned: LearningSources, user: int) -> svg.Panel:
    trust, series = learned.trust, []
    start = [0.0, *trust.rounds.astype(float)]
    span = max(1, len(trust.rounds) // SPANS) if trust.shares else 1  # they jump from round to round
    paths = recent(trust.alpha[:, user], span)
    for i, other in enumerate(trust.sites):
        before = np.nan if trust.shares or math.isnan(trust.alpha[0, user, i]) else 1.0
        kind = f"series {svg.colour(i)}" + (" strong" if i == user else "")
        if i != user or trust.shares:
            series.append(svg.Series(other, "", kind, start, [before, *paths[:, i]]))
    which = f"mean of {span} rounds" if span > 1 else "round by round"
    return svg.Panel(words_of(trust).panel.format(trust.sites[user], which), series, -0.03, 1.04)


def _distances(learned: LearningSources, user: int) -> svg.Panel:
    then = (learned.trust.rounds.astype(float) - 1).tolist()
    far = {ALONE: learned.trust.to_local[:, user].tolist(), SHARED: learned.trust.to_global[:, user].tolist()}
    series = [
        svg.Series(f"to {learned.called(model)}", "", STYLES[model], then, values) for model, values in far.items()
    ]
    shown = svg.domain([0.0, *(v for values in far.values() for v in values)])
    return svg.Panel(f"distance of the model of {learned.trust.sites[user]}", series, *shown)


def recent(path: np.ndarray, span: int) -> np.ndarray:
    """[round, site]: each round's mean with those before it, `span` in all; rounds that are not known do not count."""
    known = np.isfinite(path)
    total, count = (np.cumsum(np.r_[np.zeros((span, path.shape[1])), a], 0) for a in (np.where(known, path, 0), known))
    count = count[span:] - count[:-span]
    return np.where(known, (total[span:] - total[:-span]) / np.maximum(count, 1), np.nan).clip(0, 1)


def _stack(site: str, panels: Sequence[svg.Panel], last: float, width: int) -> Markup:
    narrow = svg.is_narrow(width)
    short = shorten_all(sorted({s.name for p in panels for s in p.series}), 14 if narrow else 24)
    x = svg.AxisScale(0, max(last, 1), 36.0, width - 22 - 6.6 * max(map(len, short.values()), default=0))
    parts, said, top = [], [], 0.0
    for panel in panels:
        top += panel.head
        bottom = top + max(150.0 if narrow else 170.0, 13.0 * len(panel.series))
        named = panel._replace(series=[s._replace(label=short[s.name]) for s in panel.series])
        parts += svg.panel_parts(named, x, top, bottom, (0.0, max(last, 1)), 4)
        said.append(f"{panel.axis} at the end: {svg.last_values(panel.series, 2)}")
        top = bottom + 50 - svg.ABOVE
    parts.append(svg.text(x.middle, top + svg.ABOVE - 19, "round", "axis", "middle"))
    return svg.plot(width, top + svg.ABOVE - 10, f"{site} as the user", ". ".join(said) + ".", parts)


# its linear model


def weights_figures(learned: LearningSources, site: str) -> list[tuple[str, Markup, int]]:
    """For each answer: the weights of the models side by side, and how many features are left out."""
    if learned.weights is None:
        return []
    here, out = learned.weights[learned.weights["site"] == site], []
    for answer, part in here.groupby("answer", sort=False):
        table = part.pivot(index="feature", columns="model", values="value").reindex(part["feature"].unique())
        size = table.abs().max(axis=1).sort_values(ascending=False, kind="stable")
        kept = table.loc[[f for f in table.index if f in set(size.index[:SHOWN])]]
        titles = {m: learned.called(m) for m in MODELS if m in kept}
        drawn = svg.twice(partial(_marks, titles, site, str(answer), kept))
        out.append((str(answer), drawn, len(table) - len(kept)))
    return out


def _marks(titles: dict[str, str], site: str, answer: str, table: pd.DataFrame, width: int) -> Markup:
    """One row per feature, one mark per model."""
    narrow = svg.is_narrow(width)
    short = shorten_all([str(f) for f in table.index], 16 if narrow else 26)
    left, right, high, top = 14 + 7.0 * max(map(len, short.values())), width - 14.0, 22.0, 40.0
    far = float(np.nanmax(np.abs(table.to_numpy(float)))) * 1.06 or 0.1
    x, bottom = svg.AxisScale(-far, far, left, right), top + high * len(table)
    axis = f"weight towards {shorten(answer, 40)}"
    parts, key, said = svg.axis_below(x, svg.ticks(-far, far, 3 if narrow else 6), top, bottom, axis, signed), 0.0, []
    for model, title in titles.items():
        parts += [_mark(model, key + 6, 12), svg.text(key + 18, 16, title, "label")]
        key += 34 + 6.8 * len(title)
    for i, feature in enumerate(table.index):
        base = top + high * (i + 0.5)
        parts.append(svg.text(left - 10, base + 4, short[str(feature)], "name", "end", str(feature)))
        known = {m: float(table.iloc[i][m]) for m in titles if math.isfinite(table.iloc[i][m])}
        words = f"{feature}: " + ", ".join(f"{titles[m]} {signed(v, 2)}" for m, v in known.items())
        said.append(words)
        row = [svg.tip(words), svg.line(x(min(known.values())), base, x(max(known.values())), base, "rail")]
        row += [_mark(m, x(known[m]), base) for m in reversed(MODELS) if m in known]
        parts.append(svg.tag("g", *row))
    title = f"Learned weights of {site} towards {answer}"
    return svg.plot(width, bottom + 40, title, "; ".join(said) + ".", parts)


def _mark(model: str, x: float, y: float) -> Markup:
    """Told apart by shape, not by colour alone: a dot, an upright tick, a ring."""
    if model == OWN:
        return svg.tag("circle", cx=x, cy=y, r=4.5, class_="of-own")
    if model == SHARED:
        return svg.tag("rect", x=x - 1.7, y=y - 7, width=3.4, height=14, class_="of-shared")
    return svg.tag("circle", cx=x, cy=y, r=5, class_="of-alone")
