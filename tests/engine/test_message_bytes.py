"""On the bytes: what a site keeps for itself is in no message, neither whole nor as a part of something larger; nor is
what a round changed in it: reports say changes, and whoever adds those up has what was kept."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from tests.support.byte_search import (
    TOLD,
    Recorder,
    make_engine,
    search,
)
from tests.support.small import SIZES
from vitrail import methods
from vitrail.core.exchange import SiteContext
from vitrail.core.tensors import flatten, map_tensors, subtract
from vitrail.methods.fedavg import Own, Shared, Up, Work
from vitrail.methods.ifedavg import IFedAvg


@dataclasses.dataclass(frozen=True)
class Leaky(IFedAvg):
    """What a careless change would do: a site's shift, or what the round changed in its factors, travels in the middle
    of a longer tensor."""

    leak: str = "shift"

    def report(self, site: SiteContext, state: Own, work: Work, down: Shared) -> tuple[Own, Up]:
        kept, up = super().report(site, state, work, down)
        noise = torch.arange(len(site.rows.total) * 7.0).view(-1, 7) / 3
        change = work.params["input.scale"] - state.params["input.scale"]
        extra = torch.cat([noise, work.params["input.shift"] if self.leak == "shift" else change, noise], 1)
        return kept, up._replace(change={**up.change, "statistics": extra})


KEEPERS = {
    "ifedavg, each": IFedAvg(output="each"),
    "ifedavg, scalar": IFedAvg(output="scalar"),
    "fedper": methods.build("fedper"),
    "apfl": methods.build("apfl"),
    "ditto": methods.build("ditto"),
}


@pytest.mark.parametrize("name", list(KEEPERS))
def test_private_bytes_are_in_no_message(name: str) -> None:
    hits, looked_for = search(KEEPERS[name])
    assert looked_for >= 3 * len(SIZES) - 1  # every site in every round; once one is away before it has moved
    assert hits["train"] == 0


@pytest.mark.parametrize("leak", ["shift", "change"])
def test_the_search_finds_a_leak(leak: str) -> None:
    assert search(Leaky(leak=leak))[0]["train"] > 0


@pytest.mark.parametrize("output", ["no", "each", "scalar"])
def test_the_search_finds_what_is_published_by_consent(output: str) -> None:
    hits, _ = search(IFedAvg(output=output))
    assert hits["train"] == 0
    assert hits["publish"] > 0


@pytest.mark.parametrize("output", ["each", "scalar"])
def test_reports_tell_how_far_an_answers_shift_moved(output: str) -> None:
    """Both have the same gradient: a property of the method, which its consent text says."""
    method = IFedAvg(output=output)
    engine = make_engine(method)
    recorder = Recorder(engine)
    run = engine.run()
    before = map_tensors(torch.clone, engine.start().state)
    moved = subtract(dict(flatten(next(run).state)), dict(flatten(before)))[TOLD]
    heard = [torch.frombuffer(bytearray(m), dtype=torch.float32) for m in recorder.sent["train"] if len(m) % 4 == 0]
    moved = moved[moved.abs().amax(1) > 0]  # who was not away
    offsets = [m.view(moved.shape) for m in heard if m.numel() == moved.numel()]
    assert any(torch.allclose(m, moved, atol=1e-6) for m in offsets)
    assert "can be told before" in method.plan(3)[1].exchanges[0].consent
