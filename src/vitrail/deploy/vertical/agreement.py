"""What host, guests and coordinator agreed on. Its hash is what a party accepts: it changes with the study, the seed,
what may cross, and with the key of any party."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from vitrail.core.errors import Problem, VitrailError
from vitrail.deploy.identity.certificates import fingerprint_key, read_certificate
from vitrail.deploy.protocol.agreement import Agreement
from vitrail.deploy.vertical.messages import KINDS, sentences
from vitrail.study.model import Study
from vitrail.vertical.training.party_side import method_of

FORMAT = 1  # of letters, and of what carries them


@dataclass(frozen=True)
class PartyAgreement:
    study: Study
    seed: int
    cards: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  # none before all parties have asked

    @property
    def keys(self) -> dict[str, bytes]:
        """Of each party, for sealed letters."""
        return {party: bytes.fromhex(card["key"]) for party, card in self.cards.items()}

    @cached_property
    def marks(self) -> dict[str, str]:
        """Of each party, what its officer reads out on the phone: the fingerprint of the key that signed its card."""
        signed = {party: read_certificate(card["certificate"], Path(party)) for party, card in self.cards.items()}
        return {party: fingerprint_key(one.public_key()) for party, one in signed.items()}

    @cached_property
    def hash(self) -> str:
        terms = {"format": FORMAT, "study": self.study.to_toml(), "seed": self.seed}
        wire = {name: sentences(kind) for name, kind in KINDS.items()}
        keys = {party: [card["key"], self.marks[party]] for party, card in self.cards.items()}
        text = json.dumps({**terms, "wire": wire, "keys": keys}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:24]


def agreed_hash(study: Study, seed: int, participants: int | Mapping[str, str]) -> str:
    """What everybody accepts, of a complete roster. With the number of those invited, what an invitation says, before
    there are keys, so that both ends know that they understand the study alike; nobody accepts that. Of a study with
    parties, the pact before there are keys."""
    if study.parties and method_of(study).joint == "neighbours":
        what = f"{method_of(study).catalogue.title} would send distances, which give a guest's columns away."
        raise VitrailError(
            "this method cannot be deployed", [Problem("method", what, "Use split or vertical_logistic.")]
        )
    return PartyAgreement(study, seed).hash if study.parties else Agreement.of(study, seed, participants).hash
