"""What a site's models look at: boxes lie where the network fires, and a picture's evidence adds up to its score."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch

from vitrail.analysis.images.picture_evidence import CasePicture, ViewedModel
from vitrail.analysis.images.prototype_evidence import PARTS, PrototypeEvidence, make_seen
from vitrail.core.tensors import Params
from vitrail.nets.prototype_network import ProtoNet, prototypes

CLASSES = ("round", "square", "none")


@pytest.fixture(scope="module")
def net() -> ProtoNet:
    return prototypes((1, 28, 28), 3, width=4, per_class=6)


@pytest.fixture(scope="module")
def made(net: ProtoNet) -> tuple[Params, PrototypeEvidence]:
    draw = np.random.default_rng(5)
    pictures = draw.integers(0, 256, (30, 1, 28, 28), dtype=np.uint8)
    labels = np.arange(30) % 2  # nobody has the third class
    params = net.init(torch.Generator().manual_seed(3))
    one = {k: v[None] for k, v in params.items()}
    models = [
        ViewedModel("your model", lambda x: net.forward(one, x[None], tape=False).z[0], params),
        ViewedModel("alone", lambda x: -net.forward(one, x[None], tape=False).z[0], params),
    ]
    learned = np.arange(30) < 20
    names = [f"p{i}.png" for i in range(30)]
    beside = [models[1]._replace(title="changed")]
    shares = partial(torch.softmax, dim=-1)
    return one, make_seen(net, models, pictures, labels, names, CLASSES, learned, shares, beside=beside)


def test_behind_a_prototype_is_the_nearest_training_picture_of_its_class(
    net: ProtoNet, made: tuple[Params, PrototypeEvidence]
) -> None:
    one, seen = made
    assert list(seen.views) == ["round", "square"]
    for c, (name, views) in enumerate(seen.views.items()):
        assert [v.model for v in views] == ["your model", "alone", "changed"]
        assert not views[2].parts
        assert 0 < len(views[0].parts) <= PARTS
        for part in views[0].parts:
            assert part.of == name
            assert part.number in part.same
            assert part.behind is not None
            row = int(part.behind.name[1:-4])
            assert row < 20, "held out"
            assert row % 2 == c
            near = net.maps(one, torch.from_numpy(part.behind.picture[None, None]))[0, 0, c * 6 + part.number - 1]
            over = net.cells().spread(-near, (28, 28))
            top, left, bottom, right = part.behind.box
            inside = over[top:bottom, left:right]
            assert inside.max() == over.max()
            outside = over.clone()
            outside[top:bottom, left:right] = -torch.inf
            assert (outside > over.flatten().quantile(0.99)).sum() == 0, "the highest hundredth is in the box"


def test_no_prototypes_no_parts() -> None:
    from vitrail.nets import cnn

    net = cnn((1, 28, 28), 2, 4, (16, 8))
    params = net.init(torch.Generator().manual_seed(3))
    one = {k: v[None] for k, v in params.items()}
    pictures = np.random.default_rng(5).integers(0, 256, (12, 1, 28, 28), dtype=np.uint8)
    sight = ViewedModel("your model", lambda x: net.forward(one, x[None], tape=False).z[0], params)
    labels, learned = np.arange(12) % 2, np.ones(12, bool)
    one_case, shares = [CasePicture("a", pictures[0])], partial(torch.softmax, dim=-1)
    seen = make_seen(net, [sight], pictures, labels, list("abcdefghijkl"), CLASSES[:2], learned, shares, one_case)
    assert not seen.has_parts
    assert [len(view.lines) for case in seen.cases for view in case.views] == [0]
    assert seen.most == 6
