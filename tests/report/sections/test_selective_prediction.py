"""The section on doubt says the numbers of its run, names where it does not help, and draws no number of few rows."""

from __future__ import annotations

import dataclasses
import re
from html import unescape

import numpy as np
import pandas as pd
import pytest

import vitrail as vt
from tests.support.report.pages import HOSTILE, run_of
from tests.support.small import opposed_tables
from vitrail.metrics.scores import SUREST, surest_shares
from vitrail.report import render
from vitrail.report.pages.builder import page_of
from vitrail.report.pages.frame import fill_part
from vitrail.report.sections.selective_prediction import APART, contents_of, has_coverage
from vitrail.runs.setup import COVERAGE

HEAD = "What is gained by handing the least sure cases to a person"


def words(html: str) -> str:
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", "", html)))


def section(html: str) -> str:
    return html[html.index('<section class="doubt"') : html.index("</section>", html.index('<section class="doubt"'))]


def made(rows: dict[str, int], curve: dict[int, float], auroc: float = 0.7, loss: str = "likelihood") -> vt.Run:
    """A run that was not run, whose sites all have this curve where enough rows are left."""
    history = []
    for site, n in rows.items():
        told = {f"accuracy@{s}": curve[s] if s in surest_shares(n) else np.nan for s in SUREST}
        told |= {"doubt": 0.4, "auroc": auroc} if n >= 10 else {"doubt": np.nan, "auroc": np.nan}
        history += [(0, 5, site, COVERAGE, metric, value) for metric, value in told.items()]
    run = run_of(list(rows), history=history)
    sizes = pd.DataFrame({"site": list(rows), "train_rows": 50, "test_rows": list(rows.values()), "target": ""})
    return dataclasses.replace(run, study=run.study.with_changes(training={"loss": loss}), sizes=sizes)


def line(right: float, by: float) -> dict[int, float]:
    return {share: right + by * (100 - share) / 10 for share in SUREST}


def filled(run: vt.Run) -> str:
    return fill_part("sections/selective_prediction.html", **contents_of(run))


@pytest.mark.parametrize("loss", ["likelihood", "evidence"])
def test_the_sentence_has_the_numbers_of_the_run(loss: str) -> None:
    seen = set()
    for seed in (1, 2):
        tables = opposed_tables({"small": 185, "large": 275, "tiny": 12})
        study = vt.Study.infer(tables, target="sick").with_changes(training={"rounds": 4, "loss": loss})
        run = vt.federate(study, tables, "fedavg", seed=seed)
        told = words(section(render(page_of(run))))
        table = run.uncertainty().dropna(subset="accuracy_kept")
        assert set(table.site) == {"small", "large"}
        n, kept = table["rows"].sum(), table["kept"].sum()
        before, after = (table["rows"] * table.accuracy).sum() / n, (table.kept * table.accuracy_kept).sum() / kept
        text = re.search(r"right in ([\d.]+) % of the rest, (?:instead of|and in) ([\d.]+) %", told)
        assert text is not None, told
        assert [float(v) for v in text.groups()] == pytest.approx([100 * after, 100 * before], abs=0.051)
        assert f"over {n} hold-out cases of 2 sites, of which {n - kept} go to a person" in told
        assert "Handing the least sure fifth of the cases" in told, "of fewer than a hundred, a tenth is fewer than ten"
        assert "fewer than 10 cases in the least sure fifth, or beside it: tiny." in told
        assert ("how little evidence" in told) == (loss == "evidence")
        assert ("entropy" in told) == (loss == "likelihood")
        assert f"with a chance of {run.uncertainty().auroc.mean():.2f} (mean of sites)" in told
        seen.add(told)
    assert len(seen) == 2


def test_where_it_does_not_help_the_page_says_so() -> None:
    sites = {"a": 100, "b": 100}
    clear, unclear, none, worse = (
        words(filled(made(rows, line(right, by))))
        for rows, right, by in ((dict.fromkeys(sites, 2000), 0.8, 0.02), (sites, 0.8, 0.005), (sites, 0.8, 0.0),
                                (dict.fromkeys(sites, 2000), 0.8, -0.02))
    )  # fmt: skip
    assert "instead of 80.0 % (+2.0 points, 95 % interval +" in clear
    assert "from chance" not in clear
    assert "This may be chance." in unclear
    assert "gains nothing here: the model is right in 80.0 % of the rest, and in 80.0 % of all" in none
    assert "gains nothing here" in worse
    assert "It is less sure where it is right." in worse
    assert "It falls at a and b." in worse
    assert "It falls" not in clear


def test_most_and_least_are_named() -> None:
    run = made({"a": 100, "b": 100, "c": 100}, line(0.7, 0.01))
    for site, by in (("a", 0.05), ("c", -0.03)):
        at = (run.history.site == site) & (run.history.metric == "accuracy@90")
        run.history.loc[at, "value"] = 0.7 + by
    told = words(filled(run))
    assert "largest at a (75.0 % instead of 70.0 %, 100 cases) and smallest at c (67.0 % instead of 70.0 %" in told


def test_one_site_is_not_called_all_sites() -> None:
    html = filled(made({"alone": 61}, line(0.7, 0.02)))
    assert "all sites" not in html
    assert html.count('class="series strong m6"') == 2, "wide and narrow"
    assert "Counted over 61 hold-out cases, of which 12 go to a person." in words(html)
    assert "The gain is largest" not in html


@pytest.mark.parametrize("count", [2, APART, APART + 1, 40])
def test_a_line_for_each_site_and_one_for_all(count: int) -> None:
    rows = {f"site {i}": 50 + i for i in range(count)}
    html = filled(made(rows, line(0.6, 0.03)))
    assert "nan" not in html.lower()
    assert html.count('<g class="series') == 2 * (count + 1)
    assert html.count('class="series strong m6"') == 2
    named = [site for site in rows if f">{site}</text>" in html]
    assert named == (list(rows) if count <= APART else []), "many are told by the pointer and in the table"
    assert all(f"<title>{site} (" in html for site in rows)
    assert len(re.findall('<tr><th scope="row">', html)) == count


def test_names_from_files_stay_text() -> None:
    html = filled(made(dict.fromkeys(HOSTILE, 80), line(0.6, 0.03)))
    assert "<script" not in html
    assert html.count("<svg") == html.count("</svg>") == 2
    assert "<img" not in html
    assert all(name in unescape(html) for name in HOSTILE)


def test_nothing_is_drawn_where_nothing_is_told() -> None:
    small = made({"a": 24, "b": 3}, line(0.7, 0.02))
    assert not has_coverage(small)
    tables = opposed_tables({"small": 60, "large": 150})
    study = vt.Study.infer(tables, target="sick").with_changes(training={"rounds": 1})
    assert HEAD in render(page_of(vt.federate(study, tables)))
    assert HEAD not in render(page_of(vt.compare(study, tables, ["fedavg"], seeds=[1])))
    numbers = vt.Study.infer(tables, target="age").with_changes(training={"rounds": 1})
    assert HEAD not in render(page_of(vt.federate(numbers, tables)))
    old = vt.federate(study, tables)
    old.history = old.history[old.history.split != COVERAGE]
    assert HEAD not in render(page_of(old)), "made before this was kept"


def test_where_the_model_is_never_wrong_no_chance_is_told() -> None:
    told = words(filled(made({"a": 80, "b": 80}, dict.fromkeys(SUREST, 1.0), auroc=np.nan)))
    assert "with a chance of" not in told
    assert "gains nothing here: the model is right in 100.0 % of the rest, and in 100.0 % of all" in told
