"""A section of a page: a module, and a template of the same name in templates/sections/."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from vitrail.report.pages.run import Page
    from vitrail.runs.result import Run

Contents = dict[str, Any]


class Section(NamedTuple):
    contents: Callable[[Page], Contents]  # what its template is given
    needs: Callable[[Page], bool] = lambda page: True
    draws: tuple[str, ...] = ()  # meanings of facts
    heat: bool = False  # whether it takes the styles of heatmaps

    @property
    def template(self) -> str:
        """That of the module in which its contents are made."""
        return f"sections/{self.contents.__module__.rpartition('.')[2]}.html"


def has_fact(*meanings: str) -> Callable[[Page], bool]:
    """Needs a run with a fact that means one of these."""
    return lambda page: page.run is not None and any(page.run.fact(what) is not None for what in meanings)


def run_of(page: Page) -> Run:
    assert page.run is not None, "the section needs a run"
    return page.run
