"""Letters between parties, which the coordinator carries and cannot read.

    k(a, b)    HKDF-SHA256 of X25519(A, B) | X25519(A', B'), for the agreement, the run, the session, a and b
    letter n   ChaCha20-Poly1305 under k(a, b), nonce n, with a, b and n beside it as associated data

A and B are the keys of enrolment, and prove who is who. A' and B' are drawn by both ends for one session: no key is
used in two, so that no nonce comes twice whatever the coordinator does, a letter of an old session fits none that
follows, and a key that is stolen later opens nothing. What a letter is and to which step it belongs is in its text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from vitrail.core.errors import LetterRefused
from vitrail.privacy.key_agreement import SealedBox, agree


class SealingKeys(NamedTuple):
    """Public keys of a party, 32 bytes each."""

    lasting: bytes  # made at enrolment
    session: bytes  # made for this session


class SealedSession:
    """One party's end in one session. Letters of one sender are opened in the order in which they were sealed."""

    def __init__(
        self,
        name: str,
        lasting: X25519PrivateKey,
        session: X25519PrivateKey,
        others: Mapping[str, SealingKeys],
        about: str,
    ) -> None:
        """`about`: agreement, run and session, the same at every end."""
        self.name = name
        self._out, self._in = dict[str, SealedBox](), dict[str, SealedBox]()
        self.sent, self.opened = dict.fromkeys(others, 0), dict.fromkeys(others, 0)
        for other, keys in others.items():
            secret = agree(lasting, keys.lasting, other) + agree(session, keys.session, other)
            self._out[other] = SealedBox(secret, "vitrail seal 1", about, name, other)
            self._in[other] = SealedBox(secret, "vitrail seal 1", about, other, name)

    def seal(self, receiver: str, text: bytes) -> tuple[int, bytes]:
        """The letter's number and its bytes."""
        number = self.sent[receiver]
        self.sent[receiver] += 1
        return number, self._out[receiver].seal(text, number, _associated_data(self.name, receiver, number))

    def open(self, sender: str, number: int, data: bytes) -> bytes:
        where = f"letter {number} from {sender}"
        if sender not in self._in:
            raise LetterRefused(where, f"{sender!r} is not a party of this study.")
        if number != (awaited := self.opened[sender]):
            what = f"expected letter number {awaited} next." if number > awaited else "this letter was received before."
            raise LetterRefused(where, what)
        text = self._in[sender].open(data, where, number, _associated_data(sender, self.name, number))
        self.opened[sender] += 1
        return text


def _associated_data(sender: str, receiver: str, number: int) -> bytes:
    return "\0".join((sender, receiver, str(number))).encode()
