"""Bytes at a site's door, as a hostile coordinator might send them; no FLARE. Over FLARE: test_flare.py."""

from __future__ import annotations

import math
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import vitrail as vt
from tests.support.deploy.federation import first_word
from vitrail.core.errors import BudgetSpent, MessageRefused, Problem, RunStopped, VitrailError
from vitrail.data.datasets.catalogue import heart_disease, packaged
from vitrail.data.encoding import numeric
from vitrail.deploy.coordinator.requests import SiteStopped, error_text
from vitrail.deploy.protocol.agreement import FORMAT, Agreement
from vitrail.deploy.protocol.message import FINAL, MOST_WORDS, Message, unpack
from vitrail.deploy.site.process import SiteProcess
from vitrail.deploy.site.site import Site
from vitrail.runs.setup import resolve

ROUNDS = 12
RUN = "0123456789abcdef"
SECRET = 77.7123


@pytest.fixture(scope="module")
def study() -> vt.Study:
    heart = vt.Study.load(packaged("heart_disease.toml"))
    return resolve(heart.with_changes(standardise="global", training={"rounds": ROUNDS}), "ifedavg", None)[0]


@pytest.fixture
def door(study: vt.Study, tmp_path: Path) -> SiteProcess:
    frame = heart_disease()["va"]
    frame["age"] = frame["age"].astype(float)
    frame.loc[0, "age"] = SECRET
    kit = SimpleNamespace(home=tmp_path / "home")
    kit.home.mkdir()
    said: list[str] = []
    made = SiteProcess(kit, Site("va", frame, Agreement.of(study, None, 4), kit.home), said.append)  # type: ignore[arg-type]
    made.said = said  # type: ignore[attr-defined]
    return made


def prepared(door: SiteProcess) -> SiteProcess:
    """As after a good beginning."""
    agreed = door.site.agreed
    known = door.site.rows[numeric(agreed.study)]  # on no common scale its rows would stand in its report
    mean, sd = (torch.tensor(told.fillna(0).to_numpy()) for told in (known.mean(), known.std()))
    scale = {"mean": mean, "sd": torch.where(sd > 0, sd, 1.0)}
    for kind, words, tensors in (
        ("hello", {"format": FORMAT, "agreement": agreed.hash}, {}),
        ("prepare", {}, scale),
        ("round", {"stage": 0, "round": 0, "place": 0, "score": []}, down(door)),
    ):
        assert unpack(door.answer(Message(kind, {"run": RUN, **words}, tensors).pack())).kind == kind
    return door


def down(door: SiteProcess, **changed: torch.Tensor) -> dict[str, torch.Tensor]:
    """What a round of training may send to a site."""
    return first_word(door.site.agreed) | changed


def a_round(door: SiteProcess, tensors: dict[str, torch.Tensor] | None = None, **words: Any) -> bytes:
    told = {"run": RUN, "stage": 0, "round": 1, "place": 0, "score": [], **words}
    return Message("round", told, down(door) if tensors is None else tensors).pack()


def spoiled(door: SiteProcess, change: Callable[[torch.Tensor], torch.Tensor]) -> bytes:
    name = next(iter(door.site.agreed.contracts[0][0].down))
    return a_round(door, down(door, **{name: change(down(door)[name])}))


def filled(value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    def change(tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.clone()
        tensor.view(-1)[0] = value
        return tensor

    return change


BAD: dict[str, Callable[[SiteProcess], bytes]] = {
    "another agreement": lambda d: Message("hello", {"run": RUN, "format": FORMAT, "agreement": "0" * 24}).pack(),
    "another format": lambda d: (
        Message("hello", {"run": RUN, "format": FORMAT + 1, "agreement": d.site.agreed.hash}).pack()
    ),
    "a tensor too large": lambda d: spoiled(d, lambda t: torch.zeros(2000, 2000)),
    "a tensor too many": lambda d: a_round(d, down(d, more=torch.zeros(3))),
    "a tensor too few": lambda d: a_round(d, {}),
    "another type": lambda d: spoiled(d, lambda t: t.double()),
    "not a number": lambda d: spoiled(d, filled(math.nan)),
    "infinite": lambda d: spoiled(d, filled(-math.inf)),
    "no bytes": lambda d: b"",
    "noise": lambda d: bytes(range(256)) * 40,
    "cut short": lambda d: a_round(d)[:-7],
    "too long": lambda d: a_round(d) + b"\0" * 8,
    "a header without end": lambda d: (MOST_WORDS + 1).to_bytes(8, "little") + b"{" * (MOST_WORDS + 1),
    "deep JSON": lambda d: (200_000).to_bytes(8, "little") + b"[" * 200_000,
    "a pickle": lambda d: pickle.dumps({"kind": "hello"}),
    "no kind of ours": lambda d: Message("shell", {"run": RUN}).pack(),
    "a method's name": lambda d: Message("answer", {"run": RUN}).pack(),
    "a word too many": lambda d: a_round(d, path="/etc/passwd"),
    "a word of another type": lambda d: a_round(d, round="1"),
    "a run that is a path": lambda d: Message("hello", {"run": "../../x", "format": FORMAT, "agreement": ""}).pack(),
    "no such stage": lambda d: a_round(d, stage=7),
    "a stage before the first": lambda d: a_round(d, stage=-1),
    "no such exchange": lambda d: a_round(d, place=3),
    "an exchange that is no number": lambda d: a_round(d, place="0"),
    "a round before the first": lambda d: a_round(d, round=-1),
    "a round after the last": lambda d: a_round(d, round=ROUNDS),
    "scores nobody knows": lambda d: a_round(d, score=["rows"]),
    "scores without end": lambda d: a_round(d, score=["test"] * 10_000),
    "scores that are no words": lambda d: a_round(d, score=[["test"]]),
    "a step nobody knows": lambda d: Message("standardise", {"run": RUN, "step": 3}).pack(),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_questions_that_a_site_refuses(what: str, door: SiteProcess) -> None:
    prepared(door)
    kept = {f: f.read_bytes() for f in (door.kit.home / RUN).iterdir()}
    before = len(door.outbox.entries())
    refused(door, BAD[what](door), before)
    assert {f: f.read_bytes() for f in (door.kit.home / RUN).iterdir()} == kept  # nothing was learned from it
    assert unpack(door.answer(a_round(door))).kind == "round"  # and it goes on


def test_a_round_before_anything_is_prepared(door: SiteProcess) -> None:
    refused(door, a_round(door), 0)


def test_an_accident_tells_no_data(door: SiteProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(question: Message) -> Message:
        raise ValueError(f"could not convert {SECRET}")

    monkeypatch.setattr(door.site, "answer", fails)
    refused(door, a_round(door), 0)
    assert str(SECRET) in door.outbox.entries()[-2].refused  # at the site itself it is told in full


@pytest.mark.parametrize(
    ("error", "leaves"),
    [
        (
            VitrailError(f"/data/{SECRET}.csv cannot be read", [Problem(str(SECRET), "x.")]),
            r"a problem at the site, {n}",
        ),
        (BudgetSpent("privacy budget", f"it would come to {SECRET}."), re.escape(BudgetSpent.heading)),
        (MessageRefused("round", "expected a number."), r"a message was refused; round: expected a number\."),
        (RunStopped("report", f"{SECRET} would leave."), re.escape(RunStopped.heading)),
        (KeyError(SECRET), r"internal error, {n}"),
    ],
)
def test_what_leaves_of_an_error_is_what_its_class_declares(
    error: Exception, leaves: str, door: SiteProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(question: Message) -> Message:
        raise error

    monkeypatch.setattr(door.site, "answer", fails)
    sent = door.answer(a_round(door))
    words = unpack(sent).words
    found = re.fullmatch(leaves.replace("{n}", r"reference (\d{6})"), words["text"])
    assert found is not None, words["text"]
    assert str(SECRET).encode() not in sent
    assert words.get(FINAL, False) is isinstance(error, RunStopped)
    log = next(e.refused for e in door.outbox.entries() if e.kind == "refused")
    assert str(error) in log, "people at the site read the whole"
    assert all(f"reference {number}" in log for number in found.groups())
    assert ("in fails" in log) is isinstance(error, KeyError), "with the traceback of what nobody expected"


def test_only_the_flag_of_a_site_says_that_it_stopped_for_good() -> None:
    for flag, stopped in ({}, False), ({FINAL: True}, True), ({FINAL: "yes"}, False):
        answer = Message("error", {"text": RunStopped.heading, **flag})
        assert isinstance(error_text(answer), SiteStopped) is stopped


def refused(door: SiteProcess, question: bytes, before: int) -> None:
    """Nothing but an error text leaves, it holds no data, and the site can read what happened."""
    sent = door.answer(question)
    said = unpack(sent)
    assert (said.kind, list(said.words), said.tensors) == ("error", ["text"], {})
    assert len(said.words["text"]) < 2000
    told = sent.decode(errors="replace")
    assert str(SECRET) not in told
    assert not [c for c in ("trestbps", str(door.kit.home)) if c in told]
    new = door.outbox.entries()[before:]
    assert [e.kind for e in new if e.direction == "out"] == ["error"]
    assert next(e.refused for e in new if e.kind == "refused")
    assert door.said[-1]  # type: ignore[attr-defined]
