"""All that crosses between host, guests and dealer: checked against what was declared, and counted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from vitrail.core.errors import MessageRefused, Problem
from vitrail.core.tensors import flatten
from vitrail.engine.contract import Direction, Spec, WireEntry, refusal, sentences
from vitrail.vertical.matching.lookup import Table
from vitrail.vertical.messages import kind_of, per_row, spec_of

M = TypeVar("M", bound=tuple[Any, ...])
Way = tuple[str, str, str]  # sender, receiver, kind of message


class MessageCount(NamedTuple):
    """What the ledger counts of one kind of message on one way."""

    messages: int = 0
    rows: int = 0  # that they were about
    bytes: int = 0

    def plus(self, other: MessageCount) -> MessageCount:
        return MessageCount(*(a + b for a, b in zip(self, other, strict=True)))


@dataclass
class Wire:
    """Checks, counts and hands on. `declared` None: declares instead, for a rehearsal."""

    declared: dict[Way, Any] | None = None  # one message of each kind, for names, shapes, types and sentences
    watch: Callable[[str, str, Any], None] | None = None  # is shown every message as it crosses
    ledger: dict[Way, MessageCount] = field(default_factory=dict)
    traced: dict[Way, Any] = field(default_factory=dict)

    def cross(self, sender: str, receiver: str, message: M) -> M:
        way = (sender, receiver, kind_of(message))
        tensors, sealed = [v for v in message if isinstance(v, Tensor)], [v for v in message if isinstance(v, bytes)]
        if not tensors and not sealed:
            return message  # it holds nothing of rows
        if tensors:
            self._check(way, message)
            rows = max((len(getattr(message, k)) for k in per_row(type(message))), default=0)
        else:  # locked, in a form that each end looks at
            rows = message.people if isinstance(message, Table) else 1
        size = sum(t.nbytes for t in tensors) + sum(map(len, sealed))
        if self.watch:
            self.watch(sender, receiver, message)
        self.ledger[way] = self.ledger.get(way, MessageCount()).plus(MessageCount(1, rows, size))
        return message

    def _check(self, way: Way, message: Any) -> None:
        sender, receiver, kind = way
        if self.declared is None:
            self.traced.setdefault(way, message)
        else:
            declared: Spec = spec_of(self.declared[way]) if way in self.declared else {}
            if (got := spec_of(message)) != declared:
                raise refusal(got, declared, f"message {kind} from {sender} to {receiver}")
        if wrong := [k for k, t in flatten(message) if t.is_floating_point() and not bool(t.isfinite().all())]:
            here = f"message {kind} from {sender} to {receiver}, tensor "
            what = "it holds a value that is not a finite number."
            raise MessageRefused(problems=[Problem(here + k, what, "It was not sent.") for k in wrong])

    def rows(self) -> list[dict[str, Any]]:
        """The ledger, tidy."""
        return [{"from": a, "to": b, "message": k, **n._asdict()} for (a, b, k), n in self.ledger.items()]

    def lines(self, name: str, times: int) -> list[WireEntry]:
        """The wire table of one party, whose every row is asked about so many `times`: what reaches it and what leaves
        it, with sentences."""
        out = []
        for (sender, receiver, kind), message in (self.declared or {}).items():
            if name not in (sender, receiver):
                continue
            direction: Direction = "from site" if name == sender else "to site"
            words, rows = sentences(message), per_row(type(message))
            for field_, (shape, dtype) in spec_of(message).items():
                one = shape[1:] if field_ in rows else shape
                size = int(torch.Size(one).numel()) * torch.empty(0, dtype=dtype).element_size()
                type_ = str(dtype).removeprefix("torch.")
                entry = (kind, direction, field_, one, type_, size, times, "each", field_ in rows, words[field_])
                out.append(WireEntry(*entry))
        return out
