"""Small runs of each kind of target, whose pages have all figures of hold-out rows."""

from __future__ import annotations

import numpy as np
import pandas as pd

import vitrail as vt
from tests.support.survival import made, study_of


def number_table(rows: int, seed: int) -> pd.DataFrame:
    """`pressure` rises with age, falls with the dose, and is highest in ward b."""
    rng = np.random.default_rng(seed)
    x, ward = rng.normal(size=(rows, 2)), rng.choice(["a", "b", "c"], rows)
    y = 130 + 9 * x[:, 0] - 6 * x[:, 1] + 5 * (ward == "b") + rng.normal(size=rows) * 5
    return pd.DataFrame({"age": x[:, 0], "dose": x[:, 1], "ward": ward, "pressure": y.round(1)})


TABLES = {
    "number": {"north": number_table(200, 1), "va": number_table(120, 2)},
    "time": {"north": made(240, 1), "va": made(150, 2)},
}
TABLES["classes"] = {n: t.assign(pressure=(t.pressure > 130).astype(int)) for n, t in TABLES["number"].items()}


def small_run(kind: str, rounds: int = 10) -> vt.Run:
    """`kind`: of TABLES."""
    if kind == "time":
        return vt.federate(study_of(training={"rounds": rounds, "lr": 0.02}), TABLES[kind], "fedavg")
    study = vt.Study.infer(TABLES[kind], target="pressure")
    study = study.with_changes(training={"rounds": rounds}, screen={"ask": False})
    return vt.federate(study, TABLES[kind], "fedavg")
