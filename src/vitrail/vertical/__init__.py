"""Host and guests: one patient, several companies. The host has the outcome and its columns, guests other columns."""

from vitrail.vertical.matching.match import Match, match

__all__ = ["Match", "match"]
