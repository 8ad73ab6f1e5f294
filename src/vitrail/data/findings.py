"""What a check of a site's own data finds."""

from __future__ import annotations

from typing import Literal, NamedTuple


class CheckFinding(NamedTuple):
    """One thing seen in one column ("" when it is about rows), with the numbers behind it."""

    kind: str
    # error: training would fail, or be wrong by the study's own words; note: somebody has answered it
    severity: Literal["error", "warning", "note"]
    column: str
    rows: tuple[int, ...]  # the first five
    count: int  # type: ignore[assignment]  # tuple.count is not needed here
    text: str
    hint: str
