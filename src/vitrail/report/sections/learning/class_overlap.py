"""Who listened to whom, beside how many classes they share: two matrices in one order, and whether they go together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from vitrail.analysis.trust import Trust, groups, read_trust
from vitrail.analysis.uncertainty import Correlation, rank_agreement, shared_classes
from vitrail.core.facts import SIMILARITY
from vitrail.core.text import number, p_words, several, shorten_all
from vitrail.report.charts import svg
from vitrail.runs.evaluation import shares_said
from vitrail.runs.result import Run

GAP = 34.0  # between the two
LEVEL = 0.05  # of chance, below which two things are said to go together


def class_shares(run: Run) -> np.ndarray | None:
    """[site, class], as sites said them; nothing where one did not, or a number is predicted."""
    if "target" not in run.sizes:
        return None
    said = dict(zip(run.sizes["site"].astype(str), run.sizes["target"].astype(str), strict=True))
    found = [shares_said(run.study, said.get(site, "")) for site in run.sites]
    return None if not found or None in found else np.array(found)


def differing(run: Run | None) -> tuple[Trust, np.ndarray] | None:
    """Whom sites learned from and which classes they share, where both are known and not all hold the same."""
    trust = read_trust(run.sites, run.facts) if run is not None else None
    shares = class_shares(run) if run is not None else None
    if trust is None or not trust.shares or shares is None or len(trust.sites) < 3:
        return None
    shared = shared_classes(shares)
    return (trust, shared) if shared.min() < 1 else None


def contents(run: Run) -> dict[str, Any]:
    found = differing(run)
    assert found is not None
    trust, shared = found
    order, _ = groups(shared)
    weights = ("Sites gave more weight to those with whom they share classes", "Weights and shared classes")
    said = [_says(*weights, *rank_agreement(trust.mean, shared))]
    if (alike := run.fact(SIMILARITY)) is not None:
        likeness = ("Models of sites that share classes are more alike", "Likeness of models and shared classes")
        said.append(_says(*likeness, *rank_agreement(alike.double().nanmean(0).numpy(), shared)))
    return {"said": [s for s in said if s], "drawing": _pair(trust.sites, order, trust.mean, shared)}


def _says(clearly: str, things: str, found: Correlation, chance: float) -> str:
    if not math.isfinite(found.value):
        return ""
    head = clearly if chance < LEVEL else f"{things} do not clearly go together"
    by_chance = f"{p_words(chance)}, by shuffling the sites".replace(" ", "\xa0", 2)
    pairs = several(found.pairs, "pair")
    return f"{head}: rank correlation {number(found.value, 2)} over {pairs} of sites ({by_chance})."


def _pair(sites: Sequence[str], order: Sequence[int], weights: np.ndarray, shared: np.ndarray) -> Markup:
    """Rows and columns are the same sites in the same order in both."""
    n, short = len(order), shorten_all([sites[i] for i in order], 22)
    left, longest = svg.names_room(short.values()), max(map(len, short.values()))
    cell = max(9.0, min(34.0, (svg.WIDE - left - GAP - 10) / (2 * n)))
    top, edge = 26.0, 3.0
    bottom, start = top + cell * n, edge + cell * n + GAP
    names = [svg.text(left - 8, top + cell * (k + 0.5) + 4, short[sites[i]], _small("name", cell), "end", sites[i])
             for k, i in enumerate(order)]  # fmt: skip
    off = ~np.eye(n, dtype=bool) & np.isfinite(weights)
    most = float(weights[off].max(initial=0)) or 1.0
    views = (
        (
            edge,
            f"weight it gave (darkest: {number(most, 2)})",
            weights,
            most,
            "{} learned from {}: {}",
            "{} kept of its own: {}",
        ),
        (start, "classes they share (darkest: all)", shared, 1.0, "{} and {} share {} of their classes", "{}: itself"),
    )
    parts, said = [], []
    for x, title, values, full, words, own in views:
        parts.append(svg.text(x, 12, title, "axis"))
        for row, user in enumerate(order):
            for column, site in enumerate(order):
                box = {"x": x + cell * column, "y": top + cell * row, "width": cell - 1, "height": cell - 1}
                value = float(values[user, site])
                told = (own if user == site else words).format(
                    *dict.fromkeys((sites[user], sites[site])), number(value, 2)
                )
                known = math.isfinite(value) and user != site
                kind = svg.shade(-min(value / full, 1)) if known else "none"
                parts.append(svg.tag("rect", svg.tip(told), **box, class_=kind))
                said += [told] if known and user < site else []
        parts += [
            svg.turned(x + cell * (k + 0.5), bottom, short[sites[i]], _small("feature", cell), sites[i])
            for k, i in enumerate(order)
        ]
    wide, high = start + cell * n + 20, bottom + svg.turned_room(6.6 * longest)
    title = f"Weights that {several(n, 'site')} gave each other, and the classes they share"
    return svg.scrolling_rows(
        svg.Drawing(left, bottom, names), svg.Drawing(wide, high, parts), title, "; ".join(said) + "."
    )


def _small(kind: str, cell: float) -> str:
    return f"{kind} tiny" if cell < 13 else kind
