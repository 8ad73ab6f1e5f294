"""Dates as hospitals write them, for a split by date."""

from __future__ import annotations

import datetime
import math
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray

YEAR_FIRST = re.compile(r"(\d{4})(?:[-/.]?(\d{1,2})(?:[-/.]?(\d{1,2}))?)?(?:[ T].*)?")
YEAR_LAST = re.compile(r"(\d{1,2})([-/.])(\d{1,2})\2(\d{4})(?:[ T].*)?")


def as_days(values: pd.Series) -> NDArray[np.float64]:
    """[row]: days since the year 1; NaN where there is no date, or where one cannot know which number is the month.

    31.12.2021 is read as day, month, year. 12/31/2021 and 31/12/2021 are told apart by the column: some number above
    12 has to show where the day stands.
    """
    import numpy as np  # a study is read without
    import pandas as pd

    texts = ["" if pd.isna(value) else str(value).strip() for value in values]
    matches = [YEAR_LAST.fullmatch(text) for text in texts]
    slashes = [m for m in matches if m and m[2] != "."]
    day_first = any(int(m[1]) > 12 for m in slashes)
    month_first = any(int(m[3]) > 12 for m in slashes)
    days: dict[str, float] = {}
    for text, match in zip(texts, matches, strict=True):
        if text in days:
            continue
        if match is None:
            days[text] = day_number(text)
        elif match[2] == "." or (day_first and not month_first):
            days[text] = _day(match[4], match[3], match[1])
        elif month_first and not day_first:
            days[text] = _day(match[4], match[1], match[3])
        else:
            days[text] = math.nan
    return np.array([days[text] for text in texts], np.float64)


def day_number(text: str) -> float:
    """Of a date that begins with its year; without a day or month, of the first one.

    >>> day_number("2021-01-02") - day_number("2021"), day_number("20210102") == day_number("2021/1/2 10:30")
    (1.0, True)
    """
    match = YEAR_FIRST.fullmatch(re.sub(r"\.0$", "", text))
    return _day(match[1], match[2] or "1", match[3] or "1") if match else math.nan


def _day(year: str, month: str, day: str) -> float:
    try:
        return float(datetime.date(int(year), int(month), int(day)).toordinal())
    except ValueError:
        return math.nan
