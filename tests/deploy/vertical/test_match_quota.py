"""A party that puts the whole space of ids into its list, declares another length, or matches again and again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import vitrail as vt
from tests.support.deploy.enrolment import refused
from tests.support.deploy.talking import Houses, study
from vitrail.core.errors import VitrailError
from vitrail.deploy.vertical import process as party_process
from vitrail.deploy.vertical import session as party_session
from vitrail.deploy.vertical.mailbox import RemoteMailbox
from vitrail.deploy.vertical.match_quota import MOST_MATCHES, MatchQuota, list_ratio
from vitrail.deploy.vertical.session import MATCH
from vitrail.vertical.mailbox import Program
from vitrail.vertical.matching import protocol
from vitrail.vertical.matching.match import Match
from vitrail.vertical.matching.protocol import Length

LAB = [f"CH-{i:06d}" for i in range(0, 600, 3)]  # 200 people of an id space of 2000
SPACE = [f"CH-{i:06d}" for i in range(2000)]


def two_parties(**match: Any) -> vt.Study:
    parties = {k: v.model_dump() for k, v in study().parties.items() if k != "insurer"}
    said = {k: v for k, v in study().model_dump().items() if k not in ("parties", "match")}
    return vt.Study.parse({**said, "parties": parties, "match": {"at_least": 50, **match}})


def houses(place: Path, agreed: vt.Study, ids: list[str], **given: Any) -> Houses:
    """A clinic with these ids, and the lab."""
    clinic = pd.DataFrame({"patient": ids, "age": 50, "sex": "f", "sick": ["yes", "no"] * (len(ids) // 2)})
    lab = pd.DataFrame({"pid": LAB, "crp": range(len(LAB)), "blood": "A"})
    return Houses(place, agreed, {"clinic": clinic, "lab": lab}, **given)


def found_by_clinic(made: Houses) -> set[str]:
    """The ids of the lab that the clinic knows when the match is over; the study itself need not go on."""
    try:
        made.connect()
    except VitrailError as error:
        if "match" not in {f.parent.name for f in made.home("clinic").glob("*/*.json")}:
            raise error from None
    match = Match.load(made.home("clinic") / MATCH)
    return set(made.frames["clinic"]["patient"].iloc[match.places["clinic"]])


def another_run(made: Houses) -> Houses:
    """Nothing of an earlier run is there; what is kept over all runs is."""
    for party in made.parties:
        for file in made.home(party).glob("**/*.json"):
            file.unlink()
    return made


def left(made: Houses, party: str) -> list[str]:
    return [entry.kind for entry in made.parties[party].outbox.entries() if entry.direction == "out"]


def test_the_whole_id_space_is_refused_before_the_list_leaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The study, which an attacker wrote, allows ten times as many; the lab's officer has said nothing.

    The control: without the officer's own limit the clinic learns every id of the lab."""
    shown = list[str]()
    agreed = two_parties(ratio=10)
    made = houses(tmp_path / "refused", agreed, SPACE, lab={"say": shown.append})
    with pytest.raises(VitrailError, match="another list is much longer than this one"):
        made.connect()
    assert "Ids in the other lists: clinic 2000; in your list: 200." in shown, "the officer sees it"
    assert "Length" in left(made, "lab")
    assert "List" not in left(made, "lab")
    assert not MatchQuota(tmp_path / "refused" / "lab").begun, "what reveals nothing is not counted"
    with monkeypatch.context() as patch:
        patch.setattr(party_session, "check_lengths", lambda *_: None)
        assert found_by_clinic(houses(tmp_path / "control", agreed, SPACE)) == set(LAB)
    allowed = houses(tmp_path / "allowed", agreed, SPACE, lab={"list_ratio": 10.0})
    assert found_by_clinic(allowed) == set(LAB), "an officer may allow it"


def test_a_study_that_says_nothing_allows_twice_as_many(tmp_path: Path) -> None:
    with pytest.raises(VitrailError, match="more than 2 times as long"):
        houses(tmp_path / "long", two_parties(), SPACE[:402]).connect()
    assert found_by_clinic(houses(tmp_path / "twice", two_parties(), SPACE[:400])) == set(LAB) & set(SPACE[:400])


def test_a_list_that_is_longer_than_was_said_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clinic says 200 and sends 2000. The control: where nobody compares, it learns every id of the lab."""
    honest = protocol._lengths

    def lying(mailbox: Any, own: int, agreed: Any) -> Program[dict[str, int]]:
        lengths = yield from honest(mailbox, 200 if mailbox.name == "clinic" else own, agreed)
        return {**lengths, mailbox.name: own} if mailbox.name == "lab" else lengths

    monkeypatch.setattr(protocol, "_lengths", lying)
    agreed = two_parties(ratio=10)
    made = houses(tmp_path / "refused", agreed, SPACE)
    with pytest.raises(VitrailError, match="clinic announced 200 ids, but its list has 2000"):
        made.connect()
    assert "List" not in left(made, "lab")
    with monkeypatch.context() as patch:
        patch.setattr(protocol, "_as_long", lambda one, lengths: one)
        assert found_by_clinic(houses(tmp_path / "control", agreed, SPACE)) == set(LAB)


@pytest.mark.parametrize("length", [0, -1, 10**30])
def test_lengths_that_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length: int) -> None:
    post = RemoteMailbox.post

    def lie(line: Any, receiver: str, letter: Any) -> None:
        post(line, receiver, Length(length) if line.name == "clinic" and isinstance(letter, Length) else letter)

    monkeypatch.setattr(RemoteMailbox, "post", lie)
    made = houses(tmp_path, two_parties(), SPACE[:300])
    with pytest.raises(VitrailError):
        made.connect()
    assert "List" not in left(made, "lab")


def test_matches_are_counted_over_runs_and_end_without_a_new_yes(tmp_path: Path) -> None:
    """A clinic with half of the id space in each of its lists, in run after run."""
    agreed, known = two_parties(), set[str]()
    for number in range(MOST_MATCHES):
        known |= found_by_clinic(another_run(houses(tmp_path, agreed, SPACE[200 * number : 200 * number + 400])))
    assert known == set(LAB) & set(SPACE[: 200 * (MOST_MATCHES - 1) + 400])
    log = MatchQuota(tmp_path / "lab")
    assert log.spent
    assert [entry["lengths"] for entry in log.begun] == [{"lab": 200, "clinic": 400}] * MOST_MATCHES
    assert log.path.stat().st_mode & 0o777 == 0o600
    again = another_run(houses(tmp_path, agreed, SPACE[:400]))
    sent = left(again, "lab").count("List")
    with pytest.raises(VitrailError, match="no matches are left"):
        again.connect()
    assert left(again, "lab").count("List") == sent
    log.allow_more()
    MatchQuota(tmp_path / "clinic").allow_more()
    assert found_by_clinic(another_run(houses(tmp_path, agreed, SPACE[:400]))), "the control: with a new yes it goes on"


def test_a_new_yes_is_another_hash_to_accept(tmp_path: Path) -> None:
    """A service that starts with --accept HASH does not say yes by itself."""
    log = MatchQuota(tmp_path)
    assert party_process._accepted("abc", "abc", log) == "abc"
    for run in range(MOST_MATCHES):
        log.begin(str(run), {"lab": 1})
    assert log.spent
    assert log.ending == "-2"
    assert party_process._accepted("abc", "abc", log) == "abc", "it joins, for the rows that it has"
    assert log.spent
    assert party_process._accepted("abc", "abc-3", log) == "abc-3", "which is nobody's hash"
    assert party_process._accepted("abc", "abc-2", log) == "abc"
    assert (log.allowed, MatchQuota(tmp_path).allowed) == (2 * MOST_MATCHES, 2 * MOST_MATCHES)
    assert party_process._accepted("abc", "abc-2", log) == "abc", "the same again allows no more"
    assert log.allowed == 2 * MOST_MATCHES


def test_a_log_that_cannot_be_read_allows_nothing(tmp_path: Path) -> None:
    for text in ("", "[" * 100_000, json.dumps({"allowed": "x", "begun": []}), "{}"):
        (tmp_path / "matches.json").write_text(text)
        refused("the count of matches cannot be read", MatchQuota, tmp_path)


def test_what_an_officer_may_allow() -> None:
    assert list_ratio(10, None) == 2
    assert list_ratio(1.5, None) == 1.5
    assert list_ratio(10, 7) == 7
    refused("more than 10, the limit in the study", list_ratio, 10, 11)
