"""Whose core models each site's own model is mixed from, as far as sites showed it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from markupsafe import Markup

from vitrail.core import facts as means
from vitrail.core.text import number
from vitrail.report.sections.learning.matrix import matrix
from vitrail.report.sections.learning.wording import TrustWording
from vitrail.report.sections.section import Contents, Section, has_fact, run_of
from vitrail.report.text import listed, name

if TYPE_CHECKING:
    from vitrail.report.pages.run import Page

MIXTURE = TrustWording(
    "What the models of {} are mixed from",
    "{} mixes in {}: {}",
    "{}: {} of its own core",
    "{} did not show how much of {} it mixes in",
    "Weights by which {} mix each other's core models",
    counts_own=True,
)


def contents(page: Page) -> Contents:
    run = run_of(page)
    weights, agreed = run.fact(means.MIXED), run.fact(means.AGREED)
    assert weights is not None, "the section needs weights"
    shown = weights.double() if agreed is None else weights.double().where(agreed[:, None], math.nan)
    return contents_of(run.sites, shown.numpy())


def contents_of(sites: Sequence[str], weights: np.ndarray) -> Contents:
    """`weights`: [user, site], not a number where a user did not show them."""
    refused = [name(site) for site, row in zip(sites, weights, strict=True) if not np.isfinite(row).any()]
    most = float(np.nanmax(np.abs(weights), initial=0)) or 1.0
    return {
        "sentences": [_mixture_sentence(sites, weights, i) for i in range(len(sites)) if np.isfinite(weights[i]).any()],
        "drawing": matrix(sites, weights, range(len(sites)), [], MIXTURE, most) if len(refused) < len(sites) else None,
        "refused": listed(refused, 12) if refused else None,
    }


def _mixture_sentence(sites: Sequence[str], weights: np.ndarray, user: int) -> Markup:
    row, me = weights[user], name(sites[user])
    words = Markup("{}: {} of its own core").format(me, number(row[user], 2))
    others = np.delete(row, user)
    if len(others):
        names = [site for i, site in enumerate(sites) if i != user]
        first, last = int(others.argmax()), int(others.argmin())
        words += Markup(", most of {} ({})").format(name(names[first]), number(others[first], 2))
        if first != last:
            words += Markup(", least of {} ({})").format(name(names[last]), number(others[last], 2))
    return words + Markup("; all together {}.").format(number(float(row.sum()), 2))


SECTION = Section(contents, has_fact(means.MIXED), (means.MIXED, means.AGREED), heat=True)
