"""What a study's [protect] comes to: guards for the engine, a task with noise in its steps, and what is refused."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, NamedTuple

import torch

from vitrail.core.exchange import Roster, Rows
from vitrail.core.problems import Problem, VitrailError
from vitrail.core.task import Batch, Task
from vitrail.core.tensors import tensors
from vitrail.engines.wire import rehearse, total
from vitrail.methods import AnyMethod
from vitrail.protect.budget import Budget, noise_for, spent
from vitrail.protect.guards import Guards
from vitrail.protect.rows import ByRow, Lots, PrivateTask
from vitrail.study import Study

NOT_YET = {"sum": ("masked", "groups", "two servers"), "sites": None, "compress": ("int8", "rank")}  # key -> values
PROBE = 1e-9  # a row's gradient clipped to this length tells nothing


class Spent(NamedTuple):
    """The privacy budget of a run, for a page."""

    epsilon: float
    delta: float
    noise: float  # z
    clip: float
    looks: int  # at each row, in the whole run
    covers: tuple[str, ...]
    leaves_out: tuple[str, ...]


def guards_of(study: Study) -> Guards:
    p = study.protect
    return Guards(None if p.rows else p.clip, 0.0, None if p.robust == "no" else p.robust)


def looks_of(study: Study, method: AnyMethod) -> int:
    """How often each row is looked at: once an epoch in every round that trains."""
    rounds = sum(
        stage.rounds for stage in method.plan(study.training.rounds) if any(ex.trains for ex in stage.exchanges)
    )
    return rounds * study.training.epochs


def private(task: Task, study: Study, method: AnyMethod) -> Task:
    """The same with clipped gradients and noise, where the study says so."""
    if study.protect.rows is None:
        return task
    budget = Budget(study.protect.rows.epsilon, study.protect.rows.delta)
    noise = noise_for(budget, looks_of(study, method))
    given = {f.name: getattr(task, f.name) for f in fields(Task)}
    return PrivateTask(**given, clip=study.protect.clip or 1.0, noise=noise)


def spent_by(study: Study, method: AnyMethod) -> Spent | None:
    if study.protect.rows is None:
        return None
    looks, delta, clip = looks_of(study, method), study.protect.rows.delta, study.protect.clip or 1.0
    noise = noise_for(Budget(study.protect.rows.epsilon, delta), looks)
    covers = ("the reports of every round, and the models that are made of them",)
    out = ["how many rows a site has", "its scores, which are counted on rows that are held out"]
    if study.standardise != "none":
        out.append("the means and spreads by which columns are standardised")
    out.append("what sites publish of their columns before the first round, where they agree to")
    return Spent(spent(noise, looks, delta), delta, noise, clip, looks, covers, tuple(out))


def check_protection(study: Study, method: AnyMethod, sizes: dict[str, int]) -> None:
    """All that does not go together, before the first round. `sizes`: training rows of each site."""
    p, found = study.protect, list[tuple[str, str, str]]()
    for key, values in NOT_YET.items():
        said = getattr(p, key)
        if said in values if values else said is not None:
            found.append((key, "this is not built yet", "Leave it out."))
    few = [name for name, rows in sizes.items() if rows < p.rows_least]
    found += [
        (
            "rows_least",
            f"{name} has {sizes[name]} training rows, and {p.rows_least} are asked for",
            "Leave that site out.",
        )
        for name in few
    ]
    if not method.federated and p.robust != "no":
        found.append(("robust", f"{method.title} makes no total of reports", 'Write robust = "no".'))
    elif p.robust != "no":
        from vitrail.runs.setup import build_task

        plain = build_task(study.with_changes(protect={"rows": None}), method, 0)
        reports = [(turn.exchange, turn.up) for t in rehearse(plain, method, 1) for turn in t.turns]
        clashes = guards_of(study).clashes(method.title, reports, len(sizes))
        found += [(key, why, "Leave it out, or choose another method.") for key, why in clashes]
    if p.rows is not None:
        found += [("rows", why, hint) for why, hint in _not_private(study, method)]
    if found:
        problems = [Problem(f"protect.{key}", f"{why}.", hint) for key, why, hint in dict.fromkeys(found)]
        raise VitrailError("this cannot be protected so", problems)


def _not_private(study: Study, method: AnyMethod) -> list[tuple[str, str]]:
    from vitrail.runs.setup import build_task

    out = []
    if study.target.kind == "classes" and study.training.class_weights != "none":
        why = "the weights of classes are counted from all rows, so that one row changes what others weigh"
        out.append((why, 'Write class_weights = "none" under [training].'))
    plain = build_task(study.with_changes(protect={"rows": None}), method, 0)
    if not isinstance(plain.net, ByRow):
        out.append(("this network does not know how long the gradient of each row is", "Use an MLP or a linear model."))
    elif method.pools_rows or not method.federated:
        out.append((f"{method.title} sends no reports that noise could guard", "Choose a federated method."))
    elif told := tells_rows(plain, method):
        why = f"{method.title} tells of rows by more than their gradients: {', '.join(told)}"
        out.append((why, "Choose another method, as fedavg."))
    return out


def tells_rows(task: Task, method: AnyMethod) -> list[str]:
    """What of a method's reports still depends on a site's rows when their gradients tell nothing: tried out, with two
    sets of rows and gradients clipped to nothing."""
    given = {f.name: getattr(task, f.name) for f in fields(Task)}
    blind = PrivateTask(**given, clip=PROBE)
    said = [_reports(blind, method, seed) for seed in (1, 2)]
    if None in said:
        return ["a gradient of its own"]
    one, other = said
    assert one is not None
    assert other is not None
    return sorted({k for k, v in one.items() if not torch.allclose(v, other[k], atol=1e-5, rtol=1e-5, equal_nan=True)})


def _reports(task: Task, method: AnyMethod, seed: int, sites: int = 2, rows: int = 12) -> dict[str, Any] | None:
    """One round of every stage on made-up rows; None where a method takes a gradient by a way that noise does not."""
    some, g = task.like, torch.Generator().manual_seed(seed)
    x = torch.randn(sites, rows, *task.net.shape, generator=g).to(some)
    y = torch.nn.functional.one_hot(torch.randint(task.net.outputs, (sites, rows), generator=g), task.net.outputs)
    y = y.to(some) if task.net.outputs > 1 else torch.randn(sites, rows, 1, generator=g).to(some)
    at = torch.arange(rows).expand(sites, rows)
    lots = Lots(torch.arange(sites))
    batch = Batch(x, y, torch.ones(sites, rows, 1).to(some), at=at, lots=lots)
    everyone = torch.ones(sites, dtype=torch.bool)
    roster = Roster(tuple("ab"), everyone, torch.arange(sites), torch.tensor(1))
    held = Rows(some.new_full((sites,), rows), batch if method.aside() else None, lambda: iter((batch,)), batch)
    state, coord = method.state(task, sites), method.coord(task, sites)
    out: dict[str, Any] = {}
    try:
        for stage in method.plan(1):
            for i, ex in enumerate(stage.exchanges):
                down = ex.send(task, coord, roster)
                work = ex.begin(task, state, down, held, task.rule)
                if ex.trains:
                    ex.step(task, work, batch._replace(x=x.clone()), task.rule)
                state, up = ex.report(task, state, work, down, held, task.rule)
                if not ex.consent:  # what a site shows, it has agreed to show
                    out |= {f"{stage.name} {i}, {k}": v.clone() for k, v in tensors(up)}
                coord, _ = ex.merge(task, coord, total(up) if ex.sees == "sum" else up, roster)
            last = stage.last.send(task, coord, roster)
            state = stage.last.settle(task, state, last)
    except (NotImplementedError, AssertionError):
        return None
    return out
