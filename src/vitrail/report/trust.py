"""Whom each site learned from (Weight Erosion, Influence): the matrix of weights with its tree, each site as the user.

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

MODELS = ("own", "global", "local")
TITLES = {"global": "Global", "local": "Local"}  # and the run's method
STYLES = {"own": "series strong m6", "global": "series yard again", "local": "series yard"}
SHADES = 6  # .h6 is no weight, .h0 the full one
SHOWN = 26  # features in the figure of weights
POINTS = 1200  # of all lines of a panel
SPANS = 8  # of a run, over which weights that jump are averaged


class Learned(NamedTuple):
    """All that the page shows of trust."""

    title: str  # of the method
    trust: Trust
    curves: pd.DataFrame  # round, site, model ("own", "global", "local", "majority"), value: the primary metric
    weights: pd.DataFrame | None  # site, answer, feature, model, value; None for a network with hidden layers
    refused: Sequence[str]  # sites that did not show their local model


class Words(NamedTuple):
    """How the page speaks of a method's weights; braces take user, site and value, or the sites."""

    fold: str
    cell: str
    own: str
    unknown: str
    matrix: str
    tree: str
    panel: str
    below: str


EROSION = Words(
    "Whom each of the {} trusts",
    "{} trusts {}: {}",
    "{}: itself",
    "{1} never met {0}",
    "Trust of {} in each other",
    "mutual trust",
    "how far {} trusts each site (alpha)",
    "the weight of each site in its model, over the same rounds",
)
INFLUENCE = Words(
    "Whom each of the {} learned from",
    "{} learned from {}: {}",
    "{}: {} its own",
    "{} had no model of {} to weigh",
    "Weights that {} gave each other",
    "mutual weight",
    "weights given by {}, {}",
    "the weights, which sum to 1: each model’s part, its own among them, in what was taken off its loss on the rows "
    "that it judges by. At 0 a model did not lower that loss; where its own has 1, no other did",
)


class View(NamedTuple):
    """One matrix with its texts."""

    key: str
    title: str
    note: str
    drawing: Markup
    see: str
    cannot: str


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
    order, views = _shared(trust) if trust.shares else _eroded(trust)
    users = [trust.sites[i] for i in order]
    return {
        "sentences": sentences(trust, order),
        "fold": words_of(trust).fold.format(several(len(users), "site")),
        "views": views,
        "below": words_of(trust).below,
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


def words_of(trust: Trust) -> Words:
    return INFLUENCE if trust.shares else EROSION


def _eroded(trust: Trust) -> tuple[list[int], list[View]]:
    """Trust at the end; where a user ends alone also its mean, since the end no longer tells sites apart."""
    lonely = any(trust.alone_from(i) is not None for i in range(len(trust.sites)))
    order, joins = groups(trust.mean if lonely else trust.final)
    row = "Row: a site as the user. Column: whom it learned from. 1: full trust. 0: none"
    see = "Row: a site as the user; column: whom it learned from. Blue: trusted to the end; grey: trust has worn off. "
    see += "Sites that trust each other are neighbours"
    end = View(
        "trust",
        "Trust after the last round (alpha)",
        f"{row} left.",
        matrix(trust.sites, trust.final, order, [] if lonely else joins),
        f"{see}." if lonely else f"{see}, and the tree joins them at the mean trust between them.",
        "Why trust was lost: other patients, other coding, few rows or noise. Nor how two rows compare: all of a "
        "user’s trust wears off faster once its model fits its own rows, so compare within a row.",
    )
    mean = View(
        "trust-mean",
        "Mean trust over all rounds",
        f"{row}.",
        matrix(trust.sites, trust.mean, order, joins),
        "Where trust is gone at the end, how long it lasted still tells sites apart: the mean of each weight over the "
        "rounds. The tree joins sites at the mean trust between them.",
        "Whether trust should have lasted. Larger batches, fewer rounds, a smaller p_d or p_s, or early stopping "
        "(validation) make it last longer.",
    )
    return order, [end, mean] if lonely else [end]


def _shared(trust: Trust) -> tuple[list[int], list[View]]:
    """Mean weights: late in a run, when nobody's model helps any more, the last ones are those of a site alone."""
    given = trust.mean[~np.eye(len(trust.sites), dtype=bool)]
    full = float(np.nan_to_num(given).max(initial=0)) or 1.0
    order, joins = groups(trust.mean / full)
    view = View(
        "influence",
        "Mean weight over all rounds",
        "Row: a site as the user. Column: whose model it learned from. A row sums to 1.",
        matrix(trust.sites, trust.mean, order, joins, INFLUENCE, full),
        "Row: a site as the user; column: whose model it learned from; each row sums to 1. A weight is that model’s "
        "part in all that models took off the user’s loss, on rows that it keeps out of training to judge by; in the "
        "framed cells, its own model’s part. The bluer, the more weight. Sites that gave each other weight are "
        "neighbours, and the tree joins them at the mean weight between them.",
        "Why a model helped: like patients, more rows, or a copy of a good model. Nor how much it helped: a small gain "
        "is shared out like a large one, and a round in which no model helped counts as 1 for the site itself.",
    )
    return order, [view]


# words


def sentences(trust: Trust, order: Sequence[int]) -> list[Markup]:
    """For each user: whom it trusts most and least at the end, or gave most and least weight."""
    out, values = [], trust.mean if trust.shares else trust.final
    for user in order:
        row = values[user].copy()
        row[user] = np.nan
        if not np.isfinite(row).any():
            continue
        most, least = int(np.nanargmax(row)), int(np.nanargmin(row))
        me, best, worst = (name(trust.sites[i]) for i in (user, most, least))
        high, low = number(row[most], 2), number(row[least], 2)
        if trust.shares and row[most] == 0:
            words = Markup("{} learned from nobody: no other model lowered its loss in any round.")
            out.append(words.format(me))
        elif trust.shares:
            rest = Markup(", least from {} ({})").format(worst, low) if row[most] > row[least] else ""
            words = Markup("{} learned {}from {} (mean weight {}){}; its own part: {}.")
            own = number(values[user, user], 2)
            out.append(words.format(me, "most " if rest else "", best, high, rest, own))
        elif row[most] == 0:
            lasted = trust.mean[user].copy()
            lasted[user] = np.nan
            words = Markup("{} ends alone: from round {} on it trusts nobody but itself. Trust in {} lasted longest.")
            longest = name(trust.sites[int(np.nanargmax(lasted))])
            out.append(words.format(me, trust.alone_from(user), longest))
        elif row[most] == row[least]:
            words = Markup("{} trusts {} with {} at the end.")
            out.append(words.format(me, "the others" if most != least else best, high))
        else:
            out.append(Markup("{} trusts {} most ({}) and {} least ({}).").format(me, best, high, worst, low))
    return out


def user_sentences(trust: Trust, user: int) -> list[Markup]:
    """What happened to this user on the way."""
    return _weighing(trust, user) if trust.shares else _eroding(trust, user)


def _weighing(trust: Trust, user: int) -> list[Markup]:
    out, me = [], name(trust.sites[user])
    weights = np.delete(trust.alpha[:, user], user, axis=1)
    known = np.isfinite(weights).any(1)
    if not known.any():
        return [Markup("{} never weighed the models of others: it was away.").format(me)]
    some = int((weights[known] > 0).any(1).sum())
    text = "In {} of the {} in which {} judged the models of others, some of them lowered its loss."
    out.append(Markup(text).format(some, several(int(known.sum()), "round"), me))
    never = [trust.sites[i] for i in np.flatnonzero(trust.mean[user] == 0) if i != user]
    if never and some:
        out.append(Markup("It never learned from {}.").format(listed(never)))
    if some and (since := trust.alone_from(user)) is not None:
        out.append(Markup("From round {} on it trained on from its own model alone.").format(since))
    return out


def _eroding(trust: Trust, user: int) -> list[Markup]:
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
    n = len(trust.sites)
    if trust.shares:
        text = (
            f"in each round every site trains once, as in FedAvg, and is sent the models of all {several(n, 'site')}; "
        )
        return text + f"{n} x ({n} + 1) = {n * (n + 1)} losses are computed on rows set aside."
    users, beside = trust.gradients.sum(0)
    text = (
        f"{several(int(users), 'gradient')} over {several(len(trust.rounds), 'round')} for the models of all "
        f"{several(n, 'user')}, {users / len(trust.rounds):.1f} a round (at most {n} x {n} = {n * n} for each batch)"
    )
    return text + (f"; and {several(int(beside), 'gradient')} for Global and Local beside them." if beside else ".")


# the matrix


def matrix(
    all_sites: Sequence[str],
    weights: np.ndarray,
    order: Sequence[int],
    joins: Sequence[Join],
    say: Words = EROSION,
    full: float = 1.0,
) -> Markup:
    """Row: a user; column: a site; beside them the tree of the sites, in the same order. `full` is drawn darkest."""
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
            value, x = float(weights[user, site]), edge + cell * column
            box = {"x": x, "y": y, "width": cell - 1, "height": high - 1}
            known, part = math.isfinite(value), value / full
            told = say.own if user == site else say.cell if known else say.unknown
            names_of = [all_sites[user]] if user == site else [all_sites[user], all_sites[site]]
            words = told.format(*names_of, number(value, 2))
            said += [words] if user != site else []
            kind = f"h{SHADES - round(SHADES * part)}" if known and user != site else "none"
            cells.append(tag("rect", tag("title", words), **box, class_=kind))
            if cell >= 34 and known and (user != site or say is INFLUENCE):
                at = x + (cell - 1) / 2, y + high / 2 + 4
                cells.append(
                    _text(*at, number(value, 2), "in dark" if kind != "none" and part > 0.7 else "in", "middle")
                )
    for column, label in enumerate(sites):
        turned = f"translate({edge + cell * (column + 0.5) + 3:.1f} {bottom + 10:.1f}) rotate(-60)"
        cells.append(tag("g", _text(0, 0, short[label], "feature", "end", label), transform=turned))
    cells += _tree(order, joins, all_sites, (top, high, end + 10, tree), say.tree, full) if joins else []
    below = 16 + math.ceil(7.0 * max(map(len, short.values()), default=0) * math.sin(math.pi / 3))
    title = say.matrix.format(several(n, "site"))
    drawing = Drawing(end + tree + 60, bottom + max(below, 40), cells)
    return _sized(left, bottom, names, "names") + _sized(*drawing, "cells", title, "; ".join(said) + ".")


def _tree(
    order: Sequence[int],
    joins: Sequence[Join],
    sites: Sequence[str],
    box: tuple[float, float, float, float],
    what: str,
    full: float,
) -> list[Markup]:
    """The joins to the right of the rows: full mutual trust at the left, none at the right."""
    top, high, x, wide = box
    at = {site: top + high * (row + 0.5) for row, site in enumerate(order)}
    place = {frozenset([site]): (x, at[site]) for site in order}
    where, out = Scale(0, 1, x, x + wide), []
    for join in joins:
        here = where(min(max(join.apart, 0.0), 1.0))
        (x1, y1), (x2, y2) = place[frozenset(join.first)], place[frozenset(join.second)]
        here = max(here, x1, x2)
        members = [s for s in order if s in join.first + join.second]
        hover = f"{', '.join(sites[s] for s in members)}: mean {what} {number(full * (1 - join.apart), 2)}"
        d = f"M{x1:.1f},{y1:.1f}H{here:.1f}V{y2:.1f}H{x2:.1f}"
        out.append(tag("path", tag("title", hover), d=d, class_="branch"))
        place[frozenset(members)] = (here, (y1 + y2) / 2)
    bottom = top + high * len(order)
    ends = [(v, f"{full * (1 - v):.2g}") for v in (0.0, 0.5, 1.0)]
    out += [_text(where(v), bottom + 15, text, "tick", "middle") for v, text in ends]
    out.append(_text(where(0.5), bottom + 31, what, "axis", "middle"))
    return [_line(where(v), top, where(v), bottom, "grid") for v, _ in ends] + out


# a site as the user


def user_figure(page: Learned, site: str, words: str) -> Markup:
    """Accuracy, trust and distances of one user, one below the other over the same rounds."""
    trust, user = page.trust, page.trust.sites.index(site)
    here = page.curves[page.curves["site"] == site]
    lines = []
    for model in MODELS:
        of = here[here["model"] == model].sort_values("round")
        if len(of):
            values = of["value"].to_numpy(float)
            lines.append(Line(_title(page, model), STYLES[model], of["round"].to_numpy(float), values))
    constant = here.loc[here["model"] == "majority", "value"]
    level = ("always the same answer", float(constant.iloc[0])) if len(constant) else None
    shown = [v for line in lines for v in line.y] + ([level[1]] if level else [])
    panels = [Panel(f"{words} at {site}", lines, *_domain(shown), level)]
    start = np.r_[0.0, trust.rounds.astype(float)]
    span = max(1, len(trust.rounds) // SPANS) if trust.shares else 1  # they jump from round to round
    path = recent(trust.alpha[:, user], span)
    weights = []
    for i, other in enumerate(trust.sites):
        before = np.nan if trust.shares or math.isnan(trust.alpha[0, user, i]) else 1.0
        kind = f"series m{i % COLOURS}" + (" again" if i >= COLOURS else "") + (" strong" if i == user else "")
        if i != user or trust.shares:
            weights.append(Line(other, kind, start, np.r_[before, path[:, i]]))
    which = f"mean of {span} rounds" if span > 1 else "round by round"
    panels.append(Panel(words_of(trust).panel.format(site, which), weights, -0.03, 1.04))
    if np.isfinite(trust.between[:, user]).any():
        then = trust.rounds.astype(float) - 1
        far = [
            Line("to Local", STYLES["local"], then, trust.to_local[:, user]),
            Line("to Global", STYLES["global"], then, trust.to_global[:, user]),
        ]
        panels.append(Panel(f"distance of the model of {site}", far, *_domain([0.0, *far[0].y, *far[1].y])))
    last = float(trust.rounds[-1])
    return Markup().join(_stack(site, panels, last, width) for width in (WIDE, NARROW))


def recent(path: np.ndarray, span: int) -> np.ndarray:
    """[round, site]: each round's mean with those before it, `span` in all; rounds that are not known do not count."""
    known = np.isfinite(path)
    total, count = (np.cumsum(np.r_[np.zeros((span, path.shape[1])), a], 0) for a in (np.where(known, path, 0), known))
    count = count[span:] - count[:-span]
    return np.where(known, (total[span:] - total[:-span]) / np.maximum(count, 1), np.nan).clip(0, 1)


def _title(page: Learned, model: str) -> str:
    return TITLES.get(model, page.title)


def _stack(site: str, panels: Sequence[Panel], last: float, width: int) -> Markup:
    narrow = width < 500
    names = shorten_all(sorted({line.name for p in panels for line in p.lines}), 14 if narrow else 24)
    left, right = 36.0, width - 22 - 6.6 * max(map(len, names.values()), default=0)
    x = Scale(0, max(last, 1), left, right)
    parts, said, top = [], [], 24.0
    for panel in panels:
        tall = max(150.0 if narrow else 170.0, 13.0 * len(panel.lines))
        top += 18 if panel.level else 0  # a line of words, where no curve can cross it
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
    above = y.end - (30 if panel.level else 12)
    parts = [_text(0, above, shorten(panel.axis, 52 if x.end < 400 else 110), "axis", full=panel.axis)]
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
        parts += [_line(0, above + 14, 26, above + 14, "majority key"), _text(32, above + 18, what, "label majority")]
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
    """For each answer: the weights of the models side by side, and how many features are left out."""
    if page.weights is None:
        return []
    here, out = page.weights[page.weights["site"] == site], []
    for answer, part in here.groupby("answer", sort=False):
        table = part.pivot(index="feature", columns="model", values="value").reindex(part["feature"].unique())
        size = table.abs().max(axis=1).sort_values(ascending=False, kind="stable")
        kept = table.loc[[f for f in table.index if f in set(size.index[:SHOWN])]]
        drawn = Markup().join(_weights(page, site, str(answer), kept, width) for width in (WIDE, NARROW))
        out.append((str(answer), drawn, len(table) - len(kept)))
    return out


def _weights(page: Learned, site: str, answer: str, table: pd.DataFrame, width: int) -> Markup:
    """One row per feature, one mark per model."""
    titles = {m: _title(page, m) for m in MODELS if m in table}
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
    for model, title in titles.items():
        parts += [_mark(model, key + 6, 12), _text(key + 18, 16, title, "label")]
        key += 34 + 6.8 * len(title)
    said = []
    for i, feature in enumerate(table.index):
        base = top + high * (i + 0.5)
        parts.append(_text(left - 10, base + 4, short[str(feature)], "name", "end", str(feature)))
        known = {m: float(table.iloc[i][m]) for m in titles if math.isfinite(table.iloc[i][m])}
        words = f"{feature}: " + ", ".join(f"{titles[m]} {signed(v, 2)}" for m, v in known.items())
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
