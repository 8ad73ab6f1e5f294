"""Kinds of faults that the rule's causes do not name, made up by somebody else than the rule's author.

They were written down before the rule could be tried on them and were shown to nobody until it was frozen (its sha256
was committed before: benchmarks/results/planted_faults/later.sha256). None was taken out after its result was seen.
"""

from __future__ import annotations

import numpy as np
from fault_kinds import Kind, Planted, Site


def narrow_field(s: Site) -> Planted:
    """The form's field is too short: large values lose their last digit."""
    limit = s.value.quantile(s.rng.uniform(0.3, 0.6))
    return s.put(s.value.where(s.value <= limit, np.trunc(s.value / 10)))


def carry_forward(s: Site) -> Planted:
    """An empty field shows the patient before: in most rows the value is that of an earlier row."""
    kept = s.value.mask(s.some(s.rng.uniform(0.6, 0.85)))
    kept.iloc[0] = s.value.iloc[0]
    return s.put(kept.ffill().where(s.value.notna()))


def log_scale(s: Site) -> Planted:
    return s.put(np.log1p(s.value - s.value.min()))


def min_max(s: Site) -> Planted:
    """The export scales each column to 0..1."""
    return s.put((s.value - s.value.min()) / max(1e-9, s.value.max() - s.value.min()))


def percentile(s: Site) -> Planted:
    """The percentile among the site's patients, not the value."""
    return s.put((100 * s.value.rank(pct=True)).round())


def drift(s: Site) -> Planted:
    """The instrument drifts over the rows."""
    ramp = np.linspace(0, s.rng.choice([-4.0, 4.0]) * s.value.std(), len(s.rows))
    return s.put(s.value + ramp)


def copy_other(s: Site) -> Planted | None:
    """A join gone wrong: the column holds another column's values."""
    others = [c for c in s.alike() if s.rows[c].notna().mean() > 0.5]
    return s.put(s.rows[str(s.rng.choice(others))]) if others else None


def group_code(s: Site) -> Planted:
    """Risk group 1 to 4 in place of the value."""
    return s.put(np.ceil(4 * s.value.rank(pct=True)))


def ward_mean(s: Site) -> Planted:
    """Smoothed: the mean over the rows around, as on a ward's sheet."""
    return s.put(s.value.rolling(9, center=True, min_periods=1).mean().where(s.value.notna()))


def fold(s: Site) -> Planted:
    """The distance from what is normal, in place of the value."""
    return s.put((s.value - s.value.median()).abs() + s.value.median())


def noisy(s: Site) -> Planted:
    """A worse instrument: the same on average, with twice the spread added by chance."""
    return s.put(s.value + s.rng.normal(0, 2 * s.value.std(), len(s.rows)))


def slip(s: Site) -> Planted:
    """From somewhere on the column has slipped down by a line."""
    v, start = s.value.to_numpy().copy(), int(len(s.rows) * s.rng.uniform(0.1, 0.4))
    v[start + 1 :] = v[start:-1].copy()
    return s.put(v)


def fill_one_class(s: Site) -> Planted:
    """Not measured in most patients with one outcome, and the usual value filled in."""
    group = s.y > s.y.median() if s.table.target.kind == "number" else s.y == s.rng.choice(s.y.unique())
    return s.put(s.value.mask(group.to_numpy() & s.some(0.8), s.value.median()))


def left_default(s: Site) -> Planted:
    """The form's first choice is left as it is in most rows."""
    return s.put(s.value.mask(s.some(s.rng.uniform(0.6, 0.9)), float(s.value.min())))


def merge_levels(s: Site) -> Planted:
    """All levels but the most frequent are written as the last one."""
    usual = s.value.mode().iloc[0]
    other = max(v for v in s.value.dropna().unique() if v != usual) if s.value.nunique() > 1 else usual
    return s.put(s.value.where((s.value == usual) | s.value.isna(), other))


def lost_to_follow_up(s: Site) -> Planted:
    """Most of the rarer outcomes were never heard of and are written as the usual one."""
    counts = s.y.value_counts()
    return s.put(s.y.mask((s.y != counts.index[0]).to_numpy() & s.some(s.rng.uniform(0.6, 0.8)), counts.index[0]))


def flip_in_group(s: Site) -> Planted | None:
    """In one group of patients the outcome is coded the other way round."""
    k = len(s.table.target.levels)
    by = [n for n, f in s.table.features.items() if s.rows[n].nunique() > 1]
    if not by:
        return None
    v = s.rows[str(s.rng.choice(by))]
    group = (v > v.median()) if v.nunique() > 2 else (v == v.max())
    return s.put(s.y.mask(group.to_numpy(), k - 1 - s.y))


def slip_label(s: Site) -> Planted:
    """From somewhere on the outcome has slipped down by a line."""
    return slip(s)


def outcome_by_rule(s: Site) -> Planted:
    """Not the outcome, but what a doctor would have guessed from one column."""
    ties = {n: abs(np.nan_to_num(s.rows[n].corr(s.y))) for n in s.table.features}
    v = s.rows[max(ties, key=ties.__getitem__)]
    high = (v.rank(pct=True) > 1 - s.y.mean()).to_numpy()
    guess = high if s.rows[v.name].corr(s.y) > 0 else (v.rank(pct=True) <= s.y.mean()).to_numpy()
    return s.put(guess.astype(int))


def log_outcome(s: Site) -> Planted:
    return s.put(np.log1p(s.y - s.y.min()))


def cap_outcome(s: Site) -> Planted:
    """Large outcomes are written as 'more than', the bound taken as the value."""
    return s.put(s.y.clip(upper=s.y.quantile(0.4)))


NUMBER, CLASSES = "label number", "label of classes"
LATER: dict[str, Kind] = {
    "narrow field": Kind("numeric", narrow_field),
    "carried forward": Kind("numeric,binary", carry_forward),
    "logarithm": Kind("numeric", log_scale),
    "scaled to 0..1": Kind("numeric", min_max),
    "percentile": Kind("numeric", percentile),
    "drift": Kind("numeric", drift),
    "copy of another column": Kind("numeric,binary", copy_other),
    "group code": Kind("numeric", group_code),
    "ward mean": Kind("numeric", ward_mean),
    "folded": Kind("numeric", fold),
    "worse instrument": Kind("numeric", noisy),
    "slipped a line": Kind("numeric,binary,categorical", slip),
    "filled in one class": Kind("numeric", fill_one_class),
    "form's default left": Kind("binary,categorical", left_default),
    "levels merged": Kind("categorical", merge_levels),
    "lost to follow-up": Kind(CLASSES, lost_to_follow_up),
    "outcome flipped in a group": Kind("label of two classes", flip_in_group),
    "outcome slipped a line": Kind(f"{CLASSES},{NUMBER}", slip_label),
    "outcome by a rule": Kind("label of two classes", outcome_by_rule),
    "outcome's logarithm": Kind(NUMBER, log_outcome),
    "outcome capped": Kind(NUMBER, cap_outcome),
}
