"""Which torch modules can be trained over sites, and which of their parameters belong where."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from vitrail.core.declarations import Adapters
from vitrail.core.errors import VitrailError
from vitrail.nets import MLP, Module


@pytest.mark.parametrize(
    "layer", [nn.BatchNorm1d(4), nn.LazyBatchNorm1d(), nn.Dropout(0.2)], ids=lambda x: type(x).__name__
)
def test_what_mixes_rows_or_draws_by_itself_is_refused_by_name(layer: nn.Module) -> None:
    with pytest.raises(VitrailError, match=rf"layer 1: a {type(layer).__name__} in training mode"):
        Module(nn.Sequential(nn.Linear(3, 4), layer, nn.Linear(4, 2)), (3,))


@pytest.mark.parametrize("layer", [nn.BatchNorm1d(4).eval(), nn.Dropout(0.0), nn.GroupNorm(2, 4)])
def test_what_does_neither_is_not(layer: nn.Module) -> None:
    assert Module(nn.Sequential(nn.Linear(3, 4), layer, nn.Linear(4, 2)), (3,)).outputs == 2


def test_groups() -> None:
    net = Module(nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)), (3,)).framed(Adapters(True, "each"))
    assert net.groups == {
        "input": ("input.shift", "input.scale"),
        "body": ("0.weight", "0.bias"),
        "head": ("2.weight", "2.bias"),
        "output": ("output.shift", "output.scale"),
    }
    assert set(net.init(torch.Generator())) == {n for names in net.groups.values() for n in names}
    assert list(MLP(3, 2, (4,)).framed(Adapters(True, "each")).groups) == ["input", "body", "head", "output"]


@pytest.mark.parametrize(
    ("output", "sizes"),
    [
        ("no", {}),
        ("each", {"output.shift": 2, "output.scale": 2}),
        ("scalar", {"output.shift": 2, "output.scale": 1}),
        ("shift", {"output.shift": 2}),
        ("factor", {"output.scale": 2}),
    ],
)
def test_an_output_layer_has_what_it_trains_and_starts_as_the_identity(output: str, sizes: dict[str, int]) -> None:
    plain = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    for bare in (MLP(3, 2, (4,)), Module(plain, (3,))):
        net = bare.framed(Adapters(False, output))
        start = net.init(torch.Generator().manual_seed(1))
        assert {k: len(v) for k, v in start.items() if k.startswith("output.")} == sizes
        assert net.groups.get("output", ()) == tuple(sizes)
        params, x = {k: v[None] for k, v in start.items()}, torch.randn(1, 5, 3)
        inner = {k: v for k, v in params.items() if not k.startswith("output.")}
        assert torch.equal(net.forward(params, x.clone()).z, bare.forward(inner, x.clone()).z)
