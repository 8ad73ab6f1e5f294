"""What may have happened to a cell, from what was published of it, and how that is said."""

from __future__ import annotations

import numpy as np

from vitrail.quality.screening.diagnosis.categories import read_outcome, recode, swapped_with
from vitrail.quality.screening.diagnosis.cell import Cell, Diagnosis, short, tell, tell_shuffled
from vitrail.quality.screening.diagnosis.location_scale import agreement
from vitrail.quality.screening.diagnosis.numbers import explain_number
from vitrail.quality.screening.schema import Numbers
from vitrail.quality.screening.site_summaries import PREDICTED
from vitrail.quality.screening.statistics import SiteTests

FLIPPED, FADED = -0.35, 0.85  # of how the outcome follows the others': 1 as theirs, 0 not at all
REVERSED = -0.6  # of how columns go with the outcome, against each other site's
SURE = 1.6  # errors from 1


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
        text = f"Only this site measures it ({measured:.0%} of its rows have a value): nobody can say whether it fits."
        return tell(kind, text, known=float(measured))
    text = f"It is not measured here ({measured:.0%} of the rows have a value): ask whether it can be added."
    return tell(kind, text, known=float(measured))


def differs(weighed: SiteTests, site: int, column: int, usual: Numbers) -> Diagnosis:
    """What is said where nothing is held to be wrong. `usual`: [number] the sites' median."""
    p, at = weighed.published, weighed.published.layout
    seen = "its values are spread otherwise than at the other sites, or go otherwise with other columns"
    if at.kinds[column] == "numeric":
        i = int(np.searchsorted(at.column[at.numbers], column))
        here = p.quantiles[site, i, 9]
        if np.isfinite(here) and np.isfinite(usual[i]):
            seen = f"its median is {short(here)} here and {short(usual[i])} over the sites"
    what = "The outcome" if column == weighed.outcome else at.columns[column]
    return tell("differs", f"{what} differs: {seen}; sites differ as much in other columns, so it may be real.")


def _explain_outcome(cell: Cell) -> Diagnosis:
    lam, error = cell.follows()
    p, alike = cell.p, agreement(cell.p, cell.weighed.accused)
    voices = alike[cell.site, cell.others]
    voices = voices[np.isfinite(voices)]
    if not (lam < FLIPPED and error < 0.5) and len(voices) and voices.max() < (FLIPPED if error > 0.35 else REVERSED):
        lam, error = float(voices.mean()), 0.0  # whatever the largest site says
    if lam < FLIPPED and error < 0.5:
        text = (
            f"What predicts the outcome at the other sites predicts its opposite here ({lam:.2f}"
            f" of their strength): ask"
            " whether it is coded the other way round."
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
    if lam < FADED and (loud or lam + SURE * error < 1):
        share = float(np.clip((1 - lam) / 2, 0.0, 0.5))
        text = (
            f"The other sites' rows predict the outcomes here with {max(lam, 0):.2f} of"
            f" their usual strength, as if about"
            f" {share:.0%} of them were wrong: ask how the outcome was established."
        )
        return tell("label noise", text, share=share)
    text = "The outcomes here are spread otherwise than at the other sites."
    if p.layout.table.target.kind == "classes":
        which = p.layout.outcome
        here = p.shares[cell.site, which]
        weight = np.nan_to_num(p.known[cell.others, -1])[:, None]
        there = (weight * np.nan_to_num(p.shares[cell.others][:, which])).sum(0) / max(1.0, float(weight.sum()))
        j = int(np.nan_to_num(np.abs(here - there)).argmax())
        level = p.layout.levels[-1][int(p.layout.level[which[j]])]
        text = (
            f"{here[j]:.0%} of the outcomes here are {level}, {there[j]:.0%} at the other sites: ask"
            f" who is in the table."
        )
    return tell("other", text)


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
    if cell.kind == "binary":
        other = swapped_with(p, cell.site, cell.column, cell.others)
        if other:
            text = f"Its shares and correlations are those of {other} at the other sites, and vice versa"
            return tell("swapped", f"{text}: ask for the order of the columns.", other=other)
        a, b = float(here[0]), float(there[0])
        reverse = abs(a - (1 - b)) < 0.5 * abs(a - b)
        if (lam < FLIPPED and error < 0.5) or (reverse and (lam < 0.3 or error > 0.5)):
            text = (
                f"{a:.0%} have {levels[1]} here and {b:.0%} at the other sites, and it goes the"
                f" other way round with other"
                f" columns: ask whether {levels[0]} and {levels[1]} are swapped."
            )
            return tell("sign", text, levels={levels[0]: levels[1], levels[1]: levels[0]})
        if abs(lam) < 0.5 and error < 0.25 and abs(a - b) < 0.1:
            return tell_shuffled(lam)
        text = f"{a:.0%} have {levels[1]} here and {b:.0%} at the other sites: ask what is counted as {levels[1]}."
        return tell("other", text, share=a, elsewhere=b)
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
    j = int(np.nan_to_num(np.abs(here - there)).argmax())
    text = (
        f"{here[j]:.0%} have {levels[j]} here and {there[j]:.0%} at the other sites: ask whether"
        f" its categories mean the"
        " same."
    )
    return tell("other", text, level=levels[j], share=float(here[j]), elsewhere=float(there[j]))
