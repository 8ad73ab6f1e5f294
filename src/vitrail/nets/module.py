"""Any torch module as a network for all sites; its gradient is autograd's.

On a CPU the sites are a loop (stacked convolutions are slower there), each thread with a module of its own; on a GPU
one vmap over sites. Parameters that do not require a gradient, and buffers, stay as they are in the module.

    pictures are normalised first      unit: as they are, 0 to 1; centred: -1 to 1; picture: by its own mean and sd
    f_in(x)  = (x + shift) * scale     group input    one number for each channel or feature; optional
    f_out(z) = (z + shift) * scale     group output   optional
"""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from vitrail.core.declarations import WITH_FACTOR, WITH_SHIFT, Adapters, output_sizes
from vitrail.core.errors import Problem, VitrailError
from vitrail.core.task import Out
from vitrail.core.tensors import Params, add_, to_floats

ROWS = 256  # of a site at a time, when nothing is to be learned; fewer of large pictures
NUMBERS = 1 << 22  # in all of them
REFUSED: dict[type[nn.Module], tuple[str, str]] = {
    nn.modules.batchnorm._BatchNorm: ("remembers rows of all batches, and mixes those of one", "GroupNorm"),
    nn.modules.dropout._DropoutNd: ("draws by itself, so that two engines would not agree", "none, or p=0"),
}
Through = Callable[[Params, Tensor], tuple[Tensor, Tensor]]
_mine = threading.local()  # modules of this thread: a call swaps a module's parameters for a moment


class ModuleTape(NamedTuple):
    """What the backward pass needs: scores and features with their history, for one site each or for all at once."""

    leaves: list[Params]
    z: list[Tensor]
    features: list[Tensor]


@dataclass(frozen=True, eq=False)
class Module:
    """`make` builds the module (a class will do), drawing its first parameters from the study's seed; or it is a module
    whose parameters everyone starts from.

    `named`: group -> first words of the names of its parameters. What no group names is the body; the last linear
    layer is the head unless said otherwise.
    """

    make: nn.Module | Callable[[], nn.Module]
    shape: tuple[int, ...]  # of one row: (channels, height, width), or (features,)
    named: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    ends: Adapters = Adapters()  # noqa: RUF009
    normalise: Literal["unit", "centred", "picture"] = "unit"
    dropout: float = 0.0
    linear: bool = False
    stacks: bool = False
    units: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        problems = []
        for name, part in self.module.named_modules():
            for kind, (why, instead) in REFUSED.items():
                if isinstance(part, kind) and part.training and getattr(part, "p", 1) > 0:
                    what = f"a {type(part).__name__} in training mode {why}."
                    problems.append(Problem(f"layer {name or '(the whole)'}", what, f"Use {instead}, or .eval()."))
        if problems:
            raise VitrailError("the network cannot be trained over sites", problems)

    @cached_property
    def module(self) -> nn.Module:
        return self.make if isinstance(self.make, nn.Module) else self.make()

    @cached_property
    def head(self) -> str:
        """The layer whose input is the features."""
        layers = [name for name, part in self.module.named_modules() if isinstance(part, nn.Linear)]
        return next(iter(self.named.get("head", ())), layers[-1] if layers else "")

    @cached_property
    def outputs(self) -> int:
        some = next(self.module.parameters())
        with torch.no_grad():
            return int(self.module(torch.zeros(1, *self.shape, dtype=some.dtype, device=some.device)).shape[-1])

    @cached_property
    def groups(self) -> dict[str, tuple[str, ...]]:
        free = [n for n, p in self.module.named_parameters() if p.requires_grad]
        named = dict(self.named) if "head" in self.named or not self.head else {**self.named, "head": (self.head,)}
        groups: dict[str, tuple[str, ...]] = {"input": tuple(self._end_shapes("input"))}
        for group, starts in named.items():
            groups[group] = tuple(n for n in free if any(n == s or n.startswith(f"{s}.") for s in starts))
        taken = {n for names in groups.values() for n in names}
        ordered = {"input": groups.pop("input"), "body": tuple(n for n in free if n not in taken), **groups}
        ordered["output"] = tuple(self._end_shapes("output"))
        return {g: names for g, names in ordered.items() if names}

    def framed(self, ends: Adapters) -> Module:
        """The same with element-wise layers before and after it."""
        return replace(self, ends=ends)

    def _end_shapes(self, side: str) -> dict[str, int]:
        if side == "input":
            return dict.fromkeys(("input.shift", "input.scale"), self.shape[0]) if self.ends.input else {}
        return output_sizes(self.ends.output, self.outputs)

    def init(self, generator: torch.Generator) -> Params:
        module = self.module
        if not isinstance(self.make, nn.Module):
            seed = int(torch.randint(2**62, (1,), generator=generator))
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                module = self.make()
        params = {n: p.detach().clone() for n, p in module.named_parameters() if p.requires_grad}
        ends = {**self._end_shapes("input"), **self._end_shapes("output")}
        return params | {k: torch.full((n,), float(k.endswith("scale"))) for k, n in ends.items()}

    def prepared(self, x: Tensor, keep: tuple[Tensor, ...]) -> tuple[Tensor, tuple[Tensor, ...]]:
        return x, keep

    def forward(self, params: Params, x: Tensor, keep: tuple[Tensor, ...] = (), *, tape: bool = True) -> Out:
        sites = range(len(x))
        if not tape:
            with torch.no_grad():
                if x.device.type == "cpu":
                    got = [self._in_blocks(self._one, _of(params, i), x[i], 0) for i in sites]
                    return Out(torch.stack([z for z, _ in got]), torch.stack([f for _, f in got]))
                return Out(*self._in_blocks(vmap(self._one), params, x, 1))
        x = to_floats(x, next(iter(params.values())))
        with torch.enable_grad():
            if x.device.type == "cpu":
                leaves = [{k: v.detach().requires_grad_() for k, v in _of(params, i).items()} for i in sites]
                outputs = [self._one(leaf, x[i]) for i, leaf in enumerate(leaves)]
            else:
                leaves = [{k: v.detach().requires_grad_() for k, v in params.items()}]
                outputs = [vmap(self._one)(leaves[0], x)]
        zs, features = [z for z, _ in outputs], [f for _, f in outputs]
        joined = torch.stack if x.device.type == "cpu" else torch.cat  # one site each, or all of them
        return Out(joined(zs).detach(), joined(features).detach(), ModuleTape(leaves, zs, features))

    def backward(
        self,
        params: Params,
        tape: ModuleTape,
        grad: Tensor,
        into: Params,
        times: float,
        scale: float,
        features: Tensor | None = None,
        step: bool = False,
    ) -> None:
        for i, (leaf, z, f) in enumerate(zip(tape.leaves, tape.z, tape.features, strict=True)):
            at: Any = i if z.dim() < grad.dim() else slice(None)  # one site, or all of them
            ends, slopes = [z], [grad[at]]
            if features is not None and f.requires_grad:  # those of a single layer are the rows themselves
                ends, slopes = [z, f], [grad[at], features[at]]
            got = torch.autograd.grad(ends, list(leaf.values()), slopes, allow_unused=True)
            there = [into[k][at] for k in leaf]
            if times:
                torch._foreach_mul_(there, times)
            else:
                torch._foreach_zero_(there)
            pairs = [(t, g) for t, g in zip(there, got, strict=True) if g is not None]
            torch._foreach_add_([t for t, _ in pairs], [g for _, g in pairs], alpha=scale)
        if step:
            add_(params, into)

    def _in_blocks(self, through: Through, params: Params, x: Tensor, axis: int) -> tuple[Tensor, Tensor]:
        """Scores and features of so many rows at a time; rows lie along this axis."""
        like, size = next(iter(params.values())), math.prod(x.shape[axis + 1 :])
        if torch.compiler.is_exporting():  # however many rows somebody will give
            return through(params, to_floats(x, like))
        blocks = torch.split(x, max(1, min(ROWS, NUMBERS // size)), axis)
        got = [through(params, to_floats(rows, like)) for rows in blocks]
        return torch.cat([z for z, _ in got], axis), torch.cat([f for _, f in got], axis)

    def _one(self, params: Params, x: Tensor) -> tuple[Tensor, Tensor]:
        """Scores and features of one site's rows."""
        module, seen = self._copy(x)
        z = functional_call(module, self.inner(params), (self.entered(params, x),))
        features = seen.pop() if seen else z
        seen.clear()
        if self.ends.output in WITH_SHIFT:
            z = z + params["output.shift"]
        if self.ends.output in WITH_FACTOR:
            z = z * params["output.scale"]
        return z, features.flatten(1)

    def inner(self, params: Params) -> Params:
        """Those of the module itself."""
        if self.ends == Adapters():
            return params
        return {k: v for k, v in params.items() if not k.startswith(("input.", "output."))}

    def entered(self, params: Params, x: Tensor) -> Tensor:
        """One site's rows as the module is given them."""
        x = _normalised(x, self.normalise)
        if self.ends.input:
            shape = (-1, *[1] * (len(self.shape) - 1))
            x = (x + params["input.shift"].view(shape)) * params["input.scale"].view(shape)
        return x

    def _copy(self, x: Tensor) -> tuple[nn.Module, list[Tensor]]:
        """This thread's module, where x is, and what its head was given last."""
        held: dict[Any, tuple[Module, nn.Module, list[Tensor]]] = _mine.__dict__
        place = f"{id(self)} {x.device} {x.dtype}"
        if place not in held or held[place][0] is not self:
            module, seen = copy.deepcopy(self.module).to(x.device, x.dtype), list[Tensor]()
            if self.head:
                module.get_submodule(self.head).register_forward_pre_hook(lambda _, given: seen.append(given[0]))
            held[place] = self, module, seen
        return held[place][1:]


def _normalised(x: Tensor, how: str) -> Tensor:
    if how == "unit":
        return x
    if how == "centred":
        return 2 * x - 1
    sd = x.var((-3, -2, -1), unbiased=False, keepdim=True).add(1e-4).sqrt()
    return (x - x.mean((-3, -2, -1), keepdim=True)) / sd


def _of(params: Params, site: int) -> Params:
    return {k: v[site] for k, v in params.items()}
