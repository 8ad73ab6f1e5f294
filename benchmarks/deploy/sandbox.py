"""What shutting FLARE's processes in costs: seconds of a masked round with Landlock and without.

    python benchmarks/deploy/sandbox.py --rounds 40 --repeats 3    # writes results/sandbox.md

The heart study by FedAvg under masks, `vitrail serve` and four `vitrail join` over FLARE and TLS on this machine, in
turn with the box and with `--no-sandbox`. The guard before FLARE is there in both; its own cost is one decision for
each message, which is timed apart.
"""

from __future__ import annotations

import argparse
import json
import os
import time
import timeit
from pathlib import Path
from statistics import median

from machines import real
from masked import study_of, tables

from vitrail.deploy.transport import sandbox
from vitrail.deploy.transport.flare.channels import DATA, MessageHeader, Peer, problem_of

RESULTS = Path(__file__).parent / "results"


def round_seconds(rounds: int, words: tuple[str, ...]) -> float:
    """From first to last, divided by the rounds."""
    with real(study_of("masked", rounds), tables(4), words) as (_, run, _):
        events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
        info = json.loads((run / "run.json").read_text())
    assert not any(e["event"] == "sum not opened" for e in events)
    return float(info["seconds"]) / rounds


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    sent = MessageHeader("req", "server_command", "get_task", "basel.j", "server.j", DATA)
    line = Peer("basel", inside=False, certificate="basel")
    decision = timeit.timeit(lambda: problem_of("server", line, sent), number=20_000) / 20_000
    text = [
        f"# What shutting FLARE's processes in costs, {time.strftime('%Y-%m-%d')}",
        "",
        f"The heart study by FedAvg under masks, {args.rounds} rounds, `vitrail serve` and four `vitrail join`",
        f"over FLARE and TLS on {os.cpu_count()} cores, Landlock version {sandbox.abi()} (`benchmarks/deploy/sandbox.py`):",
        "seconds of a round in each study, in turn with the box and without.",
        "",
        "| study | with the box | --no-sandbox |",
        "| ---: | ---: | ---: |",
    ]
    found = list[tuple[float, float]]()
    for number in range(args.repeats):
        pair = [round_seconds(args.rounds, words) for words in ((), ("--no-sandbox",))]
        found.append((pair[0], pair[1]))
        text.append(f"| {number + 1} | {pair[0]:.3f} s | {pair[1]:.3f} s |")
        print(text[-1], flush=True)
        boxed, free = (median(column) for column in zip(*found, strict=True))
        told = [
            f"| median | {boxed:.3f} s | {free:.3f} s |",
            "",
            f"With the box {100 * (boxed / free - 1):+.0f} %; asked were at most +10 %.",
            f"The guard takes {1e6 * decision:.1f} microseconds to decide on a message.",
        ]
        (RESULTS / "sandbox.md").write_text("\n".join([*text, *told]) + "\n", encoding="utf-8")
    print("\n".join(told))


if __name__ == "__main__":
    main()
