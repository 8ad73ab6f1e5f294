"""A coordinator that asks sites for one secure sum as it likes, leg by leg, in messages of the agreed form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from tests.support.deploy.masked_runs import RUN, Masked
from vitrail.deploy.protocol.message import Message, unpack
from vitrail.deploy.secure_sum.shared import SumName, drawn_words, read_bytes, read_drawn, terms_of
from vitrail.privacy.secure_sum.dropout_tolerant import SumKeys, SumOpening
from vitrail.privacy.secure_sum.spec import Values

Keys = Mapping[str, SumKeys]


class SumAttacker:
    """`kind`, `words` and `tensors` are those of the question that comes with the sum."""

    def __init__(
        self, way: Masked, name: SumName, kind: str, words: Mapping[str, Any], tensors: Mapping[str, Tensor] = {}
    ) -> None:
        self.way, self.name, self.question = way, name, Message(kind, dict(words), dict(tensors))
        self.ring = {n: self.ask(n, Message("mask", {"leg": "ring"})).words for n in way.sites}

    def ask(self, site: str, question: Message) -> Message:
        question = question._replace(words={"run": RUN, **question.words})
        return self.way.sites[site].answer(unpack(question.pack()))

    def keys(self, names: Sequence[str], sites: Sequence[str] | None = None) -> dict[str, SumKeys]:
        """What these sites draw for a sum of `names`."""
        out = {}
        for site in sites or names:
            ring = {n: self.ring[n] for n in names if n != site}
            words = {"leg": "keys", **self.name._asdict(), "names": sorted(names), "ring": ring}
            out[site] = read_drawn(self.ask(site, Message("mask", words)).words)
        return out

    def report(self, site: str, drawn: Keys) -> Message:
        near = {n: drawn_words(d, sealed=False) for n, d in drawn.items() if n != site}
        words = {**self.question.words, "sum": {"roster": sorted(drawn), "drawn": near}}
        return self.ask(site, self.question._replace(words=words))

    def reports(self, drawn: Keys, sites: Sequence[str] | None = None) -> dict[str, Message]:
        return {site: self.report(site, drawn) for site in sites or drawn}

    def shares(
        self,
        holder: str,
        drawn: Keys,
        reporters: Sequence[str],
        reports: Mapping[str, Message],
        sealed: Mapping[str, bytes] = {},
        following: Mapping[str, Any] = {},
    ) -> dict[str, bytes]:
        """What that site tells to open the sum; `sealed` in the place of what was sealed for it."""
        given = {n: d.sealed[holder] for n, d in drawn.items() if holder in d.sealed} | dict(sealed)
        words = {"leg": "open", **self.name._asdict(), "said": list(reporters), "next": dict(following)}
        lists = {n: reports[n].words["list"] for n in reporters if n != holder}
        words |= {"lists": lists, "sealed": {n: v.hex() for n, v in given.items()}}
        return read_bytes(self.ask(holder, Message("mask", words)).words["shares"])

    def flat(self, report: Message) -> np.ndarray:
        return np.concatenate([report.tensors[k].numpy().view(np.uint64).ravel() for k in self.terms.summed])

    @property
    def terms(self) -> Any:
        return terms_of(self.way.agreed, RUN, self.name)

    def opening(self, names: Sequence[str], drawn: Keys, reporters: Sequence[str], transcript: str = "") -> SumOpening:
        return SumOpening(self.terms, names, drawn, reporters, transcript)

    def total(self, names: Sequence[str], transcript: str = "") -> Values:
        """The honest sum of these sites, all of whom report."""
        drawn = self.keys(names)
        reports = self.reports(drawn)
        shares = {n: self.shares(n, drawn, names, reports) for n in names}
        reported = np.sum([self.flat(m) for m in reports.values()], axis=0, dtype=np.uint64)
        return self.opening(names, drawn, names, transcript).open(reported, shares)
