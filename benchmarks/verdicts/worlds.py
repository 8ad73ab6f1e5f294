"""Federations to choose in: truths that are known, and real tables and pictures. For benchmarks/verdicts/choose.py."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

import vitrail as vt
from vitrail.data.encoding import prepare

Array = NDArray[Any]
TEST = 3000  # rows of a site in a world of our own


class Site(NamedTuple):
    x: Array
    y: Array
    test_x: Array
    test_y: Array
    group: int = 0  # the truth, where there is one
    honest: bool = True  # whether its labels are right; only such sites are judged


class World(NamedTuple):
    """`groups` 0: as many as sites; spread: each site's own truth, around its group's; shift: features have another
    place and scale at each site; wrong: labels of every third site are turned round, or drawn by lot."""

    groups: int = 1
    spread: float = 0.0
    shift: bool = False
    wrong: str = ""
    sites: int = 12
    rows: tuple[int, int] = (60, 250)  # of a site to train on; of a table, before test rows are taken
    hidden: tuple[int, ...] = ()  # of the network; its truth then is one too
    table: str = ""  # rows of this table instead
    hard: bool = False  # whether there is somebody to find: groups or wrong labels


WORLDS = {
    "all alike": World(),
    "spread .2": World(spread=0.2),
    "spread .4": World(spread=0.4),
    "all different": World(0),
    "feature shift": World(shift=True),
    "two groups": World(2, hard=True),
    "two groups, spread .2": World(2, 0.2, hard=True),
    "three groups": World(3, hard=True),
    "a third turned round": World(wrong="turned", hard=True),
    "a third by lot": World(wrong="by lot", hard=True),
    "two groups of 4 sites": World(2, sites=8, rows=(60, 60), hard=True),
    "network, all alike": World(hidden=(16,)),
    "network, two groups": World(2, hidden=(16,), hard=True),
    "network, a third by lot": World(wrong="by lot", hidden=(16,), hard=True),
    "heart, 4 hospitals": World(table="heart", rows=(1, 500)),
    "GUSTO, 16 regions": World(table="gusto", rows=(1, 500)),
    "Titanic by age": World(table="titanic", rows=(1, 500)),
    "Adult by occupation": World(table="occupation", rows=(1, 1000)),
    "Adult by relationship": World(table="relationship", rows=(1, 1000)),
    "pictures, 4 classes a site": World(table="cifar", sites=16, rows=(80, 240)),
    "pictures, two groups": World(2, table="cifar", rows=(80, 240), hard=True),
}


def sites_of(world: World, seed: int) -> list[Site]:
    if world.table == "cifar":
        return pictures(world, seed)
    return tabled(world, seed) if world.table else drawn(world, seed)


def drawn(world: World, seed: int, columns: int = 10) -> list[Site]:
    g, n = np.random.default_rng([seed, 17]), world.sites
    truths = [truth(g, columns, bool(world.hidden)) for _ in range(world.groups or n)]
    out = []
    for i in range(n):
        group, bad = i % len(truths), bool(world.wrong) and i % 3 == 2
        own = world.spread * g.normal(size=columns)
        constant = 0.3 * g.normal() if world.spread else 0.0
        place, scale = np.zeros(columns), np.ones(columns)
        if world.shift:
            place, scale = 0.7 * g.normal(size=columns), np.exp(0.4 * g.normal(size=columns))
        many = int(np.exp(g.uniform(*np.log(world.rows))) + 1e-6)  # 60 to 60 is 60
        x = place + scale * g.normal(size=(many + TEST, columns))
        y = (g.random(len(x)) < 1 / (1 + np.exp(-(truths[group](x) + x @ own + constant)))).astype(int)
        if bad:
            y[:many] = 1 - y[:many] if world.wrong == "turned" else g.integers(0, 2, many)
        out.append(Site(x[:many], y[:many], x[many:], y[many:], 1 if bad else group, not bad))
    return out


def truth(g: np.random.Generator, columns: int, network: bool) -> Callable[[Array], Array]:
    b, inner, outer = 0.8 * g.normal(size=columns), g.normal(size=(columns, 6)), 1.5 * g.normal(size=6)
    return (lambda x: np.tanh(x @ inner) @ outer) if network else (lambda x: x @ b)


@cache
def frames(name: str) -> dict[str, Any]:
    if name == "heart":
        return vt.datasets.heart_disease()
    if name == "gusto":
        return vt.datasets.gusto()
    if name == "titanic":
        return vt.partition.age_strict(vt.datasets.titanic())
    adult = vt.datasets.adult().drop(columns=["fnlwgt", "education", "country"])
    parts = {str(k): f.drop(columns=name) for k, f in adult.groupby(name) if len(f) > 600}
    return dict(sorted(parts.items()))


@cache
def study_of(name: str) -> vt.Study:
    target = {"heart": "disease", "gusto": "day30", "titanic": "survived"}.get(name, "target")
    study = vt.Study.infer(frames(name), target, network={"kind": "linear"}, standardise="global")
    share = 0.8 if target == "target" else 0.5
    return study.with_changes(training={"class_weights": "none"}, split={"test": share, "at_least": 1})


def tabled(world: World, seed: int) -> list[Site]:
    """Rows of a site, drawn by the seed, and of these a half is tested on; of Adult four fifths."""
    some = {k: f.sample(min(len(f), world.rows[1]), random_state=seed) for k, f in frames(world.table).items()}
    made = prepare(some, study_of(world.table), seed)
    return [Site(*(np.asarray(a) for a in (s.train_x, s.train_y, s.test_x, s.test_y))) for s in made]


@cache
def features() -> tuple[Array, Array, Array, Array]:
    """CIFAR-10 through fixed features: 64 random patches, whitened, rectified, pooled to quarters; 40 components."""
    held = np.load(Path(os.environ["VITRAIL_DATA"]) / "cifar10_subset" / "cifar10_8k_2k.npz")
    g, size = np.random.default_rng(0), 6
    both = [torch.tensor(held[k]).float().view(-1, 32, 32, 3).permute(0, 3, 1, 2) / 255 for k in ("x_train", "x_test")]
    cut = torch.nn.functional.unfold(both[0][:400], size, stride=3).transpose(1, 2).flatten(0, 1)

    def level(p: Tensor) -> Tensor:
        return (p - p.mean(-1, keepdim=True)) / (p.std(-1, keepdim=True) + 0.05)

    patches = level(cut[torch.tensor(g.permutation(len(cut))[:4000])])
    mean, (values, axes) = patches.mean(0), torch.linalg.eigh(torch.cov(patches.T))
    white = (axes / (values + 0.1).sqrt()) @ axes.T
    filters = torch.nn.functional.normalize((patches[:64] - mean) @ white)

    def seen(x: Tensor) -> Tensor:
        out = []
        for part in x.split(250):
            found = (level(torch.nn.functional.unfold(part, size, stride=3).transpose(1, 2)) - mean) @ white @ filters.T
            found = torch.cat([(found - 0.5).relu(), (-found - 0.5).relu()], -1).transpose(1, 2).unflatten(2, (9, 9))
            out.append(torch.nn.functional.adaptive_avg_pool2d(found, 2).flatten(1))
        return torch.cat(out)

    train, test = (seen(x) for x in both)
    middle, scale = train.mean(0), train.std(0) + 1e-6
    train, test = (train - middle) / scale, (test - middle) / scale
    values, axes = torch.linalg.eigh(train.T @ train / len(train))
    turn = axes[:, -40:] / values[-40:].sqrt()
    return (train @ turn).numpy(), held["y_train"].astype(int), (test @ turn).numpy(), held["y_test"].astype(int)


def pictures(world: World, seed: int) -> list[Site]:
    """Of one group: each site has 4 of the 10 classes. Of two: all classes, and the second group names them anew."""
    (x, y, test_x, test_y), g = features(), np.random.default_rng([seed, 23])
    left = {c: list(g.permutation(np.flatnonzero(y == c))) for c in range(10)}
    names, out = g.permutation(10), []
    for i in range(world.sites):
        group, many = i % world.groups, int(g.integers(*world.rows))
        classes = np.arange(10) if world.groups > 1 else g.choice(10, 4, replace=False)
        take = [left[c].pop() for c in classes for _ in range(many // len(classes)) if left[c]]
        test = np.flatnonzero(np.isin(test_y, classes))
        said, asked = (names[v] if group else v for v in (y[take], test_y[test]))
        out.append(Site(x[take], said, test_x[test], asked, group))
    return out
