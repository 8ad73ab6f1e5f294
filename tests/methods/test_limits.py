"""Methods stay small: few lines of code, short files, and at most one method between a method and `Method`."""

from __future__ import annotations

import ast
import importlib
import io
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

import vitrail
from vitrail.core.exchange import Exchange

METHODS = Path(vitrail.__file__).parent / "methods"
NO_METHODS = {"__init__.py", "registry.py"}
LONGEST = 200  # lines of the file of a method
LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}


def code_lines(source: str) -> int:
    """Lines of code, without imports, docstrings, comments and blank lines."""
    skipped = set[int]()
    for node in ast.walk(ast.parse(source)):
        words = (
            isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        )
        if words or isinstance(node, ast.Import | ast.ImportFrom):
            skipped |= set(range(node.lineno, (node.end_lineno or 0) + 1))
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    lines = {n for t in tokens if t.type not in LAYOUT for n in range(t.start[0], t.end[0] + 1)}
    return len(lines - skipped)


def below(kind: type) -> Iterator[type]:
    for child in kind.__subclasses__():
        yield child
        yield from below(child)


def test_lines_of_code_are_counted_without_what_is_no_code() -> None:
    source = (
        '"""Says\nmuch."""\n\nimport os\n\n# a remark\nx = (\n    1,\n)\n\n\ndef f():\n    """Why."""\n    return x\n'
    )
    assert code_lines(source) == 5


@pytest.mark.parametrize(("file", "most"), [("fedavg.py", 60), ("fedprox.py", 8)])
def test_the_two_first_methods_stay_short(file: str, most: int) -> None:
    assert code_lines((METHODS / file).read_text(encoding="utf-8")) <= most


def test_no_file_of_a_method_is_long() -> None:
    sizes = {f.name: len(f.read_text(encoding="utf-8").splitlines()) for f in METHODS.glob("*.py")}
    assert not {name for name, size in sizes.items() if size > LONGEST and name not in NO_METHODS}


def test_inheritance_between_exchanges_is_at_most_one_deep() -> None:
    names = [f"vitrail.methods.{file.stem}".removesuffix(".__init__") for file in METHODS.glob("*.py")]
    defined = {id(value) for name in names for value in vars(importlib.import_module(name)).values()}
    ours = {  # without what another test has made of them in this process
        kind for kind in below(Exchange) if kind.__module__ in names and id(kind) in defined
    }
    assert len(ours) > 15
    parents = {k.__name__: sum(base in ours for base in k.__mro__[1:]) for k in ours if not hasattr(k, "variant_of")}
    assert not {name for name, depth in parents.items() if depth > 1}
