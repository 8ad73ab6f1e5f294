"""Many trainings side by side: methods x seeds, each cross-validated within every site's own rows."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from vitrail import methods
from vitrail.core.display import notebook_bar
from vitrail.core.errors import Problem, VitrailError
from vitrail.core.random import key
from vitrail.data.encoding import clean_sites, fingerprint_rows
from vitrail.data.readers.frames import Sites, as_sites
from vitrail.methods import TABLE
from vitrail.quality.checks.missing_outcomes import warn_about_rows
from vitrail.runs.folder import Folder, read_json, unreadable
from vitrail.runs.result import mark_small_samples
from vitrail.runs.screening import SCREEN, load_screening, save_screening, screen_rows, screens
from vitrail.runs.setup import check_trainable, resolve
from vitrail.runs.store import our_table
from vitrail.storage.atomic_files import write_atomically
from vitrail.storage.csv_files import to_csv
from vitrail.studies.benefit import HARM
from vitrail.studies.compare.budget import FixedBudget, Spent, rounds_within
from vitrail.studies.compare.result import CHANCE, SCORES, SPREAD, Comparison, OutOfFold
from vitrail.studies.cross_validation import cross_validate
from vitrail.studies.executor import Step, done
from vitrail.studies.leave_one_site_out import leave_one_out
from vitrail.study.model import Study

FOLDS = 10
SITES_OUT = "left_out"  # the file of scores at sites that were left out
PART = ("method", "seed", "scores", "curve", "ledger", "sites", "versions")  # what every part holds
SEEDS = 4  # that many are enough: a fifth narrows the intervals by hundredths (decision 025)
FIRST_LOOK = 2  # seeds, where more are asked for: if every site's answer is clear by then, no more are trained


def load_comparison(path: Path) -> Comparison:
    """A finished comparison from its folder."""
    about = read_json(path / "run.json")
    parts = [read_json(p) for p in sorted((path / "parts").glob("*.json"))]
    if not parts or not (path / "comparison.csv").exists():
        raise VitrailError(
            "the comparison is not finished",
            [
                Problem(
                    str(path),
                    "comparison.csv does not exist yet.",
                    "Continue it with `vitrail compare ... --resume`.",
                )
            ],
        )
    order = read_json(path / "order.json")
    try:
        ranked = [
            p for s in order["seeds"] for m in order["methods"] for p in parts if (p["method"], p["seed"]) == (m, s)
        ]
        study = Study.parse(tomllib.loads(about["study"]))
        comparison = _gathered(study, order["methods"], order["seeds"], ranked, about["fingerprints"])
    except (KeyError, TypeError, ValueError) as error:  # whole, and of something else
        raise unreadable(path, error) from None
    comparison.screening = load_screening(path / SCREEN)
    if (left_out_file := path / f"{SITES_OUT}.csv").exists():
        comparison.left_out = our_table(left_out_file)
    comparison.harm, comparison.look = order.get("harm", HARM), tuple(order.get("look", (1, 1)))
    comparison.budget = FixedBudget(*order.get("budget", ()))
    comparison.spent = {name: Spent(*values) for name, values in order.get("spent", {}).items()}
    return comparison


def seeds_of(study: Study, count: int) -> list[int]:
    """The study's seeds, continued by hashing when more are asked for."""
    seeds = list(study.seeds[:count])
    while len(seeds) < count:
        seeds.append(key(seeds[0], "seed", len(seeds)) % 2**31)
    return seeds


def compare(
    study: Study,
    sites: Sites,
    names: Sequence[str],
    seeds: Sequence[int],
    *,
    rounds: int | None = None,
    folds: int = FOLDS,
    harm: float = HARM,
    every_seed: bool = False,
    leave_one_site_out: bool = False,
    budget_bytes: int | None = None,
    budget_steps: int | None = None,
    engine: str = "vectorised",
    device: str = "cpu",
    out: str | Path | None = None,
    resume: bool = False,
    workers: int = 1,
    cluster: str = "",
    progress: Callable[[str, int, int], None] | None = None,
    site: str = "",
) -> Comparison:
    """Every method under every seed; finished parts in `out` are kept with `resume`.

    `sites`: a table for each site by name, or one table of all whose column `site` (or the study's `site_column`) names
    it.

    A seed cuts each site's rows into `folds`, each held out once. After FIRST_LOOK of several seeds no more are trained
    if it is clear for every site whether joining is worth it; with `every_seed` all are. `harm`: what a site may lose
    without harm, as a share of the loss of one answer to every row. With `leave_one_site_out`, a model of all other
    sites is tested on the rows of each site in turn, under the first seed: `left_out` of the result. `workers`
    processes share the work: the numbers are the same, and small networks, whose engine uses one core, are done sooner;
    or the machines of a `cluster`, by its scheduler's address. `rounds` are the study's where they are not given;
    `engine` and `device` are as of federate. With `budget_bytes` or `budget_steps` each method trains as many rounds as
    these pay for one training at one site. progress(what, done, of) is called as it goes.
    """
    names, seeds = list(dict.fromkeys(names)), list(dict.fromkeys(seeds))
    problems = [p for n in names for p in methods.problems(n, {}, "methods")]
    if not names or not seeds:
        problems.append(Problem("methods and seeds", "expected at least one of each.", "Name them."))
    budget = FixedBudget(budget_bytes, budget_steps)
    problems += budget.problems()
    if budget != FixedBudget() and leave_one_site_out:
        what = "with one site fewer a method's messages have another size, so the budget pays other rounds."
        problems.append(Problem("leave_one_site_out", what, "Compare twice: with a budget, and without one."))
    if not 0 <= harm < 1:
        problems.append(Problem("harm", f"expected a share of at least 0 and below 1, got {harm}.", "Use 0.03."))
    if problems:
        raise VitrailError("cannot compare", problems)
    if rounds is not None:
        study = study.with_changes(training={"rounds": rounds})
    check_trainable(resolve(study, name, None) for name in names)
    sites = as_sites(sites, site, study.site_column)
    cleaned = clean_sites(sites, study)
    warn_about_rows(sites, cleaned, study)
    marks = {n: fingerprint_rows(f) for n, f in cleaned.items()}
    spent = rounds_within(study, cleaned, names, seeds[0], folds, budget) if budget != FixedBudget() else {}
    folder = _open(out, resume, study, marks, engine, device, folds, budget) if out is not None else None
    place = folder.path if folder else None
    within = {n: study.with_changes(training={"rounds": spent[n].rounds}) if spent else study for n in names}
    jobs = [_CompareJob(within[name], name, seed, folds, engine, device, place) for seed in seeds for name in names]
    looks = [len(seeds)] if every_seed or len(seeds) <= FIRST_LOOK else [FIRST_LOOK, len(seeds)]
    of = study.training.rounds
    parts: list[dict[str, Any]] = []
    bar = notebook_bar("round") if progress is None else None

    def tell(job: _CompareJob, so_far: float) -> None:
        at = round((len(parts) + so_far) * of), len(jobs) * of
        if progress:
            progress(job.words, *at)
        elif bar:
            bar(*at)

    try:
        screening = screen_rows(study, cleaned) if screens(study) else None
        if folder and screening:
            save_screening(folder.path / SCREEN, screening)
        for look, trained in enumerate(looks, 1):
            part = jobs[len(parts) : trained * len(names)]
            parts += done(part, _part, cleaned, workers, tell, _CompareJob.known, _CompareJob.keep, cluster)
            result = _gathered(study, names, seeds[:trained], parts, marks)
            result.harm, result.look, result.screening = harm, (look, len(looks)), screening
            result.budget, result.spent = budget, spent
            if result.settled():
                break
        if leave_one_site_out:
            report = progress or (lambda what, at, total: None)
            given = study, cleaned, names, seeds[0], engine, device
            result.left_out = leave_one_out(*given, lambda at, total: report("leave one site out", at, total))
        if folder:
            if len(result.left_out):
                write_atomically(folder.path / f"{SITES_OUT}.csv", to_csv(result.left_out))
            about = {"methods": names, "seeds": result.seeds, "harm": harm, "look": result.look}
            about |= {"budget": budget, "spent": spent} if spent else {}
            for name, table in (
                ("comparison", result.results()),
                ("summary", mark_small_samples(result.summary(), result.sites, "worst_site")),
                ("verdicts", mark_small_samples(result.verdicts(), result.sites)),
            ):
                write_atomically(folder.path / f"{name}.csv", to_csv(table))
            write_atomically(folder.path / "order.json", json.dumps(about))
            folder.seal("finished", methods=names, seeds=result.seeds)
    finally:
        if folder:
            folder.close()
    return result


def _open(
    out: str | Path,
    resume: bool,
    study: Study,
    marks: dict[str, str],
    engine: str,
    device: str,
    folds: int,
    budget: FixedBudget,
) -> Folder:
    folder = Folder(Path(out), resume=resume)
    about = {"study": study.to_toml(), "fingerprints": marks, "engine": engine, "device": device, "folds": folds}
    about |= {"budget": list(budget)} if budget != FixedBudget() else {}
    place = folder.path / "run.json"
    if resume and _stored_info(folder) != about:
        folder.close()
        raise VitrailError(
            "this folder holds another comparison",
            [
                Problem(
                    str(out),
                    "the study, the data or the budget differ from those of the start.",
                    "Choose another --out.",
                )
            ],
        )
    if not resume:
        write_atomically(place, json.dumps(about, indent=1))
    (folder.path / "parts").mkdir(exist_ok=True)
    return folder


def _stored_info(folder: Folder) -> dict[str, Any]:
    try:
        return read_json(folder.path / "run.json")
    except VitrailError:
        folder.close()
        raise


class _CompareJob(NamedTuple):
    """One method under one seed."""

    study: Study
    name: str
    seed: int
    folds: int
    engine: str
    device: str
    folder: Path | None

    @property
    def words(self) -> str:
        return f"{TABLE[self.name].catalogue.title}, seed {self.seed}"

    @property
    def place(self) -> Path | None:
        """Where it is kept."""
        return self.folder / "parts" / f"{self.name}-{self.seed}.json" if self.folder else None

    def known(self) -> dict[str, Any] | None:
        """What it came to, where it is finished."""
        if self.place is None or not self.place.exists():
            return None
        part = read_json(self.place)
        if missing := [k for k in PART if k not in part]:
            what = f"it does not contain {', '.join(missing)}: it was changed, or another release wrote it."
            raise VitrailError(
                "a part cannot be read", [Problem(str(self.place), what, "Remove it, and it is computed again.")]
            )
        return part

    def keep(self, part: dict[str, Any]) -> None:
        if self.place:
            write_atomically(self.place, json.dumps(part))


def _part(job: _CompareJob, cleaned: Mapping[str, pd.DataFrame], step: Step) -> dict[str, Any]:
    given = job.study, cleaned, job.name, job.seed, job.folds, job.engine, job.device, step
    return {"method": job.name, **cross_validate(*given)}


def _gathered(
    study: Study, names: list[str], seeds: list[int], parts: list[dict[str, Any]], marks: dict[str, str]
) -> Comparison:
    scores = [
        (p["method"], p["seed"], site, split, metric, value)
        for p in parts
        for site, metric, value, split in p["scores"]
    ]
    curves = [(p["method"], p["seed"], *row) for p in parts for row in p["curve"]]
    ledger = [{"method": p["method"], **row} for p in parts if p["seed"] == seeds[0] for row in p["ledger"]]
    spread = [(p["method"], p["seed"], *row) for p in parts for row in p.get("folds", ())]
    baselines = {p["seed"]: p.get("chance", []) for p in parts}  # the same under every method
    chance = [(seed, *row) for seed, rows in baselines.items() for row in rows]
    crossed = [p for p in parts if "losses" in p]  # none in what was compared before by a hold-out
    return Comparison(
        study,
        names,
        seeds,
        pd.DataFrame(scores, columns=SCORES),
        pd.DataFrame(curves, columns=["method", "seed", "round", "site", "metric", "value"]),
        pd.DataFrame(ledger),
        pd.DataFrame(parts[0]["sites"]),
        {"fingerprints": marks, "versions": parts[0]["versions"]},
        pd.DataFrame(chance, columns=CHANCE),
        None,
        pd.DataFrame(spread, columns=SPREAD),
        OutOfFold(
            {(p["method"], p["seed"]): {s: np.array(v, float) for s, v in p["losses"].items()} for p in crossed},
            {p["seed"]: {s: np.array(v) for s, v in p["lots"].items()} for p in crossed},
            crossed[0]["same"] if crossed else {},
            {(p["method"], p["seed"]): p.get("brier", {}) for p in crossed},
            crossed[0].get("brier_same", {}) if crossed else {},
        ),
    )
