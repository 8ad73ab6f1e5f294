"""What the rows of a site have spent of their privacy, over all studies and runs, on this machine.

FOLDER/ledger.jsonl     one line for each run that began, whole, as planned; written before anything of it leaves
FOLDER/ledger.key       by which rows are hashed: who has the ledger alone cannot try out patients

The folder is $VITRAIL_LEDGER, or vitrail in the user's state folder ($XDG_STATE_HOME or ~/.local/state), which all kits
of the user share; where that cannot be written to, as in a container, it lies beside the site's home. Two files are
taken for the same data if they have the same place, the same bytes, or one in twenty of their rows, or of the persons
that a study names, in common: a registry that was exported anew is still the same patients. A run that is gone on with,
by the same home and secret, draws the same noise and is not counted twice.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import math
import os
import secrets
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from vitrail.core.errors import BudgetSpent, Problem, VitrailError
from vitrail.data.readers.source import Query
from vitrail.data.readers.tables import clean
from vitrail.deploy.protocol.agreement import Agreement
from vitrail.deploy.protocol.run_log import RunLog
from vitrail.deploy.site.private_randomness import draws_of
from vitrail.privacy.budget import epsilon_of
from vitrail.runs.protection.budget import row_loss
from vitrail.storage.atomic_files import append, hold, private_folder, whole_lines, write_atomically
from vitrail.storage.journal import write_once

PLACE, LEDGER, KEY, LOCK = "VITRAIL_LEDGER", "ledger.jsonl", "ledger.key", "ledger.lock"
LIMIT = "most_epsilon.json"  # in a site's home: what somebody there set
SKETCH, ALIKE = 256, 0.05  # hashes that are kept of a file's rows; the share in common of what is the same data
BLOCK = 50_000  # rows that are hashed at once
WAIT = 10.0  # seconds for another process that has the ledger


class BudgetEntry(NamedTuple):
    """A run that began."""

    mark: str  # of run, home and agreement; it tells nothing of them
    study: str
    run: str
    when: str
    loss: float  # 1/s^2 of a removed row; infinite where the study adds no noise
    delta: float
    file: str
    content: str  # sha256, or "" where it is no file
    rows: list[str]  # the lowest hashes of its rows
    persons: list[str] = []  # noqa: RUF012  # and of its persons, where the study names them


class BudgetStanding(NamedTuple):
    """What these rows have spent, and what one run of the study at hand would make of it."""

    before: list[BudgetEntry]
    delta: float  # the smallest that was named: at it all is told
    most: float  # what somebody at the site set; infinite where nobody did
    loss: float  # of one run of the study at hand

    @property
    def spent(self) -> float:
        """1/s^2 of all runs before."""
        return sum(entry.loss for entry in self.before)

    @property
    def exceeds(self) -> bool:
        """Whether one more run would be too much."""
        return math.isfinite(self.most) and epsilon_of(self.spent + self.loss, self.delta) > self.most


class PrivacyLedger:
    """The runs of one site's data. `most`: epsilon of a removed row that no run may exceed."""

    def __init__(self, home: Path, data: Path, frame: pd.DataFrame, agreement: Agreement, most: float | None) -> None:
        """`frame`: what the file holds; as the study reads it, so that 1 and 1.0 are one value."""
        self.folder, self.home, self.agreement = ledger_folder(home), home, agreement
        self.most = kept_limit(home, most)
        self.loss = row_loss(agreement.study, agreement.method)
        spend = agreement.study.protect.rows or agreement.study.protect.sites
        self.delta = spend.delta if spend else 1.0
        self.file = str(data if isinstance(data, Query) else data.resolve())
        self.content = _sha256(data)
        rows, person = clean(frame, agreement.study), agreement.study.person_column
        self.rows = sketch(rows.drop(columns=person) if person else rows, self._key())
        self.persons = sketch(rows[[person]], self._key()) if person else []

    def standing(self, run: str | None = None) -> BudgetStanding:
        """Before a run begins; without its name, before the next one that this home would begin."""
        going_on = [run] if run else RunLog(self.home).open
        mine = {self._mark(name) for name in going_on}
        before = [entry for entry in self.entries() if entry.mark not in mine and self._is_alike(entry)]
        delta = min([self.delta, *(entry.delta for entry in before)])
        return BudgetStanding(before, delta if delta < 1 else 1e-5, self.most, self.loss)

    def check(self, run: str | None = None) -> None:
        """Refuse a run that would exceed what was set, unless it began before."""
        counted = {entry.mark for entry in self.entries()}
        names = [run] if run else RunLog(self.home).open
        standing = self.standing(run)
        if standing.exceeds and not any(self._mark(name) in counted for name in names):
            comes_to = epsilon_of(standing.spent + standing.loss, standing.delta)
            what = (
                f"one more run of this study would bring epsilon to {comes_to:.3g} for a removed row, but the "
                "limit set here is "
            )
            what += f"{self.most:.3g} (delta {standing.delta:g})."
            if not math.isfinite(comes_to):
                unguarded = "this study adds no noise" if math.isinf(self.loss) else "an earlier run added no noise"
                what = f"{unguarded}, so no epsilon holds, but the limit set here is {self.most:.3g}."
            hint = f"Do not take part, or set another limit: --most-epsilon. The count is in {self.folder / LEDGER}."
            raise BudgetSpent("privacy budget", what, hint)

    def begin(self, run: str) -> None:
        """Count a run, whole, unless it was counted before; on the disk when this returns."""
        with self._held():
            self.check(run)
            mark = self._mark(run)
            if any(entry.mark == mark for entry in self.entries()):
                return
            when = f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}"
            about = mark, self.agreement.study.name, run, when, self.loss, self.delta, self.file, self.content
            entry = BudgetEntry(*about, self.rows, self.persons)
            line = entry._asdict() | {"loss": entry.loss if math.isfinite(entry.loss) else None}
            place = self.folder / LEDGER
            whole_lines(place)  # what a crash cut off had not begun
            append(place, json.dumps(line).encode() + b"\n", sync=True, private=True)

    def entries(self) -> list[BudgetEntry]:
        place = self.folder / LEDGER
        out, text = [], place.read_bytes() if place.exists() else b""
        text = text[: text.rfind(b"\n") + 1]  # what a crash cut off had not begun
        for number, line in enumerate(text.splitlines(), 1):
            try:
                entry = json.loads(line)
                loss = math.inf if entry["loss"] is None else float(entry["loss"])
                out.append(
                    BudgetEntry(**entry | {"loss": loss, "delta": float(entry["delta"]), "rows": list(entry["rows"])})
                )
            except (ValueError, KeyError, TypeError):
                what = "Vitrail did not write this line, so the budget that these rows have spent is not known."
                hint = "Restore the file from a copy, or move it away to start a new count."
                raise VitrailError("the ledger is damaged", [Problem(f"{place}:{number}", what, hint)]) from None
        return out

    def _mark(self, run: str) -> str:
        text = f"{draws_of(self.home, run)} {self.agreement.hash}"
        return hashlib.sha256(f"vitrail ledger 1 {text}".encode()).hexdigest()[:32]

    def _is_alike(self, entry: BudgetEntry) -> bool:
        if entry.file == self.file or (self.content and entry.content == self.content):
            return True
        return _share_some(entry.rows, self.rows) or _share_some(entry.persons, self.persons)

    def _key(self) -> str:
        place = self.folder / KEY
        with self._held():
            return write_once(place, lambda: secrets.token_hex(16).encode()).decode().strip()

    @contextlib.contextmanager
    def _held(self) -> Iterator[None]:
        until = time.monotonic() + WAIT
        try:
            folder = self.folder if self.folder.exists() else private_folder(self.folder)  # who set it sets its mode
            opened = (folder / LOCK).open("a")
        except OSError as error:
            hint = f"Set {PLACE} to a permanent folder that this user can write to."
            what = f"the privacy budget of these rows cannot be recorded there: {error.strerror or error}."
            raise VitrailError("the ledger cannot be written", [Problem(str(self.folder), what, hint)]) from None
        with opened as lock:
            while not hold(lock):
                if time.monotonic() > until:
                    what = "another process has held the ledger for ten seconds."
                    raise VitrailError("the ledger is in use", [Problem(str(self.folder), what, "Try again.")])
                time.sleep(0.05)
            yield


def _share_some(one: list[str], other: list[str]) -> bool:
    fewest = min(len(one), len(other))
    return fewest > 0 and len(set(one) & set(other)) >= ALIKE * fewest


def ledger_folder(home: Path) -> Path:
    """Where this user's sites count, all of them; where nothing can be written there, beside the site's home."""
    if given := os.environ.get(PLACE):
        return Path(given)
    with contextlib.suppress(OSError, RuntimeError):
        base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
        folder = private_folder(Path(base) / "vitrail")
        if os.access(folder, os.W_OK):
            return folder
    return home.parent / "vitrail-ledger"


def kept_limit(home: Path, most: float | None) -> float:
    """What somebody at the site set, now or before; infinite where nobody did."""
    place = home / LIMIT
    if most is not None:
        write_atomically(private_folder(home) / LIMIT, json.dumps(most if math.isfinite(most) else None), private=True)
    try:
        limit = json.loads(place.read_text()) if place.exists() else None
        return math.inf if limit is None else float(limit)
    except (ValueError, TypeError):
        hint = "Set the limit again: --most-epsilon."
        raise VitrailError("the limit cannot be read", [Problem(str(place), "expected a number.", hint)]) from None


def _sha256(data: Path) -> str:
    if not data.is_file():
        return ""
    with data.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sketch(rows: pd.DataFrame, key: str) -> list[str]:
    """The lowest hashes of a table's rows, under a key. Of two tables as many are the same as rows are, in the mean;
    the order of rows and columns counts for nothing."""
    names, lowest = sorted(map(str, rows.columns)), np.empty(0, np.uint64)
    for first in range(0, len(rows), BLOCK):
        block = rows.iloc[first : first + BLOCK].reindex(columns=names)
        for name in [n for n in names if isinstance(block[n].iloc[0], np.ndarray)]:  # pictures
            block[name] = block[name].map(lambda cell: hashlib.sha256(cell.tobytes()).hexdigest())
        hashes = pd.util.hash_pandas_object(block, index=False, categorize=False).to_numpy()
        lowest = np.unique(np.concatenate([lowest, hashes]))[:SKETCH]
    return [hashlib.blake2b(v.tobytes(), key=key.encode(), digest_size=8).hexdigest() for v in lowest]


def total_of(losses: Iterable[float], delta: float) -> tuple[float, float]:
    """The epsilon of a removed and of a replaced row after runs with these losses."""
    loss = sum(losses)
    return epsilon_of(loss, delta), epsilon_of(4 * loss, delta)
