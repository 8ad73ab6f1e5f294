"""A drafted range and drafted codes for a column of numbers.

The smallest and the largest value are no good as a range: one typing error would become legal. Values far from the
rest are left outside the range and listed, so that a person decides and `vitrail check` reports them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from vitrail.data.missing_codes import spot_codes
from vitrail.data.schema import Feature, canon

REACH = 4.0  # a value is far when it is so many times as far from the median as the outer 5 % begin
SITE_REACH = 2.5  # the same for a site's median, seen from the other sites
HEAP = 0.3  # one value in so many rows (0 for "none at all") says nothing about where the others lie
MARGIN = 0.1  # of the width, added on either side of the values that are not far
FEW = 6  # whole numbers with at most this many different values are taken for grades, not quantities
APART = 5.0  # a code for missing values is at least so far from grades
ENOUGH = 20  # values of a site before its median is compared with the other sites'
LISTED = 4  # different values that a note names
_CODE = re.compile(r"-[1789]|-?([789])\1+(\.\1+)?|-?9+[78]|9", re.ASCII)  # -9, 99, 999.9, 9998: typed for "missing"

Numbers = np.ndarray


class NumberDraft(NamedTuple):
    """The range, the codes for missing values, and what else a person should decide."""

    range: tuple[float, float] | None  # None: constant, or nothing at all
    codes: list[float]
    notes: list[str]


def is_code_like(value: object) -> bool:
    """Whether people type this number for "not measured".

    >>> [is_code_like(v) for v in (-9, 99, 999.0, -9999, 9998, 777, 99.9, 98.5, 19, -5, 0)]
    [True, True, True, True, True, True, True, False, False, False, False]
    """
    return bool(_CODE.fullmatch(canon(value)))


def usual_bounds(values: Numbers, reach: float = REACH) -> tuple[float, float]:
    """Between which numbers values like these may lie: `reach` times as far from the median as the 5 % and 95 %
    quantiles, on the plain scale or, where all are above 0, on that of logarithms, whichever is wider."""
    distinct, times = np.unique(values, return_counts=True)
    most = int(times.argmax())
    if len(distinct) > 2 and times[most] > HEAP * len(values):
        values = values[values != distinct[most]]
    low, high = _reach(values, reach)
    if values.min() > 0:
        log_low, log_high = np.exp(_reach(np.log(values), reach))
        low, high = min(low, log_low), max(high, log_high)
    low, high = min(low, distinct[most]), max(high, distinct[most])
    return (max(low, 0.0) if distinct[0] >= 0 else low), high


def _reach(values: Numbers, reach: float) -> tuple[float, float]:
    low, middle, high = np.quantile(values, [0.05, 0.5, 0.95])
    least = 0.25 * (high - low)  # a side of nothing but the median itself
    return middle - reach * max(middle - low, least), middle + reach * max(high - middle, least)


def draft_numbers(name: str, sites: Mapping[str, Numbers]) -> NumberDraft:
    """From each site's values, without missing ones."""
    every = np.concatenate(list(sites.values())) if sites else np.empty(0)
    if not len(every) or every.min() == every.max():
        return NumberDraft(None, [], [])
    codes = find_codes(every)
    measured = {site: values[~np.isin(values, codes)] for site, values in sites.items()}
    odd = _odd_sites({site: values for site, values in measured.items() if len(values) >= ENOUGH})
    values_used = np.concatenate([values for site, values in measured.items() if site not in odd])
    if not len(values_used) or values_used.min() == values_used.max():
        return NumberDraft(None, codes, [])
    ends = _widen(*_chain(np.unique(values_used), *usual_bounds(values_used)))
    notes = [_say_odd_site(name, site, measured[site], values_used) for site in odd]
    far = values_used[(values_used < ends[0]) | (values_used > ends[1])]
    if len(far):
        notes.append(_say_far(name, far, len(values_used), ends))
    return NumberDraft(ends, codes, notes + _ask_about_heaps(name, measured, ends, codes))


def find_codes(values: Numbers) -> list[float]:
    """Numbers that people type for "not measured", where the other values say that nothing is measured there."""
    likely = [v for v in np.unique(values).tolist() if is_code_like(v)]
    rest = values[~np.isin(values, likely)]
    distinct, times = np.unique(rest, return_counts=True)
    if not likely or len(distinct) < 2:
        return []
    if len(distinct) <= FEW:  # grades: a code is further from them than they are from each other
        apart = max(APART, float(np.ptp(distinct)))
        return [code for code in likely if np.abs(distinct - code).min() >= apart]
    low, high = usual_bounds(rest)
    codes = []
    for code in likely:
        rivals = times[distinct < low] if code < low else times[distinct > high]
        count = int((values == code).sum())
        lonely = not len(rivals) or count >= max(3, 3 * int(rivals.max()))  # else one of several far values
        codes += [code] * (not low <= code <= high and lonely)
    return codes


def _chain(distinct: Numbers, low: float, high: float) -> tuple[float, float]:
    """The smallest and the largest value between these bounds, and beyond them as far as values follow one another: a
    long tail is no mistake, a value apart from all others may be one."""
    near = np.flatnonzero((distinct >= low) & (distinct <= high))
    first, last = int(near[0]), int(near[-1])
    step = MARGIN * (distinct[last] - distinct[first])
    while last + 1 < len(distinct) and distinct[last + 1] - distinct[last] <= step:
        last += 1
    while first > 0 and distinct[first] - distinct[first - 1] <= step:
        first -= 1
    return float(distinct[first]), float(distinct[last])


def _widen(low: float, high: float) -> tuple[float, float]:
    """A little more than was seen, in round numbers, and no negative ones where there were none.

    >>> _widen(29, 77), _widen(0, 6.2), _widen(-2.6, 4.1)
    ((24.0, 82.0), (0.0, 6.9), (-3.3, 4.8))
    """
    extra = MARGIN * (high - low)
    step = 10.0 ** np.floor(np.log10(max(high - low, 1e-300)) - 1)
    ends = [low - extra, high + extra]
    if 1e-12 < step < 1e12:
        digits = max(0, -round(np.log10(step)))
        ends = [
            round(float(np.floor(ends[0] / step) * step), digits),
            round(float(np.ceil(ends[1] / step) * step), digits),
        ]
    return (max(ends[0], 0.0) if low >= 0 else ends[0]), ends[1]


def _odd_sites(sites: Mapping[str, Numbers]) -> list[str]:
    """Sites whose usual value would be far off at every other site: another unit, most likely. It takes two others."""
    if len(sites) < 3:
        return []
    odd = []
    for site, values in sites.items():
        others = np.concatenate([v for s, v in sites.items() if s != site])
        if np.unique(values, return_counts=True)[1].max() > len(values) / 2:
            continue  # one value in most rows: asked about as a heap
        low, high = np.quantile(others, [0.05, 0.95])
        middle, own = float(np.median(others)), float(np.median(values))
        if others.min() > 0 and own > 0:
            low, middle, high, own = np.log([low, middle, high, own]).tolist()
        least = 0.25 * (high - low)
        below, above = middle - SITE_REACH * max(middle - low, least), middle + SITE_REACH * max(high - middle, least)
        odd += [site] * (not below <= own <= above)
    return odd if len(sites) - len(odd) >= 2 else []


def _ask_about_heaps(
    name: str, sites: Mapping[str, Numbers], ends: tuple[float, float], codes: Sequence[float]
) -> list[str]:
    """A heap of one value apart from all others, among values that may be real: 0 for cholesterol, 99 for an age."""
    import pandas as pd

    times: dict[float, list[int]] = {}
    for values in sites.values():
        for code in spot_codes(pd.Series(values), name, Feature(kind="numeric")) if len(values) >= ENOUGH else ():
            if code not in codes and ends[0] <= code <= ends[1] and _is_unlikely(code, values):
                times.setdefault(code, []).append(int((values == code).sum()))
    return [
        (
            f"Look at this: {name} is {code:.10g} in {sum(counts)} rows at {len(counts)} of {len(sites)} sites, far "
            f"from all other values. If that means 'not measured', write missing = [{code:.10g}] for it."
        )
        for code, counts in times.items()
    ]


def _is_unlikely(code: float, values: Numbers) -> bool:
    """Whether so many would hardly be measured there. 0 is natural where the others come close to it."""
    rest = values[values != code]
    if is_code_like(code) or not len(rest):
        return True
    low, high = _reach(rest, SITE_REACH)
    return not low <= code <= high


def _say_far(name: str, far: Numbers, rows: int, ends: tuple[float, float]) -> str:
    distinct, times = np.unique(far, return_counts=True)
    order = np.argsort(-np.maximum(ends[0] - distinct, distinct - ends[1]))[:LISTED]
    listed = ", ".join(f"{distinct[i]:.6g}" + f" ({times[i]} times)" * bool(times[i] > 1) for i in order)
    more = f" and {len(distinct) - LISTED} other values" if len(distinct) > LISTED else ""
    return (
        f"Outside the drafted range: {name}, {len(far)} of {rows} values outside {ends[0]:.6g} to {ends[1]:.6g}: "
        f"{listed}{more}. Correct them in the files, or widen the range if they are real; `vitrail check` names the "
        "rows."
    )


def _say_odd_site(name: str, site: str, own: Numbers, others: Numbers) -> str:
    return (
        f"Another unit? The median of {name} is {np.median(own):.4g} at {site} and {np.median(others):.4g} at the "
        f"other sites. The drafted range is that of the others; `vitrail check` at {site} says more."
    )
