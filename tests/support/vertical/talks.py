"""A host and two guests with invented people, and the paper's way to explain."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.core.optimizers import SGD
from vitrail.deploy.vertical.messages import read, written
from vitrail.vertical.training.dialogue import Dialogue
from vitrail.vertical.training.guest import Guest
from vitrail.vertical.training.host import Host
from vitrail.vertical.training.logistic import Logistic
from vitrail.vertical.training.ration import RationAccount
from vitrail.vertical.training.split_network import SplitNetwork
from vitrail.vertical.training.terms import GuestOffer, Terms
from vitrail.vertical.wire import Wire

WIDTHS = (4, 3, 2)  # of the host and two guests


def people(n: int = 2600, dtype: torch.dtype = torch.float64) -> tuple[list[Tensor], Tensor]:
    g = torch.Generator().manual_seed(3)
    x = torch.randn(n, sum(WIDTHS), generator=g, dtype=torch.float64)
    y = (x.sum(1) + 2 * x[:, 4] * x[:, 0] + torch.randn(n, generator=g, dtype=torch.float64) > 0).long()
    parts = x.to(dtype).split(list(WIDTHS), 1)
    return list(parts), nn.functional.one_hot(y, 2).to(dtype)


def talk(
    kind: str = "logistic", guests: int = 2, bits: int = 0, rule: Any = None, wire: Wire | None = None,
    ration: int = 50, noise: float = 0.0, **terms: Any,
) -> Dialogue:  # fmt: skip
    parts, y = people(dtype=terms.pop("dtype", torch.float64))
    names, rule = ("lab", "insurer")[:guests], rule or SGD(0.5, momentum=0.5)
    offers = tuple(GuestOffer(n, WIDTHS[i + 1], 1, bits, noise) for i, n in enumerate(names))
    agreed = Terms(len(y), offers, **{"epochs": 3, "alone": 0, **terms})
    joint: Any = Logistic(WIDTHS[0])
    start = joint.init() if kind == "logistic" else {}
    if kind == "split":
        joint = SplitNetwork(WIDTHS[0], guests, 2, (8,))
        start = joint.init(1)
    host = Host("clinic", agreed, parts[0], y, joint, {k: v.to(y) for k, v in start.items()}, rule)
    sides = [
        Guest(o, agreed, parts[i + 1], rule, RationAccount(o.name, len(y), ration, 5000), secret=bytes([i]))
        for i, o in enumerate(offers)
    ]
    return Dialogue(host, sides, wire)


def through_bytes(letter: Any) -> Any:
    """As between machines. In place of `LocalMail.carry` it makes a simulation pack and unpack every letter."""
    return read(written(letter).pack(), "on its way")


def naive(f: Any, row: np.ndarray, off: np.ndarray, groups: list[list[int]]) -> list[float]:
    """As the paper has it: for each player and each coalition of the others, with and without it."""
    p, out = len(groups), []
    for j in range(p):
        total = 0.0
        for size in range(p):
            for some in itertools.combinations([i for i in range(p) if i != j], size):
                x = off.copy()
                for i in some:
                    x[groups[i]] = row[groups[i]]
                more = x.copy()
                more[groups[j]] = row[groups[j]]
                weight = math.factorial(size) * math.factorial(p - size - 1) / math.factorial(p)
                total += weight * float(f(more[None])[0] - f(x[None])[0])
        out.append(total)
    return out
