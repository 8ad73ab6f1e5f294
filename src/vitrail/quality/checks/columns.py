"""What can be wrong with a site's table, one test for each."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import pandas as pd

from vitrail.data.findings import CheckFinding
from vitrail.data.missing_codes import CODES, spot_codes
from vitrail.data.persons import key_columns
from vitrail.data.readers.cells import as_described, as_hashed, repeats
from vitrail.data.readers.tables import COMPARED, describe_misfit, pick_rows
from vitrail.data.schema import Feature, TableSchema
from vitrail.data.units import FEW_ROWS, SLIPPED, Conversion, is_outside, spot_unit
from vitrail.quality.checks.missing_by_class import depends_on_class
from vitrail.quality.repair.command import TO_TRY, say_flags

FEW_OF_A_CLASS = 5
FEW_ODD = 0.05  # of the cells need not fit where two columns are told to have changed places
RARE = 0.03  # a yes in so few rows: that a small site has none is no wonder


@dataclass(frozen=True)
class ParsedTable:
    """The frame, read once as the study describes it; every check looks at this."""

    table: TableSchema
    index: pd.Index
    columns: Mapping[str, pd.Series]  # as they came
    repeated: list[str]
    values: Mapping[str, pd.Series]  # of features and target that are there: NaN where missing or wrong
    wrong: Mapping[str, pd.Series]  # cells that do not fit

    def rows(self, mask: np.ndarray | pd.Series) -> tuple[int, ...]:
        return tuple(pick_rows(self.index, mask)[:5])

    def absent(self, name: str) -> pd.Series:
        values = self.values[name]
        return pd.Series(np.isnan(values.to_numpy()) & ~self.wrong[name].to_numpy(), index=values.index)

    def numeric(self) -> Iterator[tuple[str, Feature, pd.Series]]:
        """Without those that seem to stand in another's place: what is odd about them has that reason."""
        for name, feature in self.table.features.items():
            if feature.kind == "numeric" and name in self.values and name not in self.swapped:
                yield name, feature, self.values[name]

    @cached_property
    def swapped(self) -> dict[str, str]:
        """Columns that seem to have changed places, each with the other: they fit one another's description."""
        there = {n: f for n, f in self.table.features.items() if n in self.columns and not self.absent(n).all()}
        fits = {n: _share(self.values[n], self.wrong[n], f) for n, f in there.items()}
        odd = [n for n, fit in fits.items() if fit < 1 - SLIPPED]
        out: dict[str, str] = {}
        for name in odd[: COMPARED // (1 + len(there))]:
            rivals = [n for n in there if n != name and (n in odd or not self._is_unit(name)) and n not in out]
            for other in sorted(rivals, key=fits.__getitem__):
                pairs = ((self.columns[name], there[other]), (self.columns[other], there[name]))
                if name not in out and all(_fit(cells, feature) >= 1 - FEW_ODD for cells, feature in pairs):
                    out |= {name: other, other: name}
        return out

    @cached_property
    def codes(self) -> dict[str, list[float]]:
        """Of numeric columns: numbers that stand for "not measured"."""
        return {name: spot_codes(values, name, feature) for name, feature, values in self.numeric()}

    @cached_property
    def mixups(self) -> dict[str, tuple[Conversion, pd.Series] | None]:
        """Of numeric columns, without those: the conversion that would explain what is odd, and which rows."""
        bare = ((n, f, v.mask(v.isin(self.codes[n])) if self.codes[n] else v) for n, f, v in self.numeric())
        return {name: spot_unit(values, name, feature) for name, feature, values in bare}

    @cached_property
    def heaps(self) -> list[tuple[str, Feature, pd.Series, float, str]]:
        """One value that comes far more often than any other, in columns of many values; 0 is often natural."""
        out = []
        for name, feature, values in self.numeric():
            counts = values.value_counts()
            if len(counts) <= 10 or counts.iloc[0] < max(10, 0.1 * counts.sum(), 4 * counts.iloc[1]):
                continue
            heap = float(counts.index[0])
            if heap not in CODES and heap not in self.codes[name]:
                times = f"{counts.iloc[0]} of {counts.sum()} values are {_plain(heap)}"
                text = f"{times}; no other value occurs more than {counts.iloc[1]} times"
                out.append((name, feature, values, heap, text))
        return out

    def _is_unit(self, name: str) -> bool:
        feature = self.table.features[name]
        return feature.kind == "numeric" and spot_unit(self.values[name], name, feature) is not None

    def classes(self) -> pd.Series:
        """The class of each row, or nothing where the target is a number or not there."""
        is_there = self.table.target.kind == "classes" and self.table.target.column in self.values
        return self.values[self.table.target.column] if is_there else pd.Series(dtype=float)

    def class_counts(self) -> dict[str, int]:
        classes = self.classes()
        return {level: int((classes == i).sum()) for i, level in enumerate(self.table.target.levels)}

    def extra(self) -> list[str]:
        used = {*self.table.features, self.table.target.column, self.table.site_column, *key_columns(self.table)}
        return [name for name in self.columns if name not in used]


def _plain(number: float) -> str:
    return f"{number:.10g}"


def _say_range(feature: Feature) -> str:
    low, high = feature.range or (-np.inf, np.inf)
    return f"{_plain(low)} to {_plain(high)} {feature.unit}".rstrip()


def find_missing_column(seen: ParsedTable) -> Iterator[CheckFinding]:
    absent = [n for n in (*seen.table.features, seen.table.target.column) if n not in seen.columns]
    extra = seen.extra()
    for i, name in enumerate(absent):
        guess = _guess_rename(seen, name, extra) if i <= COMPARED // (1 + len(extra)) else ""
        what = "target" if name == seen.table.target.column else "feature"
        hint = f"Add the column {name!r}."
        if guess:
            hint = f'Is it {guess!r}? Rename it to {name!r}, or write aliases = ["{guess}"] for {name} in the study.'
        text = f"the study's {what} {name!r} is not among the {len(seen.columns)} columns"
        yield CheckFinding("missing_column", "error", name, (), len(seen.index), text, hint)


def _guess_rename(seen: ParsedTable, name: str, extras: list[str]) -> str:
    """The extra column that is most like it by name; else one that shares a word and whose values fit."""
    folded = {extra.casefold(): extra for extra in extras}
    close = difflib.get_close_matches(name.casefold(), list(folded), n=1, cutoff=0.6)
    if close:
        return folded[close[0]]
    feature = seen.table.features.get(name)
    words = _words(name, feature.description if feature else "")
    for extra in extras:
        shared = any(a.startswith(b) or b.startswith(a) for a in words for b in _words(extra))
        if shared and (feature is None or _fit(seen.columns[extra], feature) > 0.9):
            return extra
    return ""


def _words(*texts: str) -> set[str]:
    return {word for word in re.findall(r"[^\W_]+", " ".join(texts).casefold()) if len(word) > 2}


def _fit(column: pd.Series, feature: Feature) -> float:
    """The share of present cells that are what the study expects."""
    return _share(*as_described(column, feature), feature)


def _share(values: pd.Series, wrong: pd.Series, feature: Feature) -> float:
    observed = ~np.isnan(values.to_numpy())
    fits = observed & ~is_outside(values, feature).to_numpy()
    return float(fits.sum() / max((observed | wrong.to_numpy()).sum(), 1))


def find_extra_column(seen: ParsedTable) -> Iterator[CheckFinding]:
    for name in seen.repeated:
        text = f"the column {name!r} occurs more than once"
        yield CheckFinding("extra_column", "error", name, (), 1, text, "Keep one of them.")
    for name in seen.extra():
        text, hint = f"the column {name!r} is not in the study", "Nothing uses it; leave it out if you can."
        yield CheckFinding("extra_column", "warning", name, (), 1, text, hint)


def _find_misfits(seen: ParsedTable, kind: str, described_as: tuple[str, ...]) -> Iterator[CheckFinding]:
    for name, wrong in seen.wrong.items():
        what = seen.table.target if name == seen.table.target.column else seen.table.features[name]
        if wrong.any() and what.kind in described_as and name not in seen.swapped:
            problem = describe_misfit(name, seen.columns[name], wrong, what)
            text, hint = problem.what.rstrip("."), problem.hint
            yield CheckFinding(kind, "error", name, seen.rows(wrong), int(wrong.sum()), text, hint)


def find_wrong_type(seen: ParsedTable) -> Iterator[CheckFinding]:
    yield from _find_misfits(seen, "wrong_type", ("numeric", "number"))


def find_unknown_category(seen: ParsedTable) -> Iterator[CheckFinding]:
    yield from _find_misfits(seen, "unknown_category", ("binary", "categorical"))


def find_unknown_class(seen: ParsedTable) -> Iterator[CheckFinding]:
    yield from _find_misfits(seen, "unknown_class", ("classes",))


def find_out_of_range(seen: ParsedTable) -> Iterator[CheckFinding]:
    for name, feature, values in seen.numeric():
        explained, mixup = values.isin(seen.codes[name]), seen.mixups[name]  # these are told with a better reason
        outside = is_outside(values, feature) & ~explained & ~(mixup[1] if mixup else explained)
        if outside.any():
            some = values[outside.to_numpy()]
            text = f"{outside.sum()} of {values.notna().sum()} values are outside {_say_range(feature)}"
            text += f": from {_plain(some.min())} to {_plain(some.max())}"
            hint = "Correct or empty them; if they are real, widen the range in the study."
            yield CheckFinding("out_of_range", "warning", name, seen.rows(outside), int(outside.sum()), text, hint)


def find_swapped_columns(seen: ParsedTable) -> Iterator[CheckFinding]:
    for name, other in seen.swapped.items():
        what, there = seen.table.features[name], seen.table.features[other]
        text = f"it looks swapped with {other!r}: {_fit(seen.columns[name], what):.0%} of its cells fit its own "
        text += (
            f"description ({_say_description(what)}), and {_fit(seen.columns[name], there):.0%} fit that of {other!r}"
        )
        hint = f"Check whether the export mixed up the two columns. {_say_repair(name, 'swapped', other=other)}"
        yield CheckFinding("swapped_columns", "error", name, (), len(seen.index), text, hint)


def _say_description(feature: Feature) -> str:
    if feature.kind == "numeric":
        return _say_range(feature) if feature.range else "numbers"
    return f"one of {', '.join(feature.levels)}"


def _say_repair(name: str, cause: str, **numbers: object) -> str:
    """The command that shows what a repair would change."""
    return f"{TO_TRY}{say_flags(name, cause, numbers)}"


def find_unit_mixup(seen: ParsedTable) -> Iterator[CheckFinding]:
    for name, feature, values in seen.numeric():
        mixup = seen.mixups[name]
        if mixup:
            conversion, which = mixup
            some, factor = values[which.to_numpy()], conversion.factor
            agreed = bool(is_outside(values, feature).any())
            like = f"as if they were in {conversion.other}: in {conversion.unit} they"
            if not conversion.other:
                size = "small" if factor > 1 else "large"
                like = f"{max(factor, 1 / factor):g} times too {size}: with the decimal point moved, they"
            text = f"{which.sum()} of {values.notna().sum()} values look {like} fall within "
            text += f"{_say_range(feature) if agreed else 'the range of the other values'} (from {some.min():.4g} to "
            text += (
                f"{some.max():.4g}; their median {some.median():.4g} becomes {conversion.convert(some.median()):.4g})"
            )
            whole = which.sum() == values.notna().sum()
            numbers = {"factor": factor, "offset": conversion.offset} if conversion.offset else {"factor": factor}
            slip = "" if conversion.other else "The decimal point may have slipped, or the unit may be another one. "
            hint = f"{slip}Convert them: {conversion.formula()}. "
            hint += _say_repair(name, "unit" if whole else "unit in part", **numbers)
            severity: Literal["error", "warning"] = "error" if agreed else "warning"
            yield CheckFinding("unit_mixup", severity, name, seen.rows(which), int(which.sum()), text, hint)


def find_disguised_missing(seen: ParsedTable) -> Iterator[CheckFinding]:
    for name, feature, values in seen.numeric():
        for code in seen.codes[name]:
            which = values == code
            inside = not is_outside(values[which.to_numpy()], feature).any()
            text = f"{which.sum()} of {values.notna().sum()} values are {_plain(code)}"
            text += ", far from all others" if inside else f", outside {_say_range(feature)}"
            hint = f"If {_plain(code)} means 'not measured', {_say_code(name, code)} "
            hint += _say_repair(name, "code", code=code)
            severity: Literal["error", "warning"] = "warning" if inside else "error"
            yield CheckFinding("disguised_missing", severity, name, seen.rows(which), int(which.sum()), text, hint)


def _say_code(name: str, code: float) -> str:
    return f"empty those cells, or write missing = [{_plain(code)}] for {name} in the study."


def find_clipped(seen: ParsedTable) -> Iterator[CheckFinding]:
    for name, feature, values, heap, text in seen.heaps:
        if heap in (values.min(), values.max()) and heap not in (feature.range or ()):  # a scale may end there
            text = text.replace(";", f", the {'largest' if heap == values.max() else 'smallest'};")
            hint = (
                "Values seem to be cut off there: get the uncut values from the source, or agree on the limit in the "
                "study."
            )
            rows, count = seen.rows(values == heap), int((values == heap).sum())
            yield CheckFinding("clipped", "warning", name, rows, count, text, hint)


def find_filled_in(seen: ParsedTable) -> Iterator[CheckFinding]:
    for name, _, values, heap, text in seen.heaps:
        if values.min() < heap < values.max():
            hint = f"If {_plain(heap)} was filled in where nothing was measured, {_say_code(name, heap)}"
            rows, count = seen.rows(values == heap), int((values == heap).sum())
            yield CheckFinding("filled_in", "warning", name, rows, count, text, hint)


def find_much_missing(seen: ParsedTable) -> Iterator[CheckFinding]:
    for name in seen.table.features:
        absent = seen.absent(name) if name in seen.values else pd.Series(dtype=bool)
        if absent.sum() > 0.5 * len(absent):
            text = f"{absent.sum()} of {len(absent)} values are missing ({absent.mean():.0%})"
            hint = "The model can learn little from it here; check whether the export lost the values."
            yield CheckFinding("much_missing", "warning", name, seen.rows(absent), int(absent.sum()), text, hint)


def find_missing_by_class(seen: ParsedTable) -> Iterator[CheckFinding]:
    classes, levels = seen.classes().to_numpy(), seen.table.target.levels
    large = {level: classes == i for i, level in enumerate(levels) if (classes == i).sum() >= FEW_ROWS}
    for name in seen.table.features:
        if name not in seen.values:
            continue
        absent = seen.absent(name).to_numpy()
        shares = {level: float(absent[rows].mean()) for level, rows in large.items()}
        if depends_on_class(absent, large.values(), tests=len(seen.table.features)):
            listed = ", ".join(f"{s:.0%} in {k}" for k, s in shares.items())
            text = f"the share of missing values depends on the class: {listed}"
            hint = "The model could learn who was measured instead of what was measured; ask why the others were not."
            rows, count = seen.rows(absent), int(absent.sum())
            yield CheckFinding("missing_by_class", "warning", name, rows, count, text, hint)


def find_duplicate_rows(seen: ParsedTable) -> Iterator[CheckFinding]:
    again = repeats(seen.columns, len(seen.index))
    # a few coarse answers repeat by chance
    if again.any() and any(as_hashed(column).nunique() > 10 for column in seen.columns.values()):
        text = f"{again.sum()} of {len(again)} rows repeat an earlier row in every column"
        hint = "Remove them if they are the same patient: a row in both training and test data flatters the score."
        yield CheckFinding("duplicate_rows", "warning", "", seen.rows(again), int(again.sum()), text, hint)


def find_constant_column(seen: ParsedTable) -> Iterator[CheckFinding]:
    number = [seen.table.target.column] * (seen.table.target.kind == "number")
    for name in [*seen.table.features, *number]:
        values = seen.values[name].dropna() if name in seen.values else pd.Series(dtype=float)
        if len(values) > 1 and values.min() == values.max() and not seen.wrong[name].any():
            cell = str(seen.columns[name][seen.values[name].notna().to_numpy()].iloc[0])
            text = f"{len(values)} of {len(values)} values are {cell}"
            feature = seen.table.features.get(name)
            if not (feature and feature.kind == "binary" and (1 - RARE) ** len(values) > 0.05):
                yield CheckFinding(
                    "constant_column", "warning", name, (), len(values), text, "It carries no information here."
                )


def find_one_class(seen: ParsedTable) -> Iterator[CheckFinding]:
    for level, count in seen.class_counts().items():
        if count == sum(seen.class_counts().values()) > 0:
            text, hint = f"all {count} rows are of class {level}", "Scores that compare classes need rows of two."
            yield CheckFinding("one_class", "warning", seen.table.target.column, (), count, text, hint)


def find_class_too_small(seen: ParsedTable) -> Iterator[CheckFinding]:
    counts, classes = seen.class_counts(), seen.classes()
    several = sum(count > 0 for count in counts.values()) > 1  # else one_class says it
    for i, (level, count) in enumerate(counts.items()):
        if several and count < FEW_OF_A_CLASS:
            text = f"{count} of {sum(counts.values())} rows are of class {level}"
            hint = f"With fewer than {FEW_OF_A_CLASS} rows, the test score of a class means little."
            rows = seen.rows(classes == i)
            yield CheckFinding("class_too_small", "warning", seen.table.target.column, rows, count, text, hint)


def find_target_missing(seen: ParsedTable) -> Iterator[CheckFinding]:
    column = seen.table.target.column
    absent = seen.absent(column) if column in seen.values else pd.Series(dtype=bool)
    if absent.any():
        severity: Literal["error", "warning"] = "error" if absent.all() else "warning"
        text = f"{absent.sum()} of {len(absent)} rows have no target"
        hint = "They are left out; to use them, fill in the target."
        yield CheckFinding("target_missing", severity, column, seen.rows(absent), int(absent.sum()), text, hint)


def find_too_few_rows(seen: ParsedTable) -> Iterator[CheckFinding]:
    column = seen.table.target.column
    usable = int(seen.values[column].notna().sum()) if column in seen.values else len(seen.index)
    if usable < FEW_ROWS:
        text = f"{usable} rows can be used, fewer than {FEW_ROWS}"
        hint = "So few test rows say little; add rows, or combine the table with another site's."
        yield CheckFinding("too_few_rows", "warning" if usable else "error", "", (), usable, text, hint)


CHECKS: tuple[Callable[[ParsedTable], Iterator[CheckFinding]], ...] = (
    find_missing_column,
    find_extra_column,
    find_wrong_type,
    find_unknown_category,
    find_unknown_class,
    find_swapped_columns,
    find_unit_mixup,
    find_disguised_missing,
    find_out_of_range,
    find_clipped,
    find_filled_in,
    find_much_missing,
    find_missing_by_class,
    find_duplicate_rows,
    find_constant_column,
    find_one_class,
    find_class_too_small,
    find_target_missing,
    find_too_few_rows,
)
