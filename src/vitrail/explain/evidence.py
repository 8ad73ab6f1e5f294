"""What a site says of its rows when it is asked whether they fit (equations on top of shifts.py): at the site, all rows
stay there. A mean, a covariance and a few counts for each variable leave."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.core.task import Batch, Out, Task
from vitrail.core.tensors import Params
from vitrail.nets.mlp import MLP, replaced

Floats = NDArray[np.float64]
LABEL = "(label)"
RIDGE = 1e-3


class Variable(NamedTuple):
    """A feature (all its columns), or the label."""

    name: str
    columns: tuple[int, ...]  # empty for the label
    kind: str  # of the feature: numeric, binary, categorical; or label

    def size(self, outputs: int) -> int:
        """How many numbers a row answers with."""
        return {"numeric": 3, "binary": 2, "label": max(2, outputs)}.get(self.kind, len(self.columns))


class SiteRows(NamedTuple):
    """One site's rows, those held out too; they stay there."""

    name: str
    x: Tensor  # [row, column]
    y: Tensor  # [row, output]
    w: Tensor  # [row, 1]


class Evidence(NamedTuple):
    """What a site says of each variable."""

    rows: int
    mean: list[Floats]  # [q]
    cov: list[Floats]  # [q, q]
    carriers: list[float]  # n_eff
    varies: list[bool]  # has more than one value here


class Fit(NamedTuple):
    """A site's ends: what the others have, except for the variables it was asked to fit."""

    b: Tensor
    w: Tensor
    out_b: Tensor
    out_w: Tensor


class Answer(NamedTuple):
    """All that a site says when asked."""

    fit: Fit  # as given, but for the variables that it was asked to fit
    said: Evidence
    misfit: float  # how badly these ends explain its rows


class Here:
    """A site whose rows are at hand."""

    def __init__(self, task: Task, shared: Params, rows: SiteRows, variables: Sequence[Variable]) -> None:
        self.task, self.variables, self.name = task, variables, rows.name
        self.net = {k: v.double()[None] for k, v in shared.items()}
        self.rows = SiteRows(rows.name, rows.x.double(), rows.y.double(), rows.w.double())

    def answer(self, fit: Fit, fitted: Sequence[int]) -> Answer:
        task, net, rows = self.task, self.net, self.rows
        if fitted:
            fit = refit(task, net, fit, rows, [self.variables[c] for c in fitted])
        price = misfit(task, net, fit, rows, self.variables[fitted[-1]]) if fitted else 0.0
        return Answer(fit, evidence(task, net, fit, rows, self.variables), price)


def misfit(task: Task, net: Params, fit: Fit, rows: SiteRows, variable: Variable) -> float:
    """How badly these ends explain a site's rows: loss, and a price for each number fitted (Schwarz)."""
    numbers = 1 + (len(variable.columns) or rows.y.shape[1])  # dummies of one feature share a shift
    with torch.no_grad():
        loss = _loss(task, _output(task, net, fit, rows), rows).sum()
    return float(loss / rows.w.mean()) + 0.5 * numbers * math.log(len(rows.x))


def refit(task: Task, net: Params, start: Fit, rows: SiteRows, variables: Sequence[Variable]) -> Fit:
    """At the site: the shift and factor of these variables that its own rows ask for; all else as it was."""
    at = sorted({c for variable in variables for c in variable.columns})
    label = any(variable.kind == "label" for variable in variables)
    free = [torch.zeros(len(at), dtype=torch.double) for _ in range(2)]
    free += [torch.zeros(rows.y.shape[1], dtype=torch.double), torch.zeros(1, dtype=torch.double)] if label else []
    for t in free:
        t.requires_grad_()

    def apply() -> Fit:
        b, w = start.b.clone(), start.w.clone()
        if at:
            b[at], w[at] = start.b[at] + free[0], start.w[at] + free[1]
        if not label:
            return Fit(b, w, start.out_b, start.out_w)
        return Fit(b, w, start.out_b + free[2], start.out_w + free[3])

    optimiser = torch.optim.LBFGS(free, max_iter=60, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = _loss(task, _output(task, net, apply(), rows), rows).sum() / rows.w.sum() + RIDGE * sum(
            (t**2).sum() for t in free
        )
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimiser.step(closure)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        fit = apply()
        return fit._replace(w=torch.where(fit.w.abs() < 1e-6, 1e-6, fit.w))


def row_scores(task: Task, net: Params, fit: Fit, rows: SiteRows) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradient of each row's loss to b_in, w_in [row, column], b_out [row, output] and one w_out for all [row, 1].

    One factor for all classes: a swapped label is then a negative one, and nothing else is.
    """
    x = ((rows.x + fit.b) * fit.w).requires_grad_()
    u = task.output({**net, **_identity(task, net, x.shape[1])}, x[None])[0]
    z = (u + fit.out_b) * fit.out_w
    (dx,) = torch.autograd.grad(_loss(task, z, rows).sum(), x)
    with torch.no_grad():
        slope = _slope(task, z, rows)
        return dx * fit.w, dx * (rows.x + fit.b), slope * fit.out_w, (slope * (u + fit.out_b)).sum(1, keepdim=True)


def evidence(task: Task, net: Params, fit: Fit, rows: SiteRows, variables: Sequence[Variable]) -> Evidence:
    """At the site: mean, covariance and number of carriers of its rows' answers, for each variable."""
    b, w, out_b, out_w = (t.numpy() for t in row_scores(task, net, fit, rows))
    worth = dict(_worth(task, net, fit, rows, [v.columns[0] for v in variables if v.kind == "numeric"]))
    mean, cov, carriers, varies = [], [], [], []
    flat = (rows.x == rows.x[:1]).all(0).numpy()
    for variable in variables:
        at = list(variable.columns)
        if variable.kind == "label":
            s = np.concatenate([out_b[:, : max(1, out_b.shape[1] - 1)], out_w], 1)  # the last class follows
        elif variable.kind == "categorical":
            s = w[:, at]
        else:
            s = np.concatenate([b[:, at], w[:, at]], 1)
        if variable.kind == "numeric":
            s = np.concatenate([s, worth[at[0]]], 1)
        centred = s - s.mean(0)
        square, fourth = (centred**2).sum(0), (centred**4).sum(0)
        mean.append(s.mean(0))
        cov.append(centred.T @ centred / max(1, len(s) - 1))
        alive = square > 1e-12 * max(float(square.max()), 1e-300)
        carriers.append(float((square[alive] ** 2 / fourth[alive]).min()) if alive.any() and square.max() > 0 else 0.0)
        varies.append(not at or not flat[at].all())
    return Evidence(len(rows.x), mean, cov, carriers, varies)


def _worth(task: Task, net: Params, fit: Fit, rows: SiteRows, columns: list[int]) -> Iterator[tuple[int, Floats]]:
    """For each column [row, 1]: loss with the column taken for missing, less the loss."""
    with torch.no_grad():
        x, missing, loss = (rows.x + fit.b) * fit.w, fit.b * fit.w, _loss(task, _output(task, net, fit, rows), rows)
        for k in range(0, len(columns), 32):
            at = columns[k : k + 32]
            assert isinstance(task.net, MLP)
            z = replaced(task.net, net, x, at, missing[at])
            without = _loss(task, (z + fit.out_b) * fit.out_w, rows)  # [column, row]
            yield from zip(at, (without - loss)[:, :, None].numpy(), strict=True)


def _output(task: Task, net: Params, fit: Fit, rows: SiteRows) -> Tensor:
    """[row, output]: what a site with these ends would say."""
    z = task.output({**net, **_identity(task, net, rows.x.shape[1])}, ((rows.x + fit.b) * fit.w)[None])[0]
    return (z + fit.out_b) * fit.out_w


def _identity(task: Task, net: Params, width: int) -> Params:
    """The network's own ends switched off: they are applied here."""
    outputs = task.net.outputs
    like = next(iter(net.values()))
    ends: Params = {}
    if "input" in task.net.groups:
        ends["input.shift"], ends["input.scale"] = like.new_zeros(1, width), like.new_ones(1, width)
    if "output" in task.net.groups:
        ends["output.shift"], ends["output.scale"] = like.new_zeros(1, outputs), like.new_ones(1, outputs)
    return ends


def _loss(task: Task, z: Tensor, rows: SiteRows) -> Tensor:
    return task.loss.rows(Out(z, z), Batch(rows.x, rows.y, rows.w))


def _slope(task: Task, z: Tensor, rows: SiteRows) -> Tensor:
    return task.loss.slope(Out(z, z), Batch(rows.x, rows.y, rows.w))
