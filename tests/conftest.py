"""What holds for all tests: none waits for ever, the longest come last, nothing is kept in a home folder."""

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # the tests' tensors are small: threads wait for each other, and no more
sys.path.insert(0, str(Path(__file__).parents[1]))  # the package tests, whoever else has one

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


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config.option, "loadscopereorder"):  # pytest-xdist would begin with the files that hold most tests
        config.option.loadscopereorder = False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    rank = {name: at for at, name in enumerate(LONGEST)}
    items.sort(key=lambda item: rank.get(item.path.name, len(rank)))


@pytest.fixture(scope="session", autouse=True)
def _sites_of_tests_count_what_they_spend_elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Not in the state folder of who runs the tests."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("VITRAIL_LEDGER", str(tmp_path_factory.mktemp("ledger")))
        yield
