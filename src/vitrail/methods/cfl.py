"""CFL (clustered federated learning; Sattler, Müller, Samek 2021): all sites begin as one group with one model. Where a
group's model hardly moves although single sites still pull it, the group is split in two and each part continues alone.

    at site i in c   D_i = w_i - w_c                            w_i: w_c after the local epochs
    coordinator      D_c = sum_c p_i D_i / sum_c p_i            over the sites of c that answered
                     c is split where |D_c| < eps1 and max_c |D_i| > eps2
                     w_c <- w_c + D_c                           c: the group after the split

The split makes the cosine a = cos(D_i, D_j) of the most similar pair across it as small as possible; `linkage =
"single"` achieves that by joining the most similar pairs until two parts are left. The split is made only if
sqrt((1 - a) / 2) > gamma. p_i = 1, or with `weights = "rows"` the site's number of training rows, as in FedAvg. Until
the first split, this method is FedAvg.

Defaults are those of the authors' program: eps1, eps2, no split in the first `after` rounds nor of `smallest` sites or
fewer. eps1 and eps2 are lengths of updates. Their meaning changes with every network, loss and learning rate; where the
learning rate decays, updates get shorter by themselves. So tune them; the facts of every round show both lengths.
gamma = 0 omits the paper's last test, which needs a bound on how much the updates of similar sites differ; nobody knows
that bound.

Choices. The authors' program joins parts by their least similar pair (`linkage = "complete"`), which differs from the
paper. When it splits a part again, it uses positions within the part as positions among all sites; we do not repeat
that. A group is split only in a round in which all of its sites answered: an absent site cannot be placed, and a split
is final.

Revealed: each site's update, to the coordinator; to every reader of the report, which sites are grouped together, and
the angles between updates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import torch
from torch import Tensor

from vitrail.core.declarations import Catalogue, Ge
from vitrail.core.exchange import Method, Roster, SiteContext
from vitrail.core.facts import ALIKE, GROUP, GROUP_LONGEST, GROUP_MOVED, GROUP_SPLIT, OWN, Fact, Facts
from vitrail.core.task import Batch, Task, carry_state
from vitrail.core.tensors import Params, clone, scaled, subtract, to_all
from vitrail.methods.blocks.basics import per_pair
from vitrail.methods.fedavg import Own, Work


class Groups(NamedTuple):
    """What the coordinator holds."""

    models: Params  # [site, ...]: that of the site's group
    group: Tensor  # [site] int: the place of its first site in an order by lot, which is the same wherever sites stand
    rounds: Tensor  # done


class Down(NamedTuple):
    params: Annotated[Params, "the model of your group of sites"]


class Up(NamedTuple):
    change: Annotated[
        Params,
        (
            "what training on your rows changed in your group's model, times how much it counts; compared "
            "with the other sites' changes, it decides with which sites you are grouped, which the report "
            "shows"
        ),
    ]
    weight: Annotated[Tensor, 'how much it counts: 1, or with weights = "rows" how many rows you train on']


@dataclass(frozen=True)
class CFL(Method[Own, Groups, Work, Down, Up]):
    catalogue = Catalogue("CFL", tuning_grid={"eps1": (0.1, 0.4, 1.6), "eps2": (0.4, 1.6, 6.4)}, tune_first=True)
    weights: Literal["uniform", "rows"] = "uniform"
    eps1: Annotated[float, Ge(0)] = 0.4
    eps2: Annotated[float, Ge(0)] = 1.6
    gamma: Annotated[float, Ge(0)] = 0.0
    after: Annotated[int, Ge(1)] = 20
    smallest: Annotated[int, Ge(1)] = 2
    linkage: Literal["single", "complete"] = "single"

    def state(self, task: Task, sites: int) -> Own:
        return Own({}, task.initial_state(to_all(task.start, sites), task.start))

    def coord(self, task: Task, sites: int) -> Groups:
        none = torch.zeros(sites, dtype=torch.int64, device=task.like.device)
        return Groups(clone(to_all(task.start, sites)), none, torch.zeros_like(none[:1]))

    def send(self, task: Task, coord: Groups, roster: Roster) -> Down:
        return Down(coord.models)

    def begin(self, site: SiteContext, state: Own, down: Down) -> Work:
        params = clone(down.params)
        return Work(params, site.optimizer.state(params, state.memory), down.params)

    def step(self, site: SiteContext, work: Work, batch: Batch) -> None:
        site.optimizer.step(site.task, work.params, work.memory, batch)

    def report(self, site: SiteContext, state: Own, work: Work, down: Down) -> tuple[Own, Up]:
        weight = site.rows.total if self.weights == "rows" else torch.ones_like(site.rows.total)
        change = scaled(weight, subtract(work.params, down.params))
        return Own({}, carry_state(work.memory, state.memory)), Up(change, weight)

    def merge(self, task: Task, coord: Groups, up: Up, roster: Roster) -> tuple[Groups, Facts]:
        here, flat = roster.present, torch.cat([v.flatten(1) for v in up.change.values()], 1)
        length = flat.norm(dim=1) / up.weight.clamp(min=torch.finfo(flat.dtype).tiny)  # |D_i|
        unit = torch.nn.functional.normalize(flat)
        alike = unit @ unit.T
        same = coord.group[:, None] == coord.group
        moved, longest = _mean(same, flat, up.weight).norm(dim=1), _most(length, same & here)
        answered = (same & here).any(1)
        due = (moved < self.eps1) & (longest > self.eps2) & ~(same & ~here).any(1)
        due = due & (same.sum(1) > self.smallest) & (coord.rounds >= self.after)
        group, split = coord.group, due
        if due.device.type != "cpu" or bool(due.any()):  # a captured GPU graph cannot choose
            together = _halves(alike, same & due[:, None], self.linkage)
            nearest = _most(_most(alike, same & ~together), same)
            split = due & (((1 - nearest) / 2).clamp(min=0).sqrt() > self.gamma)
            first = -_most(-roster.seeds.argsort().argsort(), together)  # of each part, whatever the order of sites
            group = torch.where(split, first, group)
        sizes = [v[0].numel() for v in up.change.values()]
        mean = torch.split(_mean(group[:, None] == group, flat, up.weight), sizes, 1)
        models = {k: v + m.view_as(v) for (k, v), m in zip(coord.models.items(), mean, strict=True)}
        facts = {
            "group": Fact(group, ("site",), GROUP, every=True),
            "split": Fact(split, ("site",), GROUP_SPLIT, every=True),
            "moved": Fact(torch.where(answered, moved, torch.nan), ("site",), GROUP_MOVED, every=True),
            "longest": Fact(torch.where(answered, longest, torch.nan), ("site",), GROUP_LONGEST, every=True),
            "alike": per_pair(alike, ALIKE, here & here[:, None]),
        }
        return Groups(models, group, coord.rounds + 1), facts

    def settle(self, task: Task, state: Own, down: Down) -> Own:
        return Own(down.params)

    def models(self, task: Task, state: Own) -> dict[str, Params]:
        return {OWN: state.params}


def _mean(same: Tensor, change: Tensor, weight: Tensor) -> Tensor:
    """[site, number]: over the sites that are in the `same` group [site, site]; 0 where none of them answered."""
    total = same.to(weight) @ weight
    return (same.to(weight) @ change) / total.clamp(min=torch.finfo(weight.dtype).tiny)[:, None]


def _most(values: Tensor, among: Tensor) -> Tensor:
    """[row]: of values [column] or [row, column] the largest among those asked for; very little without any."""
    least = torch.iinfo(values.dtype).min if values.dtype == torch.int64 else -torch.inf
    return torch.where(among, values, least).amax(1)


def _halves(alike: Tensor, among: Tensor, linkage: str) -> Tensor:
    """[site, site] bool: whether two sites end in one part, when of each block of sites that are `among` themselves the
    most similar parts are joined until two are left."""
    join = torch.maximum if linkage == "single" else torch.minimum
    place = torch.arange(len(alike), device=alike.device)
    part, near = place, alike  # part: the first of its sites; near: how similar the parts of two sites are
    for _ in range(len(alike) - 2):
        left = (among & (part == place)).sum(1)
        loose = among & (part[:, None] != part) & (left > 2)[:, None]
        if loose.device.type == "cpu" and not bool(loose.any()):
            break
        best = torch.where(loose, near, -torch.inf).argmax().view(1)  # no number to ask for: a graph cannot answer
        one, other = best // len(alike), best % len(alike)
        both = ((part == part[one]) | (part == part[other])) & loose.any()
        row = join(near[one], near[other])  # [1, site]
        near = torch.where(both[:, None], row, torch.where(both, row.T, near))
        part = torch.where(both, torch.minimum(part[one], part[other]), part)
    return part[:, None] == part
