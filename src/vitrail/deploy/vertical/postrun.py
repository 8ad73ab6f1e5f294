"""At the host, when training is over: guests are asked about held-out rows, as far as their rations go; then scores,
explanations, and the run, in the host's own folder, as `vitrail run` on one machine writes it.

A guest that is away is gone on without, and the run says so. Nothing of this reaches the coordinator.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from vitrail.analysis.explanations.rows import Explanation
from vitrail.core.errors import GuestRefused, Problem, VitrailError
from vitrail.core.text import several
from vitrail.deploy.identity.enrolment import Kit
from vitrail.deploy.vertical.dialogue import MATCH, RemoteDialogue
from vitrail.report.pages.builder import write_report
from vitrail.report.pages.explanation import write_explained
from vitrail.runs.folder import PARTIES, is_finished, versions
from vitrail.runs.integrity import seal_again
from vitrail.storage.atomic_files import private_folder, write_atomically
from vitrail.storage.csv_files import to_csv
from vitrail.study.model import Study
from vitrail.vertical.guest_value import WORTH
from vitrail.vertical.matching.ids import spell, write
from vitrail.vertical.matching.match import Match, domain
from vitrail.vertical.pipeline import score
from vitrail.vertical.run import PLACES, Sides, VerticalRun, tally
from vitrail.vertical.training.host import answer_scores
from vitrail.vertical.training.host_model import AWAY, HostModel, PredictedRows
from vitrail.vertical.training.party_side import HostSide, own_rows, scored

RUN = "run"  # in the host's folder of a run: what `vitrail predict` reads


class RemoteGuest:
    """vertical/training/host_model.py's GuestAccess, at the other end of a line."""

    def __init__(self, study: Study, talk: RemoteDialogue, name: str) -> None:
        self.study, self.talk, self.name = study, talk, name

    def left(self) -> int:
        return 0 if self.name in self.talk.line.away else self.talk.left.get(self.name, 0)

    def ask(self, places: Tensor) -> Tensor:
        """NaN where the guest is away."""
        offer = next(o for o in self.talk.terms.offers if o.name == self.name)
        others = [o.name for o in self.talk.terms.offers if o.name != self.name]
        said = self.talk.ask(places, without=others).get(self.name)
        return torch.full((len(places), offer.answer), torch.nan) if said is None else answer_scores(said, len(places))

    def look_up(self, people: Sequence[str]) -> tuple[list[Tensor | None], str]:
        """At the guest a table of locked answers of all its people, then one question for each."""
        found, size = self.talk.look_up(self.name, people, domain(self.study))
        told = [None if one is None else torch.frombuffer(bytearray(one), dtype=torch.float32) for one in found]
        if not size:
            return [None] * len(people), "it is away"
        return told, f"a table of {size / 1000:.1f} kB, and 64 bytes a question; {self.name} does not learn of whom"


@dataclass
class PostrunRequest:
    """What the host asks for after training. `explain`: so many rows in common, by lot; `new`: rows of its own to be
    predicted, of people in common or not, who are looked up blindly."""

    study: Study
    seed: int
    say: Callable[[str], None]
    explain: int = 0
    new: pd.DataFrame | None = None

    def __call__(self, talk: RemoteDialogue, side: HostSide, home: Path) -> None:
        run = self._run(talk, side, home)
        tally(run.crossed, "training", talk.wire.ledger)
        test, wanted = self._known(side), self._chosen(talk.terms.rows)
        for name in run.model.told:  # first what was asked for, then scores by what is left of the rations
            self._learn(run.model, RemoteGuest(self.study, talk, name), wanted)
        predicted = None if self.new is None else self._predict(run, talk, self.new)
        tally(run.crossed, "afterwards", talk.wire.ledger)
        asked = {name: self._learn(run.model, RemoteGuest(self.study, talk, name), test) for name in run.model.told}
        tally(run.crossed, "scoring", talk.wire.ledger)
        away = sorted(talk.line.away)
        some = test[: min((n for name, n in asked.items() if name not in away), default=len(test))]
        run.scores = score(run, Sides(side, {}, talk), some) if len(some) else pd.DataFrame(columns=WORTH)
        left = {name: {"training": talk.spare[name], "after": talk.left[name]} for name in talk.left}
        run.info |= {"scored": len(some), "away": away, "left": left}
        self._tell(run, len(some), len(test))
        self._write(run, home)
        if predicted is not None:
            place = home / RUN / f"predicted-{time.strftime('%Y%m%d-%H%M%S')}.csv"
            write_atomically(place, to_csv(predicted.table, "line"), private=True)
            self.say("\n  ".join([*predicted.words, f"Predicted: {place}"]))
        if len(wanted):
            self._explain(run, side, wanted, home)
        seal_again(home / RUN, "finished")

    def _predict(self, run: VerticalRun, talk: RemoteDialogue, new: pd.DataFrame) -> PredictedRows | None:
        """A guest that refuses is gone on without, like one that is away. None where the rows do not fit."""
        guests = list(run.model.told)
        reach = {name: RemoteGuest(self.study, talk, name) for name in guests if name not in talk.line.away}
        while True:
            try:
                return run.model.predict(new, [n for n in guests if n not in reach], reach, blind=True)
            except VitrailError as error:
                self.say(str(error))
                if not reach:
                    return None
                for name in [error.guest] if isinstance(error, GuestRefused) and error.guest in reach else list(reach):
                    del reach[name]

    def _run(self, talk: RemoteDialogue, side: HostSide, home: Path) -> VerticalRun:
        """Begun, or gone on with: what guests told before is not asked for again."""
        path, terms = home / RUN, talk.terms
        off = {name: answer_scores(said)[0] for name, said in talk.off().items()}
        found, model = Match.load(home / MATCH), HostModel.of(self.study, side, off)
        model.off = {name: off.get(name, model.usual[name]) for name in model.told}
        if is_finished(path) and (run := VerticalRun.load(path)).match.mark == found.mark:
            for name, said in run.model.told.items():
                model.told[name] = torch.where(said.isnan(), model.told[name], said)
            model.off = {name: off.get(name, run.model.off[name]) for name in model.told}
            run.model = model
            return run
        info: dict[str, Any] = {
            "kind": PARTIES, "finished": False, "seed": self.seed, "method": dict(self.study.method),
            "host": self.study.host, "guests": self.study.guests, "common": found.common, "lists": found.rows,
            "mark": found.mark, "terms": asdict(terms) | {"offers": [list(o) for o in terms.offers]},
            "started": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "versions": versions(), "left": {},
            "here": [self.study.host],
        }  # fmt: skip
        return VerticalRun(self.study, info, terms, found, model, pd.DataFrame(), {}, path)

    def _known(self, side: HostSide) -> Tensor:
        """Held-out rows to score, whose outcome the host knows: of others nobody need be asked."""
        rows, test = side.rows, scored(self.study, side.host.terms)
        assert rows.outcome is not None
        return test[torch.from_numpy(~np.isnan(rows.outcome[rows.places][test.numpy()]))]

    def _chosen(self, rows: int) -> Tensor:
        some = np.random.default_rng(self.seed).permutation(rows)[: self.explain]
        return torch.from_numpy(np.sort(some))

    def _learn(self, model: HostModel, guest: RemoteGuest, rows: Tensor) -> int:
        """Of how many of these rows, from the first, the guest has told when its ration is spent or all is told."""
        new = torch.isin(rows, model.unanswered_rows(guest.name, rows))
        fits = int((new.cumsum(0) <= guest.left()).sum())
        model.learn(guest.name, rows[:fits], guest)
        return fits

    def _tell(self, run: VerticalRun, scored: int, test: int) -> None:
        self.say(f"Scored on {scored} of {several(test, 'held-out row')}.")
        for name in run.info["away"]:
            self.say(f"Without {name}: {AWAY}.")
        first = run.scores[run.scores.metric == self.study.metrics[0]]
        for row in first.to_dict("records"):
            within = "" if math.isnan(row["low"]) else f" [{row['low']:.3f}, {row['high']:.3f}]"
            self.say(f"{row['model']}: {row['metric']} {row['value']:.3f}{within}")

    def _write(self, run: VerticalRun, home: Path) -> None:
        """run.json last, since it says that all is there."""
        path, host = private_folder(home / RUN), self.study.host
        run.match.write(host, private_folder(path / "parties" / host) / PLACES)
        run.model.save(path / "parties" / host)
        write_atomically(path / "study.toml", self.study.to_toml())
        for name, frame in (("scores", run.scores), ("ledger", run.ledger)):
            write_atomically(path / f"{name}.csv", to_csv(frame))
        run.info["finished"] = True
        write_atomically(path / "run.json", json.dumps(run.info, indent=1))
        if len(run.scores):
            self.say(f"Page: {write_report(run, path / 'report.html')}")

    def _explain(self, run: VerticalRun, side: HostSide, wanted: Tensor, home: Path) -> None:
        told = [~run.model.told[name][wanted].isnan().any(1) for name in run.model.told]
        rows = wanted[torch.stack(told).all(0)]
        if len(rows) < len(wanted):
            self.say(f"{len(rows)} of {len(wanted)} rows are explained: of the others a guest has told nothing.")
        if not len(rows):
            return
        found = run.model.explain(side.rows, rows)
        page = write_explained(found, home / RUN / "explained.html", site=self.study.host, study=self.study.name)
        self.say(f"{several(len(rows), 'row')} explained: {page}")


def host_run(kit: Kit, run: str | None = None) -> Path:
    """The folder of that run of a host, or of the one that ended last."""
    found = {p.parent.parent.name: p.parent for p in kit.home.glob(f"*/{RUN}/run.json") if is_finished(p.parent)}
    if kit.site != kit.study.host:
        what, hint = f"{kit.site} is a guest, and the model is the host's.", f"Ask {kit.study.host}."
    elif run is not None and run not in found:
        what, hint = f"run {run} has not ended here.", f"Runs: {', '.join(sorted(found)) or 'none'}."
    elif not found:
        what, hint = "no run has ended here yet.", f"Take part first: vitrail join {kit.folder} --data FILE."
    else:
        return found[run] if run else max(found.values(), key=lambda p: (p / "run.json").stat().st_mtime_ns)
    raise VitrailError("there is no model", [Problem(str(kit.home), what, hint)])


def explain_disclosed_rows(
    run: VerticalRun, frame: pd.DataFrame, rows: int | Sequence[str], outcome: str | None = None, seed: int = 1
) -> Explanation:
    """At the host, with nobody: rows in common of which all guests have told; so many by lot, or these people."""
    own, known = own_rows(run.study, run.study.host, frame, run.match), torch.ones(run.terms.rows, dtype=torch.bool)
    for said in run.model.told.values():
        known &= ~said.isnan().any(1)
    hint = "Have the host join with --explain N, and serve again with --again; within the guests' rations."
    if isinstance(rows, int):
        some = known.nonzero()[:, 0].numpy()
        places = torch.from_numpy(np.sort(np.random.default_rng(seed).permutation(some)[:rows]))
        problems = [] if len(places) else [Problem("--rows", "of no row have all guests told yet.", hint)]
    else:
        assert run.study.match is not None
        places = run.model.at([spell(write(one), run.study.match.form) for one in rows])
        bad = {
            one: "this person is not in the match." if at < 0 else "a guest has told nothing of this person yet."
            for one, at in zip(rows, places.tolist(), strict=True)
            if at < 0 or not known[at]
        }
        problems = [Problem(f"--id {one}", what, hint) for one, what in bad.items()]
    if problems:
        raise VitrailError("cannot explain", problems)
    return run.model.explain(own, places, outcome)
