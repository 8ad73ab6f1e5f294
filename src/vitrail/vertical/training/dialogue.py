"""The conversation of one host with its guests, a message per batch. Everything that crosses goes through `cross`.

    guest.answer -> host.learn -> (dealer.deal -> guest.mask ->) host.share -> guest.take       each batch
    host asks -> guest.reply -> host.predict                                                    afterwards

Sides hold nothing in common: they are given numbers of steps and messages, and give messages. Between machines a far
side has the same functions and its messages travel as bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from vitrail.core.errors import MessageRefused, Problem, VitrailError
from vitrail.core.tensors import Params, flatten
from vitrail.engine.contract import Direction, Spec, WireEntry, refusal, sentences
from vitrail.storage.atomic_files import private_folder, write_atomically
from vitrail.vertical.messages import Levels, Numbers, Wanted, kind_of, per_row, spec_of
from vitrail.vertical.training.guest import Guest
from vitrail.vertical.training.host import Host
from vitrail.vertical.training.ration import RationAccount
from vitrail.vertical.training.triples import Dealer

M = TypeVar("M")
Way = tuple[str, str, str]  # sender, receiver, kind of message


class MessageCount(NamedTuple):
    """What the ledger counts of one kind of message on one way."""

    messages: int = 0
    rows: int = 0  # that they were about
    bytes: int = 0


@dataclass
class Wire:
    """Checks, counts and hands over. `declared` None: declares instead, for a rehearsal."""

    declared: dict[Way, Any] | None = None  # one message of each kind, for names, shapes, types and sentences
    watch: Callable[[str, str, Any], None] | None = None  # is shown every message as it crosses
    packed: bool = False  # through bytes, as between machines
    ledger: dict[Way, MessageCount] = field(default_factory=dict)
    traced: dict[Way, Any] = field(default_factory=dict)

    def cross(self, sender: str, receiver: str, message: M) -> M:
        way = (sender, receiver, kind_of(message))
        if self.declared is None:
            self.traced.setdefault(way, message)
        else:
            known: Spec = spec_of(self.declared[way]) if way in self.declared else {}
            if (got := spec_of(message)) != known:
                raise refusal(got, known, f"message {way[2]} from {sender} to {receiver}")
        if wrong := [k for k, t in flatten(message) if t.is_floating_point() and not bool(t.isfinite().all())]:
            here = f"message {way[2]} from {sender} to {receiver}, tensor "
            what = "it holds what is no finite number."
            raise MessageRefused(problems=[Problem(here + k, what, "It was not sent.") for k in wrong])
        if self.packed:
            message = unpacked(type(message), packed(message))
        if self.watch:
            self.watch(sender, receiver, message)
        before, size = self.ledger.get(way, MessageCount()), sum(t.nbytes for t in message)  # type: ignore[attr-defined]
        rows = max((len(getattr(message, k)) for k in per_row(type(message))), default=0)
        self.ledger[way] = MessageCount(before.messages + 1, before.rows + rows, before.bytes + size)
        return message

    def rows(self) -> list[dict[str, Any]]:
        """The ledger, tidy."""
        return [{"from": a, "to": b, "message": k, **n._asdict()} for (a, b, k), n in self.ledger.items()]


def write_tensors(path: Path, named: Params) -> None:
    """A file of one party's own."""
    kept = {k: v.detach().contiguous().clone() for k, v in named.items()}
    write_atomically(path, safetensors.torch.save(kept), private=True)


def read_tensors(path: Path, like: Params | None = None) -> Params:
    """What `write_tensors` wrote; of the names and shapes of `like`, where it is given."""
    try:
        found: Params = safetensors.torch.load(path.read_bytes())
    except (OSError, ValueError, safetensors.SafetensorError):
        found = {}
    shapes = [{k: v.shape for k, v in named.items()} for named in (found, found if like is None else like)]
    if not found or shapes[0] != shapes[1]:
        what = "it is broken off, damaged, or of another training." if path.exists() else "it is not there."
        hint = "Remove it, and training goes on from the state before it; or restore it from a copy."
        raise VitrailError("a kept state cannot be read", [Problem(str(path), what, hint)])
    return found


def packed(message: Any) -> bytes:
    return safetensors.torch.save({k: t.contiguous() for k, t in message._asdict().items()})


def unpacked(kind: type[M], data: bytes) -> M:
    return kind(**safetensors.torch.load(data))


class Prediction(NamedTuple):
    scores: Tensor  # [row, output]
    answers: Tensor  # [row, output]: shares of classes, or the number
    words: str  # how it came about


class Dialogue:
    """Host and guests of one machine."""

    def __init__(
        self, host: Host, guests: Sequence[Guest], wire: Wire | None = None, *, rehearsal: bool = False
    ) -> None:
        self.host, self.guests, self.terms = host, list(guests), host.terms
        if [g.offer for g in self.guests] != list(self.terms.offers):
            what = f"agreed on {[o.name for o in self.terms.offers]}, here are {[g.name for g in self.guests]}."
            raise VitrailError("these are not the guests of the agreement", [Problem("parties", what)])
        self.dealer = Dealer(self.terms) if self.terms.protect else None
        self.wire = wire or Wire()
        self.wire.declared = None if rehearsal else rehearsed(self)
        self.step, self.done = 0, False

    @property
    def sides(self) -> tuple[Host | Guest, ...]:
        return (self.host, *self.guests)

    def turn(self) -> None:
        """One batch."""
        host, cross, step = self.host, self.wire.cross, self.step
        host.hear(step, {g.name: cross(g.name, host.name, g.answer(step)) for g in self.guests})
        if self.terms.learns(step):
            host.learn(step)
        for g in self.guests if self.terms.learns(step) else ():
            if self.dealer is None:
                g.take(step, cross(host.name, g.name, host.bare(g.name)), None)
                continue
            mine, theirs = self.dealer.deal(g.name, step)
            mine, theirs = cross("dealer", host.name, mine), cross("dealer", g.name, theirs)
            masked = g.mask(step, theirs)
            if masked is not None:
                masked = cross(g.name, host.name, masked)
            slope = cross(host.name, g.name, host.share(g.name, step, mine, masked))
            g.take(step, slope, theirs)
        self.step += 1

    def train(
        self, until: int | None = None, keep: Path | None = None, tick: Callable[[int, int], None] | None = None
    ) -> None:
        """All steps that are left, or up to one. With `keep`, every side's state is kept after each epoch, in a folder
        of its own. `tick` is told after each step how many of how many are done."""
        many = len(self.terms.batches)
        if self.step == 0:
            self.host.train_alone()
        while self.step < (self.terms.steps if until is None else until):
            self.turn()
            if tick is not None:
                tick(self.step, self.terms.steps)
            if self.step % many == 0:
                if keep is not None:
                    self.save(keep)
                if self.step > many:
                    self._refuse_constant()
        if self.step == self.terms.steps and not self.done:
            self.host.train_alone()
            self.done = True

    def ask(self, rows: Tensor, without: Iterable[str] = ()) -> dict[str, Levels | Numbers]:
        """Each guest's answer about these rows."""
        host, cross, away = self.host, self.wire.cross, set(without)
        asked = [g for g in self.guests if g.name not in away]
        return {g.name: cross(g.name, host.name, g.reply(cross(host.name, g.name, Wanted(rows)))) for g in asked}

    def off(self) -> dict[str, Levels | Numbers]:
        """Each guest's answer at its reference."""
        return {g.name: self.wire.cross(g.name, self.host.name, g.off()) for g in self.guests}

    def predict(self, rows: Tensor, without: Iterable[str] = ()) -> Prediction:
        away = sorted(set(without))
        if unknown := sorted(set(away) - {g.name for g in self.guests}):
            known = ", ".join(g.name for g in self.guests)
            raise VitrailError(
                "no such guest", [Problem(n, "it is no guest here.", f"Guests: {known}.") for n in unknown]
            )
        said = self.ask(rows, away)
        away = [g.name for g in self.guests if g.name not in said]  # also who did not answer
        z = self.host.predict(rows, said)
        words = "With the answers of all guests."
        if away:
            who = " and ".join(away)
            words = (
                f"Without {who}: in place of its answer stands the median of its answers in training, for everybody."
            )
        return Prediction(z, self.host.loss.predictions(z), words)

    def save(self, folder: Path) -> None:
        """Each side's state in its own folder; the last two, so that a kill between sides leaves one in common."""
        for side in self.sides:
            own = private_folder(folder / side.name)
            write_tensors(own / f"step-{self.step:08d}.safetensors", side.state())
            for old in sorted(own.glob("step-*.safetensors"))[:-2]:
                old.unlink()

    def resume(self, folder: Path) -> int:
        """Every side as it was at the last step that all of them kept; 0 where there is none."""
        sides = self.sides
        kept = set.intersection(*({p.name for p in (folder / s.name).glob("step-*.safetensors")} for s in sides))
        if kept:
            last = max(kept)
            for side in sides:
                side.load(read_tensors(folder / side.name / last, side.state()))
            self.step, self.done = int(last.removeprefix("step-").partition(".")[0]), False
        return self.step

    def _refuse_constant(self) -> None:
        found = []
        for name, said in self.host.said.items():
            if all(bool((said[rows] == said[rows[:1]]).all()) for rows in self.terms.batches):
                what = "it answers the same for every row of a batch after an epoch: nothing is learned of it."
                found.append(Problem(f"guest {name}", what, "See whether its columns vary over the rows in common."))
        if found:
            raise VitrailError("a guest has nothing to say", found)


def rehearsed(d: Dialogue) -> dict[Way, Any]:
    """One message of each kind, from a batch of zeros: names, shapes and types of all that may cross."""
    rows = d.terms.rows
    zeros, rule = d.host.columns.new_zeros, d.host.rule
    host = Host(
        d.host.name, d.terms, zeros(d.host.columns.shape), torch.zeros_like(d.host.y), d.host.joint,
        {k: v[0] for k, v in d.host.params.items()}, rule, d.host.loss,
    )  # fmt: skip
    guests = [
        Guest(o, d.terms, zeros(rows, o.columns), rule, RationAccount(o.name, rows, 1, 1)) for o in d.terms.offers
    ]
    blank = Dialogue(host, guests, rehearsal=True)
    blank.turn()
    blank.ask(torch.zeros(1, dtype=torch.int64))
    return blank.wire.traced


def lines(d: Dialogue, name: str) -> list[WireEntry]:
    """The wire table of one party: what reaches it and what leaves it, with sentences."""
    out = []
    for (sender, receiver, kind), message in (d.wire.declared or {}).items():
        if name not in (sender, receiver):
            continue
        direction: Direction = "from site" if name == sender else "to site"
        words, rows = sentences(message), per_row(type(message))
        for field_, (shape, dtype) in spec_of(message).items():
            one = shape[1:] if field_ in rows else shape
            size = int(torch.Size(one).numel()) * torch.empty(0, dtype=dtype).element_size()
            kept = str(dtype).removeprefix("torch.")
            out.append(
                WireEntry(
                    kind, direction, field_, one, kept, size, d.terms.asked, "each", field_ in rows, words[field_]
                )
            )
    return out
