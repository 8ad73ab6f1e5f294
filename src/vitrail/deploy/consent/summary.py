"""The consent form in ten lines, for who decides whether to read on. The form itself follows, and is what is agreed to.

Each line says one thing and where it is worked out in full: see deploy/consent/form.py and deploy/consent/vertical.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from vitrail.core.text import several
from vitrail.deploy.consent.form import declared, volume, wrapped
from vitrail.deploy.consent.participants import who_must_collude
from vitrail.deploy.consent.screening import HEADINGS
from vitrail.deploy.protocol.agreement import Agreement
from vitrail.deploy.two_server import shared as two_server
from vitrail.deploy.vertical.agreement import PartyAgreement
from vitrail.vertical.training.party_side import method_of

TITLE = "IN SHORT (the form itself follows, and is what you agree to)"


def contract_summary(agreement: Agreement, site: str, sites: Sequence[str], publishes: bool) -> str:
    """For a site."""
    study = agreement.study
    lines = declared(agreement, publishes)
    out, came = (sum(x.bytes * x.rounds for x in some) for some in lines)
    summaries = ", and summaries of your columns" if any(x.stage in HEADINGS for x in lines[0]) else ""
    given = "pictures" if study.images else several(len(study.features), "column")
    names = [name for name in sites if name not in (site, study.protect.second)]
    second = f", and {study.protect.second} as second server" if study.protect.second else ""
    rounds = several(study.training.rounds, "round")
    return _lines(
        {
            "Study": f"{study.name}. It learns to tell {study.target.column} from {given}.",
            "Who": f"{_some([f'{site} (you)', *names])}; a coordinator{second}.",
            "What leaves": f"changes of a model in {rounds}, scores, counts{summaries}.",
            "How much": f"up to {volume(out)} leave this site in all, about {volume(came)} come in.",
            "Who reads it": _readers(agreement),
            "Who must collude": colluders(agreement, site, sites),
            "What never leaves": "your rows, your file, its name and its place, and your private key.",
            "Main risk": "numbers made of few rows can tell something about a person among them. "
            + ("Noise bounds it." if study.protect.rows or study.protect.sites else "No noise is added."),
            "If it changes": "this site stops and says so when study, method, participants or wire table change.",
            "To say yes": f"read on, then type yes at the end; unattended: --accept {agreement.hash}",
        }
    )


def _readers(agreement: Agreement) -> str:
    protect = agreement.study.protect
    if two_server.study_has(agreement):
        return f"no server alone; the coordinator and {protect.second} open totals of {protect.least} or more."
    if agreement.masks:
        return f"nobody a single report of training; the coordinator totals of {protect.least} sites or more."
    return "the coordinator reads each of your reports; the other sites read none."


def colluders(agreement: Agreement, site: str, sites: Sequence[str]) -> str:
    """Who would have to put together what they have to read this site's own reports of training."""
    found = who_must_collude(agreement, site, sites)
    return found[0].partition(": ")[2] if found else "nobody: the coordinator alone can read your reports."


def pact_summary(pact: PartyAgreement, party: str, ration: tuple[int, int], ratio: float, ending: str = "") -> str:
    """For a party. `ratio`: how many times as long as its own another's list of ids may be; `ending`: of the hash."""
    study, host = pact.study, pact.study.host
    others, guest = [name for name in study.parties if name != party], party != host
    own = study.parties[party]
    if guest:
        how = f"rounded to {several(2**own.bits, 'level')}" if own.bits else "NOT ROUNDED"
        leaves = f"locked ids; of each row in common {several(own.answer, 'number')}, {how}; masked columns."
        much = f"each row at most {several(ration[0], 'time')} in training, {several(ration[1], 'row')} afterwards."
        readers = f"{host} your answers; the coordinator how many bytes go to whom."
        never = "your rows, the names of your columns, your model, your private keys."
        risk = f"from many answers {host} learns which of your patients have high values."
    else:
        leaves = "locked ids; which step is trained; random shares of sums over many rows."
        much = "a few letters for each step of training, to each guest."
        readers = "each guest what is sent to it; the coordinator how many bytes go to whom."
        never = f"your rows, {study.target.column} except in random shares, your model, your private keys."
        risk = f"guests learn how {study.target.column} hangs together with their own columns."
    joined, title = " and ".join(others), method_of(study).catalogue.title
    return _lines(
        {
            "Study": f"{study.name}. It learns to tell {study.target.column}, which {host} knows. {title}.",
            "Who": f"{_some([f'{party} (you)', *others])}; a coordinator who carries sealed letters.",
            "What leaves": leaves,
            "How much": much,
            "Who reads it": readers,
            "Who must collude": f"the coordinator and {host if guest else 'a guest'}: together they read it all.",
            "What never leaves": never,
            "Main risk": risk,
            "Ids": f"a guessed id is found out; lists over {ratio:g} times yours are refused.",
            "To say yes": f"call {joined}, compare fingerprints, type yes; unattended: --accept {pact.hash}{ending}",
        }
    )


def _some(names: Sequence[str], most: int = 5) -> str:
    shown = ", ".join(names[:most])
    return f"{shown} and {several(len(names) - most, 'other')}" if len(names) > most else shown


def _lines(said: dict[str, str]) -> str:
    wide = max(map(len, said)) + 2
    rows = [wrapped(text, " " * (wide + 2), f"  {title:{wide}s}") for title, text in said.items()]
    return "\n".join([TITLE, *(line for row in rows for line in row), ""])
