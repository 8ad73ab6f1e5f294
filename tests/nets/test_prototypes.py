"""Networks with prototypes: what scores are made of, where cells lie, and backbones from a file or trained here."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

import vitrail as vt
from vitrail.core.declarations import Adapters
from vitrail.core.errors import VitrailError
from vitrail.core.tensors import Params, to_all
from vitrail.nets import Cells, ProtoNet, prototypes
from vitrail.nets.efficientnet import BLOCKS, EfficientNet, _layers, folded
from vitrail.nets.prototype_network import Similarity

SHAPE = (1, 28, 28)


def some(net: ProtoNet, sites: int = 2, rows: int = 5) -> tuple[Params, Tensor]:
    g = torch.Generator().manual_seed(4)
    start = {k: v.double() for k, v in net.init(g).items()}
    params = {k: v + 0.05 * torch.randn(v.shape, generator=g) for k, v in to_all(start, sites).items()}
    return params, torch.rand(sites, rows, *net.pictures, generator=g, dtype=torch.double)


def test_scores_by_hand() -> None:
    net = prototypes(SHAPE, 3, per_class=4, latent=6)
    params, x = some(net)
    out = net.forward(params, x, tape=False)
    distance, z = net.seen(params, x)
    assert distance.shape == (2, 5, 12, 7, 7)
    for s in range(2):
        for r in range(5):
            patches = z[s, r].flatten(1).T  # [cell, D]
            for p in range(12):
                by_hand = ((patches - params["prototypes"][s, p]) ** 2).sum(1)
                assert torch.allclose(distance[s, r, p].flatten(), by_hand, atol=1e-12)
            near = distance[s, r].flatten(1).amin(1)
            score = params["last.weight"][s] @ torch.log((near + 1) / (near + 1e-4))
            assert torch.allclose(out.z[s, r], score, atol=1e-10)
            assert torch.allclose(out.features[s, r], near, atol=1e-12)


def test_cosine_scores_by_hand() -> None:
    net = prototypes(SHAPE, 3, per_class=4, latent=6, measure="cosine")
    params, x = some(net)
    out = net.forward(params, x, tape=False)
    distance, z = net.seen(params, x)
    for s in range(2):
        for r in range(5):
            patches = z[s, r].flatten(1).T - 0.5  # [cell, D]
            alike = torch.nn.functional.cosine_similarity(
                patches[None], params["prototypes"][s][:, None] - 0.5, dim=2
            )  # [prototype, cell]
            assert torch.allclose(distance[s, r].flatten(1), 1 - alike, atol=1e-9)
            assert torch.allclose(out.z[s, r], params["last.weight"][s] @ alike.amax(1), atol=1e-9)
            assert torch.allclose(net.similarity(out.features[s, r]), alike.amax(1), atol=1e-9)
            assert alike.std() > 0.1, "they point in different directions"


@pytest.mark.parametrize("measure", ["log", "cosine"])
def test_evidence_adds_up_to_the_score(measure: Similarity) -> None:
    net = prototypes(SHAPE, 3, measure=measure)
    params, x = some(net)
    assert torch.allclose(net.evidence(params, x).sum(2), net.forward(params, x, tape=False).z, atol=1e-10)


def test_the_last_layer_begins_with_one_for_its_own_class() -> None:
    net = prototypes(SHAPE, 3, per_class=2)
    weight = net.init(torch.Generator().manual_seed(1))["last.weight"]
    assert weight.tolist() == [[1, 1, *[-0.5] * 4], [-0.5] * 2 + [1, 1] + [-0.5] * 2, [*[-0.5] * 4, 1, 1]]
    assert torch.equal(net.own(weight), weight == 1)


def test_groups_are_all_parameters() -> None:
    net = prototypes(SHAPE, 2)
    assert list(net.groups) == ["features", "add_on", "prototypes", "head"]
    named = [n for names in net.groups.values() for n in names]
    assert sorted(named) == sorted(net.init(torch.Generator()))


@pytest.mark.parametrize("pixel", [(0, 0), (13, 14), (20, 3), (27, 27)])
def test_a_cell_sees_its_field_and_no_more(pixel: tuple[int, int]) -> None:
    """Which cells change when one pixel does, against what Cells says; for the very numbers and not only the bound."""
    net = prototypes(SHAPE, 2)
    params, x = some(net, 1, 1)
    other = x.clone()
    other[..., pixel[0], pixel[1]] += 1
    changed = (net.maps(params, x) != net.maps(params, other)).any(2)[0, 0]
    at = net.cells()
    far = [(torch.arange(7) * at.stride + at.offset - p).abs() <= at.field / 2 for p in pixel]
    within = far[0][:, None] & far[1]
    assert (changed <= within).all()
    assert changed.any()


def test_the_field_is_no_larger_than_it_must_be() -> None:
    """Over many pixels, some change reaches every offset that the field allows."""
    net = prototypes(SHAPE, 2)
    params, x = some(net, 1, 1)
    x = x.expand(1, 28, *SHAPE).clone()
    other = x.clone()
    other[0, torch.arange(28), 0, torch.arange(28), 14] += 1
    changed = (net.maps(params, x) != net.maps(params, other)).any(2)[0].any(-1)  # [pixel's row, cell's row]
    middle = changed[:, 3].nonzero()[:, 0]
    assert (int(middle.min()), int(middle.max())) == (5, 22)  # 18 pixels around 13.5
    assert (net.cells().offset + 3 * net.cells().stride, net.cells().field) == (13.5, 18)


def test_spread_goes_through_the_centres() -> None:
    maps = torch.rand(2, 7, 7, dtype=torch.double, generator=torch.Generator().manual_seed(2))
    wide = Cells(4, 1.5, 18).spread(maps, (28, 28))
    between = (wide[:, 1::4, 1::4] + wide[:, 2::4, 2::4] + wide[:, 1::4, 2::4] + wide[:, 2::4, 1::4]) / 4
    assert torch.allclose(between[:, 1:-1, 1:-1], maps[:, 1:-1, 1:-1], atol=0.2)
    assert torch.allclose(wide[:, 0, 0], maps[:, 0, 0])
    ramp = torch.arange(7.0).expand(7, 7)
    assert torch.allclose(Cells(4, 1.5, 18).spread(ramp, (28, 28))[0, 2:26], (torch.arange(2, 26) - 1.5) / 4)


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file as the real one, of numbers drawn here."""
    g = torch.Generator().manual_seed(1)
    held = {}
    blank = EfficientNet(3, "").state_dict()
    for ours, (theirs, norm) in _layers().items():
        w = blank[f"{ours}.weight"]
        held[f"{theirs}.weight"] = torch.randn(w.shape, generator=g) * (2 / w[0].numel()) ** 0.5
        held |= {f"{norm}.{k}": torch.rand(len(w), generator=g) + 0.5 for k in ("weight", "running_var")}
        held |= {f"{norm}.{k}": 0.1 * torch.randn(len(w), generator=g) for k in ("bias", "running_mean")}
    place = tmp_path_factory.mktemp("weights") / "some.pth"
    torch.save(held, place)
    return place


def test_folding_is_the_batch_norm(weights: Path) -> None:
    held = torch.load(weights, weights_only=True)
    x = torch.rand(2, 32, 9, 9)
    conv = torch.nn.functional.conv2d(x, held["_blocks.0._depthwise_conv.weight"], groups=32)
    k = "_blocks.0._bn1"
    by = (held[f"{k}.{n}"] for n in ("running_mean", "running_var", "weight", "bias"))
    there = torch.nn.functional.batch_norm(conv, *by, eps=1e-3)
    params = folded(str(weights)).params
    w, b = params["blocks.0.depthwise.weight"], params["blocks.0.depthwise.bias"]
    assert torch.allclose(torch.nn.functional.conv2d(x, w, b, groups=32), there, atol=1e-5)


def test_frozen_features_give_the_same_scores_as_the_pictures(weights: Path) -> None:
    net = prototypes((1, 64, 64), 2, latent=8, weights=str(weights), frozen=True)
    assert net.shape == (320, 2, 2)
    assert list(net.groups) == ["add_on", "prototypes", "head"]
    params = {k: v[None] for k, v in net.init(torch.Generator().manual_seed(1)).items()}
    x = torch.randint(0, 256, (3, 1, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(2))
    maps = net.features_of(x)
    got, there = (net.forward(params, rows[None], tape=False).z for rows in (maps, x))
    assert torch.allclose(got, there, atol=1e-5)
    assert net.cells()[:2] == (32, 15.5)
    with pytest.raises(VitrailError, match="frozen"):
        net.framed(Adapters(True))


def test_the_backbone_is_trained_where_it_is_not_frozen(weights: Path) -> None:
    net = prototypes((3, 32, 32), 2, latent=8, weights=str(weights))
    start = net.init(torch.Generator().manual_seed(1))
    assert torch.equal(start["features.stem.weight"], folded(str(weights)).params["stem.weight"])
    assert len(net.groups["features"]) == 2 * (1 + sum(2 + (wider > 1) for _, _, wider, _, _ in BLOCKS))


def test_what_cannot_be_read_is_told(weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def told(file: object) -> str:
        with pytest.raises(VitrailError) as caught:
            prototypes((3, 32, 32), 2, weights=str(file))
        return str(caught.value)

    assert "there is no file" in told(tmp_path / "none.pth")
    (tmp_path / "text.pth").write_text("no weights")
    assert "no state dict" in told(tmp_path / "text.pth")
    torch.save({"a": torch.zeros(3)}, tmp_path / "other.pth")
    assert "not EfficientNet-Lite0" in told(tmp_path / "other.pth")
    held = torch.load(weights, weights_only=True)
    torch.save(held | {"_conv_stem.weight": torch.zeros(32, 3, 5, 5)}, tmp_path / "shape.pth")
    assert "stem.weight" in told(tmp_path / "shape.pth")
    monkeypatch.setenv("VITRAIL_WEIGHTS", str(weights.parent))
    assert prototypes((3, 32, 32), 2, weights=f"elsewhere/{weights.name}").pretrained, "by its name, in that folder"


def test_a_study_says_what_does_not_go_together() -> None:
    def told(network: dict[str, object], **images: object) -> str:
        with pytest.raises(VitrailError) as caught:
            vt.Study.parse(
                {
                    "target": {"column": "finding", "classes": ["a", "b"]},
                    "images": {"size": (28, 28), **images},
                    "network": {"kind": "prototypes", **network},
                }
            )
        return str(caught.value)

    assert "multiples of 32 pixels" in told({"weights": "some.pth"})
    assert "need weights from a file" in told({"frozen": True})
    whole = {"weights": "some.pth", "frozen": True}
    assert "augmented anew" in told(whole, size=(64, 64), augment=["flip"])
    assert "-1 to 1" in told(whole, size=(64, 64), normalise="unit")
    assert "the network cnn does not have this key" in told({"kind": "cnn", "prototypes": 3})
