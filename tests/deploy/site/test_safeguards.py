"""A coordinator that keeps to every agreed shape and sends weights made for reading rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor

import vitrail as vt
from tests.support.deploy.federation import first_word, prepare_question
from vitrail.core.errors import RunStopped, VitrailError
from vitrail.core.tensors import flatten
from vitrail.data.datasets.catalogue import heart_disease, packaged
from vitrail.data.encoding import prepare
from vitrail.deploy.protocol.agreement import Agreement
from vitrail.deploy.protocol.message import Message
from vitrail.deploy.protocol.weight_bounds import CAP, STEP, WeightBounds
from vitrail.deploy.site.safeguards import FREE_ROWS, ROWS_EACH, ModelInspector, rows_disclosed
from vitrail.deploy.site.site import Site
from vitrail.engine.local import Engine
from vitrail.runs.backbone_features import as_rows
from vitrail.runs.setup import resolve, training_of, training_rows

RUN = "0123456789abcdef"
WEIGHT, OFFSET = "params/body.0.weight", "params/body.0.bias"  # [cell, unit], [unit]


@pytest.fixture(scope="module")
def agreed() -> Agreement:
    study = vt.Study.load(packaged("heart_disease.toml")).with_changes(training={"rounds": 9}, screen={"ask": False})
    return Agreement.of(resolve(study, "fedavg", None)[0], None, 4)


@pytest.fixture
def site(agreed: Agreement, tmp_path: Path) -> Site:
    made = Site("va", heart_disease()["va"], agreed, tmp_path)
    made.answer(prepare_question(made, RUN))
    return made


def told(site: Site, r: int, word: dict[str, Tensor]) -> Message:
    return site.answer(Message("round", {"run": RUN, "stage": 0, "round": r, "place": 0, "score": []}, word))


def changed(agreed: Agreement, **by: Any) -> dict[str, Tensor]:
    word = first_word(agreed)
    for name, change in by.items():
        key = {"weight": WEIGHT, "offset": OFFSET}[name]
        word[key] = change(word[key].clone())
    return word


def put(unit: int, times: float) -> Any:
    def change(tensor: Tensor) -> Tensor:
        tensor[..., unit] *= times
        return tensor

    return change


def copied(tensor: Tensor) -> Tensor:
    return tensor[:, :1] * torch.linspace(0.5, 1.5, tensor.shape[1])


def test_the_first_word_is_the_agreed_start(site: Site, agreed: Agreement) -> None:
    with pytest.raises(VitrailError, match="expected the initial weights"):
        told(site, 0, changed(agreed, offset=put(0, 1.01)))


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"weight": put(3, 3 * CAP)}, "expected no unit longer than"),
        ({"offset": lambda v: v + 3 * CAP}, "expected no unit longer than"),
        ({"weight": put(3, 1 + 2 * STEP)}, "expected no unit to move by more"),
        ({"weight": copied}, "pairs of units point the same way"),
    ],
)
def test_crafted_weights_stop_the_run_for_good(how: Any, words: str, site: Site, agreed: Agreement) -> None:
    told(site, 0, first_word(agreed))
    with pytest.raises(VitrailError, match=words) as found:
        told(site, 1, changed(agreed, **how))
    assert isinstance(found.value, RunStopped)
    for process in (site, Site("va", site.frame, agreed, site.base)):  # also when it is started again
        with pytest.raises(VitrailError, match=words):
            told(process, 1, first_word(agreed))


def test_who_was_away_finds_weights_that_moved_further(site: Site, agreed: Agreement) -> None:
    told(site, 0, first_word(agreed))
    back = Site("va", site.frame, agreed, site.base)
    assert told(back, 8, changed(agreed, weight=put(3, 1 + 2 * STEP))).kind == "round"  # after one round it is refused


def test_layers_that_nobody_trains_stay(agreed: Agreement, tmp_path: Path) -> None:
    wary = ModelInspector(agreed, tmp_path)
    wary.bounds.reported.discard("body.0.bias")
    wary.check_received(0, 1, 0, first_word(agreed))
    with pytest.raises(VitrailError, match="no report can change this tensor"):
        wary.check_received(0, 1, 0, changed(agreed, offset=put(0, 1.01)))


def test_a_report_that_holds_rows_does_not_leave(agreed: Agreement, tmp_path: Path) -> None:
    rows = torch.randn(200, 22, generator=torch.Generator().manual_seed(1))
    mixed = {"change/body.0.weight": (rows[:100] + rows[100:]).T}
    assert rows_disclosed(mixed, rows) == set()
    assert rows_disclosed({"change/body.0.weight": -3 * rows[5:8].T}, rows) == {5, 6, 7}
    assert rows_disclosed({"x": torch.where(torch.arange(22) < 5, 0, rows[9])}, rows) == {9}  # dropout left cells out
    most, wary = FREE_ROWS + 200 // ROWS_EACH, ModelInspector(agreed, tmp_path)
    wary.check_report(mixed, rows)
    for i in range(most):
        wary = ModelInspector(agreed, tmp_path)
        wary.check_report({"x": rows[i]}, rows)
        wary.check_report({"x": rows[i]}, rows)  # the same one tells nothing new
    with pytest.raises(VitrailError, match="1 row of this site could be read almost exactly"):
        wary.check_report({"x": rows[most]}, rows)
    (tmp_path / "other").mkdir()
    with pytest.raises(VitrailError, match="3 rows of this site"):
        ModelInspector(agreed, tmp_path / "other").check_report({"x": rows[:3]}, rows)


def test_honest_training_on_many_rows_and_rare_events_keeps_the_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first round brings the output layer to the event rate, which is far from its start. The control: with the
    bound of the other layers the study would be stopped."""
    sites = {}
    for s in range(3):
        rng = np.random.default_rng(s)
        x = rng.normal(size=(4000, 24)).round(3)
        sick = rng.random(4000) < 1 / (1 + np.exp(3.2 - x[:, :3] @ [0.6, -0.4, 0.2]))
        sites[f"s{s}"] = pd.DataFrame(x).add_prefix("x").assign(sick=sick.astype(int))
    drafted = vt.Study.infer(sites, target="sick", screen={"ask": False})
    study, method = resolve(drafted, "fedavg", 3)
    agreed = Agreement.of(study, 1, 3)
    bounds = WeightBounds(agreed)
    data = as_rows(prepare(sites, study, 1), agreed.task.net)
    engine = Engine(agreed.task, method, training_rows(data, study, method, "cpu"), training_of(study), 1)

    def stopped() -> list[str]:
        memory = bounds.remembered(0, 0, first_word(agreed))
        out = []
        for moment in engine.run():
            word = dict(flatten(moment.coord))
            out += [str(p) for p in bounds.problems(memory, 0, moment.round, 0, word)]
            memory = bounds.remembered(0, moment.round, word)
        return out

    assert stopped() == []
    monkeypatch.setattr("vitrail.deploy.protocol.weight_bounds.HEAD_STEP", STEP)
    assert any("head.bias" in problem for problem in stopped())
