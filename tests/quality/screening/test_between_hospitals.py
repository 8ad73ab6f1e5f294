"""Sites that really differ: what no hospital differs by is wrong, what a house may have is not."""

from __future__ import annotations

from functools import cache

import numpy as np
import pandas as pd
import pytest

import vitrail as vt
from vitrail.data.readers.tables import clean
from vitrail.data.schema import TableSchema
from vitrail.quality.screening import Finding, Screening, screen
from vitrail.quality.screening.decision import ALONE, BY_FAR, CAREFUL, FEW_ROWS, FEW_SITES
from vitrail.quality.screening.diagnosis.causes import LEAST_CODED
from vitrail.quality.screening.diagnosis.confirmation import AS_WIDE, WIDER
from vitrail.quality.screening.site_spread import SITE_SPREAD
from vitrail.quality.screening.statistics import SHIPPED

SITES = 6


def hospital(k: int, rows: int = 220) -> pd.DataFrame:
    """Ages, pressures and shares differ between hospitals; how they go together does not."""
    rng = np.random.default_rng(300 + k)
    age = rng.normal(56 + 3 * k, 9, rows)
    female = rng.random(rows) < 1 / (1 + np.exp((age - 62) / 9 + 0.3 * (k % 3)))
    pressure = 70 + age + 4 * (k % 2) + rng.normal(0, 11, rows)
    glucose = 60 + 0.5 * age + rng.gamma(4, 8 + k, rows)
    ward = rng.choice(["a", "b", "c"], rows, p=[[0.5, 0.3, 0.2], [0.3, 0.4, 0.3], [0.2, 0.3, 0.5]][k % 3])
    y = (age - 62) / 7 + (pressure - 132) / 25 + 0.8 * female + rng.logistic(0, 0.8, rows) > 0.1 * k
    columns = {
        "age": age.round(),
        "female": female.astype(int),
        "pressure": pressure.round(),
        "glucose": glucose.round(1),
    }
    return pd.DataFrame({**columns, "ward": ward, "y": y.astype(int)})


@cache
def study() -> TableSchema:
    features = {
        "age": {"kind": "numeric", "unit": "years"},
        "female": {"kind": "binary", "categories": [0, 1]},
        "pressure": {"kind": "numeric"},
        "glucose": {"kind": "numeric", "unit": "mg/dL"},
        "ward": {"kind": "categorical", "categories": ["a", "b", "c", "-9999"]},
    }
    target = {"column": "y", "classes": [0, 1], "positive": 1}
    return vt.Study.parse({"name": "hospitals", "target": target, "features": features}, "hospitals")


def screened(change: dict[str, object] | None = None, at: int = 2, sites: int = SITES, rows: int = 220) -> Screening:
    """`change`: columns of one hospital, by what is made of them."""
    raw = {f"h{k}": hospital(k, rows) for k in range(sites)}
    for name, made in (change or {}).items():
        old = raw[f"h{at}"]
        raw[f"h{at}"] = old.assign(**{name: made(old) if callable(made) else made})
    return screen({name: clean(frame, study()) for name, frame in raw.items()}, study())


def of(result: Screening, column: str, site: str = "h2") -> Finding | None:
    return next((f for f in result.findings if (f.site, f.feature) == (site, column)), None)


def test_hospitals_as_they_are_are_not_accused() -> None:
    result = screened()
    assert not result.wrong
    assert result.findings  # they do differ


@pytest.mark.parametrize("rows", [65, 280])
def test_one_value_in_all_rows_is_wrong_and_the_outcome_is_not(rows: int) -> None:
    result = screened({"pressure": 0.0}, rows=rows)
    assert [(f.site, f.feature, f.kind) for f in result.wrong] == [("h2", "pressure", "constant")]


def test_a_house_that_has_one_of_several_categories_is_not_accused() -> None:
    result = screened({"ward": "b"})
    assert not result.wrong
    assert of(result, "ward") is not None


def test_a_ratio_that_no_hospital_has_is_never_as_in_other_columns() -> None:
    for sites in (3, SITES):
        result = screened({"pressure": lambda x: (x.pressure / 130).round(3)}, sites=sites)
        found = of(result, "pressure")
        assert found is not None
        assert found.wrong
        assert "as much in other columns" not in found.text


def scaled(factor: float, wider: float) -> Finding | None:
    """Larger by one factor, and wider by another."""

    def change(x: pd.DataFrame) -> pd.Series:
        middle = x.glucose.median()
        return (middle * factor + (x.glucose - middle) * wider).round(2)

    return of(screened({"glucose": change}), "glucose")


def test_a_unit_is_a_known_pair_or_farther_than_any_house_and_as_much_wider() -> None:
    """AS_WIDE is between the logarithms of 1.5 and 3. A factor that no known pair has is no unit."""
    known = scaled(1 / 18.016, 1 / 18.016)
    assert known is not None
    assert known.wrong
    assert known.kind == "unit"
    assert AS_WIDE == 0.8
    far, near = scaled(10.0, 10.0), scaled(1.6, 1.6)
    assert far is not None
    assert far.wrong
    assert far.kind == "unit"
    assert near is not None
    assert not (near.wrong and near.kind == "unit")
    ill = scaled(10.0, 10.0 / 3)  # iller patients: as for a slipped point, but not each by one factor
    assert ill is not None
    assert ill.kind != "unit"


def test_yes_for_no_needs_relations_that_are_turned_round() -> None:
    asked_others = {"female": lambda x: np.where(x.female == 1, 1, (np.arange(len(x)) % 10 > 1).astype(int))}
    result = screened(asked_others)
    found = of(result, "female")
    assert found is None or not (found.wrong and found.kind == "sign")
    turned = of(screened({"female": lambda x: 1 - x.female}), "female")
    assert turned is not None
    assert turned.wrong
    assert turned.kind == "sign"


@pytest.mark.parametrize(("share", "told"), [(0.06, True), (0.02, False)])
def test_a_level_that_is_named_like_a_code_is_one(share: float, told: bool) -> None:
    assert LEAST_CODED == 0.03
    coded = {"ward": lambda x: np.where(np.arange(len(x)) < share * len(x), "-9999", x.ward)}
    result = screened(coded)
    found = of(result, "ward")
    assert (found is not None and found.wrong and found.kind == "code") == told


def test_the_yardstick_is_what_hospitals_differ_by() -> None:
    """Halved or doubled, these are others."""
    assert (BY_FAR, CAREFUL, FEW_SITES, FEW_ROWS, SHIPPED, ALONE, WIDER) == (2.0, 1.5, 4, 30, 6.0, 1.3, 2.5)
    spread = np.sqrt(SITE_SPREAD["location, number"])  # of medians, in widths of the middle half
    assert 0.3 < spread < 0.7
    assert 0.15 < np.sqrt(SITE_SPREAD["size, number"]) < 0.5  # of the logarithm of that width
    assert np.log(130) > 15 * np.sqrt(SITE_SPREAD["size, number"])
