"""Algebra on named tensors. Every tensor has the site axis first: [site, ...]."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import Tensor

Params = dict[str, Tensor]
"""Parameters by name; those of all sites have the site as their first axis."""
T = TypeVar("T")


def tree_map(f: Callable[..., Tensor], *trees: Params) -> Params:
    """f applied name by name."""
    return {k: f(*(t[k] for t in trees)) for k in trees[0]}


def clone(tree: Params) -> Params:
    """Copies of the tensors, so that a step may overwrite them."""
    out = {k: empty_like(v) for k, v in tree.items()}
    if out:
        torch._foreach_copy_(list(out.values()), list(tree.values()))
    return out


def zeros(tree: Params) -> Params:
    """Tensors of these shapes that hold zeros."""
    out = {k: empty_like(v) for k, v in tree.items()}
    if out:
        torch._foreach_zero_(list(out.values()))
    return out


def medians(rows: Tensor) -> Tensor:
    """[column] of [row, column]; of an even number of rows the mean of the two in the middle, of which torch takes the
    lower one."""
    return (rows.median(0).values - (-rows).median(0).values) / 2


def subtract(one: Params, other: Params) -> Params:
    """one - other, for the names of `other`."""
    if not other:  # where nothing is shared
        return {}
    return dict(zip(other, torch._foreach_sub([one[k] for k in other], list(other.values())), strict=True))


def apply_update(params: Params, change: Params, by: Tensor) -> Params:
    """params + change / by, where `by` is one number."""
    return {k: torch.addcdiv(v, change[k], by) for k, v in params.items()}


_memory = threading.local()


@contextmanager
def reused_memory() -> Iterator[None]:
    """Inside, `clone` and `zeros` write where they wrote the last time this thread was here, in the same order.

    For what a site has in hand during a round: the last round's is done with. Taking some megabytes anew for every
    round and giving them back is slow (page faults) and leaves fragments.
    """
    _memory.place = 0
    try:
        yield
    finally:
        _memory.place = None


def scratch(name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
    """This thread's memory of that name, until it asks again: allocating it anew each step is slow (page faults)."""
    if like.device.type != "cpu":
        return torch.empty(shape, dtype=like.dtype, device=like.device)
    held: dict[str, Tensor] = _memory.__dict__.setdefault("scratch", {})
    cached = held.get(name)
    if cached is None or cached.shape != shape or cached.dtype != like.dtype:
        cached = held[name] = torch.empty(shape, dtype=like.dtype)
    return cached


def release_memory() -> None:
    """Give back what this thread's `reused_memory` and `scratch` hold."""
    _memory.__dict__.pop("held", None)
    _memory.__dict__.pop("scratch", None)


def empty_like(like: Tensor) -> Tensor:
    """Memory for a tensor like this, with anything in it."""
    place: int | None = getattr(_memory, "place", None)
    if place is None or like.device.type != "cpu":
        return torch.empty(like.shape, dtype=like.dtype, device=like.device)
    held: dict[int, Tensor] = _memory.__dict__.setdefault("held", {})
    cached = held.get(place)
    if cached is None or cached.shape != like.shape or cached.dtype != like.dtype:
        cached = held[place] = torch.empty(like.shape, dtype=like.dtype)
    _memory.place = place + 1
    return cached


def to_floats(x: Tensor, like: Tensor) -> Tensor:
    """Rows as a network takes them: pictures of uint8 become numbers from 0 to 1, and half precision whole."""
    if x.dtype == torch.uint8:
        return x.to(like.dtype).div_(255)
    return x.to(like.dtype) if x.dtype == torch.float16 else x


def to_all(tree: Params, sites: int) -> Params:
    """The same tensors for every site, as a view: no copy."""
    return {k: v.expand(sites, *v.shape) for k, v in tree.items()}


def per_site(scalar: Tensor, like: Tensor) -> Tensor:
    """[site] -> [site, 1, ...], ready to be multiplied with `like`."""
    return scalar.view(-1, *[1] * (like.dim() - 1))


def overlay(tree: Params, some: Params) -> Params:
    """The first, in its order, with the second's tensors in place of its own of the same name."""
    return {k: some.get(k, v) for k, v in tree.items()}


def scaled(scalar: Tensor, tree: Params) -> Params:
    """Each site's tensors times that site's number."""
    return {k: per_site(scalar, v) * v for k, v in tree.items()}


def interpolate(a: Tensor, one: Params, other: Params) -> Params:
    """a * one + (1 - a) * other, with a number for each site."""
    return {k: torch.lerp(other[k], v, per_site(a, v)) for k, v in one.items()}


def dot(one: Params, other: Params) -> Tensor:
    """<one, other> for each site: [site]."""
    return torch.stack([(v * other[k]).flatten(1).sum(1) for k, v in one.items()]).sum(0)


def select_own(models: Params, own: Tensor) -> Params:
    """Each site's own model among models [site, user, ...]: the one for which `own` [site, user] is 1."""
    sites, place = torch.arange(len(own), device=own.device), own.argmax(1)
    return {k: v[sites, place] for k, v in models.items()}


def add_(tree: Params, other: Params, times: float = 1.0) -> None:
    """tree += times * other, in place."""
    if tree:
        torch._foreach_add_(list(tree.values()), [other[k] for k in tree], alpha=times)


def flatten(tree: Any, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """All tensors of a message or state (NamedTuples and dicts of tensors) with their names.

    >>> [name for name, _ in flatten({"a": torch.zeros(1), "b": {"c": torch.zeros(1)}})]
    ['a', 'b/c']
    """
    if isinstance(tree, Tensor):
        yield prefix, tree
        return
    items = tree.items() if isinstance(tree, dict) else tree._asdict().items()
    for name, value in items:
        yield from flatten(value, f"{prefix}/{name}" if prefix else name)


def map_tensors(f: Callable[[Tensor], Tensor], tree: T) -> T:
    """f applied to every tensor of a message or state, keeping its shape as a type."""
    if isinstance(tree, Tensor):
        return f(tree)  # type: ignore[return-value]
    if isinstance(tree, dict):
        return {k: map_tensors(f, v) for k, v in tree.items()}  # type: ignore[return-value]
    return type(tree)(*(map_tensors(f, v) for v in tree))  # type: ignore[attr-defined]


def unflatten(tree: T, values: dict[str, Tensor], prefix: str = "") -> T:
    """The same message or state with its tensors taken by name from `values`."""
    if isinstance(tree, Tensor):
        return values[prefix].to(tree)  # type: ignore[return-value]
    names = list(tree) if isinstance(tree, dict) else list(tree._fields)  # type: ignore[attr-defined]
    got = [
        unflatten(tree[n] if isinstance(tree, dict) else getattr(tree, n), values, f"{prefix}/{n}" if prefix else n)
        for n in names
    ]
    if isinstance(tree, dict):
        return dict(zip(names, got, strict=True))  # type: ignore[return-value]
    return type(tree)(*got)


def proximal_term(
    params: Params, towards: Params, strength: float, times: Tensor | None = None
) -> Callable[[Params, float], None] | None:
    """The gradient of strength/2 |params - towards|^2 for the names in `towards`: a term of a method's own
    (core/optimizers.py); None where no names or `strength` are given. `times` [site]: a factor for each site."""
    names = list(towards)
    if not names or not strength:
        return None

    def term(into: Params, by: float) -> None:
        difference = list(torch._foreach_sub([params[k] for k in names], [towards[k] for k in names]))
        if times is not None:
            difference = [d * per_site(times, d) for d in difference]
        torch._foreach_add_([into[k] for k in names], difference, alpha=by * strength)

    return term
