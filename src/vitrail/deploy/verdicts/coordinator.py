"""The coordinator's side of folds: all sites train once more for each, and nothing of it is kept here.

RUN/folds.json     how many folds are done, and what crossed in them
RUN/folds/         the one under way, so that a coordinator that was started anew goes on with its last round
"""

from __future__ import annotations

import shutil
from collections.abc import Set
from pathlib import Path
from typing import Any

from vitrail.deploy.coordinator.requests import Responses, SiteRequests, Transport
from vitrail.deploy.coordinator.rounds import RemoteRounds
from vitrail.deploy.coordinator.run_members import RunMembers
from vitrail.deploy.protocol.message import Message
from vitrail.deploy.verdicts.shared import FOLD, FoldAgreement, fold_run
from vitrail.runs.folder import Folder
from vitrail.runs.result import REFITTED, Run
from vitrail.runs.verdict_wire import fold_count
from vitrail.storage.journal import DecisionRecord

DONE, PLACE = "folds.json", "folds"


def conduct_folds(call: SiteRequests, book: RunMembers, run: Run, path: Path) -> dict[str, Any]:
    """After the run, before its last word: how many there were, and bytes that crossed in folds and in the training on
    all rows, by site. `path`: the run's folder."""
    folds, record = FoldAgreement(call.agreed), DecisionRecord(path / DONE)
    progress: dict[str, Any] = {"done": 0, "crossed": {}, REFITTED: {}} | record.read()
    for number in range(progress["done"], len(folds)):
        refit = folds.is_refit(number)
        call.way.log("refit") if refit else call.way.log("fold", number=number + 1, of=fold_count(call.agreed.study))
        crossed = _conduct(call, folds, number, book, run, path / PLACE / str(number))
        total = progress[REFITTED if refit else "crossed"]
        for site, bytes_ in crossed.items():
            total[site] = total.get(site, 0) + bytes_
        progress["done"] = number + 1
        record.replace(progress)
        shutil.rmtree(path / PLACE)  # nobody but a site keeps a model of what comes after the run
    return progress


def _conduct(
    call: SiteRequests, folds: FoldAgreement, number: int, book: RunMembers, run: Run, path: Path
) -> dict[str, int]:
    """One fold from its first round to its last word; bytes that crossed, by site."""
    agreed = folds.agreement(number)
    way = FoldTransport(call.way, call.run, number)
    own = SiteRequests(way, agreed, call.names, fold_run(call.run, number), call.quorum, call.deadline)
    own.failed, own.trouble, own.missed, own.rests = (
        call.failed,
        call.trouble,
        call.missed,
        call.rests,
    )  # go on as known
    folder = Folder(path, resume=path.exists(), about=".lock")
    try:
        rounds = RemoteRounds(own, agreed, book, {}, path)
        excluded = rounds.aggregator.excluded
        excluded |= run.info.get("outcasts", {})
        back = folder.restore(rounds.names, rounds.shape_at)
        if back:
            rounds.ledger.counts.update(back[1]["ledger"])
            excluded |= back[1]["outcasts"]
        for moment in rounds.run(back[0] if back else None):
            for event in rounds.aggregator.take_events():
                way.log(event.pop("event"), fold=number + 1, **event)
            folder.checkpoint(rounds.names, moment, {"ledger": rounds.ledger.counts, "outcasts": excluded}, {})
        bytes_ = dict.fromkeys(rounds.names, 0)
        for row in rounds.ledger.rows():
            bytes_[row["site"]] += row["bytes"]
        return bytes_
    finally:
        folder.close()


class FoldTransport:
    """The same way to the same sites; what is said on it is of one fold of a run."""

    def __init__(self, way: Transport, run: str, number: int) -> None:
        self.way, self.run, self.number = way, run, number

    def ask(self, questions: dict[str, Message], deadline: float, not_awaited: Set[str] = frozenset()) -> Responses:
        asked = {n: q._replace(words={**q.words, "run": self.run, FOLD: self.number}) for n, q in questions.items()}
        responses = self.way.ask(asked, deadline, not_awaited) if not_awaited else self.way.ask(asked, deadline)
        return responses._replace(answers={n: self._plain(answer) for n, answer in responses.answers.items()})

    def _plain(self, answer: Message) -> Message:
        """Without which fold it is of; of another one it is not what was asked for, and is refused by its form."""
        if answer.kind in ("error", "refused") or answer.words.get(FOLD) != self.number:
            return answer if FOLD in answer.words or answer.kind in ("error", "refused") else _with(answer, None)
        return answer._replace(words={k: v for k, v in answer.words.items() if k != FOLD})

    def present(self) -> set[str]:
        return self.way.present()

    def log(self, event: str, **details: Any) -> None:
        self.way.log(event, **details)


def _with(answer: Message, fold: int | None) -> Message:
    return answer._replace(words={**answer.words, FOLD: fold})
