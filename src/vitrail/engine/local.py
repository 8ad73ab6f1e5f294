"""The engine of one machine. Sites are stacked into chunks; a chunk of one site is the looped engine.

Order of sites inside the engine: most rows first (Sites). Within a round a chunk's sites that still have batches left
are a prefix of it, so the work shrinks as small sites finish.

CPU: chunks run in as many threads as there are cores, one torch thread each, small enough to stay in the cache.
CUDA: all sites are one chunk; a round without absent sites is captured once as a graph and replayed.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vitrail.core.errors import SumRefused, VitrailError
from vitrail.core.exchange import AnyExchange, Roster, Rows, SiteContext
from vitrail.core.facts import Facts
from vitrail.core.optimizers import Optimizer
from vitrail.core.random import keep_mask, mixed, normals
from vitrail.core.task import Batch, Task
from vitrail.core.tensors import Params, flatten, map_tensors, reused_memory, scratch
from vitrail.engine.aggregation import BufferedReports, owned
from vitrail.engine.augmentation import augmented
from vitrail.engine.batches import BatchDraw, BatchSampler, Sites, among, set_aside, stacked
from vitrail.engine.contract import Contract, check
from vitrail.engine.rounds import AnyMethod, Rounds, Snapshot, Training, clock_of
from vitrail.engine.threads import quiet_torch, threads
from vitrail.privacy.dp_sgd import DrawnNoise, PrivateTask, StepNoise
from vitrail.privacy.guards import AT_REST, Guards
from vitrail.privacy.noise import Generator, blurred_report
from vitrail.privacy.release import released
from vitrail.privacy.secure_sum.fixed_point import LIMIT, beyond

CHUNK_BYTES = 12 << 20  # parameters, velocity and batch of a chunk: a share of the last-level cache


Lies = Callable[[tuple[str, ...], AnyExchange, Any], Any]  # names of sites, what they would report -> what they say


class Engine(Rounds):
    """Runs one method over the sites of one machine."""

    def __init__(
        self,
        task: Task,
        method: AnyMethod,
        sites: Sites,
        training: Training,
        seed: int,
        *,
        looped: bool = False,
        chunk: int | None = None,
        absent: Callable[[int, int], Tensor] | None = None,
        keep_reports: bool = False,
        held: Sites | None = None,
        guards: Guards = AT_REST,
        lies: Lies | None = None,
        secrets: Mapping[str, str] | None = None,
        contracts: list[list[Contract]] | None = None,
    ) -> None:
        """`absent(stage, round)` gives [site] bool in the order of sites.names: who does not answer. `held`: hold-out
        rows, for exchanges that count on them; none of them is ever in a batch.

        With `keep_reports`, `reports` holds each site's own report of the last round, stacked; absent sites' are zero.
        `lies`: what sites say in place of their reports, for research on what guards hold. `secrets`: of sites that
        draw batches, dropout and noise from one of their own, as they do between machines.
        """
        self.aside: Batch | None = None
        if share := method.needs.validation_share:
            sites, self.aside = set_aside(sites, share, seed)
        super().__init__(task, method, sites.names, training, seed, guards, contracts)
        self.lies = lies
        self.sites, self.seed, self.device = sites, seed, sites.x.device
        self.held = None if held is None else stacked(held, sites.names)
        self.absent, self.aggregator.keep_reports = absent, keep_reports
        self.units = sum(task.net.units)
        lots = bool(training.augment)
        self.sampler = BatchSampler(sites, training.batch, training.epochs, seed, self.units, lots, secrets)
        own = secrets or {}
        # of sites with a secret: their noise cannot be drawn again by others, and is on a grid (privacy/noise.py)
        self.generators = [Generator(own.get(name, f"{seed} {name}")) for name in sites.names] if own else []
        self.counts = torch.tensor(sites.sizes, device=self.device, dtype=self.task.like.dtype)
        self.chunk = 1 if looped else chunk or self._chunk_size()
        self.pool: ThreadPoolExecutor | None = None
        self.beyond = torch.zeros(1, dtype=torch.bool, device=self.device)  # on a GPU, where nobody waits to be asked
        self.graphs: dict[tuple[int, int], _Graph] = {}

    def _chunk_size(self) -> int:
        n = len(self.sites.names)
        if self.device.type != "cpu":
            return n
        if not self.task.net.stacks:
            return 1
        some = self.task.like
        params = sum(v.numel() for v in self.task.start.values()) * some.element_size()
        rows = self.training.batch * (self.sites.x[0].numel() + 2 * self.units) * some.element_size()
        fit = max(1, CHUNK_BYTES // (2 * params + rows))
        chunks = -(-n // fit)
        if params > 1 << 17:  # smaller ones are all overhead: a second thread would only wait for the first
            chunks = -(-chunks // threads()) * threads()
        return -(-n // chunks)

    def start(self) -> Snapshot:
        n = len(self.sites.names)
        return Snapshot(0, 0, self.method.coord(self.task, n), self.method.state(self.task, n), {}, self.everyone)

    def shape_at(self, stage: int) -> Snapshot:
        """A moment of that stage as far as names and shapes go."""
        moment = self.start()
        for s in range(stage):
            moment = moment._replace(stage=s + 1, state=self.settled(moment._replace(stage=s)))
        return moment

    def run(self, moment: Snapshot | None = None) -> Iterator[Snapshot]:
        try:
            with quiet_torch(self.device) as self.pool:
                yield from super().run(moment)
        finally:
            self.pool = None

    def finalize_stage(self, moment: Snapshot) -> Any:
        return map_tensors(owned, self.settled(moment))

    def settled(self, moment: Snapshot) -> Any:
        """Every site's state as if this were the end: what `predict` takes."""
        ex = self.stages[moment.stage].last
        down = ex.send(self.task, moment.coord, self.roster(self.everyone, moment.stage, moment.round, 0))
        return ex.settle(self.task, moment.state, down)

    def ask(self, s: int, r: int, place: int, coord: Any, state: Any, roster: Roster) -> tuple[Any, Facts, Tensor]:
        invited, self.reports = roster.present, None
        here = invited if self.absent is None else invited & ~self.absent(s, r).to(self.device)
        ex, task, rule = self.stages[s].exchanges[place], self.task_at(s, r), self.rule(s, r)
        if self.shares is not None and not ex.consent:
            inside = self.shares.admitted([n for n, is_here in zip(self.names, here.tolist(), strict=True) if is_here])
            here = here & torch.tensor([n in inside for n in self.names], device=here.device)
        few = self.guards.masks(ex) and int(here.sum()) < self.guards.fewest(len(here))
        if few:  # nothing would be opened
            here = torch.zeros_like(here)
        if here is not self.everyone and not bool(here.any()):
            return coord, {}, here
        self.sampler.set(s, r, place)
        plain = (
            not isinstance(self.task, PrivateTask)
            and not self.aggregator.keep_reports
            and not replace(self.guards, masked=False, least=AT_REST.least).guard(ex)
            and self.lies is None
        )
        if self.device.type == "cuda" and ex.trains and here is self.everyone and plain:
            graph = self.graphs.get((s, place))
            if graph is None or not graph.fits(task, rule, coord, state):
                graph = self.graphs[s, place] = _Graph(self, (s, place), coord, state, roster, task, rule)
            coord, facts = graph.replay(self, clock_of(s, r, place))
            if self.guards.masks(ex) and bool(self.beyond):
                raise _beyond("a site", "its report")
            return coord, facts, here
        coord, facts = self.exchange((s, place), coord, state, roster, here, task, rule)
        return coord, facts, here

    def exchange(
        self,
        at: tuple[int, int],
        coord: Any,
        state: Any,
        roster: Roster,
        here: Tensor,
        task: Task,
        rule: Optimizer,
        feed: Feed | None = None,
    ) -> tuple[Any, Facts]:
        """One exchange, that of stage and place `at`; `here` answer of those in the roster. `state` is overwritten."""
        ex, contract = self.stages[at[0]].exchanges[at[1]], self.contracts[at[0]][at[1]]
        down = ex.send(task, coord, roster)
        check(down, contract.down, contract.stage, "to site")
        who = None if here is self.everyone or bool(here.all()) else here.nonzero()[:, 0].tolist()
        parts = self.answers(ex, contract, state, down, who, task, rule, feed)
        here = here if self.lies is None else self.aggregator.valid(ex, here)
        return self.aggregate(ex, coord, parts, roster._replace(present=here), contract.up)

    def answers(
        self,
        ex: AnyExchange,
        contract: Contract,
        state: Any,
        down: Any,
        who: Sequence[int] | None,
        task: Task,
        rule: Optimizer,
        feed: Feed | None = None,
    ) -> list[BufferedReports]:
        """The sites' part of a round: what is held of their reports, chunk by chunk. `who`: their places in order, None
        for all. `state` is overwritten."""
        here = range(len(self.names)) if who is None else who
        beside = self.guard_state_of(ex, contract)
        if feed is None and ex.trains:
            feed = self.feed(None if who is None else torch.tensor(who, device=self.device))

        def visit(first: int) -> BufferedReports:
            place = here[first : first + self.chunk]
            at = among(place, self.device)
            mine, message = map_tensors(lambda t: t[at], state), map_tensors(lambda t: t[at], down)
            aside = self.aside and Batch(self.aside.x[at], self.aside.y[at], self.aside.w[at])
            held = None
            if self.held and ex.needs.holdout:
                held = Batch(self.held.x[at], self.held.y[at], self.held.w[at])
            site = SiteContext(task, Rows(self.counts[at], aside, lambda: self.sites.blocks(place), held), rule)
            with reused_memory():
                work = ex.begin(site, mine, message)
            if feed is not None:
                self._train(ex, work, place, slice(first, first + len(place)), feed, site)
            next_state, up = ex.report(site, mine, work, message)
            check(up, contract.up, contract.stage, "from site")
            for (_, old), (_, new) in zip(flatten(state), flatten(next_state), strict=True):
                old[at] = new
            if ex.noise_budget is not None:
                up = released(up, ex.noise_budget, partial(self.add_noise, place))
            up = self.guards.leave(ex, up, partial(self.add_noise, place))
            up, crossed, after = self.guards.written(ex, up, {k: v[at] for k, v in beside.items()})
            for k, v in after.items():
                beside[k][at] = v
            if self.lies is not None:  # whoever lies keeps to no guard of its own
                up = self.lies(tuple(self.names[i] for i in place), ex, up)
            if self.lies is not None:  # sites of a simulation do not lie: what diverges shall be seen
                up = self.aggregator.validate_reports(ex, up, message, place)
            if self.guards.masks(ex):
                self._within(ex, up, place)
            return self.aggregator.buffer_report(ex, at, up, crossed)

        places = range(0, len(here), self.chunk)
        return list(self.pool.map(visit, places) if self.pool and len(places) > 1 else map(visit, places))

    def guard_state_of(self, ex: AnyExchange, contract: Contract) -> Params:
        """What guards keep at the sites between this exchange's reports."""
        stage = f"{contract.stage}/"
        if not any(k.startswith(stage) for k in self.guard_state):
            first = self.guards.error_feedback(ex, contract.up, len(self.names), self.task.like)
            self.guard_state |= {stage + k: v for k, v in first.items()}
        return {k.removeprefix(stage): v for k, v in self.guard_state.items() if k.startswith(stage)}

    def _within(self, ex: AnyExchange, up: Any, place: Sequence[int]) -> None:
        """Under masks a number beyond the limit would wrap round, and spoil the sum for all: the site sends none."""
        for name, bad in beyond(ex, up).items():
            if self.device.type == "cuda":
                self.beyond.logical_or_(bad.any())
            elif bool(bad.any()):
                raise _beyond(self.names[place[int(bad.nonzero()[0, 0])]], name)

    def add_noise(self, place: Sequence[int], rows: Tensor, clip: float, noise: float) -> Tensor:
        """[site, number] of these sites, of at most that length, with this exchange's noise."""
        if not self.generators:
            keys = mixed(self.sampler.noise_keys[list(place)], self.sampler.clock)
            return rows + normals(keys, rows.shape[1]).to(rows) * (noise * clip)
        name = "report", int(self.sampler.clock)
        own = [self.generators[i] for i in place]
        return torch.stack([blurred_report(v, clip, noise, g, *name) for v, g in zip(rows, own, strict=True)]).to(rows)

    def feed(self, who: Tensor | None = None) -> Feed:
        """This round's batches. On a GPU the rows of the whole round are gathered at once: fewer, larger kernels."""
        draw = self.sampler.draw(who)
        weights = self.sites.w[draw.rows] * draw.real
        if self.training.mean:
            weights = weights / draw.real.sum(2, keepdim=True).clamp(min=1)
        feed = Feed(self.sites.y[draw.rows], weights, draw)
        if self.device.type == "cpu" or self.sites.x.dtype == torch.uint8:  # pictures of a round twice would be much
            return feed
        masks = self._masks(draw.row_key, draw.unit_key)
        keep = tuple((-m).to(self.sites.y.dtype, memory_format=torch.contiguous_format) for m in masks)
        x, keep = self.task.net.prepared(self.sites.x[draw.rows], keep)
        return feed._replace(x=x, keep=keep)

    def _train(
        self, ex: AnyExchange, work: Any, place: Sequence[int], at: slice, feed: Feed, site: SiteContext
    ) -> None:
        """`place` of these sites among all, `at` among those that the feed is for."""
        steps, n, b, shape = [self.sampler.steps[i] for i in place], len(place), self.training.batch, self.sites.x.shape
        y, w, rows, keys = feed.y[:, at], feed.w[:, at], feed.draw.rows[:, at], feed.draw.row_key
        keys = keys[:, at] if self.units else keys
        most, places = ex.batches(), None
        if ex.needs.row_indices:
            first = self.sampler.starts[among(place, self.device)]
            places = (rows - first).clamp(min=0)  # padding is the first row of all
        for t in range(max(steps) if most is None else min(most, max(steps))):
            busy = sum(1 for k in steps if k > t)  # steps never grow along a chunk
            if busy < n:
                work, n = map_tensors(lambda v: v[:busy], work), busy  # noqa: B023
            if feed.x is not None:
                x, keep = self.sites.numbers(feed.x[t, at][:busy]), tuple(m[t, at][:busy] for m in feed.keep)
            else:
                x = scratch("x", (busy, b, *shape[1:]), self.sites.x)
                torch.index_select(self.sites.x, 0, rows[t, :busy].reshape(-1), out=x.view(-1, *shape[1:]))
                x, keep = self.sites.numbers(x), ()
                if self.units:
                    keep = self._masks(keys[t, :busy], feed.draw.unit_key)
            if feed.draw.augment_keys is not None:
                x = augmented(x, feed.draw.augment_keys[t, at][:busy], self.training.augment)
            which = None if places is None else places[t, :busy]
            lots: DrawnNoise | StepNoise | None = None
            if isinstance(site.task, PrivateTask) and self.generators:  # every step of every exchange has its own
                lots = StepNoise([self.generators[i] for i in place[:busy]], int(self.sampler.clock), t)
            elif isinstance(site.task, PrivateTask):
                mine = self.sampler.noise_keys[list(place)[:busy]]
                lots = DrawnNoise(mixed(mixed(mine, self.sampler.clock), torch.tensor(t + (1 << 40))))
            share = self.sites.share[rows[t, :busy]] if lots and self.sites.share is not None else None
            ex.step(site, work, Batch(x, y[t, :busy], w[t, :busy], keep, which, lots, share))

    def _masks(self, rows: Tensor, units: Tensor) -> tuple[Tensor, ...]:
        """Which units each layer keeps, for each row."""
        if not self.units:
            return ()
        out = scratch("keep", (*rows.shape, len(units)), units)
        net = self.task.net
        return torch.split(keep_mask(rows, units, net.dropout, out), list(net.units), -1)


def _beyond(site: str, name: str) -> VitrailError:
    what = f"a value is larger than {LIMIT:g}, or not a finite number."
    hint = "Lower the learning rate, or give [protect] a clip."
    return SumRefused(f"{site}, {name}", what, hint)


class Feed(NamedTuple):
    """One round's batches, step first: [step, site, row, ...]."""

    y: Tensor
    w: Tensor
    draw: BatchDraw
    x: Tensor | None = None  # gathered ahead, or step by step where the cache is what matters
    keep: tuple[Tensor, ...] = ()

    def tensors(self) -> list[Tensor]:
        """All that a step looks at."""
        x = [] if self.x is None else [self.x]
        lots = [] if self.draw.augment_keys is None else [self.draw.augment_keys]
        return [self.y, self.w, self.draw.rows, *x, *lots, *self.keep]


class _Graph:
    """One round on the GPU, captured and replayed. While a round trains, the next one's batches are drawn beside it."""

    def __init__(
        self, engine: Engine, at: tuple[int, int], coord: Any, state: Any, roster: Roster, task: Task, rule: Optimizer
    ) -> None:
        self.loss, self.rule, self.coord, self.state = task.loss, rule, coord, state
        feed, clock = engine.feed(), engine.sampler.clock
        self.feed, self.drawn = feed, int(clock)  # for which exchange the feed is
        tensors = [t for tree in (coord, state) for _, t in flatten(tree)] + [clock, *feed.tensors()]
        before = [t.clone() for t in tensors]

        def once() -> Facts:
            now = roster._replace(clock=clock.clone())
            here, side = torch.cuda.current_stream(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
            side.wait_stream(here)
            with torch.cuda.stream(side):
                clock.add_(1)
                following = engine.feed()
            new, facts = engine.exchange(at, coord, state, now, engine.everyone, task, rule, feed)
            here.wait_stream(side)
            olds, news = ([t for _, t in flatten(tree)] for tree in (coord, new))
            torch._foreach_copy_([*olds, *feed.tensors()], [*news, *following.tensors()])
            return facts

        warm = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        warm.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(warm):
            once()
        torch.cuda.current_stream().wait_stream(warm)
        self.graph = torch.cuda.CUDAGraph()
        gc.collect()  # an old graph that is given back while another is captured would spoil it
        gc.disable()
        try:
            with torch.cuda.graph(self.graph):
                self.facts = once()
        finally:
            gc.enable()
        for tensor, value in zip(tensors, before, strict=True):
            tensor.copy_(value)

    def fits(self, task: Task, rule: Optimizer, coord: Any, state: Any) -> bool:
        """Whether this round is the captured one: a graph works on the tensors that it was captured with."""
        return (task.loss, rule) == (self.loss, self.rule) and coord is self.coord and state is self.state

    def replay(self, engine: Engine, clock: int) -> tuple[Any, Facts]:
        if self.drawn != clock:  # another exchange came between: what was drawn beside the last one is not this one's
            torch._foreach_copy_(self.feed.tensors(), engine.feed().tensors())
        self.graph.replay()
        self.drawn = clock + 1
        return self.coord, {k: f._replace(value=f.value.clone()) for k, f in self.facts.items()}
