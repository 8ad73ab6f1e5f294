"""The coordinator's side of a common scale under masks: two sums, each of those who gave a key for it in time."""

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

KEPT = "scale.json"  # in the run's folder: who is in each sum


def masked_moments(call: SiteRequests, names: Sequence[str], path: Path) -> Callable[[Matrix | None], list[Moments]]:
    """What all sites together say, for `finish_moments`. `path`: the run's folder."""
    place, fewest = path / KEPT, call.agreed.fewest
    lists: dict[str, list[str]] = json.loads(place.read_text()) if place.exists() else {}

    def fix(step: int, offers: dict[str, Any]) -> dict[str, Any]:
        """Who is in this sum; on disk before it is sent, since sites add to no other list."""
        if str(step) not in lists:
            if len(offers) < fewest:
                away = are_missing([n for n in call.names if n not in offers])
                raise SumRefused("sites", f"{len(offers)} can add to the common scale, and it takes {fewest}; {away}.")
            if missing := [n for n in names if n not in offers]:
                call.way.log("not in the scale", sites=missing, step=step)
            lists[str(step)] = sorted(offers)
            write_atomically(place, json.dumps(lists))
        return {n: offers[n] for n in lists[str(step)]}

    def say(mean: Matrix | None) -> list[Moments]:
        step, told = (1, {}) if mean is None else (2, {"mean": torch.from_numpy(mean)})
        terms = terms_of(call.agreed, call.run, step, told.get("mean"))

        question = Message("standardise", {"step": step, "leg": "offer", "offers": {}}, told)
        fixed = lists.get(str(step))  # started anew: the keys of these are needed, all of them
        wanted = names if fixed is None else fixed
        keys = call.patient(lambda n: question if n in wanted else None, fewest if fixed is None else len(fixed))
        offers = fix(step, {n: m.words for n, m in keys.items()})
        question = Message("standardise", {"step": step, "leg": "sum", "offers": offers}, told)
        answers = call.all(lambda n: question if n in offers else None, len(offers))
        total = open_sum(
            {n: {k: v.numpy().view(np.uint64) for k, v in m.tensors.items()} for n, m in answers.items()}, terms
        )
        found = Moments(total["rows"], from_limbs(total["total"]))
        if (found.rows < 0).any() or (step == 2 and (found.total < 0).any()):
            raise SumRefused("sum", "what sites said of their columns cannot be: a count or a square below zero.")
        return [found]

    return say
