"""A common scale under masks: the same numbers as in the open, and of no site more than the total."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import vitrail as vt
from tests.support.deploy.proofs import prove
from vitrail.core.errors import VitrailError
from vitrail.data.encoding import finish_moments, moments, numeric
from vitrail.deploy.consent.form import contract_text
from vitrail.deploy.coordinator.run_members import RunMembers
from vitrail.deploy.protocol.agreement import Agreement
from vitrail.deploy.protocol.message import Message
from vitrail.deploy.scale.coordinator import KEPT, masked_moments
from vitrail.deploy.site.site import Site
from vitrail.runs.setup import resolve

RUN, NAMES = "0123456789abcdef", ("east", "north", "south", "west")


def table(seed: int) -> pd.DataFrame:
    """Columns of very different size, with holes."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((30, 3)) * [1e-6, 1.0, 1e9] + [1e-6, seed, 0.0]
    x[seed, 1] = np.nan
    sick = np.where(rng.random(30) > 0.5, "yes", "no")
    return pd.DataFrame(x, columns=["tiny", "some", "huge"]).assign(sick=sick)


FRAMES = {name: table(i) for i, name in enumerate(NAMES)}


@pytest.fixture(scope="module")
def agreed() -> Agreement:
    study = vt.Study.infer(FRAMES, target="sick").with_changes(
        standardise="global", screen={"ask": False}, training={"rounds": 1}, protect={"sum": "masked"}
    )
    return Agreement.of(resolve(study, "fedavg", None)[0], None, len(NAMES))


class Way:
    """As SiteRequests, to sites in this process. `said`: all that they answered; `told`: changes a site's question."""

    def __init__(self, agreed: Agreement, place: Path) -> None:
        self.agreed, self.run, self.place, self.names = agreed, RUN, place, list(NAMES)
        self.said, self.asked = list[Message](), list[Message]()
        self.told: Callable[[str, Message], Message] = lambda name, question: question
        self.sites = dict[str, Site]()
        self.away: Callable[[str, Message], bool] = lambda name, question: False
        self.events = list[tuple[str, dict[str, Any]]]()
        self.way = SimpleNamespace(
            present=lambda: set(NAMES), log=lambda event, **details: self.events.append((event, details))
        )

    def site(self, name: str) -> Site:
        if name not in self.sites:
            proof = prove(name, list(NAMES), self.place / name)
            self.sites[name] = Site(name, FRAMES[name], self.agreed, self.place / name, True, proof)
        return self.sites[name]

    def patient(self, make: Callable[[str], Message | None], need: int | None = None) -> dict[str, Message]:
        return self.all(make)

    def all(self, make: Callable[[str], Message | None], quorum: int = 0) -> dict[str, Message]:
        out = {}
        for name in NAMES:
            if (asked := make(name)) is not None and not self.away(name, asked):
                asked = self.told(name, asked)
                out[name] = self.site(name).answer(Message(asked.kind, {**asked.words, "run": RUN}, asked.tensors))
                self.asked.append(asked)
        self.said += out.values()
        return out


def scale_of(way: Way) -> tuple[Any, Any]:
    return finish_moments(masked_moments(way, NAMES, way.place))  # type: ignore[arg-type]


def own(way: Way, name: str, mean: Any = None) -> Any:
    site = way.site(name)
    rows = site.rows.iloc[site.splits[site.name][0]]
    return moments(rows, numeric(way.agreed.study), mean)


def test_the_same_numbers_and_nobodys_own(agreed: Agreement, tmp_path: Path) -> None:
    way = Way(agreed, tmp_path)
    mean, sd = scale_of(way)
    wanted = finish_moments(lambda m: [own(way, n, m) for n in NAMES])
    np.testing.assert_allclose(mean, wanted[0], rtol=1e-12)
    np.testing.assert_allclose(sd, wanted[1], rtol=1e-12)
    sums = [m.tensors for m in way.said if m.tensors]
    assert len(sums) == 2 * len(NAMES)
    for name in NAMES:  # no count of a site stands anywhere in what was said
        rows = own(way, name).rows
        assert not any(np.isin(v.numpy().ravel(), [*rows, *(rows * 2.0**20)]).any() for t in sums for v in t.values())
    assert torch.stack([t["rows"].double().abs() for t in sums]).min() > 1e12  # all under masks


def test_a_coordinator_started_anew_hears_the_same(agreed: Agreement, tmp_path: Path) -> None:
    way = Way(agreed, tmp_path)
    first = scale_of(way)
    again = finish_moments(masked_moments(way, NAMES[:3], tmp_path))  # type: ignore[arg-type]
    np.testing.assert_array_equal(first, again)
    assert json.loads((tmp_path / KEPT).read_text()) == {"1": list(NAMES), "2": list(NAMES)}


@pytest.mark.parametrize("step", [1, 2])
def test_who_gives_no_key_is_left_out_of_that_sum(step: int, agreed: Agreement, tmp_path: Path) -> None:
    """The others' scale is of their own rows, also where a site falls silent between the two sums."""
    way = Way(agreed, tmp_path)
    way.away = lambda name, question: name == "west" and question.words["step"] >= step
    mean, sd = scale_of(way)
    there = {1: NAMES if step == 2 else NAMES[:3], 2: NAMES[:3]}
    wanted = finish_moments(lambda m: [own(way, n, m) for n in there[1 if m is None else 2]])
    np.testing.assert_allclose(mean, wanted[0], rtol=1e-12)
    np.testing.assert_allclose(sd, wanted[1], rtol=1e-12)
    rows, squares = (np.sum([getattr(own(way, n, mean), k) for n in NAMES[:3]], 0) for k in ("rows", "total"))
    np.testing.assert_allclose(sd, np.sqrt(squares / rows), rtol=1e-12)
    assert [details for event, details in way.events if event == "not in the scale"] == [
        {"sites": ["west"], "step": n} for n in range(step, 3)
    ]


def test_one_list_and_one_mean(agreed: Agreement, tmp_path: Path) -> None:
    way = Way(agreed, tmp_path)
    scale_of(way)
    (tmp_path / KEPT).unlink()
    with pytest.raises(VitrailError, match="it was asked before in this run with other contents"):
        finish_moments(masked_moments(way, NAMES[:3], tmp_path))  # type: ignore[arg-type]
    step2 = next(m for m in way.asked if m.words["step"] == 2)
    other = Message("standardise", {**step2.words, "run": RUN}, {"mean": step2.tensors["mean"] + 1})
    with pytest.raises(VitrailError, match="with other contents"):
        way.site("east").answer(other)


def test_a_mean_for_one_site_alone_opens_nothing(agreed: Agreement, tmp_path: Path) -> None:
    """So far off that the digits of the total would show the site's count, sum and squares one by one."""
    way = Way(agreed, tmp_path)

    def told(name: str, asked: Message) -> Message:
        far = {k: v + 1e12 * (name == "west") for k, v in asked.tensors.items()}
        return Message(asked.kind, asked.words, far)

    way.told = told
    with pytest.raises(VitrailError):
        scale_of(way)
    assert len([m for m in way.said if m.tensors]) == len(NAMES)  # of the sums, and nothing of the squares


def test_of_fewer_than_agreed_nothing_is_said(agreed: Agreement, tmp_path: Path) -> None:
    more = Agreement(agreed.study.with_changes(protect={"least": 4}), agreed.seed, agreed.sites)
    way = Way(more, tmp_path)
    with pytest.raises(VitrailError, match=r"takes 4; \w+ is missing"):
        finish_moments(masked_moments(way, NAMES[:3], tmp_path))  # type: ignore[arg-type]
    words = {"step": 1, "leg": "offer", "offers": dict[str, Any](), "run": RUN}
    offers = {n: way.site(n).answer(Message("standardise", words)).words for n in NAMES[:3]}
    with pytest.raises(VitrailError, match="4 are the fewest"):
        way.site(NAMES[0]).answer(Message("standardise", {**words, "leg": "sum", "offers": offers}))
    bare = Site("east", FRAMES["east"], agreed, tmp_path / "bare")
    with pytest.raises(VitrailError, match="cannot prove who it is"):
        bare.answer(Message("standardise", {"run": RUN, "step": 1, "leg": "offer", "offers": {}}))


def test_the_book_asks_so_and_the_form_tells_it(agreed: Agreement, tmp_path: Path) -> None:
    way = Way(agreed, tmp_path)
    book = RunMembers(way, tmp_path / "entered.json")  # type: ignore[arg-type]
    book.open(len(NAMES), [])
    wanted = finish_moments(lambda m: [own(way, n, m) for n in NAMES])
    np.testing.assert_allclose(book.scale["mean"].numpy(), wanted[0], rtol=1e-12)
    assert {m.words.get("leg") for m in way.asked if m.kind == "standardise"} == {"offer", "sum"}
    for line in agreed.plan.wire():
        assert line.stage != "standardise" or line.direction == "to site" or line.seen == "masked"
    form = " ".join(contract_text(agreed, "east", list(NAMES), True).split())
    assert "for each of two sums: a key drawn for it" in form
    assert "Only the sum over the sites is used (the common scale)" not in form
