"""The cases of benchmarks/faults/planted_faults.py: which faults are planted in which rows.

Three parts: `design`, the tables the rule's first form was shaped on; `test`, those kept apart from it, which the
second form's author had seen; `fresh`, tables and kinds that nobody but the judge saw before that form was frozen.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from functools import cache, lru_cache
from typing import Any

import fault_tables as tables
import numpy as np
from fault_harm import tie
from fault_kinds import KINDS, Kind, Site
from fault_kinds_fresh import FRESH_KINDS
from fault_kinds_joint import JOINT
from fault_kinds_later import LATER
from fault_kinds_third import THIRD
from fault_tables import LABEL, Rows
from fault_tables_fresh import NATURAL_FRESH
from fault_tables_third import NATURAL_THIRD, THIRD_TABLES

from vitrail.core.random import key

Job = dict[str, Any]
MOSTLY = ["unit", "offset", "sign", "code", "shuffle", "label flip", "label noise"]
ALL_KINDS = KINDS | LATER | FRESH_KINDS | JOINT | THIRD


def fitting(kind: Kind, table: Any) -> list[str]:
    """The columns that such a fault can be planted in."""
    target, wanted = table.target, kind.on.split(",")
    said = {"label number"} if target.kind == "number" else {"label of classes"}
    said |= {"label of two classes"} if len(target.levels) == 2 else set()
    return [target.column] if said & {*wanted} else [n for n, f in table.features.items() if f.kind in wanted]


def jobs() -> Iterator[Job]:
    """All cases; the fresh ones first, for they count most."""
    yield from fresh_jobs()
    for part, names, seeds in (("design", list(tables.DESIGN), 6), ("test", list(tables.TEST), 3)):
        for name in names:
            many = 1 if name == "har" else seeds
            for seed in range(many):
                for kind in KINDS:
                    yield {"part": part, "cut": "lot", "data": name, "seed": 700 + seed, "kinds": [kind]}
            for seed in range(min(many, 2 if part == "test" else 1)):
                for kind in LATER:
                    yield {"part": part, "cut": "lot", "data": name, "seed": 720 + seed, "kinds": [kind]}
            for seed in range(2 if name == "har" else 12 if part == "design" else 5):
                two = np.random.default_rng(key(seed, name, "two")).choice(list(KINDS)[:-1], 2, replace=False)
                yield {"part": part, "cut": "lot", "data": name, "seed": 740 + seed, "kinds": [str(k) for k in two]}
            for seed in range(0 if name == "har" else 8):  # of kinds that mostly do harm
                two = np.random.default_rng(key(seed, name, "two more")).choice(MOSTLY, 2, replace=False)
                yield {"part": part, "cut": "lot", "data": name, "seed": 760 + seed, "kinds": [str(k) for k in two]}
            for seed in range(4 if name == "har" else 110 if part == "design" else 24):
                yield {"part": part, "cut": "lot", "data": name, "seed": 1000 + seed, "kinds": []}
        for seed in range(330):
            yield {"part": part, "cut": "small", "data": "", "seed": 2000 + seed, "kinds": []}
    for part, names in (("design", tables.NATURAL), ("test", tables.NATURAL_TEST)):
        for name in names:
            yield {"part": part, "cut": "natural", "data": name, "seed": 0, "kinds": []}
            for seed in range(1 if name == "har" else 2):
                for kind in KINDS:
                    yield {"part": part, "cut": "natural", "data": name, "seed": 800 + seed, "kinds": [kind]}
            for kind in LATER if name != "har" else []:
                yield {"part": part, "cut": "natural", "data": name, "seed": 820, "kinds": [kind]}


def fresh_jobs() -> Iterator[Job]:
    """Seed by seed over all tables, so that a part of them is a fair part."""
    lots = [n for n, source in tables.FRESH.items() if source.sites]
    for seed in range(3):
        for name in lots:
            for kind in (*KINDS, *FRESH_KINDS):
                yield {"part": "fresh", "cut": "lot", "data": name, "seed": 3000 + seed, "kinds": [kind]}
    for seed in range(24):
        for name in lots:
            yield {"part": "fresh", "cut": "lot", "data": name, "seed": 3200 + seed, "kinds": []}
    for name in NATURAL_FRESH:
        yield {"part": "fresh", "cut": "natural", "data": name, "seed": 0, "kinds": []}
    for seed in range(2):
        for name in NATURAL_FRESH:
            for kind in (*KINDS, *FRESH_KINDS):
                yield {"part": "fresh", "cut": "natural", "data": name, "seed": 3400 + seed, "kinds": [kind]}
    for seed in range(16):
        for name in lots:
            two = np.random.default_rng(key(seed, name, "two fresh")).choice(MOSTLY, 2, replace=False)
            yield {"part": "fresh", "cut": "lot", "data": name, "seed": 3600 + seed, "kinds": [str(k) for k in two]}
    for seed in range(330):
        yield {"part": "fresh", "cut": "small", "data": "", "seed": 4000 + seed, "kinds": []}


def shaping_jobs() -> Iterator[Job]:
    """What the third form was shaped on: kinds that only relations show, in the earlier tables."""
    for seed in range(2):
        for name in (*tables.DESIGN, *tables.TEST):
            if name not in ("har", "digits"):
                for kind in JOINT:
                    yield {"part": "shaping", "cut": "lot", "data": name, "seed": 5000 + seed, "kinds": [kind]}
    for seed in range(8):
        for name in (*tables.DESIGN, *tables.TEST):
            if name != "har":
                yield {"part": "shaping", "cut": "lot", "data": name, "seed": 5100 + seed, "kinds": []}
    for seed in range(60):
        yield {"part": "shaping", "cut": "small", "data": "", "seed": 5200 + seed, "kinds": []}


def third_jobs() -> Iterator[Job]:
    """Tables and kinds kept apart from the third form; seed by seed, so that a part of them is a fair part."""
    lots = [n for n, source in THIRD_TABLES.items() if source.sites]
    for seed in range(2):
        for name in lots:
            for kind in (*KINDS, *JOINT, *THIRD):
                yield {"part": "third", "cut": "lot", "data": name, "seed": 6000 + seed, "kinds": [kind]}
        for name in NATURAL_THIRD if seed == 0 else ():
            for kind in (*KINDS, *JOINT, *THIRD):
                yield {"part": "third", "cut": "natural", "data": name, "seed": 6400, "kinds": [kind]}
        for name in lots:
            for k in range(8):
                yield {"part": "third", "cut": "lot", "data": name, "seed": 6200 + 8 * seed + k, "kinds": []}
        for k in range(80):
            yield {"part": "third", "cut": "small", "data": "", "seed": 6500 + 80 * seed + k, "kinds": []}
    for name in NATURAL_THIRD:
        yield {"part": "third", "cut": "natural", "data": name, "seed": 0, "kinds": []}


def tag(job: Job) -> str:
    return "|".join([job["part"], job["cut"], job["data"], str(job["seed"]), "+".join(job["kinds"])])


@lru_cache(4)
def base_rows(part: str, cut: str, name: str, seed: int) -> tuple[Rows, Any, str]:
    if cut == "small":
        return tables.small(part, seed)
    rows = tables.natural(name) if cut == "natural" else tables.by_lot(name, seed)
    return rows, tables.study_of(name), name


@cache
def ties_of(name: str) -> dict[str, float]:
    return tie({"all": tables.cleaned(name)}, tables.study_of(name))


def plant(job: Job) -> tuple[Rows, Any, list[tuple[str, list[str], Rows]]] | None:
    """All rows with all faults; the study; for each fault the site, the wrong columns, the rows with it alone.

    None where the table has no column for such a fault."""
    rows, table, name = base_rows(job["part"], job["cut"], job["data"], job["seed"])
    faults, out = [], dict(rows)
    free = sorted(n for n, f in rows.items() if len(f) >= 30)
    for k in job["kinds"]:
        rng = np.random.default_rng(key(job["seed"], k, job["data"], job["cut"]))
        site = str(rng.choice([n for n in free if len(rows[n]) >= 60] or free))
        columns = [c for c in fitting(ALL_KINDS[k], table) if c not in table.features or rows[site][c].nunique() > 1]
        if not columns:
            return None
        weights = np.array([(ties_of(name).get(c, 1.0) + 0.02) ** 2 for c in columns])
        column = str(rng.choice(columns, p=weights / weights.sum()))
        planted = ALL_KINDS[k].plant(Site(rows[site], column, table, rng))
        if planted is None:
            return None
        cells = [LABEL if c == table.target.column else c for c in planted[1]]
        faults.append((site, cells, {**rows, site: planted[0]}))
        out[site] = planted[0]
        free.remove(site)
    return out, table, faults


def chosen(job: Job, every: int) -> bool:
    """A sample that knows nothing of results."""
    return zlib.crc32(tag(job).encode()) % every == 0
