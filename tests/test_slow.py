"""Which tests `make quick` leaves out: those that start FLARE or a browser, and those that took long when measured."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support import ROOT
from tests.support.deploy.federation import Federation
from tests.support.durations import (
    LIMIT,
    Duration,
    Recorder,
    function_of,
    read_durations,
    slow_tests,
    starts,
    time_spent,
)
from tests.support.report.screenshots import browse

MEASURED = read_durations()


@pytest.fixture(scope="module")
def quick() -> list[str]:
    """Files with tests that are not slow, as pytest finds them."""
    options = ["--collect-only", "-q", "-m", "not slow", "-p", "no:cacheprovider", "--continue-on-collection-errors"]
    done = subprocess.run([sys.executable, "-m", "pytest", *options, "tests"], cwd=ROOT, capture_output=True, text=True)
    return re.findall(r"^(tests/\S+\.py): \d", done.stdout, re.M)


def test_every_folder_of_tests_has_quick_ones(quick: list[str]) -> None:
    folders = {file.parent.relative_to(ROOT).as_posix() for file in (ROOT / "tests").rglob("test_*.py")}
    assert folders - {os.path.dirname(file) for file in quick} == set()


def test_every_package_has_quick_tests(quick: list[str]) -> None:
    packages = {file.parent.name for file in (ROOT / "src" / "vitrail").glob("*/__init__.py")}
    assert packages - {file.split("/")[1] for file in quick} == set()


def test_the_marker_is_known(pytestconfig: pytest.Config) -> None:
    assert [line for line in pytestconfig.getini("markers") if line.startswith("slow:")]
    assert "--strict-markers" in pytestconfig.getini("addopts")


def is_there(name: str) -> bool:
    file, _, test = name.partition("::")
    path = ROOT / file
    return path.exists() and (
        path.suffix != ".py" or f"def {test.split('::')[-1]}(" in path.read_text(encoding="utf-8")
    )


def test_what_was_measured_is_mostly_there() -> None:
    """A test that was renamed counts as quick until it is measured anew; that may not be so for many."""
    gone = [name for name in MEASURED if name.startswith("tests/") and not is_there(name)]
    assert len(gone) <= len(MEASURED) / 10, gone
    assert all(entry.seconds >= LIMIT and entry.tests >= 1 for entry in MEASURED.values())
    assert len(MEASURED) > 50


def uses_flare() -> Any:
    return Federation


class House(Federation):
    """A class of its kind."""


@pytest.mark.parametrize(
    ("function", "slow"),
    [
        (uses_flare, True),
        (lambda: [House for _ in "a"], True),
        (lambda: uses_flare, True),  # named, and perhaps called
        (browse, True),
        (lambda: Path, False),
        (is_there, False),
        (None, False),
    ],
)
def test_who_starts_flare_or_a_browser_is_slow(function: Callable[..., Any], slow: bool) -> None:
    assert starts(function) == slow


def item_of(nodeid: str, function: Callable[..., Any] | None = None, **fixtures: Callable[..., Any]) -> Any:
    info = SimpleNamespace(name2fixturedefs={name: [SimpleNamespace(func=f)] for name, f in fixtures.items()})
    return SimpleNamespace(nodeid=nodeid, function=function, _fixtureinfo=info)


def test_of_a_long_function_the_first_tests_are_quick() -> None:
    several = [item_of(f"a.py::test_b[{i}]") for i in range(20)]
    items = [item_of("a.py::test_a"), *several, item_of("a.py::test_c"), item_of("a.py::test_d", made=uses_flare)]
    measured = {"a.py::test_a": Duration(2 * LIMIT, 1), "a.py::test_b": Duration(10 * LIMIT, 20)}
    assert slow_tests(items, measured) == [items[0], *several[2:], items[-1]]


def test_a_test_of_this_run_is_marked(request: pytest.FixtureRequest) -> None:
    """In whatever was chosen: who uses the federation is slow, and so is what took long by itself."""
    items = request.session.items
    for item in items:
        marked = item.get_closest_marker("slow") is not None
        entry = MEASURED.get(function_of(item.nodeid))
        if starts(getattr(item, "function", None)) or (entry is not None and entry.seconds / entry.tests > LIMIT):
            assert marked, item.nodeid
    assert items


WATCHED = """
import os
import pytest

def spend(seconds):
    os.environ["SPENT"] = str(float(os.environ["SPENT"]) + seconds)

@pytest.fixture(scope="session")
def lasting():
    spend(2)

@pytest.fixture(scope="module")
def shared(lasting):
    spend(6)

@pytest.fixture
def own():
    spend(2)

def test_alone(own):
    spend(1)

@pytest.mark.parametrize("x", range(3))
def test_several(shared, x):
    spend(1)

def test_once_more(shared):
    spend(0.5)

def test_quick():
    spend(0.4)
"""


def test_durations_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "test_watched.py").write_text(WATCHED)
    out = tmp_path / "durations.json"
    out.write_text('{"test_watched.py::test_not_run": [2.5, 1], "test_watched.py::test_quick": [3.0, 1]}')
    monkeypatch.setenv("SPENT", "0")
    recorder = Recorder(out, lambda: float(os.environ["SPENT"]))
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", f"--rootdir={tmp_path}", "-c", os.devnull]
    assert pytest.main([*options, str(tmp_path)], plugins=[recorder]) == 0
    assert read_durations(out) == {
        "test_watched.py::test_not_run": Duration(2.5, 1),
        "test_watched.py::test_alone": Duration(3.0, 1),
        "test_watched.py::test_several": Duration(9.0, 3),  # three of four shares of 8 are 6
        "test_watched.py::test_once_more": Duration(2.5, 1),
    }
    began = time_spent()
    time.sleep(0.2)
    assert 0.15 < time_spent() - began < 5
