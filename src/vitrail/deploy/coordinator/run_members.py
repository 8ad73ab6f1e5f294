"""Who takes part in a run between machines, and with how many rows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from vitrail.data.encoding import Moments, finish_moments
from vitrail.deploy.coordinator.requests import SiteRequests
from vitrail.deploy.protocol.agreement import FORMAT
from vitrail.deploy.protocol.message import Message
from vitrail.deploy.scale.coordinator import masked_moments
from vitrail.deploy.scale.shared import has_masked_scale
from vitrail.deploy.secure_sum.coordinator import SumCoordinator
from vitrail.runs.evaluation import class_shares, target_words
from vitrail.storage.journal import DecisionRecord

ENTERED = "entered.json"  # in a run folder: who takes part


class RunMembers:
    """Who takes part and with how many rows. Kept in the run folder, since the order of sites is that of every tensor;
    who comes late is let in as soon as it is there, and stands after the others."""

    def __init__(self, call: SiteRequests, path: Path) -> None:
        self.call, self.record = call, DecisionRecord(path)
        entered = {"order": [], "scale": {}, "sites": {}} | self.record.read()
        self.order: list[str] = entered["order"]
        self.scale = {k: torch.tensor(v, dtype=torch.float64) for k, v in entered["scale"].items()}
        self.sites: dict[str, dict[str, Any]] = entered["sites"]  # who is in -> what it said of its rows
        self.first = [n for n in self.sites if self.sites[n]["first"]]

    def open(self, need: int, gone: Sequence[str]) -> None:
        """All who are there agree, scales are found, rows are counted. `gone` keep a place, and do not take part."""
        names = self._agree(self.call.names, need)
        if self.call.agreed.shared_scale:

            def open_moments(mean: Any) -> list[Moments]:
                question = Message("standardise", {"step": 1}) if mean is None else _step_two(mean)
                answers = self.call.patient(lambda n: question if n in names else None)
                if missing := [n for n in names if n not in answers]:
                    self.call.way.log("not in the scale", sites=missing, step=question.words["step"])
                parts = [answers[n].tensors for n in names if n in answers]
                return [Moments(*(part[k].numpy() for k in ("rows", "total"))) for part in parts]

            moments = open_moments
            if has_masked_scale(self.call.agreed):
                sums = SumCoordinator(self.call, self.record.path.parent, [*self.call.names, *gone])
                moments = masked_moments(sums, names)
            self.scale = dict(zip(("mean", "sd"), map(torch.from_numpy, finish_moments(moments)), strict=True))
        found = self._ask(names, None, first=True)
        late = sorted({*self.call.names, *gone} - found.keys())
        self.order = [*sorted(found, key=lambda n: (-found[n]["rows"][0], n)), *late]
        self.first = list(found)
        self._keep(found)

    def admit(self) -> None:
        """Who came late."""
        there = self.call.way.present()
        late = [n for n in self.call.active() if n not in self.sites and n in there]
        if late and (found := self._ask(self._agree(late, 0), 0, first=False)):
            self._keep(found)
            for name in found:
                self.call.way.log("came late", site=name)

    def _agree(self, names: Sequence[str], need: int) -> list[str]:
        hello = Message("hello", {"format": FORMAT, "agreement": self.call.agreed.hash})
        heard = self.call.all(lambda n: hello if n in names else None, need)
        return [n for n in names if n in heard]

    def _ask(self, names: Sequence[str], need: int | None, first: bool) -> dict[str, dict[str, Any]]:
        """Without `need`: all who answer within a few deadlines, and at least the study's quorum."""
        study, found = self.call.agreed.study, {}
        question = Message("prepare", {}, self.scale)
        ask = self.call.patient if need is None else partial(self.call.all, quorum=need)
        answers = ask(lambda n: question if n in names else None)
        for name in sorted(answers):
            tensors, words = answers[name].tensors, answers[name].words
            share = tensors["target"].numpy()
            numbers = {k: tensors[k].tolist() for k in ("rows", "chance")} | class_shares(study, {"shares": share})
            found[name] = {**numbers, "target": target_words(study, share), "first": first, **words}
        return found

    def _keep(self, found: dict[str, dict[str, Any]]) -> None:
        self.sites |= found
        scale = {k: v.tolist() for k, v in self.scale.items()}
        self.record.replace({"order": self.order, "scale": scale, "sites": self.sites})

    def names(self) -> list[str]:
        return [n for n in self.call.names if n in self.sites]


def _step_two(mean: Any) -> Message:
    return Message("standardise", {"step": 2}, {"mean": torch.from_numpy(mean)})
