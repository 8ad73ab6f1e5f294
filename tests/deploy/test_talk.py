"""Parties that talk over sealed letters: the same numbers as in one process, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from deploy.talking import SEED, Houses, study, tables
from vitrail.deploy.talk import MATCH, FarDialogue
from vitrail.vertical.dialogue import Dialogue
from vitrail.vertical.match import Match
from vitrail.vertical.party import agree, keep_secret, make_guest, make_host, offer_of, own_rows


class Ended:
    """What the host came to."""

    def __init__(self, rows: int = 40) -> None:
        self.rows, self.talk = rows, dict[str, Any]()

    def __call__(self, talk: FarDialogue, side: Any, home: Path) -> None:
        wanted = talk.terms.test[: self.rows]
        self.talk |= {"params": talk.host.params, "predicted": talk.predict(wanted), "ledger": talk.wire.rows()}
        self.talk |= {"off": talk.off(), "steps": talk.step, "terms": talk.terms}


def near(houses: Houses) -> Dialogue:
    """The same in one process, with the places and secrets that the parties have."""
    found: dict[str, Match] = {n: Match.load(houses.home(n) / MATCH) for n in houses.parties}
    rows = {n: own_rows(houses.study, n, houses.frames[n], match) for n, match in found.items()}
    host, *guests = houses.study.parties
    offers = [offer_of(houses.study, rows[g]) for g in guests]
    terms = agree(houses.study, len(rows[host].places), offers, SEED)
    sides = [make_guest(houses.study, rows[g], terms, keep_secret(houses.folder / g)).guest for g in guests]
    return Dialogue(make_host(houses.study, rows[host], terms).host, sides)


def test_the_same_numbers_as_in_one_process(tmp_path: Path) -> None:
    ended = Ended()
    houses = Houses(tmp_path, study(), tables(), clinic={"after": ended})
    houses.connect()
    one = near(houses)
    one.train()
    assert ended.talk["steps"] == one.terms.steps > 3
    for k, v in one.host.params.items():
        assert torch.equal(ended.talk["params"][k], v), k
    rows = one.terms.test[:40]
    assert torch.equal(ended.talk["predicted"].scores, one.predict(rows).scores)
    assert ended.talk["predicted"].words == "With the answers of all guests."
    mine, theirs = (
        {(r["from"], r["to"], r["message"]): r for r in ledger if r["to"] == "clinic" or r["from"] == "clinic"}
        for ledger in (ended.talk["ledger"], one.wire.rows())
    )
    assert mine == theirs
    assert float(v.abs().max()) > 0, "something was learned"
