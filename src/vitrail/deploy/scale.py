"""A scale that all sites share, under masks: of counts, sums and squares only what all sites add up to is opened.

Two sums (step 1: sums; step 2: squared distances to the mean that they gave), each of two legs:

offer    a key for this one sum, signed by the key that the site enrolled with
sum      everybody's keys; the site's numbers under masks (protect/masks.py), exact (protect/exact.py)

The mean goes into what a site signs: sites that were told different means refuse each other's keys, since a mean that
is far off for one site alone would show its rows in the total. Who falls silent in between is waited for: there is no
second list. Which list it is, is on the coordinator's disk before it is told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vitrail.core.chain import mark_of
from vitrail.core.problems import Problem, VitrailError
from vitrail.data.encode import numeric
from vitrail.deploy.message import Form
from vitrail.protect.exact import LARGEST, LIMBS
from vitrail.protect.masks import Terms

if TYPE_CHECKING:
    from vitrail.deploy.agreement import Agreement

LEGS = ("offer", "sum")
KEY = ("key", "signature", "certificate")  # of an offer
MOST_ROWS = 1e9  # of a site


def terms_of(agreed: Agreement, run: str, step: int, mean: Tensor | None) -> Terms:
    told = "" if mean is None else mark_of(mean.numpy().tobytes())
    count = len(numeric(agreed.study))
    shapes: dict[str, tuple[int, ...]] = {"rows": (count,), "total": (count, LIMBS)}
    clip = {"rows": MOST_ROWS, "total": LARGEST}
    return Terms(f"{agreed.hash} {run} scale {step} {told}", shapes, clip, agreed.sites, agreed.fewest)


def question_form(words: dict[str, Any], mean: tuple[tuple[int, ...], torch.dtype]) -> Form:
    """What a site may be asked; `mean`: shape and type."""
    if words.get("leg") not in LEGS:
        problem = Problem("leg", f"there is none {str(words.get('leg'))[:40]!r}.", "It was dropped.")
        raise VitrailError("a message was refused", [problem])
    asked: dict[str, Any] = {"run": str, "step": int, "leg": str, "offers": dict}
    return Form(asked, {"mean": mean} if words.get("step") == 2 else {})


def answer_form(words: dict[str, Any], terms: Terms) -> Form:
    if words.get("leg") == "offer":
        return Form(dict.fromkeys(KEY, str), {})
    return Form({}, {k: (shape, torch.int64) for k, shape in terms.summed().items()})


def refused(where: str, what: str) -> VitrailError:
    return VitrailError("a masked sum was refused", [Problem(where, what, "Nothing was opened.")])
