"""One picture under each of a site's models: what is shown adds up to the score, and hiding the mark changes it."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from tests.support.marked_prototypes import ILL, SITE, STUDY, WELL, by_hand, squares
from vitrail.analysis.images.occlusion_map import hide
from vitrail.analysis.images.picture_evidence import (
    LINES,
    Case,
    CasePicture,
    PrototypePart,
    ViewedModel,
    answers_of,
    make_case,
)
from vitrail.core.facts import OWN
from vitrail.nets.prototype_network import ProtoNet, prototypes

CLASSES = ("round", "square", "none")
SHARES = partial(torch.softmax, dim=-1)


def random_models(net: ProtoNet) -> list[ViewedModel]:
    out = []
    for seed, title in ((3, "shared"), (5, "alone")):
        params = net.init(torch.Generator().manual_seed(seed))
        params["last.weight"] = params["last.weight"] + 0.3 * torch.randn(
            params["last.weight"].shape, generator=torch.Generator().manual_seed(seed)
        )
        one = {k: v[None] for k, v in params.items()}
        out.append(ViewedModel(title, lambda x, one=one: net.forward(one, x[None], tape=False).z[0], params))
    return out


def test_under_each_model_similarity_times_weight_sums_to_the_score() -> None:
    """Of the class that the first model predicts, also where the second predicts another."""
    net = prototypes((1, 28, 28), 3, width=4, per_class=6)
    models, draw = random_models(net), np.random.default_rng(5)
    parts = [[PrototypePart(name, k + 1, 0.0, None) for name in CLASSES for k in range(6)]] * 2
    for i in range(4):
        one = CasePicture(f"{i}.png", draw.integers(0, 256, (1, 28, 28), dtype=np.uint8), "round")
        case = make_case(net, models, parts, one, CLASSES, SHARES)
        z = [m.scores(torch.from_numpy(one.picture[None]))[0] for m in models]
        of = int(z[0].argmax())
        assert case.of == CLASSES[of] == case.views[0].answer.said
        assert case.right == (case.of == "round")
        assert case.views[1].answer.said != case.of, "the class of the first is asked of both"
        for view, scores in zip(case.views, z, strict=True):
            assert view.total == pytest.approx(float(scores[of]), abs=1e-4)
            assert sum(line.adds for line in view.lines) + view.rest == pytest.approx(view.total, abs=1e-4)
            assert [line.adds for line in view.lines] == pytest.approx(
                [x.alike * x.weight for x in view.lines], rel=1e-3
            )
            assert len(view.lines) == LINES
            assert abs(view.lines[0].adds) == max(abs(line.adds) for line in view.lines)
            assert view.answer.share == pytest.approx(float(scores.softmax(-1)[of]), abs=1e-6)


def marked_case(kind: str) -> Case:
    mine = by_hand([4]).model_of(SITE)
    task, scorer = mine.scorer()
    model = ViewedModel("your model", scorer, mine.models()[OWN])
    parts = [PrototypePart(name, k + 1, 0.0, None) for name in (WELL, ILL) for k in range(10)]
    picture = squares([kind]).picture.iloc[0]
    return make_case(
        task.net, [model], [parts], CasePicture("new.png", picture), STUDY.target.levels, task.loss.predictions
    )


def test_painting_over_the_place_that_decides_takes_the_mark_away() -> None:
    case = marked_case("well marked")
    assert (case.label, case.of, case.right) == ("", ILL, True), "of a new picture no label is known"
    view = case.views[0]
    top, left, bottom, right = view.hidden.strongest
    assert 13 <= (top + bottom) / 2 <= 25
    assert 3 <= (left + right) / 2 <= 15
    assert (view.answer.said, view.covered.said) == (ILL, WELL)
    assert view.answer.share > 0.9 > 0.5 > view.covered.share
    changed = (case.painted != case.picture).any(0)
    assert changed.any()
    assert not changed[:top].any()
    assert not changed[:, right:].any()
    assert (view.lines[0].part.of, view.lines[0].part.number) == (ILL, 4), (
        "the prototype that carries the mark is first"
    )


def test_without_a_mark_there_is_nothing_to_take_away() -> None:
    """The control: painting over a place of a picture that is all grey changes nothing."""
    case = marked_case("well")
    view = case.views[0]
    assert (case.of, view.covered.said) == (WELL, WELL)
    assert view.covered.share == pytest.approx(view.answer.share, abs=1e-3)


def test_the_map_of_one_picture_is_that_of_a_class_of_one() -> None:
    mine = by_hand([4]).model_of(SITE)
    _, scorer = mine.scorer()
    model = ViewedModel("your model", scorer, {})
    picture = squares(["well marked"]).picture.iloc[0]
    np.testing.assert_allclose(
        hide(answers_of(model), picture[None], 1).fall, marked_case("well marked").views[0].hidden.fall, atol=1e-6
    )
