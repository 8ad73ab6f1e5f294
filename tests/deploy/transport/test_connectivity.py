"""A site says when its coordinator went away and when it is back; a coordinator says in words why a site is silent."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from vitrail.deploy.site.process import REFUSED, UNTRUSTED, SiteProcess, TransportConsole
from vitrail.deploy.transport.connectivity import AWAY, BACK, Connectivity
from vitrail.deploy.transport.flare.job import UNANSWERED, OpenJob
from vitrail.deploy.transport.flare.job_failures import PartLosses
from vitrail.deploy.transport.flare.transport import FlareTransport

LINE = f"2026-11-17 09:50:43,131 - CoreCell - WARNING - [ME=:1 D=server TP=heart_beat] {AWAY}\n"


class Time:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def said() -> list[str]:
    return []


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def reach(said: list[str], time: Time) -> Connectivity:
    return Connectivity("hub:8002", said.append, time)


def test_it_says_once_that_the_coordinator_went_away_and_once_that_it_is_back(
    reach: Connectivity, said: list[str], time: Time
) -> None:
    reach.look()
    assert said == []
    for _ in range(30):  # a minute without it
        time.now += 2
        reach.missed()
        reach.look()
    assert len(said) == 1
    assert re.match(r"\d\d:\d\d:\d\d  The coordinator at hub:8002 cannot be reached", said[0])
    time.now += BACK / 2
    reach.look()
    assert len(said) == 1, "a few quiet seconds are no sign"
    time.now += BACK
    reach.look()
    assert len(said) == 2
    assert said[1].endswith("The coordinator can be reached again, after 73 seconds.")
    reach.look()
    assert len(said) == 2


def test_a_question_says_so_at_once(reach: Connectivity, said: list[str], time: Time) -> None:
    reach.missed()
    time.now += 1
    reach.note_question()
    reach.look()
    assert "can be reached again, after 1 seconds" in said[1]


def test_a_process_that_was_just_started_has_to_find_out_first(
    reach: Connectivity, said: list[str], time: Time
) -> None:
    reach.missed()
    time.now += 60
    reach.note_start()
    reach.look()
    assert len(said) == 1


def test_what_flare_writes_is_read_as_it_grows(tmp_path: Path) -> None:
    place = tmp_path / "console.txt"
    place.write_text(LINE)
    console = TransportConsole(place)
    assert console.signs() == [], "of a run before"
    for _ in range(2):
        with place.open("a") as file:
            file.write(LINE)
        assert console.signs() == [AWAY], "whenever it is there"
    with place.open("a") as file:
        file.write(f"{UNTRUSTED}\n{REFUSED}\n{AWAY}")  # the last line is not whole
    assert console.signs() == [UNTRUSTED, REFUSED]
    assert console.signs() == []


def test_the_door_tells(reach: Connectivity, said: list[str]) -> None:
    door = SiteProcess.__new__(SiteProcess)
    door.reach, door.say = reach, said.append
    door._tell(AWAY)
    assert "cannot be reached" in said[0]


@pytest.mark.parametrize("code", [*UNANSWERED, "RUN_MISMATCH"])
def test_a_code_of_the_transport_is_told_in_words(code: str) -> None:
    way = FlareTransport.__new__(FlareTransport)
    way.names, way.awake, way.alive, way.losses, way.most = {"id": "north"}, set(), {}, PartLosses(), None
    trouble: dict[str, str] = {}
    asked = {"north": (OpenJob("1", {"north"}), 1)}
    way._take(({"site": "id", "number": 1, "code": code}, b""), asked, {}, trouble)
    assert not re.search("[A-Z]{2,}|_", trouble["north"])
    assert len(trouble["north"].split()) >= 4
