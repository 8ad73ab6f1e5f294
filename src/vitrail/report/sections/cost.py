"""What a run costs: bytes, before it begins; then seconds of processors, memory, and where they were stated energy
from watts and CO2 from the factor of the grid."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from vitrail.core.text import number, several, size
from vitrail.engine.resource_usage import Footprint
from vitrail.report.sections.section import Contents, Section, run_of
from vitrail.runs.plan import Plan
from vitrail.runs.result import DEPLOYED, Run
from vitrail.runs.setup import refits

if TYPE_CHECKING:
    from vitrail.report.pages.run import Page

MUCH = 100e6  # bytes out of a site from which it is worth saying how to send less


def traffic_words(plan: Plan, keep_updates: bool = False) -> str:
    """What a run between machines would send from each site and to it, from the table of `vitrail wire`."""
    study, method, lines = plan.study, plan.method, [*plan.wire(keep_updates), *plan.later_wire()]
    out, into = (
        sum(x.bytes * x.rounds for x in lines if x.direction == way and not x.per_row)
        for way in ("from site", "to site")
    )
    rounds = several(sum(stage.rounds for stage in method.plan(study.training.rounds)), "round")
    later = ["the folds"] * bool(study.verdict) + ["the training on all rows"] * refits(study, method)
    after = f" and {' and '.join(later)} after them" if later else ""
    if any(x.per_row for x in lines):
        title = method.catalogue.title
        return f"{title} takes every training {study.row_word} out of its site: it is a yardstick, not for use."
    text = f"Between machines about {size(out)} would leave each site and {size(into)} reach it, in {rounds}{after}"
    less = " A smaller network or fewer rounds send less." if out > MUCH else ""
    return f"{text} (`vitrail wire` lists what).{less}"


def has_cost(run: Run | None) -> bool:
    return run is not None and "footprint" in run.info


def contents(page: Page) -> Contents:
    """A row for each machine that said what it used, and for each site what crossed its wire."""
    run = run_of(page)
    deployed, footprints = run.info["engine"] == DEPLOYED, run.info.get("footprints", {})
    whole = "the coordinator" if deployed else "all sites and the coordinator: one process, on one machine"
    rows = [{"who": whole, **_used(run.info["footprint"]), **_crossed(run, None if deployed else "")}]
    for site in run.sites if deployed else ():
        rows.append({"who": site, **_used(footprints.get(site, {})), **_crossed(run, site)})
    return {
        "rows": rows,
        "silent": [site for site in run.sites if site not in footprints] if deployed else [],
        "energy": any(row["energy"] for row in rows),
        "carbon": any(row["carbon"] for row in rows),
        "deployed": deployed,
    }


def _used(numbers: dict[str, float]) -> dict[str, str]:
    used = Footprint(**{"cpu": math.nan, "peak": math.nan, **numbers})
    return {
        "cpu": f"{number(used.cpu, 1)} s" if math.isfinite(used.cpu) else "not told",
        "peak": size(int(used.peak)) if math.isfinite(used.peak) else "not told",
        "energy": f"{number(used.energy, 2)} Wh at {number(used.watts, 1)} W" if math.isfinite(used.energy) else "",
        "carbon": f"{_grams(used.carbon)} at {number(used.grid, 0)} g/kWh" if math.isfinite(used.carbon) else "",
    }


def _grams(grams: float) -> str:
    """Of CO2, with as many digits as a short run needs.

    >>> _grams(0.00412), _grams(0.5), _grams(1234.5)
    ('4.12 mg', '500.00 mg', '1.23 kg')
    """
    unit, by = ("kg", 1e-3) if grams >= 1000 else ("g", 1.0) if grams >= 1 else ("mg", 1e3)
    return f"{number(grams * by, 2)} {unit}"


def _crossed(run: Run, site: str | None) -> dict[str, str]:
    """Bytes out of and into a site; of all sites together where none is named, and of the coordinator nothing of its
    own: what leaves a site comes to it."""
    ledger = run.ledger if not site else run.ledger[run.ledger["site"] == site]
    out, into = (int(ledger[ledger["direction"] == way]["bytes"].sum()) for way in ("from site", "to site"))
    return {"out": size(into), "into": size(out)} if site is None else {"out": size(out), "into": size(into)}


SECTION = Section(contents, lambda page: has_cost(page.run))
