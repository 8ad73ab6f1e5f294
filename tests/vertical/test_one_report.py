"""A run of parties is loaded and reported by the verbs that load and report a run of sites."""

from __future__ import annotations

from pathlib import Path

from vitrail.data.datasets import catalogue as datasets
from vitrail.report.pages.builder import load, write_report
from vitrail.report.pages.vertical import render_together
from vitrail.study.model import Study
from vitrail.vertical.pipeline import together
from vitrail.vertical.run import VerticalRun


def test_one_verb_loads_and_one_verb_reports(tmp_path: Path) -> None:
    study, tables = Study.load(datasets.packaged("vertical.toml")), datasets.cleveland_parties()
    run = together(study, {party: tables[party] for party in study.parties}, out=tmp_path / "run")
    loaded = load(tmp_path / "run")
    assert isinstance(loaded, VerticalRun)
    assert loaded.terms == run.terms
    page = write_report(loaded, tmp_path / "run" / "report.html")
    assert page.read_text(encoding="utf-8") == render_together(loaded)
