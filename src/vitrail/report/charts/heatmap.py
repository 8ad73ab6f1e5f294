"""Site x feature heatmaps of the layers that sites kept for themselves and published.

Rows are sites, columns features; the colour is the value less "no shift" (0 for b, 1 for w). A cell whose data is
likely wrong is outlined and has a dot, so that no message hangs on colour alone; the paper's marks are a
thin O in the cell and an x above the column. Names of sites are a drawing of their own that stays in view while
the cells scroll beside it. Colours are classes of page.css.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from markupsafe import Markup

from vitrail.core.text import number, several, signed
from vitrail.report.charts import svg
from vitrail.report.charts.grid import Grid, GridCell, grid
from vitrail.report.text import LAYERS, LayerWords
from vitrail.stats.linkage import order_by_linkage

LIKELY = "likely wrong"
SHOWN, SLACK = 24, 30  # features in the main figure; so many are not worth folding
BLOCK = 60  # features in each folded figure
LEAST = 0.05  # the scale ends here at the earliest, so that small differences stay pale


class Layer(NamedTuple):
    """One published layer. Rows and columns are in the order in which they are drawn."""

    name: str
    sites: list[str]
    features: list[str]
    values: np.ndarray  # [site, feature], NaN where the site did not publish
    flagged: np.ndarray  # [site, feature]: likely wrong
    circled: np.ndarray  # [site, feature]: the paper's O
    crossed: np.ndarray  # [feature]: the paper's x
    clip: float  # the colours end here, on both sides of no shift

    @property
    def words(self) -> LayerWords:
        return LAYERS[self.name]

    @property
    def neutral(self) -> float:
        return self.words.neutral

    def shades(self) -> np.ndarray:
        """Deviation from no shift, from -1 to 1; 0 where nothing was published. [site, feature]"""
        return np.nan_to_num(np.clip((self.values - self.neutral) / self.clip, -1, 1))

    def take(self, sites: Sequence[int], features: Sequence[int]) -> Layer:
        matrices = ("values", "flagged", "circled")
        cut: dict[str, Any] = {m: getattr(self, m)[np.ix_(sites, features)] for m in matrices}
        sites_, features_ = [self.sites[i] for i in sites], [self.features[i] for i in features]
        return self._replace(**cut, sites=sites_, features=features_, crossed=self.crossed[list(features)])


class Heatmap(NamedTuple):
    """All drawings of one layer."""

    layer: Layer
    legend: Markup
    main: Markup
    columns: int  # in the main drawing
    folded: list[tuple[str, Markup, str]]  # a line to stand above it, the drawing, its key
    title: str  # of the main drawing
    key: str


def heatmaps(shifts: pd.DataFrame) -> list[Heatmap]:
    """One per layer; sites have the same row in all of them, those that are alike side by side."""
    layers = read_layers(shifts)
    if not layers:
        return []
    seen = np.hstack([layer.shades() for layer in layers])  # [site, feature of any layer]
    silent = np.all([np.isnan(layer.values).all(1) for layer in layers], axis=0)
    speak, mute = (np.flatnonzero(rows).tolist() for rows in (~silent, silent))
    rows = [*(speak[i] for i in seriate(seen[speak])), *mute]
    return [_heatmap(layer.take(rows, range(len(layer.features)))) for layer in layers]


def read_layers(shifts: pd.DataFrame) -> list[Layer]:
    """The layers of the table, in the order of `LAYERS`."""
    marks = shifts["flagged_paper"].astype(str)
    table = shifts.assign(
        site=shifts["site"].astype(str),
        feature=shifts["feature"].astype(str),
        circled=marks.str.contains("O"),
        crossed=marks.str.contains("x"),
    ).drop_duplicates(["layer", "site", "feature"])
    sites, layers = list(dict.fromkeys(table["site"])), []
    for name in LAYERS:
        here = table[table["layer"] == name]
        if here.empty:
            continue
        features = list(dict.fromkeys(here["feature"]))
        columns = ("value", "flagged", "circled", "crossed")
        wide = [here.pivot(index="site", columns="feature", values=c).reindex(sites, columns=features) for c in columns]
        value = wide[0].to_numpy(float)
        flagged, circled, crossed = (w.eq(True).to_numpy() for w in wide[1:])
        clip = _clip(value - LAYERS[name].neutral)
        layers.append(Layer(name, sites, features, value, flagged, circled, np.any(crossed, axis=0), clip))
    return layers


def _clip(deviations: np.ndarray) -> float:
    """Where the colours end: 98 of 100 cells lie within, rounded up to 1, 1.5, 2, 3 or 5 times a power of ten."""
    sizes = np.abs(deviations[np.isfinite(deviations)])
    far = max(float(np.quantile(sizes, 0.98)) if sizes.size else 0.0, LEAST)
    ten = 10.0 ** math.floor(math.log10(far))
    return next(m * ten for m in (1, 1.5, 2, 3, 5, 10) if m * ten >= far * 0.999)


def seriate(rows: np.ndarray) -> list[int]:
    """An order in which similar rows are neighbours: the leaves of an average-linkage tree, each join turned so
    that its nearest ends meet. The end with the larger numbers comes first.

    >>> seriate(np.array([[0.0], [9.0], [1.0], [8.0]]))
    [1, 3, 2, 0]
    """
    squares = (rows**2).sum(1)
    apart = np.sqrt(np.maximum(squares[:, None] + squares - 2 * rows @ rows.T, 0)).round(9)  # [row, row]
    order, _ = order_by_linkage(apart)
    return order[::-1] if order and squares[order[-1]] > squares[order[0]] else order


def _spread(layer: Layer) -> np.ndarray:
    """[feature]: how much the sites differ."""
    published = layer.values[~np.isnan(layer.values).all(1)]
    finite = np.nan_to_num(published, nan=layer.neutral, posinf=1e9, neginf=-1e9)  # [site, feature]
    return np.asarray(finite.std(0) if len(finite) else np.zeros(len(layer.features)))


def _heatmap(layer: Layer) -> Heatmap:
    """The features in which sites differ most, and the others in folded blocks."""
    spread = _spread(layer)
    marked = np.any(layer.flagged, axis=0)
    ranked = sorted(range(len(spread)), key=lambda f: (not marked[f], -spread[f], f))
    count = len(ranked) if len(ranked) <= SLACK else SHOWN
    main, folded = _arrange(layer, ranked[:count]), []
    for start in range(count, len(ranked), BLOCK):
        part = _arrange(layer, ranked[start : start + BLOCK])
        many = int(part.flagged.any(0).sum())
        words = f"{layer.words.column}s {start + 1} to {start + len(part.features)} of {len(ranked)}"
        words += f", {many} of them marked" if many else ""
        folded.append((words, _draw(part, tiny=True), _key(part)))
    legend = _legend(layer).sized("legend")
    return Heatmap(layer, legend, _draw(main, tiny=False), count, folded, _title(main), _key(main))


def _arrange(layer: Layer, features: Sequence[int]) -> Layer:
    """These columns: the marked ones first, then the others, and in each part similar ones side by side."""
    marked, shades, out = np.any(layer.flagged, axis=0), layer.shades(), []
    for wanted in (True, False):
        part = [f for f in features if marked[f] == wanted]
        out += [part[i] for i in seriate(shades[:, part].T)]
    return layer.take(range(len(layer.sites)), out)


# drawing


def _draw(layer: Layer, tiny: bool) -> Markup:
    shades = layer.shades()  # [site, feature]
    cells = [
        [
            GridCell(
                cell_words(layer, i, j),
                "none" if math.isnan(layer.values[i, j]) else svg.shade(shades[i, j]),
                flagged=bool(layer.flagged[i, j]),
                circled=bool(layer.circled[i, j]),
            )
            for j in range(len(layer.features))
        ]
        for i in range(len(layer.sites))
    ]
    silent = {
        site: GridCell(f"{site}: {layer.words.silent}, {layer.words.title} ({layer.name})", text=layer.words.silent)
        for site, values in zip(layer.sites, layer.values, strict=True)
        if np.isnan(values).all()
    }
    bold, crossed = (
        [f for f, mark in zip(layer.features, marks.tolist(), strict=True) if mark]
        for marks in (np.any(layer.flagged, axis=0), layer.crossed)
    )
    widths, height = ((5.0, 12.0), 0.0) if tiny else ((12.0, 44.0), 28.0 if len(layer.sites) <= 12 else 20.0)
    drawn = Grid(
        layer.sites, layer.features, cells, widths, height, silent=silent, bold=bold, crossed=crossed, tiny=tiny
    )
    return grid([drawn], _title(layer), describe_layer(layer))


def _legend(layer: Layer) -> svg.Drawing:
    """The shades and where they end."""
    wide, count = 20, 2 * svg.SHADES + 1
    parts = [svg.tag("rect", x=wide * i, y=2, width=wide, height=12, class_=f"h{i}") for i in range(count)]
    write = signed if layer.neutral == 0 else number
    low, high = (write(layer.neutral + s * layer.clip, 2).removesuffix("0").removesuffix(".0") for s in (-1, 1))
    middle = f"{layer.neutral:.0f}, no {layer.words.noun}"
    texts = ((0.0, f"{low} or less", "start"), (0.5, middle, "middle"), (1.0, f"{high} or more", "end"))
    parts += [svg.text(wide * count * at, 30, words, "tick", side) for at, words, side in texts]
    return svg.Drawing(wide * count, 36, parts)


# words


def _title(layer: Layer) -> str:
    sizes = several(len(layer.sites), "site"), several(len(layer.features), layer.words.column)
    return f"{layer.words.title.capitalize()} ({layer.name}), {' and '.join(sizes)}"


def _key(layer: Layer) -> str:
    """The marks that this drawing has."""
    paper = " and ".join(["O"] * bool(layer.circled.any()) + ["x"] * bool(layer.crossed.any()))
    marks = ["Outlined with a dot: likely wrong."] * bool(layer.flagged.any())
    return " ".join(marks + [f"{paper}: marks of the iFedAvg paper."] * bool(paper))


def cell_words(layer: Layer, i: int, j: int) -> str:
    """One cell: va, chol: +1.203, likely wrong."""
    if math.isnan(layer.values[i, j]):
        return f"{layer.sites[i]}, {layer.features[j]}: {layer.words.silent}"
    write = signed if layer.neutral == 0 else number
    parts = [f"{layer.sites[i]}, {layer.features[j]}: {write(layer.values[i, j])}"]
    parts += [LIKELY] * bool(layer.flagged[i, j]) + ["O of the paper"] * bool(layer.circled[i, j])
    return ", ".join(parts)


def describe_layer(layer: Layer, most: int = 60) -> str:
    """What there is to see, for those who listen: the marked cells, and who did not publish."""
    cells = [cell_words(layer, i, j).replace(f", {LIKELY}", "") for i, j in np.argwhere(layer.flagged)]
    rest = f"; and {len(cells) - most} more" if len(cells) > most else ""
    flagged = f"Likely wrong: {'; '.join(cells[:most])}{rest}." if cells else "No cell is marked as likely wrong."
    silent = [site for site, row in zip(layer.sites, layer.values, strict=True) if np.isnan(row).all()]
    return flagged + (f" {layer.words.silent.capitalize()}: {', '.join(silent)}." if silent else "")
