"""Broken pictures, folders and files: each is told by name with what to do, all at once, and never as a traceback."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from tests.support.picture_sites import CLASSES, SIDE, encoded, soft, study, vitrail, write_folder
from vitrail.core.errors import VitrailError
from vitrail.data.readers.tables import read_sites, read_table

ROWS = 30
Break = Callable[[Path], object]
Say = Callable[..., tuple[int, str]]


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Say:
    return partial(vitrail, capsys, monkeypatch)


@pytest.fixture
def agreed(tmp_path: Path) -> Path:
    """A study file."""
    study().save(tmp_path / "study.toml")
    return tmp_path / "study.toml"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "sites" / "north", soft(ROWS))


def put(name: str, raw: bytes | str) -> Break:
    def change(site: Path) -> None:
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_bytes(raw.encode() if isinstance(raw, str) else raw)

    return change


def flipped(raw: bytes, at: int) -> bytes:
    return raw[:at] + bytes([raw[at] ^ 64]) + raw[at + 1 :]


GOOD = encoded(soft(1, seed=5)[0])
JPEG = encoded(soft(1, seed=5)[0], "JPEG")
COLOUR = encoded(soft(1, seed=5, channels=3)[0])
DICOM = b"\0" * 128 + b"DICM" + b"\2\0\0\0"
FRAMES = [Image.fromarray(pixels) for pixels in soft(3)]
MOVING = encoded(FRAMES[0], save_all=True, append_images=FRAMES[1:])
PAGES = encoded(FRAMES[0], "TIFF", save_all=True, append_images=FRAMES[1:])
DEEP = encoded(np.full((SIDE, SIDE), 3000, np.uint16))
HALF = encoded(Image.new("F", (SIDE, SIDE), 0.5), "TIFF")

# what was done to a good folder; the words that `check` must say, and those where it is read to be trained on
PICTURES: dict[str, tuple[Break, str]] = {
    "an empty file": (put("ill/a.png", b""), "ill/a.png: it is not a PNG, JPEG"),
    "text with a picture's ending": (put("ill/a.png", "patient 7"), "ill/a.png: it is not a PNG, JPEG"),
    "a PNG that ends too early": (put("ill/a.png", GOOD[:-40]), "ill/a.png: it cannot be read"),
    "a PNG with one changed bit": (put("ill/a.png", flipped(GOOD, len(GOOD) // 2)), "ill/a.png: it cannot be read"),
    "a JPEG that ends too early": (put("ill/a.jpg", JPEG[: len(JPEG) // 2]), "ill/a.jpg: it cannot be read"),
    "DICOM by its ending": (put("well/scan.DCM", "x"), "well/scan.DCM: it is DICOM, which is not read"),
    "DICOM by its content": (put("well/scan", DICOM), "well/scan: it is DICOM, which is not read"),
    "DICOM under another ending": (put("well/scan.png", DICOM), "well/scan.png: it is DICOM, which is not read"),
    "another size": (put("ill/a.png", encoded(soft(1)[0][:20])), "ill/a.png: it is 20 x 24 pixels (height x width)"),
    "colour where grey is agreed": (put("ill/a.png", COLOUR), "ill/a.png: it is in colour, but the study expects grey"),
    "more bits than agreed": (put("ill/a.png", DEEP), "ill/a.png: expected values from 0 to 255, got 3000 to 3000"),
    "fractions": (put("ill/a.tif", HALF), "ill/a.tif: its pixels are fractions"),
    "a moving picture": (put("ill/a.png", MOVING), "ill/a.png: it holds 3 pictures"),
    "several pages": (put("ill/a.tif", PAGES), "ill/a.tif: it holds 3 pictures"),
    "a picture beside the classes": (put("a.png", GOOD), "a.png: it lies outside the class folders"),
    "a link to nothing": (lambda s: (s / "ill" / "a.png").symlink_to(s / "gone"), "ill/a.png: it is a broken link"),
    "a pipe with a picture's name": (lambda s: os.mkfifo(s / "ill" / "a.png"), "ill/a.png: it is not a regular file"),
}


@pytest.mark.parametrize("name", PICTURES)
def test_a_broken_picture_is_told_by_name(name: str, site: Path, agreed: Path, say: Say) -> None:
    breaks, words = PICTURES[name]
    breaks(site)
    code, said = say("check", agreed, site)
    assert code == 1
    assert "1 error, 0 warnings" in said
    assert words in said
    file, what = words.split(": ")
    code, said = say("run", agreed, "--data", site.parent, "--out", site.parent / "r")
    assert code == 2
    assert f"north, {file}: {what}" in said


def test_a_good_folder_is_fine(site: Path, agreed: Path, say: Say) -> None:
    assert say("check", agreed, site) == (0, "north: 30 pictures, 0 errors, 0 warnings\n")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(site: Path, agreed: Path, say: Say) -> None:
    (site / "ill" / "00.png").chmod(0)
    code, said = say("check", agreed, site)
    assert (code, "ill/00.png: it cannot be opened" in said) == (1, True)


def test_all_that_is_broken_is_told_at_once(site: Path, agreed: Path, say: Say) -> None:
    for at, (breaks, _) in enumerate(PICTURES.values()):
        breaks(site)
        for made in (p for p in site.rglob("*") if p.stem in ("a", "scan") and p.parent.name in CLASSES):
            made.rename(made.with_stem(f"{made.stem}{at}x"))
    put("sick/a.png", GOOD)(site)
    put("well/notes.txt", "hello")(site)
    code, said = say("check", agreed, site)
    assert code == 1
    kinds = ("unreadable", "dicom", "wrong_size", "wrong_colour", "wrong_values", "several", "no_class")
    for kind in [*(f"picture_{k}" for k in kinds), "unknown_class", "not_a_picture"]:
        assert f"[{kind}]" in said, kind
    code, said = say("check", agreed, site, "--json")
    told = json.loads(said)
    assert (code, told["errors"], told["warnings"]) == (1, 8, 1)
    assert sum(f["count"] for f in told["findings"] if f["kind"].startswith("picture_")) == len(PICTURES)
    (site.parent / "south" / "ill").mkdir(parents=True)
    code, said = say("run", agreed, "--data", site.parent, "--out", site.parent / "r")
    assert code == 2
    assert said.count("\n  - ") == len(PICTURES) + 2  # the class, and the site without pictures


def test_many_broken_pictures_are_counted(site: Path) -> None:
    for i in range(40):
        put(f"ill/bad{i}.png", b"x")(site)
    with pytest.raises(VitrailError, match="and 20 more that do not fit"):
        read_table(site, study())


# --- folders --------------------------------------------------------------------------------------------------------


def test_files_that_are_no_pictures_are_passed_over_and_told(site: Path, agreed: Path, say: Say) -> None:
    for name in ("Thumbs.db", ".DS_Store", "desktop.ini", "README.md"):
        put(f"ill/{name}", "x")(site)
    assert say("check", agreed, site)[0] == 0
    put("ill/notes.txt", "x")(site)
    code, said = say("check", agreed, site)
    assert code == 1
    assert "1 files are not pictures and are not read: ill/notes.txt" in said
    assert len(read_table(site, study())) == ROWS


def test_a_name_that_is_no_text_can_be_told(site: Path, agreed: Path, say: Say) -> None:
    (site / "ill" / os.fsdecode(b"\xff.png")).write_bytes(b"x")
    (site / os.fsdecode(b"\xfe")).mkdir()
    (site / os.fsdecode(b"\xfe") / "a.png").write_bytes(GOOD)
    code, said = say("check", agreed, site)
    assert code == 1
    assert "ill/\ufffd.png: it is not a PNG" in said
    with pytest.raises(VitrailError, match="there is no class '\ufffd'"):
        read_table(site, study())


def test_a_folder_that_may_not_be_read(site: Path, agreed: Path, say: Say, monkeypatch: pytest.MonkeyPatch) -> None:
    see = Path.iterdir

    def refuse(path: Path) -> Any:
        if path.name == "ill":
            raise PermissionError(13, "Permission denied")
        return see(path)

    monkeypatch.setattr(Path, "iterdir", refuse)
    for words in (("check", agreed, site), ("run", agreed, "--data", site.parent, "--out", site.parent / "r")):
        code, said = say(*words)
        assert (code, "it cannot be read: Permission denied. Check its permissions." in said) == (2, True)


def test_an_unknown_class(site: Path, agreed: Path, say: Say) -> None:
    put("wel/a.png", GOOD)(site)
    code, said = say("check", agreed, site)
    assert code == 1
    assert "expected one of well, ill, got 'wel' (1 of 31 pictures)" in said
    with pytest.raises(VitrailError, match=r"there is no class 'wel' \(expected well, ill\)\. Did you mean 'well'\?"):
        read_table(site, study())


def test_classes_that_are_missing_or_empty(site: Path, agreed: Path, say: Say, tmp_path: Path) -> None:
    three = study().with_changes(target={"classes": [*CLASSES, "dead"], "positive": None})
    three.save(tmp_path / "three.toml")
    (site / "dead").mkdir()
    code, said = say("check", tmp_path / "three.toml", site)
    assert (code, "no picture is of class dead" in said) == (1, True)
    for file in sorted((site / "ill").iterdir())[4:]:
        file.unlink()
    code, said = say("check", agreed, site)
    assert (code, "4 of 19 pictures are of class ill" in said) == (1, True)
    for file in (site / "ill").iterdir():
        file.unlink()
    code, said = say("check", agreed, site)
    assert (code, "all 15 rows are of class well" in said) == (1, True)


def flat(place: Path) -> Path:
    place.mkdir(parents=True)
    (place / "a.png").write_bytes(GOOD)
    return place


# what lies at a place, and what is said of it by `check` and by `run`
PLACES: dict[str, tuple[Callable[[Path], Path], str]] = {
    "nothing": (lambda p: p / "gone", "there is no such folder or file"),
    "an empty folder": (lambda p: (p / "x").mkdir() or p / "x", "expected a folder for each class with pictures"),
    "empty class folders": (lambda p: (p / "x" / "ill").mkdir(parents=True) or p / "x", "there is none"),
    "only texts": (lambda p: put("x/ill/a.txt", "x")(p) or p / "x", "found only .txt"),
    "a file of another kind": (lambda p: put("x.csv", "a,b")(p) or p / "x.csv", "got 'x.csv'"),
    "a DICOM file": (lambda p: put("x.dcm", DICOM)(p) or p / "x.dcm", "it is DICOM, which is not read"),
    "a folder of sites": (
        lambda p: write_folder(p / "x" / "south", soft(4)).parent,
        "expected folders of classes (well, ill), got those of sites (south)",
    ),
    "an npz that is none": (lambda p: put("x.npz", "x")(p) or p / "x.npz", "it cannot be read"),
    "a Parquet file that is none": (lambda p: put("x.parquet", "x")(p) or p / "x.parquet", "expected a Parquet file"),
}


@pytest.mark.parametrize("name", PLACES)
def test_a_place_that_holds_no_site(name: str, agreed: Path, say: Say, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    make, words = PLACES[name]
    code, said = say("check", agreed, make(tmp_path / "here"))
    assert code == 2
    assert words in said
    assert said.startswith("vitrail: cannot read ")


def test_pictures_without_a_class_cannot_be_trained_on(agreed: Path, say: Say, tmp_path: Path) -> None:
    code, said = say("check", agreed, flat(tmp_path / "sites" / "north"))
    assert code == 1
    assert "the pictures have no class" in said
    put("sites/south/ill/a.png", GOOD)(tmp_path)
    code, said = say("run", agreed, "--data", tmp_path / "sites", "--out", tmp_path / "r")
    assert code == 2
    assert "column class: expected one such column, but there is none" in said


SITES: dict[str, tuple[Break, str]] = {
    "nothing in it": (lambda p: None, "expected a folder for each site"),
    "pictures only": (put("a.png", GOOD), "expected a folder for each site, got 1 pictures"),
    "a table": (put("a.csv", "x,y"), "expected a folder or file of one site here"),
    "the classes of one site": (put("ill/a.png", GOOD), "If these folders are classes, this is one site"),
    "an empty site": (lambda p: (p / "north").mkdir(), "expected a folder for each class with pictures"),
    "two of one name": (
        lambda p: (put("north/ill/a.png", GOOD)(p), put("north.npz", "")(p)),
        "expected one file per site, got 'north', 'north.npz'",
    ),
}


@pytest.mark.parametrize("name", SITES)
def test_a_folder_that_is_none_of_sites(name: str, tmp_path: Path) -> None:
    (tmp_path / "all").mkdir()
    breaks, words = SITES[name]
    breaks(tmp_path / "all")
    with pytest.raises(VitrailError) as refused:
        read_sites(tmp_path / "all", study())
    assert words in str(refused.value)


# --- files ----------------------------------------------------------------------------------------------------------

X, Y = soft(6), np.array(["ill", "well"] * 3)

# arrays of an npz file, and what is said of them
ARRAYS: dict[str, tuple[dict[str, Any], str]] = {
    "no pictures": ({"heart": X, "class": Y}, "expected pictures in 'picture', but there are none"),
    "another length": ({"picture": X, "class": Y[:5]}, "got 6 in 'picture', 5 in 'class'"),
    "several labels": (
        {"picture": X, "class": np.eye(6)},
        "expected one value for each picture in 'class', got [6, 6]",
    ),
    "no rows": ({"picture": X[:0], "class": Y[:0]}, "expected pictures, but there are none"),
    "one picture, not rows of them": ({"picture": X[0], "class": Y}, "expected pictures [row, height, width]"),
    "objects": ({"picture": np.array([X[0], None, X[1]], object), "class": Y[:3]}, "it cannot be read (ValueError"),
    "fractions": ({"picture": X / 255, "class": Y}, "expected whole numbers, got float64"),
    "negative values": ({"picture": X.astype(int) - 300, "class": Y}, "expected values from 0 to 255, got -"),
    "two channels": ({"picture": np.stack([X, X], 3), "class": Y}, "got [24, 24, 2]"),
    "another size": ({"picture": X[:, :20], "class": Y}, "it is 20 x 24 pixels"),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_an_npz_that_does_not_fit(name: str, agreed: Path, say: Say, tmp_path: Path) -> None:
    arrays, words = ARRAYS[name]
    np.savez(tmp_path / "north.npz", **arrays)
    with pytest.raises(VitrailError) as refused:
        read_table(tmp_path / "north.npz", study())
    assert words in str(refused.value)
    code, said = say("check", agreed, tmp_path / "north.npz")
    assert code in (1, 2)
    assert words in said


CELLS: dict[str, tuple[Any, str]] = {
    "no bytes, a path": ({"bytes": None, "path": "a.png"}, "its bytes are not in the file, only a path ('a.png')"),
    "nothing": (None, "expected a picture, got nothing"),
    "text": ("a.png", "expected a picture, got str"),
    "broken bytes": (GOOD[:50], "it cannot be read"),
    "rows of different length": ([[1, 2], [3]], "its rows are not equally long lists of numbers"),
    "one list": ([1, 2, 3], "its rows are not equally long lists of numbers"),
}


@pytest.mark.parametrize("name", CELLS)
def test_a_parquet_cell_that_is_no_picture(name: str, agreed: Path, say: Say, tmp_path: Path) -> None:
    cell, words = CELLS[name]
    good = {"bytes": GOOD, "path": ""} if isinstance(cell, dict) else X[0].tolist() if isinstance(cell, list) else GOOD
    good = "b.png" if isinstance(cell, str) else good
    frame = pd.DataFrame({"picture": [good, cell], "class": ["ill", "well"]})
    if name == "one list":
        frame["picture"] = [cell, cell]
    frame.to_parquet(tmp_path / "north.parquet")
    code, said = say("check", agreed, tmp_path / "north.parquet")
    assert code == 1
    assert f"row 1: {words}" in said
    with pytest.raises(VitrailError) as refused:
        read_table(tmp_path / "north.parquet", study())
    assert f"north.parquet, 1: {words}" in str(refused.value)


def test_a_site_column_with_gaps_and_a_missing_one(tmp_path: Path) -> None:
    frame = pd.DataFrame({"picture": [GOOD] * 3, "class": ["ill"] * 3, "ward": ["a", None, "b"]})
    frame.to_parquet(tmp_path / "all.parquet")
    with pytest.raises(VitrailError, match="expected a site in every row, but 1 have none"):
        read_sites(tmp_path / "all.parquet", study().with_changes(site_column="ward"))
    with pytest.raises(VitrailError, match="expected a column that names the site"):
        read_sites(tmp_path / "all.parquet", study())
