"""What stays with a site after a run: its own model, to predict with and to look behind; and how a site leaves."""

from __future__ import annotations

import contextlib
import fcntl
import json
import re
import shutil
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pandas as pd
import torch
from safetensors.torch import load_file
from torch import Tensor

from vitrail.core.problems import Problem, VitrailError
from vitrail.core.tensors import tensors
from vitrail.data.encode import Encoder
from vitrail.deploy.enrol import LEFT, Kit
from vitrail.engines.wire import settled_shape
from vitrail.runs.folder import write_atomically
from vitrail.runs.run import Run, predicted
from vitrail.runs.setup import build_task, publishes
from vitrail.study import Study


@dataclass(frozen=True)
class Personal:
    """A site's model of one run, with its scale."""

    site: str
    study: Study
    seed: int
    run: str
    model: dict[str, Tensor]
    encoder: Encoder

    def predict(self, frame: pd.DataFrame) -> pd.DataFrame:
        """A probability for each class, or a number, for each raw row."""
        return predicted(self.study, self.study.build_method(), self.seed, self.model, self.encoder, frame)

    def join(self, public: Run) -> Run:
        """The coordinator's run with this site's part put back, so that the site can look behind its findings."""
        same = public.study == self.study and public.seed == self.seed and self.site in public.sites
        if publishes(public.method):  # the shared layers in its model are the coordinator's, to the last bit
            same &= all(torch.equal(v, self.model[k]) for k, v in public.shared.items() if k in self.model)
        if not same:
            what = f"it is not the one in which this site's model was made ({self.run})."
            raise VitrailError("this is another run", [Problem("run", what, "Ask the coordinator for that one.")])
        models, encoders = {**public.models, self.site: self.model}, {**public.encoders, self.site: self.encoder}
        return Run(**{**vars(public), "models": models, "encoders": encoders})


def load_model(kit: Kit, run: str | None = None) -> Personal:
    """The model of that run, or of the one that ended last."""
    models = kit.home.glob("*/model.safetensors")
    ended = {p.parent.name: p for p in models if re.fullmatch(r"[0-9a-f]{16}", p.parent.name)}
    if run is not None and run not in ended:
        known = f"Runs with a model: {', '.join(sorted(ended))}." if ended else "No run has ended here yet."
        raise VitrailError("there is no model", [Problem(f"run {run}", f"{kit.home} has no model of it.", known)])
    if not ended:
        what = "no run has ended here yet, so that there is no model of this site."
        hint = f"Take part first: vitrail join {kit.folder} --data FILE. The model is written after the last round."
        raise VitrailError("there is no model", [Problem(str(kit.home), what, hint)])
    run = run or max(ended, key=lambda name: ended[name].stat().st_mtime_ns)
    study, place = kit.study, ended[run]
    model, scale = load_file(place), json.loads((place.parent / "encoder.json").read_text(encoding="utf-8"))
    method = study.build_method()
    shape = {k: v.shape[1:] for k, v in tensors(settled_shape(build_task(study, method, kit.seed), method))}
    if shape != {k: v.shape for k, v in model.items()}:
        what, hint = "it belongs to another study or method than the kit's.", "Use the kit with which the site joined."
        raise VitrailError("the model does not fit", [Problem(str(place), what, hint)])
    return Personal(kit.site, study, kit.seed, run, model, Encoder(study, scale["mean"], scale["sd"]))


def leave(folder: Path, home: Path) -> None:
    """No more taking part with this kit: it says so, and its key and certificate are gone. The site's home stays."""
    with contextlib.suppress(FileNotFoundError), (home / ".lock").open("r+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            what, hint = "`vitrail join` is running with this kit.", "Stop it, then leave."
            raise VitrailError("the site is joined at the moment", [Problem(str(folder), what, hint)]) from None
    if not has_left(folder):
        write_atomically(folder / LEFT, datetime.now().astimezone().isoformat(timespec="seconds") + "\n")
    for secret in ("key.pem", "certificate.pem"):
        (folder / secret).unlink(missing_ok=True)
    shutil.rmtree(folder / "flare", ignore_errors=True)  # it holds copies of both
    if (folder / "flare").exists():
        what = "it cannot be deleted, and holds the site's key."
        raise VitrailError("left, but not all is gone", [Problem(str(folder / "flare"), what, "Delete it by hand.")])


def has_left(folder: Path) -> str:
    """When the site left with this kit; empty where it has not."""
    try:
        return (folder / LEFT).read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return ""


def check_not_left(folder: Path) -> None:
    """Before a site joins."""
    if when := has_left(folder):
        what, hint = f"this site left the study on {when}.", "To take part again, ask for a new invitation."
        raise VitrailError("this kit cannot join", [Problem(str(folder), what, hint)])
