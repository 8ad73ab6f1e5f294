"""Influence: who lowers the user's validation loss gets weight; noise, flipped labels and broken models get none."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support.small import gap, make_rows, make_task, models, train
from vitrail import methods
from vitrail.core.task import Task
from vitrail.engine.batches import BatchSampler, Sites, gather_sites, set_aside
from vitrail.engine.local import Engine
from vitrail.engine.rounds import Training
from vitrail.methods.influence import Influence, Up, weigh

Rows = list[tuple[str, Tensor, Tensor, Tensor]]
PLAIN = make_task("number", dropout=0.0)


def learnable(names: tuple[str, ...], rows: int = 60, flipped: tuple[str, ...] = ()) -> Rows:
    """Sites with one relation between x and y; at the flipped ones it is the other way round."""
    out = []
    for i, name in enumerate(names):
        g = torch.Generator().manual_seed(i)
        x = torch.randn(rows, 6, generator=g, dtype=torch.double)
        sign = -1 if name in flipped else 1
        y = sign * (x[:, :1] - x[:, 1:2]) + 0.3 * torch.randn(rows, 1, generator=g, dtype=torch.double)
        out.append((name, x, y, torch.ones(rows, 1).double()))
    return out


def start(method: Influence, rows: Rows) -> Engine:
    return Engine(PLAIN, method, gather_sites(rows), Training(rounds=6, batch=8, lr=0.01), 5)


def test_flipped_labels_get_no_weight() -> None:
    engine = start(Influence(), learnable(("a", "b", "c", "odd"), flipped=("odd",)))
    names, facts = engine.sites.names, [moment.facts for moment in engine.run()]
    odd, honest = names.index("odd"), [i for i, n in enumerate(names) if n != "odd"]
    mean = torch.stack([f["influence"].value for f in facts]).nanmean(0)
    assert mean[honest, odd].max() < 0.01
    assert mean[odd, odd] > 0.95
    for user in honest:  # while honest sites do learn from each other
        assert sum(facts[1]["influence"].value[user, j] for j in honest if j != user) > 0.3


@dataclasses.dataclass(frozen=True)
class Tampered(Influence):
    """The site in place 0 sends something else than what changed in its model."""

    lie: Callable[[Tensor], Tensor] = torch.zeros_like

    def merge(self, task: Task, coord: Any, up: Up, roster: Any) -> Any:
        for v in up.change.values():
            v[0] = self.lie(v[0])
        return super().merge(task, coord, up, roster)


@pytest.mark.parametrize(
    "lie", [lambda v: 5 * torch.randn(v.shape, generator=torch.Generator().manual_seed(0)).double(), lambda v: v / 0]
)
def test_noise_and_broken_candidates_get_no_weight(lie: Callable[[Tensor], Tensor]) -> None:
    engine = start(Tampered(lie=lie), learnable(("a", "b", "c", "d")))
    moments = [(m, m.facts["influence"].value) for m in engine.run()]
    last = moments[-1][0]
    assert torch.stack([f for _, f in moments]).nanmean(0)[1:, 0].max() < 0.01
    assert all(v.isfinite().all() for site in models(engine, last).values() for v in site.values())


def test_identical_sites_get_equal_weights() -> None:
    _, x, y, w = learnable(("a",))[0]
    rows = [(n, x, y, w) for n in ("a", "b", "c")]
    training = Training(rounds=3, batch=64, lr=0.01)  # one batch of all rows: nothing is left to chance
    engine = Engine(PLAIN, Influence(), gather_sites(rows), training, 5)
    first, second, third = (m.facts["influence"].value.clone() for m in engine.run())
    assert first.isnan().all(), "in the first round nobody has another's model yet"
    for weights in (second, third):
        others = weights[~torch.eye(3, dtype=torch.bool)]
        assert others.min() > 0
        assert torch.allclose(others, others[0].expand(6), atol=1e-9)


def test_alone_it_is_local_on_the_rows_left_to_train_on() -> None:
    rows, task = make_rows()[:1], make_task(dropout=0.2)
    left, _ = set_aside(gather_sites(rows), 0.2, 5)
    assert gap(models(*train(Influence(), task, gather_sites(rows))), models(*train(methods.Local(), task, left))) == 0


def test_three_rounds_against_a_plain_loop() -> None:
    """Written out once more, site by site and row by row, with autograd."""
    task, training, seed = PLAIN, Training(rounds=3, batch=8, lr=0.02, momentum=0.5, decays=0), 5
    rows = learnable(("a", "b", "c"), rows=31) + learnable(("d",), rows=17)
    engine = Engine(task, Influence(share=0.25), gather_sites(rows), training, seed)
    moments = [(m, m.facts["influence"].value.clone()) for m in engine.run()]
    facts, got = [f for _, f in moments], models(engine, moments[-1][0])

    kept, aside = set_aside(gather_sites(rows), 0.25, seed)
    trained = {n: dict(task.start) for n in kept.names}
    before, sent = dict(trained), {}
    for r in range(3):
        for u, name in enumerate(kept.names):
            held = (aside.x[u], aside.y[u], aside.w[u])
            known = {**sent, name: trained[name]} if sent else {}
            was = float(plain_loss(before[name], *held))
            gains = {j: max(0.0, was - float(plain_loss(m, *held))) for j, m in known.items()}
            total = sum(gains.values())
            weights = {j: g / total for j, g in gains.items()} if total > 0 else {name: 1.0}
            candidates = known or {name: trained[name]}
            before[name] = {k: sum(w * candidates[j][k] for j, w in weights.items()) for k in task.start}
            expected = torch.tensor([weights.get(j, 0.0) for j in kept.names]).double()
            assert torch.allclose(facts[r][u], expected, atol=1e-9) == bool(sent), (r, name)
        trained = {n: plain_sgd(before[n], kept, n, training, seed, r) for n in kept.names}
        sent = dict(trained)
    own = trained
    assert max(float((got[n][f"params/{k}"] - v).abs().max()) for n in own for k, v in own[n].items()) < 1e-9
    assert facts[1].count_nonzero() > len(kept.names), "in the second round somebody learned from another"


def plain_loss(params: dict[str, Tensor], x: Tensor, y: Tensor, w: Tensor) -> Tensor:
    h = x
    for layer in ("body.0", "body.1"):
        h = torch.tanh(h @ params[f"{layer}.weight"] + params[f"{layer}.bias"])
    z = h @ params["head.weight"] + params["head.bias"]
    return (w * (y - z) ** 2).sum()


def plain_sgd(
    params: dict[str, Tensor], sites: Sites, name: str, training: Training, seed: int, round_: int
) -> dict[str, Tensor]:
    at = sites.names.index(name)
    drawer = BatchSampler(sites, training.batch, 1, seed, 0)
    drawer.set(0, round_)
    draw = drawer.draw()
    params, velocity = dict(params), {k: torch.zeros_like(v) for k, v in params.items()}
    for t in range(drawer.steps[at]):
        rows = draw.rows[t, at][draw.real[t, at, :, 0] > 0]
        leaves = {k: v.clone().requires_grad_() for k, v in params.items()}
        plain_loss(leaves, sites.x[rows], sites.y[rows], sites.w[rows]).backward()
        for k, v in leaves.items():
            velocity[k] = training.momentum * velocity[k] - training.lr * v.grad
            params[k] = params[k] + velocity[k]
    return params


def test_rows_set_aside_are_never_trained_on() -> None:
    rows = make_rows()
    kept, aside = set_aside(gather_sites(rows), 0.25, 5)
    whole = {name: x for name, x, *_ in rows}
    for i, name in enumerate(kept.names):
        mine = aside.x[i][aside.w[i, :, 0] > 0]
        start, size = kept.starts[i], kept.sizes[i]
        assert len(mine) == len(whole[name]) // 4
        together = torch.cat([kept.x[start : start + size], mine])
        assert sorted(together.tolist()) == sorted(whole[name].tolist())
    assert not torch.equal(set_aside(gather_sites(rows), 0.25, 6)[1].x, aside.x)
    # a copy of a site sets the same rows aside: it cannot have trained on those by which it is judged
    name, x, y, w = rows[0]
    _, twice = set_aside(gather_sites([(name, x, y, w), ("copy", x.flip(0), y.flip(0), w.flip(0))]), 0.25, 5)
    assert sorted(twice.x[0].tolist()) == sorted(twice.x[1].tolist())


def test_weights() -> None:
    own = torch.eye(3)[:1]
    known, before = torch.ones(1, 3), torch.tensor([1.0])
    assert weigh(before, torch.tensor([[0.7, 0.9, 1.4]]), known, own).tolist()[0] == pytest.approx([0.75, 0.25, 0])
    assert weigh(before, torch.tensor([[1.2, 1.0, 1.4]]), known, own).tolist() == [[1, 0, 0]]
    assert weigh(before, torch.tensor([[0.9, 0.1, 0.9]]), torch.tensor([[1.0, 0, 1]]), own).tolist() == [[0.5, 0, 0.5]]
    broken = torch.tensor([[0.9, float("nan"), float("inf")]])
    assert weigh(before, broken, known, own).tolist() == [[1, 0, 0]]
    assert weigh(torch.tensor([float("inf")]), broken, known, own).tolist() == [[1, 0, 0]]


def test_messages_grow_with_the_sites() -> None:
    """Every site is told everyone's model; what it sends is one model and one number per site."""
    from vitrail.engine.contract import trace

    one, five = (trace(make_task(), Influence(), 3, sites=n)[0][0] for n in (1, 5))
    params = sum(v.numel() for v in make_task().start.values())
    assert five.size("to site") == 8 * 5 * (params + 2)
    assert five.size("from site") == 8 * (params + 5)
    assert one.size("to site") < five.size("to site")


@pytest.mark.parametrize("share", [0.0, 0.6])
def test_an_impossible_share_is_told(share: float) -> None:
    with pytest.raises(Exception, match="share"):
        methods.build("influence", {"share": share})
