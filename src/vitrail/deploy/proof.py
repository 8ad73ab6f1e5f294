"""A site's word to the other sites, which the coordinator carries: signed with the key that the site enrolled with.

Its certificate goes with it, and is believed where the study's authority issued it to that name. The coordinator keeps
the authority, and could so issue a second one: a key that was seen once for a site is the only one that is believed
from then on, and the fingerprints lie in the site's home (others.json) for people to compare by phone.
"""

from __future__ import annotations

import datetime
import json
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.x509 import Certificate

from vitrail.core.disk import write_atomically
from vitrail.core.problems import Problem, VitrailError
from vitrail.deploy.certificates import fingerprint_key, is_issued, read_certificate, read_key, x509_name
from vitrail.deploy.enrol import Kit
from vitrail.deploy.papers import identity_of

OTHERS = "others.json"  # in a site's home: site -> fingerprint of the key by which it is known


@dataclass(frozen=True)
class Proof:
    """How a site proves who it is, and finds out who others are."""

    key: rsa.RSAPrivateKey
    certificate: str  # as text, to go with what is signed
    authority: Certificate
    sites: tuple[str, ...]  # that were invited, this one among them
    home: Path

    @classmethod
    def of(cls, kit: Kit) -> Proof:
        signed = (kit.folder / "certificate.pem").read_text(encoding="utf-8")
        return cls(read_key(kit.folder / "key.pem"), signed, kit.authority, tuple(kit.sites), kit.home)

    def sign(self, text: bytes) -> bytes:
        return self.key.sign(text, padding.PKCS1v15(), hashes.SHA256())

    def check(self, site: str, certificate: str, text: bytes, signature: bytes) -> None:
        """Refuse what `site` did not sign."""
        told = read_certificate(certificate, Path(f"from {site}"))
        key, now = told.public_key(), datetime.datetime.now(datetime.UTC)
        if site not in self.sites:
            raise _refusal(site, "it was not invited.")
        if not is_issued(told, self.authority) or told.subject != x509_name(identity_of(site), "site"):
            raise _refusal(site, "its certificate is not from this study's authority, or another site's.")
        if not told.not_valid_before_utc <= now <= told.not_valid_after_utc:
            raise _refusal(site, f"its certificate is not valid today, {now:%Y-%m-%d}.")
        try:
            if not isinstance(key, rsa.RSAPublicKey):
                raise InvalidSignature
            key.verify(signature, text, padding.PKCS1v15(), hashes.SHA256())
        except InvalidSignature:
            raise _refusal(site, "it did not sign this: somebody put another key in its place.") from None
        self._same(site, fingerprint_key(key))

    def _same(self, site: str, mark: str) -> None:
        """The key by which the site was known before, or is from now on."""
        place = self.home / OTHERS
        known = json.loads(place.read_text(encoding="utf-8")) if place.exists() else {}
        if known.get(site) == mark:
            return
        if known.setdefault(site, mark) != mark:
            what = f"it was known by the key {known[site]}, and now shows {mark}."
            raise _refusal(site, f"{what} The coordinator can issue a second certificate: call that site.")
        write_atomically(place, json.dumps(known, indent=1), private=True)


def _refusal(site: str, what: str) -> VitrailError:
    return VitrailError("another site's key was refused", [Problem(site, what, "Nothing was sent.")])
