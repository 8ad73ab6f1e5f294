"""The methods by name: what registry.py holds, as `vt.methods`."""

from __future__ import annotations

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
from vitrail.methods.registry import (
    DEFAULT,
    GROUP,
    TABLE,
    AnyMethod,
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
from vitrail.methods.ripfl import RIPFL
from vitrail.methods.scaffold import Scaffold
from vitrail.methods.vertical import PARTIES, PARTIES_DEFAULT
from vitrail.methods.weight_erosion import WeightErosion

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
