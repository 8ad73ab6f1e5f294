"""What holds for all tests: none waits for ever, the longest come last, nothing is kept in a home folder."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # the tests' tensors are small: threads wait for each other, and no more
sys.path.insert(0, str(Path(__file__).parents[1]))  # the package tests, whoever else has one

from tests.support.durations import Recorder, read_durations, slow_tests

LONGEST = (  # files that take a minute or more: begun last, one of them would keep one process at work alone
    "test_flare.py",
    "test_docs.py",
    "test_flare_vertical.py",
    "test_flare_images.py",
    "test_renamed.py",
)


LONG = 600  # seconds: what takes longer waits for something that will not come


@pytest.fixture(autouse=True)
def _nothing_waits_for_ever() -> Iterator[None]:
    """A test that hangs says where, and the others go on."""

    def tell(*_: object) -> None:
        raise TimeoutError(f"still at work after {LONG} seconds")

    if not hasattr(signal, "SIGALRM"):
        yield
        return
    before = signal.signal(signal.SIGALRM, tell)
    signal.alarm(LONG)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def pytest_addoption(parser: pytest.Parser) -> None:
    words = "Measure what each test takes, and write tests/durations.json: which tests are slow."
    parser.addoption("--write-durations", action="store_true", help=words)


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--write-durations"):
        if getattr(config.option, "numprocesses", None) or config.option.markexpr:
            raise pytest.UsageError("--write-durations measures whole functions, in one process: leave out -n and -m")
        config.pluginmanager.register(Recorder())
    if hasattr(config.option, "loadscopereorder"):  # pytest-xdist would begin with the files that hold most tests
        config.option.loadscopereorder = False


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in slow_tests(items, read_durations()):
        item.add_marker(pytest.mark.slow)
    rank = {name: at for at, name in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(item.path.name, len(rank)))


@pytest.fixture(scope="session", autouse=True)
def _sites_of_tests_count_what_they_spend_elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Not in the state folder of who runs the tests."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("VITRAIL_LEDGER", str(tmp_path_factory.mktemp("ledger")))
        yield
