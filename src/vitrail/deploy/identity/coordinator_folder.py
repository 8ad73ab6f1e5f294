"""Where a coordinator keeps a study: the folder beside the study file, and the papers in it."""

from __future__ import annotations

from pathlib import Path

from vitrail.core.errors import Problem, VitrailError
from vitrail.runs.folder import site_folder
from vitrail.study.model import Study


def invitation_of(folder: Path, site: str) -> Path:
    return folder / "invitations" / f"{site_folder(site)}.invitation"


def approval_of(folder: Path, site: str) -> Path:
    return folder / "approvals" / f"{site_folder(site)}.approval"


def folder_of(study_file: Path) -> Path:
    return study_file.parent / f"{study_file.stem}.coordinator"


def find_coordinator(study_file: Path) -> Path:
    """The coordinator's folder beside the study file, or the folder itself."""
    study_file = Path(study_file)
    folder = study_file if (study_file / "coordinator.json").exists() else folder_of(study_file)
    if not (folder / "coordinator.json").exists():
        what, hint = (
            "this folder has no coordinator's folder for the study.",
            f"Create it with: vitrail invite {study_file} --site ... .",
        )
        raise VitrailError("no site has been invited to this study yet", [Problem(str(folder), what, hint)])
    if study_file.is_file() and Study.load(study_file) != Study.load(folder / "study.toml", kept=True):
        what = "the file has changed since the sites were invited."
        hint = "Run `vitrail invite` again and send the new invitations, or undo the change."
        raise VitrailError(
            "this is not the study that the sites were invited to", [Problem(str(study_file), what, hint)]
        )
    return folder


def only_coordinator(place: Path) -> Path:
    """The one coordinator's folder in this place."""
    folders = sorted(path.parent for path in Path(place).glob("*.coordinator/coordinator.json"))
    if len(folders) == 1:
        return folders[0]
    what = f"expected one coordinator's folder here, got {len(folders)}."
    raise VitrailError("which study?", [Problem(str(place), what, "Name the study file with --study.")])
