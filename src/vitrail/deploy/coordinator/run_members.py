"""Who takes part in a run between machines, and with how many rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from vitrail.data.encoding import Matrix, Moments, finish_moments
from vitrail.deploy.coordinator.requests import MOST_FAILED, SiteRequests
from vitrail.deploy.protocol.agreement import FORMAT
from vitrail.deploy.protocol.message import Message
from vitrail.deploy.scale.coordinator import masked_moments
from vitrail.deploy.scale.shared import has_masked_scale
from vitrail.deploy.secure_sum.coordinator import SumCoordinator
from vitrail.deploy.share.coordinator import has_stated
from vitrail.deploy.share.shared import states_rows
from vitrail.runs.evaluation import class_shares, target_words
from vitrail.storage.journal import DecisionRecord

ENTERED = "entered.json"  # in a run folder: who takes part
TRAINING = "training"  # there: the sites that train, where others withdrew or were not chosen
AskMoments = Callable[[Matrix | None], list[Moments]]  # for `finish_moments`


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
        self.closed: list[str] | None = entered.get(TRAINING)  # the only ones who train, where that was decided

    def open(self, need: int, gone: Sequence[str]) -> None:
        """All who are there agree, scales are found, rows are counted. `gone` keep a place, and do not take part."""
        names = self._agree(self.call.names, need)
        if self.call.agreed.shared_scale:
            moments = self._masked_moments(names, gone) if has_masked_scale(self.call.agreed) else self._moments(names)
            self.scale = dict(zip(("mean", "sd"), map(torch.from_numpy, finish_moments(moments)), strict=True))
        entries = self._ask(names, None, first=True)
        late = sorted({*self.call.names, *gone} - entries.keys())
        self.order = [*sorted(entries, key=lambda n: (-entries[n]["rows"][0], n)), *late]
        self.first = list(entries)
        self._keep(entries)

    def _masked_moments(self, names: Sequence[str], gone: Sequence[str]) -> AskMoments:
        sums = SumCoordinator(self.call, self.record.path.parent, [*self.call.names, *gone])
        return masked_moments(sums, names)

    def _moments(self, names: Sequence[str]) -> AskMoments:
        """What each site says of its columns; asked twice, the second time with the mean."""

        def moments(mean: Matrix | None) -> list[Moments]:
            step, tensors = (1, {}) if mean is None else (2, {"mean": torch.from_numpy(mean)})
            question = Message("standardise", {"step": step}, tensors)
            answers = self.call.patient(lambda n: question if n in names else None)
            if missing := [n for n in names if n not in answers]:
                self.call.way.log("not in the scale", sites=missing, step=step)
            parts = [answers[n].tensors for n in names if n in answers]
            return [Moments(*(part[k].numpy() for k in ("rows", "total"))) for part in parts]

        return moments

    def admit(self) -> None:
        """Who came late."""
        if self.closed is not None:
            return
        there = self.call.way.present()
        late = [n for n in self.call.active() if n not in self.sites and n in there]
        if late and (entries := self._ask(self._agree(late, 0), 0, first=False)):
            self._keep(entries)
            for name in entries:
                self.call.way.log("came late", site=name)

    def _agree(self, names: Sequence[str], need: int) -> list[str]:
        hello = Message("hello", {"format": FORMAT, "agreement": self.call.agreed.hash})
        answers = self.call.all(lambda n: hello if n in names else None, need)
        return [n for n in names if n in answers]

    def _ask(self, names: Sequence[str], need: int | None, first: bool) -> dict[str, dict[str, Any]]:
        """Without `need`: all who answer within a few deadlines, and at least the study's quorum."""
        study, entries = self.call.agreed.study, {}
        question = Message("prepare", {}, self.scale)
        ask = self.call.patient if need is None else partial(self.call.all, quorum=need)
        answers = ask(lambda n: question if n in names else None)
        for name in sorted(answers):
            tensors, words = answers[name].tensors, answers[name].words
            rows = int(tensors["rows"][0])
            if states_rows(self.call.agreed) and not has_stated(self.call.agreed, self.call.run, name, rows, words):
                self.call.failed[name] = MOST_FAILED
                self.call.way.log("set aside", site=name, why="it did not sign its number of rows")
                continue
            share = tensors["target"].numpy()
            numbers = {k: tensors[k].tolist() for k in ("rows", "chance")} | class_shares(study, {"shares": share})
            entries[name] = {**numbers, "target": target_words(study, share), "first": first, **words}
        return entries

    def _keep(self, entries: dict[str, dict[str, Any]]) -> None:
        self.sites |= entries
        scale = {k: v.tolist() for k, v in self.scale.items()}
        closed = {} if self.closed is None else {TRAINING: self.closed}
        self.record.replace({"order": self.order, "scale": scale, "sites": self.sites, **closed})

    def close(self, names: Sequence[str]) -> None:
        """These train, and nobody else does, also not who comes late."""
        self.closed = list(names)
        self._keep({})

    def names(self) -> list[str]:
        return [n for n in self.call.names if n in (self.sites if self.closed is None else self.closed)]


def taking_part(path: Path) -> list[str]:
    """Of a run whose members are known, those who train. `path`: the run's folder."""
    entered = DecisionRecord(path / ENTERED).read()
    return list(entered.get(TRAINING, entered["sites"]))
