"""What a terminal shows where there is little to show: few rows, no score, something that was passed over."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from vitrail.cli import show_note
from vitrail.cli.output import defined, small_samples_of
from vitrail.data.readers.source import PassedOverWarning


def test_what_was_passed_over_is_a_note(capsys: pytest.CaptureFixture[str]) -> None:
    show_note("clinic: not read: notes.txt.", PassedOverWarning, "here.py", 1)
    streams = capsys.readouterr()
    assert (streams.out, streams.err) == ("", "note: clinic: not read: notes.txt.\n")


def test_a_score_that_is_not_defined_is_no_number() -> None:
    assert defined(math.nan) == "not defined"
    assert (defined(0.0), defined("va")) == (0.0, "va")


def test_sites_with_few_hold_out_rows_are_marked() -> None:
    sizes = pd.DataFrame({"site": ["a", "b"], "test_rows": [300, 8], "few_rows": ["", "8 rows"]})
    assert small_samples_of(sizes) == {"b": "8 rows"}
    assert small_samples_of(sizes.drop(columns="few_rows")) == {}
