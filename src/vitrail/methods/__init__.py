"""The methods by name: what registry.py holds, as `vt.methods`. A method is loaded when it is first used."""

from __future__ import annotations

from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from vitrail.core.loading import lazy_names
from vitrail.methods.registry import (
    DEFAULT,
    GROUP,
    TABLE,
    add_installed,
    build,
    build_party,
    name_of,
    named,
    origin,
    problems,
    settings,
    split_name,
)
from vitrail.methods.vertical import PARTIES, PARTIES_DEFAULT

if TYPE_CHECKING:
    from vitrail.core.exchange import AnyMethod
    from vitrail.methods.agreed_mix import AgreedMix
    from vitrail.methods.apfl import APFL
    from vitrail.methods.apple import APPLE
    from vitrail.methods.centralized import Centralized
    from vitrail.methods.centres import Centres
    from vitrail.methods.cfl import CFL
    from vitrail.methods.ditto import Ditto
    from vitrail.methods.fed_rod import FedRoD
    from vitrail.methods.fedavg import FedAvg
    from vitrail.methods.fedper import FedPer
    from vitrail.methods.fedprox import FedProx
    from vitrail.methods.fine_tune import FineTune
    from vitrail.methods.ifedavg import IFedAvg
    from vitrail.methods.indisco import InDISCO, InDISCOCentral
    from vitrail.methods.influence import Influence
    from vitrail.methods.local import Local
    from vitrail.methods.moon import Moon
    from vitrail.methods.ripfl import RIPFL
    from vitrail.methods.scaffold import Scaffold
    from vitrail.methods.weight_erosion import WeightErosion
else:
    _places = (TABLE.place_of(name).partition(":") for name in TABLE)
    __getattr__ = lazy_names(
        __name__, {"AnyMethod": "vitrail.core.exchange"} | {kind: module for module, _, kind in _places}
    )

add_installed(entry_points(group=GROUP))  # here, where all that a stranger's method may be built on can be had

__all__ = [
    "APFL",
    "APPLE",
    "CFL",
    "DEFAULT",
    "GROUP",
    "PARTIES",
    "PARTIES_DEFAULT",
    "RIPFL",
    "TABLE",
    "AgreedMix",
    "AnyMethod",
    "Centralized",
    "Centres",
    "Ditto",
    "FedAvg",
    "FedPer",
    "FedProx",
    "FedRoD",
    "FineTune",
    "IFedAvg",
    "InDISCO",
    "InDISCOCentral",
    "Influence",
    "Local",
    "Moon",
    "Scaffold",
    "WeightErosion",
    "add_installed",
    "build",
    "build_party",
    "name_of",
    "named",
    "origin",
    "problems",
    "settings",
    "split_name",
]
