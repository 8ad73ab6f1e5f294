"""docs/study.md has every key of a study file, in words, with an example that the study's reader takes."""

from __future__ import annotations

import importlib.util
import sys
import tomllib
from types import ModuleType

import pytest
from pydantic import BaseModel, Field

import vitrail as vt
from tests.support import ROOT
from vitrail.data.schema import Strict

SCRIPT = ROOT / "scripts" / "make_study_reference.py"


@pytest.fixture(scope="module")
def made() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_study_reference", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    sys.modules[spec.name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_is_current(made: ModuleType) -> None:
    assert made.PAGE.read_text(encoding="utf-8") == made.page(), "run scripts/make_study_reference.py"


def test_every_key_is_there(made: ModuleType) -> None:
    """Counted another way: what pydantic says of the whole study."""
    schema = vt.Study.model_json_schema()
    told = {key.path for part in made.parts() for key in part.keys}
    for name, about in {"Study": schema, **schema["$defs"]}.items():
        for key in about.get("properties", {}):
            assert any(path.rpartition(".")[2] == key or path.startswith(f"{key}.") for path in told), f"{name}.{key}"
    assert {"target.column", "features.NAME.aliases", "parties.NAME.ration.after", "protect.rows.epsilon"} <= told


def test_every_key_says_what_it_is(made: ModuleType) -> None:
    silent = [key.path for part in made.parts() for key in part.keys if not key.words]
    assert silent == [], "write a comment beside the field: it is the key's words in docs/study.md"


def test_every_example_is_accepted(made: ModuleType) -> None:
    for part in made.parts():
        for key in part.keys:
            assert made.accepted(key.path, key.example), f"{key.path}: add an example to {SCRIPT.name}"


def test_what_is_wrong_is_not_accepted(made: ModuleType) -> None:
    for path, value in (
        ("training.rounds", 0),
        ("training.round", 5),
        ("features.NAME.kind", "numbers"),
        ("seeds", []),
    ):
        assert not made.accepted(path, value), path


def test_the_whole_example_is_a_study(made: ModuleType) -> None:
    block = made.PAGE.read_text(encoding="utf-8").split("```toml\n")[1].split("```")[0]
    assert vt.Study.parse(tomllib.loads(block)).features.keys() == {"age", "sex", "ward"}


class Some(Strict):
    few: int = Field(default=3, ge=2, lt=9)  # how many
    silent: str = ""
    # above, on more
    # than one line
    above: str = ""
    long: tuple[float, ...] = (  # two
        1.0,
        2.0,  # lines
    )


def test_words_limits_and_examples_come_from_the_types(made: ModuleType) -> None:
    assert made.words_of(Some) == {
        "few": "how many",
        "silent": "",
        "above": "above, on more than one line",
        "long": "two lines",
    }
    few, _, _, long = made.keys_of(Some, "x")
    assert few == made.Key("x.few", "whole number, at least 2, less than 9", "`3`", "how many", 3)
    assert long.takes == "list of numbers"
    assert issubclass(Some, BaseModel)
