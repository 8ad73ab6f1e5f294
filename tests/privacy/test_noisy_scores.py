"""Scores under noise: how large it is, what it costs, and what an attacker who asks for scores is left with."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.support.small import opposed_tables
from vitrail import methods
from vitrail.privacy.budget import noise_for
from vitrail.privacy.noise import Generator
from vitrail.privacy.noisy_scores import noisy_scores
from vitrail.runs.protection import budget
from vitrail.runs.protection.budget import score_noise, spent_after
from vitrail.study.model import Study

OWN = Generator("a secret")


def study(**protect: object) -> Study:
    found = Study.infer(opposed_tables({"one": 60, "two": 60}), "sick", standardise="local")
    return found.with_changes(training={"rounds": 4}, protect=protect, method={"name": "fedavg"})


ROWS = {"rows": {"epsilon": 4.0, "delta": 1e-5}}
SITES = {"sites": {"epsilon": 8.0, "delta": 1e-5}, "clip": 0.5}


def test_noise_is_that_of_all_answers_together() -> None:
    drawn = [noisy_scores([0.5, 0.5, 0.5], 1 / 400, 2.0, 6, OWN, "round", i).values - 0.5 for i in range(4000)]
    told = noisy_scores([0.5, 0.5, 0.5], 1 / 400, 2.0, 6, OWN, "round", 0)
    wanted = 2.0 * math.sqrt(6) * math.sqrt(3) / 400
    assert told.deviation == pytest.approx([wanted] * 3)
    assert np.std(drawn) == pytest.approx(wanted, rel=0.05)
    assert 6 * told.loss == pytest.approx(1 / 2.0**2), "six answers cost what one look under z costs"


def test_numbers_of_different_size_have_noise_of_different_size_and_stay_in_their_range() -> None:
    told = noisy_scores([0.9, 3.0], [1 / 100, 5 / 100], 1.0, 1, OWN, "x", most=5.0)
    assert told.deviation[1] == pytest.approx(5 * told.deviation[0])
    many = [noisy_scores([0.99], 1.0, 3.0, 1, OWN, i).values[0] for i in range(200)]
    assert min(many) >= 0
    assert max(many) <= 1
    cells = noisy_scores([12.0, 3.0, 0.0, 40.0], 1.0, 1.0, 1, OWN, "cells", together=1.0, most=math.inf)
    assert cells.deviation == pytest.approx([1.0] * 4), "a row is in one cell"


def test_the_same_question_has_the_same_answer() -> None:
    one, again, other = (noisy_scores([0.5], 0.01, 1.0, 1, OWN, "round", r).values for r in (1, 1, 2))
    assert one == again != other


@pytest.mark.parametrize("given", [([math.nan], 0.1, 1.0, 1), ([0.5], 0.0, 1.0, 1), ([0.5], 0.1, 1.0, 0)])
def test_what_cannot_be_given_noise_is_refused(given: tuple[list[float], float, float, int]) -> None:
    with pytest.raises(ValueError, match="expected finite scores"):
        noisy_scores(*given, OWN, "x")


def test_whether_a_row_is_among_those_scored_is_told_by_plain_scores_and_not_by_noisy_ones() -> None:
    """The oracle: a model that is right about one row alone. Its accuracy is 1/n or 0."""
    n, z = 300, score_noise(study(**ROWS))
    plain = [(1 / n > 0.5 / n), (0.5 / n < 0.0)]
    assert plain == [True, False], "the control: without noise every question is answered"
    right = 0
    for i in range(2000):
        there = i % 2
        told = noisy_scores([0.5 + there / n], 1 / n, z, 8, OWN, "oracle", i).values[0]
        right += (told > 0.5 + 0.5 / n) == bool(there)
    assert right / 2000 < 0.61, "8 answers of a budget of 4 in all: one tells little more than guessing"


def test_rows_that_are_held_out_have_their_whole_budget_for_scores() -> None:
    found = study(**ROWS)
    assert score_noise(found) == pytest.approx(noise_for(budget.Budget(4.0, 1e-5), 1))
    assert spent_after(found, methods.build("fedavg"), 4) == pytest.approx(4.0, abs=1e-6), "nothing is kept back"
