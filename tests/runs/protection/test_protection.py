"""[protect] of a study: what is refused before the first round, what a run then says, and what a restart remembers."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

import vitrail as vt
from tests.support import ROOT
from tests.support.small import opposed_tables
from vitrail.core.errors import VitrailError
from vitrail.report.pages.builder import load, write_report
from vitrail.report.sections.protection import HONEST, sure
from vitrail.runs.protection.budget import spent_by
from vitrail.study.model import Study

SITES = opposed_tables({"north": 60, "south": 50, "west": 44, "east": 40, "centre": 36})


def study(**protect: Any) -> Study:
    training = {"rounds": 3, "class_weights": "none"}
    drafted = Study.infer(SITES, "sick", training=training, network={"kind": "linear"}, standardise="local")
    return drafted.with_changes(protect=protect)


def page(run: Path) -> str:
    return write_report(load(run), run / "report.html").read_text(encoding="utf-8")


def refused(found: Study, method: str) -> list[str]:
    with pytest.raises(VitrailError) as error:
        vt.federate(found, SITES, method=method)
    return [f"{p.where} {p.what}" for p in error.value.problems]


def test_a_study_without_guards_has_no_section_and_one_with_some_is_written_whole() -> None:
    assert "[protect]" not in study().to_toml()
    found = study(robust="median", rows={"epsilon": 3.0, "delta": 1e-4}, clip=0.5)
    assert "[protect]" in found.to_toml()
    assert Study.parse(tomllib.loads(found.to_toml())) == found


def test_what_does_not_go_together_is_refused_at_once() -> None:
    (said,) = refused(study(robust="median"), "weight_erosion")
    assert said.startswith("protect.robust")
    assert "uses each report by itself" in said
    found = study(rows={"epsilon": 3.0}, rows_least=38).with_changes(
        training={"class_weights": "inverse"}, network={"kind": "mlp", "hidden": (8,)}
    )
    said = " ".join(refused(found, "moon"))
    for words in ("rows_least", "east has", "centre has", "more about rows than their gradients"):
        assert words in said, words


def test_a_few_sites_cannot_outvote(tmp_path: Path) -> None:
    few = {k: SITES[k] for k in ("north", "south", "west")}
    with pytest.raises(VitrailError, match="protection is not possible") as error:
        vt.federate(study(robust="median"), few, method="fedavg")
    assert "at least 4 sites are needed" in error.value.problems[0].what


def test_the_budget_is_spent_and_told(tmp_path: Path) -> None:
    found = study(rows={"epsilon": 4.0, "delta": 1e-3})
    run = vt.federate(found, SITES, method="fedavg", out=tmp_path / "run")
    spent = spent_by(run.study, run.method)
    assert spent is not None
    assert spent.epsilon == pytest.approx(4.0, abs=1e-3)
    assert spent.looks == 3
    text = page(tmp_path / "run")
    assert "The privacy budget of each row" in text
    assert "4.00 (epsilon)" in text
    assert spent.replaced == pytest.approx(9.82, abs=0.01)
    assert "another person’s row stands in its place" in text
    assert "epsilon is 9.82" in text
    assert "epsilon, row replaced" in text
    assert "Spent by each site" in text
    assert run.info["spent"]["north"] == pytest.approx(4.0, abs=1e-3)
    gone = vt.federate(found, SITES, method="fedavg", away={"north": [(2, 3)]})
    assert gone.info["spent"]["north"] < 3.0
    assert gone.info["spent"]["south"] == pytest.approx(4.0, abs=1e-3)
    plain = vt.federate(study(), SITES, method="fedavg")
    assert spent_by(plain.study, plain.method) is None
    one, other = (r.models["north"] for r in (run, plain))
    assert any(not one[k].allclose(other[k]) for k in one)


def test_who_is_outvoted_is_on_the_page(tmp_path: Path) -> None:
    other = {"yes": "no", "no": "yes"}
    turned = {**SITES, "west": SITES["west"].assign(sick=SITES["west"]["sick"].map(other))}
    vt.federate(study(robust="median"), turned, method="fedavg", rounds=10, out=tmp_path / "run")
    text = page(tmp_path / "run")
    assert "How far each site’s reports lay from the centre" in text


def test_a_restart_finds_the_site_set_aside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The coordinator is stopped after the round in which a site sent nonsense; started again it does not ask it."""
    from vitrail.engine import local

    asked: list[str] = []
    inner = local.Engine.__init__

    def lying(self: Any, *given: Any, **named: Any) -> None:
        def lies(names: tuple[str, ...], ex: Any, up: Any) -> Any:
            asked.extend(names)
            if "west" in names:
                up.change["head.weight"][names.index("west")] *= 1e37
            return up

        inner(self, *given, **(named | {"lies": lies}))

    class StopError(Exception):
        pass

    def stop(done: int, total: int) -> None:
        if done == 2:
            raise StopError

    monkeypatch.setattr(local.Engine, "__init__", lying)
    given = {"method": "fedavg", "rounds": 5, "out": tmp_path / "run", "checkpoint_seconds": 0.0, "engine": "looped"}
    with pytest.raises(StopError):
        vt.federate(study(), SITES, **given, progress=stop)
    assert asked.count("west") == 1
    asked.clear()
    run = vt.federate(study(), SITES, **given, resume=True)
    assert asked.count("north") == 3
    assert asked.count("west") == 0
    assert list(run.info["outcasts"]) == ["west"]
    assert run.scores().value.notna().all()
    assert "set aside" in (tmp_path / "run" / "events.jsonl").read_text()
    assert "west" in page(tmp_path / "run")


def test_comparisons_do_not_claim_guards_that_they_have_not() -> None:
    with pytest.raises(VitrailError, match="these runs cannot be protected"):
        vt.compare(study(robust="median"), SITES, ["local", "fedavg"], seeds=[1, 2], rounds=1)


def test_how_sure_the_page_is_was_counted() -> None:
    """The runs without a liar of benchmarks/attacks/attacks.py, and what the page makes of them."""
    cases = json.loads((ROOT / "benchmarks" / "attacks" / "results" / "attacks.json").read_text())
    honest = [case["named"] for key, case in cases.items() if key.startswith("names|")]
    assert (sum(named > 0 for named in honest), len(honest)) == HONEST
    assert f"in at most {100 * (1 - 0.05 ** (1 / len(honest))):.0f} of 100" in sure()
