"""A study put into practice: one run, the folder it leaves, and what comes after it."""

from vitrail.runs.result import Run
from vitrail.runs.setup import wire_lines
from vitrail.runs.training import federate

__all__ = ["Run", "federate", "wire_lines"]
