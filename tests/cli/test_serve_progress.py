"""What the coordinator reads while `vitrail serve` runs."""

from __future__ import annotations

import importlib.util
import io
import logging
from pathlib import Path
from typing import Any

import pytest

from vitrail.cli.serve_progress import ServeScreen

ROUNDS = 100


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def train(screen: ServeScreen, clock: Clock, absent: dict[int, list[str]] | None = None, seconds: float = 0.5) -> None:
    """The events of a run."""
    for done in range(1, ROUNDS + 1):
        clock.now += seconds
        gone = (absent or {}).get(done, [])
        at = {"stage": 0, "round": done, "done": done}
        if gone:
            screen("absent", {**at, "sites": gone})
        screen("round", {**at, "total": ROUNDS, "seconds": clock.now, "absent": gone})


def test_a_log_has_few_lines_about_rounds() -> None:
    clock, out = Clock(), io.StringIO()
    train(ServeScreen(out, clock), clock)
    lines = out.getvalue().splitlines()
    assert 3 <= len(lines) <= 12
    assert lines[0] == "  Round 1 of 100: all sites answered, 0.5 s a round, about 50 s left."
    assert lines[-1] == "  Round 100 of 100: all sites answered, 0.5 s a round."
    assert "\x1b" not in out.getvalue()


def test_a_slow_study_has_a_line_every_minute() -> None:
    clock, out = Clock(), io.StringIO()
    train(ServeScreen(out, clock), clock, seconds=20.0)
    assert 30 <= len(out.getvalue().splitlines()) <= 36


def test_in_a_terminal_one_line_changes_and_events_stay_above_it() -> None:
    clock, out = Clock(), Terminal()
    screen = ServeScreen(out, clock)
    train(screen, clock)
    screen("joined", {"site": "va"})
    screen.close()
    written = out.getvalue()
    assert written.count("\n") == 2
    stays = [line.rpartition("\x1b[K")[2] for line in written.split("\n")[:-1]]
    assert stays == ["  va joined.", "  Round 100 of 100: all sites answered, 0.5 s a round."]


def test_it_says_once_who_is_absent_and_once_that_it_is_back() -> None:
    clock, out = Clock(), io.StringIO()
    train(ServeScreen(out, clock), clock, {done: ["va"] for done in range(20, 40)})
    lines = [line.strip() for line in out.getvalue().splitlines() if "va" in line and "answered" not in line]
    assert lines == ["Round 20 is without va.", "va takes part again, from round 40 on."]
    assert "all sites but va answered" in out.getvalue()


def test_who_is_missing_is_named_and_not_again_and_again() -> None:
    out = io.StringIO()
    screen = ServeScreen(out)
    screen("missing", {"sites": ["va"], "here": 2, "of": 3})
    for _ in range(50):
        screen("waiting", {"answered": 2, "needed": 3, "missing": {"va": "no answer within 60 seconds"}})
    assert out.getvalue().splitlines() == [
        "  2 of 3 sites joined so far. Missing: va.",
        "  Waiting: 2 of 3 answers so far. Missing: va (no answer within 60 seconds).",
    ]


def test_a_terminal_obeys_nothing_that_others_wrote() -> None:
    out = Terminal()
    ServeScreen(out)("trouble", {"site": "va", "what": "\x1b[2J\x07gone"})
    assert out.getvalue().replace("\r\x1b[K", "") == "  va: ?[2J?gone.\n"


def test_flares_own_lines_go_to_its_file(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("nvflare")
    from nvflare.fuel.hci.client import api

    from vitrail.deploy.transport.flare import log as flare_log

    log: Any = logging.getLogger("nvflare")
    before, printed = (log.handlers, log.propagate, log.level), api._print_hci_message
    line = logging.getLogger("nvflare.fuel.f3.cellnet.core_cell.CoreCell")
    try:
        flare_log.redirect(tmp_path / "log.txt")
        line.warning("no path to server")
        api._print_hci_message("Connecting to FLARE ...")
        assert capfd.readouterr() == ("", "")
        text = (tmp_path / "log.txt").read_text()
        assert "no path to server" in text
        assert "Connecting to FLARE" in text
    finally:
        log.handlers, log.propagate, level = before
        log.setLevel(level)
        api._print_hci_message = printed
    spec = importlib.util.find_spec(api.__name__)  # as it is installed, whatever other tests changed in this process
    assert spec is not None
    assert spec.loader is not None
    fresh = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fresh)
    fresh._print_hci_message("Connecting to FLARE ...")  # the control
    assert "Connecting to FLARE" in "".join(capfd.readouterr())
