"""Work that a GPU does in one kernel (compiled at first use by CUDA itself), and plainly elsewhere: at the size of one
site's batch a round is mostly the waiting between kernels. All of torch's private interfaces are in this file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor

from vitrail.core.random import dropped_
from vitrail.core.tensors import Params, scratch


def input_forward(x: Tensor, shift: Tensor, scale: Tensor, keep: Tensor | None) -> Tensor:
    """f_in(x) = (x + shift) * scale, dropped features set to zero. x stays as it is: the backward pass needs it."""
    shift, scale = shift.unsqueeze(1), scale.unsqueeze(1)
    if x.is_cuda and keep is not None:
        code = "template <typename T> T thin_input(T x, T b, T w, T keep) { return keep * (x + b) * w; }"
        return _kernel(code)(x, shift, scale, keep)
    if keep is None:
        return torch.addcmul(shift * scale, x, scale)
    return dropped_(torch.addcmul(shift * scale, x, scale, out=scratch("input", x.shape, x)), keep)


SMALL = 256  # inputs of a layer up to which one kernel is faster than a matrix product and what follows


def linear(h: Tensor, weight: Tensor, bias: Tensor, rescale: float) -> Tensor:
    """rescale * h weight + bias."""
    if (out := _layer(h, weight, bias, rescale, None, tanh=False)) is not None:
        return out
    return torch.baddbmm(bias.unsqueeze(1), h, weight, alpha=rescale)


def layer_forward(h: Tensor, weight: Tensor, bias: Tensor, rescale: float, keep: Tensor | None) -> Tensor:
    """tanh(rescale * h weight + bias), dropped units set to zero."""
    if (out := _layer(h, weight, bias, rescale, keep, tanh=True)) is not None:
        return out
    if h.is_cuda and keep is not None and keep.is_contiguous():
        z = torch.bmm(h, weight)
        sizes, factor = [z.numel(), z.shape[1] * z.shape[2], z.shape[2]], _numbers((rescale,), z.dtype, z.device)
        _compiled("thin_tanh", z.dtype)(
            (-(-sizes[0] // 256), 1, 1), (256, 1, 1), [z, bias.contiguous(), keep, factor, *sizes]
        )
        return z
    z = torch.baddbmm(bias.unsqueeze(1), h, weight, alpha=rescale).tanh_()
    return z if keep is None else dropped_(z, keep)


def _layer(
    h: Tensor, weight: Tensor, bias: Tensor, rescale: float, keep: Tensor | None, *, tanh: bool
) -> Tensor | None:
    """The same in one kernel, on a GPU and for a small layer and the few rows of a batch."""
    given = [h, weight, bias] + ([keep] if keep is not None else [])
    if not h.is_cuda or h.shape[1] > 64 or h.shape[2] > SMALL or not all(t.is_contiguous() for t in given):
        return None
    sites, rows, inputs = h.shape
    outputs = weight.shape[2]
    out = h.new_empty(sites, rows, outputs)
    factor = _numbers((rescale,), h.dtype, h.device)
    blocks = (-(-outputs // 32), sites, -(-rows // 16))
    flags = [rows, inputs, outputs, int(tanh), int(keep is not None)]
    _compiled("layer", h.dtype)(
        blocks, (32, 8, 1), [h, weight, bias, out if keep is None else keep, factor, out, *flags]
    )
    return out


def tanh_backward(grad: Tensor, h: Tensor, keep: Tensor | None) -> Tensor:
    """The slope before a tanh whose (dropped) value was h."""
    if keep is not None and grad.is_cuda:
        code = "template <typename T> T thin_slope(T s, T h, T keep) { return keep * s * (T(1) - h * h); }"
        return _kernel(code)(grad, h, keep)
    if keep is not None:
        dropped_(grad, keep)
    back: Tensor = torch.ops.aten.tanh_backward(grad, h)
    return back


def input_backward_(
    grad: Tensor, x: Tensor, keep: Tensor | None, ones: Tensor, params: Params, into: Params, times: float, by: float
) -> None:
    """The gradient of f_in, from the slope after it: into = times * into + by * gradient. `grad` is overwritten.

    sum of slope * (x + shift) = sum of slope * x + shift * sum of slope, which on a CPU saves a pass.
    """
    shift, scale = params["input.shift"], params["input.scale"]
    into_shift, into_scale = into["input.shift"], into["input.scale"]
    if grad.is_cuda:
        sites, rows, features = grad.shape
        factors = _numbers((times, by), grad.dtype, grad.device)
        given = [t.contiguous() for t in (grad, x, x if keep is None else keep, shift, scale, factors)]
        sizes = [rows, features, sites * features, int(keep is not None)]
        blocks = -(-sites * features // 128)
        sums = [t.contiguous() for t in (into_shift, into_scale)]  # one user's slice of many is not: sum beside it
        _compiled("sum_rows", grad.dtype)((blocks, 1, 1), (128, 1, 1), [*given, *sums, *sizes])
        for there, total in zip((into_shift, into_scale), sums, strict=True):
            if there.data_ptr() != total.data_ptr():
                there.copy_(total)
        return
    if keep is not None:
        dropped_(grad, keep)
    whole = torch.bmm(ones, grad).squeeze(1)
    into_scale.unsqueeze(1).baddbmm_(ones, grad.mul_(x), beta=times, alpha=by)
    into_scale.addcmul_(shift, whole, value=by)
    shift_sum = into_shift.mul_(times) if times else into_shift.zero_()
    shift_sum.addcmul_(scale, whole, value=by)


def softmax_grad(z: Tensor, y: Tensor, w: Tensor) -> Tensor:
    """(softmax(z) - y) * w."""
    if not z.is_cuda or z.dim() != 3:
        return z.softmax(-1).sub_(y).mul_(w)
    z, y, w = (t.contiguous() for t in (z, y, w))
    out, rows = torch.empty_like(z), z.shape[0] * z.shape[1]
    _compiled("softmax_slope", z.dtype)((-(-rows // 64), 1, 1), (64, 1, 1), [z, y, w, out, rows, z.shape[2]])
    return out


def layer_step(
    h: Tensor,
    grad: Tensor,
    layer: tuple[Tensor, Tensor],
    into: tuple[Tensor, Tensor],
    times: float,
    by: float,
    scale: float,
) -> bool:
    """One step of a linear layer (weight, bias) with inputs h, in one pass on a GPU: into = times * into + by * slope,
    `scale` times that for the weight; then layer += into. False, and nothing done, where that cannot be."""
    given = [h, grad, into[0], layer[0], into[1], layer[1]]
    if not grad.is_cuda or not all(t.is_contiguous() for t in given):
        return False
    sites, rows, width = grad.shape
    factors = _numbers((times, by, by * scale), grad.dtype, grad.device)
    blocks = (-(-width // 64), -(-h.shape[2] // 64), sites)
    _compiled("descend_layer", grad.dtype)(blocks, (16, 16, 1), [*given, factors, rows, h.shape[2], width])
    return True


def adam_step(w: Tensor, grad: Tensor, state: list[Tensor], lr: float, betas: tuple[float, float], eps: float) -> bool:
    """Adam (core/optimizers.py) in one pass on a CPU, where all sites are at the same step; `state`: m, s, t. False,
    and nothing done, elsewhere. Torch's kernel takes numbers as they lie, whatever the strides say."""
    m, s, t = state
    if w.device.type != "cpu" or not all(v.is_contiguous() for v in (w, grad, m, s)) or bool((t != t[0]).any()):
        return False
    rates: dict[str, Any] = {"lr": lr, "beta1": betas[0], "beta2": betas[1], "eps": eps, "weight_decay": 0.0}
    torch._fused_adam_([w], [grad], [m], [s], [], [t[:1]], **rates, amsgrad=False, maximize=False)
    return True


class SideStream:
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


SOURCES = {
    "layer": """
extern "C" __global__ void layer(const T* h, const T* w, const T* b, const T* keep, const T* factor, T* out,
    int rows, int inputs, int outputs, int activate, int drops) {
  __shared__ __align__(16) T held[5120];  // first 16 rows of 256 inputs, 20 apart, then the sums of 8 warps
  int x = threadIdx.x, y = threadIdx.y, j = blockIdx.x * 32 + x, r0 = blockIdx.z * 16;
  long site = blockIdx.y;
  h += site * rows * inputs; w += site * inputs * outputs;
  T sum[16];
  #pragma unroll
  for (int r = 0; r < 16; ++r) sum[r] = 0;
  for (int k0 = 0; k0 < inputs; k0 += 256) {
    #pragma unroll
    for (int at = y * 32 + x; at < 4096; at += 256) {
      int r = at / 256, k = k0 + at % 256;
      held[(at % 256) * 20 + r] = r0 + r < rows && k < inputs ? h[(long)(r0 + r) * inputs + k] : T(0);
    }
    __syncthreads();
    int most = inputs - k0 < 256 ? inputs - k0 : 256;
    #pragma unroll 8
    for (int k = y; k < most; k += 8) {
      T weight = j < outputs ? w[(long)(k0 + k) * outputs + j] : T(0);
      #pragma unroll
      for (int r = 0; r < 16; ++r) sum[r] += held[k * 20 + r] * weight;
    }
    __syncthreads();
  }
  #pragma unroll
  for (int r = 0; r < 16; ++r) held[(y * 16 + r) * 32 + x] = sum[r];
  __syncthreads();
  if (j >= outputs) return;
  for (int r = y; r < 16 && r0 + r < rows; r += 8) {
    T z = 0;
    #pragma unroll
    for (int k = 0; k < 8; ++k) z += held[(k * 16 + r) * 32 + x];
    z = factor[0] * z + b[site * outputs + j];
    if (activate) z = tanh(z);
    long at = (site * rows + r0 + r) * outputs + j;
    out[at] = drops ? keep[at] * z : z;
  }
}
""",
    "sum_rows": """
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
""",
    "thin_tanh": """
extern "C" __global__ void thin_tanh(T* z, const T* b, const T* keep, const T* factor, int count, int site,
    int outputs) {
  int at = blockIdx.x * blockDim.x + threadIdx.x;
  if (at >= count) return;
  z[at] = keep[at] * tanh(factor[0] * z[at] + b[at / site * outputs + at % outputs]);
}
""",
    "softmax_slope": """
extern "C" __global__ void softmax_slope(const T* z, const T* y, const T* w, T* out, int rows, int outputs) {
  int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  z += (long)row * outputs; y += (long)row * outputs; out += (long)row * outputs;
  T most = z[0], sum = 0, weight = w[row];
  for (int k = 1; k < outputs; ++k) most = z[k] > most ? z[k] : most;
  for (int k = 0; k < outputs; ++k) { T e = exp(z[k] - most); out[k] = e; sum += e; }
  for (int k = 0; k < outputs; ++k) out[k] = (out[k] / sum - y[k]) * weight;
}
""",
    "descend_layer": """
struct __align__(16) Four { T at[4]; };
extern "C" __global__ void descend_layer(const T* h, const T* slope, T* v, T* w, T* vb, T* wb, const T* factors,
    int rows, int inputs, int outputs) {
  __shared__ __align__(16) T left[16][64], right[16][64];  // of 16 rows: 64 inputs, 64 outputs
  int x = threadIdx.x, y = threadIdx.y, i0 = blockIdx.y * 64, j0 = blockIdx.x * 64;
  long site = blockIdx.z;
  h += site * rows * inputs; slope += site * rows * outputs;
  v += site * inputs * outputs; w += site * inputs * outputs; vb += site * outputs; wb += site * outputs;
  T sum[4][4] = {}, whole[4] = {}, times = factors[0];
  for (int r0 = 0; r0 < rows; r0 += 16) {
    #pragma unroll
    for (int k = 0; k < 4; ++k) {
      int r = r0 + y, i = i0 + x + 16 * k, j = j0 + x + 16 * k;
      left[y][x + 16 * k] = r < rows && i < inputs ? h[(long)r * inputs + i] : T(0);
      right[y][x + 16 * k] = r < rows && j < outputs ? slope[(long)r * outputs + j] : T(0);
    }
    __syncthreads();
    #pragma unroll
    for (int r = 0; r < 16; ++r) {
      Four s = *(Four*)&right[r][4 * x];
      #pragma unroll
      for (int k = 0; k < 4; ++k) {
        T a = left[r][y + 16 * k];
        #pragma unroll
        for (int c = 0; c < 4; ++c) sum[k][c] += a * s.at[c];
      }
      #pragma unroll
      for (int c = 0; c < 4; ++c) whole[c] += s.at[c];
    }
    __syncthreads();
  }
  int j = j0 + 4 * x;
  #pragma unroll
  for (int k = 0; k < 4; ++k) {
    int i = i0 + y + 16 * k;
    long at = (long)i * outputs + j;
    if (i >= inputs) continue;
    if (outputs % 4 == 0 && j < outputs) {
      Four moved = *(Four*)(v + at), weight = *(Four*)(w + at);
      #pragma unroll
      for (int c = 0; c < 4; ++c) {
        moved.at[c] = (times == T(0) ? T(0) : times * moved.at[c]) + factors[2] * sum[k][c];
        weight.at[c] += moved.at[c];
      }
      *(Four*)(v + at) = moved;
      *(Four*)(w + at) = weight;
    } else {
      for (int c = 0; c < 4 && j + c < outputs; ++c) {
        T moved = (times == T(0) ? T(0) : times * v[at + c]) + factors[2] * sum[k][c];
        v[at + c] = moved;
        w[at + c] += moved;
      }
    }
  }
  if (blockIdx.y == 0 && y == 0)
    for (int c = 0; c < 4 && j + c < outputs; ++c) {
      T moved = (times == T(0) ? T(0) : times * vb[j + c]) + factors[1] * whole[c];
      vb[j + c] = moved;
      wb[j + c] += moved;
    }
}
""",
}


@cache
def _compiled(name: str, dtype: torch.dtype) -> Callable[..., None]:
    number = "double" if dtype == torch.double else "float"
    kernel: Callable[..., None] = torch.cuda._compile_kernel(f"typedef {number} T;\n{SOURCES[name]}", name)
    return kernel


@cache
def _numbers(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """On the device, since a captured graph may not copy from outside."""
    return torch.tensor(values, dtype=dtype, device=device)


@cache
def _kernel(code: str) -> Callable[..., Tensor]:
    return torch.cuda.jiterator._create_jit_fn(code)
