"""What a site says is bounded by what it means, before anything is reckoned with it: a site may lie."""

from __future__ import annotations

import numpy as np

from vitrail.core.errors import Problem, VitrailError
from vitrail.quality.screening.row_evidence.ratios import LEAST, MOST
from vitrail.quality.screening.schema import Numbers, Said, ScreeningSchema

HUGE = 1e15  # a value of a number; larger ones would swallow the others in sums


def require(
    layout: ScreeningSchema, leg: str, site: str, answer: Said, sketch: Said | None, asked: Said | None
) -> None:
    """Names, shapes, and bounds that follow from the site's own rows; all that is wrong at once."""
    problems: list[Problem] = []

    def refuse(name: str, what: str) -> None:
        problems.append(Problem(f"{site}, {leg}, {name}", what, "Ask the site which version it runs."))

    parts = [p for p in layout.parts() if p.leg == leg and p.direction == "from site" and not p.total]
    if set(answer) != {p.name for p in parts}:
        refuse("names", f"expected {', '.join(p.name for p in parts)}, got {', '.join(sorted(answer))[:200]}.")
    arrays = {k: np.asarray(v) for k, v in answer.items()}
    for part in parts:
        got = arrays.get(part.name)
        if got is None:
            continue
        if got.shape != part.shape or got.dtype.kind not in "fiu":
            refuse(part.name, f"expected numbers of shape {part.shape}, got {got.dtype} of shape {got.shape}.")
        elif np.isinf(got).any() or (np.abs(np.nan_to_num(got)) > HUGE).any():
            refuse(part.name, f"expected numbers within {HUGE:g}, got larger ones.")
    if problems:
        raise VitrailError(f"the screening answer of {site} cannot be used", problems)
    bounds = {"sketch": _bound_sketch, "counts": _bound_counts, "ties": _bound_ties}[leg]
    for name, what in bounds(layout, arrays, sketch if sketch is not None else arrays, asked or {}):
        refuse(name, what)
    if problems:
        raise VitrailError(f"the screening answer of {site} cannot be used", problems)


def require_total(total: Said, rows: float) -> None:
    """Scores have spread 1: a column's product with itself is at most the rows, and no product is larger."""
    size = np.diag(total["products"])
    most = np.sqrt(np.outer(size.clip(min=0), size.clip(min=0))) + 1e-6 * (1 + rows)
    if not _within(size, -1e-6 * (1 + rows), rows * (1 + 1e-6)) or not _within(total["products"], -most, most):
        what = f"expected products of columns over {rows:g} rows, got larger ones."
        raise VitrailError(
            "the total of the screening cannot be used",
            [Problem("products", what, "Nobody can see which site's part it is.")],
        )


def _within(x: Numbers, low: Numbers | float, high: Numbers | float) -> bool:
    """NaN is within: it is not published."""
    with np.errstate(invalid="ignore"):
        return not bool(((x < low) | (x > high)).any())


def _whole(x: Numbers) -> bool:
    finite = x[np.isfinite(x)]
    return bool((finite == np.round(finite)).all())


def _counts(name: str, x: Numbers, most: Numbers | float) -> list[tuple[str, str]]:
    # where the bound itself is not published there is nothing to count either
    most = np.broadcast_to(np.nan_to_num(np.asarray(most, np.float64), nan=0.0), x.shape)
    fine = _whole(x) and _within(x, 0.0, most)
    return [] if fine else [(name, "expected whole numbers from 0 to the rows with a value, got others.")]


def _bound_sketch(layout: ScreeningSchema, answer: Said, sketch: Said, asked: Said) -> list[tuple[str, str]]:
    rows, observed = answer["rows"][0], answer["known"]
    if not (np.isfinite(rows) and 0 <= rows <= 1e9 and rows == round(rows)):
        return [("rows", f"expected a number of rows, got {rows:g}.")]
    number = layout.column[layout.numbers]
    out = _counts("known", observed, rows) + _counts("levels", answer["levels"], observed[layout.column[layout.yesno]])
    out += _bound_levels(layout, answer)
    quantiles = answer["quantiles"]
    for i in range(len(quantiles)):
        q = quantiles[i][np.isfinite(quantiles[i])]
        if (np.diff(q) < -1e-9 * np.abs(q).max(initial=1.0)).any():
            out += [("quantiles", "expected increasing values, got some that decrease.")]
            break
    out += _counts("held", answer["held"][..., 1], observed[number][:, None])
    out += _counts("grain", answer["grain"][:, 0], observed[number])
    if not (_whole(answer["digest"]) and _within(answer["digest"], 0.0, 2.0**48 - 1)):
        out += [("digest", "expected two whole numbers of 48 bits, got others.")]
    if not _within(answer["grain"][:, 1], 0.0, np.inf):
        out += [("grain", "expected a step of 0 or more, got a negative one.")]
    return out + _bound_outcome(layout, answer)


def _bound_levels(layout: ScreeningSchema, answer: Said) -> list[tuple[str, str]]:
    """The levels of a column are no more than the rows that have one."""
    of = layout.column[layout.yesno]
    total = np.asarray(np.bincount(of, np.nan_to_num(answer["levels"]), len(layout.columns)), np.float64)
    fine = _within(total, 0.0, np.nan_to_num(answer["known"], nan=0.0))
    return [] if fine else [("levels", "expected levels that add up to no more than the rows with a value.")]


def _bound_outcome(layout: ScreeningSchema, answer: Said) -> list[tuple[str, str]]:
    at, observed = layout, answer["known"]
    both = ~at.is_number[at.inputs][:, None] & ~at.is_number[at.outcome]  # [input, outcome]
    first, second = answer["outcome"][..., 0], answer["outcome"][..., 1]
    level = np.full(len(at.column), np.nan)
    level[at.yesno] = answer["levels"]
    whole = np.broadcast_arrays(
        observed[at.column[at.inputs]][:, None], level[at.inputs][:, None], level[at.outcome], first
    )
    rows, yes, some = (np.nan_to_num(x[both]) for x in whole[:3])
    with_outcome, together = first[both], second[both]
    out = []
    if not (
        _within(with_outcome, 0.0, np.minimum(rows, some))
        and _within(together, np.maximum(0.0, yes + np.nan_to_num(with_outcome) - rows), np.minimum(yes, with_outcome))
        and _whole(with_outcome)
        and _whole(together)
    ):
        out += [("outcome", "expected counts that fit each other, got contradictory ones.")]
    if not _within(np.where(both, 0.0, first), -1.0, 1.0):
        out += [("outcome", "expected correlations from -1 to 1, got others.")]
    if not _within(np.where(both, 0.0, second), 0.0, 1e6):
        out += [("outcome", "expected a scatter of 0 or more, got a negative one.")]
    return out


def _bound_counts(layout: ScreeningSchema, answer: Said, sketch: Said, asked: Said) -> list[tuple[str, str]]:
    observed = sketch["known"][layout.column[layout.numbers]][:, None]
    out = _counts("below", answer["below"], observed) + _counts("same", answer["same"], observed)
    for row in answer["below"]:
        if (np.diff(row[np.isfinite(row)]) < 0).any():
            return [*out, ("below", "expected counts that increase from cut to cut, got some that decrease.")]
    return out


def _bound_ties(layout: ScreeningSchema, answer: Said, sketch: Said, asked: Said) -> list[tuple[str, str]]:
    at, out = layout, []
    n, x, y, xy = (answer["related"][..., i] for i in range(4))
    other = asked["related"] if asked else np.full(n.shape, np.nan)
    both = ~at.is_number[at.inputs][:, None] & ~at.is_number[np.nan_to_num(other).astype(np.int64)] & np.isfinite(other)
    observed = np.nan_to_num(sketch["known"])[at.column[at.inputs]][:, None] + 0 * n
    out += _counts("related", n, observed)
    if np.isfinite(n[~np.isfinite(other)]).any():
        out += [("related", "expected no numbers where none were asked for.")]
    rows, yes, too, together = (v[both] for v in (n, x, y, xy))
    fine = _within(yes, 0.0, rows) and _within(too, 0.0, rows) and all(map(_whole, (yes, too, together)))
    if not (fine and _within(together, np.maximum(0.0, yes + too - rows), np.minimum(yes, too))):
        out += [("related", "expected counts that fit each other, got contradictory ones.")]
    if not _within(np.where(both, 0.0, x), -1.0, 1.0) or not _within(np.where(both, 0.0, y), 0.0, 1e6):
        out += [("related", "expected correlations from -1 to 1 and their scatter, got others.")]
    if not _within(answer["predicted"][:, 0], -1.0, 1.0) or not _within(answer["predicted"][:, 1], 0.0, 1e6):
        out += [("predicted", "expected a correlation from -1 to 1 and its scatter, got others.")]
    mean, variance, third = (answer["ratios"][:, which] for which in ([0, 1, 4, 5], [2, 6], [3]))
    span = float(MOST - LEAST)
    fine = _within(mean, LEAST, MOST) and _within(variance, 0.0, span**2 / 4) and _within(third, -(span**3), span**3)
    if not fine:
        out += [("ratios", "expected moments of what a row may add, got others.")]
    return out
