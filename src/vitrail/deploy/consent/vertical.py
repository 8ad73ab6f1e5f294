"""What a party agrees to, in plain words, for the person who answers for its data."""

from __future__ import annotations

from typing import Any

from vitrail.core.text import several
from vitrail.deploy.consent.form import bullets, wrapped
from vitrail.deploy.vertical.agreement import PartyAgreement
from vitrail.deploy.vertical.match_quota import MOST_MATCHES, RATIO, MatchQuota
from vitrail.deploy.vertical.messages import Have, Offered, Settled, sentences
from vitrail.study.model import Study
from vitrail.vertical.matching.lookup import Asked, Table, Told
from vitrail.vertical.matching.match import consent
from vitrail.vertical.matching.protocol import Agreed
from vitrail.vertical.messages import Ask, Ended, Keep, Levels, Masked, Numbers, Off, Open, Slope, Wanted
from vitrail.vertical.training.party_side import method_of


def pact_text(
    pact: PartyAgreement, party: str, ration: tuple[int, int], look_up: bool = False, ratio: float = RATIO,
    matches: MatchQuota | None = None,
) -> str:  # fmt: skip
    """`ration`: what this party's officer said, of a guest; `look_up`: whether it lets anybody be looked up; `ratio`:
    how many times as long as its own another's list may be; `matches`: those begun so far."""
    study, host = pact.study, pact.study.host
    guest, about = party != host, method_of(study)
    others = [name for name in study.parties if name != party]
    parts = [
        "THE STUDY",
        *wrapped(" ".join(filter(None, [f"{study.name}.", study.description]))),
        *wrapped(f"It learns to tell {study.target.column}, which {host} knows, from columns of all parties about the "
                 f"same people. Method: {about.catalogue.title}."),
        "",
        "WHO TAKES PART",
        *bullets(f"{name}, {'this party, ' * (name == party)}{'host' if name == host else 'guest'}; its fingerprint: "
                 f"{pact.marks.get(name, 'not known yet')}" for name in study.parties),
        *bullets(["the coordinator, who carries letters and deals random numbers"]),
        *wrapped(f"Call {' and '.join(others)}, at a number that you have from elsewhere, and compare: each reads out "
                 "its own fingerprint, and all read out the same hash of this form (below). Letters are sealed with "
                 "keys that these fingerprints stand for. The coordinator gave you the others' keys: without this call "
                 "it could have given you its own, and read what you send."),
        "",
        "WHAT LEAVES THIS HOUSE, SEALED",
        *wrapped("To find the people in common"),
        *bullets([*consent(study, party, ratio, MOST_MATCHES), *_counted(study, ratio, matches)], "    "),
        *(_of_guest(pact, party, ration, look_up) if guest else _of_host(pact)),
        "",
        "WHO SEES IT",
        *bullets(_seen(pact, party, guest)),
        "",
        "WHAT NEVER LEAVES",
        *bullets(_kept(study, guest)),
        "",
        "WHAT COULD STILL BE LEARNED",
        *bullets(_risks(pact, party, guest)),
        "",
        "TO ACCEPT",
        *wrapped(
            f"The hash of this form is {pact.hash}. It covers the study, the seed, what may cross and the keys of all "
            "parties: if one of them changes, this party stops and says so. Places are told after a second yes, when "
            f"the number in common is known (--places says it beforehand). {_renewal(matches)}Unattended:"
        ),
        f"  --accept {pact.hash}{matches.ending if matches else ''}",
    ]  # fmt: skip
    return "\n".join(parts)


def _counted(study: Study, ratio: float, matches: MatchQuota | None) -> list[str]:
    """How many matches one yes allows, and what the officer may change."""
    assert study.match is not None
    out = [
        f"One yes allows {MOST_MATCHES} matches over all runs, so that one that was interrupted can be begun anew; "
        "then somebody must say yes again. vitrail outbox shows how many were begun."
    ]
    if study.match.ratio > ratio:
        out.append(
            f"The study would allow lists {study.match.ratio:g} times as long. If another party must have a longer "
            f"list than {ratio:g} times yours, join with --list-ratio and the number that you allow."
        )
    return [*out, *([matches.words()] if matches and matches.begun else [])]


def _renewal(matches: MatchQuota | None) -> str:
    if matches is None or not matches.spent:
        return ""
    return (
        f"ALL MATCHES OF THE LAST YES WERE BEGUN: the ending {matches.ending} of the hash says yes to {MOST_MATCHES} "
        "more. Without it this party goes on with the rows that it has, and begins no match. "
    )


def _said(*kinds: type[Any]) -> list[str]:
    return [text for kind in kinds for text in sentences(kind).values() if text]


def _of_guest(pact: PartyAgreement, party: str, ration: tuple[int, int], look_up: bool) -> list[str]:
    study, own, host = pact.study, pact.study.parties[party], pact.study.host
    asked = study.parties[party].ration
    answer = Levels if own.bits else Numbers
    how = f"rounded to {several(2**own.bits, 'level')}" if own.bits else "NOT ROUNDED"
    noise = f"with noise of {own.noise:g} times their spread" if own.noise else "WITHOUT NOISE"
    above = [
        f"THIS IS MORE THAN THE STUDY ASKS FOR ({named} {theirs})."
        for named, mine, theirs in (("in training", ration[0], asked.training), ("afterwards", ration[1], asked.after))
        if mine > theirs
    ]
    return [
        *wrapped("Before training"), *bullets(_said(Have, Agreed, Offered), "    "),
        *wrapped(f"In training, to {host}, about each row at most {several(ration[0], 'time')}: "
                 f"{several(own.answer, 'number')}, {how}, {noise}, the same for a person whenever asked"),
        *bullets(_said(answer, Masked), "    "),
        *wrapped(f"Afterwards, about at most {several(ration[1], 'row')} in all; to explain them, also one answer at "
                 "your reference, which is about nobody"),
        *bullets(_said(answer), "    "),
        *(_looked_up(host) if look_up else ()),
        *wrapped("These two numbers are your ration. --ration-training and --ration-after change them; vitrail outbox "
                 "shows what is left. When training is interrupted, up to an epoch is asked again, and counts again."),
        *wrapped(" ".join(above)),
    ]  # fmt: skip


def _looked_up(host: str) -> list[str]:
    return [
        *wrapped(f"You let people be looked up (--look-up) who are not in common: {host} then learns also whether you "
                 "hold a person, and you do not learn whom it was about; each counts in the same ration"),
        *bullets(_said(Table, Told), "    "),
    ]  # fmt: skip


def _of_host(pact: PartyAgreement) -> list[str]:
    names = " and ".join(pact.study.guests)
    return [
        *wrapped("Before training"), *bullets(_said(Settled), "    "),
        *wrapped(f"In training, to {names}"), *bullets(_said(Ask, Slope, Keep), "    "),
        *wrapped("Afterwards"), *bullets(_said(Wanted, Off, Open, Asked, Ended), "    "),
    ]  # fmt: skip


def _seen(pact: PartyAgreement, party: str, guest: bool) -> list[str]:
    study = pact.study
    host, guests = study.host, [name for name in study.guests if name != party]
    out = [f"{host}: your answers." if guest else f"{' and '.join(guests)}: what is sent to each of them."]
    if guest and guests:
        out.append(f"{' and '.join(guests)}: your locked ids, and how many numbers your model weighs.")
    out.append(
        "The coordinator: who sends how many bytes to whom and when; how many rows are in common, how many numbers "
        "each guest weighs and its ration for training, without which it cannot deal. It holds no key to a letter."
    )
    return out


def _kept(study: Any, guest: bool) -> list[str]:
    own = ["your rows as such, your data file, its name and its place", "your private keys"]
    if guest:
        return [*own, "the names of your columns", "the weights of your model", "the secret of your noise"]
    return [*own, f"{study.target.column}, except in random shares of sums", "your model"]


def _risks(pact: PartyAgreement, party: str, guest: bool) -> list[str]:
    study = pact.study
    host, own = study.host, study.parties[party]
    if guest:
        out = [
            f"Each answer is a weighted sum of your columns, and {host} learns something of them from it: which of "
            "your patients have high values of what matters for the outcome. In a trial on census data a host that "
            "knew a category of 500 people guessed it for others in 26 of 100 by its own columns, in 30 with answers "
            "by the defaults (3 bits, noise 1), and in 47 without noise. The more often a row is asked about with "
            "different weights, the more adds up; the ration bounds it. The noise has no budget in the sense of "
            "differential privacy.",
            f"{host} chooses what your model learns. A host that does not keep to the rules can choose it so that an "
            "answer tells most of one column.",
            f"Coordinator and {host} together can read your columns as they are, of every row that is trained on: the "
            "coordinator deals the masks under which they are sent. Agree only if you trust that these two do not "
            "put together what they have.",
        ]
        if not own.bits or not own.noise:
            out.insert(1, "Answers as they are, without rounding or noise, can give single columns away exactly.")
    else:
        out = [
            "Each guest learns, for every batch of at least 1024 rows (or all), sums that tell how "
            f"{study.target.column} hangs together with its own columns: no more than a fit of its columns to all "
            "outcomes.",
            "Coordinator and a guest together can read by how much each row's answer is wrong, which tells "
            f"{study.target.column} of every row that is trained on: the coordinator deals the masks. Agree only if "
            "you trust that no guest puts together with it what they have.",
            "A guest that answers other numbers than its model's makes your model worse, and nobody may notice.",
        ]
    out.append("A coordinator that deals wrong numbers spoils the training; it learns nothing by that.")
    return out
