"""Backbones of a network with prototypes, their weights read from a file that the user has.

EfficientNet-Lite0 (nets/efficientnet.py), and the two kinds of inDISCO and ProtoPNet: VGG (Simonyan and Zisserman 2015)
and DenseNet-121 (Huang et al. 2017), without the layers that tell ImageNet's classes. Parameters are named as in
torchvision, whose files (vgg19-dcbb9e9d.pth, densenet121-a639ec97.pth) are what is read, also under the older names of
DenseNet's (norm.1 for norm1). No such file was at hand when this was written: architecture, names, shapes and numbers
of parameters are tested, and that real weights tell pictures well is not.

    VGG        3 x 3 convolutions with ReLU, a maximum over 2 x 2 after each group         512 maps
    DenseNet   each layer is given all before it in its block; norm, ReLU, convolution     1024 maps

A batch norm stands still: y = x g / sqrt(var + 1e-5) + (beta - mean g / sqrt(var + 1e-5)), so that nothing remembers
batches; the two numbers for each channel are trained with the rest where the backbone is. Pictures come as -1 to 1 and
are brought to torchvision's scale, (x - mean) / sd for each colour of x from 0 to 1; grey ones three times over.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from vitrail.core.errors import Problem, VitrailError
from vitrail.nets import efficientnet
from vitrail.nets.weight_files import WRONG, Weights, find, misfits
from vitrail.storage.tensor_files import tensors_in

MEAN, SD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet's pictures, by colour
EPS = 1e-5
VGG = {  # convolutions of each group, and how many channels each gives
    "vgg11": ((1, 64), (1, 128), (2, 256), (2, 512), (2, 512)),
    "vgg16": ((2, 64), (2, 128), (3, 256), (3, 512), (3, 512)),
    "vgg19": ((2, 64), (2, 128), (4, 256), (4, 512), (4, 512)),
}
VGG_CLASSIFIER = {"0": (4096, 512 * 49), "3": (4096, 4096), "6": (1000, 4096)}
BLOCKS, GROWTH, BOTTLENECK, FIRST = (6, 12, 24, 16), 32, 4, 64  # of DenseNet-121
IGNORED = ("classifier.", "num_batches_tracked")


class Backbone(NamedTuple):
    title: str
    channels: int  # of its maps
    make: Callable[[int, str], nn.Module]  # of a picture's channels and a file of weights; "": drawn
    read: Callable[[str], Weights]
    lattice: tuple[int, float, int]  # stride, offset and field of cells (nets/prototype_network.py)


class _Pictures(nn.Sequential):
    """Layers that are given pictures, 1 or 3 channels of -1 to 1."""

    channels = 3
    mean: Tensor
    sd: Tensor

    def __init__(self, *layers: Any) -> None:
        super().__init__(*layers)
        for name, value in (("mean", MEAN), ("sd", SD)):
            self.register_buffer(name, torch.tensor(value)[:, None, None], persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        x = x.expand(*x.shape[:-3], 3, *x.shape[-2:]) if self.channels == 1 else x
        return _through(self, ((x + 1) / 2 - self.mean) / self.sd)


class FixedNorm(nn.Module):
    """A batch norm that remembers nothing: a factor and a shift for each channel."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.weight[:, None, None] + self.bias[:, None, None]


class _DenseLayer(nn.Sequential):
    """Its input, and GROWTH maps more."""

    def __init__(self, given: int) -> None:
        wide = BOTTLENECK * GROWTH
        first = {"norm1": FixedNorm(given), "relu1": nn.ReLU(), "conv1": nn.Conv2d(given, wide, 1, bias=False)}
        last = {"norm2": FixedNorm(wide), "relu2": nn.ReLU(), "conv2": nn.Conv2d(wide, GROWTH, 3, 1, 1, bias=False)}
        super().__init__(OrderedDict[str, nn.Module](first | last))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, _through(self, x)], -3)


def _through(layers: nn.Sequential, x: Tensor) -> Tensor:
    for layer in layers:
        x = layer(x)
    return x


def _vgg(name: str) -> _Pictures:
    layers, given = list[nn.Module](), 3
    for many, out in VGG[name]:
        for _ in range(many):
            layers += [nn.Conv2d(given, out, 3, 1, 1), nn.ReLU()]
            given = out
        layers.append(nn.MaxPool2d(2))
    return _Pictures(*layers)


def _densenet121() -> _Pictures:
    first = nn.Conv2d(3, FIRST, 7, 2, 3, bias=False)
    layers: dict[str, nn.Module] = {"conv0": first, "norm0": FixedNorm(FIRST), "relu0": nn.ReLU()}
    layers["pool0"], width = nn.MaxPool2d(3, 2, 1), FIRST
    for block, many in enumerate(BLOCKS, 1):
        dense = {f"denselayer{i + 1}": _DenseLayer(width + i * GROWTH) for i in range(many)}
        layers[f"denseblock{block}"], width = nn.Sequential(OrderedDict(dense)), width + many * GROWTH
        if block < len(BLOCKS):
            halves = {"norm": FixedNorm(width), "relu": nn.ReLU(), "conv": nn.Conv2d(width, width // 2, 1, bias=False)}
            layers[f"transition{block}"] = nn.Sequential(OrderedDict(**halves, pool=nn.AvgPool2d(2)))
            width //= 2
    return _Pictures(OrderedDict(**layers, norm5=FixedNorm(width), relu5=nn.ReLU()))


def _drawn(name: str) -> _Pictures:
    return _vgg(name) if name in VGG else _densenet121()


def _blank(name: str) -> _Pictures:
    """Names and shapes alone."""
    with torch.device("meta"):
        return _drawn(name)


def _made(name: str, channels: int, weights: str) -> nn.Module:
    made = _drawn(name)
    made.channels = channels
    if weights:
        made.load_state_dict(_weights(name, weights).params)
    return made


def file_shapes(name: str) -> dict[str, tuple[int, ...]]:
    """Every number of torchvision's file by tensor, those of its classifier too; without counts of batches."""
    shapes = {f"features.{k}": tuple(v.shape) for k, v in _blank(name).state_dict().items()}
    for layer in _norms(name):
        shapes |= dict.fromkeys(
            (f"features.{layer}.running_{k}" for k in ("mean", "var")), shapes[f"features.{layer}.weight"]
        )
    layers = {f"classifier.{k}": v for k, v in VGG_CLASSIFIER.items()} if name in VGG else {"classifier": (1000, 1024)}
    for layer, shape in layers.items():
        shapes |= {f"{layer}.weight": shape, f"{layer}.bias": shape[:1]}
    return shapes


def _norms(name: str) -> list[str]:
    return [layer for layer, part in _blank(name).named_modules() if isinstance(part, FixedNorm)]


def _weights(name: str, file: str) -> Weights:
    path = find(file)
    about = path.stat()
    return _read(name, path, about.st_mtime_ns, about.st_size)


@lru_cache(maxsize=2)
def _read(name: str, path: Path, changed: int, size: int) -> Weights:
    """The parameters of these convolutions, batch norms folded."""
    title, hint = TABLE[name].title, f"Give torchvision's file of {TABLE[name].title}, or name another backbone."
    held, mark = tensors_in(path, hint)
    held = {re.sub(r"(denselayer\d+\.(?:norm|conv))\.(\d)", r"\1\2", k): v for k, v in held.items()}
    wanted = {k: v for k, v in file_shapes(name).items() if not k.startswith(IGNORED)}
    wrong = misfits(held, wanted, IGNORED)
    below = [k for k in wanted if k.endswith("running_var") and k in held and bool((held[k] < 0).any())]
    wrong += [f"a variance is below 0: {', '.join(below)}."] if below else []
    if wrong:
        raise VitrailError(WRONG, [Problem(str(path), f"it is not {title}: {what}", hint) for what in wrong])
    params = {k.removeprefix("features."): held[k].float() for k in wanted}
    for layer in _norms(name):
        mean, var = (params.pop(f"{layer}.running_{k}") for k in ("mean", "var"))
        by = params[f"{layer}.weight"] / (var + EPS).sqrt()
        params |= {f"{layer}.weight": by, f"{layer}.bias": params[f"{layer}.bias"] - mean * by}
    return Weights(params, mark)


def _lattice(layers: nn.Module) -> tuple[int, float, int]:
    """Stride, offset and field of the cells that these layers make, in the order in which they stand."""
    stride, offset, field = 1, 0.0, 1
    for layer in layers.modules():
        if isinstance(layer, nn.Conv2d | nn.MaxPool2d | nn.AvgPool2d):
            kernel, step, padding = (
                v[0] if isinstance(v, tuple) else int(v) for v in (layer.kernel_size, layer.stride, layer.padding)
            )
            offset += stride * ((kernel - 1) / 2 - int(padding))
            field, stride = field + (kernel - 1) * stride, stride * step
    return stride, offset, field


def _of_torchvision(name: str, title: str, channels: int) -> Backbone:
    return Backbone(title, channels, partial(_made, name), partial(_weights, name), _lattice(_blank(name)))


TABLE = {
    "efficientnet_lite0": Backbone(
        "EfficientNet-Lite0",
        efficientnet.CHANNELS,
        efficientnet.EfficientNet,
        efficientnet.folded,
        efficientnet.LATTICE,
    ),
    **{name: _of_torchvision(name, f"VGG-{name[3:]}", 512) for name in VGG},
    "densenet121": _of_torchvision("densenet121", "DenseNet-121", 1024),
}
