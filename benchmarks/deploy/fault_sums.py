"""Faults of masked sums, for benchmarks/deploy/faults.py: a site that is killed between two legs of a sum, files of a sum that
are damaged while their process is down; and whether anything was reported or opened twice."""

from __future__ import annotations

import contextlib
import json
import random
import re
import time
from pathlib import Path
from typing import Any

PLACE = re.compile(
    r'\\?"leg\\?": \\?"open\\?".*?\\?"purpose\\?": \\?"(\w+)\\?".*?\\?"stage\\?": (\d+), \\?"round\\?": (\d+), \\?"place\\?": (\d+)'
)


def log_of(world: Any, name: str) -> Path:
    return world.place / f"{name}.home" / "outbox" / "log.jsonl"


def last_out(log: Path) -> dict[str, Any]:
    """The last whole line of what left."""
    for line in reversed(log.read_bytes().splitlines()[-6:]):
        with contextlib.suppress(ValueError):
            said = json.loads(line)
            if said.get("direction") == "out":
                return dict(said)
    return {}


def between_legs(world: Any, luck: random.Random, kill: Any) -> str:
    """Killed as soon as its report under masks is on its way, before anybody tells shares."""
    name, until = luck.choice(world.names), time.time() + 20
    log = log_of(world, name)
    before = last_out(log).get("number", 0)
    while time.time() < until:
        said = last_out(log)
        if said.get("kind") == "round" and said["number"] > before:
            break
        time.sleep(0.002)
    kill([world.sites[name].pid, *world.of_site(name)])
    time.sleep(luck.uniform(0, 4))
    world.start_site(name)
    return f"{name} killed between its report and the opening, and started again"


def damage_site(world: Any, luck: random.Random, kill: Any) -> str:
    """Half of a file of its newest sum is lost while it is down."""
    name, what = luck.choice(world.names), luck.choice(["drawn.json", "report.said", "opening.said"])
    kill([world.sites[name].pid, *world.of_site(name)])
    found = sorted((world.place / f"{name}.home").glob(f"*/sums/0*/{what}"))
    cut(found[-1:])
    world.start_site(name)
    return f"{name} killed, half of {what} of its newest sum lost, and started again"


def damage_coordinator(world: Any, luck: random.Random, kill: Any) -> str:
    what = luck.choice(["sums.json", "sums.npz"])
    kill([world.serve.pid, *world.of_coordinator()])
    cut([world.run() / what])
    world.start_serve()
    return f"the coordinator killed, half of {what} lost, and started again"


def cut(places: list[Path]) -> None:
    for place in places:
        with contextlib.suppress(FileNotFoundError):
            place.write_bytes(place.read_bytes()[: place.stat().st_size // 2])


def told_twice(world: Any) -> tuple[int, int, int]:
    """From what left every site, as its outbox has it: sums to which one reported; of these, those to which it
    reported in two ways, and those whose shares it told in two ways."""
    reports, opened = dict[Any, set[str]](), dict[Any, set[str]]()
    for name in world.names:
        asked = None
        for line in log_of(world, name).read_text(encoding="utf-8").splitlines():
            said = json.loads(line)
            if said["direction"] == "in":
                asked = PLACE.search(json.dumps(said)) if said["kind"] == "mask" else None
            elif said["kind"] == "round":
                masked = json.dumps([said["stage"], said["round"], said["words"].get("place")])
                reports.setdefault((name, masked), set()).add(_masked_part(world, name, said))
            elif said["kind"] == "mask" and asked and "shares" in said["words"]:
                opened.setdefault((name, asked.groups()), set()).add(json.dumps(said["words"]["shares"]))
    twice = [sum(len(v) > 1 for v in found.values()) for found in (reports, opened)]
    return len(reports), twice[0], twice[1]


def _masked_part(world: Any, name: str, said: dict[str, Any]) -> str:
    """Of a message that left: its numbers under masks. What it scored may be asked for or not."""
    from safetensors.numpy import load

    body = (world.place / f"{name}.home" / "outbox" / f"{said['number']:06d}.safetensors").read_bytes()
    return "".join(f"{k} {hash(v.tobytes())}" for k, v in sorted(load(body).items()) if k != "scores")
