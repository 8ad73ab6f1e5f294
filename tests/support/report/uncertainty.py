"""A made-up run that tells how unsure its sites are, and its page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from tests.support.report.pages import SEEDS, make, run_of
from vitrail.core import facts as means
from vitrail.core.facts import Fact, Facts
from vitrail.report import Page

ROUNDS = 12
WARDS = [f"ward {i}" for i in range(6)]


def facts_of(sites: Sequence[str], sure: bool = True, away: bool = False) -> Facts:
    """The first site is the surest, and so on; the last two are drawn in turn. Names that no method gives its facts."""
    n, rounds = len(sites), torch.arange(1, ROUNDS + 1)
    unsure = (0.2 + 0.1 * torch.arange(n)).expand(ROUNDS, n).clone()
    first = torch.arange(n).expand(ROUNDS, n) < (n + 1) // 2
    lot = (torch.arange(n).expand(ROUNDS, n) - n + 2) == (rounds % 2)[:, None]
    chosen = first | lot
    if away:
        unsure[3:6, 1], chosen[3:6, 1] = torch.nan, False
    share = torch.eye(n).expand(ROUNDS, n, n) * 0.5 + 0.5 / n
    told = {"round": rounds, "uncertainty": unsure, "chosen": chosen, "share": share, "similarity": share}
    told |= {"sure": first & chosen} if sure else {}
    axes = {"round": (), "share": ("user", "site"), "similarity": ("user", "site")}
    return {f"a {k}": Fact(v, axes.get(k, ("site",)), getattr(means, k.upper()), every=True) for k, v in told.items()}


def scores_of(sites: Sequence[str], slope: float = -0.5) -> list[tuple[Any, ...]]:
    """The surer, the better; every other round."""
    level = [(site, 0.9 + slope * 0.1 * i) for i, site in enumerate(sites)]
    return [(0, r, s, "test", "balanced_accuracy", v) for s, v in level for r in range(0, ROUNDS + 1, 2)]


def page(sites: Sequence[str] = WARDS, slope: float = -0.5, lower: bool = False, **given: Any) -> Page:
    run = run_of(sites, facts_of(sites, **given), scores_of(sites, slope))
    asked = {"sites": sites, "methods": ["fedavg"], "seeds": SEEDS[:1], "kind": "run", "rounds": 3, "run": run}
    return make(**asked, lower_is_better=lower)
