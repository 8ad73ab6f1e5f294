"""What is wrong with a time to an event, or with weights, in a study."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from vitrail.core.errors import Problem
from vitrail.data.schema import canon

ONLY_TIMES = ("time", "event", "horizon", "cuts")  # keys of [target] that mean nothing elsewhere


def time_problems(
    target: Mapping[str, Any], features: Mapping[str, Any], raw: Mapping[str, Any], place: Callable[..., str]
) -> Iterable[Problem]:
    if target.get("kind", "classes") != "time":
        for key in (key for key in ONLY_TIMES if target.get(key)):
            yield Problem(
                place("target", key), "only a time to an event has this key.", 'Write kind = "time", or remove it.'
            )
        return
    time, event, column = (target.get(k, "") for k in ("time", "event", "column"))
    for key, value in (("time", time), ("event", event)):
        if value == "":
            means = "how long each row was followed" if key == "time" else "whether the event was seen then"
            yield Problem(place("target", key), f"expected the column that says {means}.", "Name it.")
    if event and column and event != column:
        yield Problem(
            place("target", "column"), "a time to an event has the keys time and event instead of column.", "Remove it."
        )
    if time and time in (event, raw.get("site_column")):
        yield Problem(place("target", "time"), "this column already has another role in the study.", "Name another.")
    if isinstance(time, str) and time in features:
        what = "the length of follow-up is not known beforehand, so it cannot be a feature."
        yield Problem(place("features", time), what, "Remove this section.")
    if raw.get("parties"):
        yield Problem(
            place("target", "kind"), "a study with parties cannot predict a time to an event.", "Use classes."
        )
    yield from _interval_problems(target, place)
    classes = target.get("classes", ())
    names = [canon(c) for c in classes] if isinstance(classes, list | tuple) else []
    if names and (len(names) != 2 or names[0] == names[1]):
        what = (
            f"expected the two values of {event!r}, first the event not seen, then the event seen; got {list(classes)}."
        )
        yield Problem(place("target", "classes"), what, "List two, or leave it out if they are 0 and 1.")
    positive = target.get("positive")
    if positive is not None and canon(positive) not in (names or ["0", "1"]):
        what = f"{positive!r} is not one of {names or ['0', '1']}."
        yield Problem(place("target", "positive"), what, "Name the value that means: event seen.")


def _interval_problems(target: Mapping[str, Any], place: Callable[..., str]) -> Iterable[Problem]:
    cuts, horizon = target.get("cuts", ()), target.get("horizon")
    if not isinstance(cuts, list | tuple):
        return
    numbers = [c for c in cuts if isinstance(c, int | float) and not isinstance(c, bool)]
    if not cuts and horizon is None:
        what = "expected the time by which the event is predicted; it must be agreed, not taken from anybody's rows."
        yield Problem(place("target", "horizon"), what, "Write horizon = 365, or cuts = [30, 90, 365].")
    if len(numbers) == len(cuts) and any(b <= a for a, b in zip([0, *numbers], numbers, strict=False)):
        yield Problem(place("target", "cuts"), f"expected rising numbers above 0, got {list(cuts)}.", "Correct them.")
    elif cuts and horizon is not None and numbers[-1:] != [horizon]:
        what = f"the last cut is the horizon, but the horizon is {horizon}."
        yield Problem(place("target", "horizon"), what, "Leave one of them out.")
    if len(cuts) > 200:
        yield Problem(place("target", "cuts"), f"expected at most 200, got {len(cuts)}.", "Agree on fewer.")


def weight_problems(
    raw: Mapping[str, Any], target: Mapping[str, Any], features: Mapping[str, Any], place: Callable[..., str]
) -> Iterable[Problem]:
    column = raw.get("weight_column", "")
    if not column or not isinstance(column, str):
        return
    where = place("weight_column")
    if column in features:
        yield Problem(place("features", column), "the column of weights is also a feature.", "Remove this section.")
    if column in (target.get("column"), target.get("time"), raw.get("site_column")):
        yield Problem(where, "this column already has another role in the study.", "Name another.")
    for section, what in (("images", "pictures"), ("parties", "columns of the same people")):
        if raw.get(section):
            yield Problem(where, f"a study of {what} cannot have weights.", "Remove it.")
    protect = raw.get("protect")
    if isinstance(protect, Mapping) and protect.get("rows"):
        what = "under row-level privacy every row must count once, so rows cannot have weights."
        yield Problem(where, what, "Remove it, or remove rows under [protect].")
