"""What the form of a party says: every value that its template fills in, worked out from its agreement."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from vitrail.deploy.consent.attack_evidence import PartyTest, party_test
from vitrail.deploy.consent.context import ParticipantRow
from vitrail.deploy.consent.form import ConsentForm, fill
from vitrail.deploy.vertical.agreement import PartyAgreement
from vitrail.deploy.vertical.match_quota import MOST_MATCHES, RATIO
from vitrail.deploy.vertical.messages import Begin, Have, Offered, Settled, sentences
from vitrail.vertical.matching.lookup import Asked, Table, Told
from vitrail.vertical.matching.protocol import Agreed, Count, Length, List, Places
from vitrail.vertical.messages import Ask, Ended, Keep, Levels, Masked, Numbers, Off, Open, Refused, Slope, Wanted
from vitrail.vertical.training.party_side import method_of
from vitrail.vertical.training.terms import FEWEST


class LetterSentences(NamedTuple):
    """What each letter says, as its fields declare it."""

    ids: str
    tokens: str
    places: str
    agreed: str
    anew: str
    common: str
    mark: str
    offers: tuple[str, ...]  # before training
    answers: tuple[str, ...]  # in training
    masked: str
    refused: str  # instead of an answer
    lookups: tuple[str, ...]  # afterwards


@dataclass(frozen=True)
class PartyForm:
    """The one context object of a party's form."""

    party: str
    guest: bool
    host: str
    guests: tuple[str, ...]
    others: tuple[str, ...]
    agreement: str
    study: str
    description: str
    target: str
    method: str
    participants: tuple[ParticipantRow, ...]
    letters: LetterSentences
    matches: int  # on one yes
    at_least: int  # ids in common
    ratio: str  # how many times as long as its own another's list may be
    study_ratio: str  # what the study would allow; "" where that is no more
    most_guesses: str
    in_training: int  # how often a patient may be asked about
    afterwards: int
    training_above: str  # what the study asks for, where the ration is more; else ""
    afterwards_above: str
    numbers: int  # of an answer
    levels: int  # to which they are rounded; 0: not at all
    noise: str  # in spreads of the answers; "" without
    look_up: bool
    batch: int
    evidence: PartyTest

    @classmethod
    def of(
        cls, pact: PartyAgreement, party: str, ration: tuple[int, int], look_up: bool = False, ratio: float = RATIO
    ) -> PartyForm:
        """`ration`: what this party's officer said, of a guest; `look_up`: whether it lets anybody be looked up;
        `ratio`: how many times as long as its own another's list may be."""
        study, own = pact.study, pact.study.parties[party]
        assert study.match is not None
        above = [
            str(asked) if party != study.host and mine > asked else ""
            for mine, asked in zip(ration, (own.ration.training, own.ration.after), strict=True)
        ]
        roles = {name: "host" if name == study.host else "guest" for name in study.parties}
        return cls(
            party=party,
            guest=party != study.host,
            host=study.host,
            guests=tuple(study.guests),
            others=tuple(name for name in study.parties if name != party),
            agreement=pact.hash,
            study=study.name,
            description=study.description,
            target=study.target.column,
            method=method_of(study).catalogue.title,
            participants=tuple(
                ParticipantRow(n, role + ", this party" * (n == party), pact.marks.get(n, ""))
                for n, role in roles.items()
            ),
            letters=_letters(party != study.host, bool(own.bits)),
            matches=MOST_MATCHES,
            at_least=study.match.at_least,
            ratio=f"{ratio:g}",
            study_ratio=f"{study.match.ratio:g}" if study.match.ratio > ratio else "",
            most_guesses=f"{MOST_MATCHES * ratio:g}",
            in_training=ration[0],
            afterwards=ration[1],
            training_above=above[0],
            afterwards_above=above[1],
            numbers=own.answer,
            levels=2**own.bits if own.bits else 0,
            noise=f"{own.noise:g}" if own.noise else "",
            look_up=look_up and party != study.host,
            batch=FEWEST,
            evidence=party_test(),
        )


def party_form(
    pact: PartyAgreement, party: str, ration: tuple[int, int], look_up: bool = False, ratio: float = RATIO
) -> ConsentForm:
    """What this party would agree to; see `PartyForm.of`."""
    return ConsentForm(fill("party.txt", PartyForm.of(pact, party, ration, look_up, ratio)))


def _letters(guest: bool, rounded: bool) -> LetterSentences:
    matching = _sentences(Length, List, Places, Agreed, Count)
    answers = _sentences(Levels if rounded else Numbers) if guest else _sentences(Ask, Slope, Keep)
    lookups = _sentences(Table, Told) if guest else _sentences(Wanted, Off, Open, Asked, Ended)
    ids, tokens, places, agreed, common, mark = matching
    offers = _sentences(Have, Offered) if guest else _sentences(Settled)
    masked, refused, anew = _sentences(Masked, Refused, Begin)
    return LetterSentences(ids, tokens, places, agreed, anew, common, mark, offers, answers, masked, refused, lookups)


def _sentences(*kinds: type[Any]) -> tuple[str, ...]:
    return tuple(text for kind in kinds for text in sentences(kind).values() if text)
