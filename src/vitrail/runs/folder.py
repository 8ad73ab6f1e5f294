"""The run folder: what a run leaves on disk, and how it survives being killed.

    study.toml                    the study as it was run
    run.json                      method, seed, engine, versions, data fingerprints
    events.jsonl                  append-only log
    screen.json                   whose data does not fit, from before the first round
    scores.csv, ledger.csv, wire.csv
    checkpoint.json               which round the tensors below belong to; replaced atomically, last
    coordinator/*.safetensors     what the coordinator may see
    coordinator/updates/*         with keep_updates: each site's report of each round
    sites/NAME/*                  private to that site: state, model, encoder, and pseudonym.txt where it has one

Tensors are written under new names and flushed to disk before checkpoint.json points to them, so a kill at any moment
leaves the previous checkpoint whole.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import platform
import time
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import quote

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from vitrail.core.disk import write_atomically as write_atomically  # others take it from here
from vitrail.core.facts import Fact, Facts
from vitrail.core.problems import Problem, VitrailError
from vitrail.core.tensors import filled, tensors
from vitrail.engines.rounds import Moment

UPDATES = Path("coordinator") / "updates"
BESIDE = "beside"  # before the names of what guards remember at a site, in the file of its state


def site_folder(name: str) -> str:
    """A file name for any site name.

    >>> site_folder("St. Mary/1"), site_folder("..")
    ('St. Mary%2F1', '%2E.')
    """
    safe = quote(name, safe=" +,=()'") or "%"
    return "%2E" + safe[1:] if safe.startswith(".") else safe


def save_tensors(path: Path, named: dict[str, Tensor], words: dict[str, str] | None = None) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".new")
    save_file({k: v.detach().cpu().contiguous().clone() for k, v in named.items()}, temporary, words)
    with temporary.open("rb") as file:
        os.fsync(file.fileno())
    os.replace(temporary, path)


def beside_in(kept: dict[str, Tensor]) -> dict[str, Tensor]:
    """Of what is kept as a site's state, what guards remember there."""
    return {k.removeprefix(f"{BESIDE}/"): v for k, v in kept.items() if k.startswith(f"{BESIDE}/")}


def save_facts(path: Path, facts: Facts) -> None:
    """With what each of them is."""
    about = {k: [f.axes, f.means, f.every] for k, f in facts.items()}
    save_tensors(path, {k: f.value for k, f in facts.items()}, {"facts": json.dumps(about)})


def load_facts(path: Path) -> Facts:
    if not path.exists():
        return {}
    with safe_open(path, "pt") as file:
        about = json.loads(file.metadata()["facts"])
        return {k: Fact(file.get_tensor(k), tuple(axes), means, every) for k, (axes, means, every) in about.items()}


def versions() -> dict[str, str]:
    """Of what the numbers may depend on."""
    return {"vitrail": version("vitrail"), "torch": torch.__version__, "python": platform.python_version()}


PARTIES = "parties"  # the kind, in run.json, of a run of which the parties hold columns of the same people


def check_sites(path: Path, info: dict[str, Any]) -> None:
    """Refuse a run of parties where one of sites is meant."""
    if info.get("kind") == PARTIES:
        what, hint = "it is a run of parties, and has no sites.", "Of it: vitrail predict, explain, report."
        raise VitrailError("this needs a run of sites", [Problem(str(path), what, hint)])


def is_finished(path: Path) -> bool:
    """Whether a run folder holds a run that was written to its end."""
    try:
        return bool(json.loads((path / "run.json").read_text(encoding="utf-8")).get("finished"))
    except (OSError, ValueError):
        return False


class Folder:
    """One run's folder, held by one process at a time."""

    def __init__(self, path: Path, *, resume: bool, about: str = "run.json") -> None:
        """`about` is the file that says what is kept here: a folder of another kind is not resumed."""
        self.path = path
        used = path.exists() and (not path.is_dir() or any(path.iterdir()))
        if used and not resume:
            raise VitrailError(
                "nothing was overwritten",
                [
                    Problem(
                        str(path),
                        "there is something here already.",
                        "Choose another --out, or continue that run with --resume.",
                    )
                ],
            )
        if resume and not (path / about).exists():
            raise VitrailError(
                "there is no run to resume",
                [Problem(str(path), f"expected a folder with {about}.", "Start it without --resume.")],
            )
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock = (path / ".lock").open("w")
        except OSError as error:
            raise VitrailError(
                "cannot write the run", [Problem(str(path), f"{error.strerror}.", "Choose another --out.")]
            ) from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise VitrailError(
                "this run is being written",
                [Problem(str(path), "another process holds it.", "Wait for it, or choose another --out.")],
            ) from None

    def close(self) -> None:
        self._lock.close()

    def log(self, event: str, **details: Any) -> None:
        line = json.dumps({"time": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "event": event, **details})
        with (self.path / "events.jsonl").open("a", encoding="utf-8") as file:
            file.write(line + "\n")
            file.flush()

    def checkpoint(self, names: tuple[str, ...], moment: Moment, extra: dict[str, Any], paths: Facts) -> None:
        tag = f"{moment.stage}-{moment.round:06d}"
        save_tensors(self.path / "coordinator" / f"{tag}.safetensors", dict(tensors(moment.coord)))
        save_facts(self.path / "coordinator" / f"paths-{tag}.safetensors", paths)
        flat = dict(tensors(moment.state)) | {f"{BESIDE}/{k}": v for k, v in moment.beside.items()}
        for i, name in enumerate(names if flat else ()):  # sites on other machines keep their own
            place = self.path / "sites" / site_folder(name) / f"state-{tag}.safetensors"
            save_tensors(place, {k: v[i] for k, v in flat.items()})
        at = {"stage": moment.stage, "round": moment.round, "beside": bool(moment.beside), **extra}
        write_atomically(self.path / "checkpoint.json", json.dumps(at))
        for old in [
            *self.path.glob("coordinator/*.safetensors"),
            *self.path.glob("sites/*/state-*.safetensors"),
        ]:
            if not old.name.endswith(f"{tag}.safetensors"):
                with contextlib.suppress(OSError):
                    old.unlink()

    def keep_updates(self, names: tuple[str, ...], moment: Moment, reports: Any) -> None:
        """What each site that answered said in this round. A resumed run writes the same again."""
        here = moment.present.cpu()
        said = {} if reports is None else {f"report/{k}": v[here.to(v.device)] for k, v in tensors(reports)}
        path = self.path / UPDATES / f"round-{moment.round:05d}.safetensors"
        save_tensors(path, {**said, "present": here}, {"sites": json.dumps(names)})

    def restore(
        self, names: tuple[str, ...], shape_at: Callable[[int], Moment]
    ) -> tuple[Moment, dict[str, Any], Facts] | None:
        """The last whole checkpoint, in the shape the engine has at that stage, and the facts of every round so far;
        None if there is none yet."""
        try:
            at = json.loads((self.path / "checkpoint.json").read_text())
        except FileNotFoundError:
            return None
        tag = f"{at['stage']}-{at['round']:06d}"
        coord = load_file(self.path / "coordinator" / f"{tag}.safetensors")
        start = shape_at(at["stage"])
        kept = names if at.get("beside") or any(True for _ in tensors(start.state)) else ()
        sites = [load_file(self.path / "sites" / site_folder(n) / f"state-{tag}.safetensors") for n in kept]
        state = {k: torch.stack([s[k] for s in sites]) for k in sites[0]} if sites else {}
        moment = start._replace(
            stage=at["stage"],
            round=at["round"],
            coord=filled(start.coord, coord),
            state=filled(start.state, state),
            beside=beside_in(state),
        )
        return moment, at, load_facts(self.path / "coordinator" / f"paths-{tag}.safetensors")

    def drop_checkpoints(self) -> None:
        """After the end only the models remain."""
        numbered = [*self.path.glob("coordinator/[0-9]*"), *self.path.glob("coordinator/paths-*")]
        for old in [self.path / "checkpoint.json", *numbered, *self.path.glob("sites/*/state-*.safetensors")]:
            old.unlink(missing_ok=True)
