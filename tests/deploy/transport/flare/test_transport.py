"""The coordinator's way to the sites over a transport of this process: sites whose part of a job dies, and jobs that
break down as a whole. Over FLARE: test_flare_dying_jobs.py."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("nvflare")
from nvflare.private.defs import CellMessageHeaderKeys, JobFailureMsgKey

from vitrail.deploy.coordinator.requests import SiteRequests
from vitrail.deploy.protocol.message import Message, unpack
from vitrail.deploy.transport import ipc
from vitrail.deploy.transport.flare import admission, components
from vitrail.deploy.transport.flare.job_failures import AT_WORK, FIRST_REST, FORGOTTEN, MOST_REST, PartLosses
from vitrail.deploy.transport.flare.transport import FlareTransport
from vitrail.report.live.events import words

SITES = ["basel", "lyon", "turin", "vienna"]
QUESTION = Message("hello", {"number": 1})


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


class Transport:
    """In place of FLARE: a thread for each job. `sites`: what a site's part does with a question: answers, dies, breaks
    (the job's process ends, for all) or sleeps; "stillborn" dies before it is asked."""

    def __init__(self, place: str) -> None:
        self.place, self.sites = place, dict.fromkeys(SITES, "answers")
        self.begun: list[list[str]] = []
        self.ends: list[str] = []
        self.door = ipc.connect(place)

    def tell(self, **head: Any) -> None:
        self.door.put(head)

    def submit(self, sites: list[str]) -> str:
        self.begun.append(list(sites))
        number = f"job {len(self.begun)}"
        threading.Thread(target=self._run, args=(number, sites), daemon=True).start()
        return number

    def _run(self, number: str, sites: list[str]) -> None:
        with ipc.connect(self.place) as end:
            end.put({"event": "relay", "job": number})
            for site in [s for s in sites if self.sites[s] == "stillborn"]:
                self.tell(event="part ended", site=site, job=number)
            while True:
                try:
                    head, body = end.get()
                except (EOFError, OSError):
                    return
                if head["do"] == "end":
                    return
                does = self.sites[site := head["site"]]
                if does == "breaks":
                    return
                if does == "dies":
                    self.tell(event="part ended", site=site, job=number)
                elif does == "answers":
                    end.put({"site": site, "number": head["number"], "code": "OK"}, unpack(body).pack())

    def end(self, job: str) -> None:
        self.ends.append(job)

    def close(self) -> None:
        """Nothing is held."""


class Made:
    """A way, its transport, its clock and what it logged."""

    def __init__(self, folder: Path) -> None:
        sites = {name: {"identity": name, "approved": True, "removed": False} for name in SITES}
        (folder / "flare" / "coordinator").mkdir(parents=True)
        (folder / "coordinator.json").write_text(json.dumps({"sites": sites}))
        who: Any = SimpleNamespace(sites=sites, folder=folder, address="hub:8002")
        self.events = list[tuple[str, dict[str, Any]]]()
        self.way = FlareTransport(who, lambda event, **told: self.events.append((event, told)))
        self.clock = Clock()
        self.way.losses = PartLosses(self.clock)
        self.transport = Transport(self.way.listener.place)
        self.way.alive = dict.fromkeys(SITES, time.time() + 1000)

    def ask(self, deadline: float = 5.0) -> set[str]:
        return set(self.way.ask(dict.fromkeys(SITES, QUESTION), deadline).answers)

    def named(self, event: str = "part lost") -> list[tuple[str, int, float]]:
        return [(told["site"], told["times"], told["seconds"]) for e, told in self.events if e == event]


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Made]:
    made = Made(tmp_path)
    monkeypatch.setattr(components, "Jobs", lambda *_: made.transport)
    monkeypatch.setattr(components, "start_coordinator", lambda *_, **__: SimpleNamespace(poll=lambda: None))
    monkeypatch.setattr("vitrail.deploy.transport.flare.transport.stop", lambda *_: None)
    monkeypatch.setattr("vitrail.deploy.transport.flare.transport.ENDING", 0.0)
    made.way.watch(0.0)  # the transport is started
    yield made
    made.way.close()


def test_a_site_whose_part_dies_is_left_out_and_the_others_keep_their_job(made: Made) -> None:
    made.transport.sites["lyon"] = "dies"
    assert made.ask() == {"basel", "turin", "vienna"}
    assert made.named() == [("lyon", 1, 0.0), ("lyon", 2, FIRST_REST)]
    assert made.transport.begun == [SITES, ["lyon"]]
    for _ in range(20):
        began = time.monotonic()
        assert made.ask() == {"basel", "turin", "vienna"}
        assert time.monotonic() - began < 1.0, "nobody waits for it"
    assert made.transport.begun == [SITES, ["lyon"]]
    assert not [e for e, _ in made.events if e in ("job lost", "job split", "transport restarted")]


def test_without_the_rests_it_is_waited_for_in_every_round(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control."""
    monkeypatch.setattr(made.way.losses, "add", lambda site: made.way.losses.count.setdefault(site, 1) * 0.0)
    made.transport.sites["lyon"] = "dies"
    monkeypatch.setattr("vitrail.deploy.transport.flare.transport.START", 0.0)
    began = time.monotonic()
    assert made.ask(3.0) == {"basel", "turin", "vienna"}
    assert time.monotonic() - began >= 3.0
    assert len(made.transport.begun) >= 3


def test_it_is_tried_again_and_not_waited_for_until_it_answers(made: Made) -> None:
    made.transport.sites["lyon"] = "dies"
    made.ask()
    made.transport.sites["lyon"] = "sleeps"
    made.clock.now += FIRST_REST
    began = time.monotonic()
    for _ in range(5):
        assert made.ask() == {"basel", "turin", "vienna"}
    assert time.monotonic() - began < 2.0
    assert made.transport.begun == [SITES, ["lyon"], ["lyon"]]
    made.transport.sites["lyon"] = "answers"
    until = time.monotonic() + 10
    while made.ask() != set(SITES) and time.monotonic() < until:
        time.sleep(0.05)
    assert not made.way.losses.trial
    assert [made.ask() for _ in range(3)] == [set(SITES)] * 3
    assert len(made.transport.begun) == 3


def test_the_rests_grow_as_long_as_the_site_is_not_at_work() -> None:
    clock = Clock()
    losses, rests = PartLosses(clock), []
    for _ in range(6):
        rests.append(losses.add("lyon"))
        assert losses.rests("lyon") == bool(rests[-1])
        assert ("lyon" in losses.trial) == bool(rests[-1])
        clock.now += rests[-1]
        assert not losses.rests("lyon")
        losses.note_answer("lyon")  # once, and then it dies again
        clock.now += 1.0
    assert rests == [0.0, FIRST_REST, 2 * FIRST_REST, MOST_REST, MOST_REST, MOST_REST]
    assert MOST_REST == 4 * FIRST_REST
    clock.now += AT_WORK
    assert losses.add("lyon") == 0.0
    assert "lyon" in losses.trial, "nobody waits for it, so soon after its last loss"
    losses.note_answer("lyon")
    clock.now += FORGOTTEN
    assert losses.add("lyon") == 0.0
    assert not losses.trial


def test_two_sites_die_and_both_are_named(made: Made) -> None:
    made.transport.sites |= {"lyon": "dies", "vienna": "stillborn"}
    assert made.ask() == {"basel", "turin"}
    assert {site for site, *_ in made.named()} == {"lyon", "vienna"}
    assert made.transport.begun[0] == SITES
    assert made.ask() == {"basel", "turin"}


def test_a_part_that_dies_only_at_the_start_takes_part_afterwards(made: Made) -> None:
    made.transport.sites["lyon"] = "stillborn"
    submit = made.transport.submit

    def once(sites: list[str]) -> str:
        if made.transport.begun:
            made.transport.sites["lyon"] = "answers"
        return submit(sites)

    made.transport.submit = once  # type: ignore[method-assign]
    assert made.ask() == set(SITES)
    assert made.named() == [("lyon", 1, 0.0)]


def test_a_site_that_breaks_whole_jobs_ends_up_alone_and_is_the_only_one_named(made: Made) -> None:
    made.transport.sites["turin"] = "breaks"
    assert made.ask(20.0) == {"basel", "lyon", "vienna"}
    assert {site for site, *_ in made.named()} == {"turin"}
    assert ["turin"] in made.transport.begun
    splits = [told["groups"] for e, told in made.events if e == "job split"]
    assert splits[0] == (["basel", "turin"], ["lyon", "vienna"])
    assert made.ask() == {"basel", "lyon", "vienna"}


def test_the_end_of_the_transport_is_no_sites_loss(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """FLARE's process at the coordinator was killed: its jobs end first, and then it is seen."""
    made.transport.sites["lyon"] = "dies"
    made.ask()
    before = made.named()
    made.transport.sites = dict.fromkeys(SITES, "breaks")
    ended = threading.Event()
    made.way.flare = SimpleNamespace(poll=lambda: 1 if ended.is_set() else None)  # type: ignore[assignment]

    def start(*_: Any, **__: Any) -> SimpleNamespace:
        made.transport.sites = dict.fromkeys(SITES, "answers")
        return SimpleNamespace(poll=lambda: None)

    monkeypatch.setattr(components, "start_coordinator", start)
    threading.Timer(0.3, ended.set).start()
    assert made.ask() >= {"basel", "turin", "vienna"}
    assert "transport lost" in [event for event, _ in made.events]
    assert made.named() == before
    assert not [event for event, _ in made.events if event in ("job lost", "job split")]


def test_sites_that_are_at_work_are_put_together_again(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each job is a process at the coordinator: in a long study sites come and go."""
    monkeypatch.setattr("vitrail.deploy.transport.flare.transport.MOST_JOBS", 3)

    def leave(site: str) -> None:
        job = made.way._job_of(site)
        assert job is not None
        made.transport.tell(event="part ended", site=site, job=job.number)
        made.way.watch(0.3)
        assert made.ask() == set(SITES)

    assert made.ask() == set(SITES)
    leave("lyon")
    leave("turin")
    assert made.transport.begun == [SITES, ["lyon"], ["turin"]]
    made.clock.now += AT_WORK + 1
    leave("vienna")
    assert sorted(made.transport.begun[3:]) == [["basel", "lyon", "turin"], ["vienna"]], "it was lost just now"


def test_nobody_can_say_that_another_sites_part_ended(made: Made) -> None:
    assert made.ask() == set(SITES)
    made.transport.tell(event="part ended", site="lyon", job="another job")
    made.transport.tell(event="part ended", site="nobody", job="job 1")
    assert made.ask() == set(SITES)
    assert made.named() == []


def test_where_too_few_are_left_it_says_who_is_missing_and_why(made: Made) -> None:
    made.transport.sites |= {"lyon": "dies", "turin": "dies"}
    agreed: Any = SimpleNamespace(answer=lambda *_: None)
    call = SiteRequests(made.way, agreed, SITES, "run", 3, 5.0)
    call._wrong = lambda *_: None  # type: ignore[method-assign]
    assert set(call.all(lambda name: QUESTION, patience=4.0)) == {"basel", "vienna"}
    told = next(told for event, told in made.events if event == "waiting")
    assert told["missing"] == dict.fromkeys(["lyon", "turin"], "its connection ended 2 times")
    said = words("waiting", told)
    assert said.startswith("Waiting: 2 of 3 answers so far.")
    assert "lyon (its connection ended 2 times)" in said
    assert not [told for event, told in made.events if event == "trouble"], "it is said once"


# who says that a part ended


class Server:
    """As much of FLARE's server as the Doorkeeper touches."""

    def __init__(self) -> None:
        self.handlers: dict[tuple[str, str], Callable[[Any], Any]] = {}
        self.resolved: list[tuple[str, str]] = []
        self.client_manager = SimpleNamespace(clients={"token-a": SimpleNamespace(name="a")})
        self.cell = self
        self.server = self
        self.job_runner = SimpleNamespace(resolve_client_outcome=lambda *told: self.resolved.append(told))
        self.notify_dead_job: Callable[[str, str, str], None] = lambda *_: None

    def register_request_cb(self, channel: str, topic: str, cb: Callable[[Any], Any]) -> None:
        self.handlers[channel, topic] = cb


@pytest.mark.parametrize("token", ["token-a", "token-b", None])
def test_who_says_that_its_part_ended_is_known_by_its_token(token: str | None) -> None:
    server, said = Server(), list[dict[str, Any]]()
    keeper = admission.Doorkeeper(".")
    keeper._tell = said.append  # type: ignore[method-assign]
    keeper._hear_of_ends(server)
    (handler,) = server.handlers.values()
    lie = {"origin": "b", "client_name": "b"}  # whatever it says of itself
    headers = {CellMessageHeaderKeys.TOKEN: token, **lie}
    request = SimpleNamespace(payload={JobFailureMsgKey.JOB_ID: "7", "code": 1, **lie}, get_header=headers.get)
    handler(request)
    assert said == ([{"event": "part ended", "site": "a", "job": "7"}] if token == "token-a" else [])
    assert server.resolved == ([("7", "a")] if token == "token-a" else [])


def test_a_part_that_is_no_longer_among_the_signs_of_life_has_ended() -> None:
    server, said = Server(), list[dict[str, Any]]()
    keeper = admission.Doorkeeper(".")
    keeper._tell = said.append  # type: ignore[method-assign]
    keeper._hear_of_ends(server)
    server.notify_dead_job("7", "a", "missing job on client")
    assert said == [{"event": "part ended", "site": "a", "job": "7"}]
