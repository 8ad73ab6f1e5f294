"""The contract in plain words, for the person who answers for a hospital's data. Worked out from what is declared."""

from __future__ import annotations

import math
import re
import sys
import textwrap
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from vitrail.core.errors import printable
from vitrail.core.tensors import flatten
from vitrail.core.text import several, size
from vitrail.deploy.consent.attack_evidence import what_was_tried
from vitrail.deploy.consent.budget import budget_meaning
from vitrail.deploy.consent.model_judging import what_judging_tells
from vitrail.deploy.consent.participants import about_keys, participants, who_must_collude
from vitrail.deploy.consent.scores import scores_leave, what_scores_tell
from vitrail.deploy.consent.screening import HEADINGS, comes_in, in_words, what_remains, who_sees
from vitrail.deploy.consent.secure_sum import in_a_group, in_two_halves, masked_report_texts, noise_and_masks, who_reads
from vitrail.deploy.consent.tensor_phrases import GROUPS, IN, OUT, WORDS
from vitrail.deploy.consent.verdicts import fold_titles, what_folds_tell, what_is_found, what_is_kept
from vitrail.deploy.protocol.agreement import ANEW, Agreement
from vitrail.deploy.protocol.score_plan import END, POINTS, TRAINING
from vitrail.deploy.site.safeguards import NOT_CHECKED, NOT_IN_PICTURES
from vitrail.deploy.site.unscaled_columns import NOT_LOOKED, unscaled
from vitrail.deploy.two_server.shared import READ
from vitrail.engine.contract import MASKED, WireEntry, sentences
from vitrail.methods import AnyMethod
from vitrail.metrics.scores import FEWEST
from vitrail.metrics.survival import end_words
from vitrail.runs.setup import AT_BEDSIDE, COVERAGE, RISK, last_splits
from vitrail.runs.verdict_wire import FOLDS, REFIT, plain_stage

WIDTH = 96

STAGES = {  # what happens round a method's own stages: when, as a heading and in a list
    "prepare": ("Before the first round", "counts"),
    "standardise": ("Before the first round, for a scale that all sites share", "the common scale"),
    TRAINING: (f"Scores, at most {POINTS} times during training", "scores in training"),
    END: ("Scores, once at the end", "scores"),
    "finish": ("At the end", "findings"),
    **HEADINGS,
}


class FormItem(NamedTuple):
    """Tensors of one message that one phrase speaks of."""

    phrase: str
    lines: list[WireEntry]

    @property
    def once(self) -> int:
        return sum(x.bytes for x in self.lines)

    @property
    def all(self) -> int:
        return sum(x.bytes * x.rounds for x in self.lines)

    def text(self) -> str:
        times, numbers = self.lines[0].rounds, sum(math.prod(x.shape) for x in self.lines)
        often = "once" if times == 1 else f"{times} times, {volume(self.all)} in all"
        head = f"{self.phrase}: {several(numbers, 'number')}, {volume(self.once)}, {often}"
        if [self.phrase] == [x.name for x in self.lines]:
            return head
        names = dict.fromkeys(x.name + (f" {' x '.join(map(str, x.shape))}" if x.shape else "") for x in self.lines)
        return f"{head} ({'tensors' if len(names) > 1 else 'tensor'} {', '.join(names)})"


def contract_text(
    agreement: Agreement,
    site: str,
    sites: Sequence[str],
    publishes: bool,
    rows: int | None = None,
    shows: bool = False,
    spent: Sequence[str] = (),
) -> str:
    """What this site would agree to; `publishes`: whether it shows what it may refuse to show; `rows`: how many it has,
    where they are known; `shows`: whether the others are told if joining is worth it here; `spent`: what these rows
    have spent of their privacy before."""
    study, method = agreement.study, agreement.method
    out, came = declared(agreement, publishes)
    others = [s for s in sites if s not in (site, study.protect.second)]
    server = f", and {study.protect.second}, the second server" if study.protect.second else ""
    total, reach = sum(x.bytes * x.rounds for x in out), sum(x.bytes * x.rounds for x in came)
    target = study.target
    kind = "a number" if target.kind == "number" else f"one of {len(target.levels)} classes"
    if target.kind == "time":
        kind = f"and when, in {several(target.outputs, 'interval')} to {end_words(target.ends, target.unit)[-1]}"
    given = f"pictures ({study.images.words})" if study.images else several(len(study.features), "column")
    parts = [
        "THE STUDY",
        *wrapped(" ".join(filter(None, [f"{study.name}.", study.description]))),
        *wrapped(f"It learns to tell {study.target.column} ({kind}) from {given}."),
        *wrapped(f"Who takes part: {', '.join([f'{site} (this site)', *others])}; and a coordinator{server}."),
        *wrapped(about_keys(agreement)),
        *bullets(participants(agreement, site)),
        *wrapped(f"Method, {several(study.training.rounds, 'round')}: {_of(agreement, about(method))}"),
        *(wrapped(f"The method comes from the package {' '.join(agreement.origin)}.") if agreement.origin else ()),
        *(wrapped(_read(agreement)) if agreement.weights else ()),
        "",
        "WHAT LEAVES THIS HOUSE",
        *_stages(agreement, out, rows, shows),
        "",
        *wrapped(
            f"In all up to {volume(total)} of numbers, if no round is repeated; and their names, and a few words. "
            f"Asked the same again, this site answers the same; asked otherwise about what it answered before, at most "
            f"{ANEW} times in a run, and never about what it publishes. It takes part in one run, until somebody here "
            "joins again."
        ),
        "",
        "WHO SEES IT",
        *bullets([*_seen(agreement, out), *in_two_halves(agreement), *in_a_group(agreement, site, sites)]),
        *wrapped(" ".join(who_must_collude(agreement, site, sites))),
        "",
        "WHAT COMES IN",
        *bullets([*(item.text() for item in items(agreement, with_later(came))), *comes_in(came)]),
        *wrapped(f"In all about {volume(reach)}. No code: a message that is not declared here is refused."),
        "",
        "WHAT NEVER LEAVES",
        *bullets([*_kept(agreement, out, publishes), *what_is_kept(agreement, shows)]),
        "",
        "WHAT COULD STILL BE LEARNED",
        *bullets([*_risks(agreement, out), *budget_meaning(agreement), *what_folds_tell(agreement, out)]),
        "",
        *(["THE PRIVACY BUDGET OF THESE ROWS", *bullets(spent), ""] if spent else ()),
        "TO ACCEPT",
        *wrapped(
            f"The hash of this contract is {agreement.hash}. It covers the study, its method, the seed, the names and "
            "keys of all participants and the table of what crosses: if one of them changes, this site stops and says "
            "so. Unattended:"
        ),
        f"  --accept {agreement.hash}",
    ]
    return "\n".join(parts)


def _read(agreement: Agreement) -> str:
    name = Path(agreement.study.network.weights).name
    said = f"Every site reads the network's convolutions from a file that it has, {name}, and does not send it."
    return f"{said} Its sha256: {agreement.weights}."


def about(method: AnyMethod) -> str:
    """What the method does, as its own file says it."""
    told = (sys.modules[type(method).__module__].__doc__ or f"{method.catalogue.title}.").strip()
    return " ".join(told.split("\n\n")[0].split())


def declared(agreement: Agreement, publishes: bool) -> tuple[list[WireEntry], list[WireEntry]]:
    """Every tensor that would leave, and every one that would come in."""
    lines = [x for x in agreement.lines if publishes or not x.asks]
    return tuple([x for x in lines if x.direction == way] for way in ("from site", "to site"))  # type: ignore[return-value]


def with_later(lines: Sequence[WireEntry]) -> list[WireEntry]:
    """Trainings after the run repeat its messages: their entries are counted with those of the run."""
    merged: dict[tuple[str, str], WireEntry] = {}
    for line in lines:
        key = plain_stage(line.stage), line.name
        merged[key] = merged[key]._replace(rounds=merged[key].rounds + line.rounds) if key in merged else line
    return list(merged.values())


def items(agreement: Agreement, lines: Sequence[WireEntry]) -> list[FormItem]:
    """Grouped by what they are, in the order in which they cross."""
    found: dict[tuple[str, str, int], list[WireEntry]] = {}
    for line in lines:
        found.setdefault((line.stage, phrase(agreement, line), line.rounds), []).append(line)
    return [FormItem(words, group) for (_, words, _), group in found.items()]


def phrase(agreement: Agreement, line: WireEntry) -> str:
    """In plain words what a tensor is; its own name where nobody gave any."""
    if line.words:
        return _of(agreement, line.words)
    words, name = (OUT, line.name) if line.direction == "from site" else (IN, line.name)
    if line.stage in (END, TRAINING):
        name = "scores" + name[len(name.split(", ")[0]) :]
    elif line.stage == "prepare" and agreement.study.target.kind == "number":
        name = {"target": "mean of target"}.get(name, f"{name} of numbers")
    elif line.stage == "prepare" and agreement.study.target.kind == "time":
        name = f"{name} of times"
    found = _of(agreement, words.get(name if name in words else name.split("/")[0], name))
    patients = line.stage == "prepare" and line.name == "rows" and agreement.study.person_column
    return f"{found} (counted in patients); and of how many patients each of the two are" if patients else found


def _of(agreement: Agreement, words: str) -> str:
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


def _stages(agreement: Agreement, lines: Sequence[WireEntry], rows: int | None, shows: bool) -> list[str]:
    """By stage, in the order of time."""
    own = [c.stage for stage in agreement.contracts for c in stage]
    order = ["standardise", "prepare", *HEADINGS, *own, TRAINING, END]
    order += [prefix + stage for prefix in (FOLDS, REFIT) for stage in own]
    titles, out = _titles(agreement), []
    for stage in [s for s in order if any(x.stage == s for x in lines)]:
        told = [item.text() for item in items(agreement, [x for x in lines if x.stage == stage])]
        if stage == "prepare":
            words = (_of(agreement, WORDS.get(k, k)) for k in agreement.answer("prepare", {}).words)
            told.append(f"in words: {', '.join(words)}")
        told += in_words(agreement, stage, rows) + masked_report_texts(agreement, plain_stage(stage))
        told += scores_leave(agreement, stage)
        out += wrapped(titles[stage][0]) + bullets(told, "    ")
    if found := what_is_found(agreement, shows):
        out += ["  At the end: this site agreed to show it", *bullets(found, "    ")]
    note = "short notes without data: that a question was understood or refused, or in a few words what went wrong"
    return [*out, "  At any time", *bullets([note], "    ")]


def _titles(agreement: Agreement) -> dict[str, tuple[str, str]]:
    """When each stage is, as a heading, and what it is about, in a list."""
    own = {}
    for t, contracts in zip(agreement.stages, agreement.contracts, strict=True):
        for contract in contracts:
            when = t.stage.when or t.stage.name
            heading = f"{when}: this site agreed to show it" if contract.consent else when
            own[contract.stage] = heading, t.stage.title or t.stage.name
    return STAGES | own | fold_titles(agreement)


def _seen(agreement: Agreement, lines: Sequence[WireEntry]) -> list[str]:
    """Of what the coordinator needs each report, and of what only the sum; and where a report goes from there."""
    contracts, titles = [c for stage in agreement.contracts for c in stage], _titles(agreement)
    shared = {c.stage for c in contracts if c.aggregation == "sum"}
    summed = {x.stage for x in lines if x.seen == "sum" or plain_stage(x.stage) in shared}
    read = [x for x in lines if x.seen not in (*MASKED, READ)]
    sums, each = (
        ", ".join(dict.fromkeys(titles.get(x.stage, ("", x.stage))[1] for x in read if (x.stage in summed) == wanted))
        for wanted in (True, False)
    )
    out = [f"Each report ({each}): the coordinator sees this site's own numbers."] if each else []
    if sums:
        out.append(
            f"Only the sum over the sites is used ({sums}). Each report reaches the coordinator's machine all the same "
            "and could be read there; the program adds it to the others' and keeps the sum alone."
        )
    out += who_reads(agreement) + who_sees(agreement, lines)
    shown = {titles[c.stage][1] for c in contracts if c.consent} & {titles[x.stage][1] for x in lines if x.asks}
    if agreement.others and shown:
        out.append(
            "Every other site is sent the mean of the private layers that all but itself published, yours among them: "
            "where few take part, a number near to yours."
        )
    if agreement.method.wire.per_site_messages:
        out.append("Every site is sent the models of all sites. What yours sends goes into them, or is one of them.")
    found = ["what was found about your columns"] if any(x.stage in HEADINGS for x in lines) else []
    report = ["how many rows", "the target's shares", "the scores", *sorted(shown), *found]
    out.append(f"In the run's report, which the coordinator may pass on: {', '.join(report)}, under this site's name.")
    out.append("Nobody on the way: messages are encrypted between this machine and the coordinator's.")
    return [_of(agreement, text) for text in out]


def _kept(agreement: Agreement, lines: Sequence[WireEntry], publishes: bool) -> list[str]:
    file = "your data file, its name and its place; columns that the study does not name are not used"
    if agreement.study.images:
        file = "their files, names and places"
    out = [_of(agreement, f"your rows as such, {file}")]
    published = any(x.stage in HEADINGS for x in lines)  # quantiles tell about as much
    if agreement.study.standardise == "local" and not agreement.study.images and not published:
        out.append("the mean and the standard deviation of each column, by which your values are scaled")
    leaving, kept = {x.name.split("/")[-1] for x in lines}, set()
    for group, names in agreement.task.net.groups.items():
        if not leaving & set(names):
            out.append(GROUPS.get(group, f"the layers {', '.join(names)}"))
            kept |= set(names)
    out += [_of(agreement, words) for words in _held(agreement, kept, publishes)]
    if not publishes and any(x.asks for x in agreement.lines):
        out.append("what a site may publish: this site does not, and is marked as not published")
    return [*out, "the private key with which this site proves who it is"]


def _held(agreement: Agreement, named: set[str], publishes: bool) -> list[str]:
    """What a site keeps from round to round, as its fields say, but for layers that are named already and what it
    agreed to show."""
    turns = [turn for t in agreement.stages for turn in t.turns if turn.exchange.consent]
    shown = {id(tensor) for turn in turns if publishes for _, tensor in flatten(turn.up)}
    fields: dict[str, list[tuple[str, Tensor]]] = {}
    for t in agreement.stages:
        said = sentences(t.state)
        for name, tensor in flatten(t.state):
            fields.setdefault(said.get(name, ""), []).append((name, tensor))
    return [
        words
        for words, held in fields.items()
        if words
        and not {name.split("/")[-1] for name, _ in held} <= named
        and not any(id(tensor) in shown for _, tensor in held)
    ]


def _risks(agreement: Agreement, lines: Sequence[WireEntry]) -> list[str]:
    stages, out = {x.stage for x in lines}, []
    if stages & {c.stage for stage in agreement.contracts for c in stage}:
        out.append(
            "Numbers that were computed from rows can tell something about them. Who holds what this site sends "
            "may in bad cases find out whether a person they know is among the rows, or guess values that are common "
            "or unusual here. The fewer the rows, the easier. " + noise_and_masks(agreement)
        )
        if not agreement.study.images:
            out.append(what_was_tried(agreement.study.protect, agreement.study.network.dropout > 0))
        else:
            out.append(
                "Pictures have been rebuilt, near to the pixel, from what one small batch of them changed in a model. "
                "Larger batches, more steps in a round and more pictures make it harder, not impossible."
            )
    if "standardise" in stages or any(x.asks for x in lines):
        out.append(
            "Sums, means and private layers describe this site's rows as a group: how they differ from others', "
            "and where a column is coded otherwise. Of a few rows they tell much, of one row all."
        )
    splits = last_splits(agreement.task, agreement.study)
    if AT_BEDSIDE in splits:
        out.append(
            f"Groups of {FEWEST} or more held-out rows by risk tell how often the outcome came in each: where all rows "
            "of a group had it, of each of them."
        )
    if COVERAGE in splits:
        out.append(
            "Two neighbouring numbers about the surest rows tell together how many mistakes are among the held-out "
            f"rows that lie between them, which are {FEWEST} or more."
        )
    if RISK in splits:
        out.append(
            "Two neighbouring numbers about rows of one risk tell together how many of the held-out rows that had the "
            f"event or left between them had it: these are {FEWEST} or more."
        )
    if out:
        out.append(f"{NOT_CHECKED} {NOT_IN_PICTURES}" if agreement.study.images else NOT_CHECKED)
        out += [NOT_LOOKED] if unscaled(agreement.study) and agreement.masks else []
    out += what_scores_tell(agreement) + what_judging_tells(agreement, lines) + what_remains(lines)
    out.append("Counts, the target's shares and scores tell how many rows there are and how often each outcome occurs.")
    return [_of(agreement, text) for text in out]


def wrapped(text: str, indent: str = "  ", first: str | None = None) -> list[str]:
    """Lines of at most WIDTH; a number stays with its unit."""
    text = printable(text)
    held = re.sub(r"(?<=\d) (?=\d|[KMG]B|byte|number|time|round|x )|(?<= x) (?=\d)", "\xa0", text)
    lines = textwrap.wrap(held, WIDTH, initial_indent=indent if first is None else first, subsequent_indent=indent)
    return [line.replace("\xa0", " ") for line in lines]


def bullets(texts: Iterable[str], indent: str = "  ") -> list[str]:
    return [line for text in texts for line in wrapped(text, f"{indent}  ", f"{indent}- ")]
