"""Answers to findings of a screening: "another examiner, real", with who says so and when."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field

from vitrail.data.schema import Strict
from vitrail.storage.toml import toml_key, toml_value


class KnownFinding(Strict):
    """An answer to a finding of the screening; it is shown as known for as long as its numbers stay the same."""

    site: str  # the site that the finding is about, under the name that it publishes under
    column: str  # the column that the finding is about
    why: str  # what is known: why the data is as it is
    who: str = ""  # who says so
    when: str = ""  # the day of the answer, as 2026-11-19
    cause: str = ""  # the finding's cause, as `screen` kept it; another cause is another finding
    # the finding's numbers, as `screen` kept them; `vitrail known` writes them
    numbers: dict[str, float | int | str] = Field(default={})


def known_section(name: str, content: Mapping[str, Any]) -> str:
    """As it stands in a file."""
    lines = [f"[known.{toml_key(name)}]"]
    lines += [f"{k} = {toml_value(v)}" for k, v in content.items() if v not in ("", {}) and k != "numbers"]
    if content.get("numbers"):
        inner = ", ".join(f"{k} = {toml_value(v)}" for k, v in content["numbers"].items())
        lines.append(f"numbers = {{ {inner} }}")
    return "\n".join(lines)
