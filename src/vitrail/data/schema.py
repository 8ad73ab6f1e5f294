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

    kind: Literal["numeric", "binary", "categorical"]  # a number, one of two values, or one of several
    unit: str = ""  # such as mg/dL; `check` looks for values in another unit
    range: tuple[float, float] | None = None  # for a number: `check` reports values outside it
    # all values that may occur; of a binary feature, the one encoded 0 and the one encoded 1
    categories: tuple[Cell, ...] = ()
    missing: tuple[Cell, ...] = ()  # codes that mean "not measured", such as 0 for cholesterol
    indicator: bool = False  # whether the model also gets a column that says where the value is missing
    aliases: tuple[str, ...] = ()  # what the column is called at other sites
    description: str = ""  # what it is, for people

    @property
    def levels(self) -> tuple[str, ...]:
        return tuple(canon(c) for c in self.categories)


class Target(Strict):
    """What is predicted: one of several classes, a number, or the time to an event."""

    column: str  # the column with the outcome; for a time to an event the same as `event`
    kind: Literal["classes", "number", "time"] = "classes"  # one of several classes, a number, or the time to an event
    # all classes; for a time to an event how its column writes "not seen" and "seen", left out: 0 and 1
    classes: tuple[Cell, ...] = ()
    positive: Cell | None = None  # of two classes the event, which risks and f1_event are about; left out: the last one
    # the risk from which the event is predicted; left out: the site's event rate
    threshold: float | None = Field(default=None, gt=0, lt=1)
    time: str = ""  # the column that says how long a row was followed: until the event, or until it was last seen
    event: str = ""  # the column that says whether the event was seen at that time
    # until when the event is predicted; a later event counts as not seen
    horizon: float | None = Field(default=None, gt=0)
    intervals: int = Field(default=10, ge=1, le=200)  # the number of intervals of equal length until the horizon
    # in place of `intervals`: where the intervals end, as agreed; the last end is the horizon
    cuts: tuple[float, ...] = ()
    unit: str = ""  # the unit of the number or of the time
    center: float = 0.0  # a number is learned as (value - center) / scale
    scale: float = Field(default=1.0, gt=0)  # see `center`

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
    """How each site divides its rows: the test rows are never trained on."""

    test: float = Field(default=0.33, gt=0, lt=1)  # the share of a site's rows that are test rows
    at_least: int = Field(default=100, ge=0)  # the smallest number of test rows, as long as `at_most` allows it
    # the largest share of a small site's rows that `at_least` may take
    at_most: float = Field(default=0.33, gt=0, lt=1)
    # whether both parts have the same shares of classes; persons go by whether they have any event
    stratify: bool = True
    # left out: test rows are drawn at random; date: rows from `test_from` on are test rows
    by: Literal["date"] | None = None
    column: str = ""  # for a split by date: the column with each row's date
    # for a split by date: the first day of the test rows, as 2021-12-31; persons seen before are not tested
    test_from: str = ""

    def count(self, rows: int) -> int:
        """How many of a site's rows are tested. `at_least` may ask for more than `test`, but not of a small site.

        >>> Split().count(167), Split(test=0.1).count(400), Split(test=0.1).count(60), Split(test=0.1).count(2000)
        (55, 100, 19, 200)
        """
        return min(max(round(self.test * rows), min(self.at_least, int(self.at_most * rows))), rows - 1)


class Images(Strict):
    """Pictures, in place of columns."""

    size: tuple[int, int]  # height and width of the pictures that the network gets
    channels: Literal[1, 3] = 1  # 1 is grey, 3 is colour
    column: str = "picture"  # for a file with one row for each picture: the column with the picture
    bits: int = Field(default=8, ge=8, le=16)  # bits of each pixel, as cameras count them; the upper 8 are used
    fit: Literal["exact", "resize"] = "exact"  # whether a picture of another size is refused or resized
    # pixels from 0 to 1, from -1 to 1, or by each picture's own mean and standard deviation
    normalise: Literal["unit", "centred", "picture"] = "centred"
    # random changes that each training picture gets anew in every batch
    augment: tuple[Literal["flip", "shift", "brightness", "affine", "skew"], ...] = ()
    person: str = ""  # finds the patient in a file's path: a regular expression with one group, such as "(p[0-9]+)_"

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
    # whether numbers are scaled by each site's own mean and standard deviation, by those of all sites, or not
    standardise: Literal["local", "global", "none"] = "global"
    # whether a feature's first category has no column of its own, so that the others are compared with it
    reference_level: bool = True
    site_column: str = ""  # if one file holds all sites: the column that names the site
    # the column with the number of patients that a row represents, above 0; empty: each row counts once
    weight_column: str = ""
    person: str = ""  # the column that identifies the patient, if patients have several rows; never a feature
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
    """How often a guest may be asked. Each answer reveals a little about its columns."""

    training: int = Field(default=20, ge=1)  # how often each row may be asked about in training
    after: int = Field(default=1000, ge=0)  # how many rows may be asked about after training


class Party(Strict):
    """A party of a vertical study. A guest's columns are not in the study; not even their names leave the guest."""

    role: Literal["host", "guest"]  # the host has the target and the study's features
    id: str  # the column that identifies the person
    answer: int = Field(default=1, ge=1, le=64)  # for a guest: how many numbers it answers about a row
    bits: int = Field(default=3, ge=0, le=8)  # for a guest: each number is rounded to 2^bits levels; 0: not rounded
    # for a guest: noise added before rounding, in standard deviations of its answers
    noise: float = Field(default=1.0, ge=0)
    ration: Ration = Ration()  # for a guest


GUESTS_OWN = ("answer", "bits", "noise", "ration")  # keys that a host has no use for
Form = Literal["exact", "trimmed", "folded", "digits", "number"]


class Matching(Strict):
    """How the parties find out which people they have in common."""

    # what of an id is compared: all of it; without outer spaces; letters and digits; digits; digits without leading
    # zeros
    form: Form = "trimmed"
    # people in common; if there are fewer, the parties learn only that there are too few
    at_least: int = Field(default=100, ge=1)
    ratio: float = Field(default=2.0, ge=1)  # how many times as long as another a party's list may be
