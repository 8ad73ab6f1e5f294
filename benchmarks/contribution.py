"""x"""

from __future__ import annotations
import argparse
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from contribution_cases import carry
from job_lines import arguments, finished, name_of, run

JOBS = [("design", k) for k in range(80)] + [("test", k) for k in range(120)]


def make(given: argparse.Namespace) -> Any:
    return SimpleNamespace(capture=False)


def say(told: dict[str, Any]) -> str:
    return ", ".join(map(str, told["about"].values()))


def main() -> None:
    given = arguments(__doc__, ("run", "report"), Path(".cache/contribution")).parse_args()
    done = finished(given.cache)
    if given.verb == "run":
        run(given, [j for j in JOBS if name_of(j) not in done], make, carry, say)


if __name__ == "__main__":
    main()
