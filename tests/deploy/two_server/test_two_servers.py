"""Two servers by message: the same as in a simulation; a liar is left out; neither server alone can read a report, both
together can; the second answers once, for one list, also after it was started anew."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.support.deploy.enrolment import all_enrolled
from tests.support.deploy.lying_sites import lying
from tests.support.deploy.masked_runs import CLOSE, RUN, KilledError, Masked, agreement
from tests.support.deploy.proofs import prove
from vitrail.core.errors import VitrailError
from vitrail.core.facts import OUTLYING
from vitrail.data.datasets.catalogue import heart_disease
from vitrail.deploy.consent.form import contract_text
from vitrail.deploy.consent.second_server import second_server_form
from vitrail.deploy.coordinator.requests import Responses, SiteRequests
from vitrail.deploy.coordinator.session import conduct
from vitrail.deploy.identity import enrolment
from vitrail.deploy.protocol.agreement import Agreement
from vitrail.deploy.protocol.message import Message, unpack
from vitrail.deploy.site.process import agree
from vitrail.deploy.two_server import shared as two_server
from vitrail.deploy.two_server.process import serve_second
from vitrail.deploy.two_server.server import SecondServer
from vitrail.privacy.secure_sum.spec import draw
from vitrail.privacy.two_server.protocol import from_fixed_point, to_fixed_point
from vitrail.runs.folder import Folder

SECOND = "registry"
HEART = heart_disease()
FRAMES = {**HEART, "va 2": HEART["va"].iloc[::2].reset_index(drop=True)}
CLIP = 0.5


@cache
def agreed_on(rounds: int = 2) -> Agreement:
    return agreement("fedavg", rounds, len(FRAMES) + 1, sum="two servers", clip=CLIP, second=SECOND)


class Two(Masked):
    """With a second server. `asked_second`: what it was asked and said."""

    def __init__(self, root: Path, agreed: Agreement) -> None:
        super().__init__(root, agreed, FRAMES)
        self.sites = {n: self.fresh(n) for n in FRAMES}
        self.second = self.fresh_second()
        self.restart: Callable[[Message], bool] = lambda asked: False

    def fresh(self, name: str) -> Any:
        site = super().fresh(name)
        site.proof = prove(name, [*FRAMES, SECOND], self.root / "sites" / name)
        return site

    def fresh_second(self) -> SecondServer:
        home = self.root / "sites" / SECOND
        return SecondServer(SECOND, self.agreed, home, prove(SECOND, [*FRAMES, SECOND], home))

    def ask(self, questions: dict[str, Message], deadline: float) -> Responses:
        if SECOND not in questions:
            return super().ask(questions, deadline)
        asked = questions[SECOND]
        if self.restart(asked):
            self.second = self.fresh_second()
        if self.away(SECOND, asked):
            return Responses({}, {SECOND: "it is not connected"})
        try:
            said = unpack(self.second.answer(unpack(asked.pack())).pack())
        except VitrailError as error:
            return Responses({SECOND: Message("error", {"text": str(error)})}, {})
        self.said.append((SECOND, asked, said))
        return Responses({SECOND: said}, {})

    def conduct(self, quorum: int = 5, deadline: float = 0.01) -> Any:
        folder = Folder(self.root / "run", resume=(self.root / "run").exists(), about=".lock")
        try:
            return conduct(SiteRequests(self, self.agreed, list(FRAMES), RUN, quorum, deadline), folder, resume=True)
        finally:
            folder.close()

    def legs(self, leg: str) -> list[tuple[Message, Message]]:
        return [(asked, said) for n, asked, said in self.said if n == SECOND and asked.words.get("leg") == leg]


@pytest.fixture(autouse=True)
def no_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)


def test_the_same_model_as_in_a_simulation(tmp_path: Path) -> None:
    """A site is absent in the second round; the second server is started anew before every question."""
    way = Two(tmp_path, agreed_on(3))
    way.away = lambda name, asked: name == "hungarian" and asked.kind == "round" and asked.words["round"] == 1
    way.restart = lambda asked: True
    far, near = way.conduct(quorum=4), way.near(away={"hungarian": [(2, 2)]})
    torch.testing.assert_close(far.shared, near.shared, **CLOSE)
    start = way.agreed.task.start
    moved = [float((v - start[k.removeprefix("params/")]).abs().max()) for k, v in far.shared.items()]
    assert max(moved) > 1e-3, "it learned something"
    for name in FRAMES:
        torch.testing.assert_close(way.model(name), near.models[name], **CLOSE)
    one, other = (next(f.value[-1] for f in run.facts.values() if f.means == OUTLYING) for run in (far, near))
    order = [near.sites.index(n) for n in far.sites]
    torch.testing.assert_close(one, other[order], rtol=1e-4, atol=1e-4)
    assert [len(way.legs(leg)) for leg in ("halves", "blind", "total")] == [3, 3, 3]
    assert not any(event == "sum not opened" for event, _ in way.events)


def test_neither_reads_a_report_and_both_together_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenfold liar, which minds no length that was agreed on, is left out, too."""
    way, liar = Two(tmp_path, agreed_on(1)), "va 2"
    changes = list[np.ndarray]()  # of each site, in the order in which they answer

    def unminded(x: np.ndarray, clip: float) -> tuple[np.ndarray, bytes]:
        changes.append(x)
        seed = secrets.token_bytes(32)
        return to_fixed_point(x, clip) - draw(seed, len(x)), seed

    monkeypatch.setattr("vitrail.deploy.two_server.site.halves_of", unminded)
    lying(way, liar, -10.0)
    place, held = tmp_path / "sites" / SECOND / RUN / "second" / "000000-000000-000000" / "seeds.json", dict[str, str]()

    def look(asked: Message) -> bool:
        """Into the second's folder, in the middle of the sum."""
        held.update(json.loads(place.read_text()) if asked.words.get("leg") == "blind" else {})
        return False

    way.restart = look
    far = way.conduct()
    assert not place.exists(), "when the total is told, nobody needs them any more"
    ((asked, _),), ((_, total),) = way.legs("halves"), way.legs("total")
    assert asked.words["names"].index(liar) not in total.words["chosen"]
    (value,) = (f.value[-1] for f in far.facts.values() if f.means == OUTLYING)
    assert far.sites[int(value.argmax())] == liar
    d = two_server.numbers_of(way.agreed, 0, 0)
    reports = [(name, said) for name, asked, said in way.said if asked.kind == "round"]
    for (name, said), true in zip(reports, changes, strict=True):
        told = [said.tensors[k] for k in way.agreed.contracts[0][0].up]
        first = np.concatenate([v.numpy().ravel() for v in told if v.dtype == torch.int64])
        second = draw(bytes.fromhex(held[name]), d)
        for alone in (first.astype(float), second.view(np.int64).astype(float)):
            assert abs(np.corrcoef(alone, true)[0, 1]) < 0.12
            assert 0.5 < np.abs(alone).mean() / 2.0**62 < 1.5  # uniform over all 64 bits
        both = from_fixed_point(first.view(np.uint64) + second, CLIP)
        assert np.corrcoef(both, true)[0, 1] > 0.999  # the control: together they have the change


def test_the_second_answers_once_and_for_one_list(tmp_path: Path) -> None:
    way = Two(tmp_path, agreed_on(1))
    way.away = killed_at("total")
    with pytest.raises(KilledError):
        way.conduct()
    (halves, _), (blind, told) = way.legs("halves")[0], way.legs("blind")[0]
    second = way.fresh_second()

    def ask(asked: Message, **words: Any) -> Message:
        return second.answer(unpack(asked._replace(words={**asked.words, **words}).pack()))

    assert ask(blind).words == told.words, "asked the same again, it says the same"
    fewer = halves.words["names"][:4]
    for asked, words in ((halves, {"names": fewer}), (blind, {"lot": "00" * 16}), (blind, {"names": fewer})):
        with pytest.raises(VitrailError, match="refused"):
            ask(asked, **words)
    other = {**blind.tensors, "blinded": blind.tensors["blinded"] + 1}
    with pytest.raises(VitrailError, match="asked before in this run with other contents"):
        second.answer(unpack(blind._replace(tensors=other).pack()))
    way.away, way.said = lambda name, asked: False, []
    far = way.conduct()  # started anew, the coordinator goes on with what it kept
    assert [len(way.legs(leg)) for leg in ("halves", "blind", "total")] == [1, 1, 1]
    torch.testing.assert_close(far.shared, way.near().shared, **CLOSE)
    with pytest.raises(VitrailError, match="refused"):  # and the total once
        ask(way.legs("total")[0][0], names=fewer)


def killed_at(leg: str) -> Callable[[str, Message], bool]:
    def away(name: str, asked: Message) -> bool:
        if name == SECOND and asked.words.get("leg") == leg:
            raise KilledError
        return False

    return away


def test_what_the_coordinator_makes_up_is_not_believed(tmp_path: Path) -> None:
    way = Two(tmp_path, agreed_on(1))
    way.away = killed_at("blind")
    with pytest.raises(KilledError):
        way.conduct()
    halves, said = way.legs("halves")[0]
    letters, about = halves.words["letters"], two_server.about(way.agreed, RUN, (0, 0, 0))
    fresh = SecondServer(SECOND, way.agreed, tmp_path / "other", prove(SECOND, [*FRAMES, SECOND], tmp_path / "other"))
    key = bytes.fromhex(fresh.answer(Message(two_server.SECOND, {"leg": "key", "run": RUN})).words["key"])
    forged = {n: two_server.seal_for(key, bytes(32), f"half {about} {n}").hex() for n in FRAMES}
    made_up = {n: {**letters[n], "sealed": forged[n]} for n in FRAMES}
    asked = halves._replace(words={**halves.words, "letters": made_up})
    assert fresh.answer(asked).kind == "refused", "nobody signed these halves"
    site = way.sites["va"]
    words = {k: halves.words[k] for k in ("stage", "round", "place", "names", "run")}
    with pytest.raises(VitrailError, match="another key earlier in this run"):
        site.answer(
            Message(two_server.DEAL, {**words, "second": {"key": key.hex(), "signature": "", "certificate": ""}})
        )
    other = way.fresh("cleveland")
    (tmp_path / "sites" / "cleveland" / RUN / "second.json").unlink()
    mine = {"key": key.hex(), "signature": letters["va"]["signature"], "certificate": letters["va"]["certificate"]}
    with pytest.raises(VitrailError, match="another site's"):
        other.answer(Message(two_server.DEAL, {**words, "second": mine}))
    lot = bytes.fromhex(said.words["lot"])
    wrong = next(n for n in FRAMES if n not in two_server.ranked(about, lot, halves.words["names"]))
    deck = way.sites[wrong].answer(Message(two_server.DEAL, {**words, "second": way.legs("key")[0][1].words}))
    n, d = len(FRAMES), two_server.numbers_of(way.agreed, 0, 0)
    blind = {**words, "leg": "blind", "dealer": wrong, "lot": "00" * 16}
    blind["deck"] = {k: deck.words[k] for k in two_server.LETTER}
    with pytest.raises(VitrailError, match="this site was not drawn as dealer"):
        way.fresh_second().answer(Message(two_server.SECOND, blind, {"blinded": torch.zeros(n, d, dtype=torch.int64)}))


def test_the_second_is_enrolled_like_a_site_and_asked_for_its_yes(tmp_path: Path) -> None:
    agreed_on(1).study.save(tmp_path / "study.toml")
    folder = enrolment.invite(tmp_path / "study.toml", list(FRAMES), "localhost:8102")
    assert list(enrolment.load_coordinator(folder).sites) == [*FRAMES, SECOND]
    made = all_enrolled(folder, tmp_path / "made", [*FRAMES, SECOND])
    kits = [made[SECOND], made["va"]]
    agreed = Agreement.of(kits[0].study, kits[0].seed, kits[0].participants.roster)
    assert agreed.sites == len(FRAMES), "the second is no site that counts"
    assert agreed.roster[SECOND] == kits[0].fingerprint, "and its key is accepted with the others"
    said = " ".join(second_server_form(agreed, SECOND, kits[0].fingerprint).text.split())
    assert kits[0].fingerprint in said
    assert "gets both to put their halves together, reads every site. You promise that nobody does." in said
    with pytest.raises(VitrailError, match="the kit of the second server"):
        agree(kits[0], tmp_path / "none.csv", "", True)
    for kit, why in (
        (kits[1], "the study's second server is registry"),
        (kits[0], "nobody agreed|not the form that was accepted"),
    ):
        with pytest.raises(VitrailError, match=why):
            serve_second(kit.folder, None, "0" * 24, print)
    form = " ".join(contract_text(agreed_on(1), "va", [*FRAMES, SECOND], True).split())
    assert "the other is sealed for the second server (registry)" in form
    assert "If the coordinator and registry put their halves together, they read every report." in form


def test_a_study_says_who_the_second_is(tmp_path: Path) -> None:
    for given, why in (({"sum": "two servers", "clip": 1.0}, "somebody other than the coordinator"),
                       ({"sum": "masked", "second": "x"}, "only")):  # fmt: skip
        with pytest.raises(VitrailError, match=why):
            agreement("fedavg", 1, 6, **given)
    with pytest.raises(VitrailError, match="are chosen, but a total of fewer than 3"):
        agreement("fedavg", 1, 4, sum="two servers", clip=1.0, second=SECOND)
    for kind in ("round", "settle", "prepare"):
        with pytest.raises(VitrailError, match="expected a message for a second server"):
            Two(tmp_path, agreed_on(1)).second.answer(Message(kind, {"run": RUN}))
