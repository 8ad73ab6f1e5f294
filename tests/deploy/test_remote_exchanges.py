"""Between machines too: several exchanges a round, exchanges in turns, invited sites; what is refused is not said; and
no answer is used that is not of the agreed form."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pandas.testing as pdt
import pytest
import torch
from safetensors.torch import load_file

import vitrail as vt
from tests.support.deploy.federation import Here, drawn, first_word, prepare_question, without_scores
from tests.support.toys import Relay, Shy, Turns
from vitrail.data.datasets.catalogue import heart_disease, packaged
from vitrail.deploy.coordinator.requests import SiteRequests
from vitrail.deploy.coordinator.session import conduct
from vitrail.deploy.protocol.agreement import FORMAT, LAST, Agreement
from vitrail.deploy.protocol.message import Message, MessageSchema, check_form
from vitrail.deploy.protocol.score_plan import TRAINING
from vitrail.deploy.site.site import Site
from vitrail.runs.folder import Folder
from vitrail.runs.setup import resolve

RUN = "0123456789abcdef"


@pytest.fixture(scope="module")
def sites() -> dict[str, pd.DataFrame]:
    return heart_disease()


@pytest.fixture(autouse=True)
def toys(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (Relay, Turns):
        monkeypatch.setitem(vt.methods.TABLE, kind.__name__.lower(), kind)
    monkeypatch.setattr("time.sleep", lambda _: None)


class Far:
    """The heart study, each site a world of its own; messages are bytes."""

    def __init__(self, frames: dict[str, pd.DataFrame], root: Path, method: str, rounds: int, refuse: str = "") -> None:
        study = vt.Study.load(packaged("heart_disease.toml")).with_changes(
            training={"rounds": rounds}, protect={"scores": "exact"}
        )
        chosen = vt.methods.build("fedper", {"invited": 2}) if method == "some" else method
        self.study, _ = resolve(study, chosen, None)
        self.root, self.agreed = root, Agreement.of(self.study, None, len(frames))
        self.sites = {n: Site(n, f, self.agreed, root / n, publishes=n != refuse) for n, f in frames.items()}
        self.way = Here(self.sites)

    def conduct(self, quorum: int = 4) -> vt.Run:
        folder = Folder(self.root / "run", resume=False)
        try:
            call = SiteRequests(self.way, self.agreed, list(self.sites), RUN, quorum, 60.0)
            return conduct(call, folder, resume=False)
        finally:
            folder.close()

    @property
    def secrets(self) -> dict[str, str]:
        return drawn(self.root, self.sites, RUN)

    def same_as(self, near: vt.Run, far: vt.Run, partly: bool = False) -> None:
        """`partly`: a far site is not scored in rounds that it is not asked in, nor before it has trained."""
        for name in self.sites:
            mine = load_file(self.root / name / RUN / "model.safetensors")
            torch.testing.assert_close(mine, near.models[name], rtol=0, atol=0)
        torch.testing.assert_close(far.shared, near.shared, rtol=0, atol=0)
        assert far.facts.keys() == near.facts.keys()
        for k, fact in far.facts.items():
            assert fact[1:] == near.facts[k][1:]
            torch.testing.assert_close(fact.value, near.facts[k].value, rtol=0, atol=0)
        key = ["stage", "round", "site", "split", "metric"]
        one, other = (r.history.set_index(key).value.sort_index() for r in (far, near))
        if partly:
            assert 0 < one.isna().sum() < len(one) / 2
            one = one.dropna()
        else:
            assert set(one.index) == set(other.index)
        pdt.assert_series_equal(one, other.loc[one.index], rtol=0, atol=0)
        pdt.assert_frame_equal(far.scores(), near.scores(), check_like=True, rtol=0, atol=0)
        pdt.assert_frame_equal(*map(without_scores, (far, near)))
        pdt.assert_frame_equal(far.baseline(), near.baseline(), rtol=0, atol=0)
        assert set(far.baseline().site) == set(self.sites), "told before the first round, whatever a round is made of"
        pdt.assert_frame_equal(far.sizes, near.sizes)


@pytest.mark.parametrize("method", ["relay", "turns", "some"])
def test_the_same_between_machines(method: str, sites: dict, tmp_path: Path) -> None:
    far = Far(sites, tmp_path, method, rounds=5)
    run = far.conduct()
    near = vt.federate(far.study, sites, engine="looped", secrets=far.secrets)
    far.same_as(near, run, partly=method == "some")
    if method == "some":
        sent = run.ledger.query("stage == 'train' and direction == 'from site'").messages
        assert sent.sum() == 2 * 5, "two of four sites in each of five rounds"
        assert sent.max() < 5


@pytest.mark.parametrize(("method", "often"), [("apple", 1), ("centres", 0), ("shy", 3)])
def test_what_settles_a_model_comes_with_the_first_word(
    method: str, often: int, sites: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where it is not in it; and all that comes is in the table of what crosses."""
    monkeypatch.setitem(vt.methods.TABLE, "shy", Shy)
    far = Far(sites, tmp_path, method, rounds=3)
    came: dict[str, int] = {}
    real = far.sites["va"].answer

    def answer(question: Message) -> Message:
        for name, tensor in question.tensors.items():
            came[name] = came.get(name, 0) + tensor.nbytes * name.startswith(LAST)
        return real(question)

    far.sites["va"].answer = answer  # type: ignore[method-assign]
    run = far.conduct()
    assert set(run.history[run.history.split == "test"]["round"]) >= {0, 1, 2, 3}
    said = [x for x in far.agreed.lines if x.stage == TRAINING and x.direction == "to site"]
    assert {x.name: x.bytes * x.rounds for x in said} == {k: v for k, v in came.items() if v}
    assert {x.rounds for x in said} == ({often} if often else set())
    near = vt.federate(far.study, sites, engine="looped", secrets=far.secrets)
    key = ["stage", "round", "site", "split", "metric"]
    one, other = (r.history.set_index(key).value.sort_index() for r in (run, near))
    pdt.assert_series_equal(one, other, rtol=0, atol=0)


def test_only_the_invited_are_asked(sites: dict, tmp_path: Path) -> None:
    far = Far(sites, tmp_path, "some", rounds=4)
    asked: list[set[str]] = []
    real = far.way.ask

    def ask(questions: dict[str, Message], deadline: float) -> Any:
        if any(q.kind == "round" for q in questions.values()):
            asked.append(set(questions))
        return real(questions, deadline)

    far.way.ask = ask  # type: ignore[method-assign]
    far.conduct()
    assert [len(who) for who in asked] == [2] * 4


def test_who_refuses_between_machines(sites: dict, tmp_path: Path) -> None:
    """It trains, and says nothing of what it refused."""
    far = Far(sites, tmp_path, "ifedavg", 3, refuse="va")
    said: list[tuple[str, str]] = []
    real = far.sites["va"].answer

    def answer(question: Message) -> Message:
        told = real(question)
        said.append((question.kind if question.words.get("stage") != 1 else "publish", told.kind))
        return told

    far.sites["va"].answer = answer  # type: ignore[method-assign]
    run = far.conduct()
    near = vt.federate(far.study, sites, engine="looped", secrets=far.secrets, refuse=["va"])
    far.same_as(near, run)
    pdt.assert_frame_equal(run.shifts(), near.shifts())
    assert ("publish", "refused") in said
    assert ("publish", "round") not in said


def spoilt(kind: str, told: Message) -> Message:
    name = "change/head.bias"
    value = told.tensors[name]
    tensors = {
        "more": {"rows": torch.zeros(3, 22)},
        "shape": {name: torch.zeros(7)},
        "type": {name: value.double()},
        "number": {name: torch.full_like(value, torch.nan)},
    }
    if kind == "less":
        return told._replace(tensors={k: v for k, v in told.tensors.items() if k != name})
    if kind == "words":
        return told._replace(words={**told.words, "patients": 303})
    return told._replace(tensors={**told.tensors, **tensors[kind]})


KINDS = ["more", "less", "shape", "type", "number", "words"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_site_lets_nothing_out_that_was_not_agreed(kind: str, sites: dict, tmp_path: Path) -> None:
    """Whatever went wrong in its own code: the answer is looked at before it leaves."""
    far = Far(sites, tmp_path, "fedavg", 2)
    real = far.sites["va"].on_round
    far.sites["va"].on_round = lambda asked: spoilt(kind, real(asked))  # type: ignore[method-assign]
    left: list[str] = []
    far.way.left = lambda site, data: left.append(site)  # type: ignore[method-assign]
    far.conduct(quorum=3)
    assert left.count("va") < left.count("cleveland")
    why = [told["what"] for event, told in far.way.events if event == "trouble" and told["site"] == "va"]
    assert why
    assert all("a message was refused" in text for text in why)


def test_a_site_answers_only_what_was_agreed(sites: dict, tmp_path: Path) -> None:
    """Neither another agreement nor a question that holds something else than was declared."""
    far = Far(sites, tmp_path, "fedavg", 2)
    site, run = far.sites["va"], {"run": RUN}
    hello = {**run, "format": FORMAT, "agreement": far.agreed.hash}
    assert site.answer(Message("hello", hello)).kind == "hello"
    for other in ({"agreement": "0" * 24}, {"format": FORMAT + 1}):
        with pytest.raises(vt.VitrailError, match="not what the site agreed to"):
            site.answer(Message("hello", {**hello, **other}))
    site.answer(prepare_question(site, RUN))
    where = {**run, "stage": 0, "round": 0, "place": 0, "score": []}
    down = first_word(far.agreed)
    name = next(iter(down))
    bad = [{"x": torch.zeros(3)}, {name: torch.zeros(7)}, {name: torch.full_like(down[name], torch.inf)}]
    for more in bad:
        with pytest.raises(vt.VitrailError, match="message was refused"):
            site.answer(Message("round", where, {**down, **more}))
    for words in ({"round": 2}, {"stage": 1}, {"place": 1}, {"score": ["train"]}):
        with pytest.raises(vt.VitrailError, match="message was refused"):
            site.answer(Message("round", {**where, **words}, down))
    assert site.answer(Message("round", where, down)).kind == "round"


@pytest.mark.parametrize("kind", KINDS)
def test_the_coordinator_uses_no_answer_that_was_not_agreed(kind: str, sites: dict, tmp_path: Path) -> None:
    """A site that says something else is set aside, and the others' model is as if it had never answered."""
    far = Far(sites, tmp_path, "fedavg", 2)
    real = far.sites["va"].answer
    far.sites["va"].answer = lambda asked: spoilt(kind, real(asked)) if asked.kind == "round" else real(asked)  # type: ignore[method-assign]
    run = far.conduct(quorum=3)
    sent = run.ledger.query("stage == 'train' and direction == 'from site'").set_index("site").messages
    assert sent.to_dict() == {"cleveland": 2, "hungarian": 2, "switzerland": 2, "va": 0}
    near = vt.federate(far.study, sites, engine="looped", secrets=far.secrets, away={"va": [(1, 2)]})
    torch.testing.assert_close(run.shared, near.shared, rtol=0, atol=0)


def test_a_message_is_exactly_of_its_form() -> None:
    form = MessageSchema({"round": int}, {"a": ((2,), torch.float32)}, frozenset())
    good = Message("round", {"round": 1}, {"a": torch.zeros(2)})
    check_form(good, form, "from site")
    nan = torch.tensor([0.0, torch.nan])
    check_form(good._replace(tensors={"a": nan}), form._replace(unsure=frozenset({"a"})), "from site")
    bad = [
        good._replace(words={}),
        good._replace(words={"round": "1"}),
        good._replace(words={"round": True}),
        good._replace(words={"round": 1, "more": 1}),
        good._replace(tensors={}),
        good._replace(tensors={"a": torch.zeros(2), "b": torch.zeros(2)}),
        good._replace(tensors={"a": torch.zeros(3)}),
        good._replace(tensors={"a": torch.zeros(2).double()}),
        good._replace(tensors={"a": nan}),
        good._replace(tensors={"a": torch.tensor([0.0, torch.inf])}),
    ]
    for message in bad:
        with pytest.raises(vt.VitrailError, match="refused"):
            check_form(message, form, "from site")


def test_an_agreement_changes_with_all_that_matters(sites: dict, monkeypatch: pytest.MonkeyPatch) -> None:
    """The study, the seed, how many take part, and every tensor that would cross."""
    study, _ = resolve(vt.Study.load(packaged("heart_disease.toml")), "ifedavg", 3)
    longer, other = study.with_changes(training={"rounds": 4}), resolve(study, "fedavg", 3)[0]
    hashes = [Agreement.of(s, seed, n).hash for s, seed, n in ((study, 1, 4), (study, 2, 4), (study, 1, 5))]
    hashes += [Agreement.of(s, 1, 4).hash for s in (longer, other)]
    assert len(set(hashes)) == 5
    assert Agreement.of(study, 1, 4).hash == hashes[0]
    same = Agreement.of(study, 1, 4)  # the same study, but this version of the method sends something more
    line = same.lines[-1]
    monkeypatch.setitem(same.__dict__, "lines", [*same.lines, line._replace(name="more")])
    assert same.hash != hashes[0]
