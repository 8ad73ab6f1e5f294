"""How much of the shared model each site uses, in words and as a figure, from facts of any name; and whom it serves
worse than alone."""

from __future__ import annotations

import re
from html import unescape

import numpy as np
import pytest
import torch

from tests.support.report.pages import HEART, SEEDS, make, run_of
from vitrail.analysis.harm import chance_worse, expect_worse
from vitrail.core import facts as means
from vitrail.core.facts import Fact, Facts
from vitrail.report import render
from vitrail.report.sections.registry import undrawn

TRIED = (0.0, 0.5, 1.0)


def told(
    choice: tuple[int, float],
    more: tuple[float, ...] = (0.08, -0.02, 0.0, -0.03),
    error: float = 0.01,
    shows: tuple[bool, ...] = (True, True, False, True),
) -> Facts:
    costs = 0.7 + 0.01 * torch.arange(6.0).view(2, 3)
    at = (0, 3).index(choice[0]), TRIED.index(choice[1])
    costs[at] = 0.4321
    d = torch.tensor(more)
    sums = torch.zeros(4, 2, 3)
    sums[:, at[0], at[1]] = torch.tensor([4.0, float(d.sum()), float((d**2).sum()), 4 * error**2])
    here = torch.tensor(shows)
    return {
        "a": Fact(torch.tensor([choice]), ("what",), means.MIX, every=True),
        "b": Fact(costs[None], ("epochs", "own share"), means.MIX_COSTS, every=True),
        "c": Fact(torch.tensor([TRIED]), ("own share",), means.TRIED, every=True),
        "d": Fact(torch.tensor([[0.0, 3.0]]), ("epochs",), means.MIX_EPOCHS, every=True),
        "e": Fact(torch.tensor([1]), (), means.ROUND, every=True),
        "f": Fact((0.5 + d) * here, ("site",), means.LEFT_OUT),
        "g": Fact(torch.full((4,), 0.5) * here, ("site",), means.ALONE_LEFT_OUT),
        "h": Fact(torch.full((4,), error) * here, ("site",), means.ERROR_LEFT_OUT),
        "i": Fact(here, ("site",), means.AGREED),
        "j": Fact(sums[None], ("sums", "epochs", "own share"), means.AGAINST_ALONE, every=True),
    }


def section(facts: Facts) -> tuple[str, str]:
    """As markup, and as words."""
    page = make(methods=["fedavg"], seeds=SEEDS[:1], kind="run", rounds=3, run=run_of(HEART, facts))
    assert undrawn(page) == []
    html = render(page).partition('<section class="trust" aria-labelledby="agreed">')[2].partition("</section>")[0]
    return html, re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", "", html)))


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ((0, 0.0), "agreed on 0 % their own model, 100 % the shared one: a site's scores are so much of"),
        (
            (3, 0.5),
            "50 % their own model, 50 % the shared one: a site's scores are so much of a model of its cases alone",
        ),
        ((0, 1.0), "agreed to stay alone: every site predicts by its own model"),
    ],
)
def test_what_was_agreed_in_words(choice: tuple[int, float], words: str) -> None:
    html, text = section(told(choice))
    assert words in text
    assert "left out, 0.4321 per case" in text
    assert ("the shared model, tuned for 3 epochs on its own cases" in text) == (choice[0] == 3)
    assert ("Nobody is served worse than alone" in text) == (choice[1] == 1.0)
    assert html.count("(agreed)") == 1
    assert html.count("<svg") == 2


def test_what_is_not_the_lowest_is_not_called_so() -> None:
    facts = told((0, 0.5))
    assert "This had the lowest loss" in section(facts)[1]
    facts["b"].value[0, 1, 2] = 0.4320
    _, text = section(facts)
    assert "left out, 0.4321 per case, is hardly above the lowest, 0.4320, and of those it is expected to serve" in text


def test_who_is_served_worse_is_named_with_what_that_rests_on() -> None:
    _, text = section(told((0, 0.5)))
    one, _, three, _ = HEART
    assert f"Whose own cases say that alone serves it better: {one} (0.0800 per case more, give or take 0.0100" in text
    assert "vitrail predict … --keep local" in text
    assert f"Not shown, as they wish or since they were not there: {three}." in text
    _, text = section(told((0, 0.5), error=0.3))
    assert "Of 3 sites that show it, none has cases of its own that say alone would serve it better." in text


def test_a_name_is_not_markup() -> None:
    facts = told((0, 0.5))
    page = make(methods=["fedavg"], seeds=SEEDS[:1], kind="run", rounds=3, run=run_of(["<b>x", *HEART[1:]], facts))
    html = render(page)
    assert "<b>x" not in html
    assert "&lt;b&gt;x" in html


# the estimate


def sums(d: np.ndarray, e: np.ndarray) -> list[float]:
    return [len(d), d.sum(), (d**2).sum(), (e**2).sum()]


def test_what_rows_noise_explains_is_no_difference_between_sites() -> None:
    """The same differences: behind small errors they are the sites', behind large ones nobody's."""
    d = np.array([0.03, -0.05, 0.04, -0.06, -0.05, -0.03, 0.02, -0.06])
    sure, unsure = (expect_worse(sums(d, np.full(8, e))) for e in (0.002, 0.05))
    assert sure is not None
    assert unsure is not None
    assert 0.25 < sure.share < 0.45  # 3 of 8
    assert chance_worse(0.04, 0.002, sums(d, np.full(8, 0.002))) > 0.99
    assert chance_worse(0.04, 0.05, sums(d, np.full(8, 0.05))) < chance_worse(0.04, 0.05, [0, 0, 0, 0])
    assert unsure.low <= round(8 * unsure.share) <= unsure.high
    assert expect_worse([2, 0.1, 0.1, 0.1]) is None
    assert expect_worse([4, float("nan"), 0.1, 0.1]) is None


def test_it_holds_as_often_as_it_says() -> None:
    """Sites drawn as the estimate has it: the interval holds the number nine times of ten, the mean share is right."""
    g, inside, off, named, right = np.random.default_rng(3), [], [], 0, 0
    for _ in range(120):
        mean, spread, error = g.normal(-0.02, 0.02), g.uniform(0, 0.04), g.uniform(0.01, 0.03, 10)
        truth = mean + spread * g.normal(size=10)
        d = truth + error * g.normal(size=10)
        worse = expect_worse(sums(d, error))
        assert worse is not None
        inside.append(worse.low <= (truth > 0).sum() <= worse.high)
        off.append(worse.share - (truth > 0).mean())
        for t, one, e in zip(truth, d, error, strict=True):
            if chance_worse(one, e, sums(d, error)) >= 0.8:
                named, right = named + 1, right + (t > 0)
    assert np.mean(inside) > 0.87
    assert abs(np.mean(off)) < 0.04
    assert named > 15
    assert right / named > 0.8
