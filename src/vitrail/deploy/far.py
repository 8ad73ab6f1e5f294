"""The coordinator's half, with sites on machines of their own: the rounds of `engines.rounds`, asked for by message."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import pandas as pd
import torch
from torch import Tensor

from vitrail.core.exchange import Nothing, Roster
from vitrail.core.facts import Facts
from vitrail.core.problems import Problem, VitrailError
from vitrail.core.tensors import filled, tensors
from vitrail.data.encode import Encoder, Moments, finish_moments
from vitrail.deploy.agreement import FORMAT, Agreement
from vitrail.deploy.message import Message, inspect
from vitrail.engines.rounds import Moment, Rounds
from vitrail.engines.wire import check
from vitrail.explain.shifts import Answer, Cell, Evidence, Fit
from vitrail.report.words import several
from vitrail.runs.fit import Ask, SilentError
from vitrail.runs.folder import Folder, is_finished, write_atomically
from vitrail.runs.judge import SIZES, target_words
from vitrail.runs.look import Behind, behind
from vitrail.runs.run import Run
from vitrail.runs.setup import training_of
from vitrail.runs.train import describe, train

ENTERED = "entered.json"  # in a run folder: who takes part
TOLD = "told.json"  # in a run folder: the sites that have heard their last word
REMOVED = "it was removed"  # what a line says of a site that was
PATIENCE = 3  # deadlines after which a site is no longer asked about its rows
MOST_FAILED = 3  # answers in a row that are errors: then a site is no longer asked


class Heard(NamedTuple):
    """What came back: answers by site, and in words what went wrong at the others."""

    answers: dict[str, Message]
    trouble: dict[str, str]


class Line(Protocol):
    """The way to the sites. Sites that are away come back by themselves."""

    def ask(self, questions: dict[str, Message], deadline: float) -> Heard:
        """Each site its question; waits for all that can be reached, and at most `deadline` seconds."""

    def present(self) -> set[str]:
        """Sites that are there at the moment."""

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

    def all(
        self, make: Callable[[str], Message | None], quorum: int | None = None, patience: float = math.inf
    ) -> dict[str, Message]:
        """Answers by site: at least `quorum` of them (or the study's), asked again until then; or, after so many
        seconds, those that there are."""
        pause, answers, until = 0.2, dict[str, Message](), time.monotonic() + patience
        made = {n: q for n in self.names if (q := make(n)) is not None}
        questions = {n: q._replace(words={**q.words, "run": self.run}) for n, q in made.items()}
        need = min(self.quorum if quorum is None else quorum, len(questions))
        while True:
            active = self.active()
            asked = {n: q for n, q in questions.items() if n not in answers and n in active}
            if len(asked) + len(answers) < need:
                if patience < math.inf:
                    return answers
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
            if len(answers) >= need or time.monotonic() > until:
                return answers
            self.line.log("waiting", answered=len(answers), needed=need)
            time.sleep(pause)
            pause = min(5.0, 2 * pause)

    def active(self) -> list[str]:
        """Sites that can still be asked."""
        return [n for n in self.names if self.failed.get(n, 0) < MOST_FAILED and self.trouble.get(n) != REMOVED]

    def _wrong(self, name: str, asked: Message, said: Message) -> str | None:
        """What is wrong with an answer, in words; None if nothing is."""
        if said.kind == "error":
            return f"it says: {str(said.words.get('text', ''))[:500]}"
        if said.kind == "refused":
            return None if asked.kind in ("round", "evidence") else "it refused"
        if said.kind != asked.kind:
            return f"it answered {said.kind[:20]!r} to {asked.kind!r}"
        try:
            inspect(said, self.agreed.answer(said.kind, asked.words), f"from {name}")
        except VitrailError as error:
            return "; ".join(f"{p.where}: {p.what}" for p in error.problems)
        return None

    def _give_up(self, need: int) -> None:
        lost = {n: f"failed {MOST_FAILED} times in a row" for n in self.names if self.failed.get(n, 0) >= MOST_FAILED}
        lost |= {n: "was removed" for n in self.names if self.trouble.get(n) == REMOVED}
        hint = "See what they say in events.jsonl, have it repaired there, and start again: nothing is lost."
        what = f"{several(need, 'site')} needed, and {', '.join(f'{n} {why}' for n, why in lost.items())}."
        raise VitrailError("the study cannot go on", [Problem("sites", what, hint)])


class FarRounds(Rounds):
    """One method over sites that are elsewhere; the coordinator holds no state of theirs."""

    def __init__(self, call: Call, agreement: Agreement, book: Book, info: dict[str, Any]) -> None:
        training = training_of(agreement.study)
        super().__init__(agreement.task, agreement.method, tuple(book.order), training, agreement.seed)
        self.call, self.agreed, self.book, self.info = call, agreement, book, info
        self.settled: dict[str, int] = {}  # how many stages' outcome a site has been told
        self.wish: tuple[int, int, list[str]] | None = None  # scores to ask for: stage, round, splits
        self.scored: list[tuple[Any, ...]] = []

    def start(self) -> Moment:
        return Moment(0, 0, self.method.coord(self.task, len(self.names)), Nothing(), {}, self.everyone)

    def shape_at(self, stage: int) -> Moment:
        return self.start()._replace(stage=stage)

    def turn(self, s: int, r: int, coord: Any, state: Any) -> tuple[Any, Facts, Tensor]:
        self.book.admit()
        self.info["sites"] = self.book.names()
        self.info["fingerprints"] = {n: self.book.sites[n]["fingerprint"] for n in self.book.names()}
        return super().turn(s, r, coord, state)

    def ask(self, s: int, r: int, place: int, coord: Any, state: Any, roster: Roster) -> tuple[Any, Facts, Tensor]:
        ex, contract = self.stages[s].exchanges[place], self.contracts[s][place]
        down = ex.send(self.task, coord, roster)
        check(down, contract.down, contract.stage, "to site")
        self._catch_up(s, coord)
        asked = {n for n, wanted in zip(self.names, roster.present.tolist(), strict=True) if wanted}
        ready = [n for n in self.book.names() if self.settled.get(n, 0) >= s and n in asked]
        heard = self._tell("round", s, r, place, down, ready)
        said = {n: m for n, m in heard.items() if m.kind != "refused"}
        here = torch.tensor([n in said for n in self.names])
        if not said:
            return coord, {}, here
        shape, parts = self.agreed.stages[s].turns[place].up, []
        for i, name in enumerate(self.names):
            if name in said:
                up = filled(shape, {k: said[name].tensors[k][None] for k in contract.up})
                parts.append((slice(i, i + 1), self.taken(ex, up)))
        coord, facts = self.heard(ex, coord, parts, roster._replace(present=here))
        return coord, facts, self.everyone if bool(here.all()) else here

    def last_word(self, moment: Moment) -> Any:
        self.settle(moment.stage, moment.round, moment.coord, None)
        until = time.monotonic() + self.call.deadline
        while moment.stage + 1 == len(self.stages) and self._behind(moment.stage) and time.monotonic() < until:
            self.call.line.log("last word waits", sites=self._behind(moment.stage))
            self.settle(moment.stage, moment.round, moment.coord, 0)
            time.sleep(0.5)
        return Nothing()

    def _behind(self, s: int) -> list[str]:
        """Sites that have not been told how stage s ended, and could be."""
        return [n for n in self.call.active() if n in self.book.sites and self.settled.get(n, 0) <= s]

    def settle(self, s: int, r: int, coord: Any, quorum: int | None) -> None:
        """Those who do not know yet how stage s ended are told."""
        self._catch_up(s, coord)
        behind = [n for n in self._behind(s) if self.settled.get(n, 0) == s]
        down = self.stages[s].last.send(self.task, coord, self.roster(self.everyone, s, r, 0))
        for name in self._tell("settle", s, r, len(self.stages[s].exchanges) - 1, down, behind, quorum):
            self.settled[name] = s + 1

    def _catch_up(self, s: int, coord: Any) -> None:
        """Sites that were away when an earlier stage ended."""
        if s and self._behind(s - 1):
            self.settle(s - 1, self.stages[s - 1].rounds, coord, 0)

    def _tell(
        self, kind: str, s: int, r: int, place: int, down: Any, names: Sequence[str], quorum: int | None = None
    ) -> dict[str, Message]:
        """Each of these sites its part of `down`; with a word by which a model is settled, its scores are asked for."""
        settles = place == len(self.stages[s].exchanges) - 1
        splits = self.wish[2] if self.wish and settles and self.wish[:2] == (s, r) else []
        flat = dict(tensors(down))

        def make(name: str) -> Message | None:
            i = self.names.index(name)
            told = {k: v[i] for k, v in flat.items()}
            words = {"stage": s, "round": r, "place": place, "score": splits}
            return Message(kind, words, told) if name in names else None

        heard = self.call.all(make, quorum)
        wanted = self.agreed.scored(s, r, splits)
        for name in sorted(heard):
            numbers = heard[name].tensors.get("scores")
            if numbers is not None:
                self.scored += [(s, r, name, *what, float(v)) for what, v in zip(wanted, numbers, strict=True)]
        return heard


class FarSites:
    """The sites of a run as `runs.run.train` meets them. Their models stay with them."""

    def __init__(self, rounds: FarRounds) -> None:
        self.rounds, self.book = rounds, rounds.book

    @property
    def sizes(self) -> pd.DataFrame:
        sites = self.book.sites
        return pd.DataFrame([(n, *sites[n]["rows"], sites[n]["target"]) for n in self.book.names()], columns=SIZES)

    @property
    def at(self) -> list[int]:
        return [self.rounds.names.index(n) for n in self.book.names()]

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
        heard = self.call.all(lambda n: asked if n == self.site else None, 1, PATIENCE * self.call.deadline)
        if self.site not in heard or heard[self.site].kind == "refused":
            self.call.line.log("not asked further", site=self.site)
            raise SilentError(self.name)
        said = heard[self.site].tensors
        sizes, mean, cov = [c.size(self.agreed.task.net.outputs) for c in self.cells], [], []
        a = b = 0
        for q in sizes:
            mean.append(said["mean"][a : a + q].numpy())
            cov.append(said["cov"][b : b + q * q].view(q, q).numpy())
            a, b = a + q, b + q * q
        varies = [bool(v) for v in said["varies"]]
        evidence = Evidence(int(said["rows"]), mean, cov, said["carriers"].tolist(), varies)
        return Answer(Fit(*(said[k] for k in Fit._fields)), evidence, float(said["misfit"]))


class Book:
    """Who takes part and with how many rows. Kept in the run folder, since the order of sites is that of every tensor;
    who comes late is let in as soon as it is there, and stands after the others."""

    def __init__(self, call: Call, path: Path) -> None:
        self.call, self.path = call, path
        told = json.loads(path.read_text()) if path.exists() else {"order": [], "scale": {}, "sites": {}}
        self.order: list[str] = told["order"]
        self.scale = {k: torch.tensor(v, dtype=torch.float64) for k, v in told["scale"].items()}
        self.sites: dict[str, dict[str, Any]] = told["sites"]  # who is in -> what it said of its rows
        self.first = [n for n in self.sites if self.sites[n]["first"]]

    def open(self, need: int, gone: Sequence[str]) -> None:
        """All who are there agree, scales are found, rows are counted. `gone` keep a place, and do not take part."""
        names = self._agree(self.call.names, need)
        if self.call.agreed.shared_scale:

            def said(mean: Any) -> list[Moments]:
                told = {} if mean is None else {"mean": torch.from_numpy(mean)}
                asked = Message("standardise", {"step": 1 if mean is None else 2}, told)
                heard = self.call.all(lambda n: asked if n in names else None, len(names))
                return [Moments(*(heard[n].tensors[k].numpy() for k in ("rows", "total"))) for n in names]

            self.scale = dict(zip(("mean", "sd"), map(torch.from_numpy, finish_moments(said)), strict=True))
        found = self._ask(names, len(names), first=True)
        late = sorted({*self.call.names, *gone} - found.keys())
        self.order = [*sorted(found, key=lambda n: (-found[n]["rows"][0], n)), *late]
        self.first = list(found)
        self._keep(found)

    def admit(self) -> None:
        """Who came late."""
        there = self.call.line.present()
        late = [n for n in self.call.active() if n not in self.sites and n in there]
        if late and (found := self._ask(self._agree(late, 0), 0, first=False)):
            self._keep(found)
            for name in found:
                self.call.line.log("came late", site=name)

    def _agree(self, names: Sequence[str], need: int) -> list[str]:
        hello = Message("hello", {"format": FORMAT, "agreement": self.call.agreed.hash})
        heard = self.call.all(lambda n: hello if n in names else None, need)
        return [n for n in names if n in heard]

    def _ask(self, names: Sequence[str], need: int, first: bool) -> dict[str, dict[str, Any]]:
        study, found = self.call.agreed.study, {}
        heard = self.call.all(lambda n: Message("prepare", {}, self.scale) if n in names else None, need)
        for name in sorted(heard):
            tensors, words = heard[name].tensors, heard[name].words
            target = target_words(study, tensors["target"].numpy())
            found[name] = {"rows": tensors["rows"].tolist(), "target": target, "first": first, **words}
        return found

    def _keep(self, found: dict[str, dict[str, Any]]) -> None:
        self.sites |= found
        told = {"order": self.order, "scale": {k: v.tolist() for k, v in self.scale.items()}, "sites": self.sites}
        write_atomically(self.path, json.dumps(told))

    def names(self) -> list[str]:
        return [n for n in self.call.names if n in self.sites]


def conduct(
    call: Call,
    folder: Folder,
    resume: bool,
    progress: Callable[[int, int], None] | None = None,
    *,
    start: int | None = None,
    gone: Sequence[str] = (),
    written: Callable[[Run], None] | None = None,
) -> Run:
    """The whole study from the first hello to the run folder. Every round is kept, so that at most one is repeated.

    `start`: so many sites must be there before the first round, or all; who comes later takes part from then on.
    `gone`: sites that were invited and do not take part. They keep their place, since messages may grow with places.
    `written` is told as soon as the run folder is whole: sites that are away at the end are then still waited for.
    """
    agreed, book = call.agreed, Book(call, folder.path / ENTERED)
    if not book.order:
        book.open(len(call.names) if start is None else start, gone)
    prints = {n: book.sites[n]["fingerprint"] for n in book.first}
    info = describe(agreed.study, agreed.seed, "deployed", "cpu", prints)
    rounds = FarRounds(call, agreed, book, info)
    info |= {"dropout_rate": 0.0, "away": {}, "refuse": [], "pseudonyms": []}  # in simulation these are planned
    if is_finished(folder.path):
        run = Run.load(folder.path)
    else:
        resume = resume and (folder.path / "run.json").exists()
        run = train(rounds, agreed.study, agreed.seed, FarSites(rounds), info, {}, folder, resume, progress, 0.0)
    if written is not None:
        written(run)
    _farewell(call, rounds, run, folder.path / TOLD)
    return run


def _farewell(call: Call, rounds: FarRounds, run: Run, kept: Path) -> None:
    """Each site its last word and what was found about it. Who is away is waited for no longer than for an answer;
    started again, this goes on with those who are left."""
    told = set[str](json.loads(kept.read_text()) if kept.exists() else [])
    last, coord = len(rounds.stages) - 1, filled(rounds.start().coord, run.shared)
    rounds.settled |= dict.fromkeys(told, last + 1)
    until = time.monotonic() + call.deadline
    while left := [n for n in call.active() if n in rounds.book.sites and n not in told]:
        rounds.settle(last, rounds.stages[last].rounds, coord, 0)
        here = [n for n in left if rounds.settled.get(n, 0) > last]
        told |= call.all(lambda n: _last_word(run, n) if n in here else None, 0).keys()  # noqa: B023
        write_atomically(kept, json.dumps(sorted(told)))
        if left := [n for n in left if n not in told]:
            if time.monotonic() > until:
                call.line.log("not told", sites=left)
                return
            call.line.log("last word waits", sites=left)
            time.sleep(0.5)


def _last_word(run: Run, site: str) -> Message:
    told = Behind([]) if run.shift_table is None else behind(run, site)
    findings = [list(found[1:]) for found in told.findings]
    layers = {f"others/{k}": v for k, v in told.layers.items()}
    return Message("finish", {"findings": findings, "others": told.others}, layers)
