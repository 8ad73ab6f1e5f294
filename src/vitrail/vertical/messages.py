"""All that can cross between host, guests and dealer. Each field has the sentence that an officer reads."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple, get_type_hints

from torch import Tensor

from vitrail.engine.contract import Spec

ROW = "row by row"  # a mark beside a sentence: the first axis is the rows that the message is about
ANY = -1  # how many these are


class Levels(NamedTuple):
    """A guest's answer, rounded."""

    level: Annotated[Tensor, "to which of a few levels your model's numbers for a patient are rounded", ROW]
    values: Annotated[Tensor, "the number that each level stands for, a mean over patients"]


class Numbers(NamedTuple):
    """A guest's answer, as it is."""

    values: Annotated[Tensor, "your model's numbers for a patient, not rounded", ROW]


class Wanted(NamedTuple):
    """After training: of whom the host asks."""

    rows: Annotated[Tensor, "which of the patients in common are asked about, by their place in the match", ROW]


class HostTriple(NamedTuple):
    seed: Annotated[Tensor, "the start of the host's random masks"]


class GuestTriple(NamedTuple):
    seed: Annotated[Tensor, "the start of the guest's random masks"]
    product: Annotated[Tensor, "the guest's share of the product of both masks: random numbers"]


class Masked(NamedTuple):
    columns: Annotated[Tensor, "your columns plus random masks that only you and the dealer know: random numbers", ROW]


class Slope(NamedTuple):
    """What the guest adds up to the gradient of its batch, and to nothing about a single row."""

    masked: Annotated[Tensor, "the error of each answer, plus random masks: random numbers", ROW]
    product: Annotated[Tensor, "the host's share of the sums over the batch: random numbers"]


class BareSlope(NamedTuple):
    """Without protection: gives the guest the outcomes."""

    slope: Annotated[Tensor, "the error of each answer, which reveals the outcome of each patient", ROW]


class Distances(NamedTuple):
    """Vertical nearest neighbours: gives the guest's columns away."""

    squares: Annotated[
        Tensor,
        "the distance of a patient from every training patient in your columns, which gives these columns away",
        ROW,
    ]


class Ask(NamedTuple):
    """For the answers of a step; the rows are drawn alike at both ends."""

    step: Annotated[int, "for which step of training your answers are requested"]


class Keep(NamedTuple):
    step: Annotated[int, "after which step of training you keep your state"]


class Off(NamedTuple):
    """For the answer at the guest's reference."""

    reference: Annotated[int, "only that your answer at your reference is requested, which is about no patient"]


class Open(NamedTuple):
    """From the host: a table of locked answers for people who need not be in common."""

    people: Annotated[int, "how many people will be looked up in it, but not who"]


class Refused(NamedTuple):
    """From a guest, instead of an answer after training."""

    why: Annotated[str, "that a request exceeds your ration, and how much of the ration is left"]


class Ended(NamedTuple):
    asked: Annotated[int, "for how many rows your answers were requested after training"]


CONTROL = (Ask, Keep, Off, Open, Refused, Ended)  # of host and guests; they hold nothing of rows


def kind_of(message: Any) -> str:
    return type(message).__name__


def per_row(kind: type[Any]) -> frozenset[str]:
    """The fields of a message whose first axis is rows."""
    hints = get_type_hints(kind, include_extras=True)
    return frozenset(k for k, hint in hints.items() if ROW in getattr(hint, "__metadata__", ()))


def spec_of(message: Any) -> Spec:
    """Names, shapes (with any number of rows) and types."""
    rows = per_row(type(message))
    shapes = {k: tuple(t.shape) for k, t in message._asdict().items()}
    return {k: ((ANY, *shapes[k][1:]) if k in rows else shapes[k], t.dtype) for k, t in message._asdict().items()}
