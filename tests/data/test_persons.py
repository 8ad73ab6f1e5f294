"""The patient is the unit: rows of one person are never on both sides of a split, and persons are counted, not rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import vitrail as vt
from tests.support.visits import COLUMNS, study_of, visits
from vitrail.core.errors import VitrailError
from vitrail.core.task import Batch
from vitrail.data.encoding import clean_sites, encode_sites, fingerprint_rows, prepare
from vitrail.data.persons import most_rows, person_shares
from vitrail.data.readers.tables import clean
from vitrail.data.splitting import hold_out, split_sites
from vitrail.engine.batches import Sites, set_aside
from vitrail.metrics.calibration import BEDSIDE
from vitrail.metrics.score_intervals import draw_persons
from vitrail.metrics.scores import FEWEST, surest_shares
from vitrail.privacy.dp_sgd import DrawnNoise, PrivateTask
from vitrail.quality.checks.table import find_faults
from vitrail.runs.evaluation import Evaluator
from vitrail.runs.protection.budget import budget_words, spent_by
from vitrail.runs.protection.dp_statistics import sums_of, training_sizes
from vitrail.runs.setup import build_task, resolve
from vitrail.runs.site.card import _bedside
from vitrail.studies.cross_validation import _thresholds
from vitrail.studies.folds import folds_of, whole_folds


def test_a_score_by_rows_is_inflated_and_by_person_it_is_not() -> None:
    """The positive control is the study without `person`: there the leak has to be seen. With persons held out whole
    nothing tells the outcome; the mean AUC over 3 sites of 20 test patients has a standard error of about .075, and
    .72 lies three of them above one half."""
    sites = visits()
    scores = {}
    for person in ("", "patient"):
        run = vt.federate(study_of(person=person), sites, "local", seed=3)
        scores[person] = run.scores().query("metric == 'auc'").value.mean()
    assert scores[""] > 0.85
    assert scores["patient"] < 0.72


def test_a_comparison_by_rows_is_inflated_and_by_person_it_is_not() -> None:
    sites, auc = visits(people=40), {}
    for person in ("", "patient"):
        found = vt.compare(study_of(person=person), sites, ["local"], [1], folds=5)
        auc[person] = found.scores.query("split == 'test' and metric == 'auc'").value.mean()
    assert auc[""] > 0.8 > 0.72 > auc["patient"]
    assert list(found.sites.test_persons) == [40, 40, 40]
    assert list(found.sites.test_rows) == [160, 160, 160]


@st.composite
def tables(draw: st.DrawFn) -> tuple[pd.DataFrame, str]:
    people, kind = draw(st.integers(6, 30)), draw(st.sampled_from(["classes", "several", "number", "time"]))
    r = np.random.default_rng(draw(st.integers(0, 10**6)))
    whose = np.repeat(np.arange(people), r.integers(1, 7, people))
    frame = pd.DataFrame(r.normal(size=(len(whose), 2)), columns=["a", "b"])
    levels = {"classes": 2, "several": 3}.get(kind, 2)
    y = r.normal(size=len(whose)) if kind == "number" else r.integers(0, levels, len(whose))
    y[:levels] = np.arange(levels)
    frame = frame.assign(y=y, days=r.integers(1, 300, len(whose)), who=whose + 100)
    return frame.iloc[r.permutation(len(frame))].reset_index(drop=True), kind


def table_study(kind: str) -> vt.Study:
    targets: dict[str, dict[str, Any]] = {
        "classes": {"column": "y", "classes": [0, 1]},
        "several": {"column": "y", "classes": [0, 1, 2]},
        "number": {"column": "y", "kind": "number"},
        "time": {"kind": "time", "time": "days", "event": "y", "horizon": 200.0},
    }
    features = {name: {"kind": "numeric"} for name in ("a", "b")}
    return vt.Study.parse({"target": targets[kind], "features": features, "person": "who"})


@settings(max_examples=60, deadline=None)
@given(tables(), st.integers(0, 10**6), st.integers(2, 5))
def test_no_person_is_on_both_sides_anywhere(made: tuple[pd.DataFrame, str], seed: int, folds: int) -> None:
    frame, kind = made
    study = table_study(kind)
    rows = clean(frame, study)
    whose = frame.loc[rows.index, "who"].to_numpy()
    train, test = hold_out(rows, study, seed, "s")
    assert len(test)
    assert len(train)
    assert len(train) + len(test) == len(rows)
    assert not set(whose[train]) & set(whose[test])
    lots = whole_folds({"s": rows}, study, seed, folds).lots["s"]
    assert all(len(set(lots[whose == p])) == 1 for p in set(whose))
    assert set(lots) == set(range(folds))
    for (fold,) in folds_of({"s": frame}, study, seed, 2):
        values = [{tuple(x) for x in np.round(part * fold.encoder.sd["a"], 6)} for part in (fold.train_x, fold.test_x)]
        assert not values[0] & values[1]
        assert fold.train_persons is not None
        assert fold.test_persons is not None
    (site,) = encode_sites({"s": rows}, study, split_sites({"s": rows}, study, seed))
    assert [len(site.train_persons), len(site.test_persons)] == [len(train), len(test)]  # type: ignore[arg-type]


def test_the_split_spreads_persons_with_any_event() -> None:
    r = np.random.default_rng(0)
    whose = np.repeat(np.arange(60), 5)
    sick = np.where((whose < 12) & (np.tile(np.arange(5), 60) == 2), 1, 0)  # one visit of five, in a fifth of them
    frame = pd.DataFrame(r.normal(size=(300, 8)), columns=COLUMNS).assign(sick=sick, patient=whose)
    study = study_of(person="patient", split={"test": 0.25, "at_least": 0})
    for seed in range(20):
        rows = clean(frame, study)
        test = hold_out(rows, study, seed, "s")[1]
        held = {int(whose[i]) for i in test}
        assert len(held) == 15
        assert sum(p < 12 for p in held) == 3


def test_without_persons_rows_and_numbers_are_what_they_were() -> None:
    """The same rows under the same seed, and the same fingerprint of what the model sees."""
    frame = visits()["s0"]
    rows = clean(frame, study_of())
    assert list(rows.columns) == [*COLUMNS, "sick"]
    train, test = hold_out(rows, study_of(), 8, "s0")
    order = np.random.default_rng(vt.core.random.key(8, "s0", "split")).permutation(len(rows))
    want = study_of().split.count(len(rows))
    assert len(test) == want
    assert set(train) | set(test) == set(order)
    named = clean(frame, study_of(person="patient"))
    assert fingerprint_rows(named) != fingerprint_rows(rows)
    other = frame.assign(patient=frame.patient.to_numpy()[::-1])
    assert fingerprint_rows(clean(other, study_of(person="patient"))) != fingerprint_rows(named)


def test_a_row_without_a_person_is_told() -> None:
    frame = visits()["s0"]
    frame.loc[5, "patient"] = None
    with pytest.raises(VitrailError, match="expected a person in every row, but 1 of 240"):
        clean(frame, study_of(person="patient"))
    assert any(f.kind == "person_missing" for f in find_faults(frame, study_of(person="patient")))
    clean(frame.drop(columns=["patient", "sick"]), study_of(person="patient"), need_target=False)  # to predict


def test_one_person_is_no_site() -> None:
    frame = visits()["s0"].assign(patient="P1")
    with pytest.raises(VitrailError, match="at least 2 persons"):
        clean_sites({"s0": frame}, study_of(person="patient"))


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"person": "x1"}, "also a feature"),
        ({"person": "sick"}, "already has another role"),
        ({"split": {"by": "date", "column": "day"}}, "first day of the test rows"),
        ({"split": {"by": "date", "test_from": "2021-01-01"}}, "column with each row's date"),
        ({"split": {"column": "day"}}, "only a split by date"),
        ({"split": {"by": "date", "column": "x1", "test_from": "2021-01-01"}}, "also a feature"),
        ({"split": {"by": "date", "column": "day", "test_from": "soon"}}, "got 'soon'"),
        ({"person": "day", "split": {"by": "date", "column": "day", "test_from": "2021"}}, "names persons"),
        (
            {"split": {"by": "date", "column": "day", "test_from": "2021-01-01"}, "verdict": {"folds": 5}},
            "folds ignore dates",
        ),
    ],
)
def test_what_a_study_cannot_say(given: dict[str, Any], what: str) -> None:
    with pytest.raises(VitrailError, match=what):
        study_of(**given)


def test_a_study_with_persons_is_written_and_read(tmp_path: Path) -> None:
    split = {"by": "date", "column": "day", "test_from": "2021-01-01"}
    study = study_of(person="patient", split=split)
    study.save(tmp_path / "study.toml")
    assert vt.Study.load(tmp_path / "study.toml") == study
    assert "person" not in study_of().to_toml()
    assert "test_from" not in study_of().to_toml()
    (tmp_path / "study.toml").write_text(study.to_toml().replace('"2021-01-01"', "2021-01-01"))
    assert vt.Study.load(tmp_path / "study.toml").split.test_from == "2021-01-01"


def test_the_split_by_date() -> None:
    frame = visits()["s0"]
    split = {"by": "date", "column": "day", "test_from": "2021-01-01"}
    rows = clean(frame, study_of(split=split))
    train, test = hold_out(rows, study_of(split=split), 1, "s0")
    assert (frame.day.iloc[test] >= "2021").all()
    assert (frame.day.iloc[train] < "2021").all()
    assert len(train) + len(test) == len(frame)


def test_a_person_seen_before_the_date_is_not_tested() -> None:
    frame = visits()["s0"]
    frame["day"] = np.where(frame.groupby("patient").cumcount() == 0, "2019-05-05", "2022-05-05")
    new = frame.patient < "P020"
    frame.loc[new, "day"] = "2022-07-01"
    study = study_of(person="patient", split={"by": "date", "column": "day", "test_from": "2021-01-01"})
    train, test = hold_out(clean(frame, study), study, 1, "s0")
    assert set(frame.patient.iloc[test]) == set(frame.patient[new])
    assert (frame.day.iloc[train] == "2019-05-05").all()
    assert len(train) == 40
    run = vt.federate(study, dict.fromkeys("abc", frame), "fedavg", seed=1, rounds=1)
    assert set(run.sizes.test_persons) == {20}
    assert set(run.sizes.train_rows) == {40}


def test_folds_of_a_comparison_keep_to_the_date() -> None:
    """Every later row of a new patient is judged once, and no fold trains on a row from that day on."""
    split = {"by": "date", "column": "day", "test_from": "2021-01-01"}
    study, sites = study_of(person="patient", split=split), visits()
    sites["s0"].loc[sites["s0"].patient == "P001", "day"] = ["2016-03-01", "2022-03-01", "2023-03-01", "2024-03-01"]
    cleaned = clean_sites(sites, study)
    cut = whole_folds(cleaned, study, 1, 5)
    tested: dict[str, list[int]] = {name: [] for name in sites}
    for k in range(cut.folds):
        for site in cut.fold(k):
            kept = cut.cleaned[site.name]
            train, test = (kept.index[mine] for mine in (cut.trained(site.name, k), cut.tested(site.name)))
            here = test[cut.lots[site.name][cut.tested(site.name)] == k]
            assert (len(site.train_y), len(site.test_y)) == (len(train), len(here))
            own = sites[site.name]
            assert (own.day[train] < "2021").all()
            assert (own.day[here] >= "2021").all()
            assert not set(own.patient[train]) & set(own.patient[here])
            tested[site.name].extend(here)
    for name, frame in sites.items():
        new = ~frame.patient.isin(frame.patient[frame.day < "2021"])
        assert sorted(tested[name]) == list(frame.index[new])
    assert "P001" not in set(sites["s0"].patient[tested["s0"]])


def test_a_comparison_by_date_does_not_see_what_came_later() -> None:
    """From 2021 on, in most rows, the outcome is the other way round: folds by chance learn that from later rows, and a
    comparison that keeps to the date is wrong about them, as it would have been then."""
    sites = {}
    for s in range(3):
        r = np.random.default_rng(s)
        x = r.normal(size=(300, 8))
        late = np.arange(300) % 5 > 0
        frame = pd.DataFrame(x, columns=COLUMNS).assign(sick=((x[:, 0] > 0) ^ late).astype(int))
        sites[f"s{s}"] = frame.assign(day=np.where(late, "2022-01-01", "2018-01-01"))
    auc = {}
    for by, split in {"chance": {}, "date": {"by": "date", "column": "day", "test_from": "2021-01-01"}}.items():
        study = study_of(split=split, training={"rounds": 40, "lr": 0.01, "total": "mean", "optimiser": "adam"})
        found = vt.compare(study, sites, ["local", "fedavg"], [1], folds=4)
        auc[by] = found.scores.query("split == 'test' and metric == 'auc'").value.mean()
    assert auc["chance"] > 0.65
    assert auc["date"] < 0.2
    assert list(found.sites.test_rows) == [240] * 3
    assert len(found.verdicts()) == 3
    assert "rows from 2021-01-01 on, each judged by a model trained on rows before that day" in found.judged_words


def test_decisions_on_later_rows_are_made_at_the_earlier_rate() -> None:
    """Of the earlier rows 1 in 5 has the event, of the later ones 4 in 5: whoever decides at the later rate has looked
    at what is tested."""
    split = {"by": "date", "column": "day", "test_from": "2021-01-01"}
    study, number = study_of(split=split), np.arange(200)
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(200, 8)), columns=COLUMNS)
    late = number >= 100
    frame = frame.assign(sick=((number % 5 == 0) ^ late).astype(int), day=np.where(late, "2022-01-01", "2018-01-01"))
    cut = whole_folds(clean_sites({"a": frame, "b": frame}, study), study, 1, 4)
    found = _thresholds(study, cut)
    assert found is not None
    assert found[:, 1] == pytest.approx([0.2, 0.2], abs=0.01)


@pytest.mark.parametrize(("day", "what"), [("2030-01-01", "from 2030-01-01 on"), ("2000-01-01", "before 2000-01-01")])
def test_a_site_without_rows_on_one_side_of_the_date_is_refused(day: str, what: str) -> None:
    study = study_of(split={"by": "date", "column": "day", "test_from": day})
    with pytest.raises(VitrailError, match=what):
        clean_sites(visits(), study)


def test_rows_set_aside_are_of_other_persons() -> None:
    r = np.random.default_rng(0)
    for seed in range(30):
        whose = torch.from_numpy(np.concatenate([np.repeat(np.arange(12), 4), 12 + np.repeat(np.arange(8), 3)]))
        x = torch.from_numpy(r.normal(size=(len(whose), 3))).float()
        y = w = torch.ones(len(whose), 1)
        sites = Sites(("a", "b"), x, y, w, (48, 24), persons=whose)
        kept, aside = set_aside(sites, 0.3, seed)
        assert kept.persons is not None
        away = {
            tuple(v) for site in range(2) for v, real in zip(aside.x[site].tolist(), aside.w[site], strict=True) if real
        }
        held = {int(p) for p, v in zip(whose, x.tolist(), strict=True) if tuple(v) in away}
        assert held
        assert not held & set(kept.persons.tolist())
        assert sum(kept.sizes) + len(away) == 72


class _Net:
    """Scores are x times a weight; a row's gradient is its x times its slope."""

    def forward(self, params: Any, x: Any, keep: Any = (), *, tape: bool = True) -> Any:
        from vitrail.core.task import Out

        return Out(x @ params["w"][..., None], x, x)

    def backward(
        self, params: Any, tape: Any, slope: Any, into: Any, times: float, scale: float, *_: Any, **__: Any
    ) -> None:
        before = times * into["w"] if times else 0.0
        into["w"].copy_(before + scale * (tape * slope).sum(1))

    def row_norms(self, params: Any, tape: Any, slope: Any) -> Any:
        return (tape * slope).norm(dim=2)


class _Loss:
    def grad(self, out: Any, batch: Batch) -> Any:
        return out.z - batch.y


def test_noise_covers_a_whole_person() -> None:
    """Over an epoch, however its rows fall into steps, a person moves the sums by no more than one row of length `clip`
    does: the squares of its parts add up to at most clip^2."""
    r, clip = np.random.default_rng(1), 0.7
    for m in (1, 2, 3, 8):
        x, y = torch.from_numpy(r.normal(size=(1, m, 4)) * 50), torch.from_numpy(r.normal(size=(1, m, 1)) * 9)
        task = PrivateTask(_Net(), {}, _Loss(), clip=clip)  # type: ignore[arg-type]
        params = {"w": torch.zeros(1, 4, dtype=torch.double)}
        steps = r.integers(0, 3, m)
        spent = 0.0
        for step in range(3):
            at = np.flatnonzero(steps == step)
            if len(at):
                share = torch.full((1, len(at)), 1 / m, dtype=torch.double)
                batch = Batch(
                    x[:, at], y[:, at], torch.zeros(1, len(at), 1), noise_source=DrawnNoise(torch.zeros(1)), share=share
                )
                spent += float(task.grad(params, batch)["w"].norm()) ** 2
        assert 0 < spent <= clip**2 * (1 + 1e-9)
        whole = Batch(x, y, torch.zeros(1, m, 1), noise_source=DrawnNoise(torch.zeros(1)))
        if m > 1:  # without its share a person of several rows would move further
            alike = whole._replace(x=x[:, :1].expand(1, m, 4), y=y[:, :1].expand(1, m, 1))
            assert float(task.grad(params, alike)["w"].norm()) > 1.5 * clip


def test_the_engine_hands_each_row_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[torch.Tensor] = []
    plain = PrivateTask._clipped

    def spy(self: PrivateTask, params: Any, out: Any, batch: Batch) -> Any:
        seen.append(batch.share)  # type: ignore[arg-type]
        return plain(self, params, out, batch)

    monkeypatch.setattr(PrivateTask, "_clipped", spy)
    sites = visits(people=20)
    study = study_of(person="patient", protect={"rows": {"epsilon": 4.0}}, training={"rounds": 1, "batch": 16})
    vt.federate(study, sites, "fedavg", seed=1)
    given = [v for v in seen if v is not None]
    assert given
    assert all((v == 0.25).all() for v in given)
    spent = spent_by(*resolve(study, "fedavg", None))
    assert spent is not None
    assert spent.of == "patient"
    assert "each patient is epsilon" in budget_words(spent)


def test_counts_under_noise_move_by_one_row_for_a_whole_person() -> None:
    frame = visits(people=10)["s0"]
    study = study_of(person="patient", protect={"rows": {"epsilon": 4.0}})
    rows = clean(frame, study)
    mine = rows[rows.patient == rows.patient.iloc[0]]
    assert np.linalg.norm(sums_of(mine, study)) <= np.sqrt(3 * len(COLUMNS)) + 1e-9
    assert np.linalg.norm(sums_of(mine, study_of())) > np.sqrt(3 * len(COLUMNS))
    assert training_sizes({"s0": rows}, study, split_sites({"s0": rows}, study, 1)) == {"s0": 7}


def test_thresholds_count_persons() -> None:
    """Groups of ten rows are of ten persons at least: of four visits each, of forty rows."""
    study = study_of(person="patient", bedside={"tell": True}, training={"rounds": 2, "lr": 0.02})
    run = vt.federate(study, visits(people=60), "fedavg", seed=1)
    told = run.scores("bedside")
    rows = told[told.metric.str.startswith("rows@")].value.dropna()
    assert len(rows)
    assert (rows >= 4 * FEWEST).all()
    by_rows = vt.federate(study.with_changes(person=""), visits(people=60), "fedavg", seed=1).scores("bedside")
    assert (by_rows[by_rows.metric.str.startswith("rows@")].value < 4 * FEWEST).any()  # else it proves nothing
    assert len(BEDSIDE) == len(told.metric.unique())
    shares_told = run.coverage().dropna(subset="accuracy")
    assert set(shares_told.share) == set(surest_shares(80, 4 * FEWEST)) < set(surest_shares(80))


def test_resampling_draws_whole_persons() -> None:
    whose = np.array([0, 0, 0, 1, 2, 2])
    at, real = draw_persons(whose, 50, 1)
    assert at[0][real[0]].tolist() == [0, 1, 2, 3, 4, 5]
    for rows, there in zip(at, real, strict=True):
        times = np.bincount(rows[there], minlength=6)
        assert times[0] == times[1] == times[2]
        assert times[4] == times[5]
        assert times[0] + times[3] + times[4] == 3
    assert person_shares(whose).tolist() == [1 / 3] * 3 + [1.0] + [0.5] * 2
    assert most_rows(whose) == 3


def test_few_patients_are_told_though_the_rows_are_many() -> None:
    run = vt.federate(study_of(person="patient", training={"rounds": 1}), visits(people=60), "fedavg", seed=1)
    assert set(run.sizes.test_rows) == {80}
    assert set(run.sizes.few_rows.str[:11]) == {"20 patients"}
    assert set(vt.federate(study_of(training={"rounds": 1}), visits(), "fedavg", seed=1).sizes.few_rows) == {""}


def test_held_out_rows_are_listed(tmp_path: Path) -> None:
    sites = visits()
    run = vt.federate(study_of(person="patient", training={"rounds": 1}), sites, "fedavg", seed=1, out=tmp_path / "run")
    held = run.held_out()
    rows = clean(sites["s1"], run.study)
    test = hold_out(rows, run.study, 1, "s1")[1]
    assert held[held.site == "s1"].row.tolist() == rows.index[test].tolist()
    assert vt.Run.load(tmp_path / "run").held_out().equals(held)
    (tmp_path / "run" / "sites" / "s0" / "held_out.csv").unlink()
    assert set(vt.Run.load(tmp_path / "run").held_out().site) == {"s1", "s2"}


def test_judges_know_the_most_rows_of_a_person() -> None:
    study = study_of(person="patient", training={"rounds": 1})
    data = prepare(visits(people=12, each=5), study, 1)
    from vitrail.engine.local import Engine
    from vitrail.runs.setup import training_of, training_rows

    plain, method = resolve(study, "fedavg", None)
    engine = Engine(
        build_task(plain, method, 1), method, training_rows(data, plain, method, "cpu"), training_of(plain), 1
    )
    assert Evaluator(engine, plain, data).least == [5 * FEWEST] * 3


def test_calibration_of_visits_is_as_sure_as_that_of_patients() -> None:
    """Every patient four times over says no more than once: the same lines, and intervals as wide."""
    r = np.random.default_rng(5)
    risk = r.uniform(0.05, 0.95, 120)
    y = (r.random(120) < risk).astype(np.int64)
    p = np.stack([1 - risk, risk], 1)
    once = _bedside(y, p)
    persons = np.repeat(np.arange(120), 4)
    again = _bedside(y[persons], p[persons], persons)
    rows = _bedside(y[persons], p[persons])
    assert once is not None
    assert again is not None
    assert rows is not None
    assert again.line is not None
    assert once.line is not None
    assert rows.line is not None
    assert again.line.slope == pytest.approx(once.line.slope)
    assert again.line.p == pytest.approx(once.line.p)
    assert rows.line.slope.high - rows.line.slope.low < 0.6 * (once.line.slope.high - once.line.slope.low)
    assert again.counts.total == pytest.approx(120)
