"""Private matching of two lists of ids, each end in a process of its own; and blind look-ups.

    python benchmarks/vertical/vertical_match.py                      # 100,000 x 100,000 ids, half of them in common
    python benchmarks/vertical/vertical_match.py --ids 2000           # a quick look

Counted is processor time of both ends, from ids as texts to each end's rows in the common order, and what crossed.
"""

from __future__ import annotations

import argparse
import os
import platform
import random
import time
from datetime import date
from importlib.metadata import version
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")  # one core for each end

import numpy as np

from vitrail.data.schema import Matching
from vitrail.vertical.matching.curve import lock, points
from vitrail.vertical.matching.lookup import LookupGuest, LookupHost, opened
from vitrail.vertical.matching.protocol import End, Places, size

RESULTS = Path(__file__).parent / "results" / "vertical_match.md"
DOMAIN = "benchmark"


def ids_of(first: int, count: int, seed: int) -> list[str]:
    """756.1234.5678.97 and the like, in an order of their own."""
    ids = [f"756.{n // 10**4:04d}.{n % 10**4:04d}.{n % 97:02d}" for n in range(first, first + count)]
    random.Random(seed).shuffle(ids)
    return ids


def be_guest(ids: list[str], rules: Matching, pipe: Connection) -> None:
    start = time.process_time()
    end = End("guest", ids, os.urandom(32), DOMAIN, rules)
    own = end.own()  # while the host does the same
    pipe.send((own, end.lock(pipe.recv())))
    pipe.recv()  # the number
    mine, theirs = pipe.recv()
    pipe.send(end.open(theirs))
    rows = np.frombuffer(end.open(mine).places, "<u4")
    pipe.send((rows, time.process_time() - start))


def meet(ids: int) -> dict[str, float]:
    """One match, from the host's side."""
    rules, own = Matching(at_least=1), ids_of(0, ids, 1)
    theirs = ids_of(ids // 2, ids, 2)
    here, there = get_context("spawn").Pipe()
    guest = get_context("spawn").Process(target=be_guest, args=(theirs, rules, there))
    guest.start()
    begun, start, sent = time.perf_counter(), time.process_time(), 0

    def say(*messages: object) -> None:
        nonlocal sent
        sent += sum(map(size, messages))  # type: ignore[arg-type]
        here.send(messages if len(messages) > 1 else messages[0])

    end = End("host", own, os.urandom(32), DOMAIN, rules)
    say(end.own())
    guests, mine = here.recv()
    sent += size(guests) + size(mine)
    count, _ = end.count([mine, end.lock(guests)])
    counted = time.perf_counter() - begun
    say(count)
    say(end.open(end.found("guest")), end.found("host"))
    back: Places = here.recv()
    sent += size(back)
    rows = np.frombuffer(end.open(back).places, "<u4")
    cpu = time.process_time() - start
    other, other_cpu = here.recv()
    wall = time.perf_counter() - begun
    guest.join()
    assert count.rows == ids - ids // 2, count.rows
    assert [own[i] for i in rows] == [theirs[i] for i in other]
    return {"host": cpu, "guest": other_cpu, "wall": wall, "counted": counted, "bytes": sent, "common": count.rows}


def parts(ids: int) -> dict[str, float]:
    """Microseconds of processor time for an id."""
    some = ids_of(0, ids, 3)
    start = time.process_time()
    made = points(some, DOMAIN)
    middle = time.process_time()
    lock(made, os.urandom(32))
    return {"point": (middle - start) / ids * 1e6, "lock": (time.process_time() - middle) / ids * 1e6}


def look_up(ids: int, asked: int) -> dict[str, float]:
    some = ids_of(0, ids, 4)
    start = time.process_time()
    desk = LookupGuest("guest", some, [i.to_bytes(4, "little") for i in range(ids)], DOMAIN, lambda rows: None)
    table, rows = time.process_time() - start, opened(desk.table)
    start = time.process_time()
    questions = [LookupHost(some[i], DOMAIN) for i in range(asked)]
    told = [desk.tell(question.asked) for question in questions]
    read = [question.read(one, rows) for question, one in zip(questions, told, strict=True)]
    spent = time.process_time() - start
    assert read == [i.to_bytes(4, "little") for i in range(asked)]
    return {"table": table, "question": spent / asked * 1e3, "bytes": len(desk.table.rows) / ids}


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__)
    given.add_argument("--ids", type=int, default=100_000)
    given.add_argument("--times", type=int, default=3)
    asked = given.parse_args()
    n, all_ = asked.ids, [meet(asked.ids) for _ in range(asked.times)]
    part, looked = parts(min(n, 20_000)), look_up(n, 200)
    lines = [
        f"# Matching {n:,} x {n:,} ids, {date.today()}",
        "",
        f"{platform.machine()}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the end; Python "
        f"{platform.python_version()}, cryptography {version('cryptography')}, numpy {np.__version__}. Two processes, "
        f"one for each end; {asked.times} times; every match was compared with the plain intersection. Where the load "
        "is above the number of cores, wall times say what else the machine did.",
        "",
        "| | CPU, host | CPU, guest | CPU, both | until the number, wall | in all, wall | crossed | in common |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for i, one in enumerate(all_, 1):
        lines.append(
            f"| {i} | {one['host']:.1f} s | {one['guest']:.1f} s | {one['host'] + one['guest']:.1f} s | "
            f"{one['counted']:.1f} s | {one['wall']:.1f} s | {one['bytes'] / 1e6:.1f} MB | {one['common']:.0f} |"
        )
    lines += [
        "",
        f"An id: {part['point']:.1f} us to its point, once at its owner; {part['lock']:.1f} us for each lock.",
        "",
        f"Blind look-up: {looked['table']:.1f} s CPU for the guest's table of {n:,} rows, {looked['bytes']:.0f} bytes "
        f"a row with an answer of 4; {looked['question']:.2f} ms a question, host and guest together.",
    ]
    text = "\n".join(lines) + "\n"
    print(text)
    if n == 100_000:
        RESULTS.write_text(text)


if __name__ == "__main__":
    main()
