"""Keys and certificates of a study: its authority, what it signs, and the fingerprints that people compare by phone.

RSA, because FLARE signs with it. A private key is made where it is used, and its file is its owner's only.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import ipaddress
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from vitrail.core.errors import Problem, VitrailError
from vitrail.storage.atomic_files import write_atomically
from vitrail.storage.untrusted_files import LONGEST_TEXT, read_regular

COORDINATOR = "coordinator"  # its name in certificates
BITS = 2048
DAY = datetime.timedelta(days=1)
YEAR = 365 * DAY


def fingerprint_key(key: Any) -> str:
    """Of a public key, to be read out on the phone."""
    digest = hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()
    return " ".join(digest[i : i + 4] for i in range(0, 32, 4))


def project(authority_fingerprint: str) -> str:
    """FLARE's name for the study: both ends derive it from the authority."""
    return "vitrail-" + authority_fingerprint.replace(" ", "")[:12]


def requested_key(csr: str) -> rsa.RSAPublicKey | None:
    """The key of a signing request that is signed with it, and long enough."""
    try:
        asked = x509.load_pem_x509_csr(csr.encode())
        key, valid = asked.public_key(), asked.is_signature_valid
    except (ValueError, InvalidSignature):
        return None
    fine = valid and isinstance(key, rsa.RSAPublicKey) and BITS <= key.key_size <= 4 * BITS
    return key if fine and isinstance(key, rsa.RSAPublicKey) else None


class StudyAuthority:
    """The study's authority, which signs what is asked of it here."""

    def __init__(self, folder: Path) -> None:
        self.key = read_key(folder / "authority" / "key.pem")
        self.pem = (folder / "authority" / "cert.pem").read_text()
        self.own = read_authority(self.pem, folder / "authority" / "cert.pem")

    def sign(self, key: Any, subject: str, org: str, names: Sequence[str], role: str = "", serves: bool = False) -> str:
        end = min(_now() + 3 * YEAR, self.own.not_valid_after_utc)
        builder = _builder(key, x509_name(subject, org, role), self.own.subject, self.key, end)
        uses = [ExtendedKeyUsageOID.CLIENT_AUTH] + ([ExtendedKeyUsageOID.SERVER_AUTH] if serves else [])
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(_usage(authority=False), critical=True)
        builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        builder = builder.add_extension(x509.SubjectAlternativeName([_alternative(n) for n in names]), critical=False)
        return builder.sign(self.key, hashes.SHA256()).public_bytes(Encoding.PEM).decode()


def make_authority(folder: Path) -> None:
    key = own_key(folder / "key.pem")
    name = x509_name(project(fingerprint_key(key.public_key())))
    builder = _builder(key.public_key(), name, name, key, _now() + 10 * YEAR)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(authority=True), critical=True)
    write_atomically(folder / "cert.pem", builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM), private=True)


def _builder(
    key: Any, subject: x509.Name, issuer: x509.Name, signer: rsa.RSAPrivateKey, end: datetime.datetime
) -> x509.CertificateBuilder:
    about = x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key())
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_now() - DAY)  # clocks differ
        .not_valid_after(end)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(about, critical=False)
    )


def _usage(authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True, content_commitment=False, key_encipherment=not authority, data_encipherment=False,
        key_agreement=False, key_cert_sign=authority, crl_sign=authority, encipher_only=False, decipher_only=False,
    )  # fmt: skip


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def x509_name(common: str, org: str = "", role: str = "") -> x509.Name:
    parts = ((NameOID.COMMON_NAME, common), (NameOID.ORGANIZATION_NAME, org), (NameOID.UNSTRUCTURED_NAME, role))
    return x509.Name([x509.NameAttribute(oid, text) for oid, text in parts if text])


def name_of(certificate: x509.Certificate) -> str:
    """To whom it was issued; "" where it says no one."""
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if names else ""


def _alternative(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def hosts_of(path: Path) -> list[str]:
    """By which names a certificate may be called."""
    names = read_certificate(path.read_text(), path).extensions.get_extension_for_class(x509.SubjectAlternativeName)
    return [str(name.value) for name in names.value]


def own_key(path: Path) -> rsa.RSAPrivateKey:
    """The private key in this file; made here the first time."""
    if not path.exists():
        made = rsa.generate_private_key(public_exponent=65537, key_size=BITS)
        pem = made.private_bytes(Encoding.PEM, PrivateFormat.TraditionalOpenSSL, NoEncryption())
        write_atomically(path, pem, private=True, durable=True)
    return read_key(path)


def read_key(path: Path) -> rsa.RSAPrivateKey:
    try:
        key = load_pem_private_key(read_regular(path, LONGEST_TEXT), password=None)
    except (OSError, ValueError, TypeError) as error:
        what = f"cannot read a private key from it: {getattr(error, 'strerror', None) or 'it holds none'}."
        hint = "Restore it from a backup; a site makes a new kit."
        raise VitrailError("a key cannot be read", [Problem(str(path), what, hint)]) from None
    if not isinstance(key, rsa.RSAPrivateKey):
        what = "expected an RSA key."
        raise VitrailError("a key cannot be read", [Problem(str(path), what, "Restore it from a backup.")])
    return key


def read_certificate(pem: str, where: Path) -> x509.Certificate:
    try:
        return x509.load_pem_x509_certificate(pem.encode())
    except ValueError:
        what, hint = "it holds no valid certificate.", "Ask the coordinator to send it again."
        raise VitrailError("a certificate cannot be read", [Problem(str(where), what, hint)]) from None


def read_authority(pem: str, where: Path) -> x509.Certificate:
    """A certificate that may sign others, and signed itself."""
    authority = read_certificate(pem, where)
    try:
        signs = authority.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    except (x509.ExtensionNotFound, ValueError):
        signs = False
    if not signs or not isinstance(authority.public_key(), rsa.RSAPublicKey) or not is_issued(authority, authority):
        what, hint = (
            "the certificate in it does not belong to a certificate authority.",
            "Ask the coordinator to send it again.",
        )
        raise VitrailError("a certificate cannot be read", [Problem(str(where), what, hint)])
    return authority


def is_issued(signed: x509.Certificate, issuer: x509.Certificate) -> bool:
    try:
        signed.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def sign_text(key: rsa.RSAPrivateKey, what_for: str, text: bytes) -> str:
    made = key.sign(what_for.encode() + b"\n" + text, padding.PKCS1v15(), hashes.SHA256())
    return base64.b64encode(made).decode()


def is_signed(certificate: x509.Certificate, what_for: str, text: bytes, signature: Any) -> bool:
    """Whether the owner of that certificate signed this."""
    key = certificate.public_key()
    try:
        assert isinstance(key, rsa.RSAPublicKey)
        made = base64.b64decode(signature, validate=True)
        key.verify(made, what_for.encode() + b"\n" + text, padding.PKCS1v15(), hashes.SHA256())
    except (InvalidSignature, AssertionError, ValueError, TypeError):
        return False
    return True
