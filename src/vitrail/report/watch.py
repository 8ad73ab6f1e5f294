"""A run folder, read while it is written: what its log says, how far it is, how every site stands.

It only reads, and only what the coordinator may see: run.json, deployed.json, events.jsonl, checkpoint.json and the
tables; nothing under sites/.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd

from vitrail.core.problems import VitrailError
from vitrail.methods import TABLE
from vitrail.report.figures import _thin
from vitrail.report.words import several
from vitrail.runs.run import HISTORY, along, our_table
from vitrail.study import LOWER_IS_BETTER, Study

SHOWN = 200  # events that are kept to be shown
QUIET = 60.0  # seconds without a word, or ten rounds if they take longer: then the run is called quiet
AGAIN = 0.5  # seconds for which one look at the folder is good enough
SPARE = 10.0  # a look that took long is good for so many times as long: the run needs the processor
REPEATED = (
    "trouble",
    "waiting",
    "last word waits",
)  # told again and again while somebody is away: shown once, and counted
WAYS = ("from site", "to site")
Traffic = dict[str, dict[str, int]]  # direction -> site -> bytes


# what the log says


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
    known: dict[str, Callable[[], str]] = {
        "started": lambda: f"The run began: {_title(event['method'])}, seed {event['seed']}.",
        "resumed": lambda: f"The run goes on from what was kept after round {event['round']}.",
        "finished": lambda: "The run is finished.",
        "saved": lambda: "The run was written.",
        "joined": lambda: f"{site} joined.",
        "back": lambda: f"{site} is back.",
        "lost": lambda: f"{site} was lost{because}",
        "set aside": lambda: f"{site} is set aside and no longer asked{because}",
        "trouble": lambda: f"{site}{because}",
        "refused": lambda: f"{site} was turned away{because}",
        "waiting": lambda: f"Waiting: {event['answered']} of {several(event['needed'], 'answer')} so far.",
        "answers again": lambda: f"{site} answers again.",
        "removed": lambda: f"{site} was removed.",
        "enough": lambda: f"Enough to start: {sites}; {event['seconds']:.0f} seconds for the others.",
        "came late": lambda: f"{site} came late and takes part from now on.",
        "not asked further": lambda: f"{site} published its layers and cannot be asked about them: it is not judged.",
        "last word waits": lambda: f"Waiting for {sites} to take the model.",
        "left to tell": lambda: f"The run is finished; {sites} is to take the model (--new starts another run).",
        "not told": lambda: f"{sites} has not taken the model: start vitrail serve again when it is back.",
        "job": lambda: f"Connected with {sites}." if sites else "Connected.",
        "job lost": lambda: "The connection was lost; it is opened again.",
        "job not begun": lambda: f"The connection could not be opened{because} It is tried again.",
        "transport started": lambda: f"Sites can join at {event['address']}.",
        "transport lost": lambda: "The transport stopped; it is started again.",
        "transport restarted": lambda: f"The transport is started anew{because}",
    }
    if kind in known:
        return known[kind]()
    told = [f"{k} {v}" for k, v in event.items() if k not in ("time", "event")]
    return f"{kind[:1].upper()}{kind[1:]}{': ' if told else ''}{', '.join(told)}."


def _title(method: dict[str, Any]) -> str:
    return TABLE[method["name"]].title if method["name"] in TABLE else str(method["name"])


def span(seconds: float) -> str:
    """A length of time for people.

    >>> span(0.4), span(72), span(7300), span(200_000)
    ('1 s', '72 s', '2 h 2 min', '2 days 7 h')
    """
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    minutes = round(seconds / 60)
    if minutes < 60:
        return f"{minutes} min"
    hours, left = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {left} min"
    return f"{hours // 24} days {hours % 24} h"


def ago(seconds: float) -> str:
    return "now" if seconds < 4 else f"{span(seconds)} ago"


def clock(at: float, now: float) -> str:
    """The time of day, with the day where it is another than today."""
    then, today = datetime.fromtimestamp(at), datetime.fromtimestamp(now)
    return then.strftime("%H:%M:%S" if then.date() == today.date() else "%d %b %H:%M:%S")


# the folder


class Watch:
    """A run folder, looked at as often as somebody asks, but not more."""

    def __init__(self, run: Path) -> None:
        self.run, self.log = run, Log(run / "events.jsonl")
        self._lock = threading.Lock()
        self._told: dict[str, Any] = {}
        self._next = 0.0  # when to look again
        self._kept: dict[str, tuple[Any, Any]] = {}  # file -> its mark, what was read

    def look(self) -> dict[str, Any]:
        """All that the page shows, as plain values."""
        with self._lock:
            began = time.monotonic()
            if began >= self._next:
                self._told = self._tell(time.time())
                self._next = began + max(AGAIN, SPARE * (time.monotonic() - began))
            return self._told

    def _read(self, name: str, read: Callable[[Path], Any]) -> Any:
        """A file that is replaced as a whole, read again when it has changed; None where there is none."""
        path = self.run / name
        try:
            about = path.stat()
            mark = about.st_mtime_ns, about.st_size, about.st_ino
            if self._kept.get(name, (None,))[0] != mark:
                self._kept[name] = mark, read(path)
        except (OSError, ValueError, KeyError, VitrailError):
            return None
        return self._kept[name][1]

    def _json(self, name: str) -> dict[str, Any]:
        return self._read(name, lambda path: json.loads(path.read_text(encoding="utf-8"))) or {}

    def _tell(self, now: float) -> dict[str, Any]:
        info, deployed, log = self._json("run.json"), self._json("deployed.json"), self.log
        study: Study | None = self._read("study.toml", Study.load)
        known = [str(n) for n in dict.fromkeys([*info.get("sites", ()), *deployed.get("sites", ())])]
        log.read(known)
        names = known or list(log.sites)
        finished, metric = bool(info.get("finished")), study.metrics[0] if study else ""
        curve, traffic = self._numbers(finished, metric, names)
        total = log.total or (study.training.rounds if study else 0)
        done = total if finished else log.done
        each, quiet = log.seconds_per_round(), None if log.at is None else now - log.at
        state = "running"
        if finished:
            state = "finished"
        elif log.waiting or log.opening or not info:
            state = "waiting"
        elif quiet is not None and quiet > max(QUIET, 10 * (each or 0.0)):
            state = "quiet"
        rows = self._read("sites.csv", our_table)
        counts = {} if rows is None else dict(zip(rows.site, rows.train_rows + rows.test_rows, strict=True))
        last = {} if curve is None else curve["now"]
        sites = [
            {
                "name": name,
                **_standing(log.site(name), state, bool(deployed), now),
                "round": log.site(name).last,
                "missed": len(log.site(name).missed),
                "score": last.get(name),
                "rows": int(counts[name]) if name in counts else None,
                **{way: traffic[way].get(name) for way in WAYS},
            }
            for name in names
        ]
        page = self.run / "report.html"
        return {
            "state": state,
            "study": study.name if study else str(deployed.get("study", "")),
            "method": _title(info["method"]) if info else "",
            "seed": info.get("seed"),
            "engine": info.get("engine", "deployed" if deployed else ""),
            "started": info.get("started"),
            "seconds": None if log.resumed else info.get("seconds"),  # of the last process only
            "done": done,
            "total": total,
            "seconds_per_round": each,
            "seconds_left": each * (total - done) if each is not None and state == "running" else None,
            "quiet": quiet,
            "answered": list(log.waiting) if log.waiting else None,
            "waiting_for": [s["name"] for s in sites if s["mood"] == "away"] if state == "waiting" else [],
            "sites": sites,
            "bytes": {way: sum(traffic[way].values()) for way in WAYS},
            "curve": curve,
            "events": [
                {**e, "clock": clock(e["time"], now), "since": clock(e["first"], now)} for e in reversed(log.events)
            ],
            "folder": str(self.run.resolve()),
            "report": str(page.resolve()) if finished and page.is_file() else None,
        }

    def _numbers(self, finished: bool, metric: str, names: list[str]) -> tuple[dict[str, Any] | None, Traffic]:
        """The curve so far, and the bytes that travelled."""
        nothing: Traffic = {way: {} for way in WAYS}
        if finished:
            curve = self._read("scores.csv", lambda path: curve_of(our_table(path), metric, names))
            return curve, self._read("ledger.csv", _counted) or nothing
        so_far: tuple[dict[str, Any] | None, Traffic] | None = self._read(
            "checkpoint.json", lambda path: _kept(json.loads(path.read_text("utf-8")), metric, names)
        )
        return so_far or (None, nothing)


def _counted(path: Path) -> Traffic:
    ledger = our_table(path)
    of = {way: ledger[ledger.direction == way].groupby("site").bytes.sum() for way in WAYS}
    return {way: {str(site): int(count) for site, count in sums.items()} for way, sums in of.items()}


def _kept(at: dict[str, Any], metric: str, names: list[str]) -> tuple[dict[str, Any] | None, Traffic]:
    """What a checkpoint says. One of an older version does not tell how large a message is."""
    out: Traffic = {way: {} for way in WAYS}
    for place, counts in at["ledger"].items() if "sizes" in at else ():
        of = out[place.rpartition("|")[2]]
        for name, count in zip(at["names"], counts, strict=True):
            if name in names:  # rows that were pooled belong to no site
                of[name] = of.get(name, 0) + count * at["sizes"].get(place, 0)
    return curve_of(pd.DataFrame(at["history"], columns=HISTORY), metric, names), out


def _standing(site: SiteSeen, state: str, deployed: bool, now: float) -> dict[str, Any]:
    """How a site stands, in a word for the page's colours and in words for people."""
    seen = None if site.seen is None else clock(site.seen, now) if state == "finished" else ago(now - site.seen)
    away = "" if site.since is None else f" since {clock(site.since, now)}"
    if site.link == "set aside":
        mood, said = "aside", "set aside"
    elif site.link == "lost" or site.out or site.since:
        mood, said = "away", f"away{away}" if site.link in ("", "lost") else f"no answer{away}"
    elif state == "finished":
        mood, said = "here", "finished"
    elif deployed and not site.link:
        mood, said = "away", "not there yet"
    else:
        mood, said = "here", "connected" if state == "waiting" else "taking part"
    return {"mood": mood, "says": said, "why": site.why, "seen": seen}


def curve_of(history: pd.DataFrame, metric: str, names: Sequence[str]) -> dict[str, Any] | None:
    """The primary metric along the run. A site without a score keeps its last one, so that the mean does not jump."""
    rows = along(history[history.metric == metric]) if len(history) else history
    rows = rows[rows["value"].notna()] if len(rows) else rows
    if not len(rows):
        return None
    table = rows.pivot_table(index="round", columns="site", values="value", aggfunc="last").sort_index().ffill()
    table = table[[n for n in names if n in table]]
    table = table.iloc[_thin(len(table))]
    worst = table.max(axis=1) if metric in LOWER_IS_BETTER else table.min(axis=1)
    last = table.iloc[-1]
    who = last.idxmax() if metric in LOWER_IS_BETTER else last.idxmin()
    return {
        "metric": metric,
        "rounds": [int(r) for r in table.index],
        "mean": [float(v) for v in table.mean(axis=1)],
        "worst": [float(v) for v in worst],
        "worst_site": str(who),
        "sites": {str(n): [None if math.isnan(v) else float(v) for v in table[n]] for n in table},
        "now": {str(n): float(v) for n, v in last.items() if not math.isnan(v)},
    }
