"""A layer's element-wise work. On a GPU tanh and dropout are one kernel (compiled at first use by CUDA itself): at the
size of one site's batch, a round is mostly the waiting between kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor

from vitrail.core.random import dropped_
from vitrail.core.tensors import Params, scratch


def stretched(x: Tensor, shift: Tensor, scale: Tensor, keep: Tensor | None) -> Tensor:
    """f_in(x) = (x + shift) * scale, dropped features set to zero. x stays as it is: the backward pass needs it."""
    shift, scale = shift.unsqueeze(1), scale.unsqueeze(1)
    if x.is_cuda and keep is not None:
        code = "template <typename T> T thin_input(T x, T b, T w, T keep) { return keep * (x + b) * w; }"
        return _kernel(code)(x, shift, scale, keep)
    if keep is None:
        return torch.addcmul(shift * scale, x, scale)
    return dropped_(torch.addcmul(shift * scale, x, scale, out=scratch("input", x.shape, x)), keep)


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


def through_input_(
    slope: Tensor, x: Tensor, keep: Tensor | None, ones: Tensor, params: Params, into: Params, times: float, by: float
) -> None:
    """The gradient of f_in, from the slope after it: into = times * into + by * gradient. `slope` is overwritten.

    sum of slope * (x + shift) = sum of slope * x + shift * sum of slope, which on a CPU saves a pass.
    """
    shift, scale = params["input.shift"], params["input.scale"]
    into_shift, into_scale = into["input.shift"], into["input.scale"]
    if slope.is_cuda:
        sites, rows, features = slope.shape
        factors = _numbers(times, by, slope.dtype, slope.device)
        given = [t.contiguous() for t in (slope, x, x if keep is None else keep, shift, scale, factors)]
        sizes = [rows, features, sites * features, int(keep is not None)]
        blocks = -(-sites * features // 128)
        sums = [t.contiguous() for t in (into_shift, into_scale)]  # one user's slice of many is not: sum beside it
        _sum_rows(slope.dtype)((blocks, 1, 1), (128, 1, 1), [*given, *sums, *sizes])
        for there, total in zip((into_shift, into_scale), sums, strict=True):
            if there.data_ptr() != total.data_ptr():
                there.copy_(total)
        return
    if keep is not None:
        dropped_(slope, keep)
    whole = torch.bmm(ones, slope).squeeze(1)
    into_scale.unsqueeze(1).baddbmm_(ones, slope.mul_(x), beta=times, alpha=by)
    into_scale.addcmul_(shift, whole, value=by)
    kept = into_shift.mul_(times) if times else into_shift.zero_()
    kept.addcmul_(scale, whole, value=by)


class Beside:
    """On a GPU, what is done inside runs at the same time as what comes after, until `join`."""

    def __init__(self, device: torch.device) -> None:
        self.stream = _side(device) if device.type == "cuda" else None
        self.held: list[Tensor] = []

    @contextmanager
    def __call__(self, *used: Tensor) -> Iterator[None]:
        """`used`: what the caller may let go of before the join; its memory is not given away until then."""
        if self.stream is None:
            yield
            return
        self.held += used
        self.stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.stream):
            yield

    def join(self) -> None:
        if self.stream is not None and self.held:
            torch.cuda.current_stream().wait_stream(self.stream)
            self.held.clear()


@cache
def _side(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]


SUM_ROWS = """
extern "C" __global__ void sum_rows(const T* slope, const T* x, const T* keep, const T* shift, const T* scale,
    const T* factors, T* into_shift, T* into_scale, int rows, int features, int cells, int drops) {
  int cell = blockIdx.x * blockDim.x + threadIdx.x;  // a feature of a site
  if (cell >= cells) return;
  long at = (long)(cell / features) * rows * features + cell % features;
  T whole = 0, stretch = 0, b = shift[cell], times = factors[0], by = factors[1];
  #pragma unroll 8
  for (int r = 0; r < rows; ++r, at += features) {
    T s = drops ? slope[at] * keep[at] : slope[at];
    whole += s;
    stretch += s * (x[at] + b);
  }
  into_shift[cell] = (times == T(0) ? T(0) : times * into_shift[cell]) + by * whole * scale[cell];
  into_scale[cell] = (times == T(0) ? T(0) : times * into_scale[cell]) + by * stretch;
}
"""


@cache
def _sum_rows(dtype: torch.dtype) -> Callable[..., None]:
    number = "double" if dtype == torch.double else "float"
    kernel: Callable[..., None] = torch.cuda._compile_kernel(f"typedef {number} T;\n{SUM_ROWS}", "sum_rows")
    return kernel


@cache
def _numbers(times: float, by: float, dtype: torch.dtype, device: torch.device) -> Tensor:
    """On the device, since a captured graph may not copy from outside."""
    return torch.tensor([times, by], dtype=dtype, device=device)


@cache
def _kernel(code: str) -> Callable[..., Tensor]:
    return torch.cuda.jiterator._create_jit_fn(code)
