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
from vitrail.core.task import Net
from vitrail.core.tensors import Params
from vitrail.nets.prototype_network import ProtoNet

CLASSES = 6  # that are shown, the largest
PARTS = 4  # of a class under one model
LINES = 5  # of one picture's evidence; the rest is summed
FIRES = 0.99  # of the map's pixels lie outside of a box
AT_ONCE = 64  # pictures

Ints = NDArray[np.int64]
Box = tuple[int, int, int, int]  # top, left, bottom, right, in pixels


class ViewedModel(NamedTuple):
    """One of the site's models."""

    title: str
    scores: Callable[[Tensor], Tensor]  # [row, channel, height, width] -> [row, class]
    params: Params


class Patch(NamedTuple):
    """A place in a picture."""

    name: str  # of its file, or its row
    picture: NDArray[np.uint8]  # [channel, height, width]
    box: Box


class PrototypePart(NamedTuple):
    """A prototype, and the picture that stands behind it."""

    of: str  # class
    number: int  # among those of its class, from 1
    weight: float  # what its similarity counts for its class
    behind: Patch | None  # none where the site has no picture of the class
    alike: int  # how many prototypes of the class stand for the same place


class ClassView(NamedTuple):
    """One class under one model."""

    model: str
    hidden: OcclusionMap
    parts: tuple[PrototypePart, ...] = ()


class PatchMatch(NamedTuple):
    """This (a place in the picture) looks like that (a place in a training picture)."""

    part: PrototypePart
    here: Patch
    alike: float  # similarity
    adds: float  # to the score


class Case(NamedTuple):
    """One picture, and the sum that its score is."""

    name: str
    picture: NDArray[np.uint8]
    label: str
    said: str
    scores: tuple[tuple[str, float], ...]  # the highest first
    lines: tuple[PatchMatch, ...]  # of the class that the model says
    rest: float  # what all other prototypes add

    @property
    def total(self) -> float:
        return self.scores[0][1]


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
            for view in (v for v in views if v.hidden.decides):
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
    cases: Sequence[int] = (),
) -> PrototypeEvidence:
    """`models`: the one that predicts first; `learned` [row]: what they were trained on; `cases`: rows that are taken
    apart, where the network has prototypes."""
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
        views[name] = tuple(
            ClassView(m.title, hide(_answers(m), rows, c), _few(of, name)) for m, of in zip(models, parts, strict=True)
        )
    taken = []
    if isinstance(net, ProtoNet):
        taken = [_case(net, held[0], parts[0], pictures[i], names[i], int(labels[i]), classes) for i in cases]
    return PrototypeEvidence(views, usual, tuple(taken))


def _answers(model: ViewedModel) -> Callable[[Pictures], NDArray[np.float64]]:
    def answer(rows: Pictures) -> NDArray[np.float64]:
        with torch.no_grad():
            z = model.scores(torch.from_numpy(np.ascontiguousarray(rows))).double().numpy()
        return np.hstack([np.zeros_like(z), z]) if z.shape[1] == 1 else z

    return answer


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
                maps = net.maps(params, _rows(pictures[few]))[0][:, c * m : (c + 1) * m].flatten(2)
                least, where = maps.min(2)  # [row, prototype]
                best, which = least.min(0)
                better = best < nearest
                nearest = torch.where(better, best, nearest)
                at = torch.where(better, torch.from_numpy(few)[which], at)
                cell = torch.where(better, where[which, torch.arange(m)], cell)
        places = [(int(a), int(b)) for a, b in zip(at, cell, strict=True)]
        for k in range(m):
            behind = None
            if len(rows):
                row = places[k][0]
                behind = Patch(names[row], pictures[row], _box(net, params, pictures[row], c * m + k))
            out.append(PrototypePart(name, k + 1, float(weights[c, c * m + k]), behind, places.count(places[k])))
    return out


def _few(parts: Sequence[PrototypePart], name: str) -> tuple[PrototypePart, ...]:
    """Of a class, those that count most; of those that stand for the same place, one."""
    by_patch: dict[object, PrototypePart] = {}
    for part in sorted((p for p in parts if p.of == name and p.behind), key=lambda p: -p.weight):
        assert part.behind
        by_patch.setdefault((part.behind.name, part.behind.box), part)
    return tuple(by_patch.values())[:PARTS]


def _case(
    net: ProtoNet, params: Params, parts: Sequence[PrototypePart], picture: NDArray[np.uint8], name: str, label: int,
    classes: Sequence[str],
) -> Case:  # fmt: skip
    x = _rows(picture[None])
    evidence = net.evidence(params, x)[0, 0]  # [prototype, class]
    scores = evidence.sum(0)
    predicted = int(scores.argmax())
    alike = net.similarity(net.forward(params, x, tape=False).features)[0, 0]
    order = evidence[:, predicted].abs().argsort(descending=True).tolist()
    lines = tuple(
        PatchMatch(
            parts[p],
            Patch(name, picture, _box(net, params, picture, p)),
            float(alike[p]),
            float(evidence[p, predicted]),
        )
        for p in order[:LINES]
    )
    ranked = tuple((classes[c], float(scores[c])) for c in scores.argsort(descending=True).tolist())
    rest = float(evidence[order[LINES:], predicted].sum())
    return Case(name, picture, classes[label], classes[predicted], ranked, lines, rest)


def _box(net: ProtoNet, params: Params, picture: NDArray[np.uint8], prototype: int) -> Box:
    near = net.similarity(net.maps(params, _rows(picture[None]))[0, 0, prototype])
    height, width = picture.shape[1:]
    over = net.cells().spread(near, (height, width))
    down, across = (over >= over.flatten().quantile(FIRES)).nonzero(as_tuple=True)
    return int(down.min()), int(across.min()), int(down.max()) + 1, int(across.max()) + 1


def _rows(pictures: Pictures) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(pictures))[None]
