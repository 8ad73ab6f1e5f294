"""What a tuning tries: a grid that somebody wrote, of which every combination is tried, or the usual values.

The usual values are tried one key after the other: those of the first key with everything else as the study has it,
those of the next key together with the best value of the first, and so on. Eight settings and what the method declares
are so many trainings for each fold, where all combinations would be 72 and more.
"""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from vitrail import methods
from vitrail.core.errors import Problem, VitrailError, nearest
from vitrail.data.encoding import numeric
from vitrail.methods import AnyMethod
from vitrail.study.model import Network, Study, TrainingSpec
from vitrail.study.validation import METRICS

Grid = Mapping[str, Sequence[Any]]
TABLE_NETWORKS = ("mlp", "linear")
RATES = (1 / 3, 1.0, 3.0)  # times the learning rate
DECAYS, FIRST_DECAYS = (1 / 4, 1.0, 4.0), (0.0, 0.01, 0.1)  # times the weight decay; where the study has none
LONGER = 2  # times the rounds
SCALE = "standardise"
SCALES = tuple(s for s in get_args(Study.model_fields[SCALE].annotation) if s != "none")
METRIC = {"classes": "log_loss", "number": "rmse", "time": "time_log_loss"}  # by which settings are judged


def usual_grid(study: Study, method: AnyMethod, rounds: int | None = None) -> dict[str, list[Any]]:
    """Key -> values, the one that would be used without tuning first. `rounds`: where they are given, they stay."""
    training = study.training
    lr = training.lr if method.lr is None else method.lr
    tries: dict[str, Sequence[Any]] = {"lr": [_short(lr * factor) for factor in RATES]}
    decay = (
        "weight_decay_alone" if method.catalogue.alone and training.weight_decay_alone is not None else "weight_decay"
    )
    pull = getattr(training, decay)
    now = {"lr": lr, "kind": study.network.kind, decay: pull, "rounds": training.rounds}
    now |= {SCALE: study.standardise, **{k: getattr(method, k) for k in method.catalogue.tuning_grid}}
    if not study.images:
        decays = [_short(pull * factor) for factor in DECAYS] if pull else FIRST_DECAYS
        tries = {"kind": TABLE_NETWORKS, **tries, decay: decays}
        tries |= {} if rounds else {"rounds": (training.rounds, LONGER * training.rounds)}
        tries |= {SCALE: SCALES} if numeric(study) else {}
    tries |= method.catalogue.tuning_grid
    return {k: [now[k], *(v for v in values if v != now[k])] for k, values in tries.items()}


def _short(value: float) -> float:
    return float(f"{value:.2g}")


def parse_grid(given: Sequence[str]) -> dict[str, list[Any]]:
    """KEY=VALUE,VALUE with TOML values, texts also without quotes.

    >>> parse_grid(["lr=0.001,0.01", "weights=uniform,rows", "hidden=[8],[8, 4]"])
    {'lr': [0.001, 0.01], 'weights': ['uniform', 'rows'], 'hidden': [[8], [8, 4]]}
    """
    out: dict[str, list[Any]] = {}
    problems = []
    for item in given:
        key, _, text = (part.strip() for part in item.partition("="))
        if not key or not text or key in out:
            what = f"{key!r} is given twice." if key in out else f"expected KEY=VALUE,VALUE, got {item!r}."
            problems.append(Problem("--grid", what, "Write for example --grid lr=0.001,0.01."))
            continue
        try:
            out[key] = tomllib.loads(f"v = [{text}]")["v"]
        except tomllib.TOMLDecodeError:
            out[key] = [part.strip() for part in text.split(",")]
    if problems:
        raise VitrailError("cannot read --grid", problems)
    return out


def section_text(study: Study, kind: type[AnyMethod], keys: Grid) -> str:
    """The parts of the study file that these keys are in, ready to be pasted."""
    blocks = study.to_toml().split("\n\n[")[1:]
    sections = {block.split("]", 1)[0]: f"[{block}\n" for block in blocks}
    places = {_place(k, kind) for k in keys} | {"method"}
    top = [f'{SCALE} = "{study.standardise}"  # above all sections\n'] if SCALE in keys else []
    return "\n".join([*top, *(sections[name] for name in ("network", "training", "method") if name in places)])


def _place(key: str, kind: type[AnyMethod]) -> str:
    """The section of the study in which a key belongs; a method's own lr goes before the study's."""
    if key in {f.name for f in dataclasses.fields(kind)}:
        return "method"
    return "training" if key in TrainingSpec.model_fields else "network" if key in Network.model_fields else ""


def changed_study(study: Study, kind: type[AnyMethod], setting: Mapping[str, Any]) -> Study:
    changes: dict[str, Any] = {"method": dict(study.method)}
    for key, value in setting.items():
        if place := _place(key, kind):
            changes.setdefault(place, {})[key] = value
        else:
            changes[key] = value
    return study.with_changes(**changes)


def check_grid(study: Study, method: AnyMethod, grid: Grid, metric: str) -> None:
    """All problems of the grid at once."""
    kind = type(method)
    valid = METRICS[study.target.kind]
    problems = []
    if metric not in valid:
        problems.append(Problem("metric", f"there is no metric {metric!r} for this target.", nearest(metric, valid)))
    if not grid or not all(grid.values()):
        problems.append(
            Problem(
                "grid",
                "expected at least one setting with values to try, got none.",
                "Write for example --grid lr=0.001,0.01.",
            )
        )
    keys = {SCALE, *(f.name for f in dataclasses.fields(kind)), *TrainingSpec.model_fields, *Network.model_fields}
    for key, values in grid.items():
        if key not in keys:
            what = f"there is no setting {key!r} in {methods.name_of(method)}, training or network."
            problems.append(Problem(f"grid.{key}", what, nearest(key, keys)))
            continue
        if len({repr(v) for v in values}) < len(values):
            problems.append(Problem(f"grid.{key}", "a value is listed twice.", "List each once."))
        for value in values:
            try:
                changed_study(study, kind, {key: value})
            except VitrailError as error:
                problems += [p._replace(where=f"grid.{key}") for p in error.problems]
    if problems:
        raise VitrailError(f"the grid cannot be tried ({len(problems)} to correct)", problems)
