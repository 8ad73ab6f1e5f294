"""A study of times to an event, from the file to the page; and rows that stand for more than one."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pandas.testing as pdt
import pytest
import torch

import vitrail as vt
from tests.support.deploy.federation import Here, drawn, without_scores
from tests.support.survival import TARGET, made, study_of
from vitrail.data.encoding import prepare
from vitrail.data.readers.tables import clean
from vitrail.deploy.consent.form import contract_text
from vitrail.deploy.coordinator.requests import SiteRequests
from vitrail.deploy.coordinator.session import conduct
from vitrail.deploy.protocol.agreement import Agreement
from vitrail.deploy.protocol.answer_validation import implausible_answer
from vitrail.deploy.protocol.message import Message
from vitrail.deploy.site.site import Site
from vitrail.metrics import survival
from vitrail.metrics.scores import FEWEST, score
from vitrail.quality.checks.table import find_faults
from vitrail.report.pages.builder import write_report
from vitrail.runs.folder import Folder
from vitrail.runs.setup import resolve
from vitrail.studies.cross_validation import cross_validate

RUN = "0123456789abcdef"


@pytest.fixture(scope="module")
def sites() -> dict[str, pd.DataFrame]:
    out = {"north": made(330, 1), "south": made(90, 2, 500.0), "none": made(40, 3)}
    out["none"]["died"] = 0  # nobody's event was seen
    return out


@pytest.fixture(scope="module")
def run(sites: dict[str, pd.DataFrame]) -> vt.Run:
    return vt.federate(study_of(), sites, method="fedavg")


def test_a_study_of_times_is_written_and_read() -> None:
    study = study_of()
    assert vt.Study.parse(tomllib.loads(study.to_toml())) == study
    assert (study.target.outputs, study.target.levels, study.target.ends[-1]) == (5, (), 365.0)
    assert study_of(target={**TARGET, "horizon": None, "cuts": (30.0, 365.0)}).target.ends == (30.0, 365.0)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"horizon": None}, "expected the time by which the event is predicted"),
        ({"time": ""}, "expected the column that says how long"),
        ({"event": ""}, "expected the column that says whether"),
        ({"time": "a"}, "cannot be a feature"),
        ({"time": "died"}, "already has another role"),
        ({"cuts": (90.0, 30.0)}, "expected rising numbers"),
        ({"cuts": (30.0, 90.0)}, "the last cut is the horizon"),
        ({"classes": ("no", "yes", "lost")}, "first the event not seen"),
        ({"positive": "yes"}, "is not one of"),
        ({"kind": "classes", "classes": (0, 1), "column": "died"}, "only a time to an event has this key"),
    ],
)
def test_what_is_wrong_with_times_is_told(change: dict[str, Any], says: str) -> None:
    with pytest.raises(vt.VitrailError, match=says):
        study_of(target={**TARGET, **change})


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"metrics": ("auc",)}, "no metric 'auc' for the time to an event"),
        ({"training": {"loss": "evidence"}}, "evidence is for classes"),
        ({"weight_column": "a"}, "also a feature"),
        ({"weight_column": "days"}, "already has another role"),
        ({"weight_column": "w", "protect": {"rows": {"epsilon": 1.0}}}, "every row must count once"),
    ],
)
def test_what_does_not_go_with_times_or_weights_is_told(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(vt.VitrailError, match=says):
        study_of(**changes)


def test_an_outcome_is_one_number_and_rows_without_a_time_are_left_out() -> None:
    rows = {"a": [0.0] * 6, "b": [0.0] * 6, "days": ["73", "36,5", "730", "0", None, "400"]}
    frame = pd.DataFrame({**rows, "died": ["yes", "no", "yes", "yes", "yes", None]})
    study = study_of(target={**TARGET, "classes": ("no", "yes")})
    told = clean(frame, study)["died"].tolist()
    assert told == pytest.approx([1.0, -0.5, -10.0, survival.SOON])  # after the horizon it is not seen
    back = survival.in_days(np.array(told), study.target.ends)
    assert back.tolist() == pytest.approx([73, 36.5, 730, 0], abs=1e-6)
    with pytest.raises(vt.VitrailError, match="expected times of at least 0"):
        clean(frame.assign(days="-1"), study)
    assert list(clean(frame[["a", "b"]], study, need_target=False)) == ["a", "b"]


def test_events_are_spread_over_the_split(sites: dict[str, pd.DataFrame]) -> None:
    for data in prepare(sites, study_of(), 1):
        both = [(y > 0).mean() for y in (data.train_y, data.test_y)]
        assert abs(both[0] - both[1]) < 0.03


def test_check_looks_at_times() -> None:
    frame = made(80, 4)
    frame.loc[0, "days"] = -5
    frame["days"] = frame["days"].clip(upper=100)
    kinds = {(f.kind, f.column) for f in find_faults(frame, study_of())}
    assert {("time_before", "days"), ("short_follow_up", "days")} <= kinds
    assert not find_faults(made(80, 4).clip(lower=-2), study_of())
    missing = {f.kind for f in find_faults(frame.drop(columns="days"), study_of())}
    assert "missing_column" in missing


def test_scores_stand_beside_the_same_answer(run: vt.Run) -> None:
    told = run.scores().pivot(index="site", columns="metric", values="value")
    same = run.baseline().pivot(index="site", columns="metric", values="value")
    assert told.c_index["north"] > 0.7
    assert same.c_index["north"] == 0.5
    assert told.integrated_brier["north"] < same.integrated_brier["north"]
    assert np.isnan(told.c_index["none"])
    assert run.sizes.set_index("site").target["none"] == "0 % with died"
    assert "0 with the event" in run.sizes.set_index("site").few_rows["none"]


def test_predictions_fall_and_risk_is_the_rest(run: vt.Run) -> None:
    told = run.predict("north", pd.DataFrame({"a": [-1.0, 0.0, 2.0], "b": 0.0}))
    assert list(told)[:2] == ["risk of died by 365 days", "free of died at 73 days"]
    free = told.filter(like="free of").to_numpy()
    assert (np.diff(free, axis=1) <= 0).all()
    assert told.iloc[:, 0].is_monotonic_increasing
    assert told.iloc[:, 0].to_numpy() == pytest.approx(1 - free[:, -1])


def test_rows_by_risk_tell_of_no_few(run: vt.Run) -> None:
    """Low, middle and high; nothing of sites with few rows, and no two numbers that fewer than ten rows part."""
    told = run.scores("risk").set_index(["site", "metric"]).value
    assert told["south"].notna().sum() < told["north"].notna().sum()
    assert told["none"].isna().all()
    answers = run.predict("north", made(330, 1)).filter(like="free of").to_numpy()
    y = clean(made(330, 1), study_of())["died"].to_numpy()
    out, still = survival.by_risk(y, answers, np.ones(330), FEWEST).reshape(2, 3, 5)
    rank = np.argsort(np.argsort(1 - answers[:, -1], kind="stable"), kind="stable") * 3 // 330
    for group, shares in enumerate(out):
        mine = y[rank == group]
        assert (np.isnan(still[group]) == np.isnan(shares)).all()
        assert np.nanmin(still[group]) >= FEWEST
        assert (-np.diff([len(mine), *still[group][np.isfinite(shares)]]) >= FEWEST).all()
        left = [len(mine), *((np.abs(mine) > k + 1).sum() for k in range(5) if np.isfinite(shares[k]))]
        assert len(left) > 1
        assert (-np.diff(left) >= FEWEST).all()
        assert min(left) >= FEWEST - 1  # who leaves at that end was followed to it
    assert np.nanmin(out[2]) < np.nanmin(out[0])


def test_a_number_about_nine_rows_is_not_told() -> None:
    y = np.repeat([0.5, -1.0, 0.5, -1.0, -1.0], [12, 9, 11, 10, 21])
    p = np.repeat([0.9, 0.5, 0.1], 21)[:, None]
    (low, middle, high), still = survival.by_risk(y, p, np.ones(63), 10).reshape(2, 3)
    assert np.isnan(low)  # nine are still followed
    assert np.isfinite(middle)
    assert np.isnan(high)  # nobody's event was seen, and nobody left before
    assert np.array_equal(still, [np.nan, 10, np.nan], equal_nan=True)


def test_between_machines_times_are_the_same(sites: dict[str, pd.DataFrame], tmp_path: Path) -> None:
    changes = {"network": {}, "training": {"rounds": 2}, "protect": {"scores": "exact"}}
    study, _ = resolve(study_of(**changes), "fedavg", None)
    assert study.network.hazards == "proportional"
    agreed = Agreement.of(study, None, len(sites))
    there = {n: Site(n, frame, agreed, tmp_path / "sites" / n) for n, frame in sites.items()}
    folder = Folder(tmp_path / "run", resume=False)
    far = conduct(SiteRequests(Here(there), agreed, list(there), RUN, len(there), 60.0), folder, resume=False)
    folder.close()
    near = vt.federate(study, sites, engine="looped", secrets=drawn(tmp_path / "sites", sites, RUN))
    key = ["stage", "round", "site", "split", "metric"]
    one, other = (r.history.sort_values(key, ignore_index=True) for r in (far, near))
    pdt.assert_frame_equal(one, other, rtol=0, atol=1e-6)  # rows are padded otherwise, which rounds sums otherwise
    pdt.assert_frame_equal(far.sizes, near.sizes)
    pdt.assert_frame_equal(*map(without_scores, (far, near)))
    words = " ".join(contract_text(agreed, "north", list(sites), publishes=True).split())
    for said in ("the share of your rows that had the event until the horizon", "how many of these had the event"):
        assert said in words
    assert "and when it happens, in 5 intervals up to 365 days" in words
    assert f"no number is about fewer than {FEWEST} rows, and no two differ by fewer" in words
    assert "if the scores of the study are exact, how many are still followed then" in words
    assert "still followed, risk" in {line.name for line in agreed.plan.wire()}


def test_where_scores_are_rounded_no_numbers_at_risk_leave(tmp_path: Path) -> None:
    """And shares are as coarse as without them: a step of 10 patients for each of 3 shares."""
    sites = {f"s{i}": made(1500, i, 2000.0) for i in range(3)}
    target = {**TARGET, "intervals": 1}
    study, _ = resolve(study_of(target=target, training={"rounds": 2}, split={"test": 0.3}), "fedavg", None)
    agreed = Agreement.of(study, None, len(sites))
    there = {n: Site(n, frame, agreed, tmp_path / "sites" / n) for n, frame in sites.items()}
    folder = Folder(tmp_path / "run", resume=False)
    run = conduct(SiteRequests(Here(there), agreed, list(there), RUN, len(there), 60.0), folder, resume=False)
    folder.close()
    told = run.scores("risk")
    of = {what: told[told.metric.str.startswith(what)].value for what in ("free", "left")}
    assert of["left"].isna().all()
    counts = of["free"].dropna() * 150
    assert len(counts) >= 6
    assert np.allclose(counts / 30, np.round(counts / 30))
    assert "numbers at risk" in write_report(run, tmp_path / "page.html").read_text()


def test_a_share_that_cannot_be_is_refused() -> None:
    study, _ = resolve(study_of(), "fedavg", None)
    agreed, asked = Agreement.of(study, None, 3), Message("prepare", {})
    rows, chance = torch.tensor([60, 30, 4]), torch.tensor([0.5, 0.5, 0.2, 1.0], dtype=torch.float64)
    for share, wrong in ((0.4, None), (1.4, "target: expected numbers from 0 to 1, got 1.4")):
        said = {"rows": rows, "target": torch.tensor([share], dtype=torch.float64), "chance": chance}
        assert implausible_answer(agreed, asked, Message("prepare", {}, said)) == wrong


def test_the_page_draws_whether_those_at_high_risk_fared_worse(
    run: vt.Run, sites: dict[str, pd.DataFrame], tmp_path: Path
) -> None:
    told = replace(run, answers={}, summaries={})  # as between machines
    few = write_report(told, tmp_path / "few.html").read_text()  # of those at high risk hardly anybody is left
    assert "At north too little is known to judge it." in few
    many = vt.federate(study_of(), {**sites, "north": made(900, 1)}, method="fedavg")
    page = write_report(many, tmp_path / "page.html").read_text()
    assert "Did those at high risk fare worse?" in page
    assert "How cases of low, middle and high risk fared at north" in page
    assert "With too few hold-out cases for a curve: " in page
    assert "At north those at high risk had the event more often than those at low risk, beyond chance." in page
    assert "and C is about which of two rows comes first." in page


def test_screening_sees_months_for_days_and_takes_other_follow_up_for_real() -> None:
    """A unit is a fault; that one house follows people for longer is none."""
    study = study_of(screen={"ask": True})
    rng = range(10, 15)
    clean_ones = {f"s{i}": made(250, i, [900.0, 500.0, 1300.0, 700.0, 900.0][i - 10]) for i in rng}
    assert not vt.screen_sites(study, clean_ones).wrong
    wrong = clean_ones | {"s11": clean_ones["s11"].assign(days=lambda f: f.days / 30.44)}
    assert [(f.site, f.feature, f.kind) for f in vt.screen_sites(study, wrong).wrong] == [("s11", "days", "unit")]


def test_every_row_is_judged_out_of_its_fold(sites: dict[str, pd.DataFrame]) -> None:
    study = study_of(training={"rounds": 2})
    cleaned = {n: clean(f, study) for n, f in sites.items()}
    told = cross_validate(study, cleaned, "fedavg", 1, 3)
    assert [len(told["losses"][n]) for n in sites] == [330, 90, 40]
    mean = {(n, m): v for n, m, v, split in told["scores"] if split == "test"}
    for name in sites:
        assert np.mean(told["losses"][name]) == pytest.approx(mean[name, "time_log_loss"])
    assert told["same"]["none"] == 0.0  # nobody has the event: one answer says it all


def test_weights_count_rows_more_than_once() -> None:
    """Of classes, with whole weights: a row of weight 2 trains, is scored and is counted as two."""
    rng = np.random.default_rng(5)
    frame = made(60, 6).assign(w=rng.integers(1, 4, 60), sick=lambda f: (f.a > 0).astype(int))
    target = {"column": "sick", "classes": (0, 1), "positive": 1, "threshold": 0.5}  # as `score` decides
    said = {"target": target, "metrics": ("auc", "balanced_accuracy", "log_loss")}
    study = study_of(**said, weight_column="w", training={"rounds": 2, "batch": 400}, split={"test": 0.3})
    run = vt.federate(study, {"here": frame}, method="local")
    (data,) = prepare({"here": frame}, study, run.seed)
    assert "w" not in run.encoders["here"].columns
    x, y = np.repeat(data.test_x, data.test_w.astype(int), 0), np.repeat(data.test_y, data.test_w.astype(int))
    e = run.encoders["here"]
    back = pd.DataFrame(x * [*e.sd.values()] + [*e.mean.values()], columns=["a", "b"])
    p = run.predict("here", back).iloc[:, :2].to_numpy(np.float64)
    told = run.scores().set_index("metric").value.to_dict()
    assert told == pytest.approx(score(study.metrics, y, p, thresholds=np.array(e.thresholds)), abs=1e-5)
    with pytest.raises(vt.VitrailError, match="the number of people it stands for"):
        clean(frame.assign(w=0), study)
    assert {f.kind for f in find_faults(frame.assign(w=np.nan), study)} >= {"weight_missing"}


def test_training_by_weights_is_training_on_repeated_rows() -> None:
    from vitrail.runs.setup import training_rows

    frame = made(50, 7).assign(w=lambda f: 1 + (f.a > 0), sick=lambda f: (f.b > 0.3).astype(int))
    said = {"target": {"column": "sick", "classes": (0, 1)}, "standardise": "none"}
    weighted, plain = study_of(**said, weight_column="w"), study_of(**said)
    method = weighted.with_changes(method={"name": "local"}).build_method()
    (data,) = prepare({"here": frame}, weighted, 1)
    many = data.train_w.astype(int)
    twice = data._replace(
        train_x=np.repeat(data.train_x, many, 0), train_y=np.repeat(data.train_y, many), train_w=None, test_w=None
    )
    one, two = training_rows([data], weighted, method, "cpu"), training_rows([twice], plain, method, "cpu")
    for k in (0, 1):
        assert one.w[one.y[:, k] == 1].sum() == pytest.approx(two.w[two.y[:, k] == 1].sum().item(), rel=1e-5)
