"""A draft of a study about the time to an event."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from vitrail.core.errors import Problem, VitrailError
from vitrail.data.readers.cells import as_numbers

DAYS = (30.0, 90.0, 180.0, 365.0, 730.0, 1095.0, 1825.0, 3650.0)  # people ask by these, if days they are
FOLLOWED = 0.8  # until the horizon so many rows have had the event or left: a fifth is seen to its end


def draft_times(event: Mapping[str, Any], time: str, values: pd.Series) -> tuple[dict[str, Any], str]:
    """The target as a study file would write it, and what a person should know. `event`: as one of classes; `values`:
    how long each row was followed."""
    numbers, bad = as_numbers(values)
    times = numbers.dropna().to_numpy(np.float64)
    problems = []
    if len(event.get("classes", ())) != 2:
        many = len(event.get("classes", ()))
        what = f"expected a column with two values, for whether the event was seen; got {many} values."
        problems.append(Problem(f"--target {event['column']}", what, "Name a column with two values."))
    if bad.any() or not len(times) or (times < 0).any() or not (times > 0).any():
        what = "expected how long each row was followed, as numbers of at least 0."
        problems.append(Problem(f"--time {time}", what, "Name a column of days, months or years."))
    if problems:
        raise VitrailError("cannot draft a study of times", problems)
    horizon = pick_horizon(times)
    target = {"kind": "time", "time": time, "event": event["column"], "horizon": horizon, "intervals": 10}
    question = (
        f"The outcome is whether {event['column']} = {event['positive']} occurs by {horizon:g}, counted as in {time}"
    )
    return target | {k: event[k] for k in ("classes", "positive")}, f"{question}. This horizon is a guess: agree on it."


def pick_horizon(followed: np.ndarray) -> float:
    """The largest round number by which FOLLOWED of the rows have had the event or left.

    >>> pick_horizon(np.arange(1.0, 1001)), pick_horizon(np.arange(1.0, 13)), pick_horizon(np.array([0.4, 0.3]))
    (730.0, 5.0, 0.2)
    """
    most = float(np.quantile(followed[followed > 0], FOLLOWED))
    ten = float(10.0 ** np.floor(np.log10(most)))
    round_ones = [m * ten for m in (1.0, 2.0, 5.0)] + (list(DAYS) if most >= DAYS[0] else [])
    return max(n for n in round_ones if n <= most)
