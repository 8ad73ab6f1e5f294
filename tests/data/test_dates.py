"""Dates as hospitals write them."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from vitrail.data.dates import as_days


@pytest.mark.parametrize(
    ("text", "day"),
    [
        ("31.12.2021", "2021-12-31"),
        ("2021/3/4 10:30", "2021-03-04"),
        ("20210304", "2021-03-04"),
        ("2021", "2021-01-01"),
    ],
)
def test_dates_as_hospitals_write_them(text: str, day: str) -> None:
    assert as_days(pd.Series([text])) == as_days(pd.Series([pd.Timestamp(day)]))


def test_a_date_that_could_be_two_is_none() -> None:
    assert np.isnan(as_days(pd.Series(["03/04/2021", "05/06/2021"]))).all()
    assert as_days(pd.Series(["03/04/2021", "05/16/2021"]))[0] == as_days(pd.Series(["2021-03-04"]))[0]
    assert as_days(pd.Series(["03/04/2021", "16/06/2021"]))[0] == as_days(pd.Series(["2021-04-03"]))[0]
