"""What a round between machines costs before anybody learns anything: messages through TLS and back, on one machine.

    python benchmarks/deploy/machines.py                  # 4, 8 and 16 sites; writes results/deploy.md
    python benchmarks/deploy/machines.py --equality       # every method, against the local engine; results/deploy_equality.md

Each site is enrolled as in a study (own key, certificate, kit) and runs `FLARE's process + a job + an echo of ours`
instead of `vitrail join`, so that sixteen fit on a small machine. Measured: seconds from a question to the last answer;
an empty message, and 20 MB both ways to three sites; seconds until a job begins; memory of the processes, proportional
share (PSS) where the system tells it. The last part runs `vitrail join` itself, for its memory and a real round.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd
import torch
from safetensors.torch import load_file

from vitrail import Run, Study, federate, methods
from vitrail.data.datasets.catalogue import heart_disease, packaged
from vitrail.deploy.identity import enrolment
from vitrail.deploy.identity.coordinator_folder import approval_of
from vitrail.deploy.protocol.message import Message
from vitrail.deploy.site.private_randomness import draws_of
from vitrail.deploy.site.process import form_of
from vitrail.deploy.transport.flare import workspace
from vitrail.deploy.transport.flare.transport import FlareTransport
from vitrail.deploy.transport.supervisor import children_of

REST = 5.0  # seconds in which nobody asks anything
GOALS = {"empty, 4 sites": 0.35, "20 MB, 3 sites": 1.5}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def federation(place: Path, names: list[str]) -> Path:
    """A study with so many enrolled sites; their kits beside it."""
    shutil.copy(packaged("heart_disease.toml"), place / "study.toml")
    folder = enrolment.invite(place / "study.toml", names, f"127.0.0.1:{free_port()}")
    for name in names:
        made = enrolment.request(
            folder / "invitations" / f"{name}.invitation", place / f"{name}.kit", place / f"{name}.home"
        )
        enrolment.accept(made.kit, enrolment.approve(folder, made.file).file)
    workspace.build_coordinator(folder)
    return folder


# a site that gives back what it gets; imports no torch
ECHO = """
import sys, threading
from pathlib import Path
from vitrail.deploy.transport.flare import components as adapter; from vitrail.deploy.transport import ipc as pipe

listener = pipe.Listener()
flare = adapter.start_site(Path(sys.argv[1]), sys.argv[2], listener.place, sys.argv[2])

def answer(end):
    with end:
        _, body = end.get()
        end.put({}, body)

while True:
    threading.Thread(target=answer, args=(listener.accept(),), daemon=True).start()
"""


def memory(pids: list[int]) -> float:
    """Megabytes, shared pages counted once."""
    total = 0
    for pid in pids:
        try:
            text = Path(f"/proc/{pid}/smaps_rollup").read_text()
            total += int(next(line for line in text.splitlines() if line.startswith("Pss:")).split()[1])
        except (OSError, StopIteration):
            continue
    return total / 1024


def ticks(pids: list[int]) -> float:
    """Processor seconds that were used so far."""
    total = 0
    for pid in pids:
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            total += int(words[11]) + int(words[12])
    return total / os.sysconf("SC_CLK_TCK")


def timed(way: FlareTransport, names: list[str], message: Message, count: int) -> list[float]:
    out = []
    for _ in range(count):
        began = time.perf_counter()
        heard = way.ask(dict.fromkeys(names, message), 120.0)
        out.append(time.perf_counter() - began)
        assert not heard.trouble, heard.trouble
        for said in heard.answers.values():
            assert all(torch.equal(v, said.tensors[k]) for k, v in message.tensors.items())
    return out


def measure(count: int, rounds: int) -> dict[str, Any]:
    """So many echoing sites."""
    place = Path(tempfile.mkdtemp(prefix="vitrail-bench-"))
    names = [f"site{i:02d}" for i in range(count)]
    folder, sites, way = federation(place, names), [], None
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    try:
        for name in names:
            workspace.build_site(place / f"{name}.kit")
            words = [sys.executable, "-c", ECHO, str(place / f"{name}.kit" / "flare"), enrolment.identity_of(name)]
            sites.append(subprocess.Popen(words, env=env, start_new_session=True))
        way = FlareTransport(enrolment.load_coordinator(folder.resolve()), lambda *_, **__: None)
        while way.present() < set(names):
            way.watch(0.5)
        idle = median(memory(children_of((place / f"{n}.kit" / "flare").resolve())) for n in names)
        began = time.perf_counter()
        timed(way, names, Message("hello", {}), 1)
        out: dict[str, Any] = {"sites": count, "until the first answer of a job": time.perf_counter() - began}
        timed(way, names, Message("hello", {}), 5)
        out["empty"] = timed(way, names, Message("hello", {}), rounds)
        large = Message("hello", {}, {"x": torch.randn(5_000_000)})
        out["20 MB"] = timed(way, names[:3], large, 5)
        out["idle"] = idle
        at = [children_of((place / f"{n}.kit" / "flare").resolve()) for n in names]
        at.append(children_of(folder.resolve() / "flare" / "coordinator"))
        before = [ticks(pids) for pids in at]
        time.sleep(REST)
        used = [(ticks(pids) - b) / REST for pids, b in zip(at, before, strict=True)]
        out["busy"], out["busy coordinator"] = median(used[:-1]), used[-1]
        out["working"] = median(memory(children_of((place / f"{n}.kit" / "flare").resolve())) for n in names)
        out["coordinator"] = memory(children_of(folder.resolve() / "flare" / "coordinator"))
        return out
    finally:
        if way is not None:
            way.close()
        for process in sites:
            process.terminate()
        time.sleep(1)
        for name in names:
            for pid in children_of((place / f"{name}.kit" / "flare").resolve()):
                os.kill(pid, 9)
        shutil.rmtree(place, ignore_errors=True)


@contextlib.contextmanager
def real(
    study: Study, tables: dict[str, pd.DataFrame] | None = None, more: tuple[str, ...] = ()
) -> Iterator[tuple[Path, Path, float]]:
    """The heart study with `vitrail join` and `vitrail serve`, a process for each site (its four hospitals, or these),
    each with `more` words: the place where it ran (a site's home is SITE.home in it), the run folder, and megabytes of
    a site's process."""
    place, tables = Path(tempfile.mkdtemp(prefix="vitrail-bench-")), tables or heart_disease()
    study.save(place / "study.toml")
    folder = enrolment.invite(place / "study.toml", list(tables), f"127.0.0.1:{free_port()}")
    vitrail, sites, serve = str(Path(sys.executable).with_name("vitrail")), [], None
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    try:
        for name, frame in tables.items():
            frame.to_csv(place / f"{name}.csv", index=False)
            made = enrolment.request(
                folder / "invitations" / f"{name}.invitation", place / f"{name}.kit", place / f"{name}.home"
            )
            enrolment.approve(folder, made.file)
        for name in tables:
            words = [vitrail, "join", str(place / f"{name}.kit"), "--data", str(place / f"{name}.csv")]
            kit = enrolment.accept(place / f"{name}.kit", approval_of(folder, name))
            words += ["--accept", form_of(kit).hash, *more]
            sites.append(subprocess.Popen(words, env=env, stdout=subprocess.DEVNULL, start_new_session=True))
        words = [vitrail, "serve", str(place / "study.toml"), *more]
        serve = subprocess.Popen(words, env=env, stdout=subprocess.DEVNULL)
        used = 0.0
        while serve.poll() is None:
            time.sleep(0.5)
            used = max(used, memory([sites[0].pid]))
        for process in sites:
            process.wait(60)
        (run,) = (folder / "runs").iterdir()
        yield place, run, used
    finally:
        for process in [*sites, *([serve] if serve else [])]:
            process.terminate()
        time.sleep(1)
        shutil.rmtree(place, ignore_errors=True)


def heart(method: str, rounds: int) -> Study:
    changes = {"method": {"name": method}, "training": {"rounds": rounds}}
    return Study.load(packaged("heart_disease.toml")).with_changes(**changes)


def equality(out: Path, rounds: int) -> None:
    """Every method: the study between processes against the same on one engine."""
    text = [f"# Between machines and on one: the same numbers, {time.strftime('%Y-%m-%d')}", ""]
    text += [
        f"The heart study, {rounds} rounds, by `vitrail serve` and four `vitrail join` over FLARE and TLS, against the",
        "local engine (looped). Largest difference over all tensors and scores; ledger: the same rows (site, stage,",
        "direction, messages, bytes). Centralized is refused between machines, since it would take rows out.",
        "",
        "| method | sites' own tensors | shared tensors | scores, every round | ledger | seconds |",
        "| --- | ---: | ---: | ---: | --- | ---: |",
    ]
    for method in (name for name, kind in methods.TABLE.items() if not kind.catalogue.pools_rows):
        study, began = heart(method, rounds), time.perf_counter()
        with real(study) as (place, folder, _):
            far, named = Run.load(folder), json.loads((folder / "deployed.json").read_text())["run"]
            own = {site: draws_of(place / f"{site}.home", named) for site in heart_disease()}
            near = federate(study, heart_disease(), engine="looped", secrets=own)
            worst = [0.0, 0.0, 0.0]
            for site, model in near.models.items():
                (file,) = (place / f"{site}.home").glob("*/model.safetensors")
                worst[0] = max(worst[0], apart(model, load_file(file)))
            worst[1] = apart(near.shared, far.shared)
            key = ["stage", "round", "site", "split", "metric"]
            both = near.history.merge(far.history, on=key, how="outer", suffixes=("", "_far"))
            assert len(both) == len(near.history) == len(far.history)
            worst[2] = float((both.value - both.value_far).abs().max())
            same = near.ledger.equals(far.ledger)
            cells = [
                near.method.catalogue.title,
                *(f"{w:.1e}" if w else "0" for w in worst),
                "same" if same else "OTHER",
            ]
            text.append(f"| {' | '.join(cells)} | {time.perf_counter() - began:.0f} |")
            print(text[-1], flush=True)
    out.write_text("\n".join(text) + "\n")
    print(out)


def apart(one: dict[str, Any], other: dict[str, Any]) -> float:
    assert one.keys() == other.keys()
    return max((float((v.double() - other[k].double()).abs().max()) for k, v in one.items() if v.numel()), default=0.0)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--sites", default="4,8,16")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "deploy.md")
    parser.add_argument("--equality", action="store_true", help="instead: every method, writes deploy_equality.md")
    args = parser.parse_args()
    if args.equality:
        equality(args.out.with_name("deploy_equality.md"), args.rounds)
        return
    found = []
    for count in map(int, args.sites.split(",")):
        found.append(measure(count, args.rounds))
        print(found[-1], flush=True)
    with real(heart("fedavg", args.rounds)) as (_, run, used):
        study = {"round": json.loads((run / "run.json").read_text())["seconds"] / args.rounds, "join": used}
    print(study, flush=True)
    cores = len(os.sched_getaffinity(0))
    text = [f"# Between machines: what a round costs, {time.strftime('%Y-%m-%d')}", ""]
    text += [f"All processes on one machine, loopback, TLS; {cores} cores ({platform.machine()}), Python "]
    text[-1] += f"{platform.python_version()}, torch {torch.__version__}. Median of {args.rounds} empty rounds and of 5"
    text += [
        "with 20 MB to three sites and back (fastest and slowest in brackets); memory is the proportional share.",
        "",
    ]
    text += ["| sites | empty round, s | 20 MB to 3 sites and back, s | first answer of a new job, s | "]
    text[-1] += "FLARE at a site, idle, MB | with a job, MB | FLARE at the coordinator, MB | "
    text[-1] += "processor between rounds, at a site | at the coordinator |"
    text += ["| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"]
    for f in found:
        cells = [f"{median(f[k]):.2f} ({min(f[k]):.2f} to {max(f[k]):.2f})" for k in ("empty", "20 MB")]
        cells += [
            f"{f['until the first answer of a job']:.1f}",
            *(f"{f[k]:.0f}" for k in ("idle", "working", "coordinator")),
            *(f"{100 * f[k]:.0f} %" for k in ("busy", "busy coordinator")),
        ]
        text.append(f"| {f['sites']} | {' | '.join(cells)} |")
    four = found[0]
    text += ["", "| goal | s | measured | holds |", "| --- | ---: | ---: | --- |"]
    for (words, goal), key in zip(GOALS.items(), ("empty", "20 MB"), strict=True):
        text.append(f"| {words} | {goal} | {median(four[key]):.2f} | {'yes' if median(four[key]) <= goal else 'no'} |")
    text += [
        "",
        f"The heart study by `vitrail serve` and four `vitrail join`: {study['round']:.2f} s a round (training, ",
    ]
    text[-1] += f"outbox and checkpoint at every round); `vitrail join` takes {study['join']:.0f} MB beside FLARE's."
    args.out.write_text("\n".join(text) + "\n")
    print(args.out)


if __name__ == "__main__":
    main()
