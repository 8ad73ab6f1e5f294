"""A model of all other sites, tested on the rows of each site in turn."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import vitrail as vt
from tests.support.visits import COLUMNS, study_of, visits
from vitrail.core.errors import VitrailError
from vitrail.data.encoding import clean_sites


def test_leave_one_site_out() -> None:
    """One site is the other way round: what the others learned is worse than chance there, and good elsewhere."""
    sites = {}
    for k, name in enumerate(("a", "b", "c", "odd")):
        r = np.random.default_rng(k)
        x = r.normal(size=(200, len(COLUMNS)))
        sick = (2 * x[:, 0] + 0.5 * r.normal(size=200) > 0) != (name == "odd")
        sites[name] = pd.DataFrame(x, columns=COLUMNS).assign(sick=sick.astype(int))
    study = study_of(training={"rounds": 20, "lr": 0.05, "total": "mean"})
    found = vt.compare(study, sites, ["fedavg", "local", "centralized"], [1], folds=2, leave_one_site_out=True)
    auc = found.left_out.query("metric == 'auc'").set_index(["method", "site"])
    assert set(found.left_out.method) == {"fedavg", "local", "centralized"}
    assert (auc.chance == 0.5).all()
    for method in ("fedavg", "centralized"):
        assert auc.value[method, "odd"] < 0.1
        assert min(auc.value[method, site] for site in "abc") > 0.7
    assert auc.value["fedavg", "odd"] < 0.2 < 0.9 < found.means("auc")["local", "odd"]


def test_leave_one_site_out_takes_nothing_of_that_site() -> None:
    sites = visits(people=20)
    study = study_of(standardise="global", training={"rounds": 2, "lr": 0.02})
    from vitrail.studies.leave_one_site_out import leave_one_out

    found = []
    for turned in (False, True):
        changed = dict(sites)
        if turned:
            changed["s1"] = sites["s1"].assign(sick=1 - sites["s1"].sick)
        told = leave_one_out(study, clean_sites(changed, study), ["fedavg"], 1)
        found.append(told.query("metric == 'auc' and site == 's1'").value.item())
    assert found[0] == pytest.approx(1 - found[1])  # the same risks, the other outcome


def test_two_sites_are_too_few_to_leave_one_out() -> None:
    sites = {k: v for k, v in visits(people=20).items() if k != "s2"}
    with pytest.raises(VitrailError, match="at least 3 sites"):
        vt.compare(study_of(training={"rounds": 1}), sites, ["fedavg"], [1], folds=2, leave_one_site_out=True)


def test_a_comparison_keeps_sites_left_out(tmp_path: Path) -> None:
    from vitrail.studies.compare.execution import load_comparison

    given = {"folds": 2, "leave_one_site_out": True, "out": tmp_path / "out"}
    found = vt.compare(study_of(training={"rounds": 1}), visits(people=20), ["fedavg", "local"], [1], **given)
    pd.testing.assert_frame_equal(load_comparison(tmp_path / "out").left_out, found.left_out)
