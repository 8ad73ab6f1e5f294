"""What left each site: bytes, and every tensor that crossed the wire."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitrail.report.charts.tables import methods_of, traffic, where
from vitrail.report.sections.section import Contents, Section

if TYPE_CHECKING:
    from vitrail.report.pages.run import Page


def contents(page: Page) -> Contents:
    wire = [(m, where(page.wire, method=m).to_dict("records")) for m in methods_of(page)]
    return {"traffic": traffic(page), "wire": [(m, tensors) for m, tensors in wire if tensors]}


SECTION = Section(contents)
