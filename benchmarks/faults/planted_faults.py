"""Faults planted in a site's rows: does the screening name the site, the cell and the cause, and stay silent otherwise?

    VITRAIL_DATA=... python benchmarks/faults/planted_faults.py --stage harm      # what each fault costs; knows no rule
    VITRAIL_DATA=... python benchmarks/faults/planted_faults.py --stage screen    # the rule; --again: after it has changed
    VITRAIL_DATA=... python benchmarks/faults/planted_faults.py --stage first     # its first form: at commit 2287c49
    VITRAIL_DATA=... python benchmarks/faults/planted_faults.py --stage rivals
    VITRAIL_DATA=... python benchmarks/faults/planted_faults.py --stage fedavg    # harm by FedAvg itself, for a sample
    VITRAIL_DATA=... python benchmarks/faults/planted_faults.py --stage released  # at commit 837ced9, for a sample
    python benchmarks/faults/planted_faults.py --report                           # prints again from what is committed

Every stage resumes: finished cases lie in --cache, one line each. Tables (`fault_tables.py`): those the rule was shaped
on, tables kept apart from its first form, and (--fresh) tables kept apart from its second. Faults: `fault_kinds.py`,
which its authors knew; `fault_kinds_later.py`, which nobody saw before the first form was frozen; and, before the
second, `fault_kinds_fresh.py`. Cases: `fault_cases.py`. Harm: `fault_harm.py`. Rivals: `fault_rivals.py`. What is
counted: planted_faults_count.py; what is printed: planted_faults_report.py.
The column is drawn by how much it tells of the outcome (squared correlations), for most faults elsewhere do no harm.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import importlib
import json
import time
from collections import Counter
from collections.abc import Callable
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import fault_tables as tables
from fault_cases import ALL_KINDS, Job, base_rows, chosen, jobs, plant, tag
from fault_harm import harm_by_fedavg, is_harmful, measure_harm
from fault_rivals import RIVALS, STEPS, step_down, trained_rules

from vitrail.core.errors import VitrailError

RESULTS = Path(__file__).parent / "results" / "planted_faults"
KEPT = 12  # cells of each rule, the strongest
EVERY = {True: 12, False: 40}  # of the harmful and of the harmless, one in so many is also run by FedAvg
SAMPLE = 7  # every so many of the cases are also run by what needs training


# --- stages: what is kept of each case --------------------------------------------------------------------------------


def harm_stage(job: Job) -> Job | None:
    if not job["kinds"] or not (made := plant(job)):
        return None
    _, table, faults = made
    before = base_rows(job["part"], job["cut"], job["data"], job["seed"])[0]
    memory = harm_memory(job["part"], job["cut"], job["data"], job["seed"])
    found = [measure_harm(before, after, table, site, job["seed"], memory) for site, _, after in faults]
    return {
        "guilty": [[site, cells] for site, cells, _ in faults],
        "harm": [round(h, 4) for h, _ in found],
        "se": [round(se, 4) for _, se in found],
        "harmful": all(is_harmful(h, table) for h, _ in found),
    }


@lru_cache(4)
def harm_memory(*_: Any) -> dict[Any, float]:
    return {}


def fedavg_stage(job: Job) -> Job | None:
    """A sample of single faults by lot, of classes: harmful ones more often, for the others are many."""
    plain = job["cut"] == "lot" and len(job["kinds"]) == 1 and job["data"] not in ("har", "digits")
    harm = known_harm().get(tag(job)) if plain and not tables.ALL[job["data"]].number else None
    if harm is None or not chosen(job, EVERY[harm["harmful"]]) or not (made := plant(job)):
        return None
    before = base_rows(job["part"], job["cut"], job["data"], job["seed"])[0]
    site, _, after = made[2][0]
    loss, se = harm_by_fedavg(before, after, made[1], site, job["seed"])
    return {"harm": round(loss, 4), "se": round(se, 4), "every": EVERY[harm["harmful"]]}


def worth_it(job: Job) -> bool:
    """Harmful faults, and every twelfth of the harmless."""
    harm = known_harm().get(tag(job))
    return not job["kinds"] or (harm is not None and (harm["harmful"] or (len(job["kinds"]) == 1 and chosen(job, 12))))


def screen_stage(job: Job) -> Job | None:
    if not worth_it(job) or not (made := plant(job)):
        return None
    began = time.perf_counter()
    try:
        said = rule()(made[0], made[1])
    except Exception as error:  # a rule that breaks has found nothing, and the report says so
        nothing: Job = {"wrong": [], "differs": [], "others differ": 0, "order": [], "seconds": 0, "judge": judge()}
        return nothing | {"broke": repr(error)[:80]}
    seconds = time.perf_counter() - began
    cells = said.cells.sort_values("strength", ascending=False, kind="stable")
    guilty = [site for site, _, _ in made[2]]
    order = list(dict.fromkeys([*(f.site for f in said.findings), *cells.site]))
    return {
        "wrong": [[f.site, f.feature, f.kind, round(float(f.strength), 2)] for f in said.findings if f.wrong],
        "differs": [[f.site, f.feature, f.kind] for f in said.findings if not f.wrong and f.site in guilty],
        "others differ": sum(not f.wrong and f.site not in guilty for f in said.findings),
        "order": order[:2],
        "seconds": round(seconds, 3),
        "judge": judge(),
    }


def rivals_stage(job: Job) -> Job | None:
    """Of the clean federations all of the design tables by lot, which set the bar, and a third of the others."""
    bars = job["part"] == "design" and job["cut"] == "lot"
    if not worth_it(job) or not (job["kinds"] or bars or job["cut"] == "natural" or chosen(job, 3)):
        return None
    if not (made := plant(job)):
        return None
    steps = STEPS if job["kinds"] or job["cut"] == "natural" else 1
    return {name: step_down(score, made[0], made[1], steps) for name, score in RIVALS.items()}


def released_stage(job: Job) -> Job | None:
    """Training takes seconds: a sample of the harmful faults by lot, and clean design federations to set the bar."""
    one = len(job["kinds"]) == 1 and chosen(job, 10) and known_harm().get(tag(job), {}).get("harmful", False)
    clean = not job["kinds"] and job["part"] == "design" and chosen(job, SAMPLE)
    if job["cut"] != "lot" or job["data"] == "har" or not (one or clean):
        return None
    made = plant(job)
    assert made is not None
    return {name: strongest(scores, job) for name, scores in trained_rules(made[0], made[1], job["seed"]).items()}


@cache
def known_harm() -> dict[str, Job]:
    return load(Path(CACHE[0]), "harm")


def strongest(scores: Any, job: Job) -> list[list[Any]]:
    flat = scores.stack().sort_values(ascending=False).head(KEPT if job["kinds"] or job["cut"] == "natural" else 1)
    return [[site, cell, round(float(v), 3)] for (site, cell), v in flat.items()]


RULE, CACHE = ["vitrail.quality.screening:screen"], [""]  # as the command line says
STAGES: dict[str, Callable[[Job], Job | None]] = {
    "harm": harm_stage,
    "screen": screen_stage,
    "first": screen_stage,
    "rivals": rivals_stage,
    "fedavg": fedavg_stage,
    "released": released_stage,
}


def rule() -> Callable[..., Any]:
    module, _, name = RULE[0].partition(":")
    return getattr(importlib.import_module(module), name)


@cache
def judge() -> str:
    """A case knows which rule judged it."""
    module = importlib.import_module(RULE[0].partition(":")[0])
    place = Path(str(module.__file__))
    files = sorted(place.parent.rglob("*.py")) if place.name == "__init__.py" else [place]
    return hashlib.sha256(b"".join(f.read_bytes() for f in files)).hexdigest()[:12]


# --- the command line -------------------------------------------------------------------------------------------------


def load(folder: Path, stage: str) -> dict[str, Job]:
    """tag -> what is kept; the last line of a case counts."""
    plain, packed = folder / f"{stage}.jsonl", folder / f"{stage}.jsonl.gz"
    text = (
        plain.read_text()
        if plain.exists()
        else gzip.decompress(packed.read_bytes()).decode()
        if packed.exists()
        else ""
    )
    out: dict[str, Job] = {}
    for line in text.splitlines():
        if line.endswith("}"):  # else it was cut short
            kept = json.loads(line)
            out.pop(kept["tag"], None)  # in the order in which they were judged
            out[kept.pop("tag")] = kept
    return out


def run(stage: str, folder: Path, minutes: float, only: list[str], again: bool, fresh: bool, every: int = 1) -> None:
    began, done = time.time(), load(folder, stage)
    if again:
        done = {t: d for t, d in done.items() if d.get("judge") == judge()}
    missing: set[str] = set()
    with (folder / f"{stage}.jsonl").open("a") as file:
        for job in jobs():
            if tag(job) in done or job["data"] in missing or (only and not any(w in tag(job) for w in only)):
                continue
            if (fresh and job["part"] != "fresh") or not chosen(job, every):
                continue
            if time.time() - began > 60 * minutes:
                break
            try:
                kept = STAGES[stage](job)
            except VitrailError as error:
                if job["data"] not in tables.ALL or isinstance(tables.whole, int):
                    raise
                missing.add(job["data"])
                print(f"{job['data']}: left out. {error}", flush=True)
                continue
            if kept is not None:
                file.write(json.dumps({"tag": tag(job)} | kept) + "\n")
                file.flush()
    print(f"{stage}: {len(load(folder, stage))} cases after {time.time() - began:.0f} s")


def pack(folder: Path) -> None:
    """Into what is committed: the last line of each case, the same bytes each time."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    for stage in STAGES:
        found = load(folder, stage)
        if stage == "screen" and found:  # one version of the rule: that which judged last
            last = list(found.values())[-1]["judge"]
            found = {t: d for t, d in found.items() if d["judge"] == last}
        if found:
            text = "".join(json.dumps({"tag": t} | d) + "\n" for t, d in sorted(found.items()))
            (RESULTS / f"{stage}.jsonl.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


def print_report() -> str:
    """From what is committed."""
    from planted_faults_report import report

    kept = {stage: load(RESULTS, stage) for stage in STAGES}
    judges = {stage: dict(Counter(d["judge"] for d in kept[stage].values())) for stage in ("screen", "first")}
    more = RESULTS / "leaks.md"  # by benchmarks/faults/fault_leaks.py
    return report(kept, ALL_KINDS, judges, more.read_text().splitlines() if more.exists() else [])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stage", choices=list(STAGES))
    parser.add_argument("--cache", type=Path, default=Path("scratch/planted_faults"))
    parser.add_argument("--minutes", type=float, default=1e9, help="start nothing after so long; resume later")
    parser.add_argument("--only", default="", help="cases whose name has one of these words: lot|heart,small")
    parser.add_argument("--fresh", action="store_true", help="only the tables and kinds put aside for the second form")
    parser.add_argument("--every", type=int, default=1, help="only one in so many cases, whatever their results")
    parser.add_argument("--again", action="store_true", help="judge anew what another version of the rule judged")
    parser.add_argument("--rule", default=RULE[0], help="module:function, (rows, table) -> Screening")
    parser.add_argument("--pack", action="store_true", help="write what is in --cache to benchmarks/faults/results")
    parser.add_argument("--report", action="store_true", help="print from what is committed; run nothing")
    parser.add_argument("--out", type=Path, default=RESULTS.with_suffix(".md"))
    args = parser.parse_args()
    RULE[0], CACHE[0] = args.rule, str(args.cache)
    if args.stage:
        args.cache.mkdir(parents=True, exist_ok=True)
        run(
            args.stage,
            args.cache,
            args.minutes,
            [w for w in args.only.split(",") if w],
            args.again,
            args.fresh,
            args.every,
        )
    if args.pack:
        pack(args.cache)
    if args.report:
        text = print_report()
        args.out.write_text(text)
        print(text)


if __name__ == "__main__":
    main()
