"""What a GPU captures as a graph may not look at a number: on a machine without a GPU every such look is an error here.

The whole of the product's GPU path was broken for a day by one `bool(tensor)`, and no test on a CPU could see it.
"""

from __future__ import annotations

from pathlib import Path
from traceback import extract_stack
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tests.support.small import make_sites, make_task, pooled
from vitrail import methods
from vitrail.core.exchange import AnyExchange
from vitrail.engine.local import Engine
from vitrail.engine.rounds import Training
from vitrail.privacy.guards import AT_REST, Guards

LOOKS = {"_local_scalar_dense", "nonzero", "masked_select", "equal", "is_nonzero", "unique", "lift_fresh"}
OURS = str(Path(methods.__file__).parents[1])
ASKS_THE_DEVICE_FIRST = {"per_user._descend", "cfl.merge", "local._within"}  # and looks on a CPU only
METHODS = [name for name in methods.TABLE if not methods.TABLE[name].catalogue.required_net]


class Blind(TorchDispatchMode):
    """No number is looked at or brought in from outside, and there is nothing whose shape hangs on numbers."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        by_truth = name in ("index", "index_put", "index_put_") and any(
            t is not None and t.dtype == torch.bool for t in args[1]
        )
        if (name in LOOKS or by_truth) and not self._asked_first():
            raise AssertionError(f"a captured round looks at a number: {func}")
        return func(*args, **(kwargs or {}))

    def _asked_first(self) -> bool:
        frames = (f"{Path(f.filename).stem}.{f.name}" for f in reversed(extract_stack()) if f.filename.startswith(OURS))
        return next(frames, "") in ASKS_THE_DEVICE_FIRST


class Captured(Engine):
    """An engine on a CPU whose exchanges are blind where a GPU would capture them."""

    captured = 0

    def exchange(self, at: Any, coord: Any, state: Any, roster: Any, here: Any, *rest: Any) -> Any:
        ex: AnyExchange = self.stages[at[0]].exchanges[at[1]]
        if not (ex.trains and here is self.everyone):
            return super().exchange(at, coord, state, roster, here, *rest)
        self.captured += 1
        feed, _ = self.feed(), self.sites.spans  # drawn before, and beside the capture; there since the warm-up
        with Blind():
            return super().exchange(at, coord, state, roster, here, *rest, feed)


def captured(name: str, guards: Guards) -> int:
    method = methods.build(name, {})
    sites, task = pooled(method, make_sites()), make_task(affine_in=True, affine_out="each")
    engine = Captured(task, method, sites, Training(rounds=3, batch=8), 5, chunk=len(sites.names), guards=guards)
    for _ in engine.run():
        pass
    return engine.captured


@pytest.mark.parametrize("name", METHODS)
def test_a_round_that_is_captured_looks_at_no_number(name: str) -> None:
    assert captured(name, AT_REST)


@pytest.mark.parametrize("name", ["fedavg", "fedprox"])
def test_nor_does_a_masked_one(name: str) -> None:
    assert captured(name, Guards(masked=True))


def test_a_look_is_seen() -> None:
    for look in (
        lambda t: t.__setitem__(0, 2.0),
        lambda t: t.new_tensor([3.0]),
        bool,
        float,
        lambda t: t.nonzero(),
        lambda t: torch.arange(1)[t > 0],
    ):
        with pytest.raises(AssertionError, match="looks at a number"), Blind():
            look(torch.ones(1))
