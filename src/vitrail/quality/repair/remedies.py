"""What a site can do about a cause by itself, and what it must ask for instead.

A number is repaired as      value x factor + offset        (unit, offset; `unit in part` for some of the rows)
                             offset - value                 (sign, label flip of a number)
a category or class by       level -> level                 (sign, recoded, label flip), as the file spells them
a code is                    emptied
and two swapped columns      change places.
What was lost (clipped, rounded, shuffled, ...) no repair brings back: ASKS says what to ask for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from vitrail.core.errors import Problem, nearest
from vitrail.data.schema import Feature, TableSchema, Target, canon
from vitrail.quality.repair.command import say_flags
from vitrail.quality.screening.result import CAUSES, LABEL, Finding

# what to ask for; where a repair is possible (TAKES), before it is done
ASKS = {
    "unit": "Ask the laboratory, or whoever exported the column, for its unit.",
    "unit in part": "Ask which rows came from another laboratory or device.",
    "offset": "Ask whether something was subtracted or added: a zero point, a baseline, an age at another date.",
    "sign": "Compare the coding with the study's: is low written as high, or 0 as 1?",
    "code": "Ask what is written where nothing was measured.",
    "swapped": "Compare the header with the export's source: which column is which?",
    "recoded": "Compare each category's meaning with the study's code book.",
    "label flip": "Compare the outcome's coding with the study's: is yes written as no?",
    "constant": (
        "Ask whether the export filled it in, and if so for the measured values. If the value is real, leave it as "
        "it is."
    ),
    "clipped": "Values beyond the bound are lost in this file: ask for the uncut values.",
    "rounded": "The digits are lost in this file: ask for the unrounded values.",
    "shuffled": (
        "This file no longer shows which value belongs to which row: ask for the column again, joined by patient."
    ),
    "label noise": (
        "This file does not show which outcomes are wrong: ask how they were recorded, and check a sample."
    ),
    "other": "Ask how, on whom and with what the column was measured here.",
    "out of range": "Correct the values or empty their cells; if they are real, the study's range is too narrow.",
    "missing by class": "Ask why the others were not measured.",
    "mostly missing": "Ask whether the export lost the values.",
    "only here": (
        "Nothing is wrong with it: ask the coordinator whether the study needs a column that only one site measures."
    ),
    "not here": "Ask whether it was measured, and if so for the values; otherwise there is nothing to repair.",
    "differs": (
        "The difference may be real, because of other patients or another way of measuring: ask before you change "
        "anything."
    ),
}
TAKES = {  # cause -> the numbers that its repair needs, and those that it may have besides
    "unit": (("factor",), ("offset",)),
    "unit in part": (("factor",), ("offset", "below", "above")),
    "offset": (("offset",), ()),
    "sign": ((), ("offset", "levels")),
    "code": (("code",), ()),
    "swapped": (("other",), ()),
    "recoded": (("levels",), ()),
    "label flip": ((), ("levels", "offset")),
}
GIVEN = ("factor", "offset", "code", "other", "levels", "below", "above")


class Repair(NamedTuple):
    """One column, and what is done about its cause."""

    column: str
    cause: str  # of CAUSES
    factor: float | None = None
    offset: float | None = None
    code: str | None = None  # as it is written
    other: str | None = None
    levels: Mapping[str, str] | None = None  # what is written here -> what it means in the study
    below: float | None = None  # of `unit in part`: only values below, or above
    above: float | None = None

    def flags(self) -> str:
        """For `vitrail repair`."""
        values = {name: getattr(self, name) for name in GIVEN if name != "levels"}
        values = {name: value for name, value in values.items() if value is not None}
        return say_flags(self.column, self.cause, values, self.levels or {})

    def words(self) -> str:
        """In short, what is done."""
        if self.code is not None:
            return f"cells that hold {self.code} are emptied"
        if self.other is not None:
            return f"the cells are swapped with those of {self.other}"
        if self.levels:
            return ", ".join(f"{a} becomes {b}" for a, b in self.levels.items())
        plus = f" {'+' if (self.offset or 0) > 0 else '-'} {abs(self.offset or 0):g}" if self.offset else ""
        if self.cause in ("sign", "label flip"):
            return f"{self.offset or 0:g} - value" if self.offset is not None else "reversed"
        return "value" + (f" x {self.factor:.6g}" if self.factor not in (None, 1) else "") + plus


def repair_of(finding: Finding, table: TableSchema) -> Repair | None:
    """What a finding asks for, where the column itself can be repaired."""
    coded = finding.kind == "constant" and finding.numbers.get("code") is not None  # every row holds a usual code
    cause = "code" if coded else finding.kind
    needs = TAKES.get(cause)
    if needs is None or any(finding.numbers.get(name) is None for name in needs[0]):
        return None
    details: dict[str, Any] = {
        n: finding.numbers[n] for n in (*needs[0], *needs[1]) if finding.numbers.get(n) is not None
    }
    try:  # between machines they are a coordinator's word
        for name in ("factor", "offset", "below", "above"):
            details |= {name: float(details[name])} if name in details else {}
        if details.get("offset") == 0 and finding.kind in ("unit", "unit in part"):
            del details["offset"]
        details |= {"code": canon(details["code"])} if "code" in details else {}
        if "levels" in details:
            details["levels"] = {canon(a): canon(b) for a, b in dict(details["levels"]).items() if canon(a) != canon(b)}
    except (TypeError, ValueError):
        return None
    return Repair(table.target.column if finding.feature == LABEL else finding.feature, cause, **details)


def wrong_words(repair: Repair, columns: Mapping[str, Any], there: Mapping[str, int]) -> list[Problem]:
    """Names that nobody knows, and causes that no repair takes back."""
    problems = []
    named = {"--feature": repair.column} | ({"--other": repair.other} if repair.other is not None else {})
    for where, name in named.items():
        if name not in columns:
            problems.append(Problem(where, f"the study has no column {name!r}.", nearest(name, columns)))
        elif name not in there:
            problems.append(Problem(where, f"the file has no column {name!r}.", nearest(name, there)))
    if repair.other == repair.column:
        problems.append(
            Problem("--other", "expected another column, got the same one.", "Name the column it was swapped with.")
        )
    if repair.cause not in CAUSES:
        problems.append(Problem("--cause", f"there is no cause {repair.cause!r}.", nearest(repair.cause, CAUSES)))
    elif repair.cause not in TAKES:
        what = f"{CAUSES[repair.cause]}: this cannot be repaired from the column itself."
        problems.append(Problem("--cause", what, ASKS[repair.cause]))
    else:
        needs, may = TAKES[repair.cause]
        present = [n for n in GIVEN if getattr(repair, n) not in (None, {})]
        flags = {n: f"--{'map' if n == 'levels' else n}" for n in GIVEN}
        for name in needs:
            if name not in present:
                what = f"the cause {repair.cause!r} needs it."
                problems.append(Problem(flags[name], what, f"For example: {EXAMPLES[name]}."))
        for name in present:
            if name not in (*needs, *may):
                what = f"the cause {repair.cause!r} does not use it."
                problems.append(Problem(flags[name], what, "Leave it out, or name another cause."))
    return problems + _unusable(repair)


def _unusable(repair: Repair) -> list[Problem]:
    """Numbers that change nothing, or all."""
    problems = []
    for name in ("factor", "offset", "below", "above"):
        value = getattr(repair, name)
        if value is not None and not math.isfinite(value):
            problems.append(Problem(f"--{name}", f"expected a number, got {value}."))
    if repair.factor is not None and repair.factor <= 0:
        hint = "The cause of a reversed column is 'sign'." if repair.factor else "A factor of 0 would erase the column."
        problems.append(Problem("--factor", f"expected a factor above 0, got {repair.factor:g}.", hint))
    if repair.factor == 1 and not repair.offset:
        problems.append(Problem("--factor", "a factor of 1 changes nothing.", "Write the factor that the values need."))
    if repair.offset == 0 and repair.cause == "offset":
        problems.append(Problem("--offset", "an offset of 0 changes nothing.", "Write the number to add."))
    return problems


EXAMPLES = {"factor": "--factor 38.67", "offset": "--offset -5", "code": "--code 999", "other": "--other age",
            "levels": "--map 1=2 --map 2=1"}  # fmt: skip


def wrong_numbers(repair: Repair, what: Feature | Target, table: TableSchema) -> list[Problem]:
    """What does not go together with this column."""
    is_number, is_target = what.kind in ("numeric", "number"), repair.column == table.target.column
    problems = []
    if repair.cause in ("unit", "unit in part", "offset") and not is_number:
        problems.append(
            Problem("--cause", f"{repair.column} is {what.kind} and has no unit.", "See 'sign' or 'recoded'.")
        )
    if repair.cause == "recoded" and is_number:
        problems.append(Problem("--cause", f"{repair.column} is a number and has no codes.", "See 'unit' or 'sign'."))
    if repair.cause == "label flip" and not is_target:
        hint = f"The outcome is {table.target.column}; for a feature, write 'sign' or 'recoded'."
        problems.append(Problem("--cause", f"{repair.column} is not the outcome.", hint))
    if repair.cause == "code" and is_target:
        hint = f"Empty the cells of {repair.column} by hand: their rows are then left out."
        problems.append(Problem("--cause", "a code in the outcome cannot be emptied by this command.", hint))
    if repair.offset is not None and repair.cause in ("sign", "label flip") and not is_number:
        problems.append(Problem("--offset", f"{repair.column} has codes, not numbers.", "Leave it out."))
    if repair.levels and is_number:
        problems.append(Problem("--map", f"{repair.column} is a number and has no codes.", "Leave it out."))
    several = not is_number and len(what.levels) > 2
    if repair.cause in ("sign", "label flip") and several and not repair.levels:
        flag = "" if is_target else "--cause recoded "
        hint = f"Give the meaning of each code: {flag}--map A=B, with the codes {', '.join(what.levels)}."
        problems.append(Problem("--cause", f"{repair.column} has {len(what.levels)} codes, not two.", hint))
    for side, names in (("left", repair.levels or {}), ("right", (repair.levels or {}).values())):
        for name in names:
            if not is_number and canon(name) not in what.levels:
                text = f"expected a code of {repair.column} on the {side} of =, got {name!r}."
                problems.append(Problem("--map", text, f"Valid: {', '.join(what.levels)}."))
    return problems
