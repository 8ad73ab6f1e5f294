"""`vitrail serve` for a study with parties: connects them, and writes down what it saw, which is sizes.

runs/RUN/deployed.json     which run, agreement and parties
runs/RUN/events.jsonl      who came, went, was waited for
runs/RUN/carried.json      letters and bytes from each party to each, and whether the run is finished
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from vitrail.core.errors import Problem, VitrailError
from vitrail.deploy.coordinator.process import AnnouncedFolder, say_who_is_missing
from vitrail.deploy.identity.enrolment_records import Coordinator
from vitrail.deploy.protocol.message import Message
from vitrail.deploy.transport.flare.transport import FlareTransport
from vitrail.deploy.vertical.agreement import PartyAgreement
from vitrail.deploy.vertical.party import LONGEST
from vitrail.deploy.vertical.relay import LetterRelay
from vitrail.deploy.vertical.session import dealer_of
from vitrail.storage.atomic_files import write_atomically

CURRENT, CARRIED = "current.json", "carried.json"


def serve_parties(
    who: Coordinator,
    deadline: float,
    say: Callable[[str, dict[str, Any]], None],
    new: bool = False,
    again: bool = False,
    sandbox: bool = True,
) -> Path:
    """The run's folder. `again`: the last run, which is finished, is gone on with: its host may ask once more."""
    from vitrail.deploy.transport.flare import workspace

    who = replace(who, folder=who.folder.resolve())  # FLARE's processes work elsewhere
    missing = [n for n in who.study.parties if not who.sites[n]["approved"] or who.sites[n]["removed"]]
    if missing:
        problems = [
            Problem(name, "this party of the study is not approved.", "Approve its request.") for name in missing
        ]
        raise VitrailError("the study cannot start", problems)
    pact = PartyAgreement(who.study, who.seed, {n: who.sites[n]["card"] for n in who.study.parties})
    run, place, resume = _current(who.folder, pact.hash, new, again)
    workspace.build_coordinator(who.folder)
    folder = AnnouncedFolder(place, resume, say)
    way = None
    try:
        about = {"run": run, "study": who.study.name, "agreement": pact.hash, "sites": list(who.study.parties)}
        write_atomically(place / "deployed.json", json.dumps(about))
        way = FlareTransport(who, folder.log, LONGEST, sandbox)
        _wait(way, set(who.study.parties), None if not again else deadline)
        switch = LetterRelay(
            way, pact, run, deadline, lambda numbers: dealer_of(who.study, who.seed, numbers), may_miss=again
        )
        before = _carried(place)
        try:
            switch.connect()
        finally:
            _write(place, before, switch, finished=False)
        _write(place, before, switch, finished=True)
        here = {n: Message("finish", {"run": run}) for n in way.present() & set(who.study.parties)}
        way.ask(here, min(deadline, 30.0))
    finally:
        if way is not None:
            way.close()
        folder.close()
    return place


def _wait(way: FlareTransport, names: set[str], most: float | None) -> None:
    until, missing = None if most is None else time.monotonic() + most, None
    while not way.present() >= names and (until is None or time.monotonic() < until):
        way.watch(0.5)
        missing = say_who_is_missing(way, names, missing)


def _current(folder: Path, agreement: str, new: bool, again: bool) -> tuple[str, Path, bool]:
    file = folder / CURRENT
    if file.exists() and not new:
        last = json.loads(file.read_text())
        place = folder / "runs" / last["place"]
        if last["agreement"] == agreement and (again or not _carried(place).get("finished")):
            return last["run"], place, (place / "deployed.json").exists()
    if again:
        what = "this agreement has no earlier run that could continue."
        raise VitrailError("there is no run to continue", [Problem(str(folder), what, "Leave --again out.")])
    run = secrets.token_hex(8)
    place = folder / "runs" / f"{time.strftime('%Y%m%d-%H%M%S')}-{run[:4]}"
    write_atomically(file, json.dumps({"run": run, "place": place.name, "agreement": agreement}))
    return run, place, False


def _carried(place: Path) -> dict[str, Any]:
    file = place / CARRIED
    return dict(json.loads(file.read_text())) if file.exists() else {"ways": []}


def _write(place: Path, before: dict[str, Any], switch: LetterRelay, finished: bool) -> None:
    """With what earlier starts of this run carried."""
    total = {(way["from"], way["to"]): [way["letters"], way["bytes"]] for way in before["ways"]}
    for ends, (letters, count) in switch.carried.items():
        old = total.get(ends, [0, 0])
        total[ends] = [old[0] + letters, old[1] + count]
    ways = [{"from": a, "to": b, "letters": n, "bytes": size} for (a, b), (n, size) in total.items()]
    write_atomically(place / CARRIED, json.dumps({"finished": finished, "ways": ways}))
