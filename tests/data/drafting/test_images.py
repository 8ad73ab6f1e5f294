"""Drafting a study from pictures: from folders, npz and Parquet files, and from frames."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

import vitrail as vt
from tests.support.picture_sites import CLASSES, SIDE, encoded, frame_of, soft, vitrail, write_folder
from vitrail.core.errors import VitrailError
from vitrail.data.readers.tables import clean, read_sites

ROWS = 30


@pytest.fixture
def say(capsys: Any, monkeypatch: Any) -> Any:
    return partial(vitrail, capsys, monkeypatch)


def sites(root: Path, *names: str) -> Path:
    for i, name in enumerate(names):
        write_folder(root / name, soft(ROWS, seed=i))
    return root


def test_from_a_folder_of_sites_to_a_run(tmp_path: Path, say: Any) -> None:
    data = sites(tmp_path / "pictures", "north", "south")
    code, said = say("init", data, "--target", "class", "--out", tmp_path / "study.toml")
    assert code == 0
    assert "pictures, 2 sites, target class: ill 30, well 30" in said
    assert (
        f"60 pictures: all {SIDE} x {SIDE} pixels (height x width), grey, 8 bits. They are taken as they are." in said
    )
    study = vt.Study.load(tmp_path / "study.toml")
    assert (study.images.size, study.images.channels, study.images.fit) == ((SIDE, SIDE), 1, "exact")
    assert (study.network.kind, study.training.optimiser, study.training.total) == ("cnn", "adam", "mean")
    assert study.target.classes == CLASSES
    assert say("check", tmp_path / "study.toml", data / "north")[0] == 0
    code, said = say(
        "run", tmp_path / "study.toml", "--data", data, "--out", tmp_path / "run", "--rounds", 1, "--method", "fedavg"
    )
    assert code == 0
    assert say("init", data, "--target", "class", "--out", tmp_path / "study.toml")[0] == 2  # it is there already


def test_the_drafted_training_learns() -> None:
    """Bright against dark corners: a few rounds are enough."""
    x = soft(120, seed=1)
    x[::2, :8, :8] //= 3
    study = vt.Study.infer({"a": frame_of(x[:60]), "b": frame_of(x[60:])}, target="class")
    run = vt.federate(study, {"a": frame_of(x[:60]), "b": frame_of(x[60:])}, method="fedavg", rounds=15)
    scores = run.scores()
    assert scores[scores.metric == "accuracy"].value.min() > 0.8


def test_one_site_and_several_given_by_name(tmp_path: Path, say: Any) -> None:
    sites(tmp_path, "north", "south")
    assert (
        "1 site, target class: ill 15, well 15"
        in say("init", tmp_path / "north", "--target", "class", "--out", tmp_path / "a.toml")[1]
    )
    assert (
        "2 sites, target class: ill 30"
        in say("init", tmp_path / "north", tmp_path / "south", "--target", "class", "--out", tmp_path / "b.toml")[1]
    )


def test_from_files_whatever_columns_are_called(tmp_path: Path, say: Any) -> None:
    x, y = soft(ROWS, channels=3), [CLASSES[i % 2] for i in range(ROWS)]
    np.savez(tmp_path / "north.npz", images=x, labels=np.array([0, 1] * 15)[:, None])
    code, said = say("init", tmp_path / "north.npz", "--target", "class", "--out", tmp_path / "a.toml")
    assert (code, "target class: 0 15, 1 15" in said, "in colour" in said) == (0, True, True)
    frame = pd.DataFrame({"age": 1, "scan": [encoded(p) for p in x], "finding": y, "ward": ["a", "b"] * 15})
    frame.to_parquet(tmp_path / "all.parquet")
    words = ("--target", "finding", "--site-column", "ward", "--out", tmp_path / "b.toml")
    code, said = say("init", tmp_path / "all.parquet", *words)
    assert (code, "2 sites, target finding: ill 15, well 15" in said) == (0, True)
    study = vt.Study.load(tmp_path / "b.toml")
    assert (study.images.column, study.site_column, study.images.channels) == ("scan", "ward", 3)
    assert {k: len(v) for k, v in read_sites(tmp_path / "all.parquet", study).items()} == {"a": 15, "b": 15}


def infer(cells: list[Any]) -> vt.Study:
    frame = frame_of(soft(len(cells))).assign(picture=pd.Series(cells, dtype=object))
    return vt.Study.infer({"a": frame}, target="class")


# cells, and what is drafted of them: size, channels, bits, fit
DRAFTS: dict[str, tuple[list[Any], tuple[Any, ...]]] = {
    "one small size": (list(soft(10)), ((24, 24), 1, 8, "exact")),
    "a channel first": ([p[None] for p in soft(10)], ((24, 24), 1, 8, "exact")),
    "several sizes": ([p[: 20 + i] for i, p in enumerate(soft(4))], ((20, 24), 1, 8, "resize")),
    "one large size": ([np.zeros((300, 600), np.uint8)] * 4, ((32, 64), 1, 8, "resize")),
    "too small a size": ([np.zeros((9, 9), np.uint8)] * 4, ((16, 16), 1, 8, "resize")),
    "colour": (list(soft(10, channels=3)), ((24, 24), 3, 8, "exact")),
    "grey saved as colour": ([np.dstack([p] * 3) for p in soft(10)], ((24, 24), 1, 8, "exact")),
    "some grey, some in colour": ([*soft(5), *soft(5, channels=3)], ((24, 24), 3, 8, "resize")),
    "12 bits": ([p.astype(np.uint16) * 16 for p in soft(10)], ((24, 24), 1, 12, "exact")),
    "encoded": ([encoded(p) for p in soft(10)], ((24, 24), 1, 8, "exact")),
    "images of Pillow": ([Image.fromarray(p) for p in soft(10)], ((24, 24), 1, 8, "exact")),
    "one of them broken": ([b"x", *(encoded(p) for p in soft(9))], ((24, 24), 1, 8, "exact")),
}


@pytest.mark.parametrize("name", DRAFTS)
def test_size_channels_and_bits(name: str) -> None:
    cells, expected = DRAFTS[name]
    images = infer(cells).images
    assert images is not None
    assert (images.size, images.channels, images.bits, images.fit) == expected


def test_what_is_drafted_is_said_in_words() -> None:
    words = infer([p[: 20 + i] for i, p in enumerate(soft(4))]).description
    assert "4 sizes, from 20 x 24 to 23 x 24 pixels, grey, 8 bits. Each is resized to 20 x 24" in words
    assert "1 could not be read" in infer([b"x", *(encoded(p) for p in soft(9))]).description


def test_spaces_around_names_of_columns_do_not_matter() -> None:
    frame = frame_of(soft(10)).set_axis([" picture ", " class"], axis=1)
    study = vt.Study.infer({"a": frame}, target="class")
    assert len(clean(frame, study)) == 10


def test_nothing_to_draft_from(tmp_path: Path, say: Any) -> None:
    with pytest.raises(VitrailError, match="no picture can be read"):
        infer([b"x"] * 4)
    with pytest.raises(VitrailError, match="there is no column 'picture' of pictures"):
        vt.Study.infer({"a": frame_of(soft(4)), "b": frame_of(soft(4)).drop(columns="picture")}, target="class")
    flat = tmp_path / "flat"
    flat.mkdir()
    (flat / "a.png").write_bytes(encoded(soft(1)[0]))
    code, said = say("init", flat, "--target", "class", "--out", tmp_path / "s.toml")
    assert (code, "there is no column 'class'" in said) == (2, True)
    (flat / "a.npz").write_bytes(b"x")
    code, said = say("init", flat / "a.npz", "--target", "class", "--out", tmp_path / "s.toml")
    assert (code, "it cannot be read" in said) == (2, True)


def test_tables_with_pictures_in_a_folder_beside_stay_tables(tmp_path: Path, say: Any) -> None:
    sites(tmp_path / "data" / "plots", "north")
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"age": rng.normal(50, 9, 40), "class": ["a", "b"] * 20})
    frame.to_csv(tmp_path / "data" / "north.csv", index=False)
    code, said = say("init", tmp_path / "data", "--target", "class", "--out", tmp_path / "s.toml")
    assert (code, "1 features, 1 sites" in said) == (0, True)
