"""Which column should a site begin to record: a column that decides, one of noise, weights, refusals, the command."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import vitrail as vt
from tests.support.command import vitrail
from tests.support.rates import assert_rate
from vitrail.data.encoding import clean_sites
from vitrail.runs.setup import resolve
from vitrail.studies.benefit import NO, UNSURE, YES
from vitrail.studies.missing_columns import ColumnGain, ColumnTrial, missing_columns

FEATURES = {name: {"kind": "numeric"} for name in ("age", "decides", "noise")}


def make_study(**changes: object) -> vt.Study:
    plain = {
        "name": "ward",
        "target": {"column": "ill", "classes": [0, 1], "positive": 1},
        "features": FEATURES,
        "network": {"kind": "linear"},
        "training": {"rounds": 12, "batch": 16, "lr": 0.05},
        "standardise": "none",
        "screen": {"ask": False},
    }
    return vt.Study.parse({**plain, **changes})


def make_sites(seed: int = 0, rows: int = 120, sites: int = 5) -> dict[str, pd.DataFrame]:
    """`decides` is worth much, `noise` nothing; the first site records neither."""
    out = {}
    for i in range(sites):
        rng = np.random.default_rng([seed, i])
        x = rng.normal(size=(rows, 3))
        x[:, 0] += 0.3 * i
        risk = 1 / (1 + np.exp(-(0.5 * x[:, 0] + 2.5 * x[:, 1])))
        out[f"site {i}"] = pd.DataFrame(x, columns=list(FEATURES)).assign(ill=(rng.random(rows) < risk).astype(int))
    out["site 0"] = out["site 0"].drop(columns=["decides", "noise"])
    return out


@pytest.fixture(scope="module")
def result() -> vt.MissingColumns:
    return vt.missing_columns(make_study(), make_sites())


def test_a_column_that_decides_is_named_and_one_of_noise_is_not(result: vt.MissingColumns) -> None:
    lines = {line.column: line for line in result.lines()}
    assert list(lines) == ["decides", "noise"]
    assert lines["decides"].verdict == YES
    assert lines["decides"].low > 0.1
    assert lines["noise"].verdict != YES
    assert abs(lines["noise"].gain) < 0.02
    assert lines["decides"].donors == "site 1, site 2, site 3, site 4"


def test_the_estimate_holds_what_the_site_gains_when_it_has_the_column(result: vt.MissingColumns) -> None:
    """Other and more rows of the same sites, all with the column: trained with and without it by all."""
    rng = np.random.default_rng(9)
    sites = {f"site {i}": make_full(i, rng) for i in range(5)}
    saved = make_trial(make_study(), sites).saved(("age",), "decides", list(sites))["site 0"].mean()
    line = result.lines()[0]
    assert line.low <= saved <= line.high


def make_full(i: int, rng: np.random.Generator) -> pd.DataFrame:
    x = rng.normal(size=(400, 3))
    x[:, 0] += 0.3 * i
    risk = 1 / (1 + np.exp(-(0.5 * x[:, 0] + 2.5 * x[:, 1])))
    return pd.DataFrame(x, columns=list(FEATURES)).assign(ill=(rng.random(400) < risk).astype(int))


def make_trial(study: vt.Study, sites: dict[str, pd.DataFrame], kind: type[ColumnTrial] = ColumnTrial) -> ColumnTrial:
    study, method = resolve(study, study.build_method(), None)
    return kind(study, clean_sites(sites, study), method, 1, 3)


class GivenGains(ColumnTrial):
    """No training: what a row saves is `age` of the row, and chance, and a constant of the site."""

    rng = np.random.default_rng(0)
    constants: dict[str, float]

    def saved(self, features: object, column: str, sites: list[str]) -> dict[str, np.ndarray]:
        out = {}
        for name in sites:
            x = self.cleaned[name]["age"].to_numpy()
            out[name] = 1 + 0.4 * x + self.constants[name] + self.rng.normal(0, 0.5, len(x))
        return out


def worlds(count: int, sites: int, rows: int, between: float, shift: float) -> list[tuple[ColumnGain, float]]:
    """The estimate and the truth of so many worlds. The patients of the first site are `shift` older; sites differ by
    `between` in what the column saves."""
    rng, tables = np.random.default_rng(1), {}
    for i in range(sites):
        x = rng.normal(shift * (i == 0), 1, (rows, 3))
        tables[f"site {i}"] = pd.DataFrame(x, columns=list(FEATURES)).assign(ill=rng.integers(0, 2, rows))
    trial, out = make_trial(make_study(), tables, GivenGains), []
    assert isinstance(trial, GivenGains)
    for _ in range(count):
        trial.constants = {name: float(rng.normal(0, between)) for name in tables}
        truth = 1 + 0.4 * float(tables["site 0"].age.mean()) + trial.constants["site 0"]
        out.append((trial.gain("site 0", "decides"), truth))
    return out


@pytest.mark.parametrize(("between", "shift"), [(0.3, 0.0), (0.6, 0.8)])
def test_the_interval_holds_the_truth_in_95_of_100(between: float, shift: float) -> None:
    held = [line.low <= truth <= line.high for line, truth in worlds(300, 6, 150, between, shift)]
    assert_rate(sum(held), len(held), 0.94, 0.99)


def test_an_interval_that_holds_zero_decides_nothing() -> None:
    """Sites differ by more than the gain, which is above zero in the mean."""
    lines = [line for line, _ in worlds(20, 4, 60, 3.0, 0.0)]
    unsure = [line for line in lines if line.low <= 0 <= line.high]
    assert any(line.gain > 0 for line in unsure)
    assert {line.verdict for line in unsure} == {UNSURE}


def test_weights_carry_the_gain_to_other_patients() -> None:
    """Where patients differ and sites do not, the plain mean is off by more than the weighted one."""
    errors = [(abs(line.gain - truth), abs(line.unweighted - truth)) for line, truth in worlds(15, 4, 300, 0.0, 0.8)]
    weighted, unweighted = np.mean(errors, axis=0)
    assert weighted < unweighted / 3
    assert unweighted > 0.2


def test_what_the_site_has_of_the_column_is_not_used() -> None:
    """A few values count as lacking, and change nothing."""
    sites = make_sites(rows=60)
    some = np.full(60, np.nan)
    some[0] = 3.0
    lines = [
        missing_columns(make_study(), {**sites, "site 0": sites["site 0"].assign(decides=column)}, columns=["decides"])
        for column in (np.nan, some)
    ]
    assert lines[0].lines() == lines[1].lines()


def test_two_sites_must_record_it() -> None:
    sites = make_sites(rows=60, sites=3)
    sites["site 1"] = sites["site 1"].drop(columns="decides")
    result = vt.missing_columns(make_study(), sites, columns=["decides"])
    assert {line.site: line.verdict for line in result.lines()} == {"site 0": UNSURE, "site 1": UNSURE}
    assert "only site site 2 records it, and at least 2 other sites must" in result.sentences()[0]


def test_patients_like_none_elsewhere_are_told_apart() -> None:
    """Where hardly any row elsewhere is like the site's own, there is no answer."""
    sites = make_sites(rows=60, sites=3)
    sites["site 0"]["age"] += 8
    (line,) = vt.missing_columns(make_study(), sites, columns=["decides"]).lines()
    assert line.verdict == UNSURE
    assert line.effective < 50
    assert "like the site's own" in line.why


def test_rows_of_one_person_count_once() -> None:
    """Every row five times over: as sure as before, not surer."""
    sites = {name: f.assign(who=[f"{name} {k}" for k in range(len(f))]) for name, f in make_sites(rows=60).items()}
    often = {name: pd.concat([f] * 5, ignore_index=True) for name, f in sites.items()}
    trials = [make_trial(make_study(person="who"), filled(each)) for each in (sites, often)]
    once, five = (trial.gain("site 0", "decides") for trial in trials)
    assert five.effective == pytest.approx(once.effective, rel=0.3)
    assert five.rows == 5 * once.rows


def test_rows_that_a_split_by_date_leaves_out_are_not_judged() -> None:
    """Models learn from earlier rows and are judged on later ones only."""
    split = {"by": "date", "column": "day", "test_from": "2024-03-01"}
    days = pd.date_range("2024-01-01", periods=120, freq="D").strftime("%Y-%m-%d")
    sites = {name: frame.assign(day=days) for name, frame in filled(make_sites()).items()}
    trial = make_trial(make_study(split=split), sites)
    (first, *_), later = trial.losses(("age", "decides"), ["site 1", "site 2"]).values(), days >= "2024-03-01"
    assert (np.isfinite(first) == later).all()
    assert trial.gain("site 0", "decides").rows == 4 * later.sum()


def filled(sites: dict[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
    return {**sites, "site 0": sites["site 0"].assign(decides=np.nan, noise=np.nan)}


def test_a_number_is_told_in_its_unit() -> None:
    study = make_study(target={"column": "weight", "kind": "number"})
    sites = {
        n: f.drop(columns="ill").assign(weight=f.get("decides", f.age) * 3.0) for n, f in make_sites(rows=60).items()
    }
    sentence = vt.missing_columns(study, sites, columns=["decides"]).sentences()[0]
    assert "of squared error per row" in sentence


def test_sentences(result: vt.MissingColumns) -> None:
    line = result.lines()[0]._replace(gain=0.031, low=0.0101, high=0.052)
    say, numbers = result.sentence, "0.031 nats per case, 95 % interval 0.010 to 0.052, if it recorded decides."
    assert say(line) == f"Site site 0 would save {numbers}"
    worse = line._replace(gain=-0.031, low=-0.052, high=-0.01, verdict=NO)
    assert say(worse) == f"Site site 0 would lose {numbers}"
    unsure = line._replace(low=-0.01, verdict=UNSURE, why="the interval contains zero")
    assert say(unsure).startswith("Cannot tell what site site 0 would save if it recorded decides (estimate 0.031")


def test_mistakes_are_told_at_once() -> None:
    with pytest.raises(vt.VitrailError) as caught:
        vt.missing_columns(make_study(), make_sites(), ["site O"], ["decide"])
    assert [p.where for p in caught.value.problems] == ["--site", "--column"]


def test_the_command(tmp_path) -> None:
    study, data = tmp_path / "study.toml", tmp_path / "data"
    make_study().save(study)
    data.mkdir()
    for name, frame in make_sites(rows=60).items():
        frame.to_csv(data / f"{name}.csv", index=False)
    ran = vitrail("columns", study, "--data", data, "--out", tmp_path / "out", "--column", "decides")
    assert "would save" in ran.stdout
    assert pd.read_csv(tmp_path / "out" / "columns.csv").column.tolist() == ["decides"]
    assert "Which column should a site begin to record?" in (tmp_path / "out" / "columns.html").read_text("utf-8")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("mine")
    refused = vitrail("columns", study, "--data", data, "--out", tmp_path / "mine", "--column", "decides")
    assert "did not write" in refused.stderr
