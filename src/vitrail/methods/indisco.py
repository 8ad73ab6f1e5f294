"""inDISCO (Klavdiia Naumova 2023; later MyTH): prototypes that show what a site's model looks at, learned together.

The network is that of nets/prototype_network.py: d_p is the distance of prototype p to the nearest latent patch of a
picture.

    loss        CrossEntropy + clst Clst + sep Sep + l1 |w_cp, p not of c|_1        a sum over rows, or their mean
                Clst = min over p of the picture's own class, d_p;   Sep = - min over all other p, d_p
    warm-up     `warm` rounds: add-on layers and prototypes are trained, convolutions and last layer are fixed
    joint       the study's rounds: everything is trained, and the shared part is averaged as in FedAvg
    push        at each site: p <- the nearest latent patch of its training pictures of p's class
    last layer  at each site alone: w -> argmin CrossEntropy + l1 |w_cp, p not of c|_1, the rest fixed; `last`
                accelerated proximal steps of length 1 / L (on pictures 100 stop early, and more predict no better)

`share`: what is averaged. "prototypes", the default: these and the last layer, convolutions local, as in the paper
(GMGP). "no": nothing, each site alone (LMLP). Ours are "add-on", also these layers, and "all", also all convolutions.

With `alone_too` each site also trains a model of its own on the same batches (LMLP). OWN is the shared model after push
and last layer, SHARED the one before these, ALONE the site's own model, also pushed. After training, sites are asked to
show signs of a bias, and may refuse (methods/blocks/shortcut_signals.py); `travel = false` asks for no model.

`personal`: each site keeps a part of its own prototypes. `release`: sites are asked to show theirs after the push
(methods/blocks/prototypes.py and prototype_rounds.py, which also says where the paper and the code of MyTH differ).

Rates: Adam with lr = 3e-3; 1e-4, that is 1/30 of it, for the last layer and for convolutions read from a file.
[training.rates] changes them by group; `optimiser = "study"` and lr take the study's.

"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor

from vitrail.core.declarations import Catalogue, Ge, Gt, Le, Lt, WireRules
from vitrail.core.exchange import Method, Stage, training
from vitrail.core.facts import ALONE, OWN, SHARED
from vitrail.core.losses import CrossEntropy
from vitrail.core.optimizers import SGD, Adam, Optimizer
from vitrail.core.task import Net, Task
from vitrail.core.tensors import Params, clone, to_all
from vitrail.methods.blocks.prototype_rounds import Coord, PrototypeRounds, Push, State, Work
from vitrail.methods.blocks.prototypes import Personal, net_of
from vitrail.methods.blocks.shortcut_signals import shows
from vitrail.methods.fedavg import Shared
from vitrail.nets import ProtoNet

SLOW = 1 / 30  # of the rate, for what moves slowly
SHARES = {"no": 0, "prototypes": 2, "add-on": 3, "all": 4}  # of:
GROUPS = ("prototypes", "head", "add_on", "features")
ENDING = ("prototypes", "head")  # what push and last layer make anew
STILL = ("features", "head")  # in the warm-up


@dataclass(frozen=True)
class InDISCO(PrototypeRounds, Method[State, Coord, Work, Shared, Any]):
    catalogue = Catalogue("inDISCO", tuning_grid={"clst": (0.4, 0.8), "sep": (0.08, 0.2)}, required_net="prototypes")
    aggregation: ClassVar[Literal["sum", "each"]] = "each"  # of models that go round; while training the sum
    lr: Annotated[float, Ge(0)] | None = 3e-3
    share: Literal["no", "prototypes", "add-on", "all"] = "prototypes"
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
    personal: Personal = "no"
    release: Literal["no", "plain", "noise"] = "no"
    release_epsilon: Annotated[float, Gt(0), Le(1e6)] = 8.0
    release_delta: Annotated[float, Gt(0), Lt(1)] = 1e-5
    release_clip: Annotated[float, Gt(0), Le(1e6)] = 1.0
    release_count: Annotated[int, Ge(1)] | None = None  # prototypes of a class; None: all

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.share == "no" and self.personal != "no":
            raise ValueError('nothing is shared, so there is nothing to keep beside it: write personal = "no"')

    def plan(self, rounds: int) -> tuple[Stage, ...]:
        exchanges = (self.variant(Warm), self.variant(WarmEnd))[self.warm == 1 :]
        cycle = tuple((0,) if r < self.warm - 1 else (len(exchanges) - 1,) for r in range(self.warm))
        warm = Stage("warm-up", exchanges, self.warm, "warm-up", "First, in the warm-up", cycle)
        push = Stage("push", (Push(self),), 1, "prototypes", "After training, by yourself")
        return warm, training(self.variant(Joint), rounds), push, *self.shown()

    def shown(self) -> tuple[Stage, ...]:
        return (Stage("show", shows(self), 1, "signs of a bias", "Last, once"),)

    def incompatibilities(self, task: Task) -> tuple[str, ...]:
        if not isinstance(task.net, ProtoNet):
            return ('it needs a network with prototypes: write kind = "prototypes" under [network]',)
        if not isinstance(task.loss, CrossEntropy):
            return ("it needs the cross-entropy loss, the only one in which its last layer is a convex problem",)
        return ()

    def training_optimizer(self, optimizer: Optimizer, net: Net) -> Optimizer:
        if not isinstance(optimizer, SGD | Adam):
            return optimizer
        slow = ("head", "features") if isinstance(net, ProtoNet) and net.pretrained else ("head",)
        factors = dict.fromkeys((n for g in slow for n in net.groups.get(g, ())), SLOW) | dict(optimizer.factors)
        if self.optimiser == "adam" and isinstance(optimizer, SGD):
            return Adam(optimizer.lr, decay=optimizer.decay, factors=tuple(factors.items()))
        return replace(optimizer, factors=tuple(factors.items()))

    @property
    def wire(self) -> WireRules:
        """Beside what is averaged a model of its own is disclosed, and its pushed prototypes, if the site agrees."""
        own = {"alone" if self.compares else "own"} if self.travel else set()
        disclosed = {"local", *own, *({"ending"} if self.release != "no" else ())}
        return WireRules(self.aggregation, {"weight"}, disclosed_state=disclosed, per_site_messages=self.travel)

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
        own = {k: v for k, v in every.items() if k not in shared}
        endings = clone(task.select(every, ENDING)), alone, clone(task.select(alone, ENDING))
        memory = task.initial_state(every, shared), task.initial_state(alone)
        return State(own, clone(shared), shared, *endings, patches, like.new_zeros(sites, net.outputs), *memory)

    def coord(self, task: Task, sites: int) -> Coord:
        whole = to_all(task.start, sites)
        nothing = {k: torch.zeros_like(v, memory_format=torch.contiguous_format) for k, v in whole.items()}
        return Coord(clone(task.select(task.start, self.common)), nothing, task.like.new_zeros(sites))

    def shared(self, coord: Coord) -> Params:
        return coord.params

    def models(self, task: Task, state: State) -> dict[str, Params]:
        models = {OWN: {**state.own, **state.shared, **state.ending}}
        if self.share != "no":
            models[SHARED] = {**state.own, **state.shared}
        if self.compares:
            models[ALONE] = {**state.alone, **state.alone_ending}
        return models

    def patches(self, state: State) -> dict[str, Tensor]:
        """See Pushes."""
        return dict(zip((OWN, ALONE), state.patches.unbind(1), strict=False))


class Joint(InDISCO):
    """Rounds in which everything moves."""

    aggregation: ClassVar[Literal["sum", "each"]] = "sum"


class Warm(InDISCO):
    """Rounds in which add-on layers and prototypes move."""

    name: ClassVar[str] = "warm"
    aggregation: ClassVar[Literal["sum", "each"]] = "sum"
    still: ClassVar[tuple[str, ...]] = STILL


class WarmEnd(InDISCO):
    """The last of them, in which sites measure how well each class is told by now."""

    name: ClassVar[str] = "end"
    aggregation: ClassVar[Literal["sum", "each"]] = "sum"
    still: ClassVar[tuple[str, ...]] = STILL
    measures_classes: ClassVar[bool] = True


@dataclass(frozen=True)
class InDISCOCentral(InDISCO):
    """CMCP: all pictures in one place. A yardstick, as `centralized`."""

    catalogue = Catalogue("inDISCO, centralized", baseline="pooled", required_net="prototypes")
    travel: bool = False
    share: Literal["no", "prototypes", "add-on", "all"] = "no"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.share != "no" or self.travel or self.release != "no":
            raise ValueError(
                "all pictures are in one place, so nothing is shared: "
                'write share = "no", travel = false and release = "no"'
            )

    def shown(self) -> tuple[Stage, ...]:
        return ()
