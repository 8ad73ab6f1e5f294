"""Tables that several tests share. The small federation is that of the laws."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitrail.testing.federation import SIZES, gap, make_rows, make_sites, make_task, models, pooled, train

if TYPE_CHECKING:
    import pandas as pd

    from vitrail.study.model import Study

__all__ = ["SIZES", "gap", "make_rows", "make_sites", "make_task", "models", "opposed_tables", "pooled"]
__all__ += ["spoil_hold_out", "train"]


def spoil_hold_out(study: Study, sites: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    """The same tables with nonsense in every hold-out row."""
    from vitrail.data.splitting import split_rows  # the rest runs where there is only torch

    out = {}
    for name, frame in sites.items():
        _, test = split_rows(frame[study.target.column].to_numpy(), study, study.seeds[0], name)
        out[name] = frame.copy()
        out[name].iloc[test] = 1e6
    return out


def opposed_tables(rows: dict[str, int]) -> dict[str, pd.DataFrame]:
    """Sites with so many rows; in the one called middle the relation is the other way round."""
    import numpy as np
    import pandas as pd

    out = {}
    for i, (site, count) in enumerate(rows.items()):
        rng = np.random.default_rng(i)
        x, z = rng.standard_normal((2, count))
        sick = np.where((x - z if site != "middle" else z - x) + 0.4 * rng.standard_normal(count) > 0, "yes", "no")
        out[site] = pd.DataFrame({"age": x * 10 + 50, "dose": z, "sick": sick})
    return out
