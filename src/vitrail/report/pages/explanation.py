"""Why the model said that: a site's private page of Shapley values (analysis/explanations/rows.py), for its own eyes.

The same page for a site of a run of tables, for a host (a guest's united feature is grey and hatched, since the host
does not know its values) and for a guest that splits its own answer over its own columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from markupsafe import Markup

from vitrail.analysis.explanations.direction import FEWEST
from vitrail.analysis.explanations.rows import MOST_EXACT, Explanation
from vitrail.core.errors import Problem, VitrailError, nearest
from vitrail.core.text import decimals, number
from vitrail.report.charts import shap as figures
from vitrail.report.charts import svg
from vitrail.report.pages.frame import fill, write_page
from vitrail.report.text import listed, name


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
    equal: list[str]  # features that are as in the reference


def write_explained(
    told: Explanation,
    path: Path,
    *,
    site: str,
    study: str = "",
    shown: Explanation | None = None,
    feature: str | None = None,
    beyond: Sequence[Path] = (),
) -> Path:
    """shown: rows that are taken apart one by one, else the most typical and the most extreme of `told`. feature: the
    one whose dependence is drawn, else that which moves the answer most. beyond: pages in other folders to link to."""
    return write_page(render_explained(told, site, study, shown, feature), path, "explain", beyond)


def render_explained(
    told: Explanation, site: str, study: str = "", shown: Explanation | None = None, feature: str | None = None
) -> str:
    if not len(told):
        raise VitrailError("there is nothing to show", [Problem("rows", "no row was explained.")])
    if not told.rows:
        told = replace(told, rows=tuple(str(i + 1) for i in range(len(told))))
    ranked, many = told.importance(), len(told) > 1
    of = _feature(told, feature, [r["feature"] for r in ranked])
    one = shown if shown is not None else told[typical_rows(told)]
    titles = [f"Row {figures.row_name(one, i)}" for i in range(len(one))]
    if shown is None and len(one) == 2:
        titles = [f"{t}: the most {w}" for t, w in zip(titles, ("typical", "extreme"), strict=True)]
    at = {n: i for i, n in enumerate(told.feature_names)}
    return fill(
        "explained.html",
        heat=True,
        header=PageHeader(site, study),
        e=told,
        rows=[_shown(one, i, title) for i, title in enumerate(titles)],
        ranked=[(r, _off(told, at[r["feature"]])) for r in ranked],
        digits=decimals(ranked[0]["size"]) + 1,
        most=figures.MOST,
        drawn=min(len(told), figures.DOTS[svg.WIDE]),
        bars=svg.twice(lambda width: figures.bars(ranked, told.measure, width, told.united)) if many else "",
        swarm=svg.twice(lambda width: figures.beeswarm(told, width)) if many else "",
        of=None if of is None else told.feature_names[of],
        dependence=svg.twice(lambda width: figures.dependence(told, of, width)) if many and of is not None else "",
        lost=0 if of is None else sum(v is None or v != v for v in told.data[:, of]),
        levels=() if of is None else told.column(of).levels,
        keyed=[(told.feature_names[i], c.levels) for i, c in enumerate(told.columns) if len(c.levels) > 2],
        known=bool(told.columns),
        sampled=bool(told.half.any()),
        fewest=FEWEST,
        exact=MOST_EXACT,
        united=listed([name(u) for u in told.united]),
        base=figures.says_words(told, float(told.base_values[0])),
        one_base=bool(np.ptp(told.base_values) < 1e-6 * (1 + np.abs(told.base_values).max())),
    )


def typical_rows(e: Explanation) -> list[int]:
    """The row whose values are nearest to the medians of all, and the one furthest from the reference's answer."""
    near = ((e.values - np.median(e.values, 0)) ** 2).sum(1).argmin()
    return list(dict.fromkeys([int(near), int(np.abs(e.values.sum(1)).argmax())]))


def _feature(e: Explanation, wanted: str | None, ranked: Sequence[str]) -> int | None:
    """The place of the feature whose dependence is drawn; none where no value is known."""
    if wanted is not None and (wanted not in e.feature_names or wanted in e.united):
        known = [n for n in e.feature_names if n not in e.united]
        what = "its values are a guest’s, and not known here." if wanted in e.united else "there is no such feature."
        raise VitrailError("cannot explain", [Problem(f"--feature {wanted}", what, nearest(wanted, known))])
    seen = [n for n in ranked if any(v is not None and v == v for v in e.data[:, e.feature_names.index(n)])]
    chosen = wanted if wanted is not None else next(iter(seen), None)
    return None if chosen is None or chosen not in seen else e.feature_names.index(chosen)


def _shown(e: Explanation, row: int, title: str) -> ExplainedRow:
    values, base, total = e.values[row], float(e.base_values[row]), float(e.total[row])
    order = [i for i in np.argsort(-np.abs(values), kind="stable")[:3] if values[i]]
    off = figures.answer_words(e, base)
    words = Markup("The model says {}, and {} of the reference.").format(figures.says_words(e, total), off)
    if order:
        most = [
            Markup("{} ({})").format(name(figures.cell_words(e, row, int(i))), figures.written(e, values[i]))
            for i in order
        ]
        words += Markup(" Most of the way: {}.").format(listed(most))
    equal = [n for n, v in zip(e.feature_names, values, strict=True) if v == 0]
    return ExplainedRow(title, words, svg.twice(lambda width: figures.waterfall(e, row, width)), equal)


def _off(e: Explanation, feature: int) -> str:
    if e.feature_names[feature] in e.united:
        return "the guest’s own"
    return figures.value_words(e, feature, e.column(feature).off) if e.columns else ""


def to_text(e: Explanation, site: str, shown: Explanation | None = None) -> str:
    """For a terminal."""
    digits = decimals(float(np.abs(e.values).max())) + 1
    lines = [f"This stays at {site}.", "", f"{e.counted}; reference: {e.reference}."]
    lines += [
        f"What moves the {e.measure} most:",
        *(
            f"  {r['feature']}: {number(r['size'], digits)} on average{', ' * bool(r['moves'])}{r['moves']}"
            for r in e.importance()[:5]
        ),
    ]
    for i in range(len(shown) if shown else 0):
        assert shown is not None
        order = [int(j) for j in np.argsort(-np.abs(shown.values[i]), kind="stable")[:5] if shown.values[i, j]]
        says, off = figures.says_words(shown, shown.total[i]), figures.answer_words(shown, shown.base_values[i])
        lines += ["", f"Row {figures.row_name(shown, i)}: {says.striptags()}, and {off} of the reference."]
        lines += [f"  {figures.cell_words(shown, i, j)}: {figures.written(shown, shown.values[i, j])}" for j in order]
    return "\n".join(lines)
