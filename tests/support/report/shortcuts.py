"""A made-up run of prototypes in which a site's class stands out, and its page."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tests.support.report.pages import SEEDS, make, run_of
from tests.support.scripts import load_script
from vitrail.core import facts as means
from vitrail.core.facts import Fact, Facts
from vitrail.report import Page

bench = load_script("planted_bias_rule")
MEANINGS = {
    "travel": means.TRAVEL,
    "margin": means.MARGIN,
    "piece": means.PIECE,
    "easy": means.EASY,
    "distance": means.PROTOTYPE_DISTANCE,
}


def facts_of(sites: int, classes: int, rows: int, marked: bool = True, **changes: Any) -> Facts:
    mark = bench.Mark() if marked else None
    made = bench.simulate(np.random.default_rng(3), sites, classes, rows, bench.WORLDS["alike"], mark)
    made = {k: v for k, v in {**made, **changes}.items() if v is not None}
    return {f"f{i}": Fact(torch.from_numpy(v), (), MEANINGS[k]) for i, (k, v) in enumerate(made.items())}


def page(facts: Facts, many: int, names: tuple[str, ...] = (), **info: Any) -> Page:
    sites = names or tuple(f"site {i}" for i in range(many))
    run = run_of(sites, facts, info=info)
    return make(sites, methods=["fedavg"], seeds=SEEDS[:1], kind="run", rounds=3, run=run)
