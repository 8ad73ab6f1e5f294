"""The page of contributions: the figure first, a status for each site, and no word of credits where there are none."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pandas as pd
import pytest

from tests.support.report.pages import HEART, HOSTILE, without_script
from vitrail.report.pages.contribution import render_contribution
from vitrail.studies.contribution.rewards import RULES, reward_shares
from vitrail.studies.contribution.values import AGAIN, CARRIED, LOO, SHAPLEY, Contribution

WORTH = {HEART[0]: (0.05, 0.02), HEART[1]: (0.03, 0.05), HEART[2]: (-0.04, 0.01), HEART[3]: (0.01, 0.02)}


def made(sites: dict[str, tuple[float, float]] = WORTH, way: str = SHAPLEY, **more: Any) -> Contribution:
    rows = [(s, way, AGAIN, v, v - half, v + half, 0.0) for s, (v, half) in sites.items()]
    values = pd.DataFrame(rows, columns=["site", "way", "kind", "value", "low", "high", "chance"])
    costs = pd.DataFrame([(way, AGAIN, 16, "all groups")], columns=["way", "kind", "evaluations", "how"])
    ledger = values.assign(rounds=20, credit=lambda t: t.value.clip(0), credit_low=0.0, credit_high=0.1)
    given: dict[str, Any] = {"ledger": ledger if way == SHAPLEY else pd.DataFrame(), "notes": [], "seeds": 5} | more
    about = ("Heart", "FedAvg", 1, next(iter(sites)), 60, 20, "log loss per case", 0.62, 0.66)
    return replace(Contribution(*about, values, costs, ledger, []), **given)


def first_screen(page: str) -> str:
    return page[page.index('class="short"') : page.index('id="values"')]


def test_each_site_has_a_status_by_its_interval() -> None:
    short = first_screen(render_contribution(made()))
    standing = dict(re.findall(r'<li><b>([^<]+)</b> <span class="answer \w+">([^<]+)</span>', short))
    assert standing == dict(zip(HEART, ("helped", "cannot tell", "raised the loss", "cannot tell"), strict=True))
    assert short.index("<svg") < short.index('class="statuses"') < short.index("What to do next")
    assert "+0.050 (95 % interval +0.030 to +0.070)." in short


def test_credits_are_shares_of_the_whole() -> None:
    short = first_screen(render_contribution(made()))
    assert f"{HEART[0]} 56 %, {HEART[1]} 33 %, {HEART[3]} 11 %" in short
    assert HEART[2] not in short[short.index("Credits") :]


def test_a_model_that_is_no_better_than_its_baseline_earns_nothing() -> None:
    page = render_contribution(made(same=0.61, ledger=pd.DataFrame()))
    short = first_screen(page)
    assert "No credits were computed, because the model of all sites is no better" in short
    assert "share of credits" not in page
    assert "Nobody should be paid by it." in short
    assert "helped" in short, "the values are shown all the same"


def test_shapley_and_leave_one_out_are_compared_where_they_disagree() -> None:
    one, other = made(), made(way=LOO, sites={**WORTH, HEART[0]: (0.001, 0.01), HEART[3]: (0.05, 0.01)})
    both = replace(one, values=pd.concat([one.values, other.values], ignore_index=True))
    short = first_screen(render_contribution(both))
    assert f"{HEART[0]} helped (+0.050), but its absence would hardly matter to {HEART[0]} (+0.001)" in short
    assert f"{HEART[3]} did not clearly help (+0.010), but {HEART[0]} would miss it (+0.050)" in short
    assert "disagree" not in first_screen(render_contribution(one)), "leave-one-out was not asked for"
    same = replace(one, values=pd.concat([one.values, made(way=LOO).values], ignore_index=True))
    assert "disagree" not in first_screen(render_contribution(same))


def test_rewards_by_other_rules_stand_beside_the_credits() -> None:
    rounds, worth = dict.fromkeys(WORTH, 20.0), {site: value for site, (value, _) in WORTH.items()}
    page = render_contribution(made(rewards=reward_shares(HEART[0], rounds, worth, ranking=[*HEART[:0:-1]])))
    part = page[page.index('id="rewards"') : page.index('id="how"')]
    rules = [rule.about("row") for rule in RULES.values()]
    assert all(rule.pays in part and rule.cheat in part for rule in rules)
    cells = re.findall(r"<tr><th scope=.row.>([^<]+)</th>((?:<td>[^<]*</td>)+)", part)
    assert {site: re.findall("<td>([^<]*)</td>", row) for site, row in cells} == {
        HEART[1]: ["33 %", "–", "17 %", "75 %"],
        HEART[2]: ["33 %", "–", "33 %", "0 %"],
        HEART[3]: ["33 %", "–", "50 %", "25 %"],
    }
    assert "where the files of all sites are at hand" in part
    assert 'id="rewards"' not in render_contribution(made())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"strain": 9.0, "values": None}, "Do not pay by these numbers. With all sites’ files"),
        ({"sites": {s: (v, 1.0) for s, (v, _) in WORTH.items()}}, "Too little to decide"),
        ({}, "Agree among the sites on what a credit is worth"),
        ({"way": LOO}, "--method shapley"),
    ],
)
def test_what_to_do_next(changes: dict[str, Any], words: str) -> None:
    if "values" in changes:
        values = made().values.assign(kind=CARRIED)
        changes = {**changes, "values": values}
    page = render_contribution(made(**changes))
    assert words in first_screen(page)
    if "strain" in changes:
        assert "Not settled." in first_screen(page)
        assert "Credits" not in first_screen(page)


def test_many_sites_are_folded() -> None:
    many = {f"site {i:02d}": (0.01 * i, 0.5) for i in range(20)}
    short = first_screen(render_contribution(made(many)))
    assert "12 more sites" in short
    assert short.index("site 12") < short.index("<details>") < short.rindex("site 11")


def test_names_are_text() -> None:
    hostile = dict(zip(HOSTILE, WORTH.values(), strict=True))
    page = without_script(render_contribution(made(hostile)))
    assert "<script" not in page
    assert "<img" not in page
