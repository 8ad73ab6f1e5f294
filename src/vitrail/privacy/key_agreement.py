"""What two ends know of each other's keys: a secret that only they have, and what is sealed under it.

secret       X25519(own, other's), 32 bytes
key          HKDF-SHA256 of one or more secrets, for what it is about: another purpose, another key
sealed       ChaCha20-Poly1305 under the key; a nonce is used once under one key, which whoever seals sees to
"""

from __future__ import annotations

from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from vitrail.core.errors import KeyRefused, LetterRefused, Problem, VitrailError
from vitrail.storage.journal import write_once

SIZE = 32  # bytes of a key, public or private
TAG = 16  # bytes that sealing adds


def key_file(path: Path, hint: str = "Restore it from a copy.") -> X25519PrivateKey:
    """The private key in this file, as hexadecimal digits; made here the first time. Runs that were begun by an earlier
    version have its bytes."""
    content = write_once(path, lambda: X25519PrivateKey.generate().private_bytes_raw().hex().encode() + b"\n")
    try:
        raw = content if len(content) == SIZE else bytes.fromhex(content.decode("ascii").strip())
        return X25519PrivateKey.from_private_bytes(raw)
    except ValueError:
        problem = Problem(str(path), f"expected a private key of {2 * SIZE} hexadecimal digits.", hint)
        raise VitrailError("a key cannot be read", [problem]) from None


def agree(own: X25519PrivateKey, other: bytes, whose: str) -> bytes:
    """The secret that `own` has with the public key `other`."""
    try:
        return own.exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError:  # not 32 bytes, or a point that gives every partner the same secret
        raise KeyRefused(whose, f"expected a public key of {SIZE} bytes.") from None


def derive_key(secret: bytes, *about: str) -> bytes:
    """The same at both ends, if they name the same."""
    return HKDF(hashes.SHA256(), SIZE, None, "\0".join(about).encode()).derive(secret)


class SealedBox:
    """What goes one way between two ends."""

    def __init__(self, secret: bytes, *about: str) -> None:
        self._cipher = ChaCha20Poly1305(derive_key(secret, *about))

    def seal(self, text: bytes, nonce: int = 0, associated: bytes = b"") -> bytes:
        """No nonce twice. `associated` is not sent, and the other end must name the same."""
        return self._cipher.encrypt(nonce.to_bytes(12, "little"), text, associated)

    def open(self, sealed: bytes, where: str, nonce: int = 0, associated: bytes = b"") -> bytes:
        """`where`: what is opened, as a refusal names it."""
        try:
            return self._cipher.decrypt(nonce.to_bytes(12, "little"), sealed, associated)
        except (InvalidTag, ValueError):
            what = "it was not sealed with the expected key for this receiver and purpose, or it was changed."
            raise LetterRefused(where, what) from None
