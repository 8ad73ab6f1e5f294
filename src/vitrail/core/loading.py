"""Modules that are loaded when they are first used, and quickly: torch takes a second, pandas a third of one."""

from __future__ import annotations

import gc
import importlib
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any


def lazy_names(package: str, modules: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` (PEP 562) of a package that loads what it offers when it is first used. `modules`: of each name
    the module that defines it. Type checkers and readers see the names in the package's `if TYPE_CHECKING` block.

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


@contextmanager
def without_collector() -> Iterator[None]:
    """While many modules are loaded: nothing in them is garbage, and to look for some takes a tenth of the time."""
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
