"""A site's side of two servers: its change in two halves; and what it deals, where the lot falls on it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrail.core.errors import SharedSumRefused
from vitrail.core.tensors import flatten, unflatten
from vitrail.deploy.identity.site_identity import SiteIdentity, read_signed
from vitrail.deploy.protocol.agreement import Agreement
from vitrail.deploy.protocol.message import WHERE, Message
from vitrail.deploy.two_server import shared as two_server
from vitrail.privacy.report_vectors import by_unit, is_change
from vitrail.privacy.two_server.protocol import dealt, halves_of
from vitrail.storage.journal import write_once

KNOWN = "second.json"  # in a run's folder: the second's key, as it was found to be signed


class TwoServerSite:
    """`home`: the site's folder of this run."""

    def __init__(self, site: str, agreed: Agreement, home: Path, proof: SiteIdentity | None) -> None:
        self.site, self.agreed, self.run, self.home, self._proof = site, agreed, home.name, home, proof

    @property
    def proof(self) -> SiteIdentity:
        if self._proof is None:
            raise SharedSumRefused(self.site, "this site has no proof of its identity, so it shares nothing.")
        return self._proof

    def report(self, question: Message, up: dict[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, str]]:
        """To a round's question: tensors, in which the change is one half of it, and a letter with the other."""
        s, _, place = where = tuple(question.words[k] for k in WHERE)
        key = self._key(question.words["second"])
        turn = self.agreed.stages[s].turns[place]
        ex, clip = turn.exchange, self.agreed.study.protect.clip
        assert clip is not None
        report = unflatten(_one(turn.up), {k: v[None] for k, v in up.items()})
        rows, _ = by_unit(ex, report)
        half, seed = halves_of(rows[0].double().numpy(), clip)
        out, at = dict(up), 0
        for name, value in up.items():
            if is_change(ex, name):
                part = half[at : at + value.numel()].astype("<u8").view("<i8").copy()
                out[name], at = torch.from_numpy(part).reshape(value.shape), at + value.numel()
        return out, self._letter("half", key, seed, where)

    def deal(self, question: Message) -> Message:
        s, _, place = where = tuple(question.words[k] for k in WHERE)
        key = self._key(question.words["second"])
        n = len(question.words["names"])
        one, other, table = dealt(n, two_server.numbers_of(self.agreed, s, place))
        letter = self._letter("deck", key, other + table.astype("<u8").tobytes(), where)
        return Message(two_server.DEAL, {"seed": one.hex(), **letter})

    def _letter(self, kind: str, key: bytes, text: bytes, where: tuple[Any, ...]) -> dict[str, str]:
        about = two_server.about(self.agreed, self.run, (where[0], where[1], where[2]))
        sealed = two_server.seal_for(key, text, f"{kind} {about} {self.site}")
        return self.proof.signed(two_server.letter_text(kind, about, self.site, sealed), sealed=sealed)

    def _key(self, words: Any) -> bytes:
        """The second's, if it signed it; in a run the same, or the coordinator could put its own in between."""
        second = self.agreed.study.protect.second
        (key,), signature, certificate = read_signed(words, second, "key")

        def signed() -> bytes:
            self.proof.check(second, certificate, two_server.key_text(self.agreed, self.run, second, key), signature)
            return json.dumps(key.hex()).encode()

        if json.loads(write_once(self.home / KNOWN, signed)) != key.hex():
            raise SharedSumRefused(second, "it used another key earlier in this run.")
        return key


def _one(up: Any) -> Any:
    return unflatten(up, {k: v[:1] for k, v in flatten(up)})
