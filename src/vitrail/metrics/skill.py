"""How much better than its own baseline a site is served, so that sites can be put in order.

A score alone does not say which site is served worst: an error of 3 is bad where values differ by 2 and good where they
differ by 10, and an accuracy of .8 is bad where nine of ten rows are of one class. The skill of a score says what part
of the way from the site's baseline (one answer to every row) to a perfect score the model has gone:

    skill = (score - baseline) / (perfect - baseline)      1 perfect, 0 no better than the baseline, below 0 worse
"""

from __future__ import annotations

import math
from collections.abc import Mapping


def skill(score: float, baseline: float, lower: bool) -> float:
    """`lower`: 0 is perfect, and less is better; else 1 is. NaN where the baseline is not known, or already perfect.

    >>> skill(0.8, 0.5, lower=False), skill(3.0, 4.0, lower=True), skill(0.9, 1.0, lower=False)
    (0.6000000000000001, 0.25, nan)
    """
    room = (0.0 if lower else 1.0) - baseline
    return (score - baseline) / room if room else math.nan


def standings(scores: Mapping[str, float], baselines: Mapping[str, float], lower: bool) -> dict[str, float]:
    """How well each site is served, larger is better: by skill; where no site's is known, by the score as it is. Sites
    without such a number are left out, unless all are."""
    skills = {site: skill(score, baselines.get(site, math.nan), lower) for site, score in scores.items()}
    if finite := {site: value for site, value in skills.items() if math.isfinite(value)}:
        return finite
    return {site: -score if lower else score for site, score in scores.items() if math.isfinite(score)}


def worst_site(scores: Mapping[str, float], baselines: Mapping[str, float], lower: bool) -> str | None:
    """The site that is served worst; the first of several; None without any score."""
    ranking = standings(scores, baselines, lower)
    return min(ranking, key=lambda site: ranking[site]) if ranking else None


def no_better(score: float, baseline: float, lower: bool) -> bool:
    """Whether a score does not beat its baseline; False where either is not known."""
    return score >= baseline if lower else score <= baseline
