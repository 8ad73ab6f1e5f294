"""A made-up run whose coordinator found groups, and its page."""

from __future__ import annotations

import torch

from tests.support.report.pages import HEART, SEEDS, make, run_of
from vitrail.core import facts as means
from vitrail.core.facts import Fact, Facts
from vitrail.report import Page


def facts_of(path: list[list[int]], lengths: bool = False, alike: bool = False) -> Facts:
    group, many = torch.tensor(path), len(path)
    out = {"any": Fact(group, ("site",), means.GROUP, every=True)}
    out["when"] = Fact(torch.arange(1, many + 1), (), means.ROUND, every=True)
    if lengths:
        changed = torch.zeros(group.shape, dtype=torch.bool)
        changed[2], changed[4] = True, group[4] != 3
        moved = torch.linspace(0.6, 0.1, many)[:, None].expand(group.shape)
        out["split"] = Fact(changed, ("site",), means.GROUP_SPLIT, every=True)
        out["mean"] = Fact(moved, ("site",), means.GROUP_MOVED, every=True)
        out["most"] = Fact(5 * moved, ("site",), means.GROUP_LONGEST, every=True)
    if alike:
        angle = torch.eye(4).expand(many, 4, 4) - torch.linspace(0.1, 0.6, many)[:, None, None]
        out["cosine"] = Fact(angle, ("user", "site"), means.ALIKE, every=True)
    return out


def page(facts: Facts, sites: tuple[str, ...] = HEART) -> Page:
    return make(sites, methods=["fedavg"], seeds=SEEDS[:1], kind="run", rounds=3, run=run_of(sites, facts))
