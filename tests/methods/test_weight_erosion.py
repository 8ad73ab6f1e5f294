"""Weight Erosion against a slow reference of Algorithm 1 for one user, and what the report says of its limits."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor

from tests.support.byte_search import search
from tests.support.erosion import FEW, LINEAR, ROUNDS, comes_and_goes, erode
from tests.support.small import gap, make_rows, make_task, models, train
from vitrail import methods
from vitrail.core.errors import VitrailError
from vitrail.engine.batches import gather_sites
from vitrail.engine.local import Engine
from vitrail.engine.rounds import Snapshot, Training
from vitrail.methods.blocks.basics import common_cosine


def batches(engine: Engine, round_: int) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """The first batch that each site draws in this round: features, classes, weights; no padding."""
    engine.sampler.set(0, round_)
    draw, sites = engine.sampler.draw(), engine.sites
    out = []
    for i in range(len(sites.names)):
        rows = draw.rows[0, i][draw.real[0, i, :, 0] > 0]
        out.append((sites.x[rows].numpy(), sites.y[rows].numpy(), sites.w[rows].numpy()))
    return out


def gradient(w: np.ndarray, b: np.ndarray, x: np.ndarray, y: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """Of the mean weighted log loss of a linear softmax model, as one long vector."""
    z = x @ w + b
    p = np.exp(z - z.max(1, keepdims=True))
    slope = (p / p.sum(1, keepdims=True) - y) * weight / len(x)
    return np.concatenate([(x.T @ slope).ravel(), slope.sum(0)])


def reference(
    engine: Engine,
    user: int,
    rounds: int,
    lr: float,
    p_d: float,
    p_s: float,
    size: str = "penalty",
    away: Callable[[int, int], Tensor] | None = None,
) -> tuple[np.ndarray, list[list[float]]]:
    """Algorithm 1 as it is printed, one site after the other, with the report's words on sites that come and go."""
    start, n = engine.task.start, len(engine.sites.names)
    w, b = start["head.weight"].numpy().copy(), start["head.bias"].numpy().copy()
    alpha, took, trace = [math.nan] * n, [0] * n, []
    for r in range(rounds):
        gone = away(0, r).tolist() if away else [False] * n
        if not gone[user]:
            drawn = batches(engine, r)
            g = {i: gradient(w, b, *drawn[i]) for i in range(n) if not gone[i]}
            joined = [a for a in alpha if not math.isnan(a)]
            total, summed = 0.0, np.zeros_like(g[user])
            for i in g:
                if math.isnan(alpha[i]):
                    alpha[i] = float(np.median(joined)) if joined else 1.0
                d = np.linalg.norm(g[i] - g[user]) / np.linalg.norm(g[user])
                rows, used = engine.sites.sizes[i], len(drawn[i][0])
                penalty = 1 + p_s * (took[i] * used // rows) if size == "penalty" else 1
                alpha[i] = max(0.0, alpha[i] - penalty * p_d * d)
                took[i] += 1
                beta = rows if size == "weight" else 1
                total, summed = total + alpha[i] * beta, summed + alpha[i] * beta * g[i]
            step = lr * summed / total
            w, b = w - step[: w.size].reshape(w.shape), b - step[w.size :]
        trace.append(list(alpha))
    return np.concatenate([w.ravel(), b]), trace


def vector(moment: Snapshot, user: int) -> np.ndarray:
    return torch.cat([moment.coord.models[k][user].flatten() for k in ("head.weight", "head.bias")]).numpy()


@pytest.mark.parametrize("away", [None, comes_and_goes], ids=["all there", "come and go"])
@pytest.mark.parametrize("size", ["penalty", "weight"])
def test_every_user_is_algorithm_1(size: str, away: Callable[[int, int], Tensor] | None) -> None:
    given = {**FEW, "p_s": 0.7, "size": size}
    engine, moments = erode(given, absent=away)
    for user in range(5):
        params, alphas = reference(engine, user, ROUNDS.rounds, ROUNDS.lr, 0.03, 0.7, size, away)
        assert np.abs(vector(moments[-1], user) - params).max() < 1e-9
        got = torch.stack([m.facts["alpha"].value[user] for m in moments]).numpy()
        assert np.allclose(got, np.array(alphas), atol=1e-9, equal_nan=True)
    assert float(moments[-1].coord.alpha.min()) < 0.6, "something has eroded"


def test_the_size_penalty_counts_whole_passes() -> None:
    """Site sizes 37, 20, 5, 53, 8 and batches of 8: the penalty sets in when a site's rows have all been used."""
    engine, moments = erode({**FEW, "p_s": 5.0, "p_d": 1e-4})
    before = torch.ones(5, 5)
    for r, moment in enumerate(moments):
        alpha, distance = moment.facts["alpha"].value, moment.facts["distance"].value
        for site, rows in enumerate(engine.sites.sizes):
            passes = r * min(8, rows) // rows
            for user in set(range(5)) - {site}:
                eroded = float((before - alpha)[user, site] / distance[user, site])
                assert eroded == pytest.approx(1e-4 * (1 + 5 * passes), rel=1e-6)
        before = alpha


def test_a_late_site_starts_at_the_median() -> None:
    _, moments = erode({**FEW, "p_s": 0.0}, absent=comes_and_goes)
    before, after = moments[2], moments[3]  # site 1 comes in round 4
    known = before.facts["alpha"].value[2]
    assert torch.isnan(known[1])
    middle = known[[0, 2, 3, 4]].sort().values[1:3].mean()
    eroded = 0.03 * after.facts["distance"].value[2, 1]
    assert after.facts["alpha"].value[2, 1] == pytest.approx(float(middle - eroded))


def flat(task_models: dict[str, Tensor], prefix: str) -> Tensor:
    return torch.cat([v.flatten() for k, v in sorted(task_models.items()) if k.startswith(prefix + "/")])


@pytest.mark.parametrize("update", ["gradient", "local"])
def test_without_erosion_everyone_has_the_global_model(update: str) -> None:
    method = methods.build("weight_erosion", {"p_d": 0.0, "update": update})
    got = models(*train(method, make_task(), training=ROUNDS))
    for mine in got.values():
        assert torch.allclose(flat(mine, "params"), flat(mine, "shared"), atol=1e-12)
        assert not torch.allclose(flat(mine, "params"), flat(mine, "local"), atol=1e-3)


def test_local_updates_without_erosion_are_fedavg() -> None:
    training, task = Training(rounds=4, batch=8, lr=0.02, momentum=0.5), make_task()
    method = methods.build("weight_erosion", {"p_d": 0.0, "update": "local", "momentum": 0.5})
    eroded, averaged, alone = (
        models(*train(m, task, training=training)) for m in (method, methods.FedAvg(), methods.Local())
    )
    for site in eroded:
        assert torch.allclose(flat(eroded[site], "params"), flat(averaged[site], "params"), atol=1e-12)
        assert torch.allclose(flat(eroded[site], "local"), flat(alone[site], "params"), atol=1e-12)


@pytest.mark.parametrize("update", ["gradient", "local"])
def test_with_much_erosion_everyone_is_alone(update: str) -> None:
    method = methods.build("weight_erosion", {"p_d": 1e6, "update": update})
    for mine in models(*train(method, make_task(), training=ROUNDS)).values():
        assert torch.allclose(flat(mine, "params"), flat(mine, "local"), atol=1e-12)
        assert not torch.allclose(flat(mine, "params"), flat(mine, "shared"), atol=1e-3)


@pytest.mark.parametrize("update", ["gradient", "local"])
def test_weight_decay_is_part_of_the_gradient(update: str) -> None:
    """A site that is alone learns as Local does."""
    sites, method = gather_sites(make_rows()[:1]), methods.build("weight_erosion", {"update": update})
    for decay in (0.0, 0.5):
        training = Training(rounds=4, batch=64, lr=0.02, momentum=0.0, weight_decay=decay)
        eroded, alone = (models(*train(m, LINEAR, sites, training))["site 0"] for m in (method, methods.Local()))
        assert torch.allclose(flat(eroded, "params"), flat(alone, "params"), atol=1e-12)
        assert torch.allclose(flat(eroded, "local"), flat(alone, "params"), atol=1e-12)


def test_what_is_measured_beside_is_what_it_says() -> None:
    _, moments = erode(FEW)
    last, before = moments[-1], moments[-2]
    shared, mine = vector(before, 5), vector(before, 2)
    assert float(last.facts["to_shared"].value[2]) == pytest.approx(np.linalg.norm(mine - shared))
    engine, _ = erode(FEW, Training(rounds=8, batch=8, lr=0.02, decays=0, mean=True))
    local = models(*train(engine.method, LINEAR, training=engine.training))["site 0"]
    assert engine.sites.names[1] == "site 0"
    alone = torch.cat([local["local/head.weight"].flatten(), local["local/head.bias"]]).numpy()
    assert float(last.facts["to_alone"].value[1]) == pytest.approx(np.linalg.norm(vector(before, 1) - alone))
    assert float(last.facts["between"].value[1]) == pytest.approx(np.linalg.norm(shared - alone))


def relation(sign: float, seed: int, rows: int = 120) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, 6, generator=g, dtype=torch.double)
    up = (sign * (x[:, 0] - x[:, 1]) + 0.5 * torch.randn(rows, generator=g, dtype=torch.double) > 0).long()
    return x, torch.nn.functional.one_hot(up, 3).double(), torch.ones(rows, 1, dtype=torch.double)


def test_a_site_with_the_relation_flipped_loses_trust() -> None:
    sites = gather_sites([(f"site {i}", *relation(-1.0 if i == 3 else 1.0, i)) for i in range(5)])
    training = Training(rounds=60, batch=30, lr=0.3, decays=0, mean=True)
    engine, moments = erode({"p_d": 0.003}, training, sites=sites)
    odd = engine.sites.names.index("site 3")
    alpha = moments[-1].coord.alpha
    for user in range(5):
        if user != odd:
            others = [float(alpha[user, i]) for i in range(5) if i not in (user, odd)]
            assert float(alpha[user, odd]) < min(others) - 0.1
    right = {i: relation(1.0, 99) for i in range(5)}

    def accuracy(model: int, user: int) -> float:
        x, y, _ = right[user]
        z = x @ moments[-1].coord.models["head.weight"][model] + moments[-1].coord.models["head.bias"][model]
        return float((z.argmax(1) == y.argmax(1)).double().mean())

    honest = [u for u in range(5) if u != odd]
    assert min(accuracy(u, u) for u in honest) >= accuracy(5, honest[0])


def test_where_the_users_gradient_is_nothing_nothing_erodes() -> None:
    """Site 0 has only zeros for features and an even split of two classes that the model gives alike."""
    x, y, w = torch.zeros(12, 6).double(), torch.eye(3).double().repeat(4, 1), torch.ones(12, 1).double()
    task = make_task(hidden=(), dropout=0.0)
    task.start["head.bias"].zero_()
    sites = gather_sites([("site 0", x, y, w), *((f"site {i}", *relation(1.0, i, 12)) for i in (1, 2))])
    training = Training(rounds=2, batch=12, lr=0.1, decays=0, mean=True)
    engine, moments = erode({"p_d": 0.05}, training, sites=sites, task=task)
    user = engine.sites.names.index("site 0")
    assert moments[0].facts["vanished"].value.tolist() == [i == user for i in range(3)]
    assert moments[0].facts["alpha"].value[user].tolist() == [1.0, 1.0, 1.0]
    assert float(moments[0].facts["alpha"].value[1 - user].min()) < 1
    assert all(torch.isfinite(v).all() for m in moments for v in m.coord.models.values())


def test_gradients_are_counted_and_not_computed_where_trust_is_gone() -> None:
    n = 5
    engine, moments = erode({"p_d": 1e6})
    computed: list[int] = []
    task = engine.task
    assert moments[0].facts["gradients"].value.tolist() == [n * n, 2 * n]
    assert moments[1].facts["gradients"].value.tolist() == [n, 2 * n]
    alone = Engine(task, engine.method, engine.sites, ROUNDS, 5, looped=True)
    original = type(task).accumulate

    def count(self: Any, params: Any, *more: Any, **named: Any) -> None:
        computed.append(len(next(iter(params.values()))))
        original(self, params, *more, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(task), "accumulate", count)
        said = 0
        for moment in alone.run():
            said += int(moment.facts["gradients"].value.sum()) if "gradients" in moment.facts else 0
    assert sum(computed) == said == n * n + 8 * n + 9 * 2 * n


def test_early_stopping_goes_back_to_the_best_and_stands_still() -> None:
    """Few rows, a fast pace: the loss on the rows set aside turns."""
    training = Training(rounds=80, batch=8, lr=0.5, decays=0, mean=True)
    engine, moments = erode({"p_d": 0.05, "validation": 0.3, "patience": 4}, training)
    assert engine.sites.sizes != gather_sites(make_rows()).sizes
    stops = torch.stack([m.facts["stopped"].value for m in moments])
    losses = torch.stack([m.facts["loss"].value for m in moments])
    assert int(stops[-1].sum()) >= 2
    start = torch.cat([LINEAR.start[k].flatten() for k in ("head.weight", "head.bias")]).numpy()
    for user in range(5):
        if not stops[-1, user]:
            continue
        at = int(stops[:, user].int().argmax())  # the loss at `at` is of the model after so many rounds
        best = int(losses[: at + 1, user].argmin())
        assert at - best == 4
        then = vector(moments[best - 1], user) if best else start
        for later in moments[at:]:
            assert np.array_equal(vector(later, user), then)
    asked = [float(m.facts["gradients"].value[0]) for m in moments]
    assert asked[-1] < asked[0]
    for before, after in pairwise(moments):  # also of who stops here: of the model as it was sent, as what sites say
        for user in range(5):
            far = np.linalg.norm(vector(before, user) - vector(before, 5))
            assert float(after.facts["to_shared"].value[user]) == pytest.approx(far, abs=1e-12)


def test_the_local_model_leaves_only_when_it_is_shown() -> None:
    method = methods.build("weight_erosion")
    hits, looked_for = search(method)
    assert looked_for > 10
    assert hits == {"train": 0, "show": 0}  # a network with hidden layers is not shown at all
    _, last = train(method, LINEAR)
    assert torch.equal(last.facts["head.weight"].value, last.state.local["head.weight"])
    _, last = train(method, LINEAR, absent=lambda s, r: torch.tensor([s == 1 and i == 2 for i in range(5)]))
    assert last.facts["agreed"].value.tolist() == [True, True, False, True, True]
    assert not last.facts["head.weight"].value[2].any()


def test_nothing_beside_costs_nothing() -> None:
    engine, moments = erode({**FEW, "beside": False})
    _, compared = erode(FEW)
    assert np.array_equal(vector(moments[-1], 1), vector(compared[-1], 1))
    assert moments[0].facts["gradients"].value.tolist() == [25, 0]
    assert [s.name for s in engine.stages] == ["train"]
    assert "to_alone" not in moments[-1].facts


@pytest.mark.parametrize("given", [{"validation": 1.0}, {"momentum": 0.5}, {"size": "both"}, {"p_d": -1.0}])
def test_wrong_settings_are_told(given: dict[str, Any]) -> None:
    with pytest.raises(VitrailError):
        methods.build("weight_erosion", given)


def test_the_studys_momentum_is_not_taken_for_a_single_gradient() -> None:
    with pytest.raises(ValueError, match="momentum"):
        methods.WeightErosion(momentum=None)


@pytest.mark.parametrize("given", [{"update": "local"}, {"size": "weight", "validation": 0.2}], ids=["local", "weight"])
def test_engines_agree_on_the_options_too(given: dict[str, Any]) -> None:
    method = methods.build("weight_erosion", {"p_d": 0.2, **given})
    runs = [train(method, absent=comes_and_goes, **k) for k in ({}, {"looped": True}, {"chunk": 3})]
    assert max(gap(models(*runs[0]), models(*r)) for r in runs[1:]) < 1e-12


def test_the_common_cosine_is_the_shortest_vector_of_the_hull() -> None:
    """Against SciPy's solver; of gradients that are linearly independent it is above 0, which is the printed rule."""
    g = torch.Generator().manual_seed(0)
    for sites, numbers, shift in ((4, 3, 0.5), (6, 2, 0.0), (6, 3, 1.0), (5, 20, 0.3), (8, 3, 0.6)):
        update = torch.randn(sites, 2, numbers, generator=g, dtype=torch.float64) + shift
        took = torch.ones(2, sites, dtype=torch.bool)
        took[1, 0] = False
        got = common_cosine({"a": update[:, :, :1], "b": update[:, :, 1:]}, took)
        for user in range(2):
            x = update[took[user], user].numpy()
            x = x / np.linalg.norm(x, axis=1, keepdims=True)
            even = np.full(len(x), 1 / len(x))
            found = minimize(
                lambda share, x=x: ((share @ x) ** 2).sum(), even, bounds=[(0, 1)] * len(x), method="SLSQP",
                constraints={"type": "eq", "fun": lambda share: share.sum() - 1}, options={"ftol": 1e-14},
            )  # fmt: skip
            assert float(got[user]) == pytest.approx(math.sqrt(max(0, found.fun)), abs=2e-3)
            assert numbers < sites or float(got[user]) > 0.01
    assert common_cosine({"a": update}, torch.zeros(2, 8, dtype=torch.bool)).isnan().all()


def test_a_user_stands_still_once_the_updates_that_it_trusts_do_not_fit_into_the_cone() -> None:
    _, free = erode({**FEW})
    _, held = erode({**FEW, "cone": 0.4})
    stops = torch.stack([m.facts["stopped"].value for m in held])  # [round, user]
    assert not torch.stack([m.facts["stopped"].value for m in free]).any()
    assert stops.any()
    assert not stops[0].any()
    for user in range(5):
        rounds = stops[:, user].nonzero().flatten().tolist()
        assert len(rounds) > 1
        assert rounds == list(range(rounds[0], len(held)))
        for r, (one, other) in enumerate(zip(free, held, strict=True)):
            same = np.array_equal(vector(one, user), vector(other, user))
            assert same == (r < rounds[0]), "until then nothing is different"
        for r in rounds[1:]:
            assert np.array_equal(vector(held[r], user), vector(held[rounds[0]], user))
