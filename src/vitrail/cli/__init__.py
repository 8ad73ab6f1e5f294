"""The command line. Thin: every verb reads its arguments, calls one function and prints."""

from __future__ import annotations

import re
import sys
import warnings
from typing import Annotated, Any, NoReturn, TextIO

import typer

from vitrail.cli import coordinator, demo, runs, site, site_data, site_model, studies, vertical
from vitrail.cli.examples import examples_of
from vitrail.core.errors import Problem, VitrailError, printable
from vitrail.data.readers.source import PassedOverWarning

_show_warning = warnings.showwarning

app = typer.Typer(
    help="Vitrail: federated learning that can be seen through. Each command has examples: vitrail COMMAND --help.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

VERBS = {  # by who uses them, in the order of --help
    "Begin here": (demo.demo,),
    "Hospital data scientist: one site's own rows, which stay at the site": (
        site_data.check,
        site_data.look,
        site_data.repair,
        site_data.known,
        site_model.predict,
        site_model.explain,
        runs.adopt,
        runs.wire,
        site.request,
        site.join,
        site.outbox,
        site_model.export,
        site_model.card,
        site.leave,
        site.doctor,
    ),
    "Study coordinator: a study from its draft to its report": (
        runs.init,
        runs.screen,
        runs.run,
        studies.compare,
        vertical.match,
        runs.report,
        runs.ui,
        runs.verify,
        coordinator.invite,
        coordinator.approve,
        coordinator.remove,
        coordinator.serve,
    ),
    "Researcher: which method, which settings, whom to learn from": (
        runs.methods,
        studies.tune,
        studies.transfer,
        studies.alike,
        studies.columns,
        studies.contribution,
    ),
}
for _who, _verbs in VERBS.items():
    for _verb in _verbs:
        app.command(rich_help_panel=_who, epilog=examples_of(_verb.__name__))(_verb)


def main() -> None:
    """Entry point. A user's mistake is reported as a sentence, never as a traceback."""
    if {"-h", "--help"}.isdisjoint(sys.argv) and sys.argv[1:]:  # help is our own words alone, and coloured
        sys.stdout, sys.stderr = Harmless(sys.stdout), Harmless(sys.stderr)
    warnings.showwarning = show_note
    try:
        app()
    except VitrailError as error:
        fail(error)
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "can't allocate memory" not in str(error):
            raise
        what = "this task does not fit into the memory of this machine."
        fail(
            VitrailError("there is not enough memory", [Problem("memory", what, "Use less data or a smaller network.")])
        )
    except KeyboardInterrupt:
        print("\nStopped. Finished work is kept; continue with --resume.", file=sys.stderr)
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


def show_note(message: Warning | str, category: type[Warning], *rest: Any, **more: Any) -> None:
    """What was passed over, in words; warnings of libraries as ever."""
    if issubclass(category, PassedOverWarning):
        print(f"note: {message}", file=sys.stderr)
    else:
        _show_warning(message, category, *rest, **more)


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
