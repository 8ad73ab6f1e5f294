"""What a run folder was when it was closed: the hash of every file in it, in its log, whose lines are chained.

    events.jsonl              {"event": "finished", "files": {"scores.csv": SHA256, ...}, "whole": true, "before": ...}
    sites/NAME/marks.json     the hashes of what is private to that site; the log has the hash of this file alone

A private file may be short and easy to guess (a pseudonym): its plain hash, where all can read it, would tell it. That
of marks.json, which holds a random number, tells nothing.
"""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from vitrail.core.errors import Problem, VitrailError
from vitrail.storage.atomic_files import PART, append, hold, write_atomically
from vitrail.storage.hash_chain import Link, digest_of, digest_of_file, last_digest, line_of, read_chain
from vitrail.storage.untrusted_files import read_text

LOG, LOCK, MARKS, SIGNATURE = "events.jsonl", ".lock", "marks.json", "signature.json"
PRIVATE = ("sites", "parties")  # folders that hold a folder of its own for each site or party
FILES, WHOLE = "files", "whole"  # in a line: file -> hash; whether these are all files there are


class Verification(NamedTuple):
    """What is wrong with a folder, file by file, and what else there is to say of it."""

    wrong: list[Problem]
    notes: list[str]
    links: list[Link]
    files: int = 0  # that are as they were written


def take_digests(path: Path, without: Iterable[Path] = (), ahead: Mapping[str, bytes] | None = None) -> dict[str, str]:
    """File -> hash, of all that a run folder holds. `without` some files; `ahead`: as they will be written."""
    left_out = {*without}
    for place in _private(path):
        own = [f for f in _files(place) if f.is_file() and f.name != MARKS and f not in left_out]
        inside = {_name(place, f): digest_of_file(f) for f in own}
        content = {"salt": secrets.token_hex(16), FILES: inside}
        write_atomically(place / MARKS, json.dumps(content), private=True)
    digests = {_name(path, f): digest_of_file(f) for f in _covered(path) if f.is_file() and f not in left_out}
    return digests | {k: digest_of(v) for k, v in (ahead or {}).items()}


def add_to_chain(file: Path) -> None:
    """A page or table that a verb wrote into a finished run's folder; nothing where it is in none."""
    path = file.parent
    if (path / LOG).exists() and (path / "run.json").exists() and file.exists():
        _add(path, "added", lambda: {FILES: {file.name: digest_of_file(file)}}, only_closed=True)


def seal_again(path: Path, event: str) -> None:
    """After some files of a run were written anew, by who has no Folder at hand."""
    _add(path, event, lambda: {FILES: take_digests(path), WHOLE: True})


def _add(path: Path, event: str, details: Callable[[], dict[str, Any]], only_closed: bool = False) -> None:
    """Nothing where another process holds the folder: it closes it with all that is there."""
    with (path / LOCK).open("w") as lock:
        if not hold(lock):
            return
        text = (path / LOG).read_bytes() if (path / LOG).exists() else b""
        links, new = read_chain(text)[0], details()
        if only_closed and (_latest(links) is None or new[FILES].items() <= digests_in(links).items()):
            return  # not closed yet, or the same page again
        append(path / LOG, line_of({"time": now(), "event": event, **new}, last_digest(text)), sync=True)


def verify_folder(path: Path) -> Verification:
    """Whether a run folder is as it was written: which files were changed, are missing or were added."""
    try:
        text = (path / LOG).read_bytes()
    except OSError:
        what = f"it has no {LOG}: it is not a run folder, its log was removed, or an earlier release wrote it."
        raise VitrailError("there is nothing to verify", [Problem(str(path), what)]) from None
    links, broken = read_chain(text)
    wrong = [Problem(f"{LOG}, line {n}", f"{what}.") for n, what in broken.items()]
    notes, named = list[str](), digests_in(links)
    whole = _latest(links)
    if whole is None:
        notes.append("The run is not closed: files that it has not sealed yet are not covered.")
    well = 0
    for name, mark in named.items():
        differences, count = _compare(path, name, mark)
        if differences and whole is None:
            differences = [
                p._replace(what=f"{p.what[:-1]}, or the run was stopped while it wrote this file.") for p in differences
            ]
        wrong += differences
        well += count
    if whole is not None:
        named_paths = {path / name for name in named}
        inside = [f for f in _covered(path) if f not in named_paths]
        wrong += [Problem(_name(path, f), "it was added after the run was closed.") for f in inside]
    return Verification(wrong, notes, links, well)


def digests_in(links: Iterable[Link]) -> dict[str, str]:
    """File -> hash, as the last line that names it says."""
    named: dict[str, str] = {}
    for link in links:
        digests = link.entry.get(FILES)
        if isinstance(digests, dict):
            named = ({} if link.entry.get(WHOLE) else named) | {str(k): str(v) for k, v in digests.items()}
    return named


def altered(path: Path, names: Iterable[str]) -> list[Problem]:
    """Which of these files of a closed run are not as it wrote them. Of runs without hashes, none."""
    try:
        lines = [line for line in (path / LOG).read_bytes().splitlines(keepends=True) if b'"files"' in line]
    except OSError:
        return []
    recorded = digests_in(read_chain(b"".join(lines))[0])
    out = []
    for name in names:
        place, wanted = path / name, recorded.get(name)
        if name.split("/")[0] in PRIVATE:
            own = path.joinpath(*name.split("/")[:2])
            wanted = _inside(own).get(_name(own, place))
        if wanted is not None and place.exists() and digest_of_file(place) != wanted:
            hint = f"Restore it from a copy. To list all changes: vitrail verify {path}"
            out.append(Problem(str(place), "it was changed or damaged after the run wrote it.", hint))
    return out


def _compare(path: Path, name: str, mark: str) -> tuple[list[Problem], int]:
    """What is wrong with one file that the log names, and how many files are well: of a private folder, several."""
    file = path / name
    if not file.resolve().is_relative_to(path.resolve()):
        return [Problem(name, "the log names a file outside of the folder.")], 0
    if not file.is_file():
        if file.name == MARKS:
            gone = "the folder is missing" if not file.parent.exists() else f"{MARKS} is missing"
            return [Problem(file.parent.relative_to(path).as_posix(), f"{gone}: its files cannot be checked.")], 0
        return [Problem(name, "it is missing.")], 0
    if digest_of_file(file) != mark:
        return [Problem(name, "it was changed.")], 0
    if file.name != MARKS:
        return [], 1
    wrong, well, inside, place = list[Problem](), 1, _inside(file.parent), file.parent
    for inner, wanted in inside.items():
        if not (place / inner).is_file():
            wrong.append(Problem(_name(path, place / inner), "it is missing."))
        elif digest_of_file(place / inner) != wanted:
            wrong.append(Problem(_name(path, place / inner), "it was changed."))
        else:
            well += 1
    added = [f for f in _files(place) if _name(place, f) not in {*inside, MARKS}]
    return wrong + [Problem(_name(path, f), "it was added after the run was closed.") for f in added], well


def _inside(place: Path) -> dict[str, str]:
    """What the private folder of a site or party held."""
    try:
        digests = json.loads(read_text(place / MARKS))[FILES]
        return {k: str(v) for k, v in digests.items() if (place / k).resolve().is_relative_to(place.resolve())}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def _latest(links: list[Link]) -> Link | None:
    """The last line that names all files."""
    return next((link for link in reversed(links) if link.entry.get(WHOLE)), None)


def _private(path: Path) -> list[Path]:
    return sorted(p for top in PRIVATE for p in (path / top).glob("*") if p.is_dir())


def _covered(path: Path) -> list[Path]:
    """Files that the log names: of private folders, what lists their own."""
    closed = _private(path)
    free = {path / LOG, path / LOCK, path / SIGNATURE}
    return [f for f in _files(path) if f not in free and (f.name == MARKS or not any(p in f.parents for p in closed))]


def _files(place: Path) -> Iterator[Path]:
    return (f for f in sorted(place.rglob("*")) if f.is_file() or f.is_symlink())


def _name(path: Path, file: Path) -> str:
    return file.relative_to(path).as_posix()


def now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S%z")


def clear_parts(path: Path) -> None:
    """What writes that were cut off left behind."""
    for file in path.rglob(f"*{PART}"):
        file.unlink(missing_ok=True)
