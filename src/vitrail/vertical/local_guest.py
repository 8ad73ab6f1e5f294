"""A guest on the same machine: asked by place, looked up blindly, and what it sees of itself."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import pandas as pd
import torch
from torch import Tensor

from vitrail.analysis.explanations.rows import Explanation, columns_of
from vitrail.core.errors import VitrailError
from vitrail.data.encoding import rows_as_text
from vitrail.data.readers.tables import clean
from vitrail.study.model import Study
from vitrail.vertical.matching.ids import look, tell
from vitrail.vertical.matching.lookup import LookupGuest, LookupHost, opened
from vitrail.vertical.matching.match import domain
from vitrail.vertical.shap import split_answer
from vitrail.vertical.training.dialogue import Dialogue, MessageCount
from vitrail.vertical.training.host import answer_scores
from vitrail.vertical.training.party_side import GuestSide, groups_of, matrix, reference_of
from vitrail.vertical.training.split_network import features


class LocalGuest:
    """vertical/training/host_model.py's GuestAccess, in one process. `newer`: the guest's table as it is today, in
    which people are looked up; without it, the table that was matched."""

    def __init__(self, study: Study, talk: Dialogue, side: GuestSide, newer: pd.DataFrame | None = None) -> None:
        self.study, self.talk, self.side, self.name = study, talk, side, side.guest.name
        self.whole, self.people = side.rows.whole, side.rows.people
        if newer is not None:
            seen, found = look(newer, study, self.name)
            if problems := tell(self.name, newer, found):
                raise VitrailError(f"the table of {self.name} cannot be used", problems)
            assert seen is not None
            self.whole, self.people = clean(newer, side.rows.table, need_target=False), seen.spelled

    def left(self) -> int:
        return self.side.guest.ration.left["after"]

    def ask(self, places: Tensor) -> Tensor:
        others = [g.name for g in self.talk.guests if g.name != self.name]
        return answer_scores(self.talk.ask(places, without=others)[self.name], len(places))

    def look_up(self, people: Sequence[str]) -> tuple[list[Tensor | None], str]:
        """A table of locked answers of all the guest's people, then one question for each."""
        began, side, words = time.perf_counter(), self.side, domain(self.study)
        z = answer_scores(side.guest.tell(side.features(self.whole), self.people)).float()
        desk = LookupGuest(
            self.name, self.people, [row.numpy().tobytes() for row in z], words, side.guest.ration.answer
        )
        rows, found = opened(desk.table), list[Tensor | None]()
        took = time.perf_counter() - began
        self._count("Table", self.name, self.study.host, 1, len(z), len(desk.table.rows))
        for one in people:
            question = LookupHost(one, words)
            told = question.read(desk.tell(question.asked), rows)
            found.append(None if told is None else torch.frombuffer(bytearray(told), dtype=torch.float32))
        self._count("Asked", self.study.host, self.name, len(people), len(people), 32 * len(people))
        self._count("Told", self.name, self.study.host, len(people), len(people), 32 * len(people))
        cost = f"a table of {len(z)} locked answers, {len(desk.table.rows) / 1000:.1f} kB made in {took:.1f} s, and 64 "
        return found, cost + f"bytes a question; {self.name} counts questions, {self.left()} are left, not of whom"

    def _count(self, what: str, sender: str, receiver: str, messages: int, rows: int, size: int) -> None:
        ledger, way = self.talk.wire.ledger, (sender, receiver, what)
        before = ledger.get(way, MessageCount())
        ledger[way] = MessageCount(before.messages + messages, before.rows + rows, before.bytes + size)


def explain_guest(side: GuestSide, places: Tensor) -> Explanation:
    """At the guest, for itself: its answer before rounding and noise, over its own columns."""
    rows, table = side.rows, side.rows.table
    cleaned, off = rows.common.iloc[places.numpy()], reference_of(rows, side.guest.terms)
    told = split_answer(
        side.guest,
        matrix(side.encoder, cleaned),
        matrix(side.encoder, off)[0],
        list(table.features),
        groups_of(side.encoder),
        features=lambda x: features(x, side.bends, side.seed),
    )
    names = tuple(rows.labels[rows.places[i]] for i in places.tolist())
    means = "the median of each number and the most frequent level of each other feature, over the training rows"
    shown = rows_as_text(cleaned, table)
    return replace(told, data=shown, rows=names, columns=columns_of(off, table), reference=means)
