"""What crosses in a screening: exactly what is declared, in bounds, and no more than a site's rows allow."""

from __future__ import annotations

import time

import numpy as np
import pandas as pd
import pytest

import vitrail as vt
from tests.support.screened import federation, spoil
from vitrail import VitrailError
from vitrail.data.readers.tables import clean
from vitrail.data.schema import Feature, TableSchema, Target
from vitrail.quality.screening import (
    Said,
    ScreeningCoordinator,
    ScreeningSite,
    budget,
    compare_with_pooled,
    parts,
    screen,
)
from vitrail.quality.screening.schema import FLOOR, HELD
from vitrail.quality.screening.site import correlate, solve
from vitrail.quality.screening.text import to_text, twin_sentences


def talk(rows: dict[str, pd.DataFrame], table: TableSchema) -> dict[tuple[str, str], list[Said]]:
    """All messages of a screening: (leg, direction) -> arrays of every site, or the one to all."""
    desk, seats = ScreeningCoordinator(table), {name: ScreeningSite(frame, table) for name, frame in rows.items()}
    out: dict[tuple[str, str], list[Said]] = {}
    sketches = {name: seat.sketch() for name, seat in seats.items()}
    out["sketch", "from site"] = list(sketches.values())
    asked = desk.hear_sketch(sketches)
    out["counts", "to site"] = [asked]
    counts = {name: seat.counts(asked) for name, seat in seats.items()}
    out["counts", "from site"] = [{**own, **total} for own, total in counts.values()]
    total = {"products": sum(t["products"] for _, t in counts.values())}
    asked = desk.hear_counts({name: own for name, (own, _) in counts.items()}, total)  # type: ignore[arg-type]
    out["ties", "to site"] = [asked]
    out["ties", "from site"] = [seat.ties(asked) for seat in seats.values()]
    return out


@pytest.mark.parametrize("number", [False, True])
def test_what_crosses_is_what_is_declared(number: bool) -> None:
    rows, table = federation(sites=3, rows=120, number=number)
    rows["site-0"] = rows["site-0"][:20]
    rows["site-1"] = rows["site-1"][:8]
    said, declared = talk(rows, table), parts(table)
    assert {(p.leg, p.direction) for p in declared} == set(said)
    for (leg, direction), messages in said.items():
        here = {p.name: p.shape for p in declared if (p.leg, p.direction) == (leg, direction)}
        for message in messages:
            assert {name: array.shape for name, array in message.items()} == here
            assert all(array.dtype == np.float64 and not np.isinf(array).any() for array in message.values())


@pytest.mark.parametrize("n", [8, 11, 15, 30, 60, 110, 250])
def test_a_small_site_publishes_less(n: int) -> None:
    rows, table = federation(sites=4, rows=250)
    told = budget(table, n)
    assert all(2 * k <= n for k in told.values())
    assert (max(told.values()) == 0) == (n < FLOOR)
    rows["site-0"] = rows["site-0"][:n]
    messages = talk(rows, table)
    sent = [messages[leg, "from site"][0] for leg in ("sketch", "counts", "ties")]
    numbers = dict.fromkeys(table.features, 0)
    names = list(table.features)
    at = {"quantiles": names[:4], "held": names[:4], "grain": names[:4], "below": names[:4], "same": names[:4]}
    variables = [*names[:5], *[names[5]] * 4]
    at |= {"known": names, "levels": variables[4:], "outcome": variables, "related": variables}
    for said in sent:
        for key, array in said.items():
            for name, part in zip(at.get(key, []), array, strict=False):
                numbers[name] += int(np.isfinite(part).sum())
    assert all(numbers[name] <= told[name] for name in names), (numbers, told)
    if n < FLOOR:
        assert not any(np.isfinite(v).any() for said in sent for k, v in said.items() if k not in ("rows", "products"))
        assert not messages["counts", "from site"][0]["products"].any()
        sites = screen(rows, table).sites.set_index("site")
        assert not sites.loc["site-0", "judged"]
        assert "too few rows" in sites.loc["site-0", "why not"]


def test_a_value_is_published_only_where_several_rows_hold_it() -> None:
    rows, table = federation(sites=3)
    x = rows["site-0"].pulse.to_numpy().copy()
    x[:] = np.arange(len(x))
    x[: HELD - 1] = 1e6
    assert not np.isfinite(ScreeningSite(rows["site-0"].assign(pulse=x), table).sketch()["held"][3]).any()
    x[:HELD] = 1e6
    assert ScreeningSite(rows["site-0"].assign(pulse=x), table).sketch()["held"][3, 2].tolist() == [1e6, HELD]


def test_leave_site_out_is_a_plain_loop_over_sites() -> None:
    rows, table = federation(sites=4, rows=150)
    said = talk(rows, table)
    seats = [ScreeningSite(frame, table) for frame in rows.values()]
    chosen = said["counts", "to site"][0]["chosen"].astype(int)
    for k, seat in enumerate(seats):
        others = np.concatenate([np.nan_to_num(s.scores) for j, s in enumerate(seats) if j != k])
        z = np.column_stack([others[:, chosen], others[:, seat.layout.outcome]])
        own = np.nan_to_num(seat.scores)
        told = own[:, chosen] @ solve(z.T @ z, 1)
        middle = np.median(told)
        far = 2.5 * 1.4826 * np.median(abs(told - middle))  # so that no row decides alone
        told = told.clip(middle - far, middle + far)
        here = own[:, seat.layout.outcome]
        r, scatter = correlate(told, here, np.ones(here.shape, bool))
        got = said["ties", "from site"][k]["predicted"][0]
        assert got == pytest.approx([np.corrcoef(told[:, 0], here[:, 0])[0, 1], scatter[0]], abs=1e-9)
        assert r[0] == pytest.approx(got[0])


LIES = {
    "known": lambda a: a + 1e6,
    "levels": lambda a: a * 50,
    "quantiles": lambda a: a[:, ::-1],
    "held": lambda a: np.where(np.isfinite(a), -1.0, a),
    "outcome": lambda a: a * 0 + 3.0,
    "rows": lambda a: a * 0 - 5,
    "grain": lambda a: a * 1e300,
}


@pytest.mark.parametrize("what", LIES)
def test_a_site_that_lies_is_named(what: str) -> None:
    rows, table = federation(sites=4)
    said = {name: ScreeningSite(frame, table).sketch() for name, frame in rows.items()}
    said["site-3"][what] = LIES[what](said["site-3"][what])  # type: ignore[no-untyped-call]
    with pytest.raises(VitrailError, match="the screening answer of site-3 cannot be used"):
        ScreeningCoordinator(table).hear_sketch(said)


def test_lies_in_later_legs_are_refused() -> None:
    rows, table = federation(sites=3)
    desk, seats = ScreeningCoordinator(table), {name: ScreeningSite(frame, table) for name, frame in rows.items()}
    asked = desk.hear_sketch({name: seat.sketch() for name, seat in seats.items()})
    counts = {name: seat.counts(asked)[0] for name, seat in seats.items()}
    total = {"products": sum(seat.counts(asked)[1]["products"] for seat in seats.values())}
    bad = {**counts, "site-1": {**counts["site-1"], "below": counts["site-1"]["below"][:, ::-1]}}
    with pytest.raises(VitrailError, match="site-1"):
        desk.hear_counts(bad, total)  # type: ignore[arg-type]
    with pytest.raises(VitrailError, match="total of the screening"):
        desk.hear_counts(counts, {"products": total["products"] * np.nan})
    asked = desk.hear_counts(counts, total)  # type: ignore[arg-type]
    ties = {name: seat.ties(asked) for name, seat in seats.items()}
    with pytest.raises(VitrailError, match="site-2"):
        desk.hear_ties({**ties, "site-2": {**ties["site-2"], "predicted": np.full((1, 2), 1.5)}})
    with pytest.raises(VitrailError, match="site-2"):
        desk.hear_ties({**ties, "site-2": {"predicted": ties["site-2"]["predicted"]}})


def test_sites_in_another_order_are_judged_alike() -> None:
    rows, table = federation()
    bad = spoil(rows, "site-1", pressure=rows["site-1"].pressure / 10)
    one, other = screen(bad, table), screen(dict(reversed(bad.items())), table)
    assert [(f.site, f.feature, f.kind) for f in one.wrong] == [(f.site, f.feature, f.kind) for f in other.wrong]
    cells = [s.cells.set_index(["site", "feature"]).strength.sort_index() for s in (one, other)]
    pd.testing.assert_series_equal(*cells, atol=2e-3)


def test_two_sites_cannot_tell_who_is_wrong() -> None:
    rows, table = federation(sites=2)
    result = screen(spoil(rows, "site-1", y=1 - rows["site-1"].y), table)
    assert not result.findings
    assert not result.sites.judged.any()
    assert all("only 2 sites publish" in why for why in result.sites["why not"])


def test_clean_federations_of_small_sites_with_rare_columns_stay_silent() -> None:
    """A rare yes-or-no that is no in every row of a small site raised an alarm in 24 of 24."""
    kinds = {f"rare{j}": Feature(kind="binary", categories=(0, 1)) for j in range(6)} | {"x": Feature(kind="numeric")}
    table = TableSchema(target=Target(column="y", classes=(0, 1)), features=kinds)
    alarms = 0
    for seed in range(40):
        rng = np.random.default_rng(seed)
        frames = {}
        for k in range(6):
            n = int(rng.integers(15, 61))
            columns = {f"rare{j}": (rng.random(n) < (0.01, 0.02, 0.04, 0.06, 0.1, 0.2)[j]) * 1.0 for j in range(6)}
            frames[f"s{k}"] = pd.DataFrame({**columns, "x": rng.normal(size=n), "y": rng.integers(0, 2, n)})
        alarms += bool(screen(frames, table).wrong)
    assert alarms <= 5  # 2 are promised; 6 or more of 40 would be a chance of 1 in 70


def test_wide_tables_are_judged_in_time() -> None:
    rng = np.random.default_rng(0)
    names = [f"f{j}" for j in range(561)]
    table = TableSchema(
        target=Target(column="y", classes=tuple(range(6))), features={n: Feature(kind="numeric") for n in names}
    )
    frames = {}
    for k in range(30):
        y = rng.integers(0, 6, 60)
        x = rng.normal(size=(60, 561)) + 0.5 * y[:, None] * rng.normal(size=561)
        frames[f"s{k}"] = pd.DataFrame(x, columns=names).assign(y=y)
    started = time.process_time()
    a = rng.normal(size=(561, 561))
    for _ in range(40):
        np.linalg.solve(a @ a.T + np.eye(561), a)
    unit = time.process_time() - started
    started = time.process_time()
    screen(frames, table)
    assert time.process_time() - started < 40 * max(unit, 0.3)


def test_a_site_alone_is_told_before_anything_leaves() -> None:
    rows, table = federation()
    pooled = screen(rows, table).pooled
    mine = rows["site-0"]
    assert not compare_with_pooled(mine, table, pooled)
    bad = mine.assign(sugar=mine.sugar / 18.02, pressure=mine.pressure * 10, stage=np.nan, smoker=1.0)
    found = {f.feature: f for f in compare_with_pooled(bad, table, pooled)}
    assert {n: (f.kind, f.wrong) for n, f in found.items()} == {
        "sugar": ("unit", True),
        "pressure": ("unit", True),
        "stage": ("not here", False),
        "smoker": ("constant", True),
    }
    assert found["sugar"].numbers["unit"] == "mmol/L"
    spiked = mine.age.where(np.arange(len(mine)) % 5 > 0, -9)
    assert [(f.feature, f.kind) for f in compare_with_pooled(mine.assign(age=spiked), table, pooled)] == [
        ("age", "code")
    ]


def test_our_own_demo_is_told_right() -> None:
    raw = vt.datasets.heart_disease()
    study = vt.Study.infer(raw, "disease")
    found = screen({name: clean(frame, study) for name, frame in raw.items()}, study).findings
    cells = {(f.site, f.feature): f for f in found}
    assert cells["cleveland", "ca"].kind == "only here"
    assert not cells["cleveland", "ca"].wrong
    assert cells["switzerland", "chol"].kind == "constant"
    assert "not measured" in cells["switzerland", "chol"].text
    assert cells["switzerland", "chol"].numbers["code"] == 0
    assert sum(f.wrong for f in found) <= 2


def test_the_same_rows_at_two_sites_are_told_by_a_digest() -> None:
    rows, table = federation()
    assert twin_sentences(screen(rows, table)) == []
    twins = {**rows, "again": rows["site-1"].sample(frac=1, random_state=1)}
    told = screen(twins, table)
    (words,) = twin_sentences(told)
    assert words.startswith("Sites site-1 and again hold the same rows")
    assert words in to_text(told)
    one, other = (ScreeningSite(rows["site-1"], table, run).sketch()["digest"] for run in ("first", "second"))
    assert (one != other).all()
    changed = rows["site-1"].copy()
    changed.iloc[0, 0] += 1
    assert (ScreeningSite(changed, table, "first").sketch()["digest"] != one).all()
    said = {name: ScreeningSite(frame, table).sketch() for name, frame in rows.items()}
    said["site-0"]["digest"][0] = 0.5
    with pytest.raises(VitrailError, match="digest"):
        ScreeningCoordinator(table).hear_sketch(said)
