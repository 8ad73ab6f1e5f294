"""What a notebook shows: studies, runs, comparisons and findings in short, and the figures of their pages.

Names of sites and columns come from others and are escaped. There is no script in what is shown, and its styles hold
inside it only.
"""

from __future__ import annotations

import html
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any, NamedTuple

import pandas as pd
from markupsafe import Markup

from vitrail.core.errors import Problem, VitrailError, nearest
from vitrail.core.text import number, several
from vitrail.methods import TABLE
from vitrail.quality.screening.result import Finding, Screening
from vitrail.quality.screening.text import STANDINGS, calm, sentence, standing
from vitrail.report.pages.builder import page_of
from vitrail.report.pages.frame import part
from vitrail.report.sections.registry import fill_sections
from vitrail.report.sections.scores.findings import findings, headline
from vitrail.report.text import metric_words
from vitrail.runs.result import Run
from vitrail.studies.compare.result import Comparison
from vitrail.study.model import Study

INSIDE = "vitrail-figure"  # the class of what our styles are for
FIGURE = re.compile(r'<figure data-figure="(?P<key>[^"]*)" data-title="(?P<title>[^"]*)".*?</figure>', re.DOTALL)
LONGEST = 10  # lines of a list; what is more is counted


def html_of(thing: Any) -> str:
    """What a notebook shows of it."""
    if isinstance(thing, Study):
        return str(_study(thing))
    if isinstance(thing, Run | Comparison):
        return str(_page(thing))
    if isinstance(thing, Screening):
        return str(_findings(thing.findings, calm(thing)))
    return str(_findings(thing, "There are no findings, or the sites were not screened."))


def _study(study: Study) -> Markup:
    kinds = Counter(f.kind for f in study.features.values())
    feature_counts = ", ".join(f"{count} {kind}" for kind, count in kinds.items()) or "none"
    other = {"number": "a number", "time": "the time until it"}.get(study.target.kind, "")
    target = ", ".join(study.target.levels) or other
    title = TABLE[study.method["name"]].catalogue.title if study.method["name"] in TABLE else study.method["name"]
    rows = [
        ("predicted", f"{study.target.column} ({target})"),
        (
            "from",
            study.images.words if study.images else f"{several(len(study.features), 'feature')}: {feature_counts}",
        ),
        ("network", study.network.kind),
        ("method", f"{title}, {several(study.training.rounds, 'round')}"),
        ("scored by", ", ".join(metric_words(m) for m in study.metrics)),
    ]
    lines = Markup().join(Markup("<tr><th>{}</th><td>{}</td></tr>").format(*row) for row in rows)
    listed = Markup().join(
        Markup("<li>{}: {}{}</li>").format(name, f.kind, f" ({', '.join(f.levels)})" if f.levels else "")
        for name, f in study.features.items()
    )
    more = Markup("<details><summary>features</summary><ul>{}</ul></details>").format(listed) if listed else ""
    return Markup("<div><b>{}</b> {}<table>{}</table>{}</div>").format(study.name, study.description, lines, more)


def _page(source: Run | Comparison) -> Markup:
    """The page in short: its first sentences and scores."""
    page = page_of(source)
    sentences = _list(findings(page, page.table))
    wrong = _findings([f for f in page.screening.findings if f.wrong], calm(page.screening)) if page.screening else ""
    table = page.table
    columns = [page.titles[m] for m in table.methods]
    cells = [[number(score.value) for score in scores] for _, scores in table.rows]
    frame = pd.DataFrame(cells, index=[str(site) for site, _ in table.rows], columns=columns)
    scores = Markup(frame.to_html(escape=True, border=0)) if table.methods else ""
    return Markup("<div><b>{}</b>: {}{}{}<p>{}</p>{}</div>").format(
        page.title, headline(page), wrong, sentences, metric_words(page.metric), scores
    )


def _findings(entries: Iterable[Finding], nothing: str) -> Markup:
    entries = list(entries)
    out = Markup("<div>")
    for title, kind in zip(("Likely wrong", "Differs, and may be real", "Known"), STANDINGS, strict=True):
        if mine := [sentence(f) for f in entries if standing(f) == kind]:
            out += Markup("<p><b>{}</b></p>{}").format(title, _list(mine))
    return out + (Markup("<p>{}</p>").format(nothing) if not entries else "") + Markup("</div>")


def _list(lines: list[Any]) -> Markup:
    """The first ones, and how many more."""
    rest = [f"and {len(lines) - LONGEST} more"] * (len(lines) > LONGEST)
    items = Markup().join(Markup("<li>{}</li>").format(line) for line in [*lines[:LONGEST], *rest])
    return Markup("<ul>{}</ul>").format(items)


class Figure(NamedTuple):
    """A figure of a page, as the page draws it, with what to see in it and what it cannot tell."""

    name: str
    title: str
    drawing: str  # its markup

    def __repr__(self) -> str:
        return f"<figure {self.name}: {self.title}>"

    def _repr_html_(self) -> str:
        return f'<div class="{INSIDE}"><style>{_styles()}</style>{self.drawing}</div>'


class Figures:
    """The figures of the page of a run or a comparison, by their names."""

    def __init__(self, of: Run | Comparison) -> None:
        self._of = of

    @cached_property
    def _all(self) -> dict[str, Figure]:
        page, out = page_of(self._of), dict[str, Figure]()
        for section in fill_sections(page):
            for match in FIGURE.finditer(section):
                name = plain = html.unescape(match["key"]).replace("-", "_")
                while name in out:  # two sections may call theirs alike
                    name += "_"
                out[name] = Figure(name, html.unescape(match["title"]) or plain, match[0])
        return out

    def __dir__(self) -> list[str]:
        return list(self._all)

    def __iter__(self) -> Iterator[Figure]:
        return iter(self._all.values())

    def __getitem__(self, name: str) -> Figure:
        if name not in self._all:
            what = f"the page has no figure {name!r}."
            raise VitrailError("there is no such figure", [Problem("plot", what, nearest(name, self._all))])
        return self._all[name]

    def __getattr__(self, name: str) -> Figure:
        if name.startswith("_") or name not in self._all:
            raise AttributeError(
                f"the page has no figure {name!r}. {'' if name[:1] == '_' else nearest(name, self._all)}"
            )
        return self._all[name]

    def __repr__(self) -> str:
        return "\n".join(map(repr, self))

    def _repr_html_(self) -> str:
        return str(Markup("<div>{}</div>").format(_list([f"{f.name}: {f.title}" for f in self])))


def _styles() -> str:
    """Those of pages, for what is inside a figure only: a notebook has its own."""
    css = part("page.css").replace(":root", "&").replace("\nbody {", "\n& {")
    return f".{INSIDE} {{\n{css}\n& {{ padding: 1rem; max-width: 54rem; }}\n}}"
