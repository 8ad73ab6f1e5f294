"""What a site lets itself be asked in a screening.

A coordinator may keep to every agreed shape and still mean one patient: cuts on either side of a value count the rows
that have it, and one answer for each column of a known person tells whether that person is here. So questions that
nobody would ask who pools what was published are refused, and of what is left no answer tells one row from none:

    cuts that are closer together than NARROW of the middle half of the site's own values
        are taken for one where fewer than HELD rows lie between them
    rows with one value, where they are fewer than FEWEST
        are told as FEWEST - 1, also where there are none
    what goes with an answer that fewer than FEWEST rows give, or do not give
        is not told: it would be those people's outcome
    predictions farther than FARTHEST spreads from the middle
        are taken for that far: a made-up total cannot single out one row, and read its outcome

benchmarks/attacks/published.py measures what is left. Counts that were blunted only bring sites closer together.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from vitrail.core.errors import MessageRefused, Problem
from vitrail.data.schema import TableSchema
from vitrail.quality.screening.schema import HELD, Numbers, Said, ScreeningSchema

NARROW = 0.5
FEWEST = 3
FARTHEST = 2.5


def check_asked(table: TableSchema, leg: str, asked: Said) -> None:
    """Refuse what does not follow from what sites published."""
    layout = ScreeningSchema(table)
    checks = {"counts": _wrong_counts, "ties": _wrong_ties}
    if wrong := checks[leg](layout, asked) if leg in checks else []:
        hint = "Nothing was sent. The coordinator breaks the rules, or runs another version."
        raise MessageRefused(problems=[Problem(f"screening, {leg}, {k}", v, hint) for k, v in wrong])


def _wrong_counts(layout: ScreeningSchema, asked: Said) -> list[tuple[str, str]]:
    out = _wrong_places(layout, asked["chosen"])
    for name in ("cuts", "values"):
        if np.isinf(asked[name]).any():
            out.append((name, "expected numbers."))
    for cuts in asked["cuts"]:
        if (np.diff(cuts[np.isfinite(cuts)]) < 0).any():
            return [*out, ("cuts", "expected increasing cuts.")]
    return out


def _wrong_ties(layout: ScreeningSchema, asked: Said) -> list[tuple[str, str]]:
    out = _wrong_places(layout, asked["chosen"])
    related, finite = asked["related"], np.isfinite(asked["related"])
    if not np.isin(related[finite], np.arange(len(layout.column))).all() or np.isinf(related).any():
        out.append(("related", "expected columns of this study."))
    products = asked["products"]
    if np.isnan(products).all():  # no total was opened
        return out
    size = np.diag(products)
    if not np.isfinite(products).all() or not np.allclose(products, products.T, atol=1e-6 * (1 + np.abs(size).max())):
        out.append(("products", "expected sums of products, the same on both sides of the diagonal."))
    elif (size < 0).any() or (products**2 > np.outer(size, size) * (1 + 1e-6) + 1e-6).any():
        out.append(("products", "expected sums of products, none larger than those of the columns themselves."))
    return out


def _wrong_places(layout: ScreeningSchema, chosen: Numbers) -> list[tuple[str, str]]:
    inputs = np.arange(len(layout.inputs))
    if np.isin(chosen, inputs).all() and (np.diff(chosen) > 0).all():
        return []
    return [("chosen", "expected columns of this study, each once, in their order.")]


def rows_below(x: Numbers, cuts: Numbers) -> Numbers:
    """[cut]: rows of sorted x up to each cut, NaN where there is none; cuts that are nearly one are taken for one."""
    out = np.where(np.isfinite(cuts), np.searchsorted(x, cuts, side="right"), np.nan)
    if not len(x):
        return out
    ends = ((_quantile(x, low), _quantile(x, high)) for low, high in ((0.25, 0.75), (0.05, 0.95), (0.0, 1.0)))
    spread = next((high - low for low, high in ends if high > low), 0.0)  # half of the rows may hold one value
    narrow = NARROW * spread
    before: int | None = None
    for i in np.flatnonzero(np.isfinite(cuts)):
        if before is not None and cuts[i] - cuts[before] < narrow and out[i] - out[before] < HELD:
            out[i] = out[before]
        before = int(i)
    return out


def _quantile(x: Numbers, q: float) -> float:
    """Of sorted x, as numpy has it, which takes long to look around."""
    at = q * (len(x) - 1)
    below = int(at)
    a, b, t = float(x[below]), float(x[min(below + 1, len(x) - 1)]), at - below
    return b - (b - a) * (1 - t) if t >= 0.5 else a + (b - a) * t


def rows_with(x: Numbers, values: Numbers) -> Numbers:
    """[value]: rows of sorted x with that value, none or few of them alike; NaN where there is no value."""
    same = np.searchsorted(x, values, "right") - np.searchsorted(x, values, "left")
    return np.where(np.isfinite(values), np.maximum(same, min(FEWEST - 1, len(x))), np.nan)


def clip_predictions(predictions: Numbers) -> Numbers:
    """[row, outcome]: predictions, none so far off that it alone decides how well they fit."""
    middle = np.median(predictions, axis=0)
    spread = 1.4826 * np.median(np.abs(predictions - middle), axis=0)  # as a standard deviation, where it is normal
    far = FARTHEST * np.where(spread > 0, spread, np.std(predictions, axis=0))
    return np.clip(predictions, middle - far, middle + far)


def clip_guesses(guesses: Numbers) -> Numbers:
    """[row, variable]: as `clip_predictions`, by the spread of the middle four fifths, which one row cannot make; where
    these are all alike, nothing is guessed."""
    low, middle, high = np.quantile(guesses, [0.1, 0.5, 0.9], axis=0)
    far = np.minimum(FARTHEST * (high - low) / 2.563, FARTHEST)
    return np.clip(guesses, middle - far, middle + far)


def rare_answers(values: Numbers, is_number: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """[variable]: yes or no, and one of the two given by fewer than FEWEST rows."""
    yes, observed = np.nansum(values, axis=0), np.isfinite(values).sum(0)
    return np.asarray(~is_number & (np.minimum(yes, observed - yes) < FEWEST))
