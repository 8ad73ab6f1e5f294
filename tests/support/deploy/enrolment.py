"""A coordinator and two sites that enrol, for tests."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from vitrail.core.errors import VitrailError
from vitrail.deploy.identity import enrolment
from vitrail.deploy.identity.coordinator_folder import approval_of, invitation_of

SITES = ["Basel", "Hôpital St. Mary/1"]


def ask(folder: Path, site: str, where: Path) -> enrolment.EnrolmentRequest:
    """The invitation goes by mail; the site answers."""
    where.mkdir(exist_ok=True)
    return enrolment.request(Path(shutil.copy(invitation_of(folder, site), where)))


def enrolled(folder: Path, site: str, where: Path) -> Path:
    made = ask(folder, site, where)
    enrolment.accept(made.kit, enrolment.approve(folder, made.file).file)
    return made.kit


def all_enrolled(folder: Path, where: Path, sites: Sequence[str] = SITES) -> dict[str, enrolment.Kit]:
    """Everybody asks and is approved; then each takes its approval, which names all."""
    made = {site: ask(folder, site, where) for site in sites}
    for request in made.values():
        enrolment.approve(folder, request.file)
    return {site: enrolment.accept(request.kit, approval_of(folder, site)) for site, request in made.items()}


def change(path: Path, **said: Any) -> Path:
    path.write_text(json.dumps({**json.loads(path.read_text()), **said}))
    return path


def refused(match: str, act: Any, *args: Any) -> VitrailError:
    with pytest.raises(VitrailError, match=match) as caught:
        act(*args)
    assert all(p.where and p.what and p.hint for p in caught.value.problems)
    assert caught.value.problems
    return caught.value


def certificate(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def numbers_of(path: Path) -> rsa.RSAPublicNumbers:
    key = load_pem_private_key(path.read_bytes(), None)
    assert isinstance(key, rsa.RSAPrivateKey)
    return key.public_key().public_numbers()


def named(cert: x509.Certificate, oid: Any) -> list[str]:
    return [str(a.value) for a in cert.subject.get_attributes_for_oid(oid)]
