"""What people at a site are told of a question, with the kind under which it stands in the outbox."""

from __future__ import annotations

NOTE, DIFFER, COMPARED = "note", "models differ", "models compared"


class Notice(str):
    """A text whose kind is more than a note's: `vitrail verify` shows it again."""

    __slots__ = ("kind",)
    kind: str

    def __new__(cls, text: str, kind: str) -> Notice:
        made = super().__new__(cls, text)
        made.kind = kind
        return made


def kind_of(text: str) -> str:
    return text.kind if isinstance(text, Notice) else NOTE
