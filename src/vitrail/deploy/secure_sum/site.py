"""A site's side of secure sums: its keys, its shares, and a memory that outlives it.

A folder for each of the last sums (sums/PURPOSE-STAGE-ROUND-TURN, in the order of time): what was drawn, reported and
opened. Sums that are older than one whose folder was deleted are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from torch import Tensor

from vitrail.core.errors import JournalDamaged, SumRefused
from vitrail.deploy.identity.site_identity import SiteIdentity, read_signed
from vitrail.deploy.protocol.agreement import Agreement
from vitrail.deploy.protocol.message import WHERE, Message
from vitrail.deploy.secure_sum.presence import Presence
from vitrail.deploy.secure_sum.shared import (
    SumName,
    check_signed,
    drawn_words,
    group_members,
    read_bytes,
    read_drawn,
    read_name,
    ring_text,
    round_transcript,
    terms_of,
    to_values,
)
from vitrail.privacy.key_agreement import derive_key, key_file
from vitrail.privacy.secure_sum.dropout_tolerant import Check, SumParticipant
from vitrail.privacy.secure_sum.spec import SumSpec, Values
from vitrail.storage.atomic_files import private_folder
from vitrail.storage.journal import DecisionRecord, RecentJournals

PLACE, OWN, RING = "sums", "ring.key", "ring.json"
REMEMBERED = 6  # sums


class SumSite:
    """`home`: the site's folder of this run."""

    def __init__(
        self, site: str, agreed: Agreement, home: Path, proof: SiteIdentity | None, notices: list[str] | None = None
    ) -> None:
        """`notices`: what people here are told, is put there."""
        self.site, self.agreed, self.run, self.place = site, agreed, home.name, home / PLACE
        self.notices = [] if notices is None else notices
        self._proof, self.folders = proof, RecentJournals(self.place, REMEMBERED)
        self.ring = DecisionRecord(self.place / RING, private=True)

    @property
    def proof(self) -> SiteIdentity:
        if self._proof is None:
            raise SumRefused(self.site, "this site cannot prove who it is, and adds to no sum.")
        return self._proof

    def answer(self, asked: Message) -> Message:
        """Keys and shares."""
        try:
            return self._answer(asked)
        except JournalDamaged:  # this sum without this site
            return Message("refused", {})

    def add_once(self, asked: Message, purpose: str, transcript: str, values: Callable[[], Values]) -> Message:
        """What this site adds to the one sum of a run for that purpose."""
        try:
            tensors, words = self.add(SumName(purpose), asked.words["sum"], transcript, lambda terms: values())
        except JournalDamaged:
            return Message("refused", {})
        return Message(asked.kind, words, tensors)

    def _answer(self, asked: Message) -> Message:
        words = asked.words
        if words["leg"] == "ring":  # who cannot prove who it is adds to no sum
            return Message("mask", self._ring()) if self._proof else Message("refused", {})
        name = read_name(self.agreed, words)
        if words["leg"] == "keys":
            return Message("mask", self._draw(name, words["names"], words["ring"]))
        reporters, group = _names(words["said"]), self._group(name)

        def accept(transcript: str) -> None:
            if text := Presence(self.place, self.agreed, *group).note(name.title, reporters, transcript):
                self.notices.append(text)

        given = read_bytes(words["sealed"]), read_bytes(words["lists"])
        shares = self._participant(name).open(reporters, *given, self._check(), accept)
        following, drawn = words["next"], {}
        if following:  # keys for the sum that comes next, so that nobody has to ask for them
            drawn = self._draw(read_name(self.agreed, following), following.get("names"), following.get("ring"))
        return Message("mask", {"shares": {n: v.hex() for n, v in shares.items()}, "next": drawn})

    def report(
        self, asked: Message, up: Callable[[], Mapping[str, Tensor]]
    ) -> tuple[dict[str, Tensor], dict[str, str]]:
        """To a round's question. `up` is worked out where it was not reported before."""
        s, r, place = (asked.words[k] for k in WHERE)
        transcript = round_transcript(self.agreed, (s, r, place), asked.tensors)
        name = SumName.of_round((s, r, place))
        return self.add(name, asked.words["sum"], transcript, lambda terms: to_values(terms, up()))

    def add(
        self, name: SumName, words: Mapping[str, Any], transcript: str, values: Callable[[SumSpec], Values]
    ) -> tuple[dict[str, Tensor], dict[str, str]]:
        """What this site adds to a sum, under masks, and a signature under its list; once, for one list and one
        `transcript` of what all were sent."""
        participant, drawn = self._participant(name), words.get("drawn")
        if not isinstance(drawn, dict):
            raise SumRefused("keys", "expected what the others drew, by site.")
        given = _names(words.get("roster")), transcript, {n: read_drawn(v) for n, v in drawn.items()}
        masked = participant.report(lambda: values(participant.terms), *given, self._check())
        tensors = {k: torch.from_numpy(v.view(np.int64).copy()) for k, v in masked.items()}
        return tensors, {"list": participant.signed_list().hex()}

    def has_opened(self, name: SumName) -> bool:
        """Whether this site helped to open that sum, which its own numbers are then part of."""
        return self._proof is not None and self._participant(name).has_opened()

    def _ring(self) -> dict[str, str]:
        key, signer = (one.public_key().public_bytes_raw() for one in (self._own(), self._signer()))
        return self.proof.signed(ring_text(self.agreed, self.run, self.site, key, signer), key=key, signer=signer)

    def _draw(self, name: SumName, names: Any, ring: Any) -> dict[str, Any]:
        self._learn(ring)
        _, group = self._group(name)
        if strangers := sorted(set(_names(names)) - set(group)):
            raise SumRefused(strangers[0][:40], "it does not add its numbers up with this site.")
        return drawn_words(self._participant(name).draw(names))

    def _group(self, name: SumName) -> tuple[str, list[str]]:
        """Whose numbers are added up with this site's, and what they are called."""
        second = self.agreed.study.protect.second
        among = group_members(self.agreed, name, [n for n in self.proof.roster if n != second])
        return next((group, members) for group, members in among.items() if self.site in members)

    def _participant(self, name: SumName) -> SumParticipant:
        others = {n: bytes.fromhex(key) for n, (key, _) in self.ring.read().items()}
        group, members = self._group(name)
        terms = terms_of(self.agreed, self.run, name, group, len(members))
        folder = self.folders.at(name.order(self.agreed))
        return SumParticipant(self.site, terms, folder, self._signer().sign, self._own(), others)

    def _signer(self) -> Ed25519PrivateKey:
        """For this run: fast, and bound to the enrolment key by what that signs in the ring."""
        secret = derive_key(self._own().private_bytes_raw(), "vitrail run signature 1")
        return Ed25519PrivateKey.from_private_bytes(secret)

    def _own(self) -> X25519PrivateKey:
        return key_file(private_folder(self.place) / OWN)

    def _learn(self, ring: Any) -> None:
        """Other sites' keys for shares and for signatures in this run, as their enrolment keys signed them."""
        if not isinstance(ring, dict):
            raise SumRefused("ring", "expected the keys of sites.")
        before, new = self.ring.read(), dict[str, list[str]]()
        for name, words in ring.items():
            keys, signature, certificate = read_signed(words, name, "key", "signer")
            if before.get(name, digits := [key.hex() for key in keys]) != digits:
                raise SumRefused(name, "it had another key in this run.")
            if name not in before:
                key, signer = keys
                self.proof.check(name, certificate, ring_text(self.agreed, self.run, name, key, signer), signature)
                new[name] = digits
        if new:
            private_folder(self.place)
            self.ring.update(new)

    def _check(self) -> Check:
        """Checks what a site signed in this run."""
        ring = self.ring.read()

        def check(other: str, text: bytes, signature: bytes) -> None:
            if other not in ring:
                raise SumRefused(other[:40], "this site has no key of it.")
            check_signed(other, bytes.fromhex(ring[other][1]), text, signature)

        return check


def _names(names: Any) -> list[str]:
    if not isinstance(names, list) or not all(isinstance(n, str) for n in names):
        raise SumRefused("sites", "expected a list of names.")
    return names
