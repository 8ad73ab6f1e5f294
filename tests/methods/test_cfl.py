"""CFL against its equations, with the best of all bipartitions by trying them; its limits; and what it finds."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform
from torch import Tensor

import vitrail as vt
from tests.support.small import gap, make_sites, make_task, models, opposed_tables, train
from vitrail.core.facts import ALIKE, GROUP, GROUP_LONGEST, GROUP_MOVED, GROUP_SPLIT, Facts, find_value
from vitrail.core.task import Batch, Task
from vitrail.engine.batches import Sites, gather_sites
from vitrail.engine.local import Engine
from vitrail.engine.rounds import Training
from vitrail.methods import build
from vitrail.methods.cfl import _halves
from vitrail.nets import MLP
from vitrail.testing.federation import LOSSES, task_of

LR = 0.02
SETTING = {"eps1": 0.02, "eps2": 0.2, "after": 3}
KINDS = {"a": 0, "b": 1, "c": 0, "d": 2, "e": 1, "f": 2, "g": 0}


def made(kinds: dict[str, int] = KINDS, n: int = 24) -> dict[str, tuple[Tensor, Tensor, Tensor]]:
    """Sites of three kinds: the outcome follows x, its opposite, or something else."""
    truth = torch.randn(3, 4, generator=torch.Generator().manual_seed(50), dtype=torch.double)
    truth[1] = -truth[0]
    out = {}
    for i, (name, kind) in enumerate(kinds.items()):
        x = torch.randn(n - i, 4, generator=torch.Generator().manual_seed(i), dtype=torch.double)
        y = torch.nn.functional.one_hot((x @ truth[kind] > 0).long(), 2).double()
        out[name] = x, y, torch.ones(n - i, 1, dtype=torch.double)
    return out


ROWS = made()
SITES = gather_sites([(name, *rows) for name, rows in ROWS.items()])
NAMES = SITES.names


def linear() -> Task:
    return task_of(MLP(4, 2, ()), LOSSES["classes"])


def training(rounds: int) -> Training:
    return Training(rounds=rounds, epochs=2, batch=64, lr=LR, momentum=0.0, decays=0)


def ran(rounds: int = 40, sites: Sites = SITES, absent: Any = None, **given: Any) -> list[Any]:
    """The moments of a run."""
    engine = Engine(linear(), build("cfl", {**SETTING, **given}), sites, training(rounds), 5, absent=absent)
    return [
        m._replace(coord=m.coord._replace(models={k: v.clone() for k, v in m.coord.models.items()}))
        for m in engine.run()
    ]


def fact(facts: Facts, means: str) -> Tensor:
    found = find_value(facts, means)
    assert found is not None
    return found


def groups(facts: Facts) -> set[frozenset[str]]:
    said = fact(facts, GROUP).tolist()
    return {frozenset(n for n, g in zip(NAMES, said, strict=True) if g == one) for one in said}


def update(task: Task, params: Tensor, site: str) -> Tensor:
    """What two steps on all rows change, as one vector."""
    x, y, w = ROWS[site]
    now = params
    for _ in range(2):
        leaf = now.detach().clone().requires_grad_()
        parts = leaf.split([v.numel() for v in task.start.values()])
        model = {k: part.view(1, *v.shape) for (k, v), part in zip(task.start.items(), parts, strict=True)}
        task.value(model, Batch(x[None], y[None], w[None])).sum().backward()
        assert leaf.grad is not None
        now = now - LR * leaf.grad
    return now - params


def best_cut(sites: list[str], alike: dict[tuple[str, str], float]) -> tuple[frozenset[str], frozenset[str]]:
    """All bipartitions tried: the one whose most similar pair across is least similar."""
    first, *others = sites
    cuts = []
    for size in range(len(others)):
        for more in itertools.combinations(others, size):
            one = {first, *more}
            other = [s for s in sites if s not in one]
            cuts.append((max(alike[i, j] for i in one for j in other), frozenset(one), frozenset(other)))
    return min(cuts, key=lambda cut: cut[0])[1:]


def complete_cut(sites: list[str], alike: dict[tuple[str, str], float]) -> tuple[frozenset[str], frozenset[str]]:
    apart = torch.tensor([[0.0 if i == j else 1 - alike[i, j] for j in sites] for i in sites], dtype=torch.double)
    label = fcluster(linkage(squareform((apart + apart.T).numpy() / 2), "complete"), 2, "maxclust")
    one, other = (frozenset(s for s, at in zip(sites, label, strict=True) if at == k) for k in (1, 2))
    return one, other


@pytest.mark.parametrize("weights", ["uniform", "rows"])
@pytest.mark.parametrize("cut", ["single", "complete"])
def test_the_equations(weights: str, cut: str) -> None:
    task, rounds = linear(), 40
    start = torch.cat([v.flatten() for v in task.start.values()])
    found: dict[frozenset[str], Tensor] = {frozenset(NAMES): start}
    weight = {n: len(ROWS[n][0]) if weights == "rows" else 1 for n in NAMES}
    when = []
    for r in range(rounds):
        after = {}
        for group, model in found.items():
            d = {n: update(task, model, n) for n in group}
            mean = lambda of, d=d: sum(weight[n] * d[n] for n in of) / sum(weight[n] for n in of)  # noqa: E731
            parts = [group]
            due = float(mean(group).norm()) < 0.02 and max(float(v.norm()) for v in d.values()) > 0.2
            if due and len(group) > 2 and r >= 3:
                alike = {(i, j): float(torch.cosine_similarity(d[i], d[j], 0)) for i in group for j in group}
                parts = list((best_cut if cut == "single" else complete_cut)(sorted(group), alike))
                when.append(r + 1)
            after |= {part: model + mean(part) for part in parts}
        found = after
    moments = ran(rounds, weights=weights, linkage=cut)
    assert len(when) == 2, "a part is split again"
    assert [m.round for m in moments if bool(fact(m.facts, GROUP_SPLIT).any())] == when
    assert groups(moments[-1].facts) == set(found)
    for i, n in enumerate(NAMES):
        (want,) = (model for group, model in found.items() if n in group)
        got = torch.cat([v[i].flatten() for v in moments[-1].coord.models.values()])
        assert float((got - want).abs().max()) < 1e-10


def test_hidden_groups_are_found() -> None:
    last = ran()[-1]
    kinds = {frozenset(n for n, k in KINDS.items() if k == kind) for kind in range(3)}
    assert groups(last.facts) == kinds


def test_why_a_group_was_split_is_told() -> None:
    moments = ran()
    at = next(i for i, m in enumerate(moments) if bool(fact(m.facts, GROUP_SPLIT).any()))
    split, before = moments[at].facts, moments[at - 1].facts
    assert float(fact(split, GROUP_MOVED).max()) < 0.02 <= float(fact(before, GROUP_MOVED).max())
    assert float(fact(split, GROUP_LONGEST).min()) > 0.2
    assert fact(split, GROUP_SPLIT).all(), "all were in it"
    assert len(groups(before)) == 1
    assert len(groups(split)) == 2
    alike, kind = fact(split, ALIKE), fact(split, GROUP)
    assert float(alike[kind[:, None] != kind].max()) < float(alike[kind[:, None] == kind].min())


@pytest.mark.parametrize("given", [{}, {"weights": "rows"}])
def test_without_a_split_it_is_fedavg(given: dict[str, str]) -> None:
    task, sites = make_task(dropout=0.2), make_sites()
    away = lambda s, r: torch.tensor([(i + r) % 4 == 0 for i in range(5)])  # noqa: E731
    plain = models(*train(build("fedavg", given), task, sites, absent=away))
    whole = models(*train(build("cfl", given), task, sites, absent=away))
    assert gap(plain, whole) < 1e-12
    always = {"eps1": 1e9, "eps2": 0.0, "after": 1, "smallest": 1}
    assert gap(plain, models(*train(build("cfl", {**given, **always}), task, sites))) > 1e-3


def test_split_to_the_last_everybody_is_alone() -> None:
    """A first round together; in the end each group is one site, whose own update is all that moves it."""
    always = {"eps1": 1e9, "eps2": 0.0, "after": 1, "smallest": 1}
    moments = ran(10, **always)
    count = [len(groups(m.facts)) for m in moments]
    assert count[0] == 1
    assert count == sorted(count)
    assert count[-1] == len(NAMES)
    last = moments[-1].facts
    torch.testing.assert_close(fact(last, GROUP_MOVED), fact(last, GROUP_LONGEST), rtol=1e-12, atol=0)
    before, after = (m.coord.models for m in moments[-2:])
    for i, n in enumerate(NAMES):
        start, end = (torch.cat([v[i].flatten() for v in of.values()]) for of in (before, after))
        assert float((end - start - update(linear(), start, n)).abs().max()) < 1e-12


@pytest.mark.parametrize(
    ("given", "count"), [({}, 2), ({"gamma": 0.99}, 1), ({"after": 30}, 1), ({"smallest": 7}, 1), ({"smallest": 6}, 2)]
)
def test_what_holds_a_split_back(given: dict[str, float], count: int) -> None:
    assert len(groups(ran(20, **given)[-1].facts)) == count


def test_a_group_is_split_when_all_of_it_are_there() -> None:
    """One that is away cannot be placed."""
    absent = lambda s, r: torch.tensor([n == "c" and r < 7 for n in NAMES])  # noqa: E731
    for away, first in ((None, 4), (absent, 8)):
        moments = ran(9, absent=away, eps1=1e9, eps2=0.0)
        assert next(m.round for m in moments if bool(fact(m.facts, GROUP_SPLIT).any())) == first
    said = fact(moments[3].facts, ALIKE)
    assert said[NAMES.index("c")].isnan().all()
    assert said.isfinite().sum() == 36


def test_a_group_that_is_away_stands_still() -> None:
    """And those of it who answer make up its mean."""
    moments = ran(50)
    mine = next(g for g in groups(moments[-1].facts) if "a" in g)
    absent = lambda s, r: torch.tensor([n in mine and r >= 40 for n in NAMES])  # noqa: E731
    gone = ran(50, absent=absent)
    i, j = NAMES.index("a"), NAMES.index("b")
    for k, v in gone[-1].coord.models.items():
        assert torch.equal(v[i], gone[39].coord.models[k][i])
        assert not torch.equal(v[j], gone[39].coord.models[k][j])
    assert fact(gone[-1].facts, GROUP_MOVED)[i].isnan()
    assert groups(gone[-1].facts) == groups(moments[-1].facts)


@pytest.mark.parametrize("seed", range(20))
def test_every_block_is_cut_by_itself(seed: int) -> None:
    """All groups that are due are cut at once, as if each were alone."""
    g = torch.Generator().manual_seed(seed)
    unit = torch.nn.functional.normalize(torch.randn(9, 3, generator=g, dtype=torch.double))
    alike, block = unit @ unit.T, torch.randint(0, 3, (9,), generator=g)
    due = block != 2
    found = _halves(alike, (block[:, None] == block) & due[:, None], "single")
    values = {(str(i), str(j)): float(alike[i, j]) for i in range(9) for j in range(9)}
    for b in range(2):
        mine = [str(i) for i in range(9) if block[i] == b]
        if len(mine) < 2:
            continue
        (one, other) = best_cut(mine, values)
        for i, j in itertools.product(mine, mine):
            assert bool(found[int(i), int(j)]) == ({i, j} <= one or {i, j} <= other)
    assert not found[block == 2][:, block != 2].any()


def test_there_is_no_shared_model_to_count_contributions_on(tmp_path: Path) -> None:
    tables = opposed_tables({"small": 40, "large": 60})
    study = vt.Study.infer(tables, target="sick")
    with pytest.raises(vt.VitrailError, match="no shared model that a coalition's reports would give"):
        vt.federate(study, tables, "cfl", keep_updates=True, out=tmp_path / "run")
