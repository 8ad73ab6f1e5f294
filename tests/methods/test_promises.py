"""What each paper promises, on federations where the truth is known: linear regression over sites that differ."""

from __future__ import annotations

import torch
from torch import Tensor

from tests.support.small import models, train
from vitrail import methods
from vitrail.core.facts import CHOSEN, OWN, SHARE, SHARED, UNCERTAINTY, find_value
from vitrail.core.losses import CrossEntropy, SquaredError
from vitrail.core.task import Task
from vitrail.core.tensors import clone, to_all
from vitrail.engine.batches import Sites, gather_sites
from vitrail.engine.local import Engine
from vitrail.engine.rounds import Training
from vitrail.nets import MLP

FEATURES = 4


def make_task() -> Task:
    net = MLP(FEATURES, 1, ())
    zero = {k: torch.zeros(v.shape, dtype=torch.double) for k, v in net.init(torch.Generator()).items()}
    return Task(net, zero, SquaredError())


def make_sites(truths: list[Tensor], rows: int = 40, spread: float = 1.0) -> Sites:
    """Each site's rows follow its own truth; their scales differ, so that averaging after many steps is biased."""
    out = []
    for i, truth in enumerate(truths):
        g = torch.Generator().manual_seed(i)
        x = torch.randn(rows, FEATURES, generator=g, dtype=torch.double) * torch.linspace(1, 1 + spread, FEATURES).roll(
            i
        )
        y = x @ truth + 0.1 * torch.randn(rows, generator=g, dtype=torch.double)
        out.append((f"site {i}", x, y[:, None], torch.ones(rows, 1, dtype=torch.double)))
    return gather_sites(out)


def truth(i: float) -> Tensor:
    return torch.tensor([1.0, -1.0, 0.5, 0.0], dtype=torch.double) + i * torch.tensor(
        [0.0, 1.0, 1.0, -1.0], dtype=torch.double
    )


def weights(name: str, sites: Sites, training: Training, **given: object) -> Tensor:
    """[site, feature]: what each site predicts with."""
    method = methods.build(name, given)
    task = make_task()
    engine, last = train(method, task, sites, training)
    state = engine.settled(last)
    ends = torch.eye(FEATURES, dtype=torch.double).expand(len(engine.sites.names), FEATURES, FEATURES)
    zero = torch.zeros_like(ends)
    return (method.predict(task, state, ends) - method.predict(task, state, zero))[..., 0]


def pooled_fit(sites: Sites) -> Tensor:
    ones = torch.ones(len(sites.x), 1, dtype=torch.double)
    return torch.linalg.lstsq(torch.cat([sites.x, ones], 1), sites.y).solution[:FEATURES, 0]


MANY_STEPS = Training(rounds=150, epochs=10, batch=1000, lr=0.002, momentum=0.0, decays=0)
STEEP = Training(rounds=300, epochs=10, batch=1000, lr=0.0003, momentum=0.0, decays=0)


def test_scaffold_finds_the_optimum_that_fedavg_misses() -> None:
    sites = make_sites([truth(-1), truth(0), truth(2)], spread=3.0)
    best = pooled_fit(sites)
    drifted = (weights("fedavg", sites, STEEP)[0] - best).norm()
    corrected = (weights("scaffold", sites, STEEP)[0] - best).norm()
    assert drifted > 0.05, "many local steps on different sites do drift"
    assert corrected < drifted / 20


def test_fedprox_stays_nearer_to_the_optimum_under_drift() -> None:
    sites = make_sites([truth(-1), truth(0), truth(2)], spread=3.0)
    best = pooled_fit(sites)
    gaps = [(weights("fedprox", sites, STEEP, mu=mu)[0] - best).norm() for mu in (0.0, 30.0, 200.0)]
    assert gaps[0] > gaps[1] > gaps[2]


def test_ditto_goes_from_local_to_shared() -> None:
    sites = make_sites([truth(-1), truth(0), truth(2)])
    own = weights("local", sites, MANY_STEPS)
    shared = weights("fedavg", sites, MANY_STEPS)
    found = [weights("ditto", sites, MANY_STEPS, lam=lam) for lam in (0.0, 0.3, 3.0)]
    far, near = ([(w - end).norm() for w in found] for end in (own, shared))
    assert far[0] < far[1] < far[2]
    assert near[0] > near[1] > near[2]


def test_apfl_learns_how_much_to_mix() -> None:
    """The odd site trusts its own model; the like ones have no reason to."""
    sites = make_sites([truth(0), truth(0), truth(0), truth(4)])
    training = Training(rounds=60, epochs=2, batch=10, lr=0.0005, momentum=0.0, decays=0)
    engine, last = train(methods.build("apfl", {"alpha": 0.5}), make_task(), sites, training)
    alpha = dict(zip(engine.sites.names, last.state.alpha.tolist(), strict=True))
    assert alpha["site 3"] > max(alpha[f"site {i}"] for i in range(3))
    assert all(0 <= a <= 1 for a in alpha.values())
    got = weights("apfl", sites, training)[engine.sites.names.index("site 3")]
    shared = weights("fedavg", sites, training)[engine.sites.names.index("site 3")]
    assert (got - truth(4)).norm() < (shared - truth(4)).norm() / 2


def test_fine_tuning_serves_the_odd_site() -> None:
    sites = make_sites([truth(0), truth(0), truth(0), truth(4)])
    odd = sites.names.index("site 3")
    shared = (weights("fedavg", sites, MANY_STEPS)[odd] - truth(4)).norm()
    tuned = (weights("fine_tune", sites, MANY_STEPS)[odd] - truth(4)).norm()
    assert tuned < shared / 5


def test_centralized_is_the_pooled_fit() -> None:
    sites = make_sites([truth(-1), truth(0), truth(2)])
    assert torch.allclose(weights("centralized", sites, MANY_STEPS)[0], pooled_fit(sites), atol=1e-4)


def test_fedavg_by_rows_favours_the_large_site() -> None:
    small, large = make_sites([truth(0)], rows=20), make_sites([truth(0), truth(3)], rows=200)
    rows = [("small", small.x, small.y, small.w), ("large", large.x[200:], large.y[200:], large.w[200:])]
    sites = gather_sites(rows)
    training = Training(rounds=100, epochs=1, batch=20, lr=0.002, momentum=0.0, decays=0)
    equal, weighted = (weights("fedavg", sites, training, weights=w)[0] for w in ("uniform", "rows"))
    assert (weighted - truth(3)).norm() < (equal - truth(3)).norm()


def test_fedper_shares_the_front_and_keeps_the_head() -> None:
    from tests.support.small import make_sites as small_sites
    from tests.support.small import make_task as small_task

    got = models(*train(methods.build("fedper"), small_task(), small_sites()))
    first, *others = got.values()
    for other in others:
        assert torch.equal(first["params/body.0.weight"], other["params/body.0.weight"])
        assert not torch.equal(first["params/head.weight"], other["params/head.weight"])


def test_moons_sites_are_nearer_to_the_shared_model_than_to_their_own_last() -> None:
    """By how alike features are after the last round: to those of the model that was sent, less to those of the model
    that the round before left. It is this difference that grows with mu; a site may leave both."""
    task, sites = classes_task(), classes_sites([(30, 5), (5, 30), (20, 15)])
    training = Training(rounds=8, epochs=10, batch=8, lr=0.02, momentum=0.0, decays=0)

    def nearer(mu: float) -> float:
        *_, old, new = (
            (clone(m.coord.params), clone(m.state.before))
            for m in Engine(task, methods.build("moon", {"mu": mu}), sites, training, seed=5).run()
        )
        x = sites.x.expand(3, *sites.x.shape)
        z, shared, before = (
            task.net.forward(p, x, tape=False).features for p in (new[1], clone(to_all(old[0], 3)), old[1])
        )
        like = [torch.cosine_similarity(z, other, dim=-1).mean() for other in (shared, before)]
        return float(like[0] - like[1])

    found = [nearer(mu) for mu in (0.0, 1.0, 5.0)]
    assert found[0] < found[1] < found[2], found


def test_fed_rods_shared_model_takes_classes_alike_and_its_heads_go_by_the_sites_own_shares() -> None:
    """Where nine rows of ten are of one class, FedAvg says that class too often. Fed-RoD's shared model does not; a
    site's own predictions do, and rightly so among rows like its own."""
    task, sites = classes_task(), classes_sites([(90, 10), (90, 10), (90, 10)])
    fresh = classes_sites([(500, 500)], seed=7)
    training = Training(rounds=40, epochs=2, batch=20, lr=0.005, momentum=0.0, decays=0)
    rare = {}
    for name in ("fedavg", "fed_rod"):
        method = methods.build(name)
        engine, last = train(method, task, sites, training)
        state, x = engine.settled(last), fresh.x.expand(3, *fresh.x.shape)
        said = {OWN: method.predict(task, state, x)}
        said |= {k: task.output(p, x) for k, p in method.models(task, state).items() if k == SHARED}
        rare |= {(name, k): float((z[0].argmax(-1) == 1).double().mean()) for k, z in said.items()}
    assert rare["fedavg", OWN] < 0.4, rare
    assert abs(rare["fed_rod", SHARED] - 0.5) < abs(rare["fedavg", OWN] - 0.5) / 2, rare
    assert abs(rare["fed_rod", OWN] - rare["fedavg", OWN]) < abs(rare["fed_rod", OWN] - rare["fed_rod", SHARED]), rare


def classes_task() -> Task:
    net = MLP(FEATURES, 2, (6,))
    return Task(net, {k: v.double() for k, v in net.init(torch.Generator().manual_seed(1)).items()})


def classes_sites(counts: list[tuple[int, int]], seed: int = 0) -> Sites:
    """Two classes that overlap, so many rows of each at each site."""
    out = []
    for i, count in enumerate(counts):
        label = torch.arange(2).repeat_interleave(torch.tensor(count))
        noise = torch.randn(len(label), FEATURES, generator=torch.Generator().manual_seed(seed + i))
        y = torch.nn.functional.one_hot(label, 2).double()
        out.append((f"site {i}", noise.double() + 0.7 * label[:, None], y, torch.ones(len(y), 1, dtype=torch.double)))
    return gather_sites(out)


def make_classes(flipped: tuple[int, ...] = (), held: tuple[tuple[int, ...], ...] = ()) -> Sites:
    """Eight sites, four classes that overlap a little. Some sites' labels are drawn by lot, or they hold some only."""
    centres = 1.5 * torch.randn(4, FEATURES, generator=torch.Generator().manual_seed(99), dtype=torch.double)
    out = []
    for i in range(8):
        g = torch.Generator().manual_seed(i)
        mine = torch.tensor(held[i] if held else (0, 1, 2, 3))
        truth = mine[torch.randint(len(mine), (60,), generator=g)]
        x = centres[truth] + torch.randn(60, FEATURES, generator=g, dtype=torch.double)
        label = torch.randint(4, (60,), generator=g) if i in flipped else truth
        y = torch.nn.functional.one_hot(label, 4).double()
        out.append((f"site {i}", x, y, torch.ones(60, 1, dtype=torch.double)))
    return gather_sites(out)


def ripfl_told(sites: Sites, what: str, **given: object) -> dict[str, Tensor]:
    """Of each site, the mean over the rounds after the first ten."""
    net = MLP(FEATURES, 4, (16, 8))
    start = {k: v.double() for k, v in net.init(torch.Generator().manual_seed(3)).items()}
    training = Training(rounds=30, epochs=3, batch=20, lr=0.01, decays=0, mean=True, optimiser="adam")
    engine = Engine(Task(net, start, CrossEntropy()), methods.build("ripfl", given), sites, training, 5)
    found = torch.stack([find_value(moment.facts, what).double() for moment in engine.run()][10:]).mean(0)
    return dict(zip(engine.names, found, strict=True))


def test_ripfl_doubts_and_seldom_chooses_sites_with_wrong_labels() -> None:
    sites, wrong = make_classes(flipped=(2, 5)), {"site 2", "site 5"}
    unsure, chosen = (ripfl_told(sites, what) for what in (UNCERTAINTY, CHOSEN))
    assert min(float(unsure[s]) for s in wrong) > 2 * max(float(v) for s, v in unsure.items() if s not in wrong)
    often, seldom = (
        torch.stack([v for s, v in chosen.items() if (s in wrong) == flipped]).mean() for flipped in (0, 1)
    )
    assert seldom < 0.6 * often, "only by lot"


def test_ripfl_finds_those_with_the_same_classes_most_alike() -> None:
    sites = make_classes(held=tuple((0, 1) if i % 2 else (2, 3) for i in range(8)))
    share = ripfl_told(sites, SHARE, selection="all", takes=4)
    kin = torch.stack([share[s] for s in sites.names])
    same = torch.tensor([[int(a[-1]) % 2 == int(b[-1]) % 2 for b in sites.names] for a in sites.names])
    assert kin[same].sum() > 0.9 * kin.sum()
