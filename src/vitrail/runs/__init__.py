"""A study put into practice: one run, the folder it leaves, and comparisons of many runs."""

from vitrail.runs.comparison import Comparison, compare
from vitrail.runs.run import Run
from vitrail.runs.setup import wire_lines
from vitrail.runs.train import federate
from vitrail.runs.transfer import Transfer, transfer
from vitrail.runs.tune import Tuning, tune

__all__ = ["Comparison", "Run", "Transfer", "Tuning", "compare", "federate", "transfer", "tune", "wire_lines"]
