"""Every pair of guards that does not go together is refused before the first round, with its reason; the others run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

import vitrail as vt
from tests.support.small import opposed_tables
from vitrail import methods
from vitrail.data.encoding import clean_sites
from vitrail.data.splitting import split_sites
from vitrail.privacy.budget import Budget, noise_for
from vitrail.runs.plan import Plan
from vitrail.runs.protection.budget import private, row_noise, spent_after, start_noise
from vitrail.runs.protection.checks import clashes_of
from vitrail.runs.protection.dp_statistics import encoded, sums_of
from vitrail.runs.setup import build_task
from vitrail.study.model import Study

TEN = [f"site {i}" for i in range(10)]
TABLES = opposed_tables(dict.fromkeys(TEN, 40))
ROWS, SITES = {"epsilon": 3.0}, {"epsilon": 8.0, "delta": 0.01}
LINEAR = {"network": {"kind": "linear"}}

REFUSED: list[tuple[dict[str, Any], str, dict[str, Any], int, str, str]] = [
    # protect, method, other sections, sites, key, words of the reason
    ({"robust": "median"}, "weight_erosion", {}, 10, "robust", "uses each report by itself"),
    ({"robust": "median"}, "fedavg", {}, 3, "robust", "at least 4 sites are needed"),
    ({"robust": "median"}, "local", {}, 10, "robust", "does not add up reports"),
    ({"sum": "groups"}, "weight_erosion", {}, 10, "sum", "uses each report by itself"),
    ({"sum": "groups"}, "fedavg", {}, 8, "sum", "3 groups of 3"),
    ({"sum": "groups", "least": 4}, "fedavg", {}, 10, "sum", "3 groups of 4"),
    ({"sum": "groups", "robust": "multikrum"}, "fedavg", {}, 10, "robust", "at least 4 groups"),
    ({"sum": "groups", "compress": "int8"}, "fedavg", {}, 10, "compress", "cannot be compressed"),
    ({"sum": "two servers"}, "fedavg", {}, 10, "sum", "clip is needed"),
    ({"sum": "two servers", "clip": 1.0, "robust": "median"}, "fedavg", {}, 10, "robust", "only use Multi-Krum"),
    ({"sum": "two servers", "clip": 1.0, "compress": "rank"}, "fedavg", {}, 10, "compress", "cannot be compressed"),
    ({"sum": "two servers", "clip": 1.0, "least": 5}, "fedavg", {}, 4, "least", "fewer than 5"),
    ({"sum": "two servers", "rows": ROWS, "clip": 1.0}, "fedavg", {}, 10, "sum", "one row's gradient"),
    ({"sum": "two servers", "clip": 1.0}, "weight_erosion", {}, 10, "sum", "uses each report by itself"),
    ({"sum": "masked", "robust": "median"}, "fedavg", {}, 10, "sum", "under masks no single report can be read"),
    ({"sum": "masked", "compress": "int8"}, "fedavg", {}, 10, "compress", "cannot be compressed"),
    ({"sum": "masked"}, "weight_erosion", {}, 10, "sum", "needs each report"),
    ({"sum": "masked", "least": 5}, "fedavg", {}, 4, "sum", "only for 5 sites or more"),
    ({"clip": 1.0}, "weight_erosion_sums", {}, 10, "clip", "after the exchange in which they can be clipped"),
    ({"sites": SITES}, "fedavg", {}, 10, "sites", "clip is needed"),
    ({"sites": SITES, "clip": 1.0}, "weight_erosion", {}, 10, "sites", "the noise for sites belongs to a total"),
    ({"sites": SITES, "clip": 1.0, "robust": "median"}, "fedavg", {}, 10, "sites", "not for a robust centre"),
    ({"sites": SITES, "clip": 1.0, "rows": ROWS}, "fedavg", {}, 10, "sites", "one row's gradient"),
    ({"sites": SITES, "clip": 1.0}, "fedavg rows", {}, 10, "sites", "count more than others"),
    ({"sites": SITES, "clip": 1.0, "least": 12}, "fedavg", {}, 10, "least", "fewer than 12"),
    ({"compress": "int8"}, "local", {}, 10, "compress", "does not add up reports"),
    (
        {"rows": ROWS},
        "moon",
        {"network": {"kind": "mlp", "hidden": (8,)}},
        10,
        "rows",
        "more about rows than their gradients",
    ),
    ({"rows": ROWS}, "local", {}, 10, "rows", "no reports"),
    ({"rows": ROWS}, "fedavg", {"standardise": "global"}, 10, "rows", "sums over all sites"),
    ({"rows": ROWS}, "fedavg", {"open": True}, 10, "rows", "no range for age, dose"),
    ({"rows_least": 39}, "fedavg", {}, 10, "rows_least", "at least 39 are required"),
]
RUNS: list[tuple[dict[str, Any], str, dict[str, Any]]] = [
    ({"sum": "groups"}, "fedavg", {}),
    ({"sum": "groups", "robust": "trimmed", "clip": 1.0, "rows": ROWS}, "fedavg", {}),
    ({"sum": "two servers", "clip": 1.0}, "scaffold", {}),
    ({"sites": SITES, "clip": 0.2, "least": 8}, "fedavg", {}),
    ({"compress": "int8", "robust": "median", "clip": 1.0}, "fedavg", {}),
    ({"compress": "rank"}, "weight_erosion", {}),
    ({"rows": ROWS, "robust": "median"}, "fedavg", {}),
]


def study(protect: dict[str, Any], more: dict[str, Any]) -> Study:
    sections = {k: v for k, v in more.items() if k != "open"}
    given = {"training": {"rounds": 2, "class_weights": "inverse"}, "standardise": "local", **LINEAR, **sections}
    found = Study.infer(TABLES, "sick", **given)
    if more.get("open"):
        found = found.with_changes(features={k: {**f.model_dump(), "range": None} for k, f in found.features.items()})
    return found.with_changes(protect=protect)


def method_of(name: str) -> Any:
    return methods.build(*name.split()[:1], {"weights": "rows"} if name.endswith(" rows") else {})


@pytest.mark.parametrize(("protect", "name", "more", "count", "key", "why"), REFUSED)
def test_each_clash_is_refused_with_its_reason(
    protect: dict[str, Any], name: str, more: dict[str, Any], count: int, key: str, why: str
) -> None:
    said = clashes_of(Plan(study(protect, more), method_of(name)), dict.fromkeys(TEN[:count], 30))
    assert any(k == key and why in words for k, words, _ in said), said


@pytest.mark.parametrize(("protect", "name", "more"), RUNS)
def test_what_goes_together_runs(protect: dict[str, Any], name: str, more: dict[str, Any]) -> None:
    run = vt.federate(study(protect, more), TABLES, name)
    assert np.isfinite(run.history.value[run.history.split == "test"]).all()


def test_a_part_of_the_budget_is_spent_on_counts_and_the_whole_is_what_was_asked_for() -> None:
    found, method = study({"rows": ROWS}, {}), methods.build("fedavg")
    assert set(start_noise(found)) == {"classes", "columns"}
    assert spent_after(found, method, 2) == pytest.approx(3.0, abs=1e-6)
    assert 0 < spent_after(found, method, 0) < 1.2, "the counts are told also by a site that never trained"
    bare = found.with_changes(training={"class_weights": "none"}, standardise="none")
    assert start_noise(bare) == {}
    assert row_noise(bare, method) == pytest.approx(noise_for(Budget(3.0, 1e-5), 2))
    assert row_noise(bare, method) < row_noise(found, method)
    task: Any = private(build_task(found, method, 1), found, method)
    assert task.noise == row_noise(found, method)


def test_what_is_counted_before_the_first_round_is_noisy_and_right_in_the_mean() -> None:
    found = study({"rows": {"epsilon": 40.0, "delta": 0.01}}, {})
    table = opposed_tables({"one": 4000})
    cleaned = clean_sites(table, found)
    studies, splits = (found.with_changes(protect={"rows": None}), found, found), split_sites(cleaned, found, 5)
    plain, noisy, again = (encoded(cleaned, s, 5, splits)[0] for s in studies)
    assert noisy.encoder == again.encoder
    assert plain.counts is None
    assert noisy.counts is not None
    true = np.bincount(plain.train_y.astype(int))
    assert 0 < np.abs(noisy.counts - true).max() < 20
    for name, mean in plain.encoder.mean.items():
        assert noisy.encoder.mean[name] != mean
        assert noisy.encoder.mean[name] == pytest.approx(mean, abs=0.1 * plain.encoder.sd[name])
        assert noisy.encoder.sd[name] == pytest.approx(plain.encoder.sd[name], rel=0.25)


def test_one_row_moves_what_is_counted_by_no_more_than_was_reckoned_with() -> None:
    """Also one far beyond every agreed range."""
    found = study({"rows": ROWS}, {})
    rows = clean_sites({"some": TABLES["site 0"]}, found)["some"]
    for value in (1e9, -1e9, np.nan, float(rows.age.mean())):
        more = rows.iloc[:1].assign(age=value, dose=-value)
        moved = sums_of(pd.concat([rows, more]), found) - sums_of(rows, found)
        assert np.linalg.norm(moved) <= np.sqrt(3 * 2) + 1e-9
