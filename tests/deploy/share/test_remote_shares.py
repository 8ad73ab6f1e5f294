"""[share] between machines: each site works out its share from what the others signed, and takes part or does not."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

import vitrail as vt
from tests.support.deploy.enrolment import all_enrolled
from tests.support.deploy.federation import drawn, prepare_question
from tests.support.deploy.forms import line_of
from tests.support.deploy.masked_runs import CLOSE, FRAMES, NAMES, RUN, KilledError, Masked
from tests.support.deploy.proofs import enrolled, prove, roster
from vitrail.cli import app
from vitrail.core.errors import KeyRefused, MessageRefused, VitrailError
from vitrail.data.datasets.catalogue import packaged
from vitrail.deploy.audit.outbox import Outbox
from vitrail.deploy.consent.form import site_form
from vitrail.deploy.coordinator.requests import Responses
from vitrail.deploy.identity import enrolment
from vitrail.deploy.identity.participants import ParticipantList
from vitrail.deploy.protocol.agreement import Agreement
from vitrail.deploy.protocol.message import Message
from vitrail.deploy.share.shared import SHARE, rows_text
from vitrail.deploy.share.site import own_limits
from vitrail.deploy.site.process import SiteProcess
from vitrail.deploy.site.site import Site
from vitrail.privacy.round_share import NO_LIMITS, ShareLimits
from vitrail.report.live.events import words as event_words
from vitrail.report.pages.builder import page_of
from vitrail.report.pages.run import render
from vitrail.runs.setup import resolve

SMALL = "switzerland"  # its share of the rows is near 0.13


@cache
def agreed(weights: str = "rows", sum_: str = "plain", least: float = 0.0, most: float = 1.0) -> Agreement:
    study = vt.Study.load(packaged("heart_disease.toml")).with_changes(
        training={"rounds": 3},
        screen={"ask": False},
        protect={"sum": sum_, "scores": "exact"},
        method={"name": "fedavg", "weights": weights},
        share={"least": least, "most": most},
    )
    return Agreement.of(resolve(study, None, None)[0], None, ParticipantList(roster(NAMES)))


class Limited(Masked):
    """`limits`: what single sites set when they joined. Answers pass each site's door and its outbox."""

    def __init__(self, root: Path, terms: Agreement, limits: dict[str, ShareLimits] | None = None) -> None:
        self.limits, self.shown = limits or {}, list[str]()
        super().__init__(root, terms)

    def fresh(self, name: str) -> Site:
        home = self.root / "sites" / name
        proof, own = prove(name, list(self.frames), home), self.limits.get(name, NO_LIMITS)
        return Site(name, self.frames[name], self.agreed, home, True, proof, limits=own)

    def ask(self, questions: dict[str, Message], deadline: float) -> Responses:
        heard = super().ask(questions, deadline)
        for name, site in self.sites.items():
            while site.notices:
                self.shown.append(f"{name}: {site.notices.pop(0)}")
        return heard

    def told(self, name: str) -> list[str]:
        return [line for line in self.shown if line.startswith(f"{name}: From round")]


def refusers(way: Limited) -> set[str]:
    return {name for name, asked, said in way.said if asked.kind == "round" and said.kind == "refused"}


@pytest.mark.parametrize("sum_", ["plain", "masked"])
@pytest.mark.parametrize("weights", ["rows", "uniform"])
def test_the_same_as_on_one_machine(tmp_path: Path, sum_: str, weights: str) -> None:
    """A small site takes no part; where all count the same, all do."""
    way = Limited(tmp_path, agreed(weights, sum_, least=0.15))
    far, near = way.conduct(quorum=4), way.near()
    torch.testing.assert_close(far.shared, near.shared, **CLOSE)
    for name in NAMES:
        torch.testing.assert_close(way.model(name), near.models[name], **CLOSE)
    out = {SMALL} if weights == "rows" else set()
    assert refusers(way) == out
    assert far.info["took_part"] == near.info["took_part"] == {n: 0 if n in out else 3 for n in NAMES}
    assert {**far.info["share"], "refused": []} == near.info["share"]
    assert far.info["share"]["refused"] == sorted(out)
    if not out:
        assert all("this site takes part: its share of the 4 sites is 25.0 %" in way.told(n)[0] for n in NAMES)
        return
    (line,) = way.told(SMALL)
    assert "From round 1 on this site takes no part: its share of the 4 sites is" in line
    assert "and it accepts 15.0 to 100.0 %" in line
    assert "of the 3 sites" in way.told("va")[0], "the others work out who leaves"
    page = line_of(render(page_of(far)).split('id="participation"')[1].split("</section>")[0])
    assert "0 of 3</td><td>outside the study’s limits" in page
    assert "Each site signed its number of rows" in page
    ((_, event),) = [(e, told) for e, told in way.events if e == "share refused"]
    assert "takes no part, because its share" in event_words("share refused", event)


@pytest.mark.parametrize("sum_", ["plain", "masked"])
def test_limits_of_a_single_site_stay_there(tmp_path: Path, sum_: str) -> None:
    """The paper's question: is my part small enough among the others'? The federation goes on without it."""
    way = Limited(tmp_path, agreed("rows", sum_), {"cleveland": ShareLimits(most=0.3)})
    far = way.conduct(quorum=3)
    near = vt.federate(
        way.agreed.study, FRAMES, engine="looped", secrets=drawn(way.root / "sites", FRAMES, RUN),
        away={"cleveland": [(1, 3)]},
    )  # fmt: skip
    torch.testing.assert_close(far.shared, near.shared, **CLOSE)
    assert refusers(way) == {"cleveland"}
    assert far.info["took_part"]["cleveland"] == 0
    assert far.info["share"]["most"] == 1.0
    page = line_of(render(page_of(far)).split('id="participation"')[1].split("</section>")[0])
    assert "0 of 3</td><td>refused by its own limits" in page
    assert not any("0.3" in str(asked.words) for _, asked, _ in way.said), "the coordinator is not told its limits"
    control = Limited(tmp_path / "control", agreed("rows", sum_), {"cleveland": ShareLimits(most=0.5)})
    control.conduct(quorum=3)
    assert not refusers(control)


def test_the_list_is_that_of_the_round(tmp_path: Path) -> None:
    """While two sites are away, the share of a third is too large."""
    way = Limited(tmp_path, agreed("uniform"), {"va": ShareLimits(most=0.3)})
    way.present = lambda: set(NAMES) - ({"hungarian"} if way.round == 1 else set())  # type: ignore[method-assign]
    way.round = 0  # type: ignore[attr-defined]
    real = way.ask

    def ask(questions: dict[str, Message], deadline: float) -> Responses:
        asked = next(iter(questions.values()), None)
        heard = real(questions, deadline)
        if asked is not None and asked.kind == "round":
            way.round = asked.words["round"] + 1  # type: ignore[attr-defined]
        return heard

    way.ask = ask  # type: ignore[method-assign]
    far = way.conduct(quorum=2)
    assert far.info["took_part"]["va"] == 2
    assert [line.split(":")[1].split(" this")[0] for line in way.told("va")] == [
        " From round 1 on", " From round 2 on", " From round 3 on",
    ]  # fmt: skip


@pytest.mark.parametrize("sum_", ["plain", "masked"])
def test_a_coordinator_that_is_started_again_sends_the_statements_again(tmp_path: Path, sum_: str) -> None:
    """And a site that was away when they were sent gets them with its next question."""
    way = Limited(tmp_path, agreed("rows", sum_, least=0.15))

    def killed(name: str, question: Message) -> bool:
        if question.kind == "round" and question.words["round"] == 1 and name == "va":
            raise KilledError
        return False

    way.away = killed
    with pytest.raises(KilledError):
        way.conduct(quorum=3)
    way.away = lambda name, question: (name, question.kind, question.words.get("round")) == ("va", "round", 1)
    far = way.conduct(quorum=2 if sum_ == "plain" else 3)
    assert not [told for event, told in way.events if event == "set aside"]
    assert far.info["took_part"][SMALL] == 0
    assert far.info["took_part"]["va"] >= 1
    statements = [set(q.words[SHARE]["rows"]) for n, q, _ in way.said if n == "cleveland" and q.kind == "round"]
    assert statements[0] == set(NAMES)
    assert set(NAMES) in statements[1:], "by the second process"


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> tuple[Limited, Message]:
    """A site that was prepared, and an honest question for its first round."""
    way = Limited(tmp_path_factory.mktemp("asked"), agreed())
    way.conduct(quorum=4)
    question = next(q for n, q, _ in way.said if n == "va" and q.kind == "round" and q.words["round"] == 0)
    return way, question


def lie(way: Limited, question: Message, changes: dict[str, Any]) -> Message:
    fresh = Limited(way.root.parent / f"again{len(list(way.root.parent.iterdir()))}", way.agreed)
    site = fresh.sites["va"]
    site.answer(prepare_question(site, RUN))
    return site.answer(question._replace(words={**question.words, SHARE: {**question.words[SHARE], **changes}}))


def forged(way: Limited, name: str, rows: int, by: str, run: str = RUN) -> list[Any]:
    """A statement of `name` with the key of `by`."""
    certificate = enrolled(by)[1]
    proof = prove(by, NAMES, way.root / "forged")
    return [rows, proof.sign(rows_text(way.agreed, run, name, rows)).hex(), certificate]


def test_a_coordinator_cannot_state_rows_of_others(asked: tuple[Limited, Message]) -> None:
    """Nor name strangers, or one site twice; and a statement of another run is worth nothing."""
    way, question = asked
    stated = question.words[SHARE]["rows"]
    assert lie(way, question, {}).kind == "round", "the control"
    honest = forged(way, "hungarian", 7, "hungarian")
    assert lie(way, question, {"rows": {**stated, "hungarian": honest}}).kind == "round", "a site may say what it likes"
    for rows, error in (
        ({**stated, "hungarian": [10**6, *stated["hungarian"][1:]]}, KeyRefused),
        ({**stated, "hungarian": forged(way, "hungarian", 10**6, "cleveland")}, KeyRefused),
        ({**stated, "hungarian": forged(way, "hungarian", 10**6, "hungarian", "f" * 16)}, KeyRefused),
        ({**stated, "Bern": forged(way, "Bern", 10**6, "Bern")}, KeyRefused),
        ({**stated, "va": forged(way, "va", 10**6, "va")}, MessageRefused),
        ({**stated, "hungarian": [-5, "", ""]}, MessageRefused),
        ({**stated, "hungarian": "many"}, MessageRefused),
        ({k: v for k, v in stated.items() if k != "hungarian"}, MessageRefused),
        ([], MessageRefused),
    ):
        with pytest.raises(error):
            lie(way, question, {"rows": rows})
    for listed in ([*NAMES, "Bern"], [*NAMES, "va"], [n for n in NAMES if n != "va"], "va", [1, 2]):
        with pytest.raises(MessageRefused):
            lie(way, question, {"listed": listed})


def test_a_number_of_rows_does_not_change_in_a_run(asked: tuple[Limited, Message]) -> None:
    way, question = asked
    site = way.sites["va"]
    later = {**question.words[SHARE], "rows": {"hungarian": forged(way, "hungarian", 10**6, "hungarian")}}
    with pytest.raises(MessageRefused, match="another number of rows"):
        site._shares.refusal(question._replace(words={**question.words, SHARE: later}), [])


def test_under_masks_the_list_is_that_of_the_sum(tmp_path: Path) -> None:
    way = Limited(tmp_path, agreed("rows", "masked"))
    way.conduct(quorum=4)
    question = next(q for n, q, _ in way.said if n == "va" and q.kind == "round" and q.words["round"] == 2)
    shorter = {**question.words[SHARE], "listed": [n for n in NAMES if n != SMALL], "rows": {}}
    with pytest.raises(MessageRefused, match="not that of the sum"):
        way.sites["va"]._shares.refusal(question._replace(words={**question.words, SHARE: shorter}), [])
    assert not way.sites["va"]._shares.refusal(question, []), "the control"


def test_a_site_that_does_not_sign_its_rows_is_set_aside(tmp_path: Path) -> None:
    """Or it would stop all others, who believe no list with it."""
    way, real = Limited(tmp_path, agreed()), Limited.ask

    def ask(self: Limited, questions: dict[str, Message], deadline: float) -> Responses:
        heard = real(self, questions, deadline)
        said = heard.answers.get("va")
        if said is not None and said.kind == "prepare":
            heard.answers["va"] = said._replace(words={**said.words, "signature": "00"})
        return heard

    way.ask = ask.__get__(way)  # type: ignore[method-assign]
    far = way.conduct(quorum=3)
    assert far.info["sites"] == [n for n in NAMES if n != "va"] or set(far.info["sites"]) == set(NAMES) - {"va"}
    assert [told["why"] for e, told in way.events if e == "set aside"] == ["it did not sign its number of rows"]


def test_it_is_in_the_outbox_and_on_the_form(tmp_path: Path) -> None:
    study = agreed().study
    study.save(tmp_path / "heart.toml")
    folder = enrolment.invite(tmp_path / "heart.toml", NAMES, "127.0.0.1:18002")
    kit = all_enrolled(folder, tmp_path / "sites", NAMES)["va"]
    way = Limited(tmp_path / "run", agreed(), {"va": ShareLimits(most=0.1)})
    shown, door = list[str](), None
    way.sites["va"].runs, way.sites["va"].base = way.sites["va"].runs, way.sites["va"].base
    door = SiteProcess(kit, way.sites["va"], shown.append)
    way.conduct(quorum=3)
    question = next(q for n, q, _ in way.said if n == "va" and q.kind == "round")
    (way.sites["va"].home / "shares.json").unlink()
    door.answer(question.pack())
    kinds = {e.kind: e.words.get("text", "") for e in Outbox(kit.home).entries()}
    assert "this site takes no part" in kinds[SHARE]
    assert any("this site takes no part" in line for line in shown)
    form = line_of(site_form(agreed(least=0.1, most=0.6), "va", NAMES, True).text)
    assert "EVERY OTHER SITE reads how many rows you train on, with your signature" in form
    assert "in which its share is below 10 % or above 60 %" in form
    assert "It cannot check that the sites in the list do take part" in form
    masked = line_of(site_form(agreed("uniform", "masked"), "va", NAMES, True).text)
    assert "1 divided by the number of sites of the round" in masked
    assert "The list is the one that all sites of the total sign" in masked
    assert "EVERY OTHER SITE reads" not in masked


def test_options_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    study = agreed(least=0.2).study
    assert own_limits(study, None, None) == NO_LIMITS
    assert own_limits(study, None, 0.5) == (0.0, 0.5)
    with pytest.raises(VitrailError, match=r"no share is at least 0\.2 and at most 0\.1"):
        own_limits(study, None, 0.1)
    with pytest.raises(VitrailError, match="tells no site its share") as told:
        own_limits(vt.Study.load(packaged("heart_disease.toml")), 0.1, 0.5)
    assert len(told.value.problems) == 2
    (tmp_path / "x.csv").write_text("a\n")
    done = CliRunner().invoke(app, ["join", str(tmp_path), "--data", str(tmp_path / "x.csv"), "--most-share", "1.5"])
    assert done.exit_code == 2


def test_models_of_a_site_that_never_took_part_are_the_shared_one(tmp_path: Path) -> None:
    """It receives what the others learn, and scores it."""
    way = Limited(tmp_path, agreed(least=0.15))
    far = way.conduct(quorum=4)
    model = load_file(way.root / "sites" / SMALL / RUN / "model.safetensors")
    shared = {k.removeprefix("params/"): v for k, v in far.shared.items()}
    assert all(torch.equal(model[f"params/{k}"], v) for k, v in shared.items())
    assert SMALL in set(far.scores().site)
