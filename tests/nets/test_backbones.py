"""VGG and DenseNet-121 against what is published of them, and against a plain computation from the tensors of a file.
No weights of theirs are at hand: files are drawn here, with torchvision's names."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

import vitrail as vt
from vitrail.core.errors import VitrailError
from vitrail.core.tensors import Params
from vitrail.nets import prototypes
from vitrail.nets.backbones import TABLE, file_shapes

PUBLISHED = {"vgg11": 132863336, "vgg16": 138357544, "vgg19": 143667240, "densenet121": 7978856}
SHAPES = {  # as torchvision's files have them
    "vgg19": {
        "features.0.weight": (64, 3, 3, 3),
        "features.2.weight": (64, 64, 3, 3),
        "features.5.weight": (128, 64, 3, 3),
        "features.10.weight": (256, 128, 3, 3),
        "features.16.bias": (256,),
        "features.19.weight": (512, 256, 3, 3),
        "features.34.weight": (512, 512, 3, 3),
        "classifier.0.weight": (4096, 25088),
        "classifier.6.bias": (1000,),
    },
    "vgg11": {"features.3.weight": (128, 64, 3, 3), "features.18.weight": (512, 512, 3, 3)},
    "vgg16": {"features.28.weight": (512, 512, 3, 3)},
    "densenet121": {
        "features.conv0.weight": (64, 3, 7, 7),
        "features.norm0.running_var": (64,),
        "features.denseblock1.denselayer1.conv1.weight": (128, 64, 1, 1),
        "features.denseblock1.denselayer6.norm1.weight": (224,),
        "features.transition1.conv.weight": (128, 256, 1, 1),
        "features.denseblock2.denselayer12.conv1.weight": (128, 480, 1, 1),
        "features.transition3.norm.bias": (1024,),
        "features.denseblock4.denselayer16.conv1.weight": (128, 992, 1, 1),
        "features.denseblock4.denselayer16.norm2.running_mean": (128,),
        "features.denseblock4.denselayer16.conv2.weight": (32, 128, 3, 3),
        "features.norm5.running_var": (1024,),
        "classifier.weight": (1000, 1024),
    },
}
COUNTS = {"vgg11": 22, "vgg16": 32, "vgg19": 38, "densenet121": 727 - 121}  # tensors, without counts of batches
VGG11 = (64, 0, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0)  # channels of convolutions; 0: a maximum


@pytest.mark.parametrize("name", PUBLISHED)
def test_numbers_and_names_are_the_published_ones(name: str) -> None:
    shapes = file_shapes(name)
    assert sum(math.prod(v) for k, v in shapes.items() if "running" not in k) == PUBLISHED[name]
    assert len(shapes) == COUNTS[name]
    assert {k: shapes.get(k) for k in SHAPES[name]} == SHAPES[name]


def drawn(name: str) -> Params:
    """The tensors of a file, without a classifier."""
    g, held = torch.Generator().manual_seed(3), {}
    for k, shape in file_shapes(name).items():
        if k.startswith("classifier"):
            continue
        if len(shape) == 4:
            held[k] = torch.randn(shape, generator=g) * (2 / math.prod(shape[1:])) ** 0.5
        elif k.endswith("running_var") or (k.endswith("weight") and "norm" in k):
            held[k] = torch.rand(shape, generator=g) + 0.5
        else:
            held[k] = 0.1 * torch.randn(shape, generator=g)
    return held


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """VGG-11 as safetensors; DenseNet-121 of torch under its older names, with counts of batches."""
    folder = tmp_path_factory.mktemp("weights")
    save_file(drawn("vgg11"), folder / "vgg11.safetensors")
    old = {}
    for k, v in drawn("densenet121").items():
        if "denselayer" in k:
            for part in ("norm1", "norm2", "conv1", "conv2"):
                k = k.replace(part, f"{part[:-1]}.{part[-1]}")
        old[k] = v
    old["features.norm0.num_batches_tracked"] = torch.tensor(3)
    torch.save(old, folder / "densenet.pth")
    return {"vgg11": folder / "vgg11.safetensors", "densenet121": folder / "densenet.pth"}


def scaled(x: Tensor) -> Tensor:
    mean, sd = (torch.tensor(v).view(3, 1, 1) for v in ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    return (x - mean) / sd


def plain_vgg11(held: Params, x: Tensor) -> Tensor:
    at = 0
    for channels in VGG11:
        if channels:
            x = F.conv2d(x, held[f"features.{at}.weight"], held[f"features.{at}.bias"], padding=1).relu()
            at += 2
        else:
            x, at = F.max_pool2d(x, 2), at + 1
    return x


def plain_densenet121(held: Params, x: Tensor) -> Tensor:
    def norm(name: str, x: Tensor) -> Tensor:
        of = (held[f"features.{name}.{k}"] for k in ("running_mean", "running_var", "weight", "bias"))
        return F.batch_norm(x, *of)

    def conv(name: str, x: Tensor, *how: int) -> Tensor:
        return F.conv2d(x, held[f"features.{name}.weight"], None, *how)

    x = F.max_pool2d(norm("norm0", conv("conv0", x, 2, 3)).relu(), 3, 2, 1)
    for block, many in enumerate((6, 12, 24, 16), 1):
        for i in range(1, many + 1):
            here = f"denseblock{block}.denselayer{i}"
            narrow = conv(f"{here}.conv1", norm(f"{here}.norm1", x).relu())
            x = torch.cat([x, conv(f"{here}.conv2", norm(f"{here}.norm2", narrow).relu(), 1, 1)], 1)
        if block < 4:
            here = f"transition{block}"
            x = F.avg_pool2d(conv(f"{here}.conv", norm(f"{here}.norm", x).relu()), 2)
    return norm("norm5", x).relu()


@pytest.mark.parametrize(("name", "plain"), [("vgg11", plain_vgg11), ("densenet121", plain_densenet121)])
def test_maps_are_those_of_a_plain_computation(name: str, plain: object, files: dict[str, Path]) -> None:
    x = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(5))
    net = prototypes((3, 64, 64), 2, latent=4, weights=str(files[name]), frozen=True, backbone=name)
    there = plain(drawn(name), scaled(x))  # type: ignore[operator]
    got = net.features_of(2 * x - 1)
    assert net.shape == there.shape[1:] == got.shape[1:]
    assert torch.allclose(got, there, atol=1e-4 * float(there.abs().max()))
    assert float((there[0] - there[1]).abs().max()) > 0.01 * float(there.abs().max()), "pictures are told apart"
    grey = prototypes((1, 64, 64), 2, latent=4, weights=str(files[name]), frozen=True, backbone=name)
    three = net.features_of((2 * x[:, :1] - 1).expand(-1, 3, -1, -1))
    assert torch.allclose(grey.features_of(2 * x[:, :1] - 1), three, atol=1e-5)


def test_a_backbone_that_is_not_frozen_is_trained_from_the_file(files: dict[str, Path]) -> None:
    net = prototypes((3, 32, 32), 2, latent=4, weights=str(files["vgg11"]), backbone="vgg11")
    start = net.init(torch.Generator().manual_seed(1))
    held = drawn("vgg11")
    assert {k for k in start if k.startswith("features.")} == set(held), "as torchvision names them"
    assert all(torch.equal(start[k], v) for k, v in held.items())
    assert net.groups["features"] == tuple(held)
    assert len(net.sha256) == 64


def test_cells_lie_where_they_are_said_to(files: dict[str, Path]) -> None:
    """The middle of what changes a cell's numbers, by the gradient; and nothing outside of its field."""
    layers = TABLE["vgg11"].make(3, str(files["vgg11"]))
    x = torch.rand(1, 3, 256, 256, generator=torch.Generator().manual_seed(6)).requires_grad_()
    layers(x)[0, :, 3, 4].sum().backward()
    seen = x.grad[0].abs().sum(0)  # type: ignore[index]
    stride, offset, field = TABLE["vgg11"].lattice
    for axis, cell in ((1, 3), (0, 4)):
        along = (seen.sum(axis) > 0).nonzero()[:, 0].float()
        centre = offset + stride * cell
        assert (along - centre).abs().max() <= field / 2
        assert abs(float(along.min() + along.max()) / 2 - centre) < stride / 2


def test_all_that_is_wrong_with_a_file_is_told_at_once(files: dict[str, Path], tmp_path: Path) -> None:
    def told(held: object, name: str) -> str:
        torch.save(held, tmp_path / "bad.pth")
        with pytest.raises(VitrailError) as caught:
            prototypes((3, 32, 32), 2, weights=str(tmp_path / "bad.pth"), backbone=name)
        return str(caught.value)

    held = drawn("vgg11")
    del held["features.3.bias"]
    bad = held | {
        "features.0.weight": torch.zeros(64, 3, 5, 5),
        "features.6.bias": torch.zeros(256, dtype=torch.int64),
        "features.8.bias": torch.full((256,), torch.nan),
        "head.weight": torch.zeros(2),
        "classifier.6.weight": torch.zeros(14, 4096),
    }
    words = told(bad, "vgg11")
    for part in (
        "1 tensor is missing: features.3.bias",
        "features.0.weight [64, 3, 5, 5] in place of [64, 3, 3, 3]",
        "no floating-point numbers: features.6.bias",
        "not finite: features.8.bias",
        "of no layer of this network: head.weight",
    ):
        assert part in words
    assert "classifier" not in words, "another classifier does not matter"
    assert "it is not VGG-19" in told(drawn("vgg11"), "vgg19")
    assert "600 more" not in told(drawn("vgg11"), "densenet121")
    assert "expected tensors by their names, got a list" in told([torch.zeros(3)], "vgg11")
    (tmp_path / "half.safetensors").write_bytes(files["vgg11"].read_bytes()[:1000])
    with pytest.raises(VitrailError, match="no safetensors file"):
        prototypes((3, 32, 32), 2, weights=str(tmp_path / "half.safetensors"), backbone="vgg11")
    below = drawn("densenet121") | {"features.norm0.running_var": -torch.ones(64)}
    assert "a variance is below 0: features.norm0.running_var" in told(below, "densenet121")


def test_a_study_names_a_backbone_only_with_a_file() -> None:
    def parse(**network: object) -> vt.Study:
        return vt.Study.parse(
            {
                "target": {"column": "finding", "classes": ["a", "b"]},
                "images": {"size": (64, 64)},
                "network": {"kind": "prototypes", **network},
            }
        )

    with pytest.raises(VitrailError, match="needs weights from a file"):
        parse(backbone="vgg19")
    with pytest.raises(VitrailError, match="backbone"):
        parse(backbone="vgg13", weights="some.pth")
    with pytest.raises(VitrailError, match="does not have this key"):
        parse(kind="cnn", similarity="cosine", width=16)
    assert "backbone" not in parse(weights="some.pth").to_toml()
    study = parse(weights="some.pth", backbone="vgg19", similarity="cosine")
    assert vt.Study.parse(study.model_dump()).network == study.network
