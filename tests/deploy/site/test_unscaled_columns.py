"""A study that brings columns to no common scale: the site says so before anybody agrees, and not by stopping."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import vitrail as vt
from tests.support.deploy.federation import first_word
from vitrail.core.errors import RunStopped, VitrailError
from vitrail.deploy.consent.form import contract_text
from vitrail.deploy.protocol.agreement import Agreement
from vitrail.deploy.protocol.message import Message
from vitrail.deploy.site.site import Site
from vitrail.deploy.site.unscaled_columns import (
    MOST_FIRST,
    check_first_report,
    looks_at_reports,
    rows_in_first_report,
)
from vitrail.runs.setup import resolve

RUN, SITES = "0123456789abcdef", ("north", "east", "south")


def table(raw: bool) -> pd.DataFrame:
    """60 rows of ten columns: as a laboratory writes them, in hundreds, or already scaled."""
    rng = np.random.default_rng(1)
    x = rng.standard_normal((60, 10))
    sick = np.where(x[:, 0] - x[:, 1] + 0.4 * rng.standard_normal(60) > 0, "yes", "no")
    if raw:
        x = 100 * x
    return pd.DataFrame(x, columns=[f"c{i}" for i in range(10)]).assign(sick=sick)


def agreed(raw: bool, **changes: Any) -> Agreement:
    study = vt.Study.infer(dict.fromkeys(SITES, table(raw)), target="sick")
    changes = {
        "standardise": "none",
        "screen": {"ask": False},
        "training": {"rounds": 2, "lr": 0.005, "weight_decay": 0.01},
    } | changes
    return Agreement.of(resolve(study.with_changes(**changes), "fedavg", None)[0], None, len(SITES))


def first_round(site: Site) -> Message:
    site.answer(Message("prepare", {"run": RUN}))
    asked = {"run": RUN, "stage": 0, "round": 0, "place": 0, "score": []}
    return site.answer(Message("round", asked, first_word(site.agreed)))


def test_it_is_told_before_anybody_agrees(tmp_path: Path) -> None:
    """As it would come: without this the site stops an honest run in its first round."""
    bare = agreed(raw=True)
    with pytest.raises(VitrailError, match="could be read almost exactly from its first report") as found:
        check_first_report(bare, "north", table(raw=True))
    assert found.value.title == "this site would stop the run"
    assert 'standardise = "local"' in found.value.problems[0].hint
    with pytest.raises(VitrailError) as stopped:
        first_round(Site("north", table(raw=True), bare, tmp_path))
    assert isinstance(stopped.value, RunStopped)


@pytest.mark.parametrize("raw", [False, True])
def test_columns_on_a_common_scale_are_no_matter(raw: bool, tmp_path: Path) -> None:
    """Scaled before, or by the study."""
    fine = agreed(raw, **({"standardise": "local"} if raw else {}))
    check_first_report(fine, "north", table(raw))
    assert rows_in_first_report(fine, "north", table(raw)) <= MOST_FIRST
    assert first_round(Site("north", table(raw), fine, tmp_path)).kind == "round"


def test_under_masks_the_site_looks_at_weights_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    masked, looked = agreed(raw=True, protect={"sum": "masked"}), list[str]()
    check_first_report(masked, "north", table(raw=True))
    assert not looks_at_reports(masked, 0, 0)
    assert looks_at_reports(agreed(raw=True), 0, 0)
    assert looks_at_reports(agreed(raw=True, standardise="local", protect={"sum": "masked"}), 0, 0)
    site = Site("north", table(raw=True), masked, tmp_path)
    site.answer(Message("prepare", {"run": RUN}))
    monkeypatch.setattr(type(site.wary), "check_report", lambda *_: looked.append("report"))
    monkeypatch.setattr("vitrail.deploy.secure_sum.site.SumSite.report", lambda self, asked, up: (up(), {"list": ""}))
    told = {k: torch.as_tensor(v) for k, v in first_word(masked).items()}
    asked = {"run": RUN, "stage": 0, "round": 0, "place": 0, "score": [], "sum": {}}
    site.on_round(Message("round", asked, told))
    assert not looked
    crafted = {k: v * 1000 for k, v in told.items()}
    with pytest.raises(VitrailError) as stopped:
        site.on_round(Message("round", {**asked, "round": 1}, crafted))
    assert isinstance(stopped.value, RunStopped)


def test_the_form_says_what_is_not_looked_at() -> None:
    def form(one: Agreement) -> str:
        return " ".join(contract_text(one, "north", list(SITES), True).split())

    words = "The reports leave under masks, and this site does not look for rows in them."
    assert words in form(agreed(raw=True, protect={"sum": "masked"}))
    assert words not in form(agreed(raw=True))
    assert words not in form(agreed(raw=True, standardise="local", protect={"sum": "masked"}))
