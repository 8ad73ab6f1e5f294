"""What crosses between machines after the run itself: all sites train again, in folds so that each can find out whether
joining is worth it there, or once on all rows for the model that is used. The messages are those of the run, but for
what sites are asked to show."""

from __future__ import annotations

from vitrail.methods import AnyMethod
from vitrail.runs.setup import refits
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
