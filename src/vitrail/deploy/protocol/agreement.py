"""What coordinator and sites agreed on, down to the last tensor; both ends work it out for themselves.

Its hash is what a site accepts: it changes with the study, the method, the seed, everything that would cross, and with
the name or the key of any participant.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from vitrail import methods
from vitrail.core.errors import Problem, VitrailError
from vitrail.core.facts import ENDS
from vitrail.core.task import Task
from vitrail.core.tensors import flatten
from vitrail.data.encoding import numeric
from vitrail.deploy.identity.participants import ParticipantList
from vitrail.deploy.protocol import model_digests, score_plan
from vitrail.deploy.protocol.closing_validation import read_findings
from vitrail.deploy.protocol.message import MOST_WORDS, QUESTIONS, RUN, WHERE, MessageSchema, no_such
from vitrail.deploy.protocol.score_plan import SUMMED
from vitrail.deploy.scale.shared import has_masked_scale
from vitrail.deploy.screening import shared as screening
from vitrail.deploy.secure_sum import shared as secure_sum
from vitrail.deploy.secure_sum.shared import SCALE, SumName
from vitrail.deploy.share import shared as share
from vitrail.deploy.transfer import shared as transfer
from vitrail.deploy.two_server import shared as two
from vitrail.engine.contract import (
    MASKED,
    Contract,
    Rehearsal,
    Spec,
    WireEntry,
    rehearse,
)
from vitrail.methods import AnyMethod
from vitrail.nets import ProtoNet
from vitrail.privacy.secure_sum.fixed_point import LEAST, fewest_of
from vitrail.quality.screening import parts
from vitrail.quality.screening.finding_validation import is_plain_data
from vitrail.quality.screening.result import Finding, ScreeningTensor
from vitrail.runs.evaluation import baseline_metrics
from vitrail.runs.plan import Plan
from vitrail.runs.protection.checks import check_protection
from vitrail.runs.screening import screens
from vitrail.runs.setup import scored_in
from vitrail.study.model import Protect, Study

FORMAT = 10  # of the messages
ANEW = 20  # in a run, questions that differ from the one that was answered before: a coordinator may be put back
USED = (
    "the processor seconds and the memory that this site's process used; its power draw and the CO2 of its grid, if "
    "somebody stated them"
)
# guards that work between machines
FAR = ("sum", "least", "robust", "clip", "rows", "rows_least", "sites", "compress", "second", "scores")
FOOTPRINT = "footprint"  # what a site's process used: seconds, bytes; watts and grid where it states them
VERDICT = "verdict"  # in the answer to the last word: what a site found out for itself, where it shows that
LAST = "settle"  # in a question, before the names of what comes from the word that would end the stage now


@dataclass(frozen=True)
class Agreement:
    study: Study  # with its method and rounds
    seed: int
    sites: int  # how many take part
    roster: ParticipantList = field(default_factory=lambda: ParticipantList({}))  # none before enrolment

    @classmethod
    def of(cls, study: Study, seed: int | None, participants: int | Mapping[str, str]) -> Agreement:
        """`participants`: the roster that everybody accepts; or, before the keys are known, how many were invited. The
        second server is among them where there is one."""
        roster = ParticipantList({} if isinstance(participants, int) else participants)
        sites = (len(roster) or int(participants)) - bool(study.protect.second)  # type: ignore[arg-type]
        agreement = cls(study, study.seeds[0] if seed is None else seed, sites, roster)
        if agreement.method.catalogue.pools_rows:
            what = f"{agreement.method.catalogue.title} would move every site's {study.row_word}s out of the hospital."
            raise VitrailError("this method cannot be deployed", [Problem("method", what, "Use another method.")])
        here = {k: v for k, v in study.protect if v != getattr(Protect(), k) and k not in FAR}
        if here:
            what, hint = (
                "so far, this guard works only in simulation, not between machines.",
                "Remove it from the study.",
            )
            raise VitrailError(
                "the study promises what cannot be kept", [Problem(f"protect.{k}", what, hint) for k in here]
            )
        two.check_second(study)
        check_protection(agreement.plan, dict.fromkeys(map(str, range(sites)), 1 << 62))
        agreement._check_judging()
        return agreement

    def _check_judging(self) -> None:
        """What sites report of how models do on their rows leaves exactly only under masks, where a sum is enough."""
        open_stages = [
            t.stage.title or t.stage.name
            for t, contracts in zip(self.stages, self.contracts, strict=True)
            for turn, c in zip(t.turns, contracts, strict=True)
            if turn.exchange.wire.aggregation == "sum"
            and turn.exchange.wire.score_fields - turn.exchange.wire.hit_fields
            and not c.read
        ]
        if open_stages and self.study.protect.scores != "exact":
            what = (
                f"with {self.method.catalogue.title}, each site reports exact scores of "
                f"models on its {self.study.row_word}s ({', '.join(dict.fromkeys(open_stages))}). Anyone who reads the "
                "report of a single site can find out from it "
                "whether a given person is among them."
            )
            hint = 'Write sum = "masked", so that only sums over sites are read; or accept it with scores = "exact".'
            raise VitrailError("the study promises what cannot be kept", [Problem("protect.sum", what, hint)])

    @property
    def origin(self) -> tuple[str, str] | None:
        """The package and version that brought the method, where it is none of ours."""
        return methods.origin(self.study.method["name"])

    @cached_property
    def plan(self) -> Plan:
        return Plan(self.study, self.study.build_method(), self.seed, self.sites)

    @property
    def method(self) -> AnyMethod:
        return self.plan.method

    @property
    def task(self) -> Task:
        return self.plan.task

    @property
    def stages(self) -> list[Rehearsal]:
        return self.plan.stages

    @property
    def contracts(self) -> list[list[Contract]]:
        return self.plan.contracts

    @property
    def companion_models(self) -> tuple[str, ...]:
        """Models that a site carries beside its own."""
        return self.plan.companion_models

    @property
    def fewest(self) -> int:
        """Of how many sites a sum under masks is at least: more than two thirds of all who accepted."""
        return fewest_of(self.sites, self.study.protect.least)

    def masked(self, s: int, place: int) -> bool:
        """Whether the reports of that exchange leave under masks."""
        return self.contracts[s][place].read in MASKED

    def alike(self, s: int, place: int) -> bool:
        """Whether every site is told the same there: a view of one message, whatever the coordinator holds."""
        return (s, place) in self._alike

    @cached_property
    def _alike(self) -> set[tuple[int, int]]:
        two = rehearse(self.task, self.method, self.study.training.rounds, 2, whole=True)
        turns = [(s, place, turn) for s, t in enumerate(two) for place, turn in enumerate(t.turns)]
        return {(s, place) for s, place, turn in turns if all(v.stride(0) == 0 for _, v in flatten(turn.down))}

    def check_sum(self, words: dict[str, Any], read: Sequence[str] = MASKED) -> None:
        """Whether there is such an exchange in such a round, whose reports can be read so."""
        s, r, place = self.stage(words), words.get("round"), words.get("place")
        stage = self.stages[s].stage
        if type(r) is not int or not 0 <= r < stage.rounds:
            raise no_such("round", r)
        if type(place) is not int or place not in stage.turns(r) or self.contracts[s][place].read not in read:
            raise no_such("place", place)

    @cached_property
    def lines(self) -> list[WireEntry]:
        """Every tensor that may cross. A run on one machine does not name what its coordinator knows anyway."""
        own = [
            WireEntry("prepare", "from site", name, shape, _kind(dtype), math.prod(shape) * dtype.itemsize, 1, "each")
            for name, (shape, dtype) in self.answer("prepare", {}).tensors.items()
        ]
        # updates are not kept, but the coordinator is sent each report, also where it needs only the total
        crossing = self.plan.wire(keep_updates=True, screened=False)
        lines = (
            own
            + transfer.wire_lines(self)
            + screening.wire_lines(self)
            + [x for x in crossing if x.stage != "scores"]
            + score_plan.score_lines(self)
        )
        about = FOOTPRINT, (4,), "float64", 32, 1, "each"
        lines.append(WireEntry("scores", "from site", *about, words=f"at the end: {USED}"))
        lines += self.plan.later_wire()
        lines += model_digests.digest_lines(self)
        layers, lines = self.others.items(), lines + score_plan.settling_lines(self)
        return lines + [
            WireEntry("finish", "to site", name, s, _kind(t), 8 * math.prod(s), 1, "each") for name, (s, t) in layers
        ]

    @cached_property
    def hash(self) -> str:
        body: dict[str, Any] = {"format": FORMAT, "study": self.study.to_toml(), "seed": self.seed, "sites": self.sites}
        if self.origin:  # whoever brought the method can change what it does
            body["method"] = self.origin
        if self.weights:
            body["weights"] = self.weights
        if self.roster:
            body["participants"] = dict(self.roster)
        if self.roster.pseudonyms:
            body["pseudonyms"] = self.roster.pseudonyms
        text = json.dumps({**body, "wire": [list(line) for line in self.lines]}, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:24]

    @property
    def weights(self) -> str:
        """The sha256 of the file from which a part of the network is read, at every site the same; "" without one."""
        return self.task.net.sha256 if isinstance(self.task.net, ProtoNet) else ""

    def scored(self, splits: list[str]) -> list[tuple[str, str]]:
        """Split and metric of each number that a site says about itself, in order."""
        names = []
        for split in splits:
            names.append(split)
            if split == "test":
                names += [f"test:{k}" for k in self.companion_models]
        return [(name, metric) for name in names for metric in scored_in(self.study, name)]

    def settling(self, s: int, place: int) -> Spec:
        """What settles a model and is not in the word of that exchange: sent with it where scores are asked for."""
        ex, declared, last = self.stages[s].stage.last, self.contracts[s][place].down, self.contracts[s][-1].down
        needed = {k: v for k, v in last.items() if not ex.wire.final_fields or k.split("/")[0] in ex.wire.final_fields}
        return {f"{LAST}/{k}": v for k, v in needed.items() if declared.get(k) != v}

    def question(self, kind: str, words: dict[str, Any]) -> MessageSchema:
        """What a site may be asked."""
        down: Spec = {}
        more: dict[str, Any] = {}
        if kind in ("round", "settle"):
            s, r, splits = self.stage(words), words.get("round"), words.get("score")
            stage, place = self.stages[s].stage, words.get("place")
            rounds = (stage.rounds,) if kind == "settle" else range(stage.rounds)
            if type(r) is not int or r not in rounds:
                raise no_such("round", r)
            places = (len(stage.exchanges) - 1,) if kind == "settle" else stage.turns(r)
            if not isinstance(place, int) or place not in places:
                raise no_such("place", place)
            if splits not in ([], score_plan.planned(self, kind, s, r, place)):
                raise no_such("score", splits)
            down = self.contracts[s][place].down | (self.settling(s, place) if splits else {})
            more = {share.SHARE: dict} if kind == "round" and self.study.share else {}  # with groups and halves never
            if kind == "round" and self.masked(s, place):
                return MessageSchema({**QUESTIONS[kind], **more, "sum": dict}, down)
            if kind == "round" and self.contracts[s][place].read == two.READ:
                return MessageSchema({**QUESTIONS[kind], "second": dict}, down)
        elif kind == "standardise":
            if words.get("step") not in ((1,) if has_masked_scale(self) else (1, 2)):
                raise no_such("step", words.get("step"))
            if has_masked_scale(self):
                return MessageSchema({**QUESTIONS[kind], "sum": dict}, {})
            down = {"mean": self.numbers} if words.get("step") == 2 else {}
        elif kind == "prepare":
            down = {"mean": self.numbers, "sd": self.numbers} if self.shared_scale else {}
        elif kind == "screen":
            return screening.question_schema(self, words)
        elif kind == transfer.TRANSFER:
            return transfer.question_schema(self, words)
        elif kind == "mask":
            if (leg := words.get("leg")) not in secure_sum.WORDS or not (self.masks or secure_sum.single_sums(self)):
                raise no_such("leg", leg)
            if leg != "ring":
                secure_sum.read_name(self, words)
            return MessageSchema({**RUN, "leg": str, **secure_sum.WORDS[leg]}, {})
        elif kind in (two.SECOND, two.DEAL):
            return two.question(self, kind, words)
        elif kind == "finish":
            self.findings(words)
            if not is_plain_data(words.get("pooled")):
                raise no_such("pooled", words.get("pooled"))
            others = words.get("others")
            if not isinstance(others, int) or not 0 <= others < self.sites:
                raise no_such("others", others)
            down = (self.others if others else {}) | model_digests.lists_spec(self)
            return MessageSchema(
                {**QUESTIONS[kind], **({model_digests.LISTS: dict} if model_digests.points(self) else {})}, down
            )
        return MessageSchema({**QUESTIONS[kind], **more}, down)

    def findings(self, words: dict[str, Any], site: str = "") -> list[Finding]:
        """What a site is told about itself at the end, as the words of that message say it."""
        return read_findings(self.study, words, site)

    @cached_property
    def longest(self) -> int:
        """Bytes that no question is longer than."""
        downs = [c.down | self.settling(s, i) for s, stage in enumerate(self.contracts) for i, c in enumerate(stage)]
        legs = [self.question("screen", {"leg": leg}).tensors for leg in screening.LEGS if self.parts]
        sent = [
            self.others | model_digests.lists_spec(self),
            *downs,
            *legs,
            dict.fromkeys(("mean", "sd"), self.numbers),
        ]
        sizes = [sum(math.prod(s) * t.itemsize for s, t in spec.values()) for spec in sent]
        return MOST_WORDS + max(*sizes, transfer.longest(self))

    @cached_property
    def longest_answer(self) -> int:
        """Bytes that no answer is longer than; twice the reports', which may leave as wider numbers."""
        answers = [c.up for stage in self.contracts for c in stage]
        answers += [self.answer("screen", {"leg": leg}).tensors for leg in screening.LEGS if self.parts]
        answers += two.longest(self)
        answers += [self.answer(kind, {"step": 1}).tensors for kind in ("standardise", "prepare")]
        sizes = [sum(math.prod(s) * t.itemsize for s, t in spec.values()) for spec in answers]
        return 2 * MOST_WORDS + 2 * max(*sizes, transfer.longest(self))

    def answer(self, kind: str, words: dict[str, Any]) -> MessageSchema:
        """What a site may say to that question."""
        if kind in ("round", "settle"):
            s, place = self.stage(words), words["place"]
            contract = self.contracts[s][place]
            up: Spec = {}
            if kind == "round":
                up = dict(contract.up)
                if contract.crosses is not None:
                    up = dict(score_plan.report_spec(self, s, words["round"], place))
            if SUMMED not in up and (count := len(self.scored(words["score"]))):
                up["scores"] = ((count,), torch.float64)
            if kind == "settle" and s + 1 == len(self.stages):
                up |= {FOOTPRINT: ((4,), torch.float64), **model_digests.list_spec(self)}
            halves = kind == "round" and contract.read == two.READ
            letter = two.SAID if halves else secure_sum.SIGNED if kind == "round" and self.masked(s, place) else {}
            signed = model_digests.SIGNED if model_digests.DIGESTS in up else {}
            return MessageSchema(
                {**WHERE, **letter, **signed},
                up,
                self.stages[s].stage.exchanges[place].wire.may_be_nan | {"scores", FOOTPRINT},
            )
        double, spec = torch.float64, {}
        if kind == "standardise" and has_masked_scale(self):
            summed = secure_sum.terms_of(self, "", SumName(SCALE)).summed
            return MessageSchema(secure_sum.SIGNED, {k: (shape, torch.int64) for k, shape in summed.items()})
        if kind == "standardise":
            spec = {"rows": self.numbers, "total": self.numbers}
        elif kind == "prepare":
            target = self.study.target
            counts = (2 if target.kind == "number" else 3) + 2 * bool(self.study.person_column)
            spec = {"rows": ((counts,), torch.int64), "target": ((max(1, len(target.levels)),), double)}
            spec["chance"] = ((len(baseline_metrics(self.study)),), double)
            stated = share.STATEMENT if share.states_rows(self) else {}
            return MessageSchema({"fingerprint": str, "versions": dict, **stated}, spec, frozenset({"chance"}))
        elif kind == "screen":
            return screening.answer_schema(self, words)
        elif kind == transfer.TRANSFER:
            return transfer.answer_schema(self, words)
        elif kind == "mask":
            return MessageSchema(secure_sum.TOLD[words["leg"]], {})
        elif kind in (two.SECOND, two.DEAL):
            return two.answer(self, kind, words)
        return MessageSchema({VERDICT: dict} if kind == "finish" and self.study.verdict else {}, spec)

    @cached_property
    def masks(self) -> bool:
        """Whether any reports leave under masks."""
        return any(c.read in MASKED for stage in self.contracts for c in stage)

    @cached_property
    def parts(self) -> list[ScreeningTensor]:
        """What is published before the first round so that it can be said whose data does not fit; none of pictures,
        and none where so few take part that nobody is judged."""
        return parts(self.study) if screens(self.study) and self.sites >= LEAST else []

    def stage(self, words: dict[str, Any]) -> int:
        s = words.get("stage")
        if type(s) is not int or not 0 <= s < len(self.contracts):
            raise no_such("stage", s)
        return s

    @property
    def shared_scale(self) -> bool:
        return self.study.standardise == "global" and bool(numeric(self.study))

    @property
    def numbers(self) -> tuple[tuple[int, ...], torch.dtype]:
        return (len(numeric(self.study)),), torch.float64

    @cached_property
    def others(self) -> Spec:
        """At the end: the mean of the private layers that the others published."""
        facts = [f for t in self.stages for turn in t.turns for f in turn.facts.values() if f.means in ENDS]
        return {f"others/{ENDS[f.means]}": ((f.value[0].numel(),), torch.float64) for f in facts}


def _kind(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
