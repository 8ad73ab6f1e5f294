"""The patient is the unit between machines, too: by bytes in one process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import vitrail as vt
from tests.support.deploy.federation import Here
from tests.support.deploy.forms import line_of
from tests.support.visits import COLUMNS, study_of, visits
from vitrail.core.errors import VitrailError
from vitrail.data.persons import count_units, persons_of
from vitrail.data.readers.tables import clean
from vitrail.deploy.consent.file_sheet import file_sheet
from vitrail.deploy.consent.form import contract_text
from vitrail.deploy.coordinator.requests import SiteRequests
from vitrail.deploy.coordinator.session import conduct
from vitrail.deploy.protocol.agreement import Agreement
from vitrail.deploy.screening.site import ScreeningAnswers
from vitrail.deploy.secure_sum.site import SumSite
from vitrail.deploy.site.privacy_ledger import PrivacyLedger, sketch
from vitrail.deploy.site.private_randomness import draws_of
from vitrail.deploy.site.site import Site
from vitrail.deploy.verdicts.site import FoldSite, SiteFolds
from vitrail.privacy.score_rounding import rounded
from vitrail.runs.folder import Folder
from vitrail.runs.setup import resolve
from vitrail.runs.store import read_held_out
from vitrail.studies.benefit import UNSURE
from vitrail.studies.site_benefit import explain_verdict

RUN = "0123456789abcdef"


class Trial:
    """One study between sites in this process, by bytes."""

    def __init__(self, root: Path, sites: dict[str, pd.DataFrame], study: vt.Study) -> None:
        study = resolve(study, "fedavg", None)[0]
        self.root, self.agreed, self.tables = root, Agreement.of(study, None, len(sites)), sites
        self.way = Here({n: Site(n, f, self.agreed, root / n) for n, f in sites.items()})

    def conduct(self) -> vt.Run:
        folder = Folder(self.root / "run", resume=False, about=".lock")
        try:
            call = SiteRequests(self.way, self.agreed, list(self.tables), RUN, len(self.tables), 0.01)
            return conduct(call, folder, resume=True)
        finally:
            folder.close()


def test_between_machines_as_in_a_simulation(tmp_path: Path) -> None:
    sites = visits(people=30)
    study = study_of(person="patient", protect={"scores": "exact"}, training={"rounds": 2, "lr": 0.02, "total": "mean"})
    trial = Trial(tmp_path, sites, study)
    far = trial.conduct()
    secrets = {n: draws_of(tmp_path / n, RUN) for n in sites}
    near = vt.federate(trial.agreed.study, sites, "fedavg", seed=trial.agreed.seed, secrets=secrets)
    pd.testing.assert_frame_equal(
        far.sizes.sort_values("site", ignore_index=True), near.sizes.sort_values("site", ignore_index=True)
    )
    both = [r.scores().set_index(["site", "metric"]).value.sort_index() for r in (far, near)]
    pd.testing.assert_series_equal(*both, rtol=1e-5)
    for site in sites:
        kept = tmp_path / site / RUN / "held_out.csv"
        assert kept.stat().st_mode & 0o077 == 0
        assert read_held_out(kept) == near.held[site]
    with pytest.raises(VitrailError, match="not known which rows"):
        far.held_out()
    crossed = b"".join(p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file())
    assert b"P001" not in crossed
    assert "and of how many patients each of these" in line_of(contract_text(trial.agreed, "s0", list(sites), True))


def test_scores_leave_as_counts_of_patients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 200 held-out visits, four of each patient, hits are rounded as counts out of 50 patients; by rows out of
    200."""
    asked: dict[str, list[tuple[float, float]]] = {"patient": [], "": []}
    for person, seen in asked.items():

        def spy(count: float, many: float, chance: float, of: int = 1, seen: Any = seen) -> float:
            seen.append((count, many))
            return rounded(count, many, chance, of)

        monkeypatch.setattr("vitrail.deploy.site.scores.rounded", spy)
        study = study_of(person=person, metrics=["accuracy"], training={"rounds": 1})
        Trial(tmp_path / f"by {person}", visits(people=150), study).conduct()
    assert {many for _, many in asked["patient"]} == {50.0, 100.0}  # held out, and trained on
    assert all(count <= many for count, many in asked["patient"])
    assert max(many for _, many in asked[""]) > 200


def test_folds_between_machines_keep_persons_together(tmp_path: Path) -> None:
    study = study_of(person="patient", verdict={"folds": 3, "seeds": 2}, training={"rounds": 1})
    trial = Trial(tmp_path, visits(people=30), study)
    for name, site in trial.way.sites.items():
        site.home = tmp_path / name / RUN
        whose = persons_of(site.rows, study)
        assert whose is not None
        for number in range(6):
            cut, _, _ = SiteFolds(site).partition(number)
            assert cut.folds == 3
            assert all(len(set(cut.lots[name][whose == p])) == 1 for p in range(30))
    small = Trial(tmp_path / "small", visits(people=19), study).way.sites["s0"]
    small.home = tmp_path / "small" / "s0" / RUN
    assert SiteFolds(small).partition(0)[0].folds == 1  # 76 rows, and two folds of ten persons take twenty
    assert issubclass(FoldSite, Site)


def test_a_verdict_between_machines_counts_patients(tmp_path: Path) -> None:
    study = study_of(person="patient", verdict={"folds": 2, "seeds": 1}, training={"rounds": 1})
    Trial(tmp_path, visits(people=24), study).conduct()
    found = json.loads((tmp_path / "s0" / RUN / "verdict.json").read_text())
    assert found["rows"] == 24
    unsure = explain_verdict(study, {**found, "verdict": UNSURE})  # which verdict it is depends on secret folds
    assert "24 patients" in unsure


def test_the_ledger_knows_the_same_patients_in_another_table() -> None:
    one, study = visits()["s0"], study_of(person="patient")
    other = one.assign(**{name: one[name] + 1 for name in COLUMNS}).sample(frac=1, random_state=1)
    marks = [sketch(clean(f, study)[["patient"]], "key") for f in (one, other)]
    assert marks[0] == marks[1]
    assert len(marks[0]) == 60
    rows = [sketch(clean(f, study).drop(columns="patient"), "key") for f in (one, other)]
    assert not set(rows[0]) & set(rows[1])
    plain = sketch(clean(one, study_of()), "key")
    assert plain == rows[0]  # a study that names persons knows what one without them has spent


def test_a_screening_between_machines_looks_at_one_row_of_each_patient(tmp_path: Path) -> None:
    sites = visits(people=30, each=6)
    study = study_of(person="patient", screen={"ask": True}, training={"rounds": 1, "lr": 0.02, "total": "mean"})
    trial = Trial(tmp_path, sites, study)
    sums = SumSite("s0", trial.agreed, tmp_path / "alone", None)
    screened = ScreeningAnswers(clean(sites["s0"], study), trial.agreed, tmp_path / "alone", sums).site
    assert screened.n == 30
    assert max(share.numbers for share in screened.share) <= 15, "never more than one number for every two patients"
    units = count_units(sites["s0"], study)
    form = line_of(contract_text(trial.agreed, "s0", list(sites), True))
    assert "Of a patient with several rows, one row is used." in form
    assert "never more than one number for every two patients that you have" in form
    plain = Agreement.of(resolve(study_of(screen={"ask": True}), "fedavg", None)[0], None, 3)
    assert "several rows" not in contract_text(plain, "s0", list(sites), True)
    for agreement, count, words in ((trial.agreed, units, "30 patients"), (plain, len(sites["s0"]), "180 rows")):
        ledger = PrivacyLedger(tmp_path / "ledger", tmp_path / "none.csv", sites["s0"], agreement, None)
        assert f"against the {words} that you have" in line_of(file_sheet(agreement, True, count, ledger))
