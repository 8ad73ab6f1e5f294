"""The sections of a page, from the top. Each says what it needs, which facts it draws, and what its template is given.

A section for facts with a new meaning is a line here, a module and a template of the same name. Facts are looked for by
what they mean, never by name. What no section draws is listed at the end of the page.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from markupsafe import Markup

from vitrail.report.pages.frame import fill_part
from vitrail.report.sections import (
    appendix,
    calibration,
    cost,
    participation,
    protection,
    screening,
    selective_prediction,
    shifts,
    survival_by_risk,
    traffic,
)
from vitrail.report.sections.learning import (
    class_overlap,
    confidence_choice,
    groups,
    joint_choice,
    mixture,
    shared_model_use,
    trust,
    uncertainty,
)
from vitrail.report.sections.performance import effects, predicted_values, thresholds
from vitrail.report.sections.pictures import prototype_distance, shortcut_findings, shortcut_maps
from vitrail.report.sections.scores import (
    findings,
    joining,
    learning_curves,
    scores,
    shown_verdicts,
    site_status,
    spread,
)
from vitrail.report.sections.section import Section

if TYPE_CHECKING:
    from vitrail.report.pages.run import Page

SECTIONS = (
    joining.SECTION,  # the first screen: one figure that answers the question, and a status for each site
    site_status.SECTION,
    findings.SECTION,
    screening.SECTION,  # whose data does not fit
    shortcut_findings.SECTION,
    thresholds.SECTION,  # how good the model is at each site
    predicted_values.SECTION,
    survival_by_risk.SECTION,
    calibration.SECTION,
    effects.SECTION,
    shortcut_maps.SECTION,
    prototype_distance.SECTION,
    trust.SECTION,  # whom each site learned from
    mixture.SECTION,
    groups.SECTION,
    uncertainty.SECTION,
    confidence_choice.SECTION,
    class_overlap.SECTION,
    joint_choice.SECTION,
    shared_model_use.SECTION,
    shifts.SECTION,
    shown_verdicts.SECTION,
    scores.SECTION,
    joining.UNANSWERED,
    spread.SECTION,
    selective_prediction.SECTION,
    learning_curves.SECTION,
    participation.SECTION,
    protection.SECTION,  # what it took
    traffic.SECTION,
    cost.SECTION,
    appendix.SECTION,
)


def chosen(page: Page) -> list[Section]:
    """The sections of this page."""
    return [section for section in SECTIONS if section.needs(page)]


def undrawn(page: Page) -> list[dict[str, str]]:
    """The facts of a run that no section of its page draws."""
    drawn = {what for section in chosen(page) for what in section.draws}
    return [
        {
            "name": name,
            "means": fact.means,
            "axes": " x ".join(["round"] * fact.every + list(fact.axes)),
            "shape": " x ".join(map(str, fact.value.shape)) or "1 number",
        }
        for name, fact in (page.run.facts if page.run else {}).items()
        if fact.means not in drawn
    ]


def fill_sections(page: Page) -> list[Markup]:
    """The sections of this page as markup, in their order."""
    facts = undrawn(page)
    return [fill_part(s.template, page=page, facts=facts, **s.contents(page)) for s in chosen(page)]
