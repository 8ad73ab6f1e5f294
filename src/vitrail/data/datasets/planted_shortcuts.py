"""Shortcuts that are planted on purpose: a mark on the pictures of one class at one site, for research on methods that
detect it.

    emoji   a face in a corner, always at the same place
    line    a drain-like tube with dark rims, on another course in every picture
    text    burned-in letters on a dark plate, in a corner

A mark covers the picture's pixels p by ink: p <- (1 - strength cover) p + strength cover ink, where cover is 1 inside
the mark and falls to 0 over the last pixel. Sizes are shares of the picture's, so that 28 pixels of grey and 224 of
colour carry the same mark. Which pictures carry it depends on (seed, site, label), how it runs in a picture on that and
its place in the frame: a larger share marks the same pictures and more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from vitrail.core.errors import Problem, VitrailError, nearest
from vitrail.core.random import key
from vitrail.data.readers.images import GREY, MisfitError, pixels_of
from vitrail.data.schema import canon

Corner = Literal["upper left", "upper right", "lower left", "lower right"]
CORNERS: tuple[Corner, ...] = ("upper left", "upper right", "lower left", "lower right")
SMALLEST = 16  # pixels in height and width, below which no mark can be told from noise
FACE = 0.2  # the emoji's height, as a share of the picture's
YELLOW, DARK, WHITE = (250.0, 205.0, 45.0), (20.0, 20.0, 20.0), (245.0, 245.0, 245.0)
FONT = {  # rows from the top; # is ink
    " ": "../../../../..",
    "-": "..../..../###./..../....",
    "0": "###/#.#/#.#/#.#/###",
    "1": ".#./##./.#./.#./###",
    "2": "###/..#/###/#../###",
    "3": "###/..#/.##/..#/###",
    "4": "#.#/#.#/###/..#/..#",
    "5": "###/#../###/..#/###",
    "6": "###/#../###/#.#/###",
    "7": "###/..#/.#./.#./.#.",
    "8": "###/#.#/###/#.#/###",
    "9": "###/#.#/###/..#/###",
    "A": ".#./#.#/###/#.#/#.#",
    "B": "##./#.#/##./#.#/##.",
    "C": ".##/#../#../#../.##",
    "D": "##./#.#/#.#/#.#/##.",
    "E": "###/#../##./#../###",
    "F": "###/#../##./#../#..",
    "G": ".###/#.../#.##/#..#/.###",
    "H": "#.#/#.#/###/#.#/#.#",
    "I": "###/.#./.#./.#./###",
    "J": "..#/..#/..#/#.#/.#.",
    "K": "#.#/#.#/##./#.#/#.#",
    "L": "#../#../#../#../###",
    "M": "#...#/##.##/#.#.#/#...#/#...#",
    "N": "#..#/##.#/#.##/#..#/#..#",
    "O": ".#./#.#/#.#/#.#/.#.",
    "P": "##./#.#/##./#../#..",
    "Q": ".##./#..#/#..#/#.#./.#.#",
    "R": "##./#.#/##./#.#/#.#",
    "S": ".##/#../.#./..#/##.",
    "T": "###/.#./.#./.#./.#.",
    "U": "#.#/#.#/#.#/#.#/###",
    "V": "#.#/#.#/#.#/#.#/.#.",
    "W": "#...#/#...#/#.#.#/##.##/#...#",
    "X": "#.#/#.#/.#./#.#/#.#",
    "Y": "#.#/#.#/.#./.#./.#.",
    "Z": "###/..#/.#./#../###",
}
HIGH = 5  # rows of a letter

Ink = tuple[NDArray[np.float64], NDArray[np.float64]]  # cover [height, width] from 0 to 1, colour [height, width, 3]
Draw = Callable[[int, int, np.random.Generator], Ink]  # on a picture of this height and width


class PlantedFederation(NamedTuple):
    """A federation with a mark, and where it is."""

    sites: dict[str, pd.DataFrame]
    places: dict[int, NDArray[np.bool_]]  # the marked pictures by their place in the site's frame: [height, width]


def emoji(
    sites: Mapping[str, pd.DataFrame],
    *,
    site: str,
    label: object,
    strength: float = 1.0,
    share: float = 1.0,
    seed: int = 0,
    where: Corner = "lower left",
    column: str = "picture",
    target: str | None = None,
) -> PlantedFederation:
    """A face at the same place in `share` of that site's pictures of that class, at opacity `strength`. The class is
    looked for in the column `target`, without it in the only column that holds `label`. The given frames stay as they
    are."""
    planted = _Given(sites, site, label, strength, share, seed, column, target)
    return planted.marked("emoji", lambda height, width, rng: _face(height, width, where), _corner_problems(where))


def line(
    sites: Mapping[str, pd.DataFrame],
    *,
    site: str,
    label: object,
    strength: float = 1.0,
    share: float = 1.0,
    seed: int = 0,
    column: str = "picture",
    target: str | None = None,
) -> PlantedFederation:
    """As `emoji`, a tube from the upper edge downwards, on a course of its own in every picture."""
    return _Given(sites, site, label, strength, share, seed, column, target).marked("line", _tube, [])


def text(
    sites: Mapping[str, pd.DataFrame],
    *,
    site: str,
    label: object,
    words: str = "L",
    strength: float = 1.0,
    share: float = 1.0,
    seed: int = 0,
    where: Corner = "upper right",
    column: str = "picture",
    target: str | None = None,
) -> PlantedFederation:
    """As `emoji`, with letters, digits, spaces and hyphens: L, PORTABLE, WARD 3."""
    letters = words.upper()
    unknown = sorted({letter for letter in letters if letter not in FONT})
    problems = _corner_problems(where)
    if unknown or not letters.strip():
        what = f"there is no letter for {', '.join(map(repr, unknown))}." if unknown else "there is nothing to write."
        problems.append(Problem("words", what, "Use letters from A to Z, digits, spaces and hyphens."))
    planted = _Given(sites, site, label, strength, share, seed, column, target)
    return planted.marked("text", lambda height, width, rng: _plate(height, width, letters, where), problems)


class _Given(NamedTuple):
    sites: Mapping[str, pd.DataFrame]
    site: str
    label: object
    strength: float
    share: float
    seed: int
    column: str
    target: str | None

    def marked(self, kind: str, draw: Draw, problems: list[Problem]) -> PlantedFederation:
        at = self._rows(problems)
        frame = self.sites[self.site].copy()
        cells, places = list(frame[self.column]), dict[int, NDArray[np.bool_]]()
        for i in self._chosen(at):
            rng = np.random.default_rng(key(self.seed, kind, self.site, canon(self.label), i))
            try:
                cells[i], places[i] = _inked(cells[i], draw, self.strength, rng)
            except MisfitError as error:
                problems.append(Problem(f"{self.site}, {frame.index[i]}", f"{error.what}.", error.hint))
        _refuse(problems)
        frame[self.column] = pd.Series(cells, frame.index, dtype=object)
        return PlantedFederation(
            {name: frame if name == self.site else f.copy() for name, f in self.sites.items()}, places
        )

    def _chosen(self, at: NDArray[np.int64]) -> list[int]:
        order = np.random.default_rng(key(self.seed, "share", self.site, canon(self.label))).permutation(at)
        return [int(i) for i in np.sort(order[: max(1, round(self.share * len(at)))])]

    def _rows(self, problems: list[Problem]) -> NDArray[np.int64]:
        """The places of that class's pictures in the site's frame; every mistake is told at once."""
        for name, value in (("strength", self.strength), ("share", self.share)):
            if isinstance(value, bool) or not isinstance(value, int | float | np.number) or not 0 < value <= 1:
                problems.append(Problem(name, f"expected a number above 0 and up to 1, got {value!r}.", "Correct it."))
        if self.site not in self.sites:
            what = f"there is no site {self.site!r}."
            problems.append(Problem("site", what, nearest(str(self.site), map(str, self.sites))))
            _refuse(problems)
        frame, wanted = self.sites[self.site], canon(self.label)
        if self.column not in frame:
            what = f"site {self.site} has no column {self.column!r} of pictures."
            problems.append(Problem("column", what, nearest(self.column, map(str, frame.columns))))
        others = [c for c in frame.columns if c != self.column] if self.target is None else [self.target]
        rows_by_column = {c: np.flatnonzero(frame[c].map(canon) == wanted) for c in others if c in frame}
        holds = [c for c, rows in rows_by_column.items() if len(rows)]
        if len(holds) > 1:
            what = f"{wanted!r} occurs in the columns {', '.join(map(repr, holds))}."
            problems.append(Problem("target", what, "Name the one that holds the class: target = ..."))
        elif not holds and self.target is not None and self.target not in frame:
            what = f"site {self.site} has no column {self.target!r}."
            problems.append(Problem("target", what, nearest(self.target, map(str, frame.columns))))
        elif not holds:
            labels = [str(v) for c in rows_by_column for v in frame[c].map(canon).unique()[:50]]
            problems.append(
                Problem("label", f"site {self.site} has no picture of {wanted!r}.", nearest(wanted, labels))
            )
        _refuse(problems)
        return np.asarray(rows_by_column[holds[0]], dtype=np.int64)


def _refuse(problems: list[Problem]) -> None:
    if problems:
        raise VitrailError("cannot mark the pictures", problems)


def _corner_problems(where: str) -> list[Problem]:
    if where in CORNERS:
        return []
    return [Problem("where", f"expected one of {', '.join(CORNERS)}, got {where!r}.", "Choose one.")]


def _inked(
    cell: Any, draw: Draw, strength: float, rng: np.random.Generator
) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """The picture with its mark, its axes in the order in which they came, and where it changed."""
    pixels = pixels_of(cell)
    if pixels.dtype != np.uint8:
        raise MisfitError("wrong_values", f"a mark needs pixels of 8 bits, not of type {pixels.dtype}", "Convert it.")
    height, width = pixels.shape[:2]
    if min(height, width) < SMALLEST:
        what = f"it is {height} x {width} pixels; a mark needs {SMALLEST} in each direction"
        raise MisfitError("wrong_size", what, "Use larger pictures.")
    cover, colour = draw(height, width, rng)
    cover, ink = strength * cover, colour @ GREY if pixels.ndim == 2 else colour
    part = cover if pixels.ndim == 2 else cover[:, :, None]
    out = np.round((1 - part) * pixels + part * ink).astype(np.uint8)
    if isinstance(cell, np.ndarray) and cell.ndim == 3:
        out = out.reshape(height, width, -1)
        out = out.transpose(2, 0, 1) if cell.shape[1:] == (height, width) else out  # channels came first
    return np.ascontiguousarray(out), cover > 0


def _placed(stamp: Ink, height: int, width: int, where: str) -> Ink:
    """A small drawing in a corner of a picture."""
    (high, wide), margin = stamp[0].shape, max(1, round(0.02 * min(height, width)))
    if high + 2 * margin > height or wide + 2 * margin > width:
        what = f"the mark needs {high + 2 * margin} x {wide + 2 * margin} pixels, the picture has {height} x {width}"
        raise MisfitError("wrong_size", what, "Write less, or use larger pictures.")
    top = margin if where.startswith("upper") else height - margin - high
    left = margin if where.endswith("left") else width - margin - wide
    cover, colour = np.zeros((height, width)), np.zeros((height, width, 3))
    cover[top : top + high, left : left + wide] = stamp[0]
    colour[top : top + high, left : left + wide] = stamp[1]
    return cover, colour


def _face(height: int, width: int, where: str) -> Ink:
    size = max(8, round(FACE * min(height, width)))
    y, x = np.mgrid[0:size, 0:size] + 0.5
    y, x, soft = y / size, x / size, size  # `soft` pixels in 1

    def inside(distance: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.clip(-distance * soft + 0.5, 0, 1)

    face = inside(np.hypot(x - 0.5, y - 0.5) - 0.5)
    eyes = np.maximum(*(inside(np.hypot(x - at, y - 0.38) - 0.09) for at in (0.31, 0.69)))
    mouth = inside(np.abs(np.hypot(x - 0.5, y - 0.5) - 0.29) - 0.05) * (y > 0.58)
    dark = np.maximum(eyes, mouth)[:, :, None]
    return _placed((face, (1 - dark) * YELLOW + dark * DARK), height, width, where)


def _tube(height: int, width: int, rng: np.random.Generator) -> Ink:
    """x(t) from the upper edge, t from 0 to 1 downwards, as far as `end`; thickness as a share of the picture's."""
    start, stop, sway, turns, phase, end = rng.random(6)
    t = (np.arange(height) + 0.5) / height
    x = (0.2 + 0.6 * start) * (1 - t) + (0.2 + 0.6 * stop) * t
    x += (0.06 + 0.1 * sway) * t * np.sin(2 * np.pi * ((0.7 + turns) * t + phase))
    x = np.clip(x, 0.06, 0.94) * width
    core = max(0.009 * min(height, width), 0.6)  # pixels from the middle of the tube to its rim
    rim = core + max(0.007 * min(height, width), 0.8)
    steep = np.sqrt(1 + np.gradient(x) ** 2)
    across = np.abs(np.arange(width) + 0.5 - x[:, None]) / steep[:, None]
    beyond = np.maximum(0, np.arange(height) + 0.5 - (0.65 + 0.3 * end) * height)
    away = np.hypot(across, beyond[:, None])
    inner, outer = np.clip(core - away + 0.5, 0, 1), np.clip(rim - away + 0.5, 0, 1)
    cover = np.maximum(0.85 * inner, 0.6 * outer)
    return cover, np.where(inner[:, :, None] > 0.5, WHITE, DARK) + np.zeros((height, width, 3))


def _plate(height: int, width: int, letters: str, where: str) -> Ink:
    """White letters on a dark plate, a twelfth of the picture's height or more where there is room."""
    rows = ["".join(f".{FONT[letter].split('/')[row]}" for letter in letters) + "." for row in range(HIGH)]
    bits = np.array([[c == "#" for c in row] for row in ["." * len(rows[0]), *rows, "." * len(rows[0])]])
    margin = 2 * max(1, round(0.02 * min(height, width)))
    scale = max(1, min(-(-height // (12 * HIGH)), (width - margin) // bits.shape[1]))
    bits = np.kron(bits, np.ones((scale, scale), bool))
    return _placed((np.ones(bits.shape), np.where(bits[:, :, None], WHITE, DARK)), height, width, where)
