"""The networks. Each names its parameter groups (input, body, head, output) and knows its own gradient.

TABLE holds those that a study can name. One of your own is listed like this, and is known from then on in this process:

    vt.nets.TABLE["mine"] = vt.nets.Kind(lambda shape, outputs, given: vt.nets.Module(MyNet, shape), pictures=True)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from vitrail.nets.cnn import cnn, resnet18
from vitrail.nets.mlp import MLP
from vitrail.nets.module import Module
from vitrail.nets.prototypes import Cells, ProtoNet, prototypes


class Kind(NamedTuple):
    """How a study's network is made: of the shape of a row, the number of outputs, and the study's [network]."""

    make: Callable[[tuple[int, ...], int, Any], MLP | Module]
    pictures: bool = False  # of pictures (channels, height, width), or of columns
    usual: Mapping[str, Any] = MappingProxyType({})  # of [network], where it is not said: other than for other kinds


def _mlp(shape: tuple[int, ...], outputs: int, given: Any, hidden: tuple[int, ...], dropout: float) -> MLP:
    return MLP(shape[0], outputs, hidden, dropout, proportional=given.hazards == "proportional")


TABLE = {
    "mlp": Kind(lambda shape, outputs, given: _mlp(shape, outputs, given, given.hidden, given.dropout)),
    "linear": Kind(lambda shape, outputs, given: _mlp(shape, outputs, given, (), 0.0)),
    "cnn": Kind(lambda shape, outputs, given: cnn(shape, outputs, given.width, given.hidden), pictures=True),
    "resnet18": Kind(lambda shape, outputs, given: resnet18(shape, outputs), pictures=True),
    "prototypes": Kind(
        lambda shape, outputs, given: prototypes(
            shape, outputs, given.width, given.prototypes or 10, given.latent, given.weights, bool(given.frozen)
        ),
        pictures=True,
        usual=MappingProxyType({"width": 16}),
    ),
}

__all__ = ["MLP", "TABLE", "Cells", "Kind", "Module", "ProtoNet", "cnn", "prototypes", "resnet18"]
