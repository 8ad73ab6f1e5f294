"""Methods of a study with parties, who hold columns of the same people: names and hyperparameters.

They are no exchanges between a coordinator and sites, and none of the laws of TABLE is about them; how host and guests
talk is in vertical/. What a guest answers (numbers, rounding, noise, ration) is the guest's, in [parties.NAME].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal


@dataclass(frozen=True)
class _Trained:
    epochs: int | None = None  # in which guests learn; None: about fifty steps, as far as their rations go
    alone: Literal[0] | int | None = None  # epochs of the host by itself, before and after these; None: as many steps
    batch: int = 1024  # rows; never fewer, or all
    lr: float = 0.01  # of the host (Adam)
    guest_lr: float = 0.03

    def __post_init__(self) -> None:
        if not self.lr or not self.guest_lr:
            raise ValueError("expected rates above 0")


@dataclass(frozen=True)
class VerticalSplit(_Trained):
    """A network at the host; at each guest a model whose answer is one more input of it."""

    title: ClassVar[str] = "Split network"
    joint: ClassVar[str] = "network"
    hidden: tuple[int, ...] = (64,)
    bends: Literal[0] | int = 0  # of its columns that a guest adds to them, fixed, so that its answer is no plain sum


@dataclass(frozen=True)
class VerticalLogistic(_Trained):
    """The scores of host and guests are added up: logistic regression on all columns."""

    title: ClassVar[str] = "Vertical logistic regression"
    joint: ClassVar[str] = "sum"
    epochs: int = 3
    lr: float = 0.05
    guest_lr: float = 1.0  # of a step by the curvature of its own columns (vertical/training/newton.py)


@dataclass(frozen=True)
class VerticalKNN:
    """Neighbours by the sum of the distances at host and guests, which give a guest's columns away."""

    title: ClassVar[str] = "Vertical nearest neighbours"
    joint: ClassVar[str] = "neighbours"
    k: int = 5
    trust: Literal["none", "full"] = "none"  # full: the guests may as well show their columns


PARTIES: dict[str, type[Any]] = {
    "split": VerticalSplit,
    "vertical_logistic": VerticalLogistic,
    "vertical_knn": VerticalKNN,
}
PARTIES_DEFAULT = "split"  # of a study with parties that names no method
