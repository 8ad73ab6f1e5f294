"""A scale that all sites share, under masks: of counts, sums and squares only what all sites add up to is opened.

Two sums (step 1: sums; step 2: squared distances to the mean that they gave), each of two legs:

offer    a key for this one sum, signed by the key that the site enrolled with
sum      everybody's keys; the site's numbers under masks (privacy/secure_sum/pairwise.py), exact
(privacy/secure_sum/limbs.py)

The mean goes into what a site signs: sites that were told different means refuse each other's keys, since a mean that
is far off for one site alone would show its rows in the total. Who gives no key within a few deadlines is left out of
that sum. Who falls silent between key and sum is waited for: there is no second list. The list is on the coordinator's
disk before it is sent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vitrail.core.errors import MessageRefused, Problem
from vitrail.data.encoding import numeric
from vitrail.deploy.protocol.message import MessageSchema
from vitrail.privacy.secure_sum.limbs import LARGEST, LIMBS
from vitrail.privacy.secure_sum.pairwise import SumSpec
from vitrail.storage.hash_chain import digest_of

if TYPE_CHECKING:
    from vitrail.deploy.protocol.agreement import Agreement

LEGS = ("offer", "sum")
KEY = ("key", "signature", "certificate")  # of an offer
MOST_ROWS = 1e9  # of a site


def terms_of(agreed: Agreement, run: str, step: int, mean: Tensor | None) -> SumSpec:
    told = "" if mean is None else digest_of(mean.numpy().tobytes())
    count = len(numeric(agreed.study))
    shapes: dict[str, tuple[int, ...]] = {"rows": (count,), "total": (count, LIMBS)}
    clip = {"rows": MOST_ROWS, "total": LARGEST}
    return SumSpec(f"{agreed.hash} {run} scale {step} {told}", shapes, clip, agreed.sites, agreed.fewest)


def question_form(words: dict[str, Any], mean: tuple[tuple[int, ...], torch.dtype]) -> MessageSchema:
    """What a site may be asked; `mean`: shape and type."""
    if words.get("leg") not in LEGS:
        problem = Problem("leg", f"there is none {str(words.get('leg'))[:40]!r}.", "It was dropped.")
        raise MessageRefused(problems=[problem])
    asked: dict[str, Any] = {"run": str, "step": int, "leg": str, "offers": dict}
    return MessageSchema(asked, {"mean": mean} if words.get("step") == 2 else {})


def answer_form(words: dict[str, Any], terms: SumSpec) -> MessageSchema:
    if words.get("leg") == "offer":
        return MessageSchema(dict.fromkeys(KEY, str), {})
    return MessageSchema({}, {k: (shape, torch.int64) for k, shape in terms.summed().items()})
