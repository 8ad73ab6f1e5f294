"""A site's file against what all sites of an earlier screening published together: alone, before anything leaves.

The answer about a cell is that of the screening, where the site took part in it: its name is given, or the file is the
one that was screened. What the file shows that was not screened is judged by what the study agrees and by the pooled
numbers (`pooled_reference.compare_with_pooled`), as `screen` judges it too.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from vitrail.core.errors import Problem, VitrailError, nearest
from vitrail.data.findings import CheckFinding as Fault
from vitrail.data.outcomes import as_plain
from vitrail.data.readers.tables import clean
from vitrail.data.schema import TableSchema
from vitrail.quality.checks.duplicate_sites import digest_table
from vitrail.quality.known_findings import mark_known
from vitrail.quality.repair.command import TO_TRY
from vitrail.quality.repair.own_rows import own_cause
from vitrail.quality.screening import compare_with_pooled
from vitrail.quality.screening.coordinator import digest_text
from vitrail.quality.screening.finding_validation import sound_findings
from vitrail.quality.screening.result import LABEL, Finding
from vitrail.quality.screening.text import cause_text, known_words, standing
from vitrail.storage.untrusted_files import read_text
from vitrail.study.known_findings import KnownFinding

UNLIKE = "unlike_others"


class PublishedNumbers(NamedTuple):
    """What a coordinator hands out: the pooled summaries, and where it is a whole screening what was found."""

    pooled: dict[str, Any]
    findings: tuple[Finding, ...] = ()
    digests: Mapping[str, str] = {}

    def of_site(self, site: str) -> list[Finding]:
        return [f for f in self.findings if f.site == site]

    def recognised(self, rows: pd.DataFrame, table: TableSchema) -> str:
        """The site whose rows were screened and are these; empty where none is."""
        names = [*table.plain.features, table.plain.target.column]
        own = digest_text(digest_table(as_plain(rows, table)[names], ""))
        return next((site for site, digest in self.digests.items() if digest and digest == own), "")


def read_pooled(path: Path, table: TableSchema) -> PublishedNumbers:
    try:
        content = json.loads(read_text(path))
        pooled = content.get("pooled", content)
        if not isinstance(pooled, dict) or not pooled:
            raise ValueError
        listed = content.get("findings", []) if "pooled" in content else []
        findings = sound_findings(
            (Finding(**{**f, "strength": float(f["strength"])}) for f in listed), {*table.plain.features, LABEL}
        )
        sites = content.get("sites", {}) if "pooled" in content else {}
        names, digests = sites.get("site", []), sites.get("digest", [])
        of = {str(s): str(d) for s, d in zip(names, digests or [""] * len(names), strict=True)}
    except OSError as error:
        problem = Problem(str(path), f"it cannot be read: {error.strerror}.", "Check the path.")
    except (ValueError, AttributeError, RecursionError, KeyError, TypeError):
        what = "expected the pooled summaries of a screening, got something else."
        problem = Problem(str(path), what, "Ask the coordinator for the screen.json of `vitrail screen` or of a run.")
    else:
        return PublishedNumbers(pooled, tuple(findings), of)
    raise VitrailError("cannot compare with the other sites", [problem])


def answers_of(
    rows: pd.DataFrame,
    table: TableSchema,
    published: PublishedNumbers,
    site: str = "",
    answers: Iterable[KnownFinding] = (),
) -> list[Finding]:
    """What is reported of each cell of a site: the likely wrong first, what may be real, and last what is known."""
    recognised = published.recognised(rows, table)
    findings = published.of_site(site or recognised)
    if not recognised or recognised != (site or recognised):  # these rows were not screened
        reported = {f.feature for f in findings}
        findings += [f for f in compare_with_pooled(rows, table, published.pooled, site) if f.feature not in reported]
    return sorted(mark_known(findings, answers, table.plain.target.column), key=lambda f: (f.known, not f.wrong))


def unlike_others(
    frame: pd.DataFrame,
    table: TableSchema,
    published: PublishedNumbers,
    site: str = "",
    answers: Iterable[KnownFinding] = (),
) -> list[Fault]:
    """The answers in the form of `check`; what is known is no finding."""
    if site and published.digests and site not in published.digests:
        what = f"there is no site {site!r} in this screening."
        raise VitrailError("cannot compare", [Problem("--site", what, nearest(site, list(published.digests)))])
    try:
        rows = clean(frame, table)
    except VitrailError:
        text, hint = "the file does not fit the study, so it was not compared", "Correct the errors first."
        return [Fault(UNLIKE, "warning", "", (), len(frame), text, hint)]
    out = []
    for finding in answers_of(rows, table, published, site, answers):
        column = table.plain.target.column if finding.feature == LABEL else finding.feature
        if finding.known:
            out.append(Fault(UNLIKE, "note", column, (), 0, known_words(finding), finding.text))
            continue
        cause, _ = own_cause(finding, frame, table, published.pooled)
        hint = f"{cause.repair} {TO_TRY}{cause.command}" if cause.command else cause.repair
        text = f"{standing(finding)}: {cause_text(finding).rstrip('.')}"
        out.append(Fault(UNLIKE, "warning", column, cause.rows, cause.count, text, hint))
    return out
