"""What the architecture page says is where it says."""

from __future__ import annotations

import ast
import importlib
import re

import pytest

from tests.support import ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
TABLE = PAGE.split("## Looking for ...")[1].split("\n## ")[0]
NAMES = re.findall(r"`(vitrail(?:\.\w+)+)`", TABLE)


def find(name: str) -> object:
    """A module, or what stands in one."""
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found: object = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[cut:]:
            found = getattr(found, attribute)
        return found
    raise ModuleNotFoundError(name)


def test_the_table_is_read() -> None:
    rows = [line for line in TABLE.splitlines() if line.startswith("| ")][2:]
    assert len(rows) >= 26
    assert len(NAMES) >= len(rows)


@pytest.mark.parametrize("name", NAMES)
def test_what_one_looks_for_is_there(name: str) -> None:
    assert find(name) is not None


def test_a_name_that_is_not_there_is_found_out() -> None:
    with pytest.raises((AttributeError, ModuleNotFoundError)):
        find("vitrail.engine.rounds.Nothing")


def test_the_tree_names_every_folder_and_no_other() -> None:
    tree = PAGE.split("```")[1]
    named = {line.split("/")[0] for line in tree.splitlines() if re.match(r"\w+/ ", line)}
    folders = {p.parent.name for p in (ROOT / "src" / "vitrail").glob("*/__init__.py")}
    assert named == folders


TABLES = {"studies/compare/result.py": 1, "studies/transfer.py": 1, "analysis/selective_prediction.py": 2}  # of pandas


def count_merges(text: str) -> int:
    calls = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call))
    return sum(isinstance(call.func, ast.Attribute) and call.func.attr == "merge" for call in calls)


def test_the_merge_of_an_exchange_is_called_in_one_place() -> None:
    source = ROOT / "src" / "vitrail"
    files = {str(p.relative_to(source)): p for p in source.rglob("*.py")}
    counts = {
        name: count_merges(path.read_text(encoding="utf-8")) - TABLES.get(name, 0)
        for name, path in files.items()
        if name.split("/")[0] not in ("methods", "testing")
    }
    assert {name: n for name, n in counts.items() if n} == {"engine/aggregation.py": 1}


def test_a_second_merge_would_be_counted() -> None:
    assert count_merges("coord, _ = self.ex.merge(task, coord, up, roster)\nmerge(1)") == 1
