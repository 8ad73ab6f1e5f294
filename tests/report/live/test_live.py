"""The page that follows a run: what it reads, what it says, whom it answers, and how it moves in a browser."""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import torch
from typer.testing import CliRunner

import vitrail as vt
import vitrail.deploy
from tests.support.report.browser import BROWSER, Browser
from tests.support.report.explanations import made
from tests.support.report.live_runs import Story
from tests.support.report.pages import HEART, HOSTILE, make
from vitrail.analysis.explanations.summary import summarise_sites
from vitrail.cli import app
from vitrail.core.errors import VitrailError
from vitrail.data.datasets.catalogue import heart_disease, packaged
from vitrail.report import render
from vitrail.report.live import server as live_module
from vitrail.report.live import watcher as watch_module
from vitrail.report.live.server import LivePage, start
from vitrail.report.live.watcher import RunWatcher
from vitrail.report.pages.explanation import write_explained
from vitrail.report.pages.explanation_summary import write_explanation_summary
from vitrail.report.pages.links import write_linked
from vitrail.storage.atomic_files import write_atomically


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look is a new one."""
    monkeypatch.setattr(watch_module, "AGAIN", 0.0)
    monkeypatch.setattr(watch_module, "SPARE", 0.0)


@pytest.fixture
def served(tmp_path: Path, fresh: None) -> Iterator[tuple[Story, LivePage]]:
    story = Story(tmp_path / "run")
    page = start(story.path)
    yield story, page
    page.stop()


def get(page: LivePage, path: str = "/", method: str = "GET", **headers: str) -> tuple[int, dict[str, str], str]:
    host = urlsplit(page.url)
    line = http.client.HTTPConnection(host.hostname or "", host.port or 0, timeout=20)
    line.request(method, path, headers=headers)
    answer = line.getresponse()
    text = answer.read().decode()
    line.close()
    return answer.status, {k.lower(): v for k, v in answer.getheaders()}, text


def state(page: LivePage) -> dict[str, Any]:
    status, _, text = get(page, "/state.json")
    assert status == 200
    return dict(json.loads(text))


# what it reads


def test_from_waiting_to_the_end(served: tuple[Story, LivePage]) -> None:
    story, page = served
    told = state(page)
    assert (told["state"], told["waiting_for"], told["study"]) == ("waiting", list(HEART), story.study.name)
    for name in HEART[:3]:
        story.log("joined", site=name)
    told = state(page)
    assert told["waiting_for"] == ["va"]
    assert "<b>va</b>" in told["html"]
    assert "<b>cleveland</b>" not in told["html"]
    story.log("joined", site="va")
    story.begin()
    for r in (1, 2, 3):
        story.round(r)
    told = state(page)
    assert (told["state"], told["done"], told["total"], told["curve"]) == ("running", 3, 40, None)
    assert told["seconds_per_round"] == pytest.approx(0.5)
    assert told["seconds_left"] == pytest.approx(18.5)
    assert {s["says"] for s in told["sites"]} == {"taking part"}
    story.keep(3)
    told = state(page)
    curve = told["curve"]
    assert curve["rounds"] == [0, 1, 2, 3]
    assert curve["worst"] == pytest.approx([story.score(r) - 0.06 for r in range(4)])
    assert curve["mean"] == pytest.approx([story.score(r) - 0.03 for r in range(4)])
    assert curve["worst_site"] == "va"
    assert told["bytes"] == {"to site": 4 * 3 * 1000, "from site": 4 * 2 * 500}
    assert [s["from site"] for s in told["sites"]] == [1000] * 4
    assert f"{story.score(3):.3f}" in told["html"]


def test_a_lost_site_and_its_return(served: tuple[Story, LivePage]) -> None:
    story, page = served
    for name in HEART:
        story.log("joined", site=name)
    story.begin()
    story.round(1)
    for _ in range(3):
        story.log("trouble", site="hungarian", what="no answer within 60 seconds")
        story.log("trouble", site="va", what="it is not connected")
        story.log("waiting", answered=2, needed=3)
    told = state(page)
    assert told["state"] == "waiting"
    assert told["answered"] == [2, 3]
    assert told["waiting_for"] == ["hungarian", "va"]
    last = told["events"][:3]
    assert [e["times"] for e in last] == [3, 3, 3], "what is told again and again is told once"
    story.round(2, "va")
    story.round(3, "va")
    told = state(page)
    sites = {s["name"]: s for s in told["sites"]}
    assert told["state"] == "running"
    assert (sites["va"]["mood"], sites["va"]["round"], sites["va"]["missed"]) == ("away", 1, 2)
    assert sites["va"]["why"] == "it is not connected"
    assert (sites["hungarian"]["mood"], sites["hungarian"]["round"]) == ("here", 3)
    story.log("back", site="va")
    story.round(4)
    story.log("set aside", site="cleveland", why="it says: disk full")
    told = state(page)
    sites = {s["name"]: s for s in told["sites"]}
    assert (sites["va"]["mood"], sites["va"]["round"], sites["va"]["missed"]) == ("here", 4, 2)
    assert sites["cleveland"]["mood"] == "aside"
    assert [e["text"] for e in told["events"][:2]] == [
        "cleveland is set aside and no longer asked: it says: disk full.",
        "va is back.",
    ]


def test_a_coordinator_that_is_started_again_waits(served: tuple[Story, LivePage]) -> None:
    story, page = served
    for name in HEART:
        story.log("joined", site=name)
    story.begin()
    story.round(5)
    story.log("transport started", address="127.0.0.1:8002")
    story.log("joined", site="va")
    told = state(page)
    assert told["state"] == "waiting"
    assert told["waiting_for"] == [n for n in HEART if n != "va"]
    story.log("resumed", stage=0, round=5)
    assert state(page)["state"] == "running"


def test_absences_on_this_machine(tmp_path: Path, fresh: None) -> None:
    story = Story(tmp_path / "run", deployed=False)
    story.begin()
    for r in range(1, 9):
        gone = ["va"] * (r in (2, 3, 6, 7)) + ["cleveland"] * (r == 7)
        if gone:
            story.log("absent", stage=0, round=r, done=r, sites=gone)
    story.round(8)
    told = RunWatcher(story.path).look()
    assert [e["text"] for e in reversed(told["events"])][1:] == [
        "va is away from round 2 on.",
        "va is back after 2 rounds without it.",
        "va is away from round 6 on.",
        "cleveland is away from round 7 on.",
        "cleveland is back after 1 round without it.",
        "va is back after 2 rounds without it.",
    ]
    assert {s["name"]: (s["missed"], s["round"]) for s in told["sites"]} == {
        "cleveland": (1, 8),
        "hungarian": (0, 8),
        "switzerland": (0, 8),
        "va": (4, 8),
    }


def test_torn_and_odd_lines(served: tuple[Story, LivePage]) -> None:
    story, page = served
    story.begin()
    story.round(1)
    log = story.path / "events.jsonl"
    line = json.dumps({"time": "2026-01-01T00:00:00+0000", "event": "back", "site": "va"})
    with log.open("a") as file:
        file.write(line[:30])
    before = state(page)
    assert before["done"] == 1
    assert not any(e["kind"] == "back" for e in before["events"])
    with log.open("a") as file:
        file.write(line[30:] + "\n")
    assert state(page)["events"][0]["text"] == "va is back."
    with log.open("a") as file:  # killed while writing, then taken up again
        file.write(line[:30] + "\n[1]\n{}\n" + json.dumps({"time": "yesterday", "event": "x"}) + "\n")
    story.round(2)
    assert state(page)["done"] == 2
    log.write_text("")
    story.log("something new", site="va", much=3)
    told = state(page)
    assert [e["text"] for e in told["events"]] == ["Something new: site va, much 3."], "another log took its place"


def test_a_run_without_news_is_called_quiet(tmp_path: Path, fresh: None, monkeypatch: pytest.MonkeyPatch) -> None:
    story = Story(tmp_path / "run", deployed=False)
    story.begin()
    story.round(1)
    watch = RunWatcher(story.path)
    assert watch.look()["state"] == "running"
    now = time.time()
    monkeypatch.setattr(watch_module.time, "time", lambda: now + 600)
    told = watch.look()
    assert told["state"] == "quiet"
    assert "10 min" in live_module.headline(told)[1]


def test_names_stay_text(tmp_path: Path, fresh: None) -> None:
    story = Story(tmp_path / "run", names=HOSTILE)
    story.begin()
    story.round(1)
    story.keep(1)
    story.log("trouble", site=HOSTILE[0], what=HOSTILE[1])
    page = start(story.path)
    whole, inner = get(page)[2], state(page)["html"]
    page.stop()
    for html in (whole, inner):
        assert html.count("<script") == (html is whole), "only our own"
        assert "<img" not in html
        assert html.count("</svg>") == 2


def test_a_score_that_is_not_defined(tmp_path: Path, fresh: None) -> None:
    story = Story(tmp_path / "run")
    story.begin()
    story.keep(2)
    kept = json.loads((story.path / "checkpoint.json").read_text())
    for row in kept["history"]:
        if row[2] == "va":
            row[5] = float("nan")
    write_atomically(story.path / "checkpoint.json", json.dumps(kept))
    page = start(story.path)
    told = state(page)
    page.stop()
    assert {s["name"]: s["score"] is None for s in told["sites"]} == {n: n == "va" for n in HEART}
    assert told["curve"]["worst_site"] == "switzerland"


def test_a_real_run_that_grows_while_watched(tmp_path: Path, fresh: None) -> None:
    """The events and checkpoints of `federate` itself; at the end the page says what the run says."""
    study, out, seen = vt.Study.load(packaged("heart_disease.toml")), tmp_path / "run", []
    watch = RunWatcher(out)
    assert watch.look()["state"] == "waiting"

    def progress(done: int, total: int) -> None:
        told = watch.look()
        seen.append((told["done"], told["total"], told["curve"] and told["curve"]["rounds"][-1], told["state"]))

    torch.set_num_threads(1)
    run = vt.federate(
        study, heart_disease(), "fedavg", rounds=6, out=out, away={"va": [(3, 4)]}, progress=progress,
        checkpoint_seconds=0.0,
    )  # fmt: skip
    assert [s[3] for s in seen] == ["running"] * 6
    assert seen[0][:2] == (1, 6)
    assert [s[2] for s in seen[:5]] == [1, 2, 3, 4, 5]
    told = watch.look()
    assert told["state"] == "finished"
    assert told["done"] == told["total"] == 6
    assert told["report"] is None
    scores = run.scores()
    scores = scores[scores.metric == study.metrics[0]].set_index("site").value
    assert {s["name"]: s["score"] for s in told["sites"]} == pytest.approx(scores.to_dict())
    for way in ("from site", "to site"):
        assert told["bytes"][way] == run.ledger[run.ledger.direction == way].bytes.sum()
    assert {s["name"]: s["missed"] for s in told["sites"]} == {n: 2 * (n == "va") for n in HEART}
    assert sum(s["rows"] for s in told["sites"]) == sum(len(f) for f in heart_disease().values())
    (out / "report.html").write_text("x")
    assert RunWatcher(out).look()["report"] == str((out / "report.html").resolve())


def test_rounds_are_told_once_a_second(tmp_path: Path) -> None:
    study, out = vt.Study.load(packaged("heart_disease.toml")), tmp_path / "run"
    torch.set_num_threads(1)
    run = vt.federate(study, heart_disease(), "fedavg", rounds=12, out=out)
    rounds = [
        e for line in (out / "events.jsonl").read_text().splitlines() if (e := json.loads(line))["event"] == "round"
    ]
    assert [rounds[0]["done"], rounds[-1]["done"]] == [1, 12]
    assert len(rounds) <= 3 + run.info["seconds"]


@pytest.mark.parametrize("about", [3, 6])
def test_ticks_are_round_and_evenly_spaced(about: int) -> None:
    for first in (0, 1, 3, 10):
        for last in range(first, first + 130):
            rounds = [r for r, _ in live_module.round_marks(float(first), float(last), about)]
            steps = {b - a for a, b in pairwise(rounds)}
            assert len(steps) <= 1, (first, last, rounds)
            assert all(first <= r <= last and r == int(r) for r in rounds)
            assert len(rounds) <= about + 1
            assert len(rounds) >= min(2, last - first + 1)


# the report


def finished(story: Story) -> None:
    story.info |= {"finished": "2026-11-17"}
    story.begin()


def test_the_report_is_a_link(served: tuple[Story, LivePage]) -> None:
    story, page = served
    finished(story)
    assert "The report is not written yet" in state(page)["html"]
    write_linked(render(make(rounds=2)), story.path / "report.html")
    write_explanation_summary(summarise_sites({"a": made()}), story.path / "what & why.html", make().title)
    html = state(page)["html"]
    assert '<a href="report.html">The report of this run</a>' in html
    for name in ("report.html", "what%20%26%20why.html"):
        status, heads, text = get(page, f"/{name}")
        assert status == 200
        assert heads["content-type"].startswith("text/html")
        assert "frame-ancestors 'none'" in heads["content-security-policy"]
        digest = re.findall("'sha256-[^']+'", heads["content-security-policy"])
        assert digest == re.findall("'sha256-[^']+'", text)
    (link,) = re.findall('<nav class="pages.*?href="([^"]+)"', get(page, "/report.html")[2])
    assert get(page, f"/{link}")[0] == 200, "links between the pages hold here too"


def test_what_stays_at_a_site_is_not_handed_out(served: tuple[Story, LivePage]) -> None:
    story, page = served
    finished(story)
    write_explained(made(), story.path / "explain-va.html", site="va", study=story.study.name)
    (story.path / "notes.html").write_text("<!doctype html><p>mine", encoding="utf-8")
    (story.path / "sites" / "va").mkdir(parents=True)
    write_linked(render(make(rounds=2)), story.path / "sites" / "va" / "page.html")
    write_linked(render(make(rounds=2)), story.path.parent / "outside.html")
    (story.path / "link.html").symlink_to(story.path.parent / "outside.html")
    for path in (
        "/explain-va.html", "/notes.html", "/sites/va/page.html", "/../outside.html", "/%2e%2e/outside.html",
        "/link.html", "/..%5Coutside.html", "/.html", "//report.html", "/report.html%00", "/deployed.json",
    ):  # fmt: skip
        assert get(page, path)[0] == 404, path
    (story.path / "report.html").write_text("x", encoding="utf-8")
    assert get(page, "/report.html")[0] == 404, "it is no page of ours"
    html = state(page)["html"]
    assert "<a href" not in html
    assert "report.html</code>" in html, "where it lies is told all the same"


def test_the_report_needs_the_token_too(tmp_path: Path, fresh: None) -> None:
    story = Story(tmp_path / "run")
    write_linked(render(make(rounds=2)), story.path / "report.html")
    page = start(story.path, host="0.0.0.0")
    local = LivePage(page.url.replace(urlsplit(page.url).hostname or "", "127.0.0.1"), page.server, page.thread)
    try:
        assert get(local, "/report.html")[0] == 403
        token = urlsplit(page.url).query.removeprefix("token=")
        cookie = f"vitrail-{urlsplit(page.url).port}={token}"
        assert get(local, "/report.html", Cookie=cookie)[0] == 200
    finally:
        page.stop()


# whom it answers


def test_the_page_and_its_policy(served: tuple[Story, LivePage]) -> None:
    _, page = served
    status, heads, html = get(page)
    assert status == 200
    policy = heads["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    script = html[html.index("<script>") + 8 : html.index("</script>")]
    mark = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{mark}'" in policy
    assert heads["cache-control"] == "no-store"
    assert not any(name.startswith("access-control") for name in heads)
    assert "http://" not in html.replace("http://www.w3.org/2000/svg", ""), "which is a name and no address"
    assert "token" not in page.url


def test_only_pages_and_only_to_be_read(served: tuple[Story, LivePage]) -> None:
    _, page = served
    for path in ("/run.json", "/events.jsonl", "/../run.json", "//etc/passwd", "/checkpoint.json", "/state.json/"):
        assert get(page, path)[0] == 404
    for method in ("POST", "PUT", "DELETE", "HEAD", "OPTIONS", "TRACE"):
        assert get(page, "/state.json", method)[0] == 501


@pytest.mark.parametrize("path", ["/", "/state.json"])
def test_other_names_are_refused(served: tuple[Story, LivePage], path: str) -> None:
    _, page = served
    port = urlsplit(page.url).port
    for host in (f"127.0.0.1:{port}", f"localhost:{port}", f"LOCALHOST:{port}"):
        assert get(page, path, Host=host)[0] == 200
    for host in (
        "evil.example",
        f"evil.example:{port}",
        "127.0.0.1",
        f"127.0.0.1:{port + 1}",
        f"127.0.0.1.evil:{port}",
        "",
    ):
        assert get(page, path, Host=host)[0] == 403


def test_elsewhere_a_token_is_asked_for(tmp_path: Path) -> None:
    story = Story(tmp_path / "run")
    page = start(story.path, host="0.0.0.0")
    try:
        port, token = urlsplit(page.url).port, urlsplit(page.url).query.removeprefix("token=")
        assert len(token) >= 32
        here = LivePage(f"http://127.0.0.1:{port}/", page.server, page.thread)
        for path in (
            "/",
            "/state.json",
            "/?token=",
            f"/?token={token[:-1]}",
            f"/?token={token}x",
            f"/state.json?token={token}",
            "/no",
        ):
            assert get(here, path)[0] == 403
        status, heads, text = get(here, f"/?token={token}")
        assert (status, heads["location"], text) == (303, "/", "")
        cookie, *rules = heads["set-cookie"].split("; ")
        assert {"HttpOnly", "SameSite=Lax", "Path=/"} == set(rules)
        for path in ("/", "/state.json"):
            status, _, text = get(here, path, Cookie=cookie)
            assert status == 200
            assert token not in text
            for wrong in (cookie[:-1], cookie.replace("vitrail-", "vitrail"), "=;", f"{cookie.partition('=')[0]}="):
                assert get(here, path, Cookie=wrong)[0] == 403
    finally:
        page.stop()


def test_two_pages_have_two_tokens(tmp_path: Path) -> None:
    pages = [start(tmp_path, host="0.0.0.0") for _ in range(2)]
    for page in pages:
        page.stop()
    assert len({urlsplit(p.url).query for p in pages}) == 2


def test_a_port_that_is_taken(served: tuple[Story, LivePage]) -> None:
    story, page = served
    with pytest.raises(VitrailError, match="--port 0"):
        start(story.path, port=urlsplit(page.url).port or 0)


def test_the_verb_says_what_it_cannot_follow(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "compared" / "parts").mkdir(parents=True)
    (tmp_path / "compared" / "run.json").write_text("{}")
    for name, words in (("none", "no such folder"), ("empty", "expected the folder"), ("compared", "comparison")):
        done = CliRunner().invoke(app, ["ui", str(tmp_path / name)])
        assert isinstance(done.exception, VitrailError)
        assert words in str(done.exception)


def test_the_verb(tmp_path: Path) -> None:
    story = Story(tmp_path / "run")
    story.begin()
    command = [sys.executable, "-c", "from vitrail.cli import main; main()", "ui", str(story.path)]
    heeds = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)  # noqa: E731  a background job would ignore it
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heeds)
    try:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert state(LivePage(url, None, None))["study"] == story.study.name  # type: ignore[arg-type]
    finally:
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=30)
    assert (process.returncode, error) == (0, "")


def test_many_ask_at_once_and_the_folder_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    story = Story(tmp_path / "run")
    story.begin()
    monkeypatch.setattr(watch_module, "AGAIN", 60.0)
    looks: list[float] = []
    status = RunWatcher._status
    monkeypatch.setattr(RunWatcher, "_status", lambda self, now: looks.append(now) or status(self, now))
    page = start(story.path)
    threads = [threading.Thread(target=state, args=(page,)) for _ in range(5)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    page.stop()
    assert len(looks) == 1


# in a browser


@pytest.mark.skipif(BROWSER is None and not os.environ.get("CI"), reason="no Chromium found")
def test_numbers_change_in_a_browser(served: tuple[Story, LivePage], tmp_path: Path) -> None:
    story, page = served
    with Browser(tmp_path) as browser:
        browser.visit(page.url, width=390)
        browser.wait("document.querySelector('.state').textContent === 'Waiting'")
        for name in HEART:
            story.log("joined", site=name)
        story.begin()
        story.round(1)
        browser.wait("document.querySelector('.lead').textContent.includes('Round 1 of 40')")
        browser.ask("window.kept = document.querySelector('table'); kept.parentNode.scrollLeft = 30; 1")
        story.round(2)
        story.keep(2)
        browser.wait("document.querySelector('progress').value === 2")
        browser.wait("document.querySelectorAll('.plot').length === 2")
        assert browser.ask("document.title").startswith("2/40")
        drawn = "[...document.querySelectorAll('.narrow .series path.line')].map(p => p.getAttribute('d')).join()"
        before = browser.ask(drawn)
        story.keep(5)
        story.round(5, "va")
        browser.wait(f"{drawn} !== {json.dumps(before)}")
        browser.wait("document.querySelectorAll('td.away').length === 1")
        assert browser.ask("kept.isConnected && kept.parentNode.scrollLeft === 30"), "the table was not made anew"
        assert browser.ask("document.documentElement.scrollWidth") == 390
        assert browser.ask("document.getElementById('cut').hidden") is True
        # buttons of the script are there once, and a drawing can be read by keys, after all these changes
        assert browser.ask("[...document.querySelectorAll('.keep button')].map(b => b.textContent)") == [
            "Print", "SVG", "PNG",
        ]  # fmt: skip
        assert browser.ask("[...document.querySelectorAll('svg[role=img]')].every(s => s.tabIndex === 0)")
        titles = "document.querySelectorAll('.narrow .series > title').length"
        count = browser.ask(titles)
        browser.hover("[...document.querySelectorAll('.narrow .series circle')].find(c => c.checkVisibility())")
        browser.wait("!document.querySelector('.tip').hidden")
        story.round(6)
        story.keep(6)
        browser.wait("document.querySelector('progress').value === 6")
        browser.hover("document.querySelector('h1')")
        assert browser.ask(titles) == count, "each has one title, as before"
        browser.click("document.querySelector('figure .keep button')")
        assert browser.downloaded("learning.svg").stat().st_size > 1000
        assert browser.says == []
        page.stop()
        browser.wait("!document.getElementById('cut').hidden")


@pytest.mark.skipif(BROWSER is None and not os.environ.get("CI"), reason="no Chromium found")
def test_a_browser_with_the_token(tmp_path: Path, fresh: None) -> None:
    story = Story(tmp_path / "run", names=HOSTILE)
    page = start(story.path, host="0.0.0.0")
    at, port = urlsplit(page.url).query, urlsplit(page.url).port
    try:
        with Browser(tmp_path) as browser:
            browser.visit(f"http://127.0.0.1:{port}/?{at}", lands=f"http://127.0.0.1:{port}/")
            story.begin()
            story.round(3)
            story.keep(3)
            browser.wait("document.querySelectorAll('.plot').length === 2")
            assert browser.ask("[...document.querySelectorAll('tbody th')].map(t => t.textContent)") == list(HOSTILE)
            assert browser.ask("document.cookie") == "", "no script can read it"
            assert browser.says == []
    finally:
        page.stop()


def test_every_event_of_a_study_between_machines_is_told_in_words() -> None:
    source = "".join(file.read_text() for file in Path(vitrail.deploy.__file__).parent.rglob("*.py"))
    events = set(re.findall(r'\blog\(\s*"([a-z ]+)"', source))
    assert {"trouble", "came late", "not told", "transport started"} <= events
    told = {"site": "va", "sites": ["va", "ab"], "why": "x", "answered": 1, "needed": 2, "seconds": 3, "address": "a:1"}
    told |= {"deadlines": 3, "number": 1, "of": 5, "here": 2, "times": 2, "round": 7, "groups": [["va"], ["ab"]]}
    for event in events:
        assert not watch_module.words(event, told).startswith(f"{event[:1].upper()}{event[1:]}: site va"), event


def test_folds_after_the_last_round_are_told(tmp_path: Path) -> None:
    """They take several times what the run took: a page that says "finished" would be closed."""
    story = Story(tmp_path / "run")
    story.info |= {"finished": "2026-11-17"}
    story.begin()
    assert live_module.headline(RunWatcher(story.path).look())[0] == "Finished"
    story.log("fold", number=3, of=10)
    word, sentence = live_module.headline(RunWatcher(story.path).look())
    assert word == "Running"
    assert "joining is worth it: 3 of 10." in sentence
    story.log("refit")
    word, sentence = live_module.headline(RunWatcher(story.path).look())
    assert word == "Running"
    assert "once more, on all of their rows." in sentence
    assert "3 of 10" not in sentence
    story.info |= {"folds": {"done": 10}}
    write_atomically(story.path / "run.json", json.dumps(story.info))
    assert live_module.headline(RunWatcher(story.path).look())[0] == "Running"
    write_atomically(story.path / "run.json", json.dumps(story.info | {"refit": {"crossed": {}}}))
    assert live_module.headline(RunWatcher(story.path).look())[0] == "Finished"
