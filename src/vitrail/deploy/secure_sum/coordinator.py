"""Secure sums at the coordinator: lists of sites that never change once they were told, and a sum opened once.

What was decided is on disk before it is told (sums.json: for whom keys were drawn, who is in the sum, who reported;
sums.npz: what the reports come to), so that a coordinator that was started anew goes on with the same lists: sites
answer no others. A sum of a round that cannot be opened any more is passed over, and the round changes nothing.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile

import numpy as np
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from vitrail.core.errors import JournalDamaged, StudyStopped, SumRefused, VitrailError
from vitrail.deploy.coordinator.requests import PATIENCE, SiteRequests
from vitrail.deploy.identity.participants import are_missing, several_names
from vitrail.deploy.protocol.message import Message
from vitrail.deploy.secure_sum.presence import most_changes
from vitrail.deploy.secure_sum.shared import (
    ROUND,
    SCREENING,
    SumName,
    add_up,
    check_signed,
    drawn_words,
    group_members,
    read_bytes,
    read_drawn,
    sum_words,
    terms_of,
)
from vitrail.privacy.key_agreement import agree
from vitrail.privacy.secure_sum.dropout_tolerant import (
    SumKeys,
    SumOpening,
    groups,
    list_digest,
    signed_list_text,
    signed_text,
)
from vitrail.privacy.secure_sum.fixed_point import fewest_of
from vitrail.privacy.secure_sum.spec import Flat, SumSpec, Values
from vitrail.storage.atomic_files import write_atomically
from vitrail.storage.journal import DecisionRecord

DECIDED, REPORTED, RING, LISTS = "sums.json", "sums.npz", "ring.json", "lists.json"  # in the run's folder
Ask = Callable[[Sequence[str], Mapping[str, dict[str, Any]], int], dict[str, Message]]
Make = Callable[[str], Message | None]


class SumOffers(NamedTuple):
    """Keys for one sum, of those who drew them for this list."""

    names: list[str]
    drawn: dict[str, SumKeys]


class OpenedSum(NamedTuple):
    """What the reports of these sites add up to."""

    total: Values
    reporters: list[str]


class SumCoordinator:
    """`path`: the run's folder; `invited`: all who accepted. A sum is of all sites; or there are several at once, of
    groups (`shared.grouped`)."""

    def __init__(self, call: SiteRequests, path: Path, invited: Sequence[str]) -> None:
        self.call, self.agreed, self.path, self.invited = call, call.agreed, path, invited
        self.decisions, self.rings, self.changes = (DecisionRecord(path / n) for n in (DECIDED, RING, LISTS))
        self.ring: dict[str, Any] = self.rings.read()
        self.lists: dict[str, list[Any]] = self.changes.read()
        self.ring_sent: dict[str, set[str]] = {}  # site -> whose keys this process has sent it
        self.fewest: dict[str, int] = {}  # sites that a sum is of, by group
        self.early: tuple[SumName, dict[str, SumOffers]] | None = None  # keys that came with the sum before

    def collect_once(self, name: SumName, ready: Sequence[str], transcript: str, question: Message) -> OpenedSum:
        """The one sum of its kind in a run. `question` is what the sites are asked, without the words of the sum."""

        def ask(names: Sequence[str], words: Mapping[str, dict[str, Any]], need: int) -> dict[str, Message]:
            with_sum = {n: question._replace(words={**question.words, **words[n]}) for n in names}
            return self._ask(name, with_sum.get, need)

        opened = self.collect(name, ready, transcript, ask)
        if not opened:
            raise SumRefused("sum", "what this coordinator kept of it cannot be read.")
        return opened[0]

    def collect(
        self, name: SumName, ready: Sequence[str], transcript: str, ask: Ask, following: SumName | None = None
    ) -> list[OpenedSum]:
        """Every sum that could be opened. `transcript`: the mark of what all are sent; `ask` puts the question, to
        these sites with these words, until so many have answered; `following`: the sum that comes next."""
        members = group_members(self.agreed, name, self.invited)
        self.fewest = {g: fewest_of(len(m), self.agreed.study.protect.least) for g, m in members.items()}
        decided = self._decided(name)
        if decided is None:
            offers = self._offers(name, ready, members)
            keys = {
                g: {"names": o.names, "drawn": {n: drawn_words(d) for n, d in o.drawn.items()}}
                for g, o in offers.items()
            }
            decided = {"sum": list(name), "said": None, "lists": {}, "sums": keys}
            self.decisions.replace(decided)  # before any site adds to it: it adds to no other list
        sums = {
            g: SumOffers(v["names"], {n: read_drawn(d) for n, d in v["drawn"].items()})
            for g, v in decided["sums"].items()
        }
        terms = {g: terms_of(self.agreed, self.call.run, name, g, len(members[g])) for g in sums}
        if decided["said"] is None:
            live = self._live(name, sums)
            if not live:
                return []
            words = {
                n: {"sum": sum_words(n, drawn, groups(terms[g].about, names))}
                for g, (names, drawn) in sums.items()
                for n in drawn
            }
            need = self._need(name, {g: sums[g].names for g in live})
            answers = ask([n for g in live for n in sums[g].drawn], words, need)
            signed = {g: self._signed(terms[g], list_digest(list(sums[g].drawn), transcript), answers) for g in live}
            decided["said"] = reporters = self._reporters(name, {g: sums[g] for g in live}, signed)
            decided["lists"] = {n: answers[n].words["list"] for names in reporters.values() for n in names}
            self._count(reporters, members)
            reported = {g: add_up([answers[n] for n in names], terms[g]) for g, names in reporters.items()}
            _save(self.path / REPORTED, reported)
            self.decisions.replace(decided)  # before any site tells its shares: it tells them for no other list
        else:
            reported = self._reported(name, decided)
            reporters = decided["said"]
        openings = {g: SumOpening(terms[g], sums[g].names, sums[g].drawn, reporters[g], transcript) for g in reporters}
        return self._open(name, openings, reported, decided["lists"], following)

    def forget(self) -> None:
        """The run is over."""
        for record in (self.decisions, self.rings, self.changes):
            record.forget()
        (self.path / REPORTED).unlink(missing_ok=True)

    def _open(
        self,
        name: SumName,
        openings: Mapping[str, SumOpening],
        reported: Mapping[str, Flat],
        lists: Mapping[str, str],
        following: SumName | None,
    ) -> list[OpenedSum]:
        try:
            shares = self._shares(name, openings, lists, following)
        except VitrailError as error:
            self._pass_over(name, error.in_one_line())
            return []
        out = []
        for group, opening in openings.items():
            try:
                out.append(OpenedSum(opening.open(reported[group], shares), list(opening.reporters)))
            except VitrailError as error:
                self._pass_over(name, error.in_one_line(), opening.reporters if group else ())
        return out

    def _ask(self, name: SumName, make: Make, need: int) -> dict[str, Message]:
        """Answers to a leg. In a round so many are waited for, and the others for one deadline. Before the rounds
        everybody has a few deadlines, since a sum is not repeated; then the screening goes on with whoever answered."""
        if name.purpose == ROUND:
            return self.call.all(make, need)
        if name.purpose == SCREENING:
            return self.call.all(make, len(self.call.names), PATIENCE * self.call.deadline)
        return self.call.patient(make, need)

    def _count(self, reporters: Mapping[str, Sequence[str]], members: Mapping[str, Sequence[str]]) -> None:
        """Who is in the sums, and how often that has changed: sites count it too, and open no more than agreed."""
        for group, names in reporters.items():
            last, changes = self.lists.get(group, [sorted(members[group]), 0])
            self.lists[group] = [sorted(names), changes + (sorted(names) != last)]
        self.changes.replace(self.lists)

    def _fixed(self, group: str) -> list[str] | None:
        """The list that must stay, since it has changed as often as agreed: who is in it is waited for."""
        last, changes = self.lists.get(group, [[], 0])
        return last if changes >= most_changes(self.agreed) else None

    def _live(self, name: SumName, sums: Mapping[str, SumOffers]) -> list[str]:
        """The sums of which enough can still be asked."""
        active, out = set(self.call.active()), []
        for group, (names, drawn) in sums.items():
            there = set(drawn) & active
            if len(there) >= self._need(name, {group: names}) or (group and len(there) >= self.fewest[group]):
                out.append(group)
            else:
                lost = several_names(sorted(set(names) - there))
                why = f"too few of those who are in the sum can still be asked; {lost} cannot"
                self._pass_over(name, why, names if group else ())
        return out

    def _signed(self, terms: SumSpec, mark: bytes, answers: Mapping[str, Message]) -> set[str]:
        """Who reported, and signed the list: sites open nothing of a site that did not."""
        out = set()
        for name, message in answers.items():
            if message.kind == "refused":
                continue
            try:
                signer, signature = (bytes.fromhex(v) for v in (self.ring[name]["signer"], message.words["list"]))
                check_signed(name, signer, signed_list_text(terms, name, mark), signature)
                out.add(name)
            except (ValueError, VitrailError):
                self.call.way.log("trouble", site=name, what="it reported, and did not sign the list of the sum")
        return out

    def _reporters(
        self, name: SumName, sums: Mapping[str, SumOffers], signed: Mapping[str, set[str]]
    ) -> dict[str, list[str]]:
        """Who reported, of the groups of which enough did."""
        out = {g: [n for n in o.drawn if n in signed[g]] for g, o in sums.items()}
        for group in [g for g, names in out.items() if len(names) < self.fewest[g]]:
            lost = several_names(sorted(set(sums[group].names) - set(out[group])))
            why = f"{len(out[group])} of it reported, and {self.fewest[group]} are the fewest; {lost} did not"
            self._pass_over(name, why, sums[group].names if group else ())
            del out[group]
        return out

    def _quorum(self, name: SumName) -> int:
        """The study's, which the screening does not need."""
        return 0 if name.purpose == SCREENING else self.call.quorum

    def _need(self, name: SumName, lists: Mapping[str, Sequence[str]]) -> int:
        """So many must go on: the study's quorum, and the fewest that a sum is of; all where lists must stay."""
        whole = sum(map(len, lists.values()))
        if any(self._fixed(g) is not None for g in lists):
            return whole
        return min(whole, max(self._quorum(name), *(self.fewest[g] for g in lists)))

    def _offers(
        self, name: SumName, ready: Sequence[str], members: Mapping[str, Sequence[str]]
    ) -> dict[str, SumOffers]:
        """Keys for each sum, of those who are there."""
        there = self.call.way.present() & set(self.call.active())
        here = [n for n in ready if n in there]
        early = self.early[1] if self.early and self.early[0] == name else {}
        out = {g: o for g, o in early.items() if g in members and self._serves(name, g, o, set(here) & set(members[g]))}
        left = {g: names for g, names in members.items() if g not in out}
        if left == members or any(len(set(here) & set(names)) >= self.fewest[g] for g, names in left.items()):
            wanted = {n for names in left.values() for n in names}
            out |= self._draw(name, [n for n in ready if n in wanted], there, left)
        for group in [g for g in members if g not in out]:
            away = are_missing(sorted(set(members[group]) - there))
            self._pass_over(name, f"fewer than {self.fewest[group]} of it are there; {away}", members[group])
        return dict(sorted(out.items()))

    def _serves(self, name: SumName, group: str, early: SumOffers, here: set[str]) -> bool:
        if (fixed := self._fixed(group)) is not None:
            return set(early.drawn) == set(fixed)
        need = self._need(name, {group: sorted(here) or early.names})
        return here <= set(early.drawn) and len(early.drawn) >= need

    def _draw(
        self, name: SumName, ready: Sequence[str], there: set[str], members: Mapping[str, Sequence[str]]
    ) -> dict[str, SumOffers]:
        quorum, few = self._quorum(name), min(self.fewest[g] for g in members)
        there = there if name.purpose == ROUND else set(ready)  # whoever is away for a moment may come back
        here = [n for n in ready if n in there]
        self._meet(name, here if len(here) >= max(quorum, few) else ready, few)
        met = [n for n in ready if n in self.ring]
        names = [n for n in met if n in there]
        names = names if len(names) >= max(min(quorum, len(met)), few) else met
        fixed = {g: self._fixed(g) for g in members}
        lists = {g: fixed[g] or [n for n in names if n in group] for g, group in members.items()}
        lists = {g: listed for g, listed in lists.items() if len(listed) >= self.fewest[g]}
        if not lists:
            away = are_missing(sorted({n for group in members.values() for n in group} - set(names)))
            what = f"{len(names)} sites can add to a sum, and of fewer than {few} none is opened; {away}."
            raise StudyStopped("sites", what, "Wait for more sites.")
        words = {n: self._keys(name, listed, n) for listed in lists.values() for n in listed}
        questions = {n: Message("mask", {"leg": "keys", **about}) for n, about in words.items()}
        answers = self._ask(name, questions.get, self._need(name, lists))
        for n in answers:
            self.ring_sent.setdefault(n, set()).update(words[n]["ring"])
        words = {n: m.words for n, m in sorted(answers.items()) if m.kind == "mask"}
        drawn = {g: self._drawn(name, g, lists[g], len(members[g]), words) for g in lists}
        return {g: SumOffers(sorted(lists[g]), keys) for g, keys in drawn.items() if len(keys) >= self.fewest[g]}

    def _drawn(
        self, name: SumName, group: str, listed: Sequence[str], members: int, words: Mapping[str, Any]
    ) -> dict[str, SumKeys]:
        """What sites drew for this list. Keys that the others would refuse are left out: or one site that lies would
        have them all stop."""
        terms, out = terms_of(self.agreed, self.call.run, name, group, members), dict[str, SumKeys]()
        for site in [n for n in sorted(listed) if n in words]:
            try:
                keys = read_drawn(words[site])
                agree(X25519PrivateKey.generate(), keys.key, site)
                signer = bytes.fromhex(self.ring[site]["signer"])
                check_signed(site, signer, signed_text(terms, site, listed, keys.key, keys.mark), keys.signature)
                out[site] = keys
            except (ValueError, VitrailError):
                self.call.way.log("trouble", site=site, what="its key for a sum is none, or was not signed by it")
        return out

    def _meet(self, name: SumName, names: Sequence[str], few: int) -> None:
        """Everybody's key for shares, once a run."""
        if strangers := {n: Message("mask", {"leg": "ring"}) for n in names if n not in self.ring}:
            need = max(self._quorum(name), few) - len(set(names) & self.ring.keys())
            answers = self._ask(name, strangers.get, max(0, need))
            self.ring |= {n: m.words for n, m in answers.items() if m.kind == "mask"}
            self.rings.replace(self.ring)

    def _keys(self, name: SumName, names: Sequence[str], site: str) -> dict[str, Any]:
        """The question for keys; with it the ring, as far as this process has not sent it."""
        new = set(names) - self.ring_sent.get(site, set()) - {site}
        return name._asdict() | {"names": sorted(names), "ring": {n: self.ring[n] for n in sorted(new)}}

    def _shares(
        self, name: SumName, openings: Mapping[str, SumOpening], lists: Mapping[str, str], following: SumName | None
    ) -> dict[str, dict[str, bytes]]:
        """So many that the sums can be opened. Who is asked for them also draws keys for the next ones. One sum is
        waited for, but not that of a screening; of several, those that lack shares after a while stay closed."""
        shares, early = dict[str, dict[str, bytes]](), dict[str, Any]()
        of = {n: opening for opening in openings.values() for n in opening.reporters}
        asked = {n: self._keys(following, of[n].reporters, n) if following else {} for n in of}
        brief = PATIENCE * self.call.deadline if name.purpose == SCREENING else math.inf

        def make(site: str) -> Message | None:
            if site not in asked or site in shares:
                return None
            sealed = {n: d.sealed[site].hex() for n, d in of[site].drawn.items() if site in d.sealed}
            words = {"leg": "open", **name._asdict(), "said": list(of[site].reporters), "sealed": sealed}
            others = {n: lists[n] for n in of[site].reporters if n != site}
            return Message("mask", words | {"lists": others, "next": asked[site]})

        while len(shares) < len(of) and (not shares or any(o.lacks(shares) for o in openings.values())):
            whole = {g: o.names for g, o in openings.items()}
            need = min(len(of) - len(shares), 1 if shares else self._need(name, whole))
            answers = self.call.all(make, need, brief if len(openings) == 1 or not shares else self.call.deadline)
            for site, message in answers.items():
                shares[site] = {}
                if message.kind == "mask":
                    with suppress(SumRefused):  # shares that are none: its own word is worth nothing
                        shares[site] = read_bytes(message.words["shares"])
                    early |= {site: message.words["next"]} if message.words["next"] else {}
                self.ring_sent.setdefault(site, set()).update(asked[site].get("ring", ()))
            if not answers:
                break
        self.early = None
        if following:
            members = group_members(self.agreed, following, self.invited)
            listed = {g: sorted(o.reporters) for g, o in openings.items()}
            drawn = {g: self._drawn(following, g, names, len(members[g]), early) for g, names in listed.items()}
            self.early = following, {g: SumOffers(names, drawn[g]) for g, names in listed.items()}
        return shares

    def _pass_over(self, name: SumName, why: str, sites: Sequence[str] = ()) -> None:
        """A round goes on without its sum; whoever asked for another one decides."""
        if name.purpose != ROUND:
            raise SumRefused("sum", why)
        more = {"sites": sorted(sites)} if sites else {}
        self.call.way.log("sum not opened", stage=name.stage, round=name.round, why=why, **more)
        self.early = None if not sites else self.early

    def _decided(self, name: SumName) -> dict[str, Any] | None:
        try:
            decided = self.decisions.read()
            return decided if decided and decided["sum"] == list(name) else None
        except (JournalDamaged, KeyError):  # which lists were told is not known, and sites answer no others
            return self._lost(name)

    def _reported(self, name: SumName, decided: dict[str, Any]) -> dict[str, Flat]:
        try:
            return _load(self.path / REPORTED)
        except (OSError, ValueError, BadZipFile):
            decided |= self._lost(name)
            return {}

    def _lost(self, name: SumName) -> dict[str, Any]:
        """Nothing is opened here, nor by a process that comes after this one."""
        decided: dict[str, Any] = {"sum": list(name), "said": {}, "lists": {}, "sums": {}}
        self.decisions.replace(decided)
        self._pass_over(name, "what this coordinator kept of it cannot be read")
        return decided


def _save(path: Path, reported: Mapping[str, Flat]) -> None:
    """By group."""
    file, arrays = io.BytesIO(), dict[str, Any]({f"of {g}": v for g, v in reported.items()})
    np.savez(file, **arrays)
    write_atomically(path, file.getvalue())


def _load(path: Path) -> dict[str, Flat]:
    with np.load(path, allow_pickle=False) as file:
        return {name.removeprefix("of "): file[name] for name in file.files}
