"""A study put into practice: one run, the folder it leaves, and what comes after it."""

from vitrail.runs.plan import Plan
from vitrail.runs.result import Run
from vitrail.runs.training import federate

__all__ = ["Plan", "Run", "federate"]
