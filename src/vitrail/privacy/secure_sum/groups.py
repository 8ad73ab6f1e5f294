"""Sums of small groups, of which nobody sees a single part; and a robust centre over the groups.

A coordinator that may only read totals cannot say who lies; one that reads each report can read rows. Between the two:
sites are put into groups of at least `least`, the total of each is all that is read, and of the groups' means a centre
is taken that a group with a liar in it hardly moves (privacy/robust.py). A group of which fewer answer is not opened.

Groups are drawn once and stay. Drawn anew every round, the totals would be equations for what each site says on
average, and their solution tells a site's share of each class (benchmarks/attacks/attacks.py, `labels of groups`).
"""

from __future__ import annotations

import torch
from torch import Tensor

from vitrail.core.random import mixed
from vitrail.privacy.secure_sum.fixed_point import fewest_of

GROUPS = 3  # at least: of two, nobody can say which is moved by a lie


def groups_of(seeds: Tensor, least: int) -> Tensor:
    """[site] keys of the sites -> [site] number of the group, the same whatever their order."""
    n = len(seeds)
    rank = torch.empty(n, dtype=torch.long, device=seeds.device)
    rank[mixed(seeds, torch.tensor(1 << 50)).argsort(stable=True)] = torch.arange(n, device=seeds.device)
    count = max(1, n // least)
    return rank * count // n


def opened_groups(group: Tensor, here: Tensor, least: int) -> Tensor:
    """[group, site] bool: who is in the total of each group that is opened."""
    member = group == torch.arange(int(group.max()) + 1, device=group.device)[:, None]
    fewest = torch.tensor([fewest_of(n, least) for n in member.sum(1).tolist()], device=group.device)
    member = member & here
    return member[member.sum(1) >= fewest]
