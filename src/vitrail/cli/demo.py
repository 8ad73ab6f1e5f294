"""`vitrail demo`: what Vitrail is for, on data that is shipped. First whose data does not fit and why, then what
joining is worth; methods and tables are on the pages."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vitrail.cli.options import cores, free_folder, parse_methods
from vitrail.cli.output import print_run, print_verdicts, show_progress
from vitrail.core.errors import Problem, VitrailError, nearest, printable

if TYPE_CHECKING:
    import pandas as pd

    from vitrail.quality.screening.result import Finding, Screening
    from vitrail.report.pages.index import Demo
    from vitrail.studies.compare.result import Comparison
    from vitrail.study.model import Study

KINDS = {
    "heart": "tables of four hospitals: whose data does not fit, and is joining worth it?",
    "pictures": "chest X-rays at four sites: is joining worth it?",
    "prototypes": "chest X-rays of which one site's carry a mark: who finds out?",
    "vertical": "a hospital and a laboratory with the same patients: what are its columns worth?",
}
FIRST = 3  # of what differs and may be real, so many are printed


def _kinds(incomplete: str) -> list[str]:
    return [kind for kind in KINDS if kind.startswith(incomplete)]


def demo(
    what: Annotated[
        str,
        typer.Argument(
            help="heart: tables of four hospitals. vertical: a hospital and a laboratory with the same patients. "
            "pictures: chest X-rays. prototypes: whose have a mark?",
            autocompletion=_kinds,
        ),
    ] = "heart",
    out: Annotated[Path, typer.Option(help="Where to write.")] = Path("runs/demo"),
    seeds: Annotated[int | None, typer.Option(min=1, help="Seeds for each method; else 4, of pictures 2.")] = None,
) -> None:
    """Real data that is shipped, offline: whose data does not fit and why, what joining is worth; and pages of it."""
    from vitrail.report.pages.index import write_index

    if what not in KINDS:
        hint = nearest(what, KINDS)
        raise VitrailError("there is no such demo", [Problem("demo", f"there is none named {what!r}.", hint)])
    target = free_folder(out)
    if what == "heart":
        made = _heart(target, seeds or 4)
    elif what == "pictures":
        made = _pictures(target, seeds or 2)  # a model of pictures takes minutes
    elif what == "prototypes":
        made = _prototypes(target)
    else:
        made = _vertical(target, seeds or 5)
    index = write_index(target, made, KINDS)
    print(f"\n{made.thanks}\n\nBegin here: {index.resolve()}")


def _heart(target: Path, seeds: int) -> Demo:
    from vitrail.data.datasets import catalogue as datasets
    from vitrail.data.units import choose_conversions
    from vitrail.quality.repair.inspection import SiteInspection
    from vitrail.report.pages.builder import write_report
    from vitrail.report.pages.index import Demo, DemoPage
    from vitrail.report.pages.site import write_look
    from vitrail.report.sections.screening import write_screen
    from vitrail.runs import federate
    from vitrail.runs.screening import screen_sites
    from vitrail.runs.site.inspection import look_behind
    from vitrail.study.model import Study

    study, sites = Study.load(datasets.packaged("heart_disease.toml")), datasets.heart_disease()
    thanks = datasets.ATTRIBUTIONS[study.name]
    words = "Four hospitals, 920 patients. Is a coronary artery narrowed? Each hospital keeps its rows."
    print(f"{words}\n\nWHOSE DATA DOES NOT FIT?\n")
    given = screen_sites(study, sites)
    said = ["As the hospitals gave it:", *_first_lines(given)]
    print("\n".join(said), flush=True)
    site, column, other = "hungarian", "chol", "mmol/L"
    unit = study.features[column].unit
    turn = next(c for c in choose_conversions(column, study.features[column]) if c.other == other)
    wrong = {**sites, site: sites[site].assign(**{column: (sites[site][column] / turn.factor).round(2)})}
    ours = f"In this demo {site}'s {column} is in {other}: a mistake that we wrote into it, and not theirs."
    false = study.with_changes(description=f"{study.description} {ours}")  # no page may pass it off as their data
    planted = screen_sites(false, wrong)
    story = f"With a mistake of ours: {site}'s {column} in {other} instead of {unit}. Nobody saw a row of theirs."
    found = [printable(_line(f)) for f in planted.wrong]
    print("\n".join(["", story, *found]), flush=True)
    with show_progress() as step:
        run = federate(false, wrong, out=target / "run", progress=lambda done, total: step("rounds", done, total))
        file = target / f"{site}.csv"
        wrong[site].to_csv(file, index=False)
        seen = look_behind(run, site, wrong[site])
        assert isinstance(seen, SiteInspection)
        repair = shlex.join(["vitrail", "repair", str(target / "run"), str(file)])
        write_look(seen._replace(command=repair), target / f"look-{site}.html")  # whoever stops the rest has this
        write_screen(false, planted, target / "findings.html")
        write_report(run, target / "run" / "report.html")
    print(f"\nThe repair, at {site}, in its own file (nothing is changed without --write):")
    print(f"  {repair} {shlex.join(['--from', str(target / 'run'), '--site', site])}\n")
    result = _compared(study, sites, seeds, 10, target / "compared")
    return Demo(
        "heart",
        study.name,
        words,
        [
            DemoPage(
                "findings.html",
                "Whose data does not fit?",
                f"The findings with our mistake in them ({site}'s {column} in {other}): the column, the likely cause "
                "and what to ask; and what differs and may be real.",
            ),
            DemoPage(
                f"look-{site}.html",
                f"What {site} sees of itself",
                "Its own rows behind the finding, the likely cause, and a repair to copy.",
                site,
            ),
            DemoPage(
                "compared/report.html",
                "Is joining worth it?",
                "For each hospital as it is: training alone against training together, with intervals; then the "
                "methods compared, what left each site, and every score.",
            ),
            DemoPage("run/report.html", "One run", "The page of a single run, with our mistake in the data."),
        ],
        [" ".join(line.strip(" -") for line in part) for part in (said[:4], [story, *found])] + _verdict_lines(result),
        thanks,
    )


def _line(finding: Finding) -> str:
    from vitrail.quality.screening.text import sentence

    return f"  - {sentence(finding)}"


def _first_lines(told: Screening) -> list[str]:
    """What is likely wrong, or that nothing is; and the strongest of what differs and may be real."""
    from vitrail.quality.screening.text import calm

    maybe = [f for f in told.findings if not f.wrong]
    lines = [_line(f) for f in told.wrong] or [calm(told)]
    if maybe:
        lines += [f"{len(maybe)} cells differ, and may be real. The strongest:", *(_line(f) for f in maybe[:FIRST])]
    return [printable(line) for line in lines]


def _compared(study: Study, sites: Mapping[str, pd.DataFrame], seeds: int, folds: int, out: Path) -> Comparison:
    from vitrail.report.pages.builder import write_report
    from vitrail.studies.compare.execution import compare, seeds_of

    print("IS JOINING WORTH IT?\n", flush=True)
    with show_progress() as step:
        result = compare(
            study,
            sites,
            parse_methods(None),
            seeds_of(study, seeds),
            folds=folds,
            out=out,
            workers=cores(),
            progress=step,
        )
    print_verdicts(result)
    write_report(result, out / "report.html")
    return result


def _verdict_lines(result: Comparison) -> list[str]:
    from vitrail.report.text import ANSWERS

    told: dict[str, list[str]] = {}
    for verdict in result.verdicts().to_dict("records"):
        told.setdefault(ANSWERS[verdict["verdict"]], []).append(verdict["site"])
    said = "; ".join(f"{', '.join(sites)}: {answer}" for answer, sites in told.items())
    return [f"Is joining worth it? {said}."] if said else []


def _pictures(target: Path, seeds: int) -> Demo:
    from vitrail.data.datasets import catalogue as datasets
    from vitrail.report.pages.index import Demo, DemoPage
    from vitrail.study.model import Study

    study = Study.load(datasets.packaged("pneumonia.toml"))
    words = "Four sites, 1560 chest X-rays of children. Is it pneumonia? Each site keeps its pictures."
    print(f"{words}\n")
    result = _compared(study, datasets.pneumonia(), seeds, 3, target)
    pages = [
        DemoPage("report.html", "Is joining worth it?", "Training alone against training together, on each site's own.")
    ]
    return Demo("pictures", study.name, words, pages, _verdict_lines(result), datasets.ATTRIBUTIONS[study.name])


def _prototypes(target: Path) -> Demo:
    """X-rays of which one site's carry a mark: which site's, the federation's page says; what it is, its own."""
    from vitrail.analysis.shortcuts.detector import read_standing
    from vitrail.data.datasets import catalogue as datasets
    from vitrail.data.datasets import planted_shortcuts
    from vitrail.report.pages.builder import write_report
    from vitrail.report.pages.index import Demo, DemoPage
    from vitrail.report.pages.site import write_look
    from vitrail.runs import federate
    from vitrail.runs.site.inspection import look_behind
    from vitrail.study.model import Study

    study = Study.load(datasets.packaged("prototypes.toml"))
    marked = planted_shortcuts.text(datasets.pneumonia(), site="referral", label="pneumonia")
    words = (
        "Four sites, 1560 chest X-rays of children. Is it pneumonia? Each site keeps its pictures. Into those of one "
        "class at one site we wrote a letter, as a portable machine does. Who finds out, without seeing a picture?"
    )
    print(f"{words}\n")
    with show_progress() as step:
        run = federate(study, marked.sites, out=target, progress=lambda done, total: step("rounds", done, total))
    print_run(run)
    print(f"\nPage: {write_report(run, target / 'report.html').resolve()}")
    pages = [DemoPage("report.html", "Whose class stands out?", "Which site and class, the promise, and what to ask.")]
    standing = read_standing(run.facts)
    for name in dict.fromkeys(run.sites[found.site] for found in standing.found) if standing else ():
        page = write_look(look_behind(run, name, marked.sites[name]), target / f"look-{name}.html")
        print(f"What {name} sees of itself, and nobody else: {page.resolve()}")
        pages.append(DemoPage(page.name, f"What {name} sees of itself", "Its own pictures beside its model.", name))
    return Demo("prototypes", study.name, words, pages, thanks=datasets.ATTRIBUTIONS[study.name])


def _vertical(target: Path, seeds: int) -> Demo:
    from vitrail.cli.vertical import demo_vertical
    from vitrail.data.datasets import catalogue as datasets
    from vitrail.report.pages.index import Demo, DemoPage

    study = demo_vertical(target, seeds)
    words = "A hospital knows who is ill; a laboratory has ECG and stress test of the same patients."
    pages = [
        DemoPage(
            "run/report.html", "What the laboratory is worth to the hospital", "With intervals; for both to read."
        ),
        DemoPage(
            "explain-hospital.html", "Why the model says so", "One patient and all of them, at the host.", "hospital"
        ),
        DemoPage("explain-lab.html", "What the laboratory's columns do", "At the guest.", "lab"),
    ]
    return Demo("vertical", study.name, words, pages, thanks=datasets.ATTRIBUTIONS[study.name])
