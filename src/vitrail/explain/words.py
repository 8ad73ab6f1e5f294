"""A finding in a sentence: what the federation does to it, why that may be, what to ask, and how sure it is."""

from __future__ import annotations

import math

from vitrail.explain.evidence import LABEL
from vitrail.explain.shifts import Alarm


def describe_alarm(alarm: Alarm, kind: str, level: float, alpha: float, unit: str) -> tuple[str, float, float, str]:
    """kind of trouble, strength, confidence and a plain sentence: what the federation does to it, why that may be,
    what to ask, and how often chance alone would say so.
    """
    doubt = min(1.0, alarm.p_value / level * alpha) if level else 1.0
    shift, factor = alarm.shift, alarm.factor
    times = f"multiplies it by {factor:.2f}"
    if not alarm.measured:
        what = f"the same value in every row, or none; the federation treats it as a shift of {shift:+.2f}"
        cause, ask = "not measured here, or missing values written as a number", "whether it is measured"
        text = f"{alarm.site}, {alarm.variable}: {what}; likely {cause}; ask the site {ask}."
        return "not measured", abs(shift), 1.0, text
    if alarm.variable == LABEL:
        trouble, what = "swapped label", f"the outcome works the other way round here: the shared model {times}"
        cause, ask = "yes and no are swapped", "how the outcome is coded"
    elif kind == "categorical":
        most = f"the shared model moves one by {shift:+.2f} and {times}"
        trouble, what = "recoded", f"its categories mean something else here: {most}"
        cause, ask = "another code book, or missing values written as a category", "for its code book"
    elif factor < -0.1:
        trouble, what = "reversed", f"it works the other way round here: the shared model {times}"
        cause, ask = "a swapped sign or code", "how low and high are written"
    elif abs(factor) < 0.5 and abs(shift) < 1:
        trouble, what = "uninformative", f"it tells little here: the shared model {times}"
        cause, ask = "not measured, or filled in by default", "how its values come about"
    elif kind == "binary" or abs(factor - 1) >= abs(shift):
        more = "more" if abs(factor) > 1 else "less"
        trouble, what = "stretched", f"it counts {more} here than at the other sites: the shared model {times}"
        cause, ask = "another unit, or values missing or filled in, here or there", "for the unit"
        if kind == "binary":
            cause, ask = "another definition, or asked of other patients", "whom it was asked, and how"
    else:
        low, add = ("low", "adds") if shift > 0 else ("high", "takes away")
        trouble = "shifted"
        what = f"its values are too {low} for the shared model, which {add} {abs(shift):.2f} {unit}"
        what += f", then {times}" if abs(factor - 1) >= 0.1 else ""
        cause, ask = "another way of measuring, or missing values written as a number", "how it is measured"
    if kind == "numeric" and trouble in ("stretched", "shifted"):
        ask += " and how missing values are written"
    strength = abs(factor - 1) if alarm.variable == LABEL else max(abs(shift), abs(factor - 1))
    name = "label" if alarm.variable == LABEL else alarm.variable
    odds = f"by chance less than once in {_round_number(1 / max(doubt, 1e-12))} runs"
    return trouble, strength, 1 - doubt, f"{alarm.site}, {name}: {what}; likely {cause}; ask the site {ask} ({odds})."


def _round_number(x: float) -> str:
    """Down to 1, 2 or 5 times a power of ten."""
    if x >= 1e6:
        return "a million"
    ten = 10 ** int(math.log10(max(x, 1)))
    return f"{max(m * ten for m in (1, 2, 5) if m * ten <= max(x, 1)):,}"
