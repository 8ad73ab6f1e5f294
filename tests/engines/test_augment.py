"""Augmented pictures: what each kind does, the same in every engine, and on training rows only."""

from __future__ import annotations

import torch

from small import make_rows
from vitrail.core.exchange import Ends
from vitrail.core.random import bits
from vitrail.engines.augment import augmented
from vitrail.engines.local import Engine
from vitrail.engines.rounds import Training
from vitrail.engines.sites import gather_sites
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


def test_engines_draw_the_same_and_it_changes_training() -> None:
    named = make_rows("classes", shape=PICTURE)
    rows = [(n, x.sigmoid(), y, w) for n, x, y, w in named]
    found = {}
    for engine in ({}, {"looped": True}, {"chunk": 2}):
        for kinds in ((), ("flip", "shift", "brightness")):
            training = Training(2, 2, 8, 0.1, 0.5, augment=kinds)
            task = task_of(small_cnn(Ends()), LOSSES["classes"])
            *_, last = Engine(task, build("fedavg"), gather_sites(rows), training, 1, **engine).run()
            found[str(engine), bool(kinds)] = torch.cat([v.flatten() for v in last.coord.params.values()])
    for (engine, with_it), v in found.items():
        assert torch.allclose(v, found["{}", with_it], atol=1e-12), engine
    assert (found["{}", True] - found["{}", False]).abs().max() > 1e-4
