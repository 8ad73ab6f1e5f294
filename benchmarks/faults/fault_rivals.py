"""Simple rivals of the screening, on the same cases: each gives a score to every cell (site x feature or outcome).

`summaries`: each site's mean, log spread and missing share of every column and its correlations with the outcome,
against the other sites' pooled, in standard errors. `margins`: exact tests of counts at the pooled 5, 25, 50, 75, 95 %
cuts, of levels and of missing values; nothing about how columns go together. `released` and `paper`: what the release
before this rule did after training iFedAvg (the row-gradient rule, and the iFedAvg paper's marks of 2 SD); the first
was deleted with it and runs only at commit 837ced9. A cell is flagged above a bar that is set alike for all rivals:
so that one in twenty clean federations of the design tables has a flag (benchmarks/faults/planted_faults_report.py). The
first two go on from there: a flagged cell is left out, and the rest compared anew (`step_down`).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from fault_tables import LABEL, Rows
from scipy.special import ndtri
from scipy.stats import chi2, hypergeom

Scores = pd.DataFrame  # site x cell: large where the cell does not fit
Out = Collection[tuple[str, str]]  # cells that are left out
STEPS = 4


class Variables(NamedTuple):
    """Numbers, and yes or no for levels; the outcome's are the last."""

    cells: list[str]  # of each variable
    values: dict[str, np.ndarray]  # site -> [row, variable]
    share: np.ndarray  # [variable]: yes or no
    total: np.ndarray  # [site, variable]: rows, with a value or without

    def without(self, out: Out) -> Variables:
        values, total = {s: v.copy() for s, v in self.values.items()}, self.total.copy()
        for i, site in enumerate(values):
            gone = [j for j, c in enumerate(self.cells) if (site, c) in out or (site, LABEL) in out]
            values[site][:, gone], total[i, gone] = np.nan, 0
        return self._replace(values=values, total=total)


def variables(rows: Rows, table: Any) -> Variables:
    names = [*table.features, table.target.column]
    kinds = [f.kind for f in table.features.values()] + [table.target.kind]
    levels = [f.levels for f in table.features.values()] + [table.target.levels]
    takes: list[tuple[int, float]] = []  # column, level or NaN
    for at, (kind, found) in enumerate(zip(kinds, levels, strict=True)):
        several = kind == "categorical" or (kind == "classes" and len(found) > 2)
        takes += [(at, k) for k in (range(len(found)) if several else [1.0 if kind == "classes" else np.nan])]
    column, level = np.array([t[0] for t in takes]), np.array([t[1] for t in takes])
    values = {}
    for site, frame in rows.items():
        v = frame[names].to_numpy(float)[:, column]
        values[site] = np.where(np.isnan(v) | np.isnan(level), v, v == level)
    cells = [LABEL if c == len(names) - 1 else names[c] for c in column]
    share = np.array([kinds[c] not in ("numeric", "number") for c in column])
    return Variables(cells, values, share, np.array([[len(f)] * len(cells) for f in rows.values()], float))


def step_down(score: Callable[[Variables], Scores], rows: Rows, table: Any, steps: int) -> list[list[Any]]:
    """The strongest cell; without it the strongest of the rest; and so on."""
    out: list[list[Any]] = []
    made = variables(rows, table)
    for _ in range(steps):
        flat = score(made.without([(s, c) for s, c, _ in out])).stack()
        site, cell = flat.idxmax()
        out.append([site, cell, round(float(flat.max()), 3)])
    return out


def spread(values: np.ndarray, cells: list[str], sites: list[str]) -> Scores:
    """[site, variable] -> the largest of each cell."""
    return pd.DataFrame(np.nan_to_num(values), sites, cells).T.groupby(level=0).max().T


def summaries(made: Variables) -> Scores:
    cells, values, share, total = made
    sites, y = list(values), [i for i, c in enumerate(cells) if c == LABEL]
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        n = np.array([(~np.isnan(values[s])).sum(0) for s in sites], float)  # [site, variable]
        mean = np.array([np.nanmean(values[s], 0) for s in sites])
        sd = np.array([np.nanstd(values[s], 0) for s in sites])
        heavy = np.array([np.nanmean((values[s] - m) ** 4, 0) / d**4 for s, m, d in zip(sites, mean, sd, strict=True)])
        missing, z_mean, z_sd, z_missing = 1 - n / total, *(np.zeros_like(mean) for _ in range(3))
        ties = np.stack([correlations(values[s], y) for s in sites])  # [site, outcome, variable], Fisher's z
        z_tie = np.zeros_like(ties)
        for i in range(len(sites)):
            o = np.arange(len(sites)) != i
            N, w = n[o].sum(0), n[o] / n[o].sum(0)
            m, v = np.nansum(w * mean[o], 0), np.nansum(w * sd[o] ** 2, 0)
            p = (np.nansum(n * mean, 0) / n.sum(0)).clip(0, 1)  # of shares: over all, as in the test of two shares
            v = np.where(share, p * (1 - p), v)
            z_mean[i] = np.abs(mean[i] - m) / np.sqrt(v * (1 / n[i] + 1 / N))
            k = np.nansum(w * heavy[o], 0)
            apart = np.abs(np.log(sd[i] + 1e-9 * np.sqrt(v)) - np.log(v) / 2)
            z_sd[i] = np.where(share, 0, apart / np.sqrt((k - 1) / 4 * (1 / n[i] + 1 / N)))
            p = (n.sum(0) / total.sum(0)).clip(1e-9, 1)
            rest = ((1 - missing[o]) * total[o]).sum(0) / total[o].sum(0)
            z_missing[i] = np.abs((1 - missing[i]) - rest) / np.sqrt(p * (1 - p) * (1 / total[i] + 1 / total[o].sum(0)))
            z_tie[i] = np.abs(ties[i] - np.nansum(w[:, None] * ties[o], 0)) / np.sqrt(1 / (n[i] - 3) + 1 / (N - 3))
        z_missing = np.where(n.sum(0) < total.sum(0), z_missing, 0)
    x = [i for i, c in enumerate(cells) if c != LABEL]
    z_tie = np.nan_to_num(np.minimum(z_tie, 40))[:, :, x]
    own = np.nan_to_num(np.fmax.reduce([z_mean, np.minimum(z_sd, 40), z_missing]), posinf=1e6)
    own[:, x] = np.maximum(own[:, x], z_tie.max(1))
    # every tie with the outcome odd at once: the outcome. As a z, so that it can be set beside the others; columns that
    # go together count as fewer
    few = effective(np.concatenate(list(values.values()))[:, x])
    whole = chi2.logsf((z_tie**2).mean(2).max(1) * few, few)  # [site]
    own[:, y] = np.maximum(own[:, y], as_z(whole)[:, None])
    return spread(own, cells, sites)


def effective(v: np.ndarray) -> float:
    """How many independent columns [row, column] are worth."""
    z = np.nan_to_num((v - np.nanmean(v, 0)) / (np.nanstd(v, 0) + 1e-9))
    r = z.T @ z / len(z)
    return float(np.trace(r) ** 2 / max(1e-9, (r**2).sum()))


def correlations(v: np.ndarray, y: list[int]) -> np.ndarray:
    """[outcome, variable] Fisher's z of correlations in one site; missing pairs left out."""
    out = np.full((len(y), v.shape[1]), np.nan)
    for a, k in enumerate(y):
        ok = ~np.isnan(v)
        t = np.where(ok, v[:, [k]], np.nan)
        u, w = v - np.nanmean(v, 0), t - np.nanmean(t, 0)
        r = np.nanmean(u * w, 0) / (np.nanstd(v, 0) * np.nanstd(t, 0))
        out[a] = np.arctanh(r.clip(-0.98, 0.98))
    return out


def as_z(log_p: np.ndarray) -> np.ndarray:
    """log of a two-sided p -> z, also where p is too small to write."""
    return np.where(log_p > -600, -ndtri(np.exp(np.maximum(log_p, -700)) / 2), np.sqrt(-2 * np.minimum(log_p, -1)))


def exact_z(a: np.ndarray, n: np.ndarray, b: np.ndarray, m: np.ndarray) -> np.ndarray:
    """|z| of Fisher's exact test: a of n against b of m."""
    up, low = hypergeom.sf(a - 1, n + m, a + b, n), hypergeom.cdf(a, n + m, a + b, n)
    p = np.minimum(1, 2 * np.minimum(up, low))
    p = np.where((n < 1) | (m < 1) | np.isnan(p), 1, p)
    return -ndtri(np.maximum(p, 1e-300) / 2)


def margins(made: Variables) -> Scores:
    cells, values, share, total = made
    sites = list(values)
    hits, trials, owner = [], [], []
    for j, cell in enumerate(cells):
        columns = [values[s][:, j] for s in sites]
        known = np.array([(~np.isnan(c)).sum() for c in columns])
        pool = np.concatenate([c[~np.isnan(c)] for c in columns])
        if not len(pool):
            continue
        if len(pool) < total[:, j].sum():
            hits.append(total[:, j] - known), trials.append(total[:, j]), owner.append(cell)
        cuts = np.unique(np.quantile(pool, (0.05, 0.25, 0.5, 0.75, 0.95), method="inverted_cdf"))
        for cut in [1.0] if share[j] else cuts:
            if cut > pool.min():
                hits.append([(c < cut).sum() for c in columns]), trials.append(known), owner.append(cell)
    a, n = np.array(hits, float).T, np.array(trials, float).T  # [site, test]
    z = exact_z(a, n, a.sum(0) - a, n.sum(0) - n)
    z = np.minimum(z, 37.0) + 1e-3 * np.abs(a / np.maximum(n, 1) - (a.sum(0) - a) / np.maximum(n.sum(0) - n, 1))
    return spread(z, owner, sites)


def trained_rules(rows: Rows, table: Any, seed: int) -> dict[str, Scores]:
    """`released` and `paper`, from one run of iFedAvg. Needs the release of commit 837ced9."""
    from fault_harm import encoded

    import vitrail as vt
    from vitrail.engine.local import Engine
    from vitrail.runs.private_layers import at_hand, find_shifts
    from vitrail.runs.setup import all_rows, build_task, training_of, training_rows

    data, method = encoded(rows, table, seed), vt.methods.IFedAvg(output="each")
    task = build_task(table, method, seed)
    engine = Engine(task, method, training_rows(data, table, method, "cpu"), training_of(table), seed)
    *_, moment = engine.run()
    found = find_shifts(engine, table, moment, at_hand(engine.task, all_rows(data, table)), {})[0]
    owner = {c: f for f, x in table.features.items() for c in ([f"{f}={v}" for v in x.levels] or [f])}
    owner |= {f: f for f in table.features}
    outcome = found.layer.str.endswith("out")
    found["cell"] = [LABEL if out else owner[c] for c, out in zip(found.feature, outcome, strict=True)]
    by = found.groupby(["feature", "layer"]).value
    found["paper"] = (found.value - by.transform("mean")).abs() / (by.transform("std", ddof=0) + 1e-9)
    found["released"] = -np.log10(found.p_value.clip(lower=1e-300))
    return {k: found.pivot_table(index="site", columns="cell", values=k, aggfunc="max") for k in ("released", "paper")}


RIVALS = {"summaries": summaries, "margins": margins}
