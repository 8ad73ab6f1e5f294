"""What crosses between machines so that each site can find out whether joining is worth it there: every fold is a
training of all sites, with the messages of the run itself, but for what sites are asked to show."""

from __future__ import annotations

from collections.abc import Iterable

from vitrail.engines.wire import Contract, Line, trace
from vitrail.methods import AnyMethod
from vitrail.runs.setup import build_task, guarded_contracts
from vitrail.study import Study

FOLDS = "folds: "  # before the name of a stage


def fold_count(study: Study) -> int:
    """Trainings of all sites beside the run's; 0 where the study asks for no verdict."""
    return study.verdict.folds * study.verdict.seeds if study.verdict else 0


def fold_lines(study: Study, contracts: Iterable[Contract]) -> list[Line]:
    """Of all folds together; `contracts` are those of the run."""
    count = fold_count(study)
    lines = [line for c in contracts if count and not c.consent for line in c.lines()]
    return [line._replace(stage=FOLDS + line.stage, rounds=count * line.rounds) for line in lines]


def planned_folds(study: Study, method: AnyMethod, sites: int) -> list[Line]:
    """The same of a method that is not agreed on yet."""
    if not study.verdict or method.pools_rows:
        return []
    traced = trace(build_task(study, method, 0), method, study.training.rounds, sites)
    return fold_lines(study, guarded_contracts(study, method, traced))
