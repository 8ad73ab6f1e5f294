"""Participants under a pseudonym: the name in the study, in certificates, messages and pages is not the site's own.

Two kinds, by who can say whose it is:
    the coordinator   it invites the site under the pseudonym, and keeps the real name in its own book alone
    nobody            it writes an open invitation; whoever holds it enrols under a name of its own choice. The
                      coordinator knows the key, and that the request came from who holds the invitation's ticket

Which participants are pseudonymous is in every approval, on every form and in the agreement's hash. What a pseudonym
does not hide, and what it takes from the others: docs/decisions/099-pseudonyms-between-machines.md.
"""

from __future__ import annotations

import hmac
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from vitrail.core.errors import Problem, VitrailError
from vitrail.deploy.identity.documents import identity_of, name_problems
from vitrail.deploy.identity.participants import COORDINATOR_KNOWS, NOBODY_KNOWS, several_names
from vitrail.study.model import Study

KNOWN_TO, REAL, TICKET = "known to", "real", "ticket"  # of a site in the coordinator's book
OPEN = "unnamed"  # an open invitation stands in the book as "unnamed 1" until somebody chooses a name
CHOSEN = "chosen.txt"  # in a kit that was made from an open invitation: the name
OPTIONAL = {TICKET: str, "pseudonym": str}  # in an invitation
MOST_OPEN = 1000  # open invitations in one call
Book = Mapping[str, Mapping[str, Any]]


def blank(name: str) -> dict[str, Any]:
    return {"identity": identity_of(name), "fingerprint": None, "approved": False, "removed": False}


def hidden(real: str, pseudonym: str) -> dict[str, Any]:
    """In the book: a site that the coordinator alone can name."""
    return blank(pseudonym) | {KNOWN_TO: COORDINATOR_KNOWS, REAL: real}


def open_invitations(book: Book, many: int) -> dict[str, dict[str, Any]]:
    """So many new ones, each with a ticket of its own."""
    free = (name for n in range(1, 2 + len(book) + many) if (name := f"{OPEN} {n}") not in book)
    made = {name: blank(name) | {KNOWN_TO: NOBODY_KNOWS, TICKET: secrets.token_hex(32)} for name in free}
    return dict(list(made.items())[:many])


def on_invitation(entry: Mapping[str, Any]) -> dict[str, str]:
    """What the invitation of a pseudonymous site says of that; to nobody else."""
    words = {"pseudonym": entry[KNOWN_TO]} if KNOWN_TO in entry else {}
    return words | ({TICKET: entry[TICKET]} if TICKET in entry and entry["fingerprint"] is None else {})


def invitation_problems(
    study: Study, sites: Sequence[str], pseudonyms: Mapping[str, str], unnamed: int, book: Book, address: str
) -> Iterable[Problem]:
    """Before anything is written: names that would tell whose a pseudonym is."""
    if (pseudonyms or unnamed) and study.parties:
        what = "the parties of a vertical study have the names that its study file gives them."
        yield Problem("--pseudonym", what, "Choose other names in the study file.")
    if not 0 <= unnamed <= MOST_OPEN:
        yield Problem("--unnamed", f"expected a number from 0 to {MOST_OPEN}, got {unnamed}.", "Correct it.")
    second = study.protect.second
    if second and second in {*pseudonyms, *pseudonyms.values()}:
        what = f"{second} runs the second server, and the sites must know who that is."
        yield Problem("--pseudonym", what, "Invite it under its own name.")
    for name in sites:
        if re.fullmatch(rf"{OPEN} \d+", name.strip(), re.I):
            yield Problem("--site", f"{name!r} is kept for open invitations.", "Choose another name.")
    named = {*book, *(name.strip() for name in sites)}
    for real, pseudonym in pseudonyms.items():
        if real in named:
            what = f"{real!r} is invited under its own name, which is in the papers of the others."
            yield Problem("--pseudonym", what, "Begin in a new folder, with the pseudonym from the start.")
        if pseudonym in book and book[pseudonym].get(REAL) != real:
            yield Problem("--pseudonym", f"{pseudonym!r} is somebody else's name.", "Choose another pseudonym.")
        if [entry for n, entry in book.items() if n != pseudonym and entry.get(REAL) == real]:
            yield Problem("--pseudonym", f"{real!r} has another pseudonym.", "Leave it out, or choose that one.")
    reals = {*pseudonyms, *(entry[REAL] for entry in book.values() if REAL in entry)}
    public = {"the study file": study.to_toml(), "--address": address}
    public |= {f"the name {name!r}": name for name in {*named, *pseudonyms.values()}}
    for real in sorted(reals):
        for where, text in public.items():
            if re.search(rf"(?<!\w){re.escape(real)}(?!\w)", text, re.I):
                what = f"it contains {real!r}, which the pseudonym is to hide, and every participant is sent it."
                yield Problem(where, what, "Write it otherwise.")


def proof_of(ticket: str, authority: str, site: str, csr: str) -> str:
    """That who wrote this request holds the open invitation."""
    text = "\0".join(("vitrail open invitation 1", authority, site, csr))
    return hmac.new(bytes.fromhex(ticket), text.encode(), "sha256").hexdigest()


def chosen_name(invitation: Mapping[str, Any], name: str, before: str) -> str:
    """Under which name a site enrols; "" where the invitation states it. `before`: the name that its kit has."""
    title = "no request was written"
    if TICKET not in invitation:
        if name and name != invitation["site"]:
            what = f"the coordinator invited this site as {invitation['site']!r}."
            raise VitrailError(title, [Problem("--as", what, "Leave --as out, or ask for an open invitation.")])
        return ""
    name = name.strip() or before
    if not name:
        what = "this invitation is open: the site chooses the name under which it takes part."
        raise VitrailError(title, [Problem("--as", what, "Write --as NAME, a name that tells nobody who you are.")])
    if before and name != before:
        what = f"this kit was made for the name {before!r}."
        raise VitrailError(title, [Problem("--as", what, "Leave --as out, or choose another --kit.")])
    others = {n: blank(n) for n in invitation["sites"] if n != invitation["site"]}
    if problems := [p._replace(where="--as") for p in _name_problems(name, others)]:
        raise VitrailError(title, problems)
    return name


def place_of(book: Book, paper: Mapping[str, Any], authority: str, where: str) -> str:
    """The open invitation that a request under a new name answers; "" where it answers none."""
    place = paper.get("invitation")
    if paper["site"] in book or not isinstance(place, str) or TICKET not in (entry := book.get(place, {})):
        return ""
    title = "the request was not approved"
    proof = str(paper.get("proof"))
    if not hmac.compare_digest(proof, proof_of(entry[TICKET], authority, paper["site"], paper["csr"])):
        what = f"it does not prove that its writer holds the invitation {place!r}."
        raise VitrailError(title, [Problem(where, what, "Do not approve it: somebody may have changed it on the way.")])
    if entry["removed"]:
        what = f"the invitation {place!r} was withdrawn."
        raise VitrailError(title, [Problem(where, what, "Write another one: vitrail invite --unnamed 1.")])
    others = {n: e for n, e in book.items() if n != place}
    others |= {e[REAL]: blank(e[REAL]) for e in book.values() if REAL in e}
    if problems := [p._replace(where=where) for p in _name_problems(paper["site"], others)]:
        raise VitrailError(title, problems)
    return place


def renamed(book: Book, place: str, site: str) -> dict[str, dict[str, Any]]:
    """The book, with the name that was chosen where the open invitation stood."""
    own = {**book[place], **{k: v for k, v in blank(site).items() if k == "identity"}}
    return {(site if name == place else name): (own if name == place else dict(entry)) for name, entry in book.items()}


def check_listed(kit: Mapping[str, Any], site: str, pseudonyms: Mapping[str, str], where: str) -> None:
    """An approval must say to everybody what the invitation said to this site."""
    invited, listed = kit.get("pseudonym", ""), pseudonyms.get(site, "")
    if invited != listed:
        kinds = {"": "by its own name", COORDINATOR_KNOWS: "under a pseudonym that the coordinator can resolve"}
        kinds[NOBODY_KNOWS] = "under a pseudonym that nobody can resolve"
        what = f"it lists {site!r} {kinds.get(listed, 'otherwise')}, but this site was invited {kinds[invited]}."
        hint = "Ask the coordinator: the others must be told which participants are pseudonyms."
        raise VitrailError("the list of participants was refused", [Problem(where, what, hint)])


def check_named_only(site: str, pseudonyms: Mapping[str, str]) -> None:
    """For a site that takes part with participants alone that it can call."""
    if others := sorted(name for name in pseudonyms if name != site):
        what = f"{several_names(others)} {'takes' if len(others) == 1 else 'take'} part under a pseudonym."
        hint = "Leave --named-only out to accept that, or ask the coordinator for a study of named sites."
        raise VitrailError("this site takes part with named participants only", [Problem("--named-only", what, hint)])


def _name_problems(name: str, others: Book) -> list[Problem]:
    if name in others or re.fullmatch(rf"{OPEN} \d+", name, re.I):
        return [Problem("", f"the name {name!r} is taken.", "Choose another one.")]
    return list(name_problems([name], others))
