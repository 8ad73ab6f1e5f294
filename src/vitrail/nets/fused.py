"""A layer's element-wise work. On a GPU tanh and dropout are one kernel (compiled at first use by CUDA itself): at the
size of one site's batch, a round is mostly the waiting between kernels."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from vitrail.core.random import dropped_


def activated(h: Tensor, weight: Tensor, bias: Tensor, rescale: float, keep: Tensor | None) -> Tensor:
    """tanh(rescale * h weight + bias), dropped units set to zero."""
    z = torch.baddbmm(bias, h, weight, alpha=rescale)
    if keep is not None and z.is_cuda:
        return _kernel("template <typename T> T thin_tanh(T z, T keep) { return keep * T(tanh(z)); }")(z, keep)
    z.tanh_()
    return z if keep is None else dropped_(z, keep)


def through_tanh(slope: Tensor, h: Tensor, keep: Tensor | None) -> Tensor:
    """The slope before a tanh whose (dropped) value was h."""
    if keep is not None and slope.is_cuda:
        code = "template <typename T> T thin_slope(T s, T h, T keep) { return keep * s * (T(1) - h * h); }"
        return _kernel(code)(slope, h, keep)
    if keep is not None:
        dropped_(slope, keep)
    back: Tensor = torch.ops.aten.tanh_backward(slope, h)
    return back


@cache
def _kernel(code: str) -> Callable[..., Tensor]:
    return torch.cuda.jiterator._create_jit_fn(code)
