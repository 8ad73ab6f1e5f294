"""What the architecture page says is where it says."""

from __future__ import annotations

import ast
import importlib
import re
import sys
import tomllib
from pathlib import Path

import pytest

from tests.support import ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
TABLE = PAGE.split("## Looking for ...")[1].split("\n## ")[0]
NAMES = re.findall(r"`(vitrail(?:\.\w+)+)`", TABLE)
SOURCE = ROOT / "src" / "vitrail"
TREE = PAGE.split("```")[1]
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]

SIXTEEN = (  # what an engineer of federated learning looks for by name, and once did not find
    "aggregation",
    "secure aggregation, the coordinator's side",
    "secure aggregation, a site's side",
    "retries, quorum, deadlines",
    "participants",
    "message codec",
    "validation of answers",
    "transport",
    "certificates and enrolment",
    "checkpoints",
    "split into training and test rows",
    "cross-validation",
    "differential privacy",
    "survival",
    "private set intersection",
    "optimizer",
)
MORE = 10  # at least so many rows besides


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


def rows_of(table: str) -> list[list[str]]:
    lines = [line for line in table.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_the_table_is_read() -> None:
    rows = rows_of(TABLE)
    assert all(re.search(r"`vitrail(?:\.\w+)+`", place) for _, place in rows)
    assert len(NAMES) >= len(rows) >= len(SIXTEEN) + MORE


@pytest.mark.parametrize("thing", SIXTEEN)
def test_the_table_has_what_was_hard_to_find(thing: str) -> None:
    first = [looked_for for looked_for, _ in rows_of(TABLE)]
    assert [words for words in first if words.removeprefix("the ").startswith(thing)]


@pytest.mark.parametrize("name", NAMES)
def test_what_one_looks_for_is_there(name: str) -> None:
    assert find(name) is not None


def test_a_name_that_is_not_there_is_found_out() -> None:
    with pytest.raises((AttributeError, ModuleNotFoundError)):
        find("vitrail.engine.rounds.Nothing")


def entries_of(tree: str) -> dict[str, str]:
    """Each folder of the tree, in its order, with what stands behind it, over several lines."""
    parts = re.split(r"^(\w+)/ ", tree, flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def folders_in(folder: Path) -> set[str]:
    return {p.name for p in folder.iterdir() if p.is_dir() and not p.name.startswith((".", "__"))}


def test_the_page_opens_with_the_tree() -> None:
    before = PAGE.split("```")[0]
    assert not re.search(r"^##", before, re.M)  # its own title is the only heading above
    assert len(before.splitlines()) <= 6


def test_the_tree_names_every_folder_and_no_other() -> None:
    packages = {p.parent.name for p in SOURCE.glob("*/__init__.py")}
    assert set(entries_of(TREE)) == packages == folders_in(SOURCE)


@pytest.mark.parametrize("folder", entries_of(TREE))
def test_the_tree_names_the_folders_in_a_folder(folder: str) -> None:
    paths = re.findall(r"(?<![\w/])((?:\w+/)+)", entries_of(TREE)[folder])
    assert all((SOURCE / folder / path).is_dir() for path in paths)
    assert {path.split("/")[0] for path in paths} == folders_in(SOURCE / folder)


def test_the_tree_is_in_the_order_of_the_layers() -> None:
    (layers,) = (contract["layers"] for contract in CONTRACTS if contract["type"] == "layers")
    rank = {name.strip().removeprefix("vitrail."): at for at, line in enumerate(layers) for name in line.split("|")}
    assert sorted(entries_of(TREE), key=rank.__getitem__) == list(entries_of(TREE))


def outside_imports(folder: str) -> set[str]:
    """What else a folder's modules import than Python and this package."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in (SOURCE / folder).rglob("*.py")]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    names = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    names += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
    return {name.split(".")[0] for name in names} - sys.stdlib_module_names - {"vitrail"}


def test_the_lower_folders_need_torch_and_numpy_only() -> None:
    claim = re.search(r"^(.*) need (?:only )?torch and numpy(?: only)? \(`privacy` also cryptography\)", PAGE, re.M)
    assert claim is not None
    for folder in re.findall(r"`(\w+)`", claim[1]):
        allowed = {"torch", "numpy"} | ({"cryptography"} if folder == "privacy" else set())
        assert outside_imports(folder) <= allowed, folder
    assert outside_imports("privacy") >= {"torch", "cryptography"}


PATHS = sorted(set(re.findall(r"`([\w/]+\.py)`", PAGE)))
MEMBERS = sorted(set(re.findall(r"`([A-Z]\w+\.\w+)`", PAGE)))


def members_of(source: Path) -> set[str]:
    """Class.name of everything that a class defines."""
    out = set[str]()
    for path in source.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                names = [getattr(n, "name", None) or getattr(getattr(n, "target", None), "id", "") for n in node.body]
                out |= {f"{node.name}.{name}" for name in names}
    return out


def test_a_file_that_the_page_names_is_there() -> None:
    assert len(PATHS) > 15
    assert [path for path in PATHS if not ((SOURCE / path).is_file() or (ROOT / path).is_file())] == []


def test_a_member_of_a_class_that_the_page_names_is_there() -> None:
    assert len(MEMBERS) > 8
    assert set(MEMBERS) <= members_of(SOURCE)


TABLES = {"studies/compare/result.py": 1, "studies/transfer.py": 1, "analysis/selective_prediction.py": 2}  # of pandas


def count_merges(text: str) -> int:
    calls = (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call))
    return sum(isinstance(call.func, ast.Attribute) and call.func.attr == "merge" for call in calls)


def test_the_merge_of_an_exchange_is_called_in_one_place() -> None:
    files = {p.relative_to(SOURCE).as_posix(): p for p in SOURCE.rglob("*.py")}
    counts = {
        name: count_merges(path.read_text(encoding="utf-8")) - TABLES.get(name, 0)
        for name, path in files.items()
        if name.split("/")[0] not in ("methods", "testing")
    }
    assert {name: n for name, n in counts.items() if n} == {"engine/aggregation.py": 1}


def test_a_second_merge_would_be_counted() -> None:
    assert count_merges("coord, _ = self.ex.merge(task, coord, up, roster)\nmerge(1)") == 1
