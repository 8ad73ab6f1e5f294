"""What leaves a site, by clause of its form: the tensors of the wire table in groups, each with a sentence."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from vitrail.core.exchange import AnyExchange, Stage
from vitrail.core.text import several, size
from vitrail.deploy.protocol.agreement import FOOTPRINT, Agreement
from vitrail.deploy.protocol.model_digests import DIGESTS
from vitrail.deploy.protocol.score_plan import END, TRAINING
from vitrail.deploy.screening.shared import LEGS
from vitrail.deploy.transfer.shared import TRANSFER
from vitrail.deploy.two_server.shared import READ
from vitrail.engine.contract import MASKED, Contract, WireEntry
from vitrail.metrics.scores import FEWEST
from vitrail.privacy.secure_sum.fixed_point import ZERO
from vitrail.quality.screening.schema import HELD
from vitrail.runs.protection.budget import guards_of
from vitrail.runs.screening import SCREENING
from vitrail.runs.verdict_wire import FOLDS, REFIT, plain_stage

SCALE, COUNTS = "standardise", "prepare"  # stages of the wire
OURS = (SCALE, COUNTS, TRANSFER, TRAINING, END, "finish")  # stages that no method brings
COLUMNS = tuple(SCREENING + leg for leg in LEGS)


class FormItem(NamedTuple):
    """Tensors of one message that one phrase speaks of."""

    phrase: str
    numbers: int
    size: str  # of one message
    times: int
    total: str  # of all messages
    tensors: str  # their names, with shapes
    dtype: str

    @classmethod
    def of(cls, phrase: str, lines: Sequence[WireEntry]) -> FormItem:
        once, first = sum(x.bytes for x in lines), lines[0]
        named = (x.name + (f"[{','.join(map(str, x.shape))}]" if x.shape else "") for x in lines)
        numbers = sum(math.prod(x.shape) for x in lines)
        sizes = volume(once), first.rounds, volume(once * first.rounds)
        return cls(phrase, numbers, *sizes, "; ".join(dict.fromkeys(named)), first.dtype)

    @property
    def text(self) -> str:
        """For a list outside the form."""
        often = "once" if self.times == 1 else f"{self.times} times, {self.total} in all"
        return f"{self.phrase}: {several(self.numbers, 'number')}, {self.size}, {often}"


class ModelJudging(NamedTuple):
    """Where a site's rows judge models that others chose: how often, and how many numbers leave each time."""

    times: int
    counts: int  # of rows that a model predicts rightly; they are rounded
    numbers: int  # that are not
    reading: str


class Disclosure(NamedTuple):
    """What one clause of the form is about."""

    kind: str
    label: str
    title: str
    when: str
    items: tuple[FormItem, ...]
    reading: str  # who reads it: each, sum, compared, masked, groups or two servers
    times: int
    may_refuse: str  # all of it, a part, or ""
    judging: tuple[ModelJudging, ...] = ()

    @property
    def not_rounded(self) -> bool:
        """Whether the coordinator reads exactly how models do on this site's rows."""
        return any(one.numbers and one.reading not in (*MASKED, READ) for one in self.judging)


TITLES = {
    "scale": "sums for a common scale",
    "counts": "counts of rows",
    "columns": "summaries of your columns",
    "transfer": "your own model, and how the others' models do here",
    "training-scores": "scores during training",
    "scores": "scores at the end",
    "digests": "which models were scored",
    "machine": "the use of the machine",
    "folds": "reports of trainings without a part of the rows",
    "refit": "reports of the training on all rows",
    "verdict": "whether joining is worth it here",
}
ORDER = ("scale", "counts", "columns", "transfer", "report", "published", *list(TITLES)[4:])
REFUSABLE = {"columns": "all", "transfer": "all", "published": "all", "verdict": "all", "machine": "part"}


class MethodExchange(NamedTuple):
    """An exchange that the method brings."""

    stage: Stage
    place: int  # in its stage
    exchange: AnyExchange
    contract: Contract


def declared(agreement: Agreement, publishes: bool) -> tuple[list[WireEntry], list[WireEntry]]:
    """Every tensor that would leave, and every one that would come in."""
    lines = [x for x in agreement.lines if publishes or not x.asks]
    return [x for x in lines if x.direction == "from site"], [x for x in lines if x.direction == "to site"]


def disclosures(agreement: Agreement, publishes: bool, shows: bool = False) -> tuple[Disclosure, ...]:
    """One for each clause, in the order of the form."""
    own, groups = method_exchanges(agreement), dict[tuple[str, str, str], list[WireEntry]]()
    for line in declared(agreement, publishes)[0]:
        kind, title, reading = _kind(line), "", ""
        brought = own.get(plain_stage(line.stage))
        if kind == "report" and brought:
            kind = "published" if brought.contract.consent else kind
            title = brought.stage.title or brought.stage.name
        if kind in ("report", "folds", "refit") and brought:
            reading = brought.contract.read or _plain_reading(agreement, brought)
        groups.setdefault((kind, title, reading), []).append(line)
    if shows and agreement.study.verdict:
        groups["verdict", "", ""] = []
    out = list[Disclosure]()
    for (kind, title, reading), lines in sorted(groups.items(), key=lambda group: ORDER.index(group[0][0])):
        held = [own[stage] for stage in dict.fromkeys(x.stage for x in lines) if stage in own]
        about = {"report": f"reports: {title}", "published": title}.get(kind) or TITLES[kind]
        out.append(
            Disclosure(
                kind,
                kind if kind in TITLES else f"{kind}-{len(out)}",
                in_words(agreement, about),
                "; ".join(dict.fromkeys(one.stage.when or one.stage.name for one in held)),
                items(agreement, lines),
                reading or _reading(lines),
                max((x.rounds for x in lines), default=1),
                REFUSABLE.get(kind, ""),
                tuple(found for one in held if (found := _judging(agreement, one))),
            )
        )
    return tuple(out)


def method_exchanges(agreement: Agreement) -> dict[str, MethodExchange]:
    """By the stage of the wire that carries them."""
    return {
        contract.stage: MethodExchange(rehearsed.stage, place, turn.exchange, contract)
        for rehearsed, contracts in zip(agreement.stages, agreement.contracts, strict=True)
        for place, (turn, contract) in enumerate(zip(rehearsed.turns, contracts, strict=True))
    }


def items(agreement: Agreement, lines: Sequence[WireEntry]) -> tuple[FormItem, ...]:
    """Grouped by what they are, in the order in which they cross."""
    groups = dict[tuple[str, str, int], list[WireEntry]]()
    for line in lines:
        groups.setdefault((line.stage, phrase(agreement, line), line.rounds), []).append(line)
    return tuple(FormItem.of(words, group) for (_, words, _), group in groups.items())


def with_later(lines: Sequence[WireEntry]) -> list[WireEntry]:
    """Trainings after the run repeat its messages: their entries are counted with those of the run."""
    merged: dict[tuple[str, str], WireEntry] = {}
    for line in lines:
        key = plain_stage(line.stage), line.name
        merged[key] = merged[key]._replace(rounds=merged[key].rounds + line.rounds) if key in merged else line
    return list(merged.values())


@cache
def phrases(kind: str, unit: str = "row") -> dict[str, str]:
    """By name: of what leaves (`out`, `columns`), of what comes in (`in`, `asked`), of groups of layers (`layers`)."""
    text = (files("vitrail.deploy.consent") / "templates" / "tensors.txt").read_text("utf-8")
    given = {"fewest": FEWEST, "held": HELD, "units": f"{unit}s"}
    return {name: words.format(**given) for name, words in tomllib.loads(text)[kind].items()}


def phrase(agreement: Agreement, line: WireEntry) -> str:
    """In plain words what a tensor is; its own name where nobody gave any."""
    leaves, name, target = line.direction == "from site", line.name, agreement.study.target
    known = phrases("out" if leaves else "in")
    if name.endswith("?") or name == ZERO:
        return known[ZERO if name == ZERO else "?"]
    if line.stage in COLUMNS:
        return phrases("columns" if leaves else "asked", agreement.study.unit_word)[name]
    if line.stage == COUNTS and target.kind != "classes":
        name = f"{name} of {'numbers' if target.kind == 'number' else 'times'}"
    elif line.stage in (END, TRAINING) and leaves and name not in known:
        name = "scores" + name[len(name.split(", ")[0]) :]
    first = name if name in known else name.split("/")[0]
    if line.words and (first not in known or line.stage not in OURS):  # a method may call a tensor of its own the same
        return in_words(agreement, line.words)
    words = in_words(agreement, known.get(first, name))
    patients = line.stage == COUNTS and line.name == "rows" and agreement.study.person_column
    return f"{words} (counted in patients); and of how many patients each of these are" if patients else words


def in_words(agreement: Agreement, words: str) -> str:
    """Words about rows and columns, where the rows are pictures; a tensor's name and what is quoted stay."""
    if not agreement.study.images or " " not in words:
        return words
    return re.sub(r'(?<!")\brow(s?)\b(?!")', r"picture\1", words).replace("column", "channel")


def volume(count: int) -> str:
    """Bytes for people; the few are counted.

    >>> volume(8), volume(5192)
    ('8 bytes', '5.2 KB')
    """
    return several(count, "byte") if count < 1000 else size(count)


def _kind(line: WireEntry) -> str:
    if line.stage.startswith((FOLDS, REFIT)):
        return "folds" if line.stage.startswith(FOLDS) else "refit"
    if line.stage == END:
        return {FOOTPRINT: "machine", DIGESTS: "digests"}.get(line.name, "scores")
    known = {SCALE: "scale", COUNTS: "counts", TRAINING: "training-scores", TRANSFER: "transfer"} | dict.fromkeys(
        COLUMNS, "columns"
    )
    return str(known.get(line.stage, "report"))


def _plain_reading(agreement: Agreement, brought: MethodExchange) -> str:
    """Of reports that the coordinator could read one by one."""
    if guards_of(agreement.study).needs_each(brought.exchange):
        return "compared"
    return "sum" if brought.contract.aggregation == "sum" else "each"


def _reading(lines: Sequence[WireEntry]) -> str:
    seen = {x.seen for x in lines}
    return next((one for one in ("each", "sum", *MASKED) if one in seen), "each")


def _judging(agreement: Agreement, brought: MethodExchange) -> ModelJudging | None:
    """Where the reports of an exchange say how models do on this site's rows."""
    rules, contract = brought.exchange.wire, brought.contract
    sizes = {k: math.prod(v[0]) for k, v in contract.up.items() if k.split("/")[0] in rules.score_fields}
    if not sizes:
        return None
    are_rounded = agreement.study.protect.scores != "exact"
    rounded = {k: n // 2 for k, n in sizes.items() if k in rules.hit_fields and are_rounded}
    exact = sum(n for k, n in sizes.items() if k not in rounded)
    return ModelJudging(brought.stage.times(brought.place), sum(rounded.values()), exact, contract.read)
