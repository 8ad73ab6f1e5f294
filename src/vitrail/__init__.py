"""Vitrail: federated learning that can be seen through."""

from __future__ import annotations

import importlib
import warnings
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitrail import methods, nets
    from vitrail.core import facts
    from vitrail.core.errors import Problem, VitrailError
    from vitrail.data.datasets import catalogue as datasets
    from vitrail.data.datasets import partition, planted_shortcuts
    from vitrail.data.datasets.planted_shifts import shift
    from vitrail.export.writer import export_model
    from vitrail.integrations import sklearn
    from vitrail.report.pages.builder import write_report
    from vitrail.runs import Run, federate
    from vitrail.runs.screening import screen_sites
    from vitrail.studies.compare.execution import compare
    from vitrail.studies.compare.result import Comparison
    from vitrail.studies.contribution.values import contribution
    from vitrail.studies.likeness import Likeness, likeness
    from vitrail.studies.missing_columns import MissingColumns, missing_columns
    from vitrail.studies.transfer import Transfer, transfer
    from vitrail.studies.tune import Tuning, tune
    from vitrail.study.model import Study
    from vitrail.vertical.matching.match import Match, match
    from vitrail.vertical.pipeline import together
    from vitrail.vertical.run import VerticalRun

# name -> module it lives in; loaded when first used, so that `import vitrail` and `vitrail --help` are quick
_PLACES = {
    "methods": "vitrail.methods",
    "nets": "vitrail.nets",
    "facts": "vitrail.core.facts",
    "datasets": "vitrail.data.datasets.catalogue",
    "planted_shortcuts": "vitrail.data.datasets.planted_shortcuts",
    "shift": "vitrail.data.datasets.planted_shifts",
    "partition": "vitrail.data.datasets.partition",
    "Study": "vitrail.study.model",
    "Run": "vitrail.runs",
    "Comparison": "vitrail.studies.compare.result",
    "federate": "vitrail.runs",
    "screen_sites": "vitrail.runs.screening",
    "sklearn": "vitrail.integrations.sklearn",
    "together": "vitrail.vertical.pipeline",
    "VerticalRun": "vitrail.vertical.run",
    "Transfer": "vitrail.studies.transfer",
    "Tuning": "vitrail.studies.tune",
    "transfer": "vitrail.studies.transfer",
    "tune": "vitrail.studies.tune",
    "compare": "vitrail.studies.compare.execution",
    "contribution": "vitrail.studies.contribution.values",
    "Likeness": "vitrail.studies.likeness",
    "likeness": "vitrail.studies.likeness",
    "MissingColumns": "vitrail.studies.missing_columns",
    "missing_columns": "vitrail.studies.missing_columns",
    "write_report": "vitrail.report.pages.builder",
    "export_model": "vitrail.export.writer",
    "Match": "vitrail.vertical",
    "match": "vitrail.vertical",
    "Problem": "vitrail.core.errors",
    "VitrailError": "vitrail.core.errors",
}

__all__ = [
    "Comparison",
    "Likeness",
    "Match",
    "MissingColumns",
    "Problem",
    "Run",
    "Study",
    "Transfer",
    "Tuning",
    "VerticalRun",
    "VitrailError",
    "compare",
    "contribution",
    "datasets",
    "export_model",
    "facts",
    "federate",
    "likeness",
    "match",
    "methods",
    "missing_columns",
    "nets",
    "partition",
    "planted_shortcuts",
    "screen_sites",
    "shift",
    "sklearn",
    "together",
    "transfer",
    "tune",
    "write_report",
]


_RENAMED = {"cut": "partition", "bias": "planted_shortcuts", "Together": "VerticalRun"}  # until version 0.3


def __getattr__(name: str) -> Any:
    if name in _RENAMED:
        text = f"vitrail.{name} is called vitrail.{_RENAMED[name]} now; the old name goes with version 0.3."
        warnings.warn(text, DeprecationWarning, stacklevel=2)
        name = _RENAMED[name]
    if name not in _PLACES:
        raise AttributeError(f"vitrail has no {name!r}")
    module = importlib.import_module(_PLACES[name])
    return getattr(module, name, module)  # the name of a module itself, or of what is in it


def __dir__() -> list[str]:
    return __all__
