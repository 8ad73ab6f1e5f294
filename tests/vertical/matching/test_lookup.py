"""Blind look-up: the right answer, counted, and neither end learns more."""

from __future__ import annotations

import secrets
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import vitrail as vt
from tests.support.vertical.parties import names
from vitrail.vertical.matching.curve import points
from vitrail.vertical.matching.lookup import TAG, Asked, LookupGuest, LookupHost, Table, Told, opened

IDS = names(0, 60)
ANSWERS = [bytes([i, 255 - i]) for i in range(60)]


class Spent:
    """A ration of a few questions."""

    def __init__(self, left: int) -> None:
        self.left = left

    def __call__(self, rows: int) -> None:
        if rows > self.left:
            raise vt.VitrailError("the ration is spent")
        self.left -= rows


def desk(left: int = 5) -> tuple[LookupGuest, Spent]:
    spend = Spent(left)
    return LookupGuest("lab", IDS, ANSWERS, "here", spend), spend


def test_the_answer_of_whom_was_asked_and_none_for_a_stranger() -> None:
    lab, spend = desk()
    rows = opened(lab.table)
    for i in (0, 17, 59):
        question = LookupHost(IDS[i], "here")
        assert question.read(lab.tell(question.asked), rows) == ANSWERS[i]
    stranger = LookupHost("CH-99999", "here")
    assert stranger.read(lab.tell(stranger.asked), rows) is None
    assert spend.left == 1


def test_questions_are_counted_and_end() -> None:
    lab, _ = desk(left=1)
    lab.tell(LookupHost(IDS[0], "here").asked)
    with pytest.raises(vt.VitrailError, match="ration is spent"):
        lab.tell(LookupHost(IDS[0], "here").asked)


def test_a_refused_question_is_not_counted() -> None:
    lab, spend = desk(left=1)
    for bad in (b"", bytes(32), bytes(31), "x", None):
        with pytest.raises(vt.VitrailError):
            lab.tell(Asked(bad))  # type: ignore[arg-type]
    assert spend.left == 1


def test_the_guest_does_not_learn_whom() -> None:
    """The same person twice is two questions that have nothing in common, and no candidate's point is one of them."""
    asked = [LookupHost(IDS[3], "here").asked.token for _ in range(2)]
    assert asked[0] != asked[1]
    assert not {*asked} & {*points(IDS, "here")}


def test_an_answered_question_opens_one_row() -> None:
    (lab, _), mine = desk(), LookupHost(IDS[3], "here")
    told, rows = lab.tell(mine.asked), opened(lab.table)
    for other in IDS[4:10]:
        assert LookupHost(other, "here").read(told, rows) is None
    assert mine.read(told, rows) == ANSWERS[3]


def test_two_tables_of_the_same_answers_have_nothing_in_common() -> None:
    one, other = desk()[0].table, desk()[0].table
    width = TAG + one.width
    rows = [{t.rows[i : i + width] for i in range(0, len(t.rows), width)} for t in (one, other)]
    assert len(rows[0]) == 60
    assert not rows[0] & rows[1]
    assert not any(t.rows[i : i + TAG] == bytes(TAG) for t in (one, other) for i in range(0, len(t.rows), width))


def test_the_order_of_the_table_is_not_that_of_rows() -> None:
    lab, _ = desk(left=60)
    rows = opened(lab.table)
    at = []
    for one in IDS:
        question = LookupHost(one, "here")
        told = lab.tell(question.asked)
        at += [i for i, (tag, row) in enumerate(rows.items()) if question.read(told, {tag: row})]
    assert sorted(at) == list(range(60))
    assert at != sorted(at)


def test_a_table_needs_an_answer_for_each_id() -> None:
    for ids, answers in ((IDS, ANSWERS[:-1]), ([], []), (IDS, [*ANSWERS[:-1], b"x"]), ([*IDS[:-1], IDS[0]], ANSWERS)):
        with pytest.raises(vt.VitrailError, match="the table of answers cannot be made"):
            LookupGuest("lab", ids, answers, "here", Spent(1))


@settings(max_examples=60, deadline=None)
@given(st.binary(max_size=80), st.integers(-2, 40))
def test_whatever_comes_is_used_or_refused_with_our_error(raw: bytes, width: int) -> None:
    question = LookupHost("a", "here")
    for told, table in ((Told(raw), Table(bytes(36), 2)), (Told(secrets.token_bytes(32)), Table(raw, width))):
        with suppress(vt.VitrailError):  # anything else that is raised fails
            assert question.read(told, opened(table)) is None
