"""Torch's steps as ONNX's: a table of what each becomes. What does not depend on rows is worked out here, once.

Built by onnx.helper alone. A step that is not in the table is told by name; nothing is left out silently.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from vitrail.core.errors import Problem, VitrailError

OPSET = 20
Step = Callable[["Graph", Any, list[Any], dict[str, Any]], str]
TABLE: dict[str, Step] = {}


class Graph:
    """Nodes and constants of an ONNX graph that grows."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: dict[str, Any] = {}
        self._count = 0

    def add(self, kind: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        """One node; the name of its output."""
        import onnx

        name = self._name(kind)
        self.nodes.append(onnx.helper.make_node(kind, list(inputs), [name], name=name, domain=domain, **attributes))
        return name

    def hold(self, value: Any, kind: torch.dtype | None = None) -> str:
        """A constant."""
        import onnx

        name = self._name("held")
        tensor = torch.as_tensor(value).detach()
        array = (tensor if kind is None else tensor.to(kind)).contiguous().numpy()
        self.constants[name] = onnx.numpy_helper.from_array(array, name)
        return name

    def whole(self, *numbers: int) -> str:
        """Whole numbers, one axis: shapes, axes, starts."""
        return self.hold(torch.tensor(numbers, dtype=torch.int64))

    def cast(self, name: str, kind: torch.dtype) -> str:
        return self.add("Cast", name, to=onnx_kind(kind))

    def _name(self, kind: str) -> str:
        self._count += 1
        return f"/{kind}/{self._count}"  # no column is called so: see `onnx_file.named`


class GraphValue:
    """A value that depends on rows: its name in the graph, and what torch says of it."""

    def __init__(self, name: str, like: Tensor) -> None:
        self.name, self.like = name, like


def convert(traced: Any, graph: Graph, rows: str) -> list[str]:
    """Put the traced steps into the graph, from the value `rows` on; names of the outputs."""
    values: dict[Any, Any] = {}
    held = {**dict(traced.state_dict), **traced.constants}
    places = {s.arg.name: s for s in traced.graph_signature.input_specs}
    unknown: dict[str, None] = {}
    for node in traced.graph.nodes:
        if node.op == "placeholder":
            spec = places[node.name]
            values[node] = held[spec.target] if spec.target is not None else GraphValue(rows, node.meta["val"])
        elif node.op == "output":
            if unknown:
                raise _unknown(list(unknown))
            return [_named(graph, values[n], values[n].like.dtype) for n in node.args[0]]
        elif not str(node.target).startswith("aten._assert"):
            try:
                values[node] = _made(graph, node, values)
            except NotImplementedError as error:
                unknown[str(error) or str(node.target)] = None
                values[node] = GraphValue("", node.meta["val"])
    raise AssertionError("a graph ends with its output")


def _unknown(steps: Sequence[str]) -> VitrailError:
    what = f"this network has steps that cannot be written as ONNX: {', '.join(steps)}."
    return VitrailError("cannot export", [Problem("network", what, "Write a .pt2 or a .vitrail file instead.")])


def _made(graph: Graph, node: Any, values: dict[Any, Any]) -> Any:
    """What a step gives: a constant, a size, or a value in the graph."""
    args, kwargs = (torch.fx.node.map_arg(a, lambda n: values[n]) for a in (node.args, node.kwargs))
    flat = [a for arg in (*args, *kwargs.values()) for a in (arg if isinstance(arg, list | tuple) else (arg,))]
    example = node.meta.get("val")
    if not isinstance(example, Tensor) and not isinstance(example, tuple | list):
        return example  # a size; shapes are read from what torch says of each value
    moving = any(isinstance(a, GraphValue) for a in flat)
    if not moving and not any(isinstance(a, torch.SymInt) for a in flat):
        return node.target(*args, **kwargs)
    if node.target.__name__ == "getitem":
        return args[0][args[1]]
    if (make := TABLE.get(str(node.target).removeprefix("aten."))) is None:
        raise NotImplementedError(str(node.target))
    if isinstance(example, tuple | list):  # of several outputs the first is the one that networks use
        first = next(t for t in example if t is not None)
        return [GraphValue(make(graph, first, list(args), dict(kwargs)), first), *[None] * (len(example) - 1)]
    return GraphValue(make(graph, example, list(args), dict(kwargs)), example)


def _named(graph: Graph, value: Any, kind: torch.dtype) -> str:
    """The value in the graph, as this kind of number."""
    if isinstance(value, GraphValue):
        return value.name if value.like.dtype == kind else graph.cast(value.name, kind)
    return graph.hold(value, kind)


def onnx_kind(kind: torch.dtype) -> int:
    import onnx

    return int(onnx.helper.np_dtype_to_tensor_dtype(torch.empty(0, dtype=kind).numpy().dtype))


def _shape(like: Tensor) -> tuple[int, ...]:
    """-1 for the number of rows."""
    return tuple(n if isinstance(n, int) else -1 for n in like.shape)


# the table


def _step(*names: str) -> Callable[[Step], Step]:
    def listed(step: Step) -> Step:
        TABLE.update(dict.fromkeys(names, step))
        return step

    return listed


def _numbers(kind: str, *names: str) -> None:
    """Of each number, or of two."""

    def step(graph: Graph, like: Tensor, args: list[Any], kwargs: dict[str, Any]) -> str:
        if kwargs.get("alpha", 1) != 1 or kwargs.get("rounding_mode"):
            raise NotImplementedError(f"{names[0]} with more than two numbers")
        return graph.add(kind, *(_named(graph, a, like.dtype) for a in args if a is not None))

    TABLE.update(dict.fromkeys(names, step))


def _compares(kind: str, negated: bool, *names: str) -> None:
    def step(graph: Graph, like: Tensor, args: list[Any], kwargs: dict[str, Any]) -> str:
        both = [a.like if isinstance(a, GraphValue) else a for a in args]
        common = torch.result_type(*both)
        name = graph.add(kind, *(_named(graph, a, common) for a in args))
        return graph.add("Not", name) if negated else name

    TABLE.update(dict.fromkeys(names, step))


_numbers("Add", "add.Tensor", "add.Scalar")
_numbers("Sub", "sub.Tensor", "sub.Scalar")
_numbers("Mul", "mul.Tensor", "mul.Scalar")
_numbers("Div", "div.Tensor", "div.Scalar")
_numbers("Pow", "pow.Tensor_Scalar", "pow.Tensor_Tensor")
_numbers("Neg", "neg.default")
_numbers("Exp", "exp.default")
_numbers("Log", "log.default")
_numbers("Sqrt", "sqrt.default")
_numbers("Reciprocal", "reciprocal.default")
_numbers("Abs", "abs.default")
_numbers("Floor", "floor.default")
_numbers("Tanh", "tanh.default")
_numbers("Sigmoid", "sigmoid.default")
_numbers("Relu", "relu.default")
_numbers("Not", "logical_not.default", "bitwise_not.default")
_numbers("And", "logical_and.default", "bitwise_and.Tensor")
_numbers("Or", "logical_or.default", "bitwise_or.Tensor")
_numbers("MatMul", "bmm.default", "mm.default")
_numbers("Identity", "alias.default", "detach.default", "clone.default", "lift_fresh_copy.default")
_compares("Equal", False, "eq.Scalar", "eq.Tensor")
_compares("Equal", True, "ne.Scalar", "ne.Tensor")
_compares("Less", False, "lt.Scalar", "lt.Tensor")
_compares("Greater", False, "gt.Scalar", "gt.Tensor")
_compares("LessOrEqual", False, "le.Scalar", "le.Tensor")
_compares("GreaterOrEqual", False, "ge.Scalar", "ge.Tensor")


def _pairs(value: int | Sequence[int]) -> list[int]:
    return [value, value] if isinstance(value, int) else [*value] * (2 // len(value))


@_step("where.self")
def _where(graph: Graph, like: Tensor, args: list[Any], kwargs: dict[str, Any]) -> str:
    chosen = _named(graph, args[0], torch.bool)
    return graph.add("Where", chosen, *(_named(graph, a, like.dtype) for a in args[1:]))


@_step("isnan.default")
def _isnan(graph: Graph, like: Tensor, args: list[Any], kwargs: dict[str, Any]) -> str:
    return graph.add("IsNaN", args[0].name)


@_step("isinf.default")
def _isinf(graph: Graph, like: Tensor, args: list[Any], kwargs: dict[str, Any]) -> str:
    return graph.add("Equal", graph.add("Abs", args[0].name), graph.hold(math.inf, args[0].like.dtype))


@_step("_to_copy.default")
def _to_copy(graph: Graph, like: Tensor, args: list[Any], kwargs: dict[str, Any]) -> str:
    return _named(graph, args[0], like.dtype)


@_step("clamp.default", "hardtanh.default")
def _clamp(graph: Graph, like: Tensor, args: list[Any], kwargs: dict[str, Any]) -> str:
    low, high = (*args[1:], kwargs.get("min"), kwargs.get("max"))[:2] if len(args) > 1 else (
        kwargs.get("min"), kwargs.get("max"))  # fmt: skip
    ends = ["" if end is None else graph.hold(end, like.dtype) for end in (low, high)]
    return graph.add("Clip", args[0].name, *ends)


@_step("view.default", "_unsafe_view.default", "reshape.default", "unsqueeze.default", "squeeze.dims", "squeeze.dim")
def _view(graph: Graph, like: Tensor, args: list[Any], kwargs: dict[str, Any]) -> str:
    if _shape(like).count(-1) > 1:
        raise NotImplementedError("a shape with the number of rows in it twice")
    return graph.add("Reshape", args[0].name, graph.whole(*_shape(like)))


@_step("log1p.default")
def _log1p(graph: Graph, like: Tensor, args: list[Any], kwargs: dict[str, Any]) -> str:
    return graph.add("Log", graph.add("Add", _named(graph, args[0], like.dtype), graph.hold(1.0, like.dtype)))


@_step("cumsum.default")
def _cumsum(graph: Graph, like: Tensor, args: list[Any], kwargs: dict[str, Any]) -> str:
    return graph.add("CumSum", _named(graph, args[0], like.dtype), graph.hold(args[1] % like.dim(), torch.int64))


@_step("expand.default")
def _expand(graph: Graph, like: Tensor, args: list[Any], kwargs: dict[str, Any]) -> str:
    before = (1,) * (like.dim() - args[0].like.dim()) + _shape(args[0].like)
    if any(now == -1 and then != -1 for now, then in zip(_shape(like), before, strict=True)):
        raise NotImplementedError("a constant repeated for every row")
    return graph.add("Expand", args[0].name, graph.whole(*(max(n, 1) for n in _shape(like))))


@_step("permute.default")
def _permute(graph: Graph, like: Tensor, args: list[Any], kwargs: dict[str, Any]) -> str:
    return graph.add("Transpose", args[0].name, perm=[d % like.dim() for d in args[1]])


@_step("select.int")
def _select(graph: Graph, like: Tensor, args: list[Any], kwargs: dict[str, Any]) -> str:
    place = graph.hold(torch.tensor(args[2]))
    return graph.add("Gather", args[0].name, place, axis=args[1] % args[0].like.dim())


@_step("index_select.default")
def _index_select(graph: Graph, like: Tensor, args: list[Any], kwargs: dict[str, Any]) -> str:
    return graph.add("Gather", args[0].name, graph.hold(args[2]), axis=args[1] % like.dim())


@_step("slice.Tensor")
def _slice(graph: Graph, like: Tensor, args: list[Any], kwargs: dict[str, Any]) -> str:
    axis, start, end, step = (*args[1:], *(0, None, None, 1)[len(args) - 1 :])[:4]
    last = end if isinstance(end, int) else torch.iinfo(torch.int64).max
    return graph.add("Slice", args[0].name, *(graph.whole(n) for n in (start or 0, last, axis, step)))


@_step("cat.default")
def _cat(graph: Graph, like: Tensor, args: list[Any], kwargs: dict[str, Any]) -> str:
    axis = (args[1] if len(args) > 1 else kwargs.get("dim", 0)) % like.dim()
    return graph.add("Concat", *(_named(graph, a, like.dtype) for a in args[0]), axis=axis)


@_step("addmm.default")
def _addmm(graph: Graph, like: Tensor, args: list[Any], kwargs: dict[str, Any]) -> str:
    if {kwargs.get("alpha", 1), kwargs.get("beta", 1)} != {1}:
        raise NotImplementedError("addmm with factors")
    bias, h, weight = (_named(graph, a, like.dtype) for a in args)
    return graph.add("Add", graph.add("MatMul", h, weight), bias)


def _reduces(kind: str, *names: str) -> None:
    def step(graph: Graph, like: Tensor, args: list[Any], kwargs: dict[str, Any]) -> str:
        axes = args[1] if len(args) > 1 and args[1] is not None else list(range(args[0].like.dim()))
        axes = [axes] if isinstance(axes, int) else axes
        keep = bool(args[2] if len(args) > 2 else kwargs.get("keepdim", False))
        tensor = args[0].name
        if args[0].like.dtype == torch.bool:  # any: the largest of 0 and 1
            tensor = graph.cast(tensor, torch.int32)
        elif args[0].like.dtype != like.dtype:
            tensor = graph.cast(tensor, like.dtype)
        name = graph.add(kind, tensor, graph.whole(*axes), keepdims=int(keep))
        return graph.cast(name, like.dtype) if args[0].like.dtype == torch.bool else name

    TABLE.update(dict.fromkeys(names, step))


_reduces("ReduceSum", "sum.dim_IntList")
_reduces("ReduceMean", "mean.dim")
_reduces("ReduceMin", "amin.default")
_reduces("ReduceMax", "amax.default", "any.dim", "any.dims")


@_step("var.correction")
def _var(graph: Graph, like: Tensor, args: list[Any], kwargs: dict[str, Any]) -> str:
    if kwargs.get("correction") != 0:
        raise NotImplementedError("a variance with a correction")
    axes, keep = graph.whole(*args[1]), int(kwargs.get("keepdim", False))
    off = graph.add("Sub", args[0].name, graph.add("ReduceMean", args[0].name, axes, keepdims=1))
    return graph.add("ReduceMean", graph.add("Mul", off, off), axes, keepdims=keep)


@_step("_softmax.default")
def _softmax(graph: Graph, like: Tensor, args: list[Any], kwargs: dict[str, Any]) -> str:
    return graph.add("Softmax", args[0].name, axis=args[1])


@_step("_log_softmax.default")
def _log_softmax(graph: Graph, like: Tensor, args: list[Any], kwargs: dict[str, Any]) -> str:
    return graph.add("LogSoftmax", args[0].name, axis=args[1])


@_step("convolution.default")
def _convolution(graph: Graph, like: Tensor, args: list[Any], kwargs: dict[str, Any]) -> str:
    x, weight, bias, stride, padding, dilation, transposed, _, groups = args
    if transposed:
        raise NotImplementedError("a transposed convolution")
    inputs = [_named(graph, v, like.dtype) for v in (x, weight, bias) if v is not None]
    size: dict[str, Any] = {"strides": _pairs(stride), "pads": _pairs(padding) * 2, "dilations": _pairs(dilation)}
    return graph.add("Conv", *inputs, group=groups, **size)


def _pooling(args: list[Any]) -> tuple[Any, Any, Any, list[Any]]:
    """Kernel, stride, padding, and what else is asked for."""
    settings = [*args[1:], *[None, 0][len(args) - 2 :]]
    return settings[0], settings[1] or settings[0], settings[2], settings[3:]


@_step("max_pool2d_with_indices.default")
def _max_pool(graph: Graph, like: Tensor, args: list[Any], kwargs: dict[str, Any]) -> str:
    kernel, stride, padding, more = _pooling(args)
    if any(m not in (1, [1, 1], False) for m in more):
        raise NotImplementedError("a pooling with gaps")
    size: dict[str, Any] = {"kernel_shape": _pairs(kernel), "strides": _pairs(stride), "pads": _pairs(padding) * 2}
    return graph.add("MaxPool", args[0].name, **size)


@_step("avg_pool2d.default")
def _avg_pool(graph: Graph, like: Tensor, args: list[Any], kwargs: dict[str, Any]) -> str:
    kernel, stride, padding, more = _pooling(args)
    if more or padding not in (0, [0, 0]):
        raise NotImplementedError("a mean pooling over an edge")
    return graph.add("AveragePool", args[0].name, kernel_shape=_pairs(kernel), strides=_pairs(stride))


@_step("native_group_norm.default")
def _group_norm(graph: Graph, like: Tensor, args: list[Any], kwargs: dict[str, Any]) -> str:
    x, weight, bias, _, channels, _, groups, eps = args
    flat = graph.add("Reshape", x.name, graph.whole(-1, groups, channels // groups * math.prod(_shape(like)[2:])))
    one = graph.hold(torch.ones(groups), like.dtype)
    normed = graph.add("InstanceNormalization", flat, one, graph.hold(torch.zeros(groups), like.dtype), epsilon=eps)
    out = graph.add("Reshape", normed, graph.whole(*_shape(like)))
    for kind, value in (("Mul", weight), ("Add", bias)):
        if value is not None:
            out = graph.add(kind, out, graph.hold(value.reshape(-1, *[1] * (like.dim() - 2)), like.dtype))
    return out
