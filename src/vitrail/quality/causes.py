"""Why a column of a site may not fit: likely causes, the numbers of its own rows behind them, and a repair to try.

Whether a code is swapped is asked of the shared model with the others' layers: which way of reading this site's codes
explains its own outcomes best?
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from vitrail.data.encoding import Encoder
from vitrail.data.readers.tables import take_columns
from vitrail.data.schema import Feature, TableSchema, canon
from vitrail.quality.checks.table import find_faults
from vitrail.quality.repair.command import TO_TRY, say_flags
from vitrail.quality.repair.effective_values import Floats
from vitrail.quality.screening.result import CAUSES, LABEL
from vitrail.stats.assignment import best_assignment

MOST_ROWS = 20_000  # enough to tell which reading fits
CLEAR, LIKELY = 8.0, 2.0  # how much log-likelihood a turned code must gain: unasked, and where a finding asks
TURNED = 3  # so many columns that seem turned round, each by itself, point to the label

# what `check` sees in a file, the most telling first -> the cause of it, of CAUSES; and what to do where `check` has no
# better
CHECKED: dict[str, tuple[str, str]] = {
    "swapped_label": ("label flip", ""),
    "swapped_columns": ("swapped", ""),
    "disguised_missing": ("code", ""),
    "unit_mixup": ("unit", ""),
    "recoded": ("recoded", ""),
    "clipped": ("clipped", ""),
    "filled_in": ("code", ""),
    "constant_column": (
        "constant",
        (
            "Check whether the export filled it in by default. If the value is real, there is nothing to repair, but "
            "the column carries no information here."
        ),
    ),
    "missing_by_class": ("missing by class", ""),
    "much_missing": ("mostly missing", "Get the values if they were measured; otherwise there is nothing to repair."),
    "out_of_range": ("out of range", ""),
}
IN_PART = "unit in part"
ORDER = ["label flip", "swapped", "code", "unit", "sign", *dict.fromkeys(kind for kind, _ in CHECKED.values())]


class Cause(NamedTuple):
    kind: str  # of CAUSES
    what: str
    numbers: str
    repair: str
    rows: tuple[int, ...] = ()  # the first five, as the file counts them
    count: int = 0  # type: ignore[assignment]  # of such rows; tuple.count is not needed here
    command: str = ""  # the flags of `vitrail repair`, where a repair is possible


# Cleaned rows -> what the shared model says of them, read as the others would: [row, class] the logarithm of each
# class's share, by the loss that it was trained with; or [row, 1] the number
Expects = Callable[[pd.DataFrame], Floats]


def find_causes(
    frame: pd.DataFrame,
    rows: pd.DataFrame,
    table: TableSchema,
    encoder: Encoder,
    expects: Expects | None,
    troubles: Mapping[str, str],
) -> dict[str, tuple[Cause, ...]]:
    """For each of these columns, or the label, the most telling first. `troubles`: what kind of finding there is about
    it, "" where somebody only asked. `rows` are those of the frame, cleaned."""
    faults = find_faults(frame, table)
    trials = _trials(rows, table, encoder, expects) if expects and troubles else {}
    turned = _turned(rows, table, encoder, expects, trials) if expects else []
    label = _label_cause(table, trials, turned, bool(troubles.get(LABEL)))
    out = {}
    for name, trouble in troubles.items():
        causes = [label] if label and (trouble or name == LABEL) else []
        if name != LABEL:
            causes += [c for c in [_code_cause(table, name, trials.get(name), trouble)] if c]
            for fault in faults:
                if fault.column == name and fault.kind in CHECKED:
                    kind, repair = CHECKED[fault.kind]
                    text = fault.text + _declared(frame, table.features[name], name, fault.kind)
                    hint, _, flags = fault.hint.partition(TO_TRY)
                    kind = IN_PART if IN_PART in flags else kind
                    what = CAUSES[kind]
                    causes.append(Cause(kind, what, text, repair or hint.strip(), fault.rows, fault.count, flags))
        out[name] = tuple(sorted(causes, key=lambda c: ORDER.index("unit" if c.kind == IN_PART else c.kind)))
    return out


class Recoding(NamedTuple):
    """The best other way of reading a column's codes, by the shared model with the others' layers."""

    gain: float  # in log-likelihood, each class counting the same
    before: float  # mean loss as coded
    after: float
    codes: tuple[int, ...]  # level k is better read as codes[k]; a number turned round: (1, 0)


def _trials(rows: pd.DataFrame, table: TableSchema, encoder: Encoder, expects: Expects) -> dict[str, Recoding]:
    if len(rows) > MOST_ROWS:
        rows = rows.iloc[:: -(-len(rows) // MOST_ROWS)]
    y, target = rows[table.target.column].to_numpy(), table.target
    n = len(y)
    if target.kind == "number":
        aim = (y - target.center) / target.scale
        spread = float(np.mean((expects(rows)[:, 0] - aim) ** 2)) or 1.0

        def score(z: Floats) -> Floats:  # [row]
            return -((z[:, 0] - aim) ** 2) / (2 * spread)

    else:
        count = np.bincount(y, minlength=len(target.levels))
        weight = n / ((count > 0).sum() * count[y])

        def score(z: Floats) -> Floats:
            return np.asarray(weight * z[np.arange(n), y])

    out = {}
    if target.kind == "classes":
        each = weight[:, None] * expects(rows)
        out[LABEL] = _best(np.stack([each[y == k].sum(0) for k in range(len(target.levels))]), 0.0, n)
    for name, feature in table.features.items():
        v = rows[name].to_numpy(dtype=np.float64)
        observed = ~np.isnan(v)
        if not observed.any():
            continue
        if feature.kind == "numeric":
            turned = 2 * encoder.mean.get(name, float(v[observed].mean())) - v
            one, two = (float(score(expects(_with(rows, name, w))).sum()) for w in (v, turned))
            out[name] = Recoding(two - one, -one / n, -two / n, (1, 0))
            continue
        read = [score(expects(_with(rows, name, np.where(observed, j, v)))) for j in range(len(feature.levels))]
        gain = np.array([[s[v == k].sum() for s in read] for k in range(len(feature.levels))])
        out[name] = _best(gain, float(read[0][~observed].sum()), n)
    return out


def _with(rows: pd.DataFrame, name: str, values: Floats | pd.Series) -> pd.DataFrame:
    """A copy with another column; `assign` takes no name such as "self"."""
    out = rows.copy(deep=False)
    out[name] = values
    return out


def _best(score: Floats, rest: float, n: int) -> Recoding:
    """[level as coded, level it may mean] -> the assignment that explains most."""
    meant = best_assignment(-score - 1e-6 * np.eye(len(score)))  # a level without rows stays
    before, after = float(np.trace(score)), float(score[np.arange(len(score)), meant].sum())
    return Recoding(after - before, -(before + rest) / n, -(after + rest) / n, tuple(int(m) for m in meant))


def _turned(
    rows: pd.DataFrame, table: TableSchema, encoder: Encoder, expects: Expects, trials: dict[str, Recoding]
) -> list[str]:
    """Columns that clearly seem turned round: the clearest, and those that still do once it is turned back."""
    clear = {n: t for n, t in trials.items() if n != LABEL and t.gain > CLEAR}
    if len(clear) < TURNED:
        return list(clear)
    first = max(clear, key=lambda n: clear[n].gain)
    values, codes = rows[first], clear[first].codes
    if table.features[first].kind == "numeric":
        back = 2 * encoder.mean.get(first, float(values.mean())) - values
    else:
        back = values.map(dict(enumerate(codes)))
    again = _trials(_with(rows, first, back), table, encoder, expects)
    return [first, *(n for n in clear if n != first and again[n].gain > CLEAR)]


def _label_cause(table: TableSchema, trials: dict[str, Recoding], turned: Sequence[str], flagged: bool) -> Cause | None:
    """Swapped labels: the outcomes fit better turned round, or several columns seem turned round at once."""
    label, target = trials.get(LABEL), table.target
    if label is None or not (label.gain > (LIKELY if flagged else CLEAR) or len(turned) >= TURNED):
        return None
    if label.gain > LIKELY:
        numbers = (
            f"with {_write(label.codes, target.levels, 'read as')}, the outcomes fit the shared model better: its "
        )
        numbers += f"log loss falls from {label.before:.2f} to {label.after:.2f}"
        codes = label.codes
    else:
        numbers = f"{len(turned)} columns seem to be reversed at once ({', '.join(turned)}), which a reversed outcome "
        numbers += "would explain"
        codes = tuple(reversed(range(len(target.levels)))) if len(target.levels) == 2 else ()
    repair = "Settle this first, because it affects every column. If the code book agrees, write "
    repair += f"{_write(codes, target.levels, 'as')} in the column {target.column}."
    if not codes:
        repair = f"First compare the codes of {target.column} with the study's: {', '.join(target.levels)}."
    flags = say_flags(target.column, "label flip", {}, _moves(codes, target.levels)) if codes else ""
    return Cause("label flip", CAUSES["label flip"], numbers, repair, command=flags)


def _code_cause(table: TableSchema, name: str, trial: Recoding | None, trouble: str) -> Cause | None:
    doubted = trouble in ("sign", "recoded")
    feature = table.features[name]
    ways = math.lgamma(len(feature.levels or (0, 1)) + 1)  # the best of many gains a little by chance
    if trial is None or trial.gain <= (LIKELY if doubted else CLEAR) + ways:
        return None
    loss = "squared error" if table.target.kind == "number" else "log loss"
    fall = f"the shared model's {loss} on this site's outcomes falls from {trial.before:.3f} to {trial.after:.3f}"
    if feature.kind == "numeric":
        repair = "Check whether the sign or the direction of the scale differs from the study's; if so, reverse it."
        return Cause("sign", CAUSES["sign"], f"with the scale reversed, {fall}", repair)
    change = _write(trial.codes, feature.levels, "as")
    repair = f"If the code book agrees, write {change} in the column {name}."
    flags = say_flags(name, "recoded", {}, _moves(trial.codes, feature.levels))
    numbers = f"with {_write(trial.codes, feature.levels, 'read as')}, {fall}"
    return Cause("recoded", CAUSES["recoded"], numbers, repair, command=flags)


def _moves(codes: Sequence[int], levels: Sequence[str]) -> dict[str, str]:
    return {levels[k]: levels[j] for k, j in enumerate(codes) if k != j}


def _write(codes: Sequence[int], levels: Sequence[str], word: str) -> str:
    moved = [f"{a} {word} {b}" for a, b in _moves(codes, levels).items()]
    return ", ".join(moved[:-1]) + (" and " if len(moved) > 1 else "") + "".join(moved[-1:])


def _declared(frame: pd.DataFrame, feature: Feature, name: str, kind: str) -> str:
    """How many of the missing are codes that the study declares."""
    if kind not in ("much_missing", "missing_by_class") or not feature.missing:
        return ""
    codes = {canon(c) for c in feature.missing}
    count = int(take_columns(frame)[0][name].map(canon).isin(codes).sum())
    return f"; {count} cells hold {', '.join(sorted(codes))}, which the study reads as missing" if count else ""
