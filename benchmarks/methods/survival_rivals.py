"""What a statistician would fit to times to an event, with all rows in one place. For benchmarks/methods/time_to_event.py."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitrail.metrics import survival
from vitrail.studies.folds import FoldedRows

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
RIDGES = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)  # penalties on the sum of the losses that are tried
INNER = 5  # folds inside the training rows
COX, COX_OWN = "Cox, stratified", "Cox, stratified, own curve"


def cox_parts(x: Floats, t: Floats, d: Bools, beta: Floats) -> tuple[float, Floats, Floats]:
    """Of one stratum: the logarithm of Breslow's partial likelihood, its slope, and minus its curvature."""
    order = np.argsort(-t, kind="stable")
    x, t, d = x[order], t[order], d[order]
    last = np.searchsorted(-t, -t, "right") - 1  # those with a time at least as long
    score = np.clip(x @ beta, -30, 30)
    r = np.exp(score)
    s0, s1 = r.cumsum()[last], (r[:, None] * x).cumsum(0)[last]
    s2 = (r[:, None, None] * x[:, :, None] * x[:, None, :]).cumsum(0)[last]
    mean = s1 / s0[:, None]
    bend = (s2 / s0[:, None, None] - mean[:, :, None] * mean[:, None, :])[d].sum(0)
    return float((score - np.log(s0))[d].sum()), (x - mean)[d].sum(0), bend


def strata_sum(x: Floats, t: Floats, d: Bools, site: NDArray[Any], beta: Floats) -> tuple[float, Floats, Floats]:
    parts = [cox_parts(x[site == s], t[site == s], d[site == s], beta) for s in np.unique(site)]
    return sum(p[0] for p in parts), sum(p[1] for p in parts), sum(p[2] for p in parts)  # type: ignore[return-value]


def fit_cox(x: Floats, t: Floats, d: Bools, site: NDArray[Any] | None = None, ridge: float = 0.0) -> Floats:
    """Newton's method for the partial likelihood less ridge/2 |beta|^2; one stratum for each site."""
    beta, site = np.zeros(x.shape[1]), np.zeros(len(x)) if site is None else site
    for _ in range(50):
        _, slope, bend = strata_sum(x, t, d, site, beta)
        step = np.linalg.solve(bend + ridge * np.eye(len(beta)), slope - ridge * beta).clip(-2, 2)
        beta = beta + step
        if np.abs(step).max() < 1e-8:
            break
    return beta


def tuned_cox(x: Floats, t: Floats, d: Bools, site: NDArray[Any]) -> Floats:
    """The ridge penalty with the best cross-validated partial likelihood (Verweij and van Houwelingen)."""
    fold, found = np.random.default_rng(3).permutation(np.arange(len(t)) % INNER), []
    for ridge in RIDGES:
        total = 0.0
        for k in range(INNER):
            m = fold != k
            beta = fit_cox(x[m], t[m], d[m], site[m], ridge)
            total += strata_sum(x, t, d, site, beta)[0] - strata_sum(x[m], t[m], d[m], site[m], beta)[0]
        found.append(total)
    return fit_cox(x, t, d, site, RIDGES[int(np.argmax(found))])


def base_hazard(x: Floats, t: Floats, d: Bools, beta: Floats, intervals: int) -> Floats:
    """[interval]: Breslow's, added up to the end of each."""
    r = np.exp(np.clip(x @ beta, -30, 30))
    return np.array([sum(1 / r[t >= at].sum() for at in t[d & (t <= k + 1)]) for k in range(intervals)])


def fit_logistic(x: Floats, y: Floats, ridge: Floats) -> Floats:
    beta = np.zeros(x.shape[1])
    for _ in range(50):
        h = 1 / (1 + np.exp(-np.clip(x @ beta, -30, 30)))
        step = np.linalg.solve((x.T * (h * (1 - h))) @ x + np.diag(ridge), x.T @ (h - y) + ridge * beta).clip(-2, 2)
        beta = beta - step
        if np.abs(step).max() < 1e-8:
            break
    return beta


def tuned_discrete(x: Floats, y: Floats, intervals: int) -> tuple[Floats, Floats]:
    """[interval] constants and [column] coefficients of the logit of the hazard."""
    shown = survival.periods(y, intervals)
    row, k = np.nonzero(shown >= 0)
    long, happened = np.c_[np.ones(len(row)), np.eye(intervals)[k], x[row]], shown[row, k]
    fold, found = np.random.default_rng(3).permutation(np.arange(len(y)) % INNER)[row], []

    def penalty(ridge: float) -> Floats:
        return np.r_[1e-3, np.full(intervals, 0.3), np.full(x.shape[1], ridge)]

    for ridge in RIDGES:
        total = 0.0
        for f in range(INNER):
            m = fold != f
            z = long[~m] @ fit_logistic(long[m], happened[m], penalty(ridge))
            total += float((np.logaddexp(0, z) - z * happened[~m]).sum())
        found.append(total)
    beta = fit_logistic(long, happened, penalty(RIDGES[int(np.argmin(found))]))
    return beta[0] + beta[1 : intervals + 1], beta[intervals + 1 :]


def by_rivals(cut: FoldedRows, intervals: int) -> dict[str, list[Floats]]:
    names = ("life table", "Cox, alone", COX, COX_OWN, "discrete time, pooled")
    out = {n: [np.zeros((len(f), intervals)) for f in cut.cleaned.values()] for n in names}
    for k in range(cut.folds):
        data = cut.fold(k)
        x, y = np.concatenate([np.float64(s.train_x) for s in data]), np.concatenate([s.train_y for s in data])
        site = np.concatenate([np.full(len(s.train_y), i) for i, s in enumerate(data)])
        beta = tuned_cox(x, np.abs(y), y > 0, site)
        constants, effects = tuned_discrete(x, y, intervals)
        table, base = survival.life_table(y, intervals), base_hazard(x, np.abs(y), y > 0, beta, intervals)
        for i, (s, lots) in enumerate(zip(data, cut.lots.values(), strict=True)):
            mine, new, here, seen = lots == k, np.float64(s.test_x), np.float64(s.train_x), np.float64(s.train_y)
            factor = np.exp(np.clip(new @ beta, -30, 30))[:, None]
            alone = tuned_cox(here, np.abs(seen), seen > 0, np.zeros(len(seen)))
            bases = [base_hazard(here, np.abs(seen), seen > 0, b, intervals) for b in (beta, alone)]
            out["life table"][i][mine] = table
            out[COX][i][mine], out[COX_OWN][i][mine] = np.exp(-factor * base), np.exp(-factor * bases[0])
            out["Cox, alone"][i][mine] = np.exp(-np.exp(np.clip(new @ alone, -30, 30))[:, None] * bases[1])
            z = constants + (new @ effects)[:, None]
            out["discrete time, pooled"][i][mine] = np.exp(-np.logaddexp(0, z).cumsum(1))
    return out
