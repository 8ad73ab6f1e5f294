"""Whether values belong to their rows: what a site publishes of it, and what is made of that."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.support.screened import federation, spoil
from vitrail.core.errors import VitrailError
from vitrail.quality.screening import LABEL, Screening, ScreeningCoordinator, ScreeningSite, screen
from vitrail.quality.screening.request_validation import clip_guesses
from vitrail.quality.screening.row_evidence.ratios import FURTHEST, LEAST, MOST, PART, row_ratios
from vitrail.quality.screening.row_evidence.tests import OWN, TOLD
from vitrail.quality.screening.schema import FLOOR, MOMENTS, Said, share_of
from vitrail.quality.screening.statistics import GATE, TO_OUTCOME
from vitrail.stats.tests import skewed_as_z


def accused(result: Screening) -> list[tuple[str, str, str]]:
    return [(f.site, f.feature, f.kind) for f in result.wrong]


def joined_wrongly(rows: dict[str, pd.DataFrame], column: str, share: float, seed: int) -> dict[str, pd.DataFrame]:
    """At site-1 this share of a column's values are another row's."""
    rng = np.random.default_rng(seed)
    v = rows["site-1"][column].to_numpy().copy()
    bad = rng.random(len(v)) < share
    v[bad] = rng.permutation(v[bad])
    return spoil(rows, "site-1", **{column: v})


def talk(rows: dict[str, pd.DataFrame], table: Any) -> tuple[dict[str, ScreeningSite], dict[str, Said], Said]:
    """Sites, their answers in the last leg, and what they were asked."""
    desk, seats = ScreeningCoordinator(table), {name: ScreeningSite(frame, table) for name, frame in rows.items()}
    asked = desk.hear_sketch({name: seat.sketch() for name, seat in seats.items()})
    counts = {name: seat.counts(asked) for name, seat in seats.items()}
    total = {"products": np.asarray(sum(c[1]["products"] for c in counts.values()))}
    asked = desk.hear_counts({name: c[0] for name, c in counts.items()}, total)
    return seats, {name: seat.ties(asked) for name, seat in seats.items()}, asked


@pytest.mark.parametrize("column", ["pressure", LABEL])
def test_half_of_a_column_joined_to_other_rows_is_found_and_said_how_much(column: str) -> None:
    found = []
    for seed in range(4):
        rows, table = federation(sites=5, rows=200, seed=seed)
        name = table.target.column if column == LABEL else column
        result = screen(joined_wrongly(rows, name, 0.5, seed), table)
        assert {f.site for f in result.wrong} <= {"site-1"}
        found += [f for f in result.wrong if f.feature == column]
    assert len(found) >= 3
    assert {f.kind for f in found} == {"label noise" if column == LABEL else "shuffled"}
    # half of the outcomes were drawn anew, of which about half are right by chance
    share = np.mean([f.numbers["share"] for f in found if "share" in f.numbers])
    assert 0.15 < share < 0.45 if column == LABEL else 0.3 < share < 0.8


def test_a_mean_over_rows_is_what_a_loop_over_rows_gives() -> None:
    """From the other features alone, of a number: the density that the other sites' rows predict."""
    rows, table = federation(sites=4, rows=150)
    seats, said, asked = talk(rows, table)
    seat = seats["site-2"]
    at = seat.layout
    k = at.columns.index("pressure")
    variables = np.concatenate([at.inputs[asked["chosen"].astype(int)], at.outcome])
    z = np.nan_to_num(seat.scores[:, variables])
    others = sum(
        np.nan_to_num(s.scores[:, variables]).T @ np.nan_to_num(s.scores[:, variables])
        for name, s in seats.items()
        if name != "site-2"
    )
    own = int(np.flatnonzero(at.column[variables] == k)[0])
    rest = [i for i in range(len(variables) - 1) if i != own]
    n = float(np.diag(others).max())
    ridge = 0.02 + 0.6 * len(variables) / n
    scale = np.sqrt(n / np.diag(others))
    r = others * np.outer(scale, scale) / n
    weight = np.linalg.solve(r[np.ix_(rest, rest)] + ridge * np.eye(len(rest)), r[rest, own])
    guess = z[:, rest] * scale[rest] @ weight / scale[own]
    variance = 1 + ridge - r[rest, own] @ weight
    low, middle, high = np.quantile(guess, [0.1, 0.5, 0.9])
    far = min(2.5 * (high - low) / 2.563, 2.5)
    total = []
    for value, g in zip(z[:, own], np.clip(guess, middle - far, middle + far), strict=True):
        here = np.exp(-((value - g) ** 2) / (2 * variance)) / np.sqrt(variance)
        anywhere = np.exp(-(value**2) / 2)
        ratio = np.exp(np.clip(np.log(anywhere / here), -1.5, 1.5))
        total.append(np.log(2 / 3 + ratio / 3))
    got = said["site-2"]["ratios"][k]
    assert got[[4, 6]] == pytest.approx([np.mean(total), np.var(total)], abs=1e-9)


def test_no_row_adds_more_than_is_agreed() -> None:
    """A halved or doubled bound changes these."""
    assert (PART, FURTHEST) == (1 / 3, 1.5)
    assert pytest.approx([-0.2997, 0.7704], abs=1e-3) == [LEAST, MOST]
    assert (TOLD, OWN, GATE["ratio"], TO_OUTCOME) == (0.02, 0.25, 0.15, 1 / 3)
    rng = np.random.default_rng(0)
    z = rng.normal(size=(40, 3))
    z[0] = 1e6  # of a person who is like nobody
    known, one = np.ones(z.shape, bool), np.zeros(3, np.int64) + np.arange(3)
    wild = 1e6 * np.array([[1.0, 0.99, 0.99], [0.99, 1.0, 0.99], [0.99, 0.99, 1.0]])
    found = row_ratios(z, known, one, np.ones(3, bool), wild, np.full(3, 1e3), 0.02, 1)
    for numbers in found.values():
        assert LEAST <= numbers[0] <= MOST


def test_an_invented_total_cannot_single_out_one_row() -> None:
    """Guesses that are large for one person alone are nothing for all; with the old rule of one's own spread they were
    not (positive control)."""
    guesses = np.zeros((50, 1))
    guesses[7] = 40.0
    assert (clip_guesses(guesses) == 0).all()
    assert guesses.std() > 2.5  # by which it could have been told
    even = np.linspace(-1, 1, 50)[:, None]
    assert clip_guesses(even) == pytest.approx(even)


def test_what_is_published_of_it_is_paid_for() -> None:
    for kind in ("numeric", "binary", "categorical"):
        least = next(rows for rows in range(FLOOR, 400) if share_of(kind, 3, 1, False, rows).ratios)
        before, after = share_of(kind, 3, 1, False, least - 1), share_of(kind, 3, 1, False, least)
        assert after.numbers >= before.numbers + MOMENTS - 1
        assert 2 * after.numbers <= least


@pytest.mark.parametrize("moment", range(MOMENTS))
def test_a_site_that_lies_about_it_is_refused(moment: int) -> None:
    rows, table = federation(sites=3)
    desk, seats = ScreeningCoordinator(table), {name: ScreeningSite(frame, table) for name, frame in rows.items()}
    asked = desk.hear_sketch({name: seat.sketch() for name, seat in seats.items()})
    counts = {name: seat.counts(asked) for name, seat in seats.items()}
    asked = desk.hear_counts(
        {name: c[0] for name, c in counts.items()},
        {"products": np.asarray(sum(c[1]["products"] for c in counts.values()))},
    )
    ties = {name: seat.ties(asked) for name, seat in seats.items()}
    desk.check("ties", "site-1", ties["site-1"])
    ties["site-1"]["ratios"][1, moment] = 5.0
    with pytest.raises(VitrailError, match="site-1"):
        desk.hear_ties(ties)


def test_without_a_total_nothing_is_said_of_it() -> None:
    rows, table = federation(sites=3)
    seat = ScreeningSite(rows["site-0"], table)
    _, _, asked = talk(rows, table)
    assert np.isnan(seat.ties({**asked, "products": asked["products"] * np.nan})["ratios"]).all()


def test_a_sum_that_is_skewed_is_no_surprise() -> None:
    rng = np.random.default_rng(1)
    sums = (rng.exponential(size=(40_000, 9)).sum(1) - 9) / 3  # skewness 2 / 3
    far = np.quantile(sums, 0.999)
    assert far > 4
    assert skewed_as_z(np.array([far]), np.array([2 / 3]))[0] == pytest.approx(3.09, abs=0.25)
