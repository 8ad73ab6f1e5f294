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
from typing import Annotated, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from vitrail.core import facts as means
from vitrail.core.exchange import Method, Nothing, Roster, Rows, Stage, training
from vitrail.core.facts import ALONE, OWN, SHARED, Fact, Facts
from vitrail.core.rules import SGD, Rule
from vitrail.core.task import Batch, Task, carried
from vitrail.core.tensors import Params, add_, copied, own_of, tmap, to_all, zeros
from vitrail.methods.parts import Reveal, Watch, apart, median


class State(NamedTuple):
    params: Params  # the user's own model, once settled
    local: Annotated[Params, "the model that is trained on your rows alone, beside"]
    shared: Params  # Global, once settled
    memory: Annotated[Params, "what the optimiser remembers of your last batches"] = {}  # noqa: RUF012


class Coord(NamedTuple):
    models: Params  # [user, ...]; Global is the last where there is one
    alpha: Tensor  # [user, site]
    met: Tensor  # [user, site]: rounds in which the site's update reached the user
    watch: Watch


class Down(NamedTuple):
    models: Annotated[Params, "the models of all sites"]  # [site, user, ...]
    wanted: Annotated[Tensor, "to which of them you are asked to answer"]  # [site, user] bool
    own: Annotated[Tensor, "which of them is yours"]  # [site, user]: 1 where the site is the user


class Up(NamedTuple):
    update: Annotated[Params, "what your rows would change in the model of each site"]  # [site, user, ...]
    rows: Annotated[Tensor, "how many rows you train on"]  # these [site]
    drawn: Annotated[Tensor, "how many of them were drawn in this round"]
    batches: Annotated[Tensor, "in how many batches"]
    loss: Annotated[Tensor | Nothing, "the loss of your model on rows that you set aside"] = Nothing()
    to_alone: Annotated[Tensor | Nothing, "how far your model is from one trained on your rows alone"] = Nothing()
    between: Annotated[Tensor | Nothing, "how far that one is from the model of all sites"] = Nothing()


class Work(NamedTuple):
    models: Params
    moved: dict[str, Params]  # for each user the step itself, or what the optimiser remembers
    wanted: Tensor
    drawn: Tensor  # [site]
    batches: Tensor  # [site]
    local: Params
    memory: Params


@dataclass(frozen=True)
class WeightErosion(Method[State, Coord, Work, Down, Up]):
    title: ClassVar[str] = "Weight Erosion"
    grows: ClassVar[bool] = True
    tune_first: ClassVar[bool] = True
    unsure: ClassVar[frozenset[str]] = frozenset({"loss"})
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

    def clashes(self, task: Task) -> tuple[str, ...]:
        if self.update == "local" or (isinstance(task.rule, SGD) and not task.rule.factors):
            return ()
        return (
            'with update = "gradient" a step is lr times the gradient itself; update = "local" takes any optimiser',
        )

    def batches(self) -> int | None:
        return 1 if self.update == "gradient" else None

    def aside(self) -> float:
        return self.validation

    def plan(self, rounds: int) -> tuple[Stage, ...]:
        what = "the model trained on your rows alone, which stays here until then, if it is linear"
        shown = Reveal(lambda task, state: state.local if task.net.linear else {}, _alone, what)
        show = (Stage("show", (shown,), 1, "own model", "After training, once"),)
        return (training(self, rounds), *(show if self.beside else ()))

    def state(self, task: Task, sites: int) -> State:
        local = copied(to_all(task.start, sites)) if self.beside else {}
        return State({}, local, {}, task.remembered(local) if self.update == "local" else {})

    def coord(self, task: Task, sites: int) -> Coord:
        models, ones = copied(to_all(task.start, sites + self.beside)), task.like.new_ones(sites, sites)
        return Coord(models, ones, torch.zeros_like(ones), Watch.of(models, sites, self.validation > 0))

    def asked(self, coord: Coord) -> Tensor:
        """[user, site]"""
        return (coord.alpha > 0) & ~coord.watch.stopped[:, None]

    def send(self, task: Task, coord: Coord, roster: Roster) -> Down:
        n = len(roster.names)
        wanted = self.asked(coord).T
        wanted = torch.cat([wanted, wanted.new_ones(n, int(self.beside))], 1)
        return Down(to_all(coord.models, n), wanted, torch.eye(n, dtype=coord.alpha.dtype, device=wanted.device))

    def begin(self, task: Task, state: State, down: Down, rows: Rows, rule: Rule) -> Work:
        models, local = copied(down.models), copied(state.local)
        users = [{k: v[:, u] for k, v in models.items()} for u in range(down.wanted.shape[1])]
        fresh = zeros if self.update == "gradient" else rule.memory
        moved = {str(u): fresh(user) for u, user in enumerate(users)}
        memory = zeros(local) if self.update == "gradient" else rule.memory(local, state.memory)
        return Work(models, moved, down.wanted, *torch.zeros(2, *rows.total.shape).to(rows.total), local, memory)

    def step(self, task: Task, work: Work, batch: Batch, rule: Rule) -> None:
        work.drawn.add_((batch.w > 0).sum((1, 2)))
        work.batches.add_(1)
        for user in range(work.wanted.shape[1]):
            models, moved = {k: v[:, user] for k, v in work.models.items()}, work.moved[str(user)]
            wanted = work.wanted[:, user]
            # a captured GPU graph cannot choose: it computes all, and report leaves out what was not asked for
            if wanted.device.type != "cpu" or bool(wanted.all()):
                self.advance(task, models, moved, batch, rule)
            elif bool(wanted.any()):
                keep = tuple(t[wanted] for t in batch.keep)
                part, some = ({k: v[wanted] for k, v in tree.items()} for tree in (models, moved))
                rows = Batch(batch.x[wanted], batch.y[wanted], batch.w[wanted], keep)
                self.advance(task, part, some, rows, rule)
                for whole, new in ((models, part), (moved, some)):
                    for k, v in new.items():
                        whole[k][wanted] = v
        if self.beside:
            self.advance(task, work.local, work.memory, batch, rule)
            if self.update == "gradient":
                add_(work.local, work.memory)

    def advance(self, task: Task, models: Params, moved: Params, batch: Batch, rule: Rule) -> None:
        if self.update == "gradient":
            task.accumulate(models, batch, moved, 0.0, -rule.lr)
        else:
            rule.descend(task, models, moved, batch)

    def report(self, task: Task, state: State, work: Work, down: Down, rows: Rows, rule: Rule) -> tuple[State, Up]:
        update = tmap(torch.sub, work.models, down.models)
        if self.update == "gradient":
            update = {k: torch.stack([moved[k] for moved in work.moved.values()], 1) for k in update}
        if down.wanted.device.type != "cpu":
            update = {k: v * down.wanted.view(*down.wanted.shape, *[1] * (v.dim() - 2)) for k, v in update.items()}
        up, own = Up(update, rows.total, work.drawn, work.batches), own_of(down.models, down.own)
        if rows.aside is not None:  # not a number at a site that is too small to set rows aside
            up = up._replace(loss=task.value(own, rows.aside) / rows.aside.w.sum((1, 2)))
        if self.beside:
            shared = {k: v[:, -1] for k, v in down.models.items()}
            up = up._replace(to_alone=apart(own, state.local), between=apart(shared, state.local))
        return State({}, work.local, {}, carried(work.memory, state.memory)), up

    def merge(self, task: Task, coord: Coord, up: Up, roster: Roster) -> tuple[Coord, Facts]:
        n, here = len(roster.names), roster.present
        computed = (self.asked(coord) * here * up.batches).sum()
        if isinstance(up.loss, Tensor):  # of the models as they were sent
            watch, models = coord.watch.seen(coord.models, up.loss, here, self.patience)
            coord = coord._replace(watch=watch, models=models)
        took = self.asked(coord) & here & here[:, None]  # [user, site]
        square, between = _squares({k: v[:, :n] for k, v in up.update.items()})
        own = square.diagonal()
        vanished = took.diagonal() & (own <= torch.finfo(own.dtype).eps ** 2 * (square * took).amax(1))
        distance = (between / torch.where(vanished, 1.0, own)[:, None]).sqrt()
        # a site that comes after the user's first round starts at the median of those before it
        late = took & (coord.met == 0) & (coord.met.diagonal() > 0)[:, None]
        alpha = torch.where(late, median(coord.alpha, coord.met > 0)[:, None], coord.alpha)
        erosion = self.p_d * distance
        if self.size == "penalty":
            erosion = erosion * (1 + self.p_s * (coord.met * up.drawn / up.rows.clamp(min=1)).floor())
        alpha = torch.where(took & ~vanished[:, None], (alpha - erosion).clamp(min=0), alpha)
        weight = torch.cat([alpha * took, here[None].to(alpha).expand(int(self.beside), n)])  # [model, site]
        weight = weight * up.rows if self.size == "weight" else weight
        share = weight / weight.sum(1, keepdim=True).clamp(min=torch.finfo(weight.dtype).tiny)
        step = tmap(lambda v: torch.einsum("ms,sm...->m...", share, v), up.update)
        met, stopped = coord.met + took, coord.watch.stopped
        pairs, users = ("user", "site"), ("user",)
        told: dict[str, tuple[Tensor, tuple[str, ...], str]] = {
            "alpha": (torch.where(met > 0, alpha, torch.nan), pairs, means.TRUST),
            "distance": (torch.where(took & ~vanished[:, None], distance, torch.nan), pairs, means.DISTANCE),
            "vanished": (vanished, users, means.VANISHED),
            "stopped": (stopped, users, means.STOPPED),
            "gradients": (torch.stack([computed, 2 * self.beside * up.batches.sum()]), ("for",), means.GRADIENTS),
        }
        said = {"loss": means.VALIDATION, "to_alone": means.TO_ALONE, "between": means.BETWEEN}
        for name, what in said.items():
            if isinstance(value := getattr(up, name), Tensor):
                told[name] = (torch.where(here, value, torch.nan), users, what)
        if self.beside:
            theirs, shared = ({k: v[at] for k, v in coord.models.items()} for at in (slice(n), -1))
            told["to_shared"] = (apart(theirs, to_all(shared, n)), users, means.TO_SHARED)
        models = tmap(torch.add, coord.models, step)
        return Coord(models, alpha, met, coord.watch), {k: Fact(*f, every=True) for k, f in told.items()}

    def settle(self, task: Task, state: State, down: Down) -> State:
        shared = {k: v[:, -1] for k, v in down.models.items()} if self.beside else {}
        return State(own_of(down.models, down.own), state.local, shared)

    def models(self, task: Task, state: State) -> dict[str, Params]:
        return {OWN: state.params, **({SHARED: state.shared, ALONE: state.local} if self.beside else {})}


def _alone(name: str) -> tuple[tuple[str, ...], str]:
    """Axes and meaning of a parameter of the linear model."""
    weight = name.endswith("weight")
    return ("site", "input", "output") if weight else ("site", "output"), (
        means.ALONE_WEIGHT if weight else means.ALONE_BIAS
    )


def _squares(update: Params) -> tuple[Tensor, Tensor]:
    """|g_i|^2 and |g_i - g_0|^2, both [user, site], of updates [site, user, ...]."""
    flat = [v.flatten(2) for v in update.values()]
    own = [v.diagonal(dim1=0, dim2=1).T for v in flat]  # [user, number]
    square = torch.stack([(v**2).sum(2) for v in flat]).sum(0)
    between = torch.stack([((v - o) ** 2).sum(2) for v, o in zip(flat, own, strict=True)]).sum(0)
    return square.T, between.T
