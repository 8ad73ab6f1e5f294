"""Each cause by its name, at its site, and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from tests.support.screened import federation, spoil
from vitrail.quality.screening import LABEL, Finding, decision, screen
from vitrail.quality.screening.diagnosis import confirmation
from vitrail.quality.screening.site_summaries import SiteSummaries
from vitrail.quality.screening.statistics import SiteTests

SITE = "site-2"


def mixed(x: pd.Series) -> np.ndarray:
    return np.random.default_rng(3).permutation(x.to_numpy())


def coded(x: pd.Series) -> np.ndarray:
    return np.where(np.random.default_rng(4).random(len(x)) < 0.25, 999.0, x)


FAULTS: dict[str, tuple[str, str, Callable[[pd.DataFrame], dict[str, object]]]] = {
    "unit": ("sugar", "unit", lambda f: {"sugar": f.sugar / 18.02}),
    "slip": ("pressure", "unit", lambda f: {"pressure": f.pressure / 10}),
    "offset": ("pulse", "offset", lambda f: {"pulse": f.pulse + 40}),
    "sign": ("pressure", "sign", lambda f: {"pressure": f.pressure.max() + f.pressure.min() - f.pressure}),
    "yes and no": ("smoker", "sign", lambda f: {"smoker": 1 - f.smoker}),
    "constant": ("pulse", "constant", lambda f: {"pulse": 75.0}),
    "constant level": ("smoker", "constant", lambda f: {"smoker": 0.0}),
    "code": ("age", "code", lambda f: {"age": coded(f.age)}),
    "clipped": ("pressure", "clipped", lambda f: {"pressure": f.pressure.clip(upper=f.pressure.median())}),
    "rounded": ("pulse", "rounded", lambda f: {"pulse": np.round(f.pulse / 20) * 20}),
    "swapped": ("age", "swapped", lambda f: {"age": f.sugar, "sugar": f.age}),
    "recoded": ("stage", "recoded", lambda f: {"stage": (f.stage + 1) % 4}),
    "shuffled": ("pressure", "shuffled", lambda f: {"pressure": mixed(f.pressure)}),
    "flip": (LABEL, "label flip", lambda f: {"y": 1 - f.y}),
}


@pytest.fixture(scope="module")
def clean_one() -> tuple[dict[str, pd.DataFrame], object]:
    return federation()


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_named_at_its_site(name: str, clean_one: tuple[dict[str, pd.DataFrame], object]) -> None:
    rows, table = clean_one
    feature, kind, fault = FAULTS[name]
    found = screen(spoil(rows, SITE, **fault(rows[SITE])), table).wrong  # type: ignore[arg-type]
    assert found[0].site == SITE
    assert {f.kind for f in found if f.feature == feature} == {kind}
    swapped = {"age", "sugar"} if name == "swapped" else {feature}
    assert {(f.site, f.feature) for f in found} <= {(SITE, f) for f in swapped}


def only(found: list[Finding], feature: str) -> Finding:
    return next(f for f in found if f.feature == feature)


def test_a_factor_is_told_with_its_conversion(clean_one: tuple[dict[str, pd.DataFrame], object]) -> None:
    rows, table = clean_one
    found = only(screen(spoil(rows, SITE, sugar=rows[SITE].sugar / 18.02), table).wrong, "sugar")  # type: ignore[arg-type]
    assert found.numbers["factor"] == pytest.approx(18.02)
    assert "mmol/L" in found.text
    assert found.numbers["unit"] == "mmol/L"
    median = float(rows[SITE].sugar.median() / 18.02)
    assert f"{median:.4g}" in found.text  # what was measured, nothing else


def test_a_code_is_told_with_its_share(clean_one: tuple[dict[str, pd.DataFrame], object]) -> None:
    rows, table = clean_one
    bad = spoil(rows, SITE, age=coded(rows[SITE].age))
    found = only(screen(bad, table).wrong, "age")  # type: ignore[arg-type]
    assert found.numbers["code"] == 999
    assert found.numbers["share"] == pytest.approx((bad[SITE].age == 999).mean())


def test_recoded_levels_are_told_with_what_they_mean(clean_one: tuple[dict[str, pd.DataFrame], object]) -> None:
    rows, table = clean_one
    found = only(screen(spoil(rows, SITE, stage=(rows[SITE].stage + 1) % 4), table).wrong, "stage")  # type: ignore[arg-type]
    levels = list(table.features["stage"].levels)  # type: ignore[attr-defined]
    assert found.numbers["levels"] == {levels[(k + 1) % 4]: levels[k] for k in range(4)}


def test_wrong_labels_are_told_as_such_with_about_their_share() -> None:
    """30 % wrong labels used to be blamed on features."""
    rows, table = federation(rows=400)
    rng = np.random.default_rng(1)
    y = rows[SITE].y.to_numpy()
    found = screen(spoil(rows, SITE, y=np.where(rng.random(len(y)) < 0.3, 1 - y, y)), table).wrong
    assert [(f.site, f.feature, f.kind) for f in found] == [(SITE, LABEL, "label noise")]
    assert 0.2 < found[0].numbers["share"] < 0.4


def test_a_flipped_number_is_named() -> None:
    rows, table = federation(number=True)
    y = rows[SITE].y
    found = screen(spoil(rows, SITE, y=y.max() + y.min() - y), table).wrong
    assert [(f.site, f.feature, f.kind) for f in found] == [(SITE, LABEL, "label flip")]


def test_a_site_that_alone_measures_a_column() -> None:
    """Cleveland's `ca` was told "its categories mean something else"."""
    rows, table = federation()
    alone = {name: frame if name == SITE else frame.assign(stage=np.nan) for name, frame in rows.items()}
    found = [f for f in screen(alone, table).findings if f.feature == "stage"]
    assert [(f.site, f.kind, f.wrong) for f in found] == [(SITE, "only here", False)]


def test_a_site_that_does_not_measure_a_column() -> None:
    rows, table = federation()
    result = screen(spoil(rows, SITE, pressure=np.nan, stage=np.nan), table)
    absent = {(f.site, f.feature) for f in result.findings if f.kind == "not here"}
    assert absent == {(SITE, "pressure"), (SITE, "stage")}
    assert not result.wrong


def test_no_odds_are_attached_to_a_cell() -> None:
    rows, table = federation()
    text = screen(spoil(rows, SITE, y=1 - rows[SITE].y), table).wrong[0].text
    assert "million" not in text
    assert "once in" not in text


def test_two_faulty_sites_are_both_named() -> None:
    rows, table = federation(sites=6)
    bad = spoil(rows, SITE, sugar=rows[SITE].sugar / 18.02)
    bad = spoil(bad, "site-4", pressure=mixed(bad["site-4"].pressure))
    assert {(f.site, f.feature) for f in screen(bad, table).wrong} == {(SITE, "sugar"), ("site-4", "pressure")}


def test_case_mix_is_no_fault() -> None:
    """Sites with older and younger patients differ in all that goes with age; nothing of it is wrong."""
    rows, table = federation(sites=6, rows=900)
    keep = {name: frame[frame.age > 46 + 4 * k][:250] for k, (name, frame) in enumerate(rows.items())}
    result = screen(keep, table)
    assert not result.wrong
    assert any(f.kind == "differs" for f in result.findings)


def test_no_more_chance_is_spent_than_was_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Over all tests of all sites the levels add up to alpha at most, and not to a small part of it."""
    rows, table = federation()
    kept: list[SiteTests] = []
    weigh = decision.SiteTests

    def keep(published: SiteSummaries, alpha: float) -> SiteTests:
        kept.append(weigh(published, alpha))
        return kept[-1]

    monkeypatch.setattr(decision, "SiteTests", keep)
    for alpha in (0.05, 0.01):
        screen(rows, table, alpha)
        spent = len(kept[-1].published.sites) * kept[-1].level.sum()
        assert 0.5 * alpha < spent <= alpha * (1 + 1e-9)


@pytest.mark.parametrize(("others", "gap", "far"), [(4, 2.4, False), (4, 2.6, True), (2, 4.9, False), (2, 5.1, True)])
def test_a_gap_is_far_only_beyond_those_of_the_others(
    others: int, gap: float, far: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two and a half times the widest gap among the others, and with two others, who say little, twice that."""
    monkeypatch.setattr(confirmation, "_gaps", lambda cell, measured: np.array([1.0] + [0.5] * (others - 1) + [gap]))
    cell = SimpleNamespace(others=np.arange(others), site=others)
    assert confirmation._is_far(cell, None) is far  # type: ignore[arg-type]


@pytest.mark.parametrize(("nearest", "constant"), [(0.99, False), (0.6, True)])
def test_one_level_in_every_row_is_clear_only_if_no_other_site_is_near(nearest: float, constant: bool) -> None:
    """Everybody has it here, 4 of 10 at most sites: whether that may be real depends on the most similar one."""
    shares = np.array([[nearest], [0.4], [0.4], [0.4], [1.0]])
    p = SimpleNamespace(layout=SimpleNamespace(column=np.array([0])), shares=shares, known=np.full((5, 1), 200.0))
    cell = SimpleNamespace(p=p, kind="binary", column=0, site=4, others=np.arange(4))
    assert confirmation._is_constant(cell, None) is constant  # type: ignore[arg-type]
