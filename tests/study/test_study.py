"""The study file: what is valid survives a round trip, what is not is named with its line and what to do."""
# ruff: noqa: E501  (one broken study per line)

from __future__ import annotations

import copy
import tomllib
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from torch import nn

from vitrail import methods, nets
from vitrail.core.errors import Problem, VitrailError
from vitrail.core.facts import SHARE, TRUST
from vitrail.core.optimizers import SGD, Adam
from vitrail.core.task import Task
from vitrail.data.datasets import catalogue as datasets
from vitrail.data.schema import Feature, canon
from vitrail.runs.plan import with_facts
from vitrail.runs.setup import build_task, check_trainable
from vitrail.storage.toml import key_lines
from vitrail.study.model import Study
from vitrail.study.validation import CLASS_METRICS, NUMBER_METRICS

GOOD = """\
name = "Chest pain"
description = "A small study."
seeds = [1, 2, 3]
metrics = ["auc", "accuracy"]
standardise = "global"
site_column = "hospital"

[target]
column = "sick"
kind = "classes"
classes = ["no", "yes"]
positive = "yes"

[split]
test = 0.25
at_least = 10

[network]
kind = "mlp"
hidden = [8, 4]
dropout = 0.1

[training]
rounds = 5
lr = 0.01

[method]
name = "fedprox"
mu = 0.5

[features.age]
kind = "numeric"
unit = "years"
range = [18, 100]
missing = [-1]

[features.sex]
kind = "binary"
categories = ["f", "m"]

[features."chest pain"]
kind = "categorical"
categories = ["none", "some", "much"]
missing = [9]
"""
LINES = GOOD.splitlines()
FUZZ = settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def write(folder: Path, text: str | bytes) -> Path:
    path = folder / "study.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def message(path: Path) -> str:
    with pytest.raises(VitrailError) as caught:
        Study.load(path)
    return str(caught.value)


def line(start: str) -> int:
    """The line of the good study that starts like this."""
    (number,) = [n for n, text in enumerate(LINES, 1) if text.startswith(start)]
    return number


def instead(old: str, new: str) -> Callable[[str], str]:
    """The study with this text, found once, replaced; line numbers of the rest stay."""

    def change(text: str) -> str:
        assert text.count(old) == 1, f"{old!r} is there {text.count(old)} times"
        return text.replace(old, new)

    return change


def without(first: str, last: str = "") -> Callable[[str], str]:
    """The study with these lines left blank."""
    a, b = line(first), line(last or first)
    return lambda text: "\n".join("" if a <= n <= b else t for n, t in enumerate(text.splitlines(), 1)) + "\n"


def at_top(more: str) -> Callable[[str], str]:
    """One more line before all others."""
    return lambda text: f"{more}\n{text}"


def below(start: str, more: str) -> Callable[[str], str]:
    """One more line after that one."""
    return lambda text: "\n".join([*LINES[: line(start)], more, *LINES[line(start) :]]) + "\n"


def test_the_good_study(tmp_path: Path) -> None:
    study = Study.load(write(tmp_path, GOOD))
    assert study.name == "Chest pain"
    assert study.seeds == (1, 2, 3)
    assert study.metrics == ("auc", "accuracy")
    assert study.target.levels == ("no", "yes")
    assert list(study.features) == ["age", "sex", "chest pain"]
    assert study.features["age"].range == (18.0, 100.0)
    assert study.build_method().mu == 0.5  # type: ignore[attr-defined]


def test_metrics_default_to_the_kind_of_target() -> None:
    raw = tomllib.loads(GOOD)
    del raw["metrics"]
    assert set(Study.parse(raw).metrics) <= set(CLASS_METRICS)
    raw["target"] = {"column": "cost", "kind": "number"}
    assert Study.parse(raw).metrics == NUMBER_METRICS


# (name, change, what the message must hold); LINE: start -> ":number "
BROKEN: list[tuple[str, Callable[[str], str], list[str]]] = [
    # unknown keys, at every level
    ("unknown section", at_top("trainning.rounds = 3"), [":1 trainning", "unknown key 'trainning'", "'training'"]),
    ("unknown top key", instead("name = \"Chest", "nmae = \"Chest"), [":1 nmae", "Did you mean 'name'?"]),
    ("unknown in target", below("column", "clases = [1, 2]"), [":10 target.clases", "Did you mean 'classes'?"]),
    ("unknown in split", below("at_least", "startify = true"), [":17 split.startify", "Did you mean 'stratify'?"]),
    ("unknown in network", instead("dropout", "dropuot"), [f":{line('dropout')} network.dropuot", "Did you mean 'dropout'?"]),
    ("unknown in training", instead("lr = 0.01", "Lr = 0.01"), [f":{line('lr')} training.Lr", "Did you mean 'lr'?"]),
    ("unknown in feature", instead("unit = ", "units = "), [f":{line('unit')} features.age.units", "Did you mean 'unit'?"]),
    ("nothing near", instead("unit = ", "zzz = "), [f":{line('unit')} features.age.zzz", "Valid: aliases, categories, descr"]),
    ("type's name", at_top("int = 1"), [":1 int", "unknown key 'int'"]),
    # missing sections and keys
    ("no target", without("[target]", "positive"), [" target: 'target' is missing. Add it."]),
    ("no features", lambda t: t[: t.index("[features.age]")], [" features: there are no features.", "or [images] for pictures."]),
    ("empty features", lambda t: t[: t.index("[features.age]")] + "[features]\n", [":31 features", "Add a [features.NAME]"]),
    ("no column", without("column"), [f":{line('[target]')} target.column", "'column' is missing. Add it."]),
    ("no kind", lambda t: below("[features.sex]", "unit = 'x'")(t).replace('kind = "binary"\n', ""), [f":{line('[features.sex]')} features.sex.kind", "'kind' is missing."]),
    ("no method name", without('name = "fedprox"'), [f":{line('[method]')} method", "'name' is missing.", "Valid: agreed_mix, apfl, "]),
    # wrong types
    ("text for number", instead("rounds = 5", 'rounds = "5"'), [f":{line('rounds')} training.rounds", "expected a whole number, got '5'"]),
    ("fraction for whole", instead("rounds = 5", "rounds = 5.5"), [":24 training.rounds", "expected a whole number, got 5.5"]),
    ("true for whole", instead("rounds = 5", "rounds = true"), ["training.rounds", "expected a whole number, got True"]),
    ("text for bool", below("at_least", 'stratify = "yes"'), [":17 split.stratify", "expected true or false, got 'yes'"]),
    ("number for text", instead('unit = "years"', "unit = 3"), [":33 features.age.unit", "expected a text in quotes, got 3"]),
    ("date for text", instead('name = "Chest pain"', "name = 2020-01-31"), [":1 name", "expected a text in quotes", "2020, 1, 31"]),
    ("date as class", instead('["no", "yes"]', '["no", 2020-01-31, "yes"]'), [":11 target.classes.1", "expected a text, a finite number, true or false"]),
    ("number for list", instead("[8, 4]", "8"), [":20 network.hidden", "expected a list in [ ], got 8"]),
    ("list for number", instead("dropout = 0.1", "dropout = [0.1]"), [":21 network.dropout", "expected a number, got [0.1]"]),
    ("list for column", instead('column = "sick"', 'column = ["sick"]'), [":9 target.column", "expected a text in quotes, got ['sick']"]),
    ("list for site column", instead('"hospital"', '["hospital"]'), [":6 site_column", "expected a text in quotes"]),
    ("text for section", lambda t: 'method = "fedavg"\n' + t.replace('[method]\nname = "fedprox"\nmu = 0.5\n', ""), [":1 method", "expected a section, got 'fedavg'"]),
    ("text for feature", lambda t: t.replace('[features.sex]\nkind = "binary"\ncategories = ["f", "m"]', "[features]\nsex = 'binary'"), [":38 features.sex", "expected a section, got 'binary'"]),
    ("array of tables", instead("[target]", "[[target]]"), [":8 target", "expected a section, got [{'column': 'sick'"]),
    ("array of features", instead("[features.age]", "[[features.age]]"), [":31 features.age", "expected a section"]),
    ("nested categories", instead('["f", "m"]', '["f", ["m"]]'), [":39 features.sex.categories.1", "true or false, got ['m']"]),
    # numbers out of bounds
    ("no rounds", instead("rounds = 5", "rounds = 0"), [":24 training.rounds", "expected at least 1, got 0"]),
    ("test of all", instead("test = 0.25", "test = 1"), [":15 split.test", "expected less than 1"]),
    ("test of none", instead("test = 0.25", "test = 0"), [":15 split.test", "expected more than 0"]),
    ("negative at_least", instead("at_least = 10", "at_least = -1"), [":16 split.at_least", "expected at least 0, got -1"]),
    ("full dropout", instead("dropout = 0.1", "dropout = 1.0"), [":21 network.dropout", "expected less than 1"]),
    ("empty layer", instead("[8, 4]", "[8, 0]"), [":20 network.hidden", "at least one unit, got [8, 0]"]),
    ("no learning", instead("lr = 0.01", "lr = 0"), [":25 training.lr", "expected more than 0"]),
    ("large decay", below("lr", "decay = 1.5"), [":26 training.decay", "expected at most 1"]),
    ("momentum of one", below("lr", "momentum = 1"), [":26 training.momentum", "expected less than 1"]),
    ("no scale", below("positive", "scale = 0.0"), [":13 target.scale", "expected more than 0"]),
    ("nan", instead("lr = 0.01", "lr = nan"), [":25 training.lr", "expected a finite number, got nan"]),
    ("inf", instead("lr = 0.01", "lr = inf"), [":25 training.lr", "expected a finite number, got inf"]),
    ("nan center", below("positive", "center = nan"), [":13 target.center", "expected a finite number"]),
    ("inf in range", instead("[18, 100]", "[18, inf]"), [":34 features.age.range.1", "expected a finite number, got inf"]),
    ("nan as category", instead('["f", "m"]', '["f", nan]'), [":39 features.sex.categories.1", "a finite number", "got nan"]),
    ("too many bits", instead("rounds = 5", "rounds = 0x1" + "0" * 16), [":24 training.rounds", "at most 64 bits"]),
    ("far too many bits", instead("rounds = 5", "rounds = 0x" + "f" * 9000), [":24 training.rounds", "at most 64 bits"]),
    ("seed too large", instead("seeds = [1, 2, 3]", f"seeds = [{2**63}]"), [":3 seeds.0", "at most 64 bits"]),
    ("seed negative", instead("seeds = [1, 2, 3]", "seeds = [1, -2]"), [":3 seeds", "whole numbers from 0"]),
    # the optimiser
    ("unknown optimiser", below("lr", 'optimiser = "adamw"'), [":26 training.optimiser", "expected 'sgd' or 'adam', got 'adamw'"]),
    ("unknown memory", below("lr", 'memory = "old"'), [":26 training.memory", "expected 'fresh', 'own' or 'kept', got 'old'"]),
    ("negative weight decay", below("lr", "weight_decay = -0.1"), [":26 training.weight_decay", "expected at least 0.0, got -0.1"]),
    ("negative rate", below("lr", "rates = { head = -0.1 }"), [":26 training.rates.head", "expected at least 0.0, got -0.1"]),
    ("infinite rate", below("lr", "rates = { head = inf }"), [":26 training.rates.head", "expected a finite number, got inf"]),
    ("rate no number", below("lr", 'rates.head = "slow"'), [":26 training.rates.head", "expected a number, got 'slow'"]),
    ("one rate for all", below("lr", "rates = 0.1"), [":26 training.rates", "expected a section, got 0.1"]),
    # kinds, ranges, categories, missing codes
    ("unknown kind", instead('kind = "numeric"', 'kind = "number"'), [":32 features.age.kind", "expected 'numeric', 'binary' or 'categorical', got 'number'"]),
    ("unknown target kind", instead('kind = "classes"', 'kind = "class"'), [":10 target.kind", "expected 'classes', 'number' or 'time'"]),
    ("unknown standardise", instead('"global"', '"all"'), [":5 standardise", "expected 'local', 'global' or 'none', got 'all'"]),
    ("range upside down", instead("[18, 100]", "[100, 18]"), [":34 features.age.range", "low < high, got [100, 18]", "Swap"]),
    ("range of a point", instead("[18, 100]", "[18, 18]"), [":34 features.age.range", "low < high"]),
    ("short range", instead("[18, 100]", "[18]"), [":34 features.age.range:", "expected more values, got [18]"]),
    ("empty range", instead("[18, 100]", "[]"), [":34 features.age.range:", "expected more values, got []", "(1 to correct)"]),
    ("long range", instead("[18, 100]", "[18, 50, 100]"), [":34 features.age.range", "expected 2 values"]),
    ("range of a category", below("categories = [\"f\"", "range = [0, 1]"), [":40 features.sex.range", "a binary feature has no range"]),
    ("categories of a number", below("unit", "categories = [1, 2]"), [":34 features.age.categories", "a numeric feature has no categories", 'kind = "categorical"']),
    ("one category", instead('["f", "m"]', '["f"]'), [":39 features.sex.categories", "needs two categories, got ['f']", "List both."]),
    ("three binary", instead('["f", "m"]', '["f", "m", "x"]'), [":39 features.sex.categories", "needs two categories"]),
    ("no categories", without('categories = ["none"'), [":41 features.chest pain.categories", "two or more categories, got []"]),
    ("category twice", instead('["none", "some", "much"]', '[1, "1.0", 2]'), [':43 features.chest pain.categories', "listed twice"]),
    ("category means missing", instead("[9]", '["much"]'), [":44 features.chest pain.missing", "'much' is a category and also means missing"]),
    ("missing no list", instead("[-1]", "-1"), [":35 features.age.missing", "expected a list in [ ], got -1"]),
    # target, features and site column among each other
    ("target is a feature", instead('column = "sick"', 'column = "sex"'), [":37 features.sex", "the target is also a feature", "Remove"]),
    ("site is a feature", instead('"hospital"', '"age"'), [":31 features.age", "the site column is also a feature"]),
    ("site is the target", instead('"hospital"', '"sick"'), [":6 site_column", "the site column is the target", "Name another"]),
    ("one class", instead('["no", "yes"]', '["yes"]'), [":11 target.classes", "expected two or more classes, got ['yes']"]),
    ("class twice", instead('["no", "yes"]', '["no", "yes", "no"]'), [":11 target.classes", "a class is listed twice"]),
    ("positive is no class", instead('positive = "yes"', 'positive = "yess"'), [":12 target.positive", "not one of the classes", "Did you mean 'yes'?"]),
    ("positive is a list", instead('positive = "yes"', "positive = [1]"), [":12 target.positive", "got [1]", "(1 to correct)"]),
    ("number with classes", instead('kind = "classes"', 'kind = "number"'), [":8 target", "a number has no classes", "Remove classes"]),
    # methods and metrics
    ("unknown method", instead('"fedprox"', '"fedporx"'), [":28 method.name", "there is no method 'fedporx'", "Did you mean 'fedprox'?"]),
    ("method no text", instead('name = "fedprox"', "name = 3"), [":28 method.name", "there is no method 3", "Valid: agreed_mix"]),
    ("unknown hyperparameter", instead("mu = 0.5", "muh = 0.5"), [":29 method.muh", "fedprox has no hyperparameter 'muh'", "Did you mean 'mu'?"]),
    ("dotted hyperparameter", instead("mu = 0.5", '"m.u" = 0.5'), [":29 method.m.u", "has no hyperparameter 'm.u'"]),
    ("wrong hyperparameter", instead("mu = 0.5", 'mu = "much"'), [":29 method.mu", "expected a number >= 0, got 'much'", "Correct mu."]),
    ("negative hyperparameter", instead("mu = 0.5", "mu = -1"), [":29 method.mu", "expected a number >= 0, got -1"]),
    ("infinite hyperparameter", instead("mu = 0.5", "mu = inf"), [":29 method.mu", "expected a number >= 0, got inf"]),
    ("scaffold momentum", instead('"fedprox"\nmu = 0.5', '"scaffold"\nmomentum = 0.5'), [":27 method", "momentum must be 0", "Remove or correct it."]),
    ("metric of a number", instead('"auc", ', '"rmse", '), [":4 metrics", "no metric 'rmse' for classes", "Valid: accuracy"]),
    ("metric of classes", lambda t: t.replace('kind = "classes"\nclasses = ["no", "yes"]\npositive = "yes"', 'kind = "number"').replace('"auc", "accuracy"', '"rsme"'), [":4 metrics", "no metric 'rsme' for a number", "Did you mean 'rmse'?"]),
    ("metric twice", instead('"auc", ', '"accuracy", '), [":4 metrics", "listed twice"]),
    ("metric no text", instead('"auc", ', "3, "), [":4 metrics.0", "expected a text in quotes, got 3"]),
    ("seeds twice", instead("[1, 2, 3]", "[1, 2, 1]"), [":3 seeds", "expected different whole numbers, got [1, 2, 1]"]),
    ("no seeds", instead("[1, 2, 3]", "[]"), [":3 seeds", "expected different whole numbers, got []"]),
    ("seed no number", instead("[1, 2, 3]", '["1"]'), [":3 seeds.0", "expected a whole number, got '1'"]),
    # the file itself
    ("empty file", lambda t: "", ["target: 'target' is missing", "features: there are no features", "(2 to correct)"]),
    ("not TOML", instead("rounds = 5", "rounds 5"), ["is not TOML", "at line 24", "Correct that line."]),
    ("key twice", instead("lr = 0.01", "rounds = 6"), ["is not TOML", "line 25"]),
    ("open text", instead('name = "Chest pain"', 'name = "Chest pain'), ["is not TOML", "line 1"]),
    ("5000 digits", instead("rounds = 5", "rounds = " + "9" * 5000), ["is not TOML", "digits"]),
    ("nested past parsing", at_top("a = " + "[" * 9000 + "]" * 9000), ["is not TOML", "recursion"]),
    ("nested deeply", below("[method]", "a = " + "[" * 30 + "]" * 30), [":28 method.a", "nested too deeply"]),
    ("sections nested deeply", below("[method]", "a" + ".a" * 30 + " = 1"), [":28 method.a", "nested too deeply"]),
    # names that are hard to write, and lines that are hard to count
    ("key with a space", instead('[features."chest pain"]\nkind', '[features."chest pain"]\n"k ind"'), [":42 features.chest pain.k ind", "Did you mean 'kind'?"]),
    ("key with a quote", instead('[features."chest pain"]\nkind', '[features."ch\\"st"]\nkidn'), [':42 features.ch"st.kidn', "Did you mean 'kind'?"]),
    ("key with an escape", instead('[features."chest pain"]\nkind', '[features."a\\tb"]\nkidn'), [":42 features.a\tb.kidn", "Did you mean"]),
    ("key with a dot", instead('[features."chest pain"]\nkind', "[features.'a.b']\nkidn"), [":42 features.a.b.kidn", "Did you mean"]),
    ("key with a bracket", instead('[features."chest pain"]\nkind', '[features."x] # y"]\nkidn'), [":42 features.x] # y.kidn", "Did you mean"]),
    ("key called int", instead("[features.sex]\nkind", "[features.int]\nkidn"), [":38 features.int.kidn", "Did you mean 'kind'?"]),
    ("inline section", instead("[features.sex]\nkind = \"binary\"\ncategories = [\"f\", \"m\"]\n", '[features]\nsex = { kidn = "binary" }\n\n'), [":38 features.sex.kidn", "Did you mean 'kind'?"]),
    ("spaces around dots", instead("[features.age]\nkind", "[ features . age ]  # ]\nkidn"), [":32 features.age.kidn"]),
    ("text of many lines", instead('description = "A small study."', 'description = """\n[network]\nhidden = 3\n"""'), []),
    ("list of many lines", instead("seeds = [1, 2, 3]", "seeds = [\n  1, # ]\n  2,\n]"), []),
    ("odd line breaks in a text", instead('"A small study."', '"\u2028 \u0085"'), []),
]  # fmt: skip
GOOD_AT_SECOND_SIGHT = {"text of many lines": 3, "list of many lines": 3, "odd line breaks in a text": 0}


@pytest.mark.parametrize(("change", "wanted"), [pytest.param(c, w, id=n) for n, c, w in BROKEN if w])
def test_broken_study(tmp_path: Path, change: Callable[[str], str], wanted: list[str]) -> None:
    path = write(tmp_path, change(GOOD))
    said = message(path)
    assert str(path) in said
    for part in wanted:
        assert part in said, f"{part!r} is not in:\n{said}"


def test_there_are_many_broken_studies() -> None:
    assert len({change(GOOD) for _, change, wanted in BROKEN if wanted}) >= 100


@pytest.mark.parametrize("name", GOOD_AT_SECOND_SIGHT)
def test_lines_are_counted_past_hard_text(tmp_path: Path, name: str) -> None:
    (change,) = [c for n, c, _ in BROKEN if n == name]
    assert Study.load(write(tmp_path, change(GOOD)))  # it is valid
    said = message(write(tmp_path, change(GOOD).replace("hidden = [8, 4]", "hidden = [0]")))
    assert f":{line('hidden') + GOOD_AT_SECOND_SIGHT[name]} network.hidden" in said


def test_ten_mistakes_at_once(tmp_path: Path) -> None:
    changes = [
        ("seeds = [1, 2, 3]", "seeds = [1, 1]", ":3 seeds"),
        ('"auc"', '"acu"', ":4 metrics"),
        ('standardise = "global"', 'standardize = "global"', ":5 standardize"),
        ('column = "sick"', 'column = "sex"', ":37 features.sex"),
        ('positive = "yes"', 'positive = "maybe"', ":12 target.positive"),
        ("test = 0.25", "test = 2", ":15 split.test"),
        ("hidden = [8, 4]", "hidden = [0]", ":20 network.hidden"),
        ("lr = 0.01", "lr = nan", ":25 training.lr"),
        ("mu = 0.5", "nu = 0.5", ":29 method.nu"),
        ("range = [18, 100]", "range = [18, 1]", ":34 features.age.range"),
    ]
    text = GOOD
    for old, new, _ in changes:
        text = instead(old, new)(text)
    path = write(tmp_path, text)
    with pytest.raises(VitrailError) as caught:
        Study.load(path)
    assert len(caught.value.problems) == 10
    assert {p.where for p in caught.value.problems} == {f"{path}{where}" for *_, where in changes}
    assert all(p.hint for p in caught.value.problems)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"\xff\xfe\x00a", "not UTF-8"),
        (b'name = "\xe9"', "not UTF-8"),
        (None, "No such file"),
        ("folder", "a folder"),
    ],
)
def test_unreadable_file(tmp_path: Path, content: bytes | str | None, reason: str) -> None:
    path = tmp_path / "study.toml"
    if content == "folder":
        path.mkdir()
    elif isinstance(content, bytes):
        path.write_bytes(content)
    said = message(path)
    assert str(path) in said
    assert reason in said
    assert "vitrail init" in said


def test_windows_file(tmp_path: Path) -> None:
    """A byte order mark and CR LF change neither the study nor the lines."""
    study = Study.load(write(tmp_path, GOOD))
    marked = b"\xef\xbb\xbf" + GOOD.replace("\n", "\r\n").encode()
    assert Study.load(write(tmp_path, marked)) == study
    assert ":34 features.age.range" in message(write(tmp_path, marked.replace(b"[18, 100]", b"[18, 1]")))


def test_dictionaries_that_no_file_holds() -> None:
    raw = tomllib.loads(GOOD)
    deep: dict[str, Any] = {}
    deep["again"] = deep
    for broken, wanted in [
        ({**raw, "method": deep}, "nested too deeply"),
        ({**raw, 3: 4}, "3"),
        ({**raw, "features": {3: {"kind": "numeric"}}}, "features.3"),
        ({**raw, "features": {"x": Feature(kind="binary")}}, "a binary feature needs two categories"),
        ({**raw, "name": "\ud800"}, "name: expected Unicode text, got '\\ud800'"),
        ({**raw, "features": {"\ud800": {"kind": "numeric"}}}, "features: expected Unicode text"),
        ({**raw, "name": date(2020, 1, 1)}, "expected a text"),
    ]:
        with pytest.raises(VitrailError) as caught:
            Study.parse(broken)
        assert wanted in str(caught.value)


# --- round trip ---

texts = st.text(st.characters(codec="utf-8"), max_size=12) | st.sampled_from(
    ['a"b', "a'b", "x]y", "[x]", "#", "a # b", "a\nb", "\r\n", "\t", "\x00\x1f\x7f", "a.b", "é ü", "=", '"""', "\\", "", "int", "\u2028"]
)  # fmt: skip
numbers = st.floats(allow_nan=False, allow_infinity=False)
cells = st.booleans() | st.integers(-(2**63), 2**63 - 1) | numbers | texts


def several(least: int, most: int) -> st.SearchStrategy[list[Any]]:
    return st.lists(cells, min_size=least, max_size=most, unique_by=canon)


@st.composite
def features(draw: Any) -> dict[str, Any]:
    kind = draw(st.sampled_from(["numeric", "binary", "categorical"]))
    out: dict[str, Any] = {"kind": kind, "unit": draw(texts), "description": draw(texts)}
    if kind == "numeric":
        out["missing"] = draw(st.lists(st.integers(-99, 99) | numbers, max_size=2))
        low, high = sorted(draw(st.tuples(numbers, numbers)))
        if low < high:
            out["range"] = [low, high]
    else:
        both = draw(several(2 if kind == "binary" else 3, 5))
        n = 2 if kind == "binary" else draw(st.integers(2, len(both)))
        out["categories"], out["missing"] = both[:n], both[n:]
    return out


@st.composite
def studies(draw: Any) -> dict[str, Any]:
    names = draw(st.lists(texts, min_size=3, max_size=6, unique=True))
    share = st.floats(0.01, 0.99)
    out: dict[str, Any] = {
        "name": draw(texts),
        "description": draw(texts),
        "standardise": draw(st.sampled_from(["local", "global", "none"])),
        "site_column": draw(st.sampled_from([names[1], ""])),
        "seeds": draw(st.lists(st.integers(0, 2**63 - 1), min_size=1, max_size=4, unique=True)),
        "features": {name: draw(features()) for name in names[2:]},
        "split": {
            "test": draw(share),
            "at_least": draw(st.integers(0, 200)),
            "stratify": draw(st.booleans()),
        },
        "network": {
            "hidden": draw(st.lists(st.integers(1, 300), max_size=3)),
            "dropout": draw(st.floats(0, 0.9)),
        },
        "training": {
            "lr": draw(st.floats(1e-300, 1e6)),
            "total": draw(st.sampled_from(["sum", "mean"])),
            "optimiser": draw(st.sampled_from(["sgd", "adam"])),
            "memory": draw(st.sampled_from(["fresh", "own", "kept"])),
            "weight_decay": draw(st.floats(0, 1e6)),
            "rates": draw(st.dictionaries(texts, st.floats(0, 1e300), max_size=3)),
        },
        "method": draw(st.sampled_from([{"name": "local"}, {"name": "apfl", "alpha": 0.25, "adaptive": False}])),
    }
    if draw(st.booleans()):
        classes = draw(several(2, 4))
        out["target"] = {
            "column": names[0],
            "classes": classes,
            "positive": draw(st.sampled_from([*classes])),
        }
        metrics = [m for m in CLASS_METRICS if m != "f1_event" or len(out["target"]["classes"]) == 2]
        out["metrics"] = draw(st.lists(st.sampled_from(metrics), unique=True))
    else:
        out["target"] = {"column": names[0], "kind": "number", "center": draw(numbers), "unit": draw(texts)}
        out["metrics"] = draw(st.lists(st.sampled_from(NUMBER_METRICS), unique=True))
    hot = {f"{n}={canon(c)}" for n, f in out["features"].items() for c in f.get("categories", ())}
    assume(not hot & set(out["features"]))  # a feature may not be called like a category of another
    return out


@FUZZ
@given(studies())
def test_round_trip(tmp_path: Path, raw: dict[str, Any]) -> None:
    study = Study.parse(raw)
    study.save(tmp_path / "study.toml")
    again = Study.load(tmp_path / "study.toml")
    assert again == study
    assert again.to_toml() == study.to_toml()
    assert again.name == raw["name"]
    assert list(again.features) == list(raw["features"])
    assert again.network.hidden == tuple(raw["network"]["hidden"])
    assert {k: getattr(again.training, k) for k in raw["training"]} == raw["training"]


@FUZZ
@given(studies())
def test_every_key_has_its_line(raw: dict[str, Any]) -> None:
    """In what we write, each feature's line is where its section starts."""
    text = Study.parse(raw).to_toml()
    lines, rows = key_lines(text), text.split("\n")
    for name in raw["features"]:
        header = rows[lines["features", name] - 1]
        assert tomllib.loads(header) == {"features": {name: {}}}
        assert rows[lines["features", name, "kind"] - 1].startswith("kind = ")


def test_shipped_study_is_valid_and_survives(tmp_path: Path) -> None:
    study = Study.load(datasets.packaged("heart_disease.toml"))
    study.save(tmp_path / "again.toml")
    assert Study.load(tmp_path / "again.toml") == study
    assert set(study.features) | {"disease"} == set(datasets.heart_disease()["va"].columns)


# --- how sites train ---


def test_rates_as_a_section_or_in_one_line(tmp_path: Path) -> None:
    """Both ways of writing them, and they reach the engine by the names of the network's groups."""
    more = 'optimiser = "adam"\nmemory = "own"\nweight_decay = 0.01\n'
    inline = Study.load(write(tmp_path, below("lr", f"{more}rates = {{ head = 0.1, body = 2 }}")(GOOD)))
    section = Study.load(write(tmp_path, below("lr", f"{more}[training.rates]\nhead = 0.1\nbody = 2")(GOOD)))
    assert inline == section
    rule = build_task(inline, inline.build_method(), 0).rule
    assert isinstance(rule, Adam)
    assert (rule.lr, rule.decay) == (0.01, 0.01)
    heads = {name: by for name, by in rule.factors if name.startswith("head")}
    bodies = {name: by for name, by in rule.factors if name.startswith("body")}
    assert set(heads.values()) == {0.1}
    assert set(bodies.values()) == {2.0}
    assert len(heads) + len(bodies) == len(rule.factors)
    plain = Study.load(write(tmp_path, GOOD))
    assert "rates" not in plain.to_toml()  # what is empty is not written
    assert isinstance(build_task(plain, plain.build_method(), 0).rule, SGD)


def test_rates_of_groups_that_the_network_has_not() -> None:
    study = Study.parse(tomllib.loads(GOOD)).with_changes(training={"rates": {"haed": 0.1, "body": 1.0, "tail": 2.0}})
    with pytest.raises(VitrailError) as caught:
        build_task(study, study.build_method(), 0)
    told = {p.where: p for p in caught.value.problems}
    assert told.keys() == {"training.rates.haed", "training.rates.tail"}
    assert told["training.rates.haed"].what == "the network has no group 'haed'."
    assert told["training.rates.haed"].hint == "Did you mean 'head'?"
    assert told["training.rates.tail"].hint.startswith("Valid: body, head")


@pytest.mark.parametrize("training", [{"optimiser": "adam"}, {"rates": {"head": 0.5}}], ids=str)
def test_a_method_says_with_which_optimiser_it_does_not_go(training: dict[str, Any]) -> None:
    study = Study.parse(tomllib.loads(GOOD)).with_changes(training=training)
    scaffold, prox = methods.build("scaffold"), study.build_method()
    with pytest.raises(VitrailError) as caught:
        check_trainable([(study, prox), (study, scaffold), (study, scaffold)])
    (problem,) = caught.value.problems  # said once
    assert problem.where == "method SCAFFOLD"
    assert "plain SGD with one rate" in problem.what
    check_trainable([(study, prox)])
    check_trainable([(Study.parse(tomllib.loads(GOOD)), scaffold)])


def test_a_hint_names_methods_that_can_train_so() -> None:
    """Also where others among the methods cannot."""
    plain = Study.parse(tomllib.loads(GOOD))
    named = with_facts(plain, SHARE, TRUST).split(" or ")
    adam = plain.with_changes(training={"optimiser": "adam"})
    left = with_facts(adam, SHARE, TRUST).split(" or ")
    assert left == [name for name in named if not methods.build(name).incompatibilities(adam_task(adam))]
    assert 0 < len(left) < len(named)


def adam_task(study: Study) -> Task:
    return build_task(study, methods.build(methods.DEFAULT), 0)


# --- changes ---


def test_with_changes() -> None:
    study = Study.parse(tomllib.loads(GOOD))
    more = study.with_changes(training={"rounds": 7}, method={"name": "ditto"}, seeds=[5])
    assert (more.training.rounds, more.training.lr) == (7, study.training.lr)  # a section is merged
    assert more.method == {"name": "ditto"}  # a method is replaced: hyperparameters are its own
    assert more.seeds == (5,)
    assert study.training.rounds == 5  # the first is as it was
    assert study.with_changes() == study


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"training": {"rounds": 0}}, "training.rounds: expected at least 1"),
        ({"trainnig": {"rounds": 3}}, "Did you mean 'training'?"),
        ({"nmae": "x"}, "Did you mean 'name'?"),
        ({"name": {"a": 1}}, "name: expected a text"),
        ({"network": 3}, "network: expected a section"),
        ({"method": {"name": "fedporx"}}, "Did you mean 'fedprox'?"),
        ({"features": {"sick": {"kind": "numeric"}}}, "the target is also a feature"),
        ({"target": {"kind": "number", "classes": [], "positive": None}}, "no metric 'auc' for a number"),
    ],
)
def test_with_wrong_changes(changes: dict[str, Any], wanted: str) -> None:
    study = Study.parse(tomllib.loads(GOOD))
    with pytest.raises(VitrailError) as caught:
        study.with_changes(**changes)
    assert wanted in str(caught.value)


# --- drafts ---


def test_infer_heart_disease() -> None:
    study = Study.infer(datasets.heart_disease(), "disease")
    kinds = {name: f.kind for name, f in study.features.items()}
    assert study.target.levels == ("0", "1")
    assert study.target.positive == 1
    assert [n for n, k in kinds.items() if k == "binary"] == ["sex", "fbs", "exang"]
    assert [n for n, k in kinds.items() if k == "categorical"] == ["cp", "restecg", "slope", "ca", "thal"]
    assert [n for n, k in kinds.items() if k == "numeric"] == [
        "age",
        "trestbps",
        "chol",
        "thalach",
        "oldpeak",
    ]
    ages = pd.concat([f["age"] for f in datasets.heart_disease().values()])
    low, high = study.features["age"].range
    assert low < ages.min()
    assert ages.max() < high < ages.max() + 10
    assert study.features["thal"].categories == (3, 6, 7)


def awkward(n: int = 120) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    letters = np.array(list("abcdefghij"))
    return pd.DataFrame(
        {
            "empty": [None] * n,
            "constant": [7] * n,
            "patient": [f"P{i:05d}" for i in range(n)],
            "note": ["".join(rng.choice(letters, 9)) for _ in range(n)],
            "smoker": rng.random(n) < 0.5,
            "smoker or not known": pd.Series(rng.random(n) < 0.5).astype(object).where(rng.random(n) < 0.9, None),
            "crp": [f"{v:.1f}".replace(".", ",") for v in rng.random(n) * 90],
            "ward": rng.choice(["ward 1", "ward 2", " ward 3 "], n),
            "grade": rng.choice(["0", "1", "?", "NA", ""], n),
            "odd": rng.choice(["²", "--5", "1" * 5000], n),
            "bmi": rng.normal(25, 4, n),
            " padded ": rng.normal(0, 1, n),
            "nullable": pd.array([None if i % 9 == 0 else i * i for i in range(n)], dtype="Int64"),
            "sick": rng.choice(["no", "yes"], n),
        }
    )


def test_infer_awkward_columns() -> None:
    study = Study.infer({"one": awkward()[:60], "two": awkward()[60:].reset_index(drop=True)}, "sick")
    found = {name: (f.kind, f.categories) for name, f in study.features.items()}
    for left_out in ("empty", "constant", "patient", "note"):
        assert left_out not in found
    assert found["smoker"] == ("binary", (0, 1))
    assert found["smoker or not known"] == ("binary", (0, 1))
    assert found["ward"] == ("categorical", ("ward 1", "ward 2", "ward 3"))
    assert found["grade"] == ("binary", (0, 1))
    assert found["odd"][0] == "categorical"
    for name in ("crp", "bmi", "padded", "nullable"):
        assert found[name][0] == "numeric"
    crp = awkward()["crp"].str.replace(",", ".").astype(float)
    low, high = study.features["crp"].range
    assert low == 0
    assert crp.max() < high < 1.2 * crp.max()


def test_infer_fits_the_data_it_came_from() -> None:
    from vitrail.data.readers.tables import clean

    for frame in (awkward()[:60], awkward()[60:]):
        assert len(clean(frame, Study.infer({"all": awkward()}, "sick"))) == 60


def test_numbers_and_their_texts_are_read_the_same() -> None:
    """Columns that are numbers already take a shorter way than texts; both must lead to the same place."""
    from vitrail.data.encoding import prepare
    from vitrail.data.readers.cells import as_described

    draw = np.random.default_rng(0)
    values = draw.normal(size=80).round(3)
    other_nan = np.array([0xFFF8000000000001], dtype=np.uint64).view(np.float64)[0]  # as 0 / 0 makes it
    plain = pd.DataFrame(
        {
            "lab": values,
            "gaps": np.where(values > 0, other_nan, values),
            "coded": np.where(values > 1, -9.0, values),
            "short": values.astype(np.float32),
            "count": draw.integers(0, 300, 80).astype(np.uint16),
            "large": 2**53 + np.arange(80),
            "stage": draw.integers(1, 5, 80).astype(float),
            "dose": draw.choice([0.5, 1.0, 2.5], 80),
            "two": draw.choice([0.1, 7.0], 80),
            "smoker": values > 0,
            "same": np.ones(80),
            "empty": np.full(80, np.nan),
            "sick": draw.integers(0, 2, 80),
        }
    )
    as_text = plain.astype(object).map(lambda v: None if v != v else repr(v)).astype(object)
    endless = np.where(values > 1, np.inf, values)
    drafts, rows = [], []
    for frame in (plain, plain.astype(object), as_text):
        sites = {"one": frame[:50], "two": frame[50:]}
        study = Study.infer(sites, "sick")
        drafts.append(study.to_toml())
        features = study.features | {"coded": study.features["coded"].model_copy(update={"missing": (-9,)})}
        rows.append(prepare(sites, study.model_copy(update={"features": features}), 0))
        cells = pd.Series(endless).map(repr) if frame is as_text else pd.Series(endless, dtype=frame["lab"].dtype)
        _, bad = as_described(cells, features["lab"])
        assert bad.tolist() == np.isinf(endless).tolist()
    assert drafts[0] == drafts[1] == drafts[2]
    kinds = {name: f.kind for name, f in study.features.items()}
    assert kinds["stage"] == "categorical"
    assert kinds["two"] == kinds["smoker"] == "binary"
    assert {kinds[n] for n in ("lab", "gaps", "coded", "short", "count", "large", "dose")} == {"numeric"}
    for mine, *others in zip(*rows, strict=True):
        for other in others:
            assert other.fingerprint == mine.fingerprint
            np.testing.assert_array_equal(other.train_x, mine.train_x)


def test_infer_number_target() -> None:
    frame = pd.DataFrame({"x": np.arange(50.0) / 4, "cost": np.arange(50.0) * 3 + 0.5})
    study = Study.infer({"a": frame}, "cost")
    assert study.target.kind == "number"
    assert study.target.center == pytest.approx(frame["cost"].mean())
    assert study.target.scale == pytest.approx(frame["cost"].std(ddof=0))


def test_infer_leaves_the_site_column_out() -> None:
    frame = pd.DataFrame({"age": range(40), "hospital": ["a", "b", "c", "d"] * 10, "sick": [0, 1] * 20})
    study = Study.infer(dict(list(frame.groupby("hospital"))), "sick", site_column="hospital")
    assert list(study.features) == ["age"]
    assert study.site_column == "hospital"


def test_infer_columns_without_text_names() -> None:
    frame = pd.DataFrame({0: range(9), 1: [0, 1, 1] * 3})
    assert list(Study.infer({"a": frame}, "1").features) == ["0"]


@pytest.mark.parametrize(
    ("sites", "target", "wanted"),
    [
        ({}, "y", ["there are no sites"]),
        ({"a": pd.DataFrame({"x": [1]}), "b": pd.DataFrame({"yy": [1]})}, "y", ["a: there is no column 'y'", "b: ", "'yy'?"]),
        ({"a": pd.DataFrame({"x": [1, 2], "y": [0, 0]})}, "y", ["two or more classes"]),
        ({"a": pd.DataFrame({"x": [1, 1], "y": [0, 1]})}, "y", ["there are no features"]),
        ({"a": pd.DataFrame([[1, 2, 0]], columns=["x", "x", "y"])}, "y", ["a: there is more than one column 'x'"]),
    ],
)  # fmt: skip
def test_infer_refuses(sites: dict[str, pd.DataFrame], target: str, wanted: list[str]) -> None:
    with pytest.raises(VitrailError) as caught:
        Study.infer(sites, target)
    for part in wanted:
        assert part in str(caught.value)


# --- nothing else comes out ---

leaves = (
    cells
    | st.floats()
    | st.none()
    | st.text(st.characters(), max_size=5)
    | st.dates()
    | st.integers()
    | st.integers(14000, 20000).map(lambda n: 1 << n)
)
words = st.sampled_from(
    [*Study.model_fields, *Feature.model_fields, "column", "classes", "positive", "test", "hidden", "lr", "mu", "fedavg", "numeric"]
)  # fmt: skip
trees = st.recursive(leaves | words, lambda t: st.lists(t, max_size=3) | st.dictionaries(texts | words, t, max_size=3))


def outcome(read: Callable[..., Study], *given: Any) -> list[Problem]:
    """The problems that were told; of a valid study none, and then it survives being written."""
    try:
        study = read(*given)
    except VitrailError as error:
        return error.problems or [Problem("", "")]
    assert Study.parse(tomllib.loads(study.to_toml())) == study
    return []


def assert_parsed(raw: Any) -> None:
    """A study, or our own error with words for each problem."""
    assert all(p.what for p in outcome(Study.parse, raw))


@settings(FUZZ, max_examples=150)
@given(st.dictionaries(texts | words, trees, max_size=6))
def test_no_study_breaks_us(raw: dict[str, Any]) -> None:
    assert_parsed(raw)


@settings(FUZZ, max_examples=200)
@given(st.data())
def test_no_mutation_breaks_us(data: st.DataObject) -> None:
    """One to three places of the good study hold something else, or are gone."""
    raw: Any = copy.deepcopy(tomllib.loads(GOOD))
    for _ in range(data.draw(st.integers(1, 3))):
        at = raw
        while True:
            keys = list(at) if isinstance(at, dict) else list(range(len(at)))
            key = data.draw(st.sampled_from(keys)) if keys else "new"
            if not (keys and isinstance(at[key], dict | list) and data.draw(st.booleans())):
                break
            at = at[key]
        if isinstance(at, dict):
            if data.draw(st.booleans()):
                at[data.draw(texts | words)] = data.draw(trees)
            else:
                at[key] = data.draw(trees)
        elif keys:
            at[key] = data.draw(trees)
    assert_parsed(raw)


@FUZZ
@given(st.text(st.characters(codec="utf-8"), max_size=60) | st.binary(max_size=60))
def test_no_file_breaks_us(tmp_path: Path, content: str | bytes) -> None:
    said = message(write(tmp_path, content))  # no such file is a study: it takes more than 60 characters
    assert str(tmp_path / "study.toml") in said


@settings(FUZZ, max_examples=150)
@given(st.integers(0, len(GOOD)), st.integers(0, 9), st.text(st.sampled_from("[]{}\"'#=.,\n\\ae1-:"), max_size=6))
def test_no_slip_of_the_pen_breaks_us(tmp_path: Path, at: int, cut: int, more: str) -> None:
    path = write(tmp_path, GOOD[:at] + more + GOOD[at + cut :])
    assert all(p.what and p.where.startswith(str(path)) for p in outcome(Study.load, path))


def test_one_spelling_for_one_value() -> None:
    """canon is what makes 1, 1.0, "1" and true one category; the whole study leans on it."""
    assert canon(1) == canon(1.0) == canon("1") == canon(" 1 ") == canon(True) == canon("TRUE")
    assert canon("007") != canon(7)
    assert canon(canon("1.50")) == canon("1.50") == canon(1.5)


def test_a_study_from_before_evidence_says_sum_or_mean_as_its_loss() -> None:
    old = {"target": {"column": "y", "classes": [0, 1]}, "features": {"x": {"kind": "numeric"}}}
    study = Study.parse({**old, "training": {"loss": "mean"}})
    assert (study.training.total, study.training.loss) == ("mean", "likelihood")


def test_evidence_is_for_classes() -> None:
    raw = {"target": {"column": "y", "kind": "number"}, "features": {"x": {"kind": "numeric"}}}
    with pytest.raises(VitrailError, match="evidence is for classes"):
        Study.parse({**raw, "training": {"loss": "evidence"}})


PICTURES = {"target": {"column": "finding", "classes": ["no", "yes"]}, "images": {"size": [28, 28]}}


def test_a_study_of_pictures_has_a_network_for_them_and_survives(tmp_path: Path) -> None:
    study = Study.parse({**PICTURES, "images": {"size": [28, 20], "channels": 3, "augment": ["flip"]}})
    assert (study.network.kind, study.network.dropout, study.features) == ("cnn", 0.0, {})
    study.save(tmp_path / "study.toml")
    assert Study.load(tmp_path / "study.toml") == study


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"features": {"age": {"kind": "numeric"}}}, ["features: a study of pictures cannot have feature columns."]),
        ({"target": {"column": "y", "kind": "number"}}, ["target.kind: a study of pictures predicts classes"]),
        ({"target": {"column": "picture", "classes": [0, 1]}}, ["images.column: the column of pictures is the target."]),
        ({"images": {"size": [28]}}, ["images.size", "expected more values"]),
        ({"images": {"size": [4, 2000]}}, ["images.size: expected height and width from 8 to 1024 pixels, got [4, 2000]"]),
        ({"images": {}}, ["images.size: 'size' is missing."]),
        ({"images": {"size": [28, 28], "channels": 2}}, ["images.channels: expected 1 or 3, got 2."]),
        ({"images": {"size": [28, 28], "augment": ["turn"]}}, ["images.augment.0: expected 'flip', 'shift', 'brightness'"]),
        ({"network": {"kind": "mlp"}}, ["network.kind: mlp is for columns, but the study is of pictures. Write kind ="]),
        ({"network": {"kind": "cnnn"}}, ["network.kind: there is no network 'cnnn'. Did you mean"]),
        ({"network": {"dropout": 0.2}}, ["network.dropout: the network cnn does not have this key."]),
        ({"network": {"hidden": [64]}}, ["network.hidden: expected two layers, as cnn has"]),
        ({"images": None}, ["features: there are no features."]),
        ({"images": None, "features": {"x": {"kind": "numeric"}}, "network": {"kind": "cnn"}}, ["cnn is for pictures"]),
    ],
)  # fmt: skip
def test_a_broken_study_of_pictures(changes: dict[str, Any], wanted: list[str]) -> None:
    with pytest.raises(VitrailError) as caught:
        Study.parse({**PICTURES, **changes})
    for words in wanted:
        assert words in str(caught.value), str(caught.value)


def test_a_network_of_ones_own_is_a_kind_of_the_study(monkeypatch: pytest.MonkeyPatch) -> None:
    def mine(shape: tuple[int, ...], outputs: int, given: Any) -> nets.Module:
        return nets.Module(lambda: nn.Sequential(nn.Flatten(), nn.Linear(28 * 28, outputs)), shape)

    monkeypatch.setitem(nets.TABLE, "mine", nets.Kind(mine, pictures=True))
    study = Study.parse({**PICTURES, "network": {"kind": "mine"}})
    task = build_task(study, study.build_method(), 1)
    assert list(task.net.groups) == ["head"]
    assert task.net.normalise == "centred"  # type: ignore[attr-defined]
