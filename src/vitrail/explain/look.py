"""Phase C, at the site alone: its own rows behind each mark. Nothing of it leaves.

For each finding about this site: its own values by class, in their own unit; what the shared model takes them for; the
likely causes with the numbers behind them, and a repair to try. `look` works the facts out once; `to_text` here and
`report/private` show them.

What the shared model takes a value x for. The site's encoder makes z = (x - mean) / sd of it, and the site's private
layer hands (z + b) w to the shared network. The average other site, with b' and w', would have to hold
    z' = (z + b) w / w' - b'        x' = mean + sd z'
for the network to get the same. Only published layers are used for b' and w', never another site's values.

Whether a code is swapped is asked of the shared model with the others' layers: which way of reading this site's codes
explains its own outcomes best?
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from vitrail.data.check import check as look_for_faults
from vitrail.data.encode import Encoder, columns
from vitrail.data.read import clean, take_columns
from vitrail.data.schema import Feature, Table, canon
from vitrail.explain.shifts import LABEL

Floats = NDArray[np.float64]
BARS = "▁▂▃▄▅▆▇█"
BINS = 40  # at most
CLASSES = 6  # so many are drawn, the largest
MOST_ROWS = 20_000  # enough to tell which reading fits
OFF = 0.05  # a layer that multiplies by less switches the feature off
CLEAR, LIKELY = 8.0, 2.0  # how much log-likelihood a turned code must gain: unasked, and where a finding asks
TURNED = 3  # so many columns that seem turned round, each by itself, point to the label

# the most telling first: what it is, and the repair where `check` has no better
CAUSES: dict[str, tuple[str, str]] = {
    "swapped_label": ("the outcome is coded the other way round", ""),
    "disguised_missing": ("missing values coded as a number", ""),
    "unit_mixup": ("values in another unit", ""),
    "recoded": ("its codes mean something else here", ""),
    "clipped": ("values cut off", ""),
    "filled_in": ("filled in where nothing was measured", ""),
    "constant_column": (
        "never changes here",
        "See whether the export filled it in by default. If it is true, nothing is to be repaired: it tells nothing.",
    ),
    "missing_by_class": ("missing in one class more than in the other", ""),
    "much_missing": (
        "hardly measured here",
        "Fetch the values if they were measured; else there is nothing to repair.",
    ),
    "out_of_range": ("values out of the agreed range", ""),
}
ASK = {
    "reversed": "Compare the coding with the study's: is low written as high, or 0 as 1?",
    "recoded": "Compare each category's meaning with the study's code book.",
    "uninformative": "See whether the column was filled in by default, or belongs to other patients.",
    "stretched": "See whether the unit, the way of measuring or the patients differ from the study's.",
    "shifted": "See whether values are cut off, offset, or coded when missing.",
    "not measured": "See whether it was measured at all, and whether a code for missing was read as a number.",
    "swapped label": "Compare the outcome's coding with the study's: is yes written as no?",
}


class Ends(NamedTuple):
    """Input layers: this site's own, and the mean of those that the others published."""

    b: Floats  # [column]
    w: Floats
    others_b: Floats
    others_w: Floats
    others: int  # how many published


class Group(NamedTuple):
    """The rows of one class."""

    name: str
    rows: int
    missing: int
    counts: tuple[int, ...]  # in each bin, or of each level
    taken: tuple[int, ...]  # in each bin, as the shared model takes them; empty where there is no such picture


class Cause(NamedTuple):
    kind: str
    what: str
    numbers: str
    repair: str


class View(NamedTuple):
    """One column, or the label, before the site's own eyes."""

    name: str
    kind: str  # numeric, binary, categorical, label
    about: str  # the study's description
    unit: str
    trouble: str  # the finding's kind; empty where somebody only asked
    said: str  # the finding's text
    edges: tuple[float, ...]  # of the bins, when numeric
    levels: tuple[str, ...]
    groups: tuple[Group, ...]
    undrawn: int  # classes that are not among the groups
    beyond: int  # rows that the shared model takes for something outside the picture
    agreed: tuple[float, float] | None  # the study's range
    pooled: tuple[float, float] | None  # mean and SD over all sites, where the study standardises so
    reading: str  # what the shared model makes of it, in words
    read_as: tuple[tuple[float, float], ...]  # for each level: what it counts as where it is, and where it is not
    causes: tuple[Cause, ...]
    ask: str  # what to ask where the file shows no cause; empty without a finding

    def rank(self, i: int) -> str:
        """How the i-th cause is introduced."""
        return "Also seen" if i else "Most likely" if self.trouble else "Seen in the file"

    @property
    def verdict(self) -> str:
        """The first cause in words."""
        return self.causes[0].what if self.causes else NOTHING if self.trouble else "nothing that stands out"


class Look(NamedTuple):
    """All that a site sees of itself."""

    site: str
    study: str
    target: str
    rows: int
    same: bool  # these rows are those that the run saw
    views: tuple[View, ...]
    columns: tuple[str, ...]  # what could be looked at


Expects = Callable[[pd.DataFrame], Floats]  # cleaned rows -> the shared model's logits, read as the others would


def look(
    site: str,
    frame: pd.DataFrame,
    table: Table,
    encoder: Encoder,
    findings: Sequence[Any] = (),
    asked: Sequence[str] = (),
    *,
    ends: Ends | None = None,
    expects: Expects | None = None,
    same: bool = True,
    study: str = "",
) -> Look:
    """`findings` are those about this site; `asked` names further columns, or the target."""
    rows = clean(frame, table).reset_index(drop=True)  # labels may repeat, positions do not
    faults = look_for_faults(frame, table)
    trials = _trials(rows, table, encoder, expects) if expects and (findings or asked) else {}
    turned = _turned(rows, table, encoder, expects, trials) if expects else []
    label = _label_cause(table, trials, turned, any(f.feature == LABEL for f in findings))
    wanted = {f.feature: f for f in findings}
    names = dict.fromkeys([*wanted, *(LABEL if a in (LABEL, table.target.column) else a for a in asked)])
    views = []
    for name in names:
        found = wanted.get(name)
        trouble = found.kind if found else ""
        picture = _label_view(rows, table) if name == LABEL else _view(rows, table, encoder, name, ends)
        causes = [label] if label and (trouble or name == LABEL) else []
        if name != LABEL:
            causes += [c for c in [_code_cause(table, name, trials.get(name), trouble)] if c]
            for fault in faults:
                if fault.column == name and fault.kind in CAUSES:
                    what, repair = CAUSES[fault.kind]
                    text = fault.text + _declared(frame, table.features[name], name, fault.kind)
                    causes.append(Cause(fault.kind, what, text, repair or fault.hint))
        causes.sort(key=lambda c: list(CAUSES).index(c.kind))
        views.append(
            picture._replace(
                trouble=trouble,
                said=found.text if found else "",
                causes=tuple(causes),
                ask=ASK.get(trouble, "Ask whoever exported the column how it was measured.") if trouble else "",
            )
        )
    offered = (*table.features, table.target.column)
    return Look(site, study, table.target.column, len(rows), same, tuple(views), offered)


# pictures


def _view(rows: pd.DataFrame, table: Table, encoder: Encoder, name: str, ends: Ends | None) -> View:
    feature = table.features[name]
    at = [i for i, c in enumerate(columns(table)) if c == name or (feature.levels and c.startswith(f"{name}="))]
    about = View(
        name,
        feature.kind,
        feature.description,
        feature.unit,
        "",
        "",
        (),
        (),
        (),
        0,
        0,
        feature.range,
        None,
        "",
        (),
        (),
        "",
    )
    groups, undrawn = _by_class(rows, table)
    if feature.kind != "numeric":
        counted = tuple(
            Group(n, len(part), int(part[name].isna().sum()), _count_levels(part[name], feature), ())
            for n, part in groups
        )
        reading, read_as = _level_reading(feature, at, ends)
        return about._replace(
            levels=feature.levels, groups=counted, undrawn=undrawn, reading=reading, read_as=read_as, agreed=None
        )
    mean, sd = encoder.mean.get(name, 0.0), encoder.sd.get(name, 1.0)
    values = rows[name]
    reading, factor, start = _number_reading(feature, at[0], ends, mean, sd, values)
    taken = values * math.nan if factor is None else factor * values + start
    edges = _edges(values, taken, feature.range)
    binned = []
    for n, part in groups:
        own = taken.loc[part.index] if factor is not None else None
        missing = int(part[name].isna().sum())
        binned.append(Group(n, len(part), missing, _bin(part[name], edges), () if own is None else _bin(own, edges)))
    outside = int(((taken < edges[0]) | (taken > edges[-1])).sum()) if edges else 0
    pooled = (mean, sd) if table.standardise == "global" else None
    return about._replace(
        edges=edges, groups=tuple(binned), undrawn=undrawn, beyond=outside, reading=reading, pooled=pooled
    )


def _label_view(rows: pd.DataFrame, table: Table) -> View:
    target = table.target
    blank = View(
        LABEL,
        "label",
        f"the outcome, {target.column}",
        target.unit,
        "",
        "",
        (),
        (),
        (),
        0,
        0,
        None,
        None,
        "",
        (),
        (),
        "",
    )
    values = rows[target.column]
    if target.kind == "number":
        edges = _edges(values, values * math.nan, None)
        return blank._replace(edges=edges, groups=(Group("all rows", len(values), 0, _bin(values, edges), ()),))
    counts = tuple(int((values == k).sum()) for k in range(len(target.levels)))
    return blank._replace(levels=target.levels, groups=(Group("all rows", len(values), 0, counts, ()),))


def _by_class(rows: pd.DataFrame, table: Table) -> tuple[list[tuple[str, pd.DataFrame]], int]:
    """The largest classes, in the study's order, and how many are left out."""
    target = table.target
    if target.kind == "number":
        return [("all rows", rows)], 0
    parts = [(f"{target.column} = {n}", rows[rows[target.column] == k]) for k, n in enumerate(target.levels)]
    parts = [p for p in parts if len(p[1])]
    kept = sorted(sorted(range(len(parts)), key=lambda i: -len(parts[i][1]))[:CLASSES])
    return [parts[i] for i in kept], len(parts) - len(kept)


def _edges(values: pd.Series, taken: pd.Series, agreed: tuple[float, float] | None) -> tuple[float, ...]:
    """Round bin edges over the site's values, over what they are taken for unless that is far off, and the range."""
    known = values.dropna()
    if known.empty:
        return ()
    low, high = float(known.min()), float(known.max())
    span = (high - low) or max(1.0, abs(low) / 10)
    other = taken.dropna().clip(low - span, high + span)
    if len(other):
        low, high = min(low, float(other.min())), max(high, float(other.max()))
    if agreed and (agreed[1] - agreed[0] <= 4 * (high - low) or not agreed[0] <= float(known.median()) <= agreed[1]):
        low, high = min(low, agreed[0]), max(high, agreed[1])
    whole = bool((known == known.round()).all())
    raw = max((high - low) / BINS, 1.0 if whole else 0.0) or 1.0
    ten = 10.0 ** math.floor(math.log10(raw))
    step = next(m * ten for m in (1, 2, 5, 10) if m * ten >= raw * 0.999)
    half = step / 2 if whole and step == 1 else 0.0  # whole numbers stand in the middle of their bins
    first = math.floor((low + half) / step + 1e-9)
    last = max(math.ceil((high + half) / step - 1e-9), first + 1)
    return tuple(round(i * step - half, 10) for i in range(first, last + 1))


def _bin(values: pd.Series, edges: Sequence[float]) -> tuple[int, ...]:
    known = values.dropna().to_numpy(dtype=np.float64)
    return tuple(np.histogram(known, bins=np.asarray(edges))[0].tolist()) if len(edges) else ()


def _count_levels(values: pd.Series, feature: Feature) -> tuple[int, ...]:
    return tuple(int((values == k).sum()) for k in range(len(feature.levels)))


# what the shared model takes it for


def _number_reading(
    feature: Feature, at: int, ends: Ends | None, mean: float, sd: float, values: pd.Series
) -> tuple[str, float | None, float]:
    """In words; and the line x' = factor x + start, in the column's unit (no factor: there is no picture)."""
    if values.isna().all():
        return "No value was measured here, so that there is nothing to read.", None, 0.0
    if ends is None:
        return NOBODY, None, 0.0
    if abs(ends.others_w[at]) < OFF:
        return SWITCHED_OFF, None, 0.0
    factor = float(ends.w[at] / ends.others_w[at])
    start = mean * (1 - factor) + float(sd * (ends.b[at] * factor - ends.others_b[at]))
    middle = float(values.mean())
    shift = factor * middle + start - middle
    unit = f" {feature.unit}" if feature.unit else ""
    if abs(factor - 1) < 0.02 and abs(shift) < 0.02 * sd:
        return f"{_who(ends, start=True)} would read these values as this site does.", factor, start
    words = f"The federation treats it as a shift of {shift:+.3g}{unit} and a factor of {factor:.2g}"
    return f"{words} around this site's mean of {middle:.4g}{unit}, against {_who(ends)}.", factor, start


def _level_reading(feature: Feature, at: list[int], ends: Ends | None) -> tuple[str, tuple[tuple[float, float], ...]]:
    """In words; and what each level counts as where it is, and where it is not (binary: its 1 and its 0)."""
    if ends is None:
        return NOBODY, ()
    if (np.abs(ends.others_w[at]) < OFF).any():
        return SWITCHED_OFF, ()
    factor = ends.w[at] / ends.others_w[at]
    low = ends.b[at] * factor - ends.others_b[at]
    read = [(float(b + f), float(b)) for b, f in zip(low, factor, strict=True)]
    if feature.kind == "binary":
        (one, zero), (no, yes) = read[0], feature.levels
        words = f"Against {_who(ends)}, the federation counts {no} as {zero:.2f} (not 0) and {yes} as {one:.2f}"
        return f"{words} (not 1).", ((zero, math.nan), (one, math.nan))
    far = int(np.abs(factor - 1).argmax())
    words = f"Against {_who(ends)}, the federation weighs {feature.levels[far]} most differently: times"
    return f"{words} {factor[far]:.2f}.", tuple(read)


NOBODY = "No other site published its layers, so that there is nothing to hold this against."
SWITCHED_OFF = "The other sites' layers all but switch this column off: no value of theirs would be read like these."


def _who(ends: Ends, start: bool = False) -> str:
    text = "the one other site that published" if ends.others == 1 else f"the average of {ends.others} other sites"
    return text[:1].upper() + text[1:] if start else text


# causes


class Trial(NamedTuple):
    """The best other way of reading a column's codes, by the shared model with the others' layers."""

    gain: float  # in log-likelihood, each class counting the same
    before: float  # mean loss as coded
    after: float
    codes: tuple[int, ...]  # level k is better read as codes[k]; a number turned round: (1, 0)


def _trials(rows: pd.DataFrame, table: Table, encoder: Encoder, expects: Expects) -> dict[str, Trial]:
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
            return np.asarray(weight * _log_softmax(z)[np.arange(n), y])

    out = {}
    if target.kind == "classes":
        each = weight[:, None] * _log_softmax(expects(rows))
        out[LABEL] = _best(np.stack([each[y == k].sum(0) for k in range(len(target.levels))]), 0.0, n)
    for name, feature in table.features.items():
        v = rows[name].to_numpy(dtype=np.float64)
        known = ~np.isnan(v)
        if not known.any():
            continue
        if feature.kind == "numeric":
            turned = 2 * encoder.mean.get(name, float(v[known].mean())) - v
            one, two = (float(score(expects(rows.assign(**{name: w}))).sum()) for w in (v, turned))
            out[name] = Trial(two - one, -one / n, -two / n, (1, 0))
            continue
        read = [score(expects(rows.assign(**{name: np.where(known, j, v)}))) for j in range(len(feature.levels))]
        gain = np.array([[s[v == k].sum() for s in read] for k in range(len(feature.levels))])
        out[name] = _best(gain, float(read[0][~known].sum()), n)
    return out


def _best(score: Floats, rest: float, n: int) -> Trial:
    """[level as coded, level it may mean] -> the assignment that explains most."""
    coded, meant = linear_sum_assignment(-score - 1e-6 * np.eye(len(score)))  # a level without rows stays
    before, after = float(np.trace(score)), float(score[coded, meant].sum())
    return Trial(after - before, -(before + rest) / n, -(after + rest) / n, tuple(int(m) for m in meant))


def _log_softmax(z: Floats) -> Floats:
    z = z - z.max(1, keepdims=True)
    return np.asarray(z - np.log(np.exp(z).sum(1, keepdims=True)), dtype=np.float64)


def _turned(
    rows: pd.DataFrame, table: Table, encoder: Encoder, expects: Expects, trials: dict[str, Trial]
) -> list[str]:
    """Columns that clearly seem turned round: the clearest, and those that still do once it is turned back."""
    found = {n: t for n, t in trials.items() if n != LABEL and t.gain > CLEAR}
    if len(found) < TURNED:
        return list(found)
    first = max(found, key=lambda n: found[n].gain)
    values, codes = rows[first], found[first].codes
    if table.features[first].kind == "numeric":
        back = 2 * encoder.mean.get(first, float(values.mean())) - values
    else:
        back = values.map(dict(enumerate(codes)))
    again = _trials(rows.assign(**{first: back}), table, encoder, expects)
    return [first, *(n for n in found if n != first and again[n].gain > CLEAR)]


def _label_cause(table: Table, trials: dict[str, Trial], turned: Sequence[str], flagged: bool) -> Cause | None:
    """Swapped labels: the outcomes fit better turned round, or several columns seem turned round at once."""
    label, target = trials.get(LABEL), table.target
    if label is None or not (label.gain > (LIKELY if flagged else CLEAR) or len(turned) >= TURNED):
        return None
    if label.gain > LIKELY:
        numbers = f"read as {_write(label.codes, target.levels, 'as')}, the outcomes fit the shared model better: its "
        numbers += f"log loss falls from {label.before:.2f} to {label.after:.2f}"
        codes = label.codes
    else:
        numbers = (
            f"{len(turned)} columns seem turned round at once ({', '.join(turned)}): one cause is likelier than many"
        )
        codes = tuple(reversed(range(len(target.levels)))) if len(target.levels) == 2 else ()
    repair = "Settle this first, it disturbs every column: if the code book agrees, write "
    repair += f"{_write(codes, target.levels, 'as')} in the column {target.column}."
    if not codes:
        repair = f"Compare the codes of {target.column} with the study's first: {', '.join(target.levels)}."
    return Cause("swapped_label", CAUSES["swapped_label"][0], numbers, repair)


def _code_cause(table: Table, name: str, trial: Trial | None, trouble: str) -> Cause | None:
    doubted = trouble in ("reversed", "recoded")
    feature = table.features[name]
    ways = math.lgamma(len(feature.levels or (0, 1)) + 1)  # the best of many gains a little by chance
    if trial is None or trial.gain <= (LIKELY if doubted else CLEAR) + ways:
        return None
    loss = "squared error" if table.target.kind == "number" else "log loss"
    fall = f"the shared model's {loss} on this site's outcomes falls from {trial.before:.3f} to {trial.after:.3f}"
    if feature.kind == "numeric":
        repair = "See whether the sign, or the direction of the scale, differs from the study's; if so, turn it."
        return Cause("recoded", "low is written as high", f"turned round, {fall}", repair)
    change = _write(trial.codes, feature.levels, "as")
    repair = f"If the code book agrees, write {change} in the column {name}."
    return Cause("recoded", CAUSES["recoded"][0], f"reading {change}, {fall}", repair)


def _write(codes: Sequence[int], levels: Sequence[str], word: str) -> str:
    moved = [f"{levels[k]} {word} {levels[j]}" for k, j in enumerate(codes) if k != j]
    return ", ".join(moved[:-1]) + (" and " if len(moved) > 1 else "") + "".join(moved[-1:])


def _declared(frame: pd.DataFrame, feature: Feature, name: str, kind: str) -> str:
    """How many of the missing are codes that the study declares."""
    if kind not in ("much_missing", "missing_by_class") or not feature.missing:
        return ""
    codes = {canon(c) for c in feature.missing}
    count = int(take_columns(frame)[0][name].map(canon).isin(codes).sum())
    return f"; {count} cells say {', '.join(sorted(codes))}, which the study reads as missing" if count else ""


# plain text


def to_text(told: Look) -> str:
    """For a terminal."""
    lines = [f"This stays at {told.site}.", ""]
    if not told.same:
        lines += ["These rows are not those that the run saw: what follows mixes the two.", ""]
    if not any(v.trouble for v in told.views):
        lines += [f"{NO_MARK} Any column can be looked at: --feature NAME.", ""]
    for view in told.views:
        lines.append(f"{view.name}: {view.trouble}" if view.trouble else view.name)
        lines += [f"  {view.said}"] if view.said else []
        lines += [f"  {line}" for line in _bars_in_text(view)]
        lines += [f"  {view.reading}"] if view.reading else []
        for i, cause in enumerate(view.causes):
            lines.append(f"  {view.rank(i)}: {cause.what}: {cause.numbers}.")
            lines.append(f"    To try: {cause.repair}")
        lines += [] if view.causes else [f"  {view.rank(0)}: {view.verdict}."]
        lines += [f"    To ask: {view.ask}"] if view.ask and not view.causes else []
        lines.append("")
    return "\n".join(lines).rstrip()


NO_MARK = "No mark concerns this site: its data fits as well as chance allows."
NOTHING = "nothing that the file alone shows"


def _bars_in_text(view: View) -> Iterable[str]:
    unit = f" {view.unit}" if view.unit else ""
    for group in view.groups:
        known, top = sum(group.counts), max(1, *group.counts, 1)
        missing = f", {100 * group.missing / max(1, group.rows):.0f} % missing" if view.kind != "label" else ""
        if view.edges:
            drawn = "".join(" " if not c else BARS[min(7, int(8 * c / top))] for c in group.counts)
            shown = f": {view.edges[0]:g} {drawn} {view.edges[-1]:g}{unit}" if known else ""
        else:
            pairs = zip(view.levels, group.counts, strict=True)
            shown = ": " + ", ".join(f"{n} {100 * c / max(1, known):.0f} %" for n, c in pairs) if known else ""
        yield f"{group.name}: {group.rows} rows{missing}{shown}"
