"""Text tables as hospitals write them: bytes to text and back, with encoding, delimiter and line ends as they came."""

from __future__ import annotations

import csv
import gzip
import io
import re
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from vitrail.core.problems import Problem, VitrailError

SPLIT = partial(csv.reader, skipinitialspace=True, strict=True)
DELIMITERS = ",;\t|"
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
SNIFFED = 200_000  # fields looked at to tell the delimiter


class Text(NamedTuple):
    """A file's text; `encode` gives its bytes back."""

    text: str
    encoding: str
    mark: bytes  # what stands before the text and names the encoding, where something does
    tail: str  # DOS programs end a file with Ctrl-Z

    def encode(self, text: str) -> bytes:
        return self.mark + (text + self.tail).encode(self.encoding)


class Record(NamedTuple):
    """One row, with the place of its first line, counted from 1, and that of the line after its last."""

    cells: list[str]
    line: int
    past: int


def refuse_file(path: Path, what: str, hint: str, at: str = "") -> VitrailError:
    return VitrailError(f"cannot read {path.name}", [Problem(f"{path}, {at}".rstrip(", "), what, hint)])


def load_bytes(path: Path) -> bytes:
    """The bytes of the file, unpacked; everything the file system can refuse is said here."""
    try:
        if not path.is_file():
            what = f"expected a file, {'got a folder' if path.is_dir() else 'there is none'}."
            raise refuse_file(path, what, "Check the path.")
        raw = path.read_bytes()
        raw = gzip.decompress(raw) if path.name.casefold().endswith(".gz") else raw
    except (OSError, EOFError, zlib.error, ValueError) as error:
        raise refuse_file(path, f"the file cannot be read: {error}.", "Check its permissions.") from None
    return raw


def decode(path: Path, raw: bytes) -> Text:
    wide = {b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}.get(raw[:2])
    mark = raw[:2] if wide else raw[:3] if raw.startswith(b"\xef\xbb\xbf") else b""
    for encoding in (wide,) if wide else ("utf-8", "cp1252", "latin-1"):
        with suppress(UnicodeDecodeError):
            whole = raw[len(mark) if encoding in (wide, "utf-8") else 0 :].decode(encoding)
            text = whole.rstrip("\x1a")
            if not re.search("[\x00-\x08\x0e-\x1f\x7f]", text):
                return Text(text, encoding, mark if encoding in (wide, "utf-8") else b"", whole[len(text) :])
            break
    raise refuse_file(path, "expected text, got binary data.", "Save it as CSV (an Excel file is not text).")


def lines_of(text: str) -> list[str]:
    """With their ends, whichever those are."""
    return list(io.StringIO(text, newline=""))


def each_line(text: str) -> Iterator[str]:
    """The same, one at a time: a large file's lines at once are several times its text."""
    return (found[0] for found in _LINE.finditer(text))


def read_records(path: Path, lines: Iterable[str], delimiter: str) -> Iterator[Record]:
    """Rows with something in them: a row of nothing is no row, but its line still counts."""
    reader, last = SPLIT(iter(lines), delimiter=delimiter), 0
    try:
        for cells in reader:
            if any(map(str.strip, cells)):
                yield Record(cells, last + 1, reader.line_num + 1)
            last = reader.line_num
    except csv.Error as error:
        hint = 'Close every " that opens, and double it inside a field.'
        raise refuse_file(path, f"expected quoted fields to end ({error}).", hint, f"row {last + 1}") from None


def sniff(text: str, known: set[str]) -> str:
    """The delimiter that gives known names, even rows and no torn quotes; comma when all are equal."""

    def score(delimiter: str) -> tuple[float, ...]:
        reader = SPLIT(each_line(text), delimiter=delimiter)
        records: list[list[str]] = []
        fields = 0
        with suppress(csv.Error, StopIteration):  # what came before a broken quote still tells
            while len(records) < 200 and fields < SNIFFED:
                records.append(next(reader))
                fields += len(records[-1])
        records = [record for record in records if any(map(str.strip, record))]
        header = [name.strip() for name in records[0]] if records else []
        even = sum(len(r) == len(header) for r in records) / max(len(records), 1)
        torn = sum(c.strip().startswith('"') != c.strip().endswith('"') for r in records for c in r)
        return (len(known & set(header)), len(header) > 1, even, -torn, len(header))

    return max(DELIMITERS, key=score)
