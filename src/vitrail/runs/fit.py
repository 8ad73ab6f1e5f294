"""Which site's data fits, after a run with private layers: those published as a table, with the marks of both rules."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from vitrail.core.facts import AGREED, Facts, ends_of, in_order, told
from vitrail.core.task import Task
from vitrail.data.encode import columns
from vitrail.engines.rounds import Moment, Rounds
from vitrail.engines.wire import Line
from vitrail.explain.evidence import LABEL, Here, SiteRows, Variable
from vitrail.explain.shifts import MOST_PER_SITE, MOST_TRIED, Witness, judge, paper_marks
from vitrail.explain.words import describe_alarm
from vitrail.study import Study

FEWEST = 3  # sites: of two that differ nobody can say which is wrong
AGAIN = "all of that again for each variable that a site with a finding fits, at most"
ALPHA = 0.05  # of all runs without a fault, so many may raise an alarm
SYMBOLS = {"input.shift": "b_in", "input.scale": "w_in", "output.shift": "b_out", "output.scale": "w_out"}  # symbols


class ShiftFinding(NamedTuple):
    """One thing to ask a site about."""

    site: str
    feature: str
    kind: str
    strength: float
    confidence: float
    text: str


def variables_of(study: Study) -> list[Variable]:
    """A feature with all its columns is one variable; the label is the last."""
    if study.images:
        return [*(Variable(n, (i,), "numeric") for i, n in enumerate(study.images.names)), Variable(LABEL, (), "label")]
    variables, at = [], 0
    for name, feature in study.features.items():
        width = len(feature.levels) if feature.kind == "categorical" else 1
        variables.append(Variable(name, tuple(range(at, at + width)), feature.kind))
        at += width
    return [*variables, Variable(LABEL, (), "label")]


class SilentError(Exception):
    """A site that published says nothing more: told with the name it published under."""


# a site's own name, the one it published under, the shared parameters, the variables -> a site that can be asked
Ask = Callable[[str, str, dict[str, Tensor], list[Variable]], Witness]


def at_hand(task: Task, rows: Mapping[str, SiteRows]) -> Ask:
    """Sites whose rows are all on this machine."""
    return lambda site, known, shared, variables: Here(task, shared, rows[site]._replace(name=known), variables)


def find_shifts(
    runner: Rounds, study: Study, moment: Moment, ask: Ask, pseudonyms: Mapping[str, str]
) -> tuple[pd.DataFrame, list[dict[str, Any]], Facts]:
    """The table of `Run.shifts`, the findings as dictionaries, and what was published.

    All under the published names and in their order: the engine's (largest first) would tell who a pseudonym is.
    """
    known = [pseudonyms.get(n, n) for n in runner.names]
    order = sorted(range(len(known)), key=lambda i: known[i])
    names, at = tuple(known[i] for i in order), torch.tensor(order)
    facts = {k: in_order(f._replace(value=f.value.cpu()), at) for k, f in moment.facts.items()}
    published = agreed(facts).numpy()
    layers = {k: v.double() for k, v in ends_of(facts).items()}
    variables = variables_of(study)
    score, p_value = np.full((len(names), len(variables)), np.nan), np.full((len(names), len(variables)), np.nan)
    alarms: list[dict[str, Any]] = []
    here = np.flatnonzero(published)
    shared = {k: v.cpu() for k, v in runner.method.shared(moment.coord).items()}
    while len(here) >= FEWEST and not study.images:  # rows are compared column by column
        sites = [ask(runner.names[order[i]], names[i], shared, variables) for i in here]
        try:
            found = judge(sites, {k: v[here] for k, v in layers.items()}, variables, runner.task.net.outputs, ALPHA)
        except SilentError as silent:
            here = here[[names[i] != str(silent) for i in here]]
            continue
        score[here], p_value[here] = found.score, found.p_value
        for alarm in found.alarms:
            raw = study.standardise == "none" and alarm.variable in study.features
            unit = study.features[alarm.variable].unit or "in its own unit" if raw else "standard deviations"
            kind = "label" if alarm.variable == LABEL else study.features[alarm.variable].kind
            trouble, strength, confidence, text = describe_alarm(alarm, kind, found.level, ALPHA, unit)
            alarms.append(ShiftFinding(alarm.site, alarm.variable, trouble, strength, confidence, text)._asdict())
        break
    flagged = {(a["site"], a["feature"]) for a in alarms}
    return _table(study, names, published, layers, variables, score, p_value, flagged), alarms, facts


def _table(
    study: Study,
    names: tuple[str, ...],
    published: Any,
    layers: dict[str, Any],
    variables: list[Variable],
    score: Any,
    p_value: Any,
    flagged: set[tuple[str, str]],
) -> pd.DataFrame:
    inputs = [
        (column, next(k for k, variable in enumerate(variables) if j in variable.columns))
        for j, column in enumerate(columns(study))
    ]
    outputs = [(f"{study.target.column}={level}", len(variables) - 1) for level in study.target.levels] or [
        (study.target.column, len(variables) - 1)
    ]
    frames = []
    for key, layer in SYMBOLS.items():
        if key not in layers:
            continue
        values = np.where(published[:, None], layers[key].numpy(), np.nan)
        places = inputs if key.startswith("input") else outputs
        places = places if len(places) == values.shape[1] else [("all classes", len(variables) - 1)]
        o, x = paper_marks(values)
        for j, (column, k) in enumerate(places):
            frames.append(
                pd.DataFrame(
                    {
                        "site": names,
                        "feature": column,
                        "layer": layer,
                        "value": values[:, j],
                        "score": score[:, k],
                        "p_value": p_value[:, k],
                        "flagged_paper": [("O" if mark else "") + ("x" if x[j] else "") for mark in o[:, j]],
                        "flagged": [(n, variables[k].name) in flagged for n in names],
                    }
                )
            )
    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


def evidence_lines(study: Study) -> list[Line]:
    """What the calibrated rule exchanges: once by every site that published; again by a site with a finding."""
    if study.images:
        return []
    variables, outputs = variables_of(study), max(1, len(study.target.levels))
    sizes, width = [variable.size(outputs) for variable in variables], len(columns(study))
    ends: list[tuple[str, tuple[int, ...]]]
    ends = [("shift and factor of each column", (2, width)), ("shift and factor of the outcome", (2, outputs))]
    said = [*ends, ("mean of the rows' answers", (sum(sizes),)), ("their covariance", (sum(q * q for q in sizes),))]
    said += [("rows that carry it, and whether it varies", (2, len(variables))), ("how badly it fits", ())]
    again, most = sum(math.prod(shape) for _, shape in said), MOST_PER_SITE * MOST_TRIED + len(variables)
    lines = [("to site", f"the others' mean {name}", shape, 1) for name, shape in ends]
    lines += [("from site", name, shape, 1) for name, shape in said] + [("from site", AGAIN, (again,), most)]
    return [
        Line("evidence", way, name, shape, "float64", 8 * math.prod(shape), times, "each", asks=True)  # type: ignore[arg-type]
        for way, name, shape, times in lines
    ]


def evidence_told(moment: Moment, names: tuple[str, ...]) -> list[str]:
    """The sites that were asked: those that published, where there are enough of them to judge."""
    if not ends_of(moment.facts):
        return []
    shown = [n for n, said in zip(names, agreed(moment.facts).tolist(), strict=True) if said]
    return shown if len(shown) >= FEWEST else []


def agreed(facts: Facts) -> Tensor:
    """[site] bool: who showed what was asked for."""
    found = told(facts, AGREED)
    assert found is not None
    return found
