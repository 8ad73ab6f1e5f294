"""Jobs in processes, each finished one a line of a file in --cache: what was stopped goes on with what is missing."""

from __future__ import annotations

import argparse
import gc
import gzip
import json
import multiprocessing as mp
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

Say = Callable[[dict[str, Any]], str]


def arguments(doc: str | None, verbs: Sequence[str], cache: Path) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=verbs)
    parser.add_argument("data", type=Path, nargs="?", help="the file that `prepare` writes")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--cache", type=Path, default=cache)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--budget", type=float, default=500.0, help="seconds")
    parser.add_argument("--only", default="", help="jobs whose name holds this, or/this")
    parser.add_argument("--chunk", type=int, default=0, help="sites at once on a GPU; 0: all")
    parser.add_argument("--tiny", action="store_true", help="little of everything, to see that it works")
    return parser


def name_of(job: Sequence[Any]) -> str:
    return ", ".join(map(str, job))


def wanted(given: argparse.Namespace, jobs: Sequence[Any], *caches: Path) -> list[Any]:
    """Of these jobs, those that are not finished and that --only asks for."""
    done = finished(*caches)
    return [j for j in jobs if name_of(j) not in done and any(w in name_of(j) for w in given.only.split("/"))]


def finished(*caches: Path) -> dict[str, Any]:
    files = [file for folder in caches for file in sorted(folder.glob("*.jsonl*"))]  # those with facts are packed
    texts = [gzip.decompress(f.read_bytes()).decode() if f.suffix == ".gz" else f.read_text() for f in files]
    lines = [json.loads(line) for text in texts for line in text.splitlines()]
    return {name_of(told["job"]): told for told in lines}


def run(
    given: argparse.Namespace,
    missing: Sequence[Any],
    make: Callable[[argparse.Namespace], Any],
    carry: Callable[..., dict[str, Any]],
    say: Say,
) -> None:
    """carry(make(given), job) for each job; `make` once in each process. What it makes says by `capture` whether rounds
    are captured as graphs."""
    until = time.time() + given.budget
    given.cache.mkdir(parents=True, exist_ok=True)
    print(f"{len(missing)} to do", flush=True)
    context = mp.get_context("spawn")
    todo, stamp = context.Queue(), int(time.time())
    for job in missing:
        todo.put(job)
    files = [given.cache / f"{stamp}-{i}.jsonl" for i in range(given.processes)]
    workers = [context.Process(target=work, args=(given, todo, f, until, make, carry, say)) for f in files]
    for w in workers:
        w.start()
    for w in workers:
        w.join()
    todo.cancel_join_thread()


def work(given: argparse.Namespace, todo: Any, out: Path, until: float, make: Any, carry: Any, say: Say) -> None:
    torch.set_num_threads(1)
    world = make(given)
    while time.time() < until:
        try:
            job = todo.get(timeout=1)
        except Exception:  # nothing is left
            return
        began, told = time.perf_counter(), attempt(world, carry, job)
        if told is None and world.capture:  # should graphs fail on this machine, it goes on without
            world.capture = False
            told = attempt(world, carry, job)
        if told is None:
            continue
        told["all seconds"] = round(time.perf_counter() - began, 2)
        with out.open("a") as file:
            file.write(json.dumps({"job": list(job), **told}) + "\n")
        print(f"{name_of(job)}: {say(told)}; {told['seconds']} of {told['all seconds']} s", flush=True)


def attempt(world: Any, carry: Any, job: Any) -> dict[str, Any] | None:
    try:
        return dict(carry(world, job))
    except Exception:
        print(f"{name_of(job)}:\n{traceback.format_exc()[-1500:]}", flush=True)
        return None
    finally:
        gc.collect()
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()
