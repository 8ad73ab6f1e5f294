"""Verbs by which a site takes its own model along: export."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from vitrail.deploy.personal import Personal

Place = Annotated[Path, typer.Argument(help="The folder of a run on one machine, with --site; or this site's kit.")]
Whose = Annotated[str, typer.Option(help="The site whose model, where it is a run folder.")]


def export(
    place: Place,
    to: Annotated[Path, typer.Option(help="The file to write: it ends in .onnx, .pt2 (torch) or .vitrail.")],
    site: Whose = "",
) -> None:
    """Site: its own model as one file, with its scale inside, that answers without the run folder."""
    from vitrail.export.write import export_model

    mine = _own(place, site)
    made = export_model(mine.model, mine.site, mine.run, to)
    print(f"{made.path.resolve()}: the model of {mine.site} from run {mine.run}.")
    if to.suffix.lower() == ".vitrail":
        print(f"New rows: vitrail predict {to} new.csv")
    else:
        print(f"Read back and compared with ours on made-up rows: answers differ by {made.off:.1e} at most.")
    print("It holds what this site learned from its rows, and the mean and spread of its columns: it stays at the site")
    print("unless somebody there decides otherwise.")


def _own(place: Path, site: str) -> Personal:
    """The site's own model, of a run on this machine or between machines."""
    from vitrail.deploy import enrol
    from vitrail.deploy.personal import Personal, load_model
    from vitrail.runs import Run

    if (place / "invitation.json").exists():
        return load_model(enrol.load_kit(place))
    return Personal(site, place.resolve().name, Run.load(place).model_of(site, "export"))
