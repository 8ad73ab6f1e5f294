"""inDISCO (Naumova; later published as MyTH): prototypes that show what a site's model looks at, learned together.

The network is that of nets/prototypes.py: d_p is the distance of prototype p to the nearest latent patch of a picture.

    loss        CrossEntropy + clst Clst + sep Sep + l1 |w_cp, p not of c|_1        a sum over rows, or their mean
                Clst = min over p of the picture's own class, d_p;   Sep = - min over all other p, d_p
    warm-up     `warm` rounds: add-on layers and prototypes move, convolutions and last layer stand still
    joint       the study's rounds: everything moves, and what is shared is averaged as in FedAvg
    push        at each site: p <- the nearest latent patch of its training pictures of p's class; the site keeps which
                picture and which cell, and says nothing
    last layer  at each site, by itself: w -> argmin CrossEntropy + l1 |w_cp, p not of c|_1, the rest as it is; `last`
                accelerated proximal steps of length 1 / L. 100 of them stop early on pictures: the objective is not
                at its lowest and hardly a weight is 0, but more steps told new pictures no better

`share`: what is averaged. "no": nothing, each site alone (LMLP). "prototypes": they and the last layer (GMGP, the
paper's). "add-on": the layers before them too. "all": all convolutions too, the default, since it was best where we
tried it: prototypes of which each site has another latent space cannot be compared, nor averaged.

With `alone_too` each site trains beside it, on the same batches, a model of its own (LMLP): what it learns by itself is
what a bias at one site shows in. (In the first round both are the same, so that the first report tells it.) OWN is the
shared model after push and last layer, SHARED the same before, ALONE that model, pushed too. After training sites are
asked, and may refuse, to show what tells of such a bias (methods/blocks/shortcut_signals.py); `travel = false` asks for
no model.

Rates: Adam with lr = 3e-3; the last layer, and convolutions that were read from a file, at 1e-4, that is 1/30.
[training.rates] changes them by group; `optimiser = "study"` and lr take the study's.

Where paper and code of MyTH differ. The paper trains the last layer with the rest in joint rounds, the code only after
a push: as the paper. The code pushes in every round: here once, after the last, as the paper shows them; prototypes
that were pushed are patches of one site, and their mean would be none. ProtoPNet divides the joint rate by 10 every 5
epochs, the code has that commented out: here the study's decay. The paper averages once after 5 epochs of warm-up and
then every 10: here after each round of the study's epochs. The paper's order of stages is kept. ProtoPNet optimises
the last layer by 20 epochs of Adam at 1e-4 (the code by 12), here by proximal steps, being convex. The code takes l1 of
the whole last layer, here of the weights for other classes, as the paper; it decays weights of all convolutions by
1e-3, here as the study says. Where all is shared its push changes nothing. With that set equal both give the same
numbers: benchmarks/methods/results/same_as_myth.md.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from vitrail.core.declarations import Catalogue, Ge, WireRules
from vitrail.core.exchange import Exchange, Method, Nothing, Roster, SiteContext, Stage, training
from vitrail.core.facts import ALONE, OWN, SHARED, Facts
from vitrail.core.losses import CrossEntropy
from vitrail.core.optimizers import SGD, Adam, Optimizer, of_parameter
from vitrail.core.task import Batch, Net, Task, carry_state
from vitrail.core.tensors import Params, apply_update, clone, per_site, to_all
from vitrail.methods.blocks.prototypes import nearest_patches, net_of, pulls, sparse_last
from vitrail.methods.blocks.shortcut_signals import shows
from vitrail.methods.fedavg import Averages, Shared
from vitrail.nets import ProtoNet

SLOW = 1 / 30  # of the rate, for what moves slowly
SHARES = {"no": 0, "prototypes": 2, "add-on": 3, "all": 4}  # of:
GROUPS = ("prototypes", "head", "add_on", "features")
ENDING = ("prototypes", "head")  # what push and last layer make anew


class State(NamedTuple):
    own: Annotated[Params, "those layers of your model that are not shared"]
    local: Params  # the shared ones, before they were averaged; their changes are reported
    shared: Params  # as they were received
    ending: Annotated[Params, "the prototypes and the last layer that are made of your own pictures"]
    alone: Annotated[Params, "the model that is trained on your pictures alone"]
    alone_ending: Annotated[Params, "its prototypes and last layer, made of your own pictures"]
    patches: Annotated[Tensor, "which of your pictures, and which place in it, each prototype is taken from"]
    easy: Annotated[Tensor, "how well your pictures of each class were told after the warm-up"]  # [site, class]
    memory: Annotated[Params, "what the optimiser remembers of your last batches"] = {}  # noqa: RUF012
    alone_memory: Annotated[Params, "what the optimiser remembers of them for that model"] = {}  # noqa: RUF012


class Coord(NamedTuple):
    params: Params  # what is shared
    offered: Params  # [site, ...]: models on their way round; forgotten after
    offers: Tensor  # [site]: 1 where there is one


class Work(NamedTuple):
    params: Params
    memory: Params
    alone: Params
    alone_memory: Params


@dataclass(frozen=True)
class InDISCO(Method[State, Coord, Work, Shared, Any]):
    catalogue = Catalogue("inDISCO", tuning_grid={"clst": (0.4, 0.8), "sep": (0.08, 0.2)}, required_net="prototypes")
    still: ClassVar[tuple[str, ...]] = ()  # groups that do not move
    lr: Annotated[float, Ge(0)] | None = 3e-3
    share: Literal["no", "prototypes", "add-on", "all"] = "all"
    alone_too: bool = True
    travel: bool = True
    warm: Annotated[int, Ge(1)] = 5
    clst: Annotated[float, Ge(0)] = 0.8
    sep: Annotated[float, Ge(0)] = 0.08
    l1: Annotated[float, Ge(0)] = 1e-4
    last: Annotated[int, Ge(1)] = 100
    optimiser: Literal["adam", "study"] = "adam"
    least: Annotated[int, Ge(1)] = 5  # pictures of a class, of which a site tells anything
    weights: Literal["uniform", "rows"] = "uniform"
    invited: Annotated[int, Ge(1)] | None = None

    def plan(self, rounds: int) -> tuple[Stage, ...]:
        given = {f.name: getattr(self, f.name) for f in fields(self)}
        warming, ended = Warm(**given), WarmEnd(**given)
        exchanges = (warming, ended) if self.warm > 1 else (ended,)
        cycle = tuple((0,) if r < self.warm - 1 else (len(exchanges) - 1,) for r in range(self.warm))
        warm = Stage("warm-up", exchanges, self.warm, "warm-up", "First, in the warm-up", cycle)
        push = Stage("push", (Push(self),), 1, "prototypes", "After training, by yourself")
        return warm, training(Joint(**given), rounds), push, *self.shown()

    def shown(self) -> tuple[Stage, ...]:
        return (Stage("show", shows(self), 1, "signs of a bias", "Last, once"),)

    def incompatibilities(self, task: Task) -> tuple[str, ...]:
        if not isinstance(task.net, ProtoNet):
            return ('it is about networks with prototypes: write kind = "prototypes" under [network]',)
        if not isinstance(task.loss, CrossEntropy):
            return ("it trains by cross-entropy, and its last layer is convex in nothing else",)
        return ()

    def training_optimizer(self, rule: Optimizer, net: Net) -> Optimizer:
        if not isinstance(rule, SGD | Adam):
            return rule
        slow = ("head", "features") if isinstance(net, ProtoNet) and net.pretrained else ("head",)
        factors = dict.fromkeys((n for g in slow for n in net.groups.get(g, ())), SLOW) | dict(rule.factors)
        if self.optimiser == "adam" and isinstance(rule, SGD):
            return Adam(rule.lr, decay=rule.decay, factors=tuple(factors.items()))
        return replace(rule, factors=tuple(factors.items()))

    @property
    def wire(self) -> WireRules:
        """Beside what is averaged a model of its own is disclosed, if the site agrees. While training: Joint."""
        own = {"alone" if self.compares else "own"} if self.travel else set()
        return WireRules(weight_fields={"weight"}, disclosed_state={"local", *own}, per_site_messages=self.travel)

    @property
    def common(self) -> tuple[str, ...]:
        """The groups that are averaged."""
        return GROUPS[: SHARES[self.share]]

    @property
    def compares(self) -> bool:
        """Whether there is a model trained alone beside the shared one."""
        return self.alone_too and self.share != "no"

    def state(self, task: Task, sites: int) -> State:
        net, every = net_of(task), clone(to_all(task.start, sites))
        shared, like = task.select(every, self.common), task.like
        alone = clone(every) if self.compares else {}
        patches = torch.full((sites, 1 + self.compares, net.outputs * net.per_class, 2), -1, device=like.device)
        return State(
            {k: v for k, v in every.items() if k not in shared},
            clone(shared),
            shared,
            clone(task.select(every, ENDING)),
            alone,
            clone(task.select(alone, ENDING)),
            patches,
            like.new_zeros(sites, net.outputs),
            task.initial_state(every, shared),
            task.initial_state(alone),
        )

    def coord(self, task: Task, sites: int) -> Coord:
        whole = to_all(task.start, sites)
        nothing = {k: torch.zeros_like(v, memory_format=torch.contiguous_format) for k, v in whole.items()}
        return Coord(clone(task.select(task.start, self.common)), nothing, task.like.new_zeros(sites))

    @property
    def averages(self) -> Averages:
        return Averages(self.weights, self.invited)

    def invite(self, task: Task, coord: Coord, roster: Roster) -> Tensor:
        return self.averages.invite(task, Shared(coord.params), roster)

    def send(self, task: Task, coord: Coord, roster: Roster) -> Shared:
        """What does not move need not be sent."""
        return self.averages.send(task, Shared(task.select(coord.params, task.others(self.still))), roster)

    def shared(self, coord: Coord) -> Params:
        return coord.params

    def begin(self, site: SiteContext, state: State, down: Shared) -> Work:
        params, alone = clone({**state.own, **state.shared, **down.params}), clone(state.alone)
        return Work(
            params, site.optimizer.state(params, state.memory), alone, site.optimizer.state(alone, state.alone_memory)
        )

    def step(self, site: SiteContext, work: Work, batch: Batch) -> None:
        for params, memory in ((work.params, work.memory), (work.alone, work.alone_memory)):
            if params:
                self.descend(site.task, params, memory, batch, site.optimizer)

    def descend(self, task: Task, params: Params, memory: Params, batch: Batch, rule: Optimizer) -> None:
        net = net_of(task)
        out = net.forward(params, batch.x)
        slope = task.through(params, out, task.loss.grad(out, batch), pulls(net, out, batch, self.clst, self.sep))
        wrong = ~net.own(slope[net.HEAD])
        slope[net.HEAD] += self.l1 * per_site(batch.w.sum((1, 2)), wrong[None]) * (params[net.HEAD].sign() * wrong)
        held = task.select(params, task.others(self.still))
        kept = {k: v for k, v in memory.items() if of_parameter(k) in held}
        rule.apply(held, kept, {k: slope[k] for k in held})

    def report(self, site: SiteContext, state: State, work: Work, down: Shared) -> tuple[State, Any]:
        kept = state._replace(
            own={k: work.params[k] for k in state.own},
            local={k: work.params[k] for k in state.local},
            alone=work.alone,
            memory=carry_state(work.memory, state.memory),
            alone_memory=carry_state(work.alone_memory, state.alone_memory),
        )
        return kept, self.averages.say(work.params, down, site.rows) if down.params else Nothing()

    def merge(self, task: Task, coord: Coord, up: Any, roster: Roster) -> tuple[Coord, Facts]:
        if not coord.params:
            return coord, {}
        after = apply_update({k: coord.params[k] for k in up.change}, up.change, up.weight)
        return coord._replace(params={**coord.params, **after}), {}

    def settle(self, task: Task, state: State, down: Shared) -> State:
        shared = {**state.shared, **down.params}
        whole, alone = {**state.own, **shared}, {k: state.alone[k] for k in state.alone_ending}
        return state._replace(shared=shared, ending={k: whole[k] for k in state.ending}, alone_ending=alone)

    def models(self, task: Task, state: State) -> dict[str, Params]:
        found = {OWN: {**state.own, **state.shared, **state.ending}}
        if self.share != "no":
            found[SHARED] = {**state.own, **state.shared}
        if self.compares:
            found[ALONE] = {**state.alone, **state.alone_ending}
        return found

    def patches(self, state: State) -> dict[str, Tensor]:
        """See Pushes."""
        return dict(zip((OWN, ALONE), state.patches.unbind(1), strict=False))

    def apart(self, state: State) -> Params:
        """What a site learned by itself, before any push: alone, or its model before the last averaging."""
        return state.alone if self.compares else {**state.own, **state.local}


class Joint(InDISCO):
    """Rounds in which everything moves."""

    @property
    def wire(self) -> WireRules:
        return replace(super().wire, aggregation="sum")


class Warm(Joint):
    """Rounds in which add-on layers and prototypes move."""

    name: ClassVar[str] = "warm"
    still: ClassVar[tuple[str, ...]] = ("features", "head")


class WarmEnd(Warm):
    """The last of them: how well each class is told by now, [site, class], 0 where too few pictures would tell."""

    name: ClassVar[str] = "end"

    def report(self, site: SiteContext, state: State, work: Work, down: Shared) -> tuple[State, Any]:
        kept, up = super().report(site, state, work, down)
        total, count = torch.zeros_like(state.easy), torch.zeros_like(state.easy)
        for block in site.rows.blocks():
            real = (block.w > 0).to(block.w)
            out = site.task.net.forward(self.apart(kept), block.x, tape=False)
            loss = site.task.loss.rows(out, block._replace(w=real)).clamp(min=torch.finfo(total.dtype).tiny)
            total = total + (loss[..., None] * block.y * real).sum(1)
            count = count + (block.y * real).sum(1)
        return kept._replace(easy=torch.where(count >= self.least, total / count.clamp(min=1), 0)), up


@dataclass(frozen=True)
class Push(Exchange[State, Coord, Nothing, Nothing, Nothing]):
    """Each site by itself: prototypes become patches of its pictures, and the last layer is fitted to them."""

    wire = WireRules("sum")
    of: InDISCO

    def report(self, site: SiteContext, state: State, work: Nothing, down: Nothing) -> tuple[State, Nothing]:
        net, of = net_of(site.task), self.of
        models = [{**state.own, **state.shared}, state.alone][: 1 + of.compares]
        endings, patches = [], []
        for params in models:
            taken, where = nearest_patches(net, params, site.rows)
            pushed = params | {net.NAME: taken}
            last = sparse_last(net, pushed, site.rows, of.l1, of.last)
            endings.append({net.NAME: taken, net.HEAD: last})
            patches.append(where)
        kept = state._replace(
            ending={k: endings[0][k] for k in state.ending},
            alone_ending={k: endings[-1][k] for k in state.alone_ending},
            patches=torch.stack(patches, 1),
        )
        return kept, Nothing()


@dataclass(frozen=True)
class InDISCOCentral(InDISCO):
    """CMCP: all pictures in one place. A yardstick, as `centralized`."""

    catalogue = Catalogue("inDISCO, centralized", baseline="pooled", required_net="prototypes")
    travel: bool = False
    share: Literal["no", "prototypes", "add-on", "all"] = "no"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.share != "no" or self.travel:
            raise ValueError('all pictures are in one place, so that nothing is shared: share is "no", travel false')

    def shown(self) -> tuple[Stage, ...]:
        return ()
