"""What left the house: every message is written down before it goes; so is what was asked, and what was refused.

    HOME/outbox/log.jsonl             one line for each message, in the order of time; kept for ever
    HOME/outbox/certificate.pem       of the site's key, by which lines are signed (deploy/identity/signing.py)
    HOME/outbox/000123.safetensors    message 123, byte for byte as it left

A line is on the disk before its message leaves: a message that stands here may never have arrived, but none left that
does not stand here. Of what comes in, no tensors are kept. Each line holds the hash of the line before it, and each of
a message that left is signed with the key that the site enrolled with: `vitrail verify KIT` looks whether all is there.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from vitrail.core.errors import Problem, VitrailError, WriteFailed, printable
from vitrail.core.text import several, shorten
from vitrail.deploy.audit.notices import NOTE
from vitrail.deploy.identity.signing import CERTIFICATE, OUTBOX, SIGNED, Signer, signed_text
from vitrail.storage.atomic_files import append, private_folder, whole_lines, write_atomically
from vitrail.storage.hash_chain import digest_of, last_digest, line_of, whole

if TYPE_CHECKING:
    from vitrail.deploy.protocol.message import Message

LOG = "log.jsonl"
MOST_TEXT = 2000  # characters of what others wrote that a line keeps
MOST_SHOWN = 60  # numbers of one tensor that are printed


class OutboxEntry(NamedTuple):
    """One line of the log."""

    time: str  # with its zone
    direction: str  # out, in
    kind: str
    number: int | None = None  # of what left, from 1
    stage: int | None = None
    round: int | None = None
    words: dict[str, Any] = {}  # noqa: RUF012  never written to
    tensors: dict[str, tuple[tuple[int, ...], str]] = {}  # noqa: RUF012  name -> shape and type
    bytes: int = 0
    sha256: str = ""
    refused: str = ""  # why nothing was done
    oldest: int | None = None  # the first message whose bytes were then kept; None: all are

    @property
    def what(self) -> str:
        """Names and shapes in short."""
        if self.refused:
            return printable(self.refused.replace("\n", " "))
        heads: dict[str, list[str]] = {}
        for name in self.tensors:
            heads.setdefault(name.split("/")[0], []).append(name)
        named = []
        for head, names in heads.items():
            count = sum(math.prod(self.tensors[n][0]) for n in names)
            many = f"{head} ({several(len(names), 'tensor')}, {several(count, 'number')})"
            named.append(many if len(names) > 1 else f"{names[0]} {_shape(self.tensors[names[0]][0])}")
        words = [f"{k}={v}" for k, v in self.words.items() if k not in ("stage", "round")]
        return printable(", ".join(named + words)) or "nothing"

    @property
    def when(self) -> str:
        """Stage and round, counted from 1; after the last round of a stage, the end."""
        if self.stage is None or self.round is None:
            return ""
        return f"{self.stage + 1}: {'end' if self.kind == 'settle' else self.round + 1}"


class Outbox:
    """One site's. `keep`: of so many messages the bytes are kept, the last ones; without it, of all. `pen` signs
    what leaves."""

    def __init__(self, home: Path, keep: int | None = None, pen: Signer | None = None) -> None:
        self.folder, self.keep, self.pen = Path(home) / "outbox", keep, pen
        self.log = self.folder / LOG
        self.known = -1, 0, ""  # length of the log as this process left it; the last number in it; its last hash

    def record(self, message: Message, data: bytes) -> int:
        """Before a message leaves; its number. Raises where it cannot be written down: then the message must stay."""
        named = {n: (tuple(t.shape), str(t.dtype).removeprefix("torch.")) for n, t in message.tensors.items()}
        entry = OutboxEntry(
            _now(), "out", message.kind, None, *_where(message.words), dict(message.words), named, len(data)
        )
        with self._writing():
            number = self.known[1] + 1
            place, oldest = self.place(number), None if self.keep is None else max(1, number - self.keep + 1)
            try:
                write_atomically(place, data, private=True, durable=True)
                self._add(entry._replace(number=number, sha256=digest_of(data), oldest=oldest))
            except WriteFailed:
                place.unlink(missing_ok=True)
                raise
            if self.keep is not None:
                files = sorted(self.folder.glob("[0-9]*.safetensors"))
                for old in files[: max(0, len(files) - self.keep)]:
                    old.unlink(missing_ok=True)
        return number

    def received(self, kind: str, words: Mapping[str, Any], count: int) -> None:
        """What was asked, in `count` bytes."""
        recorded = dict(words) if len(json.dumps(words)) <= MOST_TEXT else {"too long": json.dumps(words)[:MOST_TEXT]}
        with self._writing():
            self._add(OutboxEntry(_now(), "in", kind[:MOST_TEXT], None, *_where(words), recorded, bytes=count))

    def refused(self, text: str) -> None:
        """Why the last question was not answered."""
        with self._writing():
            self._add(OutboxEntry(_now(), "in", "refused", refused=text[:MOST_TEXT]))

    def note(self, kind: str, text: str) -> None:
        """What happened to this site and is no question of the study's."""
        with self._writing():
            self._add(OutboxEntry(_now(), "in", kind, refused=text[:MOST_TEXT]))

    def note_question(self, text: str, kind: str = NOTE) -> None:
        """What people here should know of the question at hand."""
        with self._writing():
            self._add(OutboxEntry(_now(), "in", kind, words={"text": text[:MOST_TEXT]}))

    def entries(self) -> list[OutboxEntry]:
        """The whole log. A last line that is half written is passed over: its message did not leave."""
        try:
            return _read(self.log.read_bytes(), self.log)
        except FileNotFoundError:
            return []

    def show(self, number: int) -> Message:
        """A message as it left."""
        from vitrail.deploy.protocol.message import unpack  # with torch; `vitrail verify` needs neither

        entries = {e.number: e for e in self.entries() if e.number is not None}
        if number not in entries:
            there = f"messages 1 to {max(entries)} were sent" if entries else "no message has been sent yet"
            raise VitrailError("nothing to show", [Problem(f"message {number}", f"there is no such message: {there}.")])
        try:
            data = self.place(number).read_bytes()
        except FileNotFoundError:
            what = f"only its hash was stored, {entries[number].sha256}."
            raise VitrailError("nothing to show", [Problem(f"message {number}", what)]) from None
        if digest_of(data) != entries[number].sha256:
            what = "this file is not what was sent: its hash differs from the one in the log."
            hint = "Somebody changed it, or the disk is damaged."
            raise VitrailError("nothing to show", [Problem(str(self.place(number)), what, hint)])
        return unpack(data)

    def place(self, number: int) -> Path:
        return self.folder / f"{number:06d}.safetensors"

    @contextmanager
    def _writing(self) -> Iterator[None]:
        """While the log is held by this process alone, and whole to its last line."""
        import fcntl  # joining is for Linux; who reads an outbox may be elsewhere

        try:
            append(private_folder(self.folder) / LOG, b"", private=True)  # there is one
            with self.log.open("rb") as log:
                fcntl.flock(log, fcntl.LOCK_EX)
                if self.log.stat().st_size != self.known[0]:
                    self._learn()
                    self._introduce()
                yield
        except (OSError, WriteFailed) as error:
            hint = "Free disk space and check the permissions of the folder; the site then continues by itself."
            what = error.problems[0].what if isinstance(error, WriteFailed) else f"{error.strerror}."
            raise VitrailError(
                "the site sends nothing until its outbox can be written", [Problem(str(self.folder), what, hint)]
            ) from None

    def _learn(self) -> None:
        """The last number. A last line that a crash cut off goes: its message did not leave."""
        text = whole_lines(self.log)
        numbers = [e.number for e in _read(text, self.log) if e.number is not None]
        self.known = len(text), max(numbers, default=0), last_digest(text)

    def _introduce(self) -> None:
        """Whose key signs is told beside the log."""
        place = self.folder / CERTIFICATE
        if self.pen is not None and not (place.exists() and place.read_text() == self.pen.certificate):
            write_atomically(place, self.pen.certificate, private=True)

    def _add(self, entry: OutboxEntry) -> None:
        content = {k: v for k, v in entry._asdict().items() if v not in (None, "", {})}
        length, number, before = self.known
        if self.pen is not None and entry.direction == "out":
            content[SIGNED] = self.pen.sign(OUTBOX, signed_text(content, before))
        line = line_of(content, before)
        append(self.log, line, sync=True, private=True)
        self.known = length + len(line), entry.number or number, digest_of(line)


def table(entries: list[OutboxEntry]) -> tuple[list[str], list[list[Any]]]:
    """Header and rows, for people."""
    both = any(e.direction == "in" for e in entries)
    header = ["number", "time", *(["way"] if both else []), "kind", "round", "what", "bytes", "hash"]
    rows = [
        [
            e.number or "",
            e.time,
            *([e.direction] if both else []),
            shorten(printable(e.kind), 16),
            e.when,
            shorten(e.what, 60),
            e.bytes or "",
            e.sha256[:12],
        ]
        for e in entries
    ]
    return header, rows


def numbers(message: Message, place: Path) -> str:
    """A message's own numbers; of long tensors the two ends, and how to see the rest."""
    import numpy as np

    from vitrail.deploy.consent.disclosures import volume

    out = [f"{printable(k)} = {printable(str(v))}" for k, v in message.words.items()]
    cut = False
    for name, tensor in sorted(message.tensors.items()):
        values = tensor.numpy()
        cut |= values.size > MOST_SHOWN
        shown = np.array2string(values, threshold=MOST_SHOWN, edgeitems=3, max_line_width=96, precision=6)
        caption = (
            f"{_shape(tuple(tensor.shape))}, {values.dtype}, {several(values.size, 'number')}, {volume(values.nbytes)}"
        )
        out += ["", f"{printable(name)}  ({caption})", shown]
    if cut:
        load = "python -c \"from safetensors.numpy import load_file; print(load_file('FILE')['NAME'].tolist())\""
        out += ["", f"... marks numbers that are not shown. To print a whole tensor: {load}"]
    return "\n".join([*out, "", f"FILE: {place}"] if message.tensors else out)


def _where(words: Mapping[str, Any]) -> tuple[int | None, int | None]:
    """Stage and round, where a message says them."""
    stage, round_ = (words[k] if isinstance(words.get(k), int) else None for k in ("stage", "round"))
    return stage, round_


def _shape(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "1"


def _read(text: bytes, path: Path) -> list[OutboxEntry]:
    out = []
    for at, line in enumerate(whole(text).splitlines(), 1):
        try:
            fields = {k: v for k, v in json.loads(line).items() if k in OutboxEntry._fields}
            named = {n: (tuple(shape), kind) for n, (shape, kind) in fields.pop("tensors", {}).items()}
            out.append(OutboxEntry(**fields, tensors=named))
        except (ValueError, TypeError, AttributeError):
            what, hint = (
                "Vitrail did not write this line.",
                "Move the folder outbox elsewhere and keep it. Vitrail then starts a new one.",
            )
            raise VitrailError("the log of sent messages is damaged", [Problem(f"{path}:{at}", what, hint)]) from None
    return out


def _now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")
