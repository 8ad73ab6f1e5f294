"""Questions of a coordinator that keeps to every agreed shape and means one patient."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from vitrail.core.errors import VitrailError
from vitrail.quality.screening import ScreeningCoordinator, ScreeningSite
from vitrail.quality.screening.request_validation import (
    FEWEST,
    NARROW,
    check_asked,
    clip_predictions,
    rows_below,
    rows_with,
)
from vitrail.quality.screening.schema import HELD
from vitrail.study.model import Study

NAN = np.nan


def plain(x: np.ndarray, cuts: np.ndarray) -> list[float]:
    return [float((x <= c).sum()) if np.isfinite(c) else NAN for c in cuts]


def test_cuts_on_either_side_of_a_value_do_not_tell_whether_it_is_there() -> None:
    draw = np.random.default_rng(1)
    x = np.sort(draw.normal(50, 10, 100).round(2))
    person = 43.21
    with_, without = np.sort(np.append(x, person)), np.sort(np.append(x, 70.0))
    for half in (1e-9, 0.01, 0.1 * NARROW * 13):
        cuts = np.array([NAN, NAN, person - half, NAN, person + half, NAN, NAN])
        told = [rows_below(rows, cuts) for rows in (with_, without)]
        assert all(t[4] - t[2] == 0 for t in told)
    assert plain(with_, cuts)[4] - plain(with_, cuts)[2] == plain(without, cuts)[4] - plain(without, cuts)[2] + 1


def test_many_cuts_in_a_row_are_no_way_round() -> None:
    x = np.sort(np.random.default_rng(1).normal(50, 10, 200))
    cuts = np.linspace(49.9, 50.1, 7)
    told = np.diff(rows_below(x, cuts))
    assert all(step == 0 or step >= HELD for step in told)


def test_the_sites_own_quantiles_are_counted_exactly() -> None:
    """What a site of the same kind is asked: its windows are wide, or full."""
    for draw in (np.random.default_rng(3).normal, np.random.default_rng(4).lognormal):
        for n in (40, 100, 1000):
            x, other = np.sort(draw(0, 1, n)), draw(0, 1, 2000)
            cuts = np.quantile(other, [0.05, 0.25, 0.5, 0.75, 0.95])
            assert rows_below(x, cuts).tolist() == plain(x, cuts)


def test_half_of_the_rows_with_one_value() -> None:
    x = np.sort(np.concatenate([np.zeros(80), np.linspace(1, 50, 20)]))
    cuts = np.array([20.0, 20.5, NAN])
    assert np.diff(rows_below(x, cuts))[0] == 0
    assert np.isnan(rows_below(x, cuts)[2])
    assert rows_below(np.array([]), cuts)[:2].tolist() == [0, 0]
    assert rows_below(np.zeros(9), np.array([-1.0, 0.0])).tolist() == [0, 9]


def test_one_row_with_a_value_is_told_as_none_is() -> None:
    x = np.sort(np.array([1.0, 2, 2, 3, 3, 3, 4, 4, 4, 4]))
    assert rows_with(x, np.array([0.0, 1, 2, 3, 4, NAN])).tolist()[:5] == [FEWEST - 1] * 3 + [3, 4]
    assert np.isnan(rows_with(x, np.array([NAN]))[0])
    assert rows_with(np.array([7.0]), np.array([7.0])).tolist() == [1]  # it cannot be more than there are


def test_a_prediction_that_singles_out_one_row_does_not_tell_its_outcome() -> None:
    told, outcome = np.zeros((100, 1)), np.tile([0.0, 1.0], 50)
    told[:, 0] = np.random.default_rng(0).normal(0, 1, 100)
    told[0] = 1000.0
    r = {y: np.corrcoef(clip_predictions(told)[:, 0], np.append(y, outcome[1:]))[0, 1] for y in (0.0, 1.0)}
    bare = {y: np.corrcoef(told[:, 0], np.append(y, outcome[1:]))[0, 1] for y in (0.0, 1.0)}
    assert abs(r[1.0] - r[0.0]) < 0.07  # it scatters by 0.1
    assert abs(bare[1.0] - bare[0.0]) > 0.15
    calm = np.random.default_rng(0).normal(0, 1, (100, 2)).clip(-2, 2)
    assert np.array_equal(clip_predictions(calm), calm)


@pytest.fixture
def federation() -> tuple[Study, dict[str, pd.DataFrame]]:
    draw = np.random.default_rng(5)
    frames = {}
    for name in "abc":
        x = draw.normal(size=(120, 2))
        frames[name] = pd.DataFrame({"u": x[:, 0], "v": x[:, 1], "y": (x[:, 0] + draw.normal(size=120) > 0) * 1.0})
    return Study.infer({n: f.astype({"y": int}) for n, f in frames.items()}, "y"), frames


def test_honest_questions_pass_and_others_do_not(federation: tuple[Study, dict[str, pd.DataFrame]]) -> None:
    study, frames = federation
    seats, desk = {n: ScreeningSite(f, study) for n, f in frames.items()}, ScreeningCoordinator(study)
    asked = desk.hear_sketch({n: s.sketch() for n, s in seats.items()})
    check_asked(study, "counts", asked)
    counts = {n: s.counts(asked) for n, s in seats.items()}
    total = {"products": sum(t["products"] for _, t in counts.values())}
    told = desk.hear_counts({n: own for n, (own, _) in counts.items()}, total)  # type: ignore[arg-type]
    check_asked(study, "ties", told)
    check_asked(study, "sketch", {})
    desk.check_total(total, list(frames))  # type: ignore[arg-type]
    for leg, good, name, bad in (
        ("counts", asked, "cuts", -asked["cuts"]),
        ("counts", asked, "chosen", asked["chosen"] + 5),
        ("ties", told, "related", np.full_like(told["related"], 99.0)),
        ("ties", told, "products", told["products"] + np.triu(np.ones_like(told["products"]), 1)),
    ):
        with pytest.raises(VitrailError, match=f"screening, {leg}, {name}"):
            check_asked(study, leg, {**good, name: bad})
    with pytest.raises(VitrailError, match="got larger ones"):
        desk.check_total({"products": total["products"] * 1.01}, list(frames))
    off = total["products"].copy()  # type: ignore[union-attr]
    off[0, 1] = off[1, 0] = 400.0  # more than the rows
    with pytest.raises(VitrailError, match="got larger ones"):
        desk.check_total({"products": off}, list(frames))


def test_the_outcome_of_the_only_one_is_not_told(federation: tuple[Study, dict[str, pd.DataFrame]]) -> None:
    """Of one person with a rare answer, whatever is asked: the same is said for both outcomes."""
    frames = {n: f.assign(rare=0.0) for n, f in federation[1].items()}
    for f in frames.values():
        f.loc[:40, "rare"] = 1.0
    study = Study.infer({n: f.astype({"y": int, "rare": int}) for n, f in frames.items()}, "y")
    told = []
    for y in (0.0, 1.0):
        own = frames["a"].assign(rare=0.0)
        own.loc[7, "rare"] = 1.0
        own.loc[8, ["u", "v"]] = own.loc[7, ["u", "v"]]  # two who differ in the answer alone
        own.loc[[7, 8], "y"] = y, 1 - y
        seat = ScreeningSite(own, study)
        which = list(study.features).index("rare")
        products = np.eye(4)
        products[which, 3] = products[3, which] = 0.9
        asked = {"products": 1e6 * products, "chosen": np.arange(3.0), "related": np.full((3, 3), np.nan)}
        asked["related"][which] = 3.0
        check_asked(study, "ties", asked)
        said = seat.ties(asked)
        told.append((seat.sketch()["outcome"][which], said["related"][which], said["predicted"]))
    for one, other in zip(*told, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-12, equal_nan=True)


def test_a_made_up_total_does_not_single_out_one_row() -> None:
    draw = np.random.default_rng(2)
    x = draw.normal(size=(90, 40))
    names = [f"x{i}" for i in range(40)]
    study = Study.infer({"a": pd.DataFrame(x, columns=names).assign(y=np.arange(90) % 2)}, "y")
    r = []
    for y in (0.0, 1.0):
        seat = ScreeningSite(pd.DataFrame(x, columns=names).assign(y=np.append(y, np.arange(1, 90) % 2)), study)
        mine = seat.scores[0, :40]
        weights = np.linalg.solve(np.cov(seat.scores[:, :40].T) + 0.1 * np.eye(40), mine)
        products = np.eye(41)
        products[:40, 40] = products[40, :40] = 0.9 * weights / np.linalg.norm(weights)
        asked = {"products": 1e6 * products, "chosen": np.arange(40.0), "related": np.full((40, 3), np.nan)}
        check_asked(study, "ties", asked)
        r.append(float(seat.ties(asked)["predicted"][0, 0]))
    assert abs(r[1] - r[0]) < 0.1
