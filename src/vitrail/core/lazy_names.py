"""Names of a package that are loaded when they are first used (PEP 562), so that a command loads what it needs.

torch takes a second, pandas a third of one: a package whose `__init__` imported all that it offers would cost every
command both. Type checkers and readers see the names in the package's `if TYPE_CHECKING` block.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """A package's `__getattr__`. `modules`: of each name that the package offers, the module that defines it.

    >>> lazy_names("vitrail.core", {"Problem": "vitrail.core.errors"})("Problem")
    <class 'vitrail.core.errors.Problem'>
    """

    def load(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(modules[name]), name)
        setattr(sys.modules[package], name, value)  # the next time it is simply there
        return value

    return load
