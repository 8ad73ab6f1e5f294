"""MOON and Fed-RoD, which look at a network's features, against short versions of their equations: loops over sites and
batches with autograd and torch's own optimisers, on tables and on pictures. Sites differ in size and some are away, so
that stacked batches are padded and what a site keeps grows old."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F  # noqa: N812

import vitrail as vt
from tests.support.small import gap, make_rows, make_task, models, train
from vitrail import methods
from vitrail.core.declarations import Adapters
from vitrail.core.errors import VitrailError
from vitrail.core.exchange import Rows, SiteContext
from vitrail.core.facts import OWN, SHARED
from vitrail.core.optimizers import SGD
from vitrail.core.random import keep_mask, odd32
from vitrail.core.task import Batch, Task
from vitrail.core.tensors import Params, clone, to_all
from vitrail.engine.batches import Sites, gather_sites
from vitrail.engine.local import Engine
from vitrail.engine.rounds import Training
from vitrail.methods.fedavg import Shared
from vitrail.methods.moon import contrast
from vitrail.nets import Module
from vitrail.testing.federation import LOSSES, PICTURE, small_cnn, task_of

ROUNDS = 5
NEAR = {"sgd": 1e-11, "adam": 1e-8}  # Adam divides by a root
MANY = {"linear": 0.01, "table": 0.02, "number": 0.005, "pictures": 0.02}  # and the rate at which each learns
Nets = Callable[[Params, Tensor], tuple[Tensor, Tensor]]  # one site's parameters and rows -> features and scores


class World(NamedTuple):
    task: Task
    sites: Sites
    net: Nets
    training: Training


def layers(params: Params, x: Tensor) -> tuple[Tensor, Tensor]:
    for i in range(sum(k.startswith("body") for k in params) // 2):
        x = (x @ params[f"body.{i}.weight"] + params[f"body.{i}.bias"]).tanh()
    return x, x @ params["head.weight"] + params["head.bias"]


def convolutions(params: Params, x: Tensor) -> tuple[Tensor, Tensor]:
    h = F.max_pool2d(F.conv2d(x, params["0.weight"], params["0.bias"]).tanh(), 2)
    f = F.conv2d(h, params["3.weight"], params["3.bias"]).tanh().flatten(1)
    return f, f @ params["6.weight"].T + params["6.bias"]


def world(kind: str, **training: Any) -> World:
    given = Training(ROUNDS, 2, 8, MANY[kind], 0.5, decays=0, **training)
    if kind == "pictures":
        rows = make_rows("classes", (19, 9, 3), PICTURE)
        return World(task_of(small_cnn(Adapters()), LOSSES["classes"]), gather_sites(rows), convolutions, given)
    of = "number" if kind == "number" else "classes"
    task = make_task(of, () if kind == "linear" else (9, 7), dropout=0.0)
    return World(task, gather_sites(make_rows(of)), layers, given)


def away(s: int, r: int) -> Tensor:
    """Nobody at first, then one or two."""
    return torch.tensor([r > 0 and (i + r) % 3 == 0 for i in range(5)])


def run(w: World, name: str, **given: Any) -> tuple[Engine, Any]:
    absent = lambda s, r: away(s, r)[: len(w.sites.names)]  # noqa: E731
    return train(methods.build(name, given), w.task, w.sites, w.training, absent=absent)


def drawn(w: World, engine: Engine) -> Iterator[dict[str, list[tuple[Tensor, Tensor, Tensor]]]]:
    """Round by round the batches of each site that is there, without padding."""
    for r in range(w.training.rounds):
        engine.sampler.set(0, r)
        draw, found = engine.sampler.draw(), {}
        for i, name in enumerate(w.sites.names):
            if not away(0, r)[i]:
                steps = [rows[real[:, 0] > 0] for rows, real in zip(draw.rows[:, i], draw.real[:, i], strict=True)]
                found[name] = [(w.sites.x[at], w.sites.y[at], w.sites.w[at][:, 0]) for at in steps if len(at)]
        yield found


def leaves(params: Params) -> Params:
    return {k: v.detach().clone().requires_grad_() for k, v in params.items()}


def optimiser(w: World, params: Params) -> torch.optim.Optimizer:
    lr, some = w.training.lr, list(params.values())
    return torch.optim.Adam(some, lr) if w.training.optimiser == "adam" else torch.optim.SGD(some, lr, 0.5)


def mean(found: dict[str, Params]) -> Params:
    return {k: torch.stack([p[k].detach() for p in found.values()]).mean(0) for k in next(iter(found.values()))}


def wrong(w: World, scores: Tensor, y: Tensor) -> Tensor:
    """The loss of each row."""
    if w.task.loss == LOSSES["number"]:
        return ((scores - y) ** 2)[:, 0]
    return F.cross_entropy(scores, y.argmax(1), reduction="none")


def moon(w: World, engine: Engine, mu: float, t: float) -> Params:
    shared, before = w.task.start, dict.fromkeys(w.sites.names, w.task.start)
    for batches in drawn(w, engine):
        found = {}
        for site, rows in batches.items():
            found[site] = mine = leaves(shared)
            rule = optimiser(w, mine)
            for x, y, weight in rows:
                z, scores = w.net(mine, x)
                near, far = (torch.exp(F.cosine_similarity(z, w.net(p, x)[0]) / t) for p in (shared, before[site]))
                loss = weight @ (wrong(w, scores, y) - mu * torch.log(near / (near + far)))
                rule.zero_grad()
                loss.backward()
                rule.step()
        before |= {site: {k: v.detach() for k, v in p.items()} for site, p in found.items()}
        shared = mean(found)
    return shared


@pytest.mark.parametrize("kind", ["table", "number", "pictures"])
@pytest.mark.parametrize("how", ["sgd", "adam"])
def test_moon_is_its_equations(kind: str, how: Any) -> None:
    w = world(kind, optimiser=how)
    engine, last = run(w, "moon", mu=3.0, temperature=0.4)
    assert gap({"": last.coord.params}, {"": moon(w, engine, 3.0, 0.4)}) < NEAR[how]
    assert gap({"": last.coord.params}, {"": run(w, "fedavg")[1].coord.params}) > 1e-4, "the term does something"


@pytest.mark.parametrize("kind", list(MANY))
def test_moon_without_its_term_is_fedavg(kind: str) -> None:
    w = world(kind)
    plain = models(*run(w, "fedavg"))
    assert gap(plain, models(*run(w, "moon", mu=0.0))) == 0
    assert gap(plain, models(*run(w, "moon", temperature=1e12))) < 1e-9
    if kind == "linear":  # no parameter makes its features
        assert gap(plain, models(*run(w, "moon", mu=9.0))) == 0


def test_moon_begins_in_a_sites_second_round() -> None:
    """Until then what it turns from is the common start, which is also what it was sent."""
    w = world("table")
    one, two = (w._replace(training=replace(w.training, rounds=r)) for r in (1, 2))
    assert gap(models(*run(one, "fedavg")), models(*run(one, "moon", mu=9.0))) < 1e-13
    assert gap(models(*run(two, "fedavg")), models(*run(two, "moon", mu=9.0))) > 1e-4


def test_moon_where_features_are_the_rows_themselves() -> None:
    """A module of one layer, of which nobody said that it is linear."""
    net = Module(lambda: nn.Sequential(nn.Flatten(), nn.Linear(6, 3)), (6,))
    w = world("linear")._replace(task=task_of(net, LOSSES["classes"]))
    assert gap(models(*run(w, "fedavg")), models(*run(w, "moon", mu=9.0))) < 1e-13


def test_features_that_point_nowhere_have_no_slope() -> None:
    z = torch.zeros(1, 2, 3)
    z[0, 1] = torch.tensor([3.0, 0.0, 4.0])
    others = torch.ones(2, 1, 2, 3) * torch.tensor([1.0, -2.0, 0.5])
    others[0, 0, 1] = 0
    slope = contrast(z, *others, 0.5)
    assert bool(slope.isfinite().all())
    assert not bool(slope[0, 0].any())
    assert bool(slope[0, 1].any())


def heads_of(w: World) -> dict[str, Params]:
    units = w.net(w.task.start, w.sites.x[:1])[0].shape[1]
    zero = torch.zeros(units, w.task.net.outputs).double(), torch.zeros(w.task.net.outputs).double()
    return {site: leaves({"weight": zero[0], "bias": zero[1]}) for site in w.sites.names}


def rod(w: World, engine: Engine, gamma: float, lasts: bool) -> tuple[Params, dict[str, Params]]:
    shared, heads = w.task.start, heads_of(w)
    rules = {site: optimiser(w, head) for site, head in heads.items()}
    spans = zip(w.sites.names, w.sites.starts, w.sites.sizes, strict=True)
    count = {s: (w.sites.y[a : a + n] * w.sites.w[a : a + n]).sum(0) for s, a, n in spans}
    for batches in drawn(w, engine):
        found = {}
        for site, rows in batches.items():
            found[site] = mine = leaves(shared)
            head, rule = heads[site], optimiser(w, mine)
            own_rule = rules[site] if lasts else optimiser(w, head)
            for x, y, weight in rows:
                f, scores = w.net(mine, x)
                own = scores.detach() + f.detach() @ head["weight"] + head["bias"]
                balanced = weight @ wrong(w, scores + gamma * count[site].log(), y)
                plain = weight @ wrong(w, own, y)
                for loss, r in ((balanced, rule), (plain, own_rule)):
                    r.zero_grad()
                    loss.backward()
                    r.step()
        shared = mean(found)
    return shared, {site: {k: v.detach() for k, v in head.items()} for site, head in heads.items()}


@pytest.mark.parametrize("kind", ["linear", "table", "pictures"])
@pytest.mark.parametrize("how", ["sgd", "adam"])
@pytest.mark.parametrize("memory", ["fresh", "own"])
def test_fed_rod_is_its_equations(kind: str, how: Any, memory: Any) -> None:
    """Of one site all rows have the same class: the other classes are left out of its sum."""
    w = world(kind, optimiser=how, memory=memory)
    method = methods.build("fed_rod", {"gamma": 0.7})
    engine, last = run(w, "fed_rod", gamma=0.7)
    shared, heads = rod(w, engine, 0.7, memory == "own")
    assert gap({"": last.coord.params}, {"": shared}) < NEAR[how]
    held = {s: {k: v[i] for k, v in last.state.head.items()} for i, s in enumerate(engine.names)}
    assert gap(held, heads) < NEAR[how]
    x = w.sites.x[:7]
    said = method.predict(engine.task, engine.settled(last), x.expand(len(engine.names), *x.shape))
    for i, site in enumerate(engine.names):
        f, scores = w.net(shared, x)
        assert torch.allclose(said[i], scores + f @ heads[site]["weight"] + heads[site]["bias"], atol=10 * NEAR[how])
    assert gap({"": shared}, {"": run(w, "fedavg")[1].coord.params}) > 1e-4, "the balance does something"


def sites_of(*counts: tuple[int, int, int], weigh: bool = False) -> Sites:
    """Sites with so many rows of each class; the weights make up for their number, or not."""
    out = []
    for (name, x, _, _), count in zip(make_rows(sizes=[sum(c) for c in counts]), counts, strict=True):
        y = F.one_hot(torch.arange(3).repeat_interleave(torch.tensor(count)), 3).double()
        w = (y / y.sum(0).clamp(min=1)).sum(1, keepdim=True) * 7 if weigh else torch.ones(len(y), 1).double()
        out.append((name, x, y, w))
    return gather_sites(out)


def test_fed_rods_shared_model_is_fedavgs_where_classes_weigh_alike() -> None:
    """By their number, or by the weights of their rows; and a class that a site has none of makes a difference."""

    def apart(sites: Sites, **given: Any) -> float:
        here = world("table")._replace(sites=sites)
        ends = run(here, "fedavg"), run(here, "fed_rod", **given)
        return gap(*({"": last.coord.params} for _, last in ends))

    uneven = (7, 7, 7), (12, 3, 2), (1, 1, 4)
    assert apart(sites_of((7, 7, 7), (5, 5, 5), (2, 2, 2))) < 1e-12
    assert apart(sites_of(*uneven)) > 1e-4
    assert apart(sites_of(*uneven), gamma=0.0) < 1e-12
    assert apart(sites_of(*uneven, weigh=True)) < 1e-12
    assert apart(sites_of((7, 7, 7), (9, 0, 9), weigh=True)) > 1e-4


def thin(net: Any, params: Params, x: Tensor, keep: tuple[Tensor, ...]) -> tuple[Tensor, Tensor]:
    """Features and scores of all sites with dropout before each layer."""
    h = x
    for name, mask in zip(net.layers, keep, strict=True):
        f = h * (mask == -1) / (1 - net.dropout)
        z = f @ params[f"{name}.weight"] + params[f"{name}.bias"][:, None]
        h = z.tanh()
    return f, z


def test_dropout_and_padding_in_a_step() -> None:
    """The head of one's own is trained on what the network's is; all three models of MOON lose the same units."""
    task, g = make_task(dropout=0.3), torch.Generator().manual_seed(3)
    x, y = torch.randn(2, 8, 6, generator=g).double(), F.one_hot(torch.randint(0, 3, (2, 8), generator=g), 3).double()
    w = torch.rand(2, 8, 1, generator=g).double()
    w[:, -2:] = 0
    units = list(task.net.units)
    keep = keep_mask(odd32(torch.arange(2), 8), odd32(torch.tensor([9]), sum(units))[0], 0.3).split(units, 2)
    batch = Batch(x, y, w, keep)
    rows = Rows(torch.tensor([8.0, 8.0]).double(), None, lambda: iter([batch]))
    site = SiteContext(task, rows, SGD(0.1))
    sent = clone(to_all(task.start, 2))
    before = {k: v + 0.3 * torch.randn(v.shape, generator=g).double() for k, v in sent.items()}

    method, mine = methods.build("moon", {"mu": 2.0}), leaves(sent)
    work = method.begin(site, method.state(task, 2)._replace(before=before), Shared(sent))
    for _ in range(2):
        method.step(site, work, batch._replace(x=x.clone()))
        f, z = thin(task.net, mine, x, keep)
        a, b = (F.cosine_similarity(f, thin(task.net, p, x, keep)[0], -1) / 0.5 for p in (sent, before))
        loss = -(z.log_softmax(-1) * y).sum(-1) + 2 * (torch.logaddexp(a, b) - a)
        slopes = torch.autograd.grad((loss * w[..., 0]).sum(), list(mine.values()))
        mine = leaves({k: v - 0.1 * s for (k, v), s in zip(mine.items(), slopes, strict=True)})
    with torch.no_grad():
        assert gap({"": work.params}, {"": mine}) < 1e-13

    method, mine, count = methods.build("fed_rod"), leaves(sent), (y * w).sum(1)
    head = leaves(method.state(task, 2).head)
    work = method.begin(site, method.state(task, 2), Shared(sent))
    for _ in range(2):
        method.step(site, work, batch._replace(x=x.clone()))
        f, z = thin(task.net, mine, x, keep)
        own = z.detach() + f.detach() @ head["weight"] + head["bias"][:, None]
        for params, scores in ((mine, z + count.log()[:, None]), (head, own)):
            loss = -(scores.log_softmax(-1) * y * w).sum()
            slopes = torch.autograd.grad(loss, list(params.values()))
            params |= leaves({k: v - 0.1 * s for (k, v), s in zip(params.items(), slopes, strict=True)})
    with torch.no_grad():
        assert gap({"": work.params, "own": work.head}, {"": mine, "own": head}) < 1e-13


def test_what_does_not_go_together_is_refused() -> None:
    with pytest.raises(VitrailError, match="needs a target of classes and the cross-entropy loss"):
        run(world("number"), "fed_rod")
    with pytest.raises(VitrailError, match=r"temperature: expected a number > 0, got 0\.0"):
        methods.build("moon", {"temperature": 0.0})


def test_fed_rods_shared_model_is_scored_beside_the_sites_own() -> None:
    study = vt.Study.infer(vt.datasets.heart_disease(), target="disease")
    got = vt.federate(study, vt.datasets.heart_disease(), methods.build("fed_rod"), rounds=3)
    held = got.model_of("va").models()
    assert set(held) == {OWN, SHARED}
    assert all(torch.equal(v, got.model_of("cleveland").models()[SHARED][k]) for k, v in held[SHARED].items())
    scores = got.companion_scores()
    assert {SHARED} <= set(scores["model"])
    assert set(scores["site"]) == set(got.sites)
