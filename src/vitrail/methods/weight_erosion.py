"""Weight Erosion (Grimberg 2020, Algorithm 1): each user trusts every site fully at first, and less with every round
in which that site's gradient differs from the user's own. Every site is the user once, all in one run.

    alpha_i = 1 for every site i. In round r, at the model of user 0:
    g_i      each site's gradient on one batch of b rows (`update = "gradient"`)
    d_i      = |g_i - g_0| / |g_0|
    alpha_i <- max(0, alpha_i - (1 + p_s floor((r - 1) b / |S_i|)) p_d d_i)
    w       <- w - lr sum_i alpha_i g_i / sum_i alpha_i

`update = "local"`: g_i is what the site's epochs change in the model, as the report allows; momentum acts inside them
only. `size = "weight"` is the report's own repair: no size penalty, but a fixed weight beta_i = |S_i| beside alpha_i in
the sum, so that rows of small sites do not count more. p_d = 0 is Global (all sites alike), a huge p_d is Local.

Choices where the report is open. r counts the rounds in which both the site and the user took part; rows drawn are
b, or all of a site that has fewer. A site that comes after a user's first round starts at the median alpha of those
who came before. While the user is away its model and its trust stand still. |g_0| at rounding level of the longest
g_i: nothing erodes in that round, and the facts say so. A gradient is asked for only where alpha_i > 0 and the user
has not stopped; round 1, where all users share one model, is not treated apart. With a loss summed over the batch, a
site with fewer rows than a batch has a shorter gradient: studies that compare trust had better set loss = "mean".

Early stopping, against ending at the local model: with `validation` > 0 every site sets that share of its training
rows aside. When a user's loss on them has not fallen for `patience` of its rounds, its model goes back to its best and
stands still.

`beside` carries two more models on the same batches: Global (one, at the coordinator) and Local (at each site), so
that one run shows all three and how far each user is from either. Afterwards each site may show its local model,
once, if the model is linear; it can refuse.

What it costs: each site is sent all users' models and answers with an update for each, so that bytes and gradients
grow with the square of the sites. Who sees what: every site sees every user's model; the coordinator sees each update.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from vitrail.core.exchange import Exchange, Facts, Method, Nothing, Pace, Roster, Rows, Stage
from vitrail.core.task import Batch, Task
from vitrail.core.tensors import Params, add_, copied, dot, per_site, tmap, to_all, zeros


class State(NamedTuple):
    params: Params  # the user's own model, once settled
    local: Params  # trained beside on the site's rows alone
    shared: Params  # Global, once settled


class Coord(NamedTuple):
    models: Params  # [user, ...]; Global is the last where there is one
    alpha: Tensor  # [user, site]
    met: Tensor  # [user, site]: rounds in which the site's update reached the user
    stopped: Tensor  # [user] bool
    loss: Tensor  # [user]: the lowest on the rows set aside
    waited: Tensor  # [user]: rounds since then
    best: Params  # [user, ...]: the model of then; empty without early stopping


class Down(NamedTuple):
    models: Params  # [site, user, ...]
    wanted: Tensor  # [site, user] bool: where an update is asked for
    own: Tensor  # [site, user]: 1 where the site is the user


class Up(NamedTuple):
    update: Params  # [site, user, ...]: what the site's rows would change in each user's model
    said: dict[str, Tensor]  # [site]: rows, rows drawn, batches, and what it measured at its own model


class Work(NamedTuple):
    models: Params
    change: Params  # velocity, or the update itself
    wanted: Tensor
    drawn: Tensor  # [site]
    batches: Tensor  # [site]
    local: Params
    local_change: Params


class Shown(NamedTuple):
    local: Params  # a linear model trained alone, when the site agrees


class Show(Exchange[State, Coord, Nothing, Nothing, Shown]):
    """Each site shows its local model, once, if it is linear. A site that refuses is absent from this exchange."""

    sees = "each"
    trains = False

    def send(self, task: Task, coord: Coord, roster: Roster) -> Nothing:
        return Nothing()

    def begin(self, task: Task, state: State, down: Nothing) -> Nothing:
        return Nothing()

    def step(self, task: Task, work: Nothing, batch: Batch, pace: Pace) -> None:
        """Nothing is trained."""

    def report(
        self, task: Task, state: State, work: Nothing, down: Nothing, rows: Rows, pace: Pace
    ) -> tuple[State, Shown]:
        return state, Shown(state.local if len(task.net.widths) == 1 else {})

    def merge(self, task: Task, coord: Coord, up: Shown, roster: Roster) -> tuple[Coord, Facts]:
        return coord, {"shown": roster.present, **{f"local/{k}": v for k, v in up.local.items()}}

    def settle(self, task: Task, state: State, down: Nothing) -> State:
        return state


@dataclass(frozen=True)
class WeightErosion(Method[State, Coord, Work, Down, Up]):
    title: ClassVar[str] = "Weight Erosion"
    tune_first: ClassVar[bool] = True
    grows: ClassVar[bool] = True
    unsure: ClassVar[frozenset[str]] = frozenset({"said/loss"})
    paths: ClassVar[dict[str, int]] = {
        "alpha": 2,  # [user, site]
        "distance": 2,  # [user, site]
        "vanished": 1,  # [user]: |g_0| was nothing, so that nothing eroded
        "stopped": 1,  # [user]
        "loss": 1,  # [user]: on the rows set aside, before the round
        "to_local": 1,  # [user]: of its model, before the round
        "to_global": 1,
        "between": 1,  # Local and Global
        "gradients": 0,  # computed for the users, and beside
    }
    momentum: float | None = 0.0
    p_d: float = 0.01
    p_s: float = 0.2
    size: Literal["penalty", "weight"] = "penalty"
    update: Literal["gradient", "local"] = "gradient"
    validation: float = 0.0
    patience: int = 20
    beside: bool = True

    def __post_init__(self) -> None:
        if self.validation >= 1:
            raise ValueError("validation is a share of a site's rows, from 0 to below 1")
        if self.update == "gradient" and self.momentum:
            raise ValueError('momentum needs update = "local"')

    def batches(self) -> int | None:
        return 1 if self.update == "gradient" else None

    def aside(self) -> float:
        return self.validation

    def plan(self, rounds: int) -> tuple[Stage, ...]:
        return (Stage("train", self, rounds), *((Stage("show", Show(), 1),) if self.beside else ()))

    def state(self, task: Task, sites: int) -> State:
        return State({}, copied(to_all(task.start, sites)) if self.beside else {}, {})

    def coord(self, task: Task, sites: int) -> Coord:
        some = next(iter(task.start.values()))
        return Coord(
            copied(to_all(task.start, sites + self.beside)),
            some.new_ones(sites, sites),
            some.new_zeros(sites, sites),
            some.new_zeros(sites, dtype=torch.bool),
            some.new_full((sites,), torch.inf),
            some.new_zeros(sites),
            copied(to_all(task.start, sites)) if self.validation else {},
        )

    def asked(self, coord: Coord) -> Tensor:
        """[user, site]"""
        return (coord.alpha > 0) & ~coord.stopped[:, None]

    def send(self, task: Task, coord: Coord, roster: Roster) -> Down:
        n = len(roster.names)
        wanted = self.asked(coord).T
        wanted = torch.cat([wanted, wanted.new_ones(n, int(self.beside))], 1)
        return Down(to_all(coord.models, n), wanted, torch.eye(n, dtype=coord.alpha.dtype, device=wanted.device))

    def begin(self, task: Task, state: State, down: Down) -> Work:
        models, local = copied(down.models), copied(state.local)
        none = next(iter(models.values())).new_zeros(len(down.own))
        return Work(models, zeros(models), down.wanted, none, none.clone(), local, zeros(local))

    def step(self, task: Task, work: Work, batch: Batch, pace: Pace) -> None:
        work.drawn.add_((batch.w > 0).sum((1, 2)))
        work.batches.add_(1)
        for user in range(work.wanted.shape[1]):
            models, change = ({k: v[:, user] for k, v in tree.items()} for tree in (work.models, work.change))
            wanted = work.wanted[:, user]
            # a captured GPU graph cannot choose: it computes all, and report leaves out what was not asked for
            if wanted.device.type != "cpu" or bool(wanted.all()):
                self.advance(task, models, change, batch, pace)
            elif bool(wanted.any()):
                keep = tuple(t[wanted] for t in batch.keep)
                some = Batch(batch.x[wanted], batch.y[wanted], batch.w[wanted], keep)
                part, moved = ({k: v[wanted] for k, v in tree.items()} for tree in (models, change))
                self.advance(task, part, moved, some, pace)
                for k in part:
                    models[k][wanted], change[k][wanted] = part[k], moved[k]
        if self.beside:
            self.advance(task, work.local, work.local_change, batch, pace)
            if self.update == "gradient":
                add_(work.local, work.local_change)

    def advance(self, task: Task, models: Params, change: Params, batch: Batch, pace: Pace) -> None:
        if self.update == "gradient":
            task.push(models, change, batch, pace.lr, 0.0)
        else:
            task.descend(models, change, batch, pace.lr, pace.momentum)

    def report(self, task: Task, state: State, work: Work, down: Down, rows: Rows, pace: Pace) -> tuple[State, Up]:
        update = work.change if self.update == "gradient" else tmap(torch.sub, work.models, down.models)
        if down.wanted.device.type != "cpu":
            update = {k: v * down.wanted.view(*down.wanted.shape, *[1] * (v.dim() - 2)) for k, v in update.items()}
        said = {"rows": rows.total, "drawn": work.drawn, "batches": work.batches}
        if rows.aside is not None:  # not a number at a site that is too small to set rows aside
            weight = rows.aside.w.sum((1, 2))
            said["loss"] = task.loss(_own(down), rows.aside) / weight
        if self.beside:
            shared = {k: v[:, -1] for k, v in down.models.items()}
            said["to_local"], said["between"] = _apart(_own(down), state.local), _apart(shared, state.local)
        return State({}, work.local, {}), Up(update, said)

    def merge(self, task: Task, coord: Coord, up: Up, roster: Roster) -> tuple[Coord, Facts]:
        n, here, said = len(roster.names), roster.present, up.said
        computed = (self.asked(coord) * here * said["batches"]).sum()
        coord = self.judged(coord, said, here)
        took = self.asked(coord) & here & here[:, None]  # [user, site]
        square, apart = _squares({k: v[:, :n] for k, v in up.update.items()})
        own = square.diagonal()
        vanished = took.diagonal() & (own <= torch.finfo(own.dtype).eps ** 2 * (square * took).amax(1))
        distance = (apart / torch.where(vanished, 1.0, own)[:, None]).sqrt()
        # a site that comes after the user's first round starts at the median of those before it
        late = took & (coord.met == 0) & (coord.met.diagonal() > 0)[:, None]
        alpha = torch.where(late, _median(coord.alpha, coord.met > 0)[:, None], coord.alpha)
        erosion = self.p_d * distance
        if self.size == "penalty":
            erosion = erosion * (1 + self.p_s * (coord.met * said["drawn"] / said["rows"].clamp(min=1)).floor())
        alpha = torch.where(took & ~vanished[:, None], (alpha - erosion).clamp(min=0), alpha)
        weight = torch.cat([alpha * took, here[None].to(alpha).expand(int(self.beside), n)])  # [model, site]
        if self.size == "weight":
            weight = weight * said["rows"]
        share = weight / weight.sum(1, keepdim=True).clamp(min=torch.finfo(weight.dtype).tiny)
        step = tmap(lambda v: torch.einsum("ms,sm...->m...", share, v), up.update)
        models = tmap(torch.add, coord.models, step)
        met = coord.met + took
        facts: Facts = {
            "alpha": torch.where(met > 0, alpha, torch.nan),
            "distance": torch.where(took & ~vanished[:, None], distance, torch.nan),
            "vanished": vanished,
            "stopped": coord.stopped,
            "gradients": torch.stack([computed, 2 * self.beside * said["batches"].sum()]),
        }
        facts |= {k: torch.where(here, said[k], torch.nan) for k in ("loss", "to_local", "between") if k in said}
        if self.beside:
            users = {k: v[:-1] for k, v in coord.models.items()}
            facts["to_global"] = _apart(users, to_all({k: v[-1] for k, v in coord.models.items()}, n))
        return coord._replace(models=models, alpha=alpha, met=met), facts

    def judged(self, coord: Coord, said: dict[str, Tensor], here: Tensor) -> Coord:
        """Early stopping: the losses are of the models as they were sent."""
        if not self.validation:
            return coord
        counts = here & said["loss"].isfinite() & ~coord.stopped
        better = counts & (said["loss"] < coord.loss)
        waited = torch.where(better, 0.0, coord.waited + counts)
        stops = counts & (waited >= self.patience)
        users = {k: coord.models[k][: len(here)] for k in coord.best}
        best = {k: torch.where(per_site(better, v), v, coord.best[k]) for k, v in users.items()}
        models = {
            k: torch.cat([torch.where(per_site(stops, v), best[k], v), coord.models[k][len(here) :]])
            for k, v in users.items()
        }
        loss = torch.where(better, said["loss"], coord.loss)
        return coord._replace(models=models, stopped=coord.stopped | stops, loss=loss, waited=waited, best=best)

    def settle(self, task: Task, state: State, down: Down) -> State:
        shared = {k: v[:, -1] for k, v in down.models.items()} if self.beside else {}
        return State(_own(down), state.local, shared)

    def predict(self, task: Task, state: State, x: Tensor) -> Tensor:
        return task.output(state.params, x)

    def compares(self) -> tuple[str, ...]:
        return ("global", "local") if self.beside else ()

    def compared(self, task: Task, state: State, x: Tensor) -> dict[str, Tensor]:
        models = {"global": state.shared, "local": state.local}
        return {name: task.output(models[name], x) for name in self.compares()}


def _own(down: Down) -> Params:
    """The model that each site gets as the user."""
    sites, place = torch.arange(len(down.own), device=down.own.device), down.own.argmax(1)
    return {k: v[sites, place] for k, v in down.models.items()}


def _apart(one: Params, other: Params) -> Tensor:
    """|one - other| for each site: [site]."""
    difference = tmap(torch.sub, one, other)
    return dot(difference, difference).sqrt()


def _squares(update: Params) -> tuple[Tensor, Tensor]:
    """|g_i|^2 and |g_i - g_0|^2, both [user, site], of updates [site, user, ...]."""
    flat = [v.flatten(2) for v in update.values()]
    own = [v.diagonal(dim1=0, dim2=1).T for v in flat]  # [user, number]
    square = torch.stack([(v**2).sum(2) for v in flat]).sum(0)
    apart = torch.stack([((v - o) ** 2).sum(2) for v, o in zip(flat, own, strict=True)]).sum(0)
    return square.T, apart.T


def _median(alpha: Tensor, among: Tensor) -> Tensor:
    """[user]: over the sites among which it is asked for."""
    ranked = torch.where(among, alpha, torch.inf).sort(1).values
    count = among.sum(1, keepdim=True)
    middle = torch.cat([(count - 1).clamp(min=0) // 2, (count // 2).clamp(max=alpha.shape[1] - 1)], 1)
    return ranked.gather(1, middle).mean(1)
