"""Rebuilding patients from reports: what a coordinator that keeps to the rules works out, and one that crafts models.

`honest`: heart disease, an MLP 128-64 with dropout, one round of FedAvg on one batch of 16 patients. The coordinator
knows what it sent, the study, how many rows and how many of each class. `draws`: whether it can redraw the batches and
dropout of the site (from the study's seed, as a simulation does), or not (a secret of the site). It looks for rows and
labels that would give this report (Levenberg and Marquardt, 40 steps from one start).

`crafting`: the whole of a hospital; in each of 40 rounds the coordinator sends a first layer whose units saturate but
for a thin slice of patients along one direction, and divides the change of a unit's weights by that of its offset: a
slice that holds one patient is that patient.

A row counts as rebuilt where every number that dropout let through is within 0.1 standard deviations, label included;
cells within 0.1, against the best constant of each column: what somebody who knows the table's shape would guess.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.func import jvp, vmap

import vitrail as vt
from vitrail import methods
from vitrail.core.task import Task
from vitrail.core.tensors import tensors
from vitrail.data.encode import class_weights, prepare
from vitrail.engines.local import Engine
from vitrail.engines.sites import gather_sites
from vitrail.protect import Guards
from vitrail.protect.budget import Budget, noise_for
from vitrail.protect.rows import PrivateTask
from vitrail.runs.setup import build_task, training_of

SITE, NEAR = "cleveland", 0.1
STEPS = 40  # of one try: counted, and not timed, so that a busy machine is no defence


class Known(NamedTuple):
    """What the attacker reckons with: one site's batches and dropout, as it believes them to be."""

    plan: list[tuple[Tensor, Tensor, tuple[Tensor, ...]]]  # rows, which are real, what dropout keeps
    weights: Tensor  # [class]
    rows: int


class Case(NamedTuple):
    task: Task
    study: Any
    sites: list[tuple[Tensor, Tensor]]  # rows and labels
    names: list[str]
    change: dict[str, Tensor]  # what the coordinator reads
    known: list[Known]
    keeps: list[Tensor]  # [row, column]: what dropout let through, in truth


def study_of(dropout: float) -> tuple[Any, Any]:
    frames = vt.datasets.heart_disease()
    study = vt.Study.infer(frames, "disease", name="heart")
    return study.with_changes(network={"dropout": dropout}), frames


def case_of(guard: str, draws: str, draw: int, batch: int = 16) -> Case:
    """One report of one site, or of three together, each with one batch."""
    study, frames = study_of(0.2)
    method, seed, names = methods.build("fedavg"), 100 + draw, [SITE]
    if guard == "total of three":
        names = [SITE, "hungarian", "va"]
    data, rng, rows, sites = {d.name: d for d in prepare(frames, study, seed)}, np.random.default_rng(draw), [], []
    for name in names:
        d = data[name]
        at = rng.permutation(len(d.train_y))[:batch]
        y = d.train_y[at].astype(np.int64)
        if len(set(y)) < 2:
            at[0] = next(i for i in range(len(d.train_y)) if d.train_y[i] != y[0])
            y = d.train_y[at].astype(np.int64)
        x, label = torch.from_numpy(d.train_x[at]).float(), torch.from_numpy(y)
        weight = torch.from_numpy(class_weights(y, 2)[y]).float()[:, None]
        rows.append((name, x, torch.nn.functional.one_hot(label, 2).float(), weight))
        sites.append((x.double(), label))
    task, given = build_task(study, method, seed), {}
    trained: Task = task
    if guard.startswith("rows"):
        epsilon = float(guard.split()[-1])
        noise = noise_for(Budget(epsilon, 1e-3), study.training.rounds)
        fields = {f: getattr(task, f) for f in Task.__dataclass_fields__}
        trained = PrivateTask(**fields, clip=1.0, noise=noise)
    if guard in ("int8", "rank"):
        given = {"guards": Guards(compress=guard)}  # type: ignore[arg-type]
    engine = Engine(trained, method, gather_sites(rows), training_of(study), seed, keep_reports=True, **given)
    next(iter(engine.run()))
    change = {k.partition("/")[2]: v.sum(0).double() for k, v in tensors(engine.reports) if k.startswith("change/")}
    believed = seed if draws == "known" else seed + 5000
    known, keeps = [], []
    for name, x, y, _ in rows:
        truth, told = (_plan(task, method, study, name, x, s) for s in (seed, believed))
        counts = torch.from_numpy(class_weights(y.argmax(1).numpy(), 2))
        known.append(Known(told, counts, len(x)))
        kept = torch.ones_like(x)
        for at, real, keep in truth:
            for j, row in enumerate(at.tolist()):
                if real[j] and keep:
                    kept[row] = keep[0][j].float()
        keeps.append(kept > 0)
    return Case(task, study, sites, names, change, known, keeps)


def _plan(task: Task, method: Any, study: Any, name: str, x: Tensor, seed: int) -> list[Any]:
    """A site's round as whoever knows the seed redraws it, without any of its rows."""
    blind = gather_sites([(name, torch.zeros_like(x), torch.zeros(len(x), 2), torch.ones(len(x), 1))])
    engine = Engine(task, method, blind, training_of(study), seed)
    engine.drawer.set(0, 0)
    draw = engine.drawer.draw()
    out = []
    for t in range(engine.drawer.steps[0]):
        keep = tuple((-k[0]).double() for k in engine._masks(draw.row_key[t], draw.unit_key)) if engine.units else ()
        out.append((draw.rows[t, 0], draw.real[t, 0, :, 0].double(), keep))
    return out


def imagined(case: Case, x: Tensor, labels: Tensor, known: Known) -> dict[str, Tensor]:
    """What that site's change would be with these rows [row, column] and log odds of their labels."""
    start = {k: v.double() for k, v in case.task.start.items()}
    layers = [k.removesuffix(".weight") for k in start if k.endswith(".weight")]
    dropout = case.study.network.dropout
    rescale, rule = 1 / (1 - dropout), case.task.rule
    lr, momentum = rule.lr, getattr(rule, "momentum", 0.0)
    p, speed = start, {k: torch.zeros_like(v) for k, v in start.items()}
    share = torch.sigmoid(labels)
    y = torch.stack([1 - share, share], 1)
    w = (y * known.weights).sum(1, keepdim=True)
    for at, real, keep in known.plan:
        h, seen = x[at], []
        for i, name in enumerate(layers):
            h = h * keep[i] if keep else h
            seen.append(h)
            z = rescale * h @ p[f"{name}.weight"] + p[f"{name}.bias"]
            h = z if i + 1 == len(layers) else torch.tanh(z)
        slope, grad = (torch.softmax(h, 1) - y[at]) * w[at] * real[:, None], {}
        for i in reversed(range(len(layers))):
            name = layers[i]
            grad[f"{name}.weight"], grad[f"{name}.bias"] = rescale * seen[i].T @ slope, slope.sum(0)
            back = rescale * slope @ p[f"{name}.weight"].T
            back = back * keep[i] if keep else back
            slope = back * (1 - seen[i] ** 2)
        speed = {k: momentum * speed[k] - lr * grad[k] for k in p}
        p = {k: p[k] + speed[k] for k in p}
    return {k: p[k] - start[k] for k in p}


def rebuild(case: Case, steps: int = STEPS, tries: int = 1) -> dict[str, Any]:
    """The rows that fit the report best, and how near they are to those of the first site."""
    sizes, width = [k.rows for k in case.known], case.sites[0][0].shape[1]
    n = sum(sizes)
    scale = {k: 1 / v.norm().clamp(min=1e-30) for k, v in case.change.items()}
    goal = torch.cat([(v * scale[k]).flatten() for k, v in case.change.items()])

    def off(u: Tensor) -> Tensor:
        x, labels, at, total = u[: n * width].view(n, width), u[n * width :], 0, None
        for known in case.known:
            part = imagined(case, x[at : at + known.rows], labels[at : at + known.rows], known)
            at += known.rows
            total = part if total is None else {k: total[k] + v for k, v in part.items()}
        assert total is not None
        return torch.cat([(total[k] * scale[k]).flatten() for k in case.change]) - goal

    best, taken = (float("inf"), torch.zeros(0)), 0
    share = float(torch.cat([y for _, y in case.sites]).double().mean().clamp(0.05, 0.95))
    for k in range(tries):
        g = torch.Generator().manual_seed(k)
        u = torch.cat([0.3 * torch.randn(n * width, generator=g) + 0.2, 0.5 * torch.randn(n, generator=g)]).double()
        u[n * width :] += float(np.log(share / (1 - share)))
        r, damp = off(u), 1e-2
        c = float(r @ r)
        for _ in range(steps):
            if c <= 2e-8:
                break
            taken += 1
            eye = torch.eye(len(u), dtype=torch.double)
            jacobian = vmap(lambda v: jvp(off, (u,), (v,))[1], chunk_size=128)(eye).T  # noqa: B023
            square, down, better = jacobian.T @ jacobian, jacobian.T @ r, False
            for _ in range(8):
                step = torch.linalg.solve(square + damp * torch.diag(square.diag() + 1e-9), down).clamp(-2, 2)
                moved = u - step
                moved[n * width :].clamp_(-12, 12)
                there = off(moved)
                if float(there @ there) < c:
                    u, r, c, better, damp = moved, there, float(there @ there), True, max(damp / 5, 1e-12)
                    break
                damp *= 4
            if not better:
                break
        if c < best[0]:
            best = c, u.clone()
        if c < 2e-8:
            break
    x, labels = best[1][: n * width].view(n, width)[: sizes[0]], best[1][n * width :][: sizes[0]]
    return judged(x, labels, case.sites[0], case.keeps[0]) | {"residual": best[0], "steps": taken}


def judged(x: Tensor, labels: Tensor, truth: tuple[Tensor, Tensor], seen: Tensor) -> dict[str, Any]:
    rows, y = truth
    far = ((x[:, None] - rows[None]).abs() * seen[None]).amax(2).numpy()  # [guess, row]
    a, b = linear_sum_assignment(np.minimum(far, 3))
    right = (labels[a] > 0).long() == y[b]
    cells = ((x[a] - rows[b]).abs() < NEAR)[seen[b]].double().mean()
    return {
        "rows": len(rows),
        "rebuilt": int(((far[a, b] < NEAR) & right.numpy()).sum()),
        "cells": float(cells),
        "guess": guessed(rows, seen),
    }


def guessed(rows: Tensor, seen: Tensor) -> float:
    """The share of cells within reach of the best constant of each column."""
    near = (rows[:, None] - rows[None]).abs() < NEAR  # [constant, row, column]
    best = (near & seen[None]).sum(1).argmax(0)  # [column]
    hit = torch.stack([near[best[c], :, c] for c in range(rows.shape[1])], 1)
    return float(hit[seen].double().mean())


def crafted(start: dict[str, Tensor], x: Tensor, g: torch.Generator, steep: float) -> dict[str, Tensor]:
    """A model whose first units each see a thin slice: thresholds along a direction, spread as a normal's."""
    p = {k: v.clone() for k, v in start.items()}
    first = next(k for k in p if k.endswith(".weight"))
    width, units = p[first].shape
    way = torch.randn(width, generator=g)
    way = way / way.norm()
    at = torch.special.ndtri((torch.arange(units) + 0.5) / units) * (1 + torch.rand(1, generator=g))
    p[first] = (steep * way[:, None]).expand(width, units).contiguous()
    p[first.replace("weight", "bias")] = -steep * at
    for name in [k for k in p if k.endswith(".weight") and k != first]:
        p[name] = torch.randn(p[name].shape, generator=g) * 0.05
    return p


def crafting(guard: str, dropout: float, seed: int, rounds: int = 40, steep: float = 60.0) -> dict[str, Any]:
    """Patients of the first hospital read from the slices of 40 crafted models."""
    study, frames = study_of(dropout)
    method = methods.build("fedavg")
    data = {d.name: d for d in prepare(frames, study, seed)}
    names = [SITE, "hungarian", "va", "switzerland"] if guard == "total of four" else [SITE]
    rows = []
    for name in names:
        y = data[name].train_y.astype(np.int64)
        weight = torch.from_numpy(class_weights(y, 2)[y]).float()[:, None]
        label = torch.nn.functional.one_hot(torch.from_numpy(y), 2).float()
        rows.append((name, torch.from_numpy(data[name].train_x).float(), label, weight))
    truth, found = rows[0][1].double(), set()
    task, g, near = build_task(study, method, seed), torch.Generator().manual_seed(seed), 0
    given = {"guards": Guards(compress="int8")} if guard == "int8" else {}
    given = {"guards": Guards(clip=0.1)} if guard == "clip" else given
    for r in range(rounds):
        sent = crafted(task.start, truth, g, steep)
        fields = {f: getattr(task, f) for f in Task.__dataclass_fields__} | {"start": sent}
        now = Task(**fields)
        if guard.startswith("rows"):
            noise = noise_for(Budget(float(guard.split()[-1]), 1e-3), rounds)
            now = PrivateTask(**fields, clip=1.0, noise=noise)
        engine = Engine(now, method, gather_sites(rows), training_of(study), seed + r, keep_reports=True, **given)
        next(iter(engine.run()))
        told = {k.partition("/")[2]: v.sum(0).double() for k, v in tensors(engine.reports) if k.startswith("change/")}
        first = next(k for k in told if k.endswith(".weight"))
        bias = told[first.replace("weight", "bias")]
        read = (told[first] / bias).T * (
            1 - dropout
        )  # [unit, column]: the input that the unit's slope was multiplied by
        read = read[(bias.abs() > 1e-9) & read.isfinite().all(1)]
        far = (read[:, None] - truth[None]).abs().amax(2)
        found |= set(far.argmin(1)[far.amin(1) < NEAR].tolist())
        near += len(read)
    return {"rows": len(truth), "rebuilt": len(found), "cells": float("nan"), "guess": float("nan"), "read": near}
