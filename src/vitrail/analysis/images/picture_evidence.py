"""One picture under each of a site's models, side by side; at the site alone, and nothing of it leaves.

Of a network with prototypes: which patches of the picture look most like which prototypes, and what each adds to the
score of the class that the first model predicts: similarity times weight in the last layer, which sum up to the score.
Of any network: what changes that score when it is hidden (occlusion_map.py), and what each model answers when the place
that matters most to the first model is painted over in the picture.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.analysis.images.occlusion_map import OcclusionMap, Pictures, hide
from vitrail.core.occlusion import painted
from vitrail.core.task import Net
from vitrail.core.tensors import Params
from vitrail.nets.prototype_network import ProtoNet

LINES = 5  # of one picture's evidence; the rest is summed
FIRES = 0.99  # of the map's pixels lie outside of a box

Box = tuple[int, int, int, int]  # top, left, bottom, right, in pixels
Picture = NDArray[np.uint8]  # [channel, height, width]


class ViewedModel(NamedTuple):
    """One of the site's models."""

    title: str
    scores: Callable[[Tensor], Tensor]  # [row, channel, height, width] -> [row, class]
    params: Params


class Patch(NamedTuple):
    """A place in a picture."""

    name: str  # of its file, or its row
    picture: Picture
    box: Box


class PrototypePart(NamedTuple):
    """A prototype, and the picture that stands behind it."""

    of: str  # class
    number: int  # among those of its class, from 1
    weight: float  # what its similarity counts for its class
    behind: Patch | None  # none where the site has no picture of the class
    same: tuple[int, ...] = ()  # numbers of the class's prototypes that stand for the same place, itself among them


class PatchMatch(NamedTuple):
    """This (a place in the picture) looks like that (a place in a training picture)."""

    part: PrototypePart
    here: Patch
    alike: float  # similarity
    weight: float  # in the last layer, for the class
    adds: float  # to the score


class PictureAnswer(NamedTuple):
    said: str  # the most likely class
    share: float  # the probability of the class that the case is about


class CaseView(NamedTuple):
    """A picture under one model."""

    model: str
    answer: PictureAnswer
    covered: PictureAnswer  # where the strongest window of the first model is painted over
    hidden: OcclusionMap
    lines: tuple[PatchMatch, ...] = ()
    rest: float = 0.0  # what all other prototypes add
    total: float = 0.0  # the score of the class; sum of the evidence

    @property
    def boxes(self) -> list[Box]:
        """Of the patches that speak for the class."""
        return list(dict.fromkeys(line.here.box for line in self.lines if line.adds > 0))


class Case(NamedTuple):
    name: str
    picture: Picture
    label: str  # empty where it is not known
    of: str  # the class that the first model predicts, about which all the rest is
    views: tuple[CaseView, ...]
    painted: Picture  # over the strongest window of the first model

    @property
    def right(self) -> bool:
        return self.label in ("", self.of)


class CasePicture(NamedTuple):
    name: str
    picture: Picture
    label: str = ""


def make_case(
    net: Net,
    models: Sequence[ViewedModel],
    parts: Sequence[Sequence[PrototypePart]],
    one: CasePicture,
    classes: Sequence[str],
    shares: Callable[[Tensor], Tensor],
) -> Case:
    """`parts`: of each model all prototypes in order, empty where it has none; `shares`: scores -> probabilities."""
    rows = one.picture[None]
    of = int(answers_of(models[0])(rows)[0].argmax())
    maps = [hide(answers_of(m), rows, of) for m in models]
    top, left, bottom, _ = maps[0].strongest
    hidden = painted(torch.from_numpy(rows).double(), top, left, bottom - top)
    covered = np.asarray(hidden.round().to(torch.uint8).numpy())
    views = []
    for model, there, fall in zip(models, parts, maps, strict=True):
        given, painted_over = (_answer(model, x, of, classes, shares) for x in (rows, covered))
        view = CaseView(model.title, given, painted_over, fall)
        views.append(_with_evidence(net, model, there, one, of, view) if isinstance(net, ProtoNet) else view)
    return Case(one.name, one.picture, one.label, classes[of], tuple(views), covered[0])


def answers_of(model: ViewedModel) -> Callable[[Pictures], NDArray[np.float64]]:
    """Scores of all classes, also where the network has one output for two."""

    def answer(rows: Pictures) -> NDArray[np.float64]:
        with torch.no_grad():
            z = model.scores(torch.from_numpy(np.ascontiguousarray(rows))).double().numpy()
        return np.hstack([np.zeros_like(z), z]) if z.shape[1] == 1 else z

    return answer


def _answer(
    model: ViewedModel, rows: Pictures, of: int, classes: Sequence[str], shares: Callable[[Tensor], Tensor]
) -> PictureAnswer:
    with torch.no_grad():
        p = shares(model.scores(torch.from_numpy(np.ascontiguousarray(rows)))).double()[0]
    return PictureAnswer(classes[int(p.argmax())], float(p[of]))


def _with_evidence(
    net: ProtoNet, model: ViewedModel, parts: Sequence[PrototypePart], one: CasePicture, of: int, view: CaseView
) -> CaseView:
    params, x = {k: v[None] for k, v in model.params.items()}, stacked_rows(one.picture[None])
    adds = net.evidence(params, x)[0, 0, :, of]  # [prototype]
    alike = net.similarity(net.forward(params, x, tape=False).features)[0, 0]
    order = adds.abs().argsort(descending=True).tolist()
    lines = tuple(
        PatchMatch(
            parts[p],
            Patch(one.name, one.picture, box_of(net, params, one.picture, p)),
            float(alike[p]),
            float(params[net.HEAD][0, of, p]),
            float(adds[p]),
        )
        for p in order[:LINES]
    )
    return view._replace(lines=lines, rest=float(adds[order[LINES:]].sum()), total=float(adds.sum()))


def box_of(net: ProtoNet, params: Params, picture: Picture, prototype: int) -> Box:
    """Where the feature map fires: the smallest that holds the highest hundredth of the map."""
    near = net.similarity(net.maps(params, stacked_rows(picture[None]))[0, 0, prototype])
    height, width = picture.shape[1:]
    over = net.cells().spread(near, (height, width))
    down, across = (over >= over.flatten().quantile(FIRES)).nonzero(as_tuple=True)
    return int(down.min()), int(across.min()), int(down.max()) + 1, int(across.max()) + 1


def stacked_rows(pictures: Pictures) -> Tensor:
    """As rows of one site."""
    return torch.from_numpy(np.ascontiguousarray(pictures))[None]
