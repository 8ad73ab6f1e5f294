"""One site that multiplies its change: its sum is not used, and no honest site stops. Every test has its control: with
the coordinator's check switched off the same lie makes honest sites stop for good."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import vitrail as vt
from tests.support.deploy.federation import drawn, first_word
from tests.support.deploy.masked_runs import FRAMES, NAMES, RUN, Masked
from vitrail.core.errors import RunStopped, StudyStopped, VitrailError
from vitrail.core.tensors import flatten, unflatten
from vitrail.data.datasets.catalogue import packaged
from vitrail.deploy.coordinator import acceptance
from vitrail.deploy.coordinator.acceptance import MARGIN, MOST_UNUSED, AcceptanceForecast
from vitrail.deploy.coordinator.process import _current
from vitrail.deploy.coordinator.requests import Responses, SiteRequests
from vitrail.deploy.coordinator.session import conduct
from vitrail.deploy.protocol.agreement import Agreement
from vitrail.deploy.protocol.message import FINAL, Message
from vitrail.deploy.protocol.weight_bounds import STEP, WeightBounds, entry
from vitrail.deploy.site.safeguards import STOPPED
from vitrail.deploy.site.site import Site
from vitrail.report.live.events import words
from vitrail.runs.folder import Folder
from vitrail.runs.setup import resolve

LIAR, FROM, EVENT = "va", 4, "round not used"
HONEST = [n for n in NAMES if n != LIAR]


class Lying(Masked):
    """One site multiplies its change in the rounds `lies`. What a site refuses comes as an error, as from join."""

    by, lies = -100.0, range(FROM, 1000)

    def fresh(self, name: str, another: bool = False) -> Site:
        site = super().fresh(name)
        if another:
            site = Site(name, self.frames[name], self.agreed, site.base, True, site.proof, another=True)
        if name == LIAR:
            self._corrupt(site)
        return site

    def _corrupt(self, site: Site) -> None:
        answer, start = site.answer, self.agreed.task.start

        def lie(asked: Message) -> Message:
            if asked.kind == "round" and asked.words["round"] in self.lies and site.data is not None:
                before = site.engine.answers

                def answers(*given: Any) -> Any:
                    (report,) = before(*given)
                    lied = {k: v * self.by if k.split("/")[-1] in start else v for k, v in flatten(report.held)}
                    return [report._replace(held=unflatten(report.held, lied))]

                site.engine.answers = answers  # type: ignore[method-assign]
                try:
                    return answer(asked)
                finally:
                    site.engine.answers = before  # type: ignore[method-assign]
            return answer(asked)

        site.answer = lie  # type: ignore[method-assign]

    def ask(self, questions: dict[str, Message], deadline: float) -> Responses:
        heard = super().ask(questions, deadline)
        here = {n: what for n, what in heard.trouble.items() if what != "it is not connected"}
        gone = {n: what for n, what in heard.trouble.items() if n not in here}
        errors = {n: Message("error", {"text": what, FINAL: RunStopped.heading in what}) for n, what in here.items()}
        return Responses(heard.answers | errors, gone)

    def stopped(self) -> list[str]:
        return [n for n in HONEST for run in (self.root / "sites" / n).glob(f"*/{STOPPED}")]

    def told(self, event: str) -> list[dict[str, Any]]:
        return [details for name, details in self.events if name == event]


def study_of(method: str, rounds: int, **protect: Any) -> Agreement:
    study = vt.Study.load(packaged("heart_disease.toml"))
    study = study.with_changes(
        network={"hidden": (16,)},
        training={"rounds": rounds},
        screen={"ask": False},
        protect={"scores": "exact", **protect},
    )
    return Agreement.of(resolve(study, method, None)[0], None, len(FRAMES))


@pytest.fixture(autouse=True)
def no_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda _: None)


def switch_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AcceptanceForecast, "problems", lambda *_: [])
    monkeypatch.setattr(AcceptanceForecast, "jumps", lambda *_: "")


def test_under_masks_a_liar_costs_its_rounds_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agreed = study_of("fedavg", 12, sum="masked")
    way = Lying(tmp_path / "on", agreed)
    way.lies = range(FROM, FROM + MOST_UNUSED - 1)
    run = way.conduct()
    assert not way.stopped()
    assert [e["round"] for e in way.told(EVENT)] == [r + 1 for r in way.lies]
    assert run.info["unused"] == [[0, r + 1] for r in way.lies]
    said = words(EVENT, way.told(EVENT)[0])
    assert said.startswith(f"Round {FROM + 1} was not used: the sum of the reports")
    assert said.endswith("may have sent a wrong report: cleveland, hungarian, switzerland, va.")
    clean = Lying(tmp_path / "clean", agreed)
    clean.lies = range(0)
    scores, usual = (r.scores().groupby("metric").value.mean() for r in (run, clean.conduct()))
    assert scores["auc"] > usual["auc"] - 0.03
    assert abs(scores["balanced_accuracy"] - usual["balanced_accuracy"]) < 0.06
    assert not clean.told(EVENT)

    switch_off(monkeypatch)  # the control
    off = Lying(tmp_path / "off", agreed)
    with pytest.raises(StudyStopped):
        off.conduct()
    assert off.stopped() == HONEST


@pytest.mark.parametrize("method", ["scaffold", "centres"])
def test_methods_under_masks(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _tried(study_of(method, 4, sum="masked"), tmp_path, monkeypatch)


@pytest.mark.parametrize("method", ["influence", "cfl"])
def test_methods_in_the_open(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _tried(study_of(method, 4), tmp_path, monkeypatch)


def _tried(agreed: Agreement, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One huge lie."""
    way = Lying(path / "on", agreed)
    way.by, way.lies = -1000.0, range(1, 2)
    way.conduct()
    assert not way.stopped()
    assert way.told(EVENT) or way.told("report not used")
    switch_off(monkeypatch)
    off = Lying(path / "off", agreed)
    off.by, off.lies = way.by, way.lies
    with pytest.raises(StudyStopped):
        off.conduct()


def test_in_the_open_the_liar_is_left_out_named_and_set_aside(tmp_path: Path) -> None:
    way = Lying(tmp_path, study_of("fedavg", 7))
    way.by, way.lies = -1000.0, range(2, 1000)
    run = way.conduct()
    assert [(e["round"], e["site"]) for e in way.told("report not used")] == [(3, LIAR), (4, LIAR), (5, LIAR)]
    assert list(run.info["outcasts"]) == [LIAR]
    assert words("report not used", way.told("report not used")[0]).startswith("Round 3 was made without the report of")
    own = drawn(tmp_path / "sites", FRAMES, RUN)
    near = vt.federate(way.agreed.study, FRAMES, engine="looped", away={LIAR: [(3, 99)]}, secrets=own)
    torch.testing.assert_close(run.shared, near.shared, rtol=0, atol=0)


def test_a_liar_that_goes_on_stops_the_coordinator_whose_advice_works(tmp_path: Path) -> None:
    way = Lying(tmp_path, study_of("fedavg", 22, sum="masked"))
    with pytest.raises(VitrailError, match="5 rounds in a row, 5 to 9, were not used") as stop:
        way.conduct()
    assert isinstance(stop.value, StudyStopped)
    assert "cleveland, hungarian, switzerland, va" in str(stop.value)
    assert not way.stopped()
    with pytest.raises(VitrailError, match="were not used"):  # the control: started again with the liar still there
        way.conduct()
    way.away = lambda name, asked: name == LIAR  # one site is asked to stop its process
    before = len(way.told(EVENT))
    run = way.conduct()
    assert len(way.told(EVENT)) == before
    assert run.info["took_part"]["hungarian"] > run.info["took_part"][LIAR]
    assert max(r for _, r in run.info["unused"]) < 18  # keys for a sum were drawn with the site that is away now
    assert not way.stopped()


def test_after_sites_stopped_for_good_a_new_run_begins_as_the_words_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    way = Lying(tmp_path, study_of("fedavg", 12, sum="masked"))
    with monkeypatch.context() as off:
        switch_off(off)
        with pytest.raises(VitrailError, match=r"vitrail serve STUDY --new.*--another-run"):
            way.conduct()
    assert way.stopped() == HONEST
    with pytest.raises(VitrailError, match="stopped this run for good"):  # starting again does not help
        way.conduct()

    def begin(run: str, another: bool) -> vt.Run:
        way.lies, way.sites = range(0), {n: way.fresh(n, another) for n in NAMES}
        folder = Folder(tmp_path / run, resume=False)
        try:
            return conduct(SiteRequests(way, way.agreed, NAMES, run, 3, 0.01), folder, resume=False)
        finally:
            folder.close()

    with pytest.raises(StudyStopped):  # nor a new run to which nobody at the sites agreed
        begin("1" * 16, another=False)
    assert begin("2" * 16, another=True).info["finished"]


def test_new_leaves_an_unfinished_run(tmp_path: Path) -> None:
    first, place, _ = _current(tmp_path, "hash", ["va"], new=False)
    place.mkdir(parents=True)
    assert _current(tmp_path, "hash", ["va"], new=False)[0] == first
    assert _current(tmp_path, "hash", ["va"], new=True)[0] != first


def test_steps_within_the_margin_add_up_for_a_site_that_was_away() -> None:
    agreed = study_of("fedavg", 9)
    bounds, name = WeightBounds(agreed), "params/body.0.weight"
    start = first_word(agreed)[name]
    unit = start.norm(dim=0).max() * torch.nn.functional.normalize(start[:, 0], dim=0)

    def moved(by: float) -> Tensor:
        value = start.clone()
        value[:, 0] += by * unit
        return value

    for rounds in range(1, 4):
        memory = entry(name, start, 0)
        assert not bounds.problems(memory, 0, rounds, 0, {name: moved(rounds * MARGIN * STEP)})
        assert bounds.problems(memory, 0, rounds, 0, {name: moved(rounds * 1.1 * STEP)})  # the control
    assert bounds.problems(entry(name, start, 0), 0, 1, 0, {name: moved(0.95 * STEP)}, acceptance.MARGIN)
