"""What a notebook shows of a study, a run or a comparison, and that a bar is shown there while one is made.

How things are shown is said above everything else, in `vitrail.integrations.notebook`: it is looked up when a notebook
asks, so that nothing down here depends on it.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable
from functools import cached_property
from typing import Any

ABOVE = "vitrail.integrations.notebook"
SECONDS = 0.2  # between two looks of a bar


class HtmlRepr:
    """A notebook shows it as a table with sentences."""

    def _repr_html_(self) -> str:
        words: str = importlib.import_module(ABOVE).html_of(self)
        return words


class Plottable(HtmlRepr):
    """It has figures, too: those of its page."""

    @cached_property
    def plot(self) -> Any:
        """The figures of the page, by name: `run.plot.curves`; `dir(run.plot)` has the names. A notebook shows them."""
        return importlib.import_module(ABOVE).Figures(self)


def kernel_display() -> Any:
    """How to show something in the notebook that runs this; None elsewhere."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()  # who is in one has loaded it
    return importlib.import_module("IPython.display") if getattr(shell, "kernel", None) is not None else None


def notebook_bar(noun: str) -> Callable[[int, int], None] | None:
    """In a notebook a bar that grows; None elsewhere. Nothing that others wrote is in it."""
    if (ways := kernel_display()) is None:
        return None
    held: list[Any] = []
    shown_at = 0.0

    def show(done: int, total: int) -> None:
        nonlocal shown_at
        if held and done < total and time.monotonic() - shown_at < SECONDS:
            return
        shown_at = time.monotonic()
        words = f"{noun} {done} of {total}"
        bar = ways.HTML(f'<progress value="{done}" max="{total}" style="width: 20em">{words}</progress> {words}')
        if held:
            held[0].update(bar)
        else:
            held.append(ways.display(bar, display_id=True))

    return show
