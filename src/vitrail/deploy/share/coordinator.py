"""The coordinator's side of shares: it carries the list of a round and what sites signed of their rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from vitrail.core.errors import VitrailError
from vitrail.deploy.identity.certificates import fingerprint_key, read_certificate
from vitrail.deploy.protocol.agreement import Agreement
from vitrail.deploy.share.shared import LISTED, ROWS, STATEMENT, rows_text, states_rows


def has_stated(agreed: Agreement, run: str, site: str, rows: int, words: Mapping[str, Any]) -> bool:
    """Whether the others will believe this number of rows: or one site that lies would stop them all."""
    try:
        key = read_certificate(words["certificate"], Path(site)).public_key()
        if not isinstance(key, rsa.RSAPublicKey):
            return False
        text = rows_text(agreed, run, site, rows)
        key.verify(bytes.fromhex(words["signature"]), text, padding.PKCS1v15(), hashes.SHA256())
    except (InvalidSignature, KeyError, TypeError, ValueError, VitrailError):
        return False
    return not agreed.roster or agreed.roster.get(site) == fingerprint_key(key)


class ShareWords:
    """`sites`: who is in the run -> what it said of its rows (run_members.py)."""

    def __init__(self, agreed: Agreement, sites: Mapping[str, Mapping[str, Any]]) -> None:
        self.agreed, self.sites = agreed, sites
        self.asked: dict[str, set[str]] = {}  # site -> whose statements go with its last question
        self.has: dict[str, set[str]] = {}  # by its answers to this process: site -> whose statements it has

    def of(self, site: str, listed: Sequence[str]) -> dict[str, Any]:
        """With a question of a round to that site."""
        new = [n for n in listed if n not in self.has.get(site, set())] if states_rows(self.agreed) else []
        self.asked[site] = set(new)
        stated = {n: [self.sites[n][ROWS][0], *(self.sites[n][k] for k in STATEMENT)] for n in new}
        return {LISTED: sorted(listed), ROWS: stated}

    def answered(self, site: str) -> None:
        """It has read its last question."""
        self.has.setdefault(site, set()).update(self.asked.pop(site, set()))
