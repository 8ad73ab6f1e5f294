"""Requests, approvals and invitations that somebody changed on the way, sent twice, or sent to the wrong place."""

from __future__ import annotations

import datetime
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509.oid import NameOID

from tests.support.deploy.enrolment import SITES, ask, certificate, change, enrolled, named, refused
from vitrail.data.datasets.catalogue import packaged
from vitrail.deploy.identity import certificates, enrolment
from vitrail.deploy.identity.certificates import StudyAuthority, fingerprint_key, make_authority, read_authority
from vitrail.deploy.identity.coordinator_folder import invitation_of
from vitrail.deploy.identity.documents import study_of
from vitrail.deploy.identity.invitation import sign_invitation
from vitrail.deploy.transport.flare import workspace
from vitrail.deploy.vertical.agreement import agreed_hash


@pytest.fixture
def place(tmp_path: Path) -> Path:
    shutil.copy(packaged("heart_disease.toml"), tmp_path / "heart.toml")
    return tmp_path


@pytest.fixture
def folder(place: Path) -> Path:
    return enrolment.invite(place / "heart.toml", SITES, "127.0.0.1:18002")


def test_requests_that_are_refused(folder: Path, place: Path) -> None:
    made = ask(folder, "Basel", place / "site")
    good = made.file.read_text()

    def changed(**said: Any) -> Path:
        made.file.write_text(good)
        return change(made.file, **said)

    refused("was not invited", enrolment.approve, folder, changed(site="Genf", identity=enrolment.identity_of("Genf")))
    refused("was not invited", enrolment.approve, folder, changed(site=SITES[1]))
    refused("another study", enrolment.approve, folder, changed(study="another"))
    refused("another study", enrolment.approve, folder, changed(authority=made.fingerprint))
    refused("format 2", enrolment.approve, folder, changed(format=2))
    refused("wrong type: csr", enrolment.approve, folder, changed(csr=7))
    refused("no valid signing request", enrolment.approve, folder, changed(csr="x"))
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "coordinator")])
    for weak in (rsa.generate_private_key(65537, 1024), ec.generate_private_key(ec.SECP256R1())):
        csr = x509.CertificateSigningRequestBuilder().subject_name(name).sign(weak, hashes.SHA256())
        pem = csr.public_bytes(Encoding.PEM).decode()
        refused("RSA key of 2048", enrolment.approve, folder, changed(csr=pem))
    for text in ("", "{}", "[]", "\x00", '{"format": 1', "[" * 100_000):
        made.file.write_text(text)
        refused("not a Vitrail file of the expected kind", enrolment.approve, folder, made.file)
    made.file.write_bytes(b"\xff\xfe")
    refused("not a Vitrail file of the expected kind", enrolment.approve, folder, made.file)
    refused("no such file", enrolment.approve, folder, place / "none")
    refused("cannot read a request", enrolment.approve, folder, place)
    assert not list((folder / "approvals").iterdir())
    assert not any(site["approved"] for site in enrolment.load_coordinator(folder).sites.values())


def test_a_signing_request_names_nobody(folder: Path, place: Path) -> None:
    """A site cannot ask to be the coordinator or the lead: names come from the coordinator's book."""
    made = ask(folder, "Basel", place / "site")
    key = load_pem_private_key((made.kit / "key.pem").read_bytes(), None)
    name = x509.Name(
        [x509.NameAttribute(NameOID.COMMON_NAME, enrolment.LEAD), x509.NameAttribute(NameOID.UNSTRUCTURED_NAME, "lead")]
    )
    wish = x509.BasicConstraints(ca=True, path_length=None)
    csr = x509.CertificateSigningRequestBuilder().subject_name(name).add_extension(wish, critical=True)
    assert isinstance(key, rsa.RSAPrivateKey)
    change(made.file, csr=csr.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM).decode())
    enrolment.accept(made.kit, enrolment.approve(folder, made.file).file)
    signed = certificate(made.kit / "certificate.pem")
    assert named(signed, NameOID.COMMON_NAME) == [enrolment.identity_of("Basel")]
    assert not named(signed, NameOID.UNSTRUCTURED_NAME)
    assert not signed.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_one_key_for_one_site(folder: Path, place: Path) -> None:
    enrolled(folder, "Basel", place / "site")
    second = ask(folder, "Basel", place / "elsewhere")
    refused("another key", enrolment.approve, folder, second.file)
    other = ask(folder, SITES[1], place / "other")
    shutil.copy(place / "site" / "Basel.kit" / "key.pem", other.kit / "key.pem")
    refused("already has this key", enrolment.approve, folder, ask(folder, SITES[1], place / "other").file)


def test_a_removed_site_stays_out(folder: Path, place: Path) -> None:
    made = ask(folder, "Basel", place / "site")
    enrolment.approve(folder, made.file)
    refused("no site 'Bazel'.*Did you mean 'Basel'", enrolment.remove, folder, "Bazel")
    enrolment.remove(folder, "Basel")
    enrolment.remove(folder, "Basel")
    refused("removed", enrolment.approve, folder, made.file)
    refused("removed", enrolment.invite, place / "heart.toml", ["Basel"], "")
    enrolment.invite(place / "heart.toml", ["Genf"], "")
    assert enrolment.load_coordinator(folder).sites["Basel"]["removed"]
    assert not invitation_of(folder, "Basel").exists()
    workspace.build_coordinator(folder)
    barred = json.loads((folder / "flare" / "coordinator" / "disabled_clients.json").read_text())
    assert barred == {"disabled_clients": [enrolment.identity_of("Basel")]}


def test_approvals_that_are_refused(folder: Path, place: Path) -> None:
    made = ask(folder, "Basel", place / "site")
    other = ask(folder, SITES[1], place / "other")
    good = Path(shutil.copy(enrolment.approve(folder, made.file).file, place / "good"))
    theirs = enrolment.approve(folder, other.file).file
    refused("it is for 'H", enrolment.accept, made.kit, theirs)
    refused("a different key", enrolment.accept, made.kit, change(theirs, site="Basel"))

    (place / "b").mkdir()
    shutil.copy(place / "heart.toml", place / "b")
    foreign = enrolment.invite(place / "b" / "heart.toml", SITES, "127.0.0.1:18002")
    said = json.loads(made.file.read_text())
    said["authority"] = enrolment.load_coordinator(foreign).authority_fingerprint
    (place / "forged").write_text(json.dumps(said))
    false = enrolment.approve(foreign, place / "forged").file
    refused("the authority of this kit's invitation did not sign it", enrolment.accept, made.kit, false)
    refused("expected an approval", enrolment.accept, made.kit, made.file)
    refused("no valid certificate", enrolment.accept, made.kit, change(false, certificate="x"))
    assert not enrolment.load_kit(made.kit).approved
    refused("not approved yet", workspace.build_site, made.kit)
    assert enrolment.accept(made.kit, good).approved


def test_an_approval_out_of_its_time(folder: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = ask(folder, "Basel", place / "site")
    now = datetime.datetime.now(datetime.UTC)
    monkeypatch.setattr(certificates, "_now", lambda: now - datetime.timedelta(days=4 * 365))
    approval = enrolment.approve(folder, made.file)
    refused("it is valid from", enrolment.accept, made.kit, approval.file)


def changed_on_the_way(folder: Path, place: Path) -> Path:
    """By somebody who has every paper and no key: another address to call, another seed, and the hash made to fit."""
    said = json.loads(invitation_of(folder, "Basel").read_text())
    said |= {"address": "evil.example.org:443", "seed": 7}
    said["agreement"] = agreed_hash(study_of(said, place), said["seed"], len(said["sites"]))
    (place / "changed.invitation").write_text(json.dumps(said))
    return place / "changed.invitation"


def test_an_invitation_that_was_changed_on_the_way(folder: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: without the signature it is taken, and the site would call the attacker."""
    changed = changed_on_the_way(folder, place)
    refused("somebody changed the invitation after the study's authority signed it", enrolment.request, changed)
    said = json.loads(changed.read_text())
    for unsigned in ({**said, "signature": 7}, {k: v for k, v in said.items() if k != "signature"}):
        changed.write_text(json.dumps(unsigned))
        refused("the invitation cannot be trusted", enrolment.request, changed)
    enrolment.request(invitation_of(folder, "Basel"), place / "right.kit")
    assert json.loads((place / "right.kit" / "invitation.json").read_text())["signature"], "it is kept"
    assert not (place / "Basel.kit").exists()
    unchecked = lambda said, where: fingerprint_key(read_authority(said["authority"], where).public_key())  # noqa: E731
    monkeypatch.setattr(enrolment, "check_signature", unchecked)
    changed.write_text(json.dumps(said))
    assert enrolment.load_kit(enrolment.request(changed).kit).address == "evil.example.org:443"


def test_another_authority_s_signature_is_another_fingerprint(folder: Path, place: Path) -> None:
    """Who signs with an authority of his own is not found out by the signature, but by the phone call."""
    (place / "evil").mkdir()
    make_authority(place / "evil")
    shutil.copytree(place / "evil", place / "forged" / "authority")
    evil = StudyAuthority(place / "forged")
    said = json.loads(changed_on_the_way(folder, place).read_text()) | {"authority": evil.pem}
    (place / "forged.invitation").write_text(json.dumps(sign_invitation(said, evil)))
    made = enrolment.request(place / "forged.invitation", place / "forged.kit")
    assert made.authority_fingerprint != enrolment.load_coordinator(folder).authority_fingerprint


def test_invitations_that_are_refused(folder: Path, place: Path) -> None:
    file = invitation_of(folder, "Basel")
    good = json.loads(file.read_text())
    site = certificate(enrolled(folder, SITES[1], place / "other") / "certificate.pem").public_bytes(Encoding.PEM)
    for match, said in {
        "contradicts itself": {"agreement": "0" * 24},
        "its study leads to": {"seed": 7},
        "cannot be read as TOML": {"study": "x = ["},
        "not a valid study": {"study": "name = 1"},
        "not in its list of sites": {"sites": ["Genf"]},
        "no port": {"address": "host"},
        "does not belong to a certificate authority": {"authority": site.decode()},
        "no valid certificate": {"authority": "x"},
        "format 'new'": {"format": "new"},
        "wrong type: seed": {"seed": "1"},
    }.items():
        signed = sign_invitation({**good, **said}, StudyAuthority(folder))  # a coordinator may be wrong too
        (place / "bad.invitation").write_text(json.dumps(signed))
        refused(match, enrolment.request, place / "bad.invitation")
    assert not (place / "Basel.kit").exists()
    (place / "Basel.kit").mkdir()
    (place / "Basel.kit" / "thesis.txt").write_text("mine")
    refused("is not a kit", enrolment.request, file, place / "Basel.kit")
    refused("expected a site's kit", enrolment.load_kit, place / "Basel.kit")
    refused("kit of 'H", enrolment.request, file, next((place / "other").glob("*.kit")))
    kit = ask(folder, "Basel", place / "site").kit
    (kit / "key.pem").write_text("x")
    refused("cannot read a private key", enrolment.request, file, kit)
    (kit / "key.pem").unlink()
    refused("the kit is incomplete", enrolment.load_kit, kit)
