"""A site's file against what all sites of an earlier screening published together: alone, before anything leaves."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd

from vitrail.core.errors import Problem, VitrailError
from vitrail.data.findings import CheckFinding as Fault
from vitrail.data.readers.tables import clean
from vitrail.data.schema import TableSchema
from vitrail.quality.repair.command import TO_TRY
from vitrail.quality.repair.own_rows import own_cause
from vitrail.quality.screening import compare_with_pooled
from vitrail.quality.screening.result import LABEL
from vitrail.storage.untrusted_files import read_text

UNLIKE = "unlike_others"


def read_pooled(path: Path) -> dict[str, Any]:
    """What a coordinator hands out: the pooled summaries, or the whole screening that has them."""
    try:
        content = json.loads(read_text(path))
        pooled = content.get("pooled", content)
        if not isinstance(pooled, dict) or not pooled:
            raise ValueError
    except OSError as error:
        problem = Problem(str(path), f"it cannot be read: {error.strerror}.", "Check the path.")
    except (ValueError, AttributeError, RecursionError):
        what = "expected the pooled summaries of a screening, got something else."
        problem = Problem(str(path), what, "Ask the coordinator for the screen.json of `vitrail screen` or of a run.")
    else:
        return pooled
    raise VitrailError("cannot compare with the other sites", [problem])


def unlike_others(frame: pd.DataFrame, table: TableSchema, pooled: dict[str, Any]) -> list[Fault]:
    """What is likely wrong, or differs and may be real, in the form of `check`."""
    try:
        rows = clean(frame, table)
    except VitrailError:
        text, hint = "the file does not fit the study, so it was not compared", "Correct the errors first."
        return [Fault(UNLIKE, "warning", "", (), len(frame), text, hint)]
    out = []
    for finding in compare_with_pooled(rows, table, pooled):
        cause = own_cause(finding, frame, table)[0]
        column = table.target.column if finding.feature == LABEL else finding.feature
        sure = "likely wrong" if finding.wrong else "may be real"
        hint = f"{cause.repair} {TO_TRY}{cause.command}" if cause.command else cause.repair
        text = f"{cause.what} ({sure}): {finding.text.rstrip('.')}"
        out.append(Fault(UNLIKE, "warning", column, cause.rows, cause.count, text, hint))
    return out
