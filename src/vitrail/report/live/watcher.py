"""A run folder, read while it is written: what its log says, how far it is, how every site stands.

It only reads, and only what the coordinator may see: run.json, deployed.json, events.jsonl, checkpoint.json and the
tables; nothing under sites/.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd

from vitrail.core.errors import VitrailError
from vitrail.metrics.skill import worst_site
from vitrail.report.charts.axes import thin
from vitrail.report.live.events import EventLog, SiteStatus, method_title, words
from vitrail.runs.result import ALL_SITES, FOLDED, HISTORY, REFITTED, curve_of_history
from vitrail.runs.setup import MAJORITY
from vitrail.runs.store import our_table
from vitrail.study.model import LOWER_IS_BETTER, Study

QUIET = 60.0  # seconds without a word, or ten rounds if they take longer: then the run is called quiet
AGAIN = 0.5  # seconds for which one look at the folder is good enough
SPARE = 10.0  # a look that took long is good for so many times as long: the run needs the processor
WAYS = ("from site", "to site")
Bytes = dict[str, dict[str, int]]  # direction -> site -> bytes

__all__ = ["RunWatcher", "ago", "clock", "curve_of", "span", "words"]  # `words` of an event, for who prints them


class RunWatcher:
    """A run folder, looked at as often as somebody asks, but not more."""

    def __init__(self, run: Path) -> None:
        self.run, self.log = run, EventLog(run / "events.jsonl")
        self._lock = threading.Lock()
        self._latest: dict[str, Any] = {}
        self._next = 0.0  # when to look again
        self._cache: dict[str, tuple[Any, Any]] = {}  # file -> its mark, what was read

    def look(self) -> dict[str, Any]:
        """All that the page shows, as plain values."""
        with self._lock:
            began = time.monotonic()
            if began >= self._next:
                self._latest = self._status(time.time())
                self._next = began + max(AGAIN, SPARE * (time.monotonic() - began))
            return self._latest

    def _read(self, name: str, read: Callable[[Path], Any]) -> Any:
        """A file that is replaced as a whole, read again when it has changed; None where there is none."""
        path = self.run / name
        try:
            about = path.stat()
            mark = about.st_mtime_ns, about.st_size, about.st_ino
            if self._cache.get(name, (None,))[0] != mark:
                self._cache[name] = mark, read(path)
        except (OSError, ValueError, KeyError, VitrailError):
            return None
        return self._cache[name][1]

    def _json(self, name: str) -> dict[str, Any]:
        return self._read(name, lambda path: json.loads(path.read_text(encoding="utf-8"))) or {}

    def _status(self, now: float) -> dict[str, Any]:
        info, deployed, log = self._json("run.json"), self._json("deployed.json"), self.log
        study: Study | None = self._read("study.toml", Study.load)
        participants = [str(n) for n in dict.fromkeys([*info.get("sites", ()), *deployed.get("sites", ())])]
        log.read(participants)
        names = participants or list(log.sites)
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
        last, same = ({}, {}) if curve is None else (curve["now"], curve["same"])
        sites = [
            {
                "name": name,
                **_standing(log.site(name), state, bool(deployed), now),
                "round": log.site(name).last,
                "missed": len(log.site(name).missed),
                "score": last.get(name),
                "same": same.get(name),
                "rows": int(counts[name]) if name in counts else None,
                **{way: traffic[way].get(name) for way in WAYS},
            }
            for name in names
        ]
        page = self.run / "report.html"
        return {
            "state": state,
            "row_word": study.row_word if study else "row",
            "study": study.name if study else str(deployed.get("study", "")),
            "method": method_title(info["method"]) if info else "",
            "seed": info.get("seed"),
            "engine": info.get("engine", "deployed" if deployed else ""),
            "started": info.get("started"),
            "seconds": None if log.resumed else info.get("seconds"),  # of the last process only
            "done": done,
            "total": total,
            "seconds_per_round": each,
            "seconds_left": each * (total - done) if each is not None and state == "running" else None,
            "fold": log.fold if finished and FOLDED not in info else None,
            "refit": log.refit and finished and REFITTED not in info,
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

    def _numbers(self, finished: bool, metric: str, names: list[str]) -> tuple[dict[str, Any] | None, Bytes]:
        """The curve so far, and the bytes that travelled."""
        nothing: Bytes = {way: {} for way in WAYS}
        if finished:
            curve = self._read("scores.csv", lambda path: curve_of(our_table(path), metric, names))
            return curve, self._read("ledger.csv", _counted) or nothing
        so_far: tuple[dict[str, Any] | None, Bytes] | None = self._read(
            "checkpoint.json", lambda path: _of_checkpoint(json.loads(path.read_text("utf-8")), metric, names)
        )
        return so_far or (None, nothing)


def _counted(path: Path) -> Bytes:
    ledger = our_table(path)
    of = {way: ledger[ledger.direction == way].groupby("site").bytes.sum() for way in WAYS}
    return {way: {str(site): int(count) for site, count in sums.items()} for way, sums in of.items()}


def _of_checkpoint(at: dict[str, Any], metric: str, names: list[str]) -> tuple[dict[str, Any] | None, Bytes]:
    """What a checkpoint says. One of an older version does not tell how large a message is."""
    out: Bytes = {way: {} for way in WAYS}
    for place, counts in at["ledger"].items() if "sizes" in at else ():
        of = out[place.rpartition("|")[2]]
        for name, count in zip(at["names"], counts, strict=True):
            if name in names:  # rows that were pooled belong to no site
                of[name] = of.get(name, 0) + count * at["sizes"].get(place, 0)
    return curve_of(pd.DataFrame([*at["history"], *at.get("chance", ())], columns=HISTORY), metric, names), out


def _standing(site: SiteStatus, state: str, deployed: bool, now: float) -> dict[str, Any]:
    """How a site stands, in a word for the page's colours and in words for people."""
    seen = None if site.seen is None else clock(site.seen, now) if state == "finished" else ago(now - site.seen)
    away = "" if site.since is None else f" since {clock(site.since, now)}"
    if site.link == "set aside":
        mood, state_words = "aside", "set aside"
    elif site.link == "lost" or site.out or site.since:
        mood, state_words = "away", f"away{away}" if site.link in ("", "lost") else f"no answer{away}"
    elif state == "finished":
        mood, state_words = "here", "finished"
    elif deployed and not site.link:
        mood, state_words = "away", "not there yet"
    else:
        mood, state_words = "here", "connected" if state == "waiting" else "taking part"
    return {"mood": mood, "says": state_words, "why": site.why, "seen": seen}


def curve_of(history: pd.DataFrame, metric: str, names: Sequence[str]) -> dict[str, Any] | None:
    """The primary metric along the run. A site without a score keeps its last one, so that the mean does not jump."""
    rows = curve_of_history(history[history.metric == metric]) if len(history) else history
    rows = rows[rows["value"].notna()] if len(rows) else rows
    if not len(rows):
        return None
    usual = history[(history.split == f"test:{MAJORITY}") & (history.metric == metric) & history["value"].notna()]
    table = rows.pivot_table(index="round", columns="site", values="value", aggfunc="last").sort_index().ffill()
    table = table[[n for n in (*names, ALL_SITES) if n in table]]
    table = table.iloc[thin(len(table))]
    same = {str(s): float(v) for s, v in zip(usual.site, usual.value, strict=True) if s in names}
    by_round: list[dict[str, float]] = table.to_dict("records")  # type: ignore[assignment]
    worst = [worst_site(scores, same, metric in LOWER_IS_BETTER) or "" for scores in by_round]
    last = table.iloc[-1]
    return {
        "metric": metric,
        "rounds": [int(r) for r in table.index],
        "mean": [float(v) for v in table.mean(axis=1)],
        "worst": [scores[site] for site, scores in zip(worst, by_round, strict=True)],
        "worst_site": worst[-1],
        "sites": {str(n): [None if math.isnan(v) else float(v) for v in table[n]] for n in table},
        "same": same,
        "now": {str(n): float(v) for n, v in last.items() if not math.isnan(v)},
    }


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
