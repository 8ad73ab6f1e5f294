"""How unsure sites are, who was chosen, who listened to whom: what is made of the facts, and what a page draws."""

from __future__ import annotations

import math
import re
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import spearmanr

import vitrail as vt
from tests.support.report.pages import HOSTILE, SEEDS, make, run_of
from tests.support.report.uncertainty import ROUNDS, WARDS, facts_of, page, scores_of
from vitrail.analysis.uncertainty import rank_agreement, rank_correlation, read_choice, read_uncertainty, shared_classes
from vitrail.core import facts as means
from vitrail.methods.ripfl import RIPFL
from vitrail.report import render
from vitrail.report.pages.builder import page_of
from vitrail.report.sections.learning.class_overlap import class_shares
from vitrail.report.sections.learning.uncertainty import pair_with_scores
from vitrail.report.sections.registry import undrawn
from vitrail.runs.evaluation import class_shares as shares_of_sites


def part(html: str, key: str) -> str:
    """One section."""
    found = re.search(rf'<section[^>]*aria-labelledby="{key}".*?</section>', html, re.DOTALL)
    return found[0] if found else ""


def drawings(html: str) -> list[ElementTree.Element]:
    return [ElementTree.fromstring(f"<svg{p.partition('</svg>')[0]}</svg>") for p in html.split("<svg")[1:]]


# --- what is worked out -----------------------------------------------------------------------------------------------


def test_the_rank_correlation_is_spearmans() -> None:
    rng = np.random.default_rng(1)
    for n in (4, 9, 40):
        one, other = rng.integers(0, 6, n) + rng.random(n).round(1), rng.random(n)
        assert rank_correlation(one, other).value == pytest.approx(spearmanr(one, other).statistic)
    one[3] = np.nan
    assert rank_correlation(one, other).pairs == 39


def test_its_interval_covers_what_it_should() -> None:
    """Of 2000 draws of 8, 12 and 40 pairs whose ranks correlate by .48 (normal with .5)."""
    rng, truth = np.random.default_rng(2), 6 / math.pi * math.asin(0.25)
    for n in (8, 12, 40):
        a, e = rng.standard_normal((2, 2000, n))
        found = [rank_correlation(x, 0.5 * x + math.sqrt(0.75) * y) for x, y in zip(a, e, strict=True)]
        inside = np.mean([c.low <= truth <= c.high for c in found])
        assert 0.94 < inside < 0.985


def test_where_there_is_no_interval() -> None:
    three = rank_correlation(np.arange(3.0), np.array([2.0, 1.0, 3.0]))
    assert three.value == 0.5
    assert math.isnan(three.low)
    assert math.isnan(rank_correlation(np.arange(9.0), np.arange(9.0)).low), "ranks in full order"
    assert math.isnan(rank_correlation(np.arange(9.0), np.ones(9)).value)


def test_matrices_that_go_together_and_those_that_do_not() -> None:
    rng = np.random.default_rng(3)
    alike = rng.random((9, 9))
    alike = alike + alike.T
    found, chance = rank_agreement(np.exp(alike) + 0.01 * rng.random((9, 9)), alike)
    assert found.value > 0.95
    assert found.pairs == 72
    assert math.isnan(found.low), "pairs are not independent"
    assert chance < 0.002
    others = [rank_agreement(rng.random((9, 9)), alike)[1] for _ in range(40)]
    assert 0.3 < np.mean(others) < 0.7
    assert np.mean(np.array(others) < 0.05) < 0.15
    order = rng.permutation(9)
    moved = rank_agreement(*(m[np.ix_(order, order)] for m in (np.exp(alike), alike)))
    assert moved[0].value == pytest.approx(rank_agreement(np.exp(alike), alike)[0].value)
    assert math.isnan(rank_agreement(alike, np.ones((9, 9)))[1])


def test_pairs_of_a_site_count_as_one_site(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some sites are heard by all, and others share much with all: chance, however many pairs there are."""
    monkeypatch.setattr("vitrail.analysis.uncertainty.SHUFFLES", 200)
    rng, alarms = np.random.default_rng(4), 0
    for _ in range(100):
        heard, common = rng.standard_normal((2, 9))
        noise = rng.standard_normal((2, 9, 9))
        shared = common[:, None] + common + 0.1 * (noise[1] + noise[1].T)
        alarms += rank_agreement(heard + 0.1 * noise[0], shared)[1] < 0.05
    assert alarms <= 10


def test_classes_that_occur_at_both() -> None:
    share = np.array([[0.5, 0.5, 0, 0], [0, 0.1, 0.9, 0], [0, 0, 0, 1.0]])
    assert shared_classes(share) == pytest.approx(np.array([[1, 1 / 3, 0], [1 / 3, 1, 0], [0, 0, 1]]))


@pytest.mark.parametrize("classes", [["no", "yes"], ["a", "b, 7 % c", "c"], [f"{i} % x" for i in range(9)]])
def test_shares_of_classes_are_kept_as_numbers(classes: list[str]) -> None:
    frames = {"s": pd.DataFrame({"x": np.arange(90.0) / 4, "kind": [classes[i % len(classes)] for i in range(90)]})}
    study = vt.Study.infer(frames, target="kind")
    share = np.arange(1.0, len(classes) + 1) / sum(range(len(classes) + 1))
    assert shares_of_sites(study, {"s": share})["s"] == pytest.approx(share, abs=0.00501)
    number = vt.Study.infer(frames, target="x")
    assert shares_of_sites(number, {"s": np.array([3.0])}) == {}


def test_while_a_site_is_away_what_it_said_holds() -> None:
    doubt = read_uncertainty(WARDS, facts_of(WARDS, away=True))
    assert doubt is not None
    curve = run_of(WARDS, {}, scores_of(WARDS)).curve()
    both = pair_with_scores(doubt, curve)
    assert both.rounds.tolist() == [2, 4, 6, 8, 10, 12], "round 0 is before anything was said"
    assert np.isnan(doubt.unsure[3, 1])
    assert both.unsure[1].tolist() == pytest.approx([0.2 + 0.1 * i for i in range(6)])
    assert both.correlation(-1).value == -1


def test_who_was_chosen_how_often() -> None:
    choice = read_choice(WARDS, facts_of(WARDS, away=True))
    assert choice is not None
    assert choice.often().tolist() == pytest.approx([1, 1, 1, 0, 0.5, 0.5]), "of the rounds in which it was there"
    assert choice.here[:, 1].sum() == 9
    assert read_choice(WARDS, {}) is None
    assert read_uncertainty(WARDS, {}) is None


# --- what a page says and draws ---------------------------------------------------------------------------------------


def test_the_correlation_is_told_with_what_it_means() -> None:
    rng = np.random.default_rng(5)
    many = [f"ward {i}" for i in range(14)]

    def told(slope: float, noise: float, lower: bool = False) -> str:
        run = run_of(many, facts_of(many), [
            (*row[:5], row[5] + noise * rng.standard_normal()) for row in scores_of(many, slope)
        ])  # fmt: skip
        asked = {"sites": many, "methods": ["fedavg"], "seeds": SEEDS[:1], "kind": "run", "rounds": 3, "run": run}
        return part(render(make(**asked, lower_is_better=lower)), "doubt")

    clear = told(-0.3, 0.05)
    assert re.search(
        r"Over 14 sites the rank correlation of uncertainty with balanced accuracy after round 12 is −", clear
    )
    assert re.search(r"−0\.\d\d \(95 % interval −0\.\d\d to −0\.\d\d\)\. Sites that are less sure .* do worse", clear)
    assert "Surest is <b>ward 0</b> (0.20), least sure <b>ward 13</b> (1.50)." in clear
    assert "do better" in told(0.3, 0.05)
    assert "do worse" in told(0.3, 0.05, lower=True)
    assert "cannot be said" in told(0.0, 0.1)
    assert "So few sites allow no interval" in part(render(page(WARDS[:3])), "doubt")
    assert "No interval is known for ranks in full order" in part(render(page()), "doubt")
    assert "no correlation is defined" in part(render(page(slope=0.0)), "doubt")
    assert "depends on how much wrong evidence costs" in clear


def test_a_dot_for_each_site_and_names_where_there_is_room() -> None:
    for sites in (WARDS, [f"ward {i}" for i in range(30)]):
        first = drawings(part(render(page(sites)), "doubt"))[0]
        assert len(list(first.iter("circle"))) == len(sites)
        named = [e.text for e in first.iter("text") if (e.text or "").startswith("ward")]
        assert len(named) == len(set(named))
        assert len(named) == 6 if len(sites) == 6 else 2 <= len(named) <= 8
        words = [e.text or "" for e in first.iter("title")]
        assert all(any(w.startswith(f"{s}: uncertainty") for w in words) for s in sites)


def test_the_strip_says_who_was_chosen_and_why() -> None:
    section = part(render(page(away=True)), "chosen")
    assert "Always chosen when there: ward 0, ward 1 and ward 2. Never chosen: ward 3." in section
    wide = drawings(section)[0]
    cells = {e.text or "" for e in wide.iter("title")}
    assert "ward 0, round 1: chosen: of the surer half" in cells
    assert "ward 4, round 2: chosen at random" in cells
    assert "ward 4, round 1: not chosen" in cells
    assert "ward 1, round 5: away" in cells
    kinds = [e.get("class") for e in wide.iter("rect")]
    key = {"h1", "h9", "h6", "none"}
    assert kinds.count("h1") - 1 == 3 * ROUNDS - 3
    assert kinds.count("h9") - 1 == ROUNDS
    assert kinds.count("none") - 1 == 3
    assert set(kinds) == key
    plain = part(render(page(sure=False)), "chosen")
    assert "by lot" not in plain
    assert "ward 5, round 1: chosen" in plain


def test_a_long_run_is_drawn_in_spans() -> None:
    facts = {k: f._replace(value=f.value.repeat(20, *[1] * (f.value.dim() - 1))) for k, f in facts_of(WARDS).items()}
    rounds = next(k for k, f in facts.items() if f.means == means.ROUND)
    facts[rounds] = facts[rounds]._replace(value=torch.arange(1, 20 * ROUNDS + 1))
    shown = make(
        sites=WARDS, methods=["fedavg"], seeds=SEEDS[:1], kind="run", run=run_of(WARDS, facts, scores_of(WARDS))
    )
    section = part(render(shown), "chosen")
    assert "a cell stands for 4 rounds" in section
    wide, narrow = drawings(section)
    for drawing, cells in ((wide, 60), (narrow, 30)):
        full = [e for e in drawing.iter("rect") if e.get("class") == "h6"]
        assert len(full) - 1 == cells * 6
    words = {e.text or "" for e in wide.iter("title")}
    assert "ward 4, rounds 1 to 4: chosen at random 2 times" in words
    half = {e.get("height") for e in wide.iter("rect") if e.get("class") == "h9"} - {"12"}
    whole = {float(e.get("height", 0)) for e in wide.iter("rect") if e.get("class") == "h6"} - {12.0}
    assert {2 * float(h) for h in half} == {max(whole)}, "half of a cell"


def test_names_are_data() -> None:
    html = render(page([*HOSTILE, "plain", "other"]))
    for key in ("doubt", "chosen"):
        section = part(html, key)
        assert "<script" not in section
        assert "<img" not in section
        assert all(any(bad in (e.text or "") for d in drawings(section) for e in d.iter()) for bad in HOSTILE)


def run_with(classes: list[list[int]]) -> vt.Run:
    """Every site has rows of these classes."""
    rng, frames = np.random.default_rng(0), {}
    for i, mine in enumerate(classes):
        y = np.array([mine[k % len(mine)] for k in range(60)])
        frames[f"site {i}"] = pd.DataFrame(
            {"a": y + rng.standard_normal(60), "b": rng.standard_normal(60), "y": [f"c{k}" for k in y]}
        )
    study = vt.Study.infer(frames, target="y").with_changes(training={"rounds": 6, "lr": 0.02})
    return vt.federate(study, frames, RIPFL(rear=2))


def test_who_listened_to_whom_beside_the_classes_they_share() -> None:
    run = run_with([[0, 1], [0, 1], [2, 3], [2, 3], [1, 2], [0, 3]])
    shares = class_shares(run)
    assert shares is not None
    assert (shares > 0).sum(1).tolist() == [2] * 6
    html = render(page_of(run))
    section = part(html, "classes")
    assert re.search(r"rank correlation [−\d.]+ over 30 pairs of sites \(p", section)
    assert "ikeness of models" in section or "Models of sites that share classes are more alike" in section
    _, cells = drawings(section)
    assert len(list(cells.iter("rect"))) == 2 * 36
    told = {e.text or "" for e in cells.iter("title")}
    assert "site 0 and site 1 share 1.00 of their classes" in told
    assert "site 0 and site 4 share 0.33 of their classes" in told
    own = run.influence().loc["site 0", "site 0"]
    assert f"site 0 kept of its own: {own:.2f}" in told
    assert undrawn(page_of(run)) == []
    for key in ("doubt", "chosen", "trust", "user"):
        assert part(html, key), key
    assert "As received" in part(html, "user")


def test_nothing_is_drawn_where_all_hold_the_same_classes() -> None:
    run = run_with([[0, 1]] * 4)
    html = render(page_of(run))
    assert part(html, "classes") == ""
    assert part(html, "chosen")
    assert [f["means"] for f in undrawn(page_of(run))] == [means.SIMILARITY]


def test_a_run_without_such_facts_has_no_such_sections() -> None:
    run = run_of(WARDS, {}, scores_of(WARDS))
    html = render(make(sites=WARDS, methods=["fedavg"], seeds=SEEDS[:1], kind="run", run=run))
    assert not any(part(html, key) for key in ("doubt", "chosen", "classes"))
