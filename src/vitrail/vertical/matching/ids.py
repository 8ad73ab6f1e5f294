"""Ids of the same people as several parties write them: how they are spelled alike, and what can be wrong with them.

exact     as it is written
trimmed   outer spaces off, full-width and other compatible characters as plain ones
folded    letters and digits alone, case ignored: CH-756.1 = ch7561
digits    digits alone: 756.1234.5678.97 = 7561234567897
number    digits alone, leading zeros off: 0012 = 12
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, get_args

import pandas as pd

from vitrail.core.errors import Problem, nearest
from vitrail.data.findings import CheckFinding
from vitrail.data.readers.tables import name_rows, pick_rows, place_columns
from vitrail.data.schema import Form
from vitrail.study.model import Study

FORMS: tuple[Form, ...] = get_args(Form)
SAMPLE = 1000  # ids of which check digits are looked at
EXACT_FLOATS = 2**53  # whole numbers above it are rounded when a program takes them for floats
SHORT = re.compile(r"[0-9]([.,][0-9]+)?[eE]\+?[0-9]+")


def spell(text: str, form: Form) -> str:
    """
    >>> [spell(" CH-00756.1 ", form) for form in FORMS]
    [' CH-00756.1 ', 'CH-00756.1', 'ch007561', '007561', '7561']
    """
    if form == "exact":
        return text
    plain = unicodedata.normalize("NFKC", text).strip()
    if form == "trimmed":
        return plain
    if form == "folded":
        return "".join(filter(str.isalnum, plain.casefold()))
    digits = re.sub("[^0-9]", "", plain)
    return digits if form == "digits" else digits.lstrip("0") or digits[-1:]


def write(cell: Any) -> str:
    """A cell as text; programs make floats of whole numbers where some are missing.

    >>> write(12.0), write("0012"), write(None), write(float("nan"))
    ('12', '0012', '', '')
    """
    if cell is None or cell is pd.NA or cell is pd.NaT or (isinstance(cell, float) and cell != cell):
        return ""
    return str(int(cell)) if isinstance(cell, float) and cell.is_integer() else str(cell)


class ParsedIds(NamedTuple):
    """The ids of a party's table, as every check looks at them."""

    column: str
    form: Form
    labels: pd.Index
    cells: list[Any]
    written: list[str]
    spelled: list[str]

    def rows(self, test: Callable[[int], bool]) -> list[int]:
        """Row numbers, as the file counts them."""
        return pick_rows(self.labels, pd.Series([test(i) for i in range(len(self.spelled))], dtype=bool))

    def error(self, kind: str, rows: list[int], text: str, hint: str) -> CheckFinding:
        return CheckFinding(kind, "error", self.column, tuple(rows[:5]), len(rows), text, hint)

    def warning(self, kind: str, rows: list[int], text: str, hint: str) -> CheckFinding:
        return CheckFinding(kind, "warning", self.column, tuple(rows[:5]), len(rows), text, hint)


def _empty(seen: ParsedIds) -> Iterator[CheckFinding]:
    if rows := seen.rows(lambda i: not seen.written[i].strip()):
        yield seen.error("empty_id", rows, f"{len(rows)} rows have no id", "Fill them in, or leave these rows out.")
    if rows := seen.rows(lambda i: bool(seen.written[i].strip()) and not seen.spelled[i]):
        text = f"{len(rows)} ids are empty once form = {seen.form!r} is applied"
        yield seen.error("empty_id", rows, text, "Correct them, or agree on another form in [match].")


def _rounded(seen: ParsedIds) -> Iterator[CheckFinding]:
    def lost(i: int) -> bool:
        large = isinstance(seen.cells[i], float) and abs(seen.cells[i]) >= EXACT_FLOATS
        return large or bool(SHORT.fullmatch(seen.written[i].strip()))

    if rows := seen.rows(lost):
        text = f"{len(rows)} ids are rounded numbers such as {seen.written[_first(seen, lost)]}"
        yield seen.error("rounded_id", rows, text, "Their last digits are lost. Export the column as text.")


def _first(seen: ParsedIds, test: Callable[[int], bool]) -> int:
    return next(i for i in range(len(seen.written)) if test(i))


def _repeated(seen: ParsedIds) -> Iterator[CheckFinding]:
    """The same id twice; and ids that are two as written and one as spelled."""
    times = Counter(seen.spelled)
    ways: dict[str, set[str]] = {}
    for written, spelled in zip(seen.written, seen.spelled, strict=True):
        if spelled and times[spelled] > 1:
            ways.setdefault(spelled, set()).add(written)
    if rows := seen.rows(lambda i: len(ways.get(seen.spelled[i], ())) == 1):
        text = f"{len(rows)} rows share their id with another row"
        yield seen.error("repeated_id", rows, text, "Keep one row for each person.")
    if rows := seen.rows(lambda i: len(ways.get(seen.spelled[i], ())) > 1):
        one, other = sorted(next(way for way in ways.values() if len(way) > 1))[:2]
        text = (
            f"in {len(rows)} rows different ids become one under form = {seen.form!r}, for example {one!r} "
            f"and {other!r}"
        )
        hint = "If both are the same person, keep one row. If not, agree on a stricter form in [match]."
        yield seen.error("colliding_ids", rows, text, hint)


def _spaced(seen: ParsedIds) -> Iterator[CheckFinding]:
    if rows := seen.rows(lambda i: bool(re.search(r"\s", seen.spelled[i]))):
        text = f"{len(rows)} ids contain spaces, which form = {seen.form!r} keeps"
        yield seen.warning(
            "spaces_in_id", rows, text, 'If the other parties write no spaces, agree on form = "folded".'
        )


def _cased(seen: ParsedIds) -> Iterator[CheckFinding]:
    letters = [re.sub(r"[\W\d_]", "", spelled) for spelled in seen.spelled]
    upper = sum(map(str.isupper, letters)) >= sum(map(str.islower, letters))
    odd = seen.rows(lambda i: letters[i] != (letters[i].upper() if upper else letters[i].lower()))
    if odd and seen.form in ("exact", "trimmed"):
        text = f"{len(odd)} ids are not in {('upper' if upper else 'lower')} case, unlike the others"
        yield seen.warning("case_of_id", odd, text, 'If upper and lower case mean the same, agree on form = "folded".')


def _shortened(seen: ParsedIds) -> Iterator[CheckFinding]:
    """Leading zeros that a program took away, or a last digit that a person left out: some ids are too short."""
    digits = [spelled if re.fullmatch("[0-9]+", spelled) else "" for spelled in seen.spelled]
    lengths = Counter(map(len, filter(None, digits)))
    if seen.form == "number" or len(lengths) < 2:
        return
    longest = max(lengths)
    if has_check_digit([d for d in digits if len(d) == longest]) and lengths[longest - 1]:
        rows = seen.rows(lambda i: len(digits[i]) == longest - 1)
        text = f"{len(rows)} ids have {longest - 1} digits, while the ids of {longest} digits end in a check digit"
        yield seen.warning(
            "check_digit", rows, text, "The last digit or a leading zero may be missing. Write all digits."
        )
    elif lengths[longest] > 0.5 * lengths.total() and not any(d.startswith("0") for d in digits):
        rows = seen.rows(lambda i: 0 < len(digits[i]) < longest)
        text = f"{len(rows)} ids are shorter than the usual {longest} digits, and none begins with 0"
        hint = 'A program may have removed leading zeros. Export the column as text, or agree on form = "number".'
        yield seen.warning("leading_zeros", rows, text, hint)


CHECKS = (_empty, _rounded, _repeated, _spaced, _cased, _shortened)


def has_check_digit(ids: Sequence[str]) -> bool:
    """Whether the last digit follows from the others: by weights 3 and 1 (EAN, AHV), or by Luhn's rule.

    >>> has_check_digit(["7569217076985"] * 20), has_check_digit(["7569217076984"] * 20)
    (True, False)
    """
    rows = [[int(c) for c in reversed(one)] for one in ids[:SAMPLE] if one.isdecimal()]
    ean = all(sum(d * (3 if i % 2 else 1) for i, d in enumerate(row)) % 10 == 0 for row in rows)
    luhn = all(sum(sum(divmod(2 * d, 10)) if i % 2 else d for i, d in enumerate(row)) % 10 == 0 for row in rows)
    return len(rows) >= 20 and (ean or luhn)


def lacks_check_digit(ids: Sequence[str], others: Sequence[str]) -> bool:
    """Whether these are one digit shorter than others, whose last is a check digit."""
    sizes, longer = ({len(one) for one in some} for some in (ids, others))
    return len(longer) == 1 and sizes == {len(others[0]) - 1} and others[0].isdigit() and has_check_digit(others)


def look(frame: pd.DataFrame, study: Study, party: str) -> tuple[ParsedIds | None, list[CheckFinding]]:
    """The ids of a party's table, None where it has no such column; and what is wrong with them, errors first."""
    assert study.match is not None
    column, form, target = study.parties[party].id, study.match.form, study.target.column
    places, repeated = place_columns(frame)
    findings = []
    if party != study.host and target in places:
        text = f"only the host has the target {target!r}, but the table of this guest has this column too"
        hint = "Remove the column here, or rename it if it holds something else."
        findings.append(CheckFinding("target_at_guest", "error", target, (), len(frame), text, hint))
    if column not in places or column in repeated:
        text = f"expected one column of ids, got {('more than one' if column in repeated else 'none')}"
        hint = "Keep one of them." if column in repeated else nearest(column, places)
        return None, [*findings, CheckFinding("no_id", "error", column, (), len(frame), text, hint)]
    cells = frame.iloc[:, places[column]].tolist()
    written = [write(cell) for cell in cells]
    seen = ParsedIds(column, form, frame.index, cells, written, [spell(text, form) for text in written])
    findings += [finding for check in CHECKS for finding in check(seen)]
    return seen, sorted(findings, key=lambda finding: finding.severity)


def shape(ids: Sequence[str]) -> str:
    """What ids look like, in words; none of them.

    >>> shape(["0012", "123"]), shape(["A-1"])
    ('3 to 4 digits, some with leading zeros', '3 characters, letters and other signs among them')
    """
    sizes = sorted({len(one) for one in ids})
    long = " to ".join(map(str, dict.fromkeys((sizes[0], sizes[-1]))))
    if all(re.fullmatch("[0-9]+", one) for one in ids):
        more = ", some with leading zeros" * any(one.startswith("0") for one in ids)
        return f"{long} digits{more}{', the last a check digit' * has_check_digit(ids)}"
    signs = {c for one in ids for c in one}
    kinds = ["letters"] * any(map(str.isalpha, signs)) + ["other signs"] * (not all(map(str.isalnum, signs)))
    return f"{long} characters, {' and '.join(kinds)} among them"


def other_forms(written: Mapping[str, Sequence[str]], form: Form) -> list[Form]:
    """Forms that spell some party's ids otherwise than they are spelled now."""
    now = {party: [spell(text, form) for text in ids] for party, ids in written.items()}
    return [
        other
        for other in FORMS
        if other != form and any([spell(t, other) for t in ids] != now[party] for party, ids in written.items())
    ]


def tell(party: str, frame: pd.DataFrame, findings: Sequence[CheckFinding]) -> list[Problem]:
    """Errors as problems; rows are those of the file."""
    file = str(frame.attrs.get("file", f"{party}'s table"))
    out = []
    for f in (f for f in findings if f.severity == "error"):
        rows = f", {name_rows(f.rows)}{', ...' if f.count > len(f.rows) else ''}" if f.rows else ""
        out.append(Problem(f"{file}, column {f.column}{rows}", f"{f.text}.", f.hint))
    return out
