"""Burned-in marks that tell the class: letters, lines, squares, frames, at a fixed place in the pictures of one class.

A picture carries a mark at a place if two neighbouring pixels there have the same shade s (a window of a few grey
levels) and stand out: at some distance r, 6 of the 8 pixels around each of them differ from it by at least so much.
Windows, places, distances and neighbours are all tried; none is chosen with a look at the classes. For class c, with
a of its N_c pictures and k of all n pictures carrying the mark, an alarm needs

    P(X >= a) <= level,  X ~ Hypergeometric(n, N_c, k)    more than in the other classes        (Fisher's exact test)
    P(Y >= a) <= level,  Y ~ Binomial(N_c, natural)       more than shapes of nature are alike  (shares as measured)
    a / N_c >= RATIO (k - a) / (n - N_c)                  and much more than in the others

with level = ALARMS / (number of tests), where tests that so few carriers could never pass are not counted (Tarone
1990). So of sites whose classes have nothing to do with the pixels at most ALARMS raise an alarm, whatever the
pictures: by the first condition alone. How often real classes do, and what is found, was measured on rows apart from
those that shaped the rule: benchmarks/pictures/picture_marks.py. Not found: marks of one pixel, soft or see-through
on changing ground, without a fixed place, in few pictures. Drawn shapes (digits, icons) are marks to it, and
so are series of nearly equal pictures, of which `series` tells.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

ALARMS = 0.01  # of sites whose classes have nothing to do with the pixels
RATIO = 4.0
RADII = (1, 2, 3, 5, 8, 12)
AROUND = 6  # of 8
GRID = 128  # points looked at in height and width: of larger pictures every second, third, ...
MOST_PICTURES, MOST_VALUES = 2000, 2 * 10**7  # looked at
FEWEST = 10  # of a class
SERIES = 0.5  # carriers that differ less than so from each other, of what all differ, are one patient's, or one scene's


class Window(NamedTuple):
    """Shades that are one, how far they stand out, and how large a share of a class nature lets look so alike."""

    half: int  # grey levels; windows are twice as wide and overlap by half
    contrast: int
    natural: float


WINDOWS = (Window(4, 40, 0.15), Window(16, 60, 0.3))


class Mark(NamedTuple):
    """Where pictures of a class look the same and others do not."""

    label: int
    inside: int  # pictures of the class that carry it
    of_class: int
    outside: int
    of_others: int
    shade: str
    place: str
    pictures: NDArray[np.int64]  # positions of the class's carriers
    series: bool  # they are alike all over, not only there


class _Hit(NamedTuple):
    log_p: float
    radius: int
    down: int  # the second pixel lies to the right, or below
    place: int  # of the first one
    shade: int  # the window's number
    carriers: int
    others: int


def find_marks(pixels: NDArray[np.uint8], labels: NDArray[np.int64]) -> list[Mark]:
    """At most one for each class: pixels [picture, channel, height, width], labels [picture], -1 to look away."""
    chosen = _choose_pictures(labels, *pixels.shape[2:])
    classes, y = np.unique(labels[chosen], return_inverse=True)
    if len(classes) < 2:
        return []
    stride = -(-max(pixels.shape[2:]) // GRID)
    grey = _brightness(pixels[:, :, ::stride, ::stride][chosen])
    marks: dict[int, Mark] = {}
    for window in WINDOWS:
        for c, hits in enumerate(_scan(grey, y, window)):
            if hits and classes[c] not in marks:
                mark = _tell(grey, y, c, window, hits, stride)
                marks[int(classes[c])] = mark._replace(label=int(classes[c]), pictures=chosen[mark.pictures])
    return [marks[label] for label in sorted(marks)]


def _choose_pictures(labels: NDArray[np.int64], height: int, width: int) -> NDArray[np.int64]:
    """At most so many, from all classes alike, spread evenly; classes of too few left out."""
    groups = [np.flatnonzero(labels == c) for c in np.unique(labels[labels >= 0])]
    groups = [group for group in groups if len(group) >= FEWEST]
    points = min(height, GRID) * min(width, GRID)
    room = min(MOST_PICTURES, MOST_VALUES // points) // max(len(groups), 1)
    chosen = [g[np.linspace(0, len(g) - 1, min(len(g), max(room, FEWEST))).astype(int)] for g in groups]
    return np.sort(np.concatenate(chosen)) if chosen else np.zeros(0, np.int64)


def _brightness(pixels: NDArray[np.uint8]) -> NDArray[np.int16]:
    """[picture, height, width]"""
    grey: NDArray[np.int16] = np.round(pixels.mean(1, dtype=np.float32)).astype(np.int16)
    return grey


def _stands_out(grey: NDArray[np.int16], r: int, contrast: int) -> NDArray[np.bool_]:
    height, width = grey.shape[1:]
    wide = np.pad(grey, ((0, 0), (r, r), (r, r)), mode="reflect")
    count = np.zeros(grey.shape, np.uint8)
    for down, right in ((a, b) for a in (0, r, 2 * r) for b in (0, r, 2 * r) if (a, b) != (r, r)):
        count += np.abs(wide[:, down : down + height, right : right + width] - grey) >= contrast
    return count >= AROUND


def _pairs(values: NDArray[Any], down: int) -> tuple[NDArray[Any], NDArray[Any]]:
    return (values[:, :-1], values[:, 1:]) if down else (values[:, :, :-1], values[:, :, 1:])


def _tables(
    grey: NDArray[np.int16], y: NDArray[np.int64], window: Window, least: float
) -> Iterator[tuple[int, int, NDArray[np.int64], NDArray[np.int64]]]:
    """For each distance and direction: places times shades with more than `least` carriers, and those of each class.
    Shade s holds the half windows s and s + 1."""
    shades, classes = 256 // window.half, int(y.max()) + 1
    half = grey // window.half
    for r in (r for r in RADII if r < min(grey.shape[1:]) // 2):
        out = _stands_out(grey, r, window.contrast)
        for down in (0, 1):
            (a, b), (first, second) = _pairs(out, down), _pairs(half, down)
            both = a & b & (np.abs(first - second) <= 1)
            at = np.flatnonzero(both)
            lower = np.minimum(first, second).ravel()[at].astype(np.int64)
            cell = at % both[0].size * shades + lower
            also = (first == second).ravel()[at] & (lower > 0)  # in the window below as well
            cell, label = np.append(cell, cell[also] - 1), np.append(y[at // both[0].size], y[at[also] // both[0].size])
            count = np.bincount(cell, minlength=both[0].size * shades)
            frequent = np.flatnonzero(count > least)
            number = np.full(len(count), -1)
            number[frequent] = np.arange(len(frequent))
            use = number[cell] >= 0
            table = np.bincount(number[cell[use]] * classes + label[use], minlength=len(frequent) * classes)
            yield r, down, frequent, table.reshape(-1, classes)


def _scan(grey: NDArray[np.int16], y: NDArray[np.int64], window: Window) -> list[list[_Hit]]:
    """For each class what passes all conditions, the surest first."""
    n, size, shades = len(y), np.bincount(y), 256 // window.half
    tests, likely = np.zeros(n + 1, np.int64), list[tuple[int, int, int, NDArray[np.int64]]]()
    for r, down, cells, inside in _tables(grey, y, window, window.natural * size.min()):
        total = inside.sum(1)
        tests += np.bincount(total, minlength=n + 1)
        rare = inside * (n - size) >= RATIO * (total[:, None] - inside) * size
        for c, which in enumerate((rare & (inside > window.natural * size)).T):
            likely.append((r, down, c, np.stack([cells, inside[:, c], total])[:, which]))
    level = _level(tests, size, window)
    hits: list[list[_Hit]] = [[] for _ in size]
    for r, down, c, (cells, carriers, total) in likely:
        log_p = _log_p(carriers, total, int(size[c]), n, window)
        for i in np.flatnonzero(log_p <= level):
            place, shade = divmod(int(cells[i]), shades)
            hits[c].append(_Hit(float(log_p[i]), r, down, place, shade, int(carriers[i]), int(total[i] - carriers[i])))
    return [sorted(of_class) for of_class in hits]


def _log_p(
    inside: NDArray[np.int64], total: NDArray[np.int64], size: int, n: int, window: Window
) -> NDArray[np.float64]:
    """Of both tests, the larger."""
    from scipy import stats  # takes half a second to load, and few verbs look at pictures

    differ = stats.hypergeom.logsf(inside - 1, n, size, total)
    alike = stats.binom.logsf(inside - 1, size, window.natural)
    return np.asarray(np.maximum(differ, alike))


def _level(tests: NDArray[np.int64], size: NDArray[np.int64], window: Window) -> float:
    """log of the level of one test; tests [k] counts places with k carriers, each tested for every class."""
    n, k = len(tests) - 1, np.flatnonzero(tests)
    best = np.concatenate([_log_p(np.minimum(k, c), k, int(c), n, window) for c in size])
    order = np.argsort(best)
    best, count = best[order], np.cumsum(np.tile(tests[k], len(size))[order])
    m, share = 1.0, ALARMS / len(WINDOWS)
    while True:  # the smallest m such that at most m tests can reach share / m
        can = np.searchsorted(best, np.log(share / m), side="right")
        if not can or count[can - 1] <= m:
            return float(np.log(share / m))
        m *= 1.05


def _tell(grey: NDArray[np.int16], y: NDArray[np.int64], c: int, window: Window, hits: list[_Hit], stride: int) -> Mark:
    from scipy import ndimage

    best, (height, width) = hits[0], grey.shape[1:]
    there = np.zeros((height, width), dtype=bool)
    for hit in hits:
        for row, column in _spots(hit, width):
            there[row, column] = True
    labelled, _ = ndimage.label(there, structure=np.ones((3, 3)))
    (row, column), _ = _spots(best, width)
    (rows, columns), *_ = ndimage.find_objects((labelled == labelled[row, column]).astype(int))
    low, high = best.shade * window.half, min((best.shade + 2) * window.half, 256) - 1
    place = f"{_span('row', rows, stride)}, {_span('column', columns, stride)}"
    carriers = np.flatnonzero(_carries(grey, best, window) & (y == c))
    of_class, n = int((y == c).sum()), len(y)
    series = bool(grey[carriers].std(0).mean() < SERIES * grey.std(0).mean())
    shade = f"{low} to {high} of 255"
    return Mark(c, best.carriers, of_class, best.others, n - of_class, shade, place, carriers, series)


def _spots(hit: _Hit, width: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Row and column of both pixels."""
    row, column = divmod(hit.place, width - (1 - hit.down))
    return (row, column), (row + hit.down, column + 1 - hit.down)


def _carries(grey: NDArray[np.int16], hit: _Hit, window: Window) -> NDArray[np.bool_]:
    out, half = _stands_out(grey, hit.radius, window.contrast), grey // window.half
    carries = np.ones(len(grey), dtype=bool)
    for row, column in _spots(hit, grey.shape[2]):
        carries &= out[:, row, column] & np.isin(half[:, row, column], (hit.shade, hit.shade + 1))
    return carries


def _span(name: str, at: slice, stride: int) -> str:
    first, last = at.start * stride, at.stop * stride - 1
    return f"{name} {first}" if first == last else f"{name}s {first} to {last}"
