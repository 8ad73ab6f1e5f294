"""ROC curves and tables at a threshold: drawn from the counts that they name, in a simulation and as told by sites."""

from __future__ import annotations

import dataclasses
import re
from html import unescape

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import confusion_matrix, roc_auc_score

import vitrail as vt
from vitrail.metrics.calibration import BEDSIDE, EDGES, merged, pack_counts
from vitrail.metrics.roc import roc_points
from vitrail.report.pages.builder import page_of
from vitrail.report.pages.run import render
from vitrail.report.sections.calibration import risk_counts_of
from vitrail.report.sections.performance import thresholds
from vitrail.report.sections.performance.thresholds import OWN, THRESHOLDS, contents, has_tables
from vitrail.runs.setup import AT_BEDSIDE


def table(rows: int, seed: int, classes: int = 2) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 2))
    score = x @ [1.2, -0.8] + rng.normal(size=rows)
    y = (score > 0.4).astype(int) if classes == 2 else np.digitize(score, [-0.7, 0.7])
    return pd.DataFrame(x, columns=["a", "b"]).assign(sick=y)


def study_of(classes: int = 2, **more: object) -> vt.Study:
    plain = {
        "target": {"column": "sick", "classes": list(range(classes)), **({"positive": 1} if classes == 2 else {})},
        "features": {"a": {"kind": "numeric"}, "b": {"kind": "numeric"}},
        "network": {"kind": "linear"},
        "training": {"rounds": 10},
        "screen": {"ask": False},
    }
    return vt.Study.parse({**plain, **more})


@pytest.fixture(scope="module")
def run() -> vt.Run:
    return vt.federate(study_of(), {"north": table(300, 1), "south": table(200, 2)}, "fedavg")


@pytest.fixture(scope="module")
def told() -> vt.Run:
    """What the sites of a study with [bedside] tell."""
    study = study_of(bedside={"tell": True})
    return vt.federate(study, {"north": table(300, 1), "south": table(200, 2)}, "fedavg")


def section(run: vt.Run, name: str = "thresholds") -> str:
    return render(page_of(run)).partition(f'id="{name}"')[2].partition("</section>")[0]


def curve(figure: str, site: str) -> list[tuple[float, float]]:
    """1 - specificity and sensitivity, read from the drawing."""
    panel = figure.partition(f"ROC curve at {site}</title>")[2].partition("</svg>")[0]
    ticks = re.findall(r'<text x="([\d.]+)" y="([\d.]+)" class="tick" text-anchor="(end|middle)">(\d+) %<', panel)
    up = {int(w): float(y) - 4 for _, y, anchor, w in ticks if anchor == "end"}
    across = {int(w): float(x) for x, _, anchor, w in ticks if anchor == "middle"}
    (path,) = re.findall(r'<path d="M([^"]+)" class="line"', panel)
    points = [tuple(map(float, p.split(","))) for p in path.split("L")]
    return [((x - across[0]) / (across[100] - across[0]), (up[0] - y) / (up[0] - up[100])) for x, y in points]


@pytest.mark.parametrize("site", ["north", "south"])
def test_the_curve_that_is_drawn_is_that_of_the_counts(run: vt.Run, site: str) -> None:
    shown = contents(page_of(run))
    false, true = roc_points(thresholds.fine_counts(run)[site])
    assert np.array(curve(str(shown["figure"]), site)) == pytest.approx(np.stack([false, true], 1), abs=0.002)
    a = run.answers[site]
    area = roc_auc_score(a.y, a.p[:, 1])
    assert f"Area under the curve {area:.2f} (95 % interval" in str(shown["figure"])


def test_each_table_counts_the_hold_out_rows_at_its_threshold(run: vt.Run) -> None:
    tables = {t.name: t for t in contents(page_of(run))["tables"]}
    assert list(tables) == [OWN, *(f"{100 * t:.0f} %" for t in THRESHOLDS)]
    for site, a in run.answers.items():
        for threshold in THRESHOLDS:
            cut = next(r for r in tables[f"{100 * threshold:.0f} %"].rows if r.site == site).counts
            (rests, alarms), (misses, hits) = confusion_matrix(a.y, a.p[:, 1] >= threshold)
            assert cut == pytest.approx((hits, misses, alarms, rests))
        own = next(r for r in tables[OWN].rows if r.site == site)
        score = run.scores().set_index(["site", "metric"])["value"]
        assert own.counts is not None
        recalls = [n / of for n, of in (own.counts.sensitivity, own.counts.specificity)]
        assert np.mean(recalls) == pytest.approx(score[site, "balanced_accuracy"]), "the score that the run tells"


def test_one_table_is_chosen_and_the_page_needs_no_script_for_it(run: vt.Run) -> None:
    html = section(run)
    assert html.count("<input ") == 1 + len(THRESHOLDS) == html.count('class="option"')
    assert html.count('checked="checked"') == 1
    assert f'checked="checked" />\n<label for="th-1">{OWN}</label>' in html
    ids = re.findall(r'<input [^>]*id="([^"]+)"', html)
    assert re.findall(r'<label for="([^"]+)"', html) == ids
    stated = vt.federate(study_of(target={"column": "sick", "classes": [0, 1], "positive": 1, "threshold": 0.3}),
                         {"north": table(300, 1)}, "fedavg")  # fmt: skip
    assert 'checked="checked" />\n<label for="th-7">30 %</label>' in section(stated)


def test_a_simulation_says_what_a_study_between_machines_would_not_have(run: vt.Run, told: vt.Run) -> None:
    for name in ("thresholds", "bedside"):
        assert "<b>Simulation.</b>" in section(run, name)
        assert "<b>Simulation.</b>" not in section(told, name)
    assert "A simulation: all rows were on one machine." in render(page_of(run))


def test_between_machines_there_is_only_what_sites_told(run: vt.Run, told: vt.Run) -> None:
    far = dataclasses.replace(run, answers={}, summaries={}, models={}, info={**run.info, "engine": "deployed"})
    assert not has_tables(page_of(far))
    html = render(page_of(far))
    for name in ("thresholds", "bedside", "effects", "predicted"):
        assert f'id="{name}"' not in html
    assert "it holds no row of any site" in html
    far = dataclasses.replace(told, answers={}, summaries={}, models={}, info={**told.info, "engine": "deployed"})
    shown = contents(page_of(far))
    counts = risk_counts_of(told)
    for site in ("north", "south"):
        assert all(row >= 10 for row in counts[site].rows)
        points = np.stack(roc_points(counts[site]), 1)
        assert np.array(curve(str(shown["figure"]), site)) == pytest.approx(points, abs=0.002)
    assert contents(page_of(told))["tables"] == shown["tables"], "a simulation of such a study shows the same"


def test_a_threshold_inside_a_group_is_not_guessed(told: vt.Run) -> None:
    history = told.history.copy()
    one = pack_counts(merged(risk_counts_of(told)["south"], 40))
    mine = (history.site == "south") & (history.split == AT_BEDSIDE)
    history.loc[mine, "value"] = one
    assert history[mine].metric.tolist() == list(BEDSIDE)
    coarse = dataclasses.replace(told, history=history)
    tables = {t.name: {r.site: r for r in t.rows} for t in contents(page_of(coarse))["tables"]}
    lows = set(risk_counts_of(coarse)["south"].low.tolist())
    for edge in EDGES:
        name = f"{100 * edge:.0f} %"
        if name in tables:
            assert (tables[name]["south"].counts is not None) == (edge in lows)
    assert "This site tells its rows in wider groups" in unescape(section(coarse))


def test_of_three_classes_the_page_says_which_are_mixed_up() -> None:
    run = vt.federate(study_of(3), {"north": table(300, 1, 3), "south": table(200, 2, 3)}, "fedavg")
    html = section(run)
    assert "Which classes are mixed up" in html
    assert "<fieldset" not in html
    a = run.answers["north"]
    cells = confusion_matrix(a.y, (a.p / a.thresholds).argmax(1))
    (first,) = re.findall(r'<table[^>]*aria-labelledby="t-mix-1">.*?</table>', html, re.S)
    assert [int(n) for n in re.findall(r"<td[^>]*>(\d+)</td>", first)] == cells.ravel().tolist()
    assert f"north: {100 * np.trace(cells) / cells.sum():.1f} % right" in html
