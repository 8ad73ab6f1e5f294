"""The tables that are shipped are those that are documented; the others are found, checked, and asked for by name."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from vitrail.core.problems import VitrailError
from vitrail.data import datasets
from vitrail.data.check import find_faults
from vitrail.study import Study

OUTSIDE: dict[str, tuple[Callable[[], Any], str]] = {
    "adult": (datasets.adult, "adult/adult.data.gz"),
    "gusto": (datasets.gusto, "gusto/gusto.csv.gz"),
    "har": (datasets.har, "har_smartphones/har_features_recomputed.npz"),
    "vehicle": (datasets.vehicle, "vehicle_sensor/vehicle_ditto_train.csv.gz"),
}


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    datasets._outside.cache_clear()
    yield
    datasets._outside.cache_clear()


# rows and sick patients as in the data's own documentation (heart-disease.names: class distribution 0 to 4)
HEART = {
    "cleveland": (303, 55 + 36 + 35 + 13, 46),
    "hungarian": (294, 37 + 26 + 28 + 15, 36),
    "switzerland": (123, 48 + 32 + 30 + 5, 93),
    "va": (200, 56 + 41 + 42 + 10, 74),
}


@pytest.mark.parametrize("site", HEART)
def test_heart_disease_counts(site: str) -> None:
    frame, (rows, sick, share) = datasets.heart_disease()[site], HEART[site]
    assert len(frame) == rows
    assert frame["disease"].sum() == sick
    assert abs(100 * frame["disease"].mean() - share) < 1
    assert set(frame["disease"]) == {0, 1}
    assert len(frame.columns) == 14
    assert "num" not in frame


def test_heart_disease_as_a_whole() -> None:
    sites = datasets.heart_disease()
    assert list(sites) == list(HEART)
    assert sum(map(len, sites.values())) == 920
    assert all(dtype.kind in "if" for frame in sites.values() for dtype in frame.dtypes)  # "?" is read as missing
    pooled = pd.concat(sites.values())
    assert pooled["ca"].isna().mean() > 0.6  # hardly measured outside Cleveland
    assert set(pooled["cp"].dropna()) == {1, 2, 3, 4}
    assert set(pooled["thal"].dropna()) == {3, 6, 7}


def test_switzerland_did_not_measure_cholesterol() -> None:
    sites = datasets.heart_disease()
    assert (sites["switzerland"]["chol"] == 0).all()
    assert not (sites["cleveland"]["chol"] == 0).any()


def test_heart_disease_fits_its_study() -> None:
    study = Study.load(datasets.packaged("heart_disease.toml"))
    for frame in datasets.heart_disease().values():
        assert [f.text for f in find_faults(frame, study) if f.severity == "error"] == []


def test_titanic() -> None:
    frame = datasets.titanic()
    assert len(frame) == 1309
    assert frame["survived"].sum() == 500
    assert not {"boat", "body", "name", "ticket", "home.dest"} & set(frame.columns)
    assert frame["pclass"].value_counts().to_dict() == {1: 323, 2: 277, 3: 709}
    assert frame["sex"].value_counts().to_dict() == {"male": 843, "female": 466}
    assert (frame["minor"].isna() == frame["age"].isna()).all()
    assert (frame["minor"].dropna() == (frame["age"].dropna() <= 16)).all()
    assert list(frame.index) == list(range(1309))


def test_every_call_gives_a_table_of_its_own() -> None:
    heart, titanic = datasets.heart_disease()["va"], datasets.titanic()
    heart["age"] = titanic["age"] = -1
    assert not (datasets.heart_disease()["va"]["age"] == -1).any()
    assert not (datasets.titanic()["age"] == -1).any()


def test_attribution_names_the_investigators() -> None:
    for name in ("Janosi", "Steinbrunn", "Pfisterer", "Detrano"):
        assert name in datasets.HEART_ATTRIBUTION
    assert "CC BY 4.0" in datasets.HEART_ATTRIBUTION


# --- data that is not shipped ---


@pytest.mark.parametrize("name", OUTSIDE)
@pytest.mark.parametrize("folder", [None, ""])
def test_without_a_folder(monkeypatch: pytest.MonkeyPatch, name: str, folder: str | None) -> None:
    if folder is None:
        monkeypatch.delenv("VITRAIL_DATA", raising=False)
    else:
        monkeypatch.setenv("VITRAIL_DATA", folder)
    load, file = OUTSIDE[name]
    with pytest.raises(VitrailError) as caught:
        load()
    assert "VITRAIL_DATA is not set" in str(caught.value)
    assert "Set VITRAIL_DATA" in str(caught.value)
    assert file in str(caught.value)


@pytest.mark.parametrize("name", OUTSIDE)
def test_folder_without_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    monkeypatch.setenv("VITRAIL_DATA", str(tmp_path))
    load, file = OUTSIDE[name]
    with pytest.raises(VitrailError) as caught:
        load()
    assert str(tmp_path / file) in str(caught.value)
    assert "No such file" in str(caught.value)


@pytest.mark.parametrize("name", OUTSIDE)
def test_wrong_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    monkeypatch.setenv("VITRAIL_DATA", str(tmp_path))
    load, file = OUTSIDE[name]
    (tmp_path / file).parent.mkdir()
    (tmp_path / file).write_bytes(b"another file")
    with pytest.raises(VitrailError) as caught:
        load()
    said = str(caught.value)
    assert str(tmp_path / file) in said
    assert f"its sha256 is {hashlib.sha256(b'another file').hexdigest()}" in said
    assert datasets._OUTSIDE[file] in said  # the one that was expected


def test_right_file_is_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With the checksum of a small table of our own: what comes out is that table, one site per sensor."""
    file = OUTSIDE["vehicle"][1]
    raw = gzip.compress(b"sensor,x,label\n2,0.5,1\n10,1.5,-1\n2,2.5,-1\n")
    (tmp_path / file).parent.mkdir()
    (tmp_path / file).write_bytes(raw)
    monkeypatch.setenv("VITRAIL_DATA", str(tmp_path))
    monkeypatch.setitem(datasets._OUTSIDE, file, hashlib.sha256(raw).hexdigest())
    sites = datasets.vehicle()
    assert {n: f["x"].tolist() for n, f in sites.items()} == {"sensor-02": [0.5, 2.5], "sensor-10": [1.5]}
    assert all(list(f.columns) == ["x", "label"] for f in sites.values())
