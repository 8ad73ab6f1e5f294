"""What a screening says: whose data does not fit, where, why, and how sure that is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import pandas as pd

from vitrail.core.display import HtmlRepr

LABEL = "(label)"  # in place of a feature: the outcome
MISSING = "share missing"  # a statistic that a finding names
EFFECT = "effect"  # and of one that may be real: what it would do to a model (effect.py)
KNOWN = "answered"  # among the numbers of a finding that somebody answered: why, who, when

# the one list of causes, for every verb and page: kind -> in words. The last are no faults that a site could repair
CAUSES = {
    "unit": "in another unit",
    "unit in part": "some rows in another unit",
    "offset": "offset by a constant",
    "sign": "low and high, or yes and no, are swapped",
    "constant": "one value in every row",
    "code": "missing values written as a number",
    "clipped": "cut off at a bound",
    "rounded": "rounded more coarsely",
    "swapped": "swapped with another column",
    "recoded": "its categories mean something else",
    "shuffled": "its values belong to other rows",
    "label flip": "the outcome is coded the other way round",
    "label noise": "a share of the outcomes is wrong",
    "other": "does not fit, and no usual cause explains it",
    "out of range": "values outside the agreed range",
    "missing by class": "missing more often in one class than in another",
    "mostly missing": "mostly missing here",
    "only here": "measured here only",
    "not here": "not measured here",
    "differs": "differs, and may be real",
}


class Finding(NamedTuple):
    """One cell, a feature or the outcome of one site, that does not fit."""

    site: str
    feature: str  # or LABEL
    kind: str  # of CAUSES
    wrong: bool  # likely wrong; else it differs, and may be real
    strength: float  # how many times the bar that chance passes in `alpha` of all clean federations
    text: str  # in one sentence: what is seen, with its numbers, and what to ask
    numbers: dict[str, Any] = {}  # noqa: RUF012  what a repair needs: factor, offset, code, share, other, levels

    @property
    def known(self) -> bool:
        """Somebody answered it, and its numbers are still the same."""
        return KNOWN in self.numbers


class Findings(HtmlRepr, list[Finding]):
    """A list that says in sentences what is in it."""

    def __repr__(self) -> str:
        from vitrail.quality.screening.text import sentences

        return "\n".join(sentences(self)) or "no findings"


class Screening(NamedTuple):
    findings: list[Finding]  # the likely wrong first, strongest first; pages and `findings()` keep this order
    cells: pd.DataFrame  # site, feature, strength, wrong, kind: every cell that was judged
    sites: pd.DataFrame  # site, rows, numbers (published of each column), same rows (first such site), judged, why not
    alpha: float  # of all clean federations, so many raise an alarm
    pooled: dict[str, Any] = {}  # noqa: RUF012  what all sites together publish: a site may look at its rows against it
    evidence: dict[str, Any] = {}  # noqa: RUF012  what pages draw of columns with a finding: pooled_reference.evidence_of

    @property
    def wrong(self) -> list[Finding]:
        return [f for f in self.findings if f.wrong]

    @property
    def maybe(self) -> list[Finding]:
        """What differs and may be real, but for what somebody answered."""
        return [f for f in self.findings if not (f.wrong or f.known)]

    def findings_of(self, site: str) -> list[Finding]:
        return [f for f in self.findings if f.site == site]

    @property
    def known(self) -> list[Finding]:
        return [f for f in self.findings if f.known]

    def _repr_html_(self) -> str:
        return HtmlRepr._repr_html_(self)  # type: ignore[arg-type]  # a named tuple has no second parent

    def __repr__(self) -> str:
        from vitrail.quality.screening.text import to_text

        return to_text(self)


def by_column(findings: Sequence[Finding]) -> list[list[Finding]]:
    """The findings of each column together, the column with the largest effect at any site first."""
    columns: dict[str, list[Finding]] = {}
    for f in findings:
        columns.setdefault(f.feature, []).append(f)
    return sorted(columns.values(), key=lambda fs: -max(_effect(f) for f in fs))


def _effect(finding: Finding) -> float:
    if finding.kind in ("only here", "not here"):
        return float("inf")  # said first: a column that is not there
    x = finding.numbers.get(EFFECT)
    return float(x) if isinstance(x, float | int) else finding.strength * 1e-9


def without_sites(evidence: Mapping[str, Any]) -> dict[str, Any]:
    """Of all sites together alone."""
    return {column: {**of, "sites": {}} for column, of in evidence.items()}


class ScreeningTensor(NamedTuple):
    """A tensor that crosses in a leg."""

    leg: Literal["sketch", "counts", "ties"]
    direction: Literal["to site", "from site"]
    name: str
    shape: tuple[int, ...]
    means: str  # what the consent form says of it
    total: bool = False  # only the sum over sites is wanted: masked between machines
