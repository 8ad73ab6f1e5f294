"""Hyper-parameters by cross-validation, nested: test rows are never touched.

    for each setting, for each fold k
        every site trains on its training rows outside fold k, together, by the method
        every site's own model is judged on the site's rows of fold k
    score of a setting: the mean over folds of the mean over sites

A setting under which some site's model diverges has no score and comes last. All settings share the folds. Of a grid
that is given every combination is tried; without one the usual values, one key after the other
(studies/tuning_grid.py).

With a folder each trial (one setting, one fold) is kept there as soon as it is finished:

    tune.json             what is tried on what: a tuning is resumed with the same, or not at all
    trials/S-K.json       setting number S on fold K, both from 0: its values, and the metric of each site (null: none)
    tuning.json           at the end: the table, the best setting and its sections of the study file
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from vitrail import methods
from vitrail.core.errors import Problem, VitrailError
from vitrail.data.encoding import SiteData, prepare
from vitrail.engine.local import Engine
from vitrail.methods import AnyMethod
from vitrail.metrics.scores import Floats, metric_name
from vitrail.metrics.skill import worst_site
from vitrail.runs.evaluation import Evaluator, site_baseline, small_held_out
from vitrail.runs.folder import Folder, read_json, versions
from vitrail.runs.setup import build_task, check_trainable, resolve, training_of, training_rows
from vitrail.storage.atomic_files import write_atomically
from vitrail.studies.baseline_warning import setting_caution
from vitrail.studies.executor import Step, done
from vitrail.studies.folds import folds_of
from vitrail.studies.tuning_grid import METRIC, SCALE, Grid, changed_study, check_grid, section_text, usual_grid
from vitrail.study.model import LOWER_IS_BETTER, Study

ABOUT, TRIALS = "tune.json", "trials"
Setting = dict[str, Any]
Parts = dict[str, list[list[SiteData]]]  # how columns are standardised -> fold -> sites


class Summary(NamedTuple):
    """Of one setting: over folds the mean of the sites' mean, its spread, and the site that is served worst, by its
    skill against its own baseline (metrics/skill.py), with that baseline. NaN where undefined."""

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
        return self.method.catalogue.title

    @property
    def settings(self) -> dict[str, Any]:
        """The best ones."""
        return {k: self.table.iloc[0][k] for k in self.grid}

    def caution(self) -> str:
        """What speaks against the best setting, in a sentence; "" where nothing does."""
        return setting_caution(self.metric, self.table.iloc[0].to_dict(), self.same.mean, self.best.row_word)

    def section(self) -> str:
        """The parts of the study file that the best setting is in, ready to be pasted."""
        return section_text(self.best, type(self.method), self.grid)

    def save(self, path: str | Path) -> None:
        """One JSON file."""
        rows = [{k: None if v != v else v for k, v in row.items()} for row in self.table.to_dict("records")]
        content = {
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
        write_atomically(Path(path), json.dumps(content, indent=1, default=_plain))


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
    """Settings, cross-validated within each site's training rows.

    With a grid, every combination of its values. Without one, the kind of network, learning rate, weight decay, rounds
    and scale that usually matter, and what the method declares (`usual_grid`), one key after the other. Keys are the
    method's hyperparameters, else those of the study's [training] or [network], or `standardise`. Judged by log loss, a
    number by its root mean squared error and a time by its log loss, unless `metric` names another. Trials that are
    finished in `out` are not done again with `resume`. `workers` and `cluster` as of compare. progress(what, done, of).

    `sites` has the table of each site; its training rows are cut into `folds`. `seed` is the study's first where it is
    not given.
    """
    if resume and out is None:
        what, to_do = "expected the folder of the earlier tuning, got none.", "Name that folder: out, or --out."
        raise VitrailError("cannot resume", [Problem("resume", what, to_do)])
    study, chosen = resolve(study, method, rounds)
    seed, metric = study.seeds[0] if seed is None else seed, metric or METRIC[study.target.kind]
    tried = {k: list(v) for k, v in (usual_grid(study, chosen, rounds) if grid is None else grid).items()}
    check_grid(study, chosen, tried, metric)
    every = [] if grid is None else [dict(zip(tried, v, strict=True)) for v in itertools.product(*tried.values())]
    check_trainable((s, s.build_method()) for s in (changed_study(study, type(chosen), one) for one in every))
    marks = {site.name: site.fingerprint for site in prepare(sites, study, seed)}  # tells what is wrong with the data
    parts: Parts = {
        scale: folds_of(sites, study.with_changes(standardise=scale), seed, folds)
        for scale in tried.get(SCALE, [study.standardise])
    }
    first = next(iter(parts.values()))
    names = [site.name for site in first[0]]
    about = {"study": study.to_toml(), "grid": tried, "usual": grid is None}
    about |= {"folds": folds, "metric": metric, "seed": seed}
    about |= {"fingerprints": marks, "versions": versions()}
    folder = _open(Path(out), resume, json.loads(json.dumps(about, default=_plain))) if out is not None else None
    trials = folder.path / TRIALS if folder else None
    of = folds * (1 + sum(len(v) - 1 for v in tried.values()) if grid is None else len(every))
    settings: list[Setting] = []
    cells = np.empty((0, folds, len(names)))  # [setting, fold, site]

    def add(more: list[Setting]) -> None:
        nonlocal cells
        before = len(settings)
        jobs = [
            _TuneJob(
                changed_study(study, type(chosen), one),
                one,
                k,
                seed,
                metric,
                trials / f"{i}-{k}.json" if trials else None,
            )
            for i, one in enumerate(more, before)
            for k in range(folds)
        ]

        def tell(job: _TuneJob, so_far: float) -> None:
            if progress:
                progress("settings x folds", before * folds + int(so_far), of)

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
        settings.extend(more)
        cells = np.concatenate([cells, np.array(values).reshape(-1, folds, len(names))])

    try:
        asked = study.with_changes(metrics=[metric])
        same = np.array([[site_baseline(asked, site)[0] for site in fold] for fold in first])  # [fold, site]
        if grid is not None:
            add(every)
        else:
            best = {k: values[0] for k, values in tried.items()}
            for n, (key, values) in enumerate(tried.items()):
                add([{**best, key: value} for value in values[bool(n) :]])
                best = settings[_table(settings, cells, names, metric, same).setting[0]]
        tuning = _ranked(study, chosen, tried, settings, cells, names, metric, seed, same, small_held_out(study, first))
        if folder:
            tuning.save(folder.path / "tuning.json")
            folder.seal("finished")
    finally:
        if folder:
            folder.close()
    return tuning


def _open(out: Path, resume: bool, about: dict[str, Any]) -> Folder:
    """All that differs from what the tuning was started with is told at once."""
    folder = Folder(out, resume=resume, about=ABOUT)
    if resume:
        before = read_json(out / ABOUT)
        problems = []
        for k, now in about.items():
            if before.get(k) != now:
                plain = k not in ("study", "fingerprints")
                what = f"was {before.get(k)}, now {now}." if plain else "it differs from that of the start."
                where = "data" if k == "fingerprints" else "study, method or rounds" if k == "study" else k
                to_do = "Resume with the original settings, or choose another --out."
                problems.append(Problem(f"{out}, {where}", what, to_do))
        if problems:
            folder.close()
            raise VitrailError("this folder holds another tuning, whose trials must not be mixed with these", problems)
    else:
        (out / TRIALS).mkdir()
        write_atomically(out / ABOUT, json.dumps(about, indent=1))  # last: with it there is something to resume
    folder.log("resumed" if resume else "started")
    return folder


def _ranked(
    study: Study,
    method: AnyMethod,
    tried: dict[str, list[Any]],
    settings: list[Setting],
    cells: Floats,
    names: list[str],
    metric: str,
    seed: int,
    same: Floats,
    few: dict[str, str],
) -> Tuning:
    """cells: [setting, fold, site]; same: [fold, site]"""
    folds = cells.shape[1]
    table = _table(settings, cells, names, metric, same)
    if table["mean"].isna().all():
        what = (
            f"no setting has a value of {metric_name(metric)}: every model diverged, or the metric is not defined "
            "on the folds."
        )
        raise VitrailError(
            "nothing was tuned", [Problem("grid", what, "Try smaller learning rates, or choose another --metric.")]
        )
    at = table.pop("setting").tolist()
    scores = [
        (*table.loc[i, list(tried)], k, name, cells[s, k, j])
        for i, s in enumerate(at)
        for k in range(folds)
        for j, name in enumerate(names)
    ]
    best = changed_study(study, type(method), settings[at[0]])
    columns = [*tried, "fold", "site", "value"]
    per_site = pd.DataFrame(scores, columns=columns)
    usual = _summed(same, names, metric, same)._replace(worst=math.nan, worst_site="", worst_baseline=math.nan)
    return Tuning(best, best.build_method(), metric, seed, folds, tried, table, per_site, usual, few)


class _TuneJob(NamedTuple):
    """One setting, one fold."""

    study: Study
    setting: Setting
    fold: int
    seed: int
    metric: str
    place: Path | None  # where it is kept

    def known(self, names: list[str]) -> list[float] | None:
        """What it came to, where it is finished."""
        if self.place is None or not self.place.exists():
            return None
        values = read_json(self.place)["values"]
        return [math.nan if values[name] is None else values[name] for name in names]

    def keep(self, names: list[str], values: list[float]) -> None:
        if self.place:
            values_of = {n: None if math.isnan(v) else v for n, v in zip(names, values, strict=True)}
            content = {"setting": self.setting, "fold": self.fold, "values": values_of}
            write_atomically(self.place, json.dumps(content, default=_plain))


def _judged(job: _TuneJob, parts: Parts, step: Step) -> list[float]:
    """The metric of every site's own model on the site's rows of the fold."""
    data, method = parts[job.study.standardise][job.fold], job.study.build_method()
    task = build_task(job.study, method, job.seed)
    rows = training_rows(data, job.study, method, "cpu")
    runner = Engine(task, method, rows, training_of(job.study), job.seed)
    judge = Evaluator(runner, job.study.with_changes(metrics=[job.metric]), data)
    left, scored = sum(stage.rounds for stage in runner.stages), []
    for moment in runner.run():
        step(0, 1)  # trials are short and told as a whole; here one can be stopped
        left -= 1
        if not left:  # judged inside, where the engine's threads are
            scored = judge.rows(moment, ("test",))
    # a method may carry other models beside a site's own: those are not tuned
    return [value for *_, split, _, value in scored if split == "test"]


def _table(settings: list[Setting], cells: Floats, names: list[str], metric: str, same: Floats) -> pd.DataFrame:
    """One row for each setting, best first; cells: [setting, fold, site]; same: [fold, site]."""
    down = metric in LOWER_IS_BETTER
    defined = ~np.isnan(cells).all(0)  # elsewhere a metric has no meaning (AUC of a single class), whatever the setting
    rows = []
    for i, setting in enumerate(settings):
        diverged = not defined.any() or np.isnan(cells[i])[defined].any()
        rows.append((i, *setting.values(), *(Summary() if diverged else _summed(cells[i], names, metric, same))))
    frame = pd.DataFrame(rows, columns=["setting", *settings[0], *Summary._fields])
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
