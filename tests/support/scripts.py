"""The scripts in benchmarks/, for tests of their parts."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from tests.support import ROOT

PLACE = ROOT / "benchmarks"


def script_path(name: str) -> Path:
    """The file of a script; names are unique over all subjects."""
    (path,) = PLACE.glob(f"*/{name}.py")
    return path


def load_script(name: str) -> ModuleType:
    """Import one of them as a module, by its name alone. Its folder stays off the path."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, script_path(name))
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]
