"""Hyper-parameters by cross-validation, nested: test rows are never touched.

    for each setting of the grid, for each fold k
        every site trains on its training rows outside fold k, together, by the method
        every site's own model is judged on the site's rows of fold k
    score of a setting: the mean over folds of the mean over sites

A setting under which some site's model diverges has no score and comes last.

With a folder each trial (one setting, one fold) is kept there as soon as it is finished:

    tune.json             what is tried on what: a tuning is resumed with the same, or not at all
    trials/S-K.json       setting number S on fold K, both from 0: its values, and the metric of each site (null: none)
    tuning.json           at the end: the table, the best setting and its sections of the study file
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from vitrail import methods
from vitrail.core.metrics import Floats, metric_name
from vitrail.core.problems import Problem, VitrailError, nearest
from vitrail.core.skill import worst_site
from vitrail.data.encode import SiteData, prepare
from vitrail.engines.local import Engine
from vitrail.methods import AnyMethod
from vitrail.runs.folder import Folder, read_told, versions, write_atomically
from vitrail.runs.judge import Judge, chance_of, few_over
from vitrail.runs.setup import build_task, check_trainable, resolve, training_of, training_rows
from vitrail.studies.caution import setting_caution
from vitrail.studies.folds import folds_of
from vitrail.studies.pool import Step, done
from vitrail.study import LOWER_IS_BETTER, METRICS, Network, Study, TrainingSpec

Grid = Mapping[str, Sequence[Any]]
ABOUT, TRIALS = "tune.json", "trials"
RATES = (1 / 3, 1.0, 3.0)  # times the learning rate, where nobody says what to try


class Summary(NamedTuple):
    """Of one setting: over folds the mean of the sites' mean, its spread, and the site that is served worst, by its
    skill against its own baseline (core/skill.py), with that baseline. NaN where undefined."""

    mean: float = math.nan
    sd: float = math.nan
    worst: float = math.nan
    worst_site: str = ""
    worst_baseline: float = math.nan


@dataclass
class Tuning:
    """`table` has one row for each setting, best first; `best` is the study with the best one."""

    best: Study
    method: AnyMethod
    metric: str
    seed: int
    folds: int
    grid: dict[str, list[Any]]
    table: pd.DataFrame  # a column for each key; mean, sd, worst, worst_site
    scores: pd.DataFrame  # a column for each key; fold, site, value
    same: Summary  # what always giving the same answer comes to
    few: dict[str, str]  # sites whose scores stand on few rows -> how many

    @property
    def title(self) -> str:
        return self.method.title

    @property
    def settings(self) -> dict[str, Any]:
        """The best ones."""
        return {k: self.table.iloc[0][k] for k in self.grid}

    def caution(self) -> str:
        """What speaks against the best setting, in a sentence; "" where nothing does."""
        return setting_caution(self.metric, self.table.iloc[0].to_dict(), self.same.mean, self.best.row_word)

    def section(self) -> str:
        """The sections of the study file that the best setting is in, ready to be pasted."""
        blocks = sections_of(self.best.to_toml())
        places = {_place(k, type(self.method)) for k in self.grid} | {"method"}
        return "\n".join(blocks[name] for name in ("network", "training", "method") if name in places)

    def save(self, path: str | Path) -> None:
        """One JSON file."""
        rows = [{k: None if v != v else v for k, v in row.items()} for row in self.table.to_dict("records")]
        said = {
            "method": methods.name_of(self.method),
            "metric": self.metric,
            "seed": self.seed,
            "folds": self.folds,
            "grid": self.grid,
            "best": self.settings,
            "table": rows,
            "same": {k: None if v != v else v for k, v in self.same._asdict().items()},
            "few_rows": self.few,
            "caution": self.caution(),
            "scores": [[None if v != v else v for v in row] for row in self.scores.to_numpy().tolist()],
            "study": self.section(),
        }
        write_atomically(Path(path), json.dumps(said, indent=1, default=_plain))


def tune(
    study: Study,
    sites: Mapping[str, pd.DataFrame],
    method: str | AnyMethod | None,
    grid: Grid | None = None,
    folds: int = 3,
    seed: int | None = None,
    *,
    metric: str | None = None,
    rounds: int | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    workers: int = 1,
    cluster: str = "",
    progress: Callable[[str, int, int], None] | None = None,
) -> Tuning:
    """Every setting of the grid, cross-validated within each site's training rows.

    Without a grid, what the method declares and three learning rates (`usual_grid`). Keys are the method's
    hyperparameters, else those of the study's [training] or [network]. Trials that are finished in `out` are not done
    again when resumed. `workers` and `cluster` as of compare. progress(what, done, of).
    """
    if resume and out is None:
        what, to_do = "there is no folder to resume from.", "Name the one that was begun: out, or --out."
        raise VitrailError("cannot resume", [Problem("resume", what, to_do)])
    study, chosen = resolve(study, method, rounds)
    seed, metric = study.seeds[0] if seed is None else seed, metric or study.metrics[0]
    tried = {k: list(v) for k, v in (usual_grid(study, chosen) if grid is None else grid).items()}
    studies = _settings(study, chosen, tried, metric)
    check_trainable((changed, changed.build_method()) for changed in studies)
    marks = {site.name: site.fingerprint for site in prepare(sites, study, seed)}  # tells what is wrong with the data
    parts = folds_of(sites, study, seed, folds)
    names = [site.name for site in parts[0]]
    about = {"study": study.to_toml(), "grid": tried, "folds": folds, "metric": metric, "seed": seed}
    about |= {"fingerprints": marks, "versions": versions()}
    folder = _open(Path(out), resume, json.loads(json.dumps(about, default=_plain))) if out is not None else None
    kept = folder.path / TRIALS if folder else None
    jobs = [
        _Job(changed, dict(zip(tried, values, strict=True)), k, seed, metric, kept / f"{i}-{k}.json" if kept else None)
        for i, (changed, values) in enumerate(zip(studies, itertools.product(*tried.values()), strict=True))
        for k in range(folds)
    ]

    def tell(job: _Job, so_far: float) -> None:
        if progress:
            progress("settings x folds", int(so_far), len(jobs))

    try:
        values = done(
            jobs,
            _judged,
            parts,
            workers,
            tell,
            lambda job: job.known(names),
            lambda job, v: job.keep(names, v),
            cluster,
        )
        asked = study.with_changes(metrics=[metric])
        same = np.array([[chance_of(asked, site)[0] for site in fold] for fold in parts])  # [fold, site]
        cells = np.array(values).reshape(-1, folds, len(names))
        found = _ranked(studies, tried, cells, names, metric, seed, same, few_over(study, parts))
        if folder:
            found.save(folder.path / "tuning.json")
            folder.seal("finished")
    finally:
        if folder:
            folder.close()
    return found


def usual_grid(study: Study, method: AnyMethod) -> dict[str, list[Any]]:
    """Three learning rates around the one that would be used, and what the method declares; each key's value as it is
    now comes first."""
    lr = study.training.lr if method.lr is None else method.lr
    tries = {"lr": tuple(float(f"{lr * factor:.2g}") for factor in RATES), **method.tries}
    now = {"lr": lr, **{k: getattr(method, k) for k in method.tries}}
    return {k: [now[k], *(v for v in values if v != now[k])] for k, values in tries.items()}


def _open(out: Path, resume: bool, about: dict[str, Any]) -> Folder:
    """All that differs from what the tuning was started with is told at once."""
    folder = Folder(out, resume=resume, about=ABOUT)
    if resume:
        before = read_told(out / ABOUT)
        problems = []
        for k, now in about.items():
            if before.get(k) != now:
                plain = k not in ("study", "fingerprints")
                what = f"was {before.get(k)}, now {now}." if plain else "it is not the one it was started with."
                where = "data" if k == "fingerprints" else "study, method or rounds" if k == "study" else k
                to_do = "Resume with what it was started with, or choose another --out."
                problems.append(Problem(f"{out}, {where}", what, to_do))
        if problems:
            folder.close()
            raise VitrailError("this is another tuning: its trials are not mixed with these", problems)
    else:
        (out / TRIALS).mkdir()
        write_atomically(out / ABOUT, json.dumps(about, indent=1))  # last: with it there is something to resume
    folder.log("resumed" if resume else "started")
    return folder


def _ranked(
    studies: list[Study],
    tried: dict[str, list[Any]],
    cells: Floats,
    names: list[str],
    metric: str,
    seed: int,
    same: Floats,
    few: dict[str, str],
) -> Tuning:
    """cells: [setting, fold, site]; same: [fold, site]"""
    folds = cells.shape[1]
    table = _table(tried, cells, names, metric, same)
    if table["mean"].isna().all():
        what = f"no setting has a {metric_name(metric)}: every model diverged, or it is not defined on the folds."
        raise VitrailError("nothing was tuned", [Problem("grid", what, "Try smaller learning rates, or --metric.")])
    at = table.pop("setting").tolist()
    scores = [
        (*table.loc[i, list(tried)], k, name, cells[s, k, j])
        for i, s in enumerate(at)
        for k in range(folds)
        for j, name in enumerate(names)
    ]
    best = studies[at[0]]
    columns = [*tried, "fold", "site", "value"]
    told = pd.DataFrame(scores, columns=columns)
    usual = _summed(same, names, metric, same)._replace(worst=math.nan, worst_site="", worst_baseline=math.nan)
    return Tuning(best, best.build_method(), metric, seed, folds, tried, table, told, usual, few)


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


def sections_of(toml: str) -> dict[str, str]:
    """Name -> the text of that section."""
    blocks = toml.split("\n\n[")[1:]
    return {block.split("]", 1)[0]: f"[{block}\n" for block in blocks}


def _place(key: str, kind: type[AnyMethod]) -> str:
    """The section of the study in which a key belongs; a method's own lr goes before the study's."""
    if key in {f.name for f in dataclasses.fields(kind)}:
        return "method"
    return "training" if key in TrainingSpec.model_fields else "network" if key in Network.model_fields else ""


def _changed(study: Study, kind: type[AnyMethod], setting: Mapping[str, Any]) -> Study:
    changes: dict[str, dict[str, Any]] = {"method": dict(study.method)}
    for key, value in setting.items():
        changes.setdefault(_place(key, kind), {})[key] = value
    return study.with_changes(**changes)


def _settings(study: Study, method: AnyMethod, grid: dict[str, list[Any]], metric: str) -> list[Study]:
    """The study under every setting; all problems of the grid at once."""
    kind = type(method)
    valid = METRICS[study.target.kind]
    problems = []
    if metric not in valid:
        problems.append(Problem("metric", f"there is no metric {metric!r} for this target.", nearest(metric, valid)))
    if not grid or not all(grid.values()):
        problems.append(Problem("grid", "there is nothing to try.", "Write for example --grid lr=0.001,0.01."))
    known = {*(f.name for f in dataclasses.fields(kind)), *TrainingSpec.model_fields, *Network.model_fields}
    for key, values in grid.items():
        if key not in known:
            what = f"neither {methods.name_of(method)} nor training nor network has a setting {key!r}."
            problems.append(Problem(f"grid.{key}", what, nearest(key, known)))
            continue
        if len({repr(v) for v in values}) < len(values):
            problems.append(Problem(f"grid.{key}", "a value is listed twice.", "List each once."))
        for value in values:
            try:
                _changed(study, kind, {key: value})
            except VitrailError as error:
                problems += [p._replace(where=f"grid.{key}") for p in error.problems]
    if problems:
        raise VitrailError(f"the grid cannot be tried ({len(problems)} to correct)", problems)
    whole = itertools.product(*grid.values())
    return [_changed(study, kind, dict(zip(grid, values, strict=True))) for values in whole]


class _Job(NamedTuple):
    """One setting, one fold."""

    study: Study
    setting: dict[str, Any]
    fold: int
    seed: int
    metric: str
    place: Path | None  # where it is kept

    def known(self, names: list[str]) -> list[float] | None:
        """What it came to, where it is finished."""
        if self.place is None or not self.place.exists():
            return None
        values = read_told(self.place)["values"]
        return [math.nan if values[name] is None else values[name] for name in names]

    def keep(self, names: list[str], values: list[float]) -> None:
        if self.place:
            told = {n: None if math.isnan(v) else v for n, v in zip(names, values, strict=True)}
            said = {"setting": self.setting, "fold": self.fold, "values": told}
            write_atomically(self.place, json.dumps(said, default=_plain))


def _judged(job: _Job, parts: list[list[SiteData]], step: Step) -> list[float]:
    """The metric of every site's own model on the site's rows of the fold."""
    data, method = parts[job.fold], job.study.build_method()
    task = build_task(job.study, method, job.seed)
    rows = training_rows(data, job.study, method, "cpu")
    runner = Engine(task, method, rows, training_of(job.study), job.seed)
    judge = Judge(runner, job.study.with_changes(metrics=[job.metric]), data)
    left, found = sum(stage.rounds for stage in runner.stages), []
    for moment in runner.run():
        step(0, 1)  # trials are short and told as a whole; here one can be stopped
        left -= 1
        if not left:  # judged inside, where the engine's threads are
            found = judge.rows(moment, ("test",))
    # a method may carry other models beside a site's own: those are not tuned
    return [value for *_, split, _, value in found if split == "test"]


def _table(grid: Grid, cells: Floats, names: list[str], metric: str, same: Floats) -> pd.DataFrame:
    """One row for each setting, best first; cells: [setting, fold, site]; same: [fold, site]."""
    down = metric in LOWER_IS_BETTER
    defined = ~np.isnan(cells).all(0)  # elsewhere a metric has no meaning (AUC of a single class), whatever the setting
    rows = []
    for i, values in enumerate(itertools.product(*grid.values())):
        diverged = not defined.any() or np.isnan(cells[i])[defined].any()
        rows.append((i, *values, *(Summary() if diverged else _summed(cells[i], names, metric, same))))
    frame = pd.DataFrame(rows, columns=["setting", *grid, *Summary._fields])
    return frame.sort_values("mean", ascending=down, kind="stable", na_position="last").reset_index(drop=True)


def _summed(cells: Floats, names: list[str], metric: str, same: Floats) -> Summary:
    """cells and same: [fold, site]"""
    if np.isnan(cells).all():
        return Summary()
    mine = pd.DataFrame(cells, columns=names)
    folds, by_site = mine.mean(axis=1), dict(zip(names, mine.mean().tolist(), strict=True))
    baselines = dict(zip(names, pd.DataFrame(same, columns=names).mean().tolist(), strict=True))
    worst = worst_site(by_site, baselines, metric in LOWER_IS_BETTER)
    assert worst is not None, "some site has a score"
    return Summary(float(folds.mean()), float(folds.std()), by_site[worst], worst, baselines[worst])


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else str(value)
