"""A guest: its columns A, the weights W of its answers, its ration. It holds no outcome and learns of none.

    z = A W + noise spread(A W) e          what the host is told, rounded: the nearest of 2^bits levels
    W <- rule(W, A'g / rows)               g the slope at z, which the guest never sees, taken as if z were not rounded

e hangs on the person: it is made of the guest's secret and the id, so that asking again, in a second match, of another
table or in another run, does not average it out. Rounding alone leaves too much
(benchmarks/vertical/vertical_leaks.py).
The levels are those of least squared error over the training rows (Lloyd), between the 1st and the 99th hundredth.
What A is, is the method's: the columns themselves, or with fixed bends of them beside. It does not change in training:
were it trained, every step would tell sums in other directions, until these span all rows of a batch.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from vitrail.core.errors import MatchRefused, MessageRefused, Problem, RationSpent, VitrailError
from vitrail.core.optimizers import Optimizer
from vitrail.core.tensors import Params, medians
from vitrail.vertical.mailbox import Mailbox, Program, Triple, Wait
from vitrail.vertical.matching.lookup import Asked, LookupGuest
from vitrail.vertical.messages import (
    Ask,
    BareSlope,
    Ended,
    GuestTriple,
    Keep,
    Levels,
    Masked,
    Numbers,
    Off,
    Open,
    Refused,
    Slope,
    Wanted,
    kind_of,
)
from vitrail.vertical.training.checkpoints import keep_state, load_state
from vitrail.vertical.training.host import answer_scores
from vitrail.vertical.training.ration import RationAccount
from vitrail.vertical.training.terms import GuestOffer, Terms
from vitrail.vertical.training.triples import mask, sums

Answer = Levels | Numbers
Everybody = Callable[[], tuple[Tensor, Sequence[str]]]  # [row, column] of all its people, and their ids


class Guest:
    takes_missing: ClassVar[bool] = False  # its model; then columns that are off are missing

    def __init__(
        self,
        offer: GuestOffer,
        terms: Terms,
        columns: Tensor,
        rule: Optimizer,
        ration: RationAccount,
        reference: Tensor | None = None,
        start: Tensor | None = None,
        secret: bytes | None = None,
        people: Sequence[str] | None = None,
    ) -> None:
        """columns [row, column] in the order of the match; `reference` [column]: the row that says "off", where it is
        not given the median of the training rows, or missing values if the model takes them; `start` [column, answer]:
        the first weights, else 0; `people`: the ids of the rows, spelled as agreed, else their places; `secret`: what
        the noise is made of together with these, which must stay the same as long as people are asked about, else new.
        """
        if columns.shape != (terms.rows, offer.columns) or not bool(columns.isfinite().all()):
            what = f"expected {terms.rows} rows of {offer.columns} numbers, got {tuple(columns.shape)}"
            what += "." if columns.shape != (terms.rows, offer.columns) else " with values that are not finite numbers."
            raise VitrailError("a guest's rows do not fit", [Problem(offer.name, what, "Match and encode again.")])
        self.name, self.offer, self.terms, self.rule, self.ration = offer.name, offer, terms, rule, ration
        self.columns = columns
        if reference is None:
            usual = medians(columns[terms.train])
            reference = torch.full_like(usual, torch.nan) if self.takes_missing else usual
        self.reference = reference
        weight = columns.new_zeros(1, offer.columns, offer.answer) if start is None else start[None].clone()
        self.params: Params = {"weight": weight}
        self.memory = rule.state(self.params)
        self.secret = secrets.token_bytes(32) if secret is None else secret
        names = [str(place) for place in range(terms.rows)] if people is None else people
        self.noise = noise_of(names, self.secret, offer.answer).to(columns)
        self.masked: dict[int, Tensor] = {}  # batch -> seed of the masks under which its columns were shown

    def scores(self, columns: Tensor) -> Tensor:
        """[row, answer], not rounded: these stay here."""
        return columns @ self.params["weight"][0]

    def answer(self, step: int) -> Answer:
        """In training, about the batch of this step."""
        rows = self.terms.rows_at(step)
        self.ration.train(rows)
        return self._said(self.columns[rows], self.noise[rows])

    def reply(self, wanted: Wanted) -> Answer:
        """After training, about these rows."""
        rows = wanted.rows
        if not bool(((rows >= 0) & (rows < self.terms.rows)).all()):
            what = f"expected places from 0 to {self.terms.rows - 1}."
            raise MessageRefused("rows", f"the host asked about rows that are not in common; {what}")
        self.ration.answer(len(rows))
        return self._said(self.columns[rows], self.noise[rows])

    def tell(self, columns: Tensor, people: Sequence[str]) -> Answer:
        """About people who need not be in common, by their columns. What it costs of the ration is the caller's."""
        return self._said(columns, noise_of(people, self.secret, self.offer.answer).to(columns))

    def off(self) -> Answer:
        """With all its columns at their reference: about nobody, hence for nothing."""
        return self._said(self.reference[None], self.noise[:1] * 0)

    def mask(self, step: int, mine: GuestTriple) -> Masked | None:
        """The batch's columns under these masks; None where the host has them already."""
        batch = self.terms.batch_at(step)
        if torch.equal(self.masked.get(batch, mine.seed[:0]), mine.seed):
            return None
        self.masked[batch] = mine.seed
        return mask(self.columns[self.terms.rows_at(step)], mine.seed)

    def take(self, step: int, slope: Slope | BareSlope, mine: GuestTriple | None) -> None:
        """One step down."""
        columns = self.columns[self.terms.rows_at(step)]
        total = self.sums(columns, slope, mine)
        self.rule.apply(self.params, self.memory, {"weight": total[None] / len(columns)})

    def sums(self, columns: Tensor, slope: Slope | BareSlope, mine: GuestTriple | None) -> Tensor:
        """[column, answer]: all that a guest learns in a step, unless slopes come bare."""
        if isinstance(slope, BareSlope):
            return columns.T @ slope.slope
        assert mine is not None
        return sums(columns, slope, mine).to(columns)

    def state(self) -> Params:
        return {"weight": self.params["weight"], **{f"memory/{k}": v for k, v in self.memory.items()}}

    def load(self, state: Params) -> None:
        self.params = {"weight": state["weight"].clone()}
        self.memory = {k: state[f"memory/{k}"].clone() for k in self.memory}
        self.masked = {}

    def _said(self, columns: Tensor, noise: Tensor) -> Answer:
        if not self.offer.bits and not self.offer.noise:
            return Numbers(self.scores(columns))
        train = self.terms.train
        whole = self.scores(self.columns[train])
        by = self.offer.noise * spread(whole)
        z = self.scores(columns) + by * noise
        if not self.offer.bits:
            return Numbers(z)
        values = levels(whole + by * self.noise[train], 2**self.offer.bits)
        return Levels(nearest(z, values).to(torch.uint8), values)


class GuestProgram:
    """What a guest does after the match: it answers its host, step after step, then whatever its ration allows."""

    def __init__(self, mailbox: Mailbox, host: str, guest: Guest) -> None:
        self.mailbox, self.host, self.guest = mailbox, host, guest
        self.step = 0  # that comes next
        self.folder: Path | None = None  # of what it keeps while it trains
        self.words = ""  # what all ends put before an id; nothing where nobody may be looked up
        self.everybody: Everybody = lambda: (guest.columns[:0], [])
        self.triple: GuestTriple | None = None  # of this step, until its slopes come
        self.table: LookupGuest | None = None

    def run(self) -> Program[None]:
        slope = Slope if self.guest.terms.protect else BareSlope
        kinds = (Ask, slope, Keep, Wanted, Off, Open, Asked, Ended)
        while not isinstance(letter := (yield Wait(self.host, kinds)), Ended):
            if isinstance(letter, Ask):
                yield from self.on_ask(letter)
            elif isinstance(letter, slope):
                self.on_slope(letter)
            else:
                getattr(self, f"on_{kind_of(letter).lower()}")(letter)

    def go_on(self, folder: Path, step: int) -> None:
        """After a step that was kept there."""
        load_state(self.guest, folder, step)
        self.step = step

    def on_ask(self, letter: Ask) -> Program[None]:
        terms = self.guest.terms
        if letter.step != self.step or letter.step >= terms.steps or self.triple is not None:
            raise self._wrong(f"expected step {self.step} of {terms.steps}, got step {letter.step}.")
        self.mailbox.post(self.host, self.guest.answer(self.step))
        if not terms.learns(self.step):
            self.step += 1
        elif terms.protect:
            self.triple = yield Triple(self.guest.name, self.step)
            if (masked := self.guest.mask(self.step, self.triple)) is not None:
                self.mailbox.post(self.host, masked)

    def on_slope(self, letter: Slope | BareSlope) -> None:
        offer, rows = self.guest.offer, len(self.guest.terms.rows_at(self.step))
        forms = [(tuple(t.shape), t.dtype) for t in letter]
        agreed = [((rows, offer.answer), torch.int64), ((offer.columns, offer.answer), torch.int64)]
        if isinstance(letter, Slope) and (self.triple is None or forms != agreed):
            raise self._wrong(f"expected the gradients of step {self.step}, got tensors of other shapes or types.")
        self.guest.take(self.step, letter, self.triple)
        self.step, self.triple = self.step + 1, None

    def on_keep(self, letter: Keep) -> None:
        if letter.step != self.step or self.folder is None:
            raise self._wrong(f"expected to keep the state after step {self.step}, got step {letter.step}.")
        keep_state(self.guest, self.folder, self.step)

    def on_wanted(self, letter: Wanted) -> None:
        if letter.rows.dtype != torch.int64 or letter.rows.dim() != 1 or not len(letter.rows):
            raise self._wrong("expected places of rows.")
        self._reply(lambda: self.guest.reply(letter))

    def on_off(self, _: Off) -> None:
        self.mailbox.post(self.host, self.guest.off())

    def on_open(self, letter: Open) -> None:
        """A table of this party's people, each with its answer, locked; made anew whenever it is asked for."""
        guest, left = self.guest, self.guest.ration.left["after"]
        if not self.words or letter.people > left:
            why = f"{letter.people} people would be looked up, but only {left} questions are left of its ration."
            self.mailbox.post(self.host, Refused(why if self.words else "it does not allow look-ups (join --look-up)."))
            return
        columns, people = self.everybody()
        z = answer_scores(guest.tell(columns, people)).float()
        answers = [row.numpy().tobytes() for row in z]
        self.table = LookupGuest(guest.name, people, answers, self.words, guest.ration.answer)
        self.mailbox.post(self.host, self.table.table)

    def on_asked(self, letter: Asked) -> None:
        if (table := self.table) is None:
            raise self._wrong("expected a request for the table first; this guest has made none.")
        self._reply(lambda: table.tell(letter))

    def _reply(self, answer: Callable[[], Any]) -> None:
        """The answer, or that it is refused; the host goes on either way."""
        try:
            self.mailbox.post(self.host, answer())
        except (MessageRefused, MatchRefused, RationSpent) as error:
            self.mailbox.post(self.host, Refused(error.to_outside()))

    def _wrong(self, what: str) -> VitrailError:
        return MessageRefused(f"letter from {self.host}", what, "Nothing was revealed.")


def noise_of(people: Sequence[str], secret: bytes, count: int) -> Tensor:
    """[person, number]: standard normal, of the secret and the id alone (Box and Muller)."""
    made = b"".join(hashlib.shake_256(secret + b"|noise|" + one.encode()).digest(16 * count) for one in people)
    drawn = np.frombuffer(made, "<u8").reshape(len(people), count, 2)
    u = torch.from_numpy(((drawn >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53)
    return (-2 * u[..., 0].log()).sqrt() * (2 * torch.pi * u[..., 1]).cos()


def spread(z: Tensor) -> Tensor:
    """[answer]: half of what the middle two thirds of the rows span; rare rows do not widen it."""
    ends = torch.quantile(z, torch.tensor([0.16, 0.84], dtype=z.dtype), dim=0)
    return (ends[1] - ends[0]) / 2


def nearest(z: Tensor, values: Tensor) -> Tensor:
    """[row, answer], [level, answer] in order -> which level is nearest, the lower one of two."""
    between = (values[1:] + values[:-1]) / 2
    return torch.stack(
        [torch.bucketize(z[:, i].contiguous(), between[:, i].contiguous()) for i in range(z.shape[1])], 1
    )


def levels(z: Tensor, count: int, rounds: int = 8) -> Tensor:
    """[level, answer], in order: numbers that stand for z with little error. A level that nobody is near stays."""
    ends = torch.quantile(z, torch.tensor([0.01, 0.99], dtype=z.dtype), dim=0)
    z = z.clamp(ends[0], ends[1])
    at = torch.linspace(0, 1, count, dtype=z.dtype)[:, None]
    values = ends[0] + at * (ends[1] - ends[0])
    for _ in range(rounds):
        place = nearest(z, values)
        many = torch.zeros_like(values).scatter_add_(0, place, torch.ones_like(z))
        total = torch.zeros_like(values).scatter_add_(0, place, z)
        values = torch.where(many > 0, total / many.clamp(min=1), values)
    return values
