"""The heart study, short, and a run of it that kept its updates: for what is counted on those."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

import vitrail as vt


@pytest.fixture(scope="session")
def sites() -> dict[str, pd.DataFrame]:
    return vt.datasets.heart_disease()


@pytest.fixture(scope="session")
def study() -> vt.Study:
    agreed = vt.Study.load(vt.datasets.packaged("heart_disease.toml"))
    return agreed.with_changes(training={"rounds": 3}, network={"hidden": [6]})


@pytest.fixture(scope="session")
def kept(study, sites, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("kept") / "run"
    vt.federate(study, sites, out=out, keep_updates=True)
    return out
