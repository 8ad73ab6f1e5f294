"""inDISCO's equations once more, for one site and without stacking, and the small federation they are tried on."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from tests.support.small import make_rows
from vitrail import methods
from vitrail.core.task import Task
from vitrail.core.tensors import Params
from vitrail.engine.batches import Sites, gather_sites
from vitrail.engine.local import Engine
from vitrail.engine.rounds import Snapshot, Training
from vitrail.nets import prototypes
from vitrail.testing.federation import LOSSES, PICTURE, task_of

K, M, D = 3, 2, 4
OF = torch.arange(K).repeat_interleave(M)  # whose each prototype is
ROWS = gather_sites(make_rows("classes", (19, 9, 5), PICTURE))
HELD = gather_sites([(n, -x, y, w) for n, x, y, w in make_rows("classes", (12, 9, 6), PICTURE, first=0)])
TRAINING = Training(3, 2, 4, 0.01, decays=0, optimiser="adam", memory="own")
NEAR = 1e-8  # Adam divides by a root


def task(per_class: int = M) -> Task:
    return task_of(prototypes(PICTURE, K, width=2, per_class=per_class, latent=D), LOSSES["classes"])


def run(
    rows: Sites = ROWS, per_class: int = M, held: Sites | None = HELD, how: Training = TRAINING, **given: Any
) -> tuple[Engine, Any, Snapshot]:
    method = methods.build("indisco", {"warm": 2, **given})
    engine = Engine(task(per_class), method, rows, how, 5, held=held, chunk=3)
    *_, last = engine.run()
    return engine, engine.settled(last), last


@cache
def usual(share: str) -> tuple[Engine, Any, Snapshot]:
    return run(share=share, least=2)


def site(params: Params, i: int) -> Params:
    return {k: v[i] for k, v in params.items()}


# The equations once more, for one site and without stacking


def distances(p: Params, x: Tensor) -> tuple[Tensor, Tensor]:
    """[row, prototype, cell], and the latent patches [row, cell, D]."""
    h = F.conv2d(x, p["features.0.weight"], p["features.0.bias"], 2, 1).relu()
    h = F.conv2d(h, p["features.2.weight"], p["features.2.bias"], 2, 1).relu()
    h = F.conv2d(h, p["features.4.weight"], p["features.4.bias"], 1, 1).relu()
    h = F.conv2d(h, p["add_on.0.weight"], p["add_on.0.bias"]).relu()
    z = F.conv2d(h, p["add_on.2.weight"], p["add_on.2.bias"]).sigmoid().flatten(2).transpose(1, 2)
    return ((z[:, None] - p["prototypes"][:, None]) ** 2).sum(-1), z


def scores(p: Params, x: Tensor) -> Tensor:
    d = distances(p, x)[0].amin(2)
    return ((d + 1) / (d + 1e-4)).log() @ p["last.weight"].T


def loss(p: Params, x: Tensor, y: Tensor, w: Tensor) -> Tensor:
    d, mine = distances(p, x)[0].amin(2), y[:, None] == OF
    clst, sep = d.masked_fill(~mine, 9e9).amin(1), -d.masked_fill(mine, 9e9).amin(1)
    wrong = (p["last.weight"] * (torch.arange(K)[:, None] != OF)).abs().sum()
    per_row = F.cross_entropy(scores(p, x), y, reduction="none") + 0.8 * clst + 0.08 * sep + 1e-4 * wrong
    return (w * per_row).sum()


def rate(name: str) -> float:
    return 3e-3 / 30 if name == "last.weight" else 3e-3


def goes_on(mine: Tensor, shared: Tensor, personal: str) -> Tensor:
    """The prototypes [prototype, D] that a site takes up, class by class."""
    out = shared.clone()
    for c in range(K):
        of = c == OF
        far = sum(float((a - b).norm()) for a, b in zip(mine[of], shared[of], strict=True)) / M
        apart = sum(min(float((a - b).norm()) for b in mine[~of]) for a in mine[of]) / M
        part = {"no": 0.0, "half": 0.5, "distance": far / (far + apart)}[personal]
        out[of] = (1 - part) * shared[of] + part * mine[of]
    return out


def by_hand(engine: Engine, shared: tuple[str, ...], personal: str = "no") -> tuple[list[Params], list[Params], Tensor]:
    """Every site's model after the joint rounds, the same before the last averaging, and the loss after warm-up."""
    sites, easy = engine.sites, torch.zeros(3, K, dtype=torch.double)
    now = [dict(engine.task.start) for _ in sites.names]
    before, kept = now, [dict[str, Any]() for _ in now]  # Adam's memory of what is not shared
    for stage, rounds in ((0, 2), (1, 3)):
        for r in range(rounds):
            engine.sampler.set(stage, r, r if stage == 0 else 0)
            draw, before = engine.sampler.draw(), []
            for i, start in enumerate(now):
                p = {k: v.clone().requires_grad_() for k, v in start.items()}
                moves = [k for k in p if stage or k.startswith(("add_on", "prototypes"))]
                groups = [{"params": [p[k]], "lr": rate(k), "name": k} for k in moves]
                rule = torch.optim.Adam(groups, weight_decay=engine.training.weight_decay)
                for k in moves:
                    if k in kept[i]:
                        rule.state[p[k]] = kept[i][k]
                for rows, real in zip(draw.rows[:, i], draw.real[:, i], strict=True):
                    if len(at := rows[real[:, 0] > 0]):
                        rule.zero_grad()
                        loss(p, sites.x[at], sites.y[at].argmax(1), sites.w[at][:, 0]).backward()
                        rule.step()
                kept[i] |= {k: rule.state[p[k]] for k in moves if not k.startswith(shared)}
                before.append({k: v.detach() for k, v in p.items()})
                if (stage, r) == (0, 1):
                    mine = slice(sites.starts[i], sites.starts[i] + sites.sizes[i])
                    y = sites.y[mine].argmax(1)
                    wrong = F.cross_entropy(scores(before[i], sites.x[mine]), y, reduction="none")
                    for c in range(K):
                        easy[i, c] = wrong[y == c].mean() if (y == c).sum() >= 2 else 0
            means = {k: torch.stack([b[k] for b in before]).mean(0) for k in before[0]}
            now = [{k: means[k] if k.startswith(shared) else v for k, v in b.items()} for b in before]
            if personal != "no":
                now = [
                    n | {"prototypes": goes_on(b["prototypes"], n["prototypes"], personal)}
                    for n, b in zip(now, before, strict=True)
                ]
    return now, before, easy


SHARED_BY = {
    "no": (),
    "prototypes": ("prototypes", "last"),
    "add-on": ("prototypes", "last", "add_on"),
    "all": ("prototypes", "last", "add_on", "features"),
}


def differ(one: Params, other: Params) -> float:
    assert one.keys() == other.keys()
    return max(float((v - other[k]).abs().max()) for k, v in one.items())


def pushed_by_hand(engine: Engine, p: Params, i: int) -> tuple[Params, list[list[int]]]:
    x, y, _ = own_rows(engine, i)
    d, z = distances(p, x)
    new, where = p["prototypes"].clone(), []
    for j in range(K * M):
        best = min(((float(d[r, j, c]), r, c) for r in range(len(x)) if y[r] == OF[j] for c in range(4)), default=None)
        where.append([-1, -1] if best is None else list(best[1:]))
        new[j] = new[j] if best is None else z[best[1], best[2]]
    return p | {"prototypes": new}, where


def own_rows(engine: Engine, i: int) -> tuple[Tensor, Tensor, Tensor]:
    s, mine = engine.sites, slice(engine.sites.starts[i], engine.sites.starts[i] + engine.sites.sizes[i])
    return s.x[mine], s.y[mine].argmax(1), s.w[mine][:, 0]


def objective(engine: Engine, p: Params, i: int) -> float:
    x, y, w = own_rows(engine, i)
    wrong = (p["last.weight"] * (torch.arange(K)[:, None] != OF)).abs().sum()
    return float((w * F.cross_entropy(scores(p, x), y, reduction="none")).sum() / w.sum() + 1e-4 * wrong)


def stepped(engine: Engine, p: Params, i: int, steps: int) -> Tensor:
    """The last layer by FISTA."""
    x, y, w = own_rows(engine, i)
    d = distances(p, x)[0].amin(2)
    s, w = ((d + 1) / (d + 1e-4)).log(), w / w.sum()
    length = 2 / float(torch.linalg.matrix_norm(s.T @ (w[:, None] * s), 2))
    weight, ahead, t = p["last.weight"], p["last.weight"], 1.0
    for _ in range(steps):
        leaf = ahead.clone().requires_grad_()
        (slope,) = torch.autograd.grad((w * F.cross_entropy(s @ leaf.T, y, reduction="none")).sum(), leaf)
        new = ahead - length * slope
        new = torch.where(torch.arange(K)[:, None] == OF, new, F.softshrink(new, length * 1e-4))
        after = (1 + (1 + 4 * t * t) ** 0.5) / 2
        ahead, weight, t = new + (t - 1) / after * (new - weight), new, after
    return weight
