"""Benchmarks of many cases, run one by one and kept: stopped, they go on; a report is printed from what is there."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from vitrail.studies.executor import Step, done

RESULTS = Path(__file__).parent / "results"
Cases = dict[str, dict[str, Any]]
Wanted = Callable[[str, int], Iterator[tuple[str, Callable[[], dict[str, Any]]]]]


def run_cases(name: str, about: str | None, stages: Sequence[str], seeds: int, wanted: Wanted, report: Any) -> None:
    """`wanted(stage, seeds)`: the cases of a stage, what each is called and how it is had; `report(cases)`: a page."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, default=RESULTS / f"{name}.json")
    parser.add_argument("--stage", nargs="*", default=stages, choices=stages)
    parser.add_argument("--seeds", type=int, default=seeds)
    cluster = "a Dask scheduler, tcp://HOST:PORT; its workers see this folder (PYTHONPATH) and VITRAIL_DATA"
    parser.add_argument("--cluster", default="", help=cluster)
    parser.add_argument("--report", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    cases: Cases = json.loads(given.cache.read_text()) if given.cache.exists() else {}

    def keep(job: tuple[str, Any], case: dict[str, Any]) -> None:
        cases[job[0]] = case
        print(job[0], case, flush=True)
        given.cache.write_text(json.dumps(cases, indent=0))

    for stage in () if given.report else given.stage:
        left = [(key, case) for key, case in wanted(stage, given.seeds) if key not in cases]
        done(left, _have, None, store=keep, cluster=given.cluster)
    text = report(cases)
    (RESULTS / f"{name}.md").write_text(text, encoding="utf-8")
    print(text)


def _have(job: tuple[str, Callable[[], dict[str, Any]]], held: None, step: Step) -> dict[str, Any]:
    torch.set_num_threads(1)
    return job[1]()
