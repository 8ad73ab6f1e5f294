"""Marks on purpose: exactly the pictures that were asked for carry them, exactly where the masks say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest

import vitrail as vt
from vitrail.core.errors import VitrailError
from vitrail.data.datasets.planted_shortcuts import FONT, HIGH, PlantedFederation
from vitrail.data.readers.images import fit_cells
from vitrail.data.schema import Images

MARKS: dict[str, Callable[..., PlantedFederation]] = {
    "emoji": vt.planted_shortcuts.emoji,
    "line": vt.planted_shortcuts.line,
    "text": vt.planted_shortcuts.text,
}
SHAPES = [(28, 28), (32, 32, 3), (1, 28, 28), (3, 64, 64), (96, 64), (224, 224, 3), (28, 28, 1)]


def federation(shape: tuple[int, ...] = (28, 28), rows: int = 12) -> dict[str, pd.DataFrame]:
    rng = np.random.default_rng(1)

    def frame(start: int) -> pd.DataFrame:
        cells = pd.Series(list(rng.integers(60, 160, (rows, *shape), np.uint8)), dtype=object)
        table = pd.DataFrame({"picture": cells, "kind": ["cat", "dog", "emu"] * (rows // 3)})
        return table.set_index(pd.RangeIndex(start, start + rows))

    return {"north": frame(100), "south": frame(500)}


def changed(before: pd.DataFrame, after: pd.DataFrame) -> list[int]:
    pairs = zip(before.picture, after.picture, strict=True)
    return [i for i, (a, b) in enumerate(pairs) if a.shape != b.shape or (a != b).any()]


def flat(picture: np.ndarray) -> np.ndarray:
    """[height, width]: the first channel."""
    return picture if picture.ndim == 2 else picture[0] if picture.shape[0] in (1, 3) else picture[..., 0]


@pytest.mark.parametrize("mark", MARKS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_only_that_class_of_that_site_changes_and_only_where_the_mask_says(mark: str, shape: tuple[int, ...]) -> None:
    sites = federation(shape)
    kept = {name: [p.copy() for p in f.picture] for name, f in sites.items()}
    marked = MARKS[mark](sites, site="north", label="dog")
    dogs = [i for i, kind in enumerate(sites["north"].kind) if kind == "dog"]
    assert changed(sites["north"], marked.sites["north"]) == dogs == sorted(marked.places)
    assert changed(sites["south"], marked.sites["south"]) == []
    assert all((a == b).all() for name, f in sites.items() for a, b in zip(kept[name], f.picture, strict=True))
    for i in dogs:
        old, new = sites["north"].picture.iloc[i], marked.sites["north"].picture.iloc[i]
        assert (new.shape, new.dtype) == (old.shape, np.uint8)
        differs = flat(old) != flat(new)
        assert not (differs & ~marked.places[i]).any()
        assert differs[marked.places[i]].mean() > 0.8  # an ink may happen to be the shade that was there
        assert 0.01 < marked.places[i].mean() < 0.25
    assert list(marked.sites["north"].index) == list(sites["north"].index)
    assert (marked.sites["north"].kind == sites["north"].kind).all()


@pytest.mark.parametrize("mark", MARKS)
def test_the_same_again_and_another_by_seed(mark: str) -> None:
    sites = federation(rows=60)
    one, two, other = (MARKS[mark](sites, site="south", label="cat", share=0.5, seed=s) for s in (3, 3, 4))
    assert changed(one.sites["south"], two.sites["south"]) == []
    assert sorted(one.places) == sorted(two.places) != sorted(other.places)


def test_a_share_is_counted_and_grows_by_more_pictures() -> None:
    sites = federation(rows=60)  # 20 of each kind
    few, many = (set(vt.planted_shortcuts.emoji(sites, site="north", label="emu", share=s).places) for s in (0.3, 0.75))
    assert (len(few), len(many)) == (6, 15)
    assert few < many
    assert len(vt.planted_shortcuts.emoji(sites, site="north", label="emu", share=0.001).places) == 1


def test_strength_is_opacity() -> None:
    """Half as strong, half as far from the picture below, to the rounding."""
    sites = federation((64, 64, 3))
    full, half = (vt.planted_shortcuts.text(sites, site="north", label="dog", strength=s) for s in (1.0, 0.5))
    for i, place in full.places.items():
        old, new, pale = (f.picture.iloc[i].astype(float)[place] for f in (sites["north"], full.sites["north"],
                                                                         half.sites["north"]))  # fmt: skip
        assert np.abs(pale - (old + new) / 2).max() <= 1


def test_an_emoji_stays_where_it_is_and_a_line_does_not() -> None:
    sites = federation((96, 96))
    faces, lines = (list(MARKS[m](sites, site="north", label="dog").places.values()) for m in ("emoji", "line"))
    assert all((face == faces[0]).all() for face in faces)
    assert all((a != b).any() for i, a in enumerate(lines) for b in lines[:i])
    for line in lines:  # connected from the top, a few pixels wide
        rows = line.any(1)
        assert rows[:60].all()
        assert line.sum(1).max() < 20


@pytest.mark.parametrize(
    ("where", "down", "right"),
    [("upper left", 0, 0), ("upper right", 0, 1), ("lower left", 1, 0), ("lower right", 1, 1)],
)
def test_corners(where: str, down: int, right: int) -> None:
    for mark in (vt.planted_shortcuts.emoji, vt.planted_shortcuts.text):
        for place in mark(federation((40, 40)), site="north", label="dog", where=where).places.values():  # type: ignore[operator]
            y, x = np.argwhere(place).mean(0)
            assert (y > 20, x > 20) == (bool(down), bool(right))


@pytest.mark.parametrize(("side", "high"), [(28, 0.33), (64, 0.25), (224, 0.25)])
def test_marks_grow_with_the_picture(side: int, high: float) -> None:
    for mark in (vt.planted_shortcuts.emoji, vt.planted_shortcuts.text):
        place = next(iter(mark(federation((side, side), rows=3), site="north", label="dog").places.values()))
        assert 0.09 * side < place.any(1).sum() <= high * side


def test_letters_are_legible() -> None:
    """Every letter is HIGH rows of one width, no two are alike, and it is in the picture as it is in the font."""
    assert all(len(rows := glyph.split("/")) == HIGH and len(set(map(len, rows))) == 1 for glyph in FONT.values())
    assert len(set(FONT.values())) == len(FONT)
    marked = vt.planted_shortcuts.text(federation(), site="north", label="dog", words="r")
    picture, place = marked.sites["north"].picture.iloc[1], marked.places[1]
    y, x = np.argwhere(place).min(0)
    letter = ["".join(".#"[int(v > 128)] for v in row) for row in picture[y + 1 : y + 1 + HIGH, x + 1 : x + 4]]
    assert "/".join(letter) == FONT["R"]


def test_marked_pictures_are_pictures_to_the_rest() -> None:
    images = Images(size=(28, 28), channels=1)
    cells = fit_cells(
        list(vt.planted_shortcuts.line(federation(), site="north", label="dog").sites["north"].picture), images
    )
    assert {cell.shape for cell in cells} == {(1, 28, 28)}


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"site": "nord"}, ["there is no site 'nord'", "north"]),
        ({"label": "dag"}, ["site north has no picture of 'dag'", "dog"]),
        ({"share": 0.0}, ["share: expected a number above 0 and up to 1, got 0.0"]),
        ({"share": 1.5}, ["got 1.5"]),
        ({"strength": -1}, ["strength: expected a number above 0 and up to 1, got -1"]),
        ({"share": True}, ["got True"]),
        ({"column": "image"}, ["north has no column 'image' of pictures"]),
        ({"target": "sort"}, ["north has no column 'sort'"]),
        ({"share": 2, "label": "dag", "strength": 0}, ["share", "strength", "label"]),
    ],
)
@pytest.mark.parametrize("mark", MARKS)
def test_mistakes_are_told(mark: str, given: dict[str, Any], said: list[str]) -> None:
    with pytest.raises(VitrailError) as caught:
        MARKS[mark](federation(), **{"site": "north", "label": "dog", **given})
    assert all(part in str(caught.value) for part in said)


def test_more_mistakes_are_told() -> None:
    both = federation()
    both["north"]["again"] = both["north"].kind
    small, wide = federation((12, 12)), federation()
    wide["north"]["picture"] = [p.astype(np.uint16) for p in wide["north"].picture]
    for call, said in (
        (lambda: vt.planted_shortcuts.emoji(both, site="north", label="dog"), "occurs in the columns 'kind', 'again'"),
        (lambda: vt.planted_shortcuts.emoji(federation(), site="north", label="dog", where="middle"), "got 'middle'"),  # type: ignore[arg-type]
        (
            lambda: vt.planted_shortcuts.text(federation(), site="north", label="dog", words="Zürich?"),
            "no letter for '?', 'Ü'",
        ),
        (lambda: vt.planted_shortcuts.text(federation(), site="north", label="dog", words=" "), "nothing to write"),
        (
            lambda: vt.planted_shortcuts.text(federation(), site="north", label="dog", words="PORTABLE"),
            "the mark needs",
        ),
        (lambda: vt.planted_shortcuts.line(small, site="north", label="dog"), "a mark needs 16"),
        (lambda: vt.planted_shortcuts.line(wide, site="north", label="dog"), "pixels of 8 bits, not of type uint16"),
    ):
        with pytest.raises(VitrailError, match="cannot mark the pictures") as caught:
            call()
        assert said in str(caught.value)
    assert vt.planted_shortcuts.emoji(both, site="north", label="dog", target="again").places
