"""A made-up study of whose model carries over to whose rows."""

from __future__ import annotations

import pandas as pd

import vitrail as vt
from vitrail.studies.transfer import Transfer

NASTY = "<b>x</b>"


def make_found(transfer: list[float], on_user: list[float]) -> Transfer:
    study = vt.Study.parse(
        {
            "target": {"column": "ill", "classes": [0, 1]},
            "features": {NASTY: {"kind": "numeric"}},
            "network": {"kind": "linear"},
        }
    )
    sites = ["a & b", NASTY, "c"]
    pairs = [(u, s) for u in sites for s in sites if u != s]
    table = pd.DataFrame(pairs, columns=["user", "site"]).assign(loss_on_user=on_user, transfer=transfer, error=0.01)
    table["cv_loss"] = table.loss_on_user - table.transfer
    table["rank"] = table.fillna(9.0).groupby("user").transfer.rank(method="first").astype(int)
    feedback = pd.DataFrame(
        [(u, s, NASTY, "1", 0.25, -0.5, -0.75) for u, s in pairs],
        columns=["user", "site", "column", "output", "user_effect", "site_effect", "difference"],
    )
    return Transfer(study, 1, 5, sites, table, feedback, dict.fromkeys(sites, 0.5))
