"""Many runs: methods side by side, hyperparameters tried, whom to learn from, what each site brought."""

from vitrail.studies.compare import compare
from vitrail.studies.comparison import Comparison
from vitrail.studies.contribution import Contribution, contribution
from vitrail.studies.transfer import Transfer, transfer
from vitrail.studies.tune import Tuning, tune

__all__ = [
    "Comparison",
    "Contribution",
    "Transfer",
    "Tuning",
    "compare",
    "contribution",
    "transfer",
    "tune",
]
