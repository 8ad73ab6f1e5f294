"""A run on disk: every file of it is written here, and read again, or it is said in words why not."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd
from torch import Tensor

from vitrail import methods
from vitrail.core.errors import Problem, VitrailError
from vitrail.data.encoding import Encoder
from vitrail.metrics.holdout_summary import HoldOutSummary
from vitrail.runs.folder import (
    Folder,
    check_sites,
    load_facts,
    load_tensors,
    read_json,
    save_facts,
    save_tensors,
    site_folder,
    unreadable,
)
from vitrail.runs.integrity import altered
from vitrail.runs.refit import Final
from vitrail.runs.result import HISTORY, SHIFTS, Run, mark_small_samples
from vitrail.runs.screening import SCREEN, load_screening, save_screening
from vitrail.runs.site.holdout import summaries_of
from vitrail.storage import format_versions
from vitrail.storage.atomic_files import write_atomically
from vitrail.storage.csv_files import from_csv, to_csv
from vitrail.study.model import Study

T = TypeVar("T")
MODEL, ENCODER = "model.safetensors", "encoder.json"
FINAL, FINAL_ENCODER = "final.safetensors", "final.json"  # trained on all rows: runs/refit.py
SUMMARY = "held_out_summary.json"  # what a page shows of these rows: runs/site/holdout.py
HELD_OUT = "held_out.csv"  # which rows of the site's own table were never trained on


def load_run(path: Path) -> Run:
    """A finished run. What is damaged, missing or not as the run wrote it is told, all of it at once."""
    info = _info(path)
    names = [f"sites/{site_folder(site)}/{file}" for site in info["sites"] for file in (MODEL, ENCODER)]
    problems = altered(path, [*names, "coordinator/facts.safetensors", "coordinator/shared.safetensors"])
    damaged = {p.where for p in problems}

    def read(name: str, how: Callable[[Path], T]) -> T | None:
        file = path / name
        try:
            return how(file) if str(file) not in damaged else None
        except VitrailError as error:
            problems.extend(error.problems)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            problems.extend(unreadable(file, error).problems)
        return None

    study, models, encoders = read("study.toml", lambda file: Study.load(file, kept=True)), {}, {}
    final = dict[str, Final]()
    for site in info["sites"]:
        place = f"sites/{site_folder(site)}"
        if not (path / place / MODEL).exists():  # it stayed on the site's own machine
            continue
        models[site] = read(f"{place}/{MODEL}", load_tensors)
        encoders[site] = read(f"{place}/{ENCODER}", lambda file: study and Encoder.of(study, read_json(file)))
        if (path / place / FINAL).exists():
            scale = read(f"{place}/{FINAL_ENCODER}", lambda file: study and Encoder.of(study, read_json(file)))
            tensors = read(f"{place}/{FINAL}", load_tensors)
            final |= {site: Final(tensors, scale)} if tensors is not None and scale else {}
    parts = (
        read("run.json", lambda _: methods.build(info["method"]["name"], _settings(info["method"]))),
        info["seed"],
        info,
        read("scores.csv", lambda file: our_table(file)[HISTORY]),
        read("ledger.csv", our_table),
        models,
        encoders,
        read("sites.csv", our_table),
        read("coordinator/facts.safetensors", load_facts),
        read("coordinator/shared.safetensors", _tensors_if_any),
        read("shifts.csv", lambda file: our_table(file)[SHIFTS]) if (path / "shifts.csv").exists() else None,
        read("sites", lambda _: pseudonyms_of(path, info["sites"])),
        read(SCREEN, load_screening),
    )
    places = {site: f"sites/{site_folder(site)}/{HELD_OUT}" for site in info["sites"]}
    held = {site: read(place, read_held_out) for site, place in places.items() if (path / place).exists()}
    places = {site: f"sites/{site_folder(site)}/{SUMMARY}" for site in info["sites"]}
    summaries = {
        site: read(place, lambda file: HoldOutSummary.of(read_json(file)))
        for site, place in places.items()
        if (path / place).exists()
    }
    if problems:
        raise VitrailError("cannot load the run", problems)
    return Run(study, *parts, held, final, {}, summaries)  # type: ignore[arg-type]  # nothing is None that may not be: else there are problems


def _info(path: Path) -> dict[str, Any]:
    """What a finished run says of itself."""
    try:
        info = read_json(path / "run.json")
    except VitrailError:
        what, hint = "expected a run folder with run.json.", "Give the folder that `vitrail run --out` wrote."
        raise VitrailError("cannot load the run", [Problem(str(path), what, hint)]) from None
    if why := format_versions.misread(info.get("format", 1), format_versions.RUN, "run folder"):
        hint = "Read it with the version of Vitrail that wrote it: run.json says which."
        raise VitrailError("cannot load the run", [Problem(str(path / "run.json"), why, hint)])
    check_sites(path, info)
    if not info.get("finished"):
        what, hint = "it was stopped before its last round.", "Continue it with `vitrail run ... --resume`."
        raise VitrailError("the run is not finished", [Problem(str(path), what, hint)])
    missing = [k for k in ("sites", "method", "seed", "engine", "fingerprints", "versions") if k not in info]
    if missing:
        what = f"it lacks {', '.join(missing)}: it was changed, or does not belong to a run."
        raise VitrailError("cannot load the run", [Problem(str(path / "run.json"), what, "Take it from a copy.")])
    return info


def _settings(method: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in method.items() if k != "name"}


def pseudonyms_of(path: Path, sites: Sequence[str]) -> dict[str, str]:
    """What each site's own folder says it goes by."""
    files = {site: path / "sites" / site_folder(site) / "pseudonym.txt" for site in sites}
    return {site: file.read_text(encoding="utf-8").strip() for site, file in files.items() if file.exists()}


def write_pseudonyms(folder: Folder, pseudonyms: dict[str, str]) -> None:
    for site, pseudonym in pseudonyms.items():
        place = folder.path / "sites" / site_folder(site)
        place.mkdir(parents=True, exist_ok=True)
        write_atomically(place / "pseudonym.txt", pseudonym + "\n")


def our_table(path: Path) -> pd.DataFrame:
    """A table of ours; a site named NA or 007 keeps its name."""
    return from_csv(pd.read_csv(path, dtype={"site": str}, keep_default_na=False, na_values={"value": [""]}))


def held_out_text(rows: Sequence[int | str]) -> str:
    """One row's line or path below the other."""
    return to_csv(pd.DataFrame({"row": list(rows)}))


def read_held_out(file: Path) -> list[int | str]:
    rows = from_csv(pd.read_csv(file, dtype=str, keep_default_na=False))["row"]
    return [int(row) if row.isdigit() else str(row) for row in rows]


def _tensors_if_any(path: Path) -> dict[str, Tensor]:
    return load_tensors(path) if path.exists() else {}


def write_run(folder: Folder, run: Run, event: str, **details: Any) -> None:
    """The finished run, and that event; run.json last, since it says that all is there."""
    path = folder.path
    write_atomically(path / "study.toml", run.study.to_toml())
    for name, frame in (
        ("scores", mark_small_samples(run.history, run.sizes)),
        ("ledger", run.ledger),
        ("sites", run.sizes),
    ):
        write_atomically(path / f"{name}.csv", to_csv(frame))
    write_atomically(path / "wire.csv", to_csv(pd.DataFrame([x._asdict() for x in run.wire()])))
    if run.screening:
        save_screening(path / SCREEN, run.screening)
    for site, model in run.models.items():
        place = path / "sites" / site_folder(site)
        save_tensors(place / MODEL, model)
        write_atomically(place / ENCODER, json.dumps(run.encoders[site].plain))
        if site in run.final:
            save_tensors(place / FINAL, run.final[site].tensors)
            write_atomically(place / FINAL_ENCODER, json.dumps(run.final[site].encoder.plain))
        if site in run.held:
            write_atomically(place / HELD_OUT, held_out_text(run.held[site]))
    for site, summary in summaries_of(run).items():
        write_atomically(path / "sites" / site_folder(site) / SUMMARY, json.dumps(summary.plain))
    write_pseudonyms(folder, run.pseudonyms)
    if run.shift_table is not None:
        write_atomically(path / "shifts.csv", to_csv(run.shift_table))
    if run.facts:
        save_facts(path / "coordinator" / "facts.safetensors", run.facts)
    if run.shared:
        save_tensors(path / "coordinator" / "shared.safetensors", run.shared)
    content = json.dumps({**run.info, "finished": True}, indent=1).encode()
    folder.seal(event, {"run.json": content}, **details)
    write_atomically(path / "run.json", content)
