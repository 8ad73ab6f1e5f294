"""Phase C, at the site alone: its own rows behind each mark. Nothing of it leaves.

For each finding about this site: its own values by class, how much is missing in each class, what `check` sees in that
column, the most likely cause and a repair to try.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd

from vitrail.data.check import Finding
from vitrail.data.check import check as look_for_faults
from vitrail.data.read import clean
from vitrail.data.schema import Feature, Table

BARS = "▁▂▃▄▅▆▇█"
BINS = 24
LABEL = "(label)"
CAUSES = {
    "unit_mixup": "values in another unit",
    "disguised_missing": "missing values coded as a number",
    "missing_by_class": "missing in one class more than in the other",
    "much_missing": "hardly measured here",
    "constant_column": "never changes here",
    "out_of_range": "values out of range",
    "unknown_category": "categories the study does not know",
}
REPAIRS = {
    "reversed": "Compare the coding with the study's: is low written as high, or 0 as 1?",
    "recoded": "Compare each category's meaning with the study's code book.",
    "uninformative": "See whether the column was filled in by default, or belongs to other patients.",
    "stretched": "See whether the unit, or the way of measuring, differs from the study's.",
    "shifted": "See whether values are clipped, offset, or coded when missing.",
    "swapped label": "Compare the outcome's coding with the study's: is yes written as no?",
}


def look(frame: pd.DataFrame, table: Table, findings: Sequence[Any]) -> str:
    """Plain text for the site's own eyes; `findings` are those about this site."""
    if not findings:
        return "No mark concerns this site: its data fits as well as chance allows."
    rows = clean(frame, table)
    faults = look_for_faults(frame, table)
    parts = []
    for finding in findings:
        parts += [f"{finding.feature}: {finding.kind}", f"  {finding.text}"]
        if finding.feature == LABEL:
            parts += _shares(rows[table.target.column], table)
            told: list[Finding] = []
        else:
            parts += _columns(rows, table, finding.feature)
            told = [f for f in faults if f.column == finding.feature and f.kind in CAUSES]
            told.sort(key=lambda f: list(CAUSES).index(f.kind))  # the more telling cause first
        parts += [f"  Seen in the file: {CAUSES[f.kind]}: {f.text}. {f.hint}" for f in told]
        cause = CAUSES[told[0].kind] if told else "nothing that a check of the file alone can see"
        parts += [
            f"  Most likely: {cause}.",
            f"  To try: {REPAIRS.get(finding.kind, 'Ask whoever exported the column.')}",
            "",
        ]
    return "\n".join(parts).rstrip()


def _columns(rows: pd.DataFrame, table: Table, name: str) -> Iterable[str]:
    feature, target = table.features[name], table.target
    unit = f" {feature.unit}" if feature.unit else ""
    for words, part in _by_class(rows, table):
        values = part[name]
        missing = f"{100 * values.isna().mean():.0f} % missing"
        if feature.kind == "numeric":
            low, high = rows[name].min(), rows[name].max()
            if not low < high:
                yield f"  {target.column} {words}: {len(values)} rows, {missing}, always {low}{unit}"
                continue
            drawn = f"{low:g} {_bars(values, low, high)} {high:g}{unit}"
            yield f"  {target.column} {words}: {len(values)} rows, {missing}, {drawn}"
        else:
            yield f"  {target.column} {words}: {len(values)} rows, {missing}, {_levels(values, feature)}"


def _by_class(rows: pd.DataFrame, table: Table) -> Iterable[tuple[str, pd.DataFrame]]:
    target = table.target
    if target.kind == "number":
        yield "(all)", rows
        return
    for k, level in enumerate(target.levels):
        if (part := rows[rows[target.column] == k]).size:
            yield f"= {level}", part


def _bars(values: pd.Series, low: float, high: float) -> str:
    count, _ = np.histogram(values.dropna(), bins=BINS, range=(low, high))
    top = max(1, count.max())
    return "".join(" " if not c else BARS[min(7, int(8 * c / top))] for c in count)


def _levels(values: pd.Series, feature: Feature) -> str:
    known = values.dropna()
    return ", ".join(f"{level} {100 * (known == k).mean():.0f} %" for k, level in enumerate(feature.levels))


def _shares(target: pd.Series, table: Table) -> Iterable[str]:
    shares = (f"{level} {100 * (target == k).mean():.0f} %" for k, level in enumerate(table.target.levels))
    return [f"  {table.target.column}: {', '.join(shares)}"]
