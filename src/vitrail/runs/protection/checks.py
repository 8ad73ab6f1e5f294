"""What of a study's [protect] does not go together, with itself, the method, the network or the sites."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import torch

from vitrail.core.errors import Problem, VitrailError
from vitrail.core.exchange import AnyExchange, Roster, Rows, SiteContext
from vitrail.core.task import Batch, Task
from vitrail.core.tensors import flatten
from vitrail.data.encoding import numeric
from vitrail.engine.aggregation import collect_all, merge
from vitrail.methods import AnyMethod
from vitrail.privacy.dp_sgd import ByRow, DrawnNoise, PrivateTask
from vitrail.privacy.report_vectors import counted
from vitrail.runs.plan import Plan
from vitrail.runs.protection.budget import guards_of
from vitrail.runs.protection.dp_statistics import without_range
from vitrail.runs.protection.masking import not_masked
from vitrail.study.model import Protect

PROBE = 1e-9  # a row's gradient clipped to this length tells nothing


def check_protection(plan: Plan, sizes: dict[str, int]) -> None:
    """All that does not go together, before the first round. `sizes`: training rows of each site."""
    clashes = clashes_of(plan, sizes)
    if clashes:
        problems = [Problem(f"protect.{key}", f"{why}.", hint) for key, why, hint in dict.fromkeys(clashes)]
        raise VitrailError("this protection is not possible here", problems)


def clashes_of(plan: Plan, sizes: dict[str, int]) -> list[tuple[str, str, str]]:
    """(key, why not, what to do)"""
    p, method, usual, clashes = plan.study.protect, plan.method, Protect(), list[tuple[str, str, str]]()
    for name, rows in sizes.items():
        if rows < p.rows_least:
            why = f"the site {name} has {rows} training rows, but at least {p.rows_least} are required"
            clashes.append(("rows_least", why, "Leave that site out."))
    asked = [key for key in ("sum", "robust", "sites", "compress") if getattr(p, key) != getattr(usual, key)]
    if not method.catalogue.federated:
        asked = [key for key in asked if getattr(p, key) != "masked"]  # said below, where masks are
        clashes += [(key, f"{method.catalogue.title} does not add up reports", "Leave it out.") for key in asked]
    elif asked:
        clashes += _not_guarded(plan, len(sizes))
    if p.sum == "masked":
        clashes += [("sum", why, hint) for why, hint in not_masked(plan, len(sizes))]
    if p.rows is not None:
        clashes += [("rows", why, hint) for why, hint in _not_private(plan)]
    elif p.clip is not None and _reports_updates_later(plan):
        why = f"{method.catalogue.title} reports updates of the model after the exchange in which they can be clipped"
        clashes.append(("clip", why, "Leave clip out, or choose another method."))
    return clashes


def _reports_updates_later(plan: Plan) -> bool:
    """Whether an exchange that does not train reports tensors of the model, without being asked to show them."""
    later = [turn for t in plan.stages for turn in t.turns if not turn.exchange.trains and not turn.exchange.consent]
    return any(name.rpartition("/")[2] in plan.task.start for turn in later for name, _ in flatten(turn.up))


def _not_guarded(plan: Plan, sites: int) -> list[tuple[str, str, str]]:
    p, method, out = plan.study.protect, plan.method, list[tuple[str, str, str]]()
    turns = [turn for t in plan.stages for turn in t.turns]
    clashes = guards_of(plan.study).clashes(method.catalogue.title, [(turn.exchange, turn.up) for turn in turns], sites)
    if p.rows and p.sum == "two servers":
        clashes = [(key, why) for key, why in clashes if "needs clip" not in why]
        why = "with rows, clip is the length of one row's gradient, but two servers need that of a report"
        out.append(("sum", why, "Leave one of the two out."))
    if p.rows and p.sites:
        clashes = [(key, why) for key, why in clashes if "needs clip" not in why]
        why = "with rows, clip is the length of one row's gradient, but noise for sites needs that of a report"
        out.append(("sites", why, "Leave one of the two out."))
    out += [(key, why, "Leave it out, or choose another method.") for key, why in clashes]
    if p.sites:
        silent = [turn.exchange for turn in turns if not turn.exchange.trains and not turn.exchange.consent]
        if any(True for ex in silent for turn in turns if turn.exchange is ex for _ in flatten(turn.up)):
            why = (
                f"{method.catalogue.title} also asks for numbers that do not come from training, and those get no noise"
            )
            out.append(("sites", why, "Choose another method, such as fedavg."))
        if unequal(plan.task, method):
            title = method.catalogue.title
            why = (
                f"with {title} some sites count more than others, but the noise is meant for sites that count the same"
            )
            out.append(("sites", why, "Let every site count the same."))
    return out


def unequal(task: Task, method: AnyMethod) -> bool:
    """Whether a site with more rows counts more: tried out, with sites of which one has ten times as many."""
    reports = _reports(task, method, 1, more=10)
    return reports is None or any(len(set(v.reshape(len(v), -1)[:, 0].tolist())) > 1 for v in reports[1].values())


def _not_private(plan: Plan) -> list[tuple[str, str]]:
    study, method, out = plan.study, plan.method, []
    if study.standardise == "global" and numeric(study):
        why = "columns are standardised by sums over all sites, which are published without noise"
        out.append((why, 'Write standardise = "local" or "none".'))
    elif study.standardise == "local" and (open_ended := without_range(study)):
        shown = ", ".join(open_ended[:5]) + (f" and {len(open_ended) - 5} more" if len(open_ended) > 5 else "")
        why = f"the noise on a column's mean depends on its range, and the study has no range for {shown}"
        out.append((why, 'Write a range for each, or standardise = "none".'))
    if not isinstance(plan.task.net, ByRow):
        out.append(("this network does not give the length of each row's gradient", "Use an MLP or a linear model."))
    elif method.catalogue.pools_rows or not method.catalogue.federated:
        out.append(
            (f"{method.catalogue.title} sends no reports that noise could protect", "Choose a federated method.")
        )
    elif names := tells_rows(plan.task, method):
        why = f"{method.catalogue.title} discloses more about rows than their gradients: {', '.join(names)}"
        out.append((why, "Choose another method, such as fedavg."))
    return out


def tells_rows(task: Task, method: AnyMethod) -> list[str]:
    """What of a method's reports still depends on a site's rows when their gradients tell nothing: tried out, with two
    sets of rows and gradients clipped to nothing."""
    given = {f.name: getattr(task, f.name) for f in fields(Task)}
    blind = PrivateTask(**given, clip=PROBE)
    rehearsals = [_reports(blind, method, seed) for seed in (1, 2)]
    if None in rehearsals:
        return ["a gradient of its own"]
    one, other = (rehearsal[0] for rehearsal in rehearsals if rehearsal is not None)
    return sorted({k for k, v in one.items() if not torch.allclose(v, other[k], atol=1e-5, rtol=1e-5, equal_nan=True)})


def _reports(
    task: Task, method: AnyMethod, seed: int, sites: int = 2, rows: int = 12, more: int = 1
) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """One round of every stage on made-up rows: what sites report, and how much of it counts; None where a method takes
    a gradient by a way that noise does not. The first site says that it has `more` times as many rows."""
    some, g = task.like, torch.Generator().manual_seed(seed)
    x = torch.randn(sites, rows, *task.net.shape, generator=g).to(some)
    y = torch.nn.functional.one_hot(torch.randint(task.net.outputs, (sites, rows), generator=g), task.net.outputs)
    y = y.to(some) if task.net.outputs > 1 else torch.randn(sites, rows, 1, generator=g).to(some)
    at = torch.arange(rows).expand(sites, rows)
    lots = DrawnNoise(torch.arange(sites))
    batch = Batch(x, y, torch.ones(sites, rows, 1).to(some), at=at, noise_source=lots)
    everyone = torch.ones(sites, dtype=torch.bool)
    roster = Roster(tuple("ab"), everyone, torch.arange(sites), torch.tensor(1))
    total_rows = some.new_full((sites,), rows)
    total_rows[0] *= more
    held = Rows(total_rows, batch if method.needs.validation_share else None, lambda: iter((batch,)), batch)
    site = SiteContext(task, held, task.rule)
    state, coord = method.state(task, sites), method.coord(task, sites)
    out, counts = dict[str, Any](), dict[str, Any]()
    try:
        for stage in method.plan(1):
            for i, ex in enumerate(stage.exchanges):
                down = ex.send(task, coord, roster)
                work = ex.begin(site, state, down)
                if ex.trains:
                    ex.step(site, work, batch._replace(x=x.clone()))
                state, up = ex.report(site, state, work, down)
                if not ex.consent:  # what a site shows, it has agreed to show
                    out |= {f"{stage.name} {i}, {k}": v.clone() for k, v in flatten(up)}
                    counts |= _counts(f"{stage.name} {i}", ex, up)
                coord, _ = merge(ex, task, coord, collect_all(ex, up, everyone), roster)
            last = stage.last.send(task, coord, roster)
            state = stage.last.settle(task, state, last)
    except (NotImplementedError, AssertionError):
        return None
    return out, counts


def _counts(name: str, ex: AnyExchange, up: Any) -> dict[str, Any]:
    by = counted(ex, up) if ex.trains else None
    return {} if by is None else {name: by.clone()}
