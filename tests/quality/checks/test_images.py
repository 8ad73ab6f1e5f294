"""What `check` says of pictures that can be read: the same twice, nearly empty, marked by class; and what not."""

from __future__ import annotations

import json
import re
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.support.picture_sites import SIDE, encoded, frame_of, soft, study, vitrail, write_folder
from vitrail.core.errors import VitrailError
from vitrail.data.findings import CheckFinding
from vitrail.data.readers.tables import clean, read_table
from vitrail.data.splitting import split_rows
from vitrail.quality.checks import burned_in_marks
from vitrail.quality.checks.burned_in_marks import find_marks
from vitrail.quality.checks.table import find_faults

SPOT = (slice(None), slice(3, 6), slice(17, 20))


def found(pictures: Any, **images: Any) -> dict[str, CheckFinding]:
    return {f.kind: f for f in find_faults(frame_of(pictures), study(**images))}


def test_nothing_is_said_of_good_pictures() -> None:
    assert found(soft(40)) == {}
    assert found(soft(40, channels=3), channels=3) == {}


def test_the_same_picture_twice_in_a_class_and_in_two() -> None:
    x = soft(40)
    x[6], x[8] = x[2], x[4]  # even rows are ill
    said = found(x)
    assert list(said) == ["same_picture"]
    assert said["same_picture"].rows == (6, 8)
    assert (
        "2 of 40 pictures repeat another one pixel by pixel; of their 2 groups, about 0.9" in said["same_picture"].text
    )
    assert "row 2 = row 6; row 4 = row 8" in said["same_picture"].text
    x[9] = x[2]
    said = found(x)
    assert said["same_picture_two_classes"].severity == "error"
    assert said["same_picture_two_classes"].rows == (2, 6, 9)
    assert "row 2 (ill) = row 6 (ill) = row 9 (well)" in said["same_picture_two_classes"].text
    assert said["same_picture"].rows == (8,)
    x[9, 0, 0] ^= 1
    assert list(found(x)) == ["same_picture"]


def test_one_picture_in_two_kinds_of_file_is_the_same(tmp_path: Path) -> None:
    x = soft(40)
    frame = frame_of(x)
    frame.at[4, "picture"] = encoded(x[2])
    assert [f.kind for f in find_faults(frame, study())] == ["same_picture"]


def test_about_so_many_copies_fall_on_both_sides_of_the_split() -> None:
    """What the text says of copies, against the splits themselves."""
    agreed, y = study(), np.arange(200) % 2
    both = np.mean([len({0, 2} & set(split_rows(y, agreed, seed, "s")[1].tolist())) == 1 for seed in range(400)])
    assert both == pytest.approx(1 - 0.33**2 - 0.67**2, abs=0.07)


def test_nearly_empty_pictures() -> None:
    x = soft(40)
    x[5], x[7], x[9] = 0, 255, np.random.default_rng(0).integers(100, 104, (SIDE, SIDE))
    x[11] = 12
    x[11, 3, 3] = 255  # a speck
    said = found(x)
    assert list(said) == ["nearly_empty"]
    assert said["nearly_empty"].rows == (5, 7, 9, 11)
    x[11, 8:12, 8:12] = 255  # a shape
    assert found(x)["nearly_empty"].rows == (5, 7, 9)


def test_pictures_that_several_sites_hold(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    say = partial(vitrail, capsys, monkeypatch)
    study().save(tmp_path / "study.toml")
    x = soft(100)
    for i, name in enumerate(("north", "south")):
        write_folder(tmp_path / name, x[40 * i : 40 * i + 44])
    write_folder(tmp_path / "west", x[84:])
    for name in ("north", "south"):
        assert say("check", tmp_path / "study.toml", tmp_path / name)[0] == 0
    code, said = say("check", tmp_path / "study.toml", *(tmp_path / name for name in ("north", "south", "west")))
    assert code == 1
    assert said.count("4 of 44 pictures are also at") == 2
    assert "ill/40.png" in said
    _, west = said.split("west: 16 pictures")
    assert "[too_few_rows]" in west
    assert "also at" not in west
    code, said = say("check", tmp_path / "study.toml", tmp_path / "north", tmp_path / "south", "--json")
    assert [f["findings"][0]["count"] for f in json.loads(said)] == [4, 4]


def test_labels_that_are_missing_or_unknown_in_a_file() -> None:
    frame = frame_of(soft(40))
    frame.loc[3, "class"] = None
    frame.loc[5, "class"] = "wel"
    said = {f.kind: f for f in find_faults(frame, study())}
    assert (said["target_missing"].rows, said["unknown_class"].rows) == ((3,), (5,))
    said = {f.kind: f for f in find_faults(frame.drop(columns="class"), study())}
    assert "the pictures have no class" in said["missing_column"].text
    said = {f.kind: f for f in find_faults(frame_of(soft(40)).drop(columns="picture"), study())}
    assert said["missing_column"].column == "picture"


# --- marks ----------------------------------------------------------------------------------------------------------


def labels(n: int) -> Any:
    return np.arange(n) % 2


@pytest.mark.parametrize("channels", [0, 3])
def test_a_mark_in_half_of_one_class_is_found_at_its_place(channels: int) -> None:
    x = soft(120, channels=channels)
    x[::4][SPOT] = 250  # every second of class ill
    said = found(x, channels=channels or 1)
    assert list(said) == ["mark_of_a_class"]
    mark = said["mark_of_a_class"]
    assert mark.text.startswith("30 of 60 pictures of class ill look the same")
    assert "at rows 3 to 5, columns 17 to 19, where 0 of 60 others do" in mark.text
    assert mark.rows == (0, 4, 8, 12, 16)
    assert mark.count == 30


def test_files_that_carry_a_mark_are_named(tmp_path: Path) -> None:
    x = soft(120)
    x[1::2][SPOT] = 0
    agreed = study()
    (mark,) = find_faults(read_table(write_folder(tmp_path / "north", x), agreed), agreed)
    assert mark.rows == ()
    assert mark.text.endswith("well/01.png, well/03.png, well/05.png and 57 more")


def test_a_mark_in_both_classes_or_in_few_pictures_is_none() -> None:
    x = soft(120)
    x[:60][SPOT] = 250
    assert found(x) == {}
    x = soft(120)
    x[:12:2][SPOT] = 250
    assert found(x) == {}


def test_soft_differences_between_classes_are_no_mark() -> None:
    """What anatomy does: one class brighter in a wide, soft region, and darker to one side."""
    x = soft(160).astype(int)
    down, right = np.mgrid[:SIDE, :SIDE]
    x[::2] += (90 * np.exp(-((down - 8) ** 2 + (right - 14) ** 2) / 40)).astype(int)
    x[1::2] = (x[1::2] * np.clip(0.4 + right / 12, 0, 1)).astype(int)
    best = max(abs(np.corrcoef(x[:, a, b], labels(160))[0, 1]) for a in range(0, SIDE, 2) for b in range(0, SIDE, 2))
    assert best > 0.5  # pixels do tell the class
    assert found(x.clip(0, 255).astype(np.uint8)) == {}


def test_a_frame_around_one_class_is_a_mark() -> None:
    x = soft(120)
    x[1::2, :, 0] = 0
    assert "class well look the same (0 to 7 of 255) at rows 0 to 23, column 0" in found(x)["mark_of_a_class"].text


def test_a_series_of_one_patient_is_told_as_such() -> None:
    x = soft(120)
    rng = np.random.default_rng(0)
    x[:60:2] = (x[0].astype(int) + rng.integers(-2, 3, (30, SIDE, SIDE))).clip(0, 255)
    said = found(x)
    assert list(said) == ["nearly_same_pictures"]
    assert re.fullmatch(
        "about 3[0-2] of 60 pictures of class ill are nearly the same", said["nearly_same_pictures"].text
    )


def test_labels_by_lot_raise_no_alarm() -> None:
    x = soft(100)[:, None]
    x[:50, 0, 3:6, 17:20] = 250
    rng = np.random.default_rng(4)
    assert sum(bool(find_marks(x, rng.permutation(labels(100)))) for _ in range(30)) == 0


def test_the_level_counts_only_tests_that_can_be_passed() -> None:
    window, size = burned_in_marks.WINDOWS[0], np.array([50, 50])
    few, many = np.zeros(101, np.int64), np.zeros(101, np.int64)
    few[20] = many[20] = 100
    many[2] = 10**6  # two carriers can never be enough
    share = burned_in_marks.ALARMS / len(burned_in_marks.WINDOWS)
    assert burned_in_marks._level(few, size, window) == burned_in_marks._level(many, size, window)
    assert np.exp(burned_in_marks._level(few, size, window)) == pytest.approx(share / 200, rel=0.06)
    many[30] = 10**6
    assert np.exp(burned_in_marks._level(many, size, window)) < share / 10**6


def test_marks_of_large_pictures_are_looked_for_on_a_grid() -> None:
    x = np.kron(soft(60), np.ones((12, 12), np.uint8))[:, None]
    x[::2, :, 30:60, 200:240] = 255
    (mark,) = find_marks(x, labels(60))
    assert (mark.label, mark.inside, mark.outside) == (0, 30, 0)
    assert mark.place == "rows 30 to 59, columns 201 to 239"


def test_too_many_pictures_are_sampled_from_all_classes_alike() -> None:
    y = np.repeat([0, 1, 2], [5000, 400, 5])
    kept = burned_in_marks._choose_pictures(y, SIDE, SIDE)
    assert np.bincount(y[kept]).tolist() == [1000, 400]
    assert len(set(kept.tolist())) == len(kept)


# --- a study of them ------------------------------------------------------------------------------------------------


def test_more_than_one_column_of_pictures_is_told() -> None:
    frame = pd.concat([frame_of(soft(4)), frame_of(soft(4))[["picture"]]], axis=1)
    with pytest.raises(VitrailError, match="expected one column of pictures, but there is more than one"):
        clean(frame, study())
    assert [(f.kind, f.column) for f in find_faults(frame, study()) if f.severity == "error"] == [
        ("extra_column", "picture")
    ]


def test_pictures_too_small_for_the_network_are_refused_with_the_study() -> None:
    with pytest.raises(VitrailError, match="cnn needs pictures of at least 16 x 16 pixels"):
        study(size=(12, 20))
    assert study(size=(16, 16)).images.size == (16, 16)
