"""`vitrail serve --second`: the second of two servers. It holds no rows, and half of each report, which tells nothing.

It answers each leg of an exchange once, for one list of sites, and remembers on disk what it said: asked the same
again, it says the same; asked otherwise, it refuses. It believes nothing that the coordinator could make up: halves
are signed by the sites, the deck by a dealer on whom the lot fell that it drew itself, and whom to choose it works out
for itself. What remains with the coordinator: its own half, which it can change as it likes.
"""

from __future__ import annotations

import json
import secrets
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from torch import Tensor

from vitrail.core.errors import AgreementMismatch, MessageRefused, SharedSumRefused, VitrailError
from vitrail.deploy.identity.site_identity import SiteIdentity, read_signed
from vitrail.deploy.protocol.agreement import FORMAT, Agreement
from vitrail.deploy.protocol.message import MOST_WORDS, WHERE, Message, check_form, unpack
from vitrail.deploy.protocol.run_log import RunLog
from vitrail.deploy.two_server import shared as two_server
from vitrail.privacy.key_agreement import key_file
from vitrail.privacy.secure_sum.spec import draw
from vitrail.privacy.two_server.krum import choose_reports
from vitrail.privacy.two_server.protocol import SEED, ShareServer, Words, deck_of, squares, within
from vitrail.storage.atomic_files import private_folder
from vitrail.storage.journal import AnswerJournal, DecisionRecord, RecentJournals

PLACE, OWN = "second", "second.key"
SUMS = 6  # that are remembered
SEEDS = "seeds.json"  # of a sum: what each site's half is drawn from


class SecondServer:
    """`base`: its own folder; each run has its own in it."""

    def __init__(self, name: str, agreement: Agreement, base: Path, proof: SiteIdentity, another: bool = False) -> None:
        self.name, self.agreement, self.base, self.proof = name, agreement, base, proof
        self.runs, self.home = RunLog(base, another), base  # of the run at hand
        self.notices = list[str]()

    @property
    def agreed(self) -> SecondServer:
        """Where the door looks for how long a question may be."""
        return self

    @property
    def longest(self) -> int:
        spec = [v for message in two_server.longest(self.agreement) for v in message.values()]
        return 2 * MOST_WORDS + sum(int(torch.Size(shape).numel()) * t.itemsize for shape, t in spec)

    def answer(self, question: Message) -> Message:
        kind, words = question.kind, question.words
        if kind not in ("hello", two_server.SECOND, "finish"):
            what = f"expected a message for a second server, got {kind[:20]!r}."
            raise MessageRefused("message", what)
        check_form(question, self.agreement.question(kind, words), "to the second server")
        if self.home != self.base / words["run"]:
            self.home = self.runs.enter(words["run"])
        if kind == "finish":
            RunLog.end(self.home)
            (self.home / PLACE / OWN).unlink(missing_ok=True)  # letters of this run are read by nobody any more
            return Message("finish", {})
        if kind == "hello":
            return self._greet(words)
        answer = Message(two_server.SECOND, self._key()) if words["leg"] == "key" else self._once(question)
        if answer.kind != "refused":
            check_form(answer, self.agreement.answer(kind, words), "from the second server")
        return answer

    def _greet(self, words: dict[str, Any]) -> Message:
        if words["format"] != FORMAT or words["agreement"] != self.agreement.hash:
            what = (
                f"the coordinator's agreement is {words['agreement'][:40]}, but this server "
                f"accepted {self.agreement.hash}."
            )
            hint = (
                "Ask the coordinator whether the study or the list of participants changed. Then start again "
                "with the new invitation or approval."
            )
            if words["format"] != FORMAT:
                what = f"the coordinator's messages have format {words['format']}, this server's {FORMAT}."
                hint = "Use the same version of Vitrail on both machines."
            raise AgreementMismatch("agreement", what, hint)
        return Message("hello", {})

    def _once(self, question: Message) -> Message:
        """Each leg of a sum, for one question."""
        leg, where = question.words["leg"], tuple(question.words[k] for k in WHERE)
        s, r, place = where
        turn = self.agreement.stages[s].stage.turns(r).index(place)  # in the order of time
        folder = RecentJournals(self.home / PLACE, SUMS).at((s, r, turn))
        about = two_server.about(self.agreement, self.home.name, (s, r, place))

        def make() -> bytes:
            answer: Message = getattr(self, f"_{leg}")(question, folder, about)
            return answer.pack()

        answer = unpack(_answers(folder).answer(leg, _content(question), make))
        if leg == "total":  # whoever comes into this house later finds no halves
            (folder / SEEDS).unlink(missing_ok=True)
        return answer

    def _halves(self, question: Message, folder: Path, about: str) -> Message:
        """Whose halves are there, and sealed and signed by who they are said to be of."""
        seeds = dict[str, str]()
        for name in question.words["names"]:
            try:
                if name == self.name:
                    raise SharedSumRefused(name, "a second server has no rows.")
                seed = self._read("half", about, name, question.words["letters"].get(name))
                seeds |= {name: seed.hex()} if len(seed) == SEED else {}
            except VitrailError:
                continue  # the coordinator is told who is not among the good
        if len(seeds) < self.agreement.fewest:
            return Message("refused", {})
        DecisionRecord(private_folder(folder) / SEEDS, private=True).replace(seeds)
        return Message(two_server.SECOND, {"good": list(seeds), "lot": secrets.token_hex(16)})

    def _blind(self, question: Message, folder: Path, about: str) -> Message:
        server, words = self._server(question, folder, about), question.words
        present = list(range(len(words["names"])))
        mine, theirs = server.blinded(present), _words(question.tensors["blinded"])
        lot = secrets.token_bytes(16)
        tested = server.tested(present, (bytes.fromhex(words["lot"]), lot))
        products = server.products(present, mine, theirs)
        opened = {"blinded": mine, "products": products, "tested": tested}
        return Message(two_server.SECOND, {"lot": lot.hex()}, {k: as_tensor(v) for k, v in opened.items()})

    def _total(self, question: Message, folder: Path, about: str) -> Message:
        """Of those whom it chooses itself, from both halves of all inner products."""
        blind, clip = self._answered(folder, "blind"), self.agreement.study.protect.clip
        seeds = self._seeds(folder, question.words["names"])
        assert clip is not None
        products, tested = ((_words(blind.tensors[k]), _words(question.tensors[k])) for k in ("products", "tested"))
        chosen = choose_reports(squares(*products, clip), within(*tested), clip)
        if len(chosen) < self.agreement.study.protect.least:
            return Message("refused", {})
        d = two_server.numbers_of(self.agreement, question.words["stage"], question.words["place"])
        total: Words = np.add.reduce(np.stack([draw(seeds[i], d) for i in chosen]), axis=0, dtype=np.uint64)
        return Message(two_server.SECOND, {"chosen": chosen}, {"total": as_tensor(total)})

    def _server(self, question: Message, folder: Path, about: str) -> ShareServer:
        words = question.words
        seeds, lot = self._seeds(folder, words["names"]), self._answered(folder, "halves").words["lot"]
        if words["dealer"] not in two_server.ranked(about, bytes.fromhex(lot), words["names"]):
            raise SharedSumRefused(words["dealer"][:40], "this site was not drawn as dealer.")
        deck = self._read("deck", about, words["dealer"], words["deck"])
        n, d = len(seeds), two_server.numbers_of(self.agreement, words["stage"], words["place"])
        if len(deck) != SEED + 8 * n * n:
            raise SharedSumRefused(words["dealer"], "the numbers that it dealt do not have the agreed length.")
        table = np.frombuffer(deck[SEED:], "<u8").astype(np.uint64).reshape(n, n)
        clip = self.agreement.study.protect.clip
        assert clip is not None
        server = ShareServer(False, clip, deck_of(deck[:SEED], n, d, table))
        for i, seed in enumerate(seeds):
            server.take(i, draw(seed, d))
        return server

    def _seeds(self, folder: Path, names: list[str]) -> list[bytes]:
        seeds = DecisionRecord(folder / SEEDS).read()
        if not seeds or list(seeds) != names:
            raise SharedSumRefused(self.name, "expected the sites whose halves this server holds, got other sites.")
        return [bytes.fromhex(seed) for seed in seeds.values()]

    def _answered(self, folder: Path, leg: str) -> Message:
        answer = _answers(folder).answered(leg)
        if answer is None:
            raise SharedSumRefused(self.name, f"{leg} comes first.")
        return unpack(answer)

    def _read(self, kind: str, about: str, name: str, letter: Any) -> bytes:
        """A letter from a site, if it is from that site."""
        (sealed,), signature, certificate = read_signed(letter, name, "sealed")
        self.proof.check(name, certificate, two_server.letter_text(kind, about, name, sealed), signature)
        return two_server.unseal(self._own(), sealed, f"{kind} {about} {name}")

    def _key(self) -> dict[str, str]:
        public = self._own().public_key().public_bytes_raw()
        return self.proof.signed(two_server.key_text(self.agreement, self.home.name, self.name, public), key=public)

    def _own(self) -> X25519PrivateKey:
        return key_file(private_folder(self.home / PLACE) / OWN)


def _answers(folder: Path) -> AnswerJournal:
    return AnswerJournal(folder, "a shared sum", "bin")


def _content(question: Message) -> bytes:
    """All of it, in one order."""
    parts = [json.dumps(question.words, sort_keys=True).encode()]
    for name in sorted(question.tensors):
        parts += [name.encode(), b"\0", question.tensors[name].contiguous().numpy().tobytes()]
    return b"".join(parts)


def _words(tensor: Tensor) -> Words:
    return tensor.numpy().view(np.uint64)


def as_tensor(words: Words) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(words).view(np.int64).copy())
