"""Verbs of a site about its own model: predict, explain, export it as a file, write its card. Nothing leaves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vitrail.cli import completion
from vitrail.cli.options import PLACE
from vitrail.cli.output import explain_all
from vitrail.core.errors import Problem, VitrailError

if TYPE_CHECKING:
    from vitrail.deploy.site.model import SiteModel

Place = Annotated[Path, typer.Argument(help="Folder of a run on one machine, with --site; or this site's kit.")]
Whose = Annotated[str, typer.Option(help="Site whose model is used, for a run folder.")]


def predict(
    kit: Annotated[
        Path,
        typer.Argument(
            help=(
                "This site's kit; or the folder of a run on one machine, with --site; or a file written by "
                "`vitrail export`."
            )
        ),
    ],
    new: Annotated[Path | None, typer.Argument(help="New rows: a table with the study's columns.", **PLACE)] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            "--data", help="New rows or pictures; vertical studies: the folder of the parties' tables.", **PLACE
        ),
    ] = None,
    id_: Annotated[
        str, typer.Option("--id", help="Column of the new rows to copy to each prediction; the model does not use it.")
    ] = "",
    site: Annotated[
        str, typer.Option(help="Site whose model is used, for a run folder.", autocompletion=completion.sites)
    ] = "",
    out: Annotated[Path | None, typer.Option(help="CSV file to write (default: print on the screen).")] = None,
    run: Annotated[str | None, typer.Option(help="Run whose model is used (default: the last one that ended).")] = None,
    keep: Annotated[
        str,
        typer.Option(
            help="Use the model that this method trained on this site's rows alone, instead of the agreed one."
        ),
    ] = "",
    without: Annotated[list[str] | None, typer.Option(help="Guest that is absent: its median answer is used.")] = None,
    blind: Annotated[
        bool,
        typer.Option(
            "--blind", help="Look up people at guests without revealing whom; counts towards each guest's query limit."
        ),
    ] = False,
    today: Annotated[list[str] | None, typer.Option(help="Today's table of a guest, for lookups: GUEST=FILE.")] = None,
) -> None:
    """Site: predict new rows with its own model, as CSV: line or picture, a probability for each class, and the
    uncertainty.
    """
    from vitrail.cli.vertical import host_run_of, predict_parties, refuse_others, write_new
    from vitrail.data.readers.tables import read_table
    from vitrail.deploy.identity import enrolment
    from vitrail.deploy.site.model import SiteModel, load_model
    from vitrail.runs import Run
    from vitrail.runs.site.local_model import kept_alone
    from vitrail.runs.site.prediction_ids import name_rows_by
    from vitrail.storage.csv_files import to_csv
    from vitrail.vertical.run import is_together

    if of_host := host_run_of(kit, run):
        kit, new, data = of_host, new or data, None
    if is_together(kit):
        refuse_others({"--keep": keep})
        predict_parties(kit, new, without or [], data, blind, today or [], out, id_)
        return
    rows, both = new or data, new is not None and data is not None
    if rows is None or both or without or blind or today:
        what = "expected one table of new rows." if rows is None or both else "the run has no parties."
        where = "--data" if rows is None or both else "--without, --blind, --today"
        raise VitrailError("cannot predict", [Problem(where, what, "vitrail predict PLACE new.csv")])
    if kit.is_file():
        from vitrail.export.safe_file import read_safe

        mine = SiteModel(*read_safe(kit)[:3])
    elif (kit / "run.json").exists():
        mine = SiteModel(site, kit.name, Run.load(kit).final_model(site))
    else:
        mine = load_model(enrolment.load_kit(kit), run)
        mine = replace(mine, model=mine.used)
    if keep:
        model, rests = kept_alone(mine.model, keep)
        mine = replace(mine, model=model)
        typer.echo(rests, err=True)  # not among the rows
    study = mine.model.study
    frame = read_table(rows, study)
    named = name_rows_by(id_, frame, study)
    answers, notes = mine.model.predict_marked(frame)
    text = to_csv(named(answers), "picture" if study.images else "line")
    typer.echo("".join(f"note: {note}\n" for note in notes), nl=False, err=True)
    if out is None:
        print(text, end="")
        if mine.model.note:
            typer.echo(mine.model.note, err=True)  # not among the rows
        return
    write_new(out, text)
    count = f"{text.count(chr(10)) - 1} {study.row_word}s"
    print(f"{out.resolve()}: {count}, with the model of {mine.site} from run {mine.run}.")
    if mine.model.note:
        print(mine.model.note)


def explain(
    place: Annotated[Path, typer.Argument(help="Folder of a run on one machine, or this site's kit.")],
    data: Annotated[
        Path | None,
        typer.Option(
            "--data", help="The site's own file; without --site, a folder with the files of all sites.", **PLACE
        ),
    ] = None,
    site: Annotated[
        str,
        typer.Option(help="Site that explains its own model (default: all sites).", autocompletion=completion.sites),
    ] = "",
    party: Annotated[
        str, typer.Option(help="Vertical studies: party whose own page is written (default: the host).")
    ] = "",
    id_: Annotated[
        list[str] | None, typer.Option("--id", help="Vertical studies: explain the prediction for this patient ID.")
    ] = None,
    rows: Annotated[
        int, typer.Option(min=1, help="Number of rows to explain, sampled at random if there are more.")
    ] = 1000,
    row: Annotated[list[str] | None, typer.Option(help="Explain this row (line number in the file).")] = None,
    feature: Annotated[str | None, typer.Option(help="Feature whose dependence plot is drawn.")] = None,
    outcome: Annotated[str | None, typer.Option(help="Class to explain (default: the positive class).")] = None,
    reference: Annotated[
        Path | None, typer.Option(help="The site's own file, if --data contains new rows.", **PLACE)
    ] = None,
    refuse: Annotated[
        list[str] | None,
        typer.Option(help="Site that publishes nothing on the page of all sites.", autocompletion=completion.sites),
    ] = None,
    whole_space: Annotated[
        bool,
        typer.Option(
            "--whole",
            help="Vertical studies with all tables on this machine: also the values of every column of the guests.",
        ),
    ] = False,
    seed: Annotated[int, typer.Option(help="Random seed for sampling rows.")] = 1,
    out: Annotated[
        Path | None, typer.Option(help="HTML file to write (default: explain-SITE.html, here or in the run folder).")
    ] = None,
) -> None:
    """Explain predictions. At a site: its own model on its own rows; nothing leaves. For all sites: means only.
    Vertical studies: the host's own page, where the columns of a guest count as one feature, or a guest's own page.
    """
    from vitrail.cli.vertical import explain_parties, host_run_of, refuse_others
    from vitrail.data.readers.tables import read_table
    from vitrail.deploy.identity import enrolment
    from vitrail.deploy.site.model import load_model
    from vitrail.report.pages.explanation import to_text, write_explained
    from vitrail.runs import Run
    from vitrail.runs.folder import site_folder
    from vitrail.runs.site.explanation import explain_model
    from vitrail.vertical.run import is_together

    place = host_run_of(place) or place
    if is_together(place):
        refuse_others({"--site": site, "--row": row, "--reference": reference, "--refuse": refuse})
        explain_parties(place, data, rows, id_ or [], party, feature, outcome, seed, out, whole_space)
        return
    if data is None or party or id_ or whole_space:
        what = (
            "expected the site's own file, or a folder with the files of all sites."
            if data is None
            else "the run has no parties."
        )
        raise VitrailError("cannot explain", [Problem("--data" if data is None else "--party, --id, --whole", what)])
    loaded = Run.load(place) if not (place / "invitation.json").exists() else None
    everyone = loaded is not None and not site
    alone = {"--row": row, "--feature": feature, "--reference": reference}
    if lost := [k for k, given in (alone if everyone else {"--refuse": refuse}).items() if given]:
        what = "it is for one site." if everyone else "it is for the page of all sites."
        hint = "Name the site: --site." if everyone else "Leave it out."
        raise VitrailError("cannot explain", [Problem(k, what, hint) for k in lost])
    if loaded is not None and everyone:
        explain_all(loaded, place, data, rows, seed, outcome, refuse or [], out)
        return
    if loaded is not None:
        mine, seen = loaded.final_model(site, "explain"), loaded.info["fingerprints"].get(site)
    else:
        own = load_model(enrolment.load_kit(place))
        mine, seen, site = own.used, own.rows, own.site
    frame = read_table(data, mine.study)
    back = read_table(reference, mine.study) if reference else None
    whole = explain_model(mine, site, frame, seen, rows, seed, outcome, back)
    shown = explain_model(mine, site, frame, seen, row, seed, outcome, back) if row else None
    path = out or Path(f"explain-{site_folder(site)}.html")
    beyond = [place / "report.html"]
    page = write_explained(whole, path, site=site, study=mine.study.name, shown=shown, feature=feature, beyond=beyond)
    print(f"{to_text(whole, site, shown)}\n\nPage: {page.resolve()}")


def export(
    place: Place,
    to: Annotated[Path, typer.Option(help="File to write; its name ends in .onnx, .pt2 (torch) or .vitrail.")],
    site: Whose = "",
) -> None:
    """Site: export its own model as one file that includes the scaling and works without the run folder."""
    from vitrail.export.writer import export_model

    mine = _own(place, site)
    made = export_model(mine.used, mine.site, mine.run, to)
    print(f"{made.path.resolve()}: the model of {mine.site} from run {mine.run}.")
    if to.suffix.lower() == ".vitrail":
        print(f"New rows: vitrail predict {to} new.csv")
    else:
        print(
            "The file was read back and compared with the original model on synthetic rows: predictions "
            f"differ by {made.off:.1e} at most."
        )
    print(
        "The file contains what this site learned from its rows, and the mean and spread of its columns. "
        "It stays at the site"
    )
    print("unless somebody there decides otherwise.")


def card(
    place: Place,
    data: Annotated[Path, typer.Option("--data", help="The site's own file; it stays here.")],
    site: Whose = "",
    out: Annotated[
        Path | None, typer.Option(help="HTML file to write (default: card-SITE.html in this folder).")
    ] = None,
) -> None:
    """Site: write the model card of its own model as HTML and Markdown: data, scores, calibration, limits, and what
    left the hospital.
    """
    from vitrail.core.text import number
    from vitrail.data.readers.tables import read_table
    from vitrail.report.pages.card.contents import calibration_lines
    from vitrail.report.pages.card.page import write_card
    from vitrail.report.text import metric_words
    from vitrail.runs.folder import site_folder
    from vitrail.runs.site.card import make_card

    mine = _own(place, site)
    findings = mine.behind.findings if mine.behind and mine.behind.judged else None
    made = make_card(
        mine.model, mine.site, mine.run, read_table(data, mine.model.study), mine.rows, findings, *_left(place, mine)
    )
    path = out or Path(f"card-{site_folder(mine.site)}.html")
    page, plain = write_card(made, path, mine.joining, [place / "report.html"])
    for score in made.scores[:1]:
        print(f"{metric_words(score.metric)}: {number(score.estimate.value)}; baseline: {number(score.chance)}")
    print("\n".join([*calibration_lines(made)[:1], *made.limits]))
    print(f"\nPage:     {page.resolve()}\nMarkdown: {plain.resolve()}\nBoth are private to {mine.site}.")


def _left(place: Path, mine: SiteModel) -> tuple[list[str], list[str]]:
    """What left the house in that run, in words, and what stood between it and a reader."""
    from vitrail.deploy.consent.disclosures import items
    from vitrail.deploy.consent.form import protection_text
    from vitrail.deploy.identity import enrolment
    from vitrail.deploy.protocol.agreement import Agreement
    from vitrail.runs import Run

    study, seed = mine.model.study, mine.model.seed
    far = (place / "invitation.json").exists()
    kit = enrolment.load_kit(place) if far else None
    sites = kit.participants.roster or len(kit.sites) if kit else len(Run.load(place).sites)
    try:
        agreed = Agreement.of(study, seed, sites)
    except VitrailError as error:
        return [f"In simulation only: {problem.what}" for problem in error.problems], []
    out = [x for x in agreed.lines if x.direction == "from site"]
    where = (
        [] if far else ["The run was a simulation on one machine; between machines, this would have left the hospital."]
    )
    return [item.text for item in items(agreed, out)], [*where, protection_text(agreed)]


def _own(place: Path, site: str) -> SiteModel:
    """The site's own model, of a run on this machine or between machines."""
    from vitrail.deploy.identity import enrolment
    from vitrail.deploy.site.model import SiteModel, load_model
    from vitrail.runs import Run
    from vitrail.runs.site.inspection import behind

    if (place / "invitation.json").exists():
        return load_model(enrolment.load_kit(place))
    run = Run.load(place)
    briefing = behind(run, site) if site in run.sites else None
    mine = SiteModel(site, place.resolve().name, run.model_of(site), briefing, run.info["fingerprints"].get(site))
    return replace(mine, final=run.final_model(site) if site in run.final else None)
