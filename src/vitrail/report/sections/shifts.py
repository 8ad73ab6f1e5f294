"""What each site learned for itself: heatmaps of the private layers that sites published."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitrail.core import facts as means
from vitrail.data.encoding import columns, owners
from vitrail.quality.screening.result import LABEL
from vitrail.report.charts.heatmap import heatmaps
from vitrail.report.sections import screening
from vitrail.report.sections.section import Contents, Section, has_fact, run_of
from vitrail.report.text import LAYERS

if TYPE_CHECKING:
    from vitrail.report.pages.run import Page


def contents(page: Page) -> Contents:
    run = run_of(page)
    shifts, wrong = run.shifts(), {(f.site, f.feature) for f in run.findings() if f.wrong}
    of = dict(zip(columns(run.study), owners(run.study), strict=True))
    places = zip(shifts["layer"], shifts["feature"], strict=True)
    about = [of.get(c, c) if LAYERS[layer].column == "feature" else LABEL for layer, c in places]
    cells = zip(shifts["site"], about, strict=True)
    return {
        "maps": heatmaps(shifts.assign(flagged=[cell in wrong for cell in cells])),
        "layers": LAYERS,
        "said": screening.refusals(shifts),
        "paper": bool(shifts["flagged_paper"].astype(str).str.contains("[Ox]").any()),
    }


SECTION = Section(contents, has_fact(*means.ENDS), (*means.ENDS, means.AGREED), heat=True)
