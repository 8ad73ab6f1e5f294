"""Whom each site learned from (Weight Erosion): the matrix of trust with its tree, and each site as the user.

Lines of models are drawn in ink and grey, so that colour is left for sites: each has one colour wherever it appears.
Colours are classes of page.css.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from markupsafe import Markup

from vitrail.explain.groups import Join
from vitrail.explain.trust import Trust, groups
from vitrail.report.figures import (
    COLOURS,
    NARROW,
    WIDE,
    Scale,
    _domain,
    _line,
    _path,
    _svg,
    _text,
    _thin,
    _tick_texts,
    place_labels,
    tag,
    ticks,
)
from vitrail.report.heatmap import Drawing
from vitrail.report.heatmap import _svg as _sized
from vitrail.report.words import listed, name, number, several, shorten, shorten_all, signed

MODELS = {"own": "Weight Erosion", "global": "Global", "local": "Local"}
STYLES = {"own": "series strong m6", "global": "series yard again", "local": "series yard"}
SHADES = 6  # .h6 is no trust, .h0 full trust
SHOWN = 26  # features in the figure of weights
POINTS = 1200  # of all lines of a panel


class Learned(NamedTuple):
    """All that the page shows of trust."""

    trust: Trust
    curves: pd.DataFrame  # round, site, model ("own", "global", "local", "majority"), value: the primary metric
    weights: pd.DataFrame | None  # site, answer, feature, model, value; None for a network with hidden layers
    refused: Sequence[str]  # sites that did not show their local model


class Line(NamedTuple):
    """One series of a panel."""

    name: str
    kind: str
    x: np.ndarray
    y: np.ndarray


class Panel(NamedTuple):
    axis: str
    lines: list[Line]
    low: float
    high: float
    level: tuple[str, float] | None = None  # a dashed line over all rounds


def contents(page: Learned, words: str) -> dict[str, Any]:
    """What the template is given."""
    trust = page.trust
    lonely = [i for i in range(len(trust.sites)) if trust.alone_from(i) is not None]
    order, joins = groups(trust.mean if lonely else trust.final)
    users = [trust.sites[i] for i in order]
    return {
        "sentences": sentences(trust, order),
        "alone": len(lonely),
        "matrix": matrix(trust.sites, trust.final, order, [] if lonely else joins),
        "mean": matrix(trust.sites, trust.mean, order, joins) if lonely else Markup(),
        "cost": cost(trust),
        "beside": page.curves["model"].isin(["global", "local"]).any(),
        "linear": page.weights is not None,
        "users": [
            {
                "site": site,
                "figure": user_figure(page, site, words),
                "said": user_sentences(trust, trust.sites.index(site)),
                "weights": weights_figures(page, site),
                "refused": site in page.refused,
            }
            for site in users
        ],
    }


# words


def sentences(trust: Trust, order: Sequence[int]) -> list[Markup]:
    """For each user: whom it trusts most and least at the end."""
    out = []
    for user in order:
        row = trust.final[user].copy()
        row[user] = np.nan
        if not np.isfinite(row).any():
            continue
        most, least = int(np.nanargmax(row)), int(np.nanargmin(row))
        me = name(trust.sites[user])
        if row[most] == 0:
            lasted = trust.mean[user].copy()
            lasted[user] = np.nan
            words = Markup("{} ends alone: from round {} on it trusts nobody but itself. Trust in {} lasted longest.")
            longest = name(trust.sites[int(np.nanargmax(lasted))])
            out.append(words.format(me, trust.alone_from(user), longest))
        elif most == least or row[most] == row[least]:
            words = Markup("{} trusts {} with {} at the end.")
            out.append(
                words.format(me, "the others" if most != least else name(trust.sites[most]), number(row[most], 2))
            )
        else:
            words = Markup("{} trusts {} most ({}) and {} least ({}).")
            best, worst = name(trust.sites[most]), name(trust.sites[least])
            out.append(words.format(me, best, number(row[most], 2), worst, number(row[least], 2)))
    return out


def user_sentences(trust: Trust, user: int) -> list[Markup]:
    """What happened to this user on the way."""
    out, me = [], name(trust.sites[user])
    gone = [trust.sites[i] for i in np.flatnonzero(trust.final[user] == 0)]
    if gone:
        out.append(Markup("{} no longer learns from {}: their weight is 0.").format(me, listed(gone)))
    if (stop := trust.stop_round(user)) is not None:
        text = "{} stopped in round {}: the loss on the rows it had set aside no longer fell. "
        out.append(Markup(text + "Its model went back to its best.").format(me, stop))
    if many := int(trust.vanished[:, user].sum()):
        text = "In {} the own gradient of {} was nothing, so that no distance is defined: nobody lost trust then."
        out.append(Markup(text).format(several(many, "round"), me))
    near, far = trust.to_local[-1, user], trust.between[-1, user]
    if math.isfinite(near) and far > 0:
        words = Markup("Before the last round its model was {} from Local and {} from Global; those two were {} apart.")
        out.append(words.format(number(near, 2), number(trust.to_global[-1, user], 2), number(far, 2)))
        if near < 0.1 * far:
            out.append(Markup("It has all but become its local model: joining changed little in the end."))
    return out


def cost(trust: Trust) -> str:
    users, beside = trust.gradients.sum(0)
    n = len(trust.sites)
    text = (
        f"{several(int(users), 'gradient')} over {several(len(trust.rounds), 'round')} for the models of all "
        f"{several(n, 'user')}, {users / len(trust.rounds):.1f} a round (at most {n} x {n} = {n * n} for each batch)"
    )
    return text + (f"; and {several(int(beside), 'gradient')} for Global and Local beside them." if beside else ".")


# the matrix


def matrix(all_sites: Sequence[str], trust: np.ndarray, order: Sequence[int], joins: Sequence[Join]) -> Markup:
    """Row: a user; column: a site; beside them the tree of the sites, in the same order."""
    n, sites = len(order), [all_sites[i] for i in order]
    short = shorten_all(sites, 22)
    left = math.ceil(14 + 7.2 * max(map(len, short.values()), default=0))
    cell = max(16.0, min(52.0, (WIDE - left - 130) // max(n, 1)))
    high, top, edge, tree = min(cell, 34.0), 4.0, 3.0, 110.0
    bottom, end = top + high * n, edge + cell * n
    names, cells, said = [], [], []
    for row, user in enumerate(order):
        y = top + high * row
        names.append(_text(left - 8, y + high / 2 + 4, short[all_sites[user]], "name", "end", all_sites[user]))
        for column, site in enumerate(order):
            value, x = float(trust[user, site]), edge + cell * column
            box = {"x": x, "y": y, "width": cell - 1, "height": high - 1}
            if user == site:
                hover = tag("title", f"{all_sites[user]}: itself")
                cells.append(tag("rect", hover, **box, class_="none"))
                continue
            words = f"{all_sites[user]} trusts {all_sites[site]}: {number(value, 2)}"
            known = math.isfinite(value)
            words = words if known else f"{all_sites[site]} never met {all_sites[user]}"
            said.append(words)
            kind = f"h{SHADES - round(SHADES * value)}" if known else "none"
            cells.append(tag("rect", tag("title", words), **box, class_=kind))
            if cell >= 34 and known:
                at = x + (cell - 1) / 2, y + high / 2 + 4
                cells.append(_text(*at, number(value, 2), "in dark" if value > 0.7 else "in", "middle"))
    for column, label in enumerate(sites):
        turned = f"translate({edge + cell * (column + 0.5) + 3:.1f} {bottom + 10:.1f}) rotate(-60)"
        cells.append(tag("g", _text(0, 0, short[label], "feature", "end", label), transform=turned))
    cells += _tree(order, joins, all_sites, top, high, end + 10, tree) if joins else []
    below = 16 + math.ceil(7.0 * max(map(len, short.values()), default=0) * math.sin(math.pi / 3))
    title = f"Trust of {several(n, 'site')} in each other"
    drawing = Drawing(end + tree + 60, bottom + max(below, 40), cells)
    return _sized(left, bottom, names, "names") + _sized(*drawing, "cells", title, "; ".join(said) + ".")


def _tree(
    order: Sequence[int], joins: Sequence[Join], sites: Sequence[str], top: float, high: float, x: float, wide: float
) -> list[Markup]:
    """The joins to the right of the rows: full mutual trust at the left, none at the right."""
    at = {site: top + high * (row + 0.5) for row, site in enumerate(order)}
    place = {frozenset([site]): (x, at[site]) for site in order}
    where, out = Scale(0, 1, x, x + wide), []
    for join in joins:
        here = where(min(max(join.apart, 0.0), 1.0))
        (x1, y1), (x2, y2) = place[frozenset(join.first)], place[frozenset(join.second)]
        here = max(here, x1, x2)
        members = [s for s in order if s in join.first + join.second]
        hover = f"{', '.join(sites[s] for s in members)}: mean mutual trust {number(1 - join.apart, 2)}"
        d = f"M{x1:.1f},{y1:.1f}H{here:.1f}V{y2:.1f}H{x2:.1f}"
        out.append(tag("path", tag("title", hover), d=d, class_="branch"))
        place[frozenset(members)] = (here, (y1 + y2) / 2)
    bottom = top + high * len(order)
    ends = [(0.0, "1", "middle"), (0.5, "0.5", "middle"), (1.0, "0", "middle")]
    out += [_line(where(v), top, where(v), bottom, "grid") for v, *_ in ends]
    out += [_text(where(v), bottom + 15, text, "tick", anchor) for v, text, anchor in ends]
    out.append(_text(where(0.5), bottom + 31, "mutual trust", "axis", "middle"))
    return out[len(joins) : len(joins) + 3] + out[: len(joins)] + out[len(joins) + 3 :]


# a site as the user


def user_figure(page: Learned, site: str, words: str) -> Markup:
    """Accuracy, trust and distances of one user, one below the other over the same rounds."""
    trust, user = page.trust, page.trust.sites.index(site)
    here = page.curves[page.curves["site"] == site]
    lines = []
    for model, title in MODELS.items():
        of = here[here["model"] == model].sort_values("round")
        if len(of):
            values = of["value"].to_numpy(float)
            lines.append(Line(title, STYLES[model], of["round"].to_numpy(float), values))
    constant = here.loc[here["model"] == "majority", "value"]
    level = ("always the same answer", float(constant.iloc[0])) if len(constant) else None
    shown = [v for line in lines for v in line.y] + ([level[1]] if level else [])
    panels = [Panel(f"{words} at {site}", lines, *_domain(shown), level)]
    start = np.r_[0.0, trust.rounds.astype(float)]
    weights = []
    for i, other in enumerate(trust.sites):
        known = np.r_[np.nan if math.isnan(trust.alpha[0, user, i]) else 1.0, trust.alpha[:, user, i]]
        kind = f"series m{i % COLOURS}" + (" again" if i >= COLOURS else "")
        if i != user:
            weights.append(Line(other, kind, start, known))
    panels.append(Panel(f"how far {site} trusts each site (alpha)", weights, -0.03, 1.04))
    if np.isfinite(trust.between[:, user]).any():
        before = trust.rounds.astype(float) - 1
        far = [
            Line("to Local", STYLES["local"], before, trust.to_local[:, user]),
            Line("to Global", STYLES["global"], before, trust.to_global[:, user]),
        ]
        panels.append(Panel(f"distance of the model of {site}", far, *_domain([0.0, *far[0].y, *far[1].y])))
    last = float(trust.rounds[-1])
    return Markup().join(_stack(site, panels, last, width) for width in (WIDE, NARROW))


def _stack(site: str, panels: Sequence[Panel], last: float, width: int) -> Markup:
    narrow = width < 500
    names = shorten_all(sorted({line.name for p in panels for line in p.lines}), 14 if narrow else 24)
    left, right = 36.0, width - 22 - 6.6 * max(map(len, names.values()), default=0)
    x = Scale(0, max(last, 1), left, right)
    parts, said, top = [], [], 24.0
    for panel in panels:
        tall = max(150.0 if narrow else 170.0, 13.0 * len(panel.lines))
        bottom = top + tall
        parts += _axes(panel, x, Scale(panel.low, panel.high, bottom, top), last)
        drawn, words = _series(panel, names, x, Scale(panel.low, panel.high, bottom, top), (right, top, bottom))
        parts += drawn
        said.append(f"{panel.axis} at the end: {words}")
        top = bottom + 50
    parts.append(_text((left + right) / 2, top - 19, "round", "axis", "middle"))
    kind = "plot narrow" if narrow else "plot wide"
    return _svg(width, top - 10, f"{site} as the user", ". ".join(said) + ".", parts, kind)


def _axes(panel: Panel, x: Scale, y: Scale, last: float) -> list[Markup]:
    marks = ticks(panel.low, panel.high, 5)
    parts = [_text(0, y.end - 12, shorten(panel.axis, 52 if x.end < 400 else 110), "axis", full=panel.axis)]
    for value, text in zip(marks, _tick_texts(marks), strict=True):
        parts += [
            _line(x.start, y(value), x.end, y(value), "grid"),
            _text(x.start - 5, y(value) + 4, text, "tick", "end"),
        ]
    rounds = [t for t in ticks(0, max(last, 1), 4) if t == int(t)]
    parts += [_text(x(t), y.start + 16, f"{t:.0f}", "tick", "middle") for t in rounds]
    if panel.level is not None:
        what, value = panel.level
        hover = tag("title", f"{what}: {number(value)}")
        parts.append(tag("g", hover, _line(x.start, y(value), x.end, y(value), "majority")))
        parts.append(_text(x.start + 6, y(value) - 5, what, "label majority"))
    return parts


def _series(
    panel: Panel, names: dict[str, str], x: Scale, y: Scale, box: tuple[float, float, float]
) -> tuple[list[Markup], str]:
    right, top, bottom = box
    finite = [(line, np.flatnonzero(np.isfinite(line.y))) for line in panel.lines]
    finite = [(line, at) for line, at in finite if len(at)]
    ends = [y(float(line.y[at[-1]])) for line, at in finite]
    places, parts, said = place_labels(ends, 13, top, bottom), [], []
    most = max(40, POINTS // max(len(finite), 1))
    for (line, at), end, place in zip(finite, ends, places, strict=True):
        points = [(x(float(line.x[i])), y(float(line.y[i]))) for i in at[_thin(len(at), most)]]
        value = f"{line.name}: {number(float(line.y[at[-1]]))} after round {line.x[at[-1]]:.0f}"
        said.append(f"{line.name} {number(float(line.y[at[-1]]), 2)}")
        drawn = [tag("title", value)]
        drawn += [_path(points, kind="line")] if len(points) > 1 else []
        drawn += [
            tag("circle", cx=points[-1][0], cy=end, r=2.5, class_="end"),
            _path([(points[-1][0] + 3, end), (right + 6, place), (right + 12, place)], kind="leader"),
            _text(right + 15, place + 4, names[line.name], "label", full=line.name),
        ]
        parts.append((" strong" in line.kind, tag("g", *drawn, class_=line.kind)))
    return [g for _, g in sorted(parts, key=lambda p: p[0])], ", ".join(said)


# learned weights


def weights_figures(page: Learned, site: str) -> list[tuple[str, Markup, int]]:
    """For each answer: the weights of the three models side by side, and how many features are left out."""
    if page.weights is None:
        return []
    here, out = page.weights[page.weights["site"] == site], []
    for answer, part in here.groupby("answer", sort=False):
        table = part.pivot(index="feature", columns="model", values="value").reindex(part["feature"].unique())
        size = table.abs().max(axis=1).sort_values(ascending=False, kind="stable")
        kept = table.loc[[f for f in table.index if f in set(size.index[:SHOWN])]]
        drawn = Markup().join(_weights(site, str(answer), kept, width) for width in (WIDE, NARROW))
        out.append((str(answer), drawn, len(table) - len(kept)))
    return out


def _weights(site: str, answer: str, table: pd.DataFrame, width: int) -> Markup:
    """One row per feature, one mark per model."""
    narrow = width < 500
    short = shorten_all([str(f) for f in table.index], 16 if narrow else 26)
    left, right, high, top = 14 + 7.0 * max(map(len, short.values())), width - 14.0, 22.0, 40.0
    values = table.to_numpy(float)
    far = float(np.nanmax(np.abs(values))) * 1.06 or 0.1
    x, bottom = Scale(-far, far, left, right), top + high * len(table)
    marks = ticks(-far, far, 3 if narrow else 6)
    parts: list[Markup] = []
    for value, text in zip(marks, _tick_texts(marks, signed), strict=True):
        parts.append(_line(x(value), top, x(value), bottom, "zero" if value == 0 else "grid"))
        parts.append(_text(x(value), bottom + 16, text, "tick", "middle"))
    parts.append(_text((left + right) / 2, bottom + 33, f"weight towards {shorten(answer, 40)}", "axis", "middle"))
    key = 0.0
    for model in (m for m in ("own", "global", "local") if m in table):
        parts += [_mark(model, key + 6, 12), _text(key + 18, 16, MODELS[model], "label")]
        key += 34 + 6.8 * len(MODELS[model])
    said = []
    for i, feature in enumerate(table.index):
        base = top + high * (i + 0.5)
        parts.append(_text(left - 10, base + 4, short[str(feature)], "name", "end", str(feature)))
        known = {m: float(table.iloc[i][m]) for m in MODELS if m in table and math.isfinite(table.iloc[i][m])}
        words = f"{feature}: " + ", ".join(f"{MODELS[m]} {signed(v, 2)}" for m, v in known.items())
        said.append(words)
        row = [tag("title", words), _line(x(min(known.values())), base, x(max(known.values())), base, "rail")]
        row += [_mark(m, x(known[m]), base) for m in ("local", "global", "own") if m in known]
        parts.append(tag("g", *row))
    kind = "plot narrow" if narrow else "plot wide"
    title = f"Learned weights of {site} towards {answer}"
    return _svg(width, bottom + 40, title, "; ".join(said) + ".", parts, kind)


def _mark(model: str, x: float, y: float) -> Markup:
    """Told apart by shape, not by colour alone: a dot, an upright tick, a ring."""
    if model == "own":
        return tag("circle", cx=x, cy=y, r=4.5, class_="of-own")
    if model == "global":
        return tag("rect", x=x - 1.7, y=y - 7, width=3.4, height=14, class_="of-global")
    return tag("circle", cx=x, cy=y, r=5, class_="of-local")
