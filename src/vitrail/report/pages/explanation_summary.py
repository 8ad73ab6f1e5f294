"""The federation's page of explanations: site x feature, how much each feature moves each site's own model and in
which direction (analysis/explanations/summary.py). It holds no row and no dot: a dot is a patient."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from markupsafe import Markup

from vitrail.analysis.explanations.direction import DOWN, FEWEST, UNCLEAR, UP
from vitrail.analysis.explanations.summary import COLUMNS, LEAST_OTHERS, LEAST_ROWS, ExplanationSummary
from vitrail.core.text import several
from vitrail.report.charts import svg
from vitrail.report.charts.effect_scale import EffectScale
from vitrail.report.charts.grid import Grid, GridCell, grid
from vitrail.report.charts.heatmap import seriate
from vitrail.report.charts.shap import bars
from vitrail.report.pages.frame import fill, unwritten, write_page
from vitrail.report.text import Standing, listed, name
from vitrail.runs.integrity import add_to_chain
from vitrail.storage.atomic_files import write_atomically
from vitrail.storage.csv_files import to_csv

SHOWN = 12  # sites whose own figure is drawn
STANDING = 8  # sites of the first screen


def write_explanation_summary(
    summary: ExplanationSummary, path: Path, study: str = "", refused: Sequence[str] = ()
) -> Path:
    """The page, and the table beside it."""
    table = path.with_suffix(".csv")
    if table.exists() and not (table.is_file() and table.read_bytes().startswith(",".join(COLUMNS[:6]).encode())):
        what = f"{table.name} beside it is no table of `vitrail explain`."
        raise unwritten(path, what, "nothing was overwritten")
    page = write_page(render_explanation_summary(summary, study, refused), path, "explain all")
    write_atomically(table, to_csv(summary.table))
    add_to_chain(table)
    return page


def render_explanation_summary(summary: ExplanationSummary, study: str = "", refused: Sequence[str] = ()) -> str:
    left = [(f"fewer than {LEAST_ROWS} {summary.unit}s", summary.small), ("refused", sorted(refused))]
    standings = [_standing(summary, site) for site in summary.sites]
    return fill(
        "explained_all.html",
        heat=True,
        summary=summary,
        scale=effect_scale(summary),
        study=study,
        figure=heatmap(summary) if len(summary.table) else "",
        standings=standings[:STANDING],
        more_standings=standings[STANDING:],
        left=[(why, listed([name(s) for s in sites], 20)) for why, sites in left if sites],
        rows=summary.table.sort_values(["site", "size"], ascending=[True, False]).to_dict("records"),
        sites=[(site, _site_bars(summary, site)) for site in summary.sites[:SHOWN]],
        fewest=FEWEST,
        least=LEAST_ROWS,
        others=LEAST_OTHERS,
    )


def effect_scale(summary: ExplanationSummary) -> EffectScale:
    sizes = summary.table["size"].dropna()
    return EffectScale(summary.scale, float(sizes.max()) if len(sizes) else 0.0)


def heatmap(summary: ExplanationSummary) -> Markup:
    """Red: the answer rises with the value; blue: it falls; grey: neither alone. The stronger, the more."""
    wide = summary.table.pivot(index="site", columns="feature", values="size")
    sizes = np.nan_to_num(wide.to_numpy(np.float64))
    sites = [wide.index[i] for i in seriate(sizes)]
    features = [wide.columns[j] for j in np.argsort(-sizes.mean(0), kind="stable")]
    entries = {(r["site"], r["feature"]): r for r in summary.table.to_dict("records")}
    most, scale = sizes.max() or 1.0, effect_scale(summary)

    def cell(site: str, feature: str) -> GridCell:
        one = entries[site, feature]
        part = one["size"] / most
        if part != part:
            return GridCell(f"{site}, {feature}: not shown, too few {summary.unit}s differ")
        words = f"{site}, {feature}: {scale.size(one['size'])}, {one['moves'] or 'direction not known'}"
        sign = "−" if one["sign"] == DOWN else one["sign"] or UNCLEAR
        if one["sign"] in (UP, DOWN):
            return GridCell(words, svg.shade(part if one["sign"] == UP else -part), sign)
        return GridCell(words, "both", sign, opacity=0.08 + 0.3 * part)

    cells = [[cell(site, feature) for feature in features] for site in sites]
    text = "; ".join(one.words for row in cells for one in row if one.text)
    title = f"How much each feature moves the model of {several(len(sites), 'site')}"
    return grid([Grid(sites, features, cells, (20.0, 52.0), 30.0)], title, f"{text}.")


def _site_bars(summary: ExplanationSummary, site: str) -> Markup:
    """The figure of the site's own page, of what is shown here."""
    rows, scale = _ranked(summary.table[summary.table.site == site]), effect_scale(summary)
    if not rows:
        return Markup("No feature of this site is shown.")
    return svg.twice(lambda width: bars(rows, summary.moved, scale, width))


def _ranked(rows: pd.DataFrame) -> list[dict[str, Any]]:
    return [
        {str(k): v for k, v in r.items()}
        for r in rows.dropna(subset="size").sort_values("size", ascending=False).to_dict("records")
    ]


def _standing(summary: ExplanationSummary, site: str) -> Standing:
    """Which features a site's model uses most, and which go the other way than at most sites."""
    ranked = _ranked(summary.table[summary.table.site == site])
    if not ranked:
        return Standing(site, "no feature shown", "unsure")
    opposed = [r["feature"] for r in ranked if _is_opposed(summary, r)]
    words = f"Its model uses {listed([r['feature'] for r in ranked[:3]])} most."
    if opposed:
        return Standing(site, f"differs in {listed(opposed, 2)}", "warn", words)
    return Standing(site, "directions as elsewhere", "calm", words)


def _is_opposed(summary: ExplanationSummary, row: dict[str, Any]) -> bool:
    """Whether a feature goes up here and down at most of the other sites, or the other way round."""
    others = summary.table[(summary.table.feature == row["feature"]) & (summary.table.site != row["site"])].sign
    other_way = {UP: DOWN, DOWN: UP}.get(row["sign"])
    return other_way is not None and (others == other_way).sum() > (others == row["sign"]).sum()
