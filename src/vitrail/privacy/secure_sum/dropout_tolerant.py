"""The sum of one list of sites under masks, opened also where sites fall silent (Bonawitz et al. 2017).

    site i       draws x_i (X25519) and b_i for this one sum, and gives every neighbour a share of both, sealed
    r_ij         ChaCha20 under what x_i and x_j agree on; the same at both ends
    report i     v_i 2^p + ChaCha20(b_i) + sum_{j after i} r_ij - sum_{j before i} r_ij    mod 2^64
    opening      of who reported, its neighbours tell their shares of b_i; of who did not, those of x_i
    the sum      of the reports, less ChaCha20(b_i) and less what was added towards those who did not report

`names` is the list that shares were made for, `roster` those of them with a key, `reporters` those who reported, and
`transcript` a digest of what all were sent. So many shares are needed (`needed`) that no coordinator alone gets both
x_i and b_i, whatever it tells to whom: each holder tells one kind, once, and remembers on disk which. With k holders
that tell it both it takes 2 needed - n <= k of n. A site that reports signs the list and the transcript; before it
tells shares it checks that everybody who reported signed the very same (the consistency check): a sum has one list. A
sum is reported to once and opened once (storage/journal.py). What keys and shares are for is part of them: those of
one sum are worth nothing in another.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from vitrail.core.errors import JournalDamaged, SumRefused
from vitrail.privacy.key_agreement import SealedBox, agree, derive_key
from vitrail.privacy.secure_sum.fixed_point import LEAST
from vitrail.privacy.secure_sum.shamir import SIZE, join, split
from vitrail.privacy.secure_sum.spec import Flat, Masked, SumSpec, Values, draw
from vitrail.storage.atomic_files import private_folder
from vitrail.storage.journal import AnswerJournal, DecisionRecord

ALL_PAIRS = 20  # up to so many sites everybody is everybody's neighbour
NEIGHBOURS = 14  # beyond
MOST_TRIES = 500  # of different holders' shares, where some do not fit
DRAWN, REPORT, OPENING = "drawn.json", "report", "opening"  # in a site's folder of one sum
NONCE = 12  # bytes in front of sealed shares
SECRETS = ("private", "self")  # what a site drew for itself: gone when its report is on the disk
Check = Callable[[str, bytes, bytes], None]  # (site, text, signature): raises where that site did not sign the text


class SumKeys(NamedTuple):
    """What a site says before a sum."""

    key: bytes  # the public half of x
    mark: bytes  # sha256 of b: whether shares of it are true
    signature: bytes
    sealed: dict[str, bytes]  # neighbour -> its shares


class SumReport(NamedTuple):
    """What a site reported to, and what it reported."""

    roster: list[str]
    transcript: str
    numbers: Flat

    @property
    def mark(self) -> bytes:
        return list_digest(self.roster, self.transcript)


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


def list_text(roster: Sequence[str], transcript: str) -> bytes:
    """The one list of a sum, and what all in it were sent."""
    return json.dumps([sorted(roster), transcript]).encode()


def list_digest(roster: Sequence[str], transcript: str) -> bytes:
    return hashlib.sha256(list_text(roster, transcript)).digest()


@dataclass(frozen=True)
class SumParticipant:
    """A site at one sum. What it drew and reported lies in `folder`: started again, it says the same."""

    site: str
    terms: SumSpec
    folder: Path
    sign: Callable[[bytes], bytes]
    own: X25519PrivateKey  # of this run, to unseal shares
    others: Mapping[str, bytes]  # their public keys of this run, each checked to be signed by its site

    def draw(self, names: Sequence[str]) -> SumKeys:
        """Its key, and shares for its group in this list. Another list has another draw, until it has reported."""
        draws = self._draws.read()
        if draws.get("names") != sorted(names):
            if self._report() is not None:
                raise SumRefused(self.site, "this site has added its numbers to the sum of another list of sites.")
            self._check_names(names)
            private_folder(self.folder)
            draws = self._draws.replace(self._new_draws(names))
        sealed = {n: bytes.fromhex(v) for n, v in draws["sealed"].items()}
        key, mark, signature = (bytes.fromhex(draws[k]) for k in ("key", "mark", "signature"))
        return SumKeys(key, mark, signature, sealed)

    def report(
        self,
        values: Callable[[], Values],
        roster: Sequence[str],
        transcript: str,
        drawn: Mapping[str, SumKeys],
        check: Check,
    ) -> Masked:
        """The values under their masks. `roster`: who has a key; `drawn`: what its neighbours there drew."""
        self._report()  # raises where what was reported cannot be read

        def make() -> bytes:
            masked = self._masked(values, roster, transcript, drawn, check)
            return list_text(roster, transcript) + b"\n" + masked.astype("<u8").tobytes()

        self._journal.answer(REPORT, list_text(roster, transcript), make)
        draws = self._draws.read()
        if any(k in draws for k in SECRETS):  # after the report is on the disk
            self._draws.replace({k: v for k, v in draws.items() if k not in SECRETS})
        return self.terms.apart(self._reported().numbers)

    def signed_list(self) -> bytes:
        """Its signature under the list that it reported to."""
        return self.sign(signed_list_text(self.terms, self.site, self._reported().mark))

    def open(
        self,
        reporters: Sequence[str],
        sealed: Mapping[str, bytes],
        lists: Mapping[str, bytes],
        check: Check,
        accept: Callable[[str], None] = lambda transcript: None,
    ) -> dict[str, bytes]:
        """Its shares: of who reported, of what it added itself; of who did not, of its key. Once, for one list.
        `lists`: the others' signatures under the list; `accept(transcript)` raises where this site opens no such
        sum."""
        draws, report = self._draws.read(), self._reported()
        if "share" not in draws:
            raise self._damaged(DRAWN)

        def make() -> bytes:
            self._check_reporters(reporters, report, lists, check)
            accept(report.transcript)
            shares = {self.site: draws["share"]}
            for name in groups(self.terms.about, draws["names"])[self.site]:
                if name != self.site and name in report.roster and name in sealed:
                    key_share, self_share = self._unsealed(name, sealed[name])
                    shares[name] = (self_share if name in reporters else key_share).hex()
            return json.dumps(shares).encode()

        answer = self._journal.answer(OPENING, json.dumps(sorted(reporters)).encode(), make)
        try:
            return {n: bytes.fromhex(v) for n, v in json.loads(answer).items()}
        except ValueError:
            raise self._damaged(OPENING) from None

    def has_opened(self) -> bool:
        """Whether it helped to open the sum, which its own numbers are then part of."""
        return self._journal.answered(OPENING) is not None

    def _check_names(self, names: Sequence[str]) -> None:
        if self.site not in names or len(set(names)) < len(names) or not len(names) <= self.terms.most:
            among = "among them" if self.site in names else "not among them"
            raise SumRefused("sites", f"{len(names)} sites are listed, and this site is {among}.")
        if len(names) < self.terms.least:
            what = f"the sum would be over {len(names)} sites, but at least {self.terms.least} are required."
            raise SumRefused("sites", what)
        if unknown := sorted(set(names) - self.others.keys() - {self.site}):
            raise SumRefused(unknown[0], "this site has no key for encrypting shares to it.")

    def _new_draws(self, names: Sequence[str]) -> dict[str, Any]:
        private, self_mask = X25519PrivateKey.generate(), secrets.token_bytes(32)
        group = groups(self.terms.about, names)[self.site]
        places, enough = range(1, len(group) + 1), needed(group, names, self.terms.least)
        key_shares, self_shares = (split(s, places, enough) for s in (private.private_bytes_raw(), self_mask))
        sealed = {
            name: self._sealed(name, key_shares[x] + self_shares[x]).hex()
            for x, name in zip(places, group, strict=True)
            if name != self.site
        }
        public, mark = private.public_key().public_bytes_raw(), hashlib.sha256(self_mask).digest()
        signature = self.sign(signed_text(self.terms, self.site, names, public, mark))
        own_share = self_shares[1 + group.index(self.site)].hex()
        out: dict[str, Any] = {"names": sorted(names), "sealed": sealed, "share": own_share}
        out |= {"private": private.private_bytes_raw().hex(), "self": self_mask.hex()}
        return out | {"key": public.hex(), "mark": mark.hex(), "signature": signature.hex()}

    def _masked(
        self,
        values: Callable[[], Values],
        roster: Sequence[str],
        transcript: str,
        drawn: Mapping[str, SumKeys],
        check: Check,
    ) -> Flat:
        draws = self._draws.read()
        if "private" not in draws:
            raise SumRefused(self.site, "this site has drawn no key for this sum.")
        names = draws["names"]
        near = self._near(names, roster, drawn)
        for other in near:
            text = signed_text(self.terms, other, names, drawn[other].key, drawn[other].mark)
            check(other, text, drawn[other].signature)
        masked = self.terms.encode(values()) + self_stream(bytes.fromhex(draws["self"]), self.terms)
        private = X25519PrivateKey.from_private_bytes(bytes.fromhex(draws["private"]))
        for other in near:
            masked = _towards(masked, private, self.site, other, drawn[other].key, self.terms, roster, transcript)
        return masked

    def _near(self, names: Sequence[str], roster: Sequence[str], drawn: Mapping[str, SumKeys]) -> list[str]:
        if not {self.site} <= set(roster) <= set(names) or len(set(roster)) < self.terms.least:
            what = f"the sum has {len(roster)} sites, out of {len(names)} that have distributed shares."
            raise SumRefused("sites", f"{what} At least {self.terms.least} are needed, this one among them.")
        near = [n for n in groups(self.terms.about, names)[self.site] if n != self.site and n in set(roster)]
        if missing := [n for n in near if n not in drawn]:
            raise SumRefused(missing[0], "it is in the sum, but its key was not sent.")
        if len({drawn[n].key for n in near}) < len(near):
            raise SumRefused("keys", "two sites have the same key.")
        return near

    def _check_reporters(
        self, reporters: Sequence[str], report: SumReport, lists: Mapping[str, bytes], check: Check
    ) -> None:
        if not {self.site} <= set(reporters) <= set(report.roster) or len(set(reporters)) < self.terms.least:
            what = f"{len(set(reporters))} sites are listed as having reported, out of {len(report.roster)} in the sum."
            raise SumRefused("sites", f"{what} At least {self.terms.least} are needed, this one among them.")
        for other in sorted(set(reporters) - {self.site}):
            if other not in lists:
                raise SumRefused(other, "it is listed as having reported, but did not sign the list of this sum.")
            check(other, signed_list_text(self.terms, other, report.mark), lists[other])

    def _sealed(self, neighbour: str, shares: bytes) -> bytes:
        nonce = secrets.token_bytes(NONCE)
        return nonce + self._box(neighbour, self.site, neighbour).seal(shares, int.from_bytes(nonce, "little"))

    def _unsealed(self, sender: str, sealed: bytes) -> tuple[bytes, bytes]:
        nonce = int.from_bytes(sealed[:NONCE], "little")
        shares = self._box(sender, sender, self.site).open(sealed[NONCE:], sender, nonce)
        if len(shares) != 2 * SIZE:
            raise SumRefused(sender, "its shares do not have the expected length.")
        return shares[:SIZE], shares[SIZE:]

    def _box(self, other: str, *ends: str) -> SealedBox:
        return SealedBox(agree(self.own, self.others[other], other), *_purpose(self.terms, "share", *ends))

    @property
    def _draws(self) -> DecisionRecord:
        return DecisionRecord(self.folder / DRAWN, private=True)

    @property
    def _journal(self) -> AnswerJournal:
        return AnswerJournal(self.folder, "a masked sum")

    def _reported(self) -> SumReport:
        report = self._report()
        if report is None:
            raise SumRefused(self.site, "this site has added nothing to this sum.")
        return report

    def _report(self) -> SumReport | None:
        """What it reported, if it did."""
        answer = self._journal.answered(REPORT)
        if answer is None:
            return None
        header, _, numbers = answer.partition(b"\n")
        try:
            roster, transcript = json.loads(header)
        except ValueError:
            raise self._damaged(REPORT) from None
        if len(numbers) != 8 * self.terms.count:
            raise self._damaged(REPORT)
        return SumReport(roster, transcript, np.frombuffer(numbers, dtype="<u8").astype(np.uint64))

    def _damaged(self, name: str) -> JournalDamaged:
        """Drawn or reported anew, it could be otherwise than it was."""
        what = "the file cannot be read, so this site contributes nothing more to this sum."
        return JournalDamaged(str(self.folder / name), what, "The next sum uses new files.")


def signed_text(terms: SumSpec, site: str, names: Sequence[str], key: bytes, mark: bytes) -> bytes:
    """What a site signs of what it drew."""
    return terms.text(site, key + mark + hashlib.sha256("\0".join(sorted(names)).encode()).digest())


def signed_list_text(terms: SumSpec, site: str, mark: bytes) -> bytes:
    """What a site signs of the list that it reports to."""
    return "\0".join(("vitrail list 1", terms.about, site, mark.hex())).encode()


def self_stream(secret: bytes, terms: SumSpec) -> Flat:
    return draw(derive_key(secret, *_purpose(terms, "self")), terms.count)


def _towards(
    numbers: Flat,
    private: X25519PrivateKey,
    site: str,
    other: str,
    key: bytes,
    terms: SumSpec,
    roster: Sequence[str],
    transcript: str,
) -> Flat:
    """With what `site` adds towards `other`, or subtracts."""
    about = (hashlib.sha256("\0".join(sorted(roster)).encode()).hexdigest(), transcript, *sorted((site, other)))
    stream = draw(derive_key(agree(private, key, other), *_purpose(terms, "pair", *about)), terms.count)
    return numbers + stream if site < other else numbers - stream


def _purpose(terms: SumSpec, *words: str) -> tuple[str, ...]:
    """What a key of this sum is for."""
    return "vitrail masked 1", terms.about, *words


@dataclass(frozen=True)
class SumOpening:
    """At the coordinator: a sum whose list is fixed."""

    terms: SumSpec
    names: Sequence[str]
    drawn: Mapping[str, SumKeys]  # of the roster
    reporters: Sequence[str]
    transcript: str

    def lacks(self, shares: Mapping[str, Mapping[str, bytes]]) -> list[str]:
        """Sites of whose secret too few shares are there. `shares`: holder -> site -> share."""
        return [n for n in self._wanted() if len(self._of(n, shares)) < self._needed(n)]

    def open(self, reported: Flat, shares: Mapping[str, Mapping[str, bytes]]) -> Values:
        """What the values of all who reported add up to; `reported`: the sum of their reports."""
        total = reported.copy()
        for name in self._wanted():
            secret = self._secret(name, shares)
            if name in self.reporters:
                total -= self_stream(secret, self.terms)
                continue
            private = X25519PrivateKey.from_private_bytes(secret)
            for other in self._groups[name]:
                if other in self.reporters:  # what the silent one would have added, the other took away
                    context = self.terms, list(self.drawn), self.transcript
                    total = _towards(total, private, name, other, self.drawn[other].key, *context)
        return self.terms.decode(total)

    @property
    def _groups(self) -> dict[str, list[str]]:
        return groups(self.terms.about, self.names)

    def _needed(self, name: str) -> int:
        return needed(self._groups[name], self.names, self.terms.least)

    def _wanted(self) -> list[str]:
        """Whose secrets are needed: all who reported; of the silent those towards whom somebody added."""
        mine = self._groups
        return [n for n in self.drawn if n in self.reporters or set(mine[n]) & set(self.reporters)]

    def _of(self, name: str, shares: Mapping[str, Mapping[str, bytes]]) -> dict[int, bytes]:
        group = self._groups[name]
        return {x: shares[h][name] for x, h in enumerate(group, 1) if name in shares.get(h, {})}

    def _secret(self, name: str, shares: Mapping[str, Mapping[str, bytes]]) -> bytes:
        """From shares that fit what the site said of its secret; a holder whose share does not fit is passed over."""
        there, enough = self._of(name, shares), self._needed(name)
        if len(there) < enough:
            raise SumRefused(name, f"only {len(there)} shares of its secret are available, but {enough} are needed.")
        for some in islice(combinations(there, enough), MOST_TRIES):
            secret = join({x: there[x] for x in some})
            if secret is not None and self._fits(name, secret):
                return secret
        raise SumRefused(name, "the shares of its secret do not fit together.")

    def _fits(self, name: str, secret: bytes) -> bool:
        if name in self.reporters:
            return hashlib.sha256(secret).digest() == self.drawn[name].mark
        return X25519PrivateKey.from_private_bytes(secret).public_key().public_bytes_raw() == self.drawn[name].key
