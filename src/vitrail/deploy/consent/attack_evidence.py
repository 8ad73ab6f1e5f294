"""What attackers got in our tests, for the consent form: from attack_evidence.json, which
scripts/make_attack_evidence.py writes from the results of the benchmarks."""

from __future__ import annotations

import json
from datetime import date
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from vitrail.study.model import Study


class TriedAttack(NamedTuple):
    """What one attack got in several trials."""

    of: int  # patients
    least: int  # that it got
    most: int
    trials: int


class MembershipTest(NamedTuple):
    """How often an attacker was right about who is among the rows."""

    percent: float
    persons: int


class TransferTest(NamedTuple):
    """Of the models that sites train alone, and of their losses at the others."""

    made: MembershipTest  # by the loss of a model that was made for one person
    own: str  # of 100 pairs, by a site's own model
    shared: str  # by the model that all sites share


class FoldTest(NamedTuple):
    rows: int  # in a fold
    run: str  # of 100 cases, by the report of the run itself
    difference: str  # by differences of folds


class ColumnTest(NamedTuple):
    rows: int
    agreed: str  # of 100 cases, with the questions that were agreed
    chosen: str  # with questions of the coordinator's choice


class ColumnTests(NamedTuple):
    few: ColumnTest
    many: ColumnTest


class ListTest(NamedTuple):
    """A coordinator that leaves one site out of the totals."""

    rounds: int
    percent: str  # of the length of the report


class PartyTest(NamedTuple):
    """Of 100 guesses of a host about a guest's column, how many were right."""

    columns_alone: str
    defaults: str
    no_noise: str
    nothing_beyond: bool  # whether a guest learned no more of outcomes than its columns could tell


class AttackEvidence(NamedTuple):
    """For the guard of a study."""

    guard: str  # plain, masked or rows: which reports were attacked
    noise_epsilon: str  # of the noise that was tried, with rows
    reports: TriedAttack  # rebuilt by who keeps to the rules
    crafted: TriedAttack  # read by crafted weights, of a site that does not check its weights
    columns: ColumnTests
    scores: MembershipTest
    judging: MembershipTest
    folds: FoldTest
    transfer: TransferTest
    lists: ListTest
    older: tuple[str, ...]  # results that were made with settings that have changed since
    before: str  # the day of that change


@cache
def results() -> dict[str, Any]:
    """By the name of the file that holds a result."""
    text = (files("vitrail.deploy.consent") / "attack_evidence.json").read_text("utf-8")
    return dict(json.loads(text))


def evidence_for(study: Study, masked: bool) -> AttackEvidence:
    """`masked`: whether reports leave under masks."""
    known, protect, dropout = results(), study.protect, study.network.dropout > 0
    losses, models = study.transfer.losses if study.transfer else "rounded", known["attack_transfer.md"]
    guard = "rows" if protect.rows else "masked" if protect.sum == "masked" else "plain"
    attacks, scores = known["attacks.json"], known["attack_oracle.md"]
    folds, lists = known["fold_leaks.md"]["masked" if masked else "plain"], known["attack_presence.md"]
    return AttackEvidence(
        guard,
        f"{attacks['rows']['epsilon']:g}",
        TriedAttack(**attacks[guard]["dropout" if dropout else "no dropout"]),
        TriedAttack(**attacks[guard]["crafted"]),
        ColumnTests(*(_columns(int(rows), found) for rows, found in known["published.md"].items())),
        _membership(scores["exact" if protect.scores == "exact" else "rounded"]),
        _membership(scores["mix"]),
        FoldTest(folds["rows"], _of_100(folds["run"]), _of_100(folds["difference"])),
        TransferTest(_membership(models[losses]), _of_100(models["own"]), _of_100(models["shared"])),
        ListTest(lists["rounds"], _of_100(lists["error"])),
        tuple(known["older"]),
        _day(known["before"]),
    )


def party_test() -> PartyTest:
    known = results()["vertical_leaks.md"]
    alone, defaults, no_noise = (_of_100(known[how]) for how in ("columns alone", "defaults", "no noise"))
    return PartyTest(alone, defaults, no_noise, max(known["guest beyond its columns"]) <= 0)


def _columns(rows: int, result: dict[str, float]) -> ColumnTest:
    return ColumnTest(rows, _of_100(result["as agreed"]), _of_100(result["chosen"]))


def _membership(result: dict[str, Any]) -> MembershipTest:
    return MembershipTest(round(100 * result["right"], 1), result["persons"])


def _of_100(share: float) -> str:
    return f"{100 * share:.0f}"


def _day(text: str) -> str:
    """A date in words, without a zero before the day."""
    day = date.fromisoformat(text)
    return f"{day.day} {day:%B %Y}"
