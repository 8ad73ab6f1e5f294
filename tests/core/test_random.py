"""Randomness depends on (seed, site, stage, round) alone, and is random enough."""

from __future__ import annotations

import torch

from tests.support.small import make_rows
from vitrail.core.random import bits, keep_mask, key, odd32, orders
from vitrail.engine.batches import BatchDraw, BatchSampler, Sites, gather_sites


def drawn(sites: Sites, epochs: int, units: int, stage: int, round_: int) -> BatchDraw:
    drawer = BatchSampler(sites, 8, epochs, 1, units)
    drawer.set(stage, round_)
    return drawer.draw()


def test_bits_are_splitmix64() -> None:
    def by_hand(k: int, i: int) -> int:
        m = (1 << 64) - 1
        z = (k + i * 0x9E3779B97F4A7C15) & m
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & m
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & m
        return z ^ (z >> 31)

    got = bits(torch.tensor([key("a"), key("b")]), 50)
    for row, name in zip(got.tolist(), ("a", "b"), strict=True):
        assert [v % (1 << 64) for v in row] == [by_hand(key(name), i) for i in range(1, 51)]


def test_orders_are_permutations_and_do_not_depend_on_neighbours() -> None:
    keys, sizes = torch.tensor([key(i) for i in range(3)]), torch.tensor([5, 9, 2])
    both = orders(keys, sizes, 9)
    for i, n in enumerate(sizes.tolist()):
        assert sorted(both[i, :n].tolist()) == list(range(n))
        assert torch.equal(both[i, :n], orders(keys[i : i + 1], sizes[i : i + 1], n)[0, :n])


def test_a_sites_batches_are_its_own() -> None:
    rows = make_rows()
    alone = drawn(gather_sites(rows[3:4]), 2, 30, 0, 4)
    sites = gather_sites(rows)
    among = drawn(sites, 2, 30, 0, 4)
    i = sites.names.index("site 3")
    start = sites.starts[i]
    steps = alone.rows.shape[0]
    real = alone.real[:, 0, :, 0]
    assert torch.equal(alone.real[:, 0], among.real[:steps, i])
    assert torch.equal(alone.rows[:, 0] * real, (among.rows[:steps, i] - start) * real)
    assert torch.equal(alone.row_key[:, 0], among.row_key[:steps, i])
    assert torch.equal(alone.unit_key, among.unit_key)
    for stage, round_ in ((0, 5), (1, 4)):
        assert not torch.equal(among.rows, drawn(sites, 2, 30, stage, round_).rows)


def test_every_row_is_drawn_once_an_epoch() -> None:
    sites = gather_sites(make_rows())
    draw = drawn(sites, 3, 0, 0, 0)
    for i, (start, size) in enumerate(zip(sites.starts, sites.sizes, strict=True)):
        got = draw.rows[:, i][draw.real[:, i, :, 0] == 1].tolist()
        assert sorted(got) == sorted(list(range(start, start + size)) * 3)


def test_dropout_masks_look_like_coin_tosses() -> None:
    rows, units, rate = 4000, 300, 0.2
    mask = keep_mask(odd32(torch.tensor([key("rows")]), rows)[0], odd32(torch.tensor([key("units")]), units)[0], rate)
    dropped = (mask == 0).double()
    assert set(mask.unique().tolist()) == {-1, 0}
    spread = (rate * (1 - rate)) ** 0.5
    assert abs(dropped.mean() - rate) < 5 * spread / (rows * units) ** 0.5
    # as unequal between rows, and between units, as independent tosses would be
    for axis, n in ((1, units), (0, rows)):
        assert 0.7 < dropped.mean(axis).std() / (spread / n**0.5) < 1.4
    # pairs of rows and pairs of units agree no more than by chance
    z = (dropped - rate) / spread
    for m in (z[:200], z[:, :200].T):
        corr = (m @ m.T / m.shape[1]).fill_diagonal_(0) * m.shape[1] ** 0.5
        assert corr.std() < 1.2
        assert corr.abs().max() < 8
    assert keep_mask(torch.tensor([3], dtype=torch.int32), torch.tensor([5, 7], dtype=torch.int32), 0.0).eq(-1).all()
