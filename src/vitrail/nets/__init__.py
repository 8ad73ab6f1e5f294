"""The networks. Each names its parameter groups (input, body, head, output) and knows its own gradient.

TABLE holds those that a study can name. One of your own is listed like this, and is known from then on in this process:

    vt.nets.TABLE["mine"] = vt.nets.Kind(lambda shape, outputs, given: vt.nets.Module(MyNet, shape), pictures=True)

A network, and with it torch, is loaded when the first one is made: a study is read without.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from vitrail.core.loading import lazy_names

if TYPE_CHECKING:
    from vitrail.nets.convolution import cnn, resnet18
    from vitrail.nets.mlp import MLP
    from vitrail.nets.module import Module
    from vitrail.nets.prototype_network import Cells, ProtoNet, prototypes
else:
    __getattr__ = lazy_names(
        __name__,
        {
            "MLP": "vitrail.nets.mlp",
            "Module": "vitrail.nets.module",
            "cnn": "vitrail.nets.convolution",
            "resnet18": "vitrail.nets.convolution",
            **dict.fromkeys(("Cells", "ProtoNet", "prototypes"), "vitrail.nets.prototype_network"),
        },
    )


class Kind(NamedTuple):
    """How a study's network is made: of the shape of a row, the number of outputs, and the study's [network]."""

    make: Callable[[tuple[int, ...], int, Any], MLP | Module]
    pictures: bool = False  # of pictures (channels, height, width), or of columns
    usual: Mapping[str, Any] = MappingProxyType({})  # of [network], where it is not said: other than for other kinds


def _mlp(shape: tuple[int, ...], outputs: int, given: Any, hidden: tuple[int, ...], dropout: float) -> MLP:
    from vitrail.nets.mlp import MLP

    return MLP(shape[0], outputs, hidden, dropout, proportional=given.hazards == "proportional")


def _cnn(shape: tuple[int, ...], outputs: int, given: Any) -> Module:
    from vitrail.nets.convolution import cnn

    return cnn(shape, outputs, given.width, given.hidden)


def _resnet18(shape: tuple[int, ...], outputs: int, given: Any) -> Module:
    from vitrail.nets.convolution import resnet18

    return resnet18(shape, outputs)


def _prototypes(shape: tuple[int, ...], outputs: int, given: Any) -> Module:
    from vitrail.nets.prototype_network import prototypes

    return prototypes(
        shape,
        outputs,
        given.width,
        given.prototypes or 10,
        given.latent,
        given.weights,
        bool(given.frozen),
        given.backbone or "efficientnet_lite0",
        given.similarity or "log",
    )


TABLE = {
    "mlp": Kind(lambda shape, outputs, given: _mlp(shape, outputs, given, given.hidden, given.dropout)),
    "linear": Kind(lambda shape, outputs, given: _mlp(shape, outputs, given, (), 0.0)),
    "cnn": Kind(_cnn, pictures=True),
    "resnet18": Kind(_resnet18, pictures=True),
    "prototypes": Kind(_prototypes, pictures=True, usual=MappingProxyType({"width": 16})),
}

__all__ = ["MLP", "TABLE", "Cells", "Kind", "Module", "ProtoNet", "cnn", "prototypes", "resnet18"]
