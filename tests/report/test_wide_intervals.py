"""Intervals that say nothing are told in words, not drawn; comparisons keep what a score is measured against."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

import vitrail as vt
from tests.support.report.pages import SEEDS, make
from tests.support.small import opposed_tables
from vitrail.cli.output import print_comparison
from vitrail.report import render
from vitrail.report.pages.builder import load, page_of
from vitrail.report.text import SAME
from vitrail.stats.intervals import says_nothing
from vitrail.studies.compare.execution import compare

WORDS = "From two seeds no interval is drawn"


@pytest.mark.parametrize("seeds", [2, 3])
def test_two_seeds_are_not_drawn_as_an_interval(seeds: int) -> None:
    html = render(make(seeds=SEEDS[:seeds], methods=("local", "fedavg", "fedper"), rounds=3))
    drawn = ('class="whisker"', 'class="interval"', "±&nbsp;", "95 % interval")
    assert [words in html for words in drawn] == [seeds > 2] * 4
    assert (WORDS in html) == (seeds == 2)
    assert ("Without an interval, this order may be chance." in html) == (seeds == 2)


def test_an_interval_from_chance_to_perfect_is_not_drawn() -> None:
    chance = pd.DataFrame({"site": ["a", "b"], "metric": "balanced_accuracy", "value": 0.5})
    wild = {"a": (0.3, 0.5, 0.9, 0.7, 0.95), "b": (0.80, 0.81, 0.79, 0.80, 0.81)}
    rows = [
        ("fedavg", seed, site, "test", "balanced_accuracy", v)
        for site, values in wild.items()
        for seed, v in zip(SEEDS, values, strict=True)
    ]
    scores = pd.DataFrame(rows, columns=["method", "seed", "site", "split", "metric", "value"])
    page = make(sites=("a", "b"), methods=("fedavg",), scores=scores, chance=chance, summary=pd.DataFrame(), rounds=3)
    cells = {site: scores[0] for site, scores in page.table.rows}
    assert cells["a"].vague
    assert cells["a"].half != cells["a"].half
    assert not cells["b"].vague
    assert not page.table.worsts[0][1].known
    assert f"it would reach from {SAME} to a perfect score" in render(page)


def test_what_says_nothing() -> None:
    assert says_nothing(0.1, 0.9, 2, 0.5, 1.0)
    assert says_nothing(0.0, 0.7, 5, 0.69, 0.0), "a log loss"
    assert not says_nothing(0.1, 0.7, 5, 0.69, 0.0)
    assert not says_nothing(0.1, 0.9, 3, 0.5, 1.0)
    assert not says_nothing(float("nan"), float("nan"), 1, 0.5, 1.0), "there is none"
    assert not says_nothing(0.9, 1.0, 5, 1.0, 1.0), "all of one class: the same answer is always right"
    assert says_nothing(0.0, 1.0, 5, float("nan"), 1.0)


def test_a_comparison_keeps_chance_and_few_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tables = opposed_tables({"large": 180, "tiny": 24})
    study = vt.Study.infer(tables, target="sick").with_changes(training={"rounds": 1}, metrics=["accuracy", "auc"])
    result = compare(study, tables, ["local", "fedavg"], [1, 2], out=tmp_path / "c")
    kept = pd.read_csv(tmp_path / "c" / "comparison.csv", keep_default_na=False, na_values={"chance": [""]})
    test, train = kept[kept.split == "test"], kept[kept.split == "train"]
    assert train.chance.isna().all()
    assert (test[test.metric == "auc"].chance == 0.5).all()
    usual = tables["tiny"]["sick"].value_counts(normalize=True).max()  # every row is judged out of its fold
    mine = test[(test.seed == 2) & (test.site == "tiny") & (test.metric == "accuracy")]
    assert mine.chance.to_numpy() == pytest.approx(usual), "whatever the method"
    assert (kept[kept.site == "large"].few_rows == "").all()
    assert kept[kept.site == "tiny"].few_rows.str.startswith("24 rows, ").all()
    for name in ("verdicts", "summary"):
        assert "few_rows" in pd.read_csv(tmp_path / "c" / f"{name}.csv").columns
    page = page_of(load(tmp_path / "c"))
    assert page.table.chance == page_of(result).table.chance
    html = render(page)
    joining = html[html.index('id="joining"') :]
    assert SAME in joining[: joining.index("</section>")]
    print_comparison(result)
    assert any(line.startswith(SAME) for line in capsys.readouterr().out.splitlines())
