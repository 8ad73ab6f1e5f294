"""What a score is measured against: always the same answer, on each site's own hold-out rows; few rows; no training."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import vitrail as vt
from tests.support.small import opposed_tables
from vitrail.cli.output import print_run
from vitrail.data.encoding import prepare
from vitrail.metrics.scores import FEW, RARE, small_sample
from vitrail.report import render
from vitrail.report.pages.builder import page_of
from vitrail.report.text import FEW_MARK, SAME

SIZES = {"large": 200, "middle": 160, "tiny": 24}


@pytest.fixture(scope="module")
def tables() -> dict[str, pd.DataFrame]:
    return opposed_tables(SIZES)


@pytest.fixture(scope="module")
def study(tables: dict[str, pd.DataFrame]) -> vt.Study:
    metrics = ["auc", "accuracy", "balanced_accuracy", "f1", "log_loss"]
    return vt.Study.infer(tables, target="sick").with_changes(training={"rounds": 2}, metrics=metrics)


def level(run: vt.Run, metric: str) -> pd.Series:
    told = run.baseline()
    return told[told.metric == metric].set_index("site")["value"].astype(float)


@pytest.mark.parametrize("method", ["fedavg", "local", "centralized", "weight_erosion"])
def test_every_method_keeps_what_always_the_same_answer_comes_to(
    method: str, study: vt.Study, tables: dict[str, pd.DataFrame]
) -> None:
    run = vt.federate(study, tables, method, seed=3)
    shares = {s.name: np.bincount(s.test_y.astype(int), minlength=2) / len(s.test_y) for s in prepare(tables, study, 3)}
    for site, share in shares.items():
        most = share.max()
        assert level(run, "accuracy")[site] == pytest.approx(most)
        assert level(run, "f1")[site] == pytest.approx(most * 2 * most / (1 + most)), "of the class that is named"
        assert level(run, "log_loss")[site] == pytest.approx(-(share * np.log(share)).sum())
    assert set(level(run, "auc")) == set(level(run, "balanced_accuracy")) == {0.5}
    assert run.scores().metric.nunique() == len(study.metrics), "it is no score of a model"


def test_a_number_is_measured_against_its_mean(tables: dict[str, pd.DataFrame]) -> None:
    study = vt.Study.infer(tables, target="age").with_changes(training={"rounds": 1}, metrics=["r2", "rmse", "mae"])
    run = vt.federate(study, tables, "fedavg", seed=3)
    for site in prepare(tables, study, 3):
        truth = site.test_y * study.target.scale + study.target.center
        assert level(run, "rmse")[site.name] == pytest.approx(truth.std())
        assert level(run, "r2")[site.name] == pytest.approx(0, abs=1e-9)
        assert level(run, "mae")[site.name] == pytest.approx(np.abs(truth - truth.mean()).mean())
    assert run.sizes.set_index("site").few_rows["tiny"] == "8 rows", "a number has no rarest class"
    assert "says the mean of the site’s own hold-out rows" in render(page_of(run))


def test_it_is_on_the_page_and_on_the_terminal(
    study: vt.Study, tables: dict[str, pd.DataFrame], capsys: pytest.CaptureFixture[str]
) -> None:
    run = vt.federate(study, tables, "fedavg", seed=3)
    html = render(page_of(run))
    assert f"Baseline ({SAME}): 0.500." in html
    sites, scores, curves = (html[html.index(f'<h2 id="{part}"') :] for part in ("sites", "scores", "curves"))
    assert sites[: sites.index("</svg>")].count(", baseline 0.500; ") >= len(SIZES)
    assert SAME in scores[: scores.index("</table>")]
    drawn = curves[: curves.index("</figure>")]
    assert drawn.count(f"<title>{SAME}: 0.500</title>") == len(SIZES), "in the panel of every site"
    print_run(run)
    shown = capsys.readouterr().out
    assert ["auc", "baseline"] in [line.split()[1:3] for line in shown.splitlines()]
    assert f"Baseline: {SAME}" in shown


def test_few_rows_are_marked_in_files_and_on_pages(
    study: vt.Study, tables: dict[str, pd.DataFrame], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = vt.federate(study, tables, "fedavg", seed=3, out=tmp_path / "run")
    for name in ("scores", "sites"):
        marked = (
            pd.read_csv(tmp_path / "run" / f"{name}.csv", keep_default_na=False).groupby("site")["few_rows"].first()
        )
        assert marked["large"] == marked["middle"] == ""
        assert marked["tiny"].startswith("8 rows, ")
    back = vt.Run.load(tmp_path / "run")
    assert list(back.history.columns) == list(run.history.columns)
    html = render(page_of(back))
    assert f"{FEW_MARK} Few rows: the scores of <b>tiny</b> (8 rows, " in html
    assert f"fewer than {FEW} hold-out rows, or fewer than {RARE} of their rarest class" in html
    assert 'large&nbsp;<span class="few-mark"' not in html
    print_run(back)
    assert f"tiny {FEW_MARK}" in capsys.readouterr().out


def test_the_bar_of_few_rows() -> None:
    assert small_sample(FEW, RARE) == small_sample(FEW) == ""
    assert small_sample(FEW - 1, RARE)
    assert small_sample(FEW, RARE - 1)
    assert small_sample(FEW - 1)


def test_one_class_in_the_hold_out_is_told_in_words(
    study: vt.Study, tables: dict[str, pd.DataFrame], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = {**tables, "tiny": tables["tiny"].assign(sick="yes")}
    run = vt.federate(study, one, "fedavg", seed=3, out=tmp_path / "run")
    kept = pd.read_csv(tmp_path / "run" / "scores.csv")
    assert kept[(kept.site == "tiny") & (kept.metric == "auc")]["value"].isna().all()
    why = "it has 8 hold-out rows, all of one class, and the area under the ROC curve compares rows of two."
    assert f"<b>tiny</b>: {why}" in render(page_of(run))
    print_run(run)
    told = capsys.readouterr().out
    assert f"auc at tiny is not defined: {why}" in told
    assert "not defined" in next(line for line in told.splitlines() if line.startswith("tiny"))
    assert "8 rows, all of one class" in told


def test_a_model_without_numbers_is_not_blamed_on_the_rows(study: vt.Study, tables: dict[str, pd.DataFrame]) -> None:
    run = vt.federate(study, tables, "fedavg", seed=3)
    own = (run.history.split == "test") & (run.history.site == "large")
    run.history.loc[own, "value"] = np.nan
    html = render(page_of(run))
    assert "<b>large</b>, FedAvg: the model gave no numbers as answers" in html
    assert "all of one class, and the area" not in html


def test_with_every_site_absent_nothing_was_trained(
    study: vt.Study, tables: dict[str, pd.DataFrame], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    away = {site: [(1, 2)] for site in tables}
    run = vt.federate(study, tables, "fedavg", seed=3, away=away, out=tmp_path / "run")
    assert not run.trained
    assert json.loads((tmp_path / "run" / "run.json").read_text())["took_part"] == dict.fromkeys(
        run.info["took_part"], 0
    )
    html = render(page_of(vt.Run.load(tmp_path / "run")))
    assert "Nothing was trained: each of 3 sites was absent in every round." in html
    assert "are those of the model that everybody started from" in html
    print_run(run)
    assert "Nothing was trained" in capsys.readouterr().out
    some = vt.federate(study, tables, "fedavg", seed=3, away={**away, "tiny": [(1, 1)]})
    assert some.trained
    assert some.info["took_part"] == {"large": 0, "middle": 0, "tiny": 1}
    assert "Nothing was trained" not in render(page_of(some))
