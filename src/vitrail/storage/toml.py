"""TOML as text: values and keys written, and the line on which each key stands."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Iterable
from typing import Any

_PART = r"""(?:"(?:[^"\\]|\\.)*"|'[^']*'|[\w-]+)"""
_NAME = re.compile(rf"\s*\[*\s*({_PART}(?:\s*\.\s*{_PART})*)")  # of a section or a key
_TOKEN = re.compile(  # what hides a line break or a bracket, those themselves, and the rest
    r'''"""(?:[^"\\]|\\.|"{1,2}(?!"))*"{3,5}|'{3}(?:[^']|'{1,2}(?!'))*'{3,5}|'''
    r""""(?:[^"\\\n]|\\.)*"|'[^'\n]*'|\#[^\n]*|[\n\[\]{}]|[^"'\#\n\[\]{}]+""",
    re.DOTALL,
)


def key_lines(text: str, deepest: int = 100) -> dict[tuple[str, ...], int]:
    """The line on which each key of a TOML text stands, down to the sections that lie `deepest`.

    >>> key_lines('a = 1\\n[features."x y"]\\nkind = "numeric"')
    {('a',): 1, ('features',): 2, ('features', 'x y'): 2, ('features', 'x y', 'kind'): 3}
    """
    lines: dict[tuple[str, ...], int] = {}
    table: tuple[str, ...] = ()
    for number, statement in _statements(text):
        if not (name := _NAME.match(statement)):
            continue
        path = tuple(_unquoted(part) for part in re.findall(_PART, name[1]))
        if statement.lstrip().startswith("["):
            table = path
        else:
            path = table + path
        for n in range(1, min(len(path), deepest) + 1):
            lines.setdefault(path[:n], number)
    return lines


def _statements(text: str) -> Iterable[tuple[int, str]]:
    """Sections and assignments, each with the line it starts on; values may go over several lines."""
    number, start, depth = 1, 1, 0
    parts: list[str] = []
    for token in _TOKEN.findall(text):
        number += token.count("\n")
        depth += (token in "[{") - (token in "]}")
        if token == "\n" and depth <= 0:
            yield start, "".join(parts)
            parts, start, depth = [], number, 0
        elif not token.startswith("#"):
            parts.append(token)
    yield start, "".join(parts)


def _unquoted(part: str) -> str:
    return str(tomllib.loads(f"k = {part}")["k"]) if part[0] in "\"'" else part


def read_value(text: str) -> Any:
    """A value as TOML has it, a text also without quotes.

    >>> read_value("0.1"), read_value("all"), read_value("true")
    (0.1, 'all', True)
    """
    try:
        return tomllib.loads(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:
        return text.strip()


def toml_key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else toml_value(name)


def toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    if isinstance(value, float):
        return repr(value) if math.isfinite(value) else ("nan" if value != value else "inf" if value > 0 else "-inf")
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{toml_key(k)} = {toml_value(v)}" for k, v in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(toml_value(v) for v in value) + "]"
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace('"', '\\"')
        escaped = re.sub(r"[\x00-\x1f\x7f]", lambda m: f"\\u{ord(m[0]):04x}", escaped)
        return f'"{escaped}"'
    raise TypeError(f"no TOML for {type(value)}")
