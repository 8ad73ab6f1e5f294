"""What a person gives on the command line: arguments that several verbs take, and how they are read."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from vitrail.cli import completion
from vitrail.core.errors import Problem, VitrailError
from vitrail.data.readers.source import to_place

PLACE: Any = {"parser": to_place, "metavar": "PLACE"}  # a file, FILE.xlsx#SHEET, or "duckdb:///FILE?sql=SELECT ..."
SANDBOX = "Whether FLARE's processes are shut in (Landlock); without it they read what this user can read."
StudyFile = Annotated[Path, typer.Argument(help="Study file (TOML).", autocompletion=completion.study_files)]
Data = Annotated[
    Path,
    typer.Option(
        "--data",
        help=(
            "Folder with one table (or one folder of pictures) per site; or one file or database query that "
            "holds all sites."
        ),
        **PLACE,
    ),
]
Answers = Annotated[
    list[Path] | None,
    typer.Option("--known", help="File with answers to findings, as `vitrail known` writes it; repeatable."),
]
Engine = Annotated[str, typer.Option(help="vectorised (all sites at once) or looped (one site after the other).")]
Device = Annotated[str, typer.Option(help="cpu or cuda.")]
Rounds = Annotated[int | None, typer.Option(help="Number of rounds (default: the study's).")]
BudgetBytes = Annotated[
    int | None,
    typer.Option(
        min=1,
        help=(
            "Bytes that one training may send and receive at each site. Each method trains as many rounds as this "
            "pays, at most --rounds."
        ),
    ),
]
BudgetSteps = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Likewise, gradient steps (one model, one batch) of one training at the site with the most rows.",
    ),
]
Workers = Annotated[int, typer.Option(min=0, help="Number of processes (0: one per core).")]
Cluster = Annotated[
    str,
    typer.Option(
        help=(
            "Train on the machines of a Dask scheduler, tcp://HOST:PORT. Warning: patient rows are sent to "
            "these machines."
        )
    ),
]
Resume = Annotated[bool, typer.Option("--resume", help="Continue the work found in --out.")]


def parse_methods(given: str | None, study: object = "STUDY", data: object = "DATA") -> list[str]:
    """Parse names separated by commas. Without any: the short comparison. `all`: every method whose defaults can be
    compared; the others are listed with the command that tunes them.
    """
    from vitrail.methods import DEFAULT, TABLE, named

    if given is None:
        yardsticks = named(lambda kind: not kind.catalogue.federated and not kind.catalogue.required_net)
        return [*yardsticks, DEFAULT, *named(lambda kind: kind.catalogue.in_short_comparison)]
    if given.strip() != "all":
        return [name.strip() for name in given.split(",") if name.strip()]
    if left_out := named(lambda kind: kind.catalogue.tune_first):
        titles = ", ".join(TABLE[name].catalogue.title for name in left_out)
        print(f"Left out: {titles}. Tune these methods before you compare them:")
        print("\n".join(f"  vitrail tune {study} --data {data} --method {name}" for name in left_out))
        print(f"To include them anyway, name them: --methods {','.join(left_out)}\n")
    if apart := named(lambda kind: bool(kind.catalogue.required_net)):
        print(
            f"Left out because they need another network: {', '.join(TABLE[name].catalogue.title for name in apart)}.\n"
        )
    return named(lambda kind: not kind.catalogue.tune_first and not kind.catalogue.required_net)


def parse_settings(given: list[str]) -> dict[str, Any]:
    """KEY=VALUE as TOML values, texts also without quotes."""
    from vitrail.storage.toml import read_value

    out: dict[str, Any] = {}
    for item in given:
        key, equals, value = item.partition("=")
        if not equals or not key.strip():
            raise VitrailError(
                "cannot read --set",
                [Problem("--set", f"expected KEY=VALUE, got {item!r}.", "Write for example --set mu=0.1.")],
            )
        out[key.strip()] = read_value(value)
    return out


def parse_away(given: list[str]) -> dict[str, list[tuple[int, int]]]:
    out: dict[str, list[tuple[int, int]]] = {}
    for item in given:
        site, _, span = item.rpartition(":")
        first, dash, last = span.partition("-")
        if not site or not first.isdigit() or (dash and not last.isdigit()):
            raise VitrailError(
                "cannot read --away",
                [
                    Problem(
                        "--away",
                        f"expected SITE:FIRST-LAST, got {item!r}.",
                        "Write for example --away va:10-20.",
                    )
                ],
            )
        out.setdefault(site, []).append((int(first), int(last or first)))
    return out


def parse_pseudonyms(given: list[str]) -> dict[str, str]:
    out: dict[str, str] = {}
    problems = []
    for item in given:
        site, _, pseudonym = item.rpartition("=")
        if not site or not pseudonym or site in out:
            what = f"{site!r} has two." if site in out else f"expected SITE=PSEUDONYM, got {item!r}."
            problems.append(
                Problem("--pseudonym", what, "Write for example --pseudonym va=site-7, once for each site.")
            )
        out[site] = pseudonym
    if problems:
        raise VitrailError("cannot read --pseudonym", problems)
    return out


def cores() -> int:
    import os

    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def free_folder(path: Path) -> Path:
    """The path itself, or the first of path-2, path-3, ... that is not in use: a demo never writes over another."""
    number, free = 1, path
    while free.exists():
        number += 1
        free = path.with_name(f"{path.name}-{number}")
    return free
