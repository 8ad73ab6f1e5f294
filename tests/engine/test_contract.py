"""Only what was declared crosses: names, shapes and types, in both directions, at every message of a round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch

from tests.support.small import make_sites, make_task
from vitrail.core.errors import VitrailError
from vitrail.engine.contract import Ledger, check, spec_of, trace
from vitrail.engine.local import Engine
from vitrail.engine.rounds import Training
from vitrail.methods.fedavg import FedAvg, Shared

DECLARED = {"params/a": ((2, 3), torch.float64), "params/b": ((4,), torch.float64)}
A, B = torch.zeros(5, 2, 3).double(), torch.zeros(5, 4).double()


def test_what_is_declared_passes() -> None:
    assert spec_of(Shared({"a": A, "b": B})) == DECLARED
    check(Shared({"a": A, "b": B}), DECLARED, "train", "from site")
    check(Shared({"b": B[:1], "a": A[:1]}), DECLARED, "train", "from site")  # whatever the order, however many sites


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ({"a": A, "b": B, "rows": B}, "tensor params/rows: not declared"),
        ({"a": A}, "tensor params/b: declared in the contract but absent"),
        ({"a": A.transpose(1, 2), "b": B}, r"tensor params/a: declared as .*2, 3.*, came as .*3, 2"),
        ({"a": A, "b": torch.zeros(5, 40).double()}, r"tensor params/b: declared as .*4.*, came as .*40"),
        ({"a": A.float(), "b": B}, r"tensor params/a: declared as .*float64.*, came as .*float32"),
    ],
)
def test_what_is_not_is_refused_by_name(said: dict, words: str) -> None:
    with pytest.raises(VitrailError, match=words):
        check(Shared(said), DECLARED, "train", "from site")


def tells(kind: str, value: torch.Tensor) -> dict[str, torch.Tensor]:
    """What a careless or a curious method adds once it has real rows; the contract was traced without any."""
    head = value.new_zeros(len(value), 7)
    return {"more": {"rows": head}, "shape": {"head.bias": head}, "type": {"head.bias": value.float()}}[kind]


@pytest.mark.parametrize("kind", ["more", "shape", "type"])
@pytest.mark.parametrize("engine", [{}, {"looped": True}], ids=str)
def test_a_report_with_more_than_was_declared_does_not_leave(kind: str, engine: dict) -> None:
    merged: list[int] = []

    @dataclass(frozen=True)
    class Curious(FedAvg):
        def report(self, site: Any, state: Any, work: Any, down: Any) -> Any:
            kept, up = super().report(site, state, work, down)
            if float(site.rows.total.max()) > 1:
                up = up._replace(change={**up.change, **tells(kind, up.change["head.bias"])})
            return kept, up

        def merge(self, *given: Any) -> Any:
            merged.append(1)
            return super().merge(*given)

    e = Engine(make_task(), Curious(), make_sites(), Training(rounds=2, batch=8), 5, **engine)
    merged.clear()  # what was rehearsed
    with pytest.raises(VitrailError, match="breaks the wire contract"):
        list(e.run())
    assert not merged


def test_what_is_sent_is_checked_too() -> None:
    @dataclass(frozen=True)
    class Chatty(FedAvg):
        def send(self, task: Any, coord: Any, roster: Any) -> Any:
            down = super().send(task, coord, roster)
            others = {"others": torch.zeros(len(roster.names), 5).double()} if len(roster.names) > 1 else {}
            return Shared({**down.params, **others})

        def begin(self, site: Any, state: Any, down: Any) -> Any:
            known = Shared({k: v for k, v in down.params.items() if k != "others"})
            return super().begin(site, state, known)

    e = Engine(make_task(), Chatty(), make_sites(), Training(rounds=1), 5)
    with pytest.raises(VitrailError, match="tensor params/others: not declared"):
        next(iter(e.run()))


def test_the_ledger_counts_who_was_there() -> None:
    ((contract,),) = trace(make_task(), FedAvg(), 3)
    ledger = Ledger(("a", "b", "c"))
    ledger.declare(contract)
    ledger.enter(contract, "from site", torch.tensor([True, False, True]))
    ledger.enter(contract, "from site", torch.tensor([False, False, True]))
    ledger.enter(contract, "to site", None)
    size = {way: contract.size(way) for way in ("to site", "from site")}
    numbers = sum(v.numel() for v in make_task().start.values())
    assert size == {"to site": 8 * numbers, "from site": 8 * (numbers + 1)}
    told = {(r["site"], r["direction"]): (r["messages"], r["bytes"]) for r in ledger.rows()}
    for name, n in (("a", 1), ("b", 0), ("c", 2)):
        assert told[name, "from site"] == (n, n * size["from site"])
        assert told[name, "to site"] == (1, size["to site"])
