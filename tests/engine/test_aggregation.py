"""What the coordinator is given of reports, whichever way they came."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from vitrail import methods
from vitrail.core.exchange import AnyExchange, Roster
from vitrail.core.tensors import flatten, map_tensors
from vitrail.engine.aggregation import Aggregator, BufferedReports, collect_all, collect_coalitions, merge
from vitrail.engine.contract import Spec, rehearse, spec_of
from vitrail.engine.rounds import Snapshot
from vitrail.nets import MLP
from vitrail.privacy.guards import AT_REST, Guards
from vitrail.runs.folder import UPDATES, Folder
from vitrail.testing.federation import LOSSES, task_of

NAMES = tuple("abcdefghi")
EVERYONE = torch.ones(len(NAMES), dtype=torch.bool)
ABSENT = torch.tensor([n != "b" for n in NAMES])


def exchange_of(name: str) -> tuple[AnyExchange, Any, Any, Spec]:
    """The first exchange of a method, what it sends, reports [site, ...] of random numbers, and a report's shapes."""
    method = methods.build(name)
    task = task_of(MLP(6, 3, (5,), 0.0).framed(method.needs.adapters), LOSSES["classes"])
    turn = next(iter(rehearse(task, method, 1, len(NAMES)))).turns[0]
    draw = torch.Generator().manual_seed(3)

    def random(like: torch.Tensor) -> torch.Tensor:
        return torch.rand((len(NAMES), *like.shape[1:]), generator=draw, dtype=torch.double).to(like) + 1

    return turn.exchange, map_tensors(random, turn.down), map_tensors(random, turn.up), spec_of(turn.up)


def aggregator(guards: Guards = AT_REST) -> Aggregator:
    return Aggregator(NAMES, guards, EVERYONE)


def roster(present: torch.Tensor) -> Roster:
    return Roster(NAMES, present, torch.arange(len(NAMES)), torch.tensor(1))


def buffered(gather: Aggregator, ex: AnyExchange, up: Any, present: torch.Tensor, size: int) -> list[BufferedReports]:
    """In parts of so many sites. What is given is overwritten, as memory of a round is."""
    parts = []
    for at in present.nonzero()[:, 0].split(size):
        chunk = map_tensors(lambda t: t[at], up)  # noqa: B023
        parts.append(gather.buffer_report(ex, at, chunk, {"short": torch.ones(1)}))
        for _, t in flatten(chunk):
            t.fill_(-1)
    return parts


def same(one: Any, other: Any) -> None:
    a, b = dict(flatten(one)), dict(flatten(other))
    assert a.keys() == b.keys()
    for k in a:
        torch.testing.assert_close(a[k], b[k])


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("size", [1, 4, 9])
@pytest.mark.parametrize(("name", "sees"), [("fedavg", "sum"), ("influence", "each")])
def test_every_way_leads_to_the_same(name: str, sees: str, size: int, keep: bool) -> None:
    ex, _, up, shapes = exchange_of(name)
    assert ex.wire.aggregation == sees
    gather = aggregator()
    gather.keep_reports = keep
    parts = buffered(gather, ex, up, ABSENT, size)
    collected = gather.collect(ex, parts, roster(ABSENT), shapes)
    here = map_tensors(lambda t: t * ABSENT.reshape(-1, *[1] * (t.dim() - 1)).to(t), up)
    assert collected is not None
    same(collected.total, map_tensors(lambda t: t.sum(0), here) if sees == "sum" else here)
    assert collected.present.equal(ABSENT)
    assert all(bool(part.crossed) == keep for part in parts)
    if keep:
        same(collected.reports, here)
    else:
        assert collected.reports is None
    same(collect_all(ex, here, ABSENT).total, collected.total)
    nobody, some = collect_coalitions(ex, up, torch.stack([~EVERYONE, ABSENT]))
    assert nobody is None
    assert some is not None
    same(some.total, collected.total)
    assert some.present.equal(ABSENT)


def test_of_too_few_nothing_is_opened_and_the_coordinator_stays() -> None:
    ex, _, up, shapes = exchange_of("fedavg")
    gather, coord = aggregator(Guards(masked=True)), object()
    few, enough = torch.arange(len(NAMES)) < 2, torch.arange(len(NAMES)) < 8
    assert gather.collect(ex, buffered(gather, ex, up, few, 1), roster(few), shapes) is None
    assert gather.collect(ex, buffered(gather, ex, up, enough, 1), roster(enough), shapes) is not None
    assert gather.collect(ex, [], roster(~EVERYONE), shapes) is None
    assert merge(ex, None, coord, None, roster(few)) == (coord, {})  # type: ignore[arg-type]


def test_an_opened_sum_is_taken_as_it_is_and_groups_are_weighed() -> None:
    ex, _, up, _ = exchange_of("fedavg")
    masked = aggregator(Guards(masked=True)).collect_sums(ex, map_tensors(lambda t: t[:1], up), ABSENT[None])
    same(masked.total, map_tensors(lambda t: t[0], up))
    assert masked.present.equal(ABSENT)
    assert not masked.facts
    groups = torch.eye(3, dtype=torch.bool).repeat_interleave(3, 1)
    sums = map_tensors(lambda t: t[:1].repeat(3, *[1] * (t.dim() - 1)), up)
    sums = sums._replace(
        change={
            k: v * torch.tensor([1.0, 1.0, 1e3]).reshape(-1, *[1] * (v.dim() - 1)).to(v) for k, v in sums.change.items()
        }
    )
    weighed = aggregator(Guards(sum="groups", robust="median")).collect_sums(ex, sums, groups)
    added = dict(flatten(map_tensors(lambda t: t.sum(0), sums)))
    assert weighed.facts
    for k, v in flatten(weighed.total):
        if k.startswith("change/"):
            assert bool((v < added[k] / 10).all()), "the lie of one group is outvoted"


def test_what_is_no_report_is_zero_and_its_site_is_excluded_once() -> None:
    ex, down, up, _ = exchange_of("fedavg")
    gather = aggregator()
    for _, t in flatten(up):
        t[4] = torch.nan if t.is_floating_point() else t[4]
    clean = gather.validate_reports(ex, up, down, range(len(NAMES)))
    assert all(not bool(t[4].any()) and bool(t[3].any()) for _, t in flatten(clean))
    assert list(gather.excluded) == ["e"]
    assert gather.valid(ex, EVERYONE).tolist() == [n != "e" for n in NAMES]
    assert [e["site"] for e in gather.take_events() if e["event"] == "set aside"] == ["e"]
    assert gather.take_events() == []


def test_a_round_of_which_nothing_was_used_is_kept_as_one_without_reports(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "run", resume=False)
    up = {"report": torch.ones(len(NAMES), 2)}
    for number, reports in enumerate([up, None]):
        folder.keep_updates(NAMES, Snapshot(0, number, None, None, {}, ABSENT, {}), reports)
    used, unused = (load_file(p) for p in sorted((tmp_path / "run" / UPDATES).iterdir()))
    assert used["present"].equal(ABSENT)
    assert len(used["report/report"]) == 8
    assert list(unused) == ["present"]
    assert not bool(unused["present"].any())
