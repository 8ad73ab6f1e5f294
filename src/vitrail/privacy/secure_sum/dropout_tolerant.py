"""The sum of one round under masks, opened also where sites fall silent (Bonawitz et al. 2017).

    site i       draws x_i (X25519) and b_i for this one sum, and gives every neighbour a share of both, sealed
    r_ij         ChaCha20 under what x_i and x_j agree on; the same at both ends
    report i     v_i 2^p + ChaCha20(b_i) + sum_{j after i} r_ij - sum_{j before i} r_ij    mod 2^64
    opening      of who reported, its neighbours tell their shares of b_i; of who did not, those of x_i
    the sum      of the reports, less ChaCha20(b_i) and less what was added towards those who did not report

`names` is the list that shares were made for, `roster` those of them with a key, `said` those who reported. So many
shares are needed (`needed`) that no coordinator alone gets both x_i and b_i, whatever it tells to whom: each holder
tells one kind, once, and remembers on disk which. With k holders that tell it both it takes 2 needed - n <= k of n.
A site that reports signs the list and what all were told; before it tells shares it checks that everybody who reported
signed the very same (the consistency check): there is one list in a round. A sum is reported to once and opened once.
Zeros are summed beside the values (privacy/secure_sum/pairwise.py).
"""

from __future__ import annotations

import hashlib
import io
import json
import math
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, islice
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from vitrail.core.errors import Problem, SumRefused, VitrailError
from vitrail.privacy.secure_sum.fixed_point import LEAST, ZERO, ZEROS
from vitrail.privacy.secure_sum.pairwise import Masked, SumSpec, Values, draw, wrong_values
from vitrail.privacy.secure_sum.shamir import SIZE, join, split
from vitrail.storage.atomic_files import private_folder, write_atomically

ALL_PAIRS = 20  # up to so many sites everybody is everybody's neighbour
NEIGHBOURS = 14  # beyond
MOST_TRIES = 500  # of different holders' shares, where some do not fit
DRAWN, SAID, OPENED = "drawn.json", "said.npz", "opened.json"  # in a site's folder of one sum
Flat = NDArray[np.uint64]


class LostError(VitrailError):
    """A site's own files of one sum are damaged."""


class SumKeys(NamedTuple):
    """What a site says before a sum."""

    key: bytes  # the public half of x
    mark: bytes  # sha256 of b: whether shares of it are true
    signature: bytes
    sealed: dict[str, bytes]  # neighbour -> its shares


def groups(about: str, names: Iterable[str]) -> dict[str, list[str]]:
    """Each site's group: itself and its neighbours. Many stand in a ring, in an order that nobody chooses."""
    ranked = sorted(names, key=lambda n: hashlib.sha256(f"{about}\0{n}".encode()).digest())
    if len(ranked) <= ALL_PAIRS:
        return {n: sorted(ranked) for n in ranked}
    half = NEIGHBOURS // 2
    ring = [*ranked[-half:], *ranked, *ranked[:half]]
    return {n: sorted(ring[i : i + 2 * half + 1]) for i, n in enumerate(ranked)}


def needed(group: Sequence[str], names: Sequence[str], least: int) -> int:
    """Shares that tell a secret of who has this group in the list of `names`: as many as a sum has sites at the least,
    and more than half, so that not both of a site's can be had; more than two thirds of neighbours, where not all
    are."""
    if len(group) < len(names):
        return max(LEAST, 2 * len(group) // 3 + 1)
    return max(least, len(group) // 2 + 1)


def list_digest(roster: Sequence[str], told: str) -> bytes:
    """Of the one list of a sum, and of what all in it were told."""
    return hashlib.sha256(json.dumps([sorted(roster), told]).encode()).digest()


@dataclass(frozen=True)
class SumParticipant:
    """A site at one sum. What it drew and said lies in `folder`: started again, it says the same."""

    site: str
    terms: SumSpec
    folder: Path
    sign: Callable[[bytes], bytes]
    own: X25519PrivateKey  # of this run, to unseal shares
    others: Mapping[str, bytes]  # their public keys of this run, each found to be signed by its site

    def draw(self, names: Sequence[str]) -> SumKeys:
        """Its key, and shares for its group in this list. Another list has another draw, until something is said."""
        known = self._read(DRAWN)
        if known is None or known["names"] != sorted(names):
            if (self.folder / SAID).exists():
                raise SumRefused(self.site, "this site has added its numbers to the sum of another list of sites.")
            self._check_names(names)
            known = self._drawn(names)
            write_atomically(private_folder(self.folder) / DRAWN, json.dumps(known), private=True)
        sealed = {n: bytes.fromhex(v) for n, v in known["sealed"].items()}
        key, mark, signature = (bytes.fromhex(known[k]) for k in ("key", "mark", "signature"))
        return SumKeys(key, mark, signature, sealed)

    def _check_names(self, names: Sequence[str]) -> None:
        if self.site not in names or len(set(names)) < len(names) or not len(names) <= self.terms.most:
            raise SumRefused("sites", f"{len(names)} are listed, this one among them: {self.site in names}.")
        if len(names) < self.terms.least:
            what = f"it would be the sum of {len(names)} sites, and {self.terms.least} are the fewest."
            raise SumRefused("sites", what)
        if unknown := sorted(set(names) - self.others.keys() - {self.site}):
            raise SumRefused(unknown[0], "this site has no key of it for shares.")

    def _drawn(self, names: Sequence[str]) -> dict[str, Any]:
        drawn, self_mask = X25519PrivateKey.generate(), secrets.token_bytes(32)
        group = groups(self.terms.about, names)[self.site]
        places, enough = range(1, len(group) + 1), needed(group, names, self.terms.least)
        one, two = (split(s, places, enough) for s in (drawn.private_bytes_raw(), self_mask))
        sealed, mine = {}, ""
        for x, name in zip(places, group, strict=True):
            if name == self.site:
                mine = two[x].hex()
                continue
            key = self._shared(X25519PublicKey.from_public_bytes(self.others[name]), "share", self.site, name)
            nonce = secrets.token_bytes(12)
            sealed[name] = (nonce + ChaCha20Poly1305(key).encrypt(nonce, one[x] + two[x], None)).hex()
        public, mark = drawn.public_key().public_bytes_raw(), hashlib.sha256(self_mask).digest()
        text = signed_text(self.terms, self.site, names, public, mark)
        out = {"names": sorted(names), "private": drawn.private_bytes_raw().hex(), "self": self_mask.hex()}
        out |= {"key": public.hex(), "mark": mark.hex(), "signature": self.sign(text).hex()}
        return out | {"sealed": sealed, "share": mine}

    def report(
        self,
        values: Callable[[], Values],
        roster: Sequence[str],
        told: str,
        drawn: Mapping[str, SumKeys],
        check: Callable[[str, bytes, bytes], None],
    ) -> Masked:
        """The values under their masks. `roster`: who has a key; `drawn`: what its neighbours there drew; `told`: a
        mark of what all were told. `check(site, text, signature)` raises where that site did not sign."""
        known, mark = self._read(DRAWN), list_digest(roster, told)
        if (kept := self._kept()) is not None:
            if kept["mark"].tobytes() != mark:
                what = "this site has reported to this sum, with another list of sites or to another word."
                raise SumRefused(self.site, f"{what} Two such sums would tell what a single site has.")
            return self.terms.apart(kept["said"])
        if known is None or "private" not in known:
            raise SumRefused(self.site, "no key was drawn for this sum.")
        names = known["names"]
        near = self._near(names, roster, drawn)
        for other in near:
            text = signed_text(self.terms, other, names, drawn[other].key, drawn[other].mark)
            check(other, text, drawn[other].signature)
        found = values()
        if problems := wrong_values(self.terms, found):
            raise SumRefused(problems=problems)
        flat = [np.rint(np.ravel(found[k]) * 2.0 ** self.terms.places(k)) for k in self.terms.shapes]
        said = np.concatenate([*flat, np.zeros(ZEROS)]).astype(np.int64).view(np.uint64)
        said = said + self_stream(bytes.fromhex(known["self"]), self.terms)
        private = X25519PrivateKey.from_private_bytes(bytes.fromhex(known["private"]))
        for other in near:
            said = _towards(said, private, self.site, other, drawn[other].key, self.terms, roster, told)
        kept_mark, names_mark = np.frombuffer(mark, dtype=np.uint8), "\0".join(sorted(roster)).encode()
        file = io.BytesIO()
        word = np.frombuffer(told.encode(), dtype=np.uint8)
        np.savez(file, said=said, mark=kept_mark, roster=np.frombuffer(names_mark, dtype=np.uint8), told=word)
        write_atomically(self.folder / SAID, file.getvalue(), private=True)
        left = {k: v for k, v in known.items() if k not in ("private", "self")}  # after what was said is on disk
        write_atomically(self.folder / DRAWN, json.dumps(left), private=True)
        return self.terms.apart(said)

    def signed_list(self) -> bytes:
        """Its signature under the list that it reported to."""
        kept = self._kept()
        if kept is None:
            raise SumRefused(self.site, "this site has added nothing to this sum.")
        return self.sign(list_text(self.terms, self.site, kept["mark"].tobytes()))

    def _near(self, names: Sequence[str], roster: Sequence[str], drawn: Mapping[str, SumKeys]) -> list[str]:
        if not {self.site} <= set(roster) <= set(names) or len(roster) < self.terms.least:
            what = f"{len(roster)} sites are in it, of {len(names)} whose shares there are."
            raise SumRefused("sites", f"{what} At least {self.terms.least} are needed, this one among them.")
        near = [n for n in groups(self.terms.about, names)[self.site] if n != self.site and n in set(roster)]
        if missing := [n for n in near if n not in drawn]:
            raise SumRefused(missing[0], "it is in the sum, and its key was not told.")
        if len({drawn[n].key for n in near}) < len(near):
            raise SumRefused("keys", "two sites have the same key.")
        return near

    def open(
        self,
        said: Sequence[str],
        sealed: Mapping[str, bytes],
        lists: Mapping[str, bytes],
        check: Callable[[str, bytes, bytes], None],
        agree: Callable[[str], None] = lambda told: None,
    ) -> dict[str, bytes]:
        """Its shares: of who reported, of what it added itself; of who did not, of its key. Once, for one list.
        `lists`: the others' signatures under the list; `agree(told)` raises where this site opens no such sum."""
        known, told, kept = self._read(DRAWN), self._read(OPENED), self._kept()
        if known is None or kept is None:
            raise SumRefused(self.site, "this site has added nothing to this sum.")
        if told is not None:
            if told["said"] != sorted(said):
                what = "it was opened with another list of who reported."
                raise SumRefused(self.site, f"{what} Both shares of one site would tell what it reported.")
            return {n: bytes.fromhex(v) for n, v in told["shares"].items()}
        roster = set(kept["roster"].tobytes().decode().split("\0"))
        if not {self.site} <= set(said) <= roster or len(set(said)) < self.terms.least:
            what = f"{len(set(said))} sites would have reported, of {len(roster)} in the sum."
            raise SumRefused("sites", f"{what} At least {self.terms.least} are needed, this one among them.")
        for other in sorted(set(said) - {self.site}):
            if other not in lists:
                raise SumRefused(other, "it is said to have reported, and did not sign the list of this sum.")
            check(other, list_text(self.terms, other, kept["mark"].tobytes()), lists[other])
        agree(kept["told"].tobytes().decode())
        shares = {self.site: bytes.fromhex(known["share"])}
        for name in groups(self.terms.about, known["names"])[self.site]:
            if name != self.site and name in roster and name in sealed:
                key_share, self_share = self._unsealed(name, sealed[name])
                shares[name] = self_share if name in said else key_share
        kept_shares = {n: v.hex() for n, v in shares.items()}
        write_atomically(self.folder / OPENED, json.dumps({"said": sorted(said), "shares": kept_shares}), private=True)
        return shares

    def _unsealed(self, sender: str, sealed: bytes) -> tuple[bytes, bytes]:
        key = self._shared(X25519PublicKey.from_public_bytes(self.others[sender]), "share", sender, self.site)
        try:
            both = ChaCha20Poly1305(key).decrypt(sealed[:12], sealed[12:], None)
        except (InvalidTag, ValueError):
            raise SumRefused(sender, "its shares are not for this site and this sum, or were changed.") from None
        if len(both) != 2 * SIZE:
            raise SumRefused(sender, "its shares have another length.")
        return both[:SIZE], both[SIZE:]

    def _shared(self, other: X25519PublicKey, *words: str) -> bytes:
        return _derived(self.own.exchange(other), self.terms, *words)

    def _read(self, name: str) -> dict[str, Any] | None:
        place = self.folder / name
        try:
            return json.loads(place.read_text(encoding="utf-8")) if place.exists() else None
        except ValueError:
            raise self._lost(place) from None

    def _kept(self) -> dict[str, Any] | None:
        """What it said, if it did."""
        place = self.folder / SAID
        if not place.exists():
            return None
        try:
            with np.load(place, allow_pickle=False) as kept:
                return {name: kept[name] for name in ("said", "mark", "roster", "told")}
        except (ValueError, KeyError, EOFError, BadZipFile):
            raise self._lost(place) from None

    def _lost(self, place: Path) -> LostError:
        """Drawn or said anew, it could be otherwise than it was."""
        what, hint = "it cannot be read, and this site adds nothing more to this sum.", "The next sum has files anew."
        return LostError("what was kept of a sum is damaged", [Problem(str(place), what, hint)])


def signed_text(terms: SumSpec, site: str, names: Sequence[str], key: bytes, mark: bytes) -> bytes:
    """What a site signs of what it drew."""
    return terms.text(site, key + mark + hashlib.sha256("\0".join(sorted(names)).encode()).digest())


def list_text(terms: SumSpec, site: str, mark: bytes) -> bytes:
    """What a site signs of the list that it reports to."""
    return "\0".join(("vitrail list 1", terms.about, site, mark.hex())).encode()


def self_stream(secret: bytes, terms: SumSpec) -> Flat:
    return draw(_derived(secret, terms, "self"), _count(terms))


def _towards(
    said: Flat,
    private: X25519PrivateKey,
    site: str,
    other: str,
    key: bytes,
    terms: SumSpec,
    roster: Sequence[str],
    told: str,
) -> Flat:
    """With what `site` adds towards `other`, or subtracts."""
    try:
        secret = private.exchange(X25519PublicKey.from_public_bytes(key))
    except ValueError:  # not 32 bytes, or a point that gives every partner the same secret
        raise SumRefused(other, "expected a public key of 32 bytes.") from None
    about = (hashlib.sha256("\0".join(sorted(roster)).encode()).hexdigest(), told, *sorted((site, other)))
    stream = draw(_derived(secret, terms, "pair", *about), _count(terms))
    return said + stream if site < other else said - stream


def _derived(secret: bytes, terms: SumSpec, *words: str) -> bytes:
    info = "\0".join(("vitrail masked 1", terms.about, *words)).encode()
    return HKDF(hashes.SHA256(), 32, None, info).derive(secret)


def _count(terms: SumSpec) -> int:
    return sum(map(math.prod, terms.summed().values()))


@dataclass(frozen=True)
class SumOpening:
    """At the coordinator: a sum whose list is fixed."""

    terms: SumSpec
    names: Sequence[str]
    drawn: Mapping[str, SumKeys]  # of the roster
    said: Sequence[str]  # who reported
    told: str

    def lacks(self, shares: Mapping[str, Mapping[str, bytes]]) -> list[str]:
        """Sites of whose secret too few shares are there. `shares`: holder -> site -> share."""
        return [n for n in self._wanted() if len(self._of(n, shares)) < self._needed(n)]

    def open(self, reported: Flat, shares: Mapping[str, Mapping[str, bytes]]) -> Values:
        """What the values of all who reported add up to; `reported`: the sum of their reports."""
        total = reported.copy()
        for name in self._wanted():
            secret = self._secret(name, shares)
            if name in self.said:
                total -= self_stream(secret, self.terms)
                continue
            private = X25519PrivateKey.from_private_bytes(secret)
            for other in self._groups[name]:
                if other in self.said:  # what the silent one would have added, the other took away
                    given = private, name, other, self.drawn[other].key, self.terms, list(self.drawn), self.told
                    total = _towards(total, *given)
        parts = self.terms.apart(total)
        if parts.pop(ZERO).any():
            what = "the masks do not cancel: a report was changed, or sites were told different things."
            raise SumRefused("sum", what)
        return {k: v.view(np.int64) / 2.0 ** self.terms.places(k) for k, v in parts.items()}

    @property
    def _groups(self) -> dict[str, list[str]]:
        return groups(self.terms.about, self.names)

    def _needed(self, name: str) -> int:
        return needed(self._groups[name], self.names, self.terms.least)

    def _wanted(self) -> list[str]:
        """Whose secrets are needed: all who reported; of the silent those towards whom somebody added."""
        mine = self._groups
        return [n for n in self.drawn if n in self.said or set(mine[n]) & set(self.said)]

    def _of(self, name: str, shares: Mapping[str, Mapping[str, bytes]]) -> dict[int, bytes]:
        group = self._groups[name]
        return {x: shares[h][name] for x, h in enumerate(group, 1) if name in shares.get(h, {})}

    def _secret(self, name: str, shares: Mapping[str, Mapping[str, bytes]]) -> bytes:
        """From shares that fit what the site said of its secret; a holder whose share does not fit is passed over."""
        there, enough = self._of(name, shares), self._needed(name)
        if len(there) < enough:
            raise SumRefused(name, f"{len(there)} shares of its secret are there, and {enough} are needed.")
        for some in islice(combinations(there, enough), MOST_TRIES):
            secret = join({x: there[x] for x in some})
            if secret is not None and self._fits(name, secret):
                return secret
        raise SumRefused(name, "the shares of its secret do not fit together.")

    def _fits(self, name: str, secret: bytes) -> bool:
        if name in self.said:
            return hashlib.sha256(secret).digest() == self.drawn[name].mark
        return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw() == self.drawn[name].key
