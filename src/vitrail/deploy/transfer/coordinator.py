"""The coordinator's side of a transfer: it collects the models, has each judged by the others, chooses, and tells all.

RUN/transfer/       the tables and the page of `vitrail transfer`
RUN/LEG.heard       what came, until the sites have said whether they stay: they answer nothing else
RUN/subsets.json    who trains, who was chosen for whom, who withdrew or refused
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from vitrail.core.errors import StudyStopped, nearest
from vitrail.deploy.coordinator.requests import SiteRequests
from vitrail.deploy.coordinator.run_members import RunMembers
from vitrail.deploy.protocol.message import Message
from vitrail.deploy.protocol.weight_bounds import WeightBounds
from vitrail.deploy.transfer.shared import (
    BASELINE,
    CV,
    LEGS,
    SIGNED,
    TRANSFER,
    model_of,
    own_study,
    own_task,
    plain,
    together,
)
from vitrail.deploy.two_server import shared as two_server
from vitrail.metrics.scores import small_sample
from vitrail.report.pages.transfer import write_transfer
from vitrail.storage.journal import DecisionRecord
from vitrail.studies.own_models import FEEDBACK, Mean
from vitrail.studies.transfer import RemoteTransfer, Transfer, ranked

PLACE, DECIDED = "transfer", "subsets.json"
MARGIN = 0.9  # of the sites' bounds
UNKNOWN = Mean(float("nan"), float("nan"))


def conduct_transfer(call: SiteRequests, book: RunMembers, path: Path) -> dict[str, Any]:
    """Before the first round: who trains from here on is kept in `book`. What was decided. `path`: the run's folder."""
    return _Conduct(call, book, path).decided()


class _Conduct:
    def __init__(self, call: SiteRequests, book: RunMembers, path: Path) -> None:
        self.call, self.book, self.path, self.agreed = call, book, path, call.agreed
        assert self.agreed.study.transfer is not None
        self.terms, self.names = self.agreed.study.transfer, book.names()

    def decided(self) -> dict[str, Any]:
        record = DecisionRecord(self.path / DECIDED)
        if not record.read():
            record.replace(self._decide())
            for leg in LEGS:
                self._file(leg).unlink(missing_ok=True)
        decided = record.read()
        self.book.close(decided["training"])
        self._check(decided)
        return decided

    def _decide(self) -> dict[str, Any]:
        if self.terms.user and self.terms.user not in self.call.names:
            hint = nearest(self.terms.user, self.call.names)
            raise StudyStopped("transfer.user", f"there is no site {self.terms.user!r}.", hint)
        models, refused = self._models()
        measured = self._measure(models, self._losses(models))
        subsets = {user: measured.choose(user, self.terms.rule) for user in measured.sites}
        group = together(self.terms.user, subsets, self.names)
        words = {"leg": "subset", "subsets": subsets, "together": group}
        answers = self._ask("subset", {n: Message(TRANSFER, words) for n in self.names if n not in refused})
        stays = [n for n in group if n in answers and answers[n].words.get("stays") is True]
        stays += [n for n in refused if n in group]  # who publishes nothing trains all the same, where all train
        withdrew = [n for n in group if n not in stays]
        if withdrew:
            self.call.way.log("withdrew", sites=withdrew)
        remote = RemoteTransfer(subsets, sorted(stays), withdrew, refused, self.terms.losses == "exact")
        measured.remote = remote
        if len(models) > 1:
            write_transfer(measured, self.path / PLACE)
        self.call.way.log("chosen", site=self.terms.user, sites=sorted(stays))
        return {"training": sorted(stays), "subsets": subsets, "withdrew": withdrew, "refused": refused}

    def _models(self) -> tuple[dict[str, Message], list[str]]:
        """The models that sites sent, within the bounds that sites check; and who refuses."""
        answers = self._ask("model", {n: Message(TRANSFER, {"leg": "model"}) for n in self.names})
        refused = [n for n in self.names if n in answers and answers[n].kind == "refused"]
        models, bounds = dict[str, Message](), WeightBounds(self.agreed, own_task(self.agreed).start)
        for name in [n for n in self.names if n in answers and n not in refused]:
            if problems := bounds.travelling_problems(plain(model_of(answers[name].tensors)), MARGIN):
                why = f"{problems[0].where}: {problems[0].what}"
                self.call.way.log("model not used", site=name, why=why)
            else:
                models[name] = answers[name]
        for name in refused:
            self.call.way.log("model not shown", site=name)
        return models, refused

    def _losses(self, models: Mapping[str, Message]) -> dict[str, dict[str, float]]:
        """User -> site -> loss; without users who say nothing."""
        asked = dict[str, Message]()
        for user in models:
            if others := {n: message for n, message in models.items() if n != user}:
                tensors = {
                    k: torch.stack([m.tensors[k] for m in others.values()]) for k in model_of(models[user].tensors)
                }
                tensors["cv_losses"] = torch.stack([m.tensors[CV] for m in others.values()])
                signed = {n: {k: m.words[k] for k in SIGNED} for n, m in others.items()}
                asked[user] = Message(TRANSFER, {"leg": "judge", "models": signed}, tensors)
        answers = self._ask("judge", asked)
        return {
            user: dict(zip(asked[user].words["models"], answers[user].tensors["losses"].tolist(), strict=True))
            for user in asked
            if user in answers and answers[user].kind != "refused"
        }

    def _measure(self, models: Mapping[str, Message], losses: Mapping[str, Mapping[str, float]]) -> Transfer:
        nan = UNKNOWN.error
        there = {
            user: {n: Mean(losses[user][n], nan) if user in losses else UNKNOWN for n in models if n != user}
            for user in models
        }
        cv = {n: Mean(float(m.tensors[CV]), nan) for n, m in models.items()}
        same = {n: float(m.tensors[BASELINE]) for n, m in models.items()}
        study, sites = own_study(self.agreed), self.book.sites
        counts = {n: sites[n]["rows"][0] for n in models}
        few = {n: words for n, k in counts.items() if (words := small_sample(k, None, study.row_word))}
        about = study, self.agreed.seed, self.terms.folds, list(models), ranked(there, cv, same)
        return Transfer(*about, pd.DataFrame(columns=FEEDBACK), {n: m.value for n, m in cv.items()}, same, few)

    def _ask(self, leg: str, questions: Mapping[str, Message]) -> dict[str, Message]:
        """Those who answer within a few deadlines, once for all; an error here is none of the training."""
        try:
            return self.call.once(self._file(leg), questions.get)
        finally:
            for name in questions:
                self.call.failed.pop(name, None)

    def _file(self, leg: str) -> Path:
        return self.path / f"{leg}.heard"

    def _check(self, decided: Mapping[str, Any]) -> None:
        """Whether those who stay can train."""
        many, of = len(decided["training"]), self.terms.user
        totals = self.agreed.masks or two_server.study_has(self.agreed)
        need = self.agreed.fewest if totals else 2
        if many < need or (of and of not in decided["training"]):
            what = f"{many} of {len(self.names)} sites would train, and {need} are needed"
            what += f", {of} among them." if of else "."
            hint = (
                f"{self.path / PLACE / 'transfer.html'} says who was chosen, who withdrew and who refused. Choose "
                "more sites ([transfer] top), another user, or exact losses if small sites sent none; it is then "
                "another study, to which all agree anew."
            )
            raise StudyStopped("transfer", what, hint)
        self.call.quorum = min(self.call.quorum, many)
