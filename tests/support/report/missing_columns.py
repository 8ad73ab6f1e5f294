"""A made study of columns that sites lack."""

from __future__ import annotations

import pandas as pd

import vitrail as vt
from vitrail.studies.missing_columns import ColumnGain, MissingColumns

NASTY = "<b>x</b>"
NAN = float("nan")
LINES = (
    ColumnGain("a & b", NASTY, "yes", 0.031, 0.01, 0.052, 0.004, "c, d", 400, 180.0, 0.02, ""),
    ColumnGain(
        "c", "ward", "cannot tell", 0.004, -0.01, 0.018, 0.003, "d, e", 400, 90.0, 0.006, "the interval contains zero"
    ),
    ColumnGain("c", NASTY, "no", -0.02, -0.03, -0.01, 0.003, "d, e", 400, 90.0, -0.01, ""),
    ColumnGain("d", "ward", "cannot tell", NAN, NAN, NAN, NAN, "", 0, 0.0, NAN, "nobody else records it"),
)


def make_missing(lines: tuple[ColumnGain, ...] = LINES) -> MissingColumns:
    study = vt.Study.parse(
        {
            "target": {"column": "ill", "classes": [0, 1]},
            "features": {NASTY: {"kind": "numeric"}, "ward": {"kind": "numeric"}},
            "network": {"kind": "linear"},
        }
    )
    return MissingColumns(study, 1, 5, "FedAvg", pd.DataFrame(lines, columns=list(ColumnGain._fields)))
