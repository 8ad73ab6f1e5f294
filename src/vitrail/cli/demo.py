"""`vitrail demo`: what Vitrail is for, on data that is shipped. First whose data does not fit and why, then what
joining is worth, then what a model looks at; methods and tables are on the pages."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from vitrail.cli.options import cores, free_folder, parse_methods
from vitrail.cli.output import print_run, print_verdicts, show_progress
from vitrail.core.errors import Problem, VitrailError, nearest, printable

if TYPE_CHECKING:
    import pandas as pd

    from vitrail.quality.screening.result import Finding, Screening
    from vitrail.report.pages.demo_picture import FramedPicture
    from vitrail.report.pages.index import Demo, DemoPage
    from vitrail.studies.compare.result import Comparison
    from vitrail.study.model import Study

KINDS = {
    "heart": "tables of four hospitals, and X-rays: whose data does not fit, and is joining worth it?",
    "pictures": "chest X-rays at four sites: is joining worth it?",
    "prototypes": "chest X-rays of which one site's carry a mark: who finds out?",
    "vertical": "a hospital and a laboratory with the same patients: what are its columns worth?",
}
SEMI_SYNTHETIC = (
    "Semi-synthetic: three clinics that do not exist. Their 920 patients are those of the four hospitals; we dealt "
    "them anew and invented the days of their visits."
)
MARKED = (
    "Four sites, 1560 chest X-rays of children. Is it pneumonia? Each site keeps its pictures. Into those of one "
    "class at one site we wrote a letter, as a portable machine does. Who finds out, without seeing a picture?"
)
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
    from vitrail.report.pages.demo_picture import demo_picture
    from vitrail.report.pages.index import Demo
    from vitrail.study.model import Study

    study, sites = Study.load(datasets.packaged("heart_disease.toml")), datasets.heart_disease()
    words = "Four hospitals, 920 patients. Is a coronary artery narrowed? Each hospital keeps its rows."
    print(f"{words}\nThree questions. On two cores it takes about a minute.\n\nWHOSE DATA DOES NOT FIT?\n")
    misfit = _misfit(study, sites, target)
    print("IS JOINING WORTH IT?\n\nThe four hospitals as they are:\n", flush=True)
    methods = parse_methods(None)
    hospitals = _compared(study, sites, methods, seeds, 10, target / "compared", "part 2 of 4, the hospitals")
    clinics = _clinics(target / "clinics", seeds)
    marked = _marked(target / "xrays")
    pages = [*misfit.pages, *_pages_of_joining(), *marked.pages]
    lines = [*misfit.lines, *_verdict_lines(hospitals, " The four hospitals:")]
    lines += [*_verdict_lines(clinics, " The three clinics (semi-synthetic):"), *marked.lines]
    thanks = f"{datasets.ATTRIBUTIONS[study.name]} {datasets.PNEUMONIA_ATTRIBUTION}"
    picture = demo_picture([SEMI_SYNTHETIC, *_reasons()], clinics, marked.framed)
    return Demo("heart", study.name, words, pages, lines, thanks, picture, ["prototypes"])


class _Part(NamedTuple):
    """What a part of a demo adds to the index."""

    pages: list[DemoPage]
    lines: list[str]  # of what was found
    framed: FramedPicture | None = None


def _misfit(study: Study, sites: Mapping[str, pd.DataFrame], target: Path) -> _Part:
    """Whose data does not fit: as the hospitals gave it, and with a mistake that we write into it."""
    from vitrail.data.units import choose_conversions
    from vitrail.quality.repair.inspection import SiteInspection
    from vitrail.report.pages.builder import write_report
    from vitrail.report.pages.index import DemoPage
    from vitrail.report.pages.site import write_look
    from vitrail.report.sections.screening import write_screen
    from vitrail.runs import federate
    from vitrail.runs.screening import screen_sites
    from vitrail.runs.site.inspection import look_behind

    as_given = ["As the hospitals gave it:", *_first_lines(screen_sites(study, sites))]
    print("\n".join(as_given), flush=True)
    site, column, other = "hungarian", "chol", "mmol/L"
    unit = study.features[column].unit
    turn = next(c for c in choose_conversions(column, study.features[column]) if c.other == other)
    wrong = {**sites, site: sites[site].assign(**{column: (sites[site][column] / turn.factor).round(2)})}
    ours = f"In this demo {site}'s {column} is in {other}: a mistake that we wrote into it, and not theirs."
    false = study.with_changes(description=f"{study.description} {ours}")  # no page may pass it off as their data
    planted = screen_sites(false, wrong)
    story = f"With a mistake of ours: {site}'s {column} in {other} instead of {unit}. Nobody saw a row of theirs."
    findings = [printable(_line(f)) for f in planted.wrong]
    print("\n".join(["", story, *findings]), flush=True)
    with show_progress() as step:
        run = federate(
            false, wrong, out=target / "run", progress=lambda done, total: step("part 1 of 4, one run", done, total)
        )
        file = target / f"{site}.csv"
        wrong[site].to_csv(file, index=False)
        inspection = look_behind(run, site, wrong[site])
        assert isinstance(inspection, SiteInspection)
        repair = shlex.join(["vitrail", "repair", str(target / "run"), str(file)])
        write_look(inspection._replace(command=repair), target / f"look-{site}.html")  # whoever stops the rest has this
        write_screen(false, planted, target / "findings.html")
        write_report(run, target / "run" / "report.html")
    print(f"\nThe repair, at {site}, in its own file (nothing is changed without --write):")
    print(f"  {repair} {shlex.join(['--from', str(target / 'run'), '--site', site])}\n")
    pages = [
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
        DemoPage("run/report.html", "One run", "The page of a single run, with our mistake in the data."),
    ]
    return _Part(pages, [" ".join(x.strip(" -") for x in part) for part in (as_given[:4], [story, *findings])])


def _line(finding: Finding) -> str:
    from vitrail.quality.screening.text import sentence

    return f"  - {sentence(finding)}"


def _first_lines(screening: Screening) -> list[str]:
    """What is likely wrong, or that nothing is; and the strongest of what differs and may be real."""
    from vitrail.quality.screening.text import calm

    maybe = screening.maybe
    lines = [_line(f) for f in screening.wrong] or [calm(screening)]
    if maybe:
        lines += [f"{len(maybe)} cells differ, and may be real. The strongest:", *(_line(f) for f in maybe[:FIRST])]
    return [printable(line) for line in lines]


def _clinics(out: Path, seeds: int) -> Comparison:
    """Three clinics made of the same patients: a yes, a no and a cannot tell."""
    from vitrail.data.datasets import catalogue as datasets
    from vitrail.data.datasets.clinics import three_clinics
    from vitrail.study.model import Study

    print("\n".join(["", SEMI_SYNTHETIC, *(f"  - {reason}" for reason in _reasons()), ""]), flush=True)
    study, words = Study.load(datasets.packaged("clinics.toml")), "part 3 of 4, the clinics"
    return _compared(study, three_clinics(), pair_of_methods(), seeds, 10, out, words, workers=1)


def _reasons() -> list[str]:
    from vitrail.data.datasets.clinics import CLINICS

    return [f"Site {name} {clinic.words}" for name, clinic in CLINICS.items()]


def pair_of_methods() -> list[str]:
    """Training alone, and one model for all."""
    from vitrail.methods import DEFAULT, named

    return [*named(lambda kind: kind.catalogue.alone)[:1], DEFAULT]


def _pages_of_joining() -> list[DemoPage]:
    from vitrail.report.pages.index import DemoPage

    return [
        DemoPage(
            "clinics/report.html",
            "Is joining worth it? Three clinics",
            "Semi-synthetic: the patients are real, the clinics are ours. Training alone against one model for all.",
        ),
        DemoPage(
            "compared/report.html",
            "Is joining worth it? The four hospitals",
            "For each hospital as it is: training alone against training together, with intervals; then the "
            "methods compared, what left each site, and every score.",
        ),
    ]


def _compared(
    study: Study,
    sites: Mapping[str, pd.DataFrame],
    methods: list[str],
    seeds: int,
    folds: int,
    out: Path,
    words: str,
    workers: int = 0,
) -> Comparison:
    """`workers`: processes, 0 for as many as there are cores; where there is little to do, starting them takes longer
    than the work."""
    from vitrail.report.pages.builder import write_report
    from vitrail.studies.compare.execution import compare, seeds_of

    with show_progress() as step:
        result = compare(
            study,
            sites,
            methods,
            seeds_of(study, seeds),
            folds=folds,
            out=out,
            workers=workers or cores(),
            progress=lambda what, done, total: step(f"{words}: {what}", done, total),
        )
    for finding in result.screening.wrong if result.screening else ():
        print(f"Before any training, the screening asks:\n{printable(_line(finding))}\n")
    print_verdicts(result)
    write_report(result, out / "report.html")
    return result


def _verdict_lines(result: Comparison, whose: str = "") -> list[str]:
    """`whose`: which sites they are, where there are others too."""
    sites: dict[str, list[str]] = {}
    for row in result.verdicts().to_dict("records"):
        sites.setdefault(row["verdict"], []).append(row["site"])
    answers = "; ".join(f"{verdict} for {', '.join(names)}" for verdict, names in sites.items())
    return [f"Is joining worth it?{whose} {answers}."] if answers else []


def _pictures(target: Path, seeds: int) -> Demo:
    from vitrail.data.datasets import catalogue as datasets
    from vitrail.report.pages.index import Demo, DemoPage
    from vitrail.study.model import Study

    study = Study.load(datasets.packaged("pneumonia.toml"))
    words = "Four sites, 1560 chest X-rays of children. Is it pneumonia? Each site keeps its pictures."
    print(f"{words}\n\nIS JOINING WORTH IT?\n", flush=True)
    result = _compared(study, datasets.pneumonia(), parse_methods(None), seeds, 3, target, "alone and together")
    pages = [
        DemoPage("report.html", "Is joining worth it?", "Training alone against training together, on each site's own.")
    ]
    return Demo("pictures", study.name, words, pages, _verdict_lines(result), datasets.ATTRIBUTIONS[study.name])


def _prototypes(target: Path) -> Demo:
    """X-rays of which one site's carry a mark, alone in a folder."""
    from vitrail.data.datasets import catalogue as datasets
    from vitrail.report.pages.index import Demo
    from vitrail.study.model import Study

    study = Study.load(datasets.packaged("prototypes.toml"))
    part = _marked(target, alone=True)
    return Demo("prototypes", study.name, MARKED, part.pages, part.lines, datasets.ATTRIBUTIONS[study.name])


def _marked(out: Path, alone: bool = False) -> _Part:
    """X-rays of which one site's carry a mark: which site's, the federation's page says; what it is, its own. `alone`:
    with the scores, as a demo of its own."""
    from vitrail.analysis.images.gallery import Album
    from vitrail.analysis.shortcuts.detector import read_standing
    from vitrail.data.datasets import catalogue as datasets
    from vitrail.data.datasets import planted_shortcuts
    from vitrail.report.pages.builder import write_report
    from vitrail.report.pages.demo_picture import framed_picture
    from vitrail.report.pages.index import DemoPage
    from vitrail.report.pages.site import write_look
    from vitrail.runs import federate
    from vitrail.runs.site.inspection import look_behind
    from vitrail.study.model import Study

    folder, awaited = ("", "rounds") if alone else (f"{out.name}/", "part 4 of 4, X-rays")
    study = Study.load(datasets.packaged("prototypes.toml"))
    marked = planted_shortcuts.text(datasets.pneumonia(), site="referral", label="pneumonia")
    print(f"{MARKED}\n" if alone else f"\nWHAT DOES A MODEL LOOK AT?\n\n{MARKED}\n", flush=True)
    with show_progress() as step:
        run = federate(study, marked.sites, out=out, progress=lambda done, total: step(awaited, done, total))
    report = write_report(run, out / "report.html")
    if alone:
        print_run(run)
        print(f"\nPage: {report.resolve()}")
    pages = [DemoPage(f"{folder}report.html", "Whose class stands out?", "Which site and class, and what to ask.")]
    standing = read_standing(run.facts)
    lines, framed = list[str](), None
    for finding in {f.site: f for f in (standing.found if standing else ())}.values():
        name, label = run.sites[finding.site], study.target.levels[finding.label]
        album = look_behind(run, name, marked.sites[name])
        assert isinstance(album, Album)
        page = write_look(album, out / f"look-{name}.html")
        framed = framed or framed_picture(album, str(label))
        lines.append(f"Class {label} of site {name} stands out; this was found without seeing a picture.")
        print(lines[-1])
        print(f"What {name} sees of itself, and nobody else: {page.resolve()}")
        pages.append(
            DemoPage(f"{folder}{page.name}", f"What {name} sees of itself", "Its own pictures beside its model.", name)
        )
    return _Part(pages, lines, framed)


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
