"""What a page says of methods that do not beat their baseline, and of scores of the risks themselves."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pandas as pd
import pytest

import vitrail as vt
from tests.support.report.pages import make
from vitrail.cli.output import print_comparison, print_run
from vitrail.metrics.scores import metric_name
from vitrail.report import Page, render
from vitrail.report.pages.builder import page_of
from vitrail.report.sections.scores.findings import best_method, findings
from vitrail.report.text import metric_words
from vitrail.studies.compare.result import VERDICTS

COLUMNS = ["method", "seed", "site", "split", "metric", "value"]


def page_with(scores: dict[str, dict[str, dict[str, float]]], chance: dict[str, dict[str, float]], **more: Any) -> Page:
    """scores: metric -> method -> site -> value; chance: metric -> site -> value."""
    first = next(iter(scores))
    rows = [(m, 1, s, "test", k, v) for k, of in scores.items() for m, at in of.items() for s, v in at.items()]
    usual = [(s, k, v) for k, of in chance.items() for s, v in of.items()]
    sites = list(next(iter(scores[first].values())))
    given: dict[str, Any] = {
        "metric": first,
        "scores": pd.DataFrame(rows, columns=COLUMNS),
        "chance": pd.DataFrame(usual, columns=["site", "metric", "value"]),
        "summary": pd.DataFrame(),
        "verdicts": pd.DataFrame(),
    }
    return make(sites=sites, methods=list(scores[first]), seeds=(1,), rounds=2, **given, **more)


def said(page: Page) -> list[str]:
    return [str(line.striptags()) for line in findings(page, page.table)]


def test_the_recommended_method_is_checked_and_not_only_the_leading_one() -> None:
    """FedPer is recommended, FedAvg leads the table of methods; at its worst site even FedPer is below the baseline."""
    accuracy = {"fedavg": {"a": 0.95, "b": 0.60}, "fedper": {"a": 0.93, "b": 0.70}}
    below = page_with({"accuracy": accuracy}, {"accuracy": {"a": 0.9, "b": 0.8}})
    assert best_method(below, below.table) == "fedper"
    first, baseline, *_ = said(below)
    assert first.startswith("Best for the site served worst: FedPer. Its worst site, b, reaches 0.700 in accuracy")
    assert "That is no better than the baseline there, which reaches 0.800" in first
    assert "FedAvg is no better than its baseline at b (0.600 against 0.800)." in baseline
    assert "FedPer is no better than its baseline at b (0.700 against 0.800)." in baseline
    assert '<strong class="warn">That is no better than the baseline there' in render(below)
    above = page_with({"accuracy": accuracy}, {"accuracy": {"a": 0.9, "b": 0.5}})
    assert "no better" not in " ".join(said(above))


def test_the_method_is_recommended_by_skill_at_its_worst_site() -> None:
    """By raw error the second method has the better worst site; the first serves every site better than it could."""
    errors = {"fedavg": {"wide": 9.0, "narrow": 0.5}, "fedper": {"wide": 8.0, "narrow": 2.4}}
    page = page_with({"rmse": errors}, {"rmse": {"wide": 30.0, "narrow": 2.5}}, lower_is_better=True)
    assert best_method(page, page.table) == "fedavg"
    assert page.table.worsts[page.table.methods.index("fedper")][0] == "narrow"


def test_scores_of_risks_are_held_against_the_baseline_too() -> None:
    scores = {"auc": {"fedavg": {"a": 0.8, "b": 0.7}}, "brier": {"fedavg": {"a": 0.236, "b": 0.15}}}
    scores["log_loss"] = {"fedavg": {"a": 0.66, "b": 0.4}}
    chance = {"auc": {"a": 0.5, "b": 0.5}, "brier": {"a": 0.091, "b": 0.2}, "log_loss": {"a": 0.33, "b": 0.5}}
    lines = said(page_with(scores, chance, kind="run"))
    assert "In Brier score FedAvg is no better than the baseline at a (0.236 against 0.091)." in lines
    assert "In log loss FedAvg is no better than the baseline at a (0.660 against 0.330)." in lines
    fine = {**chance, "brier": {"a": 0.3, "b": 0.3}, "log_loss": {"a": 0.9, "b": 0.9}}
    assert not any("no better" in line for line in said(page_with(scores, fine, kind="run")))


@pytest.mark.parametrize("worse", [6, 0])
def test_the_survival_summary_looks_at_c_and_at_the_brier_score(worse: int) -> None:
    sites = [f"s{i}" for i in range(7)]
    c, life = dict.fromkeys(sites, 0.68), dict.fromkeys(sites, 0.19)
    brier = {s: 0.27 if i < worse else 0.15 for i, s in enumerate(sites)}
    scores = {"c_index": {"fedavg": c}, "integrated_brier": {"fedavg": brier}}
    lines = said(page_with(scores, {"c_index": dict.fromkeys(sites, 0.5), "integrated_brier": life}, kind="run"))
    words = "In Brier score, mean over the intervals FedAvg is"
    (line,) = [line for line in lines if line.startswith(words)]
    if worse:
        assert line.startswith(f"{words} no better than the baseline at 6 of 7 sites: s0 (0.270 against 0.190)")
    else:
        assert line == f"{words} better than the baseline at all 7 sites."


def test_f1_says_which() -> None:
    assert metric_name("f1") == "F1 (weighted over classes)"
    assert metric_words("f1") == "F1, weighted over classes (0 to 1)"
    assert metric_words("f1_event") == "F1 of the event (0 to 1)"


def one_in_ten(rows: int, seed: int, effect: float = 1.0) -> pd.DataFrame:
    """Events are rare; with no effect of x on them no model can be better than the baseline, but for chance."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, 2))
    sick = rng.random(rows) < 1 / (1 + np.exp(-(effect * x[:, 0] - 2.4)))
    return pd.DataFrame({"x": x[:, 0], "z": x[:, 1], "outcome": np.where(sick, "sick", "fine")})


def study_of(**more: Any) -> vt.Study:
    given: dict[str, Any] = {
        "target": {"column": "outcome", "classes": ["fine", "sick"], "positive": "sick"},
        "features": {"x": {"kind": "numeric"}, "z": {"kind": "numeric"}},
        "network": {"kind": "linear"},
        "training": {"rounds": 10, "class_weights": "inverse"},
        "screen": {"ask": False},
        "metrics": ["auc", "f1", "f1_event", "log_loss", "brier"],
    }
    return vt.Study.parse({**given, **more})


def test_terminal_and_tables_have_the_baseline_beside_brier_and_log_loss(capsys: pytest.CaptureFixture[str]) -> None:
    sites = {s: one_in_ten(150, i, effect=0.0) for i, s in enumerate(("north", "south", "west"))}
    study = study_of()
    run = vt.federate(study, sites)
    print_run(run)
    shown = capsys.readouterr().out
    assert "F1 (weighted over classes)" in shown
    assert "F1 of the event" in shown
    assert shown.splitlines()[0].split().count("baseline") == 5
    by_chance = {s: f.assign(outcome=f.outcome.sample(frac=1, random_state=0).to_numpy()) for s, f in sites.items()}
    learned_by_heart = study.with_changes(training={"rounds": 40, "lr": 0.1, "weight_decay": 0.0})
    print_run(vt.federate(learned_by_heart, by_chance))
    assert "In Brier score FedAvg is no better than the baseline at" in capsys.readouterr().out
    compared = vt.compare(study, sites, ["local", "fedavg"], [1, 2], folds=2)
    verdicts = compared.verdicts()
    assert list(verdicts.columns) == VERDICTS
    for v in verdicts.to_dict("records"):
        share = (sites[v["site"]]["outcome"] == "sick").mean()
        assert v["brier_same"] == pytest.approx(share * (1 - share)), "always saying the share"
    print_comparison(compared)
    shown = capsys.readouterr().out
    assert "alone / together / baseline" in shown
    v = verdicts.iloc[0]
    assert f"{v.brier_alone:.3f} / {v.brier_joined:.3f} / {v.brier_same:.3f}" in shown
    assert f"{v.alone:.3f} / {v.joined:.3f} / {v.same:.3f}" in shown
    assert f"<small>Brier {v.brier_same:.3f}</small>" in render(page_of(compared))


def test_a_verdict_for_joining_says_so_where_the_joined_model_is_below_the_baseline() -> None:
    """Joining repairs much of a model that is hopeless alone: a gain, and still no better than one answer to all."""
    sites = {s: one_in_ten(120, i) for i, s in enumerate(("north", "south"))}
    found = vt.compare(study_of(), sites, ["local", "fedavg"], [1, 2], folds=2)
    losses = {key: {s: v.copy() for s, v in of.items()} for key, of in found.rows.losses.items()}
    rng = np.random.default_rng(0)
    for (method, _), of in losses.items():
        for site in of:
            of[site] = (3.0 if method == "local" else 1.0) + 0.01 * rng.normal(size=len(of[site]))
    worse = dataclasses.replace(found, rows=dataclasses.replace(found.rows, losses=losses))
    row = worse.verdicts().iloc[0]
    assert row.verdict == "yes"
    assert row.why.endswith(f"the same answer for every row, which has {row.same:.3f}.")
    for of in losses.values():
        for site in of:
            of[site] = of[site] - 0.9
    assert "Yet" not in worse.verdicts().iloc[0].why
