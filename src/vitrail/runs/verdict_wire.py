"""What crosses between machines after the run itself: all sites train again, in folds so that each can find out whether
joining is worth it there, or once on all rows for the model that is used. The messages are those of the run, but for
what sites are asked to show."""

from __future__ import annotations

from collections.abc import Iterable

from vitrail.engine.contract import Contract, WireEntry, trace
from vitrail.methods import AnyMethod
from vitrail.runs.setup import build_task, guarded_contracts, refits
from vitrail.study.model import Study

FOLDS, REFIT = "folds: ", "refit: "  # before the name of a stage


def fold_count(study: Study) -> int:
    """Folds, each a training of all sites; 0 where the study asks for no verdict."""
    return study.verdict.folds * study.verdict.seeds if study.verdict else 0


def later_trainings(study: Study, method: AnyMethod) -> dict[str, int]:
    """How often all sites train after the run, by the prefix of its stages."""
    counts = {FOLDS: fold_count(study), REFIT: int(refits(study, method))}
    return {prefix: count for prefix, count in counts.items() if count}


def plain_stage(stage: str) -> str:
    """The stage of the run itself.

    >>> plain_stage("refit: train"), plain_stage("train")
    ('train', 'train')
    """
    return stage.removeprefix(FOLDS).removeprefix(REFIT)


def fold_lines(study: Study, method: AnyMethod, contracts: Iterable[Contract]) -> list[WireEntry]:
    """Of all later trainings together; `contracts` are those of the run."""
    lines = [line for c in contracts if not c.consent for line in c.lines()]
    return [
        line._replace(stage=prefix + line.stage, rounds=count * line.rounds)
        for prefix, count in later_trainings(study, method).items()
        for line in lines
    ]


def planned_folds(study: Study, method: AnyMethod, sites: int) -> list[WireEntry]:
    """The same of a method that is not agreed on yet."""
    if not later_trainings(study, method) or method.pools_rows:
        return []
    traced = trace(build_task(study, method, 0), method, study.training.rounds, sites)
    return fold_lines(study, method, guarded_contracts(study, method, traced))
