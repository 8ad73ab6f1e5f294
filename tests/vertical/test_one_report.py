"""A run of parties is loaded and reported by the verbs that load and report a run of sites."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from vitrail.data.datasets import catalogue as datasets
from vitrail.report.pages.builder import load, write_report
from vitrail.report.pages.vertical import render_together, scores_of, standings
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


def test_the_first_screen_says_whether_the_host_gains(tmp_path: Path) -> None:
    study, tables = Study.load(datasets.packaged("vertical.toml")), datasets.cleveland_parties()
    run = together(study, {party: tables[party] for party in study.parties}, out=tmp_path / "run")
    alone, whole, *_ = scores_of(run, study.metrics[0])
    for low, high, status, kind in ((0.01, 0.2, "gains", "gain"), (-0.2, -0.1, "does better alone", "loss")):
        changed = run.scores.copy()
        rows = (changed.model == "together") & (changed.metric == study.metrics[0])
        changed.loc[rows, ["gain_low", "gain_high"]] = low, high
        first = standings(replace(run, scores=changed))[0]
        assert (first.name, first.status, first.kind) == (study.host, status, kind)
        page = render_together(replace(run, scores=changed))
        assert page.index("<svg") < page.index('class="statuses"') < page.index("What to do next")
        assert ("Let the guests go" in page) == (kind == "loss")
    words = standings(run)[0].words
    assert words.startswith(
        f"Area under the ROC curve {whole.value.value:.3f} with the guests, {alone.value.value:.3f}"
    )
