"""A site's side of a screening between machines: four questions, each answered once in a run and the same ever after.

What was answered lies in the run's folder at the site, so that neither a restart nor other rows make it answer the
same question otherwise; any other question of that kind is refused. The products of columns, of which only the total
over sites is wanted, leave under masks (privacy/secure_sum/pairwise.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from safetensors.numpy import load, save

from vitrail.core.errors import MessageRefused
from vitrail.deploy.identity.site_identity import SiteIdentity
from vitrail.deploy.protocol.agreement import KEY, Agreement
from vitrail.deploy.protocol.answer_journal import answer_once
from vitrail.deploy.protocol.message import Message
from vitrail.privacy.secure_sum.pairwise import PairwiseSummand, SumOffer
from vitrail.quality.screening import Said, ScreeningSite
from vitrail.quality.screening.request_validation import check_asked
from vitrail.storage.atomic_files import private_folder, write_atomically

PLACE = "screen"  # in the run's folder at a site


class ScreeningAnswers:
    """`home`: the site's folder of this run. Without a `proof` of who it is, a site adds to no total."""

    def __init__(
        self, site: str, rows: pd.DataFrame, agreed: Agreement, home: Path, proof: SiteIdentity | None
    ) -> None:
        self.rows, self.agreed, self.proof, self.place = rows, agreed, proof, private_folder(home / PLACE)
        sign = proof.sign if proof else lambda _: b""
        self.adder = PairwiseSummand(site, agreed.summed(home.name), self.place / "sum", sign)

    @cached_property
    def seat(self) -> ScreeningSite:
        return ScreeningSite(self.rows, self.agreed.study, self.place.parent.name)

    def answer(self, asked: Message) -> Message:
        leg: str = asked.words["leg"]

        def make() -> Message:
            told: Said = {k: v.numpy() for k, v in asked.tensors.items()}
            check_asked(self.agreed.study, leg, told)
            said: Message = getattr(self, f"_{leg}")(told, asked.words)
            return said

        return answer_once(self._kept(leg), asked, f"screening, {leg}", make)

    def _sketch(self, told: Said, words: Mapping[str, Any]) -> Message:
        return _message(self.seat.sketch())

    def _counts(self, told: Said, words: Mapping[str, Any]) -> Message:
        own, summed = self.seat.counts(told)
        write_atomically(self.place / "asked", save(told), private=True)
        write_atomically(self.place / "summed", save(summed), private=True)
        if self.proof is None:
            return _message(own, dict.fromkeys(KEY, ""))
        offer = self.adder.offer()
        return _message(
            own, dict(zip(KEY, (offer.key.hex(), offer.signature.hex(), self.proof.certificate), strict=True))
        )

    def _total(self, told: Said, words: Mapping[str, Any]) -> Message:
        proof = self.proof
        if proof is None or not self._kept("counts").exists():
            raise _refusal("total", "this site has offered no key for it.")
        offers, certificates = read_offers(words["offers"])
        masked = self.adder.report(
            load((self.place / "summed").read_bytes()),
            offers,
            lambda other, text, signature: proof.check(other, certificates[other], text, signature),
        )
        return Message("screen", {}, {k: torch.from_numpy(v.view(np.int64).copy()) for k, v in masked.items()})

    def _ties(self, told: Said, words: Mapping[str, Any]) -> Message:
        if not self._kept("counts").exists():
            raise _refusal("ties", "it comes after the counts.")
        before = load((self.place / "asked").read_bytes())
        if any(not np.array_equal(told[k], before[k], equal_nan=True) for k in told.keys() & before.keys()):
            raise _refusal("ties", "it says otherwise than before what was asked then.")
        if not self._kept("total").exists():  # what this site is not part of, it cannot take its own part out of
            told |= {k: np.full_like(told[k], np.nan) for k in self.adder.terms.shapes if k in told}
        return _message(self.seat.ties(told))

    def _kept(self, leg: str) -> Path:
        """The mark of the question, and the answer."""
        return self.place / f"{leg}.said"


def read_offers(said: Mapping[str, Any]) -> tuple[dict[str, SumOffer], dict[str, str]]:
    """Keys for a sum, and certificates, by site; of anybody's writing."""
    offers, certificates = dict[str, SumOffer](), dict[str, str]()
    for site, told in said.items():
        try:
            key, signature, certificate = (told[k] for k in KEY)
            offers[site] = SumOffer(bytes.fromhex(key), bytes.fromhex(signature))
            certificates[site] = str(certificate)
        except (KeyError, TypeError, ValueError):
            raise _refusal("offers", f"expected a key, a signature and a certificate of {str(site)[:40]!r}.") from None
    return offers, certificates


def _message(said: Said, words: Mapping[str, Any] | None = None) -> Message:
    told = {k: torch.from_numpy(np.ascontiguousarray(v, dtype=np.float64)) for k, v in said.items()}
    return Message("screen", dict(words or {}), told)


def _refusal(leg: str, what: str) -> MessageRefused:
    return MessageRefused(f"screening, {leg}", what, "Nothing was sent.")
