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
from vitrail.core.text import decimals, number, several
from vitrail.report.charts import svg
from vitrail.report.charts.grid import Cell, Grid, grid
from vitrail.report.charts.heatmap import seriate
from vitrail.report.charts.shap import bars
from vitrail.report.pages.frame import fill, unwritten, write_page
from vitrail.report.text import listed, name
from vitrail.runs.integrity import add_to_chain
from vitrail.storage.atomic_files import write_atomically
from vitrail.storage.csv_files import to_csv

SHOWN = 12  # sites whose own figure is drawn


def write_explanation_summary(
    summary: ExplanationSummary, path: Path, study: str = "", refused: Sequence[str] = ()
) -> Path:
    """The page, and the table beside it."""
    beside = path.with_suffix(".csv")
    if beside.exists() and not (beside.is_file() and beside.read_bytes().startswith(",".join(COLUMNS[:6]).encode())):
        what = f"{beside.name} beside it is no table of `vitrail explain`."
        raise unwritten(path, what, "nothing was overwritten")
    page = write_page(render_explanation_summary(summary, study, refused), path, "explain all")
    write_atomically(beside, to_csv(summary.table))
    add_to_chain(beside)
    return page


def render_explanation_summary(summary: ExplanationSummary, study: str = "", refused: Sequence[str] = ()) -> str:
    digits = decimals(summary.table["size"].max() if len(summary.table) else 0.0) + 1
    left = [(f"fewer than {LEAST_ROWS} {summary.unit}s", summary.small), ("refused", sorted(refused))]
    return fill(
        "explained_all.html",
        heat=True,
        told=summary,
        study=study,
        figure=heatmap(summary) if len(summary.table) else "",
        findings=[_finding(summary.table[summary.table.site == site], digits) for site in summary.sites],
        left=[(why, listed([name(s) for s in sites], 20)) for why, sites in left if sites],
        rows=summary.table.sort_values(["site", "size"], ascending=[True, False]).to_dict("records"),
        sites=[(site, _site_bars(summary, site)) for site in summary.sites[:SHOWN]],
        fewest=FEWEST,
        digits=digits,
        least=LEAST_ROWS,
        others=LEAST_OTHERS,
    )


def heatmap(summary: ExplanationSummary) -> Markup:
    """Red: the answer rises with the value; blue: it falls; grey: neither alone. The stronger, the more."""
    wide = summary.table.pivot(index="site", columns="feature", values="size")
    sizes = np.nan_to_num(wide.to_numpy(np.float64))
    sites = [wide.index[i] for i in seriate(sizes)]
    features = [wide.columns[j] for j in np.argsort(-sizes.mean(0), kind="stable")]
    entries = {(r["site"], r["feature"]): r for r in summary.table.to_dict("records")}
    most = sizes.max() or 1.0
    digits = decimals(most) + 1

    def cell(site: str, feature: str) -> Cell:
        one = entries[site, feature]
        part = one["size"] / most
        if part != part:
            return Cell(f"{site}, {feature}: not told, too few {summary.unit}s differ")
        words = f"{site}, {feature}: {number(one['size'], digits)}, {one['moves'] or 'direction not known'}"
        sign = "−" if one["sign"] == DOWN else one["sign"] or UNCLEAR
        if one["sign"] in (UP, DOWN):
            return Cell(words, svg.shade(part if one["sign"] == UP else -part), sign)
        return Cell(words, "both", sign, opacity=0.08 + 0.3 * part)

    cells = [[cell(site, feature) for feature in features] for site in sites]
    text = "; ".join(one.words for row in cells for one in row if one.text)
    title = f"How much each feature moves the model of {several(len(sites), 'site')}"
    return grid([Grid(sites, features, cells, (20.0, 52.0), 30.0)], title, f"{text}.")


def _site_bars(summary: ExplanationSummary, site: str) -> Markup:
    """The figure of the site's own page, of what is told here."""
    rows = _ranked(summary.table[summary.table.site == site])
    return svg.twice(lambda width: bars(rows, summary.measure, width)) if rows else Markup("Nothing is told.")


def _ranked(rows: pd.DataFrame) -> list[dict[str, Any]]:
    return [
        {str(k): v for k, v in r.items()}
        for r in rows.dropna(subset="size").sort_values("size", ascending=False).to_dict("records")
    ]


def _finding(rows: pd.DataFrame, digits: int) -> Markup:
    """The features that count most at a site."""
    most = [
        Markup("{} ({}{})").format(
            name(r["feature"]), number(r["size"], digits), f"; {r['moves']}" if r["moves"] else ""
        )
        for r in _ranked(rows)[:3]
    ]
    return Markup("{}: most by {}.").format(name(rows.site.iloc[0]), listed(most) if most else "nothing that is told")
