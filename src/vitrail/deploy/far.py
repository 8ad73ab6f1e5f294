"""The coordinator's half, with sites on machines of their own: the rounds of `engines.rounds`, asked for by message."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import pandas as pd
import torch
from torch import Tensor

from vitrail.core.exchange import Facts, Nothing, Roster
from vitrail.core.problems import Problem, VitrailError
from vitrail.core.tensors import each, filled, tensors
from vitrail.data.encode import Encoder, Moments, finish_moments
from vitrail.deploy.agreement import FORMAT, Agreement
from vitrail.deploy.message import Message, inspect
from vitrail.engines.rounds import Moment, Rounds
from vitrail.engines.wire import check, total
from vitrail.explain.shifts import Answer, Cell, Evidence, Fit
from vitrail.runs.fit import Ask
from vitrail.runs.folder import Folder
from vitrail.runs.run import SIZES, Run, describe, target_words, train
from vitrail.runs.setup import training_of


class Heard(NamedTuple):
    """What came back: answers by site, and in words what went wrong at the others."""

    answers: dict[str, Message]
    trouble: dict[str, str]


class Line(Protocol):
    """The way to the sites. Sites that are away come back by themselves."""

    def ask(self, questions: dict[str, Message], deadline: float) -> Heard:
        """Each site its question; waits for all that can be reached, and at most `deadline` seconds."""

    def log(self, event: str, **details: Any) -> None: ...


class Call:
    """Asks many sites, checks what they say, and waits until enough have answered."""

    def __init__(self, line: Line, agreement: Agreement, names: Sequence[str], quorum: int, deadline: float) -> None:
        self.line, self.agreed, self.names, self.quorum, self.deadline = line, agreement, list(names), quorum, deadline

    def all(self, make: Callable[[str], Message | None], quorum: int | None = None) -> dict[str, Message]:
        """Answers by site: at least `quorum` of them (or the study's), asked again until then."""
        need, pause, answers = self.quorum if quorum is None else quorum, 0.2, {}
        while True:
            asked = {n: q for n in self.names if n not in answers and (q := make(n)) is not None}
            heard = self.line.ask(asked, self.deadline)
            trouble = dict(heard.trouble)
            for name, said in heard.answers.items():
                try:
                    if said.kind != "refused":
                        inspect(said, self.agreed.answer(said.kind, asked[name].words), f"from {name}")
                        if said.kind != asked[name].kind:
                            raise VitrailError("a message was refused", [Problem("kind", said.kind, "It was dropped.")])
                    answers[name] = said
                except VitrailError as error:
                    trouble[name] = "; ".join(f"{p.where}: {p.what}" for p in error.problems)
            for name, what in trouble.items():
                self.line.log("trouble", site=name, what=what)
            if len(answers) >= min(need, len(asked)):
                return answers
            self.line.log("waiting", answered=len(answers), needed=need)
            time.sleep(pause)
            pause = min(5.0, 2 * pause)


class FarRounds(Rounds):
    """One method over sites that are elsewhere; the coordinator holds no state of theirs."""

    def __init__(self, call: Call, agreement: Agreement, names: tuple[str, ...]) -> None:
        super().__init__(agreement.task, agreement.method, names, training_of(agreement.study))
        self.call, self.agreed = call, agreement
        self.wish: tuple[int, int, list[str]] | None = None  # scores to ask for: stage, round, splits
        self.scored: list[tuple[Any, ...]] = []

    def start(self) -> Moment:
        return Moment(0, 0, self.method.coord(self.task, len(self.names)), Nothing(), {}, self.everyone)

    def shape_at(self, stage: int) -> Moment:
        return self.start()._replace(stage=stage)

    def turn(self, s: int, r: int, coord: Any, state: Any) -> tuple[Any, Facts, Tensor]:
        ex, contract = self.stages[s].exchange, self.contracts[s]
        down = ex.send(self.task, coord, Roster(self.names, self.everyone))
        check(down, contract.down, contract.stage, "to site")
        heard = self._tell("round", s, r, down)
        said = {n: m for n, m in heard.items() if m.kind != "refused"}
        present = torch.tensor([n in said for n in self.names])
        if not said:
            return coord, {}, present
        flat = {k: torch.zeros((len(self.names), *shape), dtype=t) for k, (shape, t) in contract.up.items()}
        for i, name in enumerate(self.names):
            if name in said:
                for k, v in flat.items():
                    v[i] = said[name].tensors[k]
        up = filled(self.agreed.stages[s].up, flat)
        self.reports = up if self.keep_reports else None
        up = total(each(lambda t: t[present], up)) if ex.sees == "sum" else up
        coord, facts = ex.merge(self.task, coord, up, Roster(self.names, present))
        return coord, facts, self.everyone if bool(present.all()) else present

    def last_word(self, moment: Moment) -> Any:
        ex = self.stages[moment.stage].exchange
        down = ex.send(self.task, moment.coord, Roster(self.names, self.everyone))
        self._tell("settle", moment.stage, moment.round, down)
        return Nothing()

    def _tell(self, kind: str, s: int, r: int, down: Any) -> dict[str, Message]:
        """Every site its part of `down`; with it the scores of the round before are asked for."""
        splits = self.wish[2] if self.wish and self.wish[:2] == (s, r) else []
        flat = dict(tensors(down))

        def make(name: str) -> Message:
            i = self.names.index(name)
            return Message(kind, {"stage": s, "round": r, "score": splits}, {k: v[i] for k, v in flat.items()})

        heard = self.call.all(make)
        wanted = self.agreed.scored(s, r, splits)
        for name in sorted(heard):
            numbers = heard[name].tensors.get("scores")
            if numbers is not None:
                self.scored += [(s, r, name, *what, float(v)) for what, v in zip(wanted, numbers, strict=True)]
        self.wish = None
        return heard


class FarSites:
    """The sites of a run as `runs.run.train` meets them. Their models stay with them."""

    def __init__(self, rounds: FarRounds, sizes: pd.DataFrame) -> None:
        self.rounds, self.sizes = rounds, sizes
        self.at = [rounds.names.index(name) for name in sizes.site]

    def rows(self, moment: Moment, splits: tuple[str, ...]) -> list[tuple[Any, ...]]:
        self.rounds.wish = moment.stage, moment.round, list(splits)
        return []

    def late(self) -> list[tuple[Any, ...]]:
        told, self.rounds.scored = self.rounds.scored, []
        return told

    def models(self, moment: Moment) -> dict[str, dict[str, Tensor]]:
        return {}

    def encoders(self) -> dict[str, Encoder]:
        return {}

    def ask(self) -> Ask:
        return lambda site, known, shared, cells: _FarWitness(self.rounds.call, site, known, cells, self.rounds.agreed)


class _FarWitness:
    """A site that is asked by message what its rows say about the layers."""

    def __init__(self, call: Call, site: str, known: str, cells: Sequence[Cell], agreed: Agreement) -> None:
        self.call, self.site, self.name, self.cells, self.agreed = call, site, known, cells, agreed

    def answer(self, fit: Fit, fitted: Sequence[int]) -> Answer:
        asked = Message("evidence", {"fitted": [int(c) for c in fitted]}, fit._asdict())
        said = self.call.all(lambda n: asked if n == self.site else None, 1)[self.site].tensors
        sizes, mean, cov = [c.size(self.agreed.task.net.outputs) for c in self.cells], [], []
        a = b = 0
        for q in sizes:
            mean.append(said["mean"][a : a + q].numpy())
            cov.append(said["cov"][b : b + q * q].view(q, q).numpy())
            a, b = a + q, b + q * q
        varies = [bool(v) for v in said["varies"]]
        evidence = Evidence(int(said["rows"]), mean, cov, said["carriers"].tolist(), varies)
        return Answer(Fit(*(said[k] for k in Fit._fields)), evidence, float(said["misfit"]))


def enter(call: Call, run: str) -> tuple[pd.DataFrame, dict[str, str], dict[str, dict[str, str]]]:
    """Before the first round: everyone agrees, scales are found, rows are counted.

    Every site must answer: a study starts with all that were enrolled."""
    agreed, names = call.agreed, call.names
    everyone = len(names)
    hello = Message("hello", {"format": FORMAT, "agreement": agreed.hash, "run": run})
    call.all(lambda _: hello, everyone)
    scale: dict[str, Tensor] = {}
    if agreed.shared_scale:

        def said(mean: Any) -> list[Moments]:
            told = {} if mean is None else {"mean": torch.from_numpy(mean)}
            asked = Message("standardise", {"step": 1 if mean is None else 2}, told)
            heard = call.all(lambda _: asked, everyone)
            return [Moments(*(heard[n].tensors[k].numpy() for k in ("rows", "total"))) for n in names]

        mean, sd = finish_moments(said)
        scale = {"mean": torch.from_numpy(mean), "sd": torch.from_numpy(sd)}
    heard = call.all(lambda _: Message("prepare", {}, scale), everyone)
    rows = [
        (n, *heard[n].tensors["rows"].tolist(), target_words(agreed.study, heard[n].tensors["target"].numpy()))
        for n in names
    ]
    prints = {n: heard[n].words["fingerprint"] for n in names}
    return pd.DataFrame(rows, columns=SIZES), prints, {n: heard[n].words["versions"] for n in names}


def conduct(
    call: Call, folder: Folder, run_id: str, resume: bool, progress: Callable[[int, int], None] | None = None
) -> Run:
    """The whole study from the first hello to the run folder. Every round is kept, so that at most one is repeated."""
    agreed = call.agreed
    sizes, prints, _ = enter(call, run_id)
    count = dict(zip(sizes.site, sizes.train_rows, strict=True))
    rounds = FarRounds(call, agreed, tuple(sorted(count, key=lambda name: (-count[name], name))))
    info = describe(agreed.study, agreed.seed, "deployed", "cpu", prints)
    run = train(rounds, agreed.study, agreed.seed, FarSites(rounds, sizes), info, {}, folder, resume, progress, 0.0)
    call.all(lambda _: Message("finish", {}))
    return run
