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
from vitrail.core.text import decimals, number, several, shorten_all
from vitrail.report.charts import svg
from vitrail.report.charts.heatmap import seriate
from vitrail.report.charts.shap import bars
from vitrail.report.pages.frame import fill, unwritten, write_page
from vitrail.report.text import listed, name
from vitrail.runs.integrity import add_to_chain
from vitrail.storage.atomic_files import write_atomically
from vitrail.storage.csv_files import to_csv

SHOWN = 12  # sites whose own figure is drawn


def write_explanation_summary(
    told: ExplanationSummary, path: Path, study: str = "", refused: Sequence[str] = ()
) -> Path:
    """The page, and the table beside it."""
    beside = path.with_suffix(".csv")
    if beside.exists() and not (beside.is_file() and beside.read_bytes().startswith(",".join(COLUMNS[:6]).encode())):
        what = f"{beside.name} beside it is no table of `vitrail explain`."
        raise unwritten(path, what, "nothing was overwritten")
    page = write_page(render_explanation_summary(told, study, refused), path, "explain all")
    write_atomically(beside, to_csv(told.table))
    add_to_chain(beside)
    return page


def render_explanation_summary(told: ExplanationSummary, study: str = "", refused: Sequence[str] = ()) -> str:
    digits = decimals(told.table["size"].max() if len(told.table) else 0.0) + 1
    left = [(f"fewer than {LEAST_ROWS} {told.unit}s", told.small), ("refused", sorted(refused))]
    return fill(
        "explained_all.html",
        heat=True,
        told=told,
        study=study,
        figure=heatmap(told) if len(told.table) else "",
        findings=[_finding(told.table[told.table.site == site], digits) for site in told.sites],
        left=[(why, listed([name(s) for s in sites], 20)) for why, sites in left if sites],
        rows=told.table.sort_values(["site", "size"], ascending=[True, False]).to_dict("records"),
        sites=[(site, _site_bars(told, site)) for site in told.sites[:SHOWN]],
        fewest=FEWEST,
        digits=digits,
        least=LEAST_ROWS,
        others=LEAST_OTHERS,
    )


def heatmap(told: ExplanationSummary) -> Markup:
    """Red: the answer rises with the value; blue: it falls; grey: neither alone. The stronger, the more."""
    wide = told.table.pivot(index="site", columns="feature", values="size")
    sizes = np.nan_to_num(wide.to_numpy(np.float64))
    sites = [wide.index[i] for i in seriate(sizes)]
    features = [wide.columns[j] for j in np.argsort(-sizes.mean(0), kind="stable")]
    cells = {(r["site"], r["feature"]): r for r in told.table.to_dict("records")}
    most = sizes.max() or 1.0
    digits = decimals(most) + 1
    short, labels = shorten_all(sites, 22), shorten_all(features, 20)
    across = 7.0 * max(map(len, labels.values()))
    left = max(int(across / 2), svg.names_room(short.values()))
    cell, high, edge = max(20.0, min(52.0, (svg.WIDE - left - 8) // len(features))), 30.0, 3.0
    names, drawn, said = [], [], []
    for i, site in enumerate(sites):
        y = 4 + high * i
        names.append(svg.text(left - 8, y + high / 2 + 4, short[site], "name", "end", site))
        for j, feature in enumerate(features):
            one, x = cells[site, feature], edge + cell * j
            part = one["size"] / most
            words = f"{site}, {feature}: not told, too few {told.unit}s differ"
            kind, look = "none", {}
            if part == part:
                words = f"{site}, {feature}: {number(one['size'], digits)}, {one['moves'] or 'direction not known'}"
                kind = svg.shade(part if one["sign"] == UP else -part) if one["sign"] in (UP, DOWN) else "both"
                look = {"fill_opacity": f"{0.08 + 0.3 * part:.2f}"} if kind == "both" else {}
                said.append(words)
            box = {"x": x, "y": y, "width": cell - 1, "height": high - 1}
            drawn.append(svg.tag("rect", svg.tip(words), **box, **look, class_=kind))
            if part == part:
                sign = "−" if one["sign"] == DOWN else one["sign"] or UNCLEAR
                drawn.append(svg.text(x + cell / 2, y + high / 2 + 4, sign, svg.ink_on(kind), "middle"))
    bottom = 4 + high * len(sites)
    drawn += [svg.turned(edge + cell * (j + 0.5), bottom, labels[f], "feature", f) for j, f in enumerate(features)]
    drawing = svg.Drawing(edge + cell * len(features) + 5, bottom + svg.turned_room(across), drawn)
    title = f"How much each feature moves the model of {several(len(sites), 'site')}"
    return svg.scrolling_rows(svg.Drawing(left, bottom, names), drawing, title, "; ".join(said) + ".")


def _site_bars(told: ExplanationSummary, site: str) -> Markup:
    """The figure of the site's own page, of what is told here."""
    rows = _ranked(told.table[told.table.site == site])
    return svg.twice(lambda width: bars(rows, told.measure, width)) if rows else Markup("Nothing is told.")


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
