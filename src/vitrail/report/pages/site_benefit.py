"""A site's own answer to whether joining is worth it, found out between machines: on its page, and on that of all where
it shows it. Plain values of studies/site_benefit.py, with the reason in words under "why" where they were kept."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrail.report.charts.comparison import SiteGain, verdict_figure
from vitrail.report.pages.frame import fill, write_page
from vitrail.report.text import ANSWERS, Interval, metric_words
from vitrail.runs.result import SHOWN
from vitrail.studies.cross_validation import yardstick
from vitrail.studies.site_benefit import explain_verdict

if TYPE_CHECKING:
    from vitrail.report.pages.run import Page
    from vitrail.study.model import Study


def verdict_words(told: Mapping[str, Any]) -> str:
    """The verdict and its reason; or why there is none."""
    known = f"{ANSWERS.get(told['verdict'], told['verdict'])}: " if "verdict" in told else "It cannot be said: "
    return f"{known[:1].upper()}{known[1:]}{told['why']}"


def one_site(site: str, study: Study, told: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """What the section of a site's own page is given."""
    if told is None or "verdict" not in told:
        return None if told is None else {"figure": None, "words": verdict_words(told)}
    return {"figure": _figure({site: told}, study), "words": verdict_words(told), **_about(study, told), **told}


def is_shown(page: Page) -> bool:
    return page.run is not None and bool(page.run.info.get(SHOWN))


def shown(page: Page) -> dict[str, Any]:
    assert page.run is not None
    study, told = page.run.study, page.run.info[SHOWN]
    rows = [{"site": site, **found, "why": explain_verdict(study, found)} for site, found in told.items()]
    silent = [name for name in page.run.sites if name not in told]
    about = _about(study, next(iter(told.values())))
    return {"verdicts": rows, "silent": silent, "figure": _figure(told, study), "answers": ANSWERS, **about}


def _about(study: Study, told: Mapping[str, Any]) -> dict[str, Any]:
    assert study.verdict is not None
    share = f"{100 * study.verdict.harm:g} %"
    return {"metric": metric_words(yardstick(study)), "share": share, "title": study.build_method().catalogue.title}


def _figure(told: Mapping[str, Mapping[str, Any]], study: Study) -> Any:
    title, rows = study.build_method().catalogue.title, []
    for site, found in told.items():
        ends = Interval(*(math.nan if found[k] is None else found[k] for k in ("gain", "low", "high")))
        rows.append(SiteGain(site, title, ends, found["verdict"], found["harm"] or 0.0))
    return verdict_figure(rows, f"saved {metric_words(yardstick(study))}")


def write_own_verdict(site: str, study: Study, told: Mapping[str, Any], path: Path) -> Path:
    """A page of its own, where a site has no other; only an earlier such page is written over."""
    about = {"site": site, "study": study.name, "same": True}
    return write_page(fill("own_verdict.html", told=about, joining=one_site(site, study, told)), path, "look")
