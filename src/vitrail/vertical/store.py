"""What a run of parties leaves on disk, wherever its parties are.

    study.toml, run.json, scores.csv, ledger.csv, wire.csv, events.jsonl      what all may know
    parties/NAME/*                                     private to that party: nobody else on the machine can read it

A host's part: its places, its model and what guests told of each row (vertical/training/host_model.py). A guest's: its
places, its weights, its encoding, its secret, its ration. While training, every side's last states, so that a run can
be resumed. Between machines each party has its own part alone; here is the host's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from vitrail.core.errors import Problem, VitrailError
from vitrail.runs.folder import PARTIES
from vitrail.storage.atomic_files import private_folder, write_atomically
from vitrail.storage.csv_files import from_csv, to_csv
from vitrail.storage.untrusted_files import read_text
from vitrail.vertical.training.checkpoints import write_tensors
from vitrail.vertical.training.party_side import keep_secret
from vitrail.vertical.training.terms import GuestOffer, Terms
from vitrail.vertical.wire import MessageCount

if TYPE_CHECKING:
    from vitrail.vertical.run import VerticalRun

PLACES, LEDGER_FILE, RATION = "match.json", "ledger.csv", "ration.json"
TABLES_AT = "tables.txt"  # in the host's own folder: where all tables were, on this machine
Crossed = dict[tuple[str, str, str, str], MessageCount]  # stage, from, to, message


def write_start(run: VerticalRun, path: Path, data: str = "") -> None:
    """Before anything is trained: what was agreed, each party's own places, a guest's secret and ration."""
    assert run.sides is not None
    for name, side in run.sides.guests.items():
        keep_secret(path / "parties" / name, side.guest.secret)
        side.guest.ration.keep_at(path / "parties" / name / RATION)
    for party in run.match.places:
        run.match.write(party, private_folder(path / "parties" / party) / PLACES)
    write_atomically(path / "study.toml", run.study.to_toml())
    write_atomically(path / LEDGER_FILE, to_csv(run.ledger))
    if data:
        write_atomically(path / "parties" / run.study.host / TABLES_AT, data, private=True)
    write_atomically(path / "run.json", json.dumps(run.info, indent=1))


def write_end(run: VerticalRun, path: Path, seal: Callable[[bytes], None] = lambda text: None) -> None:
    """The finished run; run.json last, since it says so. `seal` is told of that before it is there."""
    assert run.sides is not None
    run.model.save(path / "parties" / run.study.host)
    for name, side in run.sides.guests.items():
        write_tensors(path / "parties" / name / "model.safetensors", side.guest.state())
    talk, parties = run.sides.talk, run.study.parties
    wire = [{"party": p, **line._asdict()} for p in parties for line in talk.wire.lines(p, talk.terms.asked)]
    for name, frame in (("scores", run.scores), ("ledger", run.ledger), ("wire", pd.DataFrame(wire))):
        write_atomically(path / f"{name}.csv", to_csv(frame))
    run.info["finished"] = True
    text = json.dumps(run.info, indent=1).encode()
    seal(text)
    write_atomically(path / "run.json", text)


def read_crossed(path: Path) -> Crossed:
    ledger = from_csv(pd.read_csv(path / LEDGER_FILE, keep_default_na=False))
    return {(r[0], r[1], r[2], r[3]): MessageCount(*map(int, r[4:])) for r in ledger.to_numpy().tolist()}


def terms_from(fields: Mapping[str, Any]) -> Terms:
    return Terms(**{**fields, "offers": tuple(GuestOffer(*o) for o in fields["offers"])})


def read_info(path: Path) -> dict[str, Any]:
    try:
        info: dict[str, Any] = json.loads(read_text(path / "run.json"))
        if info.get("kind") == PARTIES:
            return info
    except (OSError, ValueError, AttributeError, RecursionError):
        pass
    what, hint = "expected the folder of a run with parties.", "Give the folder that `vitrail run --out` wrote."
    raise VitrailError("cannot load the run", [Problem(str(path), what, hint)])
