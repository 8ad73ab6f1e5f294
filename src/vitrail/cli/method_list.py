"""The methods as `vitrail methods` lists them: title, defaults and the first line of each.

A method's class cannot be loaded without torch, which takes a second. What is listed are constants in its source, so
it is read there. A class whose constants are worked out when it is loaded, is loaded.
"""

from __future__ import annotations

import ast
import dataclasses
import inspect
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from typing import Any, NamedTuple


class MethodSummary(NamedTuple):
    name: str
    title: str
    defaults: dict[str, Any]  # hyperparameter -> default
    summary: str  # what it does, in a line


def describe_methods() -> Iterator[MethodSummary]:
    """All that are listed, methods of parties first."""
    from vitrail.methods import PARTIES, TABLE

    for name, kind in PARTIES.items():
        yield MethodSummary(name, kind.catalogue.title, _defaults_of(kind), f"Parties: {inspect.getdoc(kind) or ''}")
    for name in TABLE:
        module, _, class_name = TABLE.place_of(name).partition(":")
        try:
            title, defaults = read_class(module, class_name)
            yield MethodSummary(name, title, defaults, _first_line(ast.get_docstring(_parse(module))))
        except ValueError:  # not all of it is constants
            yield summary_of(name)


def summary_of(name: str) -> MethodSummary:
    """Of the method's class, which is loaded."""
    from vitrail.methods import TABLE

    kind = TABLE[name]
    return MethodSummary(
        name, kind.catalogue.title, _defaults_of(kind), _first_line(inspect.getdoc(inspect.getmodule(kind)))
    )


def read_class(module: str, name: str) -> tuple[str, dict[str, Any]]:
    """The title and the fields' defaults of a dataclass, from its source and that of the classes it is made of."""
    tree = _parse(module)
    node = next((node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name), None)
    if node is None:
        raise ValueError(f"{module} defines no {name}")
    title, defaults = "", dict[str, Any]()
    for base in reversed(node.bases):
        base_name = ast.unparse(base).partition("[")[0]
        if base_module := _origin(tree, module, base_name):
            base_title, base_defaults = read_class(base_module, base_name)
            title, defaults = base_title or title, defaults | base_defaults
    fields = any("dataclass" in ast.unparse(decorator) for decorator in node.decorator_list)
    for line in node.body:
        if isinstance(line, ast.Assign) and [ast.unparse(target) for target in line.targets] == ["catalogue"]:
            title = _title(line.value)
        elif fields and isinstance(line, ast.AnnAssign) and line.value is not None and not _is_class_var(line):
            defaults[ast.unparse(line.target)] = _value(line.value)
    return title, defaults


def _is_class_var(line: ast.AnnAssign) -> bool:
    return ast.unparse(line.annotation).startswith("ClassVar")


def _title(catalogue: ast.expr) -> str:
    """What `Catalogue(...)` is given first."""
    if not isinstance(catalogue, ast.Call) or not catalogue.args:
        raise ValueError("the title is worked out")
    return str(_value(catalogue.args[0]))


@cache
def _parse(module: str) -> ast.Module:
    loader: Any = getattr(find_spec(module), "loader", None)
    source: str | None = loader.get_source(module) if hasattr(loader, "get_source") else None
    if source is None:
        raise ValueError(f"{module} has no source")
    return ast.parse(source)


def _origin(tree: ast.Module, module: str, name: str) -> str:
    """The module that defines a base class; "" where it is not one of ours, and so has neither title nor fields."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            return module
        if isinstance(node, ast.ImportFrom) and any(alias.name == name for alias in node.names):
            return node.module or "" if (node.module or "").startswith("vitrail.") else ""
    return ""


def _value(expression: ast.expr) -> Any:
    """Of a constant expression; a name that is defined elsewhere makes it none."""
    try:
        return eval(compile(ast.Expression(expression), "<default>", "eval"), {"__builtins__": {}})
    except NameError as error:
        raise ValueError(str(error)) from None


def _defaults_of(kind: type[Any]) -> dict[str, Any]:
    return {field.name: field.default for field in dataclasses.fields(kind)}


def _first_line(text: str | None) -> str:
    return (text or "").partition("\n")[0]
