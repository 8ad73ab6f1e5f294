"""Rebuilding patients from reports: what a coordinator that keeps to the rules works out, and one that crafts models.

`honest`: heart disease, an MLP 128-64, one round of FedAvg on one batch of 16 patients a site. The coordinator knows
what it sent, the study, how many rows and how many of each class, and reads one report, or the total of three sites'.
It looks for rows and labels that would give it (L-BFGS, at most 2000 steps). `draws known`: it can redraw the site's
dropout (from the study's seed, as in a simulation). `draws secret`: it cannot (a secret of the site), so it solves for
what dropout kept, too, a number for every patient and unit. `no dropout`: there is nothing to draw, since one batch has
no order. Where something is hidden from it, it tries twice: from anywhere, and held near the best constant of each
column; the better try counts, which only somebody who has the rows could pick.

`crafting`: the whole of a hospital; in each of 40 rounds the coordinator sends a first layer whose units saturate but
for a thin slice of patients along one direction, and divides the change of a unit's weights by that of its offset: a
slice that holds one patient is that patient.

A row counts as rebuilt where every number that dropout let through is within 0.1 standard deviations, label included;
cells within 0.1, against the best constant of each column: what somebody who knows the table's shape would guess.
"""

from __future__ import annotations

import contextlib
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

import vitrail as vt
from vitrail import methods
from vitrail.core.task import Task
from vitrail.core.tensors import flatten
from vitrail.data.encoding import class_weights, prepare
from vitrail.engine.batches import gather_sites
from vitrail.engine.local import Engine
from vitrail.privacy import Guards
from vitrail.privacy.budget import Budget, noise_for
from vitrail.privacy.dp_sgd import PrivateTask
from vitrail.runs.setup import build_task, training_of

SITE, NEAR = "cleveland", 0.1
STEPS = 2000  # of one try: counted, and not timed, so that a busy machine is no defence
FITS = 1e-7  # squared distance of reports, each tensor's length 1, at which a try ends
PULLS = (0.0, 0.1)  # how strongly a try is held near the best constants


class Case(NamedTuple):
    task: Task
    study: Any
    sites: list[tuple[Tensor, Tensor]]  # rows and labels
    change: dict[str, Tensor]  # what the coordinator reads
    weights: Tensor  # [site, class]: of labels
    drawn: list[Tensor] | None  # of each layer, [site, row, unit]: what dropout kept, where the coordinator knows it
    hidden: bool  # whether something was done that it cannot redo: dropout, noise, rounding
    keeps: list[Tensor]  # [row, column]: what dropout let through, in truth


def study_of(dropout: float) -> tuple[Any, Any]:
    frames = vt.datasets.heart_disease()
    study = vt.Study.infer(frames, "disease", name="heart")
    return study.with_changes(network={"dropout": dropout}), frames


def case_of(guard: str, draws: str, draw: int, batch: int = 16) -> Case:
    """One report of one site, or of several together, each with one batch."""
    study, frames = study_of(0.0 if draws == "no dropout" else 0.2)
    method, seed = methods.build("fedavg"), 100 + draw
    names = [SITE, "hungarian", "va"] if guard.startswith("total of three") else [SITE]
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
    change = {k.partition("/")[2]: v.sum(0).double() for k, v in flatten(engine.reports) if k.startswith("change/")}
    weights = torch.stack([torch.from_numpy(class_weights(y.argmax(1).numpy(), 2)) for _, _, y, _ in rows])
    plans, keeps = [_plan(task, method, study, name, x, seed) for name, x, _, _ in rows], []
    for (at, keep), (_, x, _, _) in zip(plans, rows, strict=True):
        kept = torch.ones_like(x, dtype=torch.bool)
        if keep:
            kept[at] = keep[0] > 0
        keeps.append(kept)
    drawn = [torch.stack(layer) for layer in zip(*(keep for _, keep in plans), strict=True)]
    hidden = draws == "secret" or guard not in ("plain", "total of three")
    return Case(task, study, sites, change, weights, None if draws == "secret" else drawn, hidden, keeps)


def _plan(task: Task, method: Any, study: Any, name: str, x: Tensor, seed: int) -> tuple[Tensor, list[Tensor]]:
    """A site's one batch as whoever knows the seed redraws it, without any of its rows: which row is where, and what
    dropout keeps of each layer's input [row, unit]."""
    blind = gather_sites([(name, torch.zeros_like(x), torch.zeros(len(x), 2), torch.ones(len(x), 1))])
    engine = Engine(task, method, blind, training_of(study), seed)
    engine.sampler.set(0, 0)
    draw = engine.sampler.draw()
    assert engine.sampler.steps[0] == 1  # one batch
    real = draw.real[0, 0, :, 0] > 0
    keep = [(-k[0]).double()[real] for k in engine._masks(draw.row_key[0], draw.unit_key)] if engine.units else []
    return draw.rows[0, 0][real], keep


def imagined(case: Case, x: Tensor, labels: Tensor, keeps: list[Tensor | None]) -> dict[str, Tensor]:
    """What the sites' changes would add up to, with these rows [site, row, column] and log odds of their labels
    [site, row], and with this kept of each layer's input."""
    p = {k: v.double() for k, v in case.task.start.items()}
    layers = [k.removesuffix(".weight") for k in p if k.endswith(".weight")]
    rescale, share = 1 / (1 - case.study.network.dropout), torch.sigmoid(labels)
    y = torch.stack([1 - share, share], -1)
    w = (y * case.weights[:, None]).sum(-1, keepdim=True)
    h, seen, outs = x, [], []
    for i, name in enumerate(layers):
        seen.append(h if (keep := keeps[i]) is None else h * keep)
        z = rescale * seen[i] @ p[f"{name}.weight"] + p[f"{name}.bias"]
        h = z if i + 1 == len(layers) else torch.tanh(z)
        outs.append(h)
    slope, out = (torch.softmax(h, -1) - y) * w, {}
    for i in reversed(range(len(layers))):
        name = layers[i]
        out[f"{name}.weight"] = -case.task.rule.lr * rescale * seen[i].flatten(0, 1).T @ slope.flatten(0, 1)
        out[f"{name}.bias"] = -case.task.rule.lr * slope.sum((0, 1))
        if i:
            back = rescale * slope @ p[f"{name}.weight"].T
            slope = (back if (keep := keeps[i]) is None else back * keep) * (1 - outs[i - 1] ** 2)
    return out


def rebuild(case: Case, steps: int = STEPS) -> dict[str, Any]:
    """How near the rows that fit the report best are to those of the first site; of several tries the best."""
    tries = [judged(*fitted(case, steps, pull), case) for pull in (PULLS if case.hidden else PULLS[:1])]
    best = max(tries, key=lambda t: (t["rebuilt"], t["cells"]))
    return best | {"cells": max(t["cells"] for t in tries), "tries": [t["cells"] for t in tries]}


def fitted(case: Case, steps: int, pull: float) -> tuple[Tensor, Tensor, float]:
    """Rows and log odds of the first site's labels, and how far what they would give is from what was read."""
    sizes = (len(case.sites), *case.sites[0][0].shape)
    g, secret = torch.Generator().manual_seed(0), case.drawn is None
    centre = torch.stack([constants(x, torch.ones_like(x, dtype=torch.bool))[0] for x, _ in case.sites])[:, None]
    x = (centre if pull else 0.2) + (0.2 if pull else 0.3) * torch.randn(sizes, generator=g).double()
    share = float(torch.cat([y for _, y in case.sites]).double().mean().clamp(0.05, 0.95))
    labels = 0.5 * torch.randn(sizes[:2], generator=g).double() + float(np.log(share / (1 - share)))
    widths = [len(v) for k, v in case.task.start.items() if k.endswith(".weight")][1:]
    masks = [0.8 + 0.05 * torch.randn(*sizes[:2], n, generator=g).double() for n in widths] if secret else []
    unknown = [v.requires_grad_() for v in (x, labels, *masks)]
    scale = {k: 1 / v.norm().clamp(min=1e-30) for k, v in case.change.items()}
    # what dropout took from a row's own cells is a part of the row, to who does not know it
    keeps: list[Tensor | None] = [None, *masks] if secret else [*case.drawn] or [None] * (1 + len(widths))
    solver = torch.optim.LBFGS(
        unknown, 1, steps, 2 * steps, 1e-12, 1e-14, history_size=100, line_search_fn="strong_wolfe"
    )
    best = [float("inf"), x.detach(), labels.detach()]

    class Fits(Exception):  # noqa: N818
        pass

    def off() -> Tensor:
        solver.zero_grad()
        told = imagined(case, x, labels, keeps)
        far = sum((((told[k] - case.change[k]) * scale[k]) ** 2).sum() for k in told)
        if float(far.detach()) < best[0]:
            best[:] = [float(far.detach()), x.detach().clone(), labels.detach().clone()]
        if best[0] < FITS:
            raise Fits
        whole = far + pull * ((x - centre) ** 2).sum()
        whole.backward()
        return whole

    with contextlib.suppress(Fits):
        solver.step(off)
        best[1:] = [x.detach(), labels.detach()]
    return best[1][0], best[2][0], best[0]


def judged(x: Tensor, labels: Tensor, residual: float, case: Case) -> dict[str, Any]:
    (rows, y), seen = case.sites[0], case.keeps[0]
    far = ((x[:, None] - rows[None]).abs() * seen[None]).amax(2).numpy()  # [guess, row]
    a, b = linear_sum_assignment(np.minimum(far, 3))
    right = (labels[a] > 0).long() == y[b]
    cells = ((x[a] - rows[b]).abs() < NEAR)[seen[b]].double().mean()
    return {
        "rows": len(rows),
        "rebuilt": int(((far[a, b] < NEAR) & right.numpy()).sum()),
        "cells": float(cells),
        "guess": guessed(rows, seen),
        "residual": residual,
    }


def guessed(rows: Tensor, seen: Tensor) -> float:
    """The share of cells within reach of the best constant of each column."""
    return float(constants(rows, seen)[1][seen].double().mean())


def constants(rows: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    """The best constant of each column, and which cells are within its reach."""
    near = (rows[:, None] - rows[None]).abs() < NEAR  # [constant, row, column]
    best = (near & seen[None]).sum(1).argmax(0)  # [column]
    columns = range(rows.shape[1])
    return torch.stack([rows[best[c], c] for c in columns]), torch.stack([near[best[c], :, c] for c in columns], 1)


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
        told = {k.partition("/")[2]: v.sum(0).double() for k, v in flatten(engine.reports) if k.startswith("change/")}
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
