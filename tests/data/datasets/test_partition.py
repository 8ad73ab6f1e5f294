"""Cutting one table into sites: every row has one home, the same arguments give the same cut."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrail.core.errors import VitrailError
from vitrail.data.datasets import partition
from vitrail.data.datasets.partition import Cut

NAN = float("nan")


def make_frame(n: int, seed: int = 0, classes: int = 4) -> pd.DataFrame:
    """Rows with a number of their own, under labels that repeat (as after putting files together)."""
    rng = np.random.default_rng(seed)
    ages = rng.integers(0, 90, n).astype(float)
    ages[rng.random(n) < 0.1] = NAN
    label = rng.integers(0, classes, n)
    label[:classes] = np.arange(classes)[:n]
    ward = rng.choice(["north", "south", None], n)
    frame = pd.DataFrame({"row": np.arange(n), "age": ages, "label": label, "ward": ward})
    return frame.set_axis(rng.integers(0, 3, n))


# name -> cut(frame, sites, seed); those without lots take no seed
CUTS: dict[str, Callable[[pd.DataFrame, int, int], Cut]] = {
    "by_column": lambda f, k, s: partition.by_column(f, "ward"),
    "by_ranges": lambda f, k, s: partition.by_ranges(f, "age", {"young": (10, 30), "old": (30, 60)}),
    "age_strict": lambda f, k, s: partition.age_strict(f),
    "age_some": lambda f, k, s: partition.age_some(f, seed=s),
    "iid": lambda f, k, s: partition.iid(f, k, s),
    "size_skew": lambda f, k, s: partition.size_skew(f, k, 0.5, s),
    "dirichlet": lambda f, k, s: partition.dirichlet(f, "label", k, 0.3, s),
    "sigma_classes": lambda f, k, s: partition.sigma_classes(f, "label", k, 4 if k < 2 else 2, s),
}
BY_LOT = ["age_some", "iid", "size_skew", "dirichlet", "sigma_classes"]


def rows_of(sites: Cut) -> dict[str, list[int]]:
    return {name: frame["row"].tolist() for name, frame in sites.items()}


@pytest.mark.parametrize("name", CUTS)
@settings(max_examples=20, deadline=None)
@given(n=st.integers(4, 80), sites=st.integers(1, 9), seed=st.integers(0, 2**40))
def test_no_row_is_lost_or_doubled(name: str, n: int, sites: int, seed: int) -> None:
    frame = make_frame(n, seed % 1000)
    parts = CUTS[name](frame, sites, seed)
    assert sorted(r for rows in rows_of(parts).values() for r in rows) == list(range(n))
    for part in parts.values():  # and each row is whole
        assert part.equals(frame.iloc[part["row"]][part.columns])
    assert rows_of(CUTS[name](frame.copy(), sites, seed)) == rows_of(parts)
    if name in ("iid", "size_skew", "dirichlet", "sigma_classes"):
        assert len(parts) == sites
        assert list(parts) == sorted(parts)


@pytest.mark.parametrize("name", BY_LOT)
def test_seed_matters(name: str) -> None:
    frame = make_frame(80)
    assert rows_of(CUTS[name](frame, 4, 1)) != rows_of(CUTS[name](frame, 4, 2))


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 90), st.integers(1, 12), st.integers(0, 99))
def test_iid_sizes_are_equal(n: int, sites: int, seed: int) -> None:
    sizes = [len(f) for f in partition.iid(make_frame(n), sites, seed).values()]
    assert max(sizes) - min(sizes) <= 1


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 12), st.floats(0.01, 50), st.integers(0, 99), st.integers(0, 5))
def test_size_skew_leaves_everyone_some_rows(sites: int, alpha: float, seed: int, at_least: int) -> None:
    sizes = [len(f) for f in partition.size_skew(make_frame(90), sites, alpha, seed, at_least).values()]
    assert min(sizes) >= min(at_least, 90 // sites)


def test_size_skew_follows_alpha() -> None:
    def spread(alpha: float) -> float:
        frame = make_frame(300)
        return float(
            np.mean([np.std([len(f) for f in partition.size_skew(frame, 6, alpha, s).values()]) for s in range(20)])
        )

    assert spread(0.1) > 2 * spread(1) > 4 * spread(100)


def skew(sites: Cut, classes: int = 4) -> float:
    """Mean share of a site's most frequent class; 1/classes when all are alike."""
    return float(np.mean([np.bincount(f["label"], minlength=classes).max() / len(f) for f in sites.values()]))


def test_dirichlet_small_alpha_is_more_skewed() -> None:
    frame = make_frame(400)
    by_alpha = [
        np.mean([skew(partition.dirichlet(frame, "label", 5, a, s)) for s in range(20)]) for a in (0.05, 1, 100)
    ]
    assert by_alpha[0] > by_alpha[1] + 0.1
    assert by_alpha[1] > by_alpha[2] + 0.1
    assert by_alpha[2] < 0.25 + 0.1


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 10), st.floats(1e-6, 1e6), st.integers(0, 999))
def test_dirichlet_leaves_no_site_empty(sites: int, alpha: float, seed: int) -> None:
    frame = make_frame(30)
    assert all(len(f) >= 2 for f in partition.dirichlet(frame, "label", sites, alpha, seed).values())


def test_dirichlet_missing_labels_are_a_class() -> None:
    frame = make_frame(60).assign(label=["a", None, "b"] * 20)
    parts = partition.dirichlet(frame, "label", 3, seed=1)
    assert sorted(r for rows in rows_of(parts).values() for r in rows) == list(range(60))


@settings(max_examples=80, deadline=None)
@given(st.integers(1, 8), st.integers(1, 5), st.integers(1, 5), st.integers(0, 99))
def test_sigma_classes(sites: int, sigma: int, classes: int, seed: int) -> None:
    """At most sigma classes at a site and a home for each class; impossible wishes are refused."""
    frame = make_frame(60, seed, classes)
    if sigma > classes or sites * sigma < classes:
        with pytest.raises(VitrailError, match="sigma"):
            partition.sigma_classes(frame, "label", sites, sigma, seed)
        return
    parts = partition.sigma_classes(frame, "label", sites, sigma, seed)
    assert all(f["label"].nunique() <= sigma for f in parts.values())
    assert {k for f in parts.values() for k in f["label"]} == set(range(classes))
    for k in range(classes):  # shared equally where it is at home
        shares = [n for f in parts.values() if (n := int((f["label"] == k).sum()))]
        assert max(shares) - min(shares) <= 1


AGES = {
    -1: "unknown",
    0: "0-20",
    20: "0-20",
    20.5: "21-35",
    21: "21-35",
    35: "21-35",
    36: "36+",
    120: "36+",
    NAN: "unknown",
}


def test_age_strict_boundaries() -> None:
    frame = pd.DataFrame({"age": list(AGES), "row": range(len(AGES))})
    home = {r: site for site, rows in rows_of(partition.age_strict(frame)).items() for r in rows}
    assert [home[i] for i in range(len(AGES))] == list(AGES.values())


@pytest.mark.parametrize(
    "ages",
    [["10", "30", "x", None], ["10,5", "30,5", "?", ""], pd.array([10, 30, None, None], dtype="Int64")],
    ids=["texts", "decimal commas", "nullable"],
)
def test_ages_of_every_type(ages: Any) -> None:
    sizes = {n: len(f) for n, f in partition.age_strict(pd.DataFrame({"age": ages})).items()}
    assert sizes == {"0-20": 1, "21-35": 1, "unknown": 2}


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 80), st.integers(0, 99))
def test_age_some_young_sites_partition_the_young(n: int, seed: int) -> None:
    frame = make_frame(n, seed)
    parts = partition.age_some(frame, seed=seed)
    halves = [parts.pop(k)["row"].tolist() for k in ("0-35 a", "0-35 b") if k in parts]
    assert sorted(r for half in halves for r in half) == frame["row"][frame["age"] <= 35].tolist()  # each once
    if len(halves) == 2:
        assert abs(len(halves[0]) - len(halves[1])) <= 1
    assert set(parts) <= {"36+", "unknown"}


def test_age_some_without_the_young() -> None:
    assert list(partition.age_some(pd.DataFrame({"age": [40, 50, None]}))) == ["36+", "unknown"]


def test_by_column_names_and_drops() -> None:
    frame = pd.DataFrame({"code": [1, 2, None, 1], "x": [1, 2, 3, 4]})  # with a gap, whole numbers become 1.0
    parts = partition.by_column(frame, "code")
    assert {n: f["x"].tolist() for n, f in parts.items()} == {"1": [1, 4], "2": [2], "unknown": [3]}
    assert all("code" not in f for f in parts.values())


F = make_frame(20)


@pytest.mark.parametrize(
    ("call", "wanted"),
    [
        (lambda: partition.iid(F, 0), ["sites: expected a whole number above 0, got 0"]),
        (lambda: partition.iid(F, -2), ["sites"]),
        (lambda: partition.iid(F, 2.5), ["sites", "2.5"]),  # type: ignore[arg-type]
        (lambda: partition.iid(F, True), ["sites"]),
        (lambda: partition.iid(F, "3"), ["sites", "'3'"]),  # type: ignore[arg-type]
        (lambda: partition.size_skew(F, 3, 0), ["alpha: expected a number above 0, got 0"]),
        (lambda: partition.size_skew(F, 0, -1), ["sites: ", "alpha: "]),
        (lambda: partition.size_skew(F, 3, 1, at_least=-5), ["at_least", "-5"]),
        (lambda: partition.dirichlet(F, "label", 3, NAN), ["alpha", "nan"]),
        (lambda: partition.dirichlet(F, "label", 3, float("inf")), ["alpha", "inf"]),
        (lambda: partition.dirichlet(F, "lable", 3), ["there is no column 'lable'", "Did you mean 'label'?"]),
        (lambda: partition.sigma_classes(F, "label", 3, 1.5), ["sigma", "1.5"]),  # type: ignore[arg-type]
        (lambda: partition.sigma_classes(F, "label", 3, 9), ["sigma", "4 classes"]),
        (lambda: partition.sigma_classes(F, "label", 1, 2), ["sigma", "1 sites with 2 different classes"]),
        (lambda: partition.sigma_classes(F, "lab", 2, 2), ["'label'"]),
        (lambda: partition.by_column(F, "Ward"), ["Did you mean 'ward'?"]),
        (lambda: partition.by_ranges(F, "age", {}), ["ranges", "none"]),
        (lambda: partition.by_ranges(F, "age", {"a": (5, 1)}), ["ranges", "a: (5, 1)"]),
        (lambda: partition.by_ranges(F, "agee", {"a": (1, 5)}), ["Did you mean 'age'?"]),
        (lambda: partition.age_strict(F, "years"), ["there is no column 'years'"]),
        (lambda: partition.age_some(F, "years"), ["there is no column 'years'"]),
    ],
)
def test_wrong_arguments(call: Callable[[], Any], wanted: list[str]) -> None:
    with pytest.raises(VitrailError) as caught:
        call()
    for part in wanted:
        assert part in str(caught.value)
