"""Signatures under what is kept: the coordinator's under a run folder, a site's under each message that left it.

The keys are those of enrolment, and the study's authority issued their certificates, which lie beside what is signed:
a run or an outbox that was carried elsewhere can be verified there by whoever knows the authority's fingerprint.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa

from vitrail.deploy.identity.certificates import is_signed, read_key, sign_text
from vitrail.runs.integrity import LOG, SIGNATURE, now
from vitrail.storage.atomic_files import write_atomically
from vitrail.storage.hash_chain import BEFORE, last_digest

if TYPE_CHECKING:
    from vitrail.deploy.identity.enrolment_records import Coordinator, Kit

SIGNED = "signed"  # in a line: its signature
CERTIFICATE = "certificate.pem"  # beside an outbox's log
RUN, OUTBOX = "vitrail run 1", "vitrail outbox 1"  # what a signature is for: none can stand for another


@dataclass(frozen=True)
class Signer:
    """A key to sign with, and whose it is."""

    key: rsa.RSAPrivateKey
    certificate: str
    authority: str  # the certificate of who issued it

    @classmethod
    def of_site(cls, kit: Kit) -> Signer:
        signed = (kit.folder / "certificate.pem").read_text(encoding="utf-8")
        return cls(read_key(kit.folder / "key.pem"), signed, kit.invitation["authority"])

    @classmethod
    def of_coordinator(cls, who: Coordinator) -> Signer:
        signed = (who.folder / "keys" / "coordinator.crt").read_text(encoding="utf-8")
        authority = (who.folder / "authority" / "cert.pem").read_text(encoding="utf-8")
        return cls(read_key(who.folder / "keys" / "coordinator.key"), signed, authority)

    def sign(self, what_for: str, text: bytes) -> str:
        return sign_text(self.key, what_for, text)


def signed_text(content: dict[str, Any], before: str) -> bytes:
    """What is signed of a line that follows the one with that hash."""
    return json.dumps({k: v for k, v in content.items() if k not in (SIGNED, BEFORE)} | {BEFORE: before}).encode()


def sign_run(path: Path, pen: Signer) -> None:
    """The coordinator's signature under all that the log of a run says."""
    text = (path / LOG).read_bytes()
    line, mark = text.count(b"\n"), last_digest(text)
    signed = {"line": line, "mark": mark, "time": now(), "certificate": pen.certificate, "authority": pen.authority}
    write_atomically(path / SIGNATURE, json.dumps({**signed, SIGNED: pen.sign(RUN, _run_text(line, mark))}, indent=1))


def _run_text(line: int, mark: str) -> bytes:
    return f"{line} {mark}".encode()


def signs_run(certificate: x509.Certificate, statement: dict[str, Any]) -> bool:
    return is_signed(certificate, RUN, _run_text(statement["line"], statement["mark"]), statement.get(SIGNED))
