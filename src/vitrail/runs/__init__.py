"""A study put into practice: one run, the folder it leaves, and what comes after it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitrail.core.loading import lazy_names

if TYPE_CHECKING:
    from vitrail.runs.plan import Plan
    from vitrail.runs.result import Run
    from vitrail.runs.training import federate
else:
    __getattr__ = lazy_names(
        __name__, {"Plan": "vitrail.runs.plan", "Run": "vitrail.runs.result", "federate": "vitrail.runs.training"}
    )

__all__ = ["Plan", "Run", "federate"]
