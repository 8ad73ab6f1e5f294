"""Is joining worth it here, found out between machines: the folds of a run, by bytes in one process."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import random
import re
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import vitrail as vt
from tests.support.deploy.federation import Here
from tests.support.deploy.forms import clause, clauses, paragraphs
from tests.support.deploy.proofs import prove
from vitrail.core.errors import VitrailError
from vitrail.data.encoding import Encoder
from vitrail.deploy.consent.form import contract_text
from vitrail.deploy.coordinator.requests import Responses, SiteRequests
from vitrail.deploy.coordinator.session import conduct
from vitrail.deploy.protocol.agreement import ANEW, Agreement
from vitrail.deploy.protocol.answer_validation import implausible_answer
from vitrail.deploy.protocol.message import Message
from vitrail.deploy.protocol.run_log import RunLog
from vitrail.deploy.site.private_randomness import draws_of
from vitrail.deploy.site.site import Site
from vitrail.deploy.verdicts.shared import FOLD, FoldAgreement, fold_run
from vitrail.deploy.verdicts.site import ANSWERS, FOUND, SiteFolds
from vitrail.report.pages.builder import page_of
from vitrail.report.pages.run import render
from vitrail.report.sections.scores.own_verdict import write_own_verdict
from vitrail.runs.folder import Folder, load_tensors
from vitrail.runs.result import FOLDED, SHOWN
from vitrail.runs.setup import resolve
from vitrail.runs.store import FINAL, FINAL_ENCODER
from vitrail.runs.verdict_wire import FOLDS as FOLD_STAGE
from vitrail.runs.verdict_wire import REFIT
from vitrail.studies.benefit import SiteLosses, decide
from vitrail.studies.cross_validation import RemoteDraws, row_losses, same_loss, train_folds
from vitrail.studies.folds import FoldedRows
from vitrail.studies.site_benefit import cannot_be

RUN = "0123456789abcdef"
FOLDS = 2


@pytest.fixture(scope="module", autouse=True)
def _no_waiting_for_disks() -> Iterator[None]:
    """What survives a crash of the machine is tested elsewhere."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda file: None)
        yield


def tables(sizes: dict[str, int], seed: int = 1) -> dict[str, pd.DataFrame]:
    """Three numeric columns and an outcome that depends on them."""
    draw, out = np.random.default_rng(seed), {}
    for name, n in sizes.items():
        x = draw.normal(size=(n, 3)).round(3)
        sick = x @ [1.0, -1.0, 0.5] + draw.normal(size=n) > 0
        out[name] = pd.DataFrame(x, columns=["a", "b", "c"]).assign(sick=np.where(sick, "yes", "no"))
    return out


def study_of(sites: dict[str, pd.DataFrame], method: str = "fedavg", **changes: Any) -> vt.Study:
    given = {
        "verdict": {"folds": FOLDS, "seeds": 1},
        "screen": {"ask": False},
        "training": {"rounds": 2, "lr": 0.05},
        **changes,
    }
    drafted = vt.Study.infer(sites, target="sick", network={"hidden": (4,), "dropout": 0.2})
    return resolve(drafted.with_changes(**given), method, None)[0]


class Trial:
    """One study between sites in this process."""

    def __init__(
        self, root: Path, sites: dict[str, pd.DataFrame], study: vt.Study, shows: tuple[str, ...] = ()
    ) -> None:
        self.root, self.tables, self.agreed = root, sites, Agreement.of(study, None, len(sites))
        self.shows = shows
        self.way = Here({n: self.fresh(n) for n in sites})

    def fresh(self, name: str) -> Site:
        proof = prove(name, list(self.tables), self.root / name)
        return Site(name, self.tables[name], self.agreed, self.root / name, True, proof, shows=name in self.shows)

    def conduct(self, way: Here | None = None, quorum: int | None = None, **given: Any) -> vt.Run:
        place = self.root / "run"
        folder = Folder(place, resume=place.exists(), about=".lock")
        try:
            need = len(self.tables) if quorum is None else quorum
            call = SiteRequests(way or self.way, self.agreed, list(self.tables), RUN, need, 0.01)
            return conduct(call, folder, resume=True, **given)
        finally:
            folder.close()

    def found(self, name: str) -> dict[str, Any]:
        return dict(json.loads((self.root / name / RUN / FOUND).read_text()))


def simulated(trial: Trial) -> dict[str, dict[str, float]]:
    """What `compare` finds with the sites' own folds, draws and scales: gain and interval by site."""
    study, sites = trial.agreed.study, list(trial.tables)
    folds, owns = FoldAgreement(trial.agreed), {n: SiteFolds(trial.way.sites[n]) for n in sites}
    verdict = study.verdict
    assert verdict is not None
    lost: dict[str, list[list[Any]]] = {"joined": [], "alone": []}
    lots = []
    for repeat in range(verdict.seeds):
        first = repeat * verdict.folds
        agreed = folds.agreement(first)
        own = {n: folds_.partition(first)[0] for n, folds_ in owns.items()}
        cut = FoldedRows(
            verdict.folds, {n: c.lots[n] for n, c in own.items()}, {n: c.cleaned[n] for n, c in own.items()}, study
        )
        lots.append(cut.lots)
        scales = {n: s.data.encoder for n, s in trial.way.sites.items()} if agreed.shared_scale else None

        def far(k: int, first: int = first, scales: Any = scales) -> RemoteDraws:
            return RemoteDraws({n: draws_of(trial.root / n, fold_run(RUN, first + k)) for n in sites}, scales)

        for name, method in (("joined", None), ("alone", "local")):
            plain, chosen = resolve(agreed.study, method, None)
            judged = train_folds(plain, chosen, cut, agreed.seed, "looped", "cpu", lambda done, of: None, far)
            lost[name].append(judged.last)
    out = {}
    for j, n in enumerate(sites):
        y = cut.cleaned[n][study.target.column].to_numpy()
        joined, alone = (np.stack([row_losses(study, y, said[j]) for said in lost[k]]) for k in ("joined", "alone"))
        harm = verdict.harm * same_loss(study, y)
        told = decide(SiteLosses(alone, joined[None], np.stack([k[n] for k in lots]), 1 / verdict.folds), harm)
        out[n] = told._asdict()
    return out


SIZES = {"north": 60, "south": 45, "west": 36}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Trial:
    """A study that was conducted to its end; north shows what it found."""
    sites = tables(SIZES)
    trial = Trial(tmp_path_factory.mktemp("folds"), sites, study_of(sites), shows=("north",))
    trial.conduct()
    return trial


def agree(trial: Trial) -> None:
    """What sites found is what is found on one machine."""
    for name, wanted in simulated(trial).items():
        found = trial.found(name)
        assert found["verdict"] == wanted["verdict"]
        for k in ("alone", "joined", "gain", "low", "high", "least"):
            assert math.isclose(found[k], wanted[k], rel_tol=2e-4, abs_tol=2e-6), (name, k, found[k], wanted[k])


def test_the_same_verdicts_as_on_one_machine(whole: Trial) -> None:
    agree(whole)
    losses = [whole.found(n)["joined"] for n in SIZES]
    assert len({round(v, 6) for v in losses}) == len(losses)  # they could have differed


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("fedavg", {"verdict": {"folds": 2, "seeds": 2}, "standardise": "global"}),
        ("fedavg", {"protect": {"sum": "masked"}}),
        ("ifedavg", {"training": {"rounds": 1}}),
        ("weight_erosion", {"training": {"rounds": 1}}),
    ],
)
def test_the_same_verdicts_of_other_methods(method: str, changes: dict[str, Any], tmp_path: Path) -> None:
    sites = tables(SIZES)
    trial = Trial(tmp_path, sites, study_of(sites, method, **changes))
    run = trial.conduct()
    agree(trial)
    assert run.info["folds"]["crossed"] == dict.fromkeys(SIZES, declared(trial))  # nothing is shown in a fold


def declared(trial: Trial) -> int:
    """Bytes in folds, as the contract has them."""
    return sum(x.bytes * x.rounds for x in trial.agreed.lines if x.stage.startswith(FOLD_STAGE))


def test_only_who_shows_its_verdict_is_read(whole: Trial) -> None:
    run = vt.Run.load(whole.root / "run")
    found = {k: v for k, v in whole.found("north").items() if k != "why"}
    assert run.info["shown"] == {"north": found}
    page = render(page_of(run))
    assert "What sites found out for themselves" in page
    assert whole.found("north")["why"] in page
    kept = [f.read_bytes() for f in (whole.root / "run").rglob("*") if f.is_file()]
    for name in ("south", "west"):
        gain = repr(whole.found(name)["gain"]).encode()
        assert not any(gain in text for text in kept), name
        assert whole.found(name)["why"] not in page
    assert not (whole.root / "run" / "folds").exists()  # no model of a fold is kept


def test_the_page_does_not_send_people_elsewhere_for_what_sites_found_out(whole: Trial) -> None:
    """The verdict was asked for: the page says who has it, and does not send anybody to `vitrail compare`."""
    run = vt.Run.load(whole.root / "run")
    text = " ".join(re.sub("<[^>]+>", "", render(page_of(run))).split())
    assert "Each site has found out for itself whether joining is worth it there." in text
    assert "vitrail compare" not in text
    bare = dataclasses.replace(run, info={k: v for k, v in run.info.items() if k not in (FOLDED, SHOWN)})
    simulated = " ".join(re.sub("<[^>]+>", "", render(page_of(bare))).split())
    assert "in a simulation vitrail compare tells it" in simulated


def test_what_crossed_in_folds_is_counted(whole: Trial) -> None:
    run = vt.Run.load(whole.root / "run")
    assert run.info["folds"] == {"done": FOLDS, "crossed": dict.fromkeys(SIZES, declared(whole))}
    ledger = run.ledger[run.ledger.stage == "train"].groupby("site").bytes.sum()
    assert declared(whole) == FOLDS * int(ledger["north"])
    assert "trained 2 times more" in render(page_of(run))


def test_without_a_verdict_nothing_changes(whole: Trial, tmp_path: Path) -> None:
    """Neither a byte of a message nor a file."""
    sites = tables(SIZES)
    said: dict[str, list[bytes]] = {}

    class Reading(Here):
        def ask(self, questions: dict[str, Message], deadline: float) -> Responses:
            for name, question in questions.items():
                said.setdefault(name, []).append(question.pack())
            return super().ask(questions, deadline)

    trial = Trial(tmp_path, sites, study_of(sites, verdict=None))
    run = trial.conduct(Reading(trial.way.sites))
    assert not any(b"fold" in message or b"verdict" in message for told in said.values() for message in told)
    assert not list(tmp_path.rglob("*fold*"))
    assert not list(tmp_path.rglob("verdict*"))
    assert "folds" not in run.info
    assert "verdict" not in trial.agreed.study.to_toml()
    words = contract_text(trial.agreed, "north", list(sites), publishes=True)
    assert "fold" not in words.replace("twofold", "")
    one, other = (Agreement.of(t.agreed.study.with_changes(verdict=None), None, 3).hash for t in (trial, whole))
    assert one == other != whole.agreed.hash


class KilledError(Exception):
    """The coordinator is killed."""


class Bad(Here):
    """Answers are lost, sites are started anew, the coordinator is killed: in folds, until all of it has happened."""

    def __init__(self, trial: Trial) -> None:
        super().__init__(trial.way.sites)
        self.fresh, self.luck, self.lost = trial.fresh, random.Random(5), {"answer": 0, "site": 0, "coordinator": 0}

    def ask(self, questions: dict[str, Message], deadline: float) -> Responses:
        heard = super().ask(questions, deadline)
        if not any("fold" in q.words for q in questions.values()):
            return heard
        for name in list(heard.answers):
            if self.luck.random() < 0.15:
                heard.trouble[name] = "no answer"
                del heard.answers[name]
                self.lost["answer"] += 1
            if self.luck.random() < 0.15:
                self.sites[name] = self.fresh(name)
                self.lost["site"] += 1
        if self.luck.random() < 0.25:
            self.lost["coordinator"] += 1
            raise KilledError
        return heard


def test_killed_in_the_middle_it_comes_to_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under masks, where most is remembered."""
    for place in ("rounds", "requests", "session"):
        monkeypatch.setattr(f"vitrail.deploy.coordinator.{place}.time.sleep", lambda _: None)
    sites = tables(SIZES)
    trial = Trial(tmp_path, sites, study_of(sites, protect={"sum": "masked"}))
    way, ended = Bad(trial), False
    for _ in range(40):
        with contextlib.suppress(KilledError):
            trial.conduct(way)
            ended = True
            break
    assert ended
    assert min(way.lost.values()) > 0, way.lost
    agree(trial)


class Away(Here):
    """One site is not there where `gone` says so of a question."""

    def __init__(self, trial: Trial, site: str, gone: Callable[[Message], bool]) -> None:
        super().__init__(trial.way.sites)
        self.site, self.gone = site, gone

    def ask(self, questions: dict[str, Message], deadline: float) -> Responses:
        here = {n: q for n, q in questions.items() if n != self.site or not self.gone(q)}
        heard = super().ask(here, deadline)
        return Responses(
            heard.answers, heard.trouble | dict.fromkeys(questions.keys() - here.keys(), "it is not connected")
        )


def test_who_is_away_in_a_fold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Away in a round, a site still knows what the fold says of its rows; away when it ends, it is told which one."""
    monkeypatch.setattr("vitrail.deploy.coordinator.rounds.time.sleep", lambda _: None)
    sites = tables(SIZES)
    trial = Trial(tmp_path, sites, study_of(sites))
    away = {("round", 0), ("round", 1), ("settle", 1)}
    trial.conduct(Away(trial, "west", lambda q: (q.kind, q.words.get("fold")) in away), quorum=2)
    assert "gain" in trial.found("north")
    assert trial.found("west") == {"why": "this site was absent when these folds ended: 2 of 2."}
    assert (tmp_path / "west" / RUN / "folds" / fold_run(RUN, 0) / ANSWERS).exists()


def test_a_small_site_cuts_fewer_folds(tmp_path: Path) -> None:
    """No fold has fewer than ten rows; a site that could cut but one takes part with all its rows, and is told so."""
    sites = tables({"north": 60, "south": 35, "west": 19})
    trial = Trial(tmp_path, sites, study_of(sites, verdict={"folds": 4, "seeds": 1}, training={"rounds": 1}))
    run = trial.conduct()
    assert [trial.found(n).get("folds") for n in sites] == [4, 3, None]
    assert "too few" in trial.found("west")["why"]
    for name in sites:
        owns = SiteFolds(trial.way.sites[name])
        least = [int(np.bincount(owns.partition(k)[0].lots[name] + 1)[1:].min(initial=99)) for k in range(4)]
        assert min(least) >= 10
    assert set(run.info["folds"]["crossed"]) == set(sites)


def test_folds_are_the_site_s_own_secret(tmp_path: Path) -> None:
    """Cut by what only the site knows, and anew in every run and for every seed."""
    sites = tables(SIZES)
    study, cuts = study_of(sites, verdict={"folds": 2, "seeds": 2}), set()
    for home in ("a", "b"):
        for run in (RUN, RUN[::-1]):
            site = Site("north", sites["north"], Agreement.of(study, None, 3), tmp_path / home, another=True)
            site.enter(run)
            cuts |= {tuple(SiteFolds(site).partition(number)[0].lots["north"]) for number in (0, 2)}
            assert tuple(SiteFolds(site).partition(0)[0].lots["north"]) == tuple(
                SiteFolds(site).partition(1)[0].lots["north"]
            )
    assert len(cuts) == 8


@pytest.fixture
def begun(tmp_path: Path) -> tuple[Site, Message]:
    """A site in the middle of a run, and an honest first question of a fold."""
    sites = tables(SIZES)
    trial = Trial(tmp_path, sites, study_of(sites))
    asked: list[Message] = []

    class Stopping(Here):
        def ask(self, questions: dict[str, Message], deadline: float) -> Responses:
            if "fold" in (question := questions["north"]).words:
                asked.append(question)
                raise KilledError
            return super().ask(questions, deadline)

    with pytest.raises(KilledError):
        trial.conduct(Stopping(trial.way.sites))
    return trial.way.sites["north"], asked[0]


def test_what_a_fold_may_not_be_asked(begun: tuple[Site, Message]) -> None:
    site, honest = begun

    def ask(**words: Any) -> Message:
        return site.answer(honest._replace(words={**honest.words, **words}))

    for words in ({"fold": FOLDS}, {"fold": -1}, {"fold": True}, {"fold": "0"}, {"run": 5}):
        with pytest.raises(vt.VitrailError, match="refused"):
            ask(**words)
    with pytest.raises(vt.VitrailError, match="no score is reported for a fold"):
        ask(score=["test"])
    for kind in ("hello", "prepare", "standardise", "screen", "finish", "odd"):
        with pytest.raises(vt.VitrailError, match="refused"):
            site.answer(Message(kind, {"run": RUN, "fold": 0}))
    assert ask().words["fold"] == 0
    with pytest.raises(vt.VitrailError, match="stopped the run"):  # crafted weights are looked for in a fold, too
        site.answer(
            honest._replace(words={**honest.words, "fold": 1}, tensors={k: v + 9 for k, v in honest.tensors.items()})
        )


def test_after_the_end_no_fold_is_answered(begun: tuple[Site, Message]) -> None:
    site, honest = begun
    RunLog.end(site.home)
    with pytest.raises(vt.VitrailError, match="the run has ended"):
        site.answer(honest)


def test_questions_of_folds_are_among_those_that_a_run_may_repeat(begun: tuple[Site, Message]) -> None:
    """ANEW is for the run and its folds together: else every fold would be a new allowance."""
    site, honest = begun
    site.answer(honest)

    def other(i: int, fold: int) -> None:
        moved = {k: v * (1 + 1e-7 * i) for k, v in honest.tensors.items()}
        site.answer(honest._replace(words={**honest.words, "fold": fold}, tensors=moved))

    site.answer(honest._replace(words={**honest.words, "fold": 1}))
    for i in range(ANEW):
        other(i + 1, i % 2)
    with pytest.raises(vt.VitrailError, match="refused"):
        other(ANEW + 1, 0)


def test_a_verdict_that_cannot_be(whole: Trial) -> None:
    """What a site shows is looked at before it is kept."""
    study, honest = whole.agreed.study, {k: v for k, v in whole.found("north").items() if k != "why"}
    assert cannot_be(study, honest) is None
    for wrong in (
        {"verdict": "<script>"},
        {"gain": math.nan},
        {"gain": 1e300},
        {"gain": "1"},
        {"rows": -1},
        {"folds": 99},
        {"more": 1},
    ):
        asked, said = Message("finish", {}), Message("finish", {"verdict": {**honest, **wrong}})
        assert implausible_answer(whole.agreed, asked, said), wrong


def test_studies_that_no_verdict_goes_with() -> None:
    sites = tables(SIZES)
    for changes, what in (
        ({"protect": {"rows": {"epsilon": 4.0}, "clip": 1.0}}, "protect.rows"),
        ({"protect": {"sites": {"epsilon": 4.0}, "clip": 1.0}}, "protect.sites"),
        ({"method": {"name": "local"}}, "no site trains with others"),
    ):
        with pytest.raises(vt.VitrailError, match=what):
            study_of(sites).with_changes(**changes)
    study = study_of(sites, verdict={"folds": 4, "seeds": 2})
    assert vt.Study.parse(tomllib.loads(study.to_toml())) == study


def test_the_consent_form_says_it(whole: Trial) -> None:
    show, stay = (contract_text(whole.agreed, "north", list(SIZES), True, shows) for shows in (True, False))
    folds = paragraphs(clause(show, "REPORTS OF TRAININGS WITHOUT A PART OF THE ROWS"))
    assert "after the run. All sites train again 2 times, each time without another part" in folds["How often"]
    learned = folds["What an attacker could learn"]
    assert "can subtract one from the other" in learned
    assert "No fold here has fewer than 10 rows" in learned
    assert "in 53 of 100 cases by the report of the run itself, and in 52 of 100 by such differences" in learned
    verdict = "WHETHER JOINING IS WORTH IT HERE"
    assert "the verdict, and 12 numbers on which it rests" in clause(show, verdict)
    never = clause(stay, "WHAT NEVER LEAVES")
    assert "whether joining is worth it here: you did not ask this site to show it" in never
    assert verdict not in clauses(stay)


def test_a_site_s_own_page(whole: Trial, tmp_path: Path) -> None:
    study = whole.agreed.study
    page = write_own_verdict("<b>north", study, whole.found("north"), tmp_path / "page.html").read_text()
    assert "Is joining worth it here?" in page
    assert "<b>north" not in page
    assert f"{whole.found('north')['least']:.3f}" in page
    none = write_own_verdict("west", study, {"why": "19 rows are too few."}, tmp_path / "none.html").read_text()
    assert "It cannot be said: 19 rows are too few." in none


@pytest.mark.parametrize(
    "changes",
    [
        {"verdict": None},
        {"verdict": None, "standardise": "local"},
        {"verdict": None, "protect": {"sum": "masked"}},
        {},  # after two folds
    ],
)
def test_a_refit_is_the_same_as_on_one_machine(changes: dict[str, Any], tmp_path: Path) -> None:
    """All sites train once more on all rows; each keeps the model, and the coordinator keeps none."""
    sites = tables(SIZES)
    trial = Trial(tmp_path, sites, study_of(sites, **changes))
    study = trial.agreed.study.with_changes(training={"refit": True})
    trial = Trial(tmp_path / "refit", sites, study)
    run = trial.conduct()
    number = FOLDS if study.verdict else 0
    secrets = {n: draws_of(trial.root / n, fold_run(RUN, number)) for n in sites}
    plain = study.with_changes(protect={"sum": "plain"}, verdict=None)
    local = vt.federate(plain, sites, seed=trial.agreed.seed, secrets=secrets, engine="looped")
    for name, frame in sites.items():
        home = trial.root / name / RUN
        encoder = Encoder.of(study, json.loads((home / FINAL_ENCODER).read_text()))
        final = local.model_of(name)._replace(tensors=load_tensors(home / FINAL), encoder=encoder)
        wanted, scored = local.final_model(name).predict(frame), local.model_of(name).predict(frame)
        assert np.allclose(final.predict(frame), wanted, atol=2e-5)
        assert np.abs(wanted - scored).to_numpy().max() > 1e-3  # the test could fail
        assert not list(home.glob("folds/*/state-*"))
    declared_bytes = sum(x.bytes * x.rounds for x in trial.agreed.lines if x.stage.startswith(REFIT))
    assert run.info["refit"] == {"crossed": dict.fromkeys(SIZES, declared_bytes)}
    assert ("folds" in run.info) == bool(study.verdict)
    assert not any("final" in file.name for file in (trial.root / "run").rglob("*"))
    text = contract_text(trial.agreed, "north", list(SIZES), True)
    assert "once more on all of their rows" in clause(text, "REPORTS OF THE TRAINING ON ALL ROWS")


def test_a_coordinator_that_stops_in_a_refit_goes_on_with_it(tmp_path: Path) -> None:
    sites = tables(SIZES)
    trial = Trial(tmp_path, sites, study_of(sites, verdict=None, training={"rounds": 3, "lr": 0.05, "refit": True}))

    class Stopping(Here):
        asks = 2

        def ask(self, questions: dict[str, Message], deadline: float) -> Responses:
            if any(FOLD in q.words for q in questions.values()):
                self.asks -= 1
                if self.asks < 0:
                    raise KeyboardInterrupt
            return super().ask(questions, deadline)

    with pytest.raises(KeyboardInterrupt):
        trial.conduct(Stopping(trial.way.sites))
    assert not (trial.root / "north" / RUN / FINAL).exists()
    trial.way = Here({n: trial.fresh(n) for n in sites})
    run = trial.conduct()
    assert all((trial.root / n / RUN / FINAL).exists() for n in sites)
    assert set(run.info["refit"]["crossed"]) == set(SIZES)


def test_without_a_refit_a_site_answers_no_such_question(whole: Trial) -> None:
    """The control of the tests above: the fold after the last one is the refit, where there is one."""
    site = whole.fresh("north")
    site.enter(RUN)
    with pytest.raises(VitrailError, match="refused"):
        site.answer(Message("round", {"run": RUN, FOLD: FOLDS, "stage": 0, "round": 0, "place": 0, "score": []}))
