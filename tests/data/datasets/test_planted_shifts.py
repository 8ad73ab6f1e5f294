"""Differences on purpose: exactly the cells that were asked for change, by exactly as much as the record says."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pandas.testing as pdt
import pytest

import vitrail as vt
from vitrail.core.errors import VitrailError
from vitrail.data.datasets.planted_shifts import PAPER, SIZES, ShiftedFederation

NUMBERS = ("shift", "factor", "stretch")


def tables(rows: int = 40) -> dict[str, pd.DataFrame]:
    out = {}
    for i, name in enumerate(("north", "south", "west")):
        rng = np.random.default_rng(i)
        frame = pd.DataFrame({"age": rng.integers(20, 80, rows), "dose": rng.normal(5, 2, rows)})
        frame["sex"] = rng.choice(["f", "m"], rows)
        frame["sick"] = ["no", "yes"] * (rows // 2)
        frame.loc[3, "dose"] = np.nan
        out[name] = frame.set_index(pd.Index(np.arange(rows) // 2))  # names of rows occur twice
    return out


def changed(before: pd.Series, after: pd.Series) -> list[int]:
    pairs = zip(before.tolist(), after.tolist(), strict=True)
    return [i for i, (a, b) in enumerate(pairs) if not (a == b or (pd.isna(a) and pd.isna(b)))]


def assert_only(sites: dict[str, pd.DataFrame], result: ShiftedFederation, site: str, column: str) -> None:
    for name, frame in sites.items():
        others = [c for c in frame if (name, c) != (site, column)]
        pdt.assert_frame_equal(result.sites[name][others], frame[others])
        assert list(result.sites[name].columns) == list(frame.columns)


@pytest.mark.parametrize("kind", SIZES)
def test_one_column_of_one_site_changes_and_the_given_tables_do_not(kind: str) -> None:
    sites, column = tables(), "sick" if kind == "flip" else "age"
    before = {name: frame.copy() for name, frame in sites.items()}
    result = vt.shift(sites, kind, target="sick", site="south", column=column, seed=4)
    assert_only(before, result, "south", column)
    for name, frame in sites.items():
        pdt.assert_frame_equal(frame, before[name])
    (record,) = result.planted
    assert (record.kind, record.site, record.column, record.label) == (kind, "south", column, None)
    assert list(record.rows) == list(range(40))
    assert len(changed(before["south"][column], result.sites["south"][column])) >= 39  # one may lie at the mean


@pytest.mark.parametrize(("size", "label"), [(1.5, None), (-3, "yes")])
def test_values_are_those_of_the_equations(size: float, label: str | None) -> None:
    sites = tables()
    old = sites["west"]["dose"]
    meant = np.array([label in (None, of) for of in sites["west"]["sick"]])
    mean, sd = old.mean(), old.std(ddof=0)
    want = {"shift": old + size * sd, "factor": old * size, "stretch": mean + size * (old - mean)}
    for kind in NUMBERS:
        result = vt.shift(sites, kind, target="sick", site="west", column="dose", size=size, label=label)
        np.testing.assert_allclose(result.sites["west"]["dose"], np.where(meant, want[kind], old), rtol=1e-12)
        (record,) = result.planted
        assert record.amount == pytest.approx(size * sd if kind == "shift" else size)
        assert list(record.rows) == np.flatnonzero(meant).tolist()


def test_a_column_is_missing_for_one_class_alone() -> None:
    sites = tables()
    for column in ("sex", "age"):
        result = vt.shift(sites, "missing", target="sick", site="north", column=column, label="no")
        empty = result.sites["north"][column].isna()
        assert (empty == (sites["north"]["sick"] == "no")).all()
    codes = {name: frame.assign(sick=(frame.sick == "yes").astype(int)) for name, frame in sites.items()}
    result = vt.shift(codes, "missing", target="sick", site="north", column="sex", label=0)
    assert (result.sites["north"]["sex"].isna() == (codes["north"]["sick"] == 0)).all()


def test_a_flip_exchanges_classes_and_twice_is_nothing() -> None:
    sites = {name: frame.assign(stage=["a", "b", "c", None] * 10) for name, frame in tables().items()}
    once = vt.shift(sites, "flip", target="stage", site="north").sites
    assert once["north"]["stage"].dropna().tolist() == ["c", "b", "a"] * 10
    assert (once["north"]["stage"].isna() == sites["north"]["stage"].isna()).all()
    pdt.assert_frame_equal(vt.shift(once, "flip", target="stage", site="north").sites["north"], sites["north"])
    whole = {name: frame.assign(sick=(frame.sick == "yes").astype(int)) for name, frame in sites.items()}
    codes = vt.shift(whole, "flip", target="sick", site="north").sites["north"]["sick"]
    assert codes.dtype == whole["north"]["sick"].dtype
    assert (codes + whole["north"]["sick"] == 1).all()


@pytest.mark.parametrize("kind", ["shift", "missing", "flip"])
def test_a_share_is_counted_and_grows_by_more_rows(kind: str) -> None:
    sites = tables()
    few, many, other = (
        vt.shift(sites, kind, target="sick", site="north", label="yes", share=share, seed=seed).planted[0]
        for share, seed in ((0.25, 1), (0.75, 1), (0.25, 2))
    )
    assert (len(few.rows), len(many.rows)) == (5, 15)
    assert set(few.rows) < set(many.rows)
    assert (few.column, few.rows) != (other.column, other.rows)
    again = vt.shift(sites, kind, target="sick", site="north", label="yes", share=0.25, seed=1)
    assert again.planted[0] == few


def test_the_papers_shifts_are_at_different_sites_and_the_same_again() -> None:
    sites = {f"{name} {i}": frame for i in range(2) for name, frame in tables().items()}
    one, two, other = (vt.shift(sites, "paper", target="sick", seed=seed) for seed in (3, 3, 4))
    assert [p.kind for p in one.planted] == list(PAPER)
    assert len({p.site for p in one.planted}) == 5
    assert one.planted[:3] == two.planted[:3]
    assert [(p.site, p.column) for p in one.planted] != [(p.site, p.column) for p in other.planted]
    by_kind = {p.kind: p for p in one.planted}
    assert by_kind["flip"].column == "sick"
    assert by_kind["stretch"].label in ("yes", "no")
    assert by_kind["missing"].label in ("yes", "no")
    assert by_kind["shift"].label is None
    for p in one.planted:
        assert changed(sites[p.site][p.column], one.sites[p.site][p.column])
        assert_only({p.site: sites[p.site]}, ShiftedFederation({p.site: one.sites[p.site]}, []), p.site, p.column)
    few = vt.shift(tables(), "paper", target="sick", label="yes", seed=1).planted
    assert {p.site for p in few} == set(tables())
    assert len({(p.site, p.column) for p in few}) == 5
    assert [p.label for p in few] == [None, None, "yes", "yes", None]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"kind": "shfit"}, "Did you mean 'shift'"),
        ({"site": "nort"}, "Did you mean 'north'"),
        ({"target": "sik"}, "Did you mean 'sick'"),
        ({"column": "does"}, "Did you mean 'dose'"),
        ({"column": "sex"}, "fewer than two different numbers"),
        ({"label": "yess"}, "Did you mean 'yes'"),
        ({"share": 0.0}, "above 0 and up to 1"),
        ({"share": True}, "above 0 and up to 1"),
        ({"size": float("nan")}, "size: expected a number"),
        ({"kind": "missing", "size": 2.0}, "a missing has no size|no size"),
        ({"kind": "flip", "column": "age"}, "a flip is of the outcome"),
        ({"kind": "flip", "column": None, "target": "dose"}, "different values"),
    ],
)
def test_mistakes_are_explained(given: dict, words: str) -> None:
    usual = {"kind": "shift", "target": "sick", "site": "north", "column": "dose"}
    with pytest.raises(VitrailError, match=words):
        vt.shift(tables(), **{**usual, **given})


def test_mistakes_are_told_together() -> None:
    with pytest.raises(VitrailError) as caught:
        vt.shift(tables(), "shift", target="sick", site="nort", share=2.0)
    assert [p.where for p in caught.value.problems] == ["site", "share"]
    with pytest.raises(VitrailError, match="no column fits"):
        vt.shift({"a": pd.DataFrame({"sick": [0, 1], "sex": [0, 1]})}, "shift", target="sick")
