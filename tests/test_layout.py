"""The folders of tests/ are those of src/vitrail, and what tests share is in tests/support, not in a test module."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import vitrail
from tests.support import ROOT

SOURCE = Path(vitrail.__file__).parent
TESTS = ROOT / "tests"
OWN = {"benchmarks", "docs", "kept", "mutants", "snapshots", "support"}  # what is no package of the source


def borrowed(text: str) -> list[str]:
    """Names that are imported from test modules."""
    imports = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ImportFrom)]
    paths = [f"{node.module}.{alias.name}" for node in imports for alias in node.names]
    return [path for path in paths if any(part.startswith("test_") for part in path.split(".")[:-1])]


def test_each_folder_of_tests_is_a_folder_of_the_source() -> None:
    folders = {file.parent.relative_to(TESTS) for file in TESTS.rglob("test_*.py")}
    strange = {str(f) for f in folders if f.parts and f.parts[0] not in OWN and not (SOURCE / f).is_dir()}
    assert not strange


@pytest.mark.parametrize("folder", ["tests", "benchmarks"])
def test_no_helper_is_imported_from_a_test_module(folder: str) -> None:
    takers = {str(file): borrowed(file.read_text(encoding="utf-8")) for file in (ROOT / folder).rglob("*.py")}
    assert {file: names for file, names in takers.items() if names} == {}


def test_a_borrowed_helper_is_found() -> None:
    assert borrowed("from tests.deploy.test_talk import Houses") == ["tests.deploy.test_talk.Houses"]
    assert borrowed("from tests.support.small import make_task") == []
