"""The coordinator's side of a common scale under masks: one list of sites, two sums."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitrail.core.errors import SumRefused
from vitrail.data.encoding import Matrix, Moments
from vitrail.deploy.coordinator.requests import SiteRequests
from vitrail.deploy.identity.participants import are_missing
from vitrail.deploy.protocol.message import Message
from vitrail.deploy.scale.shared import terms_of
from vitrail.privacy.secure_sum.limbs import from_limbs
from vitrail.privacy.secure_sum.pairwise import open_sum
from vitrail.storage.atomic_files import write_atomically

KEPT = "scale.json"  # in the run's folder: who is in the sums


def masked_moments(call: SiteRequests, names: Sequence[str], path: Path) -> Callable[[Matrix | None], list[Moments]]:
    """What all sites together say, for `finish_moments`. `path`: the run's folder."""
    place = path / KEPT
    if place.exists():  # started anew: sites add to no other list
        names = json.loads(place.read_text())
    if len(names) < (fewest := call.agreed.fewest):
        away = are_missing([n for n in call.names if n not in names])
        raise SumRefused("sites", f"{len(names)} can add to the common scale, and it takes {fewest}; {away}.")
    write_atomically(place, json.dumps([*names]))

    def say(mean: Matrix | None) -> list[Moments]:
        step, told = (1, {}) if mean is None else (2, {"mean": torch.from_numpy(mean)})
        terms = terms_of(call.agreed, call.run, step, told.get("mean"))

        def ask(leg: str, offers: dict[str, Any]) -> dict[str, Message]:
            asked = Message("standardise", {"step": step, "leg": leg, "offers": offers}, told)
            return call.all(lambda n: asked if n in names else None, len(names))

        offers = {n: m.words for n, m in ask("offer", {}).items()}
        said = {n: {k: v.numpy().view(np.uint64) for k, v in m.tensors.items()} for n, m in ask("sum", offers).items()}
        total = open_sum(said, terms)
        found = Moments(total["rows"], from_limbs(total["total"]))
        if (found.rows < 0).any() or (step == 2 and (found.total < 0).any()):
            raise SumRefused("sum", "what sites said of their columns cannot be: a count or a square below zero.")
        return [found]

    return say
