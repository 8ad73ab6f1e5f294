"""What may have happened to a cell, from what was published of it, and how that is said."""

from __future__ import annotations

from typing import Any, NamedTuple

from vitrail.screen.weigh import Weighed


class Told(NamedTuple):
    kind: str
    wrong: bool
    text: str
    numbers: dict[str, Any]


def explain(weighed: Weighed, site: int, column: int, only_differs: bool = False) -> Told:
    name = weighed.published.layout.columns[column]
    return Told("differs", not only_differs, f"{name} differs here.", {})
