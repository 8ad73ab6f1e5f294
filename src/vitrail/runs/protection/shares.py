"""The shares of a run's sites: whether the study's limits leave a federation, and what the run says of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vitrail.core.errors import Problem, VitrailError
from vitrail.core.text import several
from vitrail.methods import AnyMethod
from vitrail.privacy.round_share import RoundShares, ShareLimits
from vitrail.privacy.secure_sum.fixed_point import fewest_of
from vitrail.study.model import Study


def weighs_rows(method: AnyMethod) -> bool:
    """Whether a site counts by its rows. Methods without such a setting are taken to."""
    return getattr(method, "weights", "rows") == "rows"


def round_shares(study: Study, method: AnyMethod, rows: Mapping[str, int]) -> RoundShares | None:
    """None where the study looks at no shares. Refuses limits that leave too few sites though all are there."""
    if study.share is None or not method.catalogue.federated:
        return None
    by_rows = weighs_rows(method)
    weights = {site: float(count) if by_rows else 1.0 for site, count in rows.items()}
    made = RoundShares(ShareLimits(study.share.least, study.share.most), weights, by_rows)
    need = fewest_of(len(weights), study.protect.least) if study.protect.sum == "masked" else 1
    inside = made.admitted(list(weights))
    if getattr(method, "invited", None) is None and len(inside) < need:
        shares = ", ".join(f"{site} {share:.3f}" for site, share in made.shares(list(weights)).items())
        what = f"{several(len(inside), 'site')} of {len(weights)} would take part, but a round needs {need} or more. "
        what += f"The shares are: {shares}. Sites that leave make the shares of the others larger."
        raise VitrailError("no site could take part", [Problem("share", what, "Widen the limits in [share].")])
    return made


def describe_shares(shares: RoundShares, rounds: int) -> dict[str, Any]:
    """For the run folder: what a page draws."""
    return {
        "of": "rows" if shares.by_rows else "weight",
        "least": shares.limits.least,
        "most": shares.limits.most,
        "whole": shares.shares(list(shares.weights)),
        "refused": sorted(shares.refused),
        "rounds": rounds,
    }
