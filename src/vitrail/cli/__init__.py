"""The command line. Thin: every verb reads its arguments, calls one function and prints."""

from __future__ import annotations

import re
import sys
from typing import Annotated, Any, NoReturn, TextIO

import typer

from vitrail.cli import coordinator, own, parties, runs, site, studies, taken
from vitrail.core.problems import VitrailError, printable

app = typer.Typer(
    help="Vitrail: federated learning that can be seen through.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

VERBS = {  # by who uses them, in the order of --help
    "With all tables at hand: one run": (
        studies.demo,
        runs.init,
        parties.match,
        runs.screen,
        runs.run,
        runs.report,
        runs.verify,
        runs.ui,
        runs.adopt,
        runs.wire,
        runs.methods,
    ),
    "With all tables at hand: many runs": (studies.compare, studies.tune, studies.transfer, studies.contribution),
    "At a site, with its own rows": (
        own.check,
        site.request,
        site.join,
        site.outbox,
        site.predict,
        own.look,
        own.repair,
        site.explain,
        taken.export,
        taken.card,
        site.leave,
        site.doctor,
    ),
    "At the coordinator, without rows": (
        coordinator.invite,
        coordinator.approve,
        coordinator.remove,
        coordinator.serve,
    ),
}
for _who, _verbs in VERBS.items():
    for _verb in _verbs:
        app.command(rich_help_panel=_who)(_verb)


def main() -> None:
    """Entry point: a user's mistake is told in words, never as a traceback."""
    if {"-h", "--help"}.isdisjoint(sys.argv) and sys.argv[1:]:  # help is our own words alone, and coloured
        sys.stdout, sys.stderr = Harmless(sys.stdout), Harmless(sys.stderr)
    try:
        app()
    except VitrailError as error:
        fail(error)
    except KeyboardInterrupt:
        print("\nStopped. What was finished is kept; continue with --resume.", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(141)


class Harmless:
    """Where a command writes: the one place through which text reaches a terminal. Names come from files that others
    wrote, and a terminal obeys control characters. To libraries it is no terminal, so that they write no colours."""

    def __init__(self, file: TextIO) -> None:
        self.file = file

    def write(self, text: str) -> int:
        self.file.write(harmless(text))
        return len(text)

    def isatty(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self.file, name)


def harmless(text: str) -> str:
    """
    >>> harmless("a\x1b[2J\x07")
    'a?[2J?'
    """
    return re.sub(r"[^\n\t]+", lambda words: printable(words[0]), text)


def fail(error: VitrailError) -> NoReturn:
    print(f"vitrail: {error}", file=sys.stderr)
    sys.exit(2)


def show_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"vitrail {version('vitrail')}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[bool, typer.Option("--version", callback=show_version, is_eager=True)] = False,
) -> None:
    pass
