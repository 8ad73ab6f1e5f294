"""Which rows are held out, by hand."""

from __future__ import annotations

import pandas as pd

from vitrail.data.readers.tables import clean
from vitrail.data.schema import Feature, Split, TableSchema, Target
from vitrail.data.splitting import hold_out


def test_the_day_from_which_is_tested_is_tested_itself() -> None:
    split = Split(by="date", column="day", test_from="2021-06-01")
    features = {"age": Feature(kind="numeric")}
    table = TableSchema(target=Target(column="sick", classes=(0, 1)), features=features, split=split)
    days = ["2021-05-31", "2021-06-01", "2020-01-01", "2021-06-02"]
    frame = pd.DataFrame({"age": [50, 60, 70, 80], "sick": [0, 1, 1, 0], "day": days})
    train, test = hold_out(clean(frame, table), table, 0, "clinic")
    assert (train.tolist(), test.tolist()) == ([0, 2], [1, 3])
