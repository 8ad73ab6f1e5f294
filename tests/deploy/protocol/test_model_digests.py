"""Sites compare which models they scored: a coordinator that sends one of them another model is noticed by all, and
one that forges, replays or leaves out a list is named. The control is a study in which nobody compares."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import vitrail as vt
from tests.support.deploy.federation import Here
from tests.support.deploy.proofs import enrolled, prove, roster
from vitrail.data.datasets.catalogue import heart_disease, packaged
from vitrail.deploy.audit.notices import COMPARED, DIFFER, NOTE, kind_of
from vitrail.deploy.audit.outbox import Outbox
from vitrail.deploy.audit.verification import verify_outbox
from vitrail.deploy.consent.form import contract_text
from vitrail.deploy.coordinator.requests import Responses, SiteRequests
from vitrail.deploy.coordinator.session import conduct
from vitrail.deploy.protocol.agreement import Agreement
from vitrail.deploy.protocol.message import Message
from vitrail.deploy.protocol.model_digests import (
    DIGESTS,
    LISTS,
    ScoringPoint,
    SignedDigestLists,
    digest_lines,
    points,
    signed_text,
)
from vitrail.deploy.site.model_digests import SiteDigests
from vitrail.deploy.site.scores import SCORED
from vitrail.deploy.site.site import Site
from vitrail.deploy.verdicts.shared import FoldAgreement
from vitrail.runs.folder import Folder
from vitrail.runs.setup import resolve

RUN, FRAMES = "0123456789abcdef", heart_disease()
NAMES = sorted(FRAMES)
Change = Callable[[str, Message], Message]


def agreed(method: str = "fedavg", **changes: Any) -> Agreement:
    study = vt.Study.load(packaged("heart_disease.toml")).with_changes(
        **{"training": {"rounds": 2}, "screen": {"ask": False}, **changes}
    )
    return Agreement.of(resolve(study, method, None)[0], None, roster(NAMES))


class KilledError(Exception):
    """The coordinator is killed."""


class Lying(Here):
    """A way on which the coordinator changes what it sends to a site."""

    def __init__(self, root: Path, of: Agreement, change: Change, away: tuple[str, ...] = ()) -> None:
        self.root, self.agreed, self.change, self.away = root, of, change, away
        super().__init__({n: Site(n, f, of, root / n, True, prove(n, NAMES, root / n)) for n, f in FRAMES.items()})

    def ask(self, questions: dict[str, Message], deadline: float) -> Responses:
        there = {n: self.change(n, q) for n, q in questions.items() if n not in self.away or q.kind != "settle"}
        heard = super().ask(there, deadline)
        return Responses(
            heard.answers, heard.trouble | dict.fromkeys(questions.keys() - there.keys(), "it is not connected")
        )

    def run(self) -> dict[str, list[str]]:
        """What people at each site were told."""
        folder = Folder(self.root / "run", resume=False)
        try:
            conduct(SiteRequests(self, self.agreed, list(self.sites), RUN, 3, 0.01), folder, resume=False)
        finally:
            folder.close()
        return {name: site.notices for name, site in self.sites.items()}


def drift(name: str, asked: Message) -> Message:
    """Va alone is sent a model that is a little different, in the second round."""
    if (name, asked.kind, asked.words.get("round")) != ("va", "round", 1):
        return asked
    return asked._replace(tensors={k: v + 1e-3 for k, v in asked.tensors.items()})


def honest(name: str, asked: Message) -> Message:
    return asked


def of_kind(told: list[str], kind: str) -> list[str]:
    return [str(text) for text in told if kind_of(text) == kind]


@pytest.fixture(autouse=True)
def no_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)


def test_a_model_for_one_site_alone_is_noticed_by_all(tmp_path: Path) -> None:
    told = Lying(tmp_path, agreed(), drift).run()
    for name in NAMES:
        (text,) = of_kind(told[name], DIFFER)
        assert "MODELS DIFFER, round 2: cleveland" in text.replace(" (this site)", "")
        assert "va (this site) had" in text if name == "va" else "va had" in text
        (summary,) = of_kind(told[name], COMPARED)
        assert "MODELS DIFFER" in summary
    box = Outbox(tmp_path / "va")
    for text in told["va"]:
        box.note_question(text, kind_of(text))
    found = verify_outbox(tmp_path / "va" / "outbox")
    assert any("MODELS DIFFER" in problem.what for problem in found.wrong)


def test_the_control_without_a_comparison_notices_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SiteDigests, "compare", lambda self, asked: None)
    assert not any(Lying(tmp_path, agreed(), drift).run().values())


@pytest.mark.parametrize("sum_", ["plain", "masked"])
def test_honest_sites_say_that_all_scored_the_same(sum_: str, tmp_path: Path) -> None:
    told = Lying(tmp_path, agreed(protect={"sum": sum_}), honest).run()
    for name in NAMES:
        assert not of_kind(told[name], DIFFER)
        (summary,) = of_kind(told[name], COMPARED)
        assert "3 models compared; the signed lists of" in summary
        assert "No signed list" not in summary
    box = Outbox(tmp_path / "va")
    for text in told["va"]:
        box.note_question(text, kind_of(text))
    found = verify_outbox(tmp_path / "va" / "outbox")
    assert any("contain no different model" in note for note in found.notes)
    assert not any("DIFFER" in problem.what for problem in found.wrong)


def changed_lists(change: Callable[[dict[str, Any], torch.Tensor], None]) -> Change:
    """The last word to cleveland with other lists."""

    def lie(name: str, asked: Message) -> Message:
        asked = drift(name, asked)
        if asked.kind != "finish" or name != "cleveland":
            return asked
        lists, digests = dict(asked.words[LISTS]), asked.tensors[DIGESTS].clone()
        change(lists, digests)
        return asked._replace(words={**asked.words, LISTS: lists}, tensors={**asked.tensors, DIGESTS: digests})

    return lie


def omit(lists: dict[str, Any], digests: torch.Tensor) -> None:
    del lists["va"]  # the last in the order of names
    digests[3] = 0


def forge(lists: dict[str, Any], digests: torch.Tensor) -> None:
    digests[3] = digests[0]


def sign_anew(lists: dict[str, Any], digests: torch.Tensor) -> None:
    """With another enrolled site's key, in va's name."""
    digests[3] = digests[0]
    proof = prove("hungarian", NAMES, Path("unused"))
    lists["va"] = {**lists["va"], "signed": proof.sign(signed_text(agreed(), RUN, "va", digests[3])).hex()}


def test_a_list_that_is_left_out_is_named(tmp_path: Path) -> None:
    told = Lying(tmp_path, agreed(), changed_lists(omit)).run()
    assert not of_kind(told["cleveland"], DIFFER)
    (summary,) = of_kind(told["cleveland"], COMPARED)
    assert "No signed list came from va, so it is not known whether the same models were scored there." in summary
    assert of_kind(told["va"], DIFFER), "va is told of it by its own list"


@pytest.mark.parametrize("lie", [forge, sign_anew])
def test_a_forged_list_is_an_alarm(lie: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    told = Lying(tmp_path / "run", agreed(), changed_lists(lie)).run()
    (text,) = of_kind(told["cleveland"], DIFFER)
    assert "FALSE LIST" in text
    assert "in the name of va" in text
    assert "No signed list came from va" in of_kind(told["cleveland"], COMPARED)[0]


def test_a_list_of_another_run_is_not_believed(tmp_path: Path) -> None:
    of, other = agreed(), prove("va", NAMES, tmp_path / "va")
    digests = torch.zeros((len(points(of)), 16), dtype=torch.uint8)
    own = SiteDigests("cleveland", of, tmp_path / RUN, prove("cleveland", NAMES, tmp_path / RUN), notices := [])
    rows = torch.zeros((4, *digests.shape), dtype=torch.uint8)
    for run in (RUN, RUN[::-1]):
        signature = other.sign(signed_text(of, run, "va", digests)).hex()
        lists = {"va": {"signed": signature, "certificate": enrolled("va")[1]}}
        own.compare(Message("finish", {LISTS: lists}, {DIGESTS: rows}))
    assert [kind_of(text) for text in notices] == [COMPARED, DIFFER, COMPARED]


def test_a_site_that_is_away_is_named_and_no_error(tmp_path: Path) -> None:
    told = Lying(tmp_path, agreed(), honest, away=("va",)).run()
    (summary,) = of_kind(told["cleveland"], COMPARED)
    assert not of_kind(told["cleveland"], DIFFER)
    assert "No signed list came from va" in summary
    assert "hungarian and switzerland" in summary


def test_after_it_has_signed_a_site_scores_nothing_more(tmp_path: Path) -> None:
    """Or a coordinator could take the list first, and ask then."""
    way = Lying(tmp_path, agreed(), lambda name, asked: asked)
    asked = list[Message]()

    def keep(name: str, question: Message) -> Message:
        if question.kind == "finish":
            raise KilledError
        asked.extend([question] if name == "va" else [])
        return question

    way.change = keep
    with pytest.raises(KilledError):
        way.run()
    site, place = way.sites["va"], tmp_path / "va" / RUN / SCORED
    memory = json.loads(place.read_text())
    (ended,) = [q for q in asked if q.kind == "settle"]
    again = site.answer(ended)
    assert not bool(again.tensors["scores"].isnan().all()), "the same once more"
    del memory["models"]["settle 0 2"]
    place.write_text(json.dumps(memory))
    assert bool(site.answer(ended).tensors["scores"].isnan().all())
    assert "has already signed the list" in site.notices[-1]
    assert kind_of(site.notices[-1]) == NOTE


def test_a_stage_that_ends_with_another_word_is_noticed(tmp_path: Path) -> None:
    """Of iFedAvg the model that is scored at the end came with the word that ended training; sent twice, the second
    does not hide the first."""
    of, rounds = agreed("ifedavg", training={"rounds": 3}), 3
    assert ScoringPoint("settle", 0, rounds) in points(of)
    words = list[Message]()

    def lie(name: str, asked: Message) -> Message:
        if name != "va" or (asked.kind, asked.words.get("stage")) != ("settle", 0):
            return asked
        words.append(asked._replace(tensors={k: v + 1e-3 for k, v in asked.tensors.items()}))
        way.sites["va"].answer(words[-1])
        return asked

    way = Lying(tmp_path, of, lie)
    told = way.run()
    assert words
    assert all("MODELS DIFFER, the end of stage 1" in of_kind(told[name], DIFFER)[0] for name in NAMES)


def test_where_each_site_is_sent_a_model_of_its_own_nothing_is_compared() -> None:
    """All methods by message are held against each other in test_remote_run.py: no honest run differs."""
    shared, own, alone = (points(agreed(method)) for method in ("fedavg", "influence", "local"))
    assert shared == [ScoringPoint("round", 0, 0), ScoringPoint("round", 0, 1), ScoringPoint("settle", 0, 2)]
    assert not own
    assert not alone
    assert not digest_lines(agreed("influence"))
    assert not points(agreed(protect={"scores": "none"}))
    verdict = agreed(verdict={"folds": 2, "seeds": 1})
    assert not points(FoldAgreement(verdict).agreement(0)), "of a fold nothing is scored"


def test_form_and_table_say_that_lists_go_round() -> None:
    of = agreed()
    lines = {(x.direction, x.name): x for x in of.lines if x.name == DIGESTS}
    assert lines["from site", DIGESTS].shape == (3, 16)
    assert lines["to site", DIGESTS].shape == (4, 3, 16)
    form = " ".join(contract_text(of, "va", NAMES, True).split())
    assert "a digest of each model that this site scored or with which a stage ended" in form
    assert "whether all scored the same models" in form
    other = " ".join(contract_text(agreed("influence"), "va", NAMES, True).split())
    assert "a digest of each model that this site scored" not in other
    assert "the sites cannot compare which models they scored" in other


def test_lists_for_which_there_is_no_room_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    of = agreed()
    lists = SignedDigestLists(of, tmp_path)
    for name in NAMES:
        digests = torch.full((len(points(of)), 16), len(name), dtype=torch.uint8)
        lists.take(name, {"signed": "00" * 256, "certificate": "c" * 900}, {DIGESTS: digests})
    assert list(SignedDigestLists(of, tmp_path).closing_lists()[0][LISTS]) == NAMES, (
        "kept for a coordinator that starts again"
    )
    monkeypatch.setattr("vitrail.deploy.protocol.model_digests.MOST_LISTS", 3500)
    words, told = lists.closing_lists()
    assert list(words[LISTS]) == NAMES[:2]
    assert told[DIGESTS][:, 0, 0].tolist() == [len(NAMES[0]), len(NAMES[1]), 0, 0]
