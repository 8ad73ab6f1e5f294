"""What is said once: the laws of the journal, at every byte and call at which a process can be killed."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import shutil
from collections.abc import Callable

import pytest

from tests.support.crashes import every_crash
from vitrail.core.errors import JournalDamaged, QuestionChanged, RoundForgotten
from vitrail.storage.journal import AnswerJournal, DecisionRecord, QuestionLog, RecentJournals, write_once


@pytest.fixture
def draw() -> Callable[[], bytes]:
    """Another answer each time that one is made: what is said twice is then seen to come from the disk."""
    numbers = itertools.count()
    return lambda: b"answer %d" % next(numbers)


def test_a_question_is_answered_once_and_after_a_restart_the_same(tmp_path, draw) -> None:
    first = AnswerJournal(tmp_path / "screen", "screening").answer("counts", b"question", draw)
    assert AnswerJournal(tmp_path / "screen", "screening").answer("counts", b"question", draw) == first
    assert AnswerJournal(tmp_path / "screen", "screening").answered("counts") == first
    assert AnswerJournal(tmp_path / "screen", "screening").answer("ties", b"question", draw) != first  # another name
    assert AnswerJournal(tmp_path / "screen", "screening").answered("total") is None


def test_files_of_a_run_that_an_earlier_version_began_are_read(tmp_path) -> None:
    """It wrote them just so: an answer behind the hash of its question, a line for each question of a round."""
    (tmp_path / "screen").mkdir()
    (tmp_path / "screen" / "counts.said").write_bytes(hashlib.sha256(b"question").digest() + b"its answer")
    journal = AnswerJournal(tmp_path / "screen", "screening")
    assert journal.answer("counts", b"question", lambda: pytest.fail("answered anew")) == b"its answer"
    digests = [hashlib.sha256(question).hexdigest()[:32] for question in (b"a", b"b")]
    (tmp_path / "asked.jsonl").write_text("".join(f'["round 0", "{digest}"]\n' for digest in digests))
    log = QuestionLog(tmp_path / "asked.jsonl")
    log.note("round 0", b"a", 0)
    assert log.changed == 1


def test_the_same_name_with_another_content_is_refused_and_nothing_is_made(tmp_path, draw) -> None:
    first = AnswerJournal(tmp_path / "screen", "screening").answer("counts", b"question", draw)
    for changed in (b"question!", b"", b"Question"):
        with pytest.raises(QuestionChanged, match="screening, counts: it was asked before") as refused:
            AnswerJournal(tmp_path / "screen", "screening").answer(
                "counts", changed, lambda: pytest.fail("an answer was made")
            )
        assert first.decode() not in str(refused.value)
    assert AnswerJournal(tmp_path / "screen", "screening").answer("counts", b"question", draw) == first


def test_no_answer_is_heard_that_another_could_follow(tmp_path, draw) -> None:
    """The law itself: kill the site at any byte of its answer. Either nobody heard one, or the same comes again."""
    heard = list[bytes]()
    folder = tmp_path / "screen"
    crashes = 0
    for _ in every_crash(lambda: heard.append(AnswerJournal(folder, "screening").answer("counts", b"question", draw))):
        assert not heard  # it is killed in a write, and answers after its writes
        left = AnswerJournal(folder, "screening").answered("counts")
        again = AnswerJournal(folder, "screening").answer("counts", b"question", draw)
        assert left in (None, again)
        assert AnswerJournal(folder, "screening").answer("counts", b"question", draw) == again
        with pytest.raises(QuestionChanged):
            AnswerJournal(folder, "screening").answer("counts", b"another", draw)
        shutil.rmtree(folder)
        crashes += 1
    assert len(heard) == 1
    assert crashes > 32 + len(b"answer 0") + 3  # each byte, and fsync, replace, fsync of the folder


def test_an_answer_is_on_the_disk_before_it_is_given(tmp_path, draw, monkeypatch) -> None:
    """File and name, both: a power cut may undo what was not synced."""
    synced = list[str]()
    real = os.fsync

    def note(file: int) -> None:
        synced.append(os.readlink(f"/proc/self/fd/{file}"))
        real(file)

    monkeypatch.setattr(os, "fsync", note)
    AnswerJournal(tmp_path / "screen", "screening").answer("counts", b"question", draw)
    assert synced == [str(tmp_path / "screen" / "counts.said.new"), str(tmp_path / "screen")]
    synced.clear()
    QuestionLog(tmp_path / "asked.jsonl").note("round 0", b"question", 0)
    assert synced == [str(tmp_path / "asked.jsonl"), str(tmp_path)]
    synced.clear()
    DecisionRecord(tmp_path / "sums.json").update({"list": []})
    assert synced == [str(tmp_path / "sums.json.new"), str(tmp_path)]


def test_what_a_site_keeps_is_for_its_owner_only(tmp_path, draw) -> None:
    AnswerJournal(tmp_path / "screen", "screening").answer("counts", b"question", draw)
    QuestionLog(tmp_path / "asked.jsonl").note("round 0", b"question", 0)
    write_once(tmp_path / "own.key", draw)
    DecisionRecord(tmp_path / "seeds.json", private=True).update({"seed": "00"})
    assert (tmp_path / "screen").stat().st_mode & 0o777 == 0o700
    for path in ("screen/counts.said", "asked.jsonl", "own.key", "seeds.json"):
        assert (tmp_path / path).stat().st_mode & 0o777 == 0o600, path


def test_a_log_lets_so_many_questions_change_over_all_names(tmp_path) -> None:
    log = QuestionLog(tmp_path / "asked.jsonl")
    for name, question in itertools.product(("round 0", "round 1"), (b"a", b"b")):
        log.note(name, question, 2)
    before = log.path.read_bytes()
    for again in (log, QuestionLog(log.path)):
        for name, question in itertools.product(("round 0", "round 1"), (b"a", b"b")):
            again.note(name, question, 0)  # what was answered is answered again, whatever the limit
        again.note("round 2", b"a", 2) if again is log else None  # the first under a name changes nothing
        with pytest.raises(QuestionChanged, match="has sent 2 changed versions"):
            again.note("round 1", b"c", 2)
    assert len(log.path.read_bytes().splitlines()) == len(before.splitlines()) + 1


def test_no_question_is_answered_that_the_log_could_forget(tmp_path) -> None:
    """Kill the site at any byte of its note: a question that it went on to answer is in the log of the next process."""
    path, answered = tmp_path / "asked.jsonl", list[bytes]()
    QuestionLog(path).note("round 0", b"first", 0)
    start = path.read_bytes()

    def act() -> None:
        QuestionLog(path).note("round 1", b"question", 0)
        answered.append(b"question")

    for _ in every_crash(act):
        assert not answered
        log = QuestionLog(path)
        log.note("round 0", b"first", 0)
        log.note("round 1", b"question", 0)
        assert log.changed == 0
        with pytest.raises(QuestionChanged):
            QuestionLog(path).note("round 1", b"another", 0)
        path.write_bytes(start)
    assert answered
    assert QuestionLog(path).digests.keys() == {"round 0", "round 1"}


def test_a_log_that_cannot_be_read_is_not_taken_for_an_empty_one(tmp_path) -> None:
    path = tmp_path / "asked.jsonl"
    QuestionLog(path).note("round 0", b"question", 0)
    path.write_bytes(b"damaged\n" + path.read_bytes())
    with pytest.raises(JournalDamaged, match=r"asked\.jsonl:1"):
        QuestionLog(path)


@pytest.mark.parametrize("content", ["", "{", "[1, 2]", "null"])
def test_decisions_that_cannot_be_read_are_not_taken_for_none(tmp_path, content) -> None:
    record = DecisionRecord(tmp_path / "sums.json")
    assert record.read() == {}
    record.path.write_text(content)
    for act in (record.read, lambda: record.once("list", list), lambda: record.update({"list": []})):
        with pytest.raises(JournalDamaged, match=r"sums\.json"):
            act()
    assert record.path.read_text() == content
    record.replace({"list": []})  # whoever knows what to do about it can
    assert record.read() == {"list": []}


def test_the_oldest_are_forgotten_and_never_begun_again(tmp_path, draw) -> None:
    def answer(number: tuple[int, int, int]) -> bytes:
        return AnswerJournal(RecentJournals(tmp_path, 3).at(number), "sum").answer("halves", b"question", draw)

    first = [answer((0, r, 0)) for r in range(4)]
    assert [answer((0, r, 0)) for r in (1, 2, 3)] == first[1:]
    later = answer((1, 0, 0))  # a later stage, though of a lower round
    assert answer((1, 0, 0)) == later
    for past in ((0, 0, 0), (0, 1, 0)):
        with pytest.raises(RoundForgotten):
            answer(past)
    kept = sorted(f.name for f in tmp_path.iterdir() if f.is_dir())
    assert kept == ["000000-000002-000000", "000000-000003-000000", "000001-000000-000000"]


def test_no_crash_lets_a_forgotten_round_begin_anew(tmp_path, draw) -> None:
    def answer(r: int) -> bytes:
        return AnswerJournal(RecentJournals(tmp_path / "sums", 2).at((0, r, 0)), "sum").answer(
            "halves", b"question", draw
        )

    def fill() -> list[bytes]:
        shutil.rmtree(tmp_path / "sums", ignore_errors=True)
        return [answer(r) for r in range(3)]

    given, crashes = fill(), 0
    for _ in every_crash(lambda: answer(3)):
        with contextlib.suppress(RoundForgotten):
            assert answer(0) == given[0]
        answer(3)
        assert answer(2) == given[2]
        with pytest.raises(RoundForgotten):
            answer(0)
        given, crashes = fill(), crashes + 1
    assert crashes > 50  # the mark, what is deleted, the new answer


def test_what_was_decided_stands_after_a_restart(tmp_path, draw) -> None:
    path = tmp_path / "scale.json"
    first = DecisionRecord(path).once("1", lambda: ["bern", "basel"])
    assert DecisionRecord(path).once("1", lambda: pytest.fail("decided twice")) == first
    DecisionRecord(path).once("2", lambda: ["bern"])
    assert DecisionRecord(path).read() == {"1": ["bern", "basel"], "2": ["bern"]}
    assert DecisionRecord(path).update({"2": []}) == {"1": ["bern", "basel"], "2": []} == DecisionRecord(path).read()
    assert DecisionRecord(path).once("3", lambda: (1, 2)) == [1, 2]  # as every later process will read it
    DecisionRecord(path).forget()
    assert DecisionRecord(path).read() == {}
    key = write_once(tmp_path / "own.key", draw)
    assert write_once(tmp_path / "own.key", draw) == key == (tmp_path / "own.key").read_bytes()


@pytest.mark.parametrize("many", [False, True])
def test_nothing_is_told_that_is_decided_otherwise_after_a_crash(tmp_path, many) -> None:
    """A coordinator that decides, tells, and goes on; killed anywhere, also between two tellings."""
    path, counts = tmp_path / "lists", itertools.count()

    def decide() -> object:
        if many:
            return DecisionRecord(path).once("list", lambda: next(counts))
        return json.loads(write_once(path, lambda: str(next(counts)).encode()))

    told = list[object]()
    tell = tmp_path / "wire"

    def conduct() -> None:
        for site in ("bern", "basel"):
            told.append(decide())
            tell.with_name(site).unlink(missing_ok=True)  # a step between two tellings, at which it can be killed

    crashes = 0
    for at in every_crash(conduct):
        after = decide()
        assert set(told) <= {after}, at
        told.clear()
        path.unlink()
        crashes += 1
    assert len(set(told)) == 1
    assert crashes >= 6
