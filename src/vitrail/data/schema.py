"""What the sites agreed a table looks like: features, target, standardisation, split."""

from __future__ import annotations

import math
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

Cell = bool | int | float | str  # a value as a person writes it in a study file


def canon(value: object) -> str:
    """One spelling for one value, whether it came from TOML, CSV, Parquet or a DataFrame.

    >>> canon(1), canon(1.0), canon("1.0"), canon(True), canon(" Yes "), canon("1,5"), canon("007")
    ('1', '1', '1', '1', 'Yes', '1,5', '007')
    """
    if isinstance(value, bool):
        return str(int(value))
    text = str(value).strip()
    try:
        number = float(text)
    except ValueError:
        return {"true": "1", "false": "0"}.get(text.casefold(), text)
    plain = text.lstrip("+-")
    if not math.isfinite(number) or "_" in text or (plain[:1] == "0" and plain[1:2].isdigit()):
        return text  # "007" is a code, not seven
    return str(int(number)) if number == int(number) and abs(number) < 1e15 else repr(number)


class Strict(BaseModel):
    """Frozen; an unknown key is an error, and so are NaN and infinity."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, populate_by_name=True, allow_inf_nan=False)


class Feature(Strict):
    """One column that the model may use."""

    kind: Literal["numeric", "binary", "categorical"]  # a number, one of two, or one of several
    unit: str = ""  # as in mg/dL: `check` looks for values in another
    range: tuple[float, float] | None = None  # numeric: values outside are reported by `check`
    categories: tuple[Cell, ...] = ()  # binary: (the one encoded 0, the one encoded 1)
    missing: tuple[Cell, ...] = ()  # codes that mean "not measured", e.g. 0 for cholesterol
    indicator: bool = False  # whether the model is also given a column that says where the value is missing
    aliases: tuple[str, ...] = ()  # what the column is called at other sites
    description: str = ""  # what it is, for people

    @property
    def levels(self) -> tuple[str, ...]:
        return tuple(canon(c) for c in self.categories)


class Target(Strict):
    """What is predicted: one of several classes, a number, or the time to an event."""

    column: str  # of the time to an event the same as `event`
    kind: Literal["classes", "number", "time"] = "classes"  # one of some classes, a number, or the time to an event
    classes: tuple[Cell, ...] = ()  # of the time to an event: how its column says "not seen" and "seen"; else 0 and 1
    positive: Cell | None = None  # of two classes the event, which risks and f1_event are about; left out: the last
    threshold: float | None = Field(
        default=None, gt=0, lt=1
    )  # risk from which the event is predicted; or: the site's rate
    time: str = ""  # the column that says how long a row was followed: until the event, or until it was last seen
    event: str = ""  # the column that says whether the event was seen then
    horizon: float | None = Field(default=None, gt=0)  # what is asked: the event until then; after it nothing counts
    intervals: int = Field(default=10, ge=1, le=200)  # of equal length until the horizon
    cuts: tuple[float, ...] = ()  # or where they end, as agreed; the last is the horizon
    unit: str = ""  # of a number, or of the time
    center: float = 0.0  # a number is learned as (value - center) / scale
    scale: float = Field(default=1.0, gt=0)  # see center

    @property
    def levels(self) -> tuple[str, ...]:
        """Classes in model order; the positive one last when there are two. A time has none."""
        return () if self.kind == "time" else self.states

    @property
    def ends(self) -> tuple[float, ...]:
        """Where the intervals of a time to an event end."""
        return self.cuts or tuple((self.horizon or 1.0) * (k + 1) / self.intervals for k in range(self.intervals))

    @property
    def outputs(self) -> int:
        """Numbers that a model answers with."""
        return {"classes": len(self.levels), "number": 1, "time": len(self.ends)}[self.kind]

    @property
    def states(self) -> tuple[str, ...]:
        """How the column writes classes; of an event that it was not seen, and that it was."""
        names = [canon(c) for c in self.classes or ((0, 1) if self.kind == "time" else ())]
        if self.positive is not None and len(names) == 2:
            names.sort(key=lambda name: name == canon(self.positive))
        return tuple(names)


class Split(Strict):
    """How each site sets rows aside to test on; they are never trained on."""

    test: float = Field(default=0.33, gt=0, lt=1)  # the share of a site's rows
    at_least: int = Field(default=100, ge=0)  # test rows, where they are no more than at_most of the site
    at_most: float = Field(default=0.33, gt=0, lt=1)  # the share of a small site that at_least may take
    stratify: bool = True  # classes alike in both parts; of persons, those with any event
    by: Literal["date"] | None = None  # None: the test rows are drawn by lot; date: rows from test_from on are tested
    column: str = ""  # by date: the column with each row's date
    test_from: str = ""  # by date: the first day of the test rows, as 2021-12-31; a person seen before is not tested

    def count(self, rows: int) -> int:
        """How many of a site's rows are tested. `at_least` may ask for more than `test`, but not of a small site.

        >>> Split().count(167), Split(test=0.1).count(400), Split(test=0.1).count(60), Split(test=0.1).count(2000)
        (55, 100, 19, 200)
        """
        return min(max(round(self.test * rows), min(self.at_least, int(self.at_most * rows))), rows - 1)


class Images(Strict):
    """Pictures, instead of columns."""

    size: tuple[int, int]  # height and width that the network is given
    channels: Literal[1, 3] = 1  # grey or colour
    column: str = "picture"  # of a file with one row for each picture
    bits: int = Field(default=8, ge=8, le=16)  # of a pixel, as cameras count; the upper 8 are used
    fit: Literal["exact", "resize"] = "exact"  # a picture of another size is refused, or brought to this one
    normalise: Literal["unit", "centred", "picture"] = "centred"  # 0 to 1, -1 to 1, or each by its own mean and sd
    augment: tuple[Literal["flip", "shift", "brightness", "affine", "skew"], ...] = ()  # anew for each in each batch
    person: str = ""  # whose picture it is, in a file's path: a regular expression with one group, as "(p[0-9]+)_"

    @property
    def shape(self) -> tuple[int, int, int]:
        return (self.channels, *self.size)

    @property
    def words(self) -> str:
        """28 x 28 pixels, grey."""
        return f"{self.size[0]} x {self.size[1]} pixels, {'grey' if self.channels == 1 else 'colour'}"

    @property
    def names(self) -> list[str]:
        """Of the channels."""
        return ["grey"] if self.channels == 1 else ["red", "green", "blue"]


class TableSchema(Strict):
    """Everything needed to turn a site's file into tensors."""

    target: Target
    features: dict[str, Feature] = Field(default={})
    images: Images | None = None
    standardise: Literal["local", "global", "none"] = "global"  # numbers by each site's mean and sd, by all sites', not
    reference_level: bool = True  # the first category of a feature has no column of its own: others are compared to it
    site_column: str = ""  # when one file holds all sites
    weight_column: str = ""  # for how many a row stands, in training and scores: more than 0; empty: each for one
    person: str = ""  # the column that says whose row it is, where people have several rows; never a feature
    split: Split = Split()

    @property
    def plain(self) -> TableSchema:
        """As one looks at its columns one by one: of a time to an event, whether it was seen is the outcome, and how
        long a row was followed a column beside the features."""
        target = self.target
        if target.kind != "time":
            return self
        followed = Feature(kind="numeric", unit=target.unit)
        event = Target(column=target.column, classes=target.states, positive=target.states[1])
        return self.model_copy(update={"target": event, "features": {**self.features, target.time: followed}})

    @property
    def person_column(self) -> str:
        """The column that says whose row it is; of pictures whose paths say it, one that is made from them."""
        return self.person or ("person" if self.images and self.images.person else "")

    @property
    def unit_word(self) -> str:
        """What is counted and split, in words: a patient, or where the study names none a row."""
        return "patient" if self.person_column else self.row_word

    @property
    def row_word(self) -> str:
        """What one of a site's rows is, in words."""
        return "picture" if self.images else "row"


class UnreadTableSchema(TableSchema):
    """A table before anybody agreed on its columns: words such as "None" are kept as they stand."""


class Ration(Strict):
    """How often a guest lets itself be asked: what it says adds up to its columns."""

    training: int = Field(default=20, ge=1)  # times a row may be asked in training
    after: int = Field(default=1000, ge=0)  # rows in all, afterwards


class Party(Strict):
    """Who holds columns of the same people. A guest's columns are not in the study: not even their names leave it."""

    role: Literal["host", "guest"]  # the host has the target and the study's features
    id: str  # the column that names the person
    answer: int = Field(default=1, ge=1, le=64)  # of a guest: numbers that it answers for a row
    bits: int = Field(default=3, ge=0, le=8)  # of a guest: to which each of them is rounded; 0: not at all
    noise: float = Field(default=1.0, ge=0)  # of a guest: added before, in spreads of its answers
    ration: Ration = Ration()  # of a guest


GUESTS_OWN = ("answer", "bits", "noise", "ration")  # keys that a host has no use for
Form = Literal["exact", "trimmed", "folded", "digits", "number"]


class Matching(Strict):
    """How the parties find out whom they have in common."""

    form: Form = "trimmed"  # what counts of an id: all; less outer spaces; letters and digits; digits; less first zeros
    at_least: int = Field(default=100, ge=1)  # rows in common; below, nothing is told but that they are too few
    ratio: float = Field(default=2.0, ge=1)  # one list may be so many times as long as another
