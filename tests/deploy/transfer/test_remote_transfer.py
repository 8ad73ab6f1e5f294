"""Whom to learn from, found out between machines: models travel, losses come back, by bytes in one process."""

from __future__ import annotations

import contextlib
import json
import random
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import vitrail as vt
from tests.support.deploy.federation import Here
from tests.support.deploy.forms import clause, clauses, paragraphs
from tests.support.deploy.proofs import prove
from vitrail.core.errors import StudyStopped, VitrailError
from vitrail.core.tensors import flatten
from vitrail.deploy.consent.form import contract_text
from vitrail.deploy.coordinator.requests import Responses, SiteRequests
from vitrail.deploy.coordinator.session import conduct
from vitrail.deploy.identity.site_identity import SiteIdentity
from vitrail.deploy.protocol.agreement import Agreement
from vitrail.deploy.protocol.message import Message
from vitrail.deploy.protocol.run_log import ENDED
from vitrail.deploy.site.private_randomness import draws_of
from vitrail.deploy.site.site import Site
from vitrail.deploy.transfer.shared import TRANSFER, signed_text, transfer_run
from vitrail.deploy.transfer.site import TransferSite
from vitrail.deploy.transfer.withdrawal import decision
from vitrail.privacy.score_rounding import LARGEST_LOSS, step_of
from vitrail.runs.folder import Folder
from vitrail.runs.setup import resolve

RUN = "0123456789abcdef"
SIZES = {"north": 80, "south": 70, "west": 60, "odd": 66}


@pytest.fixture(scope="module", autouse=True)
def _no_waiting_for_disks() -> Iterator[None]:
    """What survives a crash of the machine is tested elsewhere."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda file: None)
        yield


def tables(kind: str = "classes") -> dict[str, pd.DataFrame]:
    """One relation everywhere, the other way round at one site."""
    out = {}
    for i, (name, n) in enumerate(SIZES.items()):
        draw = np.random.default_rng(i)
        x = draw.normal(size=(n, 3)).round(3)
        y = (-1 if name == "odd" else 1) * (x @ [1.5, -1.0, 0.5]) + 0.5 * draw.normal(size=n)
        table = pd.DataFrame(x, columns=["a", "b", "c"])
        out[name] = table.assign(y=y.round(3) if kind == "number" else np.where(y > 0, "ill", "well"))
    return out


def study_of(kind: str = "classes", method: str = "fedavg", **changes: Any) -> vt.Study:
    given = {
        "transfer": {"folds": 3, "top": 2, "losses": "exact"},
        "screen": {"ask": False},
        "training": {"rounds": 6, "lr": 0.02},
        "standardise": "local",
        **changes,
    }
    drafted = vt.Study.infer(tables(kind), target="y", network={"hidden": (4,), "dropout": 0.2})
    return resolve(drafted.with_changes(**given), method, None)[0]


class Trial:
    """One study between sites in this process."""

    def __init__(self, root: Path, study: vt.Study, kind: str = "classes", refuse: tuple[str, ...] = ()) -> None:
        self.root, self.tables, self.refuse = root, tables(kind), refuse
        self.agreed = Agreement.of(study, None, len(SIZES))
        self.way = Here({n: self.fresh(n) for n in SIZES})

    def fresh(self, name: str) -> Site:
        proof = prove(name, list(SIZES), self.root / name)
        return Site(name, self.tables[name], self.agreed, self.root / name, name not in self.refuse, proof)

    def conduct(self, way: Here | None = None, quorum: int = 2) -> vt.Run:
        place = self.root / "run"
        folder = Folder(place, resume=place.exists(), about=".lock")
        try:
            call = SiteRequests(way or self.way, self.agreed, list(SIZES), RUN, quorum, 0.01)
            return conduct(call, folder, resume=True, start=len(SIZES))
        finally:
            folder.close()

    def found(self) -> dict[str, Any]:
        return dict(json.loads((self.root / "run" / "transfer" / "transfer.json").read_text()))

    def local(self) -> vt.Transfer:
        """What `vitrail transfer` finds on one machine, with what the sites drew."""
        secrets = {n: draws_of(self.root / n, transfer_run(RUN)) for n in SIZES}
        scales = None
        if self.agreed.shared_scale:
            scales = {n: s.data.encoder for n, s in self.way.sites.items() if s.data}
        terms = self.agreed.study.transfer
        assert terms is not None
        return vt.transfer(self.agreed.study, self.tables, terms.folds, secrets=secrets, scales=scales)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Trial:
    trial = Trial(tmp_path_factory.mktemp("whole"), study_of())
    trial.conduct()
    return trial


def same_as_on_one_machine(trial: Trial) -> None:
    found, local = trial.found(), trial.local()
    order = [local.sites.index(n) for n in found["sites"]]
    wanted = local.matrix().to_numpy()[np.ix_(order, order)]
    near = np.array([[np.nan if v is None else v for v in row] for row in found["matrix"]])
    np.testing.assert_allclose(near, wanted, rtol=1e-4, atol=1e-5)
    for part in ("cv_losses", "same"):
        assert found[part] == pytest.approx(getattr(local, part), rel=1e-4)
    assert found["ranking"] == {u: local.ranking(u) for u in found["sites"]}
    rule = trial.agreed.study.transfer.rule  # type: ignore[union-attr]
    assert found["subsets"] == {u: local.choose(u, rule) for u in found["sites"]}


def test_the_same_transfer_as_on_one_machine(whole: Trial) -> None:
    same_as_on_one_machine(whole)
    assert whole.found()["ranking"]["north"][-1] == "odd"
    losses = np.array([v for row in whole.found()["matrix"] for v in row if v is not None])
    assert len({*losses.round(6)}) == len(losses)  # they could have differed
    assert "Whom should each site learn from?" in (whole.root / "run" / "transfer" / "transfer.html").read_text()


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("number", {"transfer": {"folds": 2, "below": 2.0, "losses": "exact"}, "training": {"rounds": 2}}),
        ("classes", {"standardise": "global", "training": {"rounds": 2, "class_weights": "inverse"}}),
        ("classes", {"protect": {"sum": "masked"}, "standardise": "global", "training": {"rounds": 2}}),
    ],
)
def test_the_same_of_other_studies(kind: str, changes: dict[str, Any], tmp_path: Path) -> None:
    trial = Trial(tmp_path, study_of(kind, **changes), kind)
    trial.conduct()
    same_as_on_one_machine(trial)


class Watched(Here):
    """Every question and answer of the transfer, and of training, by site; `mend` may change a question."""

    def __init__(self, trial: Trial, mend: Callable[[str, Message], Message] | None = None) -> None:
        super().__init__(trial.way.sites)
        self.asked = dict[tuple[str, str], Message]()
        self.said = dict[tuple[str, str], Message]()
        self.mend = mend or (lambda name, question: question)

    def ask(self, questions: dict[str, Message], deadline: float) -> Responses:
        questions = {n: self.mend(n, q) for n, q in questions.items()}
        heard = super().ask(questions, deadline)
        for name, question in questions.items():
            self.asked[name, str(question.words.get("leg", question.kind))] = question
        for name, answer in heard.answers.items():
            self.said[name, str(questions[name].words.get("leg", answer.kind))] = answer
        return heard


def test_of_a_site_that_refuses_nothing_travels(tmp_path: Path) -> None:
    trial = Trial(tmp_path, study_of(), refuse=("west",))
    way = Watched(trial)
    run = trial.conduct(way)
    assert [way.said["west", leg].kind for leg in ("model",)] == ["refused"]
    assert not any(name == "west" and leg in ("judge", "subset") for name, leg in way.asked)
    for user in ("north", "south", "odd"):
        assert sorted(way.asked[user, "judge"].words["models"]) == sorted({"north", "south", "odd"} - {user})
    assert not (tmp_path / "west" / RUN / TRANSFER).exists()
    found = trial.found()
    assert "west" not in found["sites"]
    assert found["refused"] == ["west"]
    assert run.info[TRANSFER]["training"] == sorted(SIZES)  # where all train, it trains all the same
    assert ("west", "round") in way.said


def test_with_consent_its_model_travels_as_it_was_trained(whole: Trial, tmp_path: Path) -> None:
    """The control: what did not leave above leaves here."""
    trial = Trial(tmp_path, study_of())
    way = Watched(trial)
    trial.conduct(way)
    asked = way.asked["north", "judge"]
    at = [*asked.words["models"]].index("west")
    for name, tensor in way.said["west", "model"].tensors.items():
        if name.startswith("model/"):
            assert torch.equal(asked.tensors[name][at], tensor)
    assert set(way.said["north", "judge"].tensors) == {"losses"}
    lines = {(x.direction, x.name) for x in trial.agreed.lines if x.stage == TRANSFER}
    crossed = {("from site", k) for leg in ("model", "judge", "subset") for k in way.said["north", leg].tensors}
    crossed |= {("to site", k) for leg in ("model", "judge", "subset") for k in way.asked["north", leg].tensors}
    assert crossed == lines
    shapes = {(x.direction, x.name): x.shape for x in trial.agreed.lines if x.stage == TRANSFER}
    assert all(tuple(t.shape) == shapes["to site", k] for k, t in asked.tensors.items())


@pytest.fixture
def asked(tmp_path: Path) -> tuple[Site, Message]:
    """A site that was asked for its model, and the honest question after it."""
    trial = Trial(tmp_path, study_of(training={"rounds": 1}))
    kept = dict[str, Message]()

    class Stopping(Here):
        def ask(self, questions: dict[str, Message], deadline: float) -> Responses:
            if next(iter(questions.values())).words.get("leg") == "judge":
                kept.update(questions)
                raise KeyboardInterrupt
            return super().ask(questions, deadline)

    with pytest.raises(KeyboardInterrupt):
        trial.conduct(Stopping(trial.way.sites))
    return trial.way.sites["north"], kept["north"]


def crafted(question: Message, by: float = 1e-3) -> Message:
    """One model is another one."""
    tensors = {k: v.clone() for k, v in question.tensors.items()}
    tensors["model/head.bias"][0] += by
    return question._replace(tensors=tensors)


def test_a_model_that_no_participant_made_is_not_judged(
    asked: tuple[Site, Message], monkeypatch: pytest.MonkeyPatch
) -> None:
    site, honest = asked
    with pytest.raises(VitrailError, match="did not sign this"):
        site.answer(crafted(honest))
    assert not (site.home / TRANSFER / "judge.said").exists()
    monkeypatch.setattr(SiteIdentity, "check", lambda *given: None)  # the control: without the check it is answered
    made, fresh = crafted(honest, 0.5), site.answer(crafted(honest, 0.5)).tensors["losses"]
    assert torch.isfinite(fresh).all()
    assert site.answer(made).tensors["losses"][0] != 0


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda m: {**m, "stranger": next(iter(m.values()))}, "no .* in the agreement|not among the participants"),
        (lambda m: {**dict(list(m.items())[:2]), "north": next(iter(m.values()))}, "of another site"),
        (lambda m: {**dict(list(m.items())[:2]), "stranger": next(iter(m.values()))}, "not among the participants"),
        (lambda m: dict(zip(m, [*list(m.values())[1:], next(iter(m.values()))], strict=True)), "another site"),
        (lambda m: {n: {} for n in m}, "a signature and a certificate"),
        (lambda m: {}, "in the agreement"),
    ],
)
def test_an_extra_or_exchanged_model_is_refused(asked: tuple[Site, Message], change: Any, why: str) -> None:
    site, honest = asked
    models = change(honest.words["models"])
    tensors = dict(honest.tensors)
    if len(models) > len(SIZES) - 1:
        tensors = {k: torch.cat([v, v[:1]]) for k, v in tensors.items()}
    with pytest.raises(VitrailError, match=why):
        site.answer(honest._replace(words={**honest.words, "models": models}, tensors=tensors))
    assert site.answer(honest).kind == TRANSFER  # the control


def test_models_are_judged_once(asked: tuple[Site, Message], monkeypatch: pytest.MonkeyPatch) -> None:
    """Asked the same again, also after a restart, a site says the same; asked otherwise, also with fewer, nothing."""
    site, honest = asked
    first = site.answer(honest).tensors["losses"]
    trial = Trial(site.base.parent, site.agreed.study)
    again = trial.fresh("north")
    assert torch.equal(again.answer(honest).tensors["losses"], first)
    fewer = honest._replace(
        words={**honest.words, "models": dict(list(honest.words["models"].items())[:2])},
        tensors={k: v[:2] for k, v in honest.tensors.items()},
    )
    monkeypatch.setattr(SiteIdentity, "check", lambda *given: None)
    for other in (fewer, crafted(honest)):
        with pytest.raises(VitrailError, match="asked before in this run with other contents"):
            again.answer(other)
    (site.home / TRANSFER / "judge.said").unlink()  # the control: without its memory it would be answered
    assert len(trial.fresh("north").answer(fewer).tensors["losses"]) == 2


def test_a_model_outside_the_bounds_is_not_judged(tmp_path: Path) -> None:
    """Its maker signed it: the coordinator leaves it out, and a site would refuse it."""
    trial = Trial(tmp_path, study_of(training={"rounds": 1}))

    def wild(site: Site) -> None:
        real = TransferSite._model

        def model(self: TransferSite, question: Message) -> Message:
            if self.site is not site:
                return real(self, question)
            answer = real(self, question)
            tensors = {k: v * 40 if k == "model/body.0.weight" else v for k, v in answer.tensors.items()}
            own = {k: v for k, v in tensors.items() if k.startswith("model/")}
            text = signed_text(self.agreed, self.site.home.name, self.site.name, own, tensors["cv_loss"])
            assert self.site.proof is not None
            return Message(TRANSFER, self.site.proof.signed(text), tensors)

        patch.setattr(TransferSite, "_model", model)

    with pytest.MonkeyPatch.context() as patch:
        wild(trial.way.sites["odd"])
        way = Watched(trial)
        trial.conduct(way)
        assert "model not used" in [event for event, _ in way.events]
        assert "odd" not in way.asked["north", "judge"].words["models"]
        careless = Trial(tmp_path / "careless", trial.agreed.study)
        wild(careless.way.sites["odd"])
        patch.setattr("vitrail.deploy.transfer.coordinator.MARGIN", 1e9)  # a coordinator that does not look
        wary = Watched(careless)
        careless.conduct(wary)
        assert ("north", "judge") not in wary.said
        assert "longer than" in str(dict(wary.events).get("trouble", wary.events))


def test_a_site_withdraws_before_training(tmp_path: Path) -> None:
    trial = Trial(tmp_path, study_of(training={"rounds": 2}))
    told = list[list[str]]()

    def decides(group: Any) -> bool:
        told.append([*group])
        return False

    trial.way.sites["south"].decides = decides
    way = Watched(trial)
    run = trial.conduct(way)
    assert told == [sorted(SIZES)]
    assert way.said["south", "subset"].words == {"stays": False}
    assert run.info[TRANSFER]["withdrew"] == ["south"]
    assert sorted(run.info["sites"]) == ["north", "odd", "west"]
    assert not {("south", "round"), ("south", "settle"), ("south", "finish")} & way.asked.keys()
    assert (tmp_path / "south" / RUN / ENDED).exists()
    assert not (tmp_path / "south" / RUN / "model.safetensors").exists()
    assert (tmp_path / "north" / RUN / "model.safetensors").exists()
    word = {k: v[0] for k, v in flatten(trial.agreed.stages[0].turns[0].down)}
    first = Message("round", {"run": RUN, "stage": 0, "round": 0, "place": 0, "score": []}, word)
    with pytest.raises(VitrailError, match="withdrew or was not chosen"):  # should the coordinator ask all the same
        trial.fresh("south").answer(first)
    with pytest.MonkeyPatch.context() as unchecked:  # the control: without the check it would train
        unchecked.setattr(TransferSite, "check_stayed", lambda self, kind="": None)
        assert trial.fresh("south").answer(first).kind == "round"


def test_no_training_before_the_subset_is_told(asked: tuple[Site, Message]) -> None:
    site, _ = asked
    word = {k: v[0] for k, v in flatten(site.agreed.stages[0].turns[0].down)}
    with pytest.raises(VitrailError, match="was not told who would train together"):
        site.answer(Message("round", {"run": RUN, "stage": 0, "round": 0, "place": 0, "score": []}, word))


def test_a_user_trains_with_those_chosen_for_it(tmp_path: Path) -> None:
    study = study_of(transfer={"folds": 2, "top": 2, "losses": "exact", "user": "north"}, training={"rounds": 3})
    trial = Trial(tmp_path, study, refuse=("west",))
    way = Watched(trial)
    run = trial.conduct(way)
    chosen = trial.found()["subsets"]["north"]
    assert "west" not in chosen
    assert sorted(run.info["sites"]) == sorted(["north", *chosen])
    assert {n for n, leg in way.asked if leg == "round"} == {"north", *chosen}
    left_out = Trial(tmp_path / "one", study.with_changes(transfer={"top": 1}))
    run = left_out.conduct(out := Watched(left_out))
    (one,) = left_out.found()["subsets"]["north"]
    assert sorted(run.info["sites"]) == sorted(["north", one])
    for name in SIZES.keys() - {"north", one}:
        assert out.said[name, "subset"].words == {"stays": False}
        with pytest.raises(VitrailError, match="was not chosen"):
            left_out.fresh(name).answer(out.asked["north", "round"])
    alone = vt.federate(
        study.with_changes(transfer=None),
        {n: left_out.tables[n] for n in run.info["sites"]},
        seed=left_out.agreed.seed,
        secrets={n: draws_of(left_out.root / n, RUN) for n in SIZES},
        engine="looped",
    )
    assert run.shared is not None
    assert alone.shared is not None
    torch.testing.assert_close(run.shared, alone.shared, rtol=0, atol=1e-5)  # as those two alone


@pytest.mark.parametrize(
    ("lie", "why"),
    [
        (lambda w: {"subsets": {"north": ["odd"]}, "together": ["north", "odd"]}, "which follows from its losses"),
        (lambda w: {"together": ["north", "stranger"]}, "lists of participants"),
        (lambda w: {"subsets": {"north": 3}}, "lists of participants"),
        (lambda w: {"together": ["north", "odd"]}, "with those chosen for it"),
    ],
)
def test_a_subset_that_does_not_follow_is_refused(lie: Any, why: str, tmp_path: Path) -> None:
    trial = Trial(tmp_path, study_of(transfer={"top": 1, "losses": "exact", "user": "north"}, training={"rounds": 1}))

    def mend(name: str, question: Message) -> Message:
        if question.words.get("leg") == "subset" and name == "north":
            return question._replace(words={**question.words, **lie(question.words)})
        return question

    way = Watched(trial, mend)
    with pytest.raises(StudyStopped):  # the user takes no part
        trial.conduct(way)
    assert any(why in str(told.get("what")) for event, told in way.events if event == "trouble"), way.events
    assert ("north", "subset") not in way.said


class KilledError(Exception):
    """The coordinator is killed."""


class Bad(Here):
    """Answers are lost, sites are started anew, the coordinator is killed: in the transfer, until all has happened."""

    def __init__(self, trial: Trial) -> None:
        super().__init__(trial.way.sites)
        self.fresh, self.luck, self.lost = trial.fresh, random.Random(4), {"answer": 0, "site": 0, "coordinator": 0}

    def ask(self, questions: dict[str, Message], deadline: float) -> Responses:
        heard = super().ask(questions, deadline)
        if not any(q.kind == TRANSFER for q in questions.values()):
            return heard
        for name in list(heard.answers):
            if self.luck.random() < 0.2:
                heard.trouble[name] = "no answer"
                del heard.answers[name]
                self.lost["answer"] += 1
            if self.luck.random() < 0.3:
                self.sites[name] = self.fresh(name)
                self.lost["site"] += 1
        if self.luck.random() < 0.5:
            self.lost["coordinator"] += 1
            raise KilledError
        return heard


def test_killed_in_the_middle_it_comes_to_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vitrail.deploy.coordinator.requests.PATIENCE", 1e6)  # who is away is waited for
    monkeypatch.setattr("vitrail.deploy.coordinator.requests.time.sleep", lambda _: None)
    trial = Trial(tmp_path, study_of(training={"rounds": 2}))
    way, ended = Bad(trial), False
    for _ in range(40):
        with contextlib.suppress(KilledError):
            trial.conduct(way)
            ended = True
            break
    assert ended
    assert min(way.lost.values()) > 0, way.lost
    same_as_on_one_machine(trial)
    assert not list((tmp_path / "run").glob("*.heard"))


def test_under_masks_too_few_do_not_train(tmp_path: Path) -> None:
    changes = {"protect": {"sum": "masked"}, "training": {"rounds": 1}}
    trial = Trial(tmp_path, study_of(transfer={"top": 1, "losses": "exact", "user": "north"}, **changes))
    with pytest.raises(StudyStopped, match="2 of 4 sites would train, and 3 are needed"):
        trial.conduct()
    with pytest.raises(StudyStopped, match="3 are needed"):  # started again, the same
        trial.conduct()


def test_rounded_losses_are_right_on_average_and_hide_one_patient(tmp_path: Path) -> None:
    agreed = Agreement.of(study_of(transfer={"losses": "rounded"}), None, len(SIZES))
    table = pd.concat([tables()["north"]] * 5, ignore_index=True)
    site = Site("north", table, agreed, tmp_path, True, prove("north", list(SIZES), tmp_path))
    site.enter(RUN)
    one = TransferSite(site)
    (user,) = one._data()
    draw = np.random.default_rng(1)
    rows, weights = draw.exponential(0.6, size=(3, len(user.train_y))), np.ones(len(user.train_y))
    changed = rows.copy()
    changed[:, 0] = np.where(changed[:, 0] > 2, 0.0, LARGEST_LOSS)  # another patient in place of one

    def told(some: Any, secret: str) -> list[float]:
        one.secret = secret
        return one._rounded(some, weights, user, ["a", "b", "c"])

    many = np.array([told(rows, f"{i}") for i in range(600)])
    other = np.array([told(changed, f"{i}") for i in range(600)])
    step = step_of(len(weights) / LARGEST_LOSS) * LARGEST_LOSS / len(weights)
    np.testing.assert_allclose(many.mean(0), rows.clip(max=LARGEST_LOSS).mean(1), atol=4 * step / 600**0.5)
    assert {*np.round(np.diff(np.unique(many)) / step, 6)} <= {1.0}
    assert (many != other).mean() <= 0.1 + 4 * (0.09 / many.size) ** 0.5
    assert (many != other).any()  # it is not nothing
    few = TransferSite(Site("west", tables()["west"], agreed, tmp_path / "few"))
    (small,) = few._data()
    assert np.isnan(few._rounded(rows[:, : len(small.train_y)], np.ones(len(small.train_y)), small, ["a"])).all()


def test_a_site_with_few_patients_takes_no_part(tmp_path: Path) -> None:
    """And of a small one no rounded loss leaves."""
    trial = Trial(tmp_path, study_of(transfer={"folds": 2, "losses": "rounded"}, training={"rounds": 1}))
    trial.tables["west"] = trial.tables["west"].iloc[:12]
    trial.way.sites["west"] = trial.fresh("west")
    trial.conduct(way := Watched(trial))
    assert way.said["west", "model"].kind == "refused"
    assert "fewer than 10 rows to train on" in str(trial.way.sites["west"].notices)
    assert "west" not in way.asked["north", "judge"].words["models"]
    assert way.said["north", "judge"].tensors["losses"].isnan().all()
    assert trial.found()["subsets"] == {"north": [], "south": [], "odd": []}
    assert "report no rounded loss" in (tmp_path / "run" / "transfer" / "transfer.html").read_text()


def test_what_a_site_keeps_for_itself(whole: Trial) -> None:
    """Exact losses with their errors, and what models use differently: as on one machine, in its own folder."""
    local, home = whole.local(), whole.root / "north" / RUN / TRANSFER
    kept = json.loads((home / "losses.json").read_text())
    mine = local.table[local.table.user == "north"].set_index("site")
    assert {n: v["loss"] for n, v in kept.items()} == pytest.approx(dict(mine.loss_on_user), rel=1e-4)
    used = pd.read_csv(home / "feedback.csv").sort_values(["site", "column"], ignore_index=True)
    wanted = local.feedback[local.feedback.user == "north"].sort_values(["site", "column"], ignore_index=True)
    np.testing.assert_allclose(used.difference, wanted.difference, rtol=1e-3, atol=1e-4)
    assert not (whole.root / "run" / "transfer" / "feedback.csv").exists()
    assert not any(b"feedback" in f.name.encode() for f in (whole.root / "run").rglob("*"))


def test_studies_that_no_transfer_goes_with() -> None:
    for changes, what in (
        ({"protect": {"rows": {"epsilon": 4.0}}}, "protect.rows"),
        ({"method": {"name": "local"}}, "no site trains with others"),
        ({"protect": {"sum": "groups", "robust": "median"}, "transfer": {"user": "north"}}, "transfer.user"),
        ({"transfer": {"top": 0}}, "at least 1"),
    ):
        with pytest.raises(vt.VitrailError, match=what):
            study_of().with_changes(**changes)
    study = study_of(transfer={"below": 0.25, "user": "north"})
    assert vt.Study.parse(tomllib.loads(study.to_toml())) == study
    assert study.transfer is not None
    assert (study.transfer.rule, study_of().transfer.rule) == ("below:0.25", "top:2")  # type: ignore[union-attr]


def test_who_decides() -> None:
    study = study_of()
    assert decision(study)(["a", "b"])
    assert not decision(study, 3)(["a", "b"])
    assert decision(study, 2)(["a", "b"])
    for given, what in (((study, 0, True), "no terminal"), ((study.with_changes(transfer=None), 2), "chooses nobody")):
        with pytest.raises(VitrailError, match=what):
            decision(*given)


def test_the_consent_form_says_it(whole: Trial) -> None:
    sites = list(SIZES)
    text, quiet = (contract_text(whole.agreed, "north", sites, publishes) for publishes in (True, False))
    heading = "YOUR OWN MODEL, AND HOW THE OTHERS' MODELS DO HERE"
    said = paragraphs(clause(text, heading))
    assert "EXACT" in said["In which form"]
    assert "trained on your rows alone" in said["What an attacker could learn"]
    assert "`--confirm-subset`" in said["What you may refuse"]
    assert heading not in clauses(quiet)
    assert "model/head.weight" in text
    assert "model/head.weight" not in quiet
    rounded = Agreement.of(study_of(transfer={"user": "north"}), None, len(SIZES))
    other = contract_text(rounded, "north", sites, publishes=True)
    assert "rounded at random" in paragraphs(clause(other, heading))["In which form"]
    assert "does not train in this run" in clause(other, "WHAT YOU MAY REFUSE")
    assert "This site trains all the same" in clause(text, "WHAT YOU MAY REFUSE")
