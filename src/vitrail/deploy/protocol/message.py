"""What crosses between two machines: a kind, a few words and named tensors, in safetensors' layout.

Reading one executes nothing. A message is checked against what was declared before its numbers are looked at.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import safetensors.torch
from torch import Tensor

from vitrail.core.errors import MessageRefused, Problem
from vitrail.engine.contract import Spec

KEY = "vitrail"
FINAL = "final"  # the word of an error after which its sender answers nothing more in this run
MOST_WORDS = 1 << 20  # bytes of the header: names, shapes, words


class Message(NamedTuple):
    kind: str
    words: dict[str, Any]  # plain JSON
    tensors: dict[str, Tensor] = {}  # noqa: RUF012  never written to

    def pack(self) -> bytes:
        metadata = {KEY: json.dumps({"kind": self.kind, "words": self.words})}
        return safetensors.torch.save({k: v.detach().cpu().contiguous() for k, v in self.tensors.items()}, metadata)


class MessageSchema(NamedTuple):
    """What a message of one kind may hold."""

    words: dict[str, type | tuple[type, ...]]
    tensors: Spec
    unsure: frozenset[str] = frozenset()  # tensors that may hold what is no number


def unpack(data: bytes) -> Message:
    """A message from bytes that anybody may have written."""
    try:
        size = int.from_bytes(data[:8], "little")
        if size > MOST_WORDS:
            raise ValueError("its header is too long")
        content = json.loads(json.loads(data[8 : 8 + size])["__metadata__"][KEY])
        kind, words = content["kind"], content["words"]
        if not isinstance(kind, str) or not isinstance(words, dict):
            raise ValueError("its header is not in Vitrail's format")
        return Message(kind, words, safetensors.torch.load(data))
    except Exception:
        raise MessageRefused("message", "it cannot be read.") from None


def check_form(message: Message, form: MessageSchema, where: str) -> None:
    """Refuse a message that is not exactly of its form: names, shapes, types, and only finite numbers."""
    problems = []

    def refuse(part: str, what: str) -> None:
        problems.append(Problem(f"{where}, message {message.kind}, {part}", what, "The message was not used."))

    for name in sorted(message.words.keys() | form.words.keys()):
        kind = form.words.get(name)
        if kind is None:
            refuse(f"word {name!r}", "not declared.")
        elif name not in message.words:
            refuse(f"word {name!r}", "declared but absent.")
        elif not isinstance(message.words[name], kind) or (isinstance(message.words[name], bool) and kind is int):
            refuse(f"word {name!r}", f"declared as {kind}, came as {type(message.words[name]).__name__}.")
    for name in sorted(message.tensors.keys() | form.tensors.keys()):
        declared, tensor = form.tensors.get(name), message.tensors.get(name)
        if declared is None or tensor is None:
            refuse(f"tensor {name}", "not declared." if declared is None else "declared but absent.")
        elif (tuple(tensor.shape), tensor.dtype) != declared:
            refuse(f"tensor {name}", f"declared as {declared}, came as {(tuple(tensor.shape), tensor.dtype)}.")
        elif tensor.is_floating_point() and name not in form.unsure and not bool(tensor.isfinite().all()):
            refuse(f"tensor {name}", "it holds a value that is not a finite number.")
    if problems:
        raise MessageRefused(problems=problems)


def no_such(word: str, given: Any) -> MessageRefused:
    """Of a question about what was never agreed on."""
    return MessageRefused(word, f"there is no {str(given)[:40]!r} in the agreement.")


WHERE = {"stage": int, "round": int, "place": int}  # place: of the exchange in its stage


RUN = {"run": str}


QUESTIONS: dict[str, dict[str, Any]] = {
    "hello": {**RUN, "format": int, "agreement": str},
    "standardise": {**RUN, "step": int},
    "prepare": RUN,
    "screen": {**RUN, "leg": str},
    "transfer": {**RUN, "leg": str},
    "mask": {**RUN, "leg": str},
    "round": {**RUN, **WHERE, "score": list},
    "settle": {**RUN, **WHERE, "score": list},
    "finish": {**RUN, "findings": list, "pooled": dict, "others": int},
}


def stacked(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Over this one site."""
    return {k: v[None] for k, v in tensors.items()}
