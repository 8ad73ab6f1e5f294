"""What a sealed letter says: one message of the match or of the dialogue, or one of those here, and its step."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple, get_type_hints

import torch
from torch import Tensor

from vitrail.core.errors import MessageRefused, VitrailError
from vitrail.deploy.protocol.message import Message, unpack
from vitrail.vertical import messages
from vitrail.vertical.matching import lookup
from vitrail.vertical.matching import protocol as matching_protocol


class Have(NamedTuple):
    """From a guest, first of all."""

    mark: Annotated[str, "the name of a match that you kept from before, or nothing"]
    kept: Annotated[list[int], "after which steps of training you kept your state, to go on from there"]


class Begin(NamedTuple):
    """From the host, after these."""

    anew: Annotated[int, "whether a new match is made"]


class Agreed(NamedTuple):
    """From a guest, after the number in common."""

    mark: Annotated[str, "that your officer agreed to the places of the match of this name"]


class Offered(NamedTuple):
    """From a guest, before training."""

    columns: Annotated[int, "how many numbers for a patient your model weighs; not which columns they are made of"]
    training: Annotated[int, "how often you let a patient be asked about in training"]
    after: Annotated[int, "how many patients you still let be asked about afterwards"]


class Settled(NamedTuple):
    """From the host, before training: what all guests offered, and where training goes on."""

    columns: Annotated[list[int], "how many numbers each guest's model weighs"]
    training: Annotated[list[int], "how often each guest lets a patient be asked about in training"]
    after: Annotated[list[int], "how many patients each guest still lets be asked about afterwards"]
    step: Annotated[int, "with which step training goes on"]


class Ask(NamedTuple):
    """For the answers of a step; the rows are drawn alike at both ends."""

    step: Annotated[int, "which step of training your answers are asked for"]


class Keep(NamedTuple):
    step: Annotated[int, "after which step of training you keep your state"]


class Off(NamedTuple):
    """For the answer at the guest's reference."""

    reference: Annotated[int, "nothing but that your answer at your reference is asked for, which is about nobody"]


class Open(NamedTuple):
    """From the host: a table of locked answers for people who need not be in common."""

    people: Annotated[int, "how many people will be looked up in it; not who"]


class Refused(NamedTuple):
    """From a guest, instead of an answer after training."""

    why: Annotated[str, "that your ration is spent, and how much of it is left"]


class Ended(NamedTuple):
    asked: Annotated[int, "for how many rows your answers were asked after training"]


KINDS: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (
        *(Have, Begin, Agreed, Offered, Settled, Ask, Keep, Off, Open, Refused, Ended),
        *(matching_protocol.Length, matching_protocol.List, matching_protocol.Count, matching_protocol.Places),
        *(messages.Levels, messages.Numbers, messages.Wanted, messages.Masked, messages.Slope),
        *(lookup.Table, lookup.Asked, lookup.Told),
    )
}


def written(letter: Any) -> Message:
    """As a message; numbers and names as words, everything longer as tensors."""
    words, held = dict[str, Any](), dict[str, Tensor]()
    for name, value in letter._asdict().items():
        if isinstance(value, bytes):
            held[name] = torch.frombuffer(bytearray(value), dtype=torch.uint8) if value else torch.zeros(0).byte()
        elif isinstance(value, Tensor):
            held[name] = value
        else:
            words[name] = value
    return Message(type(letter).__name__, words, held)


def read(text: bytes, where: str) -> Any:
    """A letter from bytes that a party wrote; which need not be one that keeps to the rules."""
    said = unpack(text)
    kind = KINDS.get(said.kind)
    if kind is None:
        raise _refusal(where, f"kind {said.kind[:20]!r} is unknown.")
    hints, given = get_type_hints(kind), dict[str, Any]()
    if said.words.keys() | said.tensors.keys() != hints.keys() or said.words.keys() & said.tensors.keys():
        raise _refusal(where, f"expected {', '.join(hints)} in {said.kind}.")
    for name, hint in hints.items():
        value: Any = said.tensors[name] if name in said.tensors else said.words[name]
        if hint is bytes and isinstance(value, Tensor) and value.dtype == torch.uint8 and value.dim() == 1:
            value = value.numpy().tobytes()
        expected = list if hint == list[int] else hint
        if type(value) is not expected or (expected is list and not all(type(v) is int for v in value)):
            raise _refusal(where, f"{said.kind}.{name} is {type(value).__name__}, not {expected.__name__}.")
        given[name] = value
    return kind(**given)


def sentences(kind: type[Any]) -> dict[str, str]:
    """What an officer reads of each field."""
    told = get_type_hints(kind, include_extras=True)
    return {k: next((m for m in getattr(h, "__metadata__", ()) if isinstance(m, str)), "") for k, h in told.items()}


def _refusal(where: str, what: str) -> VitrailError:
    return MessageRefused(where, what, "Nothing of it was used.")
