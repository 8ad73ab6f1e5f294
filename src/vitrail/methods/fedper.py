"""FedPer (Arivazhagan et al. 2019): the front of the network is averaged, and each site keeps its own head.

    (w_front, w_head_i) trained together at site i;   w_front averaged, w_head_i never leaves

For the linear model, which consists of a head only, nothing is shared: FedPer is then Local.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from vitrail.core.declarations import Catalogue
from vitrail.methods.fedavg import FedAvg


@dataclass(frozen=True)
class FedPer(FedAvg):
    catalogue = Catalogue("FedPer", in_short_comparison=True)
    personal: ClassVar[tuple[str, ...]] = ("head", "output")
