"""What the other sites could be rewarded by for one user's model: four rules beside one another, as shares.

    rounds     how often a site answered
    trust      alpha_i summed over rounds: how far the user's model trusts the site's updates (Grimberg 2020, 4.4)
    rank       the site's place when the user ranks all others by transfer loss (4.3): the best of n earns n parts, the
               next one n - 1
    Shapley    what its taking part lowered the user's loss by, where that is positive

The user itself earns nothing: it would pay. Trust and rank are worked out where the rows of all sites are at hand. How
much a site that cheats earns by each is measured in benchmarks/verdicts/rewards.py.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from vitrail.analysis.trust import Trust, read_trust
from vitrail.core.errors import VitrailError
from vitrail.core.facts import TRUST
from vitrail.runs.plan import methods_with_facts
from vitrail.runs.result import Run
from vitrail.runs.screening import unscreened
from vitrail.runs.training import federate
from vitrail.studies.transfer import transfer
from vitrail.study.model import Study

Floats = NDArray[np.float64]


class RewardRule(NamedTuple):
    """One way to share a reward."""

    name: str
    pays: str  # what it rewards
    cheat: str  # by what it can be cheated

    def about(self, row: str) -> RewardRule:
        """The same with the study's word for a row."""
        return self._replace(pays=self.pays.format(row=row), cheat=self.cheat.format(row=row))


RULES = {
    "rounds": RewardRule(
        "rounds taken part",
        "It rewards being there: every round in which a site answered counts the same.",
        "A site that only shows up, with a few invented {row}s, earns as much as an honest one.",
    ),
    "trust": RewardRule(
        "sum of trust",
        "It rewards updates like the user’s own, round after round.",
        "Likeness is not usefulness: a copy of another site earns a little more than honest {row}s do, so does added "
        "noise, and a few invented {row}s still earn most of an honest share.",
    ),
    "rank": RewardRule(
        "rank",
        "It rewards a model of the site’s own that does nearly as well on the user’s training {row}s as at home "
        "(adapted Ndoye factor).",
        "A site whose {row}s are hard to predict, or that overstates its own loss, ranks higher: added noise lifts it.",
    ),
    "shapley": RewardRule(
        "Shapley value",
        "It rewards how much the user’s loss falls with the site, on test {row}s that the site does not see.",
        "A site that copies a useful one earns about as much as that one, and partly at its cost. A run warns of sites "
        "with the same {row}s.",
    ),
}


def reward_shares(
    user: str,
    rounds: Mapping[str, float],
    values: Mapping[str, float],
    trust: Mapping[str, float] | None = None,
    ranking: Sequence[str] = (),
) -> pd.DataFrame:
    """`site` and for each rule its share among the sites other than the user; NaN where a rule cannot be worked out,
    and 0 for all where nobody earns.

    >>> shares = reward_shares("u", {"u": 9, "a": 9, "b": 3}, {"u": 1.0, "a": 0.2, "b": -0.1}, ranking=["b", "a"])
    >>> shares.round(2).to_dict("list")
    {'site': ['a', 'b'], 'rounds': [0.75, 0.25], 'trust': [nan, nan], 'rank': [0.33, 0.67], 'shapley': [1.0, 0.0]}
    """
    others = [name for name in rounds if name != user]
    places = {name: float(len(ranking) - at) for at, name in enumerate(ranking)}
    parts = {"rounds": rounds, "trust": trust, "rank": places, "shapley": values}
    shares = {rule: _shares(others, given) for rule, given in parts.items()}
    return pd.DataFrame({"site": others, **shares})


def _shares(others: Sequence[str], given: Mapping[str, float] | None) -> Floats:
    if not given:
        return np.full(len(others), np.nan)
    positive = np.array([max(given[name], 0.0) for name in others])
    return np.asarray(positive / (positive.sum() or 1.0))


def summed_trust(trust: Trust, user: str) -> dict[str, float]:
    """Site -> the user's trust in it, summed over the rounds in which it is known."""
    at = trust.sites.index(user)
    return dict(zip(trust.sites, np.nansum(trust.alpha[:, at], axis=0).tolist(), strict=True))


def reward_table(
    run: Run,
    user: str,
    rounds: Mapping[str, float],
    values: Mapping[str, float],
    frames: Mapping[str, pd.DataFrame] | None = None,
) -> pd.DataFrame:
    """`reward_shares` of a run. `frames`: the tables of all sites, without which nobody can be ranked or trusted."""
    if frames is None:
        return reward_shares(user, rounds, values)
    return reward_shares(user, rounds, values, trust_in_sites(run, frames, user), ranking_of(run, frames, user))


def trust_in_sites(run: Run, frames: Mapping[str, pd.DataFrame], user: str) -> dict[str, float] | None:
    """The user's trust in each site, summed over the rounds."""
    trust = trained_trust(run.study, {name: frames[name] for name in run.sites}, run.seed)
    return None if trust is None else summed_trust(trust, user)


def trained_trust(study: Study, tables: Mapping[str, pd.DataFrame], seed: int) -> Trust | None:
    """From a training by a method that weighs sites by trust; None where none can train as the study does."""
    study = _open(study)
    for name in methods_with_facts(study, TRUST):
        try:
            trained = federate(study, tables, method=name, seed=seed, progress=lambda done, of: None)
        except VitrailError:  # such as an optimizer that the method cannot use
            continue
        if (trust := read_trust(trained.sites, trained.facts)) is not None:
            return trust
    return None


def ranking_of(run: Run, frames: Mapping[str, pd.DataFrame], user: str) -> list[str]:
    """The other sites by transfer loss, best first; none where they cannot be ranked."""
    try:
        ranked = transfer(_open(run.study), {name: frames[name] for name in run.sites}, seed=run.seed)
    except VitrailError:  # too few rows for folds
        return []
    return ranked.ranking(user)


def _open(study: Study) -> Study:
    """As the study says, but with reports that can be read: all rows are on this machine."""
    return unscreened(study).with_changes(protect={"sum": "plain", "least": 3, "scores": "rounded"})
