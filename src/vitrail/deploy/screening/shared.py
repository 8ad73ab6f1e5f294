"""A screening between machines: what both ends know of it. Four questions, each asked and answered once:

sketch   what each site publishes of its columns
counts   rows between values that all are asked about alike
total    the products of columns, as a secure sum (deploy/secure_sum/)
ties     what follows from that sum: how columns go together, and predictions by all other sites' rows
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from vitrail.deploy.protocol.message import QUESTIONS, MessageSchema, no_such
from vitrail.engine.contract import Spec, WireEntry
from vitrail.privacy.secure_sum.fixed_point import ZERO, ZEROS
from vitrail.runs.screening import screen_lines

if TYPE_CHECKING:
    from vitrail.deploy.protocol.agreement import Agreement

LEGS = ("sketch", "counts", "total", "ties")  # in the order of time
LARGEST = 1e7  # what one site's products of columns, at most its rows, stay below


def summed_shapes(agreed: Agreement) -> dict[str, tuple[tuple[int, ...], float]]:
    """What each site adds: shapes, and how large a number may be."""
    return {p.name: (p.shape, LARGEST) for p in agreed.parts if p.total}


def check_leg(agreed: Agreement, words: dict[str, Any]) -> str:
    leg: str = words["leg"] if words.get("leg") in LEGS and agreed.parts else ""
    if not leg:
        raise no_such("leg", words.get("leg"))
    return leg


def question_schema(agreed: Agreement, words: dict[str, Any]) -> MessageSchema:
    """NaN is what is not asked about."""
    leg = check_leg(agreed, words)
    tensors = _tensors(agreed, leg, "to site")
    return MessageSchema(QUESTIONS["screen"] | ({"sum": dict} if leg == "total" else {}), tensors, frozenset(tensors))


def answer_schema(agreed: Agreement, words: dict[str, Any]) -> MessageSchema:
    """NaN is what a site does not publish."""
    leg = check_leg(agreed, words)
    if leg == "total":
        shapes = {name: shape for name, (shape, _) in summed_shapes(agreed).items()} | {ZERO: (ZEROS,)}
        return MessageSchema({"list": str}, {name: (shape, torch.int64) for name, shape in shapes.items()})
    tensors = _tensors(agreed, leg, "from site")
    return MessageSchema({}, tensors, frozenset(tensors))


def wire_lines(agreed: Agreement) -> list[WireEntry]:
    """What crosses in a screening; what only the total is wanted of, as it leaves."""
    lines = [x for x in screen_lines(agreed.study) if agreed.parts and x.seen != "sum"]
    words = {p.name: p.means for p in agreed.parts if p.total} | {ZERO: "zeros, to see whether the masks cancel"}
    for name, (shape, dtype) in answer_schema(agreed, {"leg": "total"}).tensors.items() if agreed.parts else ():
        about = name, shape, str(dtype).removeprefix("torch."), 8 * math.prod(shape), 1, "masked"
        lines.append(WireEntry("screen: total", "from site", *about, words=words[name], asks=True))
    return lines


def _tensors(agreed: Agreement, leg: str, way: str) -> Spec:
    wanted = (leg, way, False)
    return {p.name: (p.shape, torch.float64) for p in agreed.parts if (p.leg, p.direction, p.total) == wanted}
