"""The methods give the numbers they gave before the core was rebuilt."""

from __future__ import annotations

import json

import pytest

from tests.same_numbers import CASES, KEPT, scores


@pytest.mark.parametrize("case", CASES)
def test_scores_are_those_of_the_release_before(case: str) -> None:
    before = json.loads(KEPT.read_text())[case]
    assert scores(case) == pytest.approx(before, abs=1e-5)
