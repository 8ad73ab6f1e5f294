"""The page of `vitrail columns`: which column a site should begin to record."""

from __future__ import annotations

import math
from pathlib import Path

from markupsafe import Markup

from vitrail.core.text import signed
from vitrail.report.charts import svg
from vitrail.report.charts.axes import interval_domain
from vitrail.report.charts.interval_rows import IntervalRow, IntervalRows, Label, RowMark, interval_rows
from vitrail.report.pages.frame import fill, write_page_folder
from vitrail.report.text import Interval, Standing, Tone
from vitrail.studies.benefit import NO, YES
from vitrail.studies.missing_columns import DONORS, LEAST, SUPPOSES, ColumnGain, MissingColumns

PAGE = "columns.html"
STANDING = 8  # lines of the first screen
STATUS: dict[str, tuple[str, Tone]] = {YES: ("record it", "gain"), NO: ("would not help", "loss")}
UNSURE_STATUS: tuple[str, Tone] = ("cannot tell", "unsure")


def write_missing_columns(result: MissingColumns, folder: Path) -> Path:
    """Page and table; only an earlier one of ours is written over."""
    return write_page_folder(folder, PAGE, "columns", lambda: result.save(folder), render_missing_columns(result))


def render_missing_columns(result: MissingColumns) -> str:
    lines = result.lines()
    standings = [_standing(result, line) for line in lines]
    judged = [line for line in lines if math.isfinite(line.gain)]
    return fill(
        "missing_columns.html",
        result=result,
        figure=svg.twice(lambda width: _bars(result, judged, width)) if judged else None,
        standings=standings[:STANDING],
        more_standings=standings[STANDING:],
        lines=lines,
        next_step=_next_step(lines),
        supposes=SUPPOSES,
        fewest=DONORS,
        least=round(LEAST),
    )


def _standing(result: MissingColumns, line: ColumnGain) -> Standing:
    status, tone = STATUS.get(line.verdict, UNSURE_STATUS)
    return Standing(f"{line.column} at {line.site}", status, tone, result.sentence(line))


def _next_step(lines: list[ColumnGain]) -> str:
    best = next((line for line in lines if line.verdict == YES), None)
    if not lines:
        return "No site lacks a column of the study: there is nothing to record in addition."
    if best is None:
        return "No column clearly helps. Ask again when more sites record it, or when they have more rows."
    return (
        f"Begin with {best.column} at {best.site}. Record it for some hundred patients, and compare again with "
        "vitrail compare: the estimate does not replace that."
    )


def _bars(result: MissingColumns, lines: list[ColumnGain], width: int) -> Markup:
    rows = []
    for line in lines:
        interval = Interval(line.gain, line.low, line.high)
        marks = [RowMark(line.unweighted, "tick", "median", 9, f"without weights {signed(line.unweighted)}")]
        words, value = result.sentence(line), Label(signed(line.gain), "value")
        kind = f"verdict {STATUS.get(line.verdict, UNSURE_STATUS)[1]}"
        name = f"{line.column}, {line.site}"
        rows.append(IntervalRow(name, words, interval, marks, bar="bar", kind=kind, line="reach", right=[value]))
    low, high = interval_domain([row.interval for row in rows], [0.0])
    title, axis = "What a column would save where it is not recorded", f"loss saved, {result.unit}"
    return interval_rows(IntervalRows(title, rows, axis, low, high, signed), width)
