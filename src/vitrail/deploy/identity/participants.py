"""The participants of a study: names, and fingerprints of the keys with which they enrolled. Everybody accepts the same
list: it is part of the agreement's hash, stands on the consent form, and other keys are not believed
(site_identity.py).

The coordinator writes it into every approval. It is complete when everybody who was invited is approved or removed.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from vitrail.core.errors import Problem, VitrailError

FILE = "participants.json"  # in a site's kit
COORDINATOR_KNOWS, NOBODY_KNOWS = "coordinator", "nobody"  # who can say whose a pseudonym is (pseudonyms.py)


class ParticipantList(dict[str, str]):
    """Name -> fingerprint, of all who take part; and which of these names are pseudonyms, with who can resolve them."""

    def __init__(self, roster: Mapping[str, str], pseudonyms: Mapping[str, str] | None = None) -> None:
        """Without `pseudonyms`: those of `roster`."""
        super().__init__(roster)
        available = getattr(roster, "pseudonyms", {}) if pseudonyms is None else pseudonyms
        self.pseudonyms: dict[str, str] = {name: available[name] for name in sorted(available) if name in self}


class Participants(NamedTuple):
    roster: ParticipantList
    missing: list[str]  # who was invited, and is neither approved nor removed

    def plain(self) -> dict[str, Any]:
        """As it stands in an approval and in a kit."""
        pseudonyms = {"pseudonyms": self.roster.pseudonyms} if self.roster.pseudonyms else {}
        return self._asdict() | pseudonyms


def participants_of(
    sites: Mapping[str, Mapping[str, Any]], before: Mapping[str, str], begun: bool, second: str = ""
) -> Participants:
    """As the coordinator's book has them. `before`: the list that was complete last; `begun`: whether a run has begun
    with it. Who is removed after that keeps its place, so that the others need not agree anew."""
    left = {name: site for name, site in sites.items() if not site["removed"]}
    roster = {name: str(site["fingerprint"]) for name, site in left.items() if site["approved"]}
    missing = [name for name, site in left.items() if not site["approved"]]
    if second and second not in left:
        missing.append(second)
    if begun and not missing and roster.items() <= before.items():
        roster = dict(before)
    available = {name: str(site["known to"]) for name, site in sites.items() if "known to" in site}
    return Participants(ParticipantList(roster, available), missing)


def read_participants(approval: Mapping[str, Any], site: str, fingerprint: str, where: str) -> Participants:
    """Of an approval, or of what a kit keeps of it."""
    roster, missing = approval.get("roster"), approval.get("missing")
    title, hint = "the list of participants was refused", "Ask the coordinator to send the approval again."
    if roster is None or missing is None:
        what = "it does not name the participants, because an earlier version of Vitrail wrote it."
        raise VitrailError(title, [Problem(where, what, "Ask the coordinator to approve the request again.")])
    if not _is_roster(roster) or not isinstance(missing, list) or not all(isinstance(n, str) for n in missing):
        raise VitrailError(title, [Problem(where, "expected the names and fingerprints of all participants.", hint)])
    if roster.get(site) != fingerprint:
        what = f"it lists the key {roster.get(site)} for {site}, but this kit has the key {fingerprint}."
        raise VitrailError(title, [Problem(where, what, hint)])
    if len(set(roster.values())) < len(roster):
        raise VitrailError(title, [Problem(where, "two participants have the same key.", hint)])
    pseudonyms = approval.get("pseudonyms", {})
    kinds = (COORDINATOR_KNOWS, NOBODY_KNOWS)
    if not isinstance(pseudonyms, dict) or any(n not in roster or k not in kinds for n, k in pseudonyms.items()):
        what = "expected, of each participant under a pseudonym, who can resolve it."
        raise VitrailError(title, [Problem(where, what, hint)])
    return Participants(ParticipantList(roster, pseudonyms), missing)


def load_participants(kit: Path) -> Participants:
    """As they came with the newest approval; none before."""
    try:
        content = json.loads((kit / FILE).read_text(encoding="utf-8"))
        return Participants(ParticipantList(content["roster"], content.get("pseudonyms", {})), content["missing"])
    except FileNotFoundError:
        return Participants(ParticipantList({}), [])
    except (OSError, ValueError, KeyError, TypeError):
        hint = "Ask the coordinator for the approval again: vitrail join KIT --approval FILE."
        raise VitrailError(
            "the kit is incomplete", [Problem(str(kit / FILE), "the file cannot be read.", hint)]
        ) from None


def complete(participants: Participants, where: str) -> ParticipantList:
    """The roster, where nobody is missing."""
    if participants.missing or not participants.roster:
        who = several_names(participants.missing)
        what = f"{who} {('was' if len(participants.missing) == 1 else 'were')} invited but not approved yet."
        if not participants.missing:
            what = "its approval does not name the participants, because an earlier version of Vitrail wrote it."
        hint = (
            "The agreement that you accept names all participants and their keys. When all are approved, the "
            "coordinator sends every site a new approval: vitrail join KIT --approval FILE."
        )
        raise VitrailError("the list of participants is not complete", [Problem(where, what, hint)])
    return participants.roster


def several_names(names: Sequence[str]) -> str:
    """In a sentence.

    >>> several_names(["va", "bern", "basel"])
    'va, bern and basel'
    """
    return " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))


def are_missing(names: Sequence[str], what: str = "missing") -> str:
    """In a sentence.

    >>> are_missing(["va"]), are_missing(["va", "bern"])
    ('va is missing', 'va and bern are missing')
    """
    return f"{several_names(names)} {'is' if len(names) == 1 else 'are'} {what}"


def _is_roster(roster: Any) -> bool:
    return isinstance(roster, dict) and all(
        isinstance(mark, str) and re.fullmatch(r"[0-9a-f]{4}( [0-9a-f]{4}){7}", mark) for mark in roster.values()
    )
