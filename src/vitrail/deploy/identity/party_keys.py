"""A party's card: its public key for sealed letters, signed with the key that it enrolled with.

The private half is made in the kit and stays there. Every party is given the cards of all, in its approval, and they
are part of what it agrees to (deploy/vertical/agreement.py). The coordinator issues certificates, and could so make up
a party: who compares the fingerprints on the form with the other parties by phone finds that out, and nobody else does.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.x509 import Certificate

from vitrail.core.errors import Problem, VitrailError
from vitrail.deploy.identity.certificates import (
    fingerprint_key,
    is_issued,
    read_certificate,
    read_key,
    x509_name,
)
from vitrail.deploy.identity.documents import identity_of
from vitrail.privacy.key_agreement import key_file

SEALING = "sealing.key"  # in a kit
CARDS = "cards.json"  # in a kit: of all parties
CARD = {"site": str, "key": str, "signature": str}  # and, from the coordinator, "certificate"
WRONG = "a party's card was refused"


def sealing_key(kit: Path) -> X25519PrivateKey:
    """The kit's own; made here the first time."""
    return key_file(kit / SEALING, "This key opens the party's letters. Restore it from a backup, or make a new kit.")


def public(key: X25519PrivateKey) -> bytes:
    return key.public_key().public_bytes_raw()


def make_card(kit: Path, site: str, authority: str) -> dict[str, str]:
    """This kit's own. `authority`: the fingerprint of who invited."""
    mine = public(sealing_key(kit)).hex()
    signed = read_key(kit / "key.pem").sign(_text(site, mine, authority), padding.PKCS1v15(), hashes.SHA256())
    return {"site": site, "key": mine, "signature": signed.hex()}


def check_card(card: Any, site: str, authority: str, signer: Any, where: str) -> dict[str, str]:
    """Whether `signer` signed this party's card."""
    try:
        if any(type(card[k]) is not kind for k, kind in CARD.items()) or card["site"] != site:
            raise ValueError
        if len(bytes.fromhex(card["key"])) != 32 or not isinstance(signer, rsa.RSAPublicKey):
            raise ValueError
        signature = bytes.fromhex(card["signature"])
        signer.verify(signature, _text(site, card["key"], authority), padding.PKCS1v15(), hashes.SHA256())
    except (InvalidSignature, KeyError, TypeError, ValueError):
        what = f"the key for letters to {site!r} is not signed with the key with which {site!r} enrolled."
        hint = "Somebody replaced the key, or the file is damaged. Call that party, then the coordinator."
        raise VitrailError(WRONG, [Problem(where, what, hint)]) from None
    return {k: card[k] for k in (*CARD, "certificate") if k in card}


def read_cards(
    words: Any, parties: Mapping[str, Any], authority: Certificate, where: Path
) -> dict[str, dict[str, str]]:
    """Of all parties, each with a certificate from this authority."""
    mark = fingerprint_key(authority.public_key())
    given = words if isinstance(words, dict) else {}
    if missing := [party for party in parties if party not in given]:
        what = f"this approval was written before {' and '.join(missing)} asked to take part."
        hint = "Ask the coordinator for the newer approval, which exists once all parties are approved."
        raise VitrailError("not all parties are enrolled yet", [Problem(str(where), what, hint)])
    cards = {}
    for party in parties:
        pem = given[party].get("certificate") if isinstance(given[party], dict) else None
        signed = read_certificate(pem if isinstance(pem, str) else "", where)
        if not is_issued(signed, authority) or signed.subject != x509_name(identity_of(party), "site"):
            what, hint = f"the certificate of {party!r} is not from this study's authority.", "Ask for it again."
            raise VitrailError(WRONG, [Problem(str(where), what, hint)])
        cards[party] = check_card(given[party], party, mark, signed.public_key(), str(where))
    if len({card["key"] for card in cards.values()}) < len(cards):
        what, hint = "two parties have the same key.", "Each party makes its own kit; kits must not be copied."
        raise VitrailError(WRONG, [Problem(str(where), what, hint)])
    return cards


def check_own(card: Mapping[str, str], kit: Path, where: Path) -> None:
    """Others would seal for this key, which must be this kit's own."""
    if card["key"] != public(sealing_key(kit)).hex():
        what, hint = "the key for letters to this party is not the key of this kit.", "Send the request again."
        raise VitrailError(WRONG, [Problem(str(where), what, hint)])


def _text(site: str, key: str, authority: str) -> bytes:
    return "\0".join(("vitrail card 1", authority, site, key)).encode()
