"""A screening between machines, at the coordinator: sites are asked before the first round what they agreed to publish.

Who is away, refuses, or says what cannot be is left out, and that is told; the others are judged. What came lies in
the run's folder until the run is over (LEG.heard), so that a coordinator that was started anew goes on with the same
questions: sites answer no others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from vitrail.core.errors import VitrailError
from vitrail.deploy.coordinator.requests import SiteRequests
from vitrail.deploy.protocol.message import Message, unpack
from vitrail.deploy.secure_sum.coordinator import SumCoordinator
from vitrail.deploy.secure_sum.shared import SCREENING, SumName, transcript_of
from vitrail.quality.known_findings import with_known
from vitrail.quality.screening import Said, Screening, ScreeningCoordinator
from vitrail.quality.screening.result import without_sites
from vitrail.runs.screening import REFUSED, with_silent
from vitrail.storage.journal import write_once

AWAY = "it was not there"
SUFFIX = "heard"  # of a leg's file


class RemoteScreening:
    """`path`: the run's folder; `names`: of all sites that are asked, those who are there."""

    def __init__(self, call: SiteRequests, names: Sequence[str], path: Path, sums: SumCoordinator) -> None:
        self.call, self.agreed, self.path, self.sums = call, call.agreed, path, sums
        self.names, self.coordinator = list(names), ScreeningCoordinator(call.agreed.study)
        self.why = {n: "" if n in names else AWAY for n in call.names}  # it is not judged

    def run(self) -> Screening:
        question = self.coordinator.hear_sketch(self._valid("sketch", self._ask("sketch", {})))
        counts = self._valid("counts", self._ask("counts", question))
        question = self.coordinator.hear_counts(counts, self._total(list(counts), question))
        self.coordinator.hear_ties(self._valid("ties", self._ask("ties", question)))
        study = self.agreed.study
        screening = with_known(self.coordinator.judge(), study.known.values(), study.target.column)
        screening = with_silent(screening, self.why)
        # single sites' numbers are not kept, nor digests, which are another's in every run
        sites = screening.sites.assign(digest="")
        return screening._replace(sites=sites, evidence=without_sites(screening.evidence))

    def forget(self) -> None:
        """What single sites published: the run is over, and keeps what was found."""
        for old in self.path.glob(f"*.{SUFFIX}"):
            old.unlink()

    def _ask(self, leg: str, question: Said) -> dict[str, Message]:
        """What those say who are still in; who says nothing in time, or refuses, is left out."""
        asked = Message("screen", {"leg": leg}, _tensors(question))
        answers = self.call.once(self._file(leg), lambda n: asked if n in self.names else None)
        for name in list(self.names):
            if name not in answers:
                self._leave_out(name, AWAY)
            elif answers[name].kind == "refused":
                self._leave_out(name, REFUSED)
        return {n: answers[n] for n in self.names}

    def _valid(self, leg: str, answers: Mapping[str, Message]) -> dict[str, Said]:
        """As numbers. A site that says what cannot be is named and left out."""
        out = dict[str, Said]()
        for name, message in answers.items():
            answer = {k: v.numpy() for k, v in message.tensors.items()}
            try:
                self.coordinator.check(leg, name, answer)
            except VitrailError as error:
                self._leave_out(name, "it published what cannot be: " + "; ".join(p.what for p in error.problems))
            else:
                out[name] = answer
        return out

    def _total(self, names: Sequence[str], counts: Said) -> Said | None:
        """What the sites' parts add up to; None where it could not be opened, and then nobody sees a part of it.
        `counts`: the question that came before, which all must have been asked alike."""
        transcript = transcript_of({k: v.numpy() for k, v in _tensors(counts).items()})

        def open_total() -> bytes:
            try:
                question = Message("screen", {"leg": "total"})
                opened = self.sums.collect_once(SumName(SCREENING), names, transcript, question)
                self.coordinator.check_total(opened.total, opened.reporters)
            except VitrailError as error:
                why = "; ".join(problem.what.rstrip(".") for problem in error.problems)
                self.call.way.log("total not opened", why=why or error.title)
                return Message("refused", {}).pack()
            finally:
                for name in names:  # an error here is one of the screening: the site may train all the same
                    self.call.failed.pop(name, None)
            return Message("screen", {}, _tensors(opened.total)).pack()

        decided = unpack(write_once(self._file("total"), open_total, private=False))  # before it is told
        return {k: v.numpy() for k, v in decided.tensors.items()} if decided.kind == "screen" else None

    def _leave_out(self, name: str, why: str) -> None:
        """Of the screening, not of the study."""
        self.names.remove(name)
        self.coordinator.leave_out(name)
        self.why[name] = why
        self.call.failed.pop(name, None)
        self.call.way.log("not screened", site=name, why=why)

    def _file(self, leg: str) -> Path:
        return self.path / f"{leg}.{SUFFIX}"


def _tensors(arrays: Said) -> dict[str, torch.Tensor]:
    return {k: torch.from_numpy(np.ascontiguousarray(v, dtype=np.float64)) for k, v in arrays.items()}
