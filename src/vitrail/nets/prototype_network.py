"""ProtoPNet (Chen et al. 2019): a class is told by parts of a picture that look like parts of pictures it has learned.

    f(x)      a feature map, from any backbone        group features     [channel, h, w]
    z         sigmoid(conv1x1(relu(conv1x1(f))))      group add_on       [D, h, w], a latent patch for each cell
    d_p       min over cells |z - p|^2                group prototypes   m for each class, of D numbers
    s_p       log((d_p + 1) / (d_p + eps))            how much of p is somewhere in the picture; with "cosine":
              1 - d_p, d_p = min over cells of 1 - cos(z - 1/2, p - 1/2)
    scores    sum_p w_cp s_p                          group head         starts as 1 for p's own class, -0.5 else

A prototype's evidence for class c is w_cp s_p: the scores are its sum and nothing else. Out.features are the d_p.

Cosine similarity is that of ProtoPNeXt (Willard et al. 2024), which has no sigmoid before it; here latent patches stay
between 0 and 1, so that a prototype is a patch all the same, and the cosine is taken from their middle: from 0 all of
them would point the same way.

The backbone is small and trained here, without normalisation: a cell sees its own field and no more. Or it is that of
nets/backbones.py with weights from a file; `frozen`, it stands still, and rows may be its feature maps, computed
once (runs/backbone_features.py), in place of pictures: the network takes both.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from vitrail.core.declarations import Adapters
from vitrail.core.errors import Problem, VitrailError
from vitrail.core.tensors import Params, to_floats
from vitrail.nets.backbones import TABLE as BACKBONES
from vitrail.nets.module import Module

EPS = 1e-4
MIDDLE, SPREAD = 0.5, 0.4  # of prototypes at first: where latent patches lie, between 0 and 1
TINY = 1e-12  # added to squared lengths, so that a patch in the very middle has an angle
AT_ONCE = 32  # pictures, when features are computed
FOR_ITS_OWN, FOR_OTHERS = 1.0, -0.5  # what a similarity counts at first
Similarity = Literal["log", "cosine"]


class Cells(NamedTuple):
    """Where the cells of a feature map lie on the picture: that of row i has its centre at pixel offset + stride * i,
    and nothing farther than field / 2 from there can change it. Columns likewise."""

    stride: int = 1
    offset: float = 0.0
    field: int = 1

    def through(self, kernel: int, stride: int, padding: int) -> Cells:
        """Those of one more layer."""
        offset = self.offset + self.stride * ((kernel - 1) / 2 - padding)
        return Cells(self.stride * stride, offset, self.field + (kernel - 1) * self.stride)

    def spread(self, maps: Tensor, size: tuple[int, int]) -> Tensor:
        """[..., h, w] -> [..., height, width]: straight lines between the centres of cells, level beyond the last."""
        down, across = (self._lines(n, of, maps) for n, of in zip(maps.shape[-2:], size, strict=True))
        return down @ maps @ across.T

    def _lines(self, cells: int, pixels: int, like: Tensor) -> Tensor:
        """[pixel, cell]: how much of each cell is in each pixel."""
        at = (torch.arange(pixels, device=like.device, dtype=like.dtype) - self.offset) / self.stride
        nearness = 1 - (at.clamp(0, cells - 1)[:, None] - torch.arange(cells, device=like.device)).abs()
        return nearness.clamp(min=0)


@dataclass(frozen=True, eq=False)
class ProtoNet(Module):
    """A network with prototypes; see `prototypes`."""

    NAME: ClassVar[str] = "prototypes"  # the parameter [class * m, D]
    HEAD: ClassVar[str] = "last.weight"  # the parameter [class, class * m]
    per_class: int = 10
    pictures: tuple[int, ...] = ()  # the shape of a picture; that of a row is another where the backbone is frozen
    sha256: str = ""  # of the file that the backbone was read from
    where: Cells = Cells()  # noqa: RUF009
    measure: Similarity = "log"

    @property
    def pretrained(self) -> bool:
        return bool(self.sha256)

    def cells(self) -> Cells:
        return self.where

    def own(self, like: Tensor) -> Tensor:
        """[class, prototype] bool: whether it is of that class; where `like` is."""
        of = torch.arange(self.outputs * self.per_class, device=like.device) // self.per_class
        return of == torch.arange(self.outputs, device=like.device)[:, None]

    def framed(self, ends: Adapters) -> ProtoNet:
        if ends.input and self.shape != self.pictures:
            what = "layers at a site's input shift pictures, and a frozen backbone is given them before any layer."
            problem = Problem("network.frozen", what, "Write frozen = false, or use another method.")
            raise VitrailError("the method cannot use this network", [problem])
        return replace(self, ends=ends)

    def maps(self, params: Params, x: Tensor) -> Tensor:
        """[site, row, prototype, h, w]: squared distances of the latent patches of rows [site, row, ...]."""
        return self.seen(params, x)[0]

    def seen(self, params: Params, x: Tensor) -> tuple[Tensor, Tensor]:
        """The maps, and the latent patches [site, row, D, h, w]."""
        with torch.no_grad():
            if x.device.type != "cpu":
                return self._in_blocks(vmap(partial(self._through, what="maps")), params, x, 1)
            each = [{k: v[i] for k, v in params.items()} for i in range(len(x))]
            got = [self._in_blocks(partial(self._through, what="maps"), p, r, 0) for p, r in zip(each, x, strict=True)]
            return torch.stack([d for d, _ in got]), torch.stack([z for _, z in got])

    def evidence(self, params: Params, x: Tensor) -> Tensor:
        """[site, row, prototype, class]: what each prototype adds to each score; summed over prototypes, the scores of
        a network without layers at its ends."""
        nearest = self.forward(params, x, tape=False).features
        return self.similarity(nearest)[..., None] * params[self.HEAD].transpose(1, 2)[:, None]

    def similarity(self, distance: Tensor) -> Tensor:
        """How alike a patch and a prototype are that lie so far apart; what the scores are a sum of."""
        return similarity(distance, self.measure)

    def features_of(self, x: Tensor) -> Tensor:
        """[row, ...]: the backbone's maps of pictures [row, channel, height, width], where it stands still."""
        with torch.no_grad():
            like = torch.empty(0, device=x.device)
            return torch.cat([self._features(to_floats(rows, like)) for rows in torch.split(x, AT_ONCE)])

    def _features(self, x: Tensor) -> Tensor:
        module, _ = self._copy(x)
        got: Tensor = module.features(self.entered({}, x))  # type: ignore[operator]
        return got

    def entered(self, params: Params, x: Tensor) -> Tensor:
        return super().entered(params, x) if x.shape[-3:] == self.pictures else x

    def _through(self, params: Params, x: Tensor, what: str) -> Any:
        module, seen = self._copy(x)
        got = functional_call(module, self.inner(params), (self.entered(params, x),), {"what": what})
        seen.clear()
        return got


def similarity(distance: Tensor, measure: Similarity = "log") -> Tensor:
    return 1 - distance if measure == "cosine" else ((distance + 1) / (distance + EPS)).log()


class _Last(nn.Linear):
    """Scores from distances; its input is what a site's loss pulls at."""

    def __init__(self, given: int, out: int, measure: Similarity) -> None:
        super().__init__(given, out, bias=False)
        self.measure = measure

    def forward(self, distance: Tensor) -> Tensor:
        return super().forward(similarity(distance, self.measure))


class _ProtoPNet(nn.Module):
    def __init__(
        self,
        backbone: Callable[[], nn.Module],
        picture: tuple[int, ...],
        sizes: tuple[int, int],
        outputs: int,
        per_class: int,
        frozen: bool,
        measure: Similarity,
    ) -> None:
        super().__init__()
        channels, latent = sizes
        self.picture, self.measure = picture, measure
        self.features = backbone()
        if frozen:
            self.features.requires_grad_(False)
        first, second = nn.Conv2d(channels, latent, 1), nn.Conv2d(latent, latent, 1)
        self.add_on = nn.Sequential(first, nn.ReLU(), second, nn.Sigmoid())
        self.prototypes = nn.Parameter(MIDDLE + SPREAD * (torch.rand(outputs * per_class, latent) - 0.5))
        self.last = _Last(outputs * per_class, outputs, measure)
        own = torch.arange(outputs).repeat_interleave(per_class) == torch.arange(outputs)[:, None]
        with torch.no_grad():
            self.last.weight.copy_(torch.where(own, FOR_ITS_OWN, FOR_OTHERS))

    def forward(self, x: Tensor, what: str = "scores") -> Any:
        if x.shape[-3:] == self.picture:
            x = self.features(x)
        z = self.add_on(x)
        distance = self.squares(z) if self.measure == "log" else self.angles(z)
        if what == "maps":
            return distance, z
        return self.last(distance.flatten(2).amin(2))

    def squares(self, z: Tensor) -> Tensor:
        """[row, prototype, h, w]: squared distances."""
        p = self.prototypes
        to_each = (z**2).sum(1, keepdim=True) - 2 * nn.functional.conv2d(z, p[:, :, None, None])
        return (to_each + (p**2).sum(1)[:, None, None]).relu()

    def angles(self, z: Tensor) -> Tensor:
        """The same of 1 - cosine, seen from the middle."""
        z, p = z - MIDDLE, self.prototypes - MIDDLE
        z = z / ((z**2).sum(1, keepdim=True) + TINY).sqrt()
        p = p / ((p**2).sum(1, keepdim=True) + TINY).sqrt()
        return (1 - nn.functional.conv2d(z, p[:, :, None, None])).relu()


def prototypes(
    shape: tuple[int, ...],
    outputs: int,
    width: int = 16,
    per_class: int = 10,
    latent: int | None = None,
    weights: str = "",
    frozen: bool = False,
    backbone: str = "efficientnet_lite0",
    measure: Similarity = "log",
) -> ProtoNet:
    """`latent`: D, 128 on top of a pretrained backbone and 16 on the small one. `weights`: a file with the weights of
    `backbone`; without it the small one, `width` channels wide at first."""
    made: Callable[[], nn.Module]
    if weights:
        kind = BACKBONES[backbone]
        mark, made = kind.read(weights).sha256, partial(kind.make, shape[0], weights)
        channels, where = kind.channels, Cells(*kind.lattice)
    else:
        mark, made, channels = "", partial(_small, shape[0], width), 2 * width
        where = _cells_of(_small(shape[0], width))
    size = tuple(-(-n // where.stride) if weights else n // where.stride for n in shape[1:])
    sizes = channels, latent or (128 if weights else 16)
    whole = partial(_ProtoPNet, made, shape, sizes, outputs, per_class, frozen, measure)
    named = {g: (g,) for g in ("features", "add_on", "prototypes")} | {"head": ("last",)}
    row = (channels, *size) if frozen else shape
    return ProtoNet(whole, row, named, per_class=per_class, pictures=shape, sha256=mark, where=where, measure=measure)


def _small(channels: int, width: int) -> nn.Sequential:
    """Steps of two in place of pooling, which on a CPU takes longer than the convolutions; by kernels of 4, which lie
    evenly over the picture."""
    return nn.Sequential(
        nn.Conv2d(channels, width, 4, 2, 1), nn.ReLU(),
        nn.Conv2d(width, 2 * width, 4, 2, 1), nn.ReLU(),
        nn.Conv2d(2 * width, 2 * width, 3, 1, 1), nn.ReLU(),
    )  # fmt: skip


def _cells_of(layers: nn.Sequential) -> Cells:
    cells = Cells()
    for layer in layers:
        if isinstance(layer, nn.Conv2d):
            cells = cells.through(layer.kernel_size[0], layer.stride[0], int(layer.padding[0]))
    return cells
