"""Whose data does not fit: what a screening found, as the first section of a page and as a page of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
from markupsafe import Markup

from vitrail.core.text import several
from vitrail.quality.screening import budget
from vitrail.quality.screening.result import LABEL, Finding, Screening
from vitrail.quality.screening.text import calm, cause_text, twin_sentences
from vitrail.report.charts.heatmap import strengths
from vitrail.report.pages.frame import fill, fill_part, write_page
from vitrail.report.sections.section import Contents, Section
from vitrail.report.text import LAYERS, listed, name
from vitrail.study.model import Study

if TYPE_CHECKING:
    from vitrail.report.pages.run import Page

SHOWN = 10  # findings of a kind, before they are folded
RESULTS = "benchmarks/faults/results/planted_faults.md"


def contents(page: Page) -> Contents:
    assert page.screening is not None, "the section needs a screening"
    info = page.run.info if page.run else {}
    return contents_of(page.screening, info.get("engine") == "deployed", info.get("pseudonyms", ()))


def contents_of(screening: Screening, deployed: bool = False, pseudonyms: Sequence[str] = ()) -> Contents:
    """What the template is given, on the page of a run and on one of its own."""
    wrong, maybe = ([f for f in screening.findings if f.wrong is kind] for kind in (True, False))
    judged = screening.sites[screening.sites["judged"].eq(True)]
    return {
        "wrong": [*twin_sentences(screening), *(sentence(f) for f in wrong)],
        "maybe": [sentence(f) for f in maybe],
        "calm": calm(screening),
        "shown": SHOWN,
        "rests": rests_on(screening) if len(judged) else [],
        "left_out": left_out(screening.sites) + pseudonymous(screening.sites, pseudonyms),
        "next": next_step(wrong, deployed) if wrong else "",
        "map": strengths(screening.cells, list(screening.sites["site"])) if len(judged) else None,
        "columns": screening.cells["feature"].nunique(),
    }


def sentence(finding: Finding) -> Markup:
    """Site and column in bold, the cause in words, then what was seen and what to ask."""
    feature = "outcome" if finding.feature == LABEL else finding.feature
    return Markup("{}: {}").format(name(f"{finding.site}, {feature}"), cause_text(finding))


def rests_on(screening: Screening) -> list[str]:
    """What the findings are made of, and how often they are wrong."""
    judged = screening.sites[screening.sites["judged"].eq(True)]
    most, columns = int(judged["numbers"].max()), screening.cells["feature"].nunique()
    out = [
        f"Before the first round {several(len(judged), 'site')} published counts of {several(columns, 'column')}, the "
        f"outcome among them: at most {several(most, 'number')} of a column, and never more than one for every two "
        "rows. No row left a site. Each site is held against the others, by its counts, by how its columns go with "
        "each other and with the outcome, and by how well the others' rows predict its outcomes."
    ]
    rate = f"{100 * screening.alpha:.0f} in 100"
    out.append(
        f"The bar is set so that at most {rate} federations of sites alike, without any fault, have a cell above it; "
        f"what was measured, and what is missed, is in {RESULTS}. Where sites really differ, a real difference can "
        "pass for a fault, and a fault for a real difference."
    )
    return out


def left_out(sites: pd.DataFrame) -> list[Markup]:
    """Who was not judged, and why."""
    same: dict[str, list[Markup]] = {}
    for site, judged, why in zip(sites["site"], sites["judged"], sites["why not"], strict=True):
        if not judged:
            same.setdefault(str(why), []).append(name(str(site)))
    return [Markup("Not judged: {} ({}).").format(listed(who, len(who)), why) for why, who in same.items()]


def next_step(findings: Sequence[Finding], deployed: bool) -> Markup:
    """Whom to ask, and how the site sees its own rows behind a finding; where it took part from its own machine, it has
    its page already."""
    one = len(findings) == 1
    ask = "This is a question to the site, not a verdict" if one else "These are questions to the sites, not verdicts"
    behind = f"its own rows behind {'it' if one else 'them'}"
    look = f"A site can look at {behind}, and nothing leaves the site:"
    how = "vitrail look RUN --site NAME --data FILE"
    if deployed:
        look = f"Each site has a page of its own with {behind}, made there (look.html in its home); other columns:"
        how = "vitrail look --kit KIT --data FILE --feature NAME"
    return Markup("{}. {} <code>{}</code>").format(ask, look, how)


def pseudonymous(sites: pd.DataFrame, pseudonyms: Sequence[str]) -> list[Markup]:
    """What a pseudonym hides here, and what it cannot."""
    if not pseudonyms:
        return []
    many, of = len(pseudonyms), several(sites["site"].nunique(), "site")
    if many == 1:
        text = f"1 of {of} published under a pseudonym: being the only one, it can be told by elimination."
    else:
        text = f"{many} of {of} published under pseudonyms: "
        text += "these cannot be matched to the scores except by who knows the mapping; "
        text += "in a small federation one may still guess."
    return [Markup("{}").format(text)]


def refusals(shifts: pd.DataFrame) -> list[Markup]:
    """Who did not publish, and which layers where others were published."""
    if shifts.empty:
        return []
    silent = shifts["value"].isna().groupby([shifts["site"], shifts["layer"]], sort=False).all().unstack()
    silent = silent[[layer for layer in LAYERS if layer in silent]].eq(True)
    same: dict[tuple[str, ...], list[Markup]] = {}
    for site, row in silent.iterrows():
        same.setdefault(tuple(row.index[row]), []).append(name(str(site)))
    out = []
    for layers, sites in same.items():
        its = "its" if len(sites) == 1 else "their"
        if len(layers) == len(silent.columns):
            out.append(Markup("{} did not publish {} own layers.").format(listed(sites, len(sites)), its))
        elif layers:
            what = listed([f"the {LAYERS[layer].title} ({layer})" for layer in layers])
            out.append(Markup("{} did not publish {}.").format(listed(sites, len(sites)), what))
    return out


def write_screen(study: Study, screening: Screening, path: Path) -> Path:
    """The page of `vitrail screen`: nothing was trained."""
    section = fill_part(SECTION.template, **contents_of(screening))
    rows = published(study, screening)
    html = fill("screen.html", heat=True, study=study, screening=screening, section=section, rows=rows)
    return write_page(html, path, "screen")


def published(study: Study, screening: Screening) -> list[list[str]]:
    """For each site: rows, numbers that it publishes in all and of a column at most, and whether it is judged."""
    out = []
    for site, rows, _, judged, why in (
        screening.sites[["site", "rows", "numbers", "judged", "why not"]].to_numpy().tolist()
    ):
        each = budget(study, int(rows)).values() if rows == rows else [0]
        counts = "" if rows != rows else f"{rows:.0f}"
        out.append([str(site), counts, str(sum(each)), str(max(each)), "yes" if judged else f"no: {why}"])
    return out


SECTION = Section(contents, lambda page: page.screening is not None, heat=True)
