"""A made study of who is like whom."""

from __future__ import annotations

import pandas as pd

import vitrail as vt
from vitrail.studies.likeness import Likeness

NASTY = "<b>x</b>"


def make_likeness() -> Likeness:
    study = vt.Study.parse(
        {
            "target": {"column": "ill", "classes": [0, 1]},
            "features": {"age": {"kind": "numeric"}},
            "network": {"kind": "linear"},
        }
    )
    sites = ["a & b", NASTY, "c", "d"]
    pairs = [(u, s) for u in sites for s in sites if u != s]
    table = pd.DataFrame(pairs, columns=["user", "site"])
    order = table.site.map({site: float(k) for k, site in enumerate(sites)})
    table = table.assign(discrepancy=-order, cosine=order / 4, transfer=-order / 10, trust=-order)
    table.loc[table.user == "c", ["cosine"]] = -order
    return Likeness(study, 1, sites, table)
