"""What a method declares: groups that are read or refused, and hyperparameters within their bounds."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import pytest

from vitrail import methods
from vitrail.core.declarations import (
    Adapters,
    Catalogue,
    Ge,
    Gt,
    Le,
    Lt,
    Needs,
    WireRules,
    describe,
    fits,
    hyperparameters,
)
from vitrail.core.exchange import Exchange, Nothing
from vitrail.methods import FedAvg, FedProx

Bounded = Annotated[float, Ge(0), Lt(1)]
OLD_OF_METHODS = {
    "told": "WireRules(disclosed_state",
    "grows": "WireRules(per_site_messages",
    "tries": "Catalogue(tuning_grid",
    "title": "Catalogue(title",
    "pools_rows": 'Catalogue(baseline="pooled"',
    "knows": "self_report",
    "judged_by": "training_loss",
    "ruled_by": "training_optimizer",
    "aside": "Needs(validation_share",
    "ends": "Needs(adapters",
    "clashes": "incompatibilities",
}
OLD_OF_EXCHANGES = {
    "sees": "WireRules(aggregation",
    "counts": "WireRules(weight_fields",
    "judges": "WireRules(score_fields",
    "hits": "WireRules(hit_fields",
    "unsure": "WireRules(may_be_nan",
    "settles": "WireRules(final_fields",
    "places": "Needs(row_indices",
    "holds_out": "Needs(holdout",
}


class Says(Exchange[Any, Any, Nothing, Nothing, Nothing]):
    def report(self, site: Any, state: Any, work: Nothing, down: Nothing) -> Any:
        return state, Nothing()


@pytest.mark.parametrize(("old", "place"), (OLD_OF_METHODS | OLD_OF_EXCHANGES).items())
def test_a_method_that_declares_by_an_old_name_is_told_the_new_place(old: str, place: str) -> None:
    with pytest.raises(TypeError, match="Mine") as caught:
        type("Mine", (FedAvg,), {old: "each"})
    assert f"`{old}` is now declared as" in str(caught.value)
    assert place in str(caught.value)


@pytest.mark.parametrize(("old", "place"), OLD_OF_EXCHANGES.items())
def test_so_is_an_exchange(old: str, place: str) -> None:
    with pytest.raises(TypeError) as caught:
        type("Mine", (Says,), {old: "each"})
    assert place in str(caught.value)


def test_an_exchange_may_use_words_that_only_methods_had() -> None:
    assert type("Mine", (Says,), {"title": "mine", "ends": 3})().wire == WireRules()


def test_all_old_names_are_named_at_once_also_those_of_a_base() -> None:
    class Half:
        sees = "sum"

    with pytest.raises(TypeError, match=r"`sees` is now .*aggregation.*; `told` is now .*disclosed_state"):

        class Mine(Half, FedAvg):
            told: ClassVar[frozenset[str]]


def test_a_group_with_a_type_would_be_a_hyperparameter() -> None:
    with pytest.raises(TypeError, match="without a type, or it becomes a hyperparameter"):

        @dataclass(frozen=True)
        class Mine(FedAvg):
            wire: WireRules = WireRules("sum")  # noqa: RUF009


@pytest.mark.parametrize("name", ["wire", "needs", "catalogue"])
def test_a_group_is_of_its_kind(name: str) -> None:
    with pytest.raises(TypeError, match=f"`{name}` is 'prototypes'; expected {name} = "):
        type("Mine", (FedAvg,), {name: "prototypes"})


@pytest.mark.parametrize(
    "given",
    [
        {"wire": WireRules(disclosed_state={"params"})},
        {"wire": WireRules(per_site_messages=True)},
        {"needs": Needs(validation_share=0.1)},
        {"needs": Needs(adapters=Adapters(True))},
    ],
)
def test_what_a_method_declares_is_no_business_of_its_other_exchanges(given: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="declared by the method, not by one of its exchanges"):
        type("Mine", (Says,), given)
    type("Mine", (FedAvg,), given)


def test_declarations_that_nobody_could_keep_are_refused() -> None:
    with pytest.raises(TypeError, match="expected 'sum' or 'each'"):
        WireRules("Sum")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"a set of names of fields, such as \{'weight'\}"):
        WireRules(weight_fields="weight")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="expected 'alone' or 'pooled', or nothing"):
        Catalogue(baseline="pool")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"\['counts'\] must be among the score_fields"):
        WireRules(hit_fields={"counts"})


def test_groups_may_follow_from_hyperparameters() -> None:
    @dataclass(frozen=True)
    class Mine(FedAvg):
        share: Bounded = 0.2

        @property
        def needs(self) -> Needs:
            return Needs(validation_share=self.share)

    assert (Mine().needs.validation_share, Mine(share=0.5).needs.validation_share) == (0.2, 0.5)
    assert Mine.catalogue.title == "FedAvg"


HINTS: list[tuple[Any, list[Any], list[Any], str]] = [
    (int, [-3, 0, 2**63 - 1], [0.5, True, "1", 2**63, None], "a whole number"),
    (float, [-0.5, 3, 1e300], [float("inf"), float("nan"), True, "1"], "a number"),
    (Annotated[int, Ge(1)], [1, 9], [0, -1, 1.5], "a whole number >= 1"),
    (Annotated[float, Gt(0), Le(0.5)], [0.5, 0.1], [0, 0.51, -1], "a number > 0 and <= 0.5"),
    (Bounded | None, [0, 0.99], [1, -0.1], "a number >= 0 and < 1"),
    (Annotated[float | None, Ge(2)], [2.0], [1.9], "a number >= 2"),
    (Annotated[int, Ge(1)] | Literal["never"], [1, "never"], [0, "seldom"], "a whole number >= 1 or 'never'"),
    (tuple[Annotated[int, Ge(1)], ...], [(), [1, 2], (3,)], [[0], (1, 0), 1, "12"], "a list, each a whole number >= 1"),
    (Literal["a", 1], ["a", 1], [True, 1.0, "b"], "'a' or 1"),
    (bool, [True], [1, "yes"], "true or false"),
    (Annotated[str, "of a file"], [""], [1], "a text"),
]


@pytest.mark.parametrize(("hint", "right", "wrong", "words"), HINTS, ids=str)
def test_types_and_bounds(hint: Any, right: list[Any], wrong: list[Any], words: str) -> None:
    assert all(fits(value, hint) for value in right)
    assert not any(fits(value, hint) for value in wrong)
    assert describe(hint) == words


def test_values_beyond_their_bounds_are_refused_all_at_once() -> None:
    with pytest.raises(ValueError, match=r"^lr: expected a number >= 0, got -1; mu: expected a number >= 0, got inf$"):
        FedProx(lr=-1, mu=float("inf"))


@dataclass(frozen=True)
class Free(FedAvg):
    shift: float = 0.0


def test_without_a_bound_there_is_none_but_a_number_is_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(methods.TABLE, "free", Free)
    assert methods.build("free", {"shift": -5.0}) == Free(shift=-5.0)
    [wrong] = methods.problems("free", {"shift": float("nan")}, "method")
    assert wrong.what == "expected a number, got nan."
    [wrong] = methods.problems("fedavg", {"invited": 2**70}, "method")
    assert wrong.what.endswith("which has more than 64 bits.")


@pytest.mark.parametrize("kind", [*methods.TABLE.values(), *methods.PARTIES.values()], ids=lambda kind: kind.__name__)
def test_every_number_of_ours_has_a_bound_and_a_default_within(kind: type) -> None:
    for field in dataclasses.fields(kind):
        hint = hyperparameters(kind)[field.name]
        assert field.default is None or fits(field.default, hint), field.name
        words = describe(hint)
        assert "number" not in words or any(sign in words for sign in "<>"), f"{field.name}: {words}"


def test_equal_numbers_in_different_bounds_are_different_bounds() -> None:
    """`typing` keeps the first of two equal annotations: as tuples, the bound that a module loaded first would win."""
    kept = [
        Annotated[float, Lt(7919)],
        Annotated[float, Le(7919)],
        Annotated[float, Gt(7919)],
        Annotated[float, Ge(7919)],
    ]
    assert [fits(7919.0, hint) for hint in kept] == [False, True, False, True]
