"""What a coordinator and a site hold once they are enrolled, as it is read from their folders (enrolment.py)."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography import x509

from vitrail.deploy.identity.certificates import fingerprint_key, read_certificate, read_key
from vitrail.deploy.identity.participants import ParticipantList, Participants, participants_of
from vitrail.study.model import Study

CURRENT = "current.json"  # in the coordinator's folder: which run is under way


@dataclass(frozen=True)
class Coordinator:
    """What the coordinator's folder holds."""

    folder: Path
    study: Study
    seed: int
    address: str
    sites: dict[str, dict[str, Any]]  # name -> identity, fingerprint, approved, removed
    # the list of participants that was complete last
    roster: ParticipantList = field(default_factory=lambda: ParticipantList({}))

    @property
    def participants(self) -> Participants:
        begun = (self.folder / CURRENT).exists()
        return participants_of(self.sites, self.roster, begun, self.study.protect.second)

    @property
    def host(self) -> str:
        return self.address.rpartition(":")[0]

    @property
    def port(self) -> int:
        return int(self.address.rpartition(":")[2])

    @property
    def authority(self) -> x509.Certificate:
        return read_certificate(
            (self.folder / "authority" / "cert.pem").read_text(), self.folder / "authority" / "cert.pem"
        )

    @property
    def authority_fingerprint(self) -> str:
        return fingerprint_key(self.authority.public_key())


@dataclass(frozen=True)
class Kit:
    """What a site's kit holds."""

    folder: Path
    site: str
    identity: str
    study: Study
    seed: int
    sites: list[str]
    address: str
    home: Path
    approved: bool
    invitation: dict[str, Any]
    participants: Participants

    @property
    def authority(self) -> x509.Certificate:
        return read_certificate(self.invitation["authority"], self.folder / "invitation.json")

    @property
    def authority_fingerprint(self) -> str:
        return fingerprint_key(self.authority.public_key())

    @property
    def fingerprint(self) -> str:
        return fingerprint_key(read_key(self.folder / "key.pem").public_key())
