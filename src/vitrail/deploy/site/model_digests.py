"""A site's list of the models that it scored, signed; and at the end, whether all sites scored the same ones.

Once it has signed, this site scores nothing more in the run: a list that has left is complete. What the comparison
found is said here and stands in the outbox, where `vitrail verify` finds it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrail.core.errors import VitrailError, printable
from vitrail.core.text import several
from vitrail.deploy.audit.notices import COMPARED, DIFFER, Notice
from vitrail.deploy.identity.participants import several_names
from vitrail.deploy.identity.site_identity import SiteIdentity
from vitrail.deploy.protocol.agreement import Agreement
from vitrail.deploy.protocol.message import Message, no_such
from vitrail.deploy.protocol.model_digests import (
    DIGESTS,
    LISTS,
    SIGNED,
    ScoringPoint,
    list_spec,
    model_digest,
    points,
    signed_text,
)
from vitrail.deploy.site.scores import CLOSED, NOTHING_SCORED, scored_record

ENDS = "ends"  # in scored.json: digests of the words that ended stages
Digests = Mapping[ScoringPoint, str]  # of the models that a site scored, as text


class SiteDigests:
    """`home`: the site's folder of this run; what people here are told is put into `notices`."""

    def __init__(
        self, site: str, agreed: Agreement, home: Path, proof: SiteIdentity | None, notices: list[str]
    ) -> None:
        self.site, self.agreed, self.run, self.record = site, agreed, home.name, scored_record(home)
        self.proof, self.notices = proof, notices

    def note_stage_end(self, s: int, r: int, word: Mapping[str, Tensor]) -> None:
        """The word that ends a stage, of which a model may be scored later. One that comes after another does not take
        its place: the digest is then of both, and no other site has it."""
        point = ScoringPoint("settle", s, r)
        if point not in points(self.agreed):
            return
        ends, digest = self.record.read().get(ENDS, {}), model_digest(word)
        digests = ends.get(str(point), [])
        if digest not in digests:
            self.record.update({ENDS: ends | {str(point): [*digests, digest]}})

    def signed(self, s: int) -> tuple[dict[str, str], dict[str, Tensor]]:
        """What goes with the answer to the word that ends stage s: words and digests, after the last one alone."""
        spec = list_spec(self.agreed) if s + 1 == len(self.agreed.stages) else {}
        if not spec:
            return {}, {}
        self.record.once(CLOSED, lambda: True)
        own, digests = self._own(), torch.zeros(spec[DIGESTS][0], dtype=torch.uint8)
        for i, point in enumerate(points(self.agreed)):
            if point in own:
                digests[i] = torch.tensor(list(bytes.fromhex(own[point])), dtype=torch.uint8)
        words = dict.fromkeys(SIGNED, "")
        if self.proof is not None:
            signature = self.proof.sign(signed_text(self.agreed, self.run, self.site, digests))
            words = {"signed": signature.hex(), "certificate": self.proof.certificate}
        return words, {DIGESTS: digests}

    def compare(self, asked: Message) -> None:
        """The lists that came with the last word, with this site's own and with each other."""
        if LISTS not in asked.words or self.proof is None:
            return
        lists: dict[str, Digests] = {self.site: self._own()}
        others = sorted(n for n in self.proof.roster if n not in (self.site, self.agreed.study.protect.second))
        given = asked.words[LISTS]
        if not isinstance(given, dict) or len(given) > self.agreed.sites:
            raise no_such(LISTS, type(given).__name__)
        for row, name in enumerate(sorted(given)):
            if name != self.site and (digests := self._checked(name, given[name], asked.tensors[DIGESTS][row])):
                lists[name] = digests[0]
        differing = [text for point in points(self.agreed) if (text := self._difference(point, lists))]
        self.notices += [Notice(text, DIFFER) for text in differing]
        self.notices.append(Notice(self._summary(lists, others, bool(differing)), COMPARED))

    def _checked(self, name: str, signed: Any, digests: Tensor) -> tuple[Digests] | None:
        """The digests that another site signed; None where it did not sign these, which is said."""
        assert self.proof is not None
        try:
            signature, certificate = bytes.fromhex(signed["signed"]), str(signed["certificate"])
            self.proof.check(name, certificate, signed_text(self.agreed, self.run, name, digests), signature)
        except (KeyError, TypeError, ValueError, VitrailError) as error:
            why = error.problems[0].what if isinstance(error, VitrailError) else "its signature cannot be read."
            text = (
                "FALSE LIST: the coordinator passed on a list of scored models in the "
                f"name of {printable(name[:40])}, but the list was rejected: {why} Call that site."
            )
            self.notices.append(Notice(text, DIFFER))
            return None
        rows = zip(points(self.agreed), digests, strict=True)
        return ({point: row.numpy().tobytes().hex() for point, row in rows if bool(row.any())},)

    def _difference(self, point: ScoringPoint, lists: Mapping[str, Digests]) -> str:
        """In words, where sites scored different models at one point; "" where they did not."""
        by_digest = dict[str, list[str]]()
        for name, digests in sorted(lists.items()):
            if point in digests:
                by_digest.setdefault(digests[point], []).append(name)
        if len(by_digest) < 2:
            return ""
        sites = "; ".join(
            f"{self._names(names)} had {mark[:12]}" for mark, names in sorted(by_digest.items(), key=lambda x: x[1])
        )
        return (
            f"MODELS DIFFER, {self._where(point)}: {sites}. All sites should have received the same model. A "
            "coordinator can make a model for one site whose score reveals whether a person is "
            "among the patients there. Call these sites and ask what they scored (scored.json) "
            "before you trust this run."
        )

    def _summary(self, lists: Mapping[str, Digests], others: Sequence[str], differ: bool) -> str:
        there, missing = [n for n in others if n in lists], [n for n in others if n not in lists]
        own = lists[self.site]
        alone = [point for point in own if not any(point in lists[name] for name in there)]
        out = [f"Models that were scored, run {self.run}:"]
        if there and not differ:
            count = several(len(own), "model")
            out.append(f"{count} compared; the signed lists of {several_names(there)} contain no different model.")
        elif there:
            out.append(f"the signed lists of {several_names(there)} were compared. MODELS DIFFER: see above.")
        if missing:
            out.append(
                f"No signed list came from {several_names(missing)}, so it is not known whether the same "
                "models were scored there. A site that was absent at the end sends no "
                "list; if it was present, the coordinator withheld its list."
            )
        if there and alone:
            where = several_names([self._where(point) for point in alone])
            out.append(f"Only this site scored a model at these points, so it could not be compared: {where}.")
        return " ".join(out)

    def _own(self) -> Digests:
        record = NOTHING_SCORED | self.record.read()
        by_place = {where: model["mark"] for where, model in record["models"].items() if where.startswith("round")}
        for where, marks in record.get(ENDS, {}).items():
            by_place[where] = marks[0] if len(marks) == 1 else hashlib.sha256("".join(marks).encode()).hexdigest()[:32]
        return {point: by_place[str(point)] for point in points(self.agreed) if str(point) in by_place}

    def _names(self, names: Sequence[str]) -> str:
        return several_names([f"{n} (this site)" if n == self.site else n for n in names])

    def _where(self, point: ScoringPoint) -> str:
        stage = self.agreed.stages[point.stage].stage
        of = f" of stage {point.stage + 1} ({stage.name})" if len(self.agreed.stages) > 1 else ""
        return f"{'the end' if point.kind == 'settle' else f'round {point.round + 1}'}{of}"
