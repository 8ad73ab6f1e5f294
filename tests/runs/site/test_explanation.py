"""Why a site's own model says of its rows what it says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

import vitrail as vt
from tests.support import picture_sites
from tests.support.vertical.talks import naive
from vitrail.analysis.explanations.rows import NOTHING, Explanation
from vitrail.analysis.explanations.summary import summarise_sites
from vitrail.cli import app, main
from vitrail.core.losses import CrossEntropy
from vitrail.data.encoding import Encoder
from vitrail.data.readers.tables import clean
from vitrail.data.splitting import split_rows
from vitrail.methods import FedAvg
from vitrail.report.charts.effect_scale import scale_of
from vitrail.runs.result import Model
from vitrail.runs.site.explanation import GIVEN, NAMED, TRAINED, explain_model, explain_sites

FEATURES = {
    "age": {"kind": "numeric", "unit": "years"},
    "dose": {"kind": "numeric"},
    "smokes": {"kind": "binary", "categories": ["no", "yes"]},
    "ward": {"kind": "categorical", "categories": ["a", "b", "c"]},
}


def table(rows: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    age, dose = rng.normal(50, 10, rows).round(1), rng.normal(2, 1, rows).round(2)
    smokes, ward = rng.choice(["no", "yes"], rows, p=[0.7, 0.3]), rng.choice(["a", "b", "c"], rows, p=[0.5, 0.3, 0.2])
    score = (age - 50) / 10 + (dose - 2) * (smokes == "yes") + 1.5 * (ward == "c") + rng.normal(0, 0.5, rows)
    frame = pd.DataFrame({"age": age, "dose": dose, "smokes": smokes, "ward": ward})
    frame.loc[::17, "dose"] = np.nan
    return frame.assign(sick=np.where(score > 0, "yes", "no"), days=20 + 5 * score)


SITES = {"north": table(150, 1), "south": table(120, 2), "west": table(60, 3)}
CLASSES = {"column": "sick", "classes": ["no", "yes"], "positive": "yes"}
DAYS = {"column": "days", "kind": "number", "unit": "days", "center": 20.0, "scale": 5.0}


def trained(target: dict[str, Any], features: dict[str, Any] = FEATURES, sites: Any = SITES) -> vt.Run:
    study = vt.Study.parse({"target": target, "features": features, "network": {"hidden": [8]}})
    return vt.federate(study, sites, method="apfl", rounds=8)


@pytest.fixture(scope="module")
def run() -> vt.Run:
    return trained(CLASSES)


class TakesAll:
    """A network that declares that it takes missing values."""

    takes_missing = True


def test_a_missing_value_is_the_reference_of_a_network_that_takes_it(
    run: vt.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine = run.final_model("north", "explain")
    usual = explain_model(mine, "north", SITES["north"], None, 5)
    task, _ = mine.scorer()

    def scores(x: torch.Tensor) -> torch.Tensor:
        z = torch.where(x.isnan(), 0.25, x).sum(1)
        return torch.stack([torch.zeros_like(z), z], 1)

    monkeypatch.setattr(Model, "scorer", lambda self: (replace(task, net=TakesAll(), loss=CrossEntropy()), scores))
    e = explain_model(mine, "north", SITES["north"], None, 5)
    assert e.reference == NOTHING != usual.reference
    cleaned = clean(SITES["north"], mine.study)
    encoded = torch.from_numpy(mine.encoder.matrix(cleaned))
    assert e.base_values == pytest.approx(0.25 * encoded.shape[1])
    assert all(label.off != label.off for label in e.columns), "off is shown as missing"
    places = [str(name) for name in cleaned.index]
    x = encoded[[places.index(name) for name in e.rows]]
    for i, feature in enumerate(mine.study.features):
        columns = np.flatnonzero(mine.encoder.layout.source == i).tolist()
        assert e.values[:, i] == pytest.approx((x[:, columns] - 0.25).sum(1).numpy(), abs=1e-5), feature


@pytest.fixture(scope="module")
def told(run: vt.Run) -> Explanation:
    return run.explain("north", SITES["north"])


def test_values_sum_to_what_the_model_says(run: vt.Run, told: Explanation) -> None:
    share = run.predict("north", SITES["north"])["yes"].to_numpy()
    assert np.allclose(1 / (1 + np.exp(-told.total)), share, atol=1e-6)
    assert told.measure == "log odds of sick = yes"
    assert not told.half.any()
    assert np.ptp(told.base_values) < 1e-6
    other = run.explain("north", SITES["north"], outcome="no")
    assert np.allclose(other.values, -told.values, atol=1e-5)


def test_values_are_those_of_brute_force(run: vt.Run, told: Explanation) -> None:
    """With a median and a most frequent level that are found here anew."""
    study, model = run.study, run.model_of("north")
    rows = clean(SITES["north"], study)
    train = rows.iloc[split_rows(rows.sick.to_numpy(), study, run.seed, "north")[0]]
    typical = (
        train.median()
        .to_frame()
        .T.assign(smokes=train.smokes.value_counts().idxmax(), ward=train.ward.value_counts().idxmax())
    )
    x, off = (model.encoder.matrix(r).astype(np.float32) for r in (rows, typical))
    _, scores = model.scorer()

    def f(a: np.ndarray) -> np.ndarray:
        z = scores(torch.from_numpy(a))
        return (z[:, 1] - z[:, 0]).double().numpy()

    groups = [np.flatnonzero(model.encoder.layout.source == i).tolist() for i in range(len(FEATURES))]
    assert len(groups[3]) == 2, "of three levels the first is the reference"
    for i in (0, 17, 40, 99):
        assert np.allclose(told.values[i], naive(f, x[i], off[0], groups), atol=1e-5)


def test_features_are_the_studys_in_their_units(told: Explanation) -> None:
    assert told.feature_names == list(FEATURES)
    assert told.values.shape == (150, 4)
    first = SITES["north"].iloc[1]
    assert told.data[1].tolist() == [first.age, first.dose, first.smokes, first.ward]
    assert np.isnan(told.data[17, 1])
    assert told.columns[0].unit == "years"
    assert [c.off for c in told.columns][2:] == ["no", "a"]
    assert told.columns[3].levels == ("a", "b", "c")


def test_a_feature_as_in_the_reference_adds_nothing_and_costs_nothing(told: Explanation) -> None:
    same = told.data[:, 3] == "a"
    assert (told.values[same, 3] == 0).all()
    assert (told.values[~same, 3] != 0).all()
    assert told[(told.data[:, 2] == "no") & same].values.any()
    assert told.asked == 2**4


def test_a_number_is_explained_in_its_unit() -> None:
    run = trained(DAYS)
    told = run.explain("south", SITES["south"])
    assert np.allclose(told.total, run.predict("south", SITES["south"])["days"], atol=1e-4)
    assert told.measure == "days in days"
    assert told.scale == "number"


def test_the_reference_is_named(run: vt.Run, told: Explanation) -> None:
    north = SITES["north"]
    assert told.reference.endswith(TRAINED)
    part = run.explain("north", north[:40])
    assert part.reference.endswith(GIVEN)
    assert part.columns[0].off == north.age[:40].median()
    assert told.columns[0].off not in (north.age.median(), part.columns[0].off), "hold-out rows are no part of it"
    for odd in (north.assign(sick="perhaps"), north.drop(columns="sick")):
        assert run.explain("north", odd).reference.endswith(GIVEN), "the target is not needed"
    given = run.explain("north", north[:1].drop(columns="sick"), reference=north)
    assert given.reference.endswith(NAMED)
    assert given.columns[0].off == pytest.approx(north.age.median())


def test_some_rows_by_lot_or_by_name(run: vt.Run, told: Explanation) -> None:
    few = run.explain("north", SITES["north"], rows=20, seed=3)
    assert len(few) == 20
    assert few.rows != run.explain("north", SITES["north"], rows=20, seed=4).rows
    named = run.explain("north", SITES["north"], rows=[17, 3])
    assert named.rows == ("17", "3")
    assert np.allclose(named.values, told.values[[17, 3]], atol=1e-5)
    assert told[[17, 3]].rows == named.rows


def test_more_than_sixteen_features_are_sampled() -> None:
    rng = np.random.default_rng(5)
    names = [f"f{i}" for i in range(18)]
    frame = pd.DataFrame(rng.normal(size=(80, 18)), columns=names)
    frame["sick"] = np.where(frame.f0 + frame.f1 * frame.f2 > 0, "yes", "no")
    frame["rare"] = np.where(np.arange(80) == 7, "yes", "no")
    features = {n: {"kind": "numeric"} for n in names} | {"rare": FEATURES["smokes"]}
    run = trained(CLASSES, features, {"a": frame, "b": frame[::-1]})
    told = run.explain("a", frame, rows=3)
    assert told.half.any()
    assert not told.values[:, 18].any(), "as in the reference: 0, without noise of the sampling"
    assert told.asked < 2**16
    share = run.predict("a", frame)["yes"].to_numpy()[[int(r) for r in told.rows]]
    assert np.allclose(1 / (1 + np.exp(-told.total)), share, atol=1e-5)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"site": "nort"}, "Did you mean 'north'?"),
        ({"rows": [7777]}, "there is no row 7777. They go from 0 to 149."),
        ({"rows": 0}, "expected at least 1, got 0"),
        ({"outcome": "maybe"}, "sick has no class 'maybe'. Valid: no, yes."),
        ({"frame": SITES["north"].drop(columns=["age", "ward"])}, "column age: expected one such column"),
        ({"frame": SITES["north"][:1]}, "at least 2 rows to take the reference from, got 1"),
        ({"frame": SITES["north"][:0]}, "there are no rows"),
    ],
)
def test_mistakes_are_told_in_words(run: vt.Run, given: dict[str, Any], words: str) -> None:
    with pytest.raises(vt.VitrailError) as error:
        run.explain(**{"site": "north", "frame": SITES["north"], **given})
    assert words in str(error.value)


def test_pictures_are_refused() -> None:
    study = picture_sites.study()
    model = Model(study, FedAvg(), 1, {}, Encoder(study, {}, {}))
    with pytest.raises(vt.VitrailError, match=r"no columns\. To see what a model looks at: vitrail look"):
        explain_model(model, "a", pd.DataFrame(), None, 10)


@pytest.fixture(scope="module")
def place(run: vt.Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("explain")
    (root / "data").mkdir()
    for name, frame in SITES.items():
        frame.to_csv(root / "data" / f"{name}.csv", index=False)
    run.save(root / "run")
    return root


def test_the_verb_at_a_site(place: Path, told: Explanation) -> None:
    page = place / "own.html"
    words = ["explain", place / "run", "--site", "north", "--data", place / "data/north.csv", "--out", page]
    done = CliRunner().invoke(app, [*map(str, words), "--row", "19", "--feature", "ward"])
    assert done.exit_code == 0, done.output
    assert "This stays at north." in done.output
    assert "Row 19:" in done.output, "its line: the 18th row"
    assert f"age: {told.data[17, 0]:.4g} years" in page.read_text()
    assert "One feature: ward" in page.read_text()
    assert not (place / "run" / "explain.html").exists()


def test_the_verb_for_all_sites(place: Path) -> None:
    words = ["explain", place / "run", "--data", place / "data", "--refuse", "south"]
    done = CliRunner().invoke(app, list(map(str, words)))
    assert done.exit_code == 0, done.output
    assert "Left out because they have fewer than 100 rows: west." in done.output
    found = pd.read_csv(place / "run" / "explain.csv")
    assert set(found.site) == {"north"}, "west has 60 rows, south refused"
    assert list(found.feature) == list(FEATURES)
    assert "refused: <b>south</b>" in (place / "run" / "explain.html").read_text()


def test_a_site_is_shown_by_the_name_it_publishes_under(run: vt.Run, place: Path) -> None:
    told = explain_sites(replace(run, pseudonyms={"south": "site-7"}), place / "data", 120, refuse=["west"])
    assert sorted(told) == ["north", "site-7"]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["--site", "nobody", "--data", "data/north.csv"], "there is no site 'nobody'"),
        (["--site", "north", "--data", "data/north.csv", "--row", "900"], "They go from 2 to 151"),
        (["--site", "north", "--data", "data/north.csv", "--feature", "agee"], "Did you mean 'age'?"),
        (["--site", "north", "--data", "data/north.csv", "--refuse", "west"], "it is for the page of all sites"),
        (["--data", "data", "--row", "2", "--feature", "age"], "Name the site: --site."),
        (["--data", "data", "--refuse", "easy"], "there is no site 'easy'"),
        (["--data", "data", "--out", "data/north.html"], "north.csv beside it is no table of `vitrail explain`"),
    ],
)
def test_mistakes_on_the_command_line(
    place: Path, given: list[str], words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(place)
    monkeypatch.setattr("sys.argv", ["vitrail", "explain", "run", *given])
    before = {p: p.read_bytes() for p in place.rglob("*") if p.is_file()}
    with pytest.raises(SystemExit) as done:
        main()
    assert done.value.code == 2
    assert words in capsys.readouterr().err
    assert {p: p.read_bytes() for p in place.rglob("*") if p.is_file()} == before


@pytest.mark.parametrize("kind", ["two classes", "three classes", "a number", "a time"])
def test_one_model_moves_the_answer_in_one_direction_at_all_sites(kind: str) -> None:
    """A column that is skewed to the right at one site and to the left at the other, a level that is frequent at one
    and rare at the other: the mean Shapley value has other signs there, and the direction is one."""
    rng, sites = np.random.default_rng(5), {}
    for site, way in (("right", 1), ("left", -1)):
        lab, smokes = way * np.exp(rng.normal(0, 0.9, 400)), rng.random(400) < (0.2 if way > 0 else 0.8)
        score = lab + 1.5 * smokes + rng.normal(0, 0.5, 400)
        outcome: dict[str, Any] = {
            "two classes": {"y": (score > np.median(score)).astype(int)},
            "three classes": {"y": np.digitize(score, np.quantile(score, [0.4, 0.7]))},
            "a number": {"y": score},
            "a time": {"y": 1, "days": rng.exponential(100 * np.exp(-score.clip(-3, 3)))},
        }[kind]
        sites[site] = pd.DataFrame({"lab": lab, "smokes": np.where(smokes, "yes", "no"), **outcome})
    target: dict[str, Any] = {
        "two classes": {"column": "y", "classes": [0, 1]},
        "three classes": {"column": "y", "classes": [0, 1, 2]},
        "a number": {"column": "y", "kind": "number", "scale": 3.0},
        "a time": {"kind": "time", "time": "days", "event": "y", "horizon": 300.0, "intervals": 3, "unit": "days"},
    }[kind]
    features = {"lab": {"kind": "numeric"}, "smokes": FEATURES["smokes"]}
    study = vt.Study.parse({"target": target, "features": features, "training": {"rounds": 60}})
    run = vt.federate(study, sites, method="fedavg")
    told = {site: run.explain(site, frame) for site, frame in sites.items()}
    if kind == "a time":  # the risk that a page shows is that of a prediction
        free = run.predict("right", sites["right"]).iloc[:, -1].to_numpy(float)
        free = free / 100 if free.max() > 1 else free
        shown = [scale_of(told["right"]).share(v) for v in told["right"].total]
        assert np.allclose(shown, 1 - free, atol=1e-4)
        assert told["right"].answer == "“y” by 300 days"
        assert told["right"].chance == "risk"
    table = summarise_sites(told).table.set_index(["feature", "site"])
    assert set(table.sign) == {"+"}
    means = {site: np.sign(e.values.mean(0)).tolist() for site, e in told.items()}
    assert means == {"right": [1, 1], "left": [-1, -1]}, "what was shown before"
    for site, e in told.items():
        assert [r["sign"] for r in e.importance()] == ["+", "+"]
        assert table.loc[("lab", site), "moves"] == "up"
