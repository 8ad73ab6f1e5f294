"""Vitrail: federated learning that can be seen through."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitrail import methods, nets, sklearn
    from vitrail.core import facts
    from vitrail.core.problems import Problem, VitrailError
    from vitrail.data import bias, cut, datasets
    from vitrail.runs import Run, federate
    from vitrail.runs.screened import screen_sites
    from vitrail.runs.together import Together
    from vitrail.runs.train_together import together
    from vitrail.studies.compare import compare
    from vitrail.studies.comparison import Comparison
    from vitrail.studies.transfer import Transfer, transfer
    from vitrail.studies.tune import Tuning, tune
    from vitrail.study import Study
    from vitrail.vertical.match import Match, match

# name -> module it lives in; loaded when first used, so that `import vitrail` and `vitrail --help` are quick
_PLACES = {
    "methods": "vitrail.methods",
    "nets": "vitrail.nets",
    "facts": "vitrail.core.facts",
    "datasets": "vitrail.data.datasets",
    "bias": "vitrail.data.bias",
    "cut": "vitrail.data.cut",
    "Study": "vitrail.study",
    "Run": "vitrail.runs",
    "Comparison": "vitrail.studies.comparison",
    "federate": "vitrail.runs",
    "screen_sites": "vitrail.runs.screened",
    "sklearn": "vitrail.sklearn",
    "together": "vitrail.runs.train_together",
    "Together": "vitrail.runs.together",
    "Transfer": "vitrail.studies.transfer",
    "Tuning": "vitrail.studies.tune",
    "transfer": "vitrail.studies.transfer",
    "tune": "vitrail.studies.tune",
    "compare": "vitrail.studies.compare",
    "Match": "vitrail.vertical",
    "match": "vitrail.vertical",
    "Problem": "vitrail.core.problems",
    "VitrailError": "vitrail.core.problems",
}

__all__ = [
    "Comparison",
    "Match",
    "Problem",
    "Run",
    "Study",
    "Together",
    "Transfer",
    "Tuning",
    "VitrailError",
    "bias",
    "compare",
    "cut",
    "datasets",
    "facts",
    "federate",
    "match",
    "methods",
    "nets",
    "screen_sites",
    "sklearn",
    "together",
    "transfer",
    "tune",
]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"vitrail has no {name!r}")
    module = importlib.import_module(_PLACES[name])
    return getattr(module, name, module)  # the name of a module itself, or of what is in it


def __dir__() -> list[str]:
    return __all__
