"""A site's side of masked reports: its keys, its shares, and a memory that outlives it.

A folder for each sum (sums/STAGE-ROUND-TURN, deploy/secure_sum/store.py): what was drawn, said and opened.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from torch import Tensor

from vitrail.core.errors import SumRefused
from vitrail.deploy.identity.site_identity import SiteIdentity
from vitrail.deploy.protocol.agreement import Agreement
from vitrail.deploy.protocol.message import WHERE, Message
from vitrail.deploy.secure_sum.presence import Presence
from vitrail.deploy.secure_sum.shared import (
    Where,
    check_signed,
    drawn_words,
    grouped,
    read_bytes,
    read_drawn,
    ring_text,
    terms_of,
    to_values,
    told_digest,
)
from vitrail.deploy.secure_sum.store import SumStore
from vitrail.privacy.secure_sum.dropout_tolerant import SumParticipant
from vitrail.storage.atomic_files import private_folder, write_atomically

PLACE, OWN, RING = "sums", "ring.key", "ring.json"


class SumSite:
    """`home`: the site's folder of this run."""

    def __init__(
        self, site: str, agreed: Agreement, home: Path, proof: SiteIdentity | None, notices: list[str] | None = None
    ) -> None:
        """`notices`: what people here are told, is put there."""
        self.site, self.agreed, self.run, self.place = site, agreed, home.name, home / PLACE
        self.notices = [] if notices is None else notices
        self._proof, self.places = proof, SumStore(self.place, agreed)

    @property
    def proof(self) -> SiteIdentity:
        if self._proof is None:
            raise SumRefused(self.site, "this site cannot prove who it is, and adds to no sum.")
        return self._proof

    def answer(self, asked: Message) -> Message:
        words = asked.words
        if words["leg"] == "ring":
            return Message("mask", self._ring())
        where = (words["stage"], words["round"], words["place"])
        if words["leg"] == "keys":
            return Message("mask", self._draw(where, words["names"], words["ring"]))
        said, group, ring = _names(words["said"]), self._group(where), self._known()

        def agree(told: str) -> None:
            if text := Presence(self.place, self.agreed, *group).note(where[1], said, told):
                self.notices.append(text)

        given = read_bytes(words["sealed"]), read_bytes(words["lists"])
        shares = self._party(where).open(said, *given, _checked(ring), agree)
        following, drawn = words["next"], {}
        if following:  # keys for the sum that comes next, so that nobody has to ask for them
            told = tuple(following.get(k) for k in (*WHERE, "names", "ring"))
            self.agreed.check_sum(dict(zip(WHERE, told[:3], strict=True)))
            drawn = self._draw((told[0], told[1], told[2]), told[3], told[4])
        return Message("mask", {"shares": {n: v.hex() for n, v in shares.items()}, "next": drawn})

    def report(
        self, asked: Message, up: Callable[[], Mapping[str, Tensor]]
    ) -> tuple[dict[str, Tensor], dict[str, str]]:
        """To a round's question: the report under masks, and a signature under its list. `up` is worked out where it
        was not said before."""
        words, party = asked.words["sum"], self._party(where := tuple(asked.words[k] for k in WHERE))
        roster, drawn = _names(words.get("roster")), words.get("drawn")
        if not isinstance(drawn, dict):
            raise SumRefused("keys", "expected what the others drew, by site.")
        given = roster, told_digest(self.agreed, where, asked.tensors), {n: read_drawn(v) for n, v in drawn.items()}
        said = party.report(lambda: to_values(party.terms, up()), *given, _checked(self._known()))
        tensors = {k: torch.from_numpy(v.view(np.int64).copy()) for k, v in said.items()}
        return tensors, {"list": party.signed_list().hex()}

    def _ring(self) -> dict[str, str]:
        keys = tuple(key.public_key().public_bytes_raw() for key in (self._own(), self._signer()))
        signature = self.proof.sign(ring_text(self.agreed, self.run, self.site, *keys))
        told = dict(zip(("key", "signer"), (key.hex() for key in keys), strict=True))
        return told | {"signature": signature.hex(), "certificate": self.proof.certificate}

    def _draw(self, where: Where, names: Any, ring: Any) -> dict[str, Any]:
        self._learn(ring)
        if self.places.is_past(where):
            raise SumRefused(self.site, "the coordinator went back further than this site remembers.")
        _, group = self._group(where)
        if strangers := sorted(set(_names(names)) - set(group)):
            raise SumRefused(strangers[0][:40], "it does not add its numbers up with this site.")
        return drawn_words(self._party(where).draw(names))

    def _group(self, where: Where) -> tuple[str, list[str]]:
        """Whose reports are added up with this site's, and what they are called."""
        second = self.agreed.study.protect.second
        found = grouped(self.agreed, where, [n for n in self.proof.roster if n != second])
        return next((name, group) for name, group in found.items() if self.site in group)

    def _party(self, where: Where) -> SumParticipant:
        others = {n: bytes.fromhex(key) for n, (key, _) in self._known().items()}
        group, members = self._group(where)
        terms = terms_of(self.agreed, self.run, where, group, len(members))
        return SumParticipant(self.site, terms, self.places.of(where), self._signer().sign, self._own(), others)

    def _signer(self) -> Ed25519PrivateKey:
        """For this run: fast, and bound to the enrolment key by what that signs in the ring."""
        raw = HKDF(hashes.SHA256(), 32, None, b"vitrail run signature 1").derive(self._own().private_bytes_raw())
        return Ed25519PrivateKey.from_private_bytes(raw)

    def _own(self) -> X25519PrivateKey:
        place = private_folder(self.place) / OWN
        if not place.exists():
            write_atomically(place, X25519PrivateKey.generate().private_bytes_raw(), private=True)
        return X25519PrivateKey.from_private_bytes(place.read_bytes())

    def _known(self) -> dict[str, list[str]]:
        """Other sites' keys for shares and for signatures in this run, as their enrolment keys signed them."""
        place = self.place / RING
        known: dict[str, list[str]] = json.loads(place.read_text()) if place.exists() else {}
        return known

    def _learn(self, ring: Any) -> None:
        if not isinstance(ring, dict):
            raise SumRefused("ring", "expected the keys of sites.")
        known = self._known()
        for name, told in ring.items():
            try:
                keys, certificate = [str(told[k]) for k in ("key", "signer")], told["certificate"]
                raw, signed = [bytes.fromhex(key) for key in keys], bytes.fromhex(told["signature"])
            except (KeyError, TypeError, ValueError):
                raise SumRefused(str(name)[:40], "expected two keys, a signature and a certificate.") from None
            if known.get(name, keys) != keys:
                raise SumRefused(name, "it had another key in this run.")
            if name not in known:
                self.proof.check(name, certificate, ring_text(self.agreed, self.run, name, *raw), signed)
                known[name] = keys
        write_atomically(private_folder(self.place) / RING, json.dumps(known), private=True)


def _checked(ring: Mapping[str, list[str]]) -> Callable[[str, bytes, bytes], None]:
    """Checks what a site signed in this run."""

    def check(other: str, text: bytes, signature: bytes) -> None:
        if other not in ring:
            raise SumRefused(other[:40], "this site has no key of it.")
        check_signed(other, bytes.fromhex(ring[other][1]), text, signature)

    return check


def _names(said: Any) -> list[str]:
    if not isinstance(said, list) or not all(isinstance(n, str) for n in said):
        raise SumRefused("sites", "expected a list of names.")
    return said
