"""The coordinator's half, with sites on machines of their own: the rounds of `engines.rounds`, asked for by message."""

from __future__ import annotations

import json
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
from vitrail.runs.folder import Folder, write_atomically
from vitrail.runs.run import Run
from vitrail.runs.setup import training_of
from vitrail.runs.train import SIZES, describe, target_words, train

MOST_FAILED = 3  # answers in a row that are errors: then a site is no longer asked


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
    """Asks many sites, checks what they say, waits until enough have answered, and sets aside who always fails."""

    def __init__(
        self, line: Line, agreement: Agreement, names: Sequence[str], run: str, quorum: int, deadline: float
    ) -> None:
        self.line, self.agreed, self.names, self.run = line, agreement, list(names), run
        self.quorum, self.deadline = quorum, deadline
        self.trouble: dict[str, str | None] = {}
        self.failed: dict[str, int] = {}  # times in a row that a site answered with an error

    def all(self, make: Callable[[str], Message | None], quorum: int | None = None) -> dict[str, Message]:
        """Answers by site: at least `quorum` of them (or the study's), asked again until then."""
        pause, answers = 0.2, dict[str, Message]()
        made = {n: q for n in self.names if (q := make(n)) is not None}
        questions = {n: q._replace(words={**q.words, "run": self.run}) for n, q in made.items()}
        need = min(self.quorum if quorum is None else quorum, len(questions))
        while True:
            asked = {n: q for n, q in questions.items() if n not in answers and self.failed.get(n, 0) < MOST_FAILED}
            if len(asked) + len(answers) < need:
                self._give_up(need)
            heard = self.line.ask(asked, self.deadline)
            trouble = dict(heard.trouble)
            for name, said in heard.answers.items():
                if (what := self._wrong(name, asked[name], said)) is None:
                    answers[name] = said
                    self.failed.pop(name, None)
                else:
                    trouble[name] = what
                    self.failed[name] = self.failed.get(name, 0) + 1
                    if self.failed[name] == MOST_FAILED:
                        self.line.log("set aside", site=name, why=what)
            for name in asked:
                if (what := trouble.get(name)) != self.trouble.get(name):  # said when it changes, not in every round
                    self.line.log("trouble" if what else "answers again", site=name, what=what or "")
                    self.trouble[name] = what
            if len(answers) >= need:
                return answers
            self.line.log("waiting", answered=len(answers), needed=need)
            time.sleep(pause)
            pause = min(5.0, 2 * pause)

    def active(self) -> list[str]:
        return [n for n in self.names if self.failed.get(n, 0) < MOST_FAILED]

    def _wrong(self, name: str, asked: Message, said: Message) -> str | None:
        """What is wrong with an answer, in words; None if nothing is."""
        if said.kind == "error":
            return f"it says: {str(said.words.get('text', ''))[:500]}"
        if said.kind == "refused":
            return None
        if said.kind != asked.kind:
            return f"it answered {said.kind[:20]!r} to {asked.kind!r}"
        try:
            inspect(said, self.agreed.answer(said.kind, asked.words), f"from {name}")
        except VitrailError as error:
            return "; ".join(f"{p.where}: {p.what}" for p in error.problems)
        return None

    def _give_up(self, need: int) -> None:
        failed = [n for n in self.names if self.failed.get(n, 0) >= MOST_FAILED]
        hint = "See what they say in events.jsonl, have it repaired there, and start again: nothing is lost."
        what = f"{need} sites are needed, and {', '.join(failed)} failed {MOST_FAILED} times in a row."
        raise VitrailError("the study cannot go on", [Problem("sites", what, hint)])


class FarRounds(Rounds):
    """One method over sites that are elsewhere; the coordinator holds no state of theirs."""

    def __init__(self, call: Call, agreement: Agreement, names: tuple[str, ...]) -> None:
        super().__init__(agreement.task, agreement.method, names, training_of(agreement.study))
        self.call, self.agreed = call, agreement
        self.settled: dict[str, int] = {}  # how many stages' outcome a site has been told
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
        if s and self._behind(s - 1):  # a site that was away when the stage before ended
            self._settle(s - 1, self.stages[s - 1].rounds, coord, 0)
        ready = [n for n in self.call.names if self.settled.get(n, 0) >= s]
        heard = self._tell("round", s, r, down, ready)
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
        self._settle(moment.stage, moment.round, moment.coord, None)
        until = time.monotonic() + self.call.deadline
        while moment.stage + 1 == len(self.stages) and self._behind(moment.stage) and time.monotonic() < until:
            self.call.line.log("waiting", for_the_last_word=self._behind(moment.stage))
            self._settle(moment.stage, moment.round, moment.coord, 0)
            time.sleep(0.5)
        return Nothing()

    def _behind(self, s: int) -> list[str]:
        """Sites that have not been told how stage s ended, and could be."""
        return [n for n in self.call.active() if self.settled.get(n, 0) <= s]

    def _settle(self, s: int, r: int, coord: Any, quorum: int | None) -> None:
        behind = self._behind(s)
        down = self.stages[s].exchange.send(self.task, coord, Roster(self.names, self.everyone))
        for name in self._tell("settle", s, r, down, behind, quorum):
            self.settled[name] = s + 1

    def _tell(
        self, kind: str, s: int, r: int, down: Any, names: Sequence[str], quorum: int | None = None
    ) -> dict[str, Message]:
        """Each of these sites its part of `down`; with it the scores of the round before are asked for."""
        splits = self.wish[2] if self.wish and self.wish[:2] == (s, r) else []
        flat = dict(tensors(down))

        def make(name: str) -> Message | None:
            i = self.names.index(name)
            told = {k: v[i] for k, v in flat.items()}
            return Message(kind, {"stage": s, "round": r, "score": splits}, told) if name in names else None

        heard = self.call.all(make, quorum)
        wanted = self.agreed.scored(s, r, splits)
        for name in sorted(heard):
            numbers = heard[name].tensors.get("scores")
            if numbers is not None:
                self.scored += [(s, r, name, *what, float(v)) for what, v in zip(wanted, numbers, strict=True)]
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


class Entered(NamedTuple):
    """What was found before the first round."""

    sizes: pd.DataFrame
    fingerprints: dict[str, str]
    versions: dict[str, dict[str, str]]


def enter(call: Call) -> Entered:
    """Everyone agrees, scales are found, rows are counted. Every site must answer: a study starts with all of them."""
    agreed, names = call.agreed, call.names
    everyone = len(names)
    call.all(lambda _: Message("hello", {"format": FORMAT, "agreement": agreed.hash}), everyone)
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
    prints, versions = ({n: heard[n].words[k] for n in names} for k in ("fingerprint", "versions"))
    return Entered(pd.DataFrame(rows, columns=SIZES), prints, versions)


def conduct(
    call: Call,
    folder: Folder,
    resume: bool,
    progress: Callable[[int, int], None] | None = None,
    gone: Sequence[str] = (),
) -> Run:
    """The whole study from the first hello to the run folder. Every round is kept, so that at most one is repeated.

    `gone`: sites that were invited and do not take part. They keep their place, since messages may grow with places.
    """
    agreed, kept = call.agreed, folder.path / "entered.json"
    if kept.exists():
        told = json.loads(kept.read_text())
        sizes, prints = pd.DataFrame(told["sizes"], columns=SIZES), told["fingerprints"]
    else:
        sizes, prints, versions = enter(call)
        found = {"sizes": sizes.to_numpy().tolist(), "fingerprints": prints, "versions": versions}
        write_atomically(kept, json.dumps(found))
    count = dict(zip(sizes.site, sizes.train_rows, strict=True))
    rounds = FarRounds(call, agreed, (*sorted(count, key=lambda name: (-count[name], name)), *sorted(gone)))
    info = describe(agreed.study, agreed.seed, "deployed", "cpu", prints)
    info |= {"dropout_rate": 0.0, "away": {}, "refuse": [], "pseudonyms": []}  # in simulation these are planned
    resume = resume and (folder.path / "run.json").exists()
    run = train(rounds, agreed.study, agreed.seed, FarSites(rounds, sizes), info, {}, folder, resume, progress, 0.0)
    call.all(lambda _: Message("finish", {}), 0)
    return run
