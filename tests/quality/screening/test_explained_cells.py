"""What one cell explains is not held against another one."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import vitrail as vt
from tests.support.screened import federation, spoil
from vitrail.data.readers.tables import clean
from vitrail.data.schema import TableSchema
from vitrail.quality.screening import LABEL, ScreeningCoordinator, ScreeningSite, budget, screen
from vitrail.quality.screening.site_summaries import SiteSummaries

SITE = "site-2"


def one_strong(sites: int = 6, rows: int = 350, classes: int = 4) -> tuple[dict[str, pd.DataFrame], TableSchema]:
    """An outcome that follows one column closely and a few weakly; yes-or-no columns beside it."""
    raw = {}
    for k in range(sites):
        rng = np.random.default_rng(50 + k)
        strong, weak, other = rng.normal(0, 1, (3, rows))
        risk = strong + 0.25 * weak + rng.normal(0, 0.4, rows)
        man, old = rng.random(rows) < 0.7, rng.random(rows) < 0.25
        y = np.digitize(risk + 0.4 * old, np.quantile(risk, np.arange(1, classes) / classes))
        raw[f"site-{k}"] = pd.DataFrame(
            {"strong": strong.round(2), "weak": (weak + 0.3 * strong).round(2), "other": other.round(2)}
            | {"man": man.astype(int), "old": old.astype(int), "y": [f"class {c}" for c in y]}
        )
    study = vt.Study.infer(raw, "y")
    return {name: clean(frame, study) for name, frame in raw.items()}, study


def told(rows: dict[str, pd.DataFrame], table: TableSchema) -> list[tuple[str, str, str]]:
    return [(f.site, f.feature, f.kind) for f in screen(rows, table).wrong]


@pytest.fixture(scope="module")
def sick_or_not() -> tuple[dict[str, pd.DataFrame], TableSchema]:
    return one_strong(classes=2)


@pytest.fixture(scope="module")
def strong() -> tuple[dict[str, pd.DataFrame], TableSchema]:
    return one_strong()


def test_a_strong_column_turned_round_at_one_site_is_no_fault_of_the_others(
    sick_or_not: tuple[dict[str, pd.DataFrame], TableSchema],
) -> None:
    """Their outcomes are predicted with that site's rows in the total."""
    rows, table = sick_or_not
    assert told(rows, table) == []
    assert told(spoil(rows, SITE, strong=-rows[SITE].strong), table) == [(SITE, "strong", "sign")]


def test_a_strong_column_that_one_site_lacks_is_no_fault_of_the_others(
    sick_or_not: tuple[dict[str, pd.DataFrame], TableSchema],
) -> None:
    rows, table = sick_or_not
    assert told(spoil(rows, SITE, strong=np.nan), table) == []


def test_classes_under_the_names_of_others_are_told_with_what_they_mean(
    strong: tuple[dict[str, pd.DataFrame], TableSchema],
) -> None:
    rows, table = strong
    assert told(spoil(rows, SITE, y=3 - rows[SITE].y), table) == [(SITE, LABEL, "label flip")]
    bad = spoil(rows, SITE, y=(rows[SITE].y + 1) % 4)
    assert told(bad, table) == [(SITE, LABEL, "label flip")]
    levels = list(table.target.levels)
    assert screen(bad, table).wrong[0].numbers["levels"] == {levels[(k + 1) % 4]: levels[k] for k in range(4)}


def test_two_yes_or_no_columns_that_changed_places(sick_or_not: tuple[dict[str, pd.DataFrame], TableSchema]) -> None:
    rows, table = sick_or_not
    bad = spoil(rows, SITE, man=rows[SITE].old, old=rows[SITE].man)
    found = told(bad, table)
    assert {f[:2] for f in found} <= {(SITE, "man"), (SITE, "old")}
    assert {f[2] for f in found} == {"swapped"}


def test_a_column_without_its_relations_and_an_outcome_without_its_columns_are_told_apart() -> None:
    rows, table = federation(rows=400)
    mixed = np.random.default_rng(5).permutation
    assert told(spoil(rows, SITE, age=mixed(rows[SITE].age)), table) == [(SITE, "age", "shuffled")]
    assert told(spoil(rows, SITE, y=mixed(rows[SITE].y)), table) == [(SITE, LABEL, "label noise")]


def test_a_number_that_is_predicted_is_judged_at_small_sites_too() -> None:
    """It used to come last in what a site may publish, and sites of 60 rows never got there."""
    rows, table = federation(rows=60, number=True)
    assert ScreeningSite(rows[SITE], table).share[-1].ties == 2
    assert 2 * budget(table, 60)[LABEL] <= 60
    y = rows[SITE].y
    assert (SITE, LABEL, "label flip") in told(spoil(rows, SITE, y=y.max() + y.min() - y), table)


def test_what_is_reckoned_from_ties_is_what_sites_say_themselves() -> None:
    """And without an accused site's outcome it is what the others would say had that site not been there."""
    rows, table = federation(sites=5, rows=900)
    small = {name: frame if name == SITE else frame[:250] for name, frame in rows.items()}
    bad = spoil(small, SITE, y=1 - rows[SITE].y)

    def publish(rows: dict[str, pd.DataFrame]) -> SiteSummaries:
        desk, seats = ScreeningCoordinator(table), {name: ScreeningSite(frame, table) for name, frame in rows.items()}
        asked = desk.hear_sketch({name: seat.sketch() for name, seat in seats.items()})
        said = {name: seat.counts(asked) for name, seat in seats.items()}
        total = {"products": np.asarray(sum(t["products"] for _, t in said.values()))}
        asked = desk.hear_counts({name: own for name, (own, _) in said.items()}, total)
        desk.hear_ties({name: seat.ties(asked) for name, seat in seats.items()})
        return SiteSummaries(desk.layout, desk.publishing, desk.said, desk.asked)

    p, alone = publish(bad), publish({name: frame for name, frame in bad.items() if name != SITE})
    others = [k for k, name in enumerate(p.sites) if name != SITE]
    accused = np.zeros((len(p.sites), len(p.layout.columns)), bool)
    assert p.estimate([], accused)[others] == pytest.approx(p.predicted[others, :, 0], abs=0.1)
    accused[p.sites.index(SITE), -1] = True
    assert p.estimate([], accused)[others] == pytest.approx(alone.predicted[:, :, 0], abs=0.1)
    assert abs(alone.predicted[:, :, 0] - p.predicted[others, :, 0]).max() > 0.5  # it makes a difference


def test_where_sites_differ_steps_that_no_other_site_has_are_clear() -> None:
    rows, table = federation(sites=6, rows=900)
    mix = {name: frame[frame.age > 46 + 4 * k][:250] for k, (name, frame) in enumerate(rows.items())}
    assert told(mix, table) == []
    assert told(spoil(mix, SITE, pulse=(mix[SITE].pulse / 20).round() * 20), table) == [(SITE, "pulse", "rounded")]
    rare = np.random.default_rng(1).random(len(mix[SITE])) < 0.45
    assert told(spoil(mix, SITE, pulse=mix[SITE].pulse.mask(rare, 70.0)), table) == [(SITE, "pulse", "code")]
