"""A run and its page work out once what the study comes to: the task, the rehearsal that gives every contract, and
which rows of each site are held out."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import vitrail as vt
from vitrail.data.splitting import hold_out
from vitrail.engine.contract import rehearse
from vitrail.report.pages.builder import write_report
from vitrail.runs import Plan
from vitrail.runs.setup import build_task


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each of these is called, wherever a module of vitrail has it by its name."""
    calls = Counter[str]()

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            calls[function.__name__] += 1
            return function(*given, **named)

        return call

    for function in (rehearse, build_task, hold_out):
        wrapped, name = counted(function), function.__name__
        for module in [m for key, m in sys.modules.items() if key.startswith("vitrail")]:
            if getattr(module, name, None) is function:
                monkeypatch.setattr(module, name, wrapped)
    return calls


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("fedavg", {}),
        ("fedavg", {"protect": {"sum": "masked"}}),
        ("fedavg", {"protect": {"robust": "median"}}),
        ("fedavg", {"protect": {"rows": {"epsilon": 20.0, "delta": 0.01}}, "standardise": "none"}),
        ("fedavg", {"training": {"refit": True}}),
        ("ifedavg", {}),
    ],
)
def test_one_run_with_its_page_is_planned_once(
    method: str, changes: dict[str, Any], counts: Counter[str], tmp_path: Path
) -> None:
    sites = vt.datasets.heart_disease()
    study = vt.Study.infer(sites, target="disease").with_changes(**changes)
    run = vt.federate(study, sites, method=method, rounds=2, out=tmp_path / "run")
    write_report(run, tmp_path / "page.html")
    assert counts == {"rehearse": 1, "build_task": 1, "hold_out": len(sites)}


def test_a_stored_run_has_the_table_of_the_run_that_was_made(tmp_path: Path) -> None:
    sites = vt.datasets.heart_disease()
    run = vt.federate(vt.Study.infer(sites, target="disease"), sites, rounds=1, out=tmp_path / "run")
    assert vt.Run.load(tmp_path / "run").wire() == run.wire() != []
    assert run.plan.wire(screened=False) == [x for x in run.wire() if not x.stage.startswith("screen")]
    assert len(run.plan.wire(screened=False)) < len(run.wire())


def test_a_plan_knows_the_models_and_facts_of_its_method() -> None:
    study = vt.Study.infer(vt.datasets.heart_disease(), target="disease")
    plain, layers = Plan(study, vt.methods.FedAvg()), Plan(study, vt.methods.build("ifedavg", {}))
    assert not plain.meanings & set(vt.facts.ENDS)
    assert layers.meanings & set(vt.facts.ENDS)
