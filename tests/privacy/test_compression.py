"""Compression: what crosses is what was declared, is read exactly, and what it loses is said later."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import vitrail as vt
from tests.support.small import gap, make_task, models, opposed_tables, train
from vitrail import methods
from vitrail.core.tensors import flatten
from vitrail.engine.contract import rehearse, spec_of
from vitrail.engine.rounds import Training
from vitrail.methods import TABLE
from vitrail.privacy import Guards, compression

HOWS = ("int8", "rank")
TASK = {"hidden": (24, 16)}


def trained(name: str) -> list[Any]:
    """Every training exchange of a method, with a report of two sites."""
    method = methods.build(name)
    ends = method.needs.adapters
    task = make_task(**TASK, affine_in=ends.input, affine_out=ends.output)
    turns = [turn for t in rehearse(task, method, 1, 2) for turn in t.turns]
    said = [turn for turn in turns if any(True for _ in flatten(turn.up))]
    return [turn for turn in said if turn.exchange.trains and not turn.exchange.consent]


@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize(
    "name", [n for n, kind in TABLE.items() if kind.catalogue.federated and not kind.catalogue.required_net]
)
def test_what_crosses_is_what_was_declared(name: str, how: Any) -> None:
    for turn in trained(name):
        ex, up, report = turn.exchange, turn.up, spec_of(turn.up)
        guards = Guards(compress=how)
        memory = guards.error_feedback(ex, report, len(next(v for _, v in flatten(up))), torch.zeros(1))
        read, crossed, after = guards.written(ex, up, memory)
        assert {k: (tuple(v.shape[1:]), v.dtype) for k, v in crossed.items()} == guards.compressed_spec(ex, report)
        assert spec_of(read) == report
        assert {k: (v.shape, v.dtype) for k, v in after.items()} == {k: (v.shape, v.dtype) for k, v in memory.items()}
        again = guards.read(ex, up, crossed)
        assert all(torch.equal(a, b) for (_, a), (_, b) in zip(flatten(read), flatten(again), strict=True))


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_whole_numbers_are_read_exactly_and_are_near(kind: Any) -> None:
    v = torch.randn(3, 2500, generator=torch.Generator().manual_seed(1), dtype=kind) * torch.tensor(
        [[1e-6], [1.0], [1e9]]
    )
    crossed, _ = compression.compress({"w": v}, {"lost/w": torch.zeros_like(v)}, "int8")
    read = compression.decompress({"w": v}, crossed, "int8")["w"]
    again, _ = compression.compress({"w": read}, {"lost/w": torch.zeros_like(v)}, "int8")
    assert all(torch.equal(crossed[k], again[k]) for k in crossed), "a power of two: nothing is lost twice"
    assert float(((read - v).abs().amax(1) / v.abs().amax(1)).max()) <= 1 / 127


def test_what_is_no_number_is_not_hidden() -> None:
    v = torch.ones(2, 1500)
    v[0, 1400], v[1, 3] = torch.nan, torch.inf
    crossed, after = compression.compress({"w": v}, {"lost/w": torch.zeros_like(v)}, "int8")
    read = compression.decompress({"w": v}, crossed, "int8")["w"]
    assert not read[0].isfinite().all()
    assert not read[1].isfinite().all()
    assert read[1, 1024:].isfinite().all()
    assert after["lost/w"].isfinite().all()


@pytest.mark.parametrize("how", HOWS)
def test_what_is_lost_is_said_later(how: Any) -> None:
    """The same change again and again: in the mean it arrives, and without a memory it does not."""
    g = torch.Generator().manual_seed(2)
    v, many = torch.randn(2, 12, 10, generator=g, dtype=torch.double), 200
    ex = methods.build("fedavg")
    first = compression.error_feedback(ex, {"change/w": ((12, 10), torch.double)}, how, 2, torch.zeros(1))
    off = {}
    for feedback in (True, False):
        kept, total = dict(first), torch.zeros_like(v)
        for _ in range(many):
            crossed, after = compression.compress({"change": {"w": v}}, kept, how)
            kept = after if feedback else {**after, "lost/change/w": torch.zeros_like(v)}
            total += compression.decompress({"change": {"w": v}}, crossed, how)["change"]["w"]
        off[feedback] = float((total / many - v).norm() / v.norm())
    assert off[True] < 0.1 * off[False]
    assert off[True] < 0.03


@pytest.mark.parametrize("how", HOWS)
def test_engines_agree_and_the_model_is_near(how: Any) -> None:
    task, guards = make_task(**TASK), Guards(compress=how)
    plain = train(methods.build("fedavg"), task, training=Training(rounds=6))
    one, other = (
        train(methods.build("fedavg"), task, training=Training(rounds=6), guards=guards, chunk=c) for c in (5, 1)
    )
    assert gap(models(*one), models(*other)) < 1e-9
    assert 0 < gap(models(*one), models(*plain)) < 0.05


def study(how: str) -> Any:
    tables = opposed_tables({"north": 60, "south": 50, "west": 44})
    network = {"kind": "mlp", "hidden": (32, 16)}
    return vt.Study.infer(tables, "sick", training={"rounds": 6}, network=network, protect={"compress": how}), tables


def test_the_ledger_counts_what_crossed() -> None:
    told = {}
    for how in ("no", "int8", "rank"):
        found, tables = study(how)
        run = vt.federate(found, tables, "fedavg", rounds=2)
        lines = [x for x in run.plan.wire() if x.direction == "from site" and x.stage == "train"]
        rows = run.ledger[(run.ledger.stage == "train") & (run.ledger.direction == "from site")]
        assert set(rows.bytes) == {sum(x.bytes for x in lines) * 2}
        told[how] = int(rows.bytes.iloc[0])
    assert told["int8"] < 0.3 * told["no"]
    assert told["rank"] < 0.6 * told["no"]


def test_a_run_that_was_stopped_remembers_what_it_has_not_said(tmp_path: Path) -> None:
    class StoppedError(Exception):
        pass

    def stop(done: int, total: int) -> None:
        if done == 3:
            raise StoppedError

    found, tables = study("int8")
    whole = vt.federate(found, tables, "fedavg")
    with pytest.raises(StoppedError):
        vt.federate(found, tables, "fedavg", out=tmp_path / "run", progress=stop, checkpoint_seconds=0)
    again = vt.federate(found, tables, "fedavg", out=tmp_path / "run", resume=True)
    for site, model in whole.models.items():
        assert all(torch.equal(v, again.models[site][k]) for k, v in model.items())
