"""The page of the Python interface has every public name, and every public name says what it is."""

from __future__ import annotations

import inspect
import re
from types import ModuleType

import griffe
import pytest

import vitrail as vt
from tests.support import ROOT
from vitrail import plugin

PAGE = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
PUBLIC = [*(f"vitrail.{name}" for name in vt.__all__), *(f"vitrail.plugin.{name}" for name in dir(plugin))]
FUNCTIONS = [name for name in vt.__all__ if inspect.isfunction(getattr(vt, name))]


@pytest.fixture(scope="module")
def source() -> griffe.Object | griffe.Alias:
    """As the page is made: the source is read, not imported."""
    return griffe.load("vitrail", search_paths=[ROOT / "src"])


def test_the_page_has_every_public_name_once() -> None:
    assert sorted(re.findall(r"^::: (\S+)$", PAGE, re.M)) == sorted(PUBLIC)


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_says_what_it_is(name: str, source: griffe.Object) -> None:
    thing = source[name.removeprefix("vitrail.")]
    text = thing.docstring.value if thing.docstring else ""
    first = re.match(r"[^\n].{14,}?[.:;](?=\s|$)", text, re.S)
    assert first, f"{name} needs a docstring that begins with a plain sentence"
    assert len(first[0].split()) >= 3


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_parameter_is_explained(name: str) -> None:
    function = getattr(vt, name)
    missing = [
        p for p in inspect.signature(function).parameters if not re.search(rf"\b{p}\b", inspect.getdoc(function))
    ]
    assert not missing


def test_a_name_of_the_page_is_what_the_package_gives(source: griffe.Object) -> None:
    for name in vt.__all__:
        thing = getattr(vt, name)
        where = thing.__name__ if isinstance(thing, ModuleType) else f"{thing.__module__}.{thing.__qualname__}"
        assert source[name].canonical_path == where
