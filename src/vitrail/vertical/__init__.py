"""Host and guests: one patient, several companies. The host has the outcome and its columns, guests other columns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitrail.core.loading import lazy_names

if TYPE_CHECKING:
    from vitrail.vertical.matching.match import Match, match
else:
    __getattr__ = lazy_names(__name__, dict.fromkeys(("Match", "match"), "vitrail.vertical.matching.match"))

__all__ = ["Match", "match"]
