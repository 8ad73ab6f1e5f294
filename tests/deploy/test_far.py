"""Sites asked by message give the same run as sites on one machine. Here the messages are bytes in one process."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pandas.testing as pdt
import pytest
import torch
from safetensors.torch import load_file

import vitrail as vt
from vitrail.data.datasets import heart_disease, packaged
from vitrail.deploy.agreement import Agreement
from vitrail.deploy.far import Call, Heard, conduct
from vitrail.deploy.message import Message, unpack
from vitrail.deploy.site import Site
from vitrail.runs.folder import Folder
from vitrail.runs.setup import resolve

RUN = "0123456789abcdef"
METHODS = [name for name, kind in vt.methods.TABLE.items() if not kind.pools_rows]


class Here:
    """A line to sites in this process; every message is bytes on its way."""

    def __init__(self, sites: dict[str, Site]) -> None:
        self.sites, self.events = sites, []

    def ask(self, questions: dict[str, Message], deadline: float) -> Heard:
        answers, trouble = {}, {}
        for name, question in questions.items():
            try:
                answers[name] = unpack(self.sites[name].answer(unpack(question.pack())).pack())
            except vt.VitrailError as error:
                trouble[name] = str(error)
        return Heard(answers, trouble)

    def log(self, event: str, **details: Any) -> None:
        self.events.append((event, details))


@pytest.fixture(scope="module")
def heart() -> tuple[vt.Study, dict]:
    study, sites = vt.Study.load(packaged("heart_disease.toml")), heart_disease()
    return study.with_changes(training={"rounds": 3}), sites


@pytest.mark.parametrize("scale", ["local", "global"])
@pytest.mark.parametrize("method", METHODS)
def test_same_run(method: str, scale: str, heart: tuple, tmp_path: Path) -> None:
    if scale == "global" and method != "ifedavg":
        pytest.skip("the scale is found before any method begins")
    study, _ = resolve(heart[0].with_changes(standardise=scale), method, None)
    agreed = Agreement.of(study, None, len(heart[1]))
    sites = {n: Site(n, frame, agreed, tmp_path / "sites" / n) for n, frame in heart[1].items()}
    folder = Folder(tmp_path / "run", resume=False)
    far = conduct(Call(Here(sites), agreed, list(sites), RUN, len(sites), 60.0), folder, resume=False)
    folder.close()
    near = vt.federate(study, heart[1], engine="looped")
    # the rows a site judges by are padded to the longest, which rounds sums differently
    close = {"rtol": 0, "atol": 1e-6 if method == "influence" else 0}
    for name in sites:
        mine = load_file(tmp_path / "sites" / name / RUN / "model.safetensors")
        assert mine.keys() == near.models[name].keys()
        torch.testing.assert_close(mine, near.models[name], **close)
    torch.testing.assert_close(far.shared, near.shared, **close)
    torch.testing.assert_close(far.facts, near.facts, equal_nan=True, **close)
    key = ["stage", "round", "site", "split", "metric"]
    one, other = (r.history.sort_values(key, ignore_index=True) for r in (far, near))
    pdt.assert_frame_equal(one, other, rtol=0, atol=close["atol"])
    pdt.assert_frame_equal(far.ledger, near.ledger)
    pdt.assert_frame_equal(far.sizes, near.sizes)
    if near.shift_table is not None:
        pdt.assert_frame_equal(far.shifts(), near.shifts())
        assert far.findings() == near.findings()


class KilledError(Exception):
    """The coordinator is killed."""


class Bad(Here):
    """A line on which everything happens that can: answers are lost, sites start anew, the coordinator is killed."""

    def __init__(self, sites: dict[str, Site], fresh: Any, seed: int) -> None:
        super().__init__(sites)
        self.fresh, self.luck, self.lost = fresh, random.Random(seed), {"answer": 0, "site": 0, "coordinator": 0}

    def ask(self, questions: dict[str, Message], deadline: float) -> Heard:
        heard = super().ask(questions, deadline)
        for name in list(heard.answers):
            if self.luck.random() < 0.2:
                del heard.answers[name]
                heard.trouble[name] = "no answer"
                self.lost["answer"] += 1
            if self.luck.random() < 0.1:
                self.sites[name] = self.fresh(name)
                self.lost["site"] += 1
        if self.luck.random() < 0.12:
            self.lost["coordinator"] += 1
            raise KilledError
        return heard


@pytest.mark.parametrize("method", ["ifedavg", "scaffold", "weight_erosion", "fine_tune"])
def test_nothing_is_lost_or_counted_twice(method: str, heart: tuple, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("vitrail.deploy.far.time.sleep", lambda _: None)
    study, _ = resolve(heart[0].with_changes(standardise="global", training={"rounds": 15}), method, None)
    agreed = Agreement.of(study, None, len(heart[1]))
    fresh = lambda name: Site(name, heart[1][name], agreed, tmp_path / "sites" / name)  # noqa: E731
    line = Bad({n: fresh(n) for n in heart[1]}, fresh, seed=3)
    far = None
    for attempt in range(60):
        folder = Folder(tmp_path / "run", resume=attempt > 0, about=".lock")
        try:
            far = conduct(Call(line, agreed, list(heart[1]), RUN, len(heart[1]), 60.0), folder, resume=True)
            break
        except KilledError:
            continue
        finally:
            folder.close()
    assert far is not None
    assert min(line.lost.values()) > 2, "too little happened"
    near = vt.federate(study, heart[1], engine="looped")
    for name in heart[1]:
        mine = load_file(tmp_path / "sites" / name / RUN / "model.safetensors")
        torch.testing.assert_close(mine, near.models[name], rtol=0, atol=0)
    torch.testing.assert_close(far.shared, near.shared, rtol=0, atol=0)
    pdt.assert_frame_equal(far.scores(), near.scores(), check_like=True)
