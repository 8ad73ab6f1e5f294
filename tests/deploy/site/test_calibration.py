"""Held-out rows by risk: told only where the study says so, named in the consent form, the same numbers between
machines as on one, and no group of few rows."""

from __future__ import annotations

import math
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas.testing as pdt
import pytest
import torch

import vitrail as vt
from tests.support.deploy.federation import Here, drawn, without_scores
from tests.support.deploy.proofs import prove
from tests.support.small import opposed_tables
from vitrail.core.errors import VitrailError
from vitrail.deploy.consent.form import contract_text
from vitrail.deploy.coordinator.requests import SiteRequests
from vitrail.deploy.coordinator.session import conduct
from vitrail.deploy.protocol.agreement import Agreement
from vitrail.deploy.protocol.answer_validation import implausible_answer
from vitrail.deploy.protocol.message import Message
from vitrail.deploy.site.site import Site
from vitrail.metrics.calibration import BEDSIDE
from vitrail.metrics.scores import FEWEST
from vitrail.report.pages.builder import write_report
from vitrail.report.sections.calibration import read_risk_counts
from vitrail.runs.folder import Folder
from vitrail.runs.setup import AT_BEDSIDE

RUN = "0123456789abcdef"
SITES = {"left": 90, "middle": 40, "right": 12}


def make_study(**more: object) -> vt.Study:
    given = {"screen": {"ask": False}, "training": {"rounds": 2}, "network": {"hidden": (4,)}, **more}
    given["protect"] = {"scores": "exact"}
    return vt.Study.infer(opposed_tables(SITES), target="sick", method={"name": "fedavg"}, **given)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[vt.Run, vt.Run]:
    place, tables, study = tmp_path_factory.mktemp("far"), opposed_tables(SITES), make_study(bedside={"tell": True})
    agreed, home, names = Agreement.of(study, None, len(tables)), place / "sites", list(tables)
    sites = {n: Site(n, f, agreed, home / n, True, prove(n, names, home / n)) for n, f in tables.items()}
    folder = Folder(place / "run", resume=False)
    far = conduct(SiteRequests(Here(sites), agreed, names, RUN, len(sites), 60.0), folder, resume=False)
    folder.close()
    return far, vt.federate(study, tables, engine="looped", secrets=drawn(home, tables, RUN))


def test_the_same_is_told_between_machines(both: tuple[vt.Run, vt.Run]) -> None:
    """Counts are equal. Expected events are sums of risks, which hold each site's own constant: it is fitted to scores
    in single precision, whose last digits depend on which sites are computed together."""
    far, near = (r.scores(AT_BEDSIDE).sort_values(["site", "metric"], ignore_index=True) for r in both)
    sums = near.metric.str.startswith("expected@")
    pdt.assert_frame_equal(far[~sums], near[~sums], rtol=0, atol=0)
    pdt.assert_frame_equal(far[sums], near[sums], rtol=1e-7, atol=0)
    assert near[sums].value.notna().any()
    assert len(near) == len(SITES) * len(BEDSIDE)
    pdt.assert_frame_equal(*map(without_scores, (both[0], both[1])))


def test_no_number_stands_on_few_rows(both: tuple[vt.Run, vt.Run]) -> None:
    told = both[0].scores(AT_BEDSIDE)
    rows = told[told.metric.str.startswith("rows@")]["value"].dropna()
    assert (rows >= FEWEST).all()
    assert "right" not in read_risk_counts(both[0])  # 12 rows, of which 4 are held out
    assert read_risk_counts(both[0])["left"].total == both[0].sizes.set_index("site").test_rows["left"]


def test_the_page_shows_what_crossed_and_nothing_more(both: tuple[vt.Run, vt.Run], tmp_path: Path) -> None:
    pages = [write_report(r, tmp_path / f"{i}.html").read_text() for i, r in enumerate(both)]
    parts = [page[page.index('<section class="bedside"') :].split("</section>")[0] for page in pages]
    assert parts[0] == parts[1]
    assert "acting on all" in parts[0]
    assert "No figure for right: fewer than 10 held-out cases, or no counts told." in parts[0]
    assert "Simulation" not in parts[0] + parts[1]


def test_a_study_that_does_not_say_so_tells_nothing(tmp_path: Path) -> None:
    study = make_study()
    assert "bedside" not in study.to_toml()
    form = contract_text(Agreement.of(study, None, 3), "left", list(SITES), publishes=False)
    assert "between two risks" not in " ".join(form.split())
    run = vt.federate(study, opposed_tables(SITES))
    assert not (run.history.split == AT_BEDSIDE).any()
    far = replace(run, answers={}, summaries={})  # as between machines: no row is at hand
    assert '<section class="bedside"' not in write_report(far, tmp_path / "far.html").read_text()
    page = write_report(run, tmp_path / "page.html").read_text()
    assert "<b>Simulation.</b>" in page.partition('<section class="bedside"')[2].partition("</section>")[0]


def test_the_consent_form_names_it() -> None:
    study = make_study(bedside={"tell": True})
    assert vt.Study.parse(tomllib.loads(study.to_toml())).bedside.tell
    agreed = Agreement.of(study, None, 3)
    form = " ".join(contract_text(agreed, "left", list(SITES), publishes=False).split())
    assert "of your held-out rows between two risks by your model" in form
    assert "no group has fewer than 10 rows" in form
    assert agreed.hash != Agreement.of(make_study(), None, 3).hash


def test_what_no_rows_can_be_is_that_sites_error() -> None:
    agreed = Agreement.of(make_study(bedside={"tell": True}), None, 3)
    words = {"stage": 0, "round": 2, "score": [AT_BEDSIDE]}
    assert agreed.scored([AT_BEDSIDE]) == [(AT_BEDSIDE, name) for name in BEDSIDE]

    def said(**groups: float) -> str | None:
        numbers = [groups.get(name.replace("@", "_"), math.nan) for name in BEDSIDE]
        told = {"scores": torch.tensor(numbers, dtype=torch.float64)}
        return implausible_answer(agreed, Message("settle", words), Message("settle", words, told))

    assert said() is None
    assert said(rows_0=12, events_0=3, expected_0=2.5) is None
    for wrong in (
        {"rows_0": 9, "events_0": 3, "expected_0": 2.5},  # fewer than ten
        {"rows_0": 12, "events_0": 13, "expected_0": 2.5},
        {"rows_0": 12, "events_0": 3, "expected_0": 13},
        {"rows_0": 12, "events_0": 3},
        {"rows_50": 12, "events_50": 3, "expected_50": 8},  # of those below nothing is said
    ):
        assert "held-out rows by risk" in str(said(**wrong))


def test_of_a_number_there_are_no_risks() -> None:
    tables = {k: f.assign(sick=np.arange(len(f)) * 1.5) for k, f in opposed_tables(SITES).items()}
    with pytest.raises(VitrailError, match="needs a target of classes"):
        vt.Study.infer(tables, target="sick", bedside={"tell": True})
