"""The stable facade for authors of methods, networks and losses that live outside this repository.

    from vitrail.plugin import Method, Params, Stage, check_method, tmap

What is listed here keeps its name and its meaning; where it is defined may change. Existing methods to build on are in
`vt.methods`, networks in `vt.nets`, the meanings of facts in `vt.facts`.

Names are loaded when they are first used: a package that imports from here can itself be loaded while Vitrail looks up
which methods are installed.
"""

from __future__ import annotations

import importlib
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitrail.core.declarations import Adapters as Adapters
    from vitrail.core.declarations import Catalogue as Catalogue
    from vitrail.core.declarations import Ge as Ge
    from vitrail.core.declarations import Gt as Gt
    from vitrail.core.declarations import Le as Le
    from vitrail.core.declarations import Lt as Lt
    from vitrail.core.declarations import Needs as Needs
    from vitrail.core.declarations import WireRules as WireRules
    from vitrail.core.exchange import Exchange as Exchange
    from vitrail.core.exchange import Method as Method
    from vitrail.core.exchange import Nothing as Nothing
    from vitrail.core.exchange import Roster as Roster
    from vitrail.core.exchange import Rows as Rows
    from vitrail.core.exchange import SiteContext as SiteContext
    from vitrail.core.exchange import Stage as Stage
    from vitrail.core.exchange import training as training
    from vitrail.core.facts import AGREED as AGREED
    from vitrail.core.facts import ALONE as ALONE
    from vitrail.core.facts import OWN as OWN
    from vitrail.core.facts import RECEIVED as RECEIVED
    from vitrail.core.facts import SHARE as SHARE
    from vitrail.core.facts import SHARED as SHARED
    from vitrail.core.facts import TRUST as TRUST
    from vitrail.core.facts import Fact as Fact
    from vitrail.core.facts import Facts as Facts
    from vitrail.core.losses import CrossEntropy as CrossEntropy
    from vitrail.core.losses import Evidence as Evidence
    from vitrail.core.losses import Hazard as Hazard
    from vitrail.core.losses import Loss as Loss
    from vitrail.core.losses import ScheduledLoss as ScheduledLoss
    from vitrail.core.losses import SquaredError as SquaredError
    from vitrail.core.losses import UncertaintyLoss as UncertaintyLoss
    from vitrail.core.optimizers import SGD as SGD
    from vitrail.core.optimizers import Adam as Adam
    from vitrail.core.optimizers import Optimizer as Optimizer
    from vitrail.core.optimizers import with_term as with_term
    from vitrail.core.task import Batch as Batch
    from vitrail.core.task import Net as Net
    from vitrail.core.task import Out as Out
    from vitrail.core.task import Task as Task
    from vitrail.core.task import carry_state as carry_state
    from vitrail.core.tensors import Params as Params
    from vitrail.core.tensors import apply_update as apply_update
    from vitrail.core.tensors import clone as clone
    from vitrail.core.tensors import dot as dot
    from vitrail.core.tensors import interpolate as interpolate
    from vitrail.core.tensors import per_site as per_site
    from vitrail.core.tensors import proximal_term as proximal_term
    from vitrail.core.tensors import scaled as scaled
    from vitrail.core.tensors import select_own as select_own
    from vitrail.core.tensors import subtract as subtract
    from vitrail.core.tensors import to_all as to_all
    from vitrail.core.tensors import tree_map as tree_map
    from vitrail.core.tensors import zeros as zeros
    from vitrail.engine.batches import gather_sites as gather_sites
    from vitrail.engine.local import Engine as Engine
    from vitrail.engine.rounds import Training as Training
    from vitrail.methods.blocks.basics import EarlyStopping as EarlyStopping
    from vitrail.methods.blocks.basics import Reveal as Reveal
    from vitrail.nets import MLP as MLP
    from vitrail.nets import Module as Module
    from vitrail.testing import check_method as check_method

_NAMES = {
    "vitrail.core.declarations": "Adapters Catalogue Ge Gt Le Lt Needs WireRules",
    "vitrail.core.exchange": "Exchange Method Nothing Roster Rows SiteContext Stage training",
    "vitrail.core.facts": "AGREED ALONE OWN RECEIVED SHARE SHARED TRUST Fact Facts",
    "vitrail.core.losses": "CrossEntropy Evidence Hazard Loss ScheduledLoss SquaredError UncertaintyLoss",
    "vitrail.core.optimizers": "SGD Adam Optimizer with_term",
    "vitrail.core.task": "Batch Net Out Task carry_state",
    "vitrail.core.tensors": "Params apply_update clone dot interpolate per_site proximal_term scaled select_own"
    " subtract to_all tree_map zeros",
    "vitrail.engine.batches": "gather_sites",
    "vitrail.engine.local": "Engine",
    "vitrail.engine.rounds": "Training",
    "vitrail.methods.blocks.basics": "EarlyStopping Reveal",
    "vitrail.nets": "MLP Module",
    "vitrail.testing": "check_method",
}
_PLACES = {name: module for module, names in _NAMES.items() for name in names.split()}

_RENAMED = {  # until version 0.3
    "blended": "interpolate",
    "carried": "carry_state",
    "copied": "clone",
    "less": "subtract",
    "moved": "apply_update",
    "own_of": "select_own",
    "pulled": "proximal_term",
    "tmap": "tree_map",
}


def __getattr__(name: str) -> Any:
    if name in _RENAMED:
        text = (
            f"vitrail.plugin.{name} is called vitrail.plugin.{_RENAMED[name]} now; the old name goes with version 0.3."
        )
        warnings.warn(text, DeprecationWarning, stacklevel=2)
        name = _RENAMED[name]
    if name not in _PLACES:
        raise AttributeError(f"vitrail.plugin has no {name!r}")
    return getattr(importlib.import_module(_PLACES[name]), name)


def __dir__() -> list[str]:
    return sorted(_PLACES)
