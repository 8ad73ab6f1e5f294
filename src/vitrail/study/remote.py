"""What a study between machines finds out beside its run: whether joining is worth it, and whom to learn from."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from vitrail.data.schema import Strict


class Verdict(Strict):
    """Between machines, after the run: each site finds out from held-out rows whether joining is worth it there."""

    # each fold is one more training of all sites, with as many bytes as the run's
    folds: int = Field(default=5, ge=2, le=20)
    # how often all folds are repeated, each time with new folds and another first model
    seeds: int = Field(default=2, ge=1, le=10)
    # the largest loss that would not matter, as a share of the baseline's loss
    harm: float = Field(default=0.03, ge=0, lt=1)


class TransferSpec(Strict):
    """Between machines, before the first round: the model of each site alone is tried at the others, and sites are
    chosen to learn from (the adapted Ndoye factor)."""

    folds: int = Field(default=5, ge=2, le=20)  # of each site's cross-validation
    top: int = Field(default=3, ge=1, le=1000)  # so many sites are chosen, those with the lowest transfer loss
    below: float | None = Field(default=None, ge=-1e6, le=1e6)  # instead of `top`: all with a transfer loss below this
    # the site for which the run is trained, with those chosen for it; left out: all sites that stay train together
    user: str = ""
    # how the losses of others' models leave a site: rounded to tens of patients, or as they are
    losses: Literal["rounded", "exact"] = "rounded"

    @property
    def rule(self) -> str:
        """As `vitrail transfer --train-with` has it."""
        return f"top:{self.top}" if self.below is None else f"below:{self.below}"
