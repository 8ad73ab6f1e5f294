"""A site's own answer to whether joining is worth it, found out between machines: on its page, and on that of all where
it shows it. Plain values of studies/site_benefit.py, with the reason in words under "why" where they were kept."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrail.report.pages.frame import fill, write_page
from vitrail.report.sections.scores.joining import SiteGain, verdict_figure
from vitrail.report.text import ANSWERS, Interval, metric_words
from vitrail.studies.cross_validation import yardstick

if TYPE_CHECKING:
    from vitrail.study.model import Study


def verdict_words(verdict: Mapping[str, Any]) -> str:
    """The verdict and its reason; or why there is none."""
    answer = ANSWERS.get(verdict["verdict"], verdict["verdict"]) if "verdict" in verdict else "It cannot be said"
    return f"{answer[:1].upper()}{answer[1:]}: {verdict['why']}"


def one_site(site: str, study: Study, verdict: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """What the section of a site's own page is given."""
    if verdict is None or "verdict" not in verdict:
        return None if verdict is None else {"figure": None, "words": verdict_words(verdict)}
    return {
        "figure": figure({site: verdict}, study),
        "words": verdict_words(verdict),
        **about(study, verdict),
        **verdict,
    }


def about(study: Study, verdict: Mapping[str, Any]) -> dict[str, Any]:
    assert study.verdict is not None
    share = f"{100 * study.verdict.harm:g} %"
    return {"metric": metric_words(yardstick(study)), "share": share, "title": study.build_method().catalogue.title}


def figure(verdicts: Mapping[str, Mapping[str, Any]], study: Study) -> Any:
    title, rows = study.build_method().catalogue.title, []
    for site, verdict in verdicts.items():
        ends = Interval(*(math.nan if verdict[k] is None else verdict[k] for k in ("gain", "low", "high")))
        rows.append(SiteGain(site, title, ends, verdict["verdict"], verdict["harm"] or 0.0))
    return verdict_figure(rows, f"saved {metric_words(yardstick(study))}")


def write_own_verdict(site: str, study: Study, verdict: Mapping[str, Any], path: Path) -> Path:
    """A page of its own, where a site has no other; only an earlier such page is written over."""
    header = {"site": site, "study": study.name, "same": True}
    return write_page(fill("own_verdict.html", header=header, joining=one_site(site, study, verdict)), path, "look")
