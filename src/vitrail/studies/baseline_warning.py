"""What must be said beside a recommendation: that what is recommended does not beat its baseline."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vitrail.metrics.scores import metric_name
from vitrail.metrics.skill import no_better
from vitrail.study.model import LOWER_IS_BETTER


def setting_caution(metric: str, best: Mapping[Any, Any], baseline: float, row_word: str = "row") -> str:
    """Of the best setting that `tune` found, as a row of its table, and the mean baseline of all sites: what speaks
    against it, in a sentence; "" where nothing does."""
    lower, words = metric in LOWER_IS_BETTER, metric_name(metric)
    meant = f"the baseline, which gives the same answer for every {row_word}"
    mean, worst, there, site = (best[k] for k in ("mean", "worst", "worst_baseline", "worst_site"))
    if no_better(mean, baseline, lower):
        text = f"No setting is better than {meant}: the best has a mean {words} of {mean:.3f}, the baseline"
        return f"{text} {baseline:.3f}."
    if no_better(worst, there, lower):
        text = f"At site {site}, which it serves worst, the best setting is no better than {meant}: its {words}"
        return f"{text} is {worst:.3f}, that of the baseline {there:.3f}."
    return ""
