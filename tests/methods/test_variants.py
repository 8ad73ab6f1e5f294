"""A method with other hyperparameters, named in one word: compared with itself."""

from __future__ import annotations

import pytest

from tests.support.small import opposed_tables
from vitrail import methods
from vitrail.core.errors import VitrailError
from vitrail.studies.compare.execution import compare
from vitrail.study.model import Study


def test_a_name_with_hyperparameters_is_the_method_with_them() -> None:
    name = "fedprox:mu=0.5:weights=rows"
    built = methods.build(name)
    assert (built.mu, built.weights) == (0.5, "rows")
    assert methods.name_of(built) == "fedprox"
    assert methods.settings(built) == methods.settings(methods.build("fedprox", {"mu": 0.5, "weights": "rows"}))
    assert methods.TABLE[name] is methods.TABLE[name]
    assert methods.TABLE[name].catalogue.title == "FedProx (mu 0.5, weights rows)"
    assert name in methods.TABLE
    assert name not in list(methods.TABLE), "lists stay as they were"
    assert methods.build(name, {"mu": 0.1}).mu == 0.1


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("fedprox:m=0.5", "fedprox has no hyperparameter 'm'"),
        ("fedprox:mu=much", "expected a number >= 0, got 'much'"),
        ("fedprox:mu", "expected a number >= 0, got ''"),
        ("fedprx:mu=1", "there is no method 'fedprx:mu=1'"),
    ],
)
def test_mistakes_are_told(name: str, said: str) -> None:
    with pytest.raises(VitrailError, match=said):
        methods.build(name)


def test_a_comparison_of_a_method_with_itself() -> None:
    tables = opposed_tables({"first": 60, "middle": 60, "last": 60})
    study = Study.infer(tables, target="sick").with_changes(training={"rounds": 3})
    names = ["local", "fedprox:mu=0.01", "fedprox:mu=10.0"]
    result = compare(study, tables, names, seeds=[1, 2])
    assert list(result.methods) == names
    mean = result.scores.groupby("method")["value"].mean()
    assert mean["fedprox:mu=0.01"] != mean["fedprox:mu=10.0"], "they are not the same run"
