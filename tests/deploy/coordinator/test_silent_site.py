"""A silent site holds nobody up; answers that cannot be true are that site's error. By messages, with our own clock."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

import vitrail as vt
from tests.support.deploy.federation import Here, prepare_question
from vitrail.data.datasets.catalogue import heart_disease, packaged
from vitrail.deploy.coordinator import requests as calling
from vitrail.deploy.coordinator.requests import Responses, SiteRequests, SiteSilent
from vitrail.deploy.protocol.agreement import FOOTPRINT, Agreement
from vitrail.deploy.protocol.message import Message
from vitrail.deploy.protocol.model_digests import DIGESTS
from vitrail.deploy.site.site import Site
from vitrail.runs.setup import resolve

RUN, DEADLINE = "0123456789abcdef", 15.0


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Quiet:
    """Three sites that answer in a second; `va` lets every deadline pass while it sleeps."""

    def __init__(self, clock: Clock) -> None:
        self.clock, self.sleeps, self.awake = clock, True, frozenset[str]()
        self.tries, self.events = list[float](), list[tuple[str, dict[str, Any]]]()

    def ask(self, questions: dict[str, Message], deadline: float, beside: Any = frozenset()) -> Responses:
        late = {"va"} & questions.keys() if self.sleeps else set()
        if "va" in questions:
            self.tries.append(self.clock.now)
        self.clock.now += deadline if late - beside else 1.0
        answers = {n: Message("hello", {}) for n in questions if n not in late}
        return Responses(answers, dict.fromkeys(late, SiteSilent("no answer within 15 seconds")), self.awake)

    def present(self) -> set[str]:
        return set()

    def log(self, event: str, **details: Any) -> None:
        self.events.append((event, details))


@pytest.fixture(scope="module")
def agreed() -> Agreement:
    study = vt.Study.load(packaged("heart_disease.toml")).with_changes(training={"rounds": 3}, screen={"ask": False})
    return Agreement.of(resolve(study, "fedavg", None)[0], None, 4)


@pytest.fixture
def silent(agreed: Agreement, monkeypatch: pytest.MonkeyPatch) -> tuple[SiteRequests, Quiet, Clock]:
    clock = Clock()
    monkeypatch.setattr(calling, "time", clock)
    way = Quiet(clock)
    return SiteRequests(way, agreed, ["a", "b", "c", "va"], RUN, 3, DEADLINE), way, clock


def rounds(call: SiteRequests, count: int) -> list[set[str]]:
    return [set(call.all(lambda name: Message("hello", {}))) for _ in range(count)]


def test_a_silent_site_is_set_aside_and_tried_again_at_growing_intervals(silent: Any) -> None:
    call, way, clock = silent
    rounds(call, 3)
    assert clock.now == 3 * DEADLINE
    assert ("silent", {"site": "va", "deadlines": 3}) in way.events
    rounds(call, 1000)
    assert clock.now == 3 * DEADLINE + 1000  # the others at full speed, also while va is tried
    apart = [b - a for a, b in zip(way.tries[2:], way.tries[3:], strict=False)]
    assert len(apart) >= 4
    assert all(later >= 1.9 * earlier for earlier, later in pairwise(apart[1:]))


def test_a_silent_site_takes_part_again_when_it_gives_a_sign(silent: Any) -> None:
    call, way, _ = silent
    rounds(call, 5)
    way.awake = frozenset({"va"})  # a late answer
    rounds(call, 1)
    way.sleeps, way.awake = False, frozenset()
    assert rounds(call, 1) == [{"a", "b", "c", "va"}]


def test_a_silent_site_is_waited_for_where_the_others_are_too_few(silent: Any) -> None:
    call, way, clock = silent
    rounds(call, 4)
    before, call.quorum = clock.now, 4
    ask = way.ask

    def wakes(questions: Any, deadline: float, beside: Any = frozenset()) -> Responses:
        heard = ask(questions, deadline, beside)
        way.sleeps = False
        return heard

    way.ask = wakes
    assert rounds(call, 1) == [{"a", "b", "c", "va"}]
    assert clock.now >= before + DEADLINE


@pytest.mark.parametrize(
    ("kind", "tensor", "number", "words"),
    [
        ("prepare", "rows", -5, "rows: expected numbers from 0"),
        ("prepare", "rows", 0, "expected at least one row to train on"),
        ("prepare", "target", 1e300, "target: expected numbers from 0 to 1"),
        ("prepare", "target", 0.9, "expected shares that add up to 1"),
        ("prepare", "chance", 1e9, "expected a number from 0 to 1, got 1e"),
        ("settle", "scores", 1e9, "expected a number from 0 to 1, got 1e"),
        ("settle", "scores", -0.5, "expected a number from 0 to 1, got -0.5"),
    ],
)
def test_what_cannot_be_true_is_that_sites_error(
    kind: str, tensor: str, number: float, words: str, agreed: Agreement, tmp_path: Path
) -> None:
    site = Site("va", heart_disease()["va"], agreed, tmp_path)
    said = site.answer(prepare_question(site, RUN))
    asked = prepare_question(site, RUN)
    call = SiteRequests(Here({}), agreed, ["va"], RUN, 1, 1.0)
    if kind == "settle":
        where = {"stage": 0, "round": 3, "place": 0}
        asked = Message("settle", {**where, "score": ["test"], "run": RUN})
        scores = torch.full((len(agreed.scored(["test"])),), 0.5, dtype=torch.float64)
        shape, dtype = agreed.answer("settle", asked.words).tensors[DIGESTS]
        tensors = {"scores": scores, FOOTPRINT: torch.ones(4, dtype=torch.float64)}
        tensors[DIGESTS] = torch.zeros(shape, dtype=dtype)
        said = Message("settle", {**where, "signed": "00", "certificate": "a certificate"}, tensors)
    assert call._wrong("va", asked, said) is None
    lied = said.tensors[tensor].clone()
    lied[0] = number
    assert words in (call._wrong("va", asked, said._replace(tensors={**said.tensors, tensor: lied})) or "")


def test_words_of_a_site_are_short_and_printable(agreed: Agreement, tmp_path: Path) -> None:
    site, call = (
        Site("va", heart_disease()["va"], agreed, tmp_path),
        SiteRequests(Here({}), agreed, ["va"], RUN, 1, 1.0),
    )
    asked = prepare_question(site, RUN)
    said = site.answer(asked)
    for bad in ({"fingerprint": "\x1b[2J"}, {"fingerprint": "x" * 1000}, {"versions": {"torch": "\x07"}}):
        assert "expected a short text" in (call._wrong("va", asked, said._replace(words={**said.words, **bad})) or "")


def test_no_answer_is_longer_than_what_was_agreed_allows(agreed: Agreement, tmp_path: Path) -> None:
    site = Site("va", heart_disease()["va"], agreed, tmp_path)
    assert len(site.answer(prepare_question(site, RUN)).pack()) < agreed.longest_answer < 10 << 20
