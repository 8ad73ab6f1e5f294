"""A study put into practice: one run, the folder it leaves, and comparisons of many runs."""

from vitrail.runs.comparison import Comparison, compare
from vitrail.runs.run import Run, federate
from vitrail.runs.setup import wire_lines

__all__ = ["Comparison", "Run", "compare", "federate", "wire_lines"]
