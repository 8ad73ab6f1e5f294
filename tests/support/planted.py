"""Every kind of fault of the benchmarks, planted at one site of made-up federations."""

from __future__ import annotations

import zlib
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from tests.support.screened import as_file, federation, unlike
from tests.support.scripts import load_script
from vitrail.data.readers.tables import clean
from vitrail.data.schema import TableSchema
from vitrail.quality.screening import screen
from vitrail.quality.screening.result import Screening

SITE = "site-2"


class PlantedFault(NamedTuple):
    table: TableSchema
    rows: dict[str, pd.DataFrame]  # of all sites, with the fault
    before: pd.DataFrame  # of the site, without
    columns: list[str]  # that are wrong
    screening: Screening

    @property
    def file(self) -> pd.DataFrame:
        return as_file(self.rows[SITE], self.table)


def kinds() -> dict[str, Any]:
    one, later, fresh = (load_script(name) for name in ("fault_kinds", "fault_kinds_later", "fault_kinds_fresh"))
    return {**one.KINDS, **later.LATER, **fresh.FRESH_KINDS}


@cache
def _sites(alike: bool, number: bool) -> tuple[dict[str, pd.DataFrame], TableSchema]:
    return federation(sites=5, rows=200, number=number) if alike else unlike(sites=5, rows=200, number=number)


@cache
def planted(name: str, alike: bool = True, seed: int = 0) -> PlantedFault | None:
    """None where such a fault cannot be planted."""
    kind, load = kinds()[name], load_script("fault_kinds")
    number = "label number" in kind.on and "label of" not in kind.on
    rows, table = _sites(alike, number)
    column = {"numeric": "pressure", "binary": "smoker", "categorical": "stage"}.get(kind.on.split(",")[0], "y")
    rng = np.random.default_rng(zlib.crc32(f"{name} {seed}".encode()))
    if column == "pressure" and seed % 2:
        column = "sugar"
    made = kind.plant(load.Site(rows[SITE].copy(), column, table, rng))
    if made is None:
        return None
    after = clean(as_file(made[0], table), table)
    sites = {**rows, SITE: after}
    return PlantedFault(table, sites, rows[SITE], made[1], screen(sites, table))
