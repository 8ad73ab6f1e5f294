"""Made-up private layers and findings, and pages with their heatmaps."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import torch

from tests.support.report.pages import HEART, SEEDS, make, run_of, screened
from vitrail.core.facts import INPUT_SHIFT, Fact
from vitrail.quality.screening.result import Finding
from vitrail.report import Page

FEATURES = "age sex cp=2 cp=3 trestbps chol fbs thalach exang oldpeak slope=2 ca thal=7".split()  # noqa: SIM905


def shifted(
    sites: Sequence[str] = HEART,
    features: Sequence[str] = tuple(FEATURES),
    layers: Sequence[str] = ("b_in", "w_in"),
    odd: Sequence[tuple[int, int, float]] = ((2, 5, -1.4), (3, 9, 0.9)),
    refused: Sequence[str] = (),
) -> pd.DataFrame:
    """Small differences everywhere, and at (site, feature) of `odd` a large one."""
    rng = np.random.default_rng(3)
    rows = []
    for layer in layers:
        neutral = 0.0 if layer.startswith("b") else 1.0
        groups = rng.normal(0, 0.08, (3, len(features)))  # sites come in three kinds
        values = neutral + groups[np.arange(len(sites)) % 3] + rng.normal(0, 0.05, (len(sites), len(features)))
        for i, j, by in odd if layer == "b_in" else odd[:1]:
            values[i, j] += by
        for i, site in enumerate(sites):
            for j, feature in enumerate(features):
                flagged = any((i, j) == o[:2] for o in odd) and site not in refused
                paper = ("O" if flagged and i % 2 == 0 else "") + ("x" if j == odd[0][1] else "") if odd else ""
                value = np.nan if site in refused else values[i, j]
                rows.append((site, feature, layer, value, paper, flagged))
    return pd.DataFrame(rows, columns=["site", "feature", "layer", "value", "flagged_paper", "flagged"])


def found(count: int, wrong: bool = True) -> list[Finding]:
    """As a screening tells them, the strongest first."""
    said = "{:.1f} lower than at the others; ask how it is measured."
    return [
        Finding(HEART[i % 4], FEATURES[i % 13], "offset", wrong, count - i, said.format(count - i))
        for i in range(count)
    ]


def page(
    shifts: pd.DataFrame | None = None,
    findings: Sequence[Finding] | None = None,
    pseudonyms: Sequence[str] = (),
    **changes: Any,
) -> Page:
    given_ = {"methods": ["fedavg"], "seeds": SEEDS[:1], "kind": "run", "rounds": 4, **changes}
    run = told = None
    if shifts is not None:
        findings = accused(shifts) if findings is None else findings
        facts = {"anything": Fact(torch.zeros(1, 1), ("site", "input"), INPUT_SHIFT)}
        sites, columns = list(dict.fromkeys(shifts["site"])), dict.fromkeys(shifts["feature"])
        told = screened(findings, sites, list(dict.fromkeys([*columns, *(f.feature for f in findings)])))
        run = run_of(HEART, facts, shift_table=shifts.drop(columns="flagged"), screening=told)
        run.info["pseudonyms"] = list(pseudonyms)
    return make(**given_, run=run, screening=told)


def accused(shifts: pd.DataFrame) -> list[Finding]:
    """A finding for each marked cell."""
    cells = shifts[shifts["flagged"]].drop_duplicates(["site", "feature"])
    return [Finding(s, f, "offset", True, 2.0, "off.") for s, f in zip(cells["site"], cells["feature"], strict=True)]


def tree(html: str) -> ElementTree.Element:
    """The body as XML: it is well formed, entities and void elements aside."""
    body = html[html.index("<body>") : html.index("</html>")].replace("&nbsp;", " ")
    body = re.sub(r"<details open>", "<details>", body)
    return ElementTree.fromstring(body)


class Seen(NamedTuple):
    """What one drawing shows, by the names in its hover texts."""

    sites: list[str]
    features: list[str]
    cells: dict[tuple[str, str], ElementTree.Element]
    flags: set[tuple[str, str]]
    dots: set[tuple[str, str]]
    circled: set[tuple[str, str]]
    crossed: set[str]
    hatched: list[str]
    desc: str


def look(names: ElementTree.Element, cells: ElementTree.Element) -> Seen:
    def full(text: ElementTree.Element) -> str:
        return text.findtext("title") or text.text or ""

    def at(element: ElementTree.Element, *keys: str) -> list[float]:
        return [float(element.attrib[k]) for k in keys]

    sites = [full(t) for t in names.iter("text")]
    labels = [(g.attrib["transform"], full(g[0])) for g in cells.iter("g") if "rotate(-60)" in g.get("transform", "")]
    features = [name for _, name in labels]
    boxes = [r for r in cells.iter("rect") if re.fullmatch(r"h\d+|none", r.attrib["class"])]
    published = [r for r in boxes if not re.search("did not publish|not judged", r.findtext("title", ""))]
    rows = sorted({at(r, "y")[0] for r in boxes})
    hatched = [sites[rows.index(at(r, "y")[0])] for r in boxes if r not in published]
    wide = at(published[0], "width")[0] + 1
    where = {(at(r, "x")[0], at(r, "y")[0]): r for r in published}
    named = {xy: (sites[rows.index(xy[1])], features[int(xy[0] // wide)]) for xy in where}

    def inside(x: float, y: float) -> tuple[str, str]:
        return next(
            n
            for xy, n in named.items()
            if xy[0] <= x <= xy[0] + wide and xy[1] <= y <= xy[1] + at(where[xy], "height")[0]
        )

    flags = {named[tuple(at(r, "x", "y"))] for r in cells.iter("rect") if r.attrib["class"] == "flag"}  # type: ignore[index]
    dots = {inside(*at(c, "cx", "cy")) for c in cells.iter("circle")}
    circled = {inside(*at(t, "x", "y")) for t in cells.iter("text") if t.attrib["class"].startswith("circled")}
    crosses = [t for t in cells.iter("text") if t.attrib["class"] == "crossed"]
    assert all(at(t, "y")[0] < rows[0] for t in crosses), "above the column"
    crossed = {features[int(at(t, "x")[0] // wide)] for t in crosses}
    by_name = {name: where[xy] for xy, name in named.items()}
    return Seen(sites, features, by_name, flags, dots, circled, crossed, hatched, cells.findtext("desc", ""))


def box_on_top(html: str) -> list[str]:
    """Lines of the section of the screening, in order."""
    section = next(s for s in tree(html).iter("section") if s.get("aria-labelledby") == "fit")
    inside = {p for f in section.iter() if f.tag == "figure" or f.get("class") == "rests" for p in f.iter()}
    return ["".join(e.itertext()) for e in section.iter() if e.tag in ("li", "p") and e not in inside]
