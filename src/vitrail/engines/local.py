"""The engine of one machine. Sites are stacked into chunks; a chunk of one site is the looped engine.

Order of sites inside the engine: most rows first (Sites). Within a round a chunk's sites that still have batches left
are a prefix of it, so the work shrinks as small sites finish.

CPU: chunks run in as many threads as there are cores, one torch thread each, small enough to stay in the cache.
CUDA: all sites are one chunk; a round without absent sites is captured once as a graph and replayed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vitrail.core.exchange import Exchange, Facts, Method, Pace, Roster, Rows
from vitrail.core.random import keep_mask
from vitrail.core.task import Batch, Task
from vitrail.core.tensors import each, forget_memory, reused_memory, scratch, tensors
from vitrail.engines.rounds import Moment, Rounds, Training
from vitrail.engines.sites import Draw, Drawer, Sites, set_aside
from vitrail.engines.wire import Contract, check, total

CHUNK_BYTES = 12 << 20  # parameters, velocity and batch of a chunk: a share of the last-level cache


class Engine(Rounds):
    """Runs one method over the sites of one machine."""

    def __init__(
        self,
        task: Task,
        method: Method[Any, Any, Any, Any, Any],
        sites: Sites,
        training: Training,
        seed: int,
        *,
        looped: bool = False,
        chunk: int | None = None,
        absent: Callable[[int, int], Tensor] | None = None,
        keep_reports: bool = False,
    ) -> None:
        """`absent(stage, round)` gives [site] bool in the order of sites.names: who does not answer.

        With `keep_reports`, `reports` holds each site's own report of the last round, stacked; absent sites' are zero.
        """
        self.aside: Batch | None = None
        if share := method.aside():
            sites, self.aside = set_aside(sites, share, seed)
        super().__init__(task, method, sites.names, training)
        self.sites, self.seed, self.device = sites, seed, sites.x.device
        self.absent, self.keep_reports = absent, keep_reports
        self.units = sum(task.net.widths) if task.dropout > 0 else 0
        self.drawer = Drawer(sites, training.batch, training.epochs, seed, self.units)
        self.counts = torch.tensor(sites.sizes, device=self.device, dtype=sites.x.dtype)
        self.chunk = 1 if looped else chunk or self._chunk_size()
        self.pool: ThreadPoolExecutor | None = None
        self.graph: _Graph | None = None

    def _chunk_size(self) -> int:
        n = len(self.sites.names)
        if self.device.type != "cpu":
            return n
        some = next(iter(self.task.start.values()))
        params = sum(v.numel() for v in self.task.start.values()) * some.element_size()
        rows = self.training.batch * (self.sites.x.shape[1] + 2 * self.units) * some.element_size()
        fit = max(1, CHUNK_BYTES // (2 * params + rows))
        chunks = -(-n // fit)
        if params > 1 << 17:  # smaller ones are all overhead: a second thread would only wait for the first
            chunks = -(-chunks // _threads()) * _threads()
        return -(-n // chunks)

    def start(self) -> Moment:
        n = len(self.sites.names)
        return Moment(0, 0, self.method.coord(self.task, n), self.method.state(self.task, n), {}, self.everyone)

    def shape_at(self, stage: int) -> Moment:
        """A moment of that stage as far as names and shapes go."""
        moment = self.start()
        for s in range(stage):
            moment = moment._replace(stage=s + 1, state=self.settled(moment._replace(stage=s)))
        return moment

    def run(self, moment: Moment | None = None) -> Iterator[Moment]:
        with _quiet_torch(self.device) as self.pool:
            yield from super().run(moment)

    def turn(self, s: int, r: int, coord: Any, state: Any) -> tuple[Any, Facts, Tensor]:
        present = self.everyone if self.absent is None else ~self.absent(s, r).to(self.device)
        facts: Facts = {}
        self.reports = None
        if present is self.everyone or bool(present.any()):
            self.drawer.set(s, r)
            coord, facts = self._round(s, r, coord, state, Roster(self.sites.names, present))
        return coord, facts, present

    def last_word(self, moment: Moment) -> Any:
        return each(_owned, self.settled(moment))

    def settled(self, moment: Moment) -> Any:
        """Every site's state as if this were the end: what `predict` takes."""
        ex = self.stages[moment.stage].exchange
        down = ex.send(self.task, moment.coord, Roster(self.sites.names, self.everyone))
        return ex.settle(self.task, moment.state, down)

    def _round(self, s: int, r: int, coord: Any, state: Any, roster: Roster) -> tuple[Any, Facts]:
        ex, contract, pace = self.stages[s].exchange, self.contracts[s], self.pace(s, r)
        if self.device.type == "cuda" and ex.trains and roster.present is self.everyone and not self.keep_reports:
            if self.graph is None or not self.graph.fits(s, pace, coord, state):
                self.graph = _Graph(self, s, coord, state, roster, pace)
            return self.graph.replay()
        return self._exchange(ex, contract, coord, state, roster, pace)

    def _exchange(
        self,
        ex: Exchange[Any, Any, Any, Any, Any],
        contract: Contract,
        coord: Any,
        state: Any,
        roster: Roster,
        pace: Pace,
        feed: Feed | None = None,
    ) -> tuple[Any, Facts]:
        """One round of one exchange; `state` is overwritten."""
        down = ex.send(self.task, coord, roster)
        check(down, contract.down, contract.stage, "to site")
        whole = roster.present is self.everyone or bool(roster.present.all())
        here = range(len(roster.names)) if whole else roster.present.nonzero()[:, 0].tolist()
        ups = self.answers(ex, contract, state, down, here, pace, feed)
        if self.keep_reports:
            self.reports = _spread(ups, len(roster.names))
            ups = [(at, total(up)) for at, up in ups] if ex.sees == "sum" else ups
        said = _summed([up for _, up in ups]) if ex.sees == "sum" else _spread(ups, len(roster.names))
        return ex.merge(self.task, coord, said, roster)

    def answers(
        self,
        ex: Exchange[Any, Any, Any, Any, Any],
        contract: Contract,
        state: Any,
        down: Any,
        here: Sequence[int],
        pace: Pace,
        feed: Feed | None = None,
    ) -> list[tuple[Any, Any]]:
        """The sites' part of a round: (which sites, what they say) chunk by chunk; `state` is overwritten."""
        task = self.task
        if feed is None and ex.trains:
            feed = self.feed()
        places = [here[i : i + self.chunk] for i in range(0, len(here), self.chunk)]

        def visit(place: Any) -> Any:
            # a run of neighbours is a view; anything else is copied out
            at: Any = slice(place[0], place[-1] + 1)
            if len(place) != place[-1] + 1 - place[0]:
                at = torch.tensor(place, device=self.device)
            mine, told = each(lambda t: t[at], state), each(lambda t: t[at], down)
            rows = Rows(self.counts[at], self.aside and Batch(self.aside.x[at], self.aside.y[at], self.aside.w[at]))
            with reused_memory():
                work = ex.ready(task, mine, told, rows)
            if feed is not None:
                self._train(ex, work, at, [self.drawer.steps[i] for i in place], feed, pace)
            kept, up = ex.report(task, mine, work, told, rows, pace)
            check(up, contract.up, contract.stage, "from site")
            for (_, old), (_, new) in zip(tensors(state), tensors(kept), strict=True):
                old[at] = new
            # copies: a report may lie in memory that the thread's next chunk overwrites
            return at, total(up) if ex.sees == "sum" and not self.keep_reports else each(_owned, up)

        return list(self.pool.map(visit, places) if self.pool and len(places) > 1 else map(visit, places))

    def feed(self) -> Feed:
        """This round's batches. On a GPU the rows of the whole round are gathered at once: fewer, larger kernels."""
        draw = self.drawer.draw()
        weights = self.sites.w[draw.rows] * draw.real
        if self.training.mean:
            weights = weights / draw.real.sum(2, keepdim=True).clamp(min=1)
        feed = Feed(self.sites.y[draw.rows], weights, draw)
        if self.device.type == "cpu":
            return feed
        masks = self._masks(draw.row_key, draw.unit_key)
        keep = tuple((-m).to(self.sites.x.dtype, memory_format=torch.contiguous_format) for m in masks)
        return feed._replace(x=self.sites.x[draw.rows], keep=keep)

    def _train(
        self,
        ex: Exchange[Any, Any, Any, Any, Any],
        work: Any,
        at: Any,
        steps: list[int],
        feed: Feed,
        pace: Pace,
    ) -> None:
        n, b, width = len(steps), self.training.batch, self.sites.x.shape[1]
        y, w, rows, keys = feed.y[:, at], feed.w[:, at], feed.draw.rows[:, at], feed.draw.row_key
        keys = keys[:, at] if self.units else keys
        most = ex.batches()
        for t in range(max(steps) if most is None else min(most, max(steps))):
            busy = sum(1 for k in steps if k > t)  # steps never grow along a chunk
            if busy < n:
                work, n = each(lambda v: v[:busy], work), busy  # noqa: B023
            if feed.x is not None:
                x, keep = feed.x[t, at][:busy], tuple(m[t, at][:busy] for m in feed.keep)
            else:
                x = scratch("x", (busy, b, width), self.sites.x)
                torch.index_select(self.sites.x, 0, rows[t, :busy].reshape(-1), out=x.view(-1, width))
                keep = self._masks(keys[t, :busy], feed.draw.unit_key) if self.units else ()
            ex.step(self.task, work, Batch(x, y[t, :busy], w[t, :busy], keep), pace)

    def _masks(self, rows: Tensor, units: Tensor) -> tuple[Tensor, ...]:
        """Which units each layer keeps, for each row."""
        if not self.units:
            return ()
        out = scratch("keep", (*rows.shape, len(units)), units)
        return torch.split(keep_mask(rows, units, self.task.dropout, out), list(self.task.net.widths), -1)


class Feed(NamedTuple):
    """One round's batches, step first: [step, site, row, ...]."""

    y: Tensor
    w: Tensor
    draw: Draw
    x: Tensor | None = None  # gathered ahead, or step by step where the cache is what matters
    keep: tuple[Tensor, ...] = ()

    def tensors(self) -> list[Tensor]:
        assert self.x is not None
        return [self.y, self.w, *self.draw, self.x, *self.keep]


class _Graph:
    """One round on the GPU, captured and replayed. While a round trains, the next one's batches are drawn beside it."""

    def __init__(
        self,
        engine: Engine,
        stage: int,
        coord: Any,
        state: Any,
        roster: Roster,
        pace: Pace,
    ) -> None:
        self.stage, self.pace, self.coord, self.state = stage, pace, coord, state
        ex, contract = engine.stages[stage].exchange, engine.contracts[stage]
        feed, clock = engine.feed(), engine.drawer.clock
        kept = [t for tree in (coord, state) for _, t in tensors(tree)] + [clock, *feed.tensors()]
        before = [t.clone() for t in kept]

        def once() -> Facts:
            here, side = torch.cuda.current_stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
            side.wait_stream(here)
            with torch.cuda.stream(side):
                clock.add_(1)
                following = engine.feed()
            new, facts = engine._exchange(ex, contract, coord, state, roster, pace, feed)
            for (_, old), (_, value) in zip(tensors(coord), tensors(new), strict=True):
                old.copy_(value)
            here.wait_stream(side)
            torch._foreach_copy_(feed.tensors(), following.tensors())
            return facts

        warm = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        warm.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(warm):
            once()
        torch.cuda.current_stream().wait_stream(warm)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.facts = once()
        for tensor, value in zip(kept, before, strict=True):
            tensor.copy_(value)

    def fits(self, stage: int, pace: Pace, coord: Any, state: Any) -> bool:
        """Whether this round is the captured one: a graph works on the tensors that it was captured with."""
        return (stage, pace) == (self.stage, self.pace) and coord is self.coord and state is self.state

    def replay(self) -> tuple[Any, Facts]:
        self.graph.replay()
        return self.coord, {k: v.clone() for k, v in self.facts.items()}


def _owned(tensor: Tensor) -> Tensor:
    return tensor.clone(memory_format=torch.contiguous_format)


def _summed(totals: list[Any]) -> Any:
    for more in totals[1:]:
        for (_, value), (_, part) in zip(tensors(totals[0]), tensors(more), strict=True):
            value.add_(part)
    return totals[0]


def _spread(ups: list[tuple[Any, Any]], sites: int) -> Any:
    """Reports of chunks -> one stacked report in which absent sites are zero."""
    out = each(lambda t: t.new_zeros((sites, *t.shape[1:])), ups[0][1])
    for at, up in ups:
        for (_, whole), (_, part) in zip(tensors(out), tensors(up), strict=True):
            whole[at] = part
    return out


@cache
def _threads() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


class _quiet_torch:  # noqa: N801
    """A pool of threads with one torch thread each, while inside; torch's own setting is put back after."""

    def __init__(self, device: torch.device) -> None:
        self.pool: ThreadPoolExecutor | None = None
        self.cpu = device.type == "cpu"

    def __enter__(self) -> ThreadPoolExecutor | None:
        if self.cpu:
            self.before = torch.get_num_threads()
            torch.set_num_threads(1)
            self.pool = ThreadPoolExecutor(_threads(), initializer=torch.set_num_threads, initargs=(1,))
        return self.pool

    def __exit__(self, *_: object) -> None:
        if self.pool:
            self.pool.shutdown()
            torch.set_num_threads(self.before)
            forget_memory()
