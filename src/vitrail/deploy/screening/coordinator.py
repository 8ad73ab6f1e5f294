"""A screening between machines, at the coordinator: sites are asked before the first round what they agreed to publish.

Who is away, refuses, or says what cannot be is left out, and that is told; the others are judged. What came lies in
the run's folder until the run is over (LEG.heard), so that a coordinator that was started anew goes on with the same
questions: sites answer no others.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from vitrail.core.errors import VitrailError
from vitrail.deploy.coordinator.requests import PATIENCE, SiteRequests
from vitrail.deploy.identity.participants import are_missing
from vitrail.deploy.protocol.agreement import KEY
from vitrail.deploy.protocol.message import Message, unpack
from vitrail.privacy.secure_sum.pairwise import open_sum
from vitrail.quality.screening import Said, Screening, ScreeningCoordinator
from vitrail.quality.screening.result import without_sites
from vitrail.runs.screening import REFUSED, with_silent
from vitrail.storage.atomic_files import write_atomically

AWAY = "it was not there"


class RemoteScreening:
    """`path`: the run's folder; `names`: of all sites that are asked, those who are there."""

    def __init__(self, call: SiteRequests, names: Sequence[str], path: Path) -> None:
        self.call, self.agreed, self.path = call, call.agreed, path
        self.names, self.desk = list(names), ScreeningCoordinator(call.agreed.study)
        self.why = {n: "" if n in names else AWAY for n in call.names}  # it is not judged

    def run(self) -> Screening:
        asked = self.desk.hear_sketch(self._sifted("sketch", self._ask("sketch", {})))
        heard = self._ask("counts", asked)
        counts = self._sifted("counts", heard)
        asked = self.desk.hear_counts(counts, self._total({n: heard[n].words for n in counts}))
        self.desk.hear_ties(self._sifted("ties", self._ask("ties", asked)))
        screening = with_silent(self.desk.judge(), self.why)
        return screening._replace(evidence=without_sites(screening.evidence))  # single sites' numbers are not kept

    def forget(self) -> None:
        """What single sites published: the run is over, and keeps what was found."""
        for old in self.path.glob("*.heard"):
            old.unlink()

    def _ask(self, leg: str, asked: Said) -> dict[str, Message]:
        """What those say who are still in; who says nothing in time, or refuses, is left out."""
        told = {k: torch.from_numpy(np.ascontiguousarray(v, dtype=np.float64)) for k, v in asked.items()}
        heard = self._collect(Message("screen", {"leg": leg}, told), self.names)
        for name in list(self.names):
            if name not in heard:
                self._leave_out(name, AWAY)
            elif heard[name].kind == "refused":
                self._leave_out(name, REFUSED)
        return {n: heard[n] for n in self.names}

    def _collect(self, question: Message, names: Sequence[str]) -> dict[str, Message]:
        place = self.path / f"{question.words['leg']}.heard"
        if not place.exists():
            patience = PATIENCE * self.call.deadline
            heard = self.call.all(lambda n: question if n in names else None, len(names), patience)
            said = {n: heard[n].pack() for n in names if n in heard}
            sizes = json.dumps([[n, len(data)] for n, data in said.items()])
            write_atomically(place, b"\n".join((sizes.encode(), b"".join(said.values()))))
        head, _, data = place.read_bytes().partition(b"\n")
        out = dict[str, Message]()
        for name, size in json.loads(head):
            out[name], data = unpack(data[:size]), data[size:]
        return out

    def _sifted(self, leg: str, heard: Mapping[str, Message]) -> dict[str, Said]:
        """As numbers. A site that says what cannot be is named and left out."""
        out = dict[str, Said]()
        for name, message in heard.items():
            said = {k: v.numpy() for k, v in message.tensors.items()}
            try:
                self.desk.check(leg, name, said)
            except VitrailError as error:
                self._leave_out(name, "it published what cannot be: " + "; ".join(p.what for p in error.problems))
            else:
                out[name] = said
        return out

    def _total(self, words: Mapping[str, Mapping[str, str]]) -> Said | None:
        """What the sites' parts add up to; None where it cannot be opened, and then nobody sees a part of it."""
        terms = self.agreed.summed(self.call.run)
        offers = {n: {k: said[k] for k in KEY} for n, said in words.items() if said["key"]}
        try:
            if len(offers) < terms.least:
                away = are_missing([n for n in self.call.names if n not in offers])
                raise VitrailError(f"{len(offers)} sites can add to it, and it takes {terms.least}; {away}")
            heard = self._collect(Message("screen", {"leg": "total", "offers": offers}), list(offers))
            for name in offers:  # an error here is one of the screening: the site may train all the same
                self.call.failed.pop(name, None)
            if silent := sorted(offers.keys() - {n for n, m in heard.items() if m.kind == "screen"}):
                raise VitrailError(f"{', '.join(silent)} did not add to it")
            said = {n: {k: v.numpy().view(np.uint64) for k, v in m.tensors.items()} for n, m in heard.items()}
            total = open_sum(said, terms)
            self.desk.check_total(total, list(offers))
        except VitrailError as error:
            self.call.way.log("total not opened", why=error.in_one_line())
            return None
        return total

    def _leave_out(self, name: str, why: str) -> None:
        """Of the screening, not of the study."""
        self.names.remove(name)
        self.desk.leave_out(name)
        self.why[name] = why
        self.call.failed.pop(name, None)
        self.call.way.log("not screened", site=name, why=why)
