"""What a file says of the model in it: for whoever finds it without us."""

from __future__ import annotations

from typing import Any

from vitrail.runs.folder import versions
from vitrail.runs.result import Model

FORMAT = 1


def describe(mine: Model, site: str, run: str) -> dict[str, Any]:
    """Plain values only. It names the site, and the study's columns with all that one must know to fill them."""
    study, target = mine.study, mine.study.target
    features = {
        name: {"kind": f.kind, "unit": f.unit, "levels": list(f.levels), "missing": [str(code) for code in f.missing]}
        for name, f in study.features.items()
    }
    return {
        "format": FORMAT,
        "study": study.name,
        "site": site,
        "run": run,
        "method": mine.method.catalogue.title,
        "target": {"column": target.column, "kind": target.kind, "classes": list(target.levels), "unit": target.unit},
        "ends": list(target.ends) if target.kind == "time" else [],  # of intervals
        "features": features,
        "pictures": study.images.words if study.images else "",
        "rows": "numbers as float64, NaN where missing; a category as the index of its level, counted from 0",
        "unsure": mine.note,
        "versions": versions(),
    }
