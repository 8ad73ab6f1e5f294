"""What all sites together chose, in words and as a figure, from facts of any name."""

from __future__ import annotations

import re
from html import unescape

import pytest
import torch

from tests.support.report.pages import HEART, SEEDS, make, run_of
from vitrail.core import facts as means
from vitrail.core.facts import Fact, Facts
from vitrail.report import render
from vitrail.report.sections.registry import undrawn

TRIED = (0.0, 0.5, 1.0)


def told(choice: tuple[float, float, float], costs: torch.Tensor, tried: tuple[float, ...] = TRIED) -> Facts:
    groups, losses = torch.tensor([1, 2, 0, 1]), torch.tensor([0.4, 0.6, 0.0, 0.5])
    return {
        "a": Fact(torch.tensor([choice]), ("what",), means.CHOICE, every=True),
        "b": Fact(costs[None], ("groups", "constants", "own share"), means.COSTS, every=True),
        "c": Fact(torch.tensor([tried]), ("own share",), means.TRIED, every=True),
        "d": Fact(torch.tensor([1]), (), means.ROUND, every=True),
        "e": Fact(groups, ("site",), means.GROUP),
        "f": Fact(losses, ("site",), means.LEFT_OUT),
        "g": Fact(torch.tensor([0.5, 0.5, 0.0, 0.6]), ("site",), means.ALONE_LEFT_OUT),
        "h": Fact(torch.tensor([True, True, False, True]), ("site",), means.AGREED),
    }


def section(facts: Facts) -> tuple[str, str]:
    """As markup, and as words."""
    page = make(methods=["fedavg"], seeds=SEEDS[:1], kind="run", rounds=3, run=run_of(HEART, facts))
    assert undrawn(page) == []
    html = render(page).partition('<section class="trust" aria-labelledby="choice">')[2].partition("</section>")[0]
    return html, re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", "", html)))


def costs(lowest: tuple[int, int, int]) -> torch.Tensor:
    out = 0.7 + 0.01 * torch.arange(12.0).view(2, 2, 3)
    out[:, :, 2] = 0.65  # alone it is the same whatever the groups
    out[lowest] = 0.4321
    return out


@pytest.mark.parametrize(
    ("choice", "at", "words"),
    [
        (
            (2, 0, 0.0),
            (1, 0, 0),
            "chose two groups of sites, a model for each: a site predicts by the model of its group",
        ),
        (
            (2, 1, 0.5),
            (1, 1, 1),
            "a site's scores are 50 % its own model, 50 % the model of its group, to which it adds",
        ),
        (
            (1, 0, 0.5),
            (0, 0, 1),
            "chose one model for all sites: a site's scores are 50 % its own model, 50 % the model",
        ),
        ((1, 0, 1.0), (0, 0, 2), "chose to stay alone: every site predicts by its own model alone"),
    ],
)
def test_the_choice_in_words(choice: tuple[float, float, float], at: tuple[int, int, int], words: str) -> None:
    html, text = section(told(choice, costs(at)))
    assert words in text
    assert "left out, 0.4321 per case" in text
    assert "everybody with one model, nothing of one's own" in text
    assert html.count("(chosen)") == 1 + (choice == (1, 0, 1.0))
    assert html.count("<svg") == 2
    assert html.count('class="series strong') == 2


def test_groups_are_those_that_sites_agreed_to_show() -> None:
    _, text = section(told((2, 0, 0.0), costs((1, 0, 0))))
    one, two, three, four = HEART
    assert f"Group 1: {one} and {four}." in text
    assert f"Group 2: {two}." in text
    assert f"Not shown, as they wish: {three}." in text
    assert f"Of 3 sites that show it, 1 would have done better alone on the cases left out: {two}." in text
    _, text = section(told((1, 0, 0.5), costs((0, 0, 1))))
    assert "Group 1:" not in text, "there is one"


def test_what_cost_no_number_is_not_drawn_and_a_share_that_was_given_needs_no_figure() -> None:
    some = costs((0, 0, 0))
    some[1, 1] = torch.inf
    html, text = section(told((1, 0, 0.0), some))
    assert "not defined" in text
    assert html.count('class="series') == 2 * 3
    html, text = section(told((1, 1, 0.3), some[:, :, :1].flip(1), (0.3,)))
    assert "<svg" not in html
    assert "30 % its own model" in text
