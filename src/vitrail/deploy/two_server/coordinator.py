"""Two servers at the coordinator, which is the first of them: legs of an exchange, each kept on disk before the next.

Started anew, it goes on with the same halves, the same deck and the same lot: the second answers no others. An exchange
of which too few can be opened is passed over, and changes nothing.
"""

from __future__ import annotations

import io
import json
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

    def collect(
        self, where: Where, ready: Sequence[str], tell: Tell, fine: Callable[[str, Message], bool]
    ) -> RobustCentre | None:
        """`tell` asks the round's question; `fine`: whether what a site says in the open can be."""
        kept = self._kept(where)
        key = self._key()
        if kept is None:
            heard = tell(list(ready), {n: {"second": key} for n in ready}, None)
            said = {n: m for n, m in sorted(heard.items()) if m.kind == "round" and fine(n, m)}
            kept = self._begin(where, said)
        else:  # started anew: for their scores
            tell(kept["names"], {n: {"second": key} for n in kept["names"]}, 0)
        try:
            return self._opened(where, kept)
        except SumSkipped as error:
            self.call.way.log("sum not opened", stage=where[0], round=where[1], why=error.problems[0].what)
            return None

    def end(self) -> None:
        """The second is told that the run is over; the run's own files of it are deleted."""
        last = Message("finish", {"findings": [], "pooled": {}, "others": 0})
        self.second.all(lambda n: last, 1, self.call.deadline)
        for name in (KEPT, HALVES):
            (self.path / name).unlink(missing_ok=True)

    def _key(self) -> dict[str, Any]:
        if self.key is None:
            self._ask(Message("hello", {"format": FORMAT, "agreement": self.agreed.hash}))
            self.key = self._ask(Message(two_server.SECOND, {"leg": "key"})).words
        return self.key

    def _ask(self, question: Message) -> Message:
        """The second; it is waited for."""
        said = self.second.all(lambda n: question, 1)[self.protect.second]
        if said.kind == "refused":
            raise SumSkipped("sum", "too few sites are in it whom both servers can take")
        return said

    def _begin(self, where: Where, said: Mapping[str, Message]) -> dict[str, Any]:
        """What the sites said, on disk before the second is told."""
        ex, spec = self._exchange(where), self.agreed.contracts[where[0]][where[2]].up
        file = io.BytesIO()
        parts = {f"half {n}": _flat([m.tensors[k] for k in spec if is_change(ex, k)]) for n, m in said.items()}
        opens = {f"{k} {n}": m.tensors[k].numpy() for n, m in said.items() for k in spec if not is_change(ex, k)}
        held: dict[str, Any] = {**parts, **opens}
        np.savez(file, **held)
        write_atomically(self.path / HALVES, file.getvalue(), private=True)
        letters = {n: {k: m.words[k] for k in two_server.LETTER} for n, m in said.items()}
        return self._keep({"where": list(where), "names": list(said), "letters": letters, "lot": secrets.token_hex(16)})

    def _opened(self, where: Where, kept: dict[str, Any]) -> RobustCentre:
        at, clip = dict(zip(WHERE, where, strict=True)), self.protect.clip
        assert clip is not None
        if len(kept["names"]) < (fewest := self.agreed.fewest):
            away = are_missing([n for n in self.call.names if n not in kept["names"]])
            what = f"{len(kept['names'])} sites reported, and of fewer than {fewest} none is opened; {away}"
            raise SumSkipped("sum", what)
        about = {**at, "names": kept["names"], "letters": kept["letters"]}
        halves = self._ask(Message(two_server.SECOND, {"leg": "halves", **about})).words
        names = [n for n in kept["names"] if n in halves["good"]]
        if lost := sorted(set(kept["names"]) - set(names)):
            self.call.way.log("half not taken", sites=lost)
        deck = self._dealt(where, kept, names, halves["lot"])
        with np.load(self.path / HALVES, allow_pickle=False) as file:
            told = {name: file[name] for name in file.files}
        d, present = two_server.numbers_of(self.agreed, where[0], where[2]), list(range(len(names)))
        server = ShareServer(True, clip, deck_of(bytes.fromhex(deck["seed"]), len(names), d))
        for i, name in enumerate(names):
            server.take(i, told[f"half {name}"])
        mine = server.blinded(present)
        words = {"leg": "blind", **at, "names": names, "dealer": deck["dealer"], "lot": kept["lot"]}
        blind = self._ask(
            Message(
                two_server.SECOND,
                words | {"deck": {k: deck[k] for k in two_server.LETTER}},
                {"blinded": as_tensor(mine)},
            )
        )
        products = server.products(present, mine, _words(blind.tensors["blinded"]))
        tested = server.tested(present, (bytes.fromhex(kept["lot"]), bytes.fromhex(blind.words["lot"])))
        gram = squares(products, _words(blind.tensors["products"]), clip)
        chosen = choose_reports(gram, within(tested, _words(blind.tensors["tested"])), clip)
        given = {"products": as_tensor(products), "tested": as_tensor(tested)}
        last = self._ask(Message(two_server.SECOND, {"leg": "total", **at, "names": names}, given))
        if last.words["chosen"] != chosen:
            raise SumSkipped("sum", "the second server chose other reports")
        middle = from_fixed_point(server.total(chosen) + _words(last.tensors["total"]), clip) / len(chosen)
        ex, spec = self._exchange(where), self.agreed.contracts[where[0]][where[2]].up
        opens = {
            k: torch.stack([torch.from_numpy(told[f"{k} {n}"]) for n in names]) for k in spec if not is_change(ex, k)
        }
        return RobustCentre(torch.from_numpy(middle), names, opens, torch.from_numpy(distances_to_mean(gram, chosen)))

    def _dealt(self, where: Where, kept: dict[str, Any], names: Sequence[str], lot: str) -> dict[str, Any]:
        """By whom the lot falls on, or who comes after it where that one is silent; once."""
        if "deck" in kept:
            return dict(kept["deck"])
        about = two_server.about(self.agreed, self.call.run, where)
        words = {**dict(zip(WHERE, where, strict=True)), "names": list(names), "second": self._key()}
        for dealer in two_server.ranked(about, bytes.fromhex(lot), names):
            asked = Message(two_server.DEAL, words)
            heard = self.call.all(lambda n: asked if n == dealer else None, 1, self.call.deadline)  # noqa: B023
            if dealer in heard:
                self._keep(kept | {"deck": {**heard[dealer].words, "dealer": dealer}})
                return {**heard[dealer].words, "dealer": dealer}
        raise SumSkipped("sum", f"none of {two_server.DEALERS} sites that were drawn to deal answered")

    def _exchange(self, where: Where) -> Any:
        return self.agreed.stages[where[0]].turns[where[2]].exchange

    def _kept(self, where: Where) -> dict[str, Any] | None:
        place = self.path / KEPT
        kept = json.loads(place.read_text()) if place.exists() else None
        return kept if kept and kept["where"] == list(where) else None

    def _keep(self, kept: dict[str, Any]) -> dict[str, Any]:
        write_atomically(self.path / KEPT, json.dumps(kept), private=True)
        return kept


def _flat(parts: Sequence[Tensor]) -> Words:
    return np.concatenate([p.numpy().ravel() for p in parts]).view(np.uint64)


def _words(tensor: Tensor) -> Words:
    return tensor.numpy().view(np.uint64)
