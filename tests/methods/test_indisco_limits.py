"""inDISCO where it is another method, what it cannot be used with, and what stays at a site."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import pytest
import torch

from tests.support.indisco_by_hand import (
    ROWS,
    TRAINING,
    K,
    differ,
    run,
    task,
    usual,
)
from tests.support.small import make_task
from vitrail import methods
from vitrail.core.errors import VitrailError
from vitrail.core.exchange import Stage, training
from vitrail.core.facts import ALONE, OWN, PROTOTYPE_DISTANCE, TRAVEL, find_value
from vitrail.core.losses import SquaredError
from vitrail.core.optimizers import SGD, Adam
from vitrail.core.tensors import flatten
from vitrail.engine.local import Engine
from vitrail.methods.indisco import Joint
from vitrail.nets.prototype_network import similarity
from vitrail.testing import trials
from vitrail.testing.federation import PICTURE


def test_alone_is_what_sharing_nothing_gives() -> None:
    (engine, state, _), (other, by_itself, _) = usual("all"), usual("no")
    alone, own = engine.method.models(engine.task, state)[ALONE], other.method.models(engine.task, by_itself)[OWN]
    assert differ(alone, own) < 1e-12


class OnlyJoint(Joint):
    def plan(self, rounds: int) -> tuple[Stage, ...]:
        return (training(self, rounds),)


def test_without_pulls_joint_rounds_of_a_site_alone_are_local() -> None:
    rates = replace(TRAINING, rates=(("head", 1 / 30),))
    joint = Engine(task(), OnlyJoint(share="no", clst=0.0, sep=0.0, l1=0.0), ROWS, TRAINING, 5)
    local = Engine(task(), methods.build("local", {"lr": 3e-3}), ROWS, rates, 5)
    (*_, one), (*_, other) = joint.run(), local.run()
    assert differ(one.state.own, other.state.params) < 1e-12
    pulled = Engine(task(), OnlyJoint(share="no"), ROWS, TRAINING, 5)
    *_, there = pulled.run()
    assert differ(there.state.own, other.state.params) > 1e-3


def test_all_shared_without_pulls_joint_rounds_are_fedavg() -> None:
    rates = replace(TRAINING, rates=(("head", 1 / 30),))
    given = {"weights": "rows", "clst": 0.0, "sep": 0.0, "l1": 0.0}
    joint = Engine(task(), OnlyJoint(share="all", **given), ROWS, TRAINING, 5)
    fedavg = Engine(task(), methods.build("fedavg", {"lr": 3e-3, "weights": "rows"}), ROWS, rates, 5)
    (*_, one), (*_, other) = joint.run(), fedavg.run()
    assert differ(one.coord.params, other.coord.params) < 1e-12


@pytest.mark.parametrize("per_class", [1, 3])
def test_one_prototype_of_a_class_and_more(per_class: int) -> None:
    engine, state, last = run(per_class=per_class, least=1)
    for name, patches in engine.method.patches(state).items():
        assert patches.shape == (3, K * per_class, 2), name
    far = find_value(last.facts, PROTOTYPE_DISTANCE)
    assert far is not None
    between = (state.alone["prototypes"] - state.shared["prototypes"]).norm(dim=-1)
    assert torch.allclose(far, between.view(3, K, per_class).mean(2))


def test_without_hold_out_rows_nothing_is_counted() -> None:
    _, _, last = run(held=None, least=1)
    assert not find_value(last.facts, TRAVEL).any()  # type: ignore[union-attr]


def test_rates_and_rules() -> None:
    method, net = methods.build("indisco"), task().net
    rule = method.training_optimizer(SGD(0.02, 0.5, 1e-3), net)
    assert rule == Adam(0.02, decay=1e-3, factors=(("last.weight", 1 / 30),))
    slow = method.training_optimizer(Adam(0.02), replace(net, sha256="some"))
    assert isinstance(slow, Adam)
    assert set(dict(slow.factors)) == {"last.weight", *net.groups["features"]}
    said = method.training_optimizer(Adam(0.02, factors=(("last.weight", 0.5),)), net)
    assert isinstance(said, Adam)
    assert dict(said.factors) == {"last.weight": 0.5}, "as the study says"
    assert isinstance(replace(method, optimiser="study").training_optimizer(SGD(0.02), net), SGD)


def test_by_default_it_is_the_papers_method() -> None:
    """Prototypes and last layer are sent in training, and no convolution is in any message; with "all" there are."""
    names = {}
    for share in ("prototypes", "all"):
        given = {} if share == "prototypes" else {"share": share}
        trial = next(iter(trials(methods.build("indisco", {"least": 1, "warm": 1, "travel": False, **given}))))
        names[share] = {name for m in trial.whole.messages for name, _ in flatten(m.message)}
        assert any("prototypes" in name for name in names[share])
        assert any("last.weight" in name for name in names[share])
    assert not [name for name in names["prototypes"] if "features." in name or "add_on." in name]
    assert [name for name in names["all"] if "features." in name]
    assert "the paper’s method" in methods.build("indisco").setting
    assert "not the paper’s" in methods.build("indisco", {"share": "all"}).setting
    assert "one place" in methods.build("indisco_central").setting
    assert methods.build("fedavg").setting == ""


def test_what_it_cannot_be_used_with() -> None:
    method = methods.build("indisco")
    assert not method.incompatibilities(task())
    assert "cross-entropy" in method.incompatibilities(replace(task(), loss=SquaredError()))[0]
    assert 'kind = "prototypes"' in method.incompatibilities(make_task())[0]
    with pytest.raises(VitrailError, match="nothing is shared"):
        methods.build("indisco_central", {"share": "all"})


def test_central_is_one_site_that_has_all_pictures() -> None:
    pooled = ROWS.pooled(ROWS.w)
    ends = []
    for name in ("indisco_central", "indisco"):
        method = methods.build(name, {"share": "no", "warm": 2, "travel": False})
        engine = Engine(task(), method, pooled, TRAINING, 5)
        moments = [m for m in engine.run() if m.stage < 3]
        ends.append(method.models(engine.task, moments[-1].state)[OWN])
    assert differ(*ends) == 0
    assert not any(ex.consent for stage in methods.build("indisco_central").plan(3) for ex in stage.exchanges)


def test_all_sites_at_once_as_on_a_gpu() -> None:
    """There one vmap over sites does what on a CPU is a loop."""
    net = task().net
    _, state, _ = usual("prototypes")
    params, x = {**state.own, **state.shared}, ROWS.x[:12].view(3, 4, *PICTURE)
    out = net.forward(params, x, tape=False)
    z, features = torch.func.vmap(net._one)(params, x)
    assert torch.allclose(z, out.z, atol=1e-12)
    assert torch.allclose(features, out.features, atol=1e-12)
    maps, _ = torch.func.vmap(partial(net._through, what="maps"))(params, x)
    assert torch.allclose(maps, net.maps(params, x), atol=1e-12)
    assert torch.allclose(similarity(maps.flatten(3).amin(3)), similarity(features), atol=1e-9)


def test_no_piece_of_a_picture_is_in_any_message() -> None:
    """What push makes of prototypes stays; the model that goes round is as it was before."""
    trial = next(iter(trials(methods.build("indisco", {"least": 1, "warm": 1}))))
    last = trial.whole.moments[-1].state
    every = [t.double() for m in trial.whole.messages for _, t in flatten(m.message) if t.dim() > 2]
    said = [t.reshape(-1, t.shape[-1]) for t in every]
    wide = torch.cat([t for t in said if t.shape[-1] == last.alone["prototypes"].shape[-1]])
    before = last.alone["prototypes"].flatten(0, 1).double()
    assert all((wide - p).abs().amax(1).min() < 1e-12 for p in before), "what is looked for would be found"
    for model, pushed in ((0, last.ending["prototypes"]), (1, last.alone_ending["prototypes"])):
        taken = pushed[last.patches[:, model, :, 0] >= 0].double()
        assert len(taken) > 9
        assert all((wide - p).abs().amax(1).min() > 1e-9 for p in taken)
