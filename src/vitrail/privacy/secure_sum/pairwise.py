"""Sums over sites of which nobody sees a single part.

    site i       draws x_i for this one sum (X25519); its public half goes to the others, signed by its enrolment key
    k_ij         HKDF-SHA256 of X25519(x_i, x_j), for what the sum is about and who is in it; the same at both ends
    r_ij         ChaCha20 under k_ij: a number mod 2^64 for each that is summed
    report i     v_i 2^p + sum_{j after i} r_ij - sum_{j before i} r_ij    mod 2^64
    the sum      of all reports: the masks cancel, and only in the sum of all

A report is uniform to whoever knows none of the keys. The places p are such that all sites at their clip fit into 62
bits; a value beyond its clip is refused, never wrapped. Some zeros are summed beside the values: where masks do not
cancel (a site saw another list of keys, or sent something else) they are no longer zeros, and nothing is opened.

One draw serves one list of sites. Two sums of the same values over lists that differ by one site would tell that
site's values (tests/privacy/secure_sum/test_pairwise.py does it), so a site never adds its values to a second list, and
a sum in
which somebody falls silent is not begun anew with the others: it waits, or is not opened. What was drawn and said is
on disk, so that a site that was restarted says the same.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from vitrail.core.errors import Problem, SumRefused
from vitrail.privacy.secure_sum.fixed_point import LEAST, ZERO, ZEROS, places
from vitrail.storage.atomic_files import private_folder, write_atomically

DRAWN, SAID = "drawn.json", "said.npz"  # in a site's folder of one sum

Values = dict[str, NDArray[np.float64]]
Masked = dict[str, NDArray[np.uint64]]


class SumOffer(NamedTuple):
    """A site's public key for one sum, and its signature under it."""

    key: bytes
    signature: bytes


@dataclass(frozen=True)
class SumSpec:
    """What all ends know before: what is summed, how large it may be, and of how many sites at most."""

    about: str  # agreement, run and which sum
    shapes: Mapping[str, tuple[int, ...]]
    clip: Mapping[str, float]  # of one site's values, by name
    most: int
    least: int = LEAST

    def places(self, name: str) -> int:
        return places(self.most, self.clip[name])

    def text(self, site: str, key: bytes) -> bytes:
        """What a site signs of its key."""
        return "\0".join(("vitrail masks 1", self.about, site, key.hex())).encode()

    def summed(self) -> dict[str, tuple[int, ...]]:
        """Shapes of all that a report holds."""
        return {**self.shapes, ZERO: (ZEROS,)}

    def apart(self, flat: NDArray[np.uint64]) -> Masked:
        """One number after the other, by name."""
        ends = np.cumsum([math.prod(shape) for shape in self.summed().values()])[:-1]
        parts = zip(self.summed().items(), np.split(flat, ends), strict=True)
        return {name: part.reshape(shape) for (name, shape), part in parts}


class PairwiseSummand:
    """One site's end of one sum. `folder` is its own and of this sum alone."""

    def __init__(self, site: str, terms: SumSpec, folder: Path, sign: Callable[[bytes], bytes]) -> None:
        self.site, self.terms, self.folder, self.sign = site, terms, folder, sign

    def offer(self) -> SumOffer:
        """The same, as often as it is asked for."""
        known = self._drawn()
        if known is None:
            private_folder(self.folder)
            drawn = X25519PrivateKey.generate()
            public = drawn.public_key().public_bytes_raw()
            known = {"private": drawn.private_bytes_raw().hex(), "public": public.hex()}
            known["signature"] = self.sign(self.terms.text(self.site, public)).hex()
            write_atomically(self.folder / DRAWN, json.dumps(known), private=True)
        return SumOffer(bytes.fromhex(known["public"]), bytes.fromhex(known["signature"]))

    def report(
        self,
        values: Mapping[str, NDArray[np.float64]],
        offers: Mapping[str, SumOffer],
        check: Callable[[str, bytes, bytes], None],
    ) -> Masked:
        """The values under their masks. `check(site, text, signature)` raises where that site did not sign."""
        roster = roster_of(offers)
        known = self._drawn()
        if (self.folder / SAID).exists():
            with np.load(self.folder / SAID, allow_pickle=False) as kept:
                if bytes(kept["roster"]).hex() != roster:
                    what = "this site has added its numbers to the sum of another list of sites."
                    raise SumRefused(
                        self.site, f"{what} The difference of two such sums would tell what a single site has."
                    )
                return self.terms.apart(kept["said"])
        if known is None or "private" not in known:
            raise SumRefused(self.site, "no key was drawn for this sum.")
        problems = [*self._wrong_list(offers, bytes.fromhex(known["public"])), *wrong_values(self.terms, values)]
        if problems:
            raise SumRefused(problems=problems)
        for other, offer in offers.items():
            check(other, self.terms.text(other, offer.key), offer.signature)
        mask = self._mask(X25519PrivateKey.from_private_bytes(bytes.fromhex(known["private"])), offers, roster)
        flat = [np.rint(np.ravel(values[k]) * 2.0 ** self.terms.places(k)) for k in self.terms.shapes]
        said = np.concatenate([*flat, np.zeros(ZEROS)]).astype(np.int64).view(np.uint64) + mask
        self._keep(said, roster, known)
        return self.terms.apart(said)

    def _wrong_list(self, offers: Mapping[str, SumOffer], own: bytes) -> list[Problem]:
        out = []
        if len(offers) < self.terms.least:
            what = f"it would be the sum of {len(offers)} sites, and {self.terms.least} are the fewest."
            out.append(Problem("sites", what, "Nothing was sent."))
        if len(offers) > self.terms.most:
            out.append(Problem("sites", f"{len(offers)} are named, and {self.terms.most} were agreed on."))
        if self.site not in offers or offers[self.site].key != own:
            out.append(Problem(self.site, "the list does not hold the key that this site drew.", "Nothing was sent."))
        if len({offer.key for offer in offers.values()}) < len(offers):
            out.append(Problem("keys", "two sites have the same key.", "Nothing was sent."))
        return out

    def _mask(self, own: X25519PrivateKey, offers: Mapping[str, SumOffer], roster: str) -> NDArray[np.uint64]:
        total = np.zeros(sum(map(math.prod, self.terms.summed().values())), dtype=np.uint64)
        for other in sorted(offers.keys() - {self.site}):
            try:
                secret = own.exchange(X25519PublicKey.from_public_bytes(offers[other].key))
            except ValueError:  # not 32 bytes, or a point that gives every partner the same secret
                raise SumRefused(other, "expected a public key of 32 bytes.") from None
            pair = "\0".join(("vitrail masks 1", self.terms.about, roster, *sorted((self.site, other)))).encode()
            stream = draw(HKDF(hashes.SHA256(), 32, None, pair).derive(secret), len(total))
            total = total + stream if self.site < other else total - stream
        return total

    def _drawn(self) -> dict[str, str] | None:
        place = self.folder / DRAWN
        if not place.exists():
            return None
        known: dict[str, str] = json.loads(place.read_text(encoding="utf-8"))
        return known

    def _keep(self, said: NDArray[np.uint64], roster: str, known: dict[str, str]) -> None:
        """What was said first, then the private half goes: the other way round a crash would end the sum."""
        told = io.BytesIO()
        np.savez(told, roster=np.frombuffer(bytes.fromhex(roster), dtype=np.uint8), said=said)
        write_atomically(self.folder / SAID, told.getvalue(), private=True)
        kept = {k: v for k, v in known.items() if k != "private"}
        write_atomically(self.folder / DRAWN, json.dumps(kept), private=True)


def wrong_values(terms: SumSpec, values: Mapping[str, NDArray[np.float64]]) -> list[Problem]:
    """All that cannot be summed: other names or shapes, no number, or beyond the clip."""
    out = []
    for name in sorted(values.keys() | terms.shapes.keys()):
        found, shape = values.get(name), terms.shapes.get(name)
        if found is None or shape is None or np.shape(found) != shape:
            what = f"agreed as {shape}, and here is {None if found is None else np.shape(found)}."
            out.append(Problem(name, what))
        elif not np.isfinite(found).all() or np.abs(found).max(initial=0.0) > terms.clip[name]:
            what = f"a value is larger than the agreed {terms.clip[name]:g}, or no number."
            out.append(Problem(name, what, "It would wrap round and spoil the sum: nothing was sent."))
    return out


def draw(key: bytes, count: int) -> NDArray[np.uint64]:
    """Uniform numbers mod 2^64."""
    stream = Cipher(algorithms.ChaCha20(key, bytes(16)), None).encryptor()
    return np.frombuffer(stream.update(bytes(8 * count)), dtype="<u8").astype(np.uint64)


def roster_of(offers: Mapping[str, SumOffer]) -> str:
    """A mark of who is in a sum, and with which keys."""
    said = [[name, offers[name].key.hex()] for name in sorted(offers)]
    return hashlib.sha256(json.dumps(said).encode()).hexdigest()


def open_sum(reports: Mapping[str, Mapping[str, NDArray[np.uint64]]], terms: SumSpec) -> Values:
    """What the values of all sites in the list add up to; all of them, or nothing is opened."""
    if len(reports) < terms.least:
        raise SumRefused("sites", f"{len(reports)} reports came, and {terms.least} are needed.")
    flat = np.zeros(sum(map(math.prod, terms.summed().values())), dtype=np.uint64)
    for site, said in reports.items():
        told = {k: (v.shape, v.dtype) for k, v in said.items()}
        if told != {k: (shape, np.dtype(np.uint64)) for k, shape in terms.summed().items()}:
            raise SumRefused(site, "its report has other names or shapes than were agreed on.")
        flat += np.concatenate([np.ravel(said[k]) for k in terms.summed()])
    total = terms.apart(flat)
    if total.pop(ZERO).any():
        what = "the masks do not cancel: a report is missing or was changed, or sites were told different keys."
        raise SumRefused("sum", what)
    return {k: v.view(np.int64) / 2.0 ** terms.places(k) for k, v in total.items()}
