"""The page that follows a run while it is written: `vitrail ui`, `vitrail serve --page`.

The page is made here, and the JSON that it asks for. Of the run's files only pages that everybody may read are handed
out: its report and what lies beside it.
"""

from __future__ import annotations

import http.cookies
import ipaddress
import json
import math
import secrets
import socket
import sys
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from markupsafe import Markup

from vitrail.core.errors import Problem, VitrailError
from vitrail.core.text import number, several, shorten_all, size
from vitrail.report.charts import svg
from vitrail.report.charts.axes import Ticks, domain, ticks
from vitrail.report.charts.curves import Curves, Panel, Series, curves
from vitrail.report.live.watcher import RunWatcher, span
from vitrail.report.pages.frame import content_policy, fill, fill_part, script_of
from vitrail.report.pages.links import head_of
from vitrail.report.text import listed, metric_words

LABELLED = 12  # with more sites only the mean and the worst are named in the figure
LATEST = 30  # events before the fold
SCRIPT = "live.js"  # follows the run
BAD = ("lost", "trouble", "set aside", "refused", "job lost", "job not begun", "transport lost", "not ours")
GOOD = ("joined", "back", "finished")


# the page


def curve_figure(curve: dict[str, Any] | None) -> Markup:
    """Mean and worst site over the rounds, every site's own line behind them; wide and narrow."""
    return Markup() if curve is None else svg.twice(lambda width: _curves(curve, width))


def _curves(curve: dict[str, Any], width: int) -> Markup:
    narrow, rounds, last = svg.is_narrow(width), [float(r) for r in curve["rounds"]], curve["worst_site"]
    short = shorten_all(list(curve["sites"]), 14 if narrow else 24)
    few, alone = len(short) <= LABELLED, len(short) == 1
    kind, series = "series of" if few else "series of many", []
    for name, values in curve["sites"].items():
        label = short[name] if alone or (few and name != last) else ""
        series.append(Series(name, label, kind, rounds, [math.nan if v is None else v for v in values]))
    if not alone:
        series.append(Series("worst site", f"worst: {short[last]}", "series strong m1", rounds, curve["worst"]))
        series.append(Series("mean of sites", "mean of sites", "series strong m0", rounds, curve["mean"]))
    same = list(curve["same"].values())
    level = ("baseline" if alone else "baseline, mean of sites", sum(same) / len(same)) if same else None
    reach = (rounds[0], rounds[-1]) if rounds[-1] > rounds[0] else (rounds[0] - 1, rounds[0] + 1)
    shown = [v for s in series for v in s.y] + ([level[1]] if level else [])
    axis = metric_words(curve["metric"])
    text = "; ".join(f"{s.name}: {number(s.y[-1])} after round {rounds[-1]:.0f}" for s in series if s.label)
    panel = Panel(axis, series, *domain(shown), level)
    marks = round_marks(rounds[0], rounds[-1], 3 if narrow else 6)
    figure = Curves(f"{axis} over the rounds", f"{text}.", [panel], "round", *reach, marks, (230.0, 230.0))
    return curves(figure, width)


def round_marks(first: float, last: float, about: int) -> Ticks:
    """Rounds on an axis, about so many: round numbers at equal distances.

    >>> [[words for _, words in round_marks(*ends, 6)] for ends in ((1, 100), (0, 97), (3, 5), (4, 4))]
    [['20', '40', '60', '80', '100'], ['0', '20', '40', '60', '80'], ['3', '4', '5'], ['4']]
    """
    marks = [t for t in ticks(first, last, about) if t == int(t)] if last > first else []
    return [(r, f"{r:.0f}") for r in (marks if len(marks) > 1 else sorted({first, last}))]


def headline(status: dict[str, Any]) -> tuple[str, Markup]:
    """The state in a word, and a sentence about it."""
    state, at = status["state"], f"round {status['done']} of {status['total']}"
    if state == "finished":
        took = f", in {span(status['seconds'])}" if status["seconds"] is not None else ""
        done = Markup("All {} are done{}.").format(several(status["total"], "round"), took)
        if fold := status.get("fold"):
            more = Markup(
                " The sites train once more for each fold, to find out whether joining is worth it: {} of {}."
            )
            return "Running", done + more.format(*fold)
        if status.get("refit"):
            return "Running", done + Markup(" The sites train once more, on all of their rows.")
        return "Finished", done
    if state == "waiting":
        whom = [Markup("<b>{}</b>").format(n) for n in status["waiting_for"]]
        answers = status["answered"]
        have = f" {answers[0]} of {several(answers[1], 'needed answer')} so far." if answers else ""
        last = f" The last was {at}." if status["done"] else " The run has not begun."
        return "Waiting", Markup("for {}.{}{}").format(listed(whom) if whom else "the sites to answer", have, last)
    if state == "quiet":
        word = "Nothing was written for {}; the last was {}. It is in a long round, or its process was stopped."
        return "Quiet", Markup(word).format(span(status["quiet"]), at)
    if status["total"] and status["done"] == status["total"]:
        return "Running", Markup("All rounds are done; the results are being written.")
    left = f", about {span(status['seconds_left'])} left" if status["seconds_left"] is not None else ""
    return "Running", Markup("{}{}.").format(at[:1].upper() + at[1:], left)


def contents(status: dict[str, Any]) -> dict[str, Any]:
    """What the template is given."""
    (word, sentence), state = headline(status), status["state"]
    curve, report = status["curve"], status["report"]
    facts = [
        status["method"],
        f"seed {status['seed']}",
        "sites on their own machines" if status["engine"] == "deployed" else "on this machine",
        f"begun {status['started']}",
        f"{status['seconds_per_round']:.2g} s a round" if status["seconds_per_round"] else "",
    ]
    sums = status["bytes"]
    return {
        "status": status,
        "title": f"{status['done']}/{status['total']} {status['study']}"
        if state == "running"
        else f"{word}: {status['study']}",
        "word": word,
        "sentence": sentence,
        "report": report,
        "link": Path(report).name if report and shared_page(Path(report)) else "",
        "facts": " · ".join(f for f in facts if f) if status["method"] else "",
        # of many sites those that need a look come first
        "sites": sorted(status["sites"], key=lambda s: len(status["sites"]) > LABELLED and s["mood"] == "here"),
        "traffic": (
            f"{size(sums['from site'])} left the sites, {size(sums['to site'])} reached them."
            if any(sums.values())
            else "No traffic is counted yet."
        ),
        "figure": curve_figure(curve),
        "metric": metric_words(curve["metric"]) if curve else "",
        "missed": any(s["missed"] for s in status["sites"]),
        "latest": LATEST,
        "bad": BAD,
        "good": GOOD,
    }


def render(status: dict[str, Any]) -> tuple[str, str]:
    """The page, and the policy that it is sent with."""
    policy = f"{content_policy(script_of(SCRIPT), connects=True)}; frame-ancestors 'none'"
    return fill("live.html", more_script=SCRIPT, connects=True, **contents(status)), policy


def shared_page(file: Path) -> bool:
    """Whether it is a page of ours that everybody may read, and so may be handed out."""
    head = head_of(file) if file.suffix == ".html" and file.is_file() and not file.is_symlink() else None
    return head is not None and not head.site


# the server


@dataclass
class LivePage:
    """The page while it is served. `url` holds the token where one is asked for."""

    url: str
    server: ThreadingHTTPServer
    thread: threading.Thread

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


def check_folder(run: Path) -> None:
    """That there is a run to follow."""
    what = ""
    if not any((run / name).is_file() for name in ("run.json", "deployed.json", "events.jsonl")):
        what = "expected the folder of a run." if run.is_dir() else "there is no such folder."
    elif (run / "parts").is_dir():
        what = "this is a comparison: it keeps its runs only when they are done."
    if what:
        hint = "Give the folder that `vitrail run --out` or `vitrail serve` writes."
        raise VitrailError("there is nothing to follow", [Problem(str(run), what, hint)])


def start(run: Path, host: str = "127.0.0.1", port: int = 0) -> LivePage:
    """Serve the live page of a run folder from a thread. The folder may still be empty.

    On this machine's own address no token is asked for, and only requests under its own names are answered, so that
    no web page elsewhere can reach it by a name of its own. On any other address a token is asked for.
    """
    home = _is_loopback(host)
    token = "" if home else secrets.token_urlsafe(24)

    class Handler(_Handler):
        watch, key = RunWatcher(run), token

    class Server(ThreadingHTTPServer):
        address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            if not isinstance(sys.exc_info()[1], OSError):  # somebody closed the page: no news
                super().handle_error(request, client_address)

    try:
        server = Server((host, port), Handler)
    except (OSError, OverflowError) as error:
        what = f"the page cannot be served there: {getattr(error, 'strerror', None) or error}."
        hint = "Choose another, or --port 0 for any that is free."
        raise VitrailError("there is no page", [Problem(f"--host {host} --port {port}", what, hint)]) from None
    at = server.server_address[1]
    names = (host, "127.0.0.1", "localhost", "::1") if home else ()
    Handler.hosts = frozenset(_named(n, end) for n in names for end in (f":{at}", *([""] if at == 80 else [])))
    Handler.cookie = f"vitrail-{at}"  # cookies do not tell ports apart
    shown = socket.gethostname() if host in ("0.0.0.0", "::", "") else host
    url = f"http://{_named(shown, f':{at}')}/" + (f"?token={token}" if token else "")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
    thread.start()
    return LivePage(url, server, thread)


def _named(host: str, end: str) -> str:
    return (f"[{host}]" if ":" in host else host).lower() + end


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class _Handler(BaseHTTPRequestHandler):
    """The page, its JSON, and pages of the run that everybody may read; nothing can be changed."""

    watch: RunWatcher
    key: str  # the token; empty where none is asked for
    hosts: frozenset[str] = frozenset()  # the names we go by; empty where people come by any, with the token
    cookie: str = ""
    timeout = 20
    server_version, sys_version = "vitrail", ""

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        if self.hosts and self.headers.get("Host", "").lower() not in self.hosts:
            return self._plain(403, "This page was asked for under a name that is not its own.")
        if self.key:
            token = parse_qs(address.query).get("token", [""])[0]
            if address.path == "/" and _same(token, self.key):  # once, then the cookie: the address bar forgets it
                cookie = f"{self.cookie}={self.key}; Path=/; HttpOnly; SameSite=Lax"
                return self._send(303, "text/plain", b"", {"Location": "/", "Set-Cookie": cookie})
            if not _same(self._token(), self.key):
                return self._plain(403, "A token is needed: open the address that vitrail printed.")
        if address.path == "/":
            page, policy = render(self.watch.look())
            return self._send(200, "text/html", page.encode(), {"Content-Security-Policy": policy})
        if address.path == "/state.json":
            status = self.watch.look()
            shown = contents(status)
            state = {**status, "title": shown["title"], "html": fill_part("live_now.html", **shown)}
            return self._send(200, "application/json", json.dumps(state, allow_nan=False).encode())
        if (file := self._page(unquote(address.path))) is not None:
            policy = f"{content_policy(script_of())}; frame-ancestors 'none'"
            return self._send(200, "text/html", file.read_bytes(), {"Content-Security-Policy": policy})
        return self._plain(404, "There is nothing here.")

    def _page(self, path: str) -> Path | None:
        """The run's page of this name, directly in its folder; nothing that stays at a site, and no other file."""
        name = path.removeprefix("/")
        if not name or name != Path(name).name or "\\" in name or "\0" in name:
            return None
        file = self.watch.run / name
        return file if shared_page(file) else None

    def _token(self) -> str:
        try:
            jar = http.cookies.SimpleCookie(self.headers.get("Cookie", ""))
        except http.cookies.CookieError:
            return ""
        return jar[self.cookie].value if self.cookie in jar else ""

    def _plain(self, status: int, text: str, more: dict[str, str] | None = None) -> None:
        self._send(status, "text/plain", f"{text}\n".encode(), more)

    def _send(self, status: int, kind: str, body: bytes, more: dict[str, str] | None = None) -> None:
        self.send_response(status)
        heads = {
            "Content-Type": f"{kind}; charset=utf-8",
            "Content-Length": str(len(body)),
            "Cache-Control": "no-store",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
            "Cross-Origin-Resource-Policy": "same-origin",
        }
        for name, value in {**heads, **(more or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None:
        pass


def _same(given: str, key: str) -> bool:
    return secrets.compare_digest(given.encode(), key.encode())
