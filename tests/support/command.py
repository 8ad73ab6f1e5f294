"""The command line in this process: the same words, the same `main`, what it prints and its exit code, without the
seconds that a process of its own takes to load torch. That real processes do as well is seen in test_cli.py."""

from __future__ import annotations

import contextlib
import io
import sys
import traceback
from pathlib import Path
from typing import NamedTuple
from unittest import mock

from vitrail.cli import main


class Done(NamedTuple):
    returncode: int
    stdout: str
    stderr: str


def vitrail(*words: object, cwd: Path | None = None) -> Done:
    said, wrong = io.StringIO(), io.StringIO()
    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.chdir(cwd or Path.cwd()))
        for name, value in {
            "argv": ["vitrail", *map(str, words)],
            "stdin": io.StringIO(),
            "stdout": said,
            "stderr": wrong,
        }.items():
            stack.enter_context(mock.patch.object(sys, name, value))
        code = _end_of(main)
    return Done(code, said.getvalue(), wrong.getvalue())


def _end_of(program: object) -> int:
    """As the interpreter ends: also what nobody caught is told on stderr, and is a failure."""
    try:
        program()  # type: ignore[operator]
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
            return 1
        return end.code or 0
    except Exception:
        traceback.print_exc()
        return 1
    return 0
