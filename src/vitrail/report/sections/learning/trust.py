"""Whom each site learned from: what a page shows where the facts of a run mean trust between sites, or shares."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from markupsafe import Markup

from vitrail.analysis.trust import Trust, groups, read_trust
from vitrail.core import facts as means
from vitrail.core.text import several
from vitrail.report.sections.learning.matrix import matrix
from vitrail.report.sections.learning.sources import LearningSources, read_learned
from vitrail.report.sections.learning.user import user_figure, weights_figures
from vitrail.report.sections.learning.wording import GIVEN, cost, trust_sentences, user_sentences, words_of
from vitrail.report.sections.section import Contents, Section, run_of
from vitrail.report.text import metric_words
from vitrail.stats.linkage import Join

if TYPE_CHECKING:
    from vitrail.report.pages.run import Page


class Matrix(NamedTuple):
    """One matrix with its texts."""

    key: str
    title: str
    note: str
    drawing: Markup
    see: str
    cannot: str


DRAWS = (
    means.ROUND,
    means.TRUST,
    means.SHARE,
    means.VANISHED,
    means.STOPPED,
    means.GRADIENTS,
    means.TO_ALONE,
    means.TO_SHARED,
    means.BETWEEN,
    means.AGREED,
    means.ALONE_WEIGHT,
    means.ALONE_BIAS,
)


def contents(page: Page) -> Contents:
    learned = read_learned(run_of(page))
    assert learned is not None, "the section needs trust or shares"
    return contents_of(learned, metric_words(page.metric))


def contents_of(learned: LearningSources, words: str) -> Contents:
    """`words` of the metric."""
    trust = learned.trust
    order, joins = groups(_compared(trust))
    return {
        "sentences": trust_sentences(trust, order),
        "fold": words_of(trust).fold.format(several(len(order), "site")),
        "views": _views(trust, order, joins, learned.row_word),
        "words": words,
        "below": words_of(trust).below,
        "cost": cost(trust, learned.grows),
        "beside": learned.has_companions,
        "received": learned.received,
        "not_drawn": _not_drawn(learned),
        "users": [
            {
                "site": site,
                "figure": user_figure(learned, site, words),
                "said": user_sentences(trust, trust.sites.index(site), learned.judged, learned.row_word),
                "weights": weights_figures(learned, site),
                "whose": _whose(learned, site),
                "refused": learned.weights is not None and site in learned.refused,
            }
            for site in (trust.sites[i] for i in order if np.isfinite(trust.mean[i]).any())  # where it was a user
        ],
    }


def _views(trust: Trust, order: Sequence[int], joins: Sequence[Join], word: str) -> list[Matrix]:
    """`word`: what a row of a site is."""
    return [_weights(trust, order, joins, word)] if trust.shares else _trust(trust, order, joins, word)


def _whose(learned: LearningSources, site: str) -> str:
    """Of which models the weights of a site are drawn."""
    models = set() if learned.weights is None else set(learned.weights.loc[learned.weights["site"] == site, "model"])
    return "each" if len(models) > 1 else "its" if means.OWN in models else "its local"


def _not_drawn(learned: LearningSources) -> str:
    """Which learned weights are left out, and why."""
    if learned.weights is None:
        why = "this network has hidden layers, so that no single weight belongs to a feature"
        return f"Learned weights are not drawn: {why}."
    if means.OWN in set(learned.weights["model"]):
        return ""
    return "Learned weights of the sites’ own models are not drawn: these are on the sites’ own machines."


def _compared(trust: Trust) -> np.ndarray:
    """[user, site]: by which sites are put side by side; 1 is as near as any two are, or as trust can be."""
    if trust.shares:
        return np.asarray(trust.mean / _most(trust))
    return trust.mean if _lonely(trust) else trust.final


def _most(trust: Trust) -> float:
    """The largest mean share that a site gave another."""
    given = trust.mean[~np.eye(len(trust.sites), dtype=bool)]
    return float(np.nan_to_num(given).max(initial=0)) or 1.0


def _lonely(trust: Trust) -> bool:
    """Whether a user ends alone: then the end no longer tells sites apart."""
    return any(trust.alone_from(i) is not None for i in range(len(trust.sites)))


def _trust(trust: Trust, order: Sequence[int], joins: Sequence[Join], word: str) -> list[Matrix]:
    """Trust at the end; where a user ends alone also its mean."""
    lonely = _lonely(trust)
    row = "Row: a site as the user. Column: whom it learned from. 1: full trust. 0: none"
    see = "Row: a site as the user; column: whom it learned from. Blue: trusted to the end; grey: trust has worn off. "
    see += "Sites that trust each other are neighbours"
    end = Matrix(
        "trust",
        "Trust after the last round (alpha)",
        f"{row} left.",
        matrix(trust.sites, trust.final, order, [] if lonely else joins),
        f"{see}." if lonely else f"{see}, and the tree joins them at the mean trust between them.",
        f"Why trust was lost: other patients, other coding, few {word}s or noise. Nor how two rows compare: all of a "
        f"user’s trust wears off faster once its model fits its own {word}s, so compare within a row.",
    )
    mean = Matrix(
        "trust-mean",
        "Mean trust over all rounds",
        f"{row}.",
        matrix(trust.sites, trust.mean, order, joins),
        "Where trust is gone at the end, how long it lasted still tells sites apart: the mean of each weight over the "
        "rounds. The tree joins sites at the mean trust between them.",
        "Whether trust should have lasted. Larger batches, fewer rounds, milder penalties, or early stopping make it "
        "last longer.",
    )
    return [end, mean] if lonely else [end]


def _weights(trust: Trust, order: Sequence[int], joins: Sequence[Join], word: str) -> Matrix:
    """Mean weights: late in a run, when nobody's model helps any more, the last ones are those of a site alone."""
    return Matrix(
        "shares",
        "Mean weight over all rounds",
        "Row: a site as the user. Column: whose model it learned from. A row sums to 1.",
        matrix(trust.sites, trust.mean, order, joins, GIVEN, _most(trust)),
        "Row: a site as the user; column: whose model it learned from; each row sums to 1. A weight is the share of "
        "the user’s model that this site’s gave; in the framed cells, its own part. The bluer, the more weight. Sites "
        "that gave each other weight are neighbours, and the tree joins them at the mean weight between them.",
        f"Why a site was given weight: like patients, more {word}s, or a copy of a good model. Nor how much it helped: "
        "shares sum to 1 however small the gain is, and a round in which a site kept to its own model counts as 1 for "
        "itself.",
    )


SECTION = Section(
    contents,
    lambda page: page.run is not None and read_trust(page.run.sites, page.run.facts) is not None,
    DRAWS,
    heat=True,
)
