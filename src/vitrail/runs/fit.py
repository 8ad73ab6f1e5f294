"""Which site's data fits, after a run of iFedAvg: the published layers as a table, with the marks of both rules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from torch import Tensor

from vitrail.core.tensors import tensors
from vitrail.data.encode import columns
from vitrail.engines.local import Engine, Moment
from vitrail.engines.wire import Line
from vitrail.explain.shifts import LABEL, Cell, SiteRows, describe, judge, paper_marks
from vitrail.study import Study

ALPHA = 0.05  # of all runs without a fault, so many may raise an alarm
LAYERS = {"input.shift": "b_in", "input.scale": "w_in", "output.shift": "b_out", "output.scale": "w_out"}


class ShiftFinding(NamedTuple):
    """One thing to ask a site about."""

    site: str
    feature: str
    kind: str
    strength: float
    confidence: float
    text: str


def cells_of(study: Study) -> list[Cell]:
    """A feature with all its columns is one cell; the label is the last."""
    cells, at = [], 0
    for name, feature in study.features.items():
        width = len(feature.levels) if feature.kind == "categorical" else 1
        cells.append(Cell(name, tuple(range(at, at + width)), feature.kind))
        at += width
    return [*cells, Cell(LABEL, (), "label")]


def find_shifts(
    runner: Engine, study: Study, moment: Moment, rows: Mapping[str, SiteRows], pseudonyms: Mapping[str, str]
) -> tuple[pd.DataFrame, list[dict[str, Any]], dict[str, Tensor]]:
    """The table of `Run.shifts`, the findings as dictionaries, and what was published.

    All under the published names and in their order: the engine's (largest first) would tell who a pseudonym is.
    """
    known = [pseudonyms.get(n, n) for n in runner.sites.names]
    order = sorted(range(len(known)), key=lambda i: known[i])
    names, facts = tuple(known[i] for i in order), {k: v.cpu()[order] for k, v in moment.facts.items()}
    published = facts["published"].numpy()
    layers = {k: v.double() for k, v in facts.items() if k in LAYERS}
    cells = cells_of(study)
    score, p_value = np.full((len(names), len(cells)), np.nan), np.full((len(names), len(cells)), np.nan)
    alarms: list[dict[str, Any]] = []
    told = np.flatnonzero(published)
    if len(told) >= 3:
        parts = [rows[runner.sites.names[order[i]]]._replace(name=names[i]) for i in told]
        shared = {k.removeprefix("params/"): v.cpu() for k, v in tensors(moment.coord)}
        found = judge(runner.task, shared, {k: v[told] for k, v in layers.items()}, parts, cells, ALPHA)
        score[told], p_value[told] = found.score, found.p_value
        for alarm in found.alarms:
            kind = "label" if alarm.cell == LABEL else study.features[alarm.cell].kind
            trouble, strength, confidence, text = describe(alarm, kind, found.level)
            alarms.append(ShiftFinding(alarm.site, alarm.cell, trouble, strength, confidence, text)._asdict())
    flagged = {(a["site"], a["feature"]) for a in alarms}
    return _table(study, names, published, layers, cells, score, p_value, flagged), alarms, facts


def _table(
    study: Study,
    names: tuple[str, ...],
    published: Any,
    layers: dict[str, Any],
    cells: list[Cell],
    score: Any,
    p_value: Any,
    flagged: set[tuple[str, str]],
) -> pd.DataFrame:
    inputs = [
        (column, next(k for k, cell in enumerate(cells) if j in cell.columns))
        for j, column in enumerate(columns(study))
    ]
    outputs = [(f"{study.target.column}={level}", len(cells) - 1) for level in study.target.levels] or [
        (study.target.column, len(cells) - 1)
    ]
    frames = []
    for key, layer in LAYERS.items():
        if key not in layers:
            continue
        values = np.where(published[:, None], layers[key].numpy(), np.nan)
        places = inputs if key.startswith("input") else outputs
        places = places if len(places) == values.shape[1] else [("all classes", len(cells) - 1)]
        o, x = paper_marks(values)
        for j, (column, cell) in enumerate(places):
            frames.append(
                pd.DataFrame(
                    {
                        "site": names,
                        "feature": column,
                        "layer": layer,
                        "value": values[:, j],
                        "score": score[:, cell],
                        "p_value": p_value[:, cell],
                        "flagged_paper": [("O" if mark else "") + ("x" if x[j] else "") for mark in o[:, j]],
                        "flagged": [(n, cells[cell].name) in flagged for n in names],
                    }
                )
            )
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def evidence_lines(study: Study) -> list[Line]:
    """What the calibrated rule exchanges: once, and once more for each of a site's own alarms."""
    sizes = [cell.size(len(study.target.levels)) for cell in cells_of(study)]
    width, mean, cov = len(columns(study)), sum(sizes), sum(q * q for q in sizes)
    parts = (
        ("mean of the rows' answers", mean),
        ("their covariance", cov),
        ("rows that carry it, and whether it varies", 2 * len(sizes)),
    )
    lines = [Line("evidence", "from site", name, (n,), "float64", 8 * n, 1, "each") for name, n in parts]
    return [
        Line("evidence", "to site", "the others' mean layers", (2, width), "float64", 16 * width, 1, "each"),
        *lines,
    ]
