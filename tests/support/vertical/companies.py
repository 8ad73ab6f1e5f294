"""A clinic and a laboratory with the same people, and the verbs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from typer.testing import CliRunner

import vitrail as vt
from vitrail.cli import app

STUDY = """\
name = "two companies"
metrics = ["auc", "log_loss"]
[target]
column = "sick"
classes = ["no", "yes"]
positive = "yes"
[split]
at_least = 0
[features.age]
kind = "numeric"
unit = "years"
[features.sex]
kind = "binary"
categories = ["f", "m"]
[parties.clinic]
role = "host"
id = "patient"
[parties.lab]
role = "guest"
id = "pid"
noise = 0.25
ration = { training = 40, after = 400 }
[method]
name = "vertical_logistic"
epochs = 20
"""


def people(n: int = 460) -> dict[str, pd.DataFrame]:
    """Of 460 people the clinic has 440 and the laboratory 430; `crp` says most of who is sick, and `ward` something."""
    g = np.random.default_rng(4)
    ids = [f"CH-{i:05d}" for i in g.permutation(90000)[:n]]
    age, sex, crp, ward = g.normal(60, 10, n), g.choice(["f", "m"], n), g.normal(0, 1, n), g.choice(["a", "b", "c"], n)
    pull = (age - 60) / 10 + 2 * crp + (ward == "b") + g.logistic(size=n)
    host = pd.DataFrame({"patient": ids, "age": age.round(1), "sex": sex, "sick": np.where(pull > 0, "yes", "no")})
    guest = pd.DataFrame({"pid": ids, "crp_of_lab": crp.round(3), "ward_of_lab": ward})
    return {"clinic": host[:440], "lab": guest[30:]}


def vitrail(*words: object) -> tuple[int, str]:
    """Exit code and output of a verb, in this process."""
    done = CliRunner().invoke(app, [*map(str, words)])
    if isinstance(done.exception, vt.VitrailError):
        return 2, str(done.exception)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.exit_code, done.output


def start(place: Path, *more: object) -> tuple[int, str]:
    return vitrail("run", place / "study.toml", "--data", place / "parties", "--out", place / "run", *more)


def files(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def killed(at: int) -> Callable[[int, int], None]:
    """Progress that is stopped there, as by Ctrl-C."""

    def progress(done: int, of: int) -> None:
        if done == at:
            raise KeyboardInterrupt

    return progress
