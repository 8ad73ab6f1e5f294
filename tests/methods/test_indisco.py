"""inDISCO against a short version of its equations: a loop over sites and batches with autograd and torch's own Adam;
its limits; and what a site shows only if it agrees."""

from __future__ import annotations

from dataclasses import replace
from functools import cache, partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from small import make_rows, make_task
from vitrail import methods
from vitrail.core.exchange import Rows, Stage, training
from vitrail.core.facts import ALONE, EASY, OWN, PROTOTYPE_DISTANCE, SAME_PLACE, SHARED, TRAVEL, told
from vitrail.core.losses import SquaredError
from vitrail.core.problems import VitrailError
from vitrail.core.rules import SGD, Adam
from vitrail.core.task import Batch, Task
from vitrail.core.tensors import Params
from vitrail.engines.local import Engine
from vitrail.engines.rounds import Moment, Training
from vitrail.engines.sites import Sites, gather_sites
from vitrail.methods.indisco import Joint
from vitrail.methods.prototypes import nearest_patches, same_place, sparse_last
from vitrail.nets import prototypes
from vitrail.nets.proto import similarity
from vitrail.testing.federation import LOSSES, PICTURE, task_of

K, M, D = 3, 2, 4
OF = torch.arange(K).repeat_interleave(M)  # whose each prototype is
ROWS = gather_sites(make_rows("classes", (19, 9, 5), PICTURE))
HELD = gather_sites([(n, -x, y, w) for n, x, y, w in make_rows("classes", (12, 9, 6), PICTURE, first=0)])
TRAINING = Training(3, 2, 4, 0.01, decays=0, optimiser="adam", memory="own")
NEAR = 1e-8  # Adam divides by a root


def task(per_class: int = M) -> Task:
    return task_of(prototypes(PICTURE, K, width=2, per_class=per_class, latent=D), LOSSES["classes"])


def run(rows: Sites = ROWS, per_class: int = M, held: Sites | None = HELD, **given: Any) -> tuple[Engine, Any, Moment]:
    engine = Engine(task(per_class), methods.build("indisco", {"warm": 2, **given}), rows, TRAINING, 5, held=held)
    *_, last = engine.run()
    return engine, engine.settled(last), last


@cache
def usual(share: str) -> tuple[Engine, Any, Moment]:
    return run(share=share, least=2)


def site(params: Params, i: int) -> Params:
    return {k: v[i] for k, v in params.items()}


# The equations once more, for one site and without stacking


def distances(p: Params, x: Tensor) -> tuple[Tensor, Tensor]:
    """[row, prototype, cell], and the latent patches [row, cell, D]."""
    h = F.conv2d(x, p["features.0.weight"], p["features.0.bias"], 2, 1).relu()
    h = F.conv2d(h, p["features.2.weight"], p["features.2.bias"], 2, 1).relu()
    h = F.conv2d(h, p["features.4.weight"], p["features.4.bias"], 1, 1).relu()
    h = F.conv2d(h, p["add_on.0.weight"], p["add_on.0.bias"]).relu()
    z = F.conv2d(h, p["add_on.2.weight"], p["add_on.2.bias"]).sigmoid().flatten(2).transpose(1, 2)
    return ((z[:, None] - p["prototypes"][:, None]) ** 2).sum(-1), z


def scores(p: Params, x: Tensor) -> Tensor:
    d = distances(p, x)[0].amin(2)
    return ((d + 1) / (d + 1e-4)).log() @ p["last.weight"].T


def loss(p: Params, x: Tensor, y: Tensor, w: Tensor) -> Tensor:
    d, mine = distances(p, x)[0].amin(2), y[:, None] == OF
    clst, sep = d.masked_fill(~mine, 9e9).amin(1), -d.masked_fill(mine, 9e9).amin(1)
    wrong = (p["last.weight"] * (torch.arange(K)[:, None] != OF)).abs().sum()
    per_row = F.cross_entropy(scores(p, x), y, reduction="none") + 0.8 * clst + 0.08 * sep + 1e-4 * wrong
    return (w * per_row).sum()


def rate(name: str) -> float:
    return 3e-3 / 30 if name == "last.weight" else 3e-3


def by_hand(engine: Engine, shared: tuple[str, ...]) -> tuple[list[Params], list[Params], Tensor]:
    """Every site's model after the joint rounds, the same before the last averaging, and the loss after warm-up."""
    sites, easy = engine.sites, torch.zeros(3, K, dtype=torch.double)
    now = [dict(engine.task.start) for _ in sites.names]
    before, kept = now, [dict[str, Any]() for _ in now]  # Adam's memory of what is not shared
    for stage, rounds in ((0, 2), (1, 3)):
        for r in range(rounds):
            engine.drawer.set(stage, r, r if stage == 0 else 0)
            draw, before = engine.drawer.draw(), []
            for i, start in enumerate(now):
                p = {k: v.clone().requires_grad_() for k, v in start.items()}
                moves = [k for k in p if stage or k.startswith(("add_on", "prototypes"))]
                rule = torch.optim.Adam([{"params": [p[k]], "lr": rate(k), "name": k} for k in moves])
                for k in moves:
                    if k in kept[i]:
                        rule.state[p[k]] = kept[i][k]
                for rows, real in zip(draw.rows[:, i], draw.real[:, i], strict=True):
                    if len(at := rows[real[:, 0] > 0]):
                        rule.zero_grad()
                        loss(p, sites.x[at], sites.y[at].argmax(1), sites.w[at][:, 0]).backward()
                        rule.step()
                kept[i] |= {k: rule.state[p[k]] for k in moves if not k.startswith(shared)}
                before.append({k: v.detach() for k, v in p.items()})
                if (stage, r) == (0, 1):
                    mine = slice(sites.starts[i], sites.starts[i] + sites.sizes[i])
                    y = sites.y[mine].argmax(1)
                    wrong = F.cross_entropy(scores(before[i], sites.x[mine]), y, reduction="none")
                    for c in range(K):
                        easy[i, c] = wrong[y == c].mean() if (y == c).sum() >= 2 else 0
            means = {k: torch.stack([b[k] for b in before]).mean(0) for k in before[0]}
            now = [{k: means[k] if k.startswith(shared) else v for k, v in b.items()} for b in before]
    return now, before, easy


SHARED_BY = {
    "no": (),
    "prototypes": ("prototypes", "last"),
    "add-on": ("prototypes", "last", "add_on"),
    "all": ("prototypes", "last", "add_on", "features"),
}


def differ(one: Params, other: Params) -> float:
    assert one.keys() == other.keys()
    return max(float((v - other[k]).abs().max()) for k, v in one.items())


@pytest.mark.parametrize("share", SHARED_BY)
def test_a_whole_run(share: str) -> None:
    engine, state, last = usual(share)
    now, before, easy = by_hand(engine, SHARED_BY[share] or ("none",))
    alone = by_hand(engine, ("none",)) if share != "no" else (now, before, easy)
    held = engine.method.models(engine.task, state)
    assert set(held) == ({OWN} if share == "no" else {OWN, SHARED, ALONE})
    for i in range(3):
        if share != "no":
            assert differ(site(held[SHARED], i), now[i]) < NEAR
        for name, params in ((OWN, now[i]), (ALONE, alone[0][i])):
            if name not in held:
                continue
            pushed, where = pushed_by_hand(engine, params, i)
            assert torch.allclose(held[name]["prototypes"][i], pushed["prototypes"], atol=NEAR)
            assert engine.method.patches(state)[name][i].tolist() == where
            assert torch.allclose(held[name]["last.weight"][i], stepped(engine, pushed, i, 100), atol=1e-6)
    assert torch.allclose(told(last.facts, EASY), alone[2], atol=1e-7)  # type: ignore[arg-type]
    if share != "no":
        far = [(alone[1][i]["prototypes"] - now[i]["prototypes"]).norm(dim=1).view(K, M).mean(1) for i in range(3)]
        assert torch.allclose(told(last.facts, PROTOTYPE_DISTANCE), torch.stack(far), atol=NEAR)  # type: ignore[arg-type]


def pushed_by_hand(engine: Engine, p: Params, i: int) -> tuple[Params, list[list[int]]]:
    x, y, _ = own_rows(engine, i)
    d, z = distances(p, x)
    new, where = p["prototypes"].clone(), []
    for j in range(K * M):
        best = min(((float(d[r, j, c]), r, c) for r in range(len(x)) if y[r] == OF[j] for c in range(4)), default=None)
        where.append([-1, -1] if best is None else list(best[1:]))
        new[j] = new[j] if best is None else z[best[1], best[2]]
    return p | {"prototypes": new}, where


def own_rows(engine: Engine, i: int) -> tuple[Tensor, Tensor, Tensor]:
    s, mine = engine.sites, slice(engine.sites.starts[i], engine.sites.starts[i] + engine.sites.sizes[i])
    return s.x[mine], s.y[mine].argmax(1), s.w[mine][:, 0]


def objective(engine: Engine, p: Params, i: int) -> float:
    x, y, w = own_rows(engine, i)
    wrong = (p["last.weight"] * (torch.arange(K)[:, None] != OF)).abs().sum()
    return float((w * F.cross_entropy(scores(p, x), y, reduction="none")).sum() / w.sum() + 1e-4 * wrong)


def stepped(engine: Engine, p: Params, i: int, steps: int) -> Tensor:
    """The last layer by FISTA."""
    x, y, w = own_rows(engine, i)
    d = distances(p, x)[0].amin(2)
    s, w = ((d + 1) / (d + 1e-4)).log(), w / w.sum()
    length = 2 / float(torch.linalg.matrix_norm(s.T @ (w[:, None] * s), 2))
    weight, ahead, t = p["last.weight"], p["last.weight"], 1.0
    for _ in range(steps):
        leaf = ahead.clone().requires_grad_()
        (slope,) = torch.autograd.grad((w * F.cross_entropy(s @ leaf.T, y, reduction="none")).sum(), leaf)
        new = ahead - length * slope
        new = torch.where(torch.arange(K)[:, None] == OF, new, F.softshrink(new, length * 1e-4))
        after = (1 + (1 + 4 * t * t) ** 0.5) / 2
        ahead, weight, t = new + (t - 1) / after * (new - weight), new, after
    return weight


def test_the_last_layer_comes_to_its_optimum() -> None:
    """As other steps find it, many and small."""
    engine, state, _ = usual("all")
    net, rows = engine.task.net, Rows(engine.counts, None, lambda: engine.sites.blocks(range(3)))
    whole = {**state.own, **state.shared}
    found = sparse_last(net, whole, rows, 1e-4, 20000)
    for i in range(3):
        p = site(whole, i)
        best = p | {"last.weight": torch.zeros_like(p["last.weight"])}
        leaf = best["last.weight"].requires_grad_()
        rule = torch.optim.Adam([leaf], 0.03)
        x, y, w = own_rows(engine, i)
        s = similarity(distances(p, x)[0].amin(2))
        for _ in range(4000):
            rule.zero_grad()
            fit = (w * F.cross_entropy(s @ leaf.T, y, reduction="none")).sum() / w.sum()
            (fit + 1e-4 * (leaf * (torch.arange(K)[:, None] != OF)).abs().sum()).backward()
            rule.step()
        there, here = (objective(engine, p | {"last.weight": v}, i) for v in (leaf.detach(), found[i]))
        assert here < there + 1e-3


def test_travel_counts_what_each_model_tells_right() -> None:
    engine, state, last = usual("all")
    found, alone = told(last.facts, TRAVEL), engine.method.models(engine.task, state)[ALONE]
    assert found is not None
    assert found.shape == (3, 3, K, 2)
    for j, name in enumerate(engine.names):
        at = HELD.names.index(name)
        mine = slice(HELD.starts[at], HELD.starts[at] + HELD.sizes[at])
        y = HELD.y[mine].argmax(1)
        for u in range(3):
            said = scores(site(alone, u), HELD.x[mine]).argmax(1)
            for c in range(K):
                rows = int((y == c).sum())
                there = [int(((said == c) & (y == c)).sum()), rows] if rows >= 2 else [0, 0]
                assert found[u, j, c].tolist() == there
    assert found.sum() > 0
    assert not last.coord.offers.any(), "the coordinator forgot them"
    assert not any(v.any() for v in last.coord.offered.values())


def test_same_place_counts_the_most_frequent_cell() -> None:
    engine, state, last = usual("all")
    found = told(last.facts, SAME_PLACE)
    assert found is not None
    for i in range(3):
        x, y, _ = own_rows(engine, i)
        d = distances(site(state.alone, i), x)[0]
        for c in range(K):
            cells = d[y == c][:, c == OF].amin(1).argmin(1)
            there = [int(cells.bincount().max()), len(cells)] if len(cells) >= 2 else [0, 0]
            assert found[i, c].tolist() == there


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
    joint = Engine(task(), OnlyJoint(**given), ROWS, TRAINING, 5)
    fedavg = Engine(task(), methods.build("fedavg", {"lr": 3e-3, "weights": "rows"}), ROWS, rates, 5)
    (*_, one), (*_, other) = joint.run(), fedavg.run()
    assert differ(one.coord.params, other.coord.params) < 1e-12


@pytest.mark.parametrize("per_class", [1, 3])
def test_one_prototype_of_a_class_and_more(per_class: int) -> None:
    engine, state, last = run(per_class=per_class, least=1)
    for name, patches in engine.method.patches(state).items():
        assert patches.shape == (3, K * per_class, 2), name
    far = told(last.facts, PROTOTYPE_DISTANCE)
    assert far is not None
    between = (state.alone["prototypes"] - state.shared["prototypes"]).norm(dim=-1)
    assert torch.allclose(far, between.view(3, K, per_class).mean(2))


def test_a_pushed_prototype_is_a_patch_of_its_picture() -> None:
    """Its distance there is nothing; of a class without a picture it stays as it is."""
    engine, state, _ = usual("prototypes")
    held = engine.method.models(engine.task, state)
    for name, patches in engine.method.patches(state).items():
        for i in range(3):
            x, y, _ = own_rows(engine, i)
            d, _ = distances(site(held[name], i), x)
            for p, (row, cell) in enumerate(patches[i].tolist()):
                if row < 0:
                    assert OF[p] not in y
                    assert torch.equal(held[name]["prototypes"][i, p], trained(name, state)["prototypes"][i, p])
                else:
                    assert y[row] == OF[p]
                    assert d[row, p, cell] < 1e-20


def trained(name: str, state: Any) -> Params:
    return {OWN: {**state.own, **state.shared}, ALONE: state.alone}[name]


def test_the_last_layer_loses_what_it_does_not_need() -> None:
    engine, state, _ = usual("all")
    net, whole = engine.task.net, {**state.own, **state.shared}
    rows = Rows(engine.counts, None, lambda: engine.sites.blocks(range(3)))
    strong = sparse_last(net, whole, rows, 0.05, 500)
    wrong = ~net.own(strong)
    assert (strong[:, wrong] == 0).float().mean() > 0.5
    assert (sparse_last(net, whole, rows, 0.0, 500)[:, wrong] == 0).float().mean() < 0.1


def test_of_equal_places_the_first_is_taken() -> None:
    """A picture without content has the same patch everywhere but at its edges: rounding does not choose."""
    net = prototypes((1, 32, 32), 2, width=2, per_class=2, latent=3)
    params = {k: v[None].double() for k, v in net.init(torch.Generator().manual_seed(1)).items()}
    x, y = torch.zeros(1, 6, 1, 32, 32, dtype=torch.double), torch.eye(2, dtype=torch.double)[None, [0, 1] * 3]
    rows = Rows(torch.tensor([6.0]), None, lambda: iter([Batch(x, y, torch.ones(1, 6, 1, dtype=torch.double))]))
    _, where = nearest_patches(net, params, rows)
    assert where[0, :, 0].tolist() == [0, 0, 1, 1]
    assert same_place(net, params, rows, 1)[0].tolist() == [[3, 3], [3, 3]]
    assert same_place(net, params, rows, 4)[0].tolist() == [[0, 0], [0, 0]]


def test_who_refuses_lets_no_model_go_and_tells_nothing() -> None:
    refuses = lambda s, r: torch.tensor([s == 3 and i == 1 for i in range(3)])  # noqa: E731
    engine = Engine(task(), methods.build("indisco", {"least": 1}), ROWS, TRAINING, 5, absent=refuses, held=HELD)
    *_, last = engine.run()
    found = told(last.facts, TRAVEL)
    assert found is not None
    assert not found[1].any()
    assert not found[:, 1].any()
    assert found[0, 2].any()
    for means in (EASY, SAME_PLACE, PROTOTYPE_DISTANCE):
        value = told(last.facts, means)
        assert value is not None
        assert value[0].any()
        assert not value[1].any()


def test_without_hold_out_rows_nothing_is_counted() -> None:
    _, _, last = run(held=None, least=1)
    assert not told(last.facts, TRAVEL).any()  # type: ignore[union-attr]


def test_fewer_than_so_many_are_not_told() -> None:
    _, _, last = run(least=1000)
    for means in (TRAVEL, SAME_PLACE, EASY):
        assert not told(last.facts, means).any()  # type: ignore[union-attr]


def test_rates_and_rules() -> None:
    method, net = methods.build("indisco"), task().net
    rule = method.ruled_by(SGD(0.02, 0.5, 1e-3), net)
    assert rule == Adam(0.02, decay=1e-3, factors=(("last.weight", 1 / 30),))
    slow = method.ruled_by(Adam(0.02), replace(net, sha256="some"))
    assert isinstance(slow, Adam)
    assert set(dict(slow.factors)) == {"last.weight", *net.groups["features"]}
    said = method.ruled_by(Adam(0.02, factors=(("last.weight", 0.5),)), net)
    assert isinstance(said, Adam)
    assert dict(said.factors) == {"last.weight": 0.5}, "as the study says"
    assert isinstance(replace(method, optimiser="study").ruled_by(SGD(0.02), net), SGD)


def test_what_it_cannot_be_used_with() -> None:
    method = methods.build("indisco")
    assert not method.clashes(task())
    assert "cross-entropy" in method.clashes(replace(task(), loss=SquaredError()))[0]
    assert 'kind = "prototypes"' in method.clashes(make_task())[0]
    with pytest.raises(VitrailError, match="nothing is shared"):
        methods.build("indisco_central", {"share": "all"})


def test_central_is_one_site_that_has_all_pictures() -> None:
    pooled = ROWS.pooled(ROWS.w)
    ends = []
    for name in ("indisco_central", "indisco"):
        method = methods.build(name, {"share": "no", "warm": 2})
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
