"""A site takes prototypes out of its model by hand: a model that goes by a mark through them loses that, one of which
others carry the mark does not, nothing is written in place, and slips are told all at once."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from typer.testing import CliRunner

import vitrail as vt
from tests.support.marked_prototypes import ILL, SITE, STUDY, WELL, by_hand, squares
from tests.support.stripes import STUDY as STRIPES
from tests.support.stripes import stripes, write_folders
from vitrail.analysis.images.gallery import Album
from vitrail.analysis.images.prototype_removal import NOW_RIGHT, PrototypeRemoval, RemovedPrototype
from vitrail.cli import app
from vitrail.core.errors import VitrailError
from vitrail.core.facts import ALONE, OWN, SHARED
from vitrail.report.pages.site import render_private
from vitrail.runs.result import Run
from vitrail.runs.site.inspection import look_behind
from vitrail.runs.site.inspection_text import to_text
from vitrail.runs.site.prototype_removal import correct, remove_prototypes

FOUR = squares(["well", "ill", "well marked", "ill marked"])


def likely(run: Run, removed: Sequence[str] = ()) -> list[str]:
    mine = run.model_of(SITE)
    model = remove_prototypes(mine, removed)[0] if removed else mine
    return [str(name) for name in model.predict(FOUR)[list(STUDY.target.levels)].idxmax(axis=1)]


def looked(run: Run, frame: pd.DataFrame, without: Sequence[str], pictures: Sequence[str] = ()) -> Album:
    album = look_behind(run, SITE, frame, [], pictures, without)
    assert isinstance(album, Album)
    return album


def removal_of(album: Album) -> PrototypeRemoval:
    assert album.removal is not None
    return album.removal


def test_a_model_that_goes_by_a_mark_through_one_prototype_loses_that() -> None:
    """The control: the marked picture without the finding is called ill until the prototype is gone, and no other
    prototype of the class does that; what belongs to the class is still recognised."""
    run = by_hand([4])
    assert likely(run) == [WELL, ILL, ILL, ILL]
    assert likely(run, [f"{ILL}:4"]) == [WELL, ILL, WELL, ILL]
    for other in (1, 2, 3, 5, 10):
        assert likely(run, [f"{ILL}:{other}"]) == [WELL, ILL, ILL, ILL]
    corrected, _ = remove_prototypes(run.model_of(SITE), [f"{ILL}:4"])
    p = corrected.predict(FOUR)[ILL].to_numpy()
    was = run.model_of(SITE).predict(FOUR)[ILL].to_numpy()
    assert np.abs(p[2:] - p[:2]).max() < 0.01 < 0.6 < was[2] - was[0], "the mark moves the answer no more"


def test_where_several_carry_the_mark_one_is_not_enough_and_the_page_says_so() -> None:
    frame = squares(["well", "marked only"] * 12, 3)
    run = by_hand([2, 7])
    assert likely(run, [f"{ILL}:2"]) == [WELL, ILL, ILL, ILL]
    assert likely(run, [f"{ILL}:2", f"{ILL}:7"]) == [WELL, ILL, WELL, ILL]
    text = to_text(looked(run, frame, [f"{ILL}:2"]))
    assert "none of 24 predictions on pictures here changes" in text
    assert f"One place still decides on class {ILL}: other prototypes go by it, too" in text
    both = to_text(looked(run, frame, [f"{ILL}:2", f"{ILL}:7"]))
    assert f"Without prototypes 2 and 7 of {ILL}, 12 of 24 predictions on pictures here change: 12 now wrong." in both
    assert f"On most pictures of class {ILL} the model now predicts another class" in both
    assert "a model that no longer relies on it can score lower here although it is better elsewhere" in both


def test_scores_before_and_after_are_those_of_the_pictures() -> None:
    """Half of the pictures without the finding carry the mark: balanced accuracy is 3/4 before and 1 after."""
    frame = squares(["well", "well marked", "ill", "ill marked"] * 6, 5)
    album = looked(by_hand([1]), frame, [f"{ILL}:1"])
    removal = removal_of(album)
    before, after = removal.scores["balanced_accuracy"]
    assert (before.value, after.value) == pytest.approx((0.75, 1.0))
    assert (removal.pictures, removal.held_out) == (24, False), "these are not the pictures of the run"
    assert {c.verdict for c in removal.changed} == {NOW_RIGHT}
    assert sorted(c.name for c in removal.changed) == sorted(frame.index[1::4])
    html = render_private(album)
    assert f"Without prototype 1 of {ILL}" in html
    assert html.count("now right") == 6 + 1, "each picture, and the sentence"


def test_on_the_pictures_of_the_run_only_those_held_out_count() -> None:
    run = by_hand([1])
    album = looked(run, squares(["well", "ill marked"] * 10, 0), [f"{ILL}:1"])
    assert removal_of(album).held_out
    assert removal_of(album).pictures == int((run.held_out().site == SITE).sum()) < 20


def test_the_constant_keeps_the_mean_and_fits_the_training_pictures() -> None:
    """The control: without it every picture is called well once the class has lost all its prototypes but one, although
    that one tells them apart."""
    run, frame = by_hand([1]), squares(["well", "ill marked"] * 10, 0)
    seen, mine, asked = run.info["fingerprints"][SITE], run.model_of(SITE), [f"{ILL}:{n}" for n in range(1, 10)]
    plain, _ = remove_prototypes(mine, asked)
    assert (plain.predict(FOUR)[ILL] < 0.5).all()
    corrected = correct(mine, SITE, frame, seen, asked)
    assert corrected.fitted
    assert list(corrected.model.predict(FOUR)[ILL] > 0.5) == [False, True, False, True]
    training = frame[~np.isin(frame.index, run.held_out().query("site == @SITE").row)]
    p = corrected.model.predict(training)[ILL]
    assert p.mean() == pytest.approx((training.finding == ILL).mean(), abs=0.05), "what happens is as likely as it is"
    assert not correct(mine, SITE, frame.iloc[1:], seen, asked).fitted, "other pictures than those of the run"
    text = to_text(looked(run, frame.iloc[1:], asked[:1]))
    assert "The model's constant could not be fitted again" in text
    assert "could not be fitted" not in to_text(looked(run, frame, asked[:1]))


def test_only_the_model_in_use_is_changed_and_only_in_a_copy() -> None:
    mine = by_hand([4]).model_of(SITE)
    kept = {k: v.clone() for k, v in mine.tensors.items()}
    corrected, removed = remove_prototypes(mine, [f"{ILL}:4", f"{ILL}:4", f"{WELL}:1"])
    assert removed == (RemovedPrototype(ILL, 4, 10), RemovedPrototype(WELL, 1, 10))
    assert all(torch.equal(v, kept[k]) for k, v in mine.tensors.items())
    old, new = mine.models(), corrected.models()
    for role in (SHARED, ALONE):
        assert all(torch.equal(v, new[role][k]) for k, v in old[role].items())
    weights = old[OWN]["last.weight"].clone()
    weights[:, [13, 0]] = 0
    assert torch.equal(new[OWN]["last.weight"], weights)
    assert torch.equal(new[OWN]["prototypes"], old[OWN]["prototypes"])


def test_all_slips_are_told_at_once() -> None:
    with pytest.raises(VitrailError) as told:
        remove_prototypes(by_hand([4]).model_of(SITE), ["il:4", "ill", f"{ILL}:11", f"{ILL}:0", f"{ILL}:x"])
    text = str(told.value)
    assert len(told.value.problems) == 5
    assert "there is no class 'il'. Did you mean 'ill'?" in text
    assert "expected CLASS:NUMBER, got 'ill'." in text
    assert "class ill has no prototype 11. Its prototypes have the numbers 1 to 10." in text


def do(*words: object, code: int = 0) -> str:
    done = CliRunner().invoke(app, [*map(str, words)])
    if isinstance(done.exception, VitrailError):  # `main` prints it and ends with 2
        assert code == 2, done.exception
        return str(done.exception)
    assert done.exit_code == code, f"{done.output}{done.exception!r}"
    return done.output


def test_the_verb_saves_a_corrected_model_as_a_new_file(tmp_path: Path) -> None:
    run, frame = by_hand([4]), squares(["well", "well marked", "ill"] * 4, 5)
    run.save(tmp_path / "run")
    data = write_folders(tmp_path, {"data": frame.rename(lambda n: f"all/{n}")}) / "data"
    for name, row in frame.iterrows():
        (data / row.finding).mkdir(exist_ok=True)
        (data / "all" / str(name)).rename(data / row.finding / str(name))
    (data / "all").rmdir()
    was = {p: p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()}
    page, file = tmp_path / "look.html", tmp_path / "corrected.vitrail"
    words = ["look", tmp_path / "run", "--site", SITE, "--data", data, "--out", page]
    text = do(*words, "--without-prototype", f"{ILL}:4", "--write", file)
    assert re.search(r"balanced accuracy: 0\.750 \(.*\) before, 1\.000 \(.*\) after", text)
    assert "The model in use was not changed." in text
    assert {p: p.read_bytes() for p in was} == was
    told = do("predict", file, write_folders(tmp_path, {"new": FOUR}, labels=False) / "new")
    shares = [float(line.split(",")[2]) for line in told.splitlines() if ".png," in line]
    assert [share > 0.5 for share in shares] == [False, True, False, True]
    assert "it exists already" in do(*words, "--without-prototype", f"{ILL}:4", "--write", file, code=2)
    assert "there is no corrected model without --without-prototype" in do(*words, "--write", file, code=2)
    assert "has no prototype 12" in do(*words, "--without-prototype", f"{ILL}:12", code=2)


def test_a_run_without_prototypes_says_so() -> None:
    run = vt.federate(STRIPES.with_changes(training={"rounds": 1}), stripes({"east": 24, "north": 24}))
    with pytest.raises(VitrailError, match="the model has no prototypes: its network is of kind 'cnn'"):
        look_behind(run, "east", stripes({"east": 24})["east"], [], [], ["plain:1"])
    tables = vt.datasets.heart_disease()
    study = vt.Study.infer(tables, target="disease", training={"rounds": 1})
    table_run = vt.federate(study, tables)
    with pytest.raises(VitrailError) as told:
        look_behind(table_run, "va", tables["va"], [], ["a.png"], ["x:1"])
    assert [p.where for p in told.value.problems] == ["--picture", "--without-prototype"]
