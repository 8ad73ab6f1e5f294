"""Who is let in at the coordinator's door, and what is said about it: a restart, a lost connection, a second copy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("nvflare")
from nvflare.apis.fl_exception import NotAuthenticated

from vitrail.deploy.transport import ipc
from vitrail.deploy.transport.flare.admission import RUNNING, Doorkeeper
from vitrail.deploy.transport.flare.job_failures import PartLosses
from vitrail.deploy.transport.flare.transport import FlareTransport


class Door:
    """The door, and what `vitrail serve` says of who comes."""

    def __init__(self, folder: Path) -> None:
        (folder / ipc.MEMBERS).write_text(json.dumps({"s-va": {"approved": True, "removed": False}}))
        self.keeper = Doorkeeper(str(folder))
        self.keeper._tell = self._take  # type: ignore[method-assign]
        self.said: list[tuple[str, str]] = []
        self.way: Any = FlareTransport.__new__(FlareTransport)
        self.way.names, self.way.alive, self.way.removed, self.way.open = {"s-va": "va"}, {}, set(), []
        self.way.awake, self.way.losses = set(), PartLosses()
        self.way.say = lambda event, **told: self.said.append((event, told.get("why", "")))

    def _take(self, head: dict[str, Any]) -> None:
        self.way._note(None, head)

    def knock(self, copy: str) -> bool:
        try:
            self.keeper._enters("s-va", copy)
        except NotAuthenticated:
            return False
        return True


@pytest.fixture
def door(tmp_path: Path) -> Door:
    return Door(tmp_path)


def test_a_restart_is_said_and_a_new_connection_is_not(door: Door) -> None:
    assert all(door.knock(copy) for copy in ("home.1", "home.1", "home.1", "home.2", "home.2"))
    assert door.said == [("joined", ""), ("back", "")]


def test_a_site_that_was_gone_is_back(door: Door) -> None:
    door.knock("home.1")
    door.way.alive["va"] -= 60
    door.knock("home.1")
    assert door.said == [("joined", ""), ("back", "")]


def test_a_copied_kit_is_already_running(door: Door) -> None:
    assert door.knock("home.1")
    assert [door.knock("other.2") for _ in range(3)] == [False] * 3
    assert door.said == [("joined", ""), *[("refused", RUNNING)] * 3]


def test_a_kit_that_was_copied_with_its_home_is_already_running(door: Door) -> None:
    """Each cuts the other's connection, and knocks again: this went on for ever."""
    assert door.knock("home.1")
    assert door.knock("home.2")  # it may be a restart
    assert door.knock("home.1")  # it was none
    assert not door.knock("home.2")
    assert door.knock("home.1")
    assert not door.knock("home.2")
    assert door.said == [("joined", ""), ("back", ""), *[("refused", RUNNING)] * 2]


def test_without_the_starts_both_come_back_again_and_again(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control."""
    monkeypatch.setattr(door.keeper, "_is_second", lambda who, start: False)
    assert all(door.knock(f"home.{at % 2}") for at in range(10))
    assert door.said == [("joined", ""), *[("back", "")] * 9]
