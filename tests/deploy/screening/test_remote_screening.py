"""A screening by messages is the screening of one machine; what crosses in it, and how one would ask for more."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pandas.testing as pdt
import pytest
import torch
from cryptography.hazmat.primitives.asymmetric import rsa
from safetensors import safe_open

import vitrail as vt
from tests.support.deploy.federation import Here, without_scores
from tests.support.deploy.forms import clause, line_of
from tests.support.deploy.proofs import authority, prove
from vitrail.data.datasets.catalogue import heart_disease, packaged
from vitrail.data.readers.tables import clean
from vitrail.deploy.consent.disclosures import phrases
from vitrail.deploy.consent.file_sheet import file_sheet
from vitrail.deploy.consent.form import contract_text
from vitrail.deploy.coordinator.requests import Responses, SiteRequests
from vitrail.deploy.coordinator.session import conduct
from vitrail.deploy.identity.documents import identity_of
from vitrail.deploy.protocol.agreement import Agreement
from vitrail.deploy.protocol.message import Message, unpack
from vitrail.deploy.screening.coordinator import AWAY, RemoteScreening
from vitrail.deploy.screening.shared import LEGS
from vitrail.deploy.screening.site import PLACE
from vitrail.deploy.secure_sum.coordinator import SumCoordinator
from vitrail.deploy.site.privacy_ledger import PrivacyLedger
from vitrail.deploy.site.site import BEHIND, POOLED, Site
from vitrail.privacy.secure_sum import dropout_tolerant
from vitrail.quality.screening import Screening, ScreeningSite
from vitrail.runs.folder import Folder
from vitrail.runs.screening import REFUSED, screen_rows
from vitrail.runs.setup import resolve

RUN = "0123456789abcdef"
NAMES = ["cleveland", "hungarian", "switzerland", "va"]


class Spied(Here):
    """All that leaves every site; `change` is what happens to an answer before it is packed."""

    def __init__(self, sites: dict[str, Site]) -> None:
        super().__init__(sites)
        self.said: dict[tuple[str, str], list[bytes]] = {}
        self.asked: dict[str, Message] = {}
        self.away: Callable[[str, Message], bool] = lambda name, question: False
        self.change: Callable[[str, Message, Message], Message] = lambda name, question, said: said

    def ask(self, questions: dict[str, Message], deadline: float) -> Responses:
        here = {n: q for n, q in questions.items() if not self.away(n, q)}
        heard = super().ask(here, deadline)
        for name, said in list(heard.answers.items()):
            question = questions[name]
            leg = question.words.get("leg", question.kind)
            self.asked[leg] = question
            heard.answers[name] = unpack(self.change(name, question, said).pack())
            self.said.setdefault((name, leg), []).append(said.pack())
        trouble = heard.trouble | dict.fromkeys(questions.keys() - here.keys(), "it is not connected")
        return Responses(heard.answers, trouble)


@cache
def heart() -> Agreement:
    study = vt.Study.load(packaged("heart_disease.toml")).with_changes(training={"rounds": 1})
    return Agreement.of(resolve(study, "fedavg", None)[0], None, len(NAMES))


class Four:
    """The heart study, sites in this process."""

    def __init__(self, root: Path, refuse: str = "", proven: bool = True) -> None:
        self.agreed = heart()
        self.study, self.root, self.frames = self.agreed.study, root, heart_disease()
        self.refuse, self.proven = refuse, proven
        self.sites = {n: self.site(n) for n in NAMES}
        self.way = Spied(self.sites)

    def site(self, name: str, frame: pd.DataFrame | None = None) -> Site:
        frame = self.frames[name] if frame is None else frame
        proof = prove(name, NAMES, self.root / name) if self.proven else None
        return Site(name, frame, self.agreed, self.root / name, name != self.refuse, proof)

    def screen(self, call: SiteRequests | None = None) -> Screening:
        (self.root / "run").mkdir(exist_ok=True)
        call = call or self.call()
        sums = SumCoordinator(call, self.root / "run", NAMES)
        return RemoteScreening(call, NAMES, self.root / "run", sums).run()

    def call(self, deadline: float = 0.01) -> SiteRequests:
        return SiteRequests(self.way, self.agreed, NAMES, RUN, len(NAMES), deadline)

    def near(self, leave: tuple[str, ...] = ()) -> Screening:
        rows = {n: clean(f, self.study) for n, f in self.frames.items()}
        return screen_rows(self.study, rows, leave)


@pytest.fixture
def four(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Four:
    monkeypatch.setattr("vitrail.deploy.coordinator.requests.time.sleep", lambda _: None)
    return Four(tmp_path)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Four:
    """Screened; for tests that ask other sites anew."""
    made = Four(tmp_path_factory.mktemp("done"))
    made.screen()
    return made


def same(far: Screening, near: Screening) -> None:
    assert set(far.sites["digest"]) == {""}, "keyed by the run: of no use, and not kept"
    pdt.assert_frame_equal(far.sites.drop(columns="digest"), near.sites.drop(columns="digest"))
    pdt.assert_frame_equal(far.cells, near.cells, rtol=1e-5)
    assert len(far.findings) == len(near.findings)
    for one, other in zip(far.findings, near.findings, strict=True):
        assert one[:4] == other[:4]
        assert one.strength == pytest.approx(other.strength, rel=1e-5)
    assert far.pooled.keys() == near.pooled.keys()


def test_the_same_as_on_one_machine(four: Four) -> None:
    far = four.screen()
    same(far, four.near())
    assert four.way.events == []
    assert {leg for _, leg in four.way.said} == {*LEGS, "ring", "keys", "open"}


def test_a_whole_run_keeps_it_and_each_site_is_told(four: Four) -> None:
    folder = Folder(four.root / "run", resume=False)
    run = conduct(four.call(60.0), folder, resume=False)
    folder.close()
    near = vt.federate(four.study, four.frames, engine="looped")
    assert run.screening is not None
    assert near.screening is not None
    same(run.screening, near.screening)
    pdt.assert_frame_equal(*map(without_scores, (run, near)))
    again = vt.Run.load(four.root / "run")
    assert [f[:4] for f in again.findings()] == [f[:4] for f in near.findings()]
    assert not list((four.root / "run").glob("*.heard"))  # what single sites published is not kept
    assert again.screening is not None
    assert again.screening.evidence
    assert not any(of["sites"] for of in again.screening.evidence.values())
    for name in NAMES:
        home = four.root / name / RUN
        told = json.loads((home / POOLED).read_text())
        assert told == json.loads(json.dumps(run.screening.pooled))
        with safe_open(home / BEHIND, "pt") as file:
            said = json.loads(file.metadata()["told"])
        mine = [f for f in run.findings() if f.site == name]
        assert [f[1:4] for f in four.agreed.findings(said, name)] == [f[1:4] for f in mine]
        assert mine, "nothing is found about it, so that this tests nothing"


# what crosses


def test_no_row_leaves(four: Four) -> None:
    """Four neighbouring values of a row, as any number; and the same search finds a row that is put there."""
    four.screen()
    patterns = []
    for frame in four.frames.values():
        rows = clean(frame, four.study).to_numpy(np.float64)
        patterns += [row[i : i + 4].tobytes() for row in rows for i in range(len(row) - 3) if _telling(row[i : i + 4])]
    left = b"".join(data for said in four.way.said.values() for data in said)
    assert len(patterns) > 1000
    assert not any(p in left for p in patterns)
    rows = clean(four.frames["va"], four.study).to_numpy(np.float64)
    assert any(p in left + rows[:20].tobytes() for p in patterns)


def _telling(values: np.ndarray) -> bool:
    return bool(np.isfinite(values).all()) and len(set(values)) == 4


def products(site: str, four: Four) -> np.ndarray:
    """What this site adds to the total."""
    asked = {k: v.numpy() for k, v in four.way.asked["counts"].tensors.items()}
    _, summed = ScreeningSite(clean(four.frames[site], four.study), four.study).counts(asked)
    return summed["products"].ravel()


def readable(site: str, four: Four) -> float:
    """Of the largest numbers of the matrix, how many of the report's numbers go with them."""
    (data,) = four.way.said[site, "total"]
    said = unpack(data).tensors["products"].numpy().astype(float).ravel()
    return float(abs(np.corrcoef(said, products(site, four))[0, 1]))


def test_no_single_matrix_is_readable(four: Four, monkeypatch: pytest.MonkeyPatch) -> None:
    four.screen()
    assert max(readable(n, four) for n in NAMES) < 0.2
    everything = b"".join(data for said in four.way.said.values() for data in said)
    for name in NAMES:
        own = products(name, four)
        assert not any(own[i : i + 2].tobytes() in everything for i in range(0, len(own) - 1, 7) if own[i] % 1)
    monkeypatch.setattr(dropout_tolerant, "draw", lambda key, count: np.zeros(count, dtype=np.uint64))
    bare = Four(four.root / "bare")
    bare.screen()
    assert min(readable(n, bare) for n in NAMES) > 0.999


def test_the_form_says_all_of_it(four: Four) -> None:
    frame = four.frames["switzerland"]
    text = contract_text(four.agreed, "switzerland", NAMES, True)
    form, said = line_of(text), clause(text, "SUMMARIES OF YOUR COLUMNS")
    for part in four.agreed.parts:
        if part.direction == "from site":
            assert phrases("columns")[part.name] in said
    assert "the products of columns under masks" in said
    assert "two thirds" in form
    ledger = PrivacyLedger(four.root / "ledger", four.root / "none.csv", frame, four.agreed, None)
    many, few = (line_of(file_sheet(four.agreed, True, rows, ledger)) for rows in (len(frame), 8))
    assert f"against the {len(frame)} rows that you have" in many
    assert "You have 8 rows. These are too few" in few
    refused = line_of(contract_text(four.agreed, "switzerland", NAMES, False))
    assert "under masks" not in refused
    assert "what a site may publish: you refused" in refused


def test_too_few_rows_publish_nothing(four: Four, tmp_path: Path) -> None:
    four.frames["va"] = four.frames["va"].head(8)
    four.sites["va"] = four.site("va")
    far = four.screen()
    same(far, four.near())
    assert not far.sites.set_index("site").judged["va"]
    sketch = unpack(four.way.said["va", "sketch"][0]).tensors
    assert [k for k, v in sketch.items() if bool(v.isfinite().any())] == ["rows"]


# who is not there


def test_who_refuses_is_left_out_and_told(tmp_path: Path) -> None:
    four = Four(tmp_path, refuse="va")
    far = four.screen()
    assert far.sites.set_index("site")["why not"]["va"] == REFUSED
    same(far, four.near(("va",)))
    assert {leg for name, leg in four.way.said if name == "va"} == {"sketch"}
    assert unpack(four.way.said["va", "sketch"][0]) == Message("refused", {})


@pytest.mark.parametrize("leg", ["sketch", "counts", "ties"])
def test_who_falls_silent_is_left_out_and_told(leg: str, four: Four) -> None:
    four.way.away = lambda name, question: name == "va" and question.words.get("leg") == leg
    far = four.screen()
    assert far.sites.set_index("site")["why not"].to_dict() == {n: AWAY if n == "va" else "" for n in NAMES}
    assert ("not screened", {"site": "va", "why": AWAY}) in four.way.events
    assert set(far.cells.site) == set(NAMES) - {"va"}
    if leg == "sketch":
        assert [f[:4] for f in far.findings] == [f[:4] for f in four.near(("va",)).findings]


def test_without_proof_of_who_they_are_no_sum_is_opened(tmp_path: Path) -> None:
    four = Four(tmp_path, proven=False)
    far = four.screen()
    assert "total not opened" in [e for e, _ in four.way.events]
    assert {leg for _, leg in four.way.said} == {"sketch", "counts", "ring", "ties"}
    assert {unpack(*data).kind for (_, leg), data in four.way.said.items() if leg == "ring"} == {"refused"}
    assert len(far.cells)


class KilledError(Exception):
    """The coordinator is killed."""


@pytest.mark.parametrize("leg", LEGS)
def test_a_coordinator_that_is_killed_goes_on_with_the_same_questions(leg: str, four: Four) -> None:
    whole, kills = four.way.ask, ["once"]

    def killing(questions: dict[str, Message], deadline: float) -> Responses:
        heard = whole(questions, deadline)
        if kills and next(iter(questions.values())).words["leg"] == leg:
            raise KilledError(kills.pop())
        return heard

    four.way.ask = killing  # type: ignore[method-assign]
    with pytest.raises(KilledError):
        four.screen()
    for name in ("va", "cleveland"):
        four.sites[name] = four.site(name)  # and some sites were started anew
    same(four.screen(), four.near())


# a coordinator that asks for more


def asked(four: Four, leg: str, **changes: Any) -> Message:
    """A question of this leg as it is agreed on, with other numbers."""
    question = four.way.asked[leg]
    told = {k: torch.from_numpy(changes[k]) if k in changes else v for k, v in question.tensors.items()}
    return Message("screen", dict(question.words), told)


def test_another_question_is_refused_and_the_same_has_the_same_answer(four: Four) -> None:
    four.screen()
    cuts = four.way.asked["counts"].tensors["cuts"].numpy() + 0.5
    related = four.way.asked["ties"].tensors["related"].numpy()
    other = four.frames["va"].assign(chol=123)
    for site in (four.sites["va"], four.site("va"), four.site("va", other)):  # also with other rows
        for leg in LEGS:
            said = site.answer(four.way.asked[leg])
            assert said.pack() == four.way.said["va", leg][0]
        for leg, changes in (("counts", {"cuts": cuts}), ("ties", {"related": np.where(related == 3, 4.0, 3.0)})):
            with pytest.raises(vt.VitrailError, match="asked before in this run"):
                site.answer(asked(four, leg, **changes))
        total = four.way.asked["total"].words
        less = {**total["sum"], "roster": [n for n in NAMES if n != "hungarian"]}
        with pytest.raises(vt.VitrailError, match="a masked sum, report: it was asked before in this run"):
            site.answer(Message("screen", {**total, "sum": less}))


@pytest.mark.parametrize(
    ("leg", "name", "change"),
    [
        ("counts", "cuts", lambda v: v[:, ::-1].copy()),
        ("counts", "cuts", lambda v: np.full_like(v, np.inf)),
        ("counts", "chosen", lambda v: v + 1),
        ("counts", "chosen", lambda v: np.zeros_like(v)),
        ("counts", "chosen", lambda v: v - 0.5),
        ("counts", "values", lambda v: np.full_like(v, -np.inf)),
        ("ties", "related", lambda v: np.full_like(v, 1e9)),
        ("ties", "related", lambda v: np.full_like(v, 0.5)),
        ("ties", "products", lambda v: v + np.triu(np.ones_like(v), 1)),
        ("ties", "products", lambda v: -v),
        ("ties", "products", lambda v: np.where(np.eye(len(v)), v, 1e9)),
        ("ties", "products", lambda v: np.where(np.eye(len(v)), np.nan, v)),
        ("ties", "chosen", lambda v: v[::-1].copy()),
    ],
)
def test_questions_that_follow_from_nothing_are_refused(
    leg: str, name: str, change: Any, done: Four, tmp_path: Path
) -> None:
    fresh = Four(tmp_path).sites["va"]
    for before in ("sketch", "counts")[: LEGS.index(leg)]:
        fresh.answer(done.way.asked[before])
    value = change(done.way.asked[leg].tensors[name].numpy())
    with pytest.raises(vt.VitrailError, match="refused"):
        fresh.answer(asked(done, leg, **{name: value}))
    assert not (fresh.home / PLACE / f"{leg}.said").exists()
    fresh.answer(done.way.asked[leg])  # as it is, it is answered


def test_legs_in_another_order_are_refused(done: Four, tmp_path: Path) -> None:
    fresh = Four(tmp_path).sites["va"]
    for leg, what in (("ties", "comes after"), ("total", "comes after")):
        with pytest.raises(vt.VitrailError, match=what):
            fresh.answer(done.way.asked[leg])
    for leg in ("everything", "answer", "", "seat"):
        with pytest.raises(vt.VitrailError, match="refused"):
            fresh.answer(Message("screen", {"run": RUN, "leg": leg}))


def test_a_coordinator_in_the_middle_opens_nothing(four: Four) -> None:
    """It puts a key of its own in place of a site's, with a certificate that it can write: nobody believes it."""
    key, who = rsa.generate_private_key(public_exponent=65537, key_size=2048), identity_of("hungarian")
    proof = four.sites["hungarian"].proof
    assert proof is not None
    false = authority().sign(key.public_key(), who, "site", [who])
    four.sites["hungarian"].proof = replace(proof, key=key, certificate=false)
    four.screen()
    assert "total not opened" in [e for e, _ in four.way.events]
    assert not [1 for name, leg in four.way.said if leg == "total"]
    known = [t["what"] for e, t in four.way.events if e == "trouble" and t["site"] != "hungarian"]
    assert any("hungarian: this site accepted it with the key" in what for what in known)


def test_sums_that_are_none(done: Four, tmp_path: Path) -> None:
    fresh = Four(tmp_path).sites["va"]
    fresh.answer(done.way.asked["sketch"])
    fresh.answer(done.way.asked["counts"])
    agreed_on = done.way.asked["total"].words["sum"]
    for sum_ in (
        {},
        {"roster": NAMES},
        {"roster": "va", "drawn": {}},
        {"roster": NAMES, "drawn": {"hungarian": {"key": 1}}},
        {"roster": NAMES, "drawn": 3},
        agreed_on,
    ):
        with pytest.raises(vt.VitrailError, match="refused"):  # the last: this site drew no key
            fresh.answer(Message("screen", {"run": RUN, "leg": "total", "sum": sum_}))


# a site that lies


@pytest.mark.parametrize(
    ("leg", "name", "value"),
    [
        ("sketch", "rows", -5.0),
        ("sketch", "known", 1e9),
        ("sketch", "quantiles", 1e300),
        ("sketch", "outcome", 7.0),
        ("counts", "below", 1e6),
        ("counts", "same", -1.0),
        ("ties", "predicted", 3.0),
        ("ties", "related", np.inf),
    ],
)
def test_a_site_that_says_what_cannot_be_is_named_and_the_others_are_judged(
    leg: str, name: str, value: float, four: Four
) -> None:
    def lie(site: str, question: Message, said: Message) -> Message:
        if site != "va" or question.words.get("leg") != leg:
            return said
        return said._replace(tensors={**said.tensors, name: torch.full_like(said.tensors[name], value)})

    four.way.change = lie
    far = four.screen()
    why = far.sites.set_index("site")["why not"]
    assert "published what cannot be" in why["va"]
    assert set(far.cells.site) == set(NAMES) - {"va"}
    assert list(why.drop("va")) == [""] * 3


def test_a_part_that_cannot_be_spoils_the_sum_and_nothing_else(four: Four) -> None:
    def lie(site: str, question: Message, said: Message) -> Message:
        if site != "va" or question.words.get("leg") != "total":
            return said
        far_off = said.tensors["products"].numpy().view(np.uint64) + np.uint64(1 << 60)
        return said._replace(tensors={**said.tensors, "products": torch.from_numpy(far_off.view(np.int64))})

    four.way.change = lie
    far = four.screen()
    (why,) = [t["why"] for e, t in four.way.events if e == "total not opened"]
    assert "got larger ones" in why
    assert far.sites.judged.all()


def test_answers_of_another_shape_are_an_error_of_that_site(four: Four) -> None:
    def lie(site: str, question: Message, said: Message) -> Message:
        return said._replace(tensors={"rows": torch.zeros(1)}) if site == "va" else said

    four.way.change = lie
    call = four.call()
    far = four.screen(call)
    assert far.sites.set_index("site")["why not"]["va"] == AWAY
    assert any(e == "trouble" and "declared but absent" in t["what"] for e, t in four.way.events)
    assert call.active() == NAMES  # it may train all the same
