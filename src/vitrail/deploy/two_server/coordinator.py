"""Two servers at the coordinator, which is the first of them: legs of an exchange, each kept on disk before the next.

Started anew, it goes on with the same halves, the same deck and the same lot: the second answers no others. An exchange
of which too few can be opened is passed over, and changes nothing.
"""

from __future__ import annotations

import io
import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitrail.core.errors import SumSkipped
from vitrail.deploy.coordinator.requests import SiteRequests
from vitrail.deploy.identity.participants import are_missing
from vitrail.deploy.protocol.agreement import FORMAT
from vitrail.deploy.protocol.message import WHERE, Message
from vitrail.deploy.two_server import shared as two_server
from vitrail.deploy.two_server.server import as_tensor
from vitrail.deploy.two_server.shared import Where
from vitrail.privacy.report_vectors import is_change
from vitrail.privacy.two_server.krum import choose_reports
from vitrail.privacy.two_server.protocol import (
    ShareServer,
    Words,
    deck_of,
    distances_to_mean,
    from_fixed_point,
    squares,
    within,
)
from vitrail.storage.atomic_files import write_atomically
from vitrail.storage.journal import DecisionRecord

KEPT, HALVES = "two.json", "two.npz"  # in the run's folder
Tell = Callable[[Sequence[str], Mapping[str, dict[str, Any]], int | None], dict[str, Message]]


class RobustCentre(NamedTuple):
    """The mean of the chosen [number], who was there, what they said in the open, and how far off each lay."""

    middle: Tensor
    names: list[str]
    open: dict[str, Tensor]  # [site, ...]
    far: Tensor  # [site]


class TwoServerCoordinator:
    """`call`: to the sites; `path`: the run's folder."""

    def __init__(self, call: SiteRequests, path: Path) -> None:
        self.call, self.agreed, self.path = call, call.agreed, path
        self.protect = call.agreed.study.protect
        self.second = SiteRequests(call.way, call.agreed, [self.protect.second], call.run, 1, call.deadline)
        self.key: dict[str, Any] | None = None  # the second's, as it signed it
        self.decisions = DecisionRecord(path / KEPT, private=True)  # of the exchange at hand

    def collect(
        self, where: Where, ready: Sequence[str], tell: Tell, fine: Callable[[str, Message], bool]
    ) -> RobustCentre | None:
        """`tell` asks the round's question; `fine`: whether what a site says in the open can be."""
        decided = self.decisions.read()
        key = self._key()
        if decided.get("where") != list(where):
            answers = tell(list(ready), {n: {"second": key} for n in ready}, None)
            reports = {n: m for n, m in sorted(answers.items()) if m.kind == "round" and fine(n, m)}
            decided = self._begin(where, reports)
        else:  # started anew: for their scores
            tell(decided["names"], {n: {"second": key} for n in decided["names"]}, 0)
        try:
            return self._opened(where, decided)
        except SumSkipped as error:
            self.call.way.log("sum not opened", stage=where[0], round=where[1], why=error.problems[0].what)
            return None

    def end(self) -> None:
        """The second is told that the run is over; the run's own files of it are deleted."""
        last = Message("finish", {"findings": [], "pooled": {}, "others": 0})
        self.second.all(lambda n: last, 1, self.call.deadline)
        self.decisions.forget()
        (self.path / HALVES).unlink(missing_ok=True)

    def _key(self) -> dict[str, Any]:
        if self.key is None:
            self._ask(Message("hello", {"format": FORMAT, "agreement": self.agreed.hash}))
            self.key = self._ask(Message(two_server.SECOND, {"leg": "key"})).words
        return self.key

    def _ask(self, question: Message) -> Message:
        """The second; it is waited for."""
        answer = self.second.all(lambda n: question, 1)[self.protect.second]
        if answer.kind == "refused":
            raise SumSkipped("sum", "both servers together accept too few sites")
        return answer

    def _begin(self, where: Where, reports: Mapping[str, Message]) -> dict[str, Any]:
        """What the sites said, on disk before the second is told."""
        ex, spec = self._exchange(where), self.agreed.contracts[where[0]][where[2]].up
        file = io.BytesIO()
        parts = {f"half {n}": _flat([m.tensors[k] for k in spec if is_change(ex, k)]) for n, m in reports.items()}
        opens = {f"{k} {n}": m.tensors[k].numpy() for n, m in reports.items() for k in spec if not is_change(ex, k)}
        held: dict[str, Any] = {**parts, **opens}
        np.savez(file, **held)
        write_atomically(self.path / HALVES, file.getvalue(), private=True, durable=True)
        letters = {n: {k: m.words[k] for k in two_server.LETTER} for n, m in reports.items()}
        names, lot = list(reports), secrets.token_hex(16)
        return self.decisions.replace({"where": list(where), "names": names, "letters": letters, "lot": lot})

    def _opened(self, where: Where, decided: dict[str, Any]) -> RobustCentre:
        at, clip = dict(zip(WHERE, where, strict=True)), self.protect.clip
        assert clip is not None
        if len(decided["names"]) < (fewest := self.agreed.fewest):
            away = are_missing([n for n in self.call.names if n not in decided["names"]])
            what = (
                f"only {len(decided['names'])} sites reported, and at least {fewest} are needed before anything is "
                f"opened; {away}"
            )
            raise SumSkipped("sum", what)
        about = {**at, "names": decided["names"], "letters": decided["letters"]}
        halves = self._ask(Message(two_server.SECOND, {"leg": "halves", **about})).words
        names = [n for n in decided["names"] if n in halves["good"]]
        if lost := sorted(set(decided["names"]) - set(names)):
            self.call.way.log("half not taken", sites=lost)
        deck = self._dealt(where, names, halves["lot"])
        with np.load(self.path / HALVES, allow_pickle=False) as file:
            reports = {name: file[name] for name in file.files}
        d, present = two_server.numbers_of(self.agreed, where[0], where[2]), list(range(len(names)))
        server = ShareServer(True, clip, deck_of(bytes.fromhex(deck["seed"]), len(names), d))
        for i, name in enumerate(names):
            server.take(i, reports[f"half {name}"])
        mine = server.blinded(present)
        words = {"leg": "blind", **at, "names": names, "dealer": deck["dealer"], "lot": decided["lot"]}
        blind = self._ask(
            Message(
                two_server.SECOND,
                words | {"deck": {k: deck[k] for k in two_server.LETTER}},
                {"blinded": as_tensor(mine)},
            )
        )
        products = server.products(present, mine, _words(blind.tensors["blinded"]))
        tested = server.tested(present, (bytes.fromhex(decided["lot"]), bytes.fromhex(blind.words["lot"])))
        gram = squares(products, _words(blind.tensors["products"]), clip)
        chosen = choose_reports(gram, within(tested, _words(blind.tensors["tested"])), clip)
        given = {"products": as_tensor(products), "tested": as_tensor(tested)}
        last = self._ask(Message(two_server.SECOND, {"leg": "total", **at, "names": names}, given))
        if last.words["chosen"] != chosen:
            raise SumSkipped("sum", "the second server chose other reports")
        middle = from_fixed_point(server.total(chosen) + _words(last.tensors["total"]), clip) / len(chosen)
        ex, spec = self._exchange(where), self.agreed.contracts[where[0]][where[2]].up
        opens = {
            k: torch.stack([torch.from_numpy(reports[f"{k} {n}"]) for n in names]) for k in spec if not is_change(ex, k)
        }
        return RobustCentre(torch.from_numpy(middle), names, opens, torch.from_numpy(distances_to_mean(gram, chosen)))

    def _dealt(self, where: Where, names: Sequence[str], lot: str) -> dict[str, Any]:
        """By whom the lot falls on, or who comes after it where that one is silent; once."""
        deck: dict[str, Any] = self.decisions.once("deck", lambda: self._ask_dealers(where, names, lot))
        return deck

    def _ask_dealers(self, where: Where, names: Sequence[str], lot: str) -> dict[str, Any]:
        about = two_server.about(self.agreed, self.call.run, where)
        words = {**dict(zip(WHERE, where, strict=True)), "names": list(names), "second": self._key()}
        for dealer in two_server.ranked(about, bytes.fromhex(lot), names):
            question = Message(two_server.DEAL, words)
            answers = self.call.all(lambda n: question if n == dealer else None, 1, self.call.deadline)  # noqa: B023
            if dealer in answers:
                return {**answers[dealer].words, "dealer": dealer}
        raise SumSkipped("sum", f"none of the {two_server.DEALERS} sites that were drawn as dealer answered")

    def _exchange(self, where: Where) -> Any:
        return self.agreed.stages[where[0]].turns[where[2]].exchange


def _flat(parts: Sequence[Tensor]) -> Words:
    return np.concatenate([p.numpy().ravel() for p in parts]).view(np.uint64)


def _words(tensor: Tensor) -> Words:
    return tensor.numpy().view(np.uint64)
