"""The facade for authors elsewhere: every name is there, for a type checker too; pages and foreign methods use it."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import vitrail as vt
from vitrail import plugin

ROOT = Path(__file__).parent.parent
DEEP = re.compile(r"^from vitrail\.(?:core|engine|methods|nets|testing|privacy)\b.*$", re.MULTILINE)
METHOD = '''"""Plugged: a stranger's method that knows the facade alone."""
from dataclasses import dataclass
import vitrail as vt
from vitrail.plugin import Catalogue, apply_update

@dataclass(frozen=True)
class Plugged(vt.methods.FedAvg):
    catalogue = Catalogue("Plugged")

    def merge(self, task, coord, up, roster):
        return coord._replace(params=apply_update(coord.params, up.change, 2 * up.weight)), {}
'''


def test_a_type_checker_sees_the_names_that_are_loaded() -> None:
    tree = ast.parse(Path(plugin.__file__).read_text(encoding="utf-8"))
    seen = {
        (node.module, alias.name)
        for block in tree.body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
        if alias.asname == alias.name
    }
    assert len(seen) > 40
    assert seen == {(module, name) for name, module in plugin._PLACES.items()}


@pytest.mark.parametrize("name", dir(plugin))
def test_every_name_is_there(name: str) -> None:
    assert getattr(plugin, name) is not None


def test_other_names_are_refused() -> None:
    with pytest.raises(AttributeError, match=r"vitrail\.plugin has no 'FedSGD'"):
        _ = plugin.FedSGD


@pytest.mark.parametrize("page", ["tutorial.md", "architecture.md"])
def test_pages_for_authors_import_from_nowhere_else(page: str) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert "from vitrail.plugin import" in text
    assert DEEP.findall(text) == []


@pytest.mark.parametrize(
    "first", ["import vitrail.plugin", "from vitrail.plugin import Method", "import vitrail.methods"]
)
def test_a_foreign_method_is_known_whatever_is_loaded_first(first: str, tmp_path: Path) -> None:
    about = tmp_path / "plugged_fl-1.0.dist-info"
    about.mkdir()
    (tmp_path / "plugged.py").write_text(METHOD)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: plugged-fl\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[vitrail.methods]\nplugged = plugged:Plugged\n")
    code = f"{first}\nimport vitrail as vt\nassert vt.methods.build('plugged').catalogue.title == 'Plugged'"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize(
    ("old", "new"), [("cut", "partition"), ("bias", "planted_shortcuts"), ("Together", "VerticalRun")]
)
def test_an_old_public_name_still_works_and_says_the_new_one(old: str, new: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"vitrail.{new} now"):
        assert getattr(vt, old) is getattr(vt, new)
    with pytest.raises(AttributeError):
        vt.nothing_of_the_kind  # noqa: B018


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("blended", "interpolate"),
        ("carried", "carry_state"),
        ("copied", "clone"),
        ("less", "subtract"),
        ("moved", "apply_update"),
        ("own_of", "select_own"),
        ("pulled", "proximal_term"),
        ("tmap", "tree_map"),
    ],
)
def test_an_old_name_still_works_and_says_how_it_is_called_now(old: str, new: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"plugin.{old} is called vitrail.plugin.{new} now"):
        assert getattr(plugin, old) is getattr(plugin, new)
    assert old not in dir(plugin)
