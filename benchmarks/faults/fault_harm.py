"""What a fault costs the site that has it, whatever any rule says of it.

Balanced accuracy (for numbers R^2, not below -1) of the site's own held-out rows, as they are written there, under a
model that learned from all sites' training rows: with the fault, against the same split without it; mean over SPLITS.
The model stands in for FedAvg, which is too slow for a thousand cases: logistic regression with balanced classes (one
against the rest), for numbers and for more than 50 columns ridge regression, on the rows as Vitrail encodes them,
standardised over all sites. `under_fedavg` does the same by FedAvg itself, for a sample (--stage fedavg): the report
says how well the two agree.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from fault_tables import Rows

import vitrail as vt
from vitrail.core.random import key
from vitrail.core.tensors import map_tensors
from vitrail.data.encoding import SiteData, fit_encoders
from vitrail.data.splitting import split_rows
from vitrail.metrics.scores import score

SPLITS, FEDAVG_SPLITS = 8, 3
FEW, MANY = 3, 1_000_000  # splits of tables with so many values
HARM = 0.03  # of balanced accuracy
HARM_NUMBER = 0.05  # of R^2
WIDE = 50  # columns


def is_harmful(harm: float, table: Any) -> bool:
    return harm >= (HARM_NUMBER if table.target.kind == "number" else HARM)


def encoded(rows: Rows, table: Any, seed: int) -> list[SiteData]:
    """What `data.encode.prepare` does with cleaned tables."""
    target = table.target
    splits = {n: split_rows(f[target.column].to_numpy(), table, seed, n) for n, f in rows.items()}
    encoders = fit_encoders({n: f.iloc[splits[n][0]] for n, f in rows.items()}, table)
    out = []
    for name, frame in rows.items():
        x, y, (a, b) = encoders[name].matrix(frame), frame[target.column].to_numpy(), splits[name]
        y = (y - target.center) / target.scale if target.kind == "number" else y
        out.append(SiteData(name, encoders[name], x[a], y[a], x[b], y[b], ""))
    return out


def balanced(y: Any, told: Any) -> float:
    return float(np.mean([(told[y == k] == k).mean() for k in np.unique(y)]))


def fit_logistic(x: Any, y: Any, weight: Any) -> Any:
    """Coefficients of x [row, column] for y in {0, 1}, by Newton's steps; a ridge of 1 on all but the first column."""
    b, ridge = np.zeros(x.shape[1]), np.r_[1e-6, np.ones(x.shape[1] - 1)]

    def loss(b: Any) -> float:
        z = x @ b
        return float((weight * (np.logaddexp(0, z) - y * z)).sum() + (ridge * b * b).sum() / 2)

    now = loss(b)
    for _ in range(15):
        p = 1 / (1 + np.exp(-np.clip(x @ b, -30, 30)))
        gradient = x.T @ (weight * (p - y)) + ridge * b
        step = np.linalg.solve((x.T * (weight * p * (1 - p))) @ x + np.diag(ridge), gradient)
        for halving in range(6):
            if (then := loss(b - step * 0.5**halving)) < now:
                break
        else:
            break
        b, gain, now = b - step * 0.5**halving, now - then, then
        if gain < 1e-4 * (1 + abs(now)):
            break
    return b


def predict(x: Any, y: Any, new: Any, table: Any) -> Any:
    """Classes or numbers for new rows, by a model fitted to x [row, column] and y [row]."""
    x, new = (np.column_stack([np.ones(len(v)), v]) for v in (x, new))
    classes = np.unique(y)
    weight = np.ones(len(y))
    if table.target.kind == "classes":
        counts = {k: (y == k).sum() for k in classes}
        weight = np.array([len(y) / len(classes) / counts[k] for k in y])
    if table.target.kind == "classes" and x.shape[1] <= WIDE:
        z = [new @ fit_logistic(x, (y == k) * 1.0, weight) for k in classes[-1:] if len(classes) == 2] or [
            new @ fit_logistic(x, (y == k) * 1.0, weight) for k in classes
        ]
        return classes[(z[0] > 0).astype(int)] if len(classes) == 2 else classes[np.argmax(z, 0)]
    wanted = y[:, None] if table.target.kind == "number" else 2.0 * (y[:, None] == classes) - 1  # [row, class]
    ridge = np.diag(np.r_[1e-6, np.full(x.shape[1] - 1, 1.0 if table.target.kind == "number" else 10.0)])
    z = new @ np.linalg.solve((x.T * weight) @ x + ridge, (x.T * weight) @ wanted)
    return z[:, 0] if table.target.kind == "number" else classes[np.argmax(z, 1)]


def score_site(rows: Rows, table: Any, site: str, splits: list[int]) -> list[float]:
    """Of the site's held-out rows, for each split."""
    target = table.target
    encoders = fit_encoders(rows, table)
    x = {n: encoders[n].matrix(f) for n, f in rows.items()}
    y = {n: f[target.column].to_numpy() for n, f in rows.items()}
    y = {n: (v - target.center) / target.scale if target.kind == "number" else v for n, v in y.items()}
    out = []
    for split in splits:
        parts = {n: split_rows(v, table, split, n) for n, v in y.items()}
        own, test = y[site][parts[site][1]], x[site][parts[site][1]]
        train = [np.concatenate([v[n][parts[n][0]] for n in rows]) for v in (x, y)]
        told = predict(*train, test, table)
        if target.kind == "number":
            out.append(float(max(-1.0, 1 - ((own - told) ** 2).mean() / max(1e-12, own.var()))))
        else:
            out.append(balanced(own, told))
    return out


def measure_harm(
    before: Rows, after: Rows, table: Any, site: str, seed: int, memory: dict[str, Any]
) -> tuple[float, float]:
    """Mean and standard error of the loss. `memory`: scores without the fault, by site."""
    many = sum(f.size for f in before.values()) < MANY
    splits = [key(seed, "harm", k) >> 32 for k in range(SPLITS if many else FEW)]
    if site not in memory:
        memory[site] = score_site(before, table, site, splits)
    costs = np.subtract(memory[site], score_site(after, table, site, splits))
    return float(np.mean(costs)), float(np.std(costs, ddof=1) / len(costs) ** 0.5)


def under_fedavg(rows: Rows, table: Any, site: str, split: int) -> float:
    """Balanced accuracy of the site's held-out rows after FedAvg (classes only)."""
    import torch

    from vitrail.engine.local import Engine
    from vitrail.runs.setup import build_task, training_of, training_rows

    data, method = encoded(rows, table, split), vt.methods.FedAvg()
    task = build_task(table, method, split)
    engine = Engine(task, method, training_rows(data, table, method, "cpu"), training_of(table), split)
    *_, moment = engine.run()
    at, own = engine.sites.names.index(site), next(d for d in data if d.name == site)
    state = map_tensors(lambda t: t[at : at + 1], engine.settled(moment))
    with torch.no_grad():
        z = method.predict(task, state, torch.from_numpy(own.test_x).float()[None])[0]
    return score(["balanced_accuracy"], own.test_y, z.softmax(1).numpy())["balanced_accuracy"]


def harm_by_fedavg(before: Rows, after: Rows, table: Any, site: str, seed: int) -> tuple[float, float]:
    """Mean and standard error of the loss, over other splits than the stand-in's."""
    splits = [key(seed, "fedavg", k) >> 32 for k in range(FEDAVG_SPLITS)]
    costs = [under_fedavg(before, table, site, s) - under_fedavg(after, table, site, s) for s in splits]
    return float(np.mean(costs)), float(np.std(costs, ddof=1) / len(costs) ** 0.5)


def tie(rows: Rows, table: Any) -> dict[str, float]:
    """How much each column tells of the outcome, over all sites: the largest correlation with a class or a number."""
    whole = pd.concat(rows.values(), ignore_index=True)
    y = whole[table.target.column].to_numpy(float)
    ys = [y] if table.target.kind == "number" else [(y == k) * 1.0 for k in np.unique(y)]
    out = {}
    for name, feature in table.features.items():
        v = whole[name].to_numpy(float)
        xs = (
            [v]
            if feature.kind != "categorical"
            else [np.where(np.isnan(v), np.nan, v == k) for k in np.unique(v[~np.isnan(v)])]
        )
        out[name] = max((abs(pd.Series(x).corr(pd.Series(t))) for x in xs for t in ys if np.nanstd(x) > 0), default=0.0)
    return {k: 0.0 if v != v else float(v) for k, v in out.items()}
