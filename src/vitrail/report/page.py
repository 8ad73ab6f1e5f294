"""The page of a run or of a comparison: tables in, one self-contained HTML file out.

Nothing is trained or chosen here. What a page works out is in `tables`, what it says in `findings`, what it
draws in `figures`.
"""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import pandas as pd
from markupsafe import Markup

from vitrail.report import figures, trust
from vitrail.report.figures import Gain, Spread
from vitrail.report.findings import (
    best_method,
    findings,
    headline,
    next_step,
    no_shifts,
    pseudonymous,
    refusals,
    shift_sentence,
    strongest_first,
)
from vitrail.report.frame import fill, part
from vitrail.report.heatmap import heatmaps
from vitrail.report.tables import Matrix, lead_method, matrix, methods_of, sites_of, traffic, where
from vitrail.report.trust import Learned
from vitrail.report.words import (
    ANSWERS,
    LAYERS,
    VERDICT_CLASS,
    WHY_UNDEFINED,
    Interval,
    metric_words,
)
from vitrail.runs.fit import ShiftFinding


@dataclass(frozen=True)
class Page:
    """All that a page shows. Low and high are 95 % intervals, NaN with one seed. The ledger is of one seed.
    A gain is positive where joining is better, also for metrics of which less is better.
    """

    title: str  # study name
    kind: Literal["run", "compare"]
    description: str
    facts: list[tuple[str, str]]  # what was run: label, value
    metric: str  # the primary one
    lower_is_better: bool
    titles: dict[str, str]  # method key -> its name on pages, in the order of methods
    yardsticks: tuple[str, ...]  # method keys that are not federated
    scores: pd.DataFrame  # method, seed, site, split ("test"/"train"), metric, value
    curves: pd.DataFrame  # method, seed, round, site, metric, value: on each site's own hold-out
    summary: pd.DataFrame  # method, metric, mean, mean_low, mean_high, worst_site, worst, worst_low/high
    verdicts: pd.DataFrame  # site, metric, method, alone, joined, gain, low, high, verdict, why
    ledger: pd.DataFrame  # method, site, stage, direction ("to site"/"from site"), messages, bytes
    wire: pd.DataFrame  # method, stage, direction, name, shape, dtype, bytes, rounds, seen ("each"/"sum")
    sites: pd.DataFrame  # site, train_rows, test_rows, then anything as text
    notes: list[str]  # attribution, what the page left out
    # published layers of iFedAvg: site, feature, layer ("b_in"...), value, score, p_value, flagged_paper, flagged
    shifts: pd.DataFrame | None = None
    shift_findings: Sequence[ShiftFinding] = ()
    pseudonyms: Sequence[str] = ()  # sites in `shifts` that go by another name there
    newcomers: Sequence[str] = ()  # sites that came after training
    deployed: bool = False  # between machines: each site has its own model and page
    learned: Learned | None = None  # whom each site learned from (Weight Erosion, Influence)


def render(page: Page) -> str:
    """One HTML file that needs no network. Its policy allows one script, page.js, by its hash."""
    script = Markup(part("page.js"))
    mark = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    learned = page.learned and trust.contents(page.learned, metric_words(page.metric))
    heat = page.shifts is not None or page.learned is not None
    return fill(
        "page.html",
        heat=heat,
        script=script,
        hash=mark,
        page=page,
        shifts=_shifts(page),
        learned=learned,
        **_contents(page),
    )


def _contents(page: Page) -> dict[str, Any]:
    """What the template is given."""
    table = matrix(page, page.metric)
    words = metric_words(page.metric)
    verdicts = where(page.verdicts, metric=page.metric)
    verdicts = verdicts if verdicts.empty else verdicts.sort_values("gain", ascending=False, kind="stable")
    rows = [{**r, "method": page.titles.get(r["method"], r["method"])} for r in verdicts.to_dict("records")]
    gains = [Gain(r["site"], r["method"], Interval(r["gain"], r["low"], r["high"]), r["verdict"]) for r in rows]
    order = _worst_first(page, table)
    federated = [m for m in table.methods if m not in page.yardsticks]
    chosen = {lead_method(page, table.methods), best_method(page, table, federated)}
    banded = [m for m in table.methods if m in chosen or len(table.methods) <= 3]
    curves = where(page.curves, metric=page.metric)
    spread = curves_drawn = Markup()
    if len(table.rows) > 1:
        spread = figures.spread_figure(_spreads(page, table), words, page.lower_is_better)
    if len(curves):
        drawn = order[: figures.PANELS]
        curves_drawn = figures.curves_figure(curves, drawn, page.titles, page.yardsticks, words, banded)
    pairs = set() if page.scores.empty else set(zip(page.scores["metric"], page.scores["split"], strict=True))
    others = sorted(pairs - {(page.metric, "test")}, key=lambda o: (o[1] != "test", o[0] != page.metric, o[0]))
    wire = [(m, where(page.wire, method=m).to_dict("records")) for m in methods_of(page)]
    return {
        "headline": headline(page),
        "findings": findings(page, table),
        "seeds": 0 if page.scores.empty else page.scores["seed"].nunique(),
        "table": table,
        "words": words,
        "metric_words": metric_words,
        "why_undefined": lambda m: WHY_UNDEFINED.get(m, "the hold-out rows do not define this metric"),
        "others": [matrix(page, m, s) for m, s in others],
        "verdicts": rows,
        "answers": ANSWERS,
        "verdict_class": VERDICT_CLASS,
        "verdict_figure": figures.verdict_figure(gains, f"gain in {words}"),
        "spread_figure": spread,
        "curves_figure": curves_drawn,
        "banded": [page.titles[m] for m in banded] if len(banded) < len(table.methods) else [],
        "yards": any(m in page.yardsticks for m in table.methods),
        "undrawn": max(0, len(order) - figures.PANELS),
        "panels": figures.PANELS,
        "traffic": traffic(page),
        "site_count": len(sites_of(page)),
        "wire": [(m, lines) for m, lines in wire if lines],
        "site_rows": page.sites.to_dict("records"),
        "site_columns": [c for c in page.sites.columns if c not in ("site", "train_rows", "test_rows")],
        "summary": page.summary.to_dict("records"),
    }


def _shifts(page: Page) -> dict[str, Any] | None:
    """What the template is given of the layers that sites published."""
    if page.shifts is None:
        return None
    marked = page.shifts[page.shifts["flagged"].eq(True)]
    order = marked["score"].abs().sort_values(ascending=False, kind="stable", na_position="last").index
    return {
        "findings": [shift_sentence(f) for f in strongest_first(page.shift_findings)],
        "none": no_shifts(page.shifts),
        "said": refusals(page.shifts) + pseudonymous(page.shifts, page.pseudonyms),
        "next": next_step(page.shift_findings, page.deployed),
        "maps": heatmaps(page.shifts),
        "words": LAYERS,
        "marked": marked.loc[order].to_dict("records"),
        "paper": bool(page.shifts["flagged_paper"].astype(str).str.contains("[Ox]").any()),
    }


def _worst_first(page: Page, table: Matrix) -> list[str]:
    """Sites from the worst under FedAvg (or the first federated method) to the best; undefined ones last."""
    if (lead := lead_method(page, table.methods)) is None:
        return []
    column = table.methods.index(lead)
    sign = -1 if page.lower_is_better else 1
    ranked = sorted(table.rows, key=lambda r: (math.isnan(v := r[1][column].value), 0 if math.isnan(v) else sign * v))
    return [site for site, _ in ranked]


def _spreads(page: Page, table: Matrix) -> list[Spread]:
    """Rows of the spread figure, the method with the best worst site first."""
    rows = []
    for i, method in enumerate(table.methods):
        dots = [(site, cells[i].value) for site, cells in table.rows if not math.isnan(cells[i].value)]
        rows.append(Spread(page.titles[method], method in page.yardsticks, dots, *table.worsts[i]))
    sign = 1 if page.lower_is_better else -1
    return sorted(rows, key=lambda r: sign * r.interval.value if r.worst else 0)
