"""Which tests are slow: those that start FLARE or a browser, and those for which durations.json says so.

    make durations                                      all of them anew, in one process, which takes most of an hour
    python -m pytest --write-durations tests/FOLDER     of one folder

A duration is that of a test function with all its parameters, in seconds. The time for which the process was ready and
the machine busy with others is left out, so that a busy machine gives nearly the same. What fixtures of a module or a
session take is shared by the tests that use them. Of a function with many parameters the first stay quick, as many as
fit into `LIMIT`.
"""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import pytest

FILE = Path(__file__).parents[1] / "durations.json"
LIMIT = 0.5  # seconds that a function may take among the quick tests
STARTERS = {"Federation", "Browser", "BROWSER"}  # who uses one, or a class of its kind, starts FLARE or a browser


class Duration(NamedTuple):
    """Of a test function."""

    seconds: float
    tests: int  # its parameters


def read_durations(path: Path = FILE) -> dict[str, Duration]:
    """Of functions that take longer than LIMIT; others are not in the file."""
    if not path.exists():
        return {}
    return {name: Duration(*entry) for name, entry in json.loads(path.read_text(encoding="utf-8")).items()}


def function_of(node: str) -> str:
    """
    >>> function_of("tests/core/test_losses.py::test_slope[mlp-a::b]")
    'tests/core/test_losses.py::test_slope'
    """
    return node.split("[")[0]


def count_quick(duration: Duration | None, tests: int) -> int:
    """How many of a function's tests are quick: all where nothing is known of it.

    >>> count_quick(None, 5), count_quick(Duration(5.0, 20), 20), count_quick(Duration(3.0, 1), 1)
    (5, 2, 0)
    """
    return tests if duration is None else min(tests, int(LIMIT * duration.tests / duration.seconds))


def starts(function: Callable[..., Any], seen: set[Any] | None = None) -> bool:
    """Whether it, or a function of the tests that it calls by its name, uses one of STARTERS."""
    seen = set() if seen is None else seen
    plain = getattr(function, "__wrapped__", function)
    plain = getattr(plain, "__func__", plain)
    if not isinstance(plain, FunctionType) or plain in seen:
        return False
    seen.add(plain)
    names = set(_names_in(plain.__code__))
    things = [plain.__globals__.get(name) for name in names]
    bases = {base.__name__ for thing in things if isinstance(thing, type) for base in thing.__mro__}
    return bool((names | bases) & STARTERS) or any(starts(f, seen) for f in things if _is_of_tests(f))


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names_in(inner)


def _is_of_tests(thing: Any) -> bool:
    return isinstance(thing, FunctionType) and thing.__module__.split(".")[0] == "tests"


def slow_tests(items: Iterable[pytest.Item], durations: Mapping[str, Duration]) -> list[pytest.Item]:
    """`items`: all of a function's, where any are."""
    functions = defaultdict[str, list[pytest.Item]](list)
    for item in items:
        functions[function_of(item.nodeid)].append(item)
    out = []
    for name, tests in functions.items():
        quick = 0 if any(map(_starts_something, tests)) else count_quick(durations.get(name), len(tests))
        out += tests[quick:]
    return out


def _starts_something(item: pytest.Item) -> bool:
    fixtures = [definitions[-1].func for definitions in _fixtures_of(item).values()]
    return any(map(starts, [getattr(item, "function", None), *fixtures]))


def _fixtures_of(item: pytest.Item) -> dict[str, Any]:
    info = getattr(item, "_fixtureinfo", None)  # a text of documents has none
    return {} if info is None else {name: d for name, d in info.name2fixturedefs.items() if d}


class Recorder:
    """A plugin that measures, and writes durations.json. Of functions that were not run it keeps what stands there."""

    def __init__(self, path: Path = FILE, clock: Callable[[], float] | None = None) -> None:
        self.path, self.clock = path, clock or time_spent
        self.own, self.tests = defaultdict[str, float](float), Counter[str]()
        self.shared = defaultdict[Any, float](float)  # by fixture of a module or session, without those that it uses
        self.users = defaultdict[Any, list[str]](list)
        self.nested = [0.0]  # what such fixtures took within the test, and within each fixture that is under way

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Iterator[Any]:
        if fixturedef.scope == "function":
            return (yield)
        began = self.clock()
        self.nested.append(0.0)
        try:
            return (yield)
        finally:
            took, within = self.clock() - began, self.nested.pop()
            self.shared[fixturedef] += took - within
            self.nested[-1] += took

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[Any]:
        began, self.nested, name = self.clock(), [0.0], function_of(item.nodeid)
        try:
            return (yield)
        finally:
            self.own[name] += self.clock() - began - self.nested[0]
            self.tests[name] += 1
            for definitions in _fixtures_of(item).values():
                self.users[definitions[-1]].append(name)

    def pytest_sessionfinish(self) -> None:
        for fixture, seconds in self.shared.items():
            for name in self.users[fixture]:
                self.own[name] += seconds / len(self.users[fixture])
        entries = {name: entry for name, entry in read_durations(self.path).items() if name not in self.own}
        entries |= {n: Duration(round(s, 2), self.tests[n]) for n, s in self.own.items() if s > LIMIT}
        lines = [f"{json.dumps(name)}: {json.dumps(entry)}" for name, entry in sorted(entries.items())]
        self.path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def time_spent() -> float:
    """Seconds, without those for which this thread was ready to run and the machine busy with others."""
    stat = Path("/proc/thread-self/schedstat")  # running, ready, and how often; Linux has it
    ready = int(stat.read_text().split()[1]) / 1e9 if stat.exists() else 0.0
    return time.perf_counter() - ready
