"""A site's side of a common scale under masks: each question is answered once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import torch

from vitrail.core.errors import SumRefused
from vitrail.data.encoding import moments, numeric
from vitrail.deploy.identity.site_identity import SiteIdentity
from vitrail.deploy.protocol.agreement import Agreement
from vitrail.deploy.protocol.answer_journal import answer_once
from vitrail.deploy.protocol.message import Message
from vitrail.deploy.scale.shared import KEY, terms_of
from vitrail.deploy.screening.site import read_offers
from vitrail.privacy.secure_sum.limbs import to_limbs
from vitrail.privacy.secure_sum.pairwise import PairwiseSummand
from vitrail.storage.atomic_files import private_folder


class ScaleSite:
    """`home`: its folder of this run; `rows`: those it trains with."""

    def __init__(
        self, site: str, rows: pd.DataFrame, agreed: Agreement, home: Path, proof: SiteIdentity | None
    ) -> None:
        self.site, self.rows, self.agreed, self.run = site, rows, agreed, home.name
        self.place = private_folder(home / "scale")
        if proof is None:
            raise SumRefused(site, "this site cannot prove who it is, and adds to no sum.")
        self.proof = proof

    def answer(self, asked: Message) -> Message:
        step, leg = asked.words["step"], asked.words["leg"]
        kept = self.place / f"{step}-{leg}.said"
        act = self._offer if leg == "offer" else self._sum
        return answer_once(kept, asked, f"the common scale, {leg} {step}", lambda: act(asked))

    def _adder(self, asked: Message) -> PairwiseSummand:
        step = asked.words["step"]
        terms = terms_of(self.agreed, self.run, step, asked.tensors.get("mean"))
        return PairwiseSummand(self.site, terms, self.place / str(step), self.proof.sign)

    def _offer(self, asked: Message) -> Message:
        offer = self._adder(asked).offer()
        said = offer.key.hex(), offer.signature.hex(), self.proof.certificate
        return Message("standardise", dict(zip(KEY, said, strict=True)))

    def _sum(self, asked: Message) -> Message:
        offers, certificates = read_offers(asked.words["offers"])
        if len(offers) < (least := self.agreed.fewest):
            raise SumRefused("sites", f"it would be the sum of {len(offers)} sites, and {least} are the fewest.")
        mean = asked.tensors.get("mean")
        said = moments(self.rows, numeric(self.agreed.study), None if mean is None else mean.numpy())
        try:
            values = {"rows": said.rows, "total": to_limbs(said.total)}
        except (OverflowError, ValueError):
            raise SumRefused(self.site, "a column's sum is no number, or too large to be added up.") from None
        masked = self._adder(asked).report(
            values, offers, lambda other, text, sign: self.proof.check(other, certificates[other], text, sign)
        )
        return Message("standardise", {}, {k: torch.from_numpy(v.view(np.int64).copy()) for k, v in masked.items()})
