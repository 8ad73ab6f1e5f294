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
    "ifedavg, factor": IFedAvg(output="factor"),
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


@pytest.mark.parametrize("output", ["no", "each", "scalar", "shift", "factor"])
def test_the_search_finds_what_is_published_by_consent(output: str) -> None:
    hits, _ = search(IFedAvg(output=output))
    assert hits["train"] == 0
    assert hits["publish"] > 0


@pytest.mark.parametrize("output", ["each", "scalar", "shift"])
def test_reports_tell_how_far_an_answers_shift_moved(output: str) -> None:
    """Both have the same gradient, so that it is exact in the first round: a property of the method."""
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
    assert "can be estimated before" in method.plan(3)[1].exchanges[0].consent


@pytest.mark.parametrize("output", ["no", "factor"])
def test_reports_tell_about_how_far_factors_and_shifts_moved(output: str) -> None:
    """Of one round: w^2 / 2 moves as sum W dW, and b_in as w_in W d(offsets), where dropout adds nothing."""
    method = IFedAvg(output=output)
    engine = make_engine(method, dropout=0.0, keep_reports=True)
    start = {k: v for k, v in engine.task.start.items() if not k.startswith(("input", "output"))}
    own = next(iter(engine.run())).state.params
    change = {k: v.double() for k, v in engine.reports.change.items()}
    here = change["head.bias"].abs().amax(1) > 0  # who was not away
    middle = {k: v + change[k] / 2 for k, v in start.items()}
    w = (1 + 2 * (middle["body.0.weight"] * change["body.0.weight"]).sum(2)).sqrt()
    guesses = {"input.scale": w - 1}
    guesses["input.shift"] = (1 + w) / 2 * (middle["body.0.weight"] @ change["body.0.bias"].unsqueeze(2)).squeeze(2)
    if output == "factor":
        moved = (middle["head.weight"] * change["head.weight"]).sum(1) + middle["head.bias"] * change["head.bias"]
        guesses["output.scale"] = (1 + 2 * moved).sqrt() - 1
    for name, guess in guesses.items():
        truth = own[name].double() - float(name.endswith("scale"))
        together = torch.corrcoef(torch.stack([guess[here].flatten(), truth[here].flatten()]))[0, 1]
        assert together > 0.9, name
    assert "can be estimated before" in method.plan(3)[1].exchanges[0].consent
