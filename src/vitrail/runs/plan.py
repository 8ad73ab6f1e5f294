"""What a study, a method and a seed come to, worked out once: the task, a rehearsal of every stage, the contracts and
the table of all that will cross. A run, its page and a deployed agreement each hold one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from vitrail import methods
from vitrail.core.errors import VitrailError
from vitrail.core.facts import OWN
from vitrail.core.task import Task
from vitrail.core.tensors import flatten, map_tensors
from vitrail.data.encoding import columns
from vitrail.engine.contract import Contract, Rehearsal, WireEntry, contracts_of, guarded, rehearse
from vitrail.methods import AnyMethod
from vitrail.metrics.calibration import BEDSIDE, KINDS
from vitrail.metrics.scores import DOUBT
from vitrail.metrics.survival import GROUPS
from vitrail.runs.protection.budget import guards_of
from vitrail.runs.screening import screen_lines
from vitrail.runs.setup import AT_BEDSIDE, COVERAGE, RISK, build_task, is_evaluated, last_splits, standardise_lines
from vitrail.runs.verdict_wire import later_trainings
from vitrail.study.model import Study


@dataclass(frozen=True, eq=False)
class Plan:
    """Nothing is worked out before it is asked for, and nothing twice."""

    study: Study  # with its rounds
    method: AnyMethod
    seed: int = 0
    sites: int = 1  # how many take part; this matters only where messages grow with them

    @cached_property
    def task(self) -> Task:
        """On the CPU, and without the noise of private rows."""
        return build_task(self.study, self.method, self.seed)

    @cached_property
    def stages(self) -> list[Rehearsal]:
        return list(rehearse(self.task, self.method, self.study.training.rounds, self.sites))

    @cached_property
    def contracts(self) -> list[list[Contract]]:
        """By stage and exchange, with what crosses under the study's guards."""
        guards = guards_of(self.study)
        pairs = [zip(contracts_of(t), t.turns, strict=True) for t in self.stages]
        return [[guarded(contract, turn.exchange, guards) for contract, turn in stage] for stage in pairs]

    @property
    def settled(self) -> Any:
        """The state with which a site ends, as far as names and shapes go; stacked over one site."""
        return map_tensors(lambda v: v[:1], self.stages[-1].settled)

    @cached_property
    def companion_models(self) -> tuple[str, ...]:
        """The models that a settled site holds beside its own."""
        return tuple(name for name in self.method.models(self.task, self.settled) if name != OWN)

    @cached_property
    def meanings(self) -> set[str]:
        """What the facts of the run will mean (core/facts.py)."""
        return {fact.means for t in self.stages for turn in t.turns for fact in turn.facts.values()}

    def wire(self, keep_updates: bool = False, screened: bool = True) -> list[WireEntry]:
        """Every tensor that leaves a site or comes in.

        Where updates are kept, the coordinator sees each site's report, also where the method needs only the total.
        `screened`: with what the screening before the first round exchanges, where the study asks for it.
        """
        lines = [*(screen_lines(self.study) if screened else ()), *standardise_lines(self.study)]
        if self.method.catalogue.pools_rows:
            lines += self._pooled()
        else:
            lines += [
                line._replace(seen="each") if keep_updates and line.seen == "sum" else line
                for stage in self.contracts
                for contract in stage
                for line in contract.lines()
            ]
        return lines + self._scores()

    def later_wire(self) -> list[WireEntry]:
        """What crosses in all trainings after the run (runs/verdict_wire.py), which ask sites to show nothing."""
        trainings = {} if self.method.catalogue.pools_rows else later_trainings(self.study, self.method)
        return [
            line._replace(stage=prefix + line.stage, rounds=count * line.rounds)
            for prefix, count in trainings.items()
            for stage in self.contracts
            for contract in stage
            if not contract.consent
            for line in contract.lines()
        ]

    def _pooled(self) -> list[WireEntry]:
        """The rows themselves, and the model that comes back."""
        word, lines = self.study.row_word, []
        rows: tuple[str, tuple[int, ...], str, int] = ("features", (len(columns(self.study)),), "float32", 4)
        if self.study.images:
            rows = ("pixels", self.study.images.shape, "uint8", 1)
        for content, shape, kind, width in (rows, ("target", (1,), "float32", 4)):
            name, size = f"ALL TRAINING {word.upper()}S: {content}, per {word}", width * math.prod(shape)
            lines.append(WireEntry("pool", "from site", name, shape, kind, size, 1, "each", per_row=True))
        return lines + [
            WireEntry("pool", "to site", name, tuple(v.shape), "float32", v.numel() * 4, 1, "each")
            for name, v in flatten(self.task.start)
        ]

    def _scores(self) -> list[WireEntry]:
        """What each site tells of how its models do on its own rows."""
        study, rounds = self.study, sum(stage.rounds for stage in self.method.plan(self.study.training.rounds))
        evaluations = 1 + sum(is_evaluated(done, rounds) for done in range(1, rounds + 1))
        names = [*study.metrics, *(f"{metric}, {model}" for model in self.companion_models for metric in study.metrics)]
        lines = [WireEntry("scores", "from site", name, (), "float64", 8, evaluations, "each") for name in names]
        shapes, splits = dict[str, tuple[int, ...]](), last_splits(self.task, study)
        if COVERAGE in splits:
            first, *_, last = points = [m for m in DOUBT if "@" in m]
            shapes[f"{first} to {last}, {COVERAGE}"] = (len(points),)
            shapes |= {f"{m}, {COVERAGE}": () for m in DOUBT if m not in points}
        if AT_BEDSIDE in splits:
            shapes |= {f"{kind} by risk, {AT_BEDSIDE}": (len(BEDSIDE) // len(KINDS),) for kind in KINDS}
        if RISK in splits:
            ends = len(GROUPS), study.target.outputs
            shapes |= {f"{what}, {RISK}": ends for what in ("free of the event", "still followed")}
        return lines + [
            WireEntry("scores", "from site", name, shape, "float64", 8 * math.prod(shape), 1, "each")
            for name, shape in shapes.items()
        ]


def with_facts(study: Study, *means: str) -> str:
    """The same as `methods_with_facts`, for a hint."""
    return " or ".join(methods_with_facts(study, *means))


def methods_with_facts(study: Study, *means: str) -> list[str]:
    """Methods whose runs tell something that means one of these."""

    def tells(kind: type[AnyMethod]) -> bool:
        try:
            return not Plan(study, kind()).meanings.isdisjoint(means)
        except VitrailError:  # it cannot train as this study does
            return False

    return list(methods.named(tells))
