"""Small convolutional networks, normalised by groups of channels: nothing in them remembers rows or draws."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from vitrail.nets.module import Module


def cnn(shape: tuple[int, ...], outputs: int, width: int = 32, units: tuple[int, int] = (512, 128)) -> Module:
    """Two convolutions and three linear layers."""
    return Module(partial(_cnn, shape, outputs, width, units), shape)


def resnet18(shape: tuple[int, ...], outputs: int) -> Module:
    """He et al. 2016 in its form for small pictures, with GroupNorm for BatchNorm."""
    return Module(partial(_resnet18, shape[0], outputs), shape)


def _cnn(shape: tuple[int, ...], outputs: int, width: int, units: tuple[int, int]) -> nn.Module:
    front = nn.Sequential(
        nn.Conv2d(shape[0], width, 5), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(width, 2 * width, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
    )  # fmt: skip
    with torch.no_grad():
        flat = front(torch.zeros(1, *shape)).shape[1]
    rear = nn.Sequential(nn.Linear(flat, units[0]), nn.ReLU(), nn.Linear(*units), nn.ReLU())
    return nn.Sequential(front, rear, nn.Linear(units[1], outputs))


class _Block(nn.Module):
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
        layers.append(_Block(given, width, stride))
        given = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, outputs))
