"""The tables that are shipped are those that are documented; the others are found, checked, and asked for by name."""

from __future__ import annotations

import gzip
import hashlib
import itertools
import os
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import vitrail as vt
from tests.support.scripts import load_script
from vitrail.core.errors import VitrailError
from vitrail.data.datasets import catalogue as datasets
from vitrail.data.readers.images import png
from vitrail.data.readers.tables import clean, read_sites
from vitrail.quality.checks.table import find_faults
from vitrail.study.model import Study

make_pneumonia = load_script("make_pneumonia")
OUTSIDE: dict[str, tuple[Callable[[], Any], str]] = {
    "adult": (datasets.adult, "adult/adult.data.gz"),
    "cifar10": (datasets.cifar10_subset, "cifar10_subset/cifar10_8k_2k.npz"),
    "cub": (datasets.cub, "cub200_first20/index.csv"),
    "gusto": (datasets.gusto, "gusto/gusto.csv.gz"),
    "har": (datasets.har, "har_smartphones/har_features_recomputed.npz"),
    "pneumoniamnist": (datasets.pneumoniamnist, "pneumoniamnist/pneumoniamnist.npz"),
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


# --- pictures ---

# as benchmarks/pictures/make_pneumonia.py cuts them
PNEUMONIA = {"large": (450, 450), "referral": (45, 255), "screening": (204, 36), "small": (60, 60)}


def test_pneumonia_is_the_cut_that_is_documented() -> None:
    sites = datasets.pneumonia()
    shown = {n: tuple((f.finding == k).sum() for k in ("normal", "pneumonia")) for n, f in sites.items()}
    assert shown == PNEUMONIA == {n: tuple(counts.values()) for n, (_, counts) in make_pneumonia.SITES.items()}
    pictures = [bytes(p) for f in sites.values() for p in f.picture]
    assert {(p.shape, p.dtype.str) for f in sites.values() for p in f.picture} == {((28, 28), "|u1")}
    assert len(set(pictures)) == len(pictures) == 1560  # none twice, at no two sites
    assert all(list(f.columns) == ["picture", "finding"] for f in sites.values())
    file = datasets.packaged("pneumonia.npz")
    assert file.stat().st_size < 2_000_000
    pixels = "5c87e2149d72ebcf36d89bc5028ca4eae7626aa2d8ceb60733380587be02c592"
    assert hashlib.sha256(b"".join(pictures)).hexdigest() == pixels


def test_the_cut_takes_no_picture_twice_and_changes_none() -> None:
    """Of a made-up whole with doubled pictures, also across its parts."""
    draw = np.random.default_rng(0)
    rows = []
    for part, finding in itertools.product(("train", "val", "test"), ("normal", "pneumonia")):
        rows += [(draw.integers(0, 256, (4, 4), np.uint8), finding, part) for _ in range(600)]
    whole = pd.DataFrame(rows, columns=["picture", "finding", "part"])
    whole.at[2500, "picture"] = whole.picture[0]  # one of train again in test
    cut = make_pneumonia.cut(whole)
    assert {s: tuple(f.finding.value_counts().sort_index()) for s, f in cut.groupby("site", sort=False)} == PNEUMONIA
    assert set(cut.part[cut.site == "small"]) == {"test"}
    assert set(cut.part[cut.site != "small"]) == {"train", "val"}
    taken = [bytes(p) for p in cut.picture]
    assert len(set(taken)) == len(taken)
    label = {bytes(p): y for p, y in zip(whole.picture, whole.finding, strict=True)}
    assert all(label[bytes(p)] == y for p, y in zip(cut.picture, cut.finding, strict=True))


@pytest.mark.skipif(not os.environ.get("VITRAIL_DATA"), reason="needs PneumoniaMNIST itself")
def test_what_is_shipped_is_what_the_script_makes() -> None:
    cut, shipped = make_pneumonia.cut(datasets.pneumoniamnist()), pd.concat(datasets.pneumonia().values())
    assert [bytes(p) for p in cut.picture] == [bytes(p) for p in shipped.picture]
    assert list(cut.finding) == list(shipped.finding)


def test_pneumonia_fits_its_study_and_is_credited() -> None:
    study = Study.load(datasets.packaged("pneumonia.toml"))
    for name, frame in datasets.pneumonia().items():
        assert len(clean(frame, study)) == sum(PNEUMONIA[name])
    assert read_sites(datasets.packaged("pneumonia.npz"), study).keys() == PNEUMONIA.keys()
    for word in ("PneumoniaMNIST", "CC BY 4.0", "Kermany", "Yang", "Changed by us", "1560"):
        assert word in datasets.ATTRIBUTIONS[study.name]
    licences = datasets.packaged("README.md").read_text()
    assert all(file.name in licences or file.suffix in (".toml", ".data", ".md") for file in folder_of("README.md"))


def folder_of(name: str) -> list[Path]:
    return sorted(datasets.packaged(name).parent.iterdir())


def test_pneumonia_can_be_learned() -> None:
    """By a few rounds, at every site far better than always giving one answer."""
    study = Study.load(datasets.packaged("pneumonia.toml"))
    scores = vt.federate(study, datasets.pneumonia(), rounds=6).scores()
    of = scores.pivot(index="site", columns="metric", values="value")
    assert of.balanced_accuracy.min() > 0.7
    assert of.auc.min() > 0.8


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


@pytest.mark.parametrize("name", ["pneumoniamnist", "cifar10"])
def test_right_pictures_are_read(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str) -> None:
    load, file = OUTSIDE[name]
    grey, colour = np.arange(2 * 4, dtype=np.uint8).reshape(2, 2, 2), np.arange(24, dtype=np.uint8).reshape(2, 2, 2, 3)
    medmnist = {f"{part}_images": grey for part in ("train", "val", "test")}
    medmnist |= {f"{part}_labels": np.array([[1], [0]], np.uint8) for part in ("train", "val", "test")}
    cifar = {f"x_{part}": colour for part in ("train", "test")} | {"classes": np.array(["cat", "dog"])}
    cifar |= {f"y_{part}": np.array([1, 0]) for part in ("train", "test")}
    (tmp_path / file).parent.mkdir()
    np.savez(tmp_path / file, **(medmnist if name == "pneumoniamnist" else cifar))
    monkeypatch.setenv("VITRAIL_DATA", str(tmp_path))
    digest = hashlib.sha256((tmp_path / file).read_bytes()).hexdigest()
    monkeypatch.setitem(datasets._OUTSIDE, file, digest)
    frame = load()
    parts, label = (("train", "val", "test"), "finding") if name == "pneumoniamnist" else (("train", "test"), "label")
    assert list(frame.part) == [p for p in parts for _ in range(2)]
    assert list(frame[label])[:2] == (["pneumonia", "normal"] if label == "finding" else ["dog", "cat"])
    assert (frame.picture[1] == (grey if label == "finding" else colour)[1]).all()


def test_birds_are_cut_to_their_middle(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Two wide pictures, red, then green in the middle: of a square only the middle is left."""
    place, pixels = tmp_path / "cub200_first20", np.zeros((20, 40, 3), np.uint8)
    pixels[..., 0], pixels[:, 10:30] = 250, (0, 250, 0)
    place.mkdir()
    with zipfile.ZipFile(place / "cub200_first20_224.zip", "w") as file:
        file.writestr("train/a.png", png(pixels.transpose(2, 0, 1)))
        file.writestr("test/b.png", png(pixels.transpose(1, 0, 2).transpose(2, 0, 1)))  # upright
    rows = "train/a.png,train,1,Sooty_Albatross,40,20\ntest/b.png,test,2,Crow,20,40\n"
    (place / "index.csv").write_text("file,split,class_id,class_name,orig_width,orig_height\n" + rows)
    monkeypatch.setenv("VITRAIL_DATA", str(tmp_path))
    for name in ("cub200_first20_224.zip", "index.csv"):
        digest = hashlib.sha256((place / name).read_bytes()).hexdigest()
        monkeypatch.setitem(datasets._OUTSIDE, f"cub200_first20/{name}", digest)
    frame = datasets.cub(10)
    assert frame[["label", "part"]].to_numpy().tolist() == [["Sooty Albatross", "train"], ["Crow", "test"]]
    assert all(p.shape == (10, 10, 3) and (p == (0, 250, 0)).all() for p in frame.picture)
