"""Verbs of a site about its own model: take it along as a file, and write its card. Nothing leaves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vitrail.core.errors import VitrailError

if TYPE_CHECKING:
    from vitrail.deploy.site.model import SiteModel

Place = Annotated[Path, typer.Argument(help="The folder of a run on one machine, with --site; or this site's kit.")]
Whose = Annotated[str, typer.Option(help="The site whose model, where it is a run folder.")]


def export(
    place: Place,
    to: Annotated[Path, typer.Option(help="The file to write: it ends in .onnx, .pt2 (torch) or .vitrail.")],
    site: Whose = "",
) -> None:
    """Site: its own model as one file, with its scale inside, that answers without the run folder."""
    from vitrail.export.writer import export_model

    mine = _own(place, site)
    made = export_model(mine.used, mine.site, mine.run, to)
    print(f"{made.path.resolve()}: the model of {mine.site} from run {mine.run}.")
    if to.suffix.lower() == ".vitrail":
        print(f"New rows: vitrail predict {to} new.csv")
    else:
        print(f"Read back and compared with ours on made-up rows: answers differ by {made.off:.1e} at most.")
    print("It holds what this site learned from its rows, and the mean and spread of its columns: it stays at the site")
    print("unless somebody there decides otherwise.")


def card(
    place: Place,
    data: Annotated[Path, typer.Option("--data", help="The site's own file; it stays here.")],
    site: Whose = "",
    out: Annotated[Path | None, typer.Option(help="The HTML file; without it, card-SITE.html here.")] = None,
) -> None:
    """Site: the card of its own model, as HTML and Markdown: data, scores, calibration, limits, what left the house."""
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
    from vitrail.deploy.consent.form import items
    from vitrail.deploy.consent.secure_sum import noise_and_masks
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
    where = [] if far else ["The run was a simulation on one machine; between machines this would have left."]
    return [item.text() for item in items(agreed, out)], [*where, noise_and_masks(agreed)]


def _own(place: Path, site: str) -> SiteModel:
    """The site's own model, of a run on this machine or between machines."""
    from vitrail.deploy.identity import enrolment
    from vitrail.deploy.site.model import SiteModel, load_model
    from vitrail.runs import Run
    from vitrail.runs.site.inspection import behind

    if (place / "invitation.json").exists():
        return load_model(enrolment.load_kit(place))
    run = Run.load(place)
    told = behind(run, site) if site in run.sites else None
    mine = SiteModel(site, place.resolve().name, run.model_of(site), told, run.info["fingerprints"].get(site))
    return replace(mine, final=run.final_model(site) if site in run.final else None)
