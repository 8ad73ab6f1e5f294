"""Who is like whom: four measures of how alike two sites are, for each user and site, and how far they agree.

    discrepancy   between the rows: the maximum mean discrepancy with the kernel <f(a), f(b)> of f = (columns, outcome,
                  columns times outcome), |mean f at u - mean f at i|, less what chance adds. Columns are on the common
                  scale. It needs sums of f and of its squares, no rows: what a site could publish in one sum
    cosine        of the mean slopes, on the user's rows, of the models that both train alone
    transfer      the adapted Ndoye factor (studies/transfer.py)
    trust         alpha, mean over the rounds, of a training by a method that weighs sites by trust

Measured (benchmarks/verdicts/likeness.py): they agree little. The cosine ranks the other sites most as training with
them does; the transfer loss would do better without the cross-validated loss that is taken off.

Each measure is turned so that more is more alike. `agreement` is the rank correlation (Spearman) of two measures over
the other sites of a user, mean over users. It is for simulation: it takes the tables of all sites.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from vitrail.core.errors import Problem, VitrailError
from vitrail.data.encoding import SiteData, prepare
from vitrail.data.readers.frames import Sites, as_sites
from vitrail.runs.screening import unscreened
from vitrail.storage.atomic_files import write_atomically
from vitrail.storage.csv_files import to_csv
from vitrail.studies.contribution.rewards import trained_trust
from vitrail.studies.transfer import Transfer, transfer
from vitrail.study.model import Study

Floats = NDArray[np.float64]
LEAST = 4  # sites: of fewer others than three no ranks can agree or disagree
MEASURES = {
    "discrepancy": "how far the rows lie from the user’s, in columns, outcome and how they go together",
    "cosine": "whether the columns matter in the same way in the two sites’ own models",
    "transfer": "how much worse the site’s own model does on the user’s rows than at home (adapted Ndoye factor)",
    "trust": "how far the user’s model trusts the site’s updates, mean over the rounds",
}


@dataclass
class Likeness:
    """`table` has user, site and the four measures, more is more alike; NaN where one cannot be had."""

    study: Study
    seed: int
    sites: list[str]
    table: pd.DataFrame

    def matrix(self, measure: str) -> pd.DataFrame:
        """Users down, sites across; NaN on the diagonal."""
        return self.table.pivot(index="user", columns="site", values=measure).reindex(self.sites)[self.sites]

    def agreement(self) -> pd.DataFrame:
        """Measure by measure: the mean over users of the rank correlation over the other sites."""
        by_user = [part[[*MEASURES]].corr("spearman") for _, part in self.table.groupby("user")]
        stacked = np.stack([part.to_numpy() for part in by_user])
        users = np.isfinite(stacked).sum(0)
        mean = np.where(users > 0, np.nansum(stacked, 0) / np.maximum(users, 1), np.nan)
        return pd.DataFrame(mean, index=list(MEASURES), columns=list(MEASURES))

    def first(self, user: str) -> dict[str, str]:
        """Measure -> the site that is most like the user by it; those that are not known are left out."""
        mine = self.table[self.table.user == user].set_index("site")
        return {m: str(mine[m].idxmax()) for m in MEASURES if mine[m].notna().any()}

    def save(self, folder: str | Path) -> None:
        """alike.csv and agreement.csv in a folder."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(folder / "alike.csv", to_csv(self.table))
        write_atomically(folder / "agreement.csv", to_csv(self.agreement().reset_index(names="measure")))


def likeness(
    study: Study,
    sites: Sites,
    *,
    seed: int | None = None,
    rounds: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    site: str = "",
) -> Likeness:
    """How alike each two sites are by four measures: discrepancy of rows, cosine of models, transfer loss and trust.

    `sites`: a table for each site by name, or one table of all whose column `site` names it. `seed` and `rounds` are
    those of the study where they are not given; progress(round, of) is called as the sites' own models are trained. It
    needs the rows of all sites: it is for simulation only."""
    tables = as_sites(sites, site, study.site_column)
    if problems := _problems(study, tables):
        raise VitrailError("likeness cannot be measured", problems)
    study = unscreened(study) if rounds is None else unscreened(study).with_changes(training={"rounds": rounds})
    seed = study.seeds[0] if seed is None else seed
    carried = transfer(study, tables, seed=seed, progress=progress)
    table = carried.table[["user", "site"]].copy()
    pairs = list(zip(table.user, table.site, strict=True))
    data = prepare(tables, study.model_copy(update={"standardise": "global"}), seed)
    apart, trust = discrepancies(study, data), trained_trust(study, tables, seed)
    names = [one.name for one in data]
    table["discrepancy"] = [-apart[names.index(u), names.index(i)] for u, i in pairs]
    table["cosine"] = [_cosine(carried, u, i) for u, i in pairs]
    table["transfer"] = -carried.table.transfer
    at = {} if trust is None else {name: k for k, name in enumerate(trust.sites)}
    table["trust"] = np.nan if trust is None else [trust.mean[at[u], at[i]] for u, i in pairs]
    return Likeness(study, seed, carried.sites, table)


def _problems(study: Study, tables: Mapping[str, pd.DataFrame]) -> list[Problem]:
    if study.images or study.parties or study.target.kind == "time":
        what = "expected a study of tables whose outcome is a class or a number."
        return [Problem("study", what, "Use vitrail transfer.")]
    if len(tables) < LEAST:
        what = f"expected at least {LEAST} sites, so that ranks can be compared, got {len(tables)}."
        return [Problem("data", what, "Use vitrail transfer.")]
    return []


def discrepancies(study: Study, data: Sequence[SiteData]) -> Floats:
    """[site, site]: from the count, sums and sums of squares of f over each site's training rows."""
    features = [_features(study, one) for one in data]
    means = np.stack([f.mean(0) for f in features])
    chance = np.array([f.var(0, ddof=1).sum() / len(f) for f in features])  # of the squared length of a mean
    squared = ((means[:, None] - means[None]) ** 2).sum(-1) - chance[:, None] - chance[None]
    return np.asarray(np.sqrt(squared.clip(min=0)))


def _features(study: Study, site: SiteData) -> Floats:
    """[row, number]: columns, outcome, columns times outcome."""
    y = site.train_y.astype(np.float64)[:, None]
    if study.target.kind == "classes":
        y = np.eye(len(study.target.levels))[site.train_y.astype(np.int64)][:, 1:]
    x = site.train_x.astype(np.float64)
    return np.column_stack([x, y, *(x * one[:, None] for one in y.T)])


def _cosine(carried: Transfer, user: str, site: str) -> float:
    """Of the effects of all columns; the intercept is no effect."""
    mine = carried.feedback[(carried.feedback.user == user) & (carried.feedback.site == site)]
    mine = mine[mine.column != "(intercept)"]
    a, b = mine.user_effect.to_numpy(), mine.site_effect.to_numpy()
    return float(a @ b / max(float(np.linalg.norm(a) * np.linalg.norm(b)), 1e-30))
