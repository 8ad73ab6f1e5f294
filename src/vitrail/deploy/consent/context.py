"""What the form of a site says about the study at hand: every value that its templates fill in, worked out from the
agreement. The text itself is in templates/."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from vitrail.core.tensors import flatten
from vitrail.deploy.consent.attack_evidence import AttackEvidence, evidence_for
from vitrail.deploy.consent.disclosures import (
    COLUMNS,
    Disclosure,
    FormItem,
    declared,
    disclosures,
    in_words,
    items,
    phrases,
    volume,
    with_later,
)
from vitrail.deploy.consent.participants import PseudonymTerms, accomplices, group_of, pseudonym_terms
from vitrail.deploy.protocol.agreement import ANEW, Agreement
from vitrail.deploy.protocol.model_digests import points
from vitrail.deploy.secure_sum.presence import REPEATS, most_changes
from vitrail.deploy.share.shared import states_rows
from vitrail.deploy.site.unscaled_columns import unscaled
from vitrail.deploy.two_server import shared as two_server
from vitrail.engine.contract import MASKED, sentences
from vitrail.methods import AnyMethod
from vitrail.metrics.scores import FEWEST
from vitrail.metrics.survival import end_words
from vitrail.privacy.score_rounding import COARSEST, LARGEST_LOSS, TEN
from vitrail.privacy.secure_sum.fixed_point import LIMIT
from vitrail.privacy.two_server.protocol import TESTS
from vitrail.quality.screening.request_validation import FEWEST as FEWEST_ALIKE
from vitrail.runs.protection.budget import spent_by
from vitrail.runs.setup import AT_BEDSIDE, COVERAGE, RISK, last_splits
from vitrail.runs.verdict_wire import fold_count
from vitrail.studies.site_benefit import NUMBERS
from vitrail.study.model import Study

NAMED = 5  # participants that the summary names
VERDICT_COUNTS = 3  # numbers of a verdict besides NUMBERS: rows, folds, seeds
OTHERS = {"row": "another person's row", "patient": "another patient's rows", "site": "another hospital's rows"}


class StudyTerms(NamedTuple):
    name: str
    description: str
    target: str
    classes: int  # of the outcome; 0 of a number or of a time to an event
    intervals: int
    horizon: str  # of a time to an event; "" of another outcome
    columns: int
    pictures: str  # what they are like; "" of a table
    person: str  # the column that names persons; "" where none does
    rounds: int
    method: str  # what it does, as its own file says it
    package: str  # that brought it, where it is none of ours
    weights_file: str
    weights_hash: str


class ParticipantRow(NamedTuple):
    name: str
    role: str
    fingerprint: str  # "" before the keys are known


class MaskTerms(NamedTuple):
    """Of all totals under masks."""

    fewest: int  # sites in a total
    sites: int  # that accepted
    reports: bool  # whether reports are among these totals
    labels: tuple[str, ...]  # of the clauses whose numbers leave under masks
    early: tuple[str, ...]  # of those whose total is made before the first round
    most_changes: int
    repeats: int
    limit: str


class GroupTerms(NamedTuple):
    others: tuple[str, ...]  # sites of this one's group
    least: int


class ServerTerms(NamedTuple):
    """Two servers."""

    second: str
    tests: int
    least: int
    fewest: int
    sites: int


class NoiseTerms(NamedTuple):
    of: str  # what it hides: row, patient or site
    other: str  # what such a one is replaced by
    per_site: bool
    epsilon: str
    replaced: str
    delta: str
    covers: tuple[str, ...]
    leaves_out: tuple[str, ...]


class ScoreTerms(NamedTuple):
    leave: bool
    exact: bool
    noise_epsilon: str  # of noise on scores; "" without
    step: int
    coarsest: str  # per cent of a score's range
    largest_loss: str
    fewest_of_class: int
    comparable: bool  # whether sites can see that all scored the same models
    by_confidence: bool
    by_risk: bool
    over_time: bool


class ShareTerms(NamedTuple):
    """The share of this site in a round."""

    least: str  # per cent; "" without
    most: str
    rows: bool  # whether sites sign their number of rows


class TransferTerms(NamedTuple):
    """Models that travel before the first round."""

    user: str  # the site for which the run is trained; "" without
    folds: int
    fewest: int  # patients that a site must train on to take part
    exact: bool  # losses leave as they are


class FoldTerms(NamedTuple):
    trainings: int
    numbers: int  # on which a verdict rests


@dataclass(frozen=True)
class SiteForm:
    """The one context object of a site's form."""

    site: str
    agreement: str
    enrolled: bool  # whether everybody's key is known
    participants: tuple[ParticipantRow, ...]
    summary_names: tuple[str, ...]
    more_names: int
    pseudonyms: PseudonymTerms | None
    study: StudyTerms
    row: str
    rows: str
    unit: str  # what is counted: a patient, or where the study names none a row
    units: str
    column: str
    disclosures: tuple[Disclosure, ...]
    first_report: str  # the label of the first clause on reports
    incoming: tuple[FormItem, ...]
    findings_come: bool
    total_out: str
    total_in: str
    changed_questions: int
    refusable: bool  # whether the study asks sites to publish something
    publishes: bool
    published: tuple[str, ...]  # the labels of the clauses that it may refuse by that
    verdict: bool  # whether sites find out if joining is worth it
    shows: bool
    models_travel: bool
    mean_of_others: bool
    short: bool  # whether reports leave in fewer bytes
    clip: str  # the length that no change exceeds; "" without
    dropout: bool
    masks: MaskTerms | None
    groups: GroupTerms | None
    servers: ServerTerms | None
    noise: NoiseTerms | None
    scores: ScoreTerms
    folds: FoldTerms
    transfer: TransferTerms | None
    accomplices: int  # with the coordinator; 0 where it needs none
    others: int
    fewest: int  # rows that a number is about
    fewest_alike: int
    own_scale: bool
    kept: tuple[str, ...]  # what a site keeps, in the words of method and network
    unread_reports: bool
    older_tests: bool
    share: ShareTerms | None
    evidence: AttackEvidence

    @classmethod
    def of(
        cls, agreement: Agreement, site: str, sites: Sequence[str], publishes: bool, shows: bool = False
    ) -> SiteForm:
        """`publishes`: whether this site shows what it may refuse to show; `shows`: whether the others learn if joining
        is worth it here."""
        study, protect, method = agreement.study, agreement.study.protect, agreement.method
        out, came = declared(agreement, publishes)
        disclosed = disclosures(agreement, publishes, shows)
        reports = [d.label for d in disclosed if d.kind == "report"]
        names = [site, *sorted(name for name in sites if name not in (site, protect.second))]
        group = group_of(agreement, site, sites)
        add_up = len(group) or agreement.sites
        kinds = {d.kind for d in disclosed}
        published = any(x.stage in COLUMNS for x in out)
        helpers = accomplices(add_up, protect.least) if agreement.masks else 0
        evidence = evidence_for(study, agreement.masks)
        return cls(
            site=site,
            agreement=agreement.hash,
            enrolled=bool(agreement.roster),
            participants=_participants(agreement, names),
            summary_names=(f"{site} (you)", *names[1:NAMED]),
            more_names=max(0, len(names) - NAMED),
            pseudonyms=pseudonym_terms(agreement, site, helpers),
            study=_study(agreement),
            row=study.row_word,
            rows=f"{study.row_word}s",
            unit=study.unit_word,
            units=f"{study.unit_word}s",
            column="channel" if study.images else "column",
            disclosures=disclosed,
            first_report=reports[0] if reports else "",
            incoming=items(agreement, with_later(came)),
            findings_come=any(x.stage in COLUMNS for x in came),
            total_out=volume(sum(x.bytes * x.rounds for x in out)),
            total_in=volume(sum(x.bytes * x.rounds for x in came)),
            changed_questions=ANEW,
            refusable=any(x.asks for x in agreement.lines),
            publishes=publishes,
            published=tuple(d.label for d in disclosed if d.kind in ("columns", "transfer", "published")),
            verdict=study.verdict is not None,
            shows=shows,
            models_travel=method.wire.per_site_messages,
            mean_of_others=bool(agreement.others),
            short=protect.compress != "no",
            clip=f"{protect.clip:g}" if protect.clip and not protect.rows else "",
            dropout=study.network.dropout > 0,
            masks=_masks(agreement, disclosed),
            groups=GroupTerms(tuple(n for n in group if n != site), protect.least) if group else None,
            servers=_servers(agreement),
            noise=_noise(agreement),
            scores=_scores(agreement, "scores" in kinds or "training-scores" in kinds),
            folds=FoldTerms(fold_count(study), len(NUMBERS) + VERDICT_COUNTS),
            accomplices=helpers,
            transfer=_transfer(study),
            others=add_up - 1,
            fewest=FEWEST,
            fewest_alike=FEWEST_ALIKE,
            own_scale=study.standardise == "local" and not study.images and not published,  # quantiles tell as much
            kept=_kept(agreement, {x.name for x in out}, publishes),
            unread_reports=unscaled(study) and agreement.masks,
            share=_share(agreement),
            older_tests=bool(evidence.older) and bool(kinds & {"report", "scores", "training-scores", "folds"}),
            evidence=evidence,
        )


class ProtectionTerms(NamedTuple):
    """What keeps somebody from reading a report, for a model's card."""

    noise: NoiseTerms | None
    servers: ServerTerms | None
    masks: MaskTerms | None

    @classmethod
    def of(cls, agreement: Agreement) -> ProtectionTerms:
        return cls(_noise(agreement), _servers(agreement), _masks(agreement, disclosures(agreement, True)))


def about(method: AnyMethod) -> str:
    """What the method does, as its own file says it."""
    text = (sys.modules[type(method).__module__].__doc__ or f"{method.catalogue.title}.").strip()
    return " ".join(text.split("\n\n")[0].split())


def _participants(agreement: Agreement, names: Sequence[str]) -> tuple[ParticipantRow, ...]:
    second = agreement.study.protect.second
    roles = {names[0]: "this site"} | ({second: "second server"} if second else {})
    listed = dict.fromkeys([*sorted(agreement.roster or names), *([second] if second else [])])
    roles = {n: roles.get(n, "site") + ", a pseudonym" * (n in agreement.roster.pseudonyms) for n in listed}
    return tuple(ParticipantRow(n, roles[n], agreement.roster.get(n, "")) for n in listed)


def _study(agreement: Agreement) -> StudyTerms:
    study, target = agreement.study, agreement.study.target
    timed = target.kind == "time"
    return StudyTerms(
        study.name,
        study.description,
        target.column,
        len(target.levels) if target.kind == "classes" else 0,
        target.outputs if timed else 0,
        end_words(target.ends, target.unit)[-1] if timed else "",
        len(study.features),
        study.images.words if study.images else "",
        study.person_column,
        study.training.rounds,
        in_words(agreement, about(agreement.method)),
        " ".join(agreement.origin or ()),
        Path(study.network.weights).name if agreement.weights else "",
        agreement.weights,
    )


def _masks(agreement: Agreement, disclosed: Sequence[Disclosure]) -> MaskTerms | None:
    early = [d.label for d in disclosed if d.kind == "columns" or (d.kind == "scale" and d.reading == "masked")]
    labels = [d.label for d in disclosed if d.label in early or d.reading in MASKED]
    if not labels:
        return None
    about_lists = most_changes(agreement), REPEATS, f"{LIMIT:,.0f}".replace(",", " ")
    return MaskTerms(agreement.fewest, agreement.sites, agreement.masks, tuple(labels), tuple(early), *about_lists)


def _servers(agreement: Agreement) -> ServerTerms | None:
    protect = agreement.study.protect
    if not two_server.study_has(agreement):
        return None
    return ServerTerms(protect.second, TESTS, protect.least, agreement.fewest, agreement.sites)


def _noise(agreement: Agreement) -> NoiseTerms | None:
    spent = spent_by(agreement.study, agreement.method)
    if spent is None:
        return None
    numbers = f"{spent.epsilon:.3g}", f"{spent.replaced:.3g}", f"{spent.delta:g}"
    return NoiseTerms(spent.of, OTHERS[spent.of], spent.of == "site", *numbers, spent.covers, spent.leaves_out)


def _transfer(study: Study) -> TransferTerms | None:
    terms = study.transfer
    if terms is None:
        return None
    return TransferTerms(terms.user, terms.folds, max(FEWEST, terms.folds), terms.losses == "exact")


def _scores(agreement: Agreement, leave: bool) -> ScoreTerms:
    protect, splits = agreement.study.protect, last_splits(agreement.task, agreement.study)
    told = COVERAGE in splits, AT_BEDSIDE in splits, RISK in splits
    epsilon = f"{protect.rows.epsilon:g}" if protect.rows else ""
    rounding = TEN, f"{100 * COARSEST:g}", f"{LARGEST_LOSS:.1f}", round(TEN / COARSEST)
    return ScoreTerms(leave, protect.scores == "exact", epsilon, *rounding, bool(points(agreement)), *told)


def _share(agreement: Agreement) -> ShareTerms | None:
    if (share := agreement.study.share) is None:
        return None
    least, most = f"{100 * share.least:g}" if share.least else "", f"{100 * share.most:g}" if share.most < 1 else ""
    return ShareTerms(least, most, states_rows(agreement))


def _kept(agreement: Agreement, leaving: set[str], publishes: bool) -> tuple[str, ...]:
    """Layers of the network that do not leave; and what a site keeps from round to round, as its fields say, but for
    layers that are named already and what it agreed to show."""
    parts, out, named = {part for name in leaving for part in name.split("/")}, list[str](), set[str]()
    for group, names in agreement.task.net.groups.items():
        if not parts & set(names):
            out.append(phrases("layers").get(group, f"the layers {', '.join(names)}"))
            named |= set(names)
    turns = [turn for t in agreement.stages for turn in t.turns if turn.exchange.consent]
    shown = {id(tensor) for turn in turns if publishes for _, tensor in flatten(turn.up)}
    fields = dict[str, list[tuple[str, Tensor]]]()
    for t in agreement.stages:
        known = sentences(t.state)
        for name, tensor in flatten(t.state):
            fields.setdefault(known.get(name, ""), []).append((name, tensor))
    for words, held in fields.items():
        hidden = words and not {name.split("/")[-1] for name, _ in held} <= named
        if hidden and not any(id(tensor) in shown for _, tensor in held):
            out.append(words)
    return tuple(in_words(agreement, words) for words in out)
