"""A site's own pictures beside what its model says: which are shown, and that a wrong label is found."""

from __future__ import annotations

import re

import pytest

import vitrail as vt
from tests.support.album import CLASSES, album
from tests.support.stripes import STUDY, stripes
from vitrail.analysis.images.gallery import HELD, TRAINED, TYPICAL, Album, to_text
from vitrail.data.splitting import split_rows
from vitrail.report.pages.site import render_private
from vitrail.runs.site.inspection import look_behind


def shown(told: Album) -> dict[str, list[str]]:
    return {g.title: [re.sub(r"\D", "", s.name) for s in g.shots] for g in told.galleries}


def test_which_pictures_are_shown() -> None:
    labels = [0, 0, 1, 1, 0, 1, 0]
    towards = [0.9, 0.99, 0.2, 0.95, 0.02, 0.45, 0.97]
    held = [True, True, True, True, True, False, False]
    told = album(labels, towards, held)
    assert shown(told) == {
        "Wrong, the most certain first": ["1", "0", "2"],
        "Wrong, although the model was trained on them": ["6", "5"],
        "Least sure": ["2", "0", "3", "4", "1"],
        "Typical: plain": ["4"],
        "Typical: stripes": ["3"],
    }
    assert told.counts[HELD].tolist() == [[1, 2], [1, 1]]
    assert told.counts[TRAINED].tolist() == [[0, 1], [1, 0]]
    first = told.galleries[0].shots[0]
    assert (first.label, first.said, first.held_out) == ("plain", "stripes", True)
    assert first.share == pytest.approx(0.99)
    assert "a label may be wrong" in told.galleries[1].words
    assert told.sentences()[0].startswith("Of 5 pictures that were not used in training, the model classifies 2 corr")


def test_typical_is_neither_the_surest_nor_the_least_sure() -> None:
    towards = [0.51, 0.6, 0.7, 0.8, 0.81, 0.82, 0.83, 0.84, 0.9, 0.99, 0.999]
    typical = shown(album([1] * len(towards), towards, [True] * len(towards)))["Typical: stripes"]
    assert len(typical) == TYPICAL
    assert not {"0", "9", "10"} & set(typical)


def test_pictures_that_the_run_did_not_see() -> None:
    told = album([0, 1], [0.9, 0.8], None)
    assert not told.same
    assert list(shown(told)) == ["Wrong, the most certain first", "Least sure", "Typical: stripes"]
    assert "no training saw" not in to_text(told) + told.galleries[0].words
    assert "not the pictures that the run saw" in render_private(told)


def test_a_wrong_label_that_was_trained_on_comes_first() -> None:
    """Labels of two training pictures are turned round; the model, which learned what stripes are, says so."""
    sites = stripes({"east": 24, "north": 60, "south": 60})
    frame = sites["north"].copy()
    y = (frame.finding == "stripes").to_numpy().astype(int)
    turned = None
    for attempt in range(10):  # which pictures are trained on depends on the labels
        rows = [attempt, len(frame) - 1 - attempt]
        y_wrong = y.copy()
        y_wrong[rows] = 1 - y_wrong[rows]
        if set(rows) <= set(split_rows(y_wrong, STUDY, STUDY.seeds[0], "north")[0].tolist()):
            turned = rows
            break
    assert turned
    frame.iloc[turned, frame.columns.get_loc("finding")] = [CLASSES[k] for k in 1 - y[turned]]
    run = vt.federate(STUDY, {**sites, "north": frame}, rounds=40)
    told = look_behind(run, "north", frame)
    assert isinstance(told, Album)
    wrong = next(g for g in told.galleries if g.title.startswith("Wrong, although"))
    assert {s.name for s in wrong.shots[:2]} == set(frame.index[turned])
