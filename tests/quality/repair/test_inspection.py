"""Phase C: a site's own rows behind its marks; each planted fault is named first, with its numbers and a repair."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from typer.testing import CliRunner

import vitrail as vt
from vitrail.cli import app
from vitrail.core.facts import OWN
from vitrail.data.encoding import Encoder, fit_encoders
from vitrail.data.readers.tables import clean
from vitrail.quality.repair.effective_values import InputLayers
from vitrail.quality.repair.inspection import NOTHING, ColumnView, SiteInspection, inspect_site
from vitrail.quality.repair.remedies import TAKES
from vitrail.quality.screening.result import LABEL, Finding
from vitrail.runs.setup import build_task
from vitrail.runs.site.inspection import behind, look_behind
from vitrail.runs.site.inspection_text import to_text

HEART = str(vt.datasets.packaged("heart_disease.toml"))
STUDY = vt.Study.load(HEART)
SITES = vt.datasets.heart_disease()


def finding(feature: str, kind: str, wrong: bool = True, **numbers: object) -> Finding:
    return Finding("here", feature, kind, wrong, 1.0, f"here, {feature}: something", numbers)


def encoder_of(frame: pd.DataFrame, study: vt.Study = STUDY) -> Encoder:
    return fit_encoders({"here": clean(frame, study)}, study)["here"]


@cache
def fit_others(site: str) -> LogisticRegression:
    parts = {n: clean(f, STUDY) for n, f in SITES.items() if n != site}
    encoders = fit_encoders(parts, STUDY)
    x = np.concatenate([encoders[n].matrix(f) for n, f in parts.items()])
    y = np.concatenate([f.disease.to_numpy() for f in parts.values()])
    return LogisticRegression(C=0.5, class_weight="balanced", max_iter=1000).fit(x, y)


def others_model(site: str, encoder: Encoder) -> Callable[[pd.DataFrame], np.ndarray]:
    """A stand-in for the shared model: a logistic regression on the three other hospitals."""
    model = fit_others(site)
    return lambda rows: model.predict_log_proba(encoder.matrix(rows))


def seen(site: str, frame: pd.DataFrame, *findings: Finding, study: vt.Study = STUDY, **given: object) -> ColumnView:
    encoder = encoder_of(frame, study)
    expects = others_model(site, encoder) if study is STUDY else None
    return inspect_site(site, frame, study, encoder, findings, expects=expects, **given).views[0]  # type: ignore[arg-type]


def mixed_units(frame: pd.DataFrame) -> None:
    frame.loc[frame.index[::2], "chol"] = (frame.loc[frame.index[::2], "chol"] * 0.02586).round(2)


def whole_unit(frame: pd.DataFrame) -> None:
    frame["chol"] = (frame["chol"] / 38.67).round(2)


def slipped(frame: pd.DataFrame) -> None:
    frame.loc[frame.index[:43], "trestbps"] *= 10


def coded(frame: pd.DataFrame) -> None:
    frame.loc[frame.index[:25], "thalach"] = 999


def clipped(frame: pd.DataFrame) -> None:
    frame["thalach"] = frame["thalach"].clip(upper=140)


def filled(frame: pd.DataFrame) -> None:
    frame.loc[frame.index[::3], "trestbps"] = 133.7


def constant(frame: pd.DataFrame) -> None:
    frame["oldpeak"] = 1.0


def healthy_unmeasured(frame: pd.DataFrame) -> None:
    frame.loc[frame.disease == 0, "oldpeak"] = np.nan


def turned(frame: pd.DataFrame) -> None:
    frame["oldpeak"] = -frame["oldpeak"]


def swapped_code(frame: pd.DataFrame) -> None:
    frame["exang"] = 1 - frame["exang"]


def recoded(frame: pd.DataFrame) -> None:
    frame["cp"] = frame["cp"].map({1: 2, 2: 3, 3: 4, 4: 1})


def swapped_label(frame: pd.DataFrame) -> None:
    frame["disease"] = 1 - frame["disease"]


# fault: column, the screening's cause and numbers, what own rows and repair must say, what the file alone shows
PLANTED: dict[Callable[[pd.DataFrame], None], tuple[str, str, dict[str, object], str, str]] = {
    mixed_units: ("chol", "unit in part", {"factor": 38.67}, "152 of 303 values change", "unit in part"),
    whole_unit: ("chol", "unit", {"factor": 38.67}, "303 before, 0 after", "unit"),
    slipped: ("trestbps", "unit in part", {"factor": 0.1}, "10 times too large", "unit in part"),
    coded: ("thalach", "code", {"code": 999.0}, "25 of 303 cells hold 999", "code"),
    clipped: ("thalach", "clipped", {}, "values are 140, the largest", "clipped"),
    filled: ("trestbps", "code", {"code": 133.7}, "values are 133.7", "code"),
    constant: ("oldpeak", "constant", {}, "303 of 303 values are 1", "constant"),
    turned: ("oldpeak", "sign", {"offset": 0}, "0 - value", "sign"),
    swapped_code: ("exang", "sign", {}, "with 0 read as 1 and 1 read as 0", "recoded"),
    recoded: ("cp", "recoded", {"levels": {"1": "4", "2": "1", "3": "2", "4": "3"}}, "1 becomes 4", "recoded"),
    swapped_label: (LABEL, "label flip", {}, "from 0 to 1", "label flip"),
}


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_the_screenings_cause_comes_first_with_the_own_rows(
    plant: Callable[[pd.DataFrame], None], tmp_path: Path
) -> None:
    """One list: what the file or the shared model shows of the same is no second cause."""
    feature, kind, numbers, words, shown = PLANTED[plant]
    frame = SITES["cleveland"].copy()
    plant(frame)
    view = seen("cleveland", frame, finding(feature, kind, **numbers))
    first = view.causes[0]
    assert first.kind == kind
    assert words in f"{first.numbers}. {first.repair}", first
    assert shown not in [c.kind for c in view.causes[1:]]
    if kind in TAKES:
        assert first.count > 0
        assert f"--cause {shlex.quote(kind)}" in first.command
        frame.to_csv(tmp_path / "ours.csv", index=False)
        done = CliRunner().invoke(app, ["repair", HEART, str(tmp_path / "ours.csv"), *shlex.split(first.command)])
        assert done.exit_code == 0, done.exception
        assert f"{first.count} of" in done.output
    else:
        assert not first.command


@pytest.mark.parametrize("plant", [*PLANTED, healthy_unmeasured], ids=lambda plant: plant.__name__)
def test_without_a_finding_the_file_and_the_layers_tell(plant: Callable[[pd.DataFrame], None]) -> None:
    frame = SITES["cleveland"].copy()
    plant(frame)
    feature, shown = (PLANTED[plant][0], PLANTED[plant][4]) if plant in PLANTED else ("oldpeak", "missing by class")
    encoder = encoder_of(frame)
    views = inspect_site("here", frame, STUDY, encoder, [], [feature], expects=others_model("cleveland", encoder)).views
    assert [c.kind for c in views[0].causes][:1] == [shown]


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_finding_alone_conjures_up_no_repair(plant: Callable[[pd.DataFrame], None]) -> None:
    """On rows without the fault: either it would fit worse, or what it speaks of is not there."""
    feature, kind, numbers, _, _ = PLANTED[plant]
    if kind not in TAKES or feature in ("exang", "cp", LABEL):  # codes that mean something else look like any
        return
    view = seen("cleveland", SITES["cleveland"], finding(feature, kind, **numbers))
    said = f"{view.causes[0].numbers} {view.causes[0].repair}"
    assert "this file does not show it" in said or "he values do not show which rows" in said
    assert not view.causes[0].command


def test_what_may_be_real_is_asked_about_and_not_repaired() -> None:
    view = seen("cleveland", SITES["cleveland"], finding("chol", "differs", wrong=False))
    assert view.causes == ()
    assert view.verdict == NOTHING
    assert view.judged == "differs, and may be real"
    assert "ask before you change anything" in view.ask
    frame = SITES["cleveland"].copy()
    clipped(frame)
    assert seen("cleveland", frame, finding("thalach", "differs", wrong=False)).causes[0].kind == "clipped"


@pytest.mark.parametrize("numbers", [{"factor": "x"}, {"factor": None}, {}, {"factor": 0.0}, {"factor": -1e300}])
def test_a_coordinators_numbers_are_no_command(numbers: dict[str, object]) -> None:
    view = seen("cleveland", SITES["cleveland"], finding("chol", "unit", **numbers))
    assert view.causes[0].command == ""
    other = seen("cleveland", SITES["cleveland"], finding("chol", "swapped", other="$(reboot)"))
    assert other.causes[0].command == ""


def test_declared_codes_are_missing_and_undeclared_ones_a_cause() -> None:
    """Switzerland wrote 0 for every cholesterol."""
    view = seen("switzerland", SITES["switzerland"], finding("chol", "not here", wrong=False))
    assert [c.kind for c in view.causes] == ["not here"]
    assert "123 cells hold 0, which the study reads as missing" in view.causes[0].numbers
    assert all(g.missing == g.rows for g in view.groups)
    undeclared = STUDY.with_changes(features={**STUDY.model_dump()["features"], "chol": CHOL})
    view = seen("switzerland", SITES["switzerland"], finding("chol", "code", code=0), study=undeclared)
    assert [c.kind for c in view.causes] == ["code"]
    assert "123 of 123 cells hold 0 and are emptied; 123 of 123 values are 0" in view.causes[0].numbers
    assert view.causes[0].rows == (0, 1, 2, 3, 4)


CHOL = {"kind": "numeric", "range": (80.0, 700.0), "unit": "mg/dL"}


def test_the_picture_is_the_sites_rows_by_class() -> None:
    frame = SITES["hungarian"]
    view = seen("hungarian", frame, finding("chol", "differs"))
    for group, sick in zip(view.groups, (0, 1), strict=True):
        here = frame[frame.disease == sick].chol.replace(0, np.nan)  # 0 is declared as missing
        assert (group.rows, group.missing) == (len(here), here.isna().sum())
        assert group.counts == tuple(np.histogram(here.dropna(), view.edges)[0])
        assert sum(group.counts) == here.notna().sum(), "nobody falls outside the bins"
    levels = seen("hungarian", frame, finding("slope", "differs"))
    for group, sick in zip(levels.groups, (0, 1), strict=True):
        here = frame[frame.disease == sick].slope
        assert group.counts == tuple((here == k).sum() for k in (1, 2, 3))
    assert levels.causes[0].kind == "missing by class", "the slope was measured in the sick"
    label = seen("hungarian", frame, finding(LABEL, "label flip"))
    assert label.groups[0].counts == tuple((frame.disease == k).sum() for k in (0, 1))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "run"
    # two publish: too few for findings, which would take their time here
    vt.federate(STUDY, SITES, method="ifedavg", seed=1, rounds=15, out=out, refuse=["va", "switzerland"])
    return out


@pytest.fixture(scope="module")
def run(folder: Path) -> vt.Run:
    return vt.Run.load(folder)


def test_the_outline_is_read_by_the_average_other_site_as_the_own_values_are_here(run: vt.Run) -> None:
    """Own reading (z + b) w; of the outlined value, with the others' mean layers, the same.

    A site that refused to publish has its own layer all the same.
    """
    frame, name = SITES["va"], "oldpeak"
    view = look_behind(run, "va", frame, [name]).views[0]
    at = run.encoders["va"].columns.index(name)
    b, w = (float(run.models["va"][f"params/input.{k}"].ravel()[at]) for k in ("shift", "scale"))
    table = run.shifts().query("feature == @name").pivot(index="site", columns="layer", values="value")
    others = table.loc[["cleveland", "hungarian"]].mean()
    mean, sd = run.encoders["va"].mean[name], run.encoders["va"].sd[name]
    read = ((frame[name] - mean) / sd + b) * w
    outlined = mean + sd * (read / others.w_in - others.b_in)
    for group, sick in zip(view.groups, (0, 1), strict=True):
        assert group.taken == tuple(np.histogram(outlined[frame.disease == sick].dropna(), view.edges)[0])
    assert [g.taken for g in view.groups] != [g.counts for g in view.groups]
    assert "average of 2 other sites" in view.reading
    assert "the only other site" in look_behind(run, "hungarian", SITES["hungarian"], [name]).views[0].reading


def ends(w: float, others_w: float = 1.0, b: float = 0.0, others: int = 3) -> InputLayers:
    width = len(encoder_of(SITES["va"]).columns)
    one = np.ones(width)
    return InputLayers(b * one, w * one, 0 * one, others_w * one, others)


def test_the_shift_in_words_is_in_the_columns_unit() -> None:
    frame = SITES["cleveland"]
    sd = encoder_of(frame).sd["thalach"]
    view = seen("cleveland", frame, finding("thalach", "differs"), ends=ends(2.0, b=-0.5))
    assert f"shifts these values by {-0.5 * 2 * sd:+.3g} 1/min and scales them by 2 " in view.reading
    same = seen("cleveland", frame, finding("thalach", "differs"), ends=ends(1.0, others=1))
    assert same.reading == "The only other site that published its layers would read these values as this site does."
    assert [g.taken for g in same.groups] == [g.counts for g in same.groups]
    levels = seen("cleveland", frame, finding("exang", "sign"), ends=ends(-1.0, b=-1.0))
    assert levels.read_as[0][0] == pytest.approx(1.0), "turned round: 0 counts as 1"
    assert levels.read_as[1][0] == pytest.approx(0.0)


@pytest.mark.parametrize("given", [None, ends(1.0, others_w=0.001)], ids=["nobody published", "switched off"])
def test_no_outline_where_there_is_nothing_to_hold_it_against(given: InputLayers | None) -> None:
    for feature in ("thalach", "cp", "sex"):
        view = seen("cleveland", SITES["cleveland"], finding(feature, "differs"), ends=given)
        assert not any(g.taken for g in view.groups)
        assert view.read_as == ()
        assert ("No other site published" if given is None else "switch this column off") in view.reading


def test_far_off_readings_do_not_squash_the_picture() -> None:
    frame = SITES["cleveland"]
    view = seen("cleveland", frame, finding("thalach", "differs"), ends=ends(50.0))
    span = frame.thalach.max() - frame.thalach.min()
    assert view.edges[-1] - view.edges[0] < 3.5 * span
    assert view.beyond + sum(sum(g.taken) for g in view.groups) == len(frame)
    assert view.beyond > 0


def test_a_number_as_target_and_global_standardisation() -> None:
    plain = STUDY.model_dump()
    features = {k: v for k, v in plain["features"].items() if k != "thalach"}
    target = {"column": "thalach", "kind": "number", "center": 140.0, "scale": 25.0}
    study = vt.Study.parse({"target": target, "features": features, "standardise": "global"})
    frame = SITES["cleveland"]
    told = inspect_site("cleveland", frame, study, encoder_of(frame, study), [], ["thalach", "oldpeak", "sex"])
    label, oldpeak, sex = told.views
    assert sum(label.groups[0].counts) == len(frame)
    assert [g.name for g in oldpeak.groups] == [g.name for g in sex.groups] == ["all rows"]
    assert oldpeak.pooled is not None
    assert oldpeak.pooled[0] == pytest.approx(frame.oldpeak.mean())


def test_other_rows_than_the_runs_are_said(run: vt.Run) -> None:
    assert look_behind(run, "cleveland", SITES["cleveland"]).same
    other = look_behind(run, "cleveland", SITES["cleveland"].iloc[1:])
    assert not other.same
    assert "not those that the run saw" in to_text(other)


def test_a_reading_is_judged_by_the_answers_of_the_loss() -> None:
    """Under evidence a score says another share than under cross-entropy."""
    study = STUDY.with_changes(training={"loss": "evidence"})
    run = vt.federate(study, SITES, method="ifedavg", rounds=20)
    frame = SITES["cleveland"].assign(disease=1 - SITES["cleveland"].disease)
    told = {view.name: view for view in look_behind(run, "cleveland", frame, ["disease"]).views}
    (cause,) = told[LABEL].causes
    task, layers = build_task(study, run.method, run.seed), behind(run, "cleveland").layers
    own = run.model_of("cleveland").models()[OWN]
    shared = {k: layers[k].to(v).reshape(1, *v.shape) if k in layers else v[None] for k, v in own.items()}
    x = torch.from_numpy(run.model_of("cleveland").encoder.matrix(clean(frame, study))).float()
    p = task.loss.predictions(task.output(shared, x[None])[0].double())
    y = torch.tensor(frame.disease.to_list())
    losses = [torch.stack([-p[y == k, to[k]].log().mean() for k in (0, 1)]).mean() for to in ((0, 1), (1, 0))]
    assert "falls from {:.2f} to {:.2f}".format(*losses) in cause.numbers


def test_text_and_silence(run: vt.Run) -> None:
    frame = SITES["cleveland"]
    share = 100 * np.mean(frame.disease == 1)
    told = SiteInspection(
        "here", "", "disease", 303, True, (seen("cleveland", frame, finding(LABEL, "label flip")),), ()
    )
    assert f"1 {share:.0f} %" in to_text(told)
    assert "is yes written as no?" in to_text(told)
    quiet = to_text(inspect_site("here", frame, STUDY, encoder_of(frame)))
    assert "fits as well as chance allows" in quiet
    assert "--feature" in quiet
    drawn = to_text(look_behind(run, "cleveland", frame, ["chol"]))
    assert "█" in drawn
    assert "mg/dL" in drawn


def test_all_mistakes_at_once(run: vt.Run) -> None:
    with pytest.raises(vt.VitrailError, match="cannot look") as caught:
        look_behind(run, "clevland", SITES["cleveland"], ["chole", "age", "nose"])
    said = [str(p) for p in caught.value.problems]
    assert len(said) == 3
    assert "Did you mean 'cleveland'" in said[0]
    assert "Did you mean 'chol'" in said[1]
    with pytest.raises(vt.VitrailError, match="does not fit the study"):
        look_behind(run, "cleveland", SITES["cleveland"].drop(columns="age"))


def test_it_works_for_a_method_without_private_layers() -> None:
    plain = vt.federate(STUDY, SITES, method="fedavg", rounds=1)
    told = look_behind(plain, "cleveland", SITES["cleveland"], ["chol"])
    assert isinstance(told, SiteInspection)
    view = next(v for v in told.views if v.name == "chol")
    assert view.reading == "", "there is no layer that could read it otherwise"


def test_on_the_command_line(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    SITES["cleveland"].to_csv("ours.csv", index=False)
    before = {p: p.stat().st_mtime_ns for p in folder.rglob("*")}
    words = ["look", str(folder), "--site", "cleveland", "--data", "ours.csv"]

    def ask(*more: str) -> str:
        done = CliRunner().invoke(app, [*words, *more])
        if isinstance(done.exception, vt.VitrailError):
            return str(done.exception)
        assert done.exit_code == 0, done.output
        return done.output

    said = ask("--feature", "chol", "--feature", "disease")
    assert said.startswith("This stays at cleveland.")
    assert "chol" in said
    page = tmp_path / "look-cleveland.html"
    assert str(page) in said
    assert "<title>Own data of cleveland" in page.read_text()
    assert {p: p.stat().st_mtime_ns for p in folder.rglob("*")} == before, "nothing is written into the run"
    ask()  # an earlier page may be written over, nothing else
    table = Path("ours.csv").read_text()
    assert "no page of `vitrail look`" in ask("--out", "ours.csv")
    assert Path("ours.csv").read_text() == table
    assert "it is a folder" in ask("--out", str(tmp_path))
    assert "does not exist" in ask("--out", str(tmp_path / "nowhere" / "page.html"))
    assert "there is none" in ask("--data", "other.csv")
    assert "Did you mean 'cleveland'" in ask("--site", "clevland")
