"""Text tables as hospitals write them: bytes to text and back, with encoding, delimiter and line ends as they came."""

from __future__ import annotations

import csv
import errno
import gzip
import io
import re
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple, TextIO

from vitrail.core.errors import Problem, VitrailError
from vitrail.storage.untrusted_files import read_regular

SPLIT = partial(csv.reader, skipinitialspace=True, strict=True)
DELIMITERS = ",;\t|"
_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+")
SNIFFED = 200_000  # fields looked at to tell the delimiter
LARGE = 16_000_000  # bytes of a file that is read line by line, never whole
MOST_AT_ONCE = 2 * 2**30  # bytes of a file that is read whole, unpacked
CHUNK = 1 << 22  # characters of it that are looked at together
_BINARY = re.compile("[\x00-\x08\x0e-\x1f\x7f]")


class TextFile(NamedTuple):
    """A file's text; `encode` gives its bytes back."""

    text: str
    encoding: str
    mark: bytes  # what stands before the text and names the encoding, where something does
    tail: str  # DOS programs end a file with Ctrl-Z

    def encode(self, text: str) -> bytes:
        return self.mark + (text + self.tail).encode(self.encoding)


class TextRecord(NamedTuple):
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
        raw = _unpacked(path) if _is_packed(path) else read_regular(path, MOST_AT_ONCE)
    except MemoryError:
        what = "it does not fit into this machine's memory."
        raise refuse_file(path, what, "Give fewer rows or columns, or a machine with more memory.") from None
    except (OSError, EOFError, zlib.error, ValueError) as error:
        hint = "Check its permissions."
        if getattr(error, "errno", None) == errno.EFBIG:
            hint = "Write it as plain text (.csv), which is read line by line, or in several files."
        why = getattr(error, "strerror", None) or error
        raise refuse_file(path, f"the file cannot be read: {why}.", hint) from None
    return raw


def _unpacked(path: Path) -> bytes:
    """A few bytes can unpack to very many."""
    parts, length = list[bytes](), 0
    with gzip.open(path) as file:
        while part := file.read(CHUNK):
            parts.append(part)
            length += len(part)
            if length > MOST_AT_ONCE:
                raise OSError(errno.EFBIG, f"it is longer than {MOST_AT_ONCE / 2**20:g} MiB when unpacked")
    return b"".join(parts)


def decode(path: Path, raw: bytes) -> TextFile:
    wide = {b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}.get(raw[:2])
    mark = raw[:2] if wide else raw[:3] if raw.startswith(b"\xef\xbb\xbf") else b""
    for encoding in (wide,) if wide else ("utf-8", "cp1252", "latin-1"):
        with suppress(UnicodeDecodeError):
            whole = raw[len(mark) if encoding in (wide, "utf-8") else 0 :].decode(encoding)
            text = whole.rstrip("\x1a")
            if not _BINARY.search(text):
                return TextFile(text, encoding, mark if encoding in (wide, "utf-8") else b"", whole[len(text) :])
            break
    raise _refuse_binary(path)


def is_large(path: Path) -> bool:
    """Whether it is rather read line by line; packed text is several times as long."""
    with suppress(OSError):  # told where it is read
        return path.is_file() and path.stat().st_size > (LARGE // 8 if _is_packed(path) else LARGE)
    return False


def read_lines(path: Path) -> tuple[str, Iterator[str]]:
    """The beginning of a large file's text, and all its lines with their ends, one at a time."""
    try:
        with gzip.open(path) if _is_packed(path) else path.open("rb") as file:
            wide = file.read(2) in (b"\xff\xfe", b"\xfe\xff")
        for encoding in ("utf-16",) if wide else ("utf-8-sig", "cp1252", "latin-1"):
            with suppress(UnicodeDecodeError):
                return _look_through(path, encoding), _each_line_of(path, encoding)
    except (OSError, EOFError, zlib.error) as error:
        raise refuse_file(path, f"the file cannot be read: {error}.", "Check its permissions.") from None
    raise _refuse_binary(path)


def _look_through(path: Path, encoding: str) -> str:
    """The first lines; an error where anything in the file is no text, as `decode` has it."""
    head, tail = "", ""
    with _open_text(path, encoding) as file:
        while some := file.read(CHUNK):
            text = some.rstrip("\x1a")
            if _BINARY.search(text) or (tail and text):
                raise _refuse_binary(path)
            head, tail = head or text, tail or some[len(text) :]
    return head[: head.rfind("\n") + 1] or head


def _each_line_of(path: Path, encoding: str) -> Iterator[str]:
    with _open_text(path, encoding) as file:
        for line in file:
            yield line.rstrip("\x1a") if line.endswith("\x1a") else line


def _open_text(path: Path, encoding: str) -> TextIO:
    act = gzip.open if _is_packed(path) else open
    return act(path, "rt", encoding=encoding, newline="")


def _is_packed(path: Path) -> bool:
    return path.name.casefold().endswith(".gz")


def _refuse_binary(path: Path) -> VitrailError:
    return refuse_file(path, "expected text, got binary data.", "Save it as CSV (an Excel file is not text).")


def lines_of(text: str) -> list[str]:
    """With their ends, whichever those are."""
    return list(io.StringIO(text, newline=""))


def each_line(text: str) -> Iterator[str]:
    """The same, one at a time: a large file's lines at once are several times its text."""
    return (match[0] for match in _LINE.finditer(text))


def read_records(path: Path, lines: Iterable[str], delimiter: str) -> Iterator[TextRecord]:
    """Rows with something in them: a row of nothing is no row, but its line still counts."""
    reader, last = SPLIT(iter(lines), delimiter=delimiter), 0
    try:
        for cells in reader:
            if any(map(str.strip, cells)):
                yield TextRecord(cells, last + 1, reader.line_num + 1)
            last = reader.line_num
    except csv.Error as error:
        hint = 'Close every " that is opened, and double it inside a field.'
        raise refuse_file(path, f"expected quoted fields to end ({error}).", hint, f"row {last + 1}") from None


def sniff(text: str, names: set[str]) -> str:
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
        return (len(names & set(header)), len(header) > 1, even, -torn, len(header))

    return max(DELIMITERS, key=score)
