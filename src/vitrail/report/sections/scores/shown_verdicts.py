"""Is joining worth it? What sites found out for themselves, between machines, and show to all."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitrail.report.sections.scores.own_verdict import about, figure
from vitrail.report.sections.section import Contents, Section, run_of
from vitrail.report.text import ANSWERS
from vitrail.runs.result import SHOWN
from vitrail.studies.site_benefit import explain_verdict

if TYPE_CHECKING:
    from vitrail.report.pages.run import Page


def is_shown(page: Page) -> bool:
    return page.run is not None and bool(page.run.info.get(SHOWN))


def contents(page: Page) -> Contents:
    run = run_of(page)
    study, verdicts = run.study, run.info[SHOWN]
    rows = [{"site": site, **verdict, "why": explain_verdict(study, verdict)} for site, verdict in verdicts.items()]
    silent = [site for site in run.sites if site not in verdicts]
    shown = {"verdicts": rows, "silent": silent, "figure": figure(verdicts, study), "answers": ANSWERS}
    return shown | about(study, next(iter(verdicts.values())))


SECTION = Section(contents, is_shown)
