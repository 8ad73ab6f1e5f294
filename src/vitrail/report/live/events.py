"""What the log of a run says, while it is written: who is there, how far it is, and each event as a sentence."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from vitrail.core.text import several
from vitrail.methods import TABLE

SHOWN = 200  # events that are kept to be shown
REPEATED = ("trouble", "waiting", "last word waits")  # told again and again while somebody is away: shown once, counted


@dataclass
class SiteStatus:
    """One site, as far as the log tells."""

    link: str = ""  # deployed: joined, lost, set aside; nothing where sites are on this machine
    seen: float | None = None
    since: float | None = None  # when it went away
    why: str = ""
    last: int = 0  # the last round it took part in
    missed: set[tuple[int, int]] = field(default_factory=set)  # stage, round
    out: int = 0  # rounds in a row that it has missed


class EventLog:
    """events.jsonl, read as it grows: each look goes on where the last one ended."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._clear()

    def _clear(self) -> None:
        self.offset = 0
        self.sites: dict[str, SiteStatus] = {}
        self.events: deque[dict[str, Any]] = deque(maxlen=SHOWN)
        self.done = self.total = 0
        self.at: float | None = None  # of the last event
        self.pace: deque[tuple[int, float]] = deque(maxlen=20)  # rounds, seconds: of the last events
        self.waiting: tuple[int, int] | None = None  # answers, needed
        self.resumed = False
        self.opening = False  # the coordinator was started, and its sites are not all there
        self.fold: tuple[int, int] | None = None  # the one that is trained after the run, and of how many
        self.refit = False  # after the run, and after folds, all sites train once more on all of their rows
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

    def site(self, name: str) -> SiteStatus:
        return self.sites.setdefault(str(name), SiteStatus())

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
        elif kind in ("lost", "trouble", "part lost", "set aside"):
            site = self.site(event["site"])
            why = event.get("what") or event.get("why") or ("its connection ended" if kind == "part lost" else "")
            site.since, site.why = site.since or at, str(why)
            if site.link != "set aside":
                site.link = (site.link or "joined") if kind in ("trouble", "part lost") else kind
        elif kind == "fold":
            self.fold = int(event["number"]), int(event["of"])
        elif kind == "refit":
            self.fold, self.refit = None, True
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
    total = f"The sum of the group {sites}" if sites else "The sum of this round"
    sentences: dict[str, Callable[[], str]] = {
        "started": lambda: f"The run began: {method_title(event['method'])}, seed {event['seed']}.",
        "resumed": lambda: f"The run goes on from the checkpoint after round {event['round']}.",
        "finished": lambda: "The run is finished.",
        "saved": lambda: "The run was written.",
        "closed": lambda: "The run folder is closed and signed.",
        "added": lambda: f"Written into the run folder: {', '.join(event['files'])}.",
        "joined": lambda: f"{site} joined.",
        "back": lambda: f"{site} is back.",
        "lost": lambda: f"{site} is no longer connected{because}",
        "set aside": lambda: f"{site} is set aside and no longer asked{because}",
        "silent": lambda: (
            f"{site} did not answer within {event['deadlines']} deadlines in a row. The others no longer "
            "wait for it; it is asked again now and then."
        ),
        "share refused": lambda: (
            f"From round {event['round']} on {site} takes no part, because its share of the round would be outside the "
            "limits of the study, or its own."
        ),
        "trouble": lambda: f"{site}{because}",
        "unusual": lambda: f"The update of {site} is {event['times']} times as long as usual.",
        "refused": lambda: f"{site} was turned away{because}",
        "missing": lambda: f"{event['here']} of {several(event['of'], 'site')} joined so far. Missing: {sites}.",
        "waiting": lambda: _waiting_words(event),
        "answers again": lambda: f"{site} answers again.",
        "removed": lambda: f"{site} was removed from the study.",
        "enough": lambda: f"Enough sites to start: {sites}. The others have {event['seconds']:.0f} more seconds.",
        "came late": lambda: f"{site} joined late and takes part from now on.",
        "not screened": lambda: f"The data of {site} was not screened{because}",
        "not in the scale": lambda: f"The common scale of columns is without {sites}: no answer came in time.",
        "model not used": lambda: f"The model that {site} trained alone is not tried at the others{because}",
        "model not shown": lambda: f"{site} does not let the model go that it trained alone, as it may.",
        "withdrew": lambda: f"Withdrawn before the first round, or silent: {sites}.",
        "chosen": lambda: f"These train together{f' for {site}' if site else ''}: {sites}.",
        "sum not opened": lambda: f"{total} could not be opened, so the model stays as it was{because}",
        "sum not used": lambda: f"{total} was not used, so the model stays as it was{because}",
        "round not used": lambda: (
            f"Round {event['round']} was not used{because} The model stays as it was. One of the sites that took part "
            f"may have sent a wrong report: {sites}."
        ),
        "report not used": lambda: (
            f"Round {event['round']} was made without the report of {site}: with it the model would have moved further "
            "than the sites accept."
        ),
        "half not taken": lambda: f"The second server did not accept what {sites} sent it.",
        "total not opened": lambda: f"A total of the screening could not be opened{because}",
        "screened": lambda: f"The sites' data was screened: {several(event['wrong'], 'column')} likely wrong.",
        "fold": lambda: f"Is joining worth it? Fold {event['number']} of {event['of']} begins.",
        "refit": lambda: "The sites train once more, on all of their rows.",
        "last word waits": lambda: f"Waiting for {sites} to fetch the final model.",
        "left to tell": lambda: (
            f"The run is finished. Still to fetch the final model: {sites}. (To start another run instead: --new.)"
        ),
        "not told": lambda: f"Not fetched the final model: {sites}. Start vitrail serve again when they are back.",
        "new session": lambda: f"{sites} restarted: all parties go on from their last checkpoint.",
        "without": lambda: f"Going on without {sites}, which cannot be reached.",
        "job": lambda: f"Opening the connection with {sites}.",
        "job lost": lambda: "The connection was lost; it is opened again.",
        "job split": lambda: _split_words(event),
        "part lost": lambda: _loss_words(site, event),
        "job not begun": lambda: "The connection could not be opened yet; it is tried again.",
        "transport started": lambda: (
            f"Sites can join at {event['address']}.{'' if event.get('sandbox', True) else UNBOXED}"
        ),
        "not ours": lambda: str(event["text"]),
        "transport lost": lambda: f"The transport process stopped; it is started again. Its log: {event.get('see')}.",
        "transport restarted": lambda: f"The transport is restarted{because}",
    }
    if kind in sentences:
        return sentences[kind]()
    fields = [f"{k} {v}" for k, v in event.items() if k not in ("time", "event", "before", "files", "whole")]
    return f"{kind[:1].upper()}{kind[1:]}{': ' if fields else ''}{', '.join(fields)}."


UNBOXED = " FLARE's processes are not shut in (--no-sandbox): they read whatever this user can read."


def _waiting_words(event: dict[str, Any]) -> str:
    """How many answers there are, who is missing and why."""
    missing = [f"{site} ({why})" if why else site for site, why in (event.get("missing") or {}).items()]
    who = f" Missing: {', '.join(missing)}." if missing else ""
    return f"Waiting: {event['answered']} of {several(event['needed'], 'answer')} so far.{who}"


def _loss_words(site: str, event: dict[str, Any]) -> str:
    """A site's part of the transport ended by itself."""
    times, rest = int(event["times"]), float(event["seconds"])
    if not rest:
        return f"The connection with {site} ended; it is opened again. The others go on."
    return (
        f"The connection with {site} ended {times} times. The others go on without it, and it is tried again in "
        f"{rest:.0f} seconds. Its machine may be short of memory: see what vitrail join says there."
    )


def _split_words(event: dict[str, Any]) -> str:
    """A job of several sites broke down, and nobody can tell at which."""
    groups = "; ".join(" and ".join(group) for group in event["groups"])
    return (
        f"The connection was lost {event['times']} times. To find out at which site it breaks, sites are now connected "
        f"in separate groups: {groups}."
    )


def method_title(method: dict[str, Any]) -> str:
    return TABLE[method["name"]].catalogue.title if method["name"] in TABLE else str(method["name"])
