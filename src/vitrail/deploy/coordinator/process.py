"""`vitrail serve`: the coordinator's process. Started again after any end, it goes on where it was."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from vitrail.core.errors import Problem, VitrailError
from vitrail.deploy.coordinator.requests import SiteRequests
from vitrail.deploy.coordinator.run_members import ENTERED, taking_part
from vitrail.deploy.coordinator.session import TOLD, conduct
from vitrail.deploy.identity.enrolment_records import CURRENT, Coordinator
from vitrail.deploy.identity.participants import are_missing, several_names
from vitrail.deploy.identity.signing import Signer, sign_run
from vitrail.deploy.protocol.agreement import Agreement
from vitrail.deploy.transport.flare.transport import FlareTransport
from vitrail.deploy.two_server import shared as two_server
from vitrail.runs.folder import Folder, is_finished
from vitrail.runs.result import Run
from vitrail.storage.atomic_files import write_atomically
from vitrail.storage.journal import DecisionRecord

GRACE = 30.0  # seconds for the others, once there are enough to start


def serve(
    who: Coordinator,
    quorum: int | None,
    deadline: float,
    say: Callable[[str, dict[str, Any]], None],
    begun: Callable[[Path], None] | None = None,
    written: Callable[[Run, Path], None] = lambda run, place: None,
    new: bool = False,
    sandbox: bool = True,
) -> None:
    """Wait for the sites, run the study, write the run folder. `begun` is told which, as soon as it is there; `written`
    when it is whole. With `new`, the run before is over, also where it is not finished, or a site has not heard its
    last word."""
    from vitrail.deploy.transport.flare import workspace

    who = replace(who, folder=who.folder.resolve())  # FLARE's processes work elsewhere
    second = who.study.protect.second
    roster, missing = (who.roster, []) if who.roster else who.participants
    if missing:
        what = (
            f"{are_missing(missing, 'not approved yet')}; the agreement that everybody accepts names all invited sites."
        )
        hint = "Approve their requests, or remove the sites that do not take part: vitrail remove NAME."
        raise VitrailError("the study cannot start", [Problem("participants", what, hint)])
    names = sorted(n for n in roster if n != second and not who.sites[n]["removed"])
    agreement = Agreement.of(who.study, who.seed, roster)
    fewest = agreement.fewest if agreement.masks or two_server.study_has(agreement) else 1
    need = max(fewest, len(names) // 2 + 1 if quorum is None else quorum)
    if not 1 <= need <= len(names):
        gone = sorted(set(roster) - {*names, second})
        what = f"only {len(names)} of {agreement.sites} sites can take part, but {need} are needed in each round."
        what += f" {several_names(gone)} {'was' if len(gone) == 1 else 'were'} removed." if gone else ""
        hint = (
            "Start the study again with the remaining sites, in a new folder; they then agree to a new list "
            "of participants."
        )
        raise VitrailError("the study cannot start", [Problem("sites", what, hint)])
    run, place, resume = _current(who.folder, agreement.hash, names, new)
    workspace.build_coordinator(who.folder)
    folder = AnnouncedFolder(place, resume, say)
    way = None
    try:
        about = {"run": run, "study": who.study.name, "agreement": agreement.hash, "sites": names}
        write_atomically(place / "deployed.json", json.dumps(about))
        if begun is not None:
            begun(place)
        way = FlareTransport(who, folder.log, agreement.longest_answer, sandbox)
        start = len(names) if quorum is None else need
        if is_finished(place):
            left = _without_closing(place, names)
            folder.log("left to tell", sites=left)
            _wait(way, set(left), 1)
        else:
            here = set(names) & set(taking_part(place)) if (place / ENTERED).exists() else set(names)
            _wait(way, here, min(need, len(here)) if (place / ENTERED).exists() else start)
        call = SiteRequests(way, agreement, names, run, need, deadline)
        gone = sorted(roster.keys() - {*names, second})
        conduct(call, folder, resume, start=start, gone=gone, written=lambda done: written(done, place))
    finally:
        if way is not None:
            way.close()
        if is_finished(place):
            folder.seal("closed")
            sign_run(place, Signer.of_coordinator(who))
        folder.close()


class AnnouncedFolder(Folder):
    """A run folder whose events are also said to whoever looks on."""

    def __init__(self, path: Path, resume: bool, say: Callable[[str, dict[str, Any]], None]) -> None:
        super().__init__(path, resume=resume, about="deployed.json")
        self.say = say

    def log(self, event: str, **details: Any) -> None:
        super().log(event, **details)
        self.say(event, details)


def say_who_is_missing(way: FlareTransport, names: set[str], before: set[str] | None) -> set[str]:
    """Before a study starts, whenever that changes: how many sites are there, and who is not."""
    missing = names - way.present()
    if missing and missing != before:
        way.log("missing", sites=sorted(missing), here=len(names - missing), of=len(names))
    return missing


def _wait(way: FlareTransport, names: set[str], enough: int) -> None:
    """Until enough are there, and then a little for the others."""
    since, missing = None, None
    while not (here := way.present()) >= names:
        if len(here & names) < enough:
            since = None
        elif since is None:
            since = time.monotonic()
            way.log("enough", sites=sorted(here & names), seconds=GRACE)
        elif time.monotonic() - since > GRACE:
            return
        way.watch(0.5)
        missing = say_who_is_missing(way, names, missing)


def _current(folder: Path, agreement: str, names: list[str], new: bool) -> tuple[str, Path, bool]:
    """The run under way, or of whose end one of these sites has not been told, or a new one; whether it was begun."""
    record = DecisionRecord(folder / CURRENT)
    current = {} if new else record.read()
    if current:
        place = folder / "runs" / current["place"]
        if current["agreement"] == agreement and not (is_finished(place) and not _without_closing(place, names)):
            return current["run"], place, (place / "deployed.json").exists()
    run = secrets.token_hex(8)
    place = folder / "runs" / f"{time.strftime('%Y%m%d-%H%M%S')}-{run[:4]}"
    record.replace({"run": run, "place": place.name, "agreement": agreement})
    return run, place, False


def _without_closing(place: Path, names: list[str]) -> list[str]:
    """Those of these sites that took part in a run and have not heard its last word."""
    informed = json.loads((place / TOLD).read_text()) if (place / TOLD).exists() else []
    return sorted(set(names) & set(taking_part(place)) - set(informed))
