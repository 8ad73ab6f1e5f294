"""A site's side of a screening between machines: each question is answered once in a run, and the same ever after.

What was answered lies in the run's folder at the site, so that neither a restart nor other rows make it answer the
same question otherwise; any other question of that kind is refused. The products of columns, of which only the total
over sites is wanted, leave in a secure sum (deploy/secure_sum/): sites add them up only where all were asked about the
same columns.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from safetensors.numpy import load, save

from vitrail.core.errors import MessageRefused
from vitrail.deploy.protocol.agreement import Agreement
from vitrail.deploy.protocol.answer_journal import answer_once
from vitrail.deploy.protocol.message import Message
from vitrail.deploy.secure_sum.shared import SCREENING, SumName, transcript_of
from vitrail.deploy.secure_sum.site import SumSite
from vitrail.privacy.secure_sum.spec import Values
from vitrail.quality.screening import Said, ScreeningSite
from vitrail.quality.screening.request_validation import check_asked
from vitrail.storage.atomic_files import private_folder, write_atomically

PLACE = "screen"  # in the run's folder at a site
ASKED, SUMMED = "asked", "summed"  # there: the question for counts, and what is added to the total


class ScreeningAnswers:
    """`home`: the site's folder of this run."""

    def __init__(self, rows: pd.DataFrame, agreed: Agreement, home: Path, sums: SumSite) -> None:
        self.rows, self.agreed, self.sums, self.place = rows, agreed, sums, private_folder(home / PLACE)

    @cached_property
    def site(self) -> ScreeningSite:
        return ScreeningSite(self.rows, self.agreed.study, self.place.parent.name)

    def answer(self, asked: Message) -> Message:
        """To each leg but the total."""
        leg: str = asked.words["leg"]

        def make() -> Message:
            question: Said = {k: v.numpy() for k, v in asked.tensors.items()}
            check_asked(self.agreed.study, leg, question)
            answer: Said = getattr(self, f"_{leg}")(question)
            tensors = {k: torch.from_numpy(np.ascontiguousarray(v, dtype=np.float64)) for k, v in answer.items()}
            return Message("screen", {}, tensors)

        return answer_once(self.place / f"{leg}.said", asked, f"screening, {leg}", make)

    def transcript(self) -> str:
        """Of the question for counts, which says of what columns the products are."""
        return transcript_of(self._after_counts("total", ASKED))

    def summed(self) -> Values:
        """What this site adds to the total."""
        return self._after_counts("total", SUMMED)

    def _sketch(self, question: Said) -> Said:
        return self.site.sketch()

    def _counts(self, question: Said) -> Said:
        own, summed = self.site.counts(question)
        write_atomically(self.place / ASKED, save(question), private=True)
        write_atomically(self.place / SUMMED, save(summed), private=True)
        return own

    def _ties(self, question: Said) -> Said:
        before = self._after_counts("ties", ASKED)
        if any(not np.array_equal(question[k], before[k], equal_nan=True) for k in question.keys() & before.keys()):
            raise _refusal("ties", "it says otherwise than before what was asked then.")
        if not self.sums.has_opened(SumName(SCREENING)):  # of a total without it, it cannot take its part out
            own = self._after_counts("ties", SUMMED)
            question |= {k: np.full_like(question[k], np.nan) for k in own.keys() & question.keys()}
        return self.site.ties(question)

    def _after_counts(self, leg: str, name: str) -> Said:
        path = self.place / name
        if not path.exists():
            raise _refusal(leg, "it comes after the counts.")
        arrays: Said = load(path.read_bytes())
        return arrays


def _refusal(leg: str, what: str) -> MessageRefused:
    return MessageRefused(f"screening, {leg}", what, "Nothing was sent.")
