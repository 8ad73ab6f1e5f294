"""A common scale under masks: the same numbers as in the open, and of no site more than the total."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import vitrail as vt
from tests.support.deploy.forms import clause, paragraphs
from tests.support.deploy.masked_runs import RUN, KilledError, Masked
from vitrail.core.errors import VitrailError
from vitrail.data.encoding import finish_moments, moments, numeric
from vitrail.deploy.consent.form import contract_text
from vitrail.deploy.coordinator.requests import Responses, SiteRequests
from vitrail.deploy.coordinator.run_members import RunMembers
from vitrail.deploy.protocol.agreement import Agreement
from vitrail.deploy.protocol.message import Message
from vitrail.deploy.scale.coordinator import masked_moments
from vitrail.deploy.secure_sum.coordinator import SumCoordinator
from vitrail.deploy.secure_sum.shared import SCALE, SumName
from vitrail.deploy.site.site import Site
from vitrail.runs.setup import resolve

NAMES = ("east", "north", "south", "west")


def table(seed: int) -> pd.DataFrame:
    """Columns of very different size, with holes; one is far from zero, one the same everywhere."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((30, 4)) * [1e-6, 1.0, 1e9, 1e-3] + [1e-6, seed, 0.0, 1e5]
    x[seed, 1] = np.nan
    sick = np.where(rng.random(30) > 0.5, "yes", "no")
    columns = ["tiny", "some", "huge", "far"]
    return pd.DataFrame(x, columns=columns).assign(same=0.1, sick=sick)


FRAMES = {name: table(i) for i, name in enumerate(NAMES)}


@pytest.fixture(autouse=True)
def no_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)


def agreement(**protect: Any) -> Agreement:
    study = vt.Study.infer(FRAMES, target="sick").with_changes(
        standardise="global",
        screen={"ask": False},
        training={"rounds": 1},
        protect={"sum": "masked", **protect},
        features={"same": {"kind": "numeric"}},
    )
    return Agreement.of(resolve(study, "fedavg", None)[0], None, len(NAMES))


@pytest.fixture(scope="module")
def agreed() -> Agreement:
    return agreement()


class Impatient(Masked):
    """Who asks for ever is found out."""

    until = math.inf

    def ask(self, questions: dict[str, Message], deadline: float) -> Responses:
        self.until = min(self.until, time.monotonic() + 30.0)
        assert time.monotonic() < self.until, "it asks for ever"
        return super().ask(questions, deadline)


def way_of(agreed: Agreement, place: Path) -> Masked:
    (place / "run").mkdir()
    return Impatient(place, agreed, FRAMES)


def scale_of(way: Masked, quorum: int = 3) -> tuple[Any, Any]:
    call = SiteRequests(way, way.agreed, list(NAMES), RUN, quorum, 0.01)
    return finish_moments(masked_moments(SumCoordinator(call, way.root / "run", list(NAMES)), NAMES))


def own(way: Masked, name: str, mean: Any = None) -> Any:
    site = way.sites[name]
    rows = site.rows.iloc[site.splits[site.name][0]]
    return moments(rows, numeric(way.agreed.study), mean)


def test_the_same_numbers_and_nobodys_own(agreed: Agreement, tmp_path: Path) -> None:
    way = way_of(agreed, tmp_path)
    mean, sd = scale_of(way)
    wanted = finish_moments(lambda m: [own(way, n, m) for n in NAMES])
    np.testing.assert_allclose(mean, wanted[0], rtol=1e-12)
    np.testing.assert_allclose(sd, wanted[1], rtol=1e-12)
    assert sd[numeric(agreed.study).index("same")] == 1.0
    sums = [m.tensors for _, _, m in way.said if m.tensors]
    assert len(sums) == len(NAMES)
    for name in NAMES:  # no count of a site stands anywhere in what was said
        rows = own(way, name).rows
        assert not any(np.isin(v.numpy().ravel(), [*rows, *(rows * 2.0**20)]).any() for t in sums for v in t.values())
    assert torch.stack([t["rows"].double().abs() for t in sums]).min() > 1e12  # all under masks


@pytest.mark.parametrize("leg", ["keys", "standardise", "open"])
def test_a_coordinator_started_anew_hears_the_same(leg: str, agreed: Agreement, tmp_path: Path) -> None:
    """It may have other sites at hand then: the list stays."""
    way = way_of(agreed, tmp_path)
    real = way.ask

    def ask(questions: dict[str, Message], deadline: float) -> Any:
        answers = real(questions, deadline)
        if {q.words.get("leg", q.kind) for q in questions.values()} == {leg}:
            way.ask = real  # type: ignore[method-assign]
            raise KilledError
        return answers

    way.ask = ask  # type: ignore[method-assign]
    with pytest.raises(KilledError):
        scale_of(way, quorum=4)
    if leg != "keys":  # for whom keys were drawn is decided: nobody is asked for others
        way.away = lambda name, asked: name == "west" and asked.words.get("leg") == "keys"
    first = scale_of(way, quorum=3)
    np.testing.assert_array_equal(first, scale_of(way, quorum=3))
    wanted = finish_moments(lambda m: [own(way, n, m) for n in NAMES])
    np.testing.assert_allclose(first[0], wanted[0], rtol=1e-12)


def test_who_gives_no_key_is_left_out(agreed: Agreement, tmp_path: Path) -> None:
    """The others' scale is of their own rows; other legs are in tests/deploy/secure_sum/test_single_sums.py."""
    way = way_of(agreed, tmp_path)
    way.away = lambda name, asked: name == "west" and asked.words.get("leg") == "keys"
    mean, sd = scale_of(way)
    wanted = finish_moments(lambda m: [own(way, n, m) for n in NAMES[:3]])
    np.testing.assert_allclose(mean, wanted[0], rtol=1e-12)
    np.testing.assert_allclose(sd, wanted[1], rtol=1e-12)
    assert [details for event, details in way.events if event == "not in the scale"] == [{"sites": ["west"], "step": 1}]


def test_two_sums_over_two_lists_would_tell_a_sites_own() -> None:
    """Why it is one sum: the second one, of squared distances to a mean that the coordinator chooses far from all
    values, would tell the others' sums, and with the first one what the site has that is called silent in between."""
    parts = {name: pd.DataFrame({"some": table(i)["some"].dropna()}) for i, name in enumerate(NAMES)}
    first = sum(moments(part, ["some"]).total[0] for part in parts.values())
    far = np.array([1e4])
    second = [moments(parts[name], ["some"], far) for name in NAMES[:3]]
    rows, squares = (sum(getattr(sums, k)[0] for sums in second) for k in ("rows", "total"))
    others = (rows * far[0] ** 2 - squares) / (2 * far[0])  # but for their squares, which are small against the mean
    assert first - others == pytest.approx(parts["west"]["some"].sum(), abs=0.1)


def test_no_second_question_is_answered(agreed: Agreement, tmp_path: Path) -> None:
    """Nor is a site asked about a mean of the coordinator's choice, which may be far off for one site alone."""
    way = way_of(agreed, tmp_path)
    scale_of(way)
    asked = next(a for _, a, _ in way.said if a.kind == "standardise")
    second = Message("standardise", {**asked.words, "step": 2}, {"mean": torch.zeros(5, dtype=torch.float64)})
    with pytest.raises(VitrailError, match="there is no '2' in the agreement"):
        way.sites["east"].answer(second)
    plain = Message("standardise", {"run": RUN, "step": 1})
    with pytest.raises(VitrailError, match="declared but absent"):
        way.sites["east"].answer(plain)


def test_of_fewer_than_agreed_nothing_is_said(tmp_path: Path) -> None:
    way = way_of(agreement(least=4), tmp_path)
    way.sites["west"].answer = lambda asked: Message("error", {"text": "broken"})  # type: ignore[method-assign]
    with pytest.raises(VitrailError, match=r"(?s)the study cannot go on.*too few are left: west failed"):
        scale_of(way, quorum=4)
    assert not [1 for _, asked, _ in way.said if asked.kind == "standardise"]
    bare = Site("east", FRAMES["east"], way.agreed, tmp_path / "bare")
    assert bare.answer(Message("mask", {"run": RUN, "leg": "ring"})).kind == "refused"
    keys = {"leg": "keys", **SumName(SCALE)._asdict(), "names": list(NAMES), "ring": {}}
    with pytest.raises(VitrailError, match="cannot prove who it is"):
        bare.answer(Message("mask", {"run": RUN, **keys}))


def test_a_site_that_lies_ends_the_study_in_words(agreed: Agreement, tmp_path: Path) -> None:
    """What cannot be is not used, and the same numbers are added to no second list."""
    way = way_of(agreed, tmp_path)
    real = way.ask

    def ask(questions: dict[str, Message], deadline: float) -> Any:
        answers = real(questions, deadline)
        said = answers.answers.get("west")
        if said is not None and said.kind == "standardise":
            rows = said.tensors["rows"] - (1000 << 30)
            answers.answers["west"] = said._replace(tensors={**said.tensors, "rows": rows})
        return answers

    way.ask = ask  # type: ignore[method-assign]
    with pytest.raises(VitrailError, match=r"cannot be: a count or a sum of squares is below zero.*serve STUDY --new"):
        scale_of(way)


def test_the_book_asks_so_and_the_form_tells_it(agreed: Agreement, tmp_path: Path) -> None:
    way = way_of(agreed, tmp_path)
    book = RunMembers(SiteRequests(way, agreed, list(NAMES), RUN, 3, 0.01), tmp_path / "run" / "entered.json")
    book.open(len(NAMES), [])
    wanted = finish_moments(lambda m: [own(way, n, m) for n in NAMES])
    np.testing.assert_allclose(book.scale["mean"].numpy(), wanted[0], rtol=1e-12)
    asked = [a.words.get("leg", a.kind) for _, a, _ in way.said]
    assert list(dict.fromkeys(asked)) == ["hello", "ring", "keys", "standardise", "open", "prepare"]
    lines = [line for line in agreed.plan.wire() if line.stage == "standardise" and line.direction == "from site"]
    assert {line.seen for line in lines} == {"masked"}
    shapes = agreed.answer("standardise", {"step": 1}).tensors
    assert sorted(line.shape for line in lines) == sorted(shape for shape, _ in shapes.values())
    said = paragraphs(clause(contract_text(agreed, "east", list(NAMES), True), "SUMS FOR A COMMON SCALE"))
    assert "the sum of the squares of these values" in said["What leaves"]
    assert said["In which form"].startswith("Under masks")
    assert said["Who can read it"].startswith("Nobody can read what this site alone sent")
