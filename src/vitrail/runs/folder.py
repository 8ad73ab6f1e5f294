"""The run folder: what a run leaves on disk, and how it survives being killed.

    study.toml                    the study as it was run
    run.json                      method, seed, engine, versions, data fingerprints
    events.jsonl                  append-only log, whose lines are chained; the last ones name every file (integrity.py)
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
import json
import platform
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor

from vitrail.core.errors import Problem, VitrailError
from vitrail.core.facts import Fact, Facts
from vitrail.core.tensors import flatten, unflatten
from vitrail.engine.rounds import Snapshot
from vitrail.runs.integrity import FILES, LOCK, LOG, WHOLE, clear_parts, now, take_digests
from vitrail.storage.atomic_files import (
    append,
    hold,
    unwritable,
    whole_lines,
    write_atomically,
)
from vitrail.storage.hash_chain import digest_of, digest_of_file, last_digest, line_of
from vitrail.storage.untrusted_files import read_text

T = TypeVar("T")
UPDATES = Path("coordinator") / "updates"
GUARD_STATE = "beside"  # before the names of what guards remember at a site, in the file of its state
CHECKPOINT = "checkpoint.json"


def site_folder(name: str) -> str:
    """A file name for any site name.

    >>> site_folder("St. Mary/1"), site_folder("..")
    ('St. Mary%2F1', '%2E.')
    """
    safe = quote(name, safe=" +,=()'") or "%"
    return "%2E" + safe[1:] if safe.startswith(".") else safe


def save_tensors(path: Path, named: dict[str, Tensor], words: dict[str, str] | None = None) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise unwritable(path, error) from None
    write_atomically(path, save({k: v.detach().cpu().contiguous().clone() for k, v in named.items()}, words))


def load_tensors(path: Path) -> dict[str, Tensor]:
    """What `save_tensors` wrote."""
    try:
        return load_file(path)
    except (OSError, SafetensorError, ValueError) as error:
        raise unreadable(path, error) from None


def unreadable(path: Path, error: Exception) -> VitrailError:
    """A file of a run that is not there, cut short or damaged, in words."""
    what = (
        "it is missing."
        if isinstance(error, FileNotFoundError)
        else "it is cut short, damaged, or not a file of Vitrail."
    )
    hint = "Restore the folder from a copy, or run again with another --out."
    return VitrailError("a file of the run cannot be read", [Problem(str(path), what, hint)])


def read_json(path: Path) -> dict[str, Any]:
    """A file of ours in JSON."""
    try:
        content = json.loads(read_text(path))
        if not isinstance(content, dict):
            raise ValueError
        return content
    except (OSError, ValueError, RecursionError) as error:
        raise unreadable(path, error) from None


def guard_state_in(stored: dict[str, Tensor]) -> dict[str, Tensor]:
    """Of what is kept as a site's state, what guards remember there."""
    return {k.removeprefix(f"{GUARD_STATE}/"): v for k, v in stored.items() if k.startswith(f"{GUARD_STATE}/")}


def save_facts(path: Path, facts: Facts) -> None:
    """With what each of them is."""
    about = {k: [f.axes, f.means, f.every] for k, f in facts.items()}
    save_tensors(path, {k: f.value for k, f in facts.items()}, {"facts": json.dumps(about)})


def load_facts(path: Path) -> Facts:
    if not path.exists():
        return {}
    try:
        with safe_open(path, "pt") as file:
            about = json.loads(file.metadata()["facts"])
            return {k: Fact(file.get_tensor(k), tuple(axes), means, every) for k, (axes, means, every) in about.items()}
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        raise unreadable(path, error) from None


def versions() -> dict[str, str]:
    """Of what the numbers may depend on."""
    return {"vitrail": version("vitrail"), "torch": torch.__version__, "python": platform.python_version()}


PARTIES = "parties"  # the kind, in run.json, of a run of which the parties hold columns of the same people


def check_sites(path: Path, info: dict[str, Any]) -> None:
    """Refuse a run of parties where one of sites is meant."""
    if info.get("kind") == PARTIES:
        what, hint = "it is a run with parties and has no sites.", "Use vitrail predict, explain or report."
        raise VitrailError("this needs a run of sites", [Problem(str(path), what, hint)])


def is_finished(path: Path) -> bool:
    """Whether a run folder holds a run that was written to its end."""
    try:
        return bool(json.loads(read_text(path / "run.json")).get("finished"))
    except (OSError, ValueError, AttributeError, RecursionError):
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
                        "the folder is not empty.",
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
            self._lock = (path / LOCK).open("w")
        except OSError as error:
            raise VitrailError(
                "cannot write the run", [Problem(str(path), f"{error.strerror}.", "Choose another --out.")]
            ) from None
        if not hold(self._lock):
            self._lock.close()
            raise VitrailError(
                "this run is being written",
                [Problem(str(path), "another process holds it.", "Wait for it, or choose another --out.")],
            )

        self._mark = self._take_up()

    def _take_up(self) -> str:
        """The hash of the log's last line. What a kill left half written, a line or a file, is taken away."""
        clear_parts(self.path)
        return last_digest(whole_lines(self.path / LOG))

    def close(self) -> None:
        self._lock.close()

    def log(self, event: str, **details: Any) -> None:
        self._add(event, details, sync=False)

    def _add(self, event: str, details: dict[str, Any], sync: bool) -> None:
        line = line_of({"time": now(), "event": event, **details}, self._mark)
        append(self.path / LOG, line, sync=sync)
        self._mark = digest_of(line)

    def seal(self, event: str, ahead: Mapping[str, bytes] | None = None, **details: Any) -> None:
        """A line that names every file with its hash: none can be changed, taken away or added unseen. `ahead`: files
        that are written next, as they will be. Checkpoints are not among them: they go."""
        digests = take_digests(self.path, self._passing(), ahead)
        self._add(event, {**details, FILES: digests, WHOLE: True}, sync=True)

    def checkpoint(self, names: tuple[str, ...], moment: Snapshot, extra: dict[str, Any], paths: Facts) -> None:
        tag = f"{moment.stage}-{moment.round:06d}"
        held, flat = self.path / "coordinator", dict(flatten(moment.state))
        flat |= {f"{GUARD_STATE}/{k}": v for k, v in moment.guard_state.items()}
        written = [held / f"{tag}.safetensors", held / f"paths-{tag}.safetensors"]
        save_tensors(written[0], dict(flatten(moment.coord)))
        save_facts(written[1], paths)
        for i, name in enumerate(names if flat else ()):  # sites on other machines keep their own
            written.append(self.path / "sites" / site_folder(name) / f"state-{tag}.safetensors")
            save_tensors(written[-1], {k: v[i] for k, v in flat.items()})
        marks = {f.relative_to(self.path).as_posix(): digest_of_file(f) for f in written}
        where = {"stage": moment.stage, "round": moment.round}
        at = json.dumps({**where, "beside": bool(moment.guard_state), **extra, FILES: marks}).encode()
        write_atomically(self.path / CHECKPOINT, at)
        self._add("checkpoint", {**where, FILES: {CHECKPOINT: digest_of(at)}}, sync=True)
        for old in [
            *self.path.glob("coordinator/*.safetensors"),
            *self.path.glob("sites/*/state-*.safetensors"),
        ]:
            if not old.name.endswith(f"{tag}.safetensors"):
                with contextlib.suppress(OSError):
                    old.unlink()

    def keep_updates(self, names: tuple[str, ...], moment: Snapshot, reports: Any) -> None:
        """The reports of this round, [site that answered, ...]; None where none was used, and then nobody counts as
        present. A resumed run writes the same again."""
        here = moment.present.cpu() if reports is not None else torch.zeros_like(moment.present.cpu())
        rows = {} if reports is None else {f"report/{k}": v[here.to(v.device)] for k, v in flatten(reports)}
        path = self.path / UPDATES / f"round-{moment.round:05d}.safetensors"
        save_tensors(path, {**rows, "present": here}, {"sites": json.dumps(names)})

    def restore(
        self, names: tuple[str, ...], shape_at: Callable[[int], Snapshot]
    ) -> tuple[Snapshot, dict[str, Any], Facts] | None:
        """The last whole checkpoint, in the shape the engine has at that stage, and the facts of every round so far;
        None if there is none yet."""
        if not (self.path / CHECKPOINT).exists():
            return None
        at = read_json(self.path / CHECKPOINT)
        problems = []
        for name, mark in at.get(FILES, {}).items():
            file = self.path / name
            if not file.is_file():
                problems.append(Problem(str(file), "it is missing."))
            elif digest_of_file(file) != mark:
                problems.append(Problem(str(file), "it was cut short or changed after the checkpoint was written."))
        try:
            tag = f"{at['stage']}-{at['round']:06d}"
            start = shape_at(at["stage"])
        except (KeyError, TypeError, ValueError, IndexError):
            problems.append(Problem(str(self.path / CHECKPOINT), "it does not name its round."))
        if problems:
            hint = (
                "Restore the folder from a copy; or remove checkpoint.json, and the run starts again at its first "
                "round."
            )
            problems[-1] = problems[-1]._replace(hint=hint)
            raise VitrailError("the checkpoint is damaged", problems)
        coord = load_tensors(self.path / "coordinator" / f"{tag}.safetensors")
        stored = names if at.get("beside") or any(True for _ in flatten(start.state)) else ()
        sites = [load_tensors(self.path / "sites" / site_folder(n) / f"state-{tag}.safetensors") for n in stored]
        try:
            state = {k: torch.stack([s[k] for s in sites]) for k in sites[0]} if sites else {}
            beside = guard_state_in(state)
            own = {k: v for k, v in state.items() if not k.startswith(f"{GUARD_STATE}/")}
            moment = start._replace(
                stage=at["stage"],
                round=at["round"],
                coord=restore_like(start.coord, coord),
                state=restore_like(start.state, own),
                guard_state=beside,
            )
        except (KeyError, ValueError, RuntimeError):
            what, hint = "its tensors are of another study, method or network.", "Choose another --out."
            raise VitrailError("this is another run", [Problem(str(self.path), what, hint)]) from None
        return moment, at, load_facts(self.path / "coordinator" / f"paths-{tag}.safetensors")

    def resumed(self, moment: Snapshot) -> None:
        """The run goes on from its checkpoint, whose line in the log may have been cut off."""
        where = {"stage": moment.stage, "round": moment.round}
        self.log("resumed", **where, **{FILES: {CHECKPOINT: digest_of_file(self.path / CHECKPOINT)}})

    def drop_checkpoints(self) -> None:
        """After the end only the models remain."""
        for old in self._passing():
            old.unlink(missing_ok=True)

    def _passing(self) -> list[Path]:
        """The files of checkpoints."""
        numbered = [*self.path.glob("coordinator/[0-9]*"), *self.path.glob("coordinator/paths-*")]
        stored = [*self.path.glob("sites/*/state-*.safetensors"), *self.path.glob("parties/*/step-*.safetensors")]
        return [self.path / CHECKPOINT, *numbered, *stored]


def restore_like(tree: T, values: dict[str, Tensor], exact: bool = True) -> T:
    """`unflatten`, where names and shapes are the same; else a ValueError. Not `exact`: where sizes grow with sites."""
    wanted = dict(flatten(tree))
    matching = wanted.keys() == values.keys() and all(v.dim() == values[k].dim() for k, v in wanted.items())
    if not matching or (exact and any(v.shape != values[k].shape for k, v in wanted.items())):
        raise ValueError("other tensors")
    return unflatten(tree, values)
