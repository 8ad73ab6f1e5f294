"""One run of a study with parties, for who has all their tables at hand: match, train, score, predict, explain.

    study.toml, run.json, scores.csv, ledger.csv, wire.csv, events.jsonl      what all may know
    parties/NAME/*                                     private to that party: nobody else on the machine can read it

A host's part: its places, its model and what guests told of each row (vertical/training/host_model.py). A guest's: its
places, its weights, its encoding, its secret, its ration. While training, every side's last states, so that a run can
be resumed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from vitrail.analysis.explanations.rows import Explanation
from vitrail.core.errors import Problem, VitrailError, nearest
from vitrail.runs.folder import PARTIES
from vitrail.runs.integrity import seal_again
from vitrail.storage.atomic_files import write_atomically
from vitrail.storage.csv_files import from_csv, to_csv
from vitrail.storage.untrusted_files import read_text
from vitrail.study.model import Study
from vitrail.vertical.local_guest import LocalGuest, explain_guest
from vitrail.vertical.matching.ids import spell, write
from vitrail.vertical.matching.match import Match
from vitrail.vertical.neighbour_model import NeighbourModel, build_knn
from vitrail.vertical.training.dialogue import Dialogue, MessageCount, Way, read_tensors
from vitrail.vertical.training.host_model import HostModel, PredictedRows
from vitrail.vertical.training.knn import Knn
from vitrail.vertical.training.party_side import (
    GuestSide,
    HostSide,
    agree,
    keep_secret,
    make_guest,
    make_host,
    method_of,
    offer_of,
    own_rows,
    scored,
)
from vitrail.vertical.training.terms import GuestOffer, Terms

Tables = Mapping[str, pd.DataFrame]
LEDGER = ["stage", "from", "to", "message", "messages", "rows", "bytes"]
PLACES, LEDGER_FILE = "match.json", "ledger.csv"
TABLES_AT = "tables.txt"  # in the host's own folder: where all tables were, on this machine


class Sides(NamedTuple):
    host: HostSide
    guests: dict[str, GuestSide]
    talk: Dialogue
    knn: Knn | None = None  # where neighbours vote, and nothing is trained


def build(study: Study, tables: Tables, found: Match, seed: int, home: Path | None) -> Sides:
    """Every side from its own table, its own places and what was agreed."""
    rows, problems = {}, []
    for party in study.parties:
        try:
            rows[party] = own_rows(study, party, tables[party], found)
        except VitrailError as error:
            problems += error.problems
    if problems:
        raise VitrailError("the tables of the parties cannot be used", problems)
    terms = agree(study, found.common, [offer_of(study, rows[guest]) for guest in study.guests], seed)
    guests = {}
    for name in study.guests:
        drawn, place = simulated_secret(study, name), None if home is None else home / name
        secret = drawn if place is None else keep_secret(place, drawn)
        guests[name] = make_guest(study, rows[name], terms, secret, None if place is None else place / "ration.json")
    host = make_host(study, rows[study.host], terms)
    talk = Dialogue(host.host, [side.guest for side in guests.values()])
    votes = method_of(study).joint == "neighbours"
    return Sides(host, guests, talk, build_knn(study, host, guests, talk.wire) if votes else None)


def simulated_secret(study: Study, guest: str) -> bytes:
    """On one machine a run can be repeated; between machines a guest draws its own."""
    return hashlib.sha256(f"vitrail noise|{study.seeds[0]}|{guest}".encode()).digest()


@dataclass
class VerticalRun:
    """What came out. `model` is the host's own; guests' parts are in their folders, or in `sides`."""

    study: Study
    info: dict[str, Any]
    terms: Terms
    match: Match
    model: HostModel
    scores: (
        pd.DataFrame
    )  # vertical/guest_value.py: model, metric, value and gain over the host alone, each with its interval
    crossed: dict[tuple[str, str, str, str], MessageCount] = field(repr=False)  # stage, from, to, message
    path: Path | None = None
    sides: Sides | None = field(default=None, repr=False)

    @property
    def seed(self) -> int:
        return int(self.info["seed"])

    @property
    def method(self) -> Any:
        return method_of(self.study)

    @property
    def ledger(self) -> pd.DataFrame:
        """stage, from, to, message, messages, rows, bytes: all that crossed."""
        return pd.DataFrame([(*way, *n) for way, n in self.crossed.items()], columns=LEDGER)

    @property
    def scored(self) -> int:
        """Held-out rows behind the scores, at most: some may have no outcome."""
        return int(self.info.get("scored", len(scored(self.study, self.terms))))

    @property
    def tables_at(self) -> str:
        """Where the tables were when it was run; nothing where that is not known."""
        file = None if self.path is None else self.path / "parties" / self.study.host / TABLES_AT
        return file.read_text(encoding="utf-8") if file is not None and file.exists() else ""

    def left(self) -> dict[str, dict[str, int]]:
        """What is left of each guest's ration."""
        if self.sides is not None:
            return {name: side.guest.ration.left for name, side in self.sides.guests.items()}
        return {name: dict(left) for name, left in self.info["left"].items()}

    def at_hand(self, tables: Tables) -> Sides:
        """The parties with these tables, which must be those that were matched."""
        if self.sides is None:
            if missing := [p for p in self.study.parties if p not in tables]:
                problems = [Problem(p, "there is no table of this party.", "Give its folder: --data.") for p in missing]
                raise VitrailError("a party is not at hand", problems)
            assert self.path is not None
            made = build(self.study, tables, self.match, self.seed, self.path / "parties")
            for name, side in made.guests.items():
                side.guest.load(read_tensors(self.path / "parties" / name / "model.safetensors", side.guest.state()))
            self.sides = made
        if isinstance(self.model, NeighbourModel):
            self.model.knn = self.sides.knn
        return self.sides

    def predict(
        self,
        frame: pd.DataFrame,
        without: Iterable[str] = (),
        tables: Tables | None = None,
        blind: bool = False,
        newer: Tables | None = None,
    ) -> PredictedRows:
        """On raw rows of the host: see `HostModel.predict`. `tables`: where guests may have to be asked; `newer`: of
        guests, as they are today, in which people are looked up blindly who came after the match."""
        sides, today = self.at_hand(tables) if tables is not None else self.sides, newer or {}
        if wrong := [name for name in today if name not in self.study.guests]:
            problems = [Problem("--today", f"there is no guest {n!r}.", nearest(n, self.study.guests)) for n in wrong]
            raise VitrailError("cannot predict", problems)
        guests = {} if sides is None else sides.guests
        reach = {n: LocalGuest(self.study, sides.talk, s, today.get(n)) for n, s in guests.items() if sides is not None}
        try:
            return self.model.predict(frame, without, reach, blind)
        finally:
            self._keep(sides)

    def explain(
        self,
        rows: int | Sequence[Any] = 1000,
        tables: Tables | None = None,
        outcome: str | None = None,
        seed: int = 1,
    ) -> Explanation:
        """The host's page: why the model says what it says. `rows`: how many of those in common, by lot where there
        are more, or the ids wanted. Two answers of each guest for a row, with and without its columns, and none where
        they were given before."""
        sides = self._sides(tables)
        places = self._choose(rows, seed)
        for name, side in sides.guests.items():
            self.model.learn(name, places, LocalGuest(self.study, sides.talk, side))
        self._keep(sides)
        return self.model.explain(sides.host.rows, places, outcome)

    def explain_guest(
        self, guest: str, rows: int | Sequence[Any] = 1000, tables: Tables | None = None, seed: int = 1
    ) -> Explanation:
        """A guest's own page: what each of its columns adds to its answer. Nothing crosses."""
        sides = self._sides(tables)
        if sides.knn is not None:
            what = "a guest of nearest neighbours has no model: its distances are its columns."
            raise VitrailError("cannot explain", [Problem(guest, what, "Use split or vertical_logistic.")])
        if guest not in sides.guests:
            what = f"there is no guest {guest!r}."
            raise VitrailError("cannot explain", [Problem("--party", what, f"Guests: {', '.join(sides.guests)}.")])
        return explain_guest(sides.guests[guest], self._choose(rows, seed))

    def _sides(self, tables: Tables | None) -> Sides:
        if tables is not None or self.sides is not None:
            return self.at_hand(tables or {})
        what = "rows are explained by their columns, which the run does not keep."
        raise VitrailError("cannot explain", [Problem("tables", what, "Give the folder of the parties: --data.")])

    def _choose(self, rows: int | Sequence[Any], seed: int) -> Tensor:
        """Places in the match."""
        if isinstance(rows, int):
            if rows < 1:
                raise VitrailError("cannot explain", [Problem("--rows", f"expected at least 1, got {rows}.")])
            mixed = torch.from_numpy(np.random.default_rng(seed).permutation(self.terms.rows))
            cost = sum(said[mixed].isnan().any(1).long() for said in self.model.told.values())
            if isinstance(cost, Tensor):  # those first of whom all have told: they spare the ration
                mixed = mixed[torch.argsort(cost, stable=True)]
            return mixed[:rows].sort().values
        assert self.study.match is not None
        form = self.study.match.form
        places = self.model.at([spell(write(one), form) for one in rows])
        bad = [one for one, at in zip(rows, places.tolist(), strict=True) if at < 0]
        hint = "Predict for them with --blind or --without NAME; explained are people whom the parties have in common."
        if bad:
            problems = [Problem(f"--id {one}", "this person is not in the match.", hint) for one in bad]
            raise VitrailError("cannot explain", problems)
        return places

    def _keep(self, sides: Sides | None) -> None:
        """What was asked after training is on disk before anything else happens."""
        if sides is None:
            return
        tally(self.crossed, "afterwards", sides.talk.wire.ledger)
        self.info["left"] = self.left()
        if self.path is not None:
            self.model.save(self.path / "parties" / self.study.host)
            write_atomically(self.path / LEDGER_FILE, to_csv(self.ledger))
            write_atomically(self.path / "run.json", json.dumps(self.info, indent=1))
            seal_again(self.path, "asked")

    @classmethod
    def load(cls, path: str | Path) -> VerticalRun:
        path = Path(path)
        info = read_info(path)
        if not info.get("finished"):
            what, hint = "it was stopped before its end.", "Continue it with `vitrail run ... --resume`."
            raise VitrailError("the run is not finished", [Problem(str(path), what, hint)])
        study, terms = Study.load(path / "study.toml", kept=True), terms_from(info["terms"])
        here = info.get("here", study.parties)  # between machines, the host alone
        found = Match.read([path / "parties" / p / PLACES for p in here], str(path))
        kind = NeighbourModel if method_of(study).joint == "neighbours" else HostModel
        model = kind.load(study, terms, path / "parties" / study.host)
        return cls(
            study, info, terms, found, model, from_csv(pd.read_csv(path / "scores.csv")), read_crossed(path), path
        )


def tally(
    crossed: dict[tuple[str, str, str, str], MessageCount], stage: str, ledger: dict[Way, MessageCount]
) -> dict[tuple[str, str, str, str], MessageCount]:
    """Add what a wire counted to what crossed before, and empty the wire's."""
    for (a, b, what), n in ledger.items():
        before = crossed.get((stage, a, b, what), MessageCount())
        crossed[stage, a, b, what] = MessageCount(*(x + y for x, y in zip(before, n, strict=True)))
    ledger.clear()
    return crossed


def read_crossed(path: Path) -> dict[tuple[str, str, str, str], MessageCount]:
    ledger = from_csv(pd.read_csv(path / LEDGER_FILE, keep_default_na=False))
    return {(r[0], r[1], r[2], r[3]): MessageCount(*map(int, r[4:])) for r in ledger.to_numpy().tolist()}


def terms_from(said: Mapping[str, Any]) -> Terms:
    return Terms(**{**said, "offers": tuple(GuestOffer(*o) for o in said["offers"])})


def read_info(path: Path) -> dict[str, Any]:
    try:
        info: dict[str, Any] = json.loads(read_text(path / "run.json"))
        if info.get("kind") == PARTIES:
            return info
    except (OSError, ValueError, AttributeError, RecursionError):
        pass
    what, hint = "expected the folder of a run with parties.", "Give the folder that `vitrail run --out` wrote."
    raise VitrailError("cannot load the run", [Problem(str(path), what, hint)])


def is_together(path: Path) -> bool:
    """Whether this folder is of a run with parties."""
    try:
        read_info(path)
    except VitrailError:
        return False
    return True
