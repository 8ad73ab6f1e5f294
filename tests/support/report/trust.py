"""A made-up run of Weight Erosion, and its page."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from tests.support.report.pages import SEEDS, make, run_of
from vitrail.core import facts as means
from vitrail.core.facts import ALONE, SHARED, Fact, Facts
from vitrail.methods import WeightErosion
from vitrail.report import Page
from vitrail.runs.setup import MAJORITY

ROUNDS = 30
WARDS = [f"ward {i}" for i in range(5)]


def facts_of(sites: Sequence[str], rate: float = 0.02, odd: int = 3, **more: torch.Tensor) -> Facts:
    """All wear off evenly, the odd one twice as fast. Names that no method gives its facts."""
    n = len(sites)
    speed = torch.full((n, n), rate) + 0.002 * torch.arange(n)
    speed[:, odd] *= 2
    speed[range(n), range(n)] = 0
    time = torch.arange(1, ROUNDS + 1)
    path = (1 - time[:, None, None] * speed).clamp(min=0)
    none = torch.zeros(ROUNDS, n, dtype=torch.bool)
    far = torch.linspace(0, 2, ROUNDS)[:, None].expand(ROUNDS, n)
    told = {"trust": path, "distance": path, "vanished": none, "stopped": none, "round": time}
    told |= {"gradients": torch.tensor([[n * n, 2 * n]]).expand(ROUNDS, 2)}
    told |= {"to_alone": far, "to_shared": far * 0.4, "between": far * 1.2} | more
    axes = {"trust": ("user", "site"), "distance": ("user", "site"), "round": (), "gradients": ("for",)}
    return {
        f"what {k}": Fact(v, axes.get(k, ("user",)), getattr(means, k.upper()), every=True) for k, v in told.items()
    }


def scores_of(sites: Sequence[str]) -> list[tuple[Any, ...]]:
    """Rows of a history: the metric of the study, of all three models."""
    rows: list[tuple[Any, ...]] = []
    for site in sites:
        rows.append((0, 0, site, f"test:{MAJORITY}", "balanced_accuracy", 0.55))
        for split, top in (("test", 0.8), (f"test:{SHARED}", 0.7), (f"test:{ALONE}", 0.75)):
            path = [(r, top - 0.3 * np.exp(-r / 8)) for r in range(0, ROUNDS + 1, 2)]
            rows += [(0, r, site, split, "balanced_accuracy", v) for r, v in path]
    return rows


def page(sites: Sequence[str] = WARDS, linear: bool = True, **given: Any) -> Page:
    run = run_of(sites, facts_of(sites, **given), scores_of(sites), WeightErosion(), linear)
    return make(sites=sites, methods=["fedavg"], seeds=SEEDS[:1], kind="run", rounds=3, run=run)
