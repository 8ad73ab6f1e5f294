"""What a site's models look at in its own pictures; at the site alone, and nothing of it leaves.

Two things, which are not the same. *Hidden*: what changes the answer when it is painted over (occlusion_map.py), for
any network. *Parts*, for networks with prototypes: behind each prototype the training picture of its class whose patch
is nearest, with a box where the feature map fires: the smallest that holds the highest hundredth of the map, stretched
over the picture. A cell sees far more than its box, so that the evidence may lie elsewhere; hidden says where.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.analysis.images.occlusion_map import OcclusionMap, Pictures, hide
from vitrail.analysis.images.picture_evidence import (
    Case,
    CasePicture,
    Patch,
    PrototypePart,
    ViewedModel,
    answers_of,
    box_of,
    make_case,
    stacked_rows,
)
from vitrail.core.task import Net
from vitrail.core.tensors import Params
from vitrail.nets.prototype_network import ProtoNet

CLASSES = 6  # that are shown, the largest
PARTS = 4  # of a class under one model
AT_ONCE = 64  # pictures

Ints = NDArray[np.int64]


class ClassView(NamedTuple):
    """One class under one model."""

    model: str
    hidden: OcclusionMap
    parts: tuple[PrototypePart, ...] = ()
    beside: bool = False  # a changed copy of a model


class PrototypeEvidence(NamedTuple):
    views: dict[str, tuple[ClassView, ...]]  # class -> under each model
    usual: dict[str, NDArray[np.uint8]]  # class -> the mean of its pictures
    cases: tuple[Case, ...] = ()

    @property
    def most(self) -> int:
        return max(v.hidden.pictures for views in self.views.values() for v in views)

    @property
    def has_parts(self) -> bool:
        return any(v.parts for views in self.views.values() for v in views)

    def sentences(self) -> list[str]:
        """Where one place decides, for whom."""
        places: dict[str, list[str]] = {}
        for name, views in self.views.items():
            height, width = self.usual[name].shape[1:]
            for view in (v for v in views if v.hidden.decides and not v.beside):
                y, x, bottom, right = view.hidden.strongest
                where = place((y + bottom) / 2 / height, (x + right) / 2 / width)
                text = f"One place decides on class {name}, {where} of the picture"
                places.setdefault(text, []).append(view.model)
        return [
            (
                f"{text} ({' and '.join(of)}). Check whether what lies there belongs to the class, or is a "
                "mark, a text or a tube. In our trials, half of the classes without any "
                "mark had such a place, too."
            )
            for text, of in places.items()
        ] or ["For no class that was examined does a single place decide."]


def place(down: float, across: float) -> str:
    """
    >>> place(0.1, 0.9), place(0.5, 0.5), place(0.5, 0.1), place(0.9, 0.5)
    ('at the upper right', 'in the middle', 'at the left', 'at the lower rim')
    """
    rows = "upper" if down < 1 / 3 else "lower" if down > 2 / 3 else ""
    columns = "left" if across < 1 / 3 else "right" if across > 2 / 3 else "rim" if rows else ""
    return f"at the {' '.join(w for w in (rows, columns) if w)}" if rows or columns else "in the middle"


def make_seen(
    net: Net,
    models: Sequence[ViewedModel],
    pictures: Pictures,
    labels: Ints,
    names: Sequence[str],
    classes: Sequence[str],
    learned: NDArray[np.bool_],
    shares: Callable[[Tensor], Tensor],
    cases: Sequence[CasePicture] = (),
    beside: Sequence[ViewedModel] = (),
) -> PrototypeEvidence:
    """`models`: the one that predicts first; `learned` [row]: what they were trained on; `shares`: scores ->
    probabilities; `cases`: pictures that are taken apart; `beside`: models of which only what decides on a class is
    shown."""
    counts = np.bincount(labels, minlength=len(classes))
    shown = sorted(np.argsort(-counts, kind="stable")[:CLASSES].tolist())
    parts: list[list[PrototypePart]] = [[] for _ in models]
    held = [{k: v[None] for k, v in m.params.items()} for m in models]
    if isinstance(net, ProtoNet):
        parts = [_parts(net, params, pictures, labels, names, classes, learned) for params in held]
    usual, views = {}, {}
    for c in (c for c in shown if counts[c]):
        name, rows = classes[c], pictures[labels == c]
        usual[name] = rows.mean(0).round().astype(np.uint8)
        seen = [
            ClassView(m.title, hide(answers_of(m), rows, c), _few(of, name))
            for m, of in zip(models, parts, strict=True)
        ]
        views[name] = (*seen, *(ClassView(m.title, hide(answers_of(m), rows, c), beside=True) for m in beside))
    taken = tuple(make_case(net, models, parts, one, classes, shares) for one in cases)
    return PrototypeEvidence(views, usual, taken)


def _parts(
    net: ProtoNet,
    params: Params,
    pictures: Pictures,
    labels: Ints,
    names: Sequence[str],
    classes: Sequence[str],
    learned: NDArray[np.bool_],
) -> list[PrototypePart]:
    """Of every prototype, in order."""
    m, weights = net.per_class, params[net.HEAD][0]
    out = []
    for c, name in enumerate(classes):
        rows = np.flatnonzero((labels == c) & learned)
        nearest, at = torch.full((m,), torch.inf), torch.zeros(m, dtype=torch.long)
        cell = torch.zeros(m, dtype=torch.long)
        for few in np.array_split(rows, max(1, -(-len(rows) // AT_ONCE))):
            if len(few):
                maps = net.maps(params, stacked_rows(pictures[few]))[0][:, c * m : (c + 1) * m].flatten(2)
                least, where = maps.min(2)  # [row, prototype]
                best, which = least.min(0)
                better = best < nearest
                nearest = torch.where(better, best, nearest)
                at = torch.where(better, torch.from_numpy(few)[which], at)
                cell = torch.where(better, where[which, torch.arange(m)], cell)
        places = [(int(a), int(b)) for a, b in zip(at, cell, strict=True)]
        for k in range(m):
            behind: Patch | None = None
            same: tuple[int, ...] = (k + 1,)
            if len(rows):
                row = places[k][0]
                behind = Patch(names[row], pictures[row], box_of(net, params, pictures[row], c * m + k))
                same = tuple(j + 1 for j in range(m) if places[j] == places[k])
            out.append(PrototypePart(name, k + 1, float(weights[c, c * m + k]), behind, same))
    return out


def _few(parts: Sequence[PrototypePart], name: str) -> tuple[PrototypePart, ...]:
    """Of a class, those that count most; of those that stand for the same place, one."""
    by_patch: dict[object, PrototypePart] = {}
    for part in sorted((p for p in parts if p.of == name and p.behind), key=lambda p: -p.weight):
        assert part.behind
        by_patch.setdefault((part.behind.name, part.behind.box), part)
    return tuple(by_patch.values())[:PARTS]
