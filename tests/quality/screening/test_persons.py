"""A screening of patients with several rows: what is published and judged goes by patient."""

from __future__ import annotations

import numpy as np
import pandas as pd

import vitrail as vt
from tests.support.visits import COLUMNS, study_of, visits
from vitrail.analysis.explanations.summary import summarise_sites
from vitrail.data.persons import one_row_each
from vitrail.data.readers.tables import clean
from vitrail.quality.screening.coordinator import screen
from vitrail.quality.screening.schema import FLOOR, HELD, QUANTILES
from vitrail.quality.screening.site import ScreeningSite

PERSONS = study_of(person="patient", screen={"ask": True})
ROWS = study_of(screen={"ask": True})


def seat(frame: pd.DataFrame, study: vt.Study = PERSONS) -> ScreeningSite:
    return ScreeningSite(clean(frame, study), study)


def test_one_row_of_each_person_is_looked_at() -> None:
    rows = clean(visits(people=40, each=5)["s0"], PERSONS)
    at = one_row_each(rows, PERSONS)
    assert len(at) == 40
    assert rows.patient.iloc[at].is_unique
    assert (np.diff(at) > 0).all()
    assert np.array_equal(one_row_each(rows, PERSONS), at)
    places = rows.groupby("patient").cumcount().iloc[at]  # first visits are not preferred
    assert set(places) == set(range(5))
    assert len(one_row_each(clean(visits(people=4)["s0"], ROWS), ROWS)) == 16


def test_a_site_of_few_persons_publishes_nothing_but_how_many() -> None:
    """Nine patients with twelve rows each are 108 rows, of which a site published quantiles and counts."""
    frame = visits(people=FLOOR - 3, each=12)["s0"]
    told = seat(frame).sketch()
    assert told["rows"].tolist() == [FLOOR - 3]
    assert not np.isfinite(told["quantiles"]).any()
    assert not np.isfinite(told["known"]).any()
    assert np.isfinite(seat(frame, ROWS).sketch()["quantiles"]).any()


def test_a_value_that_only_one_person_has_is_not_published() -> None:
    """Twenty visits of one patient hold it, which is above the bar of rows."""
    frame = visits(people=60, each=20)["s0"]
    frame.loc[frame.patient == "P003", "x0"] = 5.5  # the greatest
    assert (frame.x0 == 5.5).sum() == 20
    assert seat(frame, ROWS).sketch()["held"][0, 2].tolist() == [5.5, 20]
    assert 5.5 not in seat(frame).sketch()["held"][0]
    some = frame.patient.isin([f"P{i:03d}" for i in range(HELD)])
    assert seat(frame.assign(x0=frame.x0.mask(some, 5.5))).sketch()["held"][0, 2].tolist() == [5.5, HELD]


def test_more_rows_of_the_same_persons_publish_no_more_numbers() -> None:
    few, many = (seat(visits(people=30, each=each)["s0"]) for each in (1, 9))
    assert few.share == many.share
    assert many.share != seat(visits(people=30, each=9)["s0"], ROWS).share
    assert seat(visits(people=30, each=9)["s0"]).sketch()["quantiles"].shape[1] == len(QUANTILES)


def test_the_digest_is_of_all_rows() -> None:
    frame = visits()["s0"]
    rows = clean(frame, PERSONS)
    silent = np.setdiff1d(np.arange(len(rows)), one_row_each(rows, PERSONS))[0]
    other = frame.copy()
    other.loc[rows.index[silent], "x0"] += 1.0
    one, two = (seat(f).sketch() for f in (frame, other))
    assert (one["digest"] != two["digest"]).any()
    assert np.array_equal(one["quantiles"], two["quantiles"], equal_nan=True)


def test_visits_do_not_make_chance_differences_look_sure() -> None:
    """Sites alike, patients with twelve visits each: by rows every site differs from the others, since the same
    patients are counted twelve times."""
    named = {True: 0, False: 0}
    for seed in range(8):
        sites = visits(people=40, each=12, sites=4, seed=seed)
        for study in (PERSONS, ROWS):
            found = screen({n: clean(f, study) for n, f in sites.items()}, study)
            named[bool(study.person_column)] += len(found.findings)
    assert named[True] <= 4
    assert named[False] > 5 * max(named[True], 1)


def test_explanations_of_all_sites_count_persons() -> None:
    """A site of 60 patients with four visits each has 240 rows, and too few patients for the page of all sites."""
    sites = visits(people=60, each=4)
    sites["s0"] = visits(people=110, each=2, sites=1)["s0"]
    run = vt.federate(PERSONS.with_changes(training={"rounds": 1}), sites, "fedavg", seed=1)
    told = {name: run.explain(name, frame, rows=500) for name, frame in sites.items()}
    assert {name: len(e) for name, e in told.items()} == {"s0": 110, "s1": 60, "s2": 60}
    assert told["s0"].counted == "110 rows, one of each patient"
    assert run.explain("s0", sites["s0"], rows=["2", "3"]).counted == "2 rows"
    among = summarise_sites(told, run.study.unit_word)
    assert (among.sites, among.small, among.unit) == (["s0"], ["s1", "s2"], "patient")
    assert set(among.table.feature) == set(COLUMNS)
