"""From tables to numbers: standardised by training rows alone, missing values neutral, rows set aside by rule."""

from __future__ import annotations

import tomllib
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrail.core.errors import VitrailError
from vitrail.data.encoding import class_weights, columns, fingerprint_rows, fit_encoders, moments, prepare
from vitrail.data.readers.tables import clean
from vitrail.data.schema import Feature, Split, TableSchema, Target
from vitrail.data.splitting import split_rows
from vitrail.study.model import Study

TABLE = TableSchema(
    target=Target(column="sick", classes=("no", "yes"), positive="yes"),
    features={
        "age": Feature(kind="numeric"),
        "chol": Feature(kind="numeric", missing=(0,)),
        "sex": Feature(kind="binary", categories=("f", "m")),
        "pain": Feature(kind="categorical", categories=("none", "some", "much")),
    },
    split=Split(test=0.33, at_least=0),
)
NAMES = ["age", "chol", "sex", "pain=some", "pain=much"]  # none is the reference level


def make_frame(n: int = 60, seed: int = 0, offset: float = 50.0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "age": rng.normal(offset, 10, n),
            "chol": rng.normal(200, 40, n),
            "sex": rng.choice(["f", "m"], n),
            "pain": rng.choice(["none", "some", "much"], n),
            "sick": rng.choice(["no", "yes"], n),
        }
    )
    frame.loc[rng.random(n) < 0.2, "age"] = np.nan
    frame.loc[rng.random(n) < 0.2, "chol"] = 0  # the code for missing
    return frame


def with_(table: TableSchema, **changes: Any) -> TableSchema:
    return table.model_copy(update=changes)


def expected(values: pd.Series, mean: float, sd: float) -> np.ndarray:
    """By hand: standardised, 0 where missing."""
    v = values.to_numpy(dtype=float)
    return np.array([0.0 if np.isnan(a) else (a - mean) / sd for a in v])


# --- standardisation ---


def test_column_names() -> None:
    assert columns(TABLE) == NAMES
    assert columns(with_(TABLE, reference_level=False)) == [*NAMES[:3], "pain=none", *NAMES[3:]]


def test_local_standardisation_is_numpys_on_training_rows() -> None:
    sites = {"a": make_frame(60, 1), "b": make_frame(45, 2, offset=90)}
    for data in prepare(sites, with_(TABLE, standardise="local"), seed=3):
        frame = sites[data.name]
        rows = clean(frame, TABLE)
        train, test = split_rows(rows["sick"].to_numpy(), TABLE, 3, data.name)
        for i, name in enumerate(["age", "chol"]):
            values = frame[name].where(frame[name] != 0)
            mean, sd = np.nanmean(values.iloc[train]), np.nanstd(values.iloc[train])
            np.testing.assert_allclose(data.train_x[:, i], expected(values.iloc[train], mean, sd), atol=1e-12)
            np.testing.assert_allclose(data.test_x[:, i], expected(values.iloc[test], mean, sd), atol=1e-12)


def test_global_standardisation_is_that_of_the_pooled_training_rows() -> None:
    sites = {"a": make_frame(60, 1), "b": make_frame(45, 2, offset=90), "c": make_frame(7, 3, offset=20)}
    table = with_(TABLE, standardise="global")
    splits = {n: split_rows(clean(f, table)["sick"].to_numpy(), table, 3, n)[0] for n, f in sites.items()}
    ages = np.concatenate([f["age"].to_numpy()[splits[n]] for n, f in sites.items()])
    for data in prepare(sites, table, seed=3):
        values = sites[data.name]["age"].iloc[splits[data.name]]
        np.testing.assert_allclose(data.train_x[:, 0], expected(values, np.nanmean(ages), np.nanstd(ages)), atol=1e-12)


def test_no_standardisation_keeps_the_values() -> None:
    frame = make_frame()
    (data,) = prepare({"a": frame}, with_(TABLE, standardise="none"), seed=0)
    kept = np.concatenate([data.train_x[:, 0], data.test_x[:, 0]])
    assert sorted(kept) == sorted(frame["age"].fillna(0.0))


@pytest.mark.parametrize("standardise", ["local", "global", "none"])
def test_test_rows_have_no_influence(standardise: str) -> None:
    """Whatever is written into test rows, training rows are encoded as before."""
    sites = {"a": make_frame(60, 1), "b": make_frame(45, 2)}
    table = with_(TABLE, standardise=standardise)
    before = prepare(sites, table, seed=3)
    changed = {}
    for name, frame in sites.items():
        test = split_rows(clean(frame, table)["sick"].to_numpy(), table, 3, name)[1]
        frame = frame.copy()
        frame.loc[test, ["age", "chol"]] = 1e6
        changed[name] = frame
    for one, other in zip(before, prepare(changed, table, seed=3), strict=True):
        assert np.array_equal(one.train_x, other.train_x)
        assert one.encoder == other.encoder
        assert not np.array_equal(one.test_x, other.test_x)  # they did change
        assert one.fingerprint != other.fingerprint


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from([0.0, 1e4, 1e8, -1e8]),
    st.lists(st.integers(1, 40), min_size=1, max_size=5),
    st.integers(0, 99),
)
def test_global_moments_equal_the_pooled_ones(offset: float, sizes: list[int], seed: int) -> None:
    """Also far from zero, where sums of squares would lose every digit."""
    rng = np.random.default_rng(seed)
    parts = {f"s{i}": pd.DataFrame({"age": offset + rng.normal(0, 3, n), "chol": 1.0}) for i, n in enumerate(sizes)}
    encoder = fit_encoders(parts, with_(TABLE, standardise="global"))["s0"]
    pooled = np.concatenate([f["age"].to_numpy() for f in parts.values()])
    assert encoder.mean["age"] == pytest.approx(pooled.mean(), rel=1e-12, abs=1e-9)
    assert encoder.sd["age"] == pytest.approx(pooled.std() if len(pooled) > 1 else 1.0, rel=1e-6)


def test_moments_count_only_what_is_there() -> None:
    frame = pd.DataFrame({"age": [1.0, np.nan, 5.0]})
    assert moments(frame, ["age"]).rows.tolist() == [2]
    assert moments(frame, ["age"]).total.tolist() == [6]
    assert moments(frame, ["age"], np.array([3.0])).total.tolist() == [8]


# --- missing and constant ---


@pytest.mark.parametrize("reference", [True, False])
@pytest.mark.parametrize("standardise", ["local", "global"])
def test_missing_values_are_neutral(standardise: str, reference: bool) -> None:
    frame = make_frame()
    frame.loc[0] = [np.nan, 0, None, None, "no"]
    table = with_(TABLE, standardise=standardise, reference_level=reference)
    rows = clean(frame, table)
    matrix = fit_encoders({"a": rows}, table)["a"].matrix(rows)
    assert matrix[0].tolist() == [0.0, 0.0, 0.5, *[1 / 3] * (2 if reference else 3)]
    present = frame["pain"].notna()
    hot = frame["pain"][present] != "none" if reference else 1
    assert (matrix[present, 3:].sum(1) == hot).all()
    assert set(matrix[present, 3:].ravel()) == {0.0, 1.0}
    assert matrix[1:, 2].tolist() == [{"f": 0.0, "m": 1.0}[s] for s in frame["sex"][1:]]


@pytest.mark.parametrize("standardise", ["local", "global"])
@pytest.mark.parametrize("value", [0.1, 7.0, 1e8 + 0.1, -1e-9])
def test_constant_column(standardise: str, value: float) -> None:
    """Nothing to scale by: (almost) 0 everywhere, and a difference in a test row is kept in its own unit."""
    frame = make_frame()
    frame["age"] = value
    table = with_(TABLE, standardise=standardise)
    encoder = fit_encoders({"a": clean(frame, table)}, table)["a"]
    assert encoder.sd["age"] == 1.0
    np.testing.assert_allclose(encoder.matrix(clean(frame, table))[:, 0], 0.0, atol=1e-6)
    frame["age"] = value + 2
    np.testing.assert_allclose(encoder.matrix(clean(frame, table))[:, 0], 2.0, atol=1e-6)


@pytest.mark.parametrize("standardise", ["local", "global", "none"])
def test_all_missing_column(standardise: str) -> None:
    frame = make_frame()
    frame["age"] = np.nan
    frame["pain"] = None
    (data,) = prepare({"a": frame}, with_(TABLE, standardise=standardise), seed=0)
    for x in (data.train_x, data.test_x):
        assert np.isfinite(x).all()
        assert (x[:, 0] == 0).all()
        assert (x[:, 3:] == 1 / 3).all()


def test_number_target_is_centred_and_scaled() -> None:
    frame = make_frame().assign(cost=np.arange(60.0))
    target = Target(column="cost", kind="number", center=10.0, scale=4.0)
    (data,) = prepare({"a": frame}, with_(TABLE, target=target), seed=0)
    found = np.concatenate([data.train_y, data.test_y]).astype(float)
    assert sorted(found * 4 + 10) == pytest.approx(list(range(60)))


# --- the split ---

labels = st.lists(st.integers(0, 3), min_size=2, max_size=150).map(np.array)
rules = st.builds(
    Split,
    test=st.floats(0.05, 0.5),
    at_least=st.integers(0, 60),
    at_most=st.sampled_from([0.2, 0.33, 0.5]),
    stratify=st.booleans(),
)


def wanted_size(n: int, rule: Split) -> int:
    """A share of the rows; more when at_least says so, but then no more than at_most of the site."""
    share = min(round(rule.test * n), n - 1)
    return share if share >= rule.at_least else max(share, min(rule.at_least, int(rule.at_most * n)))


def test_a_small_hospital_keeps_its_rows() -> None:
    """84 rows to train on and 83 to test on were half of a hospital: at_least never takes more than the stated share of
    a small site, unless the file says so, or was written when that was the rule."""
    y = np.arange(167) % 2
    assert [len(part) for part in split_rows(y, with_(TABLE, split=Split()), 1, "va")] == [112, 55]
    assert len(split_rows(y, with_(TABLE, split=Split(at_most=0.5)), 1, "va")[1]) == 83
    plain = {"target": {"column": "y", "classes": [0, 1]}, "features": {"x": {"kind": "numeric"}}}
    fresh, old = Study.parse(plain), Study.parse({**plain, "split": {"test": 0.33, "at_least": 100}})
    assert len(split_rows(y, fresh, 1, "va")[1]) == 55
    assert len(split_rows(y, old, 1, "va")[1]) == 83
    for study in (fresh, old, fresh.with_changes(split={"at_least": 60})):
        assert Study.parse(tomllib.loads(study.to_toml())).split == study.split


@settings(max_examples=80, deadline=None)
@given(labels, rules, st.integers(0, 2**63 - 1), st.text(max_size=5))
def test_split_is_a_partition_of_the_right_size(y: np.ndarray, rule: Split, seed: int, site: str) -> None:
    table = with_(TABLE, split=rule)
    train, test = split_rows(y, table, seed, site)
    assert sorted([*train, *test]) == list(range(len(y)))
    assert len(train) >= 1
    spare = sum(len(y[y == k]) - 1 for k in np.unique(y)) if rule.stratify else len(y) - 1
    assert len(test) == min(wanted_size(len(y), rule), spare)
    again = split_rows(y, table, seed, site)
    assert np.array_equal(train, again[0])
    assert np.array_equal(test, again[1])


@settings(max_examples=80, deadline=None)
@given(labels, rules, st.integers(0, 99))
def test_stratified_shares(y: np.ndarray, rule: Split, seed: int) -> None:
    """Every class is left to learn from; where none is rare, its share of the test rows is right to one row."""
    rule = rule.model_copy(update={"stratify": True})
    train, test = split_rows(y, with_(TABLE, split=rule), seed, "a")
    assert set(y[train]) == set(y)
    counts = {k: int((y == k).sum()) for k in np.unique(y)}
    want = wanted_size(len(y), rule)
    if all(c - 1 >= c * want / len(y) + 1 for c in counts.values()):
        for k, c in counts.items():
            assert abs((y[test] == k).sum() - c * want / len(y)) < 1


@pytest.mark.parametrize(
    ("n", "at_least", "size"),
    [
        (300, 0, 99),
        (303, 0, 100),
        (300, 100, 99),
        (900, 100, 297),
        (150, 100, 50),
        (10, 100, 3),
        (3, 100, 1),
        (2, 0, 1),
    ],
)
def test_sizes(n: int, at_least: int, size: int) -> None:
    """33 % of the rows; at least so many, but then never more than `at_most` of a site."""
    table = with_(TABLE, split=Split(test=0.33, at_least=at_least, stratify=False))
    train, test = split_rows(np.zeros(n, dtype=np.int64), table, 1, "a")
    assert (len(train), len(test)) == (n - size, size)


def test_split_depends_on_seed_and_site_alone() -> None:
    sites = {"a": make_frame(60, 1), "b": make_frame(60, 1)}
    table = with_(TABLE, standardise="local")  # the scale of all sites does depend on who they are
    both = {d.name: d for d in prepare(sites, table, seed=3)}
    (alone,) = prepare({"b": sites["b"]}, table, seed=3)
    assert np.array_equal(alone.train_x, both["b"].train_x)  # another site changes nothing
    (turned, _) = prepare(dict(reversed(sites.items())), table, seed=3)
    assert np.array_equal(turned.test_x, both["b"].test_x)  # nor does their order
    assert not np.array_equal(both["a"].test_x, both["b"].test_x)  # same rows, other site: other split
    (other,) = prepare({"b": sites["b"]}, table, seed=4)
    assert not np.array_equal(other.test_x, alone.test_x)


@pytest.mark.parametrize(("sick", "tested"), [(["no", "no"], 1), (["no", "yes"], 0)])
def test_two_rows(sick: list[str], tested: int) -> None:
    """One to learn from and one to test on; two classes of one row each are both kept to learn from."""
    frame = make_frame(2).assign(sick=sick)
    (data,) = prepare({"a": frame}, TABLE, seed=0)
    assert (len(data.train_y), len(data.test_y)) == (2 - tested, tested)
    assert data.train_x.shape == (2 - tested, len(NAMES))


def test_rare_classes_do_not_shrink_the_test() -> None:
    """Rows that a rare class cannot give are taken from the others."""
    y = np.array([0] * 50 + list(range(1, 31)))
    _, test = split_rows(y, with_(TABLE, split=Split(test=0.33, at_least=0)), 0, "a")
    assert len(test) == round(0.33 * 80)
    assert set(y[test]) == {0}


# --- weights, fingerprints, problems ---


@settings(deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=60), st.integers(5, 7))
def test_class_weights(y: list[int], classes: int) -> None:
    weights, present = class_weights(np.array(y), classes), sorted(set(y))
    assert weights.shape == (classes,)
    assert weights[present].sum() == pytest.approx(len(present))
    assert all(weights[k] == 1 for k in range(classes) if k not in present)
    assert np.ptp([weights[k] * y.count(k) for k in present]) == pytest.approx(
        0, abs=1e-9
    )  # each class weighs the same


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 29), st.sampled_from(["age", "chol", "sex", "pain", "sick"]))
def test_fingerprint_changes_with_any_cell(row: int, column: str) -> None:
    frame = make_frame(30)
    mark = fingerprint_rows(clean(frame, TABLE))
    assert mark == fingerprint_rows(clean(frame.copy(), TABLE))
    other = {
        "sex": "m" if frame.loc[row, "sex"] == "f" else "f",
        "sick": "yes" if frame.loc[row, "sick"] == "no" else "no",
    }
    other["pain"] = "none" if frame.loc[row, "pain"] != "none" else "much"
    frame.loc[row, column] = other.get(column, 123.456)
    assert fingerprint_rows(clean(frame, TABLE)) != mark


def test_fingerprint_changes_with_rows_and_names() -> None:
    rows = clean(make_frame(30), TABLE)
    marks = [
        rows,
        rows[:-1],
        rows[::-1],
        rows.rename(columns={"age": "Age"}),
        rows[[*reversed(rows.columns)]],
    ]
    assert len({fingerprint_rows(m) for m in marks}) == len(marks)


def test_problems_of_all_sites_at_once() -> None:
    sites = {
        "good": make_frame(),
        "words": make_frame().assign(age="old"),
        "lacks": make_frame().drop(columns=["chol", "pain"]),
        "small": make_frame()[:1],
        "untold": make_frame().assign(sick=None),
    }
    with pytest.raises(VitrailError) as caught:
        prepare(sites, TABLE, seed=0)
    said = [p.where for p in caught.value.problems]
    assert len(said) == 5
    for site, times in {"words": 1, "lacks": 2, "small": 1, "untold": 1, "good": 0}.items():
        assert sum(where.startswith(f"{site}, ") for where in said) == times
    assert all(p.hint for p in caught.value.problems if "lacks" not in p.where)


def test_no_sites() -> None:
    with pytest.raises(VitrailError, match="there are no sites"):
        prepare({}, TABLE, seed=0)
