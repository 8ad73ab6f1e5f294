"""The screening's third form, on faults that only show in how columns go together and on all others: cases and counts.

    VITRAIL_DATA=... python benchmarks/faults/relations.py --stage harm --jobs third       # what each fault costs
    VITRAIL_DATA=... python benchmarks/faults/relations.py --stage screen --jobs third     # the rule of this checkout
    VITRAIL_DATA=... PYTHONPATH=OLD/src python benchmarks/faults/relations.py --stage before --jobs third
    python benchmarks/faults/relations.py --report                                         # from what is committed

OLD: a checkout of commit cc2ee8c0, the second form with its repairs. Every stage resumes. Jobs: `shaping`, known to the
third form's author; `earlier`, the harmful cases of planted_faults.py on the design and test tables, known as well;
`third`, tables and kinds that were put aside before it was shaped and screened once, after it was frozen.
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
from collections.abc import Iterator
from pathlib import Path

import fault_cases
import planted_faults as pf
from fault_cases import Job, chosen, tag

RESULTS = Path(__file__).parent / "results" / "relations"
STAGES = ("harm", "screen", "before")


def jobs_of(name: str) -> Iterator[Job]:
    if name == "earlier":  # harmful ones, and the sites as they are; their cost is known
        harm = pf.load(pf.RESULTS, "harm")
        for job in fault_cases.jobs():
            plain = job["part"] != "fresh" and job["data"] not in ("har", "digits") and len(job["kinds"]) < 2
            hurts = harm.get(tag(job), {}).get("harmful", False)
            if plain and (hurts if job["kinds"] else job["cut"] == "natural"):
                yield job
    else:
        yield from {"shaping": fault_cases.shaping_jobs, "third": fault_cases.third_jobs}[name]()


def known_harm(folder: Path) -> dict[str, Job]:
    return pf.load(pf.RESULTS, "harm") | pf.load(folder, "harm")


def run(stage: str, folder: Path, name: str, minutes: float, every: int) -> None:
    began, done = time.time(), pf.load(folder, stage)
    harm = known_harm(folder)
    pf.known_harm = lambda: harm  # type: ignore[assignment]
    rule = pf.judge() if stage != "harm" else ""
    with (folder / f"{stage}.jsonl").open("a") as file:
        for job in jobs_of(name):
            kept = done.get(tag(job), {})
            if (kept and kept.get("judge", "") == rule) or not chosen(job, every):
                continue
            if job["kinds"] and stage != "harm" and not harm.get(tag(job), {}).get("harmful", False):
                continue
            if time.time() - began > 60 * minutes:
                break
            told = pf.harm_stage(job) if stage == "harm" else pf.screen_stage(job)
            if told is not None:
                file.write(json.dumps({"tag": tag(job)} | told) + "\n")
                file.flush()
    print(f"{stage}, {name}: {time.time() - began:.0f} s")


def pack(folder: Path) -> None:
    """What is committed: of each rule the version that judged last."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    for stage in STAGES:
        found = pf.load(folder, stage)
        if stage != "harm" and found:
            last = list(found.values())[-1]["judge"]
            found = {t: d for t, d in found.items() if d["judge"] == last}
        if found:
            text = "".join(json.dumps({"tag": t} | d) + "\n" for t, d in sorted(found.items()))
            (RESULTS / f"{stage}.jsonl.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--stage", choices=STAGES)
    parser.add_argument("--jobs", choices=("shaping", "earlier", "third"), default="third")
    parser.add_argument("--cache", type=Path, default=Path("scratch/relations"))
    parser.add_argument("--minutes", type=float, default=1e9, help="start nothing after so long; resume later")
    parser.add_argument("--every", type=int, default=1, help="only one in so many cases, whatever their results")
    parser.add_argument("--pack", action="store_true", help="write what is in --cache to the committed results")
    parser.add_argument("--report", action="store_true", help="print from what is committed; run nothing")
    args = parser.parse_args()
    if args.stage:
        args.cache.mkdir(parents=True, exist_ok=True)
        run(args.stage, args.cache, args.jobs, args.minutes, args.every)
    if args.pack:
        pack(args.cache)
    if args.report:
        from relations_report import report

        text = report({stage: pf.load(RESULTS, stage) for stage in STAGES})
        RESULTS.with_suffix(".md").write_text(text)
        print(text)


if __name__ == "__main__":
    main()
