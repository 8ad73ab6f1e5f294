"""What the log of a run says, while it is written: who is there, how far it is, and each event as a sentence."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from vitrail.methods import TABLE
from vitrail.report.words import several

SHOWN = 200  # events that are kept to be shown
REPEATED = ("trouble", "waiting", "last word waits")  # told again and again while somebody is away: shown once, counted


@dataclass
class SiteSeen:
    """One site, as far as the log tells."""

    link: str = ""  # deployed: joined, lost, set aside; nothing where sites are on this machine
    seen: float | None = None
    since: float | None = None  # when it went away
    why: str = ""
    last: int = 0  # the last round it took part in
    missed: set[tuple[int, int]] = field(default_factory=set)  # stage, round
    out: int = 0  # rounds in a row that it has missed


class Log:
    """events.jsonl, read as it grows: each look goes on where the last one ended."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._clear()

    def _clear(self) -> None:
        self.offset = 0
        self.sites: dict[str, SiteSeen] = {}
        self.events: deque[dict[str, Any]] = deque(maxlen=SHOWN)
        self.done = self.total = 0
        self.at: float | None = None  # of the last event
        self.pace: deque[tuple[int, float]] = deque(maxlen=20)  # rounds, seconds: of the last events
        self.waiting: tuple[int, int] | None = None  # answers, needed
        self.resumed = False
        self.opening = False  # the coordinator was started, and its sites are not all there
        self.fold: tuple[int, int] | None = None  # the one that is trained after the run, and of how many
        self._gone_at = (0, 0)  # stage and round of the last absence

    def read(self, names: Sequence[str]) -> None:
        """What was added; `names` are the sites that are known. A last line without its end is left for the next look,
        a torn one inside is passed over."""
        try:
            with self.path.open("rb") as file:
                if file.seek(0, 2) < self.offset:  # another log is in its place
                    self._clear()
                file.seek(self.offset)
                whole, end, _ = file.read().rpartition(b"\n")
        except OSError:
            return
        self.offset += len(whole) + len(end)
        for name in names:
            self.site(name)
        for line in whole.split(b"\n"):
            try:
                event = json.loads(line)
                self._take(event["event"], datetime.fromisoformat(event["time"]).timestamp(), event)
            except (ValueError, KeyError, TypeError, AttributeError):
                continue

    def seconds_per_round(self) -> float | None:
        """Of late; None where too little is known."""
        (first, began), (last, now) = (self.pace[0], self.pace[-1]) if self.pace else ((0, 0.0), (0, 0.0))
        return (now - began) / (last - first) if last > first else None

    def site(self, name: str) -> SiteSeen:
        return self.sites.setdefault(str(name), SiteSeen())

    def _take(self, kind: str, at: float, event: dict[str, Any]) -> None:
        self.at = at
        if kind == "round":
            self._round(at, event)
        elif kind == "absent":
            self._absent(at, event)
        elif kind != "checkpoint":
            self._other(kind, at, event)

    def _other(self, kind: str, at: float, event: dict[str, Any]) -> None:
        if kind in ("joined", "back"):
            site = self.site(event["site"])
            site.link, site.seen, site.since, site.why, site.out = "joined", at, None, "", 0
        elif kind in ("lost", "trouble", "set aside"):
            site = self.site(event["site"])
            site.since, site.why = site.since or at, str(event.get("what") or event.get("why") or "")
            if site.link != "set aside":
                site.link = {"trouble": site.link or "joined"}.get(kind, kind)
        elif kind == "fold":
            self.fold = int(event["number"]), int(event["of"])
        elif kind == "waiting":
            self.waiting = int(event["answered"]), int(event["needed"])
        elif kind in ("started", "resumed", "finished"):
            self.resumed |= kind == "resumed"
            self.waiting, self.opening = None, False
            self.pace.clear()
        elif kind == "transport started":  # every site joins anew
            self.opening = True
            for site in self.sites.values():
                site.link = "" if site.link == "joined" else site.link
        self._say(kind, at, words(kind, event))

    def _round(self, at: float, event: dict[str, Any]) -> None:
        self.done, self.total, self.waiting, self.opening = int(event["done"]), int(event["total"]), None, False
        stage, round_, seconds = int(event["stage"]), int(event["round"]), float(event["seconds"])
        self.pace.append((self.done, seconds))
        self._back(at, [n for n in self.sites if n not in event["absent"]])
        for site in self.sites.values():
            back = 0
            while (stage, round_ - back) in site.missed:
                back += 1
            site.last = self.done - back
            if not back:
                site.seen = at

    def _absent(self, at: float, event: dict[str, Any]) -> None:
        now, gone = (int(event["stage"]), int(event["round"])), [str(n) for n in event["sites"]]
        whole = now[0] == self._gone_at[0] and now[1] > self._gone_at[1] + 1  # between the two nobody was absent
        self._back(at, [n for n in self.sites if n not in gone])
        for name in gone:
            site = self.site(name)
            if whole and site.out:
                self._back(at, [name])
            site.missed.add(now)
            site.out += 1
            if site.out == 1:
                site.since = site.since or at
                if not site.link:
                    self._say("lost", at, f"{name} is away from round {event.get('done', now[1])} on.")
        self._gone_at = now

    def _back(self, at: float, names: list[str]) -> None:
        """These took part."""
        for site, name in ((self.sites[n], n) for n in names):
            if site.out and not site.link:
                self._say("back", at, f"{name} is back after {several(site.out, 'round')} without it.")
            site.out = 0
            if site.link != "set aside":
                site.link, site.since, site.why = "joined" if site.link else "", None, ""

    def _say(self, kind: str, at: float, text: str) -> None:
        for old in reversed(self.events):
            if kind not in REPEATED or old["kind"] not in REPEATED:
                break
            if old["text"] == text:
                self.events.remove(old)
                self.events.append({**old, "time": at, "times": old["times"] + 1})
                return
        self.events.append({"kind": kind, "time": at, "first": at, "times": 1, "text": text})


def words(kind: str, event: dict[str, Any]) -> str:
    """An event as a sentence; one that is not known here is told as it was written."""
    site, why = event.get("site", ""), str(event.get("what") or event.get("why") or "").rstrip(".")
    because, sites = f": {why}." if why else ".", ", ".join(event.get("sites") or ())
    total = f"The sum of the group {sites}" if sites else "The sum of a round"
    known: dict[str, Callable[[], str]] = {
        "started": lambda: f"The run began: {method_title(event['method'])}, seed {event['seed']}.",
        "resumed": lambda: f"The run goes on from what was kept after round {event['round']}.",
        "finished": lambda: "The run is finished.",
        "saved": lambda: "The run was written.",
        "closed": lambda: "The run folder is closed and signed.",
        "added": lambda: f"Written into the run folder: {', '.join(event['files'])}.",
        "joined": lambda: f"{site} joined.",
        "back": lambda: f"{site} is back.",
        "lost": lambda: f"{site} was lost{because}",
        "set aside": lambda: f"{site} is set aside and no longer asked{because}",
        "silent": lambda: f"{site} is silent: it let {event['deadlines']} deadlines pass, and is asked now and then.",
        "trouble": lambda: f"{site}{because}",
        "refused": lambda: f"{site} was turned away{because}",
        "waiting": lambda: f"Waiting: {event['answered']} of {several(event['needed'], 'answer')} so far.",
        "answers again": lambda: f"{site} answers again.",
        "removed": lambda: f"{site} was removed.",
        "enough": lambda: f"Enough to start: {sites}; {event['seconds']:.0f} seconds for the others.",
        "came late": lambda: f"{site} came late and takes part from now on.",
        "not screened": lambda: f"{site} is not among those whose data was screened{because}",
        "sum not opened": lambda: f"{total} could not be opened, and changes nothing{because}",
        "sum not used": lambda: f"{total} was not used{because}",
        "half not taken": lambda: f"The second server did not take what {sites} sent it.",
        "total not opened": lambda: f"What sites added up under masks could not be opened{because}",
        "screened": lambda: f"The sites' data was screened: {several(event['wrong'], 'column')} likely wrong.",
        "fold": lambda: f"Is joining worth it? Fold {event['number']} of {event['of']} begins.",
        "last word waits": lambda: f"Waiting for {sites} to take the model.",
        "left to tell": lambda: f"The run is finished; {sites} is to take the model (--new starts another run).",
        "not told": lambda: f"{sites} has not taken the model: start vitrail serve again when it is back.",
        "new session": lambda: f"{sites} was started anew: all go on from what they kept.",
        "without": lambda: f"Going on without {sites}, who is away.",
        "job": lambda: f"Connected with {sites}." if sites else "Connected.",
        "job lost": lambda: "The connection was lost; it is opened again.",
        "job not begun": lambda: f"The connection could not be opened{because} It is tried again.",
        "transport started": lambda: (
            f"Sites can join at {event['address']}.{'' if event.get('sandbox', True) else UNBOXED}"
        ),
        "not ours": lambda: str(event["text"]),
        "transport lost": lambda: "The transport stopped; it is started again.",
        "transport restarted": lambda: f"The transport is started anew{because}",
    }
    if kind in known:
        return known[kind]()
    told = [f"{k} {v}" for k, v in event.items() if k not in ("time", "event", "before", "files", "whole")]
    return f"{kind[:1].upper()}{kind[1:]}{': ' if told else ''}{', '.join(told)}."


UNBOXED = " FLARE's processes are not shut in (--no-sandbox): they read whatever this user can read."


def method_title(method: dict[str, Any]) -> str:
    return TABLE[method["name"]].title if method["name"] in TABLE else str(method["name"])
