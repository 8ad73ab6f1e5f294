"""Masked reports at the coordinator: lists of sites that never change once they were told, and a sum opened once.

What was decided is on disk before it is told (sums.json: for whom keys were drawn, who is in the sum, who reported;
sums.npy: what the reports come to), so that a coordinator that was started anew goes on with the same lists: sites
answer no others. A sum that cannot be opened any more is passed over, and the round changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from vitrail.core.problems import Problem, VitrailError
from vitrail.deploy.agreement import WHERE
from vitrail.deploy.call import Call
from vitrail.deploy.message import Message
from vitrail.deploy.sums import Where, drawn_words, read_bytes, read_drawn, terms_of, to_tensors
from vitrail.protect.masked import Drawn, Opening, groups, needed
from vitrail.runs.folder import write_atomically

KEPT, REPORTED, RING = "sums.json", "sums.npy", "ring.json"  # in the run's folder
Tell = Callable[[Sequence[str], Mapping[str, dict[str, Any]], int], dict[str, Message]]


class Offered(NamedTuple):
    """Keys for one sum, of those who drew them for this list."""

    where: Where
    names: list[str]
    drawn: dict[str, Drawn]


class FarSums:
    """`path`: the run's folder."""

    def __init__(self, call: Call, path: Path) -> None:
        self.call, self.agreed, self.path = call, call.agreed, path
        self.least = call.agreed.study.protect.least
        place = path / RING
        self.ring: dict[str, Any] = json.loads(place.read_text()) if place.exists() else {}
        self.knows: dict[str, set[str]] = {}  # whose keys a site was sent, by this process
        self.early: Offered | None = None  # keys that came with the opening of the sum before

    def hear(
        self, where: Where, ready: Sequence[str], told: str, tell: Tell, following: Where | None
    ) -> tuple[dict[str, Tensor], list[str]] | None:
        """What the reports of who reported add up to, and who did; None where nothing could be opened. `told`: the
        mark of what all are told; `tell` asks the round's question; `following`: the sum that comes next."""
        kept = self._kept(where)
        if kept is None:
            offered = self._offered(where, ready)
            kept = {"where": where, "names": offered.names, "said": None}
            kept["drawn"] = {n: drawn_words(d) for n, d in offered.drawn.items()}
            self._keep(kept)  # before any site adds to it: it adds to no other list
        names, drawn = kept["names"], {n: read_drawn(v) for n, v in kept["drawn"].items()}
        groups_ = groups(terms_of(self.agreed, self.call.run, where).about, names)
        asked = {n: {"sum": _told(n, drawn, groups_)} for n in drawn}
        if kept["said"] is None:
            enough = self._need(names)
            if len(set(drawn) & set(self.call.active())) < enough:
                self._pass_over(where, "too few of those who are in the sum can still be asked")
                return None
            heard = tell(list(drawn), asked, enough)
            said = [n for n in drawn if n in heard and heard[n].kind == "round"]
            reported = _added([heard[n] for n in said], list(self.agreed.contracts[where[0]][where[2]].crosses or {}))
            np.save(self.path / REPORTED, reported)
            kept["said"] = said
            self._keep(kept)  # before any site tells its shares: it tells them for no other list
        else:  # started anew: for their scores
            said, reported = kept["said"], np.load(self.path / REPORTED, allow_pickle=False)
            tell(said, {n: asked[n] for n in said}, 0)
        opening = Opening(terms_of(self.agreed, self.call.run, where), names, drawn, said, told)
        try:
            shares = self._shares(opening, where, following)
            total = opening.open(reported, shares)
        except VitrailError as error:
            self._pass_over(where, "; ".join([error.title, *(f"{p.where}: {p.what}" for p in error.problems)]))
            return None
        return to_tensors(total, self.agreed.contracts[where[0]][where[2]].up), said

    def forget(self) -> None:
        """The run is over."""
        for name in (KEPT, REPORTED, RING):
            (self.path / name).unlink(missing_ok=True)

    def _need(self, names: Sequence[str]) -> int:
        """So many must go on: the study's quorum, and more than half of the list."""
        return min(len(names), max(self.call.quorum, needed(names, self.least)))

    def _offered(self, where: Where, ready: Sequence[str]) -> Offered:
        """Keys for this sum, of those who are there."""
        there = self.call.way.present() & set(self.call.active())
        here, early = [n for n in ready if n in there], self.early
        if early and early.where == where and set(here) <= set(early.drawn) and len(early.drawn) >= self._need(here):
            return early
        self._meet(here if len(here) >= max(self.call.quorum, self.least) else ready)
        met = [n for n in ready if n in self.ring]
        names = [n for n in met if n in there]
        names = names if len(names) >= max(min(self.call.quorum, len(met)), self.least) else met
        if len(names) < self.least:
            what = f"{len(names)} sites can add to a sum, and of fewer than {self.least} none is opened."
            raise VitrailError("the study cannot go on", [Problem("protect.least", what, "Wait for more sites.")])
        asked = {n: self._keys(where, names, n) for n in names}
        words = {n: {"leg": "keys", **told} for n, told in asked.items()}
        heard = self.call.all(lambda n: Message("mask", words[n]) if n in words else None, self._need(names))
        for n in heard:
            self.knows.setdefault(n, set()).update(asked[n]["ring"])
        return Offered(where, sorted(names), {n: read_drawn(heard[n].words) for n in sorted(heard)})

    def _meet(self, names: Sequence[str]) -> None:
        """Everybody's key for shares, once a run."""
        if strangers := [n for n in names if n not in self.ring]:
            need = max(self.call.quorum, self.least) - len(set(names) & self.ring.keys())
            ask = Message("mask", {"leg": "ring"})
            heard = self.call.all(lambda n: ask if n in strangers else None, max(0, need))
            self.ring |= {n: m.words for n, m in heard.items()}
            write_atomically(self.path / RING, json.dumps(self.ring))

    def _keys(self, where: Where, names: Sequence[str], site: str) -> dict[str, Any]:
        """The question for keys; with it the ring, as far as this process has not sent it."""
        new = set(names) - self.knows.get(site, set()) - {site}
        told = {n: self.ring[n] for n in sorted(new)}
        return dict(zip(WHERE, where, strict=True)) | {"names": sorted(names), "ring": told}

    def _shares(self, opening: Opening, where: Where, following: Where | None) -> dict[str, dict[str, bytes]]:
        """So many that the sum can be opened. Who is asked for them also draws keys for the next one."""
        shares, drawn, early = dict[str, dict[str, bytes]](), opening.drawn, dict[str, Drawn]()
        asked = {n: self._keys(following, opening.said, n) if following else {} for n in opening.said}

        def make(name: str) -> Message | None:
            if name not in asked or name in shares:
                return None
            sealed = {n: d.sealed[name].hex() for n, d in drawn.items() if name in d.sealed}
            words = {"leg": "open", **dict(zip(WHERE, where, strict=True)), "said": list(opening.said)}
            return Message("mask", words | {"sealed": sealed, "next": asked[name]})

        while opening.lacks(shares) or not shares:
            left = len(opening.said) - len(shares)
            if not left:
                break  # all have told theirs, and it is not enough: opening says so
            heard = self.call.all(make, min(left, 1 if shares else self._need(opening.names)))
            for name, said in heard.items():
                shares[name] = read_bytes(said.words["shares"])
                if said.words["next"]:
                    early[name] = read_drawn(said.words["next"])
                self.knows.setdefault(name, set()).update(asked[name].get("ring", ()))
        names = sorted(opening.said)
        self.early = Offered(following, names, dict(sorted(early.items()))) if following else None
        return shares

    def _pass_over(self, where: Where, why: str) -> None:
        self.call.way.log("sum not opened", stage=where[0], round=where[1], why=why)
        self.early = None
        return

    def _kept(self, where: Where) -> dict[str, Any] | None:
        place = self.path / KEPT
        kept = json.loads(place.read_text()) if place.exists() else None
        return kept if kept and kept["where"] == list(where) else None

    def _keep(self, kept: dict[str, Any]) -> None:
        write_atomically(self.path / KEPT, json.dumps(kept))


def _told(site: str, drawn: Mapping[str, Drawn], among: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Who is in the sum, and the keys of this site's neighbours."""
    near = {n: drawn_words(drawn[n], sealed=False) for n in among[site] if n != site and n in drawn}
    return {"roster": sorted(drawn), "drawn": near}


def _added(said: Sequence[Message], names: Sequence[str]) -> Any:
    """The sum of masked reports, number after number, mod 2^64."""
    parts = [[m.tensors[k].numpy().view(np.uint64).ravel() for k in names] for m in said]
    flat = [np.concatenate(part) for part in parts]
    return np.add.reduce(np.stack(flat), axis=0, dtype=np.uint64)
