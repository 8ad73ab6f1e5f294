"""One run of a study with parties: match, train, score, predict, explain, save.

On one machine all parties are at hand. Between machines the host has the run, and its guests are at the other end of
its mailbox (deploy/vertical/postrun.py), or away. The verbs are the same.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from vitrail.analysis.explanations.rows import Explanation
from vitrail.core.errors import Problem, VitrailError, nearest
from vitrail.runs.folder import PARTIES, Folder, versions
from vitrail.runs.integrity import seal_again
from vitrail.storage.atomic_files import write_atomically
from vitrail.storage.csv_files import from_csv, to_csv
from vitrail.study.model import Study
from vitrail.vertical.matching.ids import spell, write
from vitrail.vertical.matching.match import Match, domain
from vitrail.vertical.neighbour_model import NeighbourModel, build_knn
from vitrail.vertical.shap import explain_guest
from vitrail.vertical.store import (
    LEDGER_FILE,
    PLACES,
    RATION,
    TABLES_AT,
    Crossed,
    read_crossed,
    read_info,
    terms_from,
    write_end,
    write_start,
)
from vitrail.vertical.training.checkpoints import read_tensors
from vitrail.vertical.training.dialogue import Dialogue
from vitrail.vertical.training.host_model import GuestAccess, HostModel, PredictedRows
from vitrail.vertical.training.knn import Knn
from vitrail.vertical.training.party_side import (
    GuestSide,
    HostSide,
    OwnRows,
    agree,
    keep_secret,
    make_guest,
    make_host,
    method_of,
    offer_of,
    own_rows,
    scored,
)
from vitrail.vertical.training.terms import Terms
from vitrail.vertical.wire import MessageCount

Tables = Mapping[str, pd.DataFrame]
LEDGER = ["stage", "from", "to", "message", "messages", "rows", "bytes"]


class Sides(NamedTuple):
    host: HostSide
    guests: dict[str, GuestSide]  # of this machine
    talk: Dialogue
    knn: Knn | None = None  # where neighbours vote, and nothing is trained


def build(study: Study, tables: Tables, match: Match, seed: int, home: Path | None) -> Sides:
    """Every side from its own table, its own places and what was agreed."""
    rows, problems = {}, []
    for party in study.parties:
        try:
            rows[party] = own_rows(study, party, tables[party], match)
        except VitrailError as error:
            problems += error.problems
    if problems:
        raise VitrailError("the tables of the parties cannot be used", problems)
    terms = agree(study, match.common, [offer_of(study, rows[guest]) for guest in study.guests], seed)
    guests = {}
    for name in study.guests:
        drawn, place = simulated_secret(study, name), None if home is None else home / name
        secret = drawn if place is None else keep_secret(place, drawn)
        guests[name] = make_guest(study, rows[name], terms, secret, None if place is None else place / RATION)
    host = make_host(study, rows[study.host], terms)
    talk = Dialogue(host.host, [side.guest for side in guests.values()])
    for name, program in talk.programs.items():
        program.words, program.everybody = domain(study), guests[name].everybody(study)
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
    crossed: Crossed = field(repr=False)
    path: Path | None = None
    sides: Sides | None = field(default=None, repr=False)

    @classmethod
    def begin(
        cls, study: Study, match: Match, sides: Sides, seed: int, model: HostModel, here: Sequence[str] = ()
    ) -> VerticalRun:
        """Before it is trained or scored. `here`: whose folders this machine has, if not all."""
        terms = sides.talk.terms
        info = {
            "kind": PARTIES, "finished": False, "seed": seed, "method": dict(study.method), "host": study.host,
            "guests": study.guests, "common": match.common, "lists": match.rows, "mark": match.mark,
            "terms": asdict(terms) | {"offers": [list(o) for o in terms.offers]},
            "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "versions": versions(), "left": {},
            **({"here": list(here)} if here else {}),
        }  # fmt: skip
        crossed: Crossed = {}
        for one in match.crossed:
            way = ("match", one.sender, one.receiver, one.what)
            crossed[way] = MessageCount(1, match.rows.get(one.what.removeprefix("list of "), 0), one.bytes)
        return cls(study, info, terms, match, model, pd.DataFrame(), crossed, None, sides)

    @property
    def seed(self) -> int:
        return int(self.info["seed"])

    @property
    def method(self) -> Any:
        return method_of(self.study)

    @property
    def on_one_machine(self) -> bool:
        """Whether guests' parts are here too; else this is the host's run."""
        return "here" not in self.info

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
            return self.sides.talk.rations()
        return {name: dict(left) for name, left in self.info["left"].items()}

    def at_hand(self, tables: Tables) -> Sides:
        """The parties with these tables, which must be those that were matched."""
        if self.sides is None:
            if not self.on_one_machine:
                hint = "The host joins with --ask FILE, and the coordinator serves with --again."
                problems = [Problem(guest, "it is on another machine.", hint) for guest in self.study.guests]
                raise VitrailError("a party is not available here", problems)
            if missing := [p for p in self.study.parties if p not in tables]:
                problems = [Problem(p, "there is no table of this party.", "Give its folder: --data.") for p in missing]
                raise VitrailError("a party is not available here", problems)
            assert self.path is not None
            made = build(self.study, tables, self.match, self.seed, self.path / "parties")
            for name, side in made.guests.items():
                side.guest.load(read_tensors(self.path / "parties" / name / "model.safetensors", side.guest.state()))
            self.sides = made
        if isinstance(self.model, NeighbourModel):
            self.model.knn = self.sides.knn
        return self.sides

    def access(self) -> dict[str, GuestAccess]:
        """The guests that can be asked now."""
        if self.sides is None:
            return {}
        talk = self.sides.talk
        return {n: GuestAccess(talk, n, domain(self.study)) for n in talk.names if n not in talk.mailbox.away}

    def learn(self, rows: Tensor) -> dict[str, int]:
        """Ask each guest of these rows, from the first, as far as its ration goes; of how many it has told then."""
        fit = dict.fromkeys(self.model.guest_answers, 0)
        for name, guest in self.access().items():
            new = torch.isin(rows, self.model.unanswered_rows(name, rows))
            fit[name] = int((new.cumsum(0) <= guest.left()).sum())
            self.model.learn(name, rows[: fit[name]], guest)
        return fit

    def tally(self, stage: str) -> None:
        """What crossed since it was last counted belongs to this stage."""
        if self.sides is not None:
            for way, count in self.sides.talk.wire.ledger.items():
                self.crossed[stage, *way] = self.crossed.get((stage, *way), MessageCount()).plus(count)
            self.sides.talk.wire.ledger.clear()

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
        for name, program in (sides.talk.programs if sides is not None else {}).items():
            assert sides is not None
            program.everybody = sides.guests[name].everybody(self.study, today.get(name))
        try:
            return self.model.predict(frame, without, self.access(), blind)
        finally:
            self._keep()

    def explain(
        self,
        rows: int | Sequence[Any] = 1000,
        tables: Tables | None = None,
        outcome: str | None = None,
        seed: int = 1,
        whole: bool = False,
    ) -> Explanation:
        """The host's page: why the model says what it says. `rows`: how many of those in common, by lot where there
        are more, or the ids wanted. Two answers of each guest for a row, with and without its columns, and none where
        they were given before. Where guests are on other machines, rows of which all have told, with the host's table.
        `whole`: beside it the values of every party's columns (`Explanation.whole`), where all tables are on this
        machine.
        """
        own = self._own_rows(tables)
        if whole and not self.on_one_machine:
            what = "the guests' columns are on other machines, and stay there."
            raise VitrailError("cannot explain", [Problem("--whole", what, "Leave it out: it is for simulations.")])
        places = self.choose(rows, seed)
        for name, guest in self.access().items():
            self.model.learn(name, places, guest)
        self._keep()
        return self.model.explain(own, places, outcome, self._sides(tables).guests if whole else None)

    def explain_guest(
        self, guest: str, rows: int | Sequence[Any] = 1000, tables: Tables | None = None, seed: int = 1
    ) -> Explanation:
        """A guest's own page: what each of its columns adds to its answer. Nothing crosses."""
        sides = self._sides(tables)
        if sides.knn is not None:
            what = "a guest of a nearest-neighbours study has no model, only distances in its columns."
            raise VitrailError("cannot explain", [Problem(guest, what, "Use split or vertical_logistic.")])
        if guest not in sides.guests:
            what = f"there is no guest {guest!r}."
            raise VitrailError("cannot explain", [Problem("--party", what, f"Guests: {', '.join(sides.guests)}.")])
        return explain_guest(sides.guests[guest], self.choose(rows, seed))

    def _own_rows(self, tables: Tables | None) -> OwnRows:
        """The host's; where guests are on this machine, they are at hand then."""
        host = self.study.host
        if self.on_one_machine or self.sides is not None or not tables or host not in tables:
            return self._sides(tables).host.rows
        return own_rows(self.study, host, tables[host], self.match)

    def _sides(self, tables: Tables | None) -> Sides:
        if tables is not None or self.sides is not None:
            return self.at_hand(tables or {})
        what = "explanations need the columns of the rows, and a run does not keep them."
        raise VitrailError("cannot explain", [Problem("tables", what, "Give the folder of the parties: --data.")])

    def choose(self, rows: int | Sequence[Any], seed: int) -> Tensor:
        """Places in the match: so many by lot, or these people. Where no guest can be asked, of those alone of whom
        all have told."""
        answers = list(self.model.guest_answers.values())
        costs = [answer.isnan().any(1).long() for answer in answers] or [torch.zeros(self.terms.rows).long()]
        cost, asks = torch.stack(costs).sum(0), self.on_one_machine or self.sides is not None
        hint = "The host joins with --explain N, and the coordinator serves with --again; the guests' rations limit N."
        if isinstance(rows, int):
            if rows < 1:
                raise VitrailError("cannot explain", [Problem("--rows", f"expected at least 1, got {rows}.")])
            able = np.arange(self.terms.rows) if asks else (cost == 0).nonzero()[:, 0].numpy()
            if not len(able):
                problem = Problem("--rows", "there is no row about which all guests have answered yet.", hint)
                raise VitrailError("cannot explain", [problem])
            mixed = torch.from_numpy(np.random.default_rng(seed).permutation(able))
            mixed = mixed[torch.argsort(cost[mixed], stable=True)]  # what was told spares the ration
            return mixed[:rows].sort().values
        assert self.study.match is not None
        form = self.study.match.form
        places, problems = self.model.at([spell(write(one), form) for one in rows]), []
        beyond = "Only people in the match can be explained; predict for others with --blind or --without NAME."
        for one, at in zip(rows, places.tolist(), strict=True):
            if at < 0:
                problems.append(Problem(f"--id {one}", "this person is not in the match.", beyond))
            elif not asks and cost[at]:
                problems.append(Problem(f"--id {one}", "a guest has not answered about this person yet.", hint))
        if problems:
            raise VitrailError("cannot explain", problems)
        return places

    def _keep(self) -> None:
        """What was asked after training is on disk before anything else happens."""
        if self.sides is None:
            return
        self.tally("afterwards")
        self.info["left"] = self.left()
        if self.path is not None:
            self.model.save(self.path / "parties" / self.study.host)
            write_atomically(self.path / LEDGER_FILE, to_csv(self.ledger))
            write_atomically(self.path / "run.json", json.dumps(self.info, indent=1))
            seal_again(self.path, "asked")

    def save(self, path: str | Path) -> None:
        """Write a run folder, with each party's own part of it; refuses to write over anything. What is asked later is
        kept there."""
        if self.sides is None:
            what = "the guests' parts are not available here."
            raise VitrailError("cannot save", [Problem("the run", what, f"Copy its folder: {self.path}.")])
        folder = Folder(Path(path), resume=False)
        try:
            write_start(self, folder.path)
            write_end(self, folder.path, lambda text: folder.seal("saved", {"run.json": text}))
            self.path = folder.path
        finally:
            folder.close()

    @classmethod
    def load(cls, path: str | Path) -> VerticalRun:
        path = Path(path)
        info = read_info(path)
        if not info.get("finished"):
            what, hint = "the run was stopped before its end.", "Continue it with `vitrail run ... --resume`."
            raise VitrailError("the run is not finished", [Problem(str(path), what, hint)])
        study, terms = Study.load(path / "study.toml", kept=True), terms_from(info["terms"])
        here = info.get("here", study.parties)  # between machines, the host alone
        match = Match.read([path / "parties" / p / PLACES for p in here], str(path))
        kind = NeighbourModel if method_of(study).joint == "neighbours" else HostModel
        model, scores = kind.load(study, terms, path / "parties" / study.host), pd.read_csv(path / "scores.csv")
        return cls(study, info, terms, match, model, from_csv(scores), read_crossed(path), path)


def is_together(path: Path) -> bool:
    """Whether this folder is of a run with parties."""
    try:
        read_info(path)
    except VitrailError:
        return False
    return True
