"""Methods of a study with parties, who hold columns of the same people: names and hyperparameters.

They are no exchanges between a coordinator and sites, and none of the laws of TABLE is about them; how host and guests
talk is in vertical/.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Split:
    """A network at the host; at each guest a model whose answer is one more input of it."""


@dataclass(frozen=True)
class VerticalLogistic:
    """The scores of host and guests are added up: logistic regression on all columns."""


@dataclass(frozen=True)
class VerticalKNN:
    """Neighbours by the sum of the distances at host and guests, which give a guest's columns away."""

    k: int = 5
    trust: Literal["none", "full"] = "none"  # full: the guests may as well show their columns


PARTIES: dict[str, type[Any]] = {"split": Split, "vertical_logistic": VerticalLogistic, "vertical_knn": VerticalKNN}
PARTIES_DEFAULT = "split"  # of a study with parties that names no method
