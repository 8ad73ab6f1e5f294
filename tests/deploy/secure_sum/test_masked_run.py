"""Masked reports by message: the same model as in the open; sites that fall silent at any leg; nothing opened twice."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import vitrail as vt
from tests.support.deploy.federation import without_scores
from tests.support.deploy.masked_runs import (
    CLOSE,
    FRAMES,
    NAMES,
    RUN,
    KilledError,
    Masked,
    agreement,
    asked_of,
)
from vitrail.core.errors import VitrailError
from vitrail.data.datasets.catalogue import packaged
from vitrail.deploy.coordinator.requests import Responses
from vitrail.deploy.protocol.agreement import Agreement
from vitrail.deploy.protocol.message import Message, unpack
from vitrail.deploy.secure_sum.shared import ROUND
from vitrail.deploy.site.site import Site
from vitrail.runs.result import ALL_SITES
from vitrail.runs.setup import resolve


@pytest.fixture(autouse=True)
def no_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)


METHODS = [
    "fedavg",
    "scaffold",
    "centres",
    "weight_erosion_sums",
]  # every kind of report; all methods are in tests/testing/test_laws.py


@pytest.mark.parametrize("method", METHODS)
def test_the_same_model_as_in_the_open(method: str, tmp_path: Path) -> None:
    way = Masked(tmp_path, agreement(method, 2))
    far, near = way.conduct(quorum=4), way.near()
    for name in NAMES:
        torch.testing.assert_close(way.model(name), near.models[name], **CLOSE)
    torch.testing.assert_close(far.shared, near.shared, **CLOSE)
    if method == "fedavg":  # elsewhere roundings grow; tests/testing/test_laws.py has them all, in double
        torch.testing.assert_close(far.shared, way.near(plain=True).shared, **CLOSE)
    pd.testing.assert_frame_equal(*map(without_scores, (far, near)))
    key = ["stage", "round", "site", "split", "metric"]
    one, other = (r.history.sort_values(key, ignore_index=True) for r in (far, near))
    ends = one[one.site != ALL_SITES]
    kept = other.merge(ends[key]).sort_values(key, ignore_index=True)
    pd.testing.assert_frame_equal(ends.reset_index(drop=True), kept, rtol=0, atol=1e-5)
    sizes = near.sizes.set_index("site").test_rarest
    means = one[(one.site == ALL_SITES) & (one.split == "test")]
    first = way.agreed.study.metrics[0]
    assert set(means.metric) == {first}
    for row in means.itertuples():
        at = other.query(f"stage == {row.stage} and round == {row.round} and split == 'test' and metric == '{first}'")
        whole = (at.value * at.site.map(sizes)).sum() / sizes.sum()
        assert row.value == pytest.approx(whole, abs=1e-5)
    last = len(way.agreed.stages) - 1  # in training no site tells its own
    assert set(ends.stage[ends.split == "test"]) == {last}
    assert set(ends["round"][ends.split == "test"]) == {way.agreed.stages[last].stage.rounds}
    assert not any(event == "sum not opened" for event, _ in way.events)


def legs(way: Masked) -> dict[str, int]:
    out: dict[str, int] = {}
    for _, asked, _ in way.said:
        leg = asked.words.get("leg", asked.kind)
        out[leg] = out.get(leg, 0) + 1
    return out


def test_two_legs_a_round(tmp_path: Path) -> None:
    """Keys come with the opening of the round before, but for the first; before it there is the common scale."""
    way = Masked(tmp_path, agreement(rounds=5))
    way.conduct(quorum=4)
    assert {k: v for k, v in legs(way).items() if k in ("ring", "keys", "standardise", "round", "open")} == {
        "ring": 4, "keys": 4 + 4, "standardise": 4, "round": 20, "open": 4 + 20}  # fmt: skip


LEGS = {"before": ("mask", "keys"), "between": ("round", ""), "after": ("mask", "open")}


@pytest.mark.parametrize(("when", "long", "missed"), [
    ("before", False, (3, 3)),
    ("before", True, (3, 5)),
    ("between", False, (3, 3)),
    ("between", True, (3, 5)),
    ("after", False, None),
    ("after", True, (4, 5)),
])  # fmt: skip
def test_a_site_that_falls_silent(when: str, long: bool, missed: tuple[int, int] | None, tmp_path: Path) -> None:
    """In the third round, for that leg only, or until the last round."""
    way, (kind, leg) = Masked(tmp_path, agreement(rounds=6)), LEGS[when]

    def away(name: str, asked: Message) -> bool:
        if name != "va" or asked.kind not in ("round", "mask"):
            return False
        r, here = asked.words.get("round", 0), (asked.kind, asked.words.get("leg", ""))
        if when == "before" and r == 1 and here == ("mask", "open"):  # its keys would come with it
            return True
        return (r == 2 and here == (kind, leg)) or (long and 2 < r < 5)

    way.away = away
    far = way.conduct(quorum=3)
    near = way.near(away={"va": [missed]} if missed else None)
    torch.testing.assert_close(far.shared, near.shared, **CLOSE)
    for name in NAMES:
        torch.testing.assert_close(way.model(name), near.models[name], **CLOSE)
    assert not any(event == "sum not opened" for event, _ in way.events)


class Bad(Masked):
    """Answers are lost, sites start anew, the coordinator is killed."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.luck, self.lost = random.Random(5), {"answer": 0, "site": 0, "coordinator": 0}

    def ask(self, questions: dict[str, Message], deadline: float) -> Responses:
        heard = super().ask(questions, deadline)
        for name in list(heard.answers):
            if self.luck.random() < 0.12:
                del heard.answers[name]
                heard.trouble[name] = "no answer"
                self.lost["answer"] += 1
            if self.luck.random() < 0.08:
                self.sites[name] = self.fresh(name)
                self.lost["site"] += 1
        if self.luck.random() < 0.25:
            self.lost["coordinator"] += 1
            raise KilledError
        return heard


def test_nothing_is_lost_or_opened_twice(tmp_path: Path) -> None:
    way = Bad(tmp_path, agreement(rounds=8))
    for _ in range(80):
        try:
            far = way.conduct(quorum=4)
            break
        except KilledError:
            continue
    assert min(way.lost.values()) > 3, "too little happened"
    near = way.near()
    torch.testing.assert_close(far.shared, near.shared, **CLOSE)
    assert not any(event == "sum not opened" for event, _ in way.events)
    opened: dict[tuple[str, int], set[str]] = {}
    for name, asked, said in way.said:
        if asked.words.get("leg") == "open" and asked.words["purpose"] == ROUND:
            opened.setdefault((name, asked.words["round"]), set()).add(json.dumps(said.words["shares"], sort_keys=True))
    assert {len(v) for v in opened.values()} == {1}, "asked again, a site tells the same shares"
    reports: dict[tuple[str, int], set[bytes]] = {}
    for name, asked, said in way.said:
        if asked.kind == "round":
            reports.setdefault((name, asked.words["round"]), set()).add(said.tensors["zeros"].numpy().tobytes())
    assert {len(v) for v in reports.values()} == {1}, "and the same report"


def test_no_single_report_can_be_read(tmp_path: Path) -> None:
    way = Masked(tmp_path, agreement(rounds=1))
    way.conduct(quorum=4)
    plain = Masked(tmp_path / "plain", Agreement.of(way.agreed.study.with_changes(protect={"sum": "plain"}), None, 4))
    plain.conduct(quorum=4)

    def numbers(some: Masked) -> dict[str, np.ndarray]:
        told = [(n, m) for n, asked, m in some.said if asked.kind == "round"]
        return {n: np.concatenate([v.numpy().ravel() for k, v in m.tensors.items() if "change" in k]) for n, m in told}

    open_, hidden = numbers(plain), numbers(way)
    for name in NAMES:
        assert open_[name].std() > 0  # the control: in the open it is the change itself
        scaled = hidden[name].astype(float)
        assert abs(np.corrcoef(scaled, open_[name])[0, 1]) < 0.15
        assert 0.5 < np.abs(scaled).mean() / 2.0**62 < 1.5  # uniform over all 64 bits
    kinds = {
        str(v.dtype) for _, asked, m in way.said if asked.kind == "round" for k, v in m.tensors.items() if k != "scores"
    }
    assert kinds == {"torch.int64"}


def test_a_coordinator_that_asks_for_more_is_refused(tmp_path: Path) -> None:
    way = Masked(tmp_path, agreement(rounds=3))

    def killed(name: str, asked: Message) -> bool:
        if asked.kind == "round" and asked.words["round"] == 2:
            raise KilledError
        return False

    way.away = killed
    with pytest.raises(KilledError):
        way.conduct(quorum=4)
    site = way.sites["va"]
    asked = asked_of(way, "round", 1)["va"]
    less = {"roster": ["cleveland", "hungarian", "va"], "drawn": asked.words["sum"]["drawn"]}
    with pytest.raises(VitrailError, match="a masked sum, report: it was asked before"):
        site.answer(unpack(asked._replace(words={**asked.words, "sum": less}).pack()))
    other = {k: v + 1e-3 for k, v in asked.tensors.items()}
    with pytest.raises(VitrailError, match="a masked sum, report: it was asked before"):
        site.answer(unpack(asked._replace(tensors=other).pack()))
    opened = asked_of(way, "open", 1)["va"]
    said = [n for n in opened.words["said"] if n != "cleveland"]
    with pytest.raises(VitrailError, match="a masked sum, opening: it was asked before"):
        site.answer(unpack(opened._replace(words={**opened.words, "said": said}).pack()))
    keys = asked_of(way, "keys", 0)["va"]
    fewer = {**keys.words, "round": 1, "names": ["cleveland", "hungarian", "va"]}
    with pytest.raises(VitrailError, match="another list"):
        site.answer(unpack(keys._replace(words=fewer).pack()))
    for words in ({"place": 1}, {"round": 3}, {"stage": 1}, {"leg": "secrets"}, {"round": True}):
        with pytest.raises(VitrailError, match="a message was refused"):
            site.answer(keys._replace(words={**keys.words, **words}))
    two = Masked(tmp_path / "other", agreement(rounds=3))
    with pytest.raises(VitrailError):  # a run that was never begun
        two.sites["va"].answer(keys)


def test_a_site_forgets_no_sum_by_being_asked_for_later_ones(tmp_path: Path) -> None:
    way = Masked(tmp_path, agreement(rounds=12))
    way.conduct(quorum=4)
    site = way.fresh("va")
    keys = asked_of(way, "keys", 0)["va"]
    names = ["cleveland", "hungarian", "va"]
    for r in range(11, -1, -1):
        with pytest.raises(VitrailError, match=r"a masked sum was refused|went back too far"):
            site.answer(keys._replace(words={**keys.words, "round": r, "names": names}))
    assert len(list((tmp_path / "sites" / "va" / RUN / "sums").glob("0*"))) <= 8


def test_too_few_for_a_sum(tmp_path: Path) -> None:
    with pytest.raises(VitrailError, match="this protection is not possible here"):
        agreement(sites=2)
    way = Masked(tmp_path, agreement(rounds=2))
    for name in ("va", "switzerland"):
        way.sites[name].answer = lambda asked: Message("error", {"text": "broken"})  # type: ignore[method-assign]
    with pytest.raises(VitrailError, match="cannot go on"):
        way.conduct(quorum=2)


def test_a_sum_that_is_too_long_is_not_used(tmp_path: Path) -> None:
    """Under masks nobody can say whose it was; the model stays what it was."""
    way, site = Masked(tmp_path, agreement(rounds=3)), "va"
    real = way.sites[site].answer

    def lie(asked: Message) -> Message:
        engine = way.sites[site].engine if way.sites[site].data is not None else None
        if asked.kind == "round" and asked.words["round"] == 1 and engine is not None:
            before = engine.answers

            def answers(*given: Any) -> Any:
                (report,) = before(*given)
                change = {k: v + 1e7 for k, v in report.held.change.items()}
                return [report._replace(held=report.held._replace(change=change))]

            engine.answers = answers  # type: ignore[method-assign]
            try:
                return real(asked)
            finally:
                engine.answers = before  # type: ignore[method-assign]
        return real(asked)

    way.sites[site].answer = lie  # type: ignore[method-assign]
    far = way.conduct(quorum=4)
    assert all(bool(v.abs().max() < 100) for v in far.shared.values())
    unused = [words for event, words in way.events if event == "round not used"]
    assert [words["round"] for words in unused] == [2]
    assert unused[0]["why"].startswith("the sum of the reports has length")


def test_beyond_the_limit_a_site_sends_nothing_and_says_so(tmp_path: Path) -> None:
    way = Masked(tmp_path, agreement(rounds=3))
    keep = way.sites["va"]

    def diverged(asked: Message) -> Message:
        if asked.kind == "round" and keep.data is not None:
            keep.engine.sites.w.fill_(torch.inf)
        return Site.answer(keep, asked)

    keep.answer = diverged  # type: ignore[method-assign]
    far = way.conduct(quorum=3)
    assert all(bool(v.isfinite().all()) for v in far.shared.values())
    told = [d["what"] for event, d in way.events if event == "trouble" and d["site"] == "va"]
    assert any("larger than the agreed" in what for what in told)
    near = way.near(away={"va": [(1, 3)]})
    torch.testing.assert_close(far.shared, near.shared, **CLOSE)


@pytest.mark.parametrize("guards", [{"robust": "median"}, {"rows": {"epsilon": 5.0}, "clip": 0.5}])
def test_other_guards_between_machines(guards: dict[str, Any], tmp_path: Path) -> None:
    """A centre at the coordinator, of open reports; noise at the site, from its secret."""
    study = vt.Study.load(packaged("heart_disease.toml")).with_changes(standardise="local", protect=guards)
    training = {"rounds": 2, "class_weights": "none"}
    study = study.with_changes(training=training, screen={"ask": False}, network={"dropout": 0.0})
    way = Masked(tmp_path, Agreement.of(resolve(study, "fedavg", None)[0], None, 4))
    far, near = way.conduct(quorum=4), way.near()
    torch.testing.assert_close(far.shared, near.shared, **CLOSE)
    bare = vt.federate(way.agreed.study, FRAMES, engine="looped")
    assert not torch.allclose(far.shared["params/head.bias"], bare.shared["params/head.bias"])


def test_two_servers_need_a_second_between_machines() -> None:
    for guards in ({"sum": "two servers"}, {"second": "registry"}):
        study = vt.Study.load(packaged("heart_disease.toml")).with_changes(protect=guards)
        with pytest.raises(VitrailError, match="promises what cannot be kept"):
            Agreement.of(study, None, 4)


@pytest.mark.parametrize("protect", ["plain", "masked"])
@pytest.mark.parametrize("kind", ["standardise", "prepare"])
def test_a_site_that_falls_silent_before_the_first_round_holds_up_nobody(
    kind: str, protect: str, tmp_path: Path
) -> None:
    study = vt.Study.load(packaged("heart_disease.toml")).with_changes(
        training={"rounds": 1}, screen={"ask": False}, standardise="global", protect={"sum": protect, "scores": "exact"}
    )
    agreed = Agreement.of(resolve(study, "fedavg", None)[0], None, 4)
    scales = dict[str, Any]()
    for name, silent in (("all", ""), ("without", "va")):
        way = Masked(tmp_path / name, agreed)
        way.away = lambda site, question, silent=silent: site == silent and question.kind == kind  # type: ignore[misc]
        way.conduct()
        entered = json.loads((tmp_path / name / "run" / "entered.json").read_text())
        scales[name] = entered["scale"]["mean"]
        assert set(entered["sites"]) == set(NAMES) - ({silent} if kind == "prepare" else set())
        missing = [details["sites"] for event, details in way.events if event == "not in the scale"]
        sums = 1 if protect == "masked" else 2
        assert missing == ([[silent]] * sums if silent and kind == "standardise" else [])
    assert (scales["all"] == scales["without"]) == (kind == "prepare")
