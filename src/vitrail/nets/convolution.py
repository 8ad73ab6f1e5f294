"""Small convolutional networks, normalised by groups of channels: nothing in them remembers rows or draws.

Groups: front (what sees edges and shapes), rear (what makes features of them), head (what tells classes).
"""

from __future__ import annotations

from collections import OrderedDict
from functools import partial

import torch
from torch import Tensor, nn

from vitrail.nets.module import Module


def cnn(shape: tuple[int, ...], outputs: int, width: int = 32, units: tuple[int, ...] = (512, 128)) -> Module:
    """Two convolutions and three linear layers; the last two of these are rear and head."""
    named = {"front": ("front", "rear.0"), "rear": ("rear.2",), "head": ("head",)}
    return Module(partial(_cnn, shape, outputs, width, units), shape, named)


def resnet18(shape: tuple[int, ...], outputs: int) -> Module:
    """He et al. 2016 in its form for small pictures, with GroupNorm for BatchNorm; its last two blocks are the rear."""
    return Module(partial(_resnet18, shape[0], outputs), shape, {"front": ("front",), "rear": ("rear",)})


def _cnn(shape: tuple[int, ...], outputs: int, width: int, units: tuple[int, ...]) -> nn.Module:
    front = nn.Sequential(
        nn.Conv2d(shape[0], width, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
    )  # fmt: skip
    with torch.no_grad():
        flat = front(torch.zeros(1, *shape)).shape[1]
    rear = nn.Sequential(nn.Linear(flat, units[0]), nn.ReLU(), nn.Linear(units[0], units[1]), nn.ReLU())
    return _named(front, rear, nn.Linear(units[1], outputs))


def _named(front: nn.Module, rear: nn.Module, head: nn.Module) -> nn.Module:
    return nn.Sequential(OrderedDict(front=front, rear=rear, head=head))


class _ResidualBlock(nn.Module):
    """Two convolutions with a way round them."""

    def __init__(self, given: int, width: int, stride: int) -> None:
        super().__init__()
        self.through = nn.Sequential(
            nn.Conv2d(given, width, 3, stride, 1, bias=False), nn.GroupNorm(8, width), nn.ReLU(),
            nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.GroupNorm(8, width),
        )  # fmt: skip
        self.past: nn.Module = nn.Identity()
        if stride > 1 or given != width:
            self.past = nn.Sequential(nn.Conv2d(given, width, 1, stride, bias=False), nn.GroupNorm(8, width))

    def forward(self, x: Tensor) -> Tensor:
        total: Tensor = self.through(x) + self.past(x)
        return total.relu()


def _resnet18(channels: int, outputs: int) -> nn.Module:
    layers: list[nn.Module] = [nn.Conv2d(channels, 64, 3, 1, 1, bias=False), nn.GroupNorm(8, 64), nn.ReLU()]
    given = 64
    for width, stride in ((64, 1), (64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2), (512, 1)):
        layers.append(_ResidualBlock(given, width, stride))
        given = width
    rear = nn.Sequential(*layers[-2:], nn.AdaptiveAvgPool2d(1), nn.Flatten())
    return _named(nn.Sequential(*layers[:-2]), rear, nn.Linear(512, outputs))
