"""What a run says of itself, and whether a run that is resumed is the one that was begun."""

from __future__ import annotations

import json
import time
from typing import Any

from vitrail.core.errors import Problem, VitrailError
from vitrail.runs.folder import Folder, read_json, versions
from vitrail.runs.store import pseudonyms_of
from vitrail.storage import format_versions
from vitrail.study.model import Study


def describe_run(study: Study, seed: int, engine: str, device: str, fingerprints: dict[str, str]) -> dict[str, Any]:
    """What a run says of itself; `fingerprints` of the sites' rows, in the order of the run."""
    return {
        "format": format_versions.RUN,
        "finished": False,
        "study": study.name,
        "method": study.method,
        "seed": seed,
        "engine": engine,
        "device": device,
        "sites": list(fingerprints),
        "fingerprints": fingerprints,
        "versions": versions(),
        "started": time.strftime("%Y-%m-%d %H:%M:%S"),
    }


def check_same_run(folder: Folder, info: dict[str, Any], pseudonyms: dict[str, str]) -> None:
    """A run is resumed with what it was started with, or not at all."""
    before = read_json(folder.path / "run.json")
    problems = []
    same = ("method", "seed", "engine", "device", "dropout_rate", "away", "refuse", "fingerprints", "versions")
    for k in (*same, "keep_updates"):
        if before.get(k) != json.loads(json.dumps(info.get(k))):
            what = f"was {before.get(k)}, now {info.get(k)}."
            problems.append(
                Problem(f"{folder.path}, {k}", what, "Resume with the settings with which the run was started.")
            )
    if pseudonyms_of(folder.path, info["sites"]) != pseudonyms:
        what = "the sites had other pseudonyms."
        problems.append(
            Problem(f"{folder.path}, pseudonyms", what, "Resume with the settings with which the run was started.")
        )
    if problems:
        raise VitrailError("this is another run", problems)
