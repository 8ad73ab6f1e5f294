"""How well each site is served: the table of the primary metric, which is the page's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitrail.report.sections.section import Contents, Section

if TYPE_CHECKING:
    from vitrail.report.pages.run import Page


def contents(page: Page) -> Contents:
    return {}


SECTION = Section(contents)
