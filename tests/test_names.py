"""Outside methods/ nobody knows a method by its name: what it does is asked of what it declares."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import vitrail
from vitrail import methods

SOURCE = Path(vitrail.__file__).parent
OURS = [name for name in methods.TABLE if methods.origin(name) is None]
KINDS = {methods.TABLE[name].__name__ for name in OURS}
QUOTED = re.compile(rf"""(["'`])({"|".join(OURS)})\1|--methods?[= ]({"|".join(OURS)})\b""")
PAGES = {".html", ".js", ".css", ".txt"}
FILES = [f for f in sorted(SOURCE.rglob("*")) if f.relative_to(SOURCE).parts[0] != "methods"]
SCRIPTS = [f for f in FILES if f.suffix == ".py"]
TEMPLATES = [f for f in FILES if f.suffix in PAGES]


def in_python(text: str) -> Iterator[str]:
    """Where a Python text knows a method: LINE and what stands there.

    One word has another meaning: standardise = "local". It may stand in a comparison with `standardise`, where a
    field of that name is declared, and in a text about it.
    """
    tree = ast.parse(text)
    other = {id(part) for node in ast.walk(tree) if about_standardising(node) for part in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if node.value in OURS and id(node) not in other:
                yield f"{node.lineno}: {node.value!r}"
            elif "standardis" not in node.value.lower() and (found := QUOTED.search(node.value)):
                yield f"{node.lineno}: {found[0]!r} in a text"
        elif isinstance(node, ast.Name | ast.Attribute):
            name = node.id if isinstance(node, ast.Name) else node.attr
            if name in KINDS:
                yield f"{node.lineno}: {name}"
        elif isinstance(node, ast.ImportFrom | ast.Import):
            module = getattr(node, "module", "") or ""
            for path in [f"{module}.{alias.name}".lstrip(".") for alias in node.names]:
                first, _, rest = path.partition("vitrail.methods.")
                if not first and rest.split(".")[0] in {*OURS, *KINDS}:
                    yield f"{node.lineno}: import of {path}"


def about_standardising(node: ast.AST) -> bool:
    if isinstance(node, ast.Compare):
        return any(
            getattr(side, "attr", getattr(side, "id", "")) == "standardise" for side in (node.left, *node.comparators)
        )
    return isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.target.id == "standardise"


def in_page(text: str) -> Iterator[str]:
    for number, line in enumerate(text.splitlines(), 1):
        yield from (f"{number}: {found[0]}" for found in QUOTED.finditer(line))


def test_something_is_read() -> None:
    assert len(OURS) >= 12
    assert len(SCRIPTS) > 80
    assert {f.suffix for f in TEMPLATES} == PAGES
    assert {"cli", "deploy", "report"} <= {f.relative_to(SOURCE).parts[0] for f in SCRIPTS}


@pytest.mark.parametrize("file", SCRIPTS, ids=lambda f: str(f.relative_to(SOURCE)))
def test_no_script_knows_a_method(file: Path) -> None:
    assert list(in_python(file.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize("file", TEMPLATES, ids=lambda f: str(f.relative_to(SOURCE)))
def test_no_page_knows_a_method(file: Path) -> None:
    assert list(in_page(file.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('if name == "fedavg": pass', ["1: 'fedavg'"]),
        ('x = {"influence": 1}', ["1: 'influence'"]),
        ('def f(method="local"): pass', ["1: 'local'"]),
        ('f("ditto")', ["1: 'ditto'"]),
        ("hint = 'Write name = \"apfl\".'", ["1: '\"apfl\"' in a text"]),
        ("hint = f'Run {x} --method ifedavg'", ["1: '--method ifedavg' in a text"]),
        ('"""Means are taken out by `local`, or not."""', ["1: '`local`' in a text"]),
        ('"""Standardised as `local` says."""', []),
        ("methods.Scaffold()", ["1: Scaffold"]),
        ("from vitrail.methods import TABLE, FedProx", ["1: import of vitrail.methods.FedProx"]),
        ("from vitrail.methods.local import Local", ["1: import of vitrail.methods.local.Local"]),
        ("import vitrail.methods.fedper", ["1: import of vitrail.methods.fedper"]),
        ("from vitrail.methods.blocks.newcomer import Newcomer", []),
        ('standardise = 1\nx == "local"', ["2: 'local'"]),
        ('f(standardise, "local")', ["1: 'local'"]),
        ('study.standardise == "local"', []),
        ('"local" != standardise', []),
        ('standardise: Literal["local", "global"] = "local"', []),
        ('standardise: str = "local"; other: str = "local"', ["1: 'local'"]),
        ('"""The local model; influence of a site."""\nlocal = influence', []),
    ],
)
def test_what_is_found_in_a_script(text: str, found: list[str]) -> None:
    assert list(in_python(text)) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("<p>The local model</p>", []),
        ("\n{% if method == 'centralized' %}", ["2: 'centralized'"]),
        ('<b class="ditto">`apfl`</b>', ['1: "ditto"', "1: `apfl`"]),
        ("<code>vitrail run --method=fedavg</code>", ["1: --method=fedavg"]),
        ("if (x === 'locally') {}", []),
    ],
)
def test_what_is_found_in_a_page(text: str, found: list[str]) -> None:
    assert list(in_page(text)) == found
