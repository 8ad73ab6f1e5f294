"""From tests to accused cells: the site that is farthest off first, and there the cell that explains most."""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy.special import ndtri

from vitrail.screen.cause import Told, differs, explain
from vitrail.screen.found import Finding
from vitrail.screen.layout import Numbers
from vitrail.screen.published import OUTCOME, PREDICTED, Published
from vitrail.screen.shape import middle_of_sites
from vitrail.screen.weigh import Weighed

FURTHER = 1e-3  # a further cell at the same site must be so much less likely
MOST = 4  # cells at one site
FREE = 4.0  # of a squared deviate: what any test shows by chance


def judge(published: Published, alpha: float) -> tuple[list[Finding], pd.DataFrame]:
    weighed = Weighed(published, alpha)
    wrong: list[Finding] = []
    done: set[int] = set()
    while len(done) < len(published.sites):
        over = weighed.beyond / weighed.bar
        over[list(done)] = 0.0
        site = int(over.max(1).argmax())
        if over[site].max() <= 1:
            break
        done.add(site)
        wrong += accuse(weighed, site)
    maybe = differing(weighed, {(f.site, f.feature) for f in wrong})
    wrong.sort(key=lambda f: -f.strength)
    findings = [f for f in wrong if f.wrong] + [f for f in wrong if not f.wrong] + maybe
    return findings, all_cells(weighed, findings)


def accuse(weighed: Weighed, site: int) -> list[Finding]:
    p = weighed.published
    columns: list[int] = []
    out: list[Finding] = []
    while len(columns) < MOST:
        live = ~np.isin(weighed.first, columns) & ~np.isin(weighed.second, columns)
        over = np.where(live, weighed.beyond[site] / weighed.bar, 0.0)
        best = int(over.argmax())
        if over[best] <= 1:
            break
        if columns and weighed.beyond[site, best] <= -ndtri(weighed.level[best] * FURTHER / 2):
            break
        gains = blame(weighed, site, live)
        loud = live & (over > 1)
        suspects = set(weighed.first[loud]) | set(weighed.second[loud]) - {-1}
        gains = {c: g for c, g in gains.items() if c in suspects}
        if not gains:
            break
        column = max(gains, key=lambda c: gains[c])
        told = explain(weighed, site, column)
        out.append(_finding(weighed, site, column, told, float(over[best])))
        columns.append(column)
        if column == weighed.outcome:
            break
        weighed.predict_without(site, columns)
    for column in columns:
        weighed.accuse(site, column)
    return out


def blame(weighed: Weighed, site: int, live: Numbers) -> dict[int, float]:
    """How much each cell explains of what is off at a site: its counts once, and each of its ties."""
    reach = np.where(weighed.marginal, weighed.beyond[site], np.maximum(weighed.beyond[site], weighed.reach[site]))
    reach = np.where(live & (weighed.z[site] > 0), np.minimum(reach, 60.0), 0.0)
    gain = np.maximum(0.0, reach**2 - FREE)
    best: dict[tuple[int, object], float] = {}
    for i in np.flatnonzero(gain > 0):
        for column in {int(weighed.first[i]), int(weighed.second[i])} - {-1}:
            family = str(weighed.family[i])
            if column == weighed.outcome and family == OUTCOME:
                continue  # the outcome is judged by how well it is predicted, and by its own counts
            pair = (int(weighed.first[i]), int(weighed.second[i]))
            key = (column, "counts" if weighed.marginal[i] else family if family == PREDICTED else pair)
            best[key] = max(best.get(key, 0.0), float(gain[i]))
    out: dict[int, float] = {}
    for (column, _), g in best.items():
        out[column] = out.get(column, 0.0) + g
    return out


def _finding(weighed: Weighed, site: int, column: int, told: Told, strength: float) -> Finding:
    p = weighed.published
    return Finding(
        p.sites[site], p.layout.columns[column], told.kind, told.wrong, round(strength, 3), told.text, told.numbers
    )


def differing(weighed: Weighed, said: set[tuple[str, str]]) -> list[Finding]:
    """Cells beyond chance, but not beyond how sites differ anyway."""
    p = weighed.published
    over = weighed.z / weighed.bar
    out = []
    usual = middle_of_sites(p)
    for site in range(len(p.sites)):
        best: dict[int, float] = {}
        for i in np.flatnonzero(over[site] > 1):
            columns = {int(weighed.first[i]), int(weighed.second[i])} - {-1}
            if any((p.sites[site], p.layout.columns[c]) in said for c in columns):
                continue
            for c in columns - {weighed.outcome} or columns:
                best[c] = max(best.get(c, 0.0), float(over[site, i]))
        for c, strength in best.items():
            told = differs(weighed, site, c, usual)
            out.append(_finding(weighed, site, c, told, strength))
    return sorted(out, key=lambda f: -f.strength)


def all_cells(weighed: Weighed, findings: list[Finding]) -> pd.DataFrame:
    p = weighed.published
    over = weighed.beyond / weighed.bar
    strength = np.zeros((len(p.sites), len(p.layout.columns)))
    for columns in (weighed.first, weighed.second):
        here = columns >= 0
        for s in range(len(p.sites)):
            np.maximum.at(strength[s], columns[here], over[s, here])
    found = {(f.site, f.feature): f for f in findings}
    rows = []
    for s, site in enumerate(p.sites):
        for c, name in enumerate(p.layout.columns):
            f = found.get((site, name))
            rows.append(
                (
                    site,
                    name,
                    f.strength if f else round(float(strength[s, c]), 3),
                    bool(f and f.wrong),
                    f.kind if f else "",
                )
            )
    return pd.DataFrame(rows, columns=["site", "feature", "strength", "wrong", "kind"])
