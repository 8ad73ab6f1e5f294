"""Sections of a study file about what machines draw, and about the share of a site in a round."""

from __future__ import annotations

from pydantic import Field

from vitrail.data.schema import Strict


class Energy(Strict):
    """Power of the machine that runs this file (a simulation, or the coordinator); sites state theirs at `join`."""

    # the power that one busy processor core draws, in watts; left out: no energy
    watts: float | None = Field(default=None, gt=0, le=1e4)
    # grams of CO2 that the local grid emits for a kilowatt-hour; it needs `watts`; left out: no CO2
    grid: float | None = Field(default=None, ge=0, le=2000)


class ShareSpec(Strict):
    """Limits of the share of a site in a round, which each site looks at before it takes part."""

    # a site whose share of a round would be smaller takes no part in it; a site may set more when it joins
    least: float = Field(default=0.0, ge=0, lt=1)
    # a site whose share of a round would be larger takes no part in it; a site may set less when it joins
    most: float = Field(default=1.0, gt=0, le=1)
