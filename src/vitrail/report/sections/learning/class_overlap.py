"""Who listened to whom, beside how many classes they share: two matrices in one order, and whether they go together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from markupsafe import Markup

from vitrail.analysis.trust import Trust, groups, read_trust
from vitrail.analysis.uncertainty import Correlation, rank_agreement, shared_classes
from vitrail.core import facts as means
from vitrail.core.text import number, p_words, several
from vitrail.report.charts import svg
from vitrail.report.charts.grid import Grid, GridCell, grid
from vitrail.report.sections.section import Contents, Section, run_of
from vitrail.runs.result import CLASS_SHARES, Run

if TYPE_CHECKING:
    from vitrail.report.pages.run import Page

LEVEL = 0.05  # of chance, below which two things are said to go together


def class_shares(run: Run) -> np.ndarray | None:
    """[site, class]; nothing where a run of earlier days does not have them, or no class is predicted."""
    shares = run.info.get(CLASS_SHARES, {})
    return np.array([shares[site] for site in run.sites]) if run.sites and all(s in shares for s in run.sites) else None


def differing(run: Run | None) -> tuple[Trust, np.ndarray] | None:
    """Whom sites learned from and which classes they share, where both are known and not all hold the same."""
    trust = read_trust(run.sites, run.facts) if run is not None else None
    shares = class_shares(run) if run is not None else None
    if trust is None or not trust.shares or shares is None or len(trust.sites) < 3:
        return None
    shared = shared_classes(shares)
    return (trust, shared) if shared.min() < 1 else None


def contents(page: Page) -> Contents:
    run = run_of(page)
    both = differing(run)
    assert both is not None, "the section needs weights and shares"
    trust, shared = both
    order, _ = groups(shared)
    weights = ("Sites gave more weight to those with whom they share classes", "Weights and shared classes")
    lines = [_says(*weights, *rank_agreement(trust.mean, shared))]
    if (alike := run.fact(means.SIMILARITY)) is not None:
        likeness = ("Models of sites that share classes are more alike", "Likeness of models and shared classes")
        lines.append(_says(*likeness, *rank_agreement(alike.double().nanmean(0).numpy(), shared)))
    return {"said": [line for line in lines if line], "drawing": _pair(trust.sites, order, trust.mean, shared)}


def _says(clearly: str, things: str, correlation: Correlation, chance: float) -> str:
    if not math.isfinite(correlation.value):
        return ""
    head = clearly if chance < LEVEL else f"{things} do not clearly go together"
    by_chance = f"{p_words(chance)}, by shuffling the sites".replace(" ", "\xa0", 2)
    pairs = several(correlation.pairs, "pair")
    return f"{head}: rank correlation {number(correlation.value, 2)} over {pairs} of sites ({by_chance})."


def _pair(sites: Sequence[str], order: Sequence[int], weights: np.ndarray, shared: np.ndarray) -> Markup:
    """Rows and columns are the same sites in the same order in both."""
    off = ~np.eye(len(order), dtype=bool) & np.isfinite(weights)
    most = float(weights[off].max(initial=0)) or 1.0

    def cell(values: np.ndarray, full: float, words: str, own: str, user: int, site: int) -> GridCell:
        value = float(values[user, site])
        kind = svg.shade(-min(value / full, 1)) if math.isfinite(value) and user != site else "none"
        both = dict.fromkeys((sites[user], sites[site]))
        return GridCell((own if user == site else words).format(*both, number(value, 2)), kind)

    names = [sites[i] for i in order]
    gave = partial(cell, weights, most, "{} learned from {}: {}", "{} kept of its own: {}")
    share = partial(cell, shared, 1.0, "{} and {} share {} of their classes", "{}: itself")
    heads = f"weight it gave (darkest: {number(most, 2)})", "classes they share (darkest: all)"
    pair = [
        Grid(names, names, [[of(user, site) for site in order] for user in order], (9.0, 34.0), room=10.0, head=head)
        for of, head in zip((gave, share), heads, strict=True)
    ]
    cells = (c for one in pair for i, row in enumerate(one.cells) for c in row[i + 1 :] if c.kind != "none")
    title = f"Weights that {several(len(order), 'site')} gave each other, and the classes they share"
    return grid(pair, title, "; ".join(c.words for c in cells) + ".")


SECTION = Section(contents, lambda page: differing(page.run) is not None, (means.SHARE, means.SIMILARITY), heat=True)
