"""Whether a study's reports can leave under masks, and why not."""

from __future__ import annotations

import torch

from vitrail.core.exchange import Roster
from vitrail.core.task import Task
from vitrail.core.tensors import flatten
from vitrail.data.readers.source import tell
from vitrail.methods import AnyMethod
from vitrail.runs.plan import Plan
from vitrail.study.model import Study

OPEN = 'Write sum = "plain"'


def not_masked(plan: Plan, sites: int) -> list[tuple[str, str]]:
    """(why not, what to do), of all that speaks against it."""
    study, method, out = plan.study, plan.method, list[tuple[str, str]]()
    if method.catalogue.pools_rows:
        return [(f"{method.catalogue.title} takes all rows to one place", f"{OPEN}.")]
    turns = [turn for t in plan.stages for turn in t.turns if any(True for _ in flatten(turn.up))]
    if needs_each_report(plan):
        why = f"with {method.catalogue.title} the coordinator needs each report, not only their total"
        noise = "" if study.protect.rows else "; rows = { epsilon = 3.0 } adds noise to each report instead"
        out.append((why, f"{OPEN}{noise}.{_alternative(method)}"))
    if study.protect.robust != "no":
        why = "a robust centre needs single reports, and under masks no single report can be read"
        out.append((why, f'{OPEN}, or robust = "no".'))
    if not turns:
        return out  # nothing is reported
    if sites < study.protect.least:
        out.append(
            (f"a total is opened only for {study.protect.least} sites or more, but there are {sites}", f"{OPEN}.")
        )
    elif (asked := _fewest(method, plan.task, sites)) < sites:
        title = method.catalogue.title
        why = (
            f"{title} asks {asked} sites in one round and others in the next: such totals would differ by single sites"
        )
        out.append((why, f"{OPEN}, or let every round ask all sites."))
    return out


def needs_each_report(plan: Plan) -> bool:
    """Whether the coordinator reads single reports that no site is asked to show."""
    turns = [turn for t in plan.stages for turn in t.turns if any(True for _ in flatten(turn.up))]
    return any(turn.exchange.wire.aggregation == "each" and not turn.exchange.consent for turn in turns)


def _alternative(method: AnyMethod) -> str:
    name = method.catalogue.in_sums
    return f" The method {name} does the same under secure aggregation." if name else ""


def simulated(plan: Plan, keep_updates: bool) -> Plan:
    """The plan of a simulation, where no report leaves the machine: without secure aggregation, and with a notice of
    what a study between machines would have to write, where single reports are needed."""
    study, method = plan.study, plan.method
    if study.protect.sum != "masked" or method.catalogue.pools_rows:
        return plan
    if needs_each_report(plan):
        why = f"{method.catalogue.title} needs each site's report, not only their total"
    elif keep_updates:
        why = "each site's report is kept"
    else:
        return plan
    tell(
        f"This simulation runs without secure aggregation, because {why}. Between machines the study would be refused "
        f'until it says sum = "plain" under [protect]; single reports can then be read.{_alternative(method)}'
    )
    return Plan(study.with_changes(protect={"sum": "plain"}), method, plan.seed, plan.sites)


def with_secure_sum(study: Study, sites: int) -> Study:
    """A new study, masked where its method and so many sites allow it: the open choice is for somebody to write."""
    plan = Plan(study, study.build_method(), sites=sites)
    return study if not_masked(plan, sites) else study.with_changes(protect={"sum": "masked"})


def _fewest(method: AnyMethod, task: Task, sites: int) -> int:
    """How many sites are asked at the start."""
    everyone = torch.ones(sites, dtype=torch.bool)
    roster = Roster(tuple(map(str, range(sites))), everyone, torch.arange(sites), torch.tensor(1))
    coord = method.coord(task, sites)
    asked = [
        int(ex.invite(task, coord, roster).sum()) for ex in method.plan(1)[0].exchanges if ex.wire.aggregation == "sum"
    ]
    return min(asked, default=sites)
