"""Page and terminal state how often the warning is wrong as benchmarks/verdicts/contribution.py counted."""

from __future__ import annotations

import pandas as pd
import pytest

from tests.support import ROOT
from vitrail.studies.contribution.reliability import AS_GIVEN, OFF, SEED_NOISE, SPOT, STRAIN

CASES = ROOT / "benchmarks" / "verdicts" / "results" / "contribution" / "cases.csv.gz"


@pytest.fixture(scope="module")
def cases() -> pd.DataFrame:
    return pd.read_csv(CASES, keep_default_na=False).query("part == 'test'")


@pytest.mark.parametrize(("rule", "signal"), [(STRAIN, "strain"), (SPOT, "spot")])
def test_the_rates_that_are_printed_were_counted(rule, signal, cases) -> None:
    off, silent = cases["off carried"] > OFF, cases[signal] < rule.limit
    counted = (silent.sum(), (off & silent).sum(), (~silent).sum(), (off & ~silent).sum())
    assert rule[1:] == counted
    assert (off & silent).mean() <= 0.05


def test_of_reports_as_given_and_of_seeds_too(cases) -> None:
    assert AS_GIVEN[1:] == (0, 0, len(cases), (cases["off round"] > OFF).sum())
    assert cases["off another seed"].median() == pytest.approx(SEED_NOISE, abs=0.005)
