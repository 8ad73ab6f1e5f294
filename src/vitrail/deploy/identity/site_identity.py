"""A site's word to the other sites, which the coordinator carries: signed with the key that the site enrolled with.

Its certificate goes with it, and is believed where the study's authority issued it to that name, for the key in the
list of participants that this site accepted (participants.py). The coordinator keeps the authority and could issue
others, in any name: they are worth nothing here.
"""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.x509 import Certificate

from vitrail.core.errors import KeyRefused, VitrailError
from vitrail.deploy.identity.certificates import fingerprint_key, is_issued, read_certificate, read_key, x509_name
from vitrail.deploy.identity.documents import identity_of
from vitrail.deploy.identity.enrolment_records import Kit
from vitrail.deploy.identity.participants import complete, several_names


class SignedKeys(NamedTuple):
    """Public keys, or what else is bytes, as one end signed them. Who checks it knows the text that was signed."""

    keys: tuple[bytes, ...]
    signature: bytes
    certificate: str


def read_signed(words: Any, whose: str, *names: str) -> SignedKeys:
    """What stands under these names, a signature and a certificate; from words that anybody may have written."""
    try:
        keys = tuple(bytes.fromhex(words[name]) for name in names)
        return SignedKeys(keys, bytes.fromhex(words["signature"]), str(words["certificate"]))
    except (KeyError, TypeError, ValueError):
        expected = several_names([*(f"a {name}" for name in names), "a signature", "a certificate"])
        raise KeyRefused(whose[:40], f"expected {expected}.") from None


@dataclass(frozen=True)
class SiteIdentity:
    """How a site proves who it is, and finds out who others are."""

    key: rsa.RSAPrivateKey
    certificate: str  # as text, to go with what is signed
    authority: Certificate
    roster: Mapping[str, str]  # of all who take part, this site among them: the fingerprints that were accepted

    @classmethod
    def of(cls, kit: Kit) -> SiteIdentity:
        signed = (kit.folder / "certificate.pem").read_text(encoding="utf-8")
        return cls(read_key(kit.folder / "key.pem"), signed, kit.authority, complete(kit.participants, str(kit.folder)))

    def sign(self, text: bytes) -> bytes:
        return self.key.sign(text, padding.PKCS1v15(), hashes.SHA256())

    def signed(self, text: bytes, **keys: bytes) -> dict[str, str]:
        """These keys as words of a message, with the signature under `text`: what `read_signed` reads."""
        words = {name: key.hex() for name, key in keys.items()}
        return words | {"signature": self.sign(text).hex(), "certificate": self.certificate}

    def check(self, site: str, certificate: str, text: bytes, signature: bytes) -> None:
        """Refuse what `site` did not sign."""
        try:
            shown = read_certificate(certificate, Path(f"from {site}"))
        except VitrailError:
            raise KeyRefused(site, "it presents no valid certificate.") from None
        key, now = shown.public_key(), datetime.datetime.now(datetime.UTC)
        if site not in self.roster:
            raise KeyRefused(site, "it is not among the participants that this site accepted.")
        if not is_issued(shown, self.authority) or shown.subject != x509_name(identity_of(site), "site"):
            raise KeyRefused(site, "its certificate is not from this study's authority, or belongs to another site.")
        if not shown.not_valid_before_utc <= now <= shown.not_valid_after_utc:
            raise KeyRefused(site, f"its certificate is not valid today, {now:%Y-%m-%d}.")
        try:
            if not isinstance(key, rsa.RSAPublicKey):
                raise InvalidSignature
            key.verify(signature, text, padding.PKCS1v15(), hashes.SHA256())
        except InvalidSignature:
            raise KeyRefused(site, "it did not sign this: somebody may have replaced its key.") from None
        if (mark := fingerprint_key(key)) != self.roster[site]:
            what = f"this site accepted it with the key {self.roster[site]}, but now it presents {mark}."
            raise KeyRefused(site, f"{what} The coordinator can issue a second certificate: call that site.")
