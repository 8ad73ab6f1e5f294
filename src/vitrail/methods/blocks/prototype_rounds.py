"""The rounds of inDISCO (methods/indisco.py): what a site and the coordinator keep, how shared layers and a model
of a site's own are trained, the push after them, and pushed prototypes that are shown.

They are shown once and by consent, with noise of a stated budget or as they are (`release`). A pushed prototype is a
latent patch of one training picture, and which picture depends on all of them: replacing one can replace every
prototype, also of other classes, since the layers below were trained on it, too. So nothing less than all that can be
told is protected (privacy/release.py does it). Of P prototypes that are shown, less 1/2,

    v_p = (p - 1/2) min(1, clip / |p - 1/2|)         together no longer than R = clip sqrt(P): two sites' answers,
                                                     whatever their pictures, differ by at most 2 R
    shown = v + N(0, (2 R z)^2)                      z: the least noise with which one look stays within the budget

Neighbours are any two sets of pictures: what is shown changes nobody's odds between them by more than e^epsilon, but
with probability delta, be it one picture, all of a patient's, or the whole site's. That is about this answer alone:
what was reported in training has no part of it.

    apart      how far a site's lie from the mean of the others', mean over those of a class: [site, class]

Where paper and code of MyTH differ. The paper trains the last layer with the rest in joint rounds, the code only after
a push; we follow the paper. The code pushes in every round; we push once, after the last, as the paper shows: pushed
prototypes are patches of one site, and their mean would be no patch. ProtoPNet divides the joint rate by 10 every 5
epochs, the code has that commented out; we use the study's decay. The paper averages once after 5 epochs of warm-up and
then every 10; we average after each round of the study's epochs. The paper's order of stages is kept. ProtoPNet trains
the last layer by 20 epochs of Adam at 1e-4 (the code by 12); we use proximal steps, since it is convex. The code takes
l1 of the whole last layer; we follow the paper: weights for other classes only. The code decays all convolutions by
1e-3; we use the study's decay. Where everything is shared, its push changes nothing. With that set equal both give the
same numbers: benchmarks/methods/results/same_as_myth.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from vitrail.core.declarations import Catalogue, WireRules
from vitrail.core.exchange import Exchange, Nothing, Release, Roster, SiteContext
from vitrail.core.facts import AGREED, RELEASED, RELEASED_APART, Fact, Facts
from vitrail.core.optimizers import Optimizer, of_parameter
from vitrail.core.task import Batch, Task, carry_state
from vitrail.core.tensors import Params, apply_update, clone, per_site
from vitrail.methods.blocks.prototypes import Personal, mixed_in, nearest_patches, net_of, pulls, sparse_last
from vitrail.methods.fedavg import Averages, Shared
from vitrail.nets import ProtoNet
from vitrail.nets.prototype_network import MIDDLE

if TYPE_CHECKING:
    from vitrail.methods.indisco import InDISCO


SETTINGS = {  # what is shared, and whose setting that is
    "no": "nothing is shared: each site alone, the paper’s LMLP",
    "prototypes": "prototypes and last layer are shared, convolutions stay at the sites: the paper’s method",
    "add-on": "add-on layers, prototypes and last layer are shared: our setting, not the paper’s",
    "all": "all layers are shared, convolutions too: our setting, not the paper’s",
    "pooled": "all pictures are in one place: the paper’s CMCP",
}
MIXES = {
    "no": "",
    "distance": "; each keeps a part of its own prototypes, by their distance in a formula of ours",
    "half": "; each keeps half of its own prototypes",
}


class State(NamedTuple):
    own: Annotated[Params, "those layers of your model that are not shared"]
    local: Params  # the shared ones, before they were averaged; their changes are reported
    shared: Params  # as they were received
    ending: Annotated[Params, "the prototypes and the last layer that are made of your own pictures"]
    alone: Annotated[Params, "the model that is trained on your pictures alone"]
    alone_ending: Annotated[Params, "the prototypes and the last layer of that model, made of your own pictures"]
    patches: Annotated[Tensor, "from which of your pictures, and from which place in it, each prototype is taken"]
    easy: Annotated[Tensor, "how well your pictures of each class were recognised after the warm-up"]  # [site, class]
    memory: Annotated[Params, "what the optimiser remembers of your last batches"] = {}  # noqa: RUF012
    alone_memory: Annotated[Params, "what the optimiser remembers for the model trained on your pictures alone"] = {}  # noqa: RUF012


class Coord(NamedTuple):
    params: Params  # what is shared
    offered: Params  # [site, ...]: models on their way round; forgotten after
    offers: Tensor  # [site]: 1 where there is one


class Work(NamedTuple):
    params: Params
    memory: Params
    alone: Params
    alone_memory: Params


class PrototypeRounds:
    """Both halves of a round, for a method with these hyperparameters."""

    still: ClassVar[tuple[str, ...]] = ()  # groups that do not move
    measures_classes: ClassVar[bool] = False
    catalogue: ClassVar[Catalogue]
    share: Literal["no", "prototypes", "add-on", "all"]
    weights: Literal["uniform", "rows"]
    invited: int | None
    clst: float
    sep: float
    l1: float
    least: int
    personal: Personal

    @property
    def compares(self) -> bool:
        """Whether there is a model trained alone beside the shared one."""
        return False

    @property
    def setting(self) -> str:
        return SETTINGS["pooled" if self.catalogue.pools_rows else self.share] + MIXES[self.personal]

    @property
    def averages(self) -> Averages:
        return Averages(self.weights, self.invited)

    def invite(self, task: Task, coord: Coord, roster: Roster) -> Tensor:
        return self.averages.invite(task, Shared(coord.params), roster)

    def send(self, task: Task, coord: Coord, roster: Roster) -> Shared:
        """What does not move need not be sent."""
        return self.averages.send(task, Shared(task.select(coord.params, task.others(self.still))), roster)

    def begin(self, site: SiteContext, state: State, down: Shared) -> Work:
        params = clone({**state.own, **self.goes_on_from(site.task, state, {**state.shared, **down.params})})
        alone = clone(state.alone)
        return Work(
            params, site.optimizer.state(params, state.memory), alone, site.optimizer.state(alone, state.alone_memory)
        )

    def goes_on_from(self, task: Task, state: State, shared: Params) -> Params:
        """The shared layers as this site takes them up: with so much of its own prototypes."""
        return mixed_in(net_of(task), self.personal, state.local, shared)

    def step(self, site: SiteContext, work: Work, batch: Batch) -> None:
        for params, memory in ((work.params, work.memory), (work.alone, work.alone_memory)):
            if params:
                self.descend(site.task, params, memory, batch, site.optimizer)

    def descend(self, task: Task, params: Params, memory: Params, batch: Batch, optimizer: Optimizer) -> None:
        net = net_of(task)
        out = net.forward(params, batch.x)
        slope = task.through(params, out, task.loss.grad(out, batch), pulls(net, out, batch, self.clst, self.sep))
        wrong = ~net.own(slope[net.HEAD])
        slope[net.HEAD] += self.l1 * per_site(batch.w.sum((1, 2)), wrong[None]) * (params[net.HEAD].sign() * wrong)
        held = task.select(params, task.others(self.still))
        held_memory = {k: v for k, v in memory.items() if of_parameter(k) in held}
        optimizer.apply(held, held_memory, {k: slope[k] for k in held})

    def report(self, site: SiteContext, state: State, work: Work, down: Shared) -> tuple[State, Any]:
        state = state._replace(
            own={k: work.params[k] for k in state.own},
            local={k: work.params[k] for k in state.local},
            alone=work.alone,
            memory=carry_state(work.memory, state.memory),
            alone_memory=carry_state(work.alone_memory, state.alone_memory),
        )
        if self.measures_classes:
            state = state._replace(easy=self.class_losses(site, state))
        return state, self.averages.say(work.params, down, site.rows) if down.params else Nothing()

    def class_losses(self, site: SiteContext, state: State) -> Tensor:
        """How well each class is told by what the site learned by itself, [site, class]; 0 where too few pictures would
        tell."""
        total, count = torch.zeros_like(state.easy), torch.zeros_like(state.easy)
        for block in site.rows.blocks():
            real = (block.w > 0).to(block.w)
            out = site.task.net.forward(self.apart(state), block.x, tape=False)
            loss = site.task.loss.rows(out, block._replace(w=real)).clamp(min=torch.finfo(total.dtype).tiny)
            total = total + (loss[..., None] * block.y * real).sum(1)
            count = count + (block.y * real).sum(1)
        return torch.where(count >= self.least, total / count.clamp(min=1), 0)

    def merge(self, task: Task, coord: Coord, up: Any, roster: Roster) -> tuple[Coord, Facts]:
        if not coord.params:
            return coord, {}
        after = apply_update({k: coord.params[k] for k in up.change}, up.change, up.weight)
        return coord._replace(params={**coord.params, **after}), {}

    def settle(self, task: Task, state: State, down: Shared) -> State:
        shared = {**state.shared, **down.params}
        whole = {**state.own, **self.goes_on_from(task, state, shared)}
        alone = {k: state.alone[k] for k in state.alone_ending}
        return state._replace(shared=shared, ending={k: whole[k] for k in state.ending}, alone_ending=alone)

    def apart(self, state: State) -> Params:
        """What a site learned by itself, before any push: alone, or its model before the last averaging."""
        return state.alone if self.compares else {**state.own, **state.local}


@dataclass(frozen=True)
class Push(Exchange[State, Coord, Nothing, Nothing, Nothing]):
    """Each site by itself: prototypes become patches of its pictures, and the last layer is fitted to them."""

    wire = WireRules("sum")
    of: InDISCO

    def report(self, site: SiteContext, state: State, work: Nothing, down: Nothing) -> tuple[State, Nothing]:
        net, of = net_of(site.task), self.of
        own = {**state.own, **of.goes_on_from(site.task, state, state.shared)}
        models = [own, state.alone][: 1 + of.compares]
        endings, patches = [], []
        for params in models:
            taken, where = nearest_patches(net, params, site.rows)
            pushed = params | {net.NAME: taken}
            last = sparse_last(net, pushed, site.rows, of.l1, of.last)
            endings.append({net.NAME: taken, net.HEAD: last})
            patches.append(where)
        state = state._replace(
            ending={k: endings[0][k] for k in state.ending},
            alone_ending={k: endings[-1][k] for k in state.alone_ending},
            patches=torch.stack(patches, 1),
        )
        return state, Nothing()


class ShownPrototypes(NamedTuple):
    patches: Annotated[Tensor, "prototypes that are latent patches of your pictures, from the middle of their range"]


@dataclass(frozen=True)
class ShowPushed(Exchange[Any, Any, Nothing, Nothing, ShownPrototypes]):
    name: ClassVar[str] = "prototypes shown"
    of: InDISCO
    consent: str

    @property
    def noise_budget(self) -> Release | None:
        of = self.of
        return Release(of.release_clip, of.release_epsilon, of.release_delta) if of.release == "noise" else None

    def report(self, site: SiteContext, state: Any, work: Nothing, down: Nothing) -> tuple[Any, ShownPrototypes]:
        net = net_of(site.task)
        return state, ShownPrototypes(self.chosen(net, state.ending[net.NAME]) - MIDDLE)

    def chosen(self, net: ProtoNet, prototypes: Tensor) -> Tensor:
        """The first so many of each class."""
        by_class = prototypes.view(len(prototypes), net.outputs, net.per_class, -1)
        return by_class[:, :, : self.of.release_count].flatten(1, 2)

    def merge(self, task: Task, coord: Any, up: ShownPrototypes, roster: Roster) -> tuple[Any, Facts]:
        here, classes = per_site(roster.present, up.patches).to(up.patches), task.net.outputs
        shown = up.patches * here
        others = (shown.sum(0) - shown) / (here.sum(0) - here).clamp(min=1)
        far = ((shown - others) * here).square().sum(-1).sqrt().view(len(here), classes, -1).mean(2)
        far = far * (roster.present.sum() > 1)
        facts = {
            "agreed": Fact(roster.present, ("site",), AGREED),
            "shown": Fact(shown, ("site", "prototype", "number"), RELEASED),
            "apart": Fact(far, ("site", "class"), RELEASED_APART),
        }
        return coord, facts


def shows_pushed(of: InDISCO) -> ShowPushed:
    """What a site is asked for, in words."""
    some = f"the first {of.release_count} prototypes" if of.release_count else "all prototypes"
    what = f"{some} of each class as they are after training, each a latent patch of one of your pictures"
    if of.release == "plain":
        return ShowPushed(of, f"{what}, exactly")
    budget = f"epsilon {of.release_epsilon:g} and delta {of.release_delta:g}"
    return ShowPushed(of, f"{what}, with noise: this answer alone, for all of your pictures together, within {budget}")
