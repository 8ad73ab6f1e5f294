"""Of two classes, the study says which one is the event: in the draft, on screen and on pages; and it can be set."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import vitrail as vt
from tests.support.command import vitrail
from tests.support.picture_sites import soft, write_folder
from vitrail.data.event_class import decision_sentence, draft_notes, event_sentence
from vitrail.report.pages.builder import page_of
from vitrail.report.pages.run import render
from vitrail.study.model import Study


def study_of(classes: list[str], **target: str) -> Study:
    return Study.parse(
        {
            "target": {"column": "y", "classes": classes, **target},
            "features": {"x": {"kind": "numeric"}},
            "metrics": ["auc"],
        }
    )


def test_the_event_is_named_where_there_are_two_classes() -> None:
    assert event_sentence(study_of(["ill", "well"], positive="ill").target) == 'The event is "ill" in "y".'
    assert event_sentence(study_of(["ill", "well"]).target) == 'The event is "well" in "y".'
    assert event_sentence(study_of(["a", "b", "c"]).target) == ""
    assert draft_notes(study_of(["a", "b", "c"]).target) == []
    (note,) = draft_notes(study_of(["ill", "well"], positive="well").target)
    assert 'write positive = "ill" under [target]' in note


def test_a_drafted_picture_study_says_which_class_it_took(tmp_path: Path) -> None:
    for i, site in enumerate(("north", "south")):
        write_folder(tmp_path / "data" / site, soft(8, i))
    done = vitrail("init", tmp_path / "data", "--target", "class", "--out", tmp_path / "study.toml")
    shown = done.stdout
    assert done.returncode == 0, done.stderr
    sentence = 'The event is "well" in "class".'
    assert sentence in shown
    assert "Between machines about" in shown
    text = (tmp_path / "study.toml").read_text()
    comments = [line for line in text.splitlines() if line.startswith("#")]
    assert any(sentence in line and 'positive = "ill"' in line for line in comments)
    assert tomllib.loads(text)["target"]["positive"] == "well"
    (tmp_path / "study.toml").write_text(text.replace('positive = "well"', 'positive = "ill"'))
    assert Study.load(tmp_path / "study.toml").target.levels == ("well", "ill"), "whoever reads it can set the other"


def test_a_class_with_odd_letters_stays_within_its_comment(tmp_path: Path) -> None:
    odd = 'x"\n[network]'
    (note,) = draft_notes(study_of(["a", odd], positive=odd).target)
    assert "\n" not in note


@pytest.mark.parametrize(("positive", "right"), [("yes", 0), ("no", 1)])
def test_the_f1_of_the_event_and_pages_follow_what_is_set(positive: str, right: int) -> None:
    rng = np.random.default_rng(0)
    tables = {}
    for site in ("a", "b"):
        x = rng.normal(size=100)
        tables[site] = pd.DataFrame({"x": x, "sick": np.where(x + rng.normal(size=100) > 1.2, "yes", "no")})
    target = {"column": "sick", "classes": ["no", "yes"], "positive": positive}
    study = Study.parse(
        {
            "target": target,
            "features": {"x": {"kind": "numeric"}},
            "network": {"kind": "linear"},
            "training": {"rounds": 10, "class_weights": "none", "lr": 0.02},
            "metrics": ["f1_event", "accuracy"],
            "screen": {"ask": False},
        }
    )
    run = vt.federate(study, tables)
    scores = run.scores().pivot(index="site", columns="metric", values="value")
    assert (scores["f1_event"] > scores["accuracy"]).all() == bool(right), "the common class is easily found"
    assert f"The event is &#34;{positive}&#34; in &#34;sick&#34;." in render(page_of(run))


def test_the_f1_of_the_event_needs_two_classes() -> None:
    with pytest.raises(vt.VitrailError, match="f1_event is about one of two classes, but the target has 3"):
        Study.parse(
            {"target": {"column": "y", "classes": ["a", "b", "c"]}, "features": {"x": {"kind": "numeric"}},
             "metrics": ["f1_event"]}
        )  # fmt: skip


def test_the_threshold_of_decisions_is_stated() -> None:
    study = study_of(["ill", "well"])
    assert "the site's own event rate" in decision_sentence(study.target)
    assert "at least 12.5 %." in decision_sentence(study.with_changes(target={"threshold": 0.125}).target)
    assert decision_sentence(study_of(["a", "b", "c"]).target) == ""
