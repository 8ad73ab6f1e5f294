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
site with fewer rows than a batch has a shorter gradient: studies that compare trust had better set total = "mean".

Early stopping, against ending at the local model: with `validation` > 0 every site sets that share of its training
rows aside. When a user's loss on them has not fallen for `patience` of its rounds, its model goes back to its best and
stands still.

The report's other rule (its footnote 16) is to train as long as all gradients fit into a cone. With `cone` > 0 a user's
model stands still from the first round in which no direction has a cosine of at least `cone` with the updates of all
sites that it trusts. The rule as printed is a cone so wide that it hardly ever stops: gradients that are linearly
independent, such as those of fewer sites than parameters, always fit into one.

`beside` carries two more models on the same batches: Global (one, at the coordinator) and Local (at each site), so
that one run shows all three and how far each user is from either. Afterwards each site may show its local model,
once, if the model is linear; it can refuse.

What it costs: each site is sent all users' models and answers with an update for each, so that bytes and gradients
grow with the square of the sites. Who sees what: every site sees every user's model; the coordinator sees each update.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import torch
from torch import Tensor

from vitrail.core.declarations import Catalogue, Ge, Lt
from vitrail.core.exchange import Roster
from vitrail.core.facts import DISTANCE, TRUST, VANISHED, Facts
from vitrail.core.task import Task
from vitrail.core.tensors import Params
from vitrail.methods.blocks.basics import (
    EarlyStopping,
    ErosionRule,
    common_cosine,
    distances,
    median,
    per_pair,
    per_user,
)
from vitrail.methods.blocks.per_user import Down, EveryUser, Up, Work, stacked


class Coord(NamedTuple):
    models: Params  # [user, ...]; Global is the last where there is one
    alpha: Tensor  # [user, site]
    met: Tensor  # [user, site]: rounds in which the site's update reached the user
    watch: EarlyStopping


@dataclass(frozen=True)
class WeightErosion(ErosionRule, EveryUser[Coord]):
    catalogue = Catalogue(
        "Weight Erosion",
        tuning_grid={"p_d": (0.001, 0.01, 0.1, 1.0), "size": ("penalty", "weight")},
        tune_first=True,
        in_sums="weight_erosion_sums",
    )
    momentum: Annotated[float, Ge(0)] | None = 0.0
    p_d: Annotated[float, Ge(0)] = 0.01
    p_s: Annotated[float, Ge(0)] = 0.2
    size: Literal["penalty", "weight"] = "penalty"
    update: Literal["gradient", "local"] = "gradient"
    cone: Annotated[float, Ge(0), Lt(1)] = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_momentum()

    def coord(self, task: Task, sites: int) -> Coord:
        models, watch = self.first(task, sites)
        return Coord(models, task.like.new_ones(sites, sites), task.like.new_zeros(sites, sites), watch)

    def asked(self, coord: Coord) -> Tensor:
        return (coord.alpha > 0) & ~coord.watch.stopped[:, None]

    def update_of(self, work: Work, down: Down) -> Params:
        # SGD remembers its step, which is exact; the difference of two models would be rounded
        return stacked(work.memory) if self.update == "gradient" else super().update_of(work, down)

    def compared(self, update: Params, took: Tensor) -> tuple[Tensor, Tensor]:
        """d_i of every user [user, site], and whose own update vanished [user]."""
        return distances(update, took)

    def merge(self, task: Task, coord: Coord, up: Up, roster: Roster) -> tuple[Coord, Facts]:
        here = roster.present
        models, watch = self.watched(coord, up, here)
        sent, coord = coord, coord._replace(models=models, watch=watch)
        took = self.asked(coord) & here & here[:, None]  # [user, site]
        if self.cone:
            common = common_cosine({k: v[:, : len(here)] for k, v in up.update.items()}, took)
            watch = watch._replace(stopped=watch.stopped | (common < self.cone))
            took = took & ~watch.stopped[:, None]
        facts = self.facts(sent, up, here, watch)
        distance, vanished = self.compared({k: v[:, : len(here)] for k, v in up.update.items()}, took)
        # a site that comes after the user's first round starts at the median of those before it
        late = took & (coord.met == 0) & (coord.met.diagonal() > 0)[:, None]
        alpha = torch.where(late, median(coord.alpha, coord.met > 0)[:, None], coord.alpha)
        erosion = self.erosion(distance, coord.met * up.drawn / up.rows.clamp(min=1))
        erodes = took & ~vanished[:, None]
        alpha = torch.where(erodes, (alpha - erosion).clamp(min=0), alpha)
        counts = here * up.rows if self.size == "weight" else here.to(alpha)
        models = self.moved(coord.models, up.update, alpha * took, counts)
        facts |= {
            "alpha": per_pair(alpha, TRUST, coord.met + took > 0),
            "distance": per_pair(distance, DISTANCE, erodes),
            "vanished": per_user(vanished, VANISHED),
        }
        return Coord(models, alpha, coord.met + took, watch), facts
