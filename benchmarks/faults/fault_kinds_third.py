"""Kinds of faults that the rule's third form was not shaped on: written down before it was, and run only after it was
frozen (their sha256 was committed before: results/relations/third.sha256). None was taken out after its result was seen.
"""

from __future__ import annotations

import numpy as np
from fault_kinds import LABELS, Kind, Planted, Site
from fault_kinds_fresh import by_outcome
from fault_kinds_joint import strongest


def reverse_batch(s: Site) -> Planted:
    """One batch came back from the laboratory in the reverse order."""
    v, n = s.value.to_numpy().copy(), len(s.rows)
    a, b = int(n * s.rng.uniform(0.0, 0.2)), int(n * s.rng.uniform(0.8, 1.0))
    v[a:b] = v[a:b][::-1]
    return s.put(v)


def neighbours_exchanged(s: Site) -> Planted:
    """Two patients in a room: their values have changed places."""
    v = s.value.to_numpy().copy()
    even = len(v) // 2 * 2
    v[:even] = v[:even].reshape(-1, 2)[:, ::-1].ravel()
    return s.put(v)


def drawn_again(s: Site) -> Planted:
    """Lost, and made up again so that the table looks right: drawn from the site's own values."""
    made_up = s.rng.choice(s.value.to_numpy(), len(s.rows))
    return s.put(np.where(s.some(0.75), made_up, s.value))


def order_of_other(s: Site) -> Planted | None:
    """The right values in the order of another column: a formula that refers to the wrong column."""
    names = [n for n, f in s.table.features.items() if n != s.column and s.rows[n].nunique() > 4]
    if not names or s.value.isna().any():
        return None
    other = s.rows[str(s.rng.choice(names))]
    rank = other.fillna(other.mean()).rank(method="first").to_numpy().astype(int)
    return s.put(np.sort(s.value.to_numpy())[rank - 1])


def exchange_tails(s: Site) -> Planted:
    """Low and high are mixed up where they are extreme; the middle half is right."""
    low, high = s.value.quantile([0.25, 0.75])
    v, out = s.value, s.value.copy()
    tails = (v < low) | (v > high)
    out[tails] = (v.max() + v.min() - v)[tails]
    return s.put(out)


def other_eye(s: Site) -> Planted | None:
    """Half of the rows hold a related column's value, brought to this one's scale."""
    r = {c: abs(np.nan_to_num(s.rows[c].corr(s.value))) for c in s.alike()}
    if not r:
        return None
    other = s.rows[max(r, key=r.__getitem__)]
    scaled = (other - other.mean()) / max(1e-9, float(other.std())) * s.value.std() + s.value.mean()
    return s.put(s.value.mask(s.some(0.6), scaled))


def guessed_from_outcome(s: Site) -> Planted:
    """Filled in afterwards by who knew the outcome."""
    return s.put(by_outcome(s) + 0.15 * (s.value - s.value.mean()))


def floor_effect(s: Site) -> Planted:
    """Below the limit of detection half of the limit is written."""
    limit = s.value.quantile(s.rng.uniform(0.35, 0.6))
    return s.put(s.value.mask(s.value < limit, s.value.min() + (limit - s.value.min()) / 2))


def two_devices(s: Site) -> Planted:
    """Every second patient was measured by a device that shows a third less of what is beyond the lowest value."""
    odd = np.arange(len(s.rows)) % 2 == 1
    return s.put(np.where(odd, s.value.min() + 0.4 * (s.value - s.value.min()), s.value))


def copied_down(s: Site) -> Planted:
    """A cell was filled down over the rows below: long runs of one value."""
    n = len(s.rows)
    at = np.sort(s.rng.choice(n, max(2, n // 12), replace=False))
    at[0] = 0
    return s.put(s.value.to_numpy()[at[np.searchsorted(at, np.arange(n), side="right") - 1]])


def answered_any(s: Site) -> Planted:
    """Two thirds of the answers were ticked by lot."""
    found = np.sort(s.value.dropna().unique())
    return s.put(s.value.mask(s.some(0.66) & s.value.notna(), s.rng.choice(found, len(s.rows))))


def second_reader(s: Site) -> Planted:
    """A second reader, for the later half of the rows, goes by one column alone."""
    v = strongest(s)
    up = 1 if v.corr(s.y) > 0 else -1
    ranked = np.sort(s.y.to_numpy())[(up * v).rank(method="first").to_numpy().astype(int) - 1]
    return s.put(np.where(np.arange(len(s.rows)) >= len(s.rows) // 2, ranked, s.y))


def outcome_of_next(s: Site) -> Planted:
    """The outcome of the next patient, in most rows."""
    return s.put(np.where(s.some(0.8), np.roll(s.y.to_numpy(), -1), s.y))


def outcome_by_lot(s: Site) -> Planted:
    """For half of the patients nobody knew it: somebody's was written."""
    return s.put(np.where(s.some(0.5), s.rng.choice(s.y.to_numpy(), len(s.rows)), s.y))


def outcome_reset(s: Site) -> Planted:
    """Late outcomes were never entered: the last third of the table has the usual one."""
    usual = s.y.median() if s.table.target.kind == "number" else s.y.value_counts().index[0]
    return s.put(np.where(np.arange(len(s.rows)) > 0.6 * len(s.rows), usual, s.y))


FEATURES = "numeric,binary,categorical"
THIRD: dict[str, Kind] = {
    "batch reversed": Kind(FEATURES, reverse_batch),
    "neighbours exchanged": Kind(FEATURES, neighbours_exchanged),
    "made up from its own values": Kind(FEATURES, drawn_again),
    "order of another column": Kind("numeric", order_of_other),
    "tails exchanged": Kind("numeric", exchange_tails),
    "the other eye": Kind("numeric", other_eye),
    "guessed from the outcome": Kind("numeric", guessed_from_outcome),
    "limit of detection": Kind("numeric", floor_effect),
    "two devices": Kind("numeric", two_devices),
    "filled down": Kind(FEATURES, copied_down),
    "answered by lot": Kind("binary,categorical", answered_any),
    "second reader": Kind(LABELS, second_reader),
    "outcome of the next": Kind(LABELS, outcome_of_next),
    "outcome by lot": Kind(LABELS, outcome_by_lot),
    "late outcomes missing": Kind(LABELS, outcome_reset),
}
THIRD_ONLY_RELATIONS = (
    "batch reversed",
    "neighbours exchanged",
    "made up from its own values",
    "order of another column",
    "second reader",
    "outcome of the next",
    "outcome by lot",
)
