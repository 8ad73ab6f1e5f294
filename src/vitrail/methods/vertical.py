"""Methods of a vertical study, whose parties hold columns of the same people: names and hyperparameters.

They are not exchanges between a coordinator and sites, and the laws of TABLE do not apply to them. vertical/ has the
messages between host and guests. Each guest sets its own limits (digits, rounding, noise, ration) in [parties.NAME].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from vitrail.core.declarations import Catalogue, Ge, Gt, check_bounds


@dataclass(frozen=True)
class _Trained:
    epochs: Annotated[int, Ge(1)] | None = None  # of the guests; None: about fifty steps, as far as rations go
    alone: Annotated[int, Ge(0)] | None = None  # of the host by itself, before and after these; None: as many steps
    batch: Annotated[int, Ge(1)] = 1024  # rows; never fewer, or all
    lr: Annotated[float, Gt(0)] = 0.01  # of the host (Adam)
    guest_lr: Annotated[float, Gt(0)] = 0.03

    def __post_init__(self) -> None:
        check_bounds(self)


@dataclass(frozen=True)
class VerticalSplit(_Trained):
    """The host has a network; each guest has a model whose answer is one more input of the network."""

    catalogue = Catalogue("Split network")
    joint: ClassVar[str] = "network"
    hidden: tuple[Annotated[int, Ge(1)], ...] = (64,)
    bends: Annotated[int, Ge(0)] = 0  # of its columns that a guest adds, fixed, so that its answer is no plain sum


@dataclass(frozen=True)
class VerticalLogistic(_Trained):
    """Logistic regression on all columns: the scores of host and guests are added up."""

    catalogue = Catalogue("Vertical logistic regression")
    joint: ClassVar[str] = "sum"
    epochs: Annotated[int, Ge(1)] = 3
    lr: Annotated[float, Gt(0)] = 0.05
    guest_lr: Annotated[float, Gt(0)] = 1.0  # of a step by the curvature of its own columns (training/newton.py)


@dataclass(frozen=True)
class VerticalKNN:
    """Nearest neighbours by the sum of the distances at host and guests. Distances give a guest's columns away."""

    catalogue = Catalogue("Vertical nearest neighbours")
    joint: ClassVar[str] = "neighbours"
    k: Annotated[int, Ge(1)] = 5
    trust: Literal["none", "full"] = "none"  # full: the guests may as well show their columns


PARTIES: dict[str, type[Any]] = {
    "split": VerticalSplit,
    "vertical_logistic": VerticalLogistic,
    "vertical_knn": VerticalKNN,
}
PARTIES_DEFAULT = "split"  # of a study with parties that names no method
