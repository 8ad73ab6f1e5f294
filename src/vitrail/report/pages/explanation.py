"""Why the model answers as it does: a site's private page of Shapley values (analysis/explanations/rows.py).

The same page for a site of a run of tables, for a host (a guest's united feature is grey and hatched, since the host
does not know its values) and for a guest that splits its own answer over its own columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup

from vitrail.analysis.explanations.comparison import compare_whole
from vitrail.analysis.explanations.direction import DOWN, FEWEST, UP
from vitrail.analysis.explanations.rows import MOST_EXACT, Explanation
from vitrail.core.errors import Problem, VitrailError, nearest
from vitrail.report.charts import shap as figures
from vitrail.report.charts import svg
from vitrail.report.charts.effect_scale import EffectScale, scale_of
from vitrail.report.pages.frame import fill, write_page
from vitrail.report.text import Standing, Tone, listed, name

FIRST, FIRST_BARS = 3, 5  # features of the first screen: in words, and drawn
COLOURS: dict[str, Tone] = {UP: "loss", DOWN: "gain"}  # red and blue, as in the figures


class PageHeader(NamedTuple):
    """What the frame of a site's own page asks for."""

    site: str
    study: str
    same: bool = True


class ExplainedRow(NamedTuple):
    """One row of the page."""

    title: str
    words: Markup
    figure: Markup
    equal: list[str]  # features that are as in the typical row


def write_explained(
    whole: Explanation,
    path: Path,
    *,
    site: str,
    study: str = "",
    shown: Explanation | None = None,
    feature: str | None = None,
    beyond: Sequence[Path] = (),
) -> Path:
    """shown: rows that are explained one by one, else the most typical and the most extreme of all. feature: the one
    whose dependence is drawn, else that which moves the answer most. beyond: pages in other folders to link to."""
    return write_page(render_explained(whole, site, study, shown, feature), path, "explain", beyond)


def render_explained(
    whole: Explanation, site: str, study: str = "", shown: Explanation | None = None, feature: str | None = None
) -> str:
    if not len(whole):
        raise VitrailError("there is nothing to show", [Problem("rows", "no row was explained.")])
    if not whole.rows:
        whole = replace(whole, rows=tuple(str(i + 1) for i in range(len(whole))))
    ranked, many, scale = whole.importance(), len(whole) > 1, scale_of(whole)
    of = _feature(whole, feature, [r["feature"] for r in ranked])
    one = shown if shown is not None else whole[typical_rows(whole)]
    titles = [f"Row {figures.row_name(one, i)}" for i in range(len(one))]
    if shown is None and len(one) == 2:
        titles = [f"{t}, {w}" for t, w in zip(titles, ("an ordinary one", "the most extreme"), strict=True)]
    at = {n: i for i, n in enumerate(whole.feature_names)}
    cut = FIRST_BARS if len(ranked) > FIRST_BARS + 2 else 0

    def bars(first: int) -> Markup:
        return svg.twice(lambda width: figures.bars(ranked, whole.moved, scale, width, whole.united, first))

    return fill(
        "explained.html",
        heat=True,
        header=PageHeader(site, study),
        e=whole,
        scale=scale,
        word=figures.row_word(whole),
        rows=[_row(one, i, title) for i, title in enumerate(titles)],
        asked=shown is not None,
        ranked=[(r, _off(whole, at[r["feature"]])) for r in ranked],
        standings=[feature_standing(r, scale) for r in ranked[:FIRST]] if many else [],
        most=figures.MOST,
        drawn=min(len(whole), figures.DOTS[svg.WIDE]),
        bars=bars(0) if many else "",
        first_bars=bars(cut) if many else "",
        is_cut=bool(cut),
        swarm=svg.twice(lambda width: figures.beeswarm(whole, width)) if many else "",
        of=None if of is None else whole.feature_names[of],
        dependence=svg.twice(lambda width: figures.dependence(whole, of, width)) if many and of is not None else "",
        lost=0 if of is None else sum(v is None or v != v for v in whole.data[:, of]),
        levels=() if of is None else whole.column(of).levels,
        keyed=[(whole.feature_names[i], c.levels) for i, c in enumerate(whole.columns) if len(c.levels) > 2],
        has_columns=bool(whole.columns),
        sampled=bool(whole.half.any()),
        fewest=FEWEST,
        exact=MOST_EXACT,
        united=listed([name(u) for u in whole.united]),
        compared=None if whole.whole is None else compare_whole(whole, whole.whole),
        base=figures.says_words(whole, float(whole.base_values[0])),
        one_base=bool(np.ptp(whole.base_values) < 1e-6 * (1 + np.abs(whole.base_values).max())),
    )


def feature_standing(ranked: Mapping[str, Any], scale: EffectScale) -> Standing:
    """How much a feature counts, and in which direction."""
    words = f"By {scale.size(ranked['size'])} on average"
    if ranked["low"] == ranked["low"]:
        words += f" (95 % interval {scale.span(ranked['low'], ranked['high'])})"
    direction = ranked["moves"] or "direction not known"
    return Standing(ranked["feature"], direction, COLOURS.get(ranked["sign"], "unsure"), f"{words}.")


def typical_rows(e: Explanation) -> list[int]:
    """The row whose values are nearest to the medians of all, and the one furthest from the typical row's answer."""
    near = ((e.values - np.median(e.values, 0)) ** 2).sum(1).argmin()
    return list(dict.fromkeys([int(near), int(np.abs(e.values.sum(1)).argmax())]))


def _feature(e: Explanation, wanted: str | None, ranked: Sequence[str]) -> int | None:
    """The place of the feature whose dependence is drawn: the one wanted, else the first that most rows have a value
    of; none where no value is known."""
    if wanted is not None and (wanted not in e.feature_names or wanted in e.united):
        visible = [n for n in e.feature_names if n not in e.united]
        what = "its values are a guest’s, and not known here." if wanted in e.united else "there is no such feature."
        raise VitrailError("cannot explain", [Problem(f"--feature {wanted}", what, nearest(wanted, visible))])
    counts = {n: sum(v is not None and v == v for v in e.data[:, e.feature_names.index(n)]) for n in ranked}
    usable = [n for n in ranked if counts[n]]
    chosen = wanted or next((n for n in usable if 2 * counts[n] >= len(e)), next(iter(usable), None))
    return None if chosen is None or chosen not in usable else e.feature_names.index(chosen)


def _row(e: Explanation, row: int, title: str) -> ExplainedRow:
    values = e.values[row]
    equal = [n for n, v in zip(e.feature_names, values, strict=True) if v == 0]
    return ExplainedRow(title, row_words(e, row), svg.twice(lambda width: figures.waterfall(e, row, width)), equal)


def row_words(e: Explanation, row: int) -> Markup:
    """What the model says of a row, what of a typical one, and which features make most of the difference."""
    values, scale = e.values[row], scale_of(e)
    order = [i for i in np.argsort(-np.abs(values), kind="stable")[:FIRST] if values[i]]
    says = figures.says_words(e, float(e.total[row]))
    off = scale.answer(float(e.base_values[row]))
    words = Markup("{}{}; a typical {} here {}.").format(says[:1].upper(), says[1:], figures.row_word(e), off)
    most = [
        Markup("{} ({})").format(name(figures.cell_words(e, row, int(i))), scale.effect(float(values[i])))
        for i in order
    ]
    return words + (Markup(" Mostly because of {}.").format(listed(most)) if most else Markup())


def _off(e: Explanation, feature: int) -> str:
    if e.feature_names[feature] in e.united:
        return "the guest’s own"
    return figures.value_words(e, feature, e.column(feature).off) if e.columns else ""


def to_text(e: Explanation, site: str, shown: Explanation | None = None) -> str:
    """For a terminal."""
    scale, factor = scale_of(e), " (× is a factor)" * scale_of(e).factors
    lines = [f"This stays at {site}.", "", f"{e.counted}; typical {figures.row_word(e)}: {e.reference}."]
    lines += [
        f"What moves the {e.moved} most{factor}:",
        *(
            f"  {r['feature']}: {scale.size(r['size'])} on average{', ' * bool(r['moves'])}{r['moves']}"
            for r in e.importance()[:5]
        ),
    ]
    if e.whole is not None:
        lines += ["", "With every column at hand, as in a simulation alone: mean sizes united, and of all columns"]
        for one in compare_whole(e, e.whole).features:
            lines.append(f"  {one.feature}: {scale.size(one.united)}, {scale.size(one.whole)}")
            lines += [f"    {column}: {scale.size(size)}" for column, size in one.hidden]
    for i in range(len(shown) if shown else 0):
        assert shown is not None
        order = [int(j) for j in np.argsort(-np.abs(shown.values[i]), kind="stable")[:5] if shown.values[i, j]]
        sized = scale_of(shown)
        says = figures.says_words(shown, float(shown.total[i])).striptags()
        off = sized.answer(float(shown.base_values[i]))
        lines += ["", f"Row {figures.row_name(shown, i)}: {says}; a typical {figures.row_word(e)} here {off}."]
        lines += [f"  {figures.cell_words(shown, i, j)}: {sized.effect(float(shown.values[i, j]))}" for j in order]
    return "\n".join(lines)
