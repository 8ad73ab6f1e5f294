"""What a sealed letter says: one message of the match or of the dialogue, or one of those here, with which a session
begins: guests say what they kept and what they allow, the host with what it goes on."""

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

    mark: Annotated[str, "the name of an earlier match that you kept, or nothing"]
    kept: Annotated[
        list[int], "after which steps of training you kept your state, so that training can continue from there"
    ]


class Begin(NamedTuple):
    """From the host, after these."""

    anew: Annotated[int, "whether a new match is made"]


class Offered(NamedTuple):
    """From a guest, before training."""

    columns: Annotated[int, "how many numbers for a patient your model uses, but not which columns they come from"]
    training: Annotated[int, "how often you allow questions about a patient in training"]
    after: Annotated[int, "about how many patients you still allow questions after training"]


class Settled(NamedTuple):
    """From the host, before training: what all guests offered, and where training goes on."""

    columns: Annotated[list[int], "how many numbers for a patient each guest's model uses"]
    training: Annotated[list[int], "how often each guest allows questions about a patient in training"]
    after: Annotated[list[int], "about how many patients each guest still allows questions after training"]
    step: Annotated[int, "with which step training continues"]


KINDS: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (
        *(Have, Begin, Offered, Settled, *messages.CONTROL),
        *(matching_protocol.Length, matching_protocol.List, matching_protocol.Count),
        *(matching_protocol.Agreed, matching_protocol.Places),
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
    message = unpack(text)
    kind = KINDS.get(message.kind)
    if kind is None:
        raise _refusal(where, f"kind {message.kind[:20]!r} is unknown.")
    hints, fields = get_type_hints(kind), dict[str, Any]()
    if message.words.keys() | message.tensors.keys() != hints.keys() or message.words.keys() & message.tensors.keys():
        raise _refusal(where, f"expected {', '.join(hints)} in {message.kind}.")
    for name, hint in hints.items():
        value: Any = message.tensors[name] if name in message.tensors else message.words[name]
        if hint is bytes and isinstance(value, Tensor) and value.dtype == torch.uint8 and value.dim() == 1:
            value = value.numpy().tobytes()
        expected = list if hint == list[int] else hint
        if type(value) is not expected or (expected is list and not all(type(v) is int for v in value)):
            raise _refusal(where, f"{message.kind}.{name} is {type(value).__name__}, not {expected.__name__}.")
        fields[name] = value
    return kind(**fields)


def sentences(kind: type[Any]) -> dict[str, str]:
    """What an officer reads of each field."""
    hints = get_type_hints(kind, include_extras=True)
    return {k: next((m for m in getattr(h, "__metadata__", ()) if isinstance(m, str)), "") for k, h in hints.items()}


def _refusal(where: str, what: str) -> VitrailError:
    return MessageRefused(where, what, "The message was not used.")
