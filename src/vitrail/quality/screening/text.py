"""A screening for a terminal, and for who looks at it from Python."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from vitrail.core.text import several
from vitrail.quality.screening.result import CAUSES, KNOWN, LABEL, Finding, Screening, by_column

STANDINGS = ("likely wrong", "may be real", "known")  # of a finding: the words of every verb and page
SHOWN = 10  # columns that differ and may be real
SITES = 3  # of a column, by name
DIFFERS = "Differs, and may be real; what would move a model's answers the most comes first"


def sentence(finding: Finding) -> str:
    """One line; what others wrote is harmless on a terminal."""
    feature = "outcome" if finding.feature == LABEL else finding.feature
    text = f"{finding.site}, {feature}: {cause_text(finding)}"
    return "".join(c if c.isprintable() else "?" for c in text)


def cause_text(finding: Finding) -> str:
    """The likely cause, and what was seen."""
    named = finding.wrong and finding.kind in CAUSES and finding.kind != "differs"
    text = f"{CAUSES[finding.kind]}. {finding.text}" if named else finding.text
    return f"{known_words(finding)}. {text}" if finding.known else text


def known_words(finding: Finding) -> str:
    """Who answered a finding, when and what; empty where nobody did."""
    entry = finding.numbers.get(KNOWN)
    if not isinstance(entry, Mapping):
        return ""
    by = ", ".join(str(entry.get(k)) for k in ("who", "when") if entry.get(k))
    cause = f"{CAUSES[finding.kind]}; " if finding.kind in CAUSES and finding.kind != "differs" else ""
    return f"{cause}known{f' ({by})' if by else ''}: {entry.get('why', '')}"


def column_sentence(findings: Sequence[Finding]) -> str:
    """A column that differs at some sites: at which, and the difference with the largest effect."""
    first, others = findings[0], [f.site for f in findings[1:]]
    more = f" and {several(len(others) - SITES, 'more site')}" if len(others) > SITES else ""
    also = f" Also at {', '.join(others[:SITES])}{more}." if others else ""
    return sentence(first) + "".join(c if c.isprintable() else "?" for c in also)


def twin_sentences(screening: Screening) -> list[str]:
    """Sites that published the same digest of all their rows; each group is told once."""
    if "same rows" not in screening.sites:  # screened by an earlier version
        return []
    groups = screening.sites[screening.sites["same rows"].ne("")].groupby("same rows", sort=False)["site"]
    return [
        f"Sites {' and '.join(map(str, sites))} hold the same rows: one file was given twice, or one hospital takes "
        "part under two names. Its patients count twice, and these sites confirm each other."
        for _, sites in groups
    ]


def calm(screening: Screening) -> str:
    """What it means that nothing is likely wrong."""
    if not screening.sites["judged"].any():
        return "Fewer than three sites could be compared: if two differ, nobody can say which of them is wrong."
    return "Nothing is likely wrong: chance and different patients can explain every difference."


def sentences(findings: Iterable[Finding]) -> list[str]:
    """A line for each, and before it whether it is likely wrong."""
    return [f"{standing(f)}: {sentence(f)}" for f in findings]


def standing(finding: Finding) -> str:
    """How sure it is that something is wrong, of STANDINGS."""
    return STANDINGS[0 if finding.wrong else 2 if finding.known else 1]


def to_text(screening: Screening) -> str:
    """The likely wrong first, then what differs and may be real, then who was not judged."""
    wrong, answered = ([f"  - {sentence(f)}" for f in some] for some in (screening.wrong, screening.known))
    maybe = [f"  - {column_sentence(column)}" for column in by_column(screening.maybe)]
    twins = [f"  - {text}" for text in twin_sentences(screening)]
    lines = ["Likely wrong", *twins, *wrong] if wrong or twins else [calm(screening)]
    if maybe:
        rest = [f"  and {several(len(maybe) - SHOWN, 'more column')}, of less effect"] * (len(maybe) > SHOWN)
        lines += ["", DIFFERS, *maybe[:SHOWN], *rest]
    if answered:
        lines += ["", "Known, and unchanged since", *answered]
    silent = screening.sites[~screening.sites["judged"].eq(True)]
    if len(silent):
        who = (f"{s} ({why})" for s, why in zip(silent["site"], silent["why not"], strict=True))
        lines += ["", f"Not judged: {', '.join(who)}"]
    return "\n".join(lines)


# numbers


def short(x: float, digits: int = 4) -> str:
    """So many figures, all of those before the point, and no power of ten.

    >>> short(234.512), short(12345.6), short(-0.00012341)
    ('234.5', '12346', '−0.0001234')
    """
    if not 1e-9 < abs(x) < 1e15:
        return f"{x:.{digits}g}"
    figures = max(digits, math.floor(math.log10(abs(x))) + 1)
    return np.format_float_positional(x, precision=figures, fractional=False, trim="-").replace("-", "−")


def measured(value: float, unit: str = "", digits: int = 4) -> str:
    return f"{short(value, digits)} {unit}".rstrip()


def percent(share: float, digits: int = 0) -> str:
    """A share that is not quite none or all is not written as 0 or 100 %.

    >>> percent(0.452), percent(0.0), percent(0.003), percent(0.999)
    ('45 %', '0 %', 'under 1 %', 'over 99 %')
    """
    if digits == 0 and 0 < share < 0.005:
        return "under 1 %"
    if digits == 0 and 0.995 <= share < 1:
        return "over 99 %"
    return f"{100 * share:.{digits}f} %"


def correlation(value: float, digits: int = 0) -> str:
    return f"{value:.{digits + 2}f}".replace("-", "−")


def two(a: float, b: float, write: Callable[[float, int], str], most: int = 4) -> tuple[str, str]:
    """Both numbers, with as many more digits as tell them apart.

    >>> two(26.04, 26.31, lambda value, digits: short(value, digits + 2)), two(0.21, 0.45, percent)
    (('26', '26.3'), ('21 %', '45 %'))
    """
    digits = next((d for d in range(most) if write(a, d) != write(b, d)), most)
    return write(a, digits), write(b, digits)


def written(numbers: Mapping[str, Any], unit: str = "") -> tuple[str, str]:
    """The statistic of a finding, here and at the other sites."""
    ways: dict[str, Callable[[float, int], str]] = {"share": percent, "correlation": correlation}
    write = ways.get(str(numbers["scale"]), lambda value, digits: measured(value, unit, digits + 3))
    return two(float(numbers["here"]), float(numbers["elsewhere"]), write)
