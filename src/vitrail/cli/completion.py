"""What the shell offers at a press of TAB: study files, methods, sites of a run, demos. Small files are read, nothing
is trained; what cannot be read offers nothing. Names come from files that others wrote: a shell obeys some characters.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import typer

from vitrail.storage.untrusted_files import read_text

LARGEST = 1 << 20  # bytes of a file that is read for names
HARMLESS = frozenset(" -_.,()+@%=:/")  # beside letters and digits; quotes, $, ` and control characters are not offered


def study_files(incomplete: str) -> list[str]:
    """TOML files, and folders on the way to them."""
    place = Path(incomplete)
    folder = place if incomplete.endswith("/") else place.parent
    paths = []
    with suppress(OSError):
        for entry in sorted(folder.iterdir()):
            if entry.is_dir() and not entry.name.startswith("."):
                paths.append(f"{entry}/")
            elif entry.suffix == ".toml":
                paths.append(str(entry))
    return _fitting(paths, incomplete)


def methods(incomplete: str) -> list[str]:
    from vitrail.methods import PARTIES, TABLE

    return _fitting([*TABLE, *PARTIES], incomplete)


def many_methods(incomplete: str) -> list[str]:
    """Of a list with commas the last."""
    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in [*methods(last), *_fitting(["all"] * (not comma), last)]]


def sites(ctx: typer.Context, incomplete: str) -> list[str]:
    """Those of the run, or of the data, that was named before; or who was invited to the study."""
    given = ctx.params
    # of a line that ends in an option without its value, click leaves the words beside options unread
    named = [given.get(key) for key in ("run", "kit", "place", "findings")] + list(ctx.args)
    names = [site for place in named if place for site in _of_run(Path(place))]
    if not names and (data := given.get("data")):
        names += _of_data(Path(data))
    if not names:
        for book in sorted(Path().glob("*.coordinator/coordinator.json")):
            names += _names(_read(book).get("sites"))
    return _fitting(names, incomplete)


def _of_run(folder: Path) -> list[str]:
    about = _read(folder / "run.json")
    return _names(about.get("sites")) or _names(about.get("fingerprints"))


def _of_data(place: Path) -> list[str]:
    with suppress(OSError):
        if place.is_dir():
            return sorted(entry.stem for entry in place.iterdir() if not entry.name.startswith("."))
    return []


def _read(file: Path) -> dict[str, Any]:
    with suppress(OSError, ValueError, RecursionError):
        content = json.loads(read_text(file, LARGEST))
        return content if isinstance(content, dict) else {}
    return {}


def _names(content: Any) -> list[str]:
    return [name for name in content if isinstance(name, str)] if isinstance(content, list | dict) else []


def _fitting(names: Iterable[str], begun: str) -> list[str]:
    return [n for n in dict.fromkeys(names) if n.startswith(begun) and all(c.isalnum() or c in HARMLESS for c in n)]
