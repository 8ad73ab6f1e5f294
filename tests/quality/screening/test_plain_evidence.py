"""What the study agrees, and what no patients could make, is likely wrong: also where sites differ."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from tests.support.screened import federation, spoil, unlike
from tests.support.survival import made, study_of
from vitrail.data.readers.tables import clean
from vitrail.data.schema import TableSchema
from vitrail.quality.screening import LABEL, Finding, compare_with_pooled, screen
from vitrail.quality.screening.diagnosis.causes import share_wrong
from vitrail.quality.screening.result import Screening

SITE = "site-2"
Sites = tuple[dict[str, pd.DataFrame], TableSchema]


@pytest.fixture(scope="module")
def hospitals() -> Sites:
    return unlike()


def about(screening: Screening, feature: str) -> Finding:
    (found,) = [f for f in screening.findings if (f.site, f.feature) == (SITE, feature)]
    return found


def planted(sites: Sites, feature: str, values: object) -> Finding:
    rows, table = sites
    return about(screen(spoil(rows, SITE, **{feature: values}), table), feature)


def test_hospitals_that_differ_are_not_held_wrong_by_it(hospitals: Sites) -> None:
    rows, table = hospitals
    screening = screen(rows, table)
    assert not screening.wrong
    assert len(screening.maybe) > 5, "the positive control: they differ"


@pytest.mark.parametrize("share", [0.1, 0.3, 0.94])
def test_999_in_a_column_whose_range_ends_at_110_is_never_may_be_real(hospitals: Sites, share: float) -> None:
    age = hospitals[0][SITE].age
    coded = np.where(np.random.default_rng(1).random(len(age)) < share, 999.0, age)
    found = planted(hospitals, "age", coded)
    assert (found.wrong, found.kind, found.numbers["code"]) == (True, "code", 999.0)
    assert "outside the agreed range 0 to 110" in found.text


def test_values_outside_the_agreed_range_are_told_with_it(hospitals: Sites) -> None:
    age = hospitals[0][SITE].age
    found = planted(hospitals, "age", -age)
    assert found.wrong
    moved = planted(hospitals, "age", np.where(age > age.median(), age + 150.0, age))
    assert moved.wrong
    assert moved.kind in ("other", "unit in part")


def test_9999_in_a_numeric_outcome_is_a_code() -> None:
    rows, table = unlike(number=True)
    y = rows[SITE].y
    bad = spoil(rows, SITE, y=np.where(np.arange(len(y)) % 7 == 0, 9999.0, y))
    told = about(screen(bad, table), LABEL)
    assert (told.wrong, told.kind, told.numbers["code"]) == (True, "code", 9999.0)


@pytest.mark.parametrize(
    ("feature", "factor", "other"),
    [("weight", 453.59237, "lb"), ("follow", 30.4375, "months"), ("sugar", 18.02, "mmol/L")],
)
def test_another_unit_of_a_column_is_told_by_its_pair(
    hospitals: Sites, feature: str, factor: float, other: str
) -> None:
    found = planted(hospitals, feature, (hospitals[0][SITE][feature] / factor).round(2))
    assert (found.wrong, found.kind, found.numbers["unit"]) == (True, "unit", other)
    assert found.numbers["factor"] == pytest.approx(factor)


def test_a_130_fold_ratio_is_never_as_much_as_in_other_columns(hospitals: Sites) -> None:
    for factor in (130.0, 1 / 130.0):
        found = planted(hospitals, "pulse", hospitals[0][SITE].pulse * factor)
        assert found.wrong
        assert "factor" not in found.numbers, "no pair of units has it, so no repair is proposed"


@pytest.mark.parametrize("factor", [1.5965, 1.7, 3.4])
def test_a_factor_that_is_no_pair_of_units_is_not_a_unit(factor: float) -> None:
    rows, table = federation()
    found = planted((rows, table), "pulse", rows[SITE].pulse * factor)
    assert found.wrong, "all sites are alike but this one"
    assert found.kind == "other"
    assert "no known pair of units" in found.text


@pytest.mark.parametrize("factor", [12.0, 88.4, 8.84, 18.02, 7.0, 2.2046])
def test_a_slipped_point_is_told_only_where_it_fits_better_than_the_free_factor(factor: float) -> None:
    rows, table = federation()
    for value in (factor, 1 / factor):
        found = planted((rows, table), "pulse", rows[SITE].pulse * value)
        assert found.wrong
        repair = found.numbers.get("factor")
        assert repair is None or repair == pytest.approx(1 / value, rel=0.01), "never 13 to 17 % off"
        assert not any(abs(np.log10(repair) - k) < 1e-6 for k in range(-3, 4)) if repair else True
    slipped = planted((rows, table), "pulse", rows[SITE].pulse * 10)
    assert (slipped.kind, slipped.numbers["factor"]) == ("unit", pytest.approx(0.1)), "the positive control"


@pytest.mark.parametrize("digits", [0, 1, 2])
def test_a_standardised_column_is_no_missing_value_written_as_a_number(hospitals: Sites, digits: int) -> None:
    for rows, table in (hospitals, federation()):
        pulse = rows[SITE].pulse
        found = planted((rows, table), "pulse", ((pulse - pulse.mean()) / pulse.std()).round(digits))
        assert found.wrong
        assert found.kind != "code"
        for alone in compare_with_pooled(spoil(rows, SITE, pulse=pulse * 0)[SITE], table, {}):
            assert alone.kind != "code"


def test_a_lower_third_times_twelve_is_not_a_sign() -> None:
    for seed in range(3):
        rows, table = federation(seed=seed)
        x = rows[SITE].pressure
        found = planted((rows, table), "pressure", np.where(x < x.quantile(1 / 3), 12 * x, x))
        assert (found.wrong, found.kind) == (True, "unit in part")


def test_how_long_rows_were_followed_is_neither_swapped_nor_turned() -> None:
    """It follows a column closely; that it does so the other way round is told of the column and not of the time."""
    sites = {f"site-{k}": made(300, k) for k in range(5)}
    study = study_of()
    rows = {name: clean(frame, study) for name, frame in sites.items()}
    late = clean(sites[SITE].assign(days=sites[SITE].days.max() + 1 - sites[SITE].days), study)
    found = screen({**rows, SITE: late}, study).findings
    assert {(f.site, f.feature) for f in found} >= {(SITE, "days")}, "the positive control: it is told"
    assert not [f for f in found if f.feature in ("days", LABEL) and f.kind in ("sign", "swapped")]
    turned = clean(sites[SITE].assign(a=-sites[SITE].a), study)
    assert [(f.site, f.feature, f.kind) for f in screen({**rows, SITE: turned}, study).wrong] == [(SITE, "a", "sign")]


@pytest.mark.parametrize("rows", [65, 280])
@pytest.mark.parametrize(("feature", "value"), [("pulse", 75.0), ("age", 60.0), ("smoker", 0.0), ("stage", 1.0)])
def test_a_column_that_is_constant_in_all_rows_is_wrong_and_not_the_outcome(
    rows: int, feature: str, value: float
) -> None:
    data, table = federation(rows=rows)
    screening = screen(spoil(data, SITE, **{feature: value}), table)
    assert [(f.site, f.feature, f.kind) for f in screening.wrong] == [(SITE, feature, "constant")]


def test_a_rare_level_that_a_small_site_does_not_have_is_no_constant() -> None:
    data, table = federation(rows=65)
    rare = {
        name: frame.assign(smoker=(np.arange(65) % 22 == k % 3).astype(float))
        for k, (name, frame) in enumerate(data.items())
    }
    assert not screen({**rare, SITE: rare[SITE].assign(smoker=0.0)}, table).wrong


def test_share_of_wrong_outcomes() -> None:
    """Of two classes a wrong one takes away twice its part, a wrong number its part; so it is in made-up data."""
    assert share_wrong(0.4, 2) == pytest.approx(0.3)
    assert share_wrong(0.4, 0) == pytest.approx(0.6)
    assert share_wrong(0.4, 4) == pytest.approx(0.45)
    assert share_wrong(-1.0, 2) == 0.5
    rng = np.random.default_rng(0)
    for number, least in ((True, 0.4), (False, 0.25)):
        data, table = federation(rows=900, number=number)
        y = data[SITE].y.to_numpy()
        bad = rng.random(len(y)) < 0.5 if number else rng.random(len(y)) < 0.33
        wrong = np.where(bad, rng.permutation(y) if number else 1 - y, y)
        found = about(screen(spoil(data, SITE, y=wrong), table), LABEL)
        assert found.kind == "label noise"
        assert found.numbers["share"] == pytest.approx(0.5 if number else 0.33, abs=0.1)
        assert found.numbers["share"] > least


def test_other_names_a_statistic_that_differs(hospitals: Sites) -> None:
    rng = np.random.default_rng(3)
    for rows, table in (hospitals, federation()):
        for feature in ("pulse", "sugar"):
            x = rows[SITE][feature]
            noisy = (x + rng.normal(0, 2 * x.std(), len(x))).round(1)
            for found in screen(spoil(rows, SITE, **{feature: noisy}), table).findings:
                if "here" in found.numbers:
                    assert found.numbers["here"] != found.numbers["elsewhere"]
                    first, second = (
                        found.text.split(" here, ")[0].split()[-1:],
                        found.text.split(" here, ")[-1].split()[:1],
                    )
                    assert first != second, found.text


def test_as_much_in_other_columns_is_said_only_where_it_is_so(hospitals: Sites) -> None:
    """The sentence counts the columns in which some site differs as much."""
    screening = screen(*hospitals)
    said = [f for f in screening.maybe if f.numbers.get("reason") == "usual"]
    assert said, "the positive control"
    for f in said:
        many, of = (int(x) for x in f.text.split("as much in ")[1].split(" other")[0].split(" of "))
        assert 1 <= many <= of <= len(hospitals[1].features)
    assert all("other column differs as much" in f.text for f in screening.maybe if f.numbers.get("reason") == "rare")
