"""What host and guests agree on before the first batch. Every end draws the same batches from it, so that no list of
rows crosses.

A guest is told sums over a batch. Of B rows' slopes it learns as many directions as it has columns, and these are the
same in every epoch only while a batch keeps its rows: batches are fixed, hold at least 1024 rows (or all) and at least
32 rows for each column of a guest.

Every answer tells the host something of a guest's columns, the more so the more different weights they were made with.
So guests are asked in few epochs, and the host learns the rest by itself. Where there are few batches, guests need more
epochs than two: about fifty steps in all.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from vitrail.core.errors import Problem, VitrailError
from vitrail.core.random import key, orders

FEWEST = 1024  # rows of a batch
PER_COLUMN = 32  # rows of a batch for each column of a guest
MOST_BITS = 8


class GuestOffer(NamedTuple):
    """What a guest says of itself: its columns' names and values it does not."""

    name: str
    columns: int  # numbers per row that its model weighs: features of its columns
    answer: int = 1  # numbers it answers per row
    bits: int = 3  # to which each is rounded; 0: not at all
    noise: float = 1.0  # added before, in spreads of its answers: the same for a person whenever asked


@dataclass(frozen=True)
class Terms:
    rows: int  # in common, in the order of the match
    offers: tuple[GuestOffer, ...]
    seed: int = 1
    epochs: int = 2  # in which guests learn: each row is asked about once in each
    alone: int = 5  # epochs of the host by itself before these, and after them on answers that are asked for once more
    batch: int = FEWEST
    held_out: float = 0.2  # share of the rows that nobody trains on
    protect: bool = True  # False: slopes cross as they are. Only where the guests may know every outcome

    def __post_init__(self) -> None:
        problems = [
            Problem(f"{where} = {got}", f"expected {what}.", "Correct it.")
            for where, got, what, right in (
                ("epochs", self.epochs, "1 or more", self.epochs >= 1),
                ("alone", self.alone, "0 or more", self.alone >= 0),
                ("rows", self.rows, "2 or more", self.rows >= 2),
                ("held_out", self.held_out, "at least 0 and less than 1", 0 <= self.held_out < 1),
                ("batch", self.batch, "1 or more", self.batch >= 1),
                *((f"parties.{o.name}.answer", o.answer, "1 or more", o.answer >= 1) for o in self.offers),
                *((f"parties.{o.name}.columns", o.columns, "1 or more", o.columns >= 1) for o in self.offers),
                *((f"parties.{o.name}.noise", o.noise, "0 or more", o.noise >= 0) for o in self.offers),
                *(
                    (f"parties.{o.name}.bits", o.bits, f"0 to {MOST_BITS}", o.bits in range(MOST_BITS + 1))
                    for o in self.offers
                ),
            )
            if not right
        ]
        if len({o.name for o in self.offers}) < len(self.offers):
            problems.append(Problem("parties", "two guests have the same name.", "Rename one."))
        if self.protect and self.batch < FEWEST:
            what = (
                f"the batch has only {self.batch} rows: sums over so few rows reveal the outcomes of single "
                "patients to a guest."
            )
            problems.append(Problem("batch", what, f"Use at least {FEWEST}."))
        if problems:
            raise VitrailError("the parties cannot train on these terms", problems)

    @cached_property
    def order(self) -> Tensor:
        drawn = torch.tensor([key(self.seed, "vertical", "held out")])
        return orders(drawn, torch.tensor([self.rows]), self.rows)[0]

    @cached_property
    def train(self) -> Tensor:
        """The rows trained on, by their place in the match."""
        return self.order[round(self.rows * self.held_out) :].sort().values

    @cached_property
    def test(self) -> Tensor:
        return self.order[: round(self.rows * self.held_out)].sort().values

    @property
    def least(self) -> int:
        """How many rows a batch holds at least, where there are so many."""
        return max([self.batch, *(PER_COLUMN * o.columns for o in self.offers if self.protect)])

    @cached_property
    def batches(self) -> tuple[Tensor, ...]:
        """Places of the rows of each batch: the same rows together in every epoch."""
        n = len(self.train)
        drawn = torch.tensor([key(self.seed, "vertical", "batches")])
        mixed = self.train[orders(drawn, torch.tensor([n]), n)[0]]
        return mixed.tensor_split(max(1, n // self.least))

    @property
    def asked(self) -> int:
        """How often each row is asked about in training."""
        return self.epochs + (self.alone > 0)

    @property
    def steps(self) -> int:
        return self.asked * len(self.batches)

    def learns(self, step: int) -> bool:
        """Whether guests learn from this step; else they are only asked."""
        return step < self.epochs * len(self.batches)

    def batch_at(self, step: int) -> int:
        """Which batch a step is about; their order is drawn anew for each epoch."""
        epoch, place = divmod(step, len(self.batches))
        drawn = torch.tensor([key(self.seed, "vertical", "epoch", epoch)])
        return int(orders(drawn, torch.tensor([len(self.batches)]), len(self.batches))[0, place])

    def rows_at(self, step: int) -> Tensor:
        return self.batches[self.batch_at(step)]
