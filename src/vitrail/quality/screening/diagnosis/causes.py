"""What may have happened to a cell, from what was published of it, and how that is said."""

from __future__ import annotations

import numpy as np

from vitrail.data.missing_codes import CODES
from vitrail.quality.screening.diagnosis.categories import read_outcome, recode, swapped_with
from vitrail.quality.screening.diagnosis.cell import Cell, Diagnosis, tell, tell_misplaced, tell_shuffled
from vitrail.quality.screening.diagnosis.differences import compared, numbers_of, plainest
from vitrail.quality.screening.diagnosis.location_scale import agreement
from vitrail.quality.screening.diagnosis.numbers import explain_number
from vitrail.quality.screening.row_evidence.tests import misplaced
from vitrail.quality.screening.schema import Numbers
from vitrail.quality.screening.site_summaries import PREDICTED, RATIO
from vitrail.quality.screening.text import correlation, percent

FLIPPED, FADED = -0.35, 0.85  # of how the outcome follows the others': 1 as theirs, 0 not at all
REVERSED = -0.6  # of how columns go with the outcome, against each other site's
SURE = 1.6  # errors from 1
LEAST_CODED = 0.03  # of the rows have a level that is a code


def explain(cell: Cell) -> Diagnosis:
    """The first cause that explains what is off; whether a cell is wrong at all is for the caller to say."""
    if cell.column == cell.weighed.outcome:
        return _explain_outcome(cell)
    if cell.kind == "numeric":
        return explain_number(cell)
    return _explain_levels(cell)


def say_absent(kind: str, measured: float) -> Diagnosis:
    """`measured`: the share of rows with a value."""
    if kind == "only here":
        rows = f"{percent(measured)} of its rows have a value"
        return tell(
            kind, f"Only this site measures it ({rows}): nobody can say whether it fits.", known=float(measured)
        )
    text = f"It is not measured here ({percent(measured)} of the rows have a value): ask whether it can be added."
    return tell(kind, text, known=float(measured))


def _explain_outcome(cell: Cell) -> Diagnosis:
    lam, error = cell.follows()
    p, alike = cell.p, agreement(cell.p, cell.weighed.accused)
    voices = alike[cell.site, cell.others]
    voices = voices[np.isfinite(voices)]
    if not (lam < FLIPPED and error < 0.5) and len(voices) and voices.max() < (FLIPPED if error > 0.35 else REVERSED):
        lam, error = float(voices.mean()), 0.0  # whatever the largest site says
    if lam < FLIPPED and error < 0.5:
        text = (
            f"What predicts the outcome at the other sites predicts its opposite here ({correlation(lam)} of their "
            "strength): ask whether it is coded the other way round."
        )
        return tell("label flip", text, strength=lam)
    meant = read_outcome(p, cell.site, cell.others)
    if meant:
        levels = p.layout.levels[-1]
        words = ", ".join(f"{levels[a]} as {levels[b]}" for a, b in meant.items())
        text = (
            f"Its classes relate to the other columns as elsewhere if its codes are read differently ({words}): ask "
            "for the code list."
        )
        return tell("label flip", text, strength=lam, levels={levels[a]: levels[b] for a, b in meant.items()})
    loud = cell.loud[PREDICTED] >= cell.counted or cell.loud[PREDICTED] > 2.5
    misplaced = cell.loud[RATIO] > max(2.5, cell.counted)
    if misplaced or (lam < FADED and (loud or lam + SURE * error < 1)):
        share = wrong_outcomes(cell, lam)
        text = (
            f"The other sites' rows predict the outcomes here with {max(lam, 0):.2f} of their usual strength, as if "
            f"about {percent(share)} of them were wrong: ask how the outcome was established."
        )
        return tell("label noise", text, share=share)
    return unexplained(cell, "ask who is in the table")


def share_wrong(strength: float, classes: int) -> float:
    """How many outcomes are wrong where what predicts them has so much of its usual strength: of two classes a wrong
    outcome is the other one and takes away twice its part, of several it is any other, and a wrong number (no classes)
    is anybody's and takes away its part."""
    most = (classes - 1) / classes if classes else 1.0  # wrong by then, nothing is left of the strength
    return float(np.clip((1 - strength) * most, 0.0, most))


def wrong_outcomes(cell: Cell, lam: float) -> float:
    """About how many outcomes are wrong: of those that are as if of other rows, some are right by chance."""
    p, outcome = cell.p, cell.p.layout.outcome
    drawn = misplaced(cell.weighed, cell.site, cell.column)
    if not drawn:
        return share_wrong(lam, len(p.layout.levels[-1]))
    shares = np.nan_to_num(p.shares[cell.site, outcome])
    if p.layout.is_number[outcome[0]]:
        return drawn
    shares = np.append(shares, 1 - shares) if len(shares) == 1 else shares
    return float(drawn * (1 - (shares**2).sum()))


def unexplained(cell: Cell, ask: str) -> Diagnosis:
    """No usual cause: what differs the most, with its numbers."""
    _, shown = plainest(cell.weighed, cell.site, cell.column, cell.own)
    return tell("other", f"{shown.text}: {ask}.", **numbers_of(shown))


def _coded_level(cell: Cell, here: Numbers, there: Numbers) -> Diagnosis | None:
    """A level whose name is a usual code for missing values, and that other sites hardly have."""
    at = cell.p.layout
    for k, v in enumerate(np.flatnonzero(at.column == cell.column)):
        name = str(at.levels[cell.column][int(at.level[v])])
        if name.lstrip("-").isdigit() and float(name) in CODES and here[k] > LEAST_CODED and there[k] < here[k] / 5:
            text = (
                f"{percent(here[k])} of the rows have {name}, {percent(there[k])} elsewhere: ask whether it stands for "
            )
            shares = compared(f"share with {name}", "share", here[k], there[k])
            return tell(
                "code", f"{text}values that were not measured.", code=float(name), share=float(here[k]), **shares
            )
    return None


def _explain_levels(cell: Cell) -> Diagnosis:
    p, at = cell.p, cell.p.layout
    which = np.flatnonzero(at.column == cell.column)
    here = p.shares[cell.site, which]
    weight = np.nan_to_num(p.known[cell.others, cell.column])[:, None]
    there = (weight * np.nan_to_num(p.shares[cell.others][:, which])).sum(0) / max(1.0, float(weight.sum()))
    levels = at.levels[cell.column]
    lam, error = cell.follows()
    if np.nanmax(here, initial=0) == 1 or (cell.kind == "binary" and np.nanmin(here, initial=1) == 0):
        level = levels[int(at.level[which[int(np.nan_to_num(here).argmax())]])] if np.nanmax(here) == 1 else levels[0]
        text = f"Every row has {level}, while it varies at the other sites: ask whether it was recorded at all."
        return tell("constant", text, value=level)
    code = _coded_level(cell, here, there)
    if code:
        return code
    if cell.kind == "binary":
        other = swapped_with(p, cell.site, cell.column, cell.others)
        if other:
            text = f"Its shares and correlations are those of {other} at the other sites, and vice versa"
            return tell("swapped", f"{text}: ask for the order of the columns.", other=other)
        a, b = float(here[0]), float(there[0])
        reverse = abs(a - (1 - b)) < 0.5 * abs(a - b)
        if (lam < FLIPPED and error < 0.5) or (reverse and (lam < 0.3 or error > 0.5)):
            text = (
                f"{percent(a)} have {levels[1]} here, {percent(b)} at the other sites, and its correlations with other "
                f"columns are reversed: ask whether {levels[0]} and {levels[1]} are swapped."
            )
            shares = compared(f"share with {levels[1]}", "share", a, b)
            return tell("sign", text, levels={levels[0]: levels[1], levels[1]: levels[0]}, **shares)
        if abs(lam) < 0.5 and error < 0.25 and abs(a - b) < 0.1:
            return tell_shuffled(lam)
        if cell.loud[RATIO] > max(2.5, cell.counted):
            return tell_misplaced(cell)
        return unexplained(cell, f"ask what is counted as {levels[1]}")
    mapping = recode(p, cell.site, cell.column, cell.others)
    if mapping:
        words = ", ".join(f"{levels[k]} as {levels[v]}" for k, v in mapping.items())
        text = (
            f"The shares and correlations of its categories fit if its codes are read differently ({words}): ask for "
            "the code list."
        )
        return tell("recoded", text, levels={levels[k]: levels[v] for k, v in mapping.items()})
    if lam < 0.5 and error < 0.25:
        return tell_shuffled(lam)
    if cell.loud[RATIO] > max(2.5, cell.counted):
        return tell_misplaced(cell)
    return unexplained(cell, "ask whether its categories mean the same")
