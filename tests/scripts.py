"""The scripts in benchmarks/, for tests of their parts."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

PLACE = Path(__file__).parent.parent / "benchmarks"


def load_script(name: str) -> ModuleType:
    """One of them as a module. Their folder stays off the path: its deploy.py would be found instead of tests/deploy,
    whatever comes first, since that folder is no package of files."""
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, PLACE / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]
