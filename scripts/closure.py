"""What an installation of Vitrail for use consists of, from the metadata of what is installed here."""

from __future__ import annotations

import re
from importlib.metadata import Distribution, PackageNotFoundError, distribution

from packaging.markers import default_environment
from packaging.requirements import Requirement

ROOT, EXTRAS = "vitrail", ("deploy", "image")  # neither tests nor linters


def plain(name: str) -> str:
    """As indexes write names."""
    return re.sub(r"[-_.]+", "-", name).lower()


def applies(need: Requirement, extras: tuple[str, ...]) -> bool:
    """Whether it is needed here, with these extras."""
    here = default_environment()
    return need.marker is None or any(need.marker.evaluate({**here, "extra": e}) for e in ("", *extras))


def needed(root: str = ROOT, extras: tuple[str, ...] = EXTRAS) -> dict[str, Distribution]:
    """The package and all that it needs, directly or not: name -> what is installed."""
    found: dict[str, Distribution] = {}
    todo = [(root, extras)]
    seen = set[tuple[str, tuple[str, ...]]]()
    while todo:
        name, wanted = todo.pop()
        if (plain(name), wanted) in seen:
            continue
        seen.add((plain(name), wanted))
        try:
            found[plain(name)] = distribution(name)
        except PackageNotFoundError:
            raise SystemExit(f"{name} is needed and not installed: pip install -e '.[test,dev]'") from None
        for line in found[plain(name)].requires or ():
            need = Requirement(line)
            if need.marker is None or any(
                need.marker.evaluate({**default_environment(), "extra": e}) for e in ("", *wanted)
            ):
                todo.append((need.name, tuple(sorted(need.extras))))
    return dict(sorted(found.items()))


def depends(one: Distribution, known: dict[str, Distribution], extras: tuple[str, ...] = ()) -> list[str]:
    """Which of the others a package needs."""
    out = set()
    for line in one.requires or ():
        need = Requirement(line)
        if plain(need.name) in known and (
            need.marker is None
            or any(need.marker.evaluate({**default_environment(), "extra": e}) for e in ("", *extras))
        ):
            out.add(plain(need.name))
    return sorted(out - {plain(one.metadata["Name"])})
