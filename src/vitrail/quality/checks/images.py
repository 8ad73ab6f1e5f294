"""What can be wrong with a site's pictures, one test for each.

Pictures are looked at as the network will see them: fitted to the agreed size, channels and bits. Those of a folder
are called by their paths, those of a file by their rows, counted from 0.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from vitrail.data.findings import CheckFinding
from vitrail.data.readers.cells import as_described
from vitrail.data.readers.image_files import image_settings
from vitrail.data.readers.image_persons import PASSED
from vitrail.data.readers.images import MisfitError, fit_cells, stacked
from vitrail.data.readers.tables import describe_misfit, pick_rows, take_columns
from vitrail.data.schema import TableSchema
from vitrail.quality.checks.burned_in_marks import find_marks
from vitrail.quality.checks.columns import (
    ParsedTable,
    find_extra_column,
    find_one_class,
    find_target_missing,
    find_too_few_rows,
)

FEW_OF_A_CLASS = 10
NAMED = 3  # pictures of a folder that a text names
EMPTY_SPREAD, EMPTY_SHARE = 3, 0.99  # nearly empty: so many grey levels around the middle hold so large a share of it
LOOKED_AT = 64  # points in height and width, to see whether a picture is empty
WORDS = {
    "unreadable": "cannot be read",
    "dicom": "are DICOM, which is not read",
    "too_large": "are too large",
    "several": "hold more than one picture",
    "no_class": "lie outside the class folders",
    "wrong_size": "have another size than agreed",
    "wrong_colour": "are grey where the study agrees on colour, or the reverse",
    "wrong_values": "have other pixel values than agreed",
    "wrong_shape": "are not pictures",
}


@dataclass(frozen=True)
class ParsedImages:
    """A site's frame, every picture fitted once; each check looks at this."""

    seen: ParsedTable  # the columns beside the pictures
    usable: ParsedTable  # of those pictures that can be used
    index: pd.Index
    cells: list[Any]  # arrays as agreed, a MisfitError where that cannot be
    passed: tuple[str, ...]  # files that are no pictures

    @classmethod
    def of(cls, frame: pd.DataFrame, table: TableSchema) -> ParsedImages:
        columns, repeated = take_columns(frame)
        cells = (
            fit_cells(list(columns[name]), image_settings(table))
            if (name := image_settings(table).column) in columns
            else []
        )
        beside = frame[[c for c in frame.columns if str(c).strip() != name]]
        good = [not isinstance(cell, MisfitError) for cell in cells]
        seen, usable = _see(beside, table), _see(beside[good] if cells else beside, table)
        seen = replace(seen, repeated=repeated)
        return cls(seen, usable, frame.index, cells, tuple(frame.attrs.get(PASSED, ())))

    @property
    def column(self) -> str:
        return image_settings(self.seen.table).column

    @cached_property
    def good(self) -> NDArray[np.int64]:
        """Positions of pictures that can be used."""
        return np.array([i for i, cell in enumerate(self.cells) if not isinstance(cell, MisfitError)], dtype=np.int64)

    @cached_property
    def pixels(self) -> NDArray[np.uint8]:
        """[picture, channel, height, width] of the good ones."""
        return stacked(pd.Series([self.cells[i] for i in self.good], dtype=object), image_settings(self.seen.table))

    @cached_property
    def empty(self) -> NDArray[np.bool_]:
        """[good picture]: one grey level, or nearly."""
        return np.array([_is_empty(picture) for picture in self.pixels], dtype=bool)

    @cached_property
    def hashes(self) -> list[str]:
        """[good picture]: two are equal where all pixels are."""
        return [hashlib.blake2b(np.ascontiguousarray(p).data, digest_size=16).hexdigest() for p in self.pixels]

    @cached_property
    def labels(self) -> NDArray[np.int64]:
        """[picture]: its class, -1 where there is none."""
        classes = self.seen.classes()
        return classes.fillna(-1).to_numpy(np.int64) if len(classes) else np.full(len(self.cells), -1)

    def find(
        self, kind: str, severity: Literal["error", "warning"], at: Sequence[int], text: str, hint: str, names: str = ""
    ) -> CheckFinding:
        """About the pictures at these positions: rows where they have numbers, else the first names in the text."""
        counted = self.index.dtype.kind in "iu"
        mask = np.isin(np.arange(len(self.index)), at)
        rows = tuple(pick_rows(self.index, mask)[:5]) if counted else ()
        names = names or ("" if counted or not len(at) else self.name(at))
        return CheckFinding(kind, severity, self.column, rows, len(at), text + (f": {names}" if names else ""), hint)

    def name(self, at: Sequence[int]) -> str:
        some = ", ".join(self.call(i) for i in at[:NAMED])
        return some + (f" and {len(at) - NAMED} more" if len(at) > NAMED else "")

    def call(self, at: int) -> str:
        name = self.index[at]
        return f"row {name}" if self.index.dtype.kind in "iu" else str(name)


def _see(frame: pd.DataFrame, table: TableSchema) -> ParsedTable:
    columns, repeated = take_columns(frame.reset_index(drop=True))
    target = table.target
    read = as_described(columns[target.column], target) if target.column in columns else None
    values, wrong = ({target.column: part} for part in read) if read else ({}, {})
    return ParsedTable(table, frame.index, columns, repeated, values, wrong)


def _is_empty(picture: NDArray[np.uint8]) -> bool:
    step = -(-max(picture.shape[1:]) // LOOKED_AT)
    flat = picture[:, ::step, ::step].reshape(len(picture), -1)
    middle = np.median(flat, 1, keepdims=True)
    return bool((np.abs(flat - middle) <= EMPTY_SPREAD).mean() >= EMPTY_SHARE)


def find_no_pictures(it: ParsedImages) -> Iterator[CheckFinding]:
    if not it.cells:
        text = f"the study's picture column {it.column!r} is not among the {len(it.seen.columns)} columns"
        yield CheckFinding(
            "missing_column", "error", it.column, (), len(it.index), text, f"Add the column {it.column!r}."
        )


def find_misfits(it: ParsedImages) -> Iterator[CheckFinding]:
    """Unreadable, cut, too large, of another size, mode or bits: one finding for each kind, with the first reasons."""
    kinds: dict[str, list[int]] = defaultdict(list)
    for i, cell in enumerate(it.cells):
        if isinstance(cell, MisfitError):
            kinds[cell.kind].append(i)
    for kind, at in kinds.items():
        some = "; ".join(f"{it.call(i)}: {it.cells[i].what}" for i in at[:NAMED])
        names = some + (f"; and {len(at) - NAMED} more" if len(at) > NAMED else "")
        text = f"{len(at)} of {len(it.cells)} pictures {WORDS[kind]}"
        yield it.find(f"picture_{kind}", "error", at, text, it.cells[at[0]].hint, names)


def find_no_class(it: ParsedImages) -> Iterator[CheckFinding]:
    target = it.seen.table.target
    if target.column not in it.seen.columns:
        text = f"the pictures have no class (the study's target is {target.column!r})"
        hint = f"Put them into one folder for each class ({', '.join(target.levels)}), or add the column."
        yield CheckFinding("missing_column", "error", target.column, (), len(it.index), text, hint)


def find_unknown_class(it: ParsedImages) -> Iterator[CheckFinding]:
    for name, wrong in it.seen.wrong.items():
        if wrong.any():
            problem = describe_misfit(name, it.seen.columns[name], wrong, it.seen.table.target)
            text = problem.what.rstrip(".").replace(" cells)", " pictures)")
            rows = tuple(pick_rows(it.index, wrong)[:5]) if it.index.dtype.kind in "iu" else ()
            yield CheckFinding("unknown_class", "error", name, rows, int(wrong.sum()), text, problem.hint)


def find_class_too_small(it: ParsedImages) -> Iterator[CheckFinding]:
    counts, column = it.usable.class_counts(), it.seen.table.target.column
    several = sum(count > 0 for count in counts.values()) > 1  # else one_class says it
    for level, count in counts.items():
        if several and count == 0:
            hint = (
                "This is fine if there are none here; otherwise check whether its folder is missing or has another "
                "name."
            )
            yield CheckFinding("class_missing", "warning", column, (), 0, f"no picture is of class {level}", hint)
        elif several and count < FEW_OF_A_CLASS:
            text = f"{count} of {sum(counts.values())} pictures are of class {level}"
            hint = f"With fewer than {FEW_OF_A_CLASS} pictures, the test score of a class means little."
            yield CheckFinding("class_too_small", "warning", column, (), count, text, hint)


def find_passed_over(it: ParsedImages) -> Iterator[CheckFinding]:
    if it.passed:
        some = ", ".join(it.passed[:NAMED]) + (f" and {len(it.passed) - NAMED} more" if len(it.passed) > NAMED else "")
        text = f"{len(it.passed)} files are not pictures and are not read: {some}"
        hint = "Remove them, or save them as PNG or JPEG if they are pictures."
        yield CheckFinding("not_a_picture", "warning", it.column, (), len(it.passed), text, hint)


def find_nearly_empty(it: ParsedImages) -> Iterator[CheckFinding]:
    at = it.good[it.empty].tolist()
    if at:
        text = f"{len(at)} of {len(it.cells)} pictures are nearly empty ({EMPTY_SHARE:.0%} of each is one shade)"
        yield it.find("nearly_empty", "warning", at, text, "Look at them; the export may have lost what they showed.")


def find_same_picture(it: ParsedImages) -> Iterator[CheckFinding]:
    """In one class, where copies fall on both sides of the split; and in two, where one of them is wrong."""
    places: dict[str, list[int]] = defaultdict(list)
    for i, digest, empty in zip(it.good.tolist(), it.hashes, it.empty, strict=True):
        if not empty:  # these are told as such
            places[digest].append(i)
    groups = [group for group in places.values() if len(group) > 1]
    of_classes = [len({it.labels[i] for i in group if it.labels[i] >= 0}) for group in groups]
    torn = [group for group, classes in zip(groups, of_classes, strict=True) if classes > 1]
    if torn:
        levels = it.seen.table.target.levels
        named = {i: f"{it.call(i)} ({levels[it.labels[i]]})" for g in torn for i in g if it.labels[i] >= 0}
        some = "; ".join(" = ".join(named[i] for i in g if i in named) for g in torn[:NAMED])
        text = f"{len(torn)} pictures occur in more than one class"
        hint = "Only one class can be right: find out which, and remove the others."
        yield it.find("same_picture_two_classes", "error", [i for g in torn for i in g], text, hint, some)
    same = [group for group, classes in zip(groups, of_classes, strict=True) if classes < 2]
    if same:
        again, test = [i for g in same for i in g[1:]], it.seen.table.split.test
        torn_by_split = sum(1 - test ** len(g) - (1 - test) ** len(g) for g in same)
        some = "; ".join(" = ".join(it.call(i) for i in g[:4]) for g in same[:NAMED])
        text = f"{len(again)} of {len(it.cells)} pictures repeat another one pixel by pixel; of their {len(same)} "
        text += f"groups, about {torn_by_split:.1f} will be split between training and test data"
        hint = "Keep one of each: a test picture that was also trained on flatters the score."
        yield it.find("same_picture", "warning", again, text, hint, some)


def find_marks_of_a_class(it: ParsedImages) -> Iterator[CheckFinding]:
    distinct = list({digest: i for i, digest in enumerate(it.hashes)}.values())
    use = np.isin(np.arange(len(it.good)), distinct) & ~it.empty
    for mark in find_marks(it.pixels, np.where(use, it.labels[it.good], -1)):
        level = it.seen.table.target.levels[mark.label]
        at = it.good[mark.pictures].tolist()
        if mark.series:
            text = f"about {mark.inside} of {mark.of_class} pictures of class {level} are nearly the same"
            hint = (
                "If they show one patient or scene, keep a few: pictures so alike flatter the score if some are "
                "trained on and others tested."
            )
            yield it.find("nearly_same_pictures", "warning", at, text, hint)
            continue
        text = f"{mark.inside} of {mark.of_class} pictures of class {level} look the same ({mark.shade}) at "
        text += (
            f"{mark.place}, where {mark.outside} of {mark.of_others} others do: a mark or text that gives the class "
        )
        text += "away"
        hint = "Look there. Cut off or cover a burned-in mark in all pictures, or the model learns the mark instead."
        yield it.find("mark_of_a_class", "warning", at, text, hint)


CHECKS: tuple[Callable[[ParsedImages], Iterator[CheckFinding]], ...] = (
    find_no_pictures,
    find_no_class,
    find_misfits,
    find_unknown_class,
    find_passed_over,
    find_same_picture,
    find_nearly_empty,
    find_marks_of_a_class,
    lambda it: find_extra_column(it.seen),
    lambda it: find_one_class(it.usable),
    find_class_too_small,
    lambda it: find_target_missing(it.usable),
    lambda it: find_too_few_rows(it.usable),
)


def find_picture_faults(frame: pd.DataFrame, table: TableSchema) -> list[CheckFinding]:
    it = ParsedImages.of(frame, table)
    return [finding for look in CHECKS for finding in look(it)]


def find_shared_pictures(sites: Mapping[str, pd.DataFrame], table: TableSchema) -> dict[str, list[CheckFinding]]:
    """Pictures that several sites hold: whose test rows another may have trained on."""
    looks = {name: ParsedImages.of(frame, table) for name, frame in sites.items()}
    homes: dict[str, set[str]] = defaultdict(set)
    for name, it in looks.items():
        for digest, empty in zip(it.hashes, it.empty, strict=True):
            if not empty:
                homes[digest].add(name)
    out: dict[str, list[CheckFinding]] = {name: [] for name in sites}
    for name, it in looks.items():
        at = [i for i, digest in zip(it.good.tolist(), it.hashes, strict=True) if len(homes[digest]) > 1]
        if at:
            also = sorted(set().union(*(homes[d] for d in it.hashes if len(homes[d]) > 1)) - {name})
            text = f"{len(at)} of {len(it.cells)} pictures are also at {', '.join(also)}"
            hint = "Find out whose they are: one site's test pictures would be trained on at another."
            out[name] = [it.find("picture_elsewhere", "warning", at, text, hint)]
    return out
