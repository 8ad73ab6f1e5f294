"""Whether all sites scored the same models: what both ends know of it, and what the coordinator keeps.

A coordinator that sends one site a model made for one of its patients must not go unnoticed. So every site keeps the
digest of each model that it scored. With its answer at the end of the last stage it hands over the list of them, signed
with the key that it enrolled with; the coordinator passes all lists on with its last word, and every site compares
them (deploy/site/model_digests.py).

Compared are the words with which a model is scored, and those that end a stage, from which models that are scored later
follow; where they are the same for all sites by the method. Where a word holds something of its own for each
site, its digests differ by right, and are left out.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from vitrail.deploy.protocol.message import MOST_WORDS
from vitrail.deploy.protocol.score_plan import planned
from vitrail.engine.contract import Spec, WireEntry
from vitrail.storage.journal import DecisionRecord

if TYPE_CHECKING:
    from vitrail.deploy.protocol.agreement import Agreement

DIGESTS, LISTS = "digests", "lists"  # the tensor that holds them; in the last word: who signed which
SIGNED: dict[str, Any] = {"signed": str, "certificate": str}  # beside a site's digests
SIZE = 16  # bytes of a digest
FILE = "scored.json"  # in a run folder: the lists as the sites signed them
MOST_LISTS = MOST_WORDS // 4  # characters of signatures and certificates in a last word
OUT = (
    "at the end: a digest of each model that you scored or ended a stage with, if all sites were "
    "sent the same model, with your signature and certificate; the other sites receive it"
)
IN = "at the end: the same digests of every site, so that you can see whether all sites scored the same models"


class ScoringPoint(NamedTuple):
    """A question with which a model is scored, or that ends a stage."""

    kind: str  # round, settle
    stage: int
    round: int

    def __str__(self) -> str:
        return f"{self.kind} {self.stage} {self.round}"


def points(agreed: Agreement) -> list[ScoringPoint]:
    """Whose words are compared, in the order of time; none where nothing is scored."""
    out, final = [], agreed.stages[-1].stage
    scored = planned(agreed, "settle", len(agreed.stages) - 1, final.rounds, 0)
    for s, t in enumerate(agreed.stages):
        last = len(t.stage.exchanges) - 1
        for r in range(t.stage.rounds + 1):
            ends = r == t.stage.rounds
            place = last if ends else t.stage.turns(r)[0]
            kind = "settle" if ends else "round"
            down, settling = agreed.contracts[s][place].down, agreed.settling(s, place)
            wanted = scored if ends else planned(agreed, kind, s, r, place)
            if not wanted or not (down or settling):
                continue
            if agreed.alike(s, place) and (ends or not settling or agreed.alike(s, last)):
                out.append(ScoringPoint(kind, s, r))
    return out


def list_spec(agreed: Agreement) -> Spec:
    """One site's list; nothing where there is nothing to compare."""
    count = len(points(agreed))
    return {DIGESTS: ((count, SIZE), torch.uint8)} if count else {}


def lists_spec(agreed: Agreement) -> Spec:
    """The lists of all sites, in the order of their names; rows of zeros after the last."""
    return {name: ((agreed.sites, *shape), kind) for name, (shape, kind) in list_spec(agreed).items()}


def digest_lines(agreed: Agreement) -> list[WireEntry]:
    """For the table of what crosses."""
    both = (("scores", "from site", OUT, list_spec(agreed)), ("finish", "to site", IN, lists_spec(agreed)))
    return [
        WireEntry(stage, way, name, shape, "uint8", math.prod(shape), 1, "each", words=words)  # type: ignore[arg-type]
        for stage, way, words, spec in both
        for name, (shape, _) in spec.items()
    ]


def model_digest(word: Mapping[str, Tensor]) -> str:
    """Of a model, as it came."""
    mark = hashlib.sha256()
    for name in sorted(word):
        mark.update(name.encode() + b"\0" + word[name].detach().cpu().contiguous().numpy().tobytes())
    return mark.hexdigest()[:32]


def signed_text(agreed: Agreement, run: str, site: str, digests: Tensor) -> bytes:
    """What a site signs: no list of another study, run, site or of other points can stand for it."""
    where = " ".join(map(str, points(agreed)))
    return "\0".join(("vitrail scored 1", agreed.hash, run, site, where, digests.numpy().tobytes().hex())).encode()


class SignedDigestLists:
    """The coordinator's, in a run's folder. It can neither write nor change one: it has no site's key."""

    def __init__(self, agreed: Agreement, path: Path) -> None:
        self.agreed, self.record = agreed, DecisionRecord(path / FILE)

    def take(self, site: str, words: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """From a site's answer, where it holds one that is signed."""
        if DIGESTS not in tensors or not words.get("signed"):
            return
        signed = {DIGESTS: tensors[DIGESTS].numpy().tobytes().hex(), **{k: str(words[k]) for k in SIGNED}}
        if self.record.read().get(site) != signed:
            self.record.update({site: signed})

    def closing_lists(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """What every site is told of them, in words and numbers; lists for which there is no room are left out, and
        every site says whose it has not seen."""
        spec = lists_spec(self.agreed)
        if not spec:
            return {}, {}
        known_lists, lists, room = self.record.read(), dict[str, dict[str, str]](), MOST_LISTS
        for name in sorted(known_lists):
            signed = {k: known_lists[name][k] for k in SIGNED}
            room -= len(json.dumps({name: signed}))
            if room >= 0:
                lists[name] = signed
        digests = torch.zeros(spec[DIGESTS][0], dtype=torch.uint8)
        for i, name in enumerate(lists):
            raw = bytearray(bytes.fromhex(known_lists[name][DIGESTS]))
            digests[i] = torch.frombuffer(raw, dtype=torch.uint8).view(digests[i].shape)
        return {LISTS: lists}, {DIGESTS: digests}
