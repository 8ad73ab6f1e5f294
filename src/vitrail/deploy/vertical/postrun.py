"""At the host, when training is over: guests are asked about held-out rows, as far as their rations go; then scores,
explanations, and the run, in the host's own folder, as `vitrail run` on one machine writes it.

A guest that is away is gone on without, and the run says so. Nothing of this reaches the coordinator.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import torch
from torch import Tensor

from vitrail.core.errors import GuestRefused, Problem, VitrailError
from vitrail.core.text import several
from vitrail.deploy.identity.enrolment_records import Kit
from vitrail.deploy.vertical.session import MATCH
from vitrail.report.pages.builder import write_report
from vitrail.report.pages.explanation import write_explained
from vitrail.runs.folder import is_finished
from vitrail.runs.integrity import seal_again
from vitrail.storage.atomic_files import private_folder, write_atomically
from vitrail.storage.csv_files import to_csv
from vitrail.study.model import Study
from vitrail.vertical.matching.match import Match
from vitrail.vertical.pipeline import answers_off, score_held_out
from vitrail.vertical.run import Sides, VerticalRun
from vitrail.vertical.store import write_end, write_start
from vitrail.vertical.training.dialogue import Dialogue
from vitrail.vertical.training.host_model import AWAY, HostModel, PredictedRows
from vitrail.vertical.training.party_side import HostSide

RUN = "run"  # in the host's folder of a run: what `vitrail predict` reads


@dataclass
class PostrunRequest:
    """What the host asks for after training. `explain`: so many rows in common, by lot; `new`: rows of its own to be
    predicted, of people in common or not, who are looked up blindly."""

    study: Study
    seed: int
    say: Callable[[str], None]
    explain: int = 0
    new: pd.DataFrame | None = None

    def __call__(self, talk: Dialogue, side: HostSide, home: Path) -> None:
        sides = Sides(side, {}, talk)
        run = self._run(sides, home)
        run.tally("training")
        wanted = run.choose(self.explain, self.seed) if self.explain else torch.zeros(0, dtype=torch.int64)
        run.learn(wanted)  # first what was asked for, then scores by what is left of the rations
        predicted = None if self.new is None else self._predict(run, self.new)
        run.tally("afterwards")
        self._tell(run, score_held_out(run, sides))
        path = run.path = private_folder(home / RUN)
        write_start(run, path)
        write_end(run, path)
        if len(run.scores):
            self.say(f"Page: {write_report(run, path / 'report.html')}")
        if predicted is not None:
            place = path / f"predicted-{time.strftime('%Y%m%d-%H%M%S')}.csv"
            write_atomically(place, to_csv(predicted.table, "line"), private=True)
            self.say("\n  ".join([*predicted.words, f"Predicted: {place}"]))
        if len(wanted):
            self._explain(run, side, wanted, path)
        seal_again(path, "finished")

    def _predict(self, run: VerticalRun, new: pd.DataFrame) -> PredictedRows | None:
        """A guest that refuses is gone on without, like one that is away. None where the rows do not fit."""
        asked = list(run.access())
        while True:
            try:
                return run.predict(new, [name for name in run.model.guest_answers if name not in asked], blind=True)
            except VitrailError as error:
                self.say(str(error))
                if not asked:
                    return None
                gone = {error.guest} & {*asked} if isinstance(error, GuestRefused) else set[str]()
                asked = [name for name in asked if name not in gone] if gone else []

    def _run(self, sides: Sides, home: Path) -> VerticalRun:
        """Begun, or gone on with: what guests told before is not asked for again."""
        off, match = answers_off(sides.talk), Match.load(home / MATCH)
        model = HostModel.of(self.study, sides.host, off)
        if not is_finished(home / RUN) or (run := VerticalRun.load(home / RUN)).match.mark != match.mark:
            return VerticalRun.begin(self.study, match, sides, self.seed, model, here=[self.study.host])
        for name, answers in run.model.guest_answers.items():
            model.guest_answers[name] = torch.where(answers.isnan(), model.guest_answers[name], answers)
        model.off = {**run.model.off, **off}
        run.model, run.sides, run.path = model, sides, None  # until it is written again
        return run

    def _tell(self, run: VerticalRun, test: int) -> None:
        self.say(f"Scored on {run.scored} of {several(test, 'held-out row')}.")
        for name in run.info["away"]:
            self.say(f"Without {name}: {AWAY}.")
        first = run.scores[run.scores.metric == self.study.metrics[0]]
        for row in first.to_dict("records"):
            within = "" if math.isnan(row["low"]) else f" [{row['low']:.3f}, {row['high']:.3f}]"
            self.say(f"{row['model']}: {row['metric']} {row['value']:.3f}{within}")

    def _explain(self, run: VerticalRun, side: HostSide, wanted: Tensor, path: Path) -> None:
        complete = [~run.model.guest_answers[name][wanted].isnan().any(1) for name in run.model.guest_answers]
        rows = wanted[torch.stack(complete).all(0)]
        if len(rows) < len(wanted):
            self.say(f"{len(rows)} of {len(wanted)} rows are explained; a guest has not answered about the others.")
        if not len(rows):
            return
        explained = run.model.explain(side.rows, rows)
        page = write_explained(explained, path / "explained.html", site=self.study.host, study=self.study.name)
        self.say(f"{several(len(rows), 'row')} explained: {page}")


def host_run(kit: Kit, run: str | None = None) -> Path:
    """The folder of that run of a host, or of the one that ended last."""
    runs = {p.parent.parent.name: p.parent for p in kit.home.glob(f"*/{RUN}/run.json") if is_finished(p.parent)}
    if kit.site != kit.study.host:
        what, hint = f"{kit.site} is a guest, but only the host has a model.", f"Ask {kit.study.host}."
    elif run is not None and run not in runs:
        what, hint = f"run {run} has not ended here.", f"Runs: {', '.join(sorted(runs)) or 'none'}."
    elif not runs:
        what, hint = "no run has ended here yet.", f"Take part first: vitrail join {kit.folder} --data FILE."
    else:
        return runs[run] if run else max(runs.values(), key=lambda p: (p / "run.json").stat().st_mtime_ns)
    raise VitrailError("there is no model", [Problem(str(kit.home), what, hint)])
