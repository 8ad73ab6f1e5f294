"""Verbs of a site that looks at its own file: check, look, repair. Nothing leaves."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitrail.cli import completion
from vitrail.cli.options import PLACE, Answers, StudyFile
from vitrail.core.errors import Problem, VitrailError, nearest
from vitrail.data.readers.source import to_place

if TYPE_CHECKING:
    from vitrail.quality.repair.remedies import Repair
    from vitrail.quality.screening.result import Screening
    from vitrail.study.model import Study


def check(
    study: StudyFile,
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="The site's own table or pictures; several sites, to compare pictures.",
            parser=to_place,
        ),
    ],
    json: Annotated[
        bool, typer.Option("--json", help="Write findings as JSON; a list if several files are given.")
    ] = False,
    party: Annotated[str, typer.Option(help="Vertical studies: party that owns the table (default: the host).")] = "",
    pooled: Annotated[
        Path | None,
        typer.Option(
            help="Also compare with the pooled summaries of all sites: screen.json of a run, from the coordinator."
        ),
    ] = None,
    site: Annotated[
        str, typer.Option(help="With --pooled: name under which this site published, for what was found about it.")
    ] = "",
    answers: Answers = None,
) -> None:
    """Check a site's file or pictures against the study, alone and offline. Exit codes: 0 no findings, 1 findings, 2
    unreadable.
    """
    import shlex

    from vitrail.quality.checks.table import check_sites, to_json, to_text
    from vitrail.quality.repair.command import COMMAND
    from vitrail.study.model import Study

    agreed = Study.load(study)
    if pooled and (agreed.parties or agreed.images):
        what = "only columns that all sites have are compared with the other sites."
        raise VitrailError("cannot check", [Problem("--pooled", what, "Leave it out.")])
    if agreed.parties:
        from vitrail.vertical.tables import check_files

        checked = check_files(files, agreed, party or agreed.host)
    elif party:
        what = "the study has no parties."
        raise VitrailError("cannot check", [Problem("--party", what, "Leave it out.")])
    else:
        checked = check_sites(files, agreed)
    if pooled:
        from vitrail.data.readers.tables import read_table
        from vitrail.quality.known_findings import read_answers
        from vitrail.quality.screening.pooled_check import read_pooled, unlike_others

        others = read_pooled(pooled, agreed)
        known_findings = [*agreed.known.values(), *read_answers(answers or [])]
        for file, (faults, rows) in checked.items():
            frame = read_table(file, agreed)
            checked[file] = [*faults, *unlike_others(frame, agreed, others, site, known_findings)], rows
    elif site or answers:
        flag = "--site" if site else "--known"
        what = "it is about what other sites published."
        raise VitrailError("cannot check", [Problem(flag, what, "Leave it out, or add --pooled screen.json.")])
    texts = [
        to_json(faults, file.name, rows) if json else to_text(faults, file.name, rows, agreed.row_word)
        for file, (faults, rows) in checked.items()
    ]
    if not json:  # commands to copy
        command = f"vitrail repair {shlex.quote(str(study))} "
        texts = [
            text.replace(COMMAND, f"{command}{shlex.quote(str(file))}")
            for text, file in zip(texts, checked, strict=True)
        ]
    print(texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]" if json else "\n\n".join(texts))
    raise typer.Exit(1 if any(f.severity != "note" for faults, _ in checked.values() for f in faults) else 0)


def look(
    data: Annotated[Path, typer.Option("--data", help="The site's own file or pictures.", **PLACE)],
    run: Annotated[
        Path | None,
        typer.Argument(help="Folder of a run; not together with --kit."),
    ] = None,
    site: Annotated[str, typer.Option(help="Name of your site.", autocompletion=completion.sites)] = "",
    kit: Annotated[Path | None, typer.Option(help="The site's kit, if it took part between machines.")] = None,
    feature: Annotated[
        list[str] | None, typer.Option(help="Column to show in addition to those with findings.")
    ] = None,
    picture: Annotated[
        list[str] | None,
        typer.Option(help="Picture to examine in detail: one of --data, or the file of another."),
    ] = None,
    without_prototype: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CLASS:NUMBER",
            help="Prototype to take out of a copy of the model; shows the scores before and after.",
        ),
    ] = None,
    write: Annotated[
        Path | None,
        typer.Option(help="With --without-prototype: new file for the corrected model (.vitrail, .onnx or .pt2)."),
    ] = None,
    answers: Answers = None,
    out: Annotated[
        Path | None, typer.Option(help="HTML file to write (default: look-SITE.html in this folder).")
    ] = None,
) -> None:
    """Site: show its own rows behind each finding and a repair, or its pictures and what the model looks at. Nothing
    leaves.
    """
    import shlex

    from vitrail.analysis.images.prototype_removal import name_prototypes
    from vitrail.data.readers.tables import read_table
    from vitrail.export.writer import check_new, export_model
    from vitrail.quality.known_findings import read_answers
    from vitrail.quality.repair.inspection import SiteInspection
    from vitrail.report.pages.site import write_look
    from vitrail.runs import Run
    from vitrail.runs.folder import site_folder
    from vitrail.runs.site.inspection import look_behind
    from vitrail.runs.site.inspection_text import to_text
    from vitrail.runs.site.prototype_removal import correct

    if (run is None) == (kit is None):
        what = "expected a run folder with --site, or --kit if the site took part between machines."
        raise VitrailError("cannot look", [Problem("RUN or --kit", what)])
    without = without_prototype or []
    if write is not None and not without:
        what = "there is no corrected model without --without-prototype."
        raise VitrailError("cannot look", [Problem("--write", what, "To save the model as it is: vitrail export.")])
    if write is not None:
        check_new(write, "--write")
    known_findings = read_answers(answers or [])
    if kit is not None:
        from vitrail.deploy.identity import enrolment
        from vitrail.deploy.site import model as site_model

        mine = site_model.load_model(enrolment.load_kit(kit))
        frame = read_table(data, mine.model.study)
        seen = mine.look(frame, feature or [], picture or [], without, known_findings)
    else:
        assert run is not None
        loaded = Run.load(run)
        frame = read_table(data, loaded.study)
        seen = look_behind(loaded, site, frame, feature or [], picture or [], without, known_findings)
    if isinstance(seen, SiteInspection):
        seen = seen._replace(command=shlex.join(["vitrail", "repair", str(kit or run), str(data)]))
        if run is not None:
            more = ["--from", str(run), "--site", loaded.published_name(site)]
            seen = seen._replace(together=f"{seen.command} {shlex.join(more)}")
    own = mine.joining if kit is not None else None
    beyond = [run / "report.html"] if run is not None else []
    page = write_look(seen, out or Path(f"look-{site_folder(seen.site)}.html"), own, beyond)
    print(f"{to_text(seen)}\n\nPage: {page.resolve()}")
    if write is not None:
        place, model = (Path(mine.run), mine.model) if kit is not None else (run or Path(), loaded.model_of(site))
        seen_rows = mine.rows if kit is not None else loaded.info["fingerprints"].get(site)
        corrected = correct(model, seen.site, frame, seen_rows, without)
        words = f"without {name_prototypes(corrected.removed)}"
        made = export_model(corrected.model, seen.site, f"{place.resolve().name}, {words}", write, "--write")
        print(f"Corrected model: {made.path.resolve()} ({words}). The model in use was not changed.")


def known(
    study: StudyFile,
    source: Annotated[Path, typer.Argument(help="Folder of a run, or a screen.json.", metavar="FINDINGS")],
    site: Annotated[str, typer.Option(help="Site that the finding is about.", autocompletion=completion.sites)],
    feature: Annotated[str, typer.Option(help="Column that the finding is about (a feature or the outcome).")],
    why: Annotated[str, typer.Option(help="What is known: why the data is as it is.")],
    who: Annotated[str, typer.Option(help="Who says so (default: the user of this machine).")] = "",
    to: Annotated[
        Path, typer.Option(help="File that the answer is added to: the study, or a file of the site's own.")
    ] = Path("known.toml"),
) -> None:
    """Answer a finding: it is then shown as known and does not change the exit code. It comes back when its numbers
    change.
    """
    import getpass
    from datetime import datetime

    from vitrail.quality.known_findings import add_answer, answer_finding
    from vitrail.quality.screening.result import LABEL
    from vitrail.quality.screening.text import sentence

    agreed, screening = _study_of(study), _load_findings(source, "this cannot be answered", "FINDINGS")
    outcome = agreed.target.column
    day = datetime.now().astimezone().date()
    answer = answer_finding(screening.findings, site, feature, outcome, why, who or getpass.getuser(), day)
    add_answer(to, answer)
    column = LABEL if answer.column == outcome else answer.column
    about = next(f for f in screening.findings if f.site == site and f.feature == column)
    print(f"Answered: {sentence(about)}\nWritten to {to.resolve()}. Give it to screen, check and look: --known {to}")


def repair(
    study: Annotated[
        Path,
        typer.Argument(
            help="Study file (TOML), folder of a run, or this site's kit.",
            autocompletion=completion.study_files,
        ),
    ],
    file: Annotated[Path, typer.Argument(help="The site's own table; it is never changed.", parser=to_place)],
    feature: Annotated[str, typer.Option(help="Column to repair (a feature or the outcome).")] = "",
    cause: Annotated[str, typer.Option(help="Cause, as `vitrail look` names it.")] = "",
    factor: Annotated[float | None, typer.Option(help="For unit: factor to multiply values by.")] = None,
    offset: Annotated[
        float | None, typer.Option(help="For unit and offset: value to add; for sign: OFFSET - value.")
    ] = None,
    code: Annotated[str | None, typer.Option(help="For code: number that stands for a missing value.")] = None,
    other: Annotated[str | None, typer.Option(help="For swapped: the other column.")] = None,
    map_: Annotated[
        list[str] | None, typer.Option("--map", help="For recoded: WRITTEN=MEANT, once for each code.")
    ] = None,
    below: Annotated[float | None, typer.Option(help="For a unit in some rows: change only values below this.")] = None,
    above: Annotated[float | None, typer.Option(help="For a unit in some rows: change only values above this.")] = None,
    findings: Annotated[
        Path | None,
        typer.Option("--from", help="Folder of a run or a screen.json: make all repairs that its findings ask for."),
    ] = None,
    site: Annotated[
        str,
        typer.Option(help="With --from: name under which this site published.", autocompletion=completion.sites),
    ] = "",
    write: Annotated[Path | None, typer.Option(help="Corrected copy to make (default: only show the changes).")] = None,
    word: Annotated[str, typer.Option(help="Who decided, for the note (default: the user of this machine).")] = "",
    why: Annotated[str, typer.Option(help="Reason, for the note.")] = "",
) -> None:
    """Site: show what a repair would change in its file. With --write: make a corrected copy with a note. The file
    itself is never changed.
    """
    import getpass
    import shlex

    from vitrail.quality.repair.corrected_copy import correct, to_text, write_copy
    from vitrail.quality.repair.remedies import Repair
    from vitrail.quality.repair.table_writer import as_csv

    agreed = _study_of(study)
    if agreed.images or agreed.parties:
        what = "only tables of sites can be repaired."
        raise VitrailError("cannot repair", [Problem(str(study), what, "Correct the files by hand.")])
    if findings is not None:
        given = {"--cause": cause, "--factor": factor, "--offset": offset, "--code": code, "--other": other,
                 "--map": map_, "--below": below, "--above": above}  # fmt: skip
        if lost := [flag for flag, value in given.items() if value not in (None, "", [])]:
            what = "it is taken from the findings."
            raise VitrailError("cannot repair", [Problem(flag, what, "Leave it out, or --from.") for flag in lost])
        wanted, reasons, pooled = _from_findings(findings, site, file, agreed, feature)
        why = "; ".join([*([why] if why else []), *reasons])
    else:
        levels, pooled = _read_map(map_ or [], {"--feature": feature, "--cause": cause}), _pooled_beside(study)
        wanted = [Repair(feature, cause.replace("-", " "), factor, offset, code, other, levels or None, below, above)]
    corrected = correct(file, agreed, wanted, pooled)
    print(to_text(corrected))
    if write is None:
        copy = as_csv(file, ".repaired")
        print(f"\nNothing was written. To make a corrected copy, add --write {shlex.quote(str(copy))}")
        return
    made, note = write_copy(corrected, write, word or getpass.getuser(), why)
    print(f"\nCopy: {made.resolve()}\nNote: {note.resolve()}\n{file} was not touched.")


def _read_map(given: list[str], needed: dict[str, str]) -> dict[str, str]:
    """WRITTEN=MEANT; and nothing that a repair needs is left out."""
    hint = "`vitrail look` prints the command to copy."
    problems = [Problem(flag, "no value is given.", hint) for flag, value in needed.items() if not value]
    levels = dict[str, str]()
    for item in given:
        written, equals, meant = (part.strip() for part in item.partition("="))
        if not equals or not written or not meant:
            problems.append(Problem("--map", f"expected WRITTEN=MEANT, got {item!r}.", "Write for example --map 1=2."))
        elif levels.setdefault(written, meant) != meant:
            problems.append(Problem("--map", f"{written!r} is given two meanings.", "Write it once."))
    if problems:
        raise VitrailError("cannot repair", problems)
    return levels


def _from_findings(
    source: Path, site: str, file: Path, agreed: Study, feature: str
) -> tuple[list[Repair], list[str], dict[str, Any]]:
    """Repairs for what a screening calls likely wrong at this site and its own rows confirm; the other findings are
    printed. And what all sites published.
    """
    from vitrail.data.readers.tables import read_table
    from vitrail.quality.repair.own_rows import own_cause
    from vitrail.quality.repair.remedies import Repair
    from vitrail.quality.screening.result import LABEL
    from vitrail.quality.screening.text import standing

    screening = _load_findings(source, "cannot repair")
    names = screening.sites["site"].tolist()
    if site not in names:
        raise VitrailError("cannot repair", [Problem("--site", f"there is no site {site!r}.", nearest(site, names))])
    column = LABEL if feature == agreed.target.column else feature
    mine = [f for f in screening.wrong if f.site == site and column in ("", f.feature)]
    if not mine:
        rest = [f for f in screening.findings if f.site == site and column in ("", f.feature)]
        remark = (
            f"; what differs there {standing(rest[0])}" if rest and not rest[0].known else "; what was found is known"
        )
        what = "nothing is likely wrong there" + (f" with {feature!r}" if feature else "") + remark * bool(rest) + "."
        raise VitrailError("cannot repair", [Problem("--from", what, "To look at the data anyway: vitrail look.")])
    frame = read_table(file, agreed)
    repairs, reasons = list[Repair](), list[str]()
    for finding in mine:
        cause, repair = own_cause(finding, frame, agreed, screening.pooled)
        if repair is None:
            about = agreed.target.column if finding.feature == LABEL else finding.feature
            print(f"{about}: {cause.what}: {cause.numbers}.\n  No repair. {cause.repair}")
        elif not any({repair.column, repair.other} & {r.column, r.other} - {None} for r in repairs):  # told twice
            repairs, reasons = [*repairs, repair], [*reasons, finding.text]
    if not repairs:
        what = "no finding has a repair that this file confirms."
        raise VitrailError("cannot repair", [Problem("--from", what, "See vitrail look.")])
    return repairs, reasons, screening.pooled


def _load_findings(source: Path, title: str, where: str = "") -> Screening:
    """What a run or `vitrail screen` found."""
    from vitrail.runs.screening import SCREEN, load_screening

    place = source / SCREEN if source.is_dir() else source
    try:
        screening = load_screening(place)
    except (ValueError, KeyError, TypeError, OSError):
        what = "expected what `vitrail screen` or a run wrote, got something else."
        raise VitrailError(title, [Problem(where or str(place), what, "Give the folder of a run.")]) from None
    if screening is None:
        raise VitrailError(title, [Problem(where or str(place), "there is no screening.", "Give a run's folder.")])
    return screening


def _pooled_beside(place: Path) -> dict[str, Any]:
    """What all sites published, where a run's folder is given; a repair by hand is then compared with it as well."""
    from vitrail.runs.screening import SCREEN, load_screening

    screening = load_screening(place / SCREEN) if place.is_dir() else None
    return screening.pooled if screening else {}


def _study_of(place: Path) -> Study:
    from vitrail.deploy.identity import enrolment
    from vitrail.study.model import Study

    if (place / "invitation.json").exists():
        return enrolment.load_kit(place).study
    return Study.load(place / "study.toml" if place.is_dir() else place)
