"""A site's process without the seconds that loading torch takes: forked from one that has loaded it. A process like
another, with its own memory, folder and end; that the command itself starts is seen in `serve`, begun as users do."""

from __future__ import annotations

import multiprocessing
import os
import sys
from pathlib import Path

from vitrail.cli import main
from vitrail.deploy.transport import supervisor

LOADED = [
    "vitrail.cli",
    "vitrail.deploy.site.process",
    "vitrail.deploy.vertical.session",
    "vitrail.report.pages.builder",
]


class Forked:
    """Asked by the names that subprocess has. Its command line is not in /proc: it is `words`."""

    def __init__(self, words: tuple[object, ...], log: Path, env: dict[str, str]) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(LOADED)
        log.touch(0o600)
        self.words = ["vitrail", *map(str, words)]
        self.process = context.Process(target=_run, args=(self.words, str(log), env), daemon=True)
        self.process.start()

    @property
    def pid(self) -> int:
        return self.process.pid or 0

    @property
    def returncode(self) -> int | None:
        return self.process.exitcode

    def poll(self) -> int | None:
        return self.process.exitcode

    def wait(self, seconds: float) -> int | None:
        self.process.join(seconds)
        return self.process.exitcode

    def kill(self) -> None:
        self.process.kill()


def _run(words: list[str], log: str, env: dict[str, str]) -> None:
    supervisor.tie(os.getppid())  # the forking process ends with the tests, also when they are killed
    os.setsid()
    out = os.open(log, os.O_WRONLY | os.O_APPEND)
    for at in (1, 2):
        os.dup2(out, at)
    sys.stdin = open(os.devnull)  # noqa: SIM115 - for as long as the process lives
    sys.stdout, sys.stderr = (open(at, "w", buffering=1, closefd=False) for at in (1, 2))  # noqa: SIM115
    os.environ.clear()
    os.environ.update(env)
    sys.argv = words
    main()
