"""Masked reports at the coordinator: lists of sites that never change once they were told, and a sum opened once.

What was decided is on disk before it is told (sums.json: for whom keys were drawn, who is in the sum, who reported;
sums.npz: what the reports come to), so that a coordinator that was started anew goes on with the same lists: sites
answer no others. A sum that cannot be opened any more is passed over, and the round changes nothing.
"""

from __future__ import annotations

import io
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np
from torch import Tensor

from vitrail.core.errors import StudyStopped, VitrailError
from vitrail.deploy.coordinator.requests import SiteRequests
from vitrail.deploy.identity.participants import are_missing, several_names
from vitrail.deploy.protocol.message import WHERE, Message
from vitrail.deploy.protocol.score_plan import SUMMED, report_spec
from vitrail.deploy.secure_sum.presence import most_changes
from vitrail.deploy.secure_sum.shared import (
    Where,
    check_signed,
    drawn_words,
    grouped,
    read_bytes,
    read_drawn,
    terms_of,
    to_tensors,
)
from vitrail.privacy.secure_sum.dropout_tolerant import SumKeys, SumOpening, groups, list_digest, list_text
from vitrail.privacy.secure_sum.fixed_point import fewest_of
from vitrail.privacy.secure_sum.pairwise import SumSpec
from vitrail.storage.atomic_files import write_atomically

KEPT, REPORTED, RING, LISTS = "sums.json", "sums.npz", "ring.json", "lists.json"  # in the run's folder
Tell = Callable[[Sequence[str], Mapping[str, dict[str, Any]], int], dict[str, Message]]


class SumOffers(NamedTuple):
    """Keys for one sum, of those who drew them for this list."""

    names: list[str]
    drawn: dict[str, SumKeys]


class OpenedSum(NamedTuple):
    """What the reports of `said` add up to, and their scores where these are part of it."""

    total: dict[str, Tensor]
    said: list[str]
    scores: Any = None  # [2, number], see deploy/protocol/score_plan.py


class SumCoordinator:
    """`path`: the run's folder. A sum is of all sites; or there are several at once, of groups (`sums.grouped`)."""

    def __init__(self, call: SiteRequests, path: Path, invited: Sequence[str]) -> None:
        self.call, self.agreed, self.path, self.invited = call, call.agreed, path, invited
        place = path / RING
        self.ring: dict[str, Any] = json.loads(place.read_text()) if place.exists() else {}
        self.knows: dict[str, set[str]] = {}  # whose keys a site was sent, by this process
        self.fewest: dict[str, int] = {}  # sites that a sum is of, by group
        place = path / LISTS
        self.lists: dict[str, list[Any]] = json.loads(place.read_text()) if place.exists() else {}
        self.early: tuple[Where, dict[str, SumOffers]] | None = (
            None  # keys that came with the opening of the sum before
        )

    def collect(
        self, where: Where, ready: Sequence[str], told: str, tell: Tell, following: Where | None
    ) -> list[OpenedSum]:
        """Every sum that could be opened. `told`: the mark of what all are told; `tell` asks the round's question;
        `following`: the exchange whose sums come next."""
        kept, among = self._kept(where), grouped(self.agreed, where, self.invited)
        self.fewest = {g: fewest_of(len(m), self.agreed.study.protect.least) for g, m in among.items()}
        if kept is None:
            offered = self._offered(where, ready)
            kept = {"where": where, "said": None, "lists": {}, "sums": {}}
            for group, (names, drawn) in offered.items():
                kept["sums"][group] = {"names": names, "drawn": {n: drawn_words(d) for n, d in drawn.items()}}
            self._keep(kept)  # before any site adds to it: it adds to no other list
        sums = {
            g: SumOffers(v["names"], {n: read_drawn(d) for n, d in v["drawn"].items()}) for g, v in kept["sums"].items()
        }
        terms = {g: terms_of(self.agreed, self.call.run, where, g, len(among[g])) for g in sums}
        asked = {
            n: {"sum": _sum_header(n, drawn, groups(terms[g].about, names))}
            for g, (names, drawn) in sums.items()
            for n in drawn
        }
        if kept["said"] is None:
            live = self._live(where, sums)
            if not live:
                return []
            heard = tell([n for g in live for n in sums[g].drawn], asked, self._need({g: sums[g].names for g in live}))
            signed = {g: self._signed(terms[g], list_digest(list(sums[g].drawn), told), heard) for g in live}
            kept["said"] = said = self._said(where, {g: sums[g] for g in live}, signed)
            kept["lists"] = {n: heard[n].words["list"] for names in said.values() for n in names}
            self._count(said, among)
            parts = list(report_spec(self.agreed, *where))
            reported = {g: _added([heard[n] for n in names], parts) for g, names in said.items()}
            _save(self.path / REPORTED, reported)
            self._keep(kept)  # before any site tells its shares: it tells them for no other list
        else:
            reported = self._reported(where, kept)
            said = kept["said"]
        openings = {g: SumOpening(terms[g], sums[g].names, sums[g].drawn, said[g], told) for g in said}
        try:
            shares = self._shares(openings, kept["lists"], where, following)
        except VitrailError as error:
            self._pass_over(where, error.in_one_line())
            return []
        out = []
        for group, opening in openings.items():
            try:
                total = opening.open(reported[group], shares)
            except VitrailError as error:
                self._pass_over(where, error.in_one_line(), opening.said if group else ())
                continue
            up = self.agreed.contracts[where[0]][where[2]].up
            out.append(OpenedSum(to_tensors(total, up), said[group], total.get(SUMMED)))
        return out

    def forget(self) -> None:
        """The run is over."""
        for name in (KEPT, REPORTED, RING, LISTS):
            (self.path / name).unlink(missing_ok=True)

    def _count(self, said: Mapping[str, Sequence[str]], among: Mapping[str, Sequence[str]]) -> None:
        """Who is in the sums, and how often that has changed: sites count it too, and open no more than agreed."""
        for group, names in said.items():
            last, changes = self.lists.get(group, [sorted(among[group]), 0])
            self.lists[group] = [sorted(names), changes + (sorted(names) != last)]
        write_atomically(self.path / LISTS, json.dumps(self.lists))

    def _fixed(self, group: str) -> list[str] | None:
        """The list that must stay, since it has changed as often as agreed: who is in it is waited for."""
        last, changes = self.lists.get(group, [[], 0])
        return last if changes >= most_changes(self.agreed) else None

    def _live(self, where: Where, sums: Mapping[str, SumOffers]) -> list[str]:
        """The sums of which enough can still be asked."""
        active, out = set(self.call.active()), []
        for group, (names, drawn) in sums.items():
            there = set(drawn) & active
            if len(there) >= self._need({group: names}) or (group and len(there) >= self.fewest[group]):
                out.append(group)
            else:
                lost = several_names(sorted(set(names) - there))
                why = f"too few of those who are in the sum can still be asked; {lost} cannot"
                self._pass_over(where, why, names if group else ())
        return out

    def _signed(self, terms: SumSpec, mark: bytes, heard: Mapping[str, Message]) -> set[str]:
        """Who reported, and signed the list: sites open nothing of a site that did not."""
        out = set()
        for name, message in heard.items():
            if message.kind != "round":
                continue
            try:
                signer, signature = (bytes.fromhex(v) for v in (self.ring[name]["signer"], message.words["list"]))
                check_signed(name, signer, list_text(terms, name, mark), signature)
                out.add(name)
            except (ValueError, VitrailError):
                self.call.way.log("trouble", site=name, what="it reported, and did not sign the list of the sum")
        return out

    def _said(
        self, where: Where, sums: Mapping[str, SumOffers], signed: Mapping[str, set[str]]
    ) -> dict[str, list[str]]:
        """Who reported, of the groups of which enough did."""
        out = {g: [n for n in o.drawn if n in signed[g]] for g, o in sums.items()}
        for group in [g for g, names in out.items() if len(names) < self.fewest[g]]:
            lost = several_names(sorted(set(sums[group].names) - set(out[group])))
            why = f"{len(out[group])} of it reported, and {self.fewest[group]} are the fewest; {lost} did not"
            self._pass_over(where, why, sums[group].names if group else ())
            del out[group]
        return out

    def _need(self, lists: Mapping[str, Sequence[str]]) -> int:
        """So many must go on: the study's quorum, and the fewest that a sum is of; all where lists must stay."""
        whole = sum(map(len, lists.values()))
        if any(self._fixed(g) is not None for g in lists):
            return whole
        return min(whole, max(self.call.quorum, *(self.fewest[g] for g in lists)))

    def _offered(self, where: Where, ready: Sequence[str]) -> dict[str, SumOffers]:
        """Keys for each sum, of those who are there."""
        there = self.call.way.present() & set(self.call.active())
        here = [n for n in ready if n in there]
        among = grouped(self.agreed, where, self.invited)
        early = self.early[1] if self.early and self.early[0] == where else {}
        out = {g: o for g, o in early.items() if g in among and self._serves(g, o, [n for n in here if n in among[g]])}
        left = {g: names for g, names in among.items() if g not in out}
        if left == among or any(len(set(here) & set(names)) >= self.fewest[g] for g, names in left.items()):
            wanted = {n for names in left.values() for n in names}
            out |= self._draw(where, [n for n in ready if n in wanted], there, left)
        for group in [g for g in among if g not in out]:
            away = are_missing(sorted(set(among[group]) - there))
            self._pass_over(where, f"fewer than {self.fewest[group]} of it are there; {away}", among[group])
        return dict(sorted(out.items()))

    def _serves(self, group: str, early: SumOffers, here: Sequence[str]) -> bool:
        if (fixed := self._fixed(group)) is not None:
            return set(early.drawn) == set(fixed)
        return set(here) <= set(early.drawn) and len(early.drawn) >= self._need({group: here or early.names})

    def _draw(
        self, where: Where, ready: Sequence[str], there: set[str], among: Mapping[str, Sequence[str]]
    ) -> dict[str, SumOffers]:
        here, few = [n for n in ready if n in there], min(self.fewest[g] for g in among)
        self._meet(here if len(here) >= max(self.call.quorum, few) else ready, few)
        met = [n for n in ready if n in self.ring]
        names = [n for n in met if n in there]
        names = names if len(names) >= max(min(self.call.quorum, len(met)), few) else met
        fixed = {g: self._fixed(g) for g in among}
        lists = {g: fixed[g] or [n for n in names if n in group] for g, group in among.items()}
        lists = {g: found for g, found in lists.items() if len(found) >= self.fewest[g]}
        if not lists:
            away = are_missing(sorted({n for group in among.values() for n in group} - set(names)))
            what = f"{len(names)} sites can add to a sum, and of fewer than {few} none is opened; {away}."
            raise StudyStopped("sites", what, "Wait for more sites.")
        asked = {n: self._keys(where, found, n) for found in lists.values() for n in found}
        words = {n: {"leg": "keys", **told} for n, told in asked.items()}
        heard = self.call.all(lambda n: Message("mask", words[n]) if n in words else None, self._need(lists))
        for n in heard:
            self.knows.setdefault(n, set()).update(asked[n]["ring"])
        drew = {n: read_drawn(m.words) for n, m in sorted(heard.items()) if m.kind == "mask"}
        drawn = {g: {n: drew[n] for n in sorted(found) if n in drew} for g, found in lists.items()}
        return {g: SumOffers(sorted(lists[g]), told) for g, told in drawn.items() if len(told) >= self.fewest[g]}

    def _meet(self, names: Sequence[str], few: int) -> None:
        """Everybody's key for shares, once a run."""
        if strangers := [n for n in names if n not in self.ring]:
            need = max(self.call.quorum, few) - len(set(names) & self.ring.keys())
            ask = Message("mask", {"leg": "ring"})
            heard = self.call.all(lambda n: ask if n in strangers else None, max(0, need))
            self.ring |= {n: m.words for n, m in heard.items() if m.kind == "mask"}
            write_atomically(self.path / RING, json.dumps(self.ring))

    def _keys(self, where: Where, names: Sequence[str], site: str) -> dict[str, Any]:
        """The question for keys; with it the ring, as far as this process has not sent it."""
        new = set(names) - self.knows.get(site, set()) - {site}
        told = {n: self.ring[n] for n in sorted(new)}
        return dict(zip(WHERE, where, strict=True)) | {"names": sorted(names), "ring": told}

    def _shares(
        self, openings: Mapping[str, SumOpening], lists: Mapping[str, str], where: Where, following: Where | None
    ) -> dict[str, dict[str, bytes]]:
        """So many that the sums can be opened. Who is asked for them also draws keys for the next ones. One sum is
        waited for; of several, those that lack shares after a while stay closed."""
        shares, early = dict[str, dict[str, bytes]](), dict[str, SumKeys]()
        of = {n: opening for opening in openings.values() for n in opening.said}
        asked = {n: self._keys(following, of[n].said, n) if following else {} for n in of}

        def make(name: str) -> Message | None:
            if name not in asked or name in shares:
                return None
            sealed = {n: d.sealed[name].hex() for n, d in of[name].drawn.items() if name in d.sealed}
            words = {"leg": "open", **dict(zip(WHERE, where, strict=True)), "said": list(of[name].said)}
            told = {n: lists[n] for n in of[name].said if n != name}
            return Message("mask", words | {"lists": told, "sealed": sealed, "next": asked[name]})

        while len(shares) < len(of) and (not shares or any(o.lacks(shares) for o in openings.values())):
            whole = {g: o.names for g, o in openings.items()}
            need = min(len(of) - len(shares), 1 if shares else self._need(whole))
            patience = math.inf if len(openings) == 1 or not shares else self.call.deadline
            heard = self.call.all(make, need, patience)
            for name, said in heard.items():
                shares[name] = read_bytes(said.words["shares"]) if said.kind == "mask" else {}
                if said.kind == "mask" and said.words["next"]:
                    early[name] = read_drawn(said.words["next"])
                self.knows.setdefault(name, set()).update(asked[name].get("ring", ()))
            if not heard:
                break
        self.early = None
        if following:
            drawn = {g: {n: early[n] for n in sorted(o.said) if n in early} for g, o in openings.items()}
            self.early = following, {g: SumOffers(sorted(openings[g].said), told) for g, told in drawn.items()}
        return shares

    def _pass_over(self, where: Where, why: str, sites: Sequence[str] = ()) -> None:
        more = {"sites": sorted(sites)} if sites else {}
        self.call.way.log("sum not opened", stage=where[0], round=where[1], why=why, **more)
        self.early = None if not sites else self.early

    def _kept(self, where: Where) -> dict[str, Any] | None:
        place = self.path / KEPT
        try:
            kept = json.loads(place.read_text()) if place.exists() else None
            return kept if kept and kept["where"] == list(where) else None
        except (ValueError, KeyError, TypeError):  # which lists were told is not known, and sites answer no others
            return self._lost(where)

    def _reported(self, where: Where, kept: dict[str, Any]) -> dict[str, Any]:
        try:
            return _load(self.path / REPORTED)
        except (OSError, ValueError, BadZipFile):
            kept |= self._lost(where)
            return {}

    def _lost(self, where: Where) -> dict[str, Any]:
        """Nothing is opened here, nor by a process that comes after this one."""
        self._pass_over(where, "what this coordinator kept of it cannot be read")
        kept: dict[str, Any] = {"where": list(where), "said": {}, "lists": {}, "sums": {}}
        self._keep(kept)
        return kept

    def _keep(self, kept: dict[str, Any]) -> None:
        write_atomically(self.path / KEPT, json.dumps(kept))


def _sum_header(site: str, drawn: Mapping[str, SumKeys], among: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """Who is in the sum, and the keys of this site's neighbours."""
    near = {n: drawn_words(drawn[n], sealed=False) for n in among[site] if n != site and n in drawn}
    return {"roster": sorted(drawn), "drawn": near}


def _added(said: Sequence[Message], names: Sequence[str]) -> Any:
    """The sum of masked reports, number after number, mod 2^64."""
    parts = [[m.tensors[k].numpy().view(np.uint64).ravel() for k in names] for m in said]
    flat = [np.concatenate(part) for part in parts]
    return np.add.reduce(np.stack(flat), axis=0, dtype=np.uint64)


def _save(place: Path, reported: Mapping[str, Any]) -> None:
    """By group."""
    file = io.BytesIO()
    np.savez(file, **{f"of {g}": v for g, v in reported.items()})
    write_atomically(place, file.getvalue())


def _load(place: Path) -> dict[str, Any]:
    with np.load(place, allow_pickle=False) as kept:
        return {name.removeprefix("of "): kept[name] for name in kept.files}
