"""Centralized: one model, trained on the rows of all sites in one place. It is a yardstick, no option for hospitals.

The rows themselves travel, and `vitrail wire centralized` says so. Only the local engines run it. The class weights are
those of the pooled rows.
"""

from __future__ import annotations

from dataclasses import dataclass

from vitrail.core.declarations import Catalogue
from vitrail.methods.local import Local


@dataclass(frozen=True)
class Centralized(Local):
    catalogue = Catalogue("Centralized", baseline="pooled")
