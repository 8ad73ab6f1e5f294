"""A site that keeps to every agreed shape and says nonsense: the study goes on without it, also after a restart."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import vitrail as vt
from tests.support.deploy.federation import Here, drawn
from vitrail.core.errors import VitrailError
from vitrail.data.datasets.catalogue import heart_disease, packaged
from vitrail.deploy.coordinator.requests import Responses, SiteRequests
from vitrail.deploy.coordinator.session import conduct
from vitrail.deploy.protocol.agreement import Agreement
from vitrail.deploy.protocol.message import Message
from vitrail.deploy.site.site import Site
from vitrail.runs.folder import Folder
from vitrail.runs.setup import resolve

RUN, LIAR, FROM = "0123456789abcdef", "va", 2


class Liar(Here):
    """The way to sites of which one lies from a round on; and who was asked for rounds."""

    def __init__(self, sites: dict[str, Site], by: float) -> None:
        super().__init__(sites)
        self.by, self.asked = by, list[tuple[str, int]]()

    def ask(self, questions: dict[str, Message], deadline: float) -> Responses:
        heard = super().ask(questions, deadline)
        for name, question in questions.items():
            if question.kind == "round" and question.words["stage"] == 0:
                self.asked.append((name, question.words["round"]))
                if name == LIAR and question.words["round"] >= FROM and name in heard.answers:
                    said = heard.answers[name]
                    lied = {k: v * self.by if v.dim() and k != "scores" else v for k, v in said.tensors.items()}
                    heard.answers[name] = said._replace(tensors=lied)
        refused = {name: Message("error", {"text": what}) for name, what in heard.trouble.items()}
        return Responses(heard.answers | refused, {})  # as `vitrail join` answers then


def conducted(call: SiteRequests, folder: Folder) -> vt.Run | None:
    """None where careful sites stop at what a lie made of the model, and too few are left."""
    try:
        return conduct(call, folder, resume=False)
    except VitrailError as error:
        if error.title != "the study cannot go on":
            raise
        return None


@pytest.mark.parametrize("by", [3e38, 1e30, -20.0])
def test_a_lie_ends_nothing_for_the_others(by: float, tmp_path: Path) -> None:
    study = vt.Study.load(packaged("heart_disease.toml")).with_changes(training={"rounds": 5}, screen={"ask": False})
    study, _ = resolve(study, "fedavg", None)
    tables = heart_disease()
    agreed = Agreement.of(study, None, len(tables))
    sites = {n: Site(n, frame, agreed, tmp_path / "sites" / n) for n, frame in tables.items()}
    way = Liar(sites, by)
    folder = Folder(tmp_path / "run", resume=False)
    run = conducted(SiteRequests(way, agreed, list(sites), RUN, 3, 60.0), folder)
    folder.close()
    rounds = {name: [r for n, r in way.asked if n == name] for name in sites}
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    told = {(e["event"], e.get("site")) for e in events}
    if by < 0:  # it can be a report, so that it counts; it is told
        assert ("unusual", LIAR) in told
        assert rounds[LIAR] == list(range(5)) or run is None
        return
    assert run is not None
    assert ("set aside", LIAR) in told
    assert rounds[LIAR] == [0, 1, FROM]
    assert all(rounds[name] == list(range(5)) for name in sites if name != LIAR)
    assert all(bool(v.isfinite().all()) for v in run.shared.values())
    own = drawn(tmp_path / "sites", tables, RUN)
    near = vt.federate(study, tables, engine="looped", away={LIAR: [(FROM + 1, 99)]}, secrets=own)
    torch.testing.assert_close(run.shared, near.shared, rtol=0, atol=0)


def test_a_coordinator_that_was_stopped_does_not_ask_it_again(tmp_path: Path) -> None:
    study = vt.Study.load(packaged("heart_disease.toml")).with_changes(training={"rounds": 5}, screen={"ask": False})
    study, _ = resolve(study, "fedavg", None)
    tables = heart_disease()
    agreed = Agreement.of(study, None, len(tables))
    sites = {n: Site(n, frame, agreed, tmp_path / "sites" / n) for n, frame in tables.items()}

    class StopError(Exception):
        pass

    def stop(done: int, total: int) -> None:
        if done == FROM + 1:
            raise StopError

    def begin(resume: bool, progress: Any = None) -> tuple[vt.Run | None, Liar]:
        way, folder = Liar(sites, 1e38), Folder(tmp_path / "run", resume=resume)
        try:
            return conduct(SiteRequests(way, agreed, list(sites), RUN, 3, 60.0), folder, resume, progress), way
        finally:
            folder.close()

    with pytest.raises(StopError):
        begin(False, stop)
    run, way = begin(True)
    assert LIAR not in {name for name, _ in way.asked}
    assert {r for name, r in way.asked if name != LIAR} == {3, 4}
    assert run is not None
    assert list(run.info["outcasts"]) == [LIAR]
