"""Keys and certificates of sites that talk in one process; made once, since an RSA key takes its time."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import rsa

from vitrail.deploy.identity.certificates import StudyAuthority, fingerprint_key, make_authority
from vitrail.deploy.identity.documents import identity_of
from vitrail.deploy.identity.site_identity import SiteIdentity


@cache
def authority() -> StudyAuthority:
    folder = Path(tempfile.mkdtemp())
    (folder / "authority").mkdir()
    make_authority(folder / "authority")
    return StudyAuthority(folder)


@cache
def enrolled(name: str) -> tuple[rsa.RSAPrivateKey, str]:
    """A key, and the certificate that says whose it is."""
    key, who = rsa.generate_private_key(public_exponent=65537, key_size=2048), identity_of(name)
    return key, authority().sign(key.public_key(), who, "site", [who])


def prove(name: str, sites: Sequence[str], home: Path) -> SiteIdentity:
    home.mkdir(parents=True, exist_ok=True)
    return SiteIdentity(*enrolled(name), authority().own, roster(sites))


def roster(sites: Sequence[str]) -> dict[str, str]:
    return {site: fingerprint_key(enrolled(site)[0].public_key()) for site in sites}
