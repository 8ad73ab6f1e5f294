"""Findings that somebody has answered: shown as known, and no longer counted as likely wrong.

An answer holds for the cause and the numbers that it was given to. When another cause is found, or the numbers are no
longer about the same, the finding comes back.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterable, Sequence
from datetime import date
from pathlib import Path

import numpy as np
from pydantic import ValidationError

from vitrail.core.errors import Problem, VitrailError, nearest
from vitrail.quality.screening.result import KNOWN, LABEL, Finding, Screening
from vitrail.storage.atomic_files import write_atomically
from vitrail.storage.untrusted_files import read_text
from vitrail.study.known_findings import KnownFinding, known_section

SHARES = ("share", "strength")  # between 0 and 1, or -1 and 1
ABSOLUTE = 0.05  # by which these may change
RELATIVE = 0.1  # part of it by which another number may change
KEPT = ("statistic", "scale", "here", "elsewhere", "factor", "offset", "code", "value", "share", "step", "ratio",
        "strength", "level", "other")  # fmt: skip
MOST = 10_000  # answers in a file


def kept_numbers(finding: Finding) -> dict[str, float | int | str]:
    """The finding's numbers as an answer keeps them."""
    some = {k: finding.numbers.get(k) for k in KEPT}
    out: dict[str, float | int | str] = {}
    for k, v in some.items():
        if isinstance(v, str):
            out[k] = v
        elif isinstance(v, float | int) and math.isfinite(v):
            out[k] = float(f"{v:.6g}")
    return out


def holds(answer: KnownFinding, finding: Finding, column: str) -> bool:
    """Whether an answer is about this finding as it is now. `column`: the outcome's, for findings about it."""
    if answer.site != finding.site or answer.column not in (finding.feature, column):
        return False
    if answer.cause and answer.cause != finding.kind:
        return False
    now = kept_numbers(finding)
    scale = str(now.get("scale", ""))
    return all(k in now and _same(k, scale, value, now[k]) for k, value in answer.numbers.items())


def _same(key: str, scale: str, then: float | str, now: float | str) -> bool:
    if isinstance(then, str) or isinstance(now, str):
        return str(then) == str(now)
    if key in SHARES or (key in ("here", "elsewhere") and scale in ("share", "correlation")):
        return abs(then - now) <= ABSOLUTE
    return abs(then - now) <= RELATIVE * max(abs(then), abs(now))


def mark_known(findings: Sequence[Finding], answers: Iterable[KnownFinding], outcome: str) -> list[Finding]:
    """The findings, those that were answered with the answer and no longer likely wrong; these come last."""
    answers, out = list(answers), []
    for finding in findings:
        column = outcome if finding.feature == LABEL else finding.feature
        answer = next((a for a in reversed(answers) if holds(a, finding, column)), None)
        if answer:
            entry = {"why": answer.why, "who": answer.who, "when": answer.when}
            finding = finding._replace(wrong=False, numbers={**finding.numbers, KNOWN: entry})
        out.append(finding)
    return sorted(out, key=lambda f: KNOWN in f.numbers)  # stable


def with_known(screening: Screening, answers: Iterable[KnownFinding], outcome: str) -> Screening:
    findings = mark_known(screening.findings, answers, outcome)
    cells = {(f.site, f.feature) for f in findings if f.known}
    if not cells or not len(screening.cells):
        return screening._replace(findings=findings)
    is_known = [pair in cells for pair in zip(screening.cells["site"], screening.cells["feature"], strict=True)]
    table = screening.cells.assign(wrong=screening.cells["wrong"].eq(True) & ~np.array(is_known))
    return screening._replace(findings=findings, cells=table)


def read_answers(paths: Iterable[Path]) -> list[KnownFinding]:
    """The `[known.NAME]` sections of these files, a study or a site's own; all problems at once."""
    out, problems = list[KnownFinding](), list[Problem]()
    for path in paths:
        try:
            raw = tomllib.loads(read_text(path)).get("known", {})
        except OSError as error:
            problems.append(Problem(str(path), f"it cannot be read: {error.strerror}.", "Check the path."))
            continue
        except (ValueError, RecursionError):
            problems.append(Problem(str(path), "expected TOML, got something else.", "Write it by `vitrail known`."))
            continue
        if not isinstance(raw, dict) or len(raw) > MOST or not all(isinstance(v, dict) for v in raw.values()):
            problems.append(Problem(f"{path} known", "expected sections [known.NAME].", "Write it by `vitrail known`."))
            continue
        for name, content in raw.items():
            try:
                out.append(KnownFinding.model_validate(content))
            except ValidationError as error:
                where = ", ".join(".".join(map(str, e["loc"])) for e in error.errors()[:5])
                what = f"this answer cannot be used ({where})."
                problems.append(Problem(f"{path} known.{name}", what, "It needs site, column and why."))
    if problems:
        raise VitrailError("cannot read the answers", problems)
    return out


def answer_finding(
    findings: Sequence[Finding], site: str, column: str, outcome: str, why: str, who: str, day: date
) -> KnownFinding:
    """An answer to the finding about this cell."""
    feature = LABEL if column in (outcome, LABEL) else column
    mine = [f for f in findings if f.site == site and f.feature == feature]
    problems = []
    if not why.strip():
        problems.append(Problem("--why", "expected what is known about the finding, got nothing.", "One sentence."))
    if not mine:
        columns = sorted({outcome if f.feature == LABEL else f.feature for f in findings if f.site == site})
        hint = nearest(column, columns) if columns else "Nothing was found about this site."
        problems.append(Problem("--site, --feature", f"there is no finding about {column!r} at {site!r}.", hint))
    if problems:
        raise VitrailError("this cannot be answered", problems)
    numbers = kept_numbers(mine[0])
    return KnownFinding(site=site, column=outcome if feature == LABEL else column, why=why.strip(), who=who,
                        when=day.isoformat(), cause=mine[0].kind, numbers=numbers)  # fmt: skip


def section_of(answer: KnownFinding, taken: Iterable[str] = ()) -> str:
    """As it stands in a file."""
    name, taken = f"{answer.site} {answer.column}", set(taken)
    name = next(n for n in (name, *(f"{name} {k}" for k in range(2, len(taken) + 3))) if n not in taken)
    return known_section(name, answer.model_dump())


def add_answer(path: Path, answer: KnownFinding) -> None:
    """Behind whatever the file says: a study, or a site's own file, which is made if it is not there."""
    text, taken = "", set[str]()
    if path.exists():
        read_answers([path])
        text = read_text(path).rstrip("\n") + "\n\n"
        taken = set(tomllib.loads(text).get("known", {}))
    write_atomically(path, f"{text}{section_of(answer, taken)}\n")
