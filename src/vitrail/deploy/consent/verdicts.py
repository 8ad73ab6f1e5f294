"""Folds in the words of the consent form."""

from __future__ import annotations

from collections.abc import Sequence

from vitrail.core.text import several
from vitrail.deploy.protocol.agreement import Agreement
from vitrail.engine.contract import WireEntry
from vitrail.metrics.scores import FEWEST
from vitrail.runs.setup import refits
from vitrail.runs.verdict_wire import FOLDS, REFIT, fold_count
from vitrail.studies.site_benefit import NUMBERS

ROWS = 10  # in each fold, where subtracting was tried: benchmarks/attacks/results/fold_leaks.md
TRIED = {"plain": (0.53, 0.52), "masked": (0.51, 0.52)}  # AUC by the run's own report, and by differences of folds


def fold_titles(agreement: Agreement) -> dict[str, tuple[str, str]]:
    """When the stages of folds are, as a heading, and what they are about, in a list."""
    count, out = fold_count(agreement.study), {}
    for t, contracts in zip(agreement.stages, agreement.contracts, strict=True):
        name = t.stage.title or t.stage.name
        for c in contracts:
            if count:
                heading = f"After the run, in {several(count, 'fold')}, to find out whether joining is worth it: {name}"
                out[FOLDS + c.stage] = heading, f"{name} in folds"
            if refits(agreement.study, agreement.method):
                heading = f"After the run, once more on all of your rows, for the model that you will use: {name}"
                out[REFIT + c.stage] = heading, f"{name} on all rows"
    return out


def what_is_found(agreement: Agreement, shows: bool) -> list[str]:
    """What leaves of what this site finds out for itself."""
    if not agreement.study.verdict or not shows:
        return []
    told = f"whether joining is worth it here: the verdict and {several(len(NUMBERS) + 3, 'number')} that it rests on"
    return [f"{told} (mean losses, the gain with its interval, how many rows, folds and seeds); in the run's report"]


def what_is_kept(agreement: Agreement, shows: bool) -> list[str]:
    """What never leaves."""
    if not agreement.study.verdict:
        return []
    out = ["which of your rows are in which fold, and what any model says of a single one"]
    return out if shows else [*out, "whether joining is worth it here: this site does not show it"]


def what_folds_tell(agreement: Agreement, lines: Sequence[WireEntry]) -> list[str]:
    """What could still be learned."""
    said = _what_a_refit_reveals(agreement) if any(line.stage.startswith(REFIT) for line in lines) else []
    if not any(line.stage.startswith(FOLDS) for line in lines):
        return said
    out = (
        f"Every row is left out of some of the {several(fold_count(agreement.study), 'fold')} and not of the others. "
        "Who reads this site's reports of two folds can subtract them: what is left tells of the rows in which they "
        f"differ, which are fewer than all. No fold here has fewer than {FEWEST} rows; what this site looks for in "
        "one report it does not see in the difference of two."
    )
    if agreement.masks:
        out += " Under masks only sums over sites can be subtracted, which tell of all sites' folds together."
    if not agreement.study.images:
        run, folds = TRIED["masked" if agreement.masks else "plain"]
        out += (
            f" Tried on heart disease, {ROWS} rows in a fold, first round: who knew all of a person's values told "
            f"whether the person is there right in {100 * run:.0f} of 100 cases by the run's own report, in "
            f"{100 * folds:.0f} by such differences; guessing has 50."
        )
    return [out, *said]


def _what_a_refit_reveals(agreement: Agreement) -> list[str]:
    text = (
        "The training on all rows includes the rows that the run held out. Whoever compares its reports with those of "
        "the run learns something about the held-out rows as a group"
    )
    return [f"{text}; under masks only about those of all sites together." if agreement.masks else f"{text}."]
