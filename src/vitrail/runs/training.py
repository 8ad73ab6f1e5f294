"""All rounds of a run: a study and the sites in, wherever they are; a run and its folder out."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import pandas as pd
import torch
from torch import Tensor

from vitrail.core.display import notebook_bar
from vitrail.core.facts import ENDS, ROUND, Fact, Facts, in_order
from vitrail.core.tensors import flatten
from vitrail.data.encoding import Encoder, clean_sites
from vitrail.data.readers.frames import Sites, as_sites
from vitrail.data.splitting import split_sites
from vitrail.engine.contract import Ledger, WireEntry
from vitrail.engine.local import Engine
from vitrail.engine.resource_usage import Footprint, cpu_seconds, footprint
from vitrail.engine.rounds import Rounds, Snapshot
from vitrail.methods import AnyMethod
from vitrail.metrics.holdout_summary import HeldOutAnswers
from vitrail.quality.checks.missing_outcomes import count_lost, warn_about_rows
from vitrail.quality.screening.result import Screening
from vitrail.runs.backbone_features import as_rows
from vitrail.runs.evaluation import Evaluator
from vitrail.runs.folder import Folder, is_finished
from vitrail.runs.identity import check_same_run, describe_run
from vitrail.runs.plan import Plan
from vitrail.runs.private_layers import read_shifts
from vitrail.runs.protection.budget import guards_of, private, spent_after
from vitrail.runs.protection.checks import check_protection
from vitrail.runs.protection.dp_statistics import encoded, training_sizes
from vitrail.runs.protection.masking import simulated
from vitrail.runs.protection.shares import describe_shares, round_shares
from vitrail.runs.refit import Final, Refit, refit
from vitrail.runs.result import CLASS_SHARES, HISTORY, REFITTED, Run
from vitrail.runs.screening import (
    REFUSED,
    SCREEN,
    as_kept,
    load_screening,
    save_screening,
    screen_lines,
    screen_rows,
    screens,
)
from vitrail.runs.setup import (
    Away,
    absence,
    asks_consent,
    check_keeping,
    check_options,
    held_rows,
    is_evaluated,
    last_splits,
    refits,
    resolve,
    training_of,
    training_rows,
)
from vitrail.runs.store import write_pseudonyms, write_run
from vitrail.storage.atomic_files import write_atomically
from vitrail.study.model import Study

CHECKPOINT_SECONDS = 5.0
SCORES = ("scores", "scores in training")  # stages of the table of what crosses
ROUND_SECONDS = 1.0  # between two events that say how far a run is


def federate(
    study: Study,
    sites: Sites,
    method: str | AnyMethod | None = None,
    rounds: int | None = None,
    seed: int | None = None,
    *,
    engine: str = "vectorised",
    device: str = "cpu",
    out: str | Path | None = None,
    resume: bool = False,
    dropout_rate: float = 0.0,
    away: Away | None = None,
    refuse: Sequence[str] = (),
    pseudonyms: Mapping[str, str] | None = None,
    keep_updates: bool = False,
    progress: Callable[[int, int], None] | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    secrets: Mapping[str, str] | None = None,
    site: str = "",
) -> Run:
    """Train `method` over the sites' tables and score every site's own model on its own hold-out rows. Before the first
    round they are screened for data that does not fit, unless the study says `screen.ask = false`.

    `sites`: a table for each site by name, or one table of all whose column `site` (or the study's `site_column`) names
    it. `rounds` and `seed` are those of the study where they are not given.

    `engine`: all sites at once ("vectorised") or one after the other ("looped"), on `device` ("cpu", "cuda"). With
    `out`, the run is kept in that folder, and written there at least every `checkpoint_seconds` while it trains, so
    that `resume` goes on where it stopped. progress(round, of) is called as it goes. Sites can fall silent: each in
    each round by chance (`dropout_rate`), or in planned rounds (`away`: for a site the first and the last round,
    counted from 1).

    `refuse` names sites that publish neither what screening asks of their columns nor private layers; they train all
    the same. `pseudonyms` maps a site to the name it publishes under; scores stay under the sites' own names.
    `keep_updates` writes what each site reports in each round, so that studies/contribution/values.py can rebuild any
    coalition's model; the coordinator then sees each report, also where the method needs only their total. `secrets`:
    the seeds of the sites' private draws in a run between machines, so that this run draws the same.
    """
    study, chosen = resolve(study, method, rounds)
    sites = as_sites(sites, site, study.site_column)
    seed = study.seeds[0] if seed is None else seed
    pseudonyms = dict(pseudonyms or {})
    plan = simulated(Plan(study, chosen, seed, len(sites)), keep_updates)
    study, asked = plan.study, screens(study)
    task = plan.task  # a method that cannot train as the study says is refused first
    check_options(engine, device, dropout_rate, away or {}, refuse, pseudonyms, list(sites), plan, asked)
    task = private(replace(task, start={k: v.to(device) for k, v in task.start.items()}), study, chosen)
    cleaned = clean_sites(sites, study)
    warn_about_rows(sites, cleaned, study)
    lost = count_lost(sites, cleaned)
    splits = split_sites(cleaned, study, seed)
    check_protection(plan, training_sizes(cleaned, study, splits))
    data = as_rows(encoded(cleaned, study, seed, splits, secrets), task.net, device)
    screen = partial(screen_rows, study, cleaned, refuse, pseudonyms) if asked else None
    all_rows = cleaned if refits(study, chosen) else None
    del cleaned  # of a large table each copy counts; what is left is let go when the judge has it
    if keep_updates:
        check_keeping(plan, out)
    rows = training_rows(data, study, chosen, device)
    stages, away = chosen.plan(study.training.rounds), away or {}
    absent = None if chosen.catalogue.pools_rows else absence(rows.names, seed, dropout_rate, away, refuse, stages)
    looped, held = engine == "looped", held_rows(data, study, chosen, device)
    given = task, chosen, rows, training_of(study), seed
    how: dict[str, Any] = {"looped": looped, "absent": absent, "held": held, "secrets": secrets}
    runner = Engine(*given, **how, keep_reports=keep_updates, guards=guards_of(study), contracts=plan.contracts)
    runner.shares = round_shares(study, chosen, {site.name: len(site.train_y) for site in data})
    judge = Evaluator(runner, study, data, screen)
    again = None
    if all_rows is not None:
        scales = {site.name: site.encoder for site in data}
        again = partial(refit, runner, study, seed, all_rows, scales, {"looped": looped, "secrets": secrets})
    info = describe_run(study, seed, engine, device, {site.name: site.fingerprint for site in data})
    del data, screen, all_rows
    info |= {"dropout_rate": dropout_rate, "away": {k: [list(s) for s in v] for k, v in away.items()}}
    info |= {"keep_updates": True} if keep_updates else {}
    info |= {"no_outcome": lost} if lost else {}
    info |= {"refuse": sorted(refuse), "pseudonyms": sorted(pseudonyms.values())}  # not whose: each site knows its own
    folder = Folder(Path(out), resume=resume) if out is not None else None
    try:
        tell = progress or notebook_bar("round")
        return train(runner, plan, judge, info, pseudonyms, folder, resume, tell, checkpoint_seconds, again)
    finally:
        if folder:
            folder.close()


class RunSites(Protocol):
    """The sites of a run as the coordinator meets them: on this machine (Evaluator), or on machines of their own."""

    @property
    def at(self) -> list[int]:
        """Where each site stands in the engine's order."""

    @property
    def sizes(self) -> pd.DataFrame: ...

    @property
    def class_shares(self) -> dict[str, list[float]]:
        """The share of each class, by site (evaluation.class_shares)."""

    def rows(self, moment: Snapshot, splits: tuple[str, ...]) -> list[tuple[Any, ...]]:
        """Every site's own scores, as rows of HISTORY. Sites on this machine are scored at that moment, on these
        splits. Sites elsewhere add their scores to the answers for which that was agreed: these are the scores that
        have arrived since the last call."""

    def screen(self) -> Screening | None:
        """Whose data does not fit, asked before the first round; None where it is not asked."""

    def baseline(self) -> list[tuple[Any, ...]]:
        """What always giving the same answer would come to at every site, as rows of HISTORY."""

    def models(self, moment: Snapshot) -> dict[str, dict[str, Tensor]]:
        """Each site's settled state, where it is at hand."""

    def encoders(self, moment: Snapshot) -> dict[str, Encoder]:
        """Each site's scale and own constants, where they are at hand."""

    def footprints(self) -> dict[str, Footprint]:
        """What each site's own machine used; nothing of sites on this one."""

    def held_out(self) -> dict[str, list[int | str]]:
        """How each site calls its hold-out rows; nothing of sites on other machines."""

    def held_answers(self, moment: Snapshot) -> dict[str, HeldOutAnswers]:
        """Each site's hold-out rows with its model's answers; nothing of sites on other machines."""

    def lines(self, plan: Plan) -> list[WireEntry]:
        """Every tensor that may cross, in as many messages as the study has of it."""


def train(
    runner: Rounds,
    plan: Plan,
    sites: RunSites,
    info: dict[str, Any],
    pseudonyms: dict[str, str],
    folder: Folder | None,
    resume: bool,
    progress: Callable[[int, int], None] | None = None,
    checkpoint_seconds: float = CHECKPOINT_SECONDS,
    again: Callable[[Callable[[int], None]], Refit] | None = None,
) -> Run:
    """All rounds of a run and what is written of them, wherever the sites are. `again`: trains once more on all rows,
    where the study asks for it and the sites are on this machine."""
    study, method, seed, reports = plan.study, plan.method, plan.seed, runner.aggregator
    total = sum(stage.rounds for stage in runner.stages)
    shown = 2 * total if again else total
    history: list[tuple[Any, ...]] = []
    paths: dict[str, list[Fact]] = {}  # facts of every round
    took_part = [0] * len(runner.names)  # rounds of training
    moment, spent = None, 0.0  # seconds of processors, of what was done before this was resumed
    if folder:
        if resume:
            check_same_run(folder, info, pseudonyms)
            if is_finished(folder.path):
                folder.drop_checkpoints()  # it may have been killed before it could
                return Run.load(folder.path)
            if back := _restore(folder, runner):
                moment, history, before, took_part, spent = back
                paths = {k: [f._replace(value=v) for v in f.value] for k, f in before.items()}
                folder.resumed(moment)
        else:
            write_atomically(folder.path / "study.toml", study.to_toml())
            write_pseudonyms(folder, pseudonyms)
            write_atomically(folder.path / "run.json", json.dumps(info, indent=1))
            folder.log("started", method=info["method"], seed=seed)
    used = cpu_seconds() - spent
    screening = _screened(sites, folder)
    began = saved = time.monotonic()
    logged = began - ROUND_SECONDS  # the first round is logged at once
    done = sum(s.rounds for s in runner.stages[: moment.stage]) + moment.round if moment else 0
    last = moment or runner.start()
    if (not done or is_evaluated(done, total)) and not any(row[:2] == (last.stage, last.round) for row in history):
        history += sites.rows(last, ("test",))
    for last in runner.run(moment):
        done += 1
        if not asks_consent(runner.stages[last.stage]):
            took_part = [n + here for n, here in zip(took_part, last.present.tolist(), strict=True)]
        if followed := {k: f._replace(value=f.value.cpu()) for k, f in last.facts.items() if f.every}:
            number = Fact(torch.tensor(last.round), (), ROUND, every=True)
            for k, f in ({ROUND: number} | followed).items():
                paths.setdefault(k, []).append(f)
        splits = last_splits(runner.task, study) if done == total else ("test",)
        history += sites.rows(last, splits if is_evaluated(done, total) else ())
        events = reports.take_events()
        if folder:
            for event in events:
                folder.log(event.pop("event"), stage=last.stage, round=last.round, **event)
        gone: list[str] = []
        if folder and not bool(last.present.all()):
            gone = [n for n, here in zip(runner.names, last.present.tolist(), strict=True) if not here]
            folder.log("absent", stage=last.stage, round=last.round, done=done, sites=gone)
        if folder and ((now := time.monotonic()) - logged >= ROUND_SECONDS or done == total):
            at = {"stage": last.stage, "round": last.round, "done": done, "total": total}
            folder.log("round", **at, seconds=round(now - began, 3), absent=gone)
            logged = now
        if folder and reports.keep_reports and last.stage == 0:  # later stages publish, or train alone
            folder.keep_updates(runner.names, last, runner.reports)
        if folder and done < total and time.monotonic() - saved >= checkpoint_seconds:
            extra: dict[str, Any] = {"history": history, "ledger": runner.ledger.counts}
            extra |= {"outcasts": reports.excluded, "unusual": reports.unusual, "unused": runner.unused}
            extra |= {"names": runner.names, "sizes": runner.ledger.sizes}  # of a message: for those who look on
            extra |= {"took_part": took_part, "chance": sites.baseline(), "cpu": cpu_seconds() - used}
            folder.checkpoint(runner.names, last, extra, _stacked(paths))
            saved = time.monotonic()
        if progress:
            progress(done, shown)
    final: dict[str, Final] = {}
    if again:
        final, crossed = again(lambda more: progress(total + more, shown) if progress else None)
        info |= {REFITTED: {"crossed": crossed}}
    info |= {"outcasts": reports.excluded, "unusual": reports.unusual} if reports.excluded or reports.unusual else {}
    info |= {"unused": runner.unused} if runner.unused else {}
    info = {**info, "finished": True, "seconds": round(time.monotonic() - began, 3)}
    info |= {CLASS_SHARES: sites.class_shares} if sites.class_shares else {}
    info |= {"share": describe_shares(runner.shares, total)} if runner.shares else {}
    info["took_part"] = dict(zip(runner.names, took_part, strict=True))
    if study.protect.rows or study.protect.sites:
        info["spent"] = {k: round(spent_after(study, method, n), 6) for k, n in info["took_part"].items()}
    info["footprint"] = footprint(used, study.energy.watts, study.energy.grid).plain()
    info["footprints"] = {name: of_site.plain() for name, of_site in sites.footprints().items()}
    history += sites.rows(last, ()) + sites.baseline()
    run = Run(
        study,
        method,
        seed,
        info,
        pd.DataFrame(history, columns=HISTORY),
        ledger_of(runner.ledger, study, method, sites.sizes, sites.lines(plan), screening, pseudonyms),
        sites.models(last),
        sites.encoders(last),
        sites.sizes,
        facts_of(runner, last, _stacked(paths), sites.at),
        {k: v.cpu().clone() for k, v in flatten(last.coord)},
        pseudonyms=pseudonyms,
        screening=screening,
        held=sites.held_out(),
        answers=sites.held_answers(last),
        final=final,
    )
    run.plan = plan
    if any(f.means in ENDS for f in last.facts.values()):
        run.shift_table, run.facts = read_shifts(runner, study, last, pseudonyms)
    if folder:
        write_run(folder, run, "finished", seconds=info["seconds"])
        folder.drop_checkpoints()
    return run


def _stacked(paths: dict[str, list[Fact]]) -> Facts:
    """Facts of every round so far, [round, ...]."""
    return {k: path[0]._replace(value=torch.stack([f.value for f in path])) for k, path in paths.items()}


def facts_of(runner: Rounds, last: Snapshot, paths: Facts, at: list[int]) -> Facts:
    """All facts of a run, with the sites in its own order."""
    order = torch.tensor(at)
    ends = {k: f._replace(value=f.value.cpu()) for k, f in last.facts.items() if not f.every}
    return {k: in_order(f, order) for k, f in ends.items()} | {k: in_order(f, order, 1) for k, f in paths.items()}


def _restore(folder: Folder, runner: Rounds) -> tuple[Snapshot, list[tuple[Any, ...]], Facts, list[int], float] | None:
    back = folder.restore(runner.names, runner.shape_at)
    if back is None:
        return None
    moment, at, paths = back
    runner.ledger.counts.update(at["ledger"])
    runner.aggregator.excluded.update(at.get("outcasts", {}))
    runner.aggregator.unusual.update(at.get("unusual", {}))
    runner.unused += at.get("unused", [])
    return moment, [tuple(row) for row in at["history"]], paths, at["took_part"], float(at.get("cpu", 0))


def _screened(sites: RunSites, folder: Folder | None) -> Screening | None:
    """Asked once in a run: one that was stopped after that is not asked again."""
    if folder and (folder.path / SCREEN).exists():
        return load_screening(folder.path / SCREEN)
    began = time.monotonic()
    screening = sites.screen()
    screening = screening._replace(findings=as_kept(screening.findings)) if screening else None
    if folder and screening:
        save_screening(folder.path / SCREEN, screening)
        folder.log("screened", wrong=len(screening.wrong), seconds=round(time.monotonic() - began, 3))
    return screening


def ledger_of(
    ledger: Ledger,
    study: Study,
    method: AnyMethod,
    sizes: pd.DataFrame,
    lines: Sequence[WireEntry],
    screening: Screening | None,
    pseudonyms: Mapping[str, str],
) -> pd.DataFrame:
    """Messages and bytes of each site; `lines`: of what the engine does not count."""
    rows = [] if method.catalogue.pools_rows else ledger.rows()
    shown = set() if screening is None else set(screening.sites.site[screening.sites["why not"] != REFUSED])
    asked = {line.stage for line in screen_lines(study)}
    for line in lines:
        if line.stage in asked or line.stage in ("standardise", "pool", *SCORES):
            for site, count in zip(sizes.site, sizes.train_rows, strict=True):
                if line.stage in asked and pseudonyms.get(site, site) not in shown:
                    continue
                times = int(count) if line.per_row else line.rounds
                rows.append(
                    {
                        "site": site,
                        "stage": line.stage,
                        "direction": line.direction,
                        "messages": line.rounds,
                        "bytes": line.bytes * times,
                    }
                )
    frame = pd.DataFrame(rows, columns=["site", "stage", "direction", "messages", "bytes"])
    grouped = frame.groupby(["site", "stage", "direction"], sort=False, as_index=False)
    return grouped.agg(messages=("messages", "max"), bytes=("bytes", "sum"))
