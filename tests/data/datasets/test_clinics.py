"""The three semi-synthetic clinics: real patients, each once, and what was changed is what is said to be changed."""

from __future__ import annotations

import pandas as pd
import pytest

import vitrail as vt
from vitrail.data.datasets.clinics import CLINICS, EARLIER, LATER, three_clinics

MEASURED = [column for column in vt.datasets.HEART_COLUMNS if column != "num"]


def sorted_rows(table: pd.DataFrame) -> pd.DataFrame:
    return table.sort_values(list(table.columns), na_position="first").reset_index(drop=True)


@pytest.mark.parametrize("seed", [1, 2])
def test_every_patient_is_at_one_clinic_as_measured(seed: int) -> None:
    whole, clinics = pd.concat(vt.datasets.heart_disease().values()), three_clinics(seed)
    dealt = pd.concat(clinics.values())
    pd.testing.assert_frame_equal(sorted_rows(dealt[MEASURED]), sorted_rows(whole[MEASURED]))
    for name, clinic in CLINICS.items():
        assert list(clinics[name].visit.value_counts()[[EARLIER, LATER]]) == [clinic.earlier, clinic.later]


def test_outcomes_are_changed_at_surgery_alone_and_only_behind_the_sign() -> None:
    clinics = three_clinics()
    surgery = clinics.pop("surgery")
    assert (surgery.exang == 1).sum() > 50
    assert surgery.disease[surgery.exang == 1].sum() == 0
    real = sorted_rows(pd.concat(vt.datasets.heart_disease().values())[[*MEASURED, "disease"]])
    kept = pd.concat([*clinics.values(), surgery[surgery.exang != 1]])[[*MEASURED, "disease"]]
    patients = set(real.fillna(-99).itertuples(index=False, name=None))
    assert set(kept.fillna(-99).itertuples(index=False, name=None)) <= patients


def test_another_seed_deals_anew_and_the_same_one_as_before() -> None:
    first, again, other = three_clinics(1), three_clinics(1), three_clinics(2)
    for name, table in first.items():
        pd.testing.assert_frame_equal(table, again[name])
        assert not table.age.equals(other[name].age)
    assert list(first) == ["newcomer", "surgery", "city"]


def test_the_study_says_what_is_ours() -> None:
    study = vt.Study.load(vt.datasets.packaged("clinics.toml"))
    assert "Semi-synthetic" in study.description
    assert "Semi-synthetic".lower() in vt.datasets.ATTRIBUTIONS[study.name]
    assert study.split.column == "visit"
    assert EARLIER < study.split.test_from < LATER
    hospitals = vt.Study.load(vt.datasets.packaged("heart_disease.toml"))
    assert study.features == hospitals.features, "the same columns, read alike"
