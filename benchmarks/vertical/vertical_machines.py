"""A host and a guest between processes, over FLARE and TLS on the loopback device: time and bytes of a whole study.

    python benchmarks/vertical/vertical_machines.py              # 26,000 rows x 8 epochs; writes results/vertical_machines.md
    python benchmarks/vertical/vertical_machines.py --guests 2

Everything is as in a study: keys and certificates, `vitrail serve`, `vitrail join` at each party, matching, training,
scores. The people are made up; what is learned is not what this is about. Every repetition is kept as soon as it is
over, in --place, and not made again.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

sys.path.append(str(Path(__file__).parents[1] / "deploy"))

from machines import free_port

from vitrail.deploy.identity import enrolment
from vitrail.deploy.identity.coordinator_folder import approval_of, invitation_of
from vitrail.deploy.transport import supervisor
from vitrail.deploy.vertical.process import form_of_party
from vitrail.storage.atomic_files import write_atomically
from vitrail.study.model import Study
from vitrail.vertical.run import VerticalRun

ROWS, EPOCHS, HELD_OUT = 26_000, 8, 0.2
GOAL = 120.0  # seconds of training
COLUMNS = 6  # of each party, numbers


def study(guests: int) -> Study:
    names = [f"guest{i}" for i in range(1, guests + 1)]
    return Study.parse(
        {
            "name": "machines",
            "target": {"column": "y", "classes": ["no", "yes"], "positive": "yes"},
            "features": {f"x{i}": {"kind": "numeric"} for i in range(COLUMNS)},
            "parties": {"host": {"role": "host", "id": "id"}} | {n: {"role": "guest", "id": "id"} for n in names},
            "split": {"test": HELD_OUT},
            "method": {"name": "split", "epochs": EPOCHS, "alone": 5},
        }
    )


def tables(agreed: Study) -> dict[str, pd.DataFrame]:
    draw, many = np.random.default_rng(1), round(ROWS / (1 - HELD_OUT))
    ids, out, total = [f"P{i:08d}" for i in range(many)], {}, draw.normal(0, 2, many)
    for party in agreed.parties:
        x = draw.normal(size=(many, COLUMNS)).round(4)
        total += x.sum(1)
        out[party] = pd.DataFrame(x, columns=[f"x{i}" for i in range(COLUMNS)]).assign(id=ids)
    out["host"]["y"] = np.where(total > 0, "yes", "no")
    return {party: frame.sample(frac=1, random_state=i) for i, (party, frame) in enumerate(out.items())}


def once(guests: int) -> dict[str, Any]:
    """One study in a folder of its own."""
    with tempfile.TemporaryDirectory() as made:
        place, agreed = Path(made), study(guests)
        file = place / "study.toml"
        agreed.save(file)
        folder = enrolment.invite(file, [], f"127.0.0.1:{free_port()}")
        asked = {}
        for party, frame in tables(agreed).items():
            (place / party).mkdir()
            frame.to_csv(place / party / f"{party}.csv", index=False)
            asked[party] = enrolment.request(Path(shutil.copy(invitation_of(folder, party), place / party)))
            enrolment.approve(folder, asked[party].file)
        began, used = time.time(), resource.getrusage(resource.RUSAGE_CHILDREN)
        running = [start(place / "serve.log", "serve", file, "--deadline", 300)]
        for party, request in asked.items():
            kit = enrolment.accept(request.kit, approval_of(folder, party))
            words = ["--data", place / party / f"{party}.csv", "--accept", form_of_party(kit)[3].hash, "--places"]
            running.append(start(place / f"{party}.log", "join", kit.folder, *words))
        for process in running:
            if process.wait(900):
                raise SystemExit("\n".join(log.read_text()[-3000:] for log in place.glob("*.log")))
        now = resource.getrusage(resource.RUSAGE_CHILDREN)
        (run,), (own,) = (folder / "runs").iterdir(), place.glob("host/host.home/*/run")
        events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
        connected = next(time.mktime(time.strptime(e["time"][:19], "%Y-%m-%dT%H:%M:%S")) for e in events
                         if e["event"] == "job")  # fmt: skip
        matched = (own.parent / "match" / "host.json").stat().st_mtime
        trained, ended = (own.parent / "trained").stat().st_mtime, (own / "run.json").stat().st_mtime
        ways, result = json.loads((run / "carried.json").read_text())["ways"], VerticalRun.load(own)
        letters, size = (sum(way[what] for way in ways) for what in ("letters", "bytes"))
        training = result.ledger[result.ledger.stage == "training"]
        return {
            "rows": len(result.terms.train), "epochs": result.terms.epochs, "batches": len(result.terms.batches),
            "steps": result.terms.steps, "guests": guests, "start": connected - began, "match": matched - connected,
            "training": trained - matched, "after": ended - trained, "in all": time.time() - began,
            "letters": letters, "bytes": size, "training bytes": int(training.bytes.sum()),
            "cpu": now.ru_utime + now.ru_stime - used.ru_utime - used.ru_stime, "load": os.getloadavg()[0],
        }  # fmt: skip


def start(log: Path, *words: object) -> subprocess.Popen[bytes]:
    with log.open("wb") as out:
        command = supervisor.tied([sys.executable, "-m", "vitrail.cli", *map(str, words)])
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=env)


def table(told: list[dict[str, Any]]) -> str:
    head = [
        "guests",
        "rows",
        "epochs",
        "steps",
        "start",
        "match",
        "training",
        "after",
        "a step",
        "letters",
        "MB",
        "CPU",
    ]
    out = [f"| {' | '.join(head)} |", f"|{' ---: |' * len(head)}"]
    for one in told:
        times = [f"{one[k]:.1f} s" for k in ("start", "match", "training", "after")]
        row = [one["guests"], one["rows"], one["epochs"], one["steps"], *times]
        row += [
            f"{one['training'] / one['steps']:.2f} s",
            one["letters"],
            f"{one['bytes'] / 1e6:.1f}",
            f"{one['cpu']:.0f} s",
        ]
        out.append(f"| {' | '.join(map(str, row))} |")
    return "\n".join(out)


def main() -> None:
    ask = argparse.ArgumentParser()
    ask.add_argument("--guests", type=int, default=1)
    ask.add_argument("--times", type=int, default=2)
    ask.add_argument("--place", type=Path, default=Path("vertical_machines"), help="where repetitions are kept")
    ask.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "vertical_machines.md")
    given = ask.parse_args()
    given.place.mkdir(parents=True, exist_ok=True)
    for i in range(given.times):
        kept = given.place / f"{given.guests}-{i}.json"
        if not kept.exists():
            write_atomically(kept, json.dumps(once(given.guests)))
        print(kept.read_text(), flush=True)
    told = [json.loads(file.read_text()) for file in sorted(given.place.glob("*.json"))]
    worst = max(one["training"] for one in told)
    load = ", ".join(f"{one['load']:.1f}" for one in told)
    goal = "reached" if worst <= GOAL else "missed"
    text = f"""# Parties between machines, {time.strftime("%Y-%m-%d")}

{platform.machine()}, {os.cpu_count()} cores, which others used too: load at the end of each {load}. Python \
{platform.python_version()}, torch {torch.__version__}. `vitrail serve`, a `vitrail join` for each party and FLARE's \
processes beside them, TLS on the loopback device, letters sealed. Goal: training in at most {GOAL:.0f} s; {goal}, at \
worst {worst:.1f} s.

{table(told)}

start: until FLARE's job is there. match: until every party has its places. training: all steps, with what the host \
learns by itself between them, and checkpoints. after: answers about held-out rows within the ration, scores with \
intervals (the host's own, alone, once more), pages. MB: sealed, as the coordinator carried them. CPU: of all \
processes that were waited for.
"""
    write_atomically(given.out, text)
    print(text)


if __name__ == "__main__":
    main()
