"""Ids as people and programs write them: what is wrong is named with its rows, and all at once."""

from __future__ import annotations

import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vitrail as vt
from tests.support.vertical.parties import guest_table, host_table, names, study
from vitrail.data.findings import CheckFinding
from vitrail.vertical.matching.ids import FORMS, look, other_forms, shape, spell

EAN = [f"{756_1234_5678_00 + i}" for i in range(40)]


def with_check_digit(digits: str) -> str:
    total = sum(int(d) * (1 if i % 2 else 3) for i, d in enumerate(reversed(digits)))
    return f"{digits}{-total % 10}"


def faults(ids: list[object], form: str = "trimmed") -> dict[str, CheckFinding]:
    _, found = look(guest_table(ids), study(match={"form": form}), "lab")
    return {finding.kind: finding for finding in found}


@given(st.text(max_size=20))
@settings(max_examples=200, deadline=None)
def test_spelling_twice_is_spelling_once(text: str) -> None:
    for form in FORMS:
        assert spell(spell(text, form), form) == spell(text, form)


def test_forms_are_ever_looser() -> None:
    """Ids that one form takes for one, the next ones do too: none is asked for in vain."""
    pairs = {
        "trimmed": (" A1", "A1"),
        "folded": ("ch-756.1", "CH7561"),
        "digits": ("756.12", "75612 (old)"),
        "number": ("0012", "12"),
    }
    for n, form in enumerate(FORMS[1:], 1):
        a, b = pairs[form]
        assert spell(a, FORMS[n - 1]) != spell(b, FORMS[n - 1])
        if form != "digits":
            assert spell(a, form) == spell(b, form)
    assert spell("756.12", "digits") == spell("75612 (old)", "digits") == "75612"
    assert spell("０１２", "trimmed") == "012"  # full width
    assert spell("000", "number") == "0"


def test_good_ids_have_no_faults() -> None:
    assert faults(list(names(0, 200))) == {}
    assert faults([with_check_digit(one) for one in EAN]) == {}
    assert faults(list(range(1000, 1200))) == {}
    assert faults([float(i) for i in range(1000, 1200)]) == {}  # a program made floats of them


@pytest.mark.parametrize(
    ("ids", "form", "kind", "rows", "words"),
    [
        (["a", None, "c", " ", float("nan")], "trimmed", "empty_id", (1, 3, 4), "3 rows have no id"),
        (["12", "abc", "34"], "digits", "empty_id", (1,), "1 ids are empty once form = 'digits'"),
        (["a", "b", "a", "c", "b"], "exact", "repeated_id", (0, 1, 2, 4), "4 rows share their id"),
        (["A1", "a1", "b2"], "folded", "colliding_ids", (0, 1), "'A1' and 'a1'"),
        (["0012", "12", "13"], "number", "colliding_ids", (0, 1), "'0012' and '12'"),
        (["7.56E+12", "7561234567890"], "digits", "rounded_id", (0,), "7.56E+12"),
        ([2.0**60, 12.0], "trimmed", "rounded_id", (0,), "rounded numbers"),
    ],
)
def test_errors_name_their_rows(ids: list[object], form: str, kind: str, rows: tuple[int, ...], words: str) -> None:
    found = faults(ids, form)[kind]
    assert found.severity == "error"
    assert found.rows == rows
    assert found.column == "pid"
    assert words in found.text
    assert found.hint


@pytest.mark.parametrize(
    ("ids", "form", "kind", "count", "hint"),
    [
        (["A 1", "A2", "A3"], "trimmed", "spaces_in_id", 1, 'form = "folded"'),
        (["AB1", "AB2", "ab3"], "trimmed", "case_of_id", 1, 'form = "folded"'),
        (["10012", "10013", "10014", "912"], "digits", "leading_zeros", 1, 'form = "number"'),
        ([*map(with_check_digit, EAN), *(f"{one}" for one in EAN[:3])], "digits", "check_digit", 3, "last digit"),
    ],
)
def test_spellings_that_others_may_not_share_are_warned_of(
    ids: list[object], form: str, kind: str, count: int, hint: str
) -> None:
    found = faults(ids, form)[kind]
    assert (found.severity, found.count) == ("warning", count)
    assert hint in found.hint


@pytest.mark.parametrize(
    ("ids", "form", "kind"),
    [
        (["A 1", "A2"], "folded", "spaces_in_id"),
        (["AB1", "AB2", "ab3"], "folded", "case_of_id"),
        (["10012", "10013", "10014", "912"], "number", "leading_zeros"),
        (["10012", "10013", "00014", "912"], "digits", "leading_zeros"),  # zeros are there: none was taken away
        ([*EAN, *(one[:-1] for one in EAN)], "digits", "check_digit"),  # the last digit follows from nothing
    ],
)
def test_and_not_where_there_is_nothing_to_warn_of(ids: list[object], form: str, kind: str) -> None:
    assert kind not in faults(ids, form)


def test_row_numbers_are_those_of_the_file() -> None:
    frame = guest_table(["a", "b", "a"])
    frame.index = pd.Index([2, 3, 5])  # lines: one of them was empty
    _, found = look(frame, study(), "lab")
    assert found[0].rows == (2, 5)


def test_no_id_column_and_a_target_at_a_guest() -> None:
    frame = guest_table(["a", "b"]).rename(columns={"pid": "PID"}).assign(sick="no")
    seen, found = look(frame, study(), "lab")
    assert seen is None
    assert {f.kind for f in found} == {"no_id", "target_at_guest"}
    assert any("Did you mean 'PID'?" in f.hint for f in found)


def test_all_problems_of_all_parties_come_at_once_and_before_anything_crosses() -> None:
    tables = {
        "hospital": host_table(["a", "a", None]).drop(columns="sick"),
        "lab": guest_table(["x"]).drop(columns="pid").assign(sick=1),
    }
    with pytest.raises(vt.VitrailError) as caught:
        vt.match(study(), tables)
    told = str(caught.value)
    for words in (
        "1 rows have no id",
        "2 rows share",
        "expected one column of ids",
        "table of this guest",
        "has no target",
    ):
        assert words in told
    assert "rows 0, 1" in told


def test_tables_and_parties_must_be_the_same() -> None:
    with pytest.raises(vt.VitrailError) as caught:
        vt.match(study(), {"hospital": host_table(["a"]), "labor": guest_table(["a"])})
    assert "there is no table of this party" in str(caught.value)
    assert "the study has no such party" in str(caught.value)
    plain = vt.Study.parse({"target": {"column": "y", "classes": [0, 1]}, "features": {"x": {"kind": "numeric"}}})
    with pytest.raises(vt.VitrailError, match="no parties"):
        vt.match(plain, {})


def test_words_about_ids_hold_no_id() -> None:
    for ids in (names(0, 30), EAN, ["ä-1", "b 2"]):
        assert not any(one in shape(ids) for one in ids)
    assert "check digit" in shape([with_check_digit(one) for one in EAN])
    assert other_forms({"a": ["0012"], "b": ["12"]}, "trimmed") == ["number"]
    assert other_forms({"a": ["12"]}, "trimmed") == []
