"""The command of a repair, as it is printed to be copied."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

COMMAND = "vitrail repair STUDY FILE"  # how a repair is called, before its own flags
TO_TRY = f"To try: {COMMAND} "


def say_flags(column: str, cause: str, numbers: Mapping[str, object], levels: Mapping[str, str] | None = None) -> str:
    """Names come from files: quoted, so that a shell takes them for what they are.

    >>> say_flags("a b", "unit", {"factor": 38.67})
    "--feature 'a b' --cause unit --factor 38.67"
    """
    values = {"feature": column, "cause": cause, **numbers}
    flags = [f"--{flag} {shlex.quote(f'{v:.10g}' if isinstance(v, float) else str(v))}" for flag, v in values.items()]
    return " ".join([*flags, *(f"--map {shlex.quote(f'{a}={b}')}" for a, b in (levels or {}).items())])
