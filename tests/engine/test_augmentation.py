"""Augmented pictures: what each kind does, the same in every engine, and on training rows only."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.support.small import make_rows
from vitrail.core.declarations import Adapters
from vitrail.core.random import bits
from vitrail.engine.augmentation import KINDS, augmented
from vitrail.engine.batches import gather_sites
from vitrail.engine.local import Engine
from vitrail.engine.rounds import Training
from vitrail.methods import build
from vitrail.testing.federation import LOSSES, PICTURE, small_cnn, task_of

KEYS = bits(torch.tensor([5]), 400)


def ramp(side: int = 28) -> torch.Tensor:
    """A picture whose pixels say where they are."""
    place = torch.arange(side * side, dtype=torch.double).view(1, 1, 1, side, side) / side**2
    return place.expand(1, 400, 1, side, side)


def test_flip_turns_about_every_second_one() -> None:
    x = ramp()
    got = augmented(x, KEYS, ("flip",))
    turned = (got == x.flip(-1)).flatten(2).all(2)[0]
    same = (got == x).flatten(2).all(2)[0]
    assert (turned ^ same).all()
    assert 150 < turned.sum() < 250


def test_shift_moves_by_up_to_two_pixels_of_28_each_way_and_repeats_the_edge() -> None:
    got = augmented(ramp(), KEYS, ("shift",))[0, :, 0]
    middle = (got[:, 14, 14] * 28 * 28).round().long()
    by = {(int(m) // 28 - 14, int(m) % 28 - 14) for m in middle}
    assert by == {(a, b) for a in range(-2, 3) for b in range(-2, 3)}
    assert (got[:, 0] == got[:, 1]).all(1).any(), "the edge is repeated"


def test_brightness_stays_between_black_and_white() -> None:
    got = augmented(torch.full((1, 400, 1, 8, 8), 0.5, dtype=torch.double), KEYS, ("brightness",))[0, :, 0, 0, 0]
    assert 0.4 <= got.min() < 0.42
    assert 0.58 < got.max() <= 0.6
    assert augmented(torch.ones(1, 400, 1, 8, 8), KEYS, ("brightness",)).max() == 1


def test_affine_turns_and_shears_about_the_middle() -> None:
    """By least squares of where a picture's pixels came from: within the bounds, and near them both ways."""
    side = 28
    place = (torch.arange(side, dtype=torch.double) * 2 + 1 - side) / side
    across, down = torch.meshgrid(place, place, indexing="xy")
    x = torch.stack([across, down])[None, None].expand(1, 400, 2, side, side)  # pixels that say where they are
    got = augmented(x, KEYS, ("affine",))[0]
    inner = slice(9, 19)  # nothing there comes from beyond the edge
    inputs = torch.stack([across[inner, inner], down[inner, inner], torch.ones(10, 10)], -1).view(-1, 3).double()
    outputs = got[:, :, inner, inner].flatten(2).transpose(1, 2)
    fitted = torch.linalg.lstsq(inputs.expand(400, -1, -1), outputs).solution  # [picture, 3, 2]
    assert (inputs @ fitted - outputs).abs().max() < 1e-9, "affine, and nothing else"
    assert fitted[:, 2].abs().max() < 1e-9, "the middle stays"
    matrix = fitted[:, :2].transpose(1, 2)
    angles = torch.linspace(-15, 15, 601)
    back = torch.stack([rotation(-a) for a in angles.tolist()])[:, None] @ matrix  # [angle, picture, 2, 2]
    right = (back.diagonal(dim1=2, dim2=3) - 1).abs().sum(2).min(0)
    assert right.values.max() < 0.005, "a turn, of a shear"
    turned, both = angles[right.indices].tolist(), back[right.indices, torch.arange(400)]
    assert both[:, 0, 1].abs().max() < 0.19
    assert both[:, 0, 1].max() > 0.15
    assert both[:, 1, 0].min() < -0.15
    assert min(turned) < -13
    assert max(turned) > 13


def rotation(degrees: float) -> torch.Tensor:
    a = torch.tensor(degrees, dtype=torch.double).deg2rad()
    return torch.stack([torch.stack([a.cos(), -a.sin()]), torch.stack([a.sin(), a.cos()])])


def test_warps_fit_pictures_that_are_not_square_and_keep_their_values() -> None:
    x = torch.rand(1, 400, 1, 12, 20, dtype=torch.double, generator=torch.Generator().manual_seed(1))
    for kind in ("affine", "skew"):
        got = augmented(x, KEYS, (kind,))
        assert got.shape == x.shape
        assert got.min() >= x.min()
        assert got.max() <= x.max()
        assert (got != x).any()
        flat = augmented(torch.full_like(x, 0.3), KEYS, (kind,))
        assert torch.allclose(flat, torch.full_like(x, 0.3)), "edges are repeated"


def test_skew_brings_one_edge_nearer() -> None:
    side = 28
    place = (torch.arange(side, dtype=torch.double) * 2 + 1 - side) / side
    x = place.expand(1, 400, 1, side, side).clone()  # how far right
    wide = augmented(x, KEYS, ("skew",))[0, :, 0]
    top, bottom = (wide[:, row, 18] - wide[:, row, 9] for row in (1, 26))
    assert (top / bottom).max() > 1.1
    assert (top / bottom).min() < 0.9
    assert (top / bottom).max() < 1.25


def test_engines_draw_the_same_and_it_changes_training() -> None:
    named = make_rows("classes", shape=PICTURE)
    rows = [(n, x.sigmoid(), y, w) for n, x, y, w in named]
    found = {}
    for engine in ({}, {"looped": True}, {"chunk": 2}):
        for kinds in ((), KINDS):
            training = Training(2, 2, 8, 0.1, 0.5, augment=kinds)
            task = task_of(small_cnn(Adapters()), LOSSES["classes"])
            *_, last = Engine(task, build("fedavg"), gather_sites(rows), training, 1, **engine).run()
            found[str(engine), bool(kinds)] = torch.cat([v.flatten() for v in last.coord.params.values()])
    for (engine, with_it), v in found.items():
        assert torch.allclose(v, found["{}", with_it], atol=1e-12), engine
    assert (found["{}", True] - found["{}", False]).abs().max() > 1e-4


class _Copies(TorchDispatchMode):
    """Counts tensors that are made of numbers of the interpreter, and then brought to their device."""

    found = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.found += func.overloadpacket.__name__ == "lift_fresh"
        return func(*args, **(kwargs or {}))


def test_nothing_is_copied_to_the_device_so_that_a_graph_can_hold_it() -> None:
    with _Copies() as copies:
        torch.tensor(1)
    assert copies.found == 1  # it is noticed
    with _Copies() as copies:
        augmented(ramp(8).float(), KEYS, KINDS)
    assert copies.found == 0
