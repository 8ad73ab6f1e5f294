"""How good every site's own model is on its own rows, all sites at once; and what a run says of its sites."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.core.bedside import score_bedside
from vitrail.core.facts import OWN
from vitrail.core.footprint import Footprint
from vitrail.core.losses import Doubts
from vitrail.core.metrics import chance, events, few_rows, rarest, score_all, score_doubt, score_risk
from vitrail.core.rounding import SMALLEST, bounded
from vitrail.core.tensors import each, tensors
from vitrail.data.encode import Encoder, SiteData
from vitrail.engines.local import Engine
from vitrail.engines.rounds import Moment
from vitrail.engines.threads import threads
from vitrail.engines.wire import Line
from vitrail.runs.screened import Ask
from vitrail.runs.setup import AT_BEDSIDE, COVERAGE, MAJORITY, RISK, TOLD, wire_lines
from vitrail.screen.found import Screening
from vitrail.study import Study

SIZES = ["site", "train_rows", "test_rows", "target", "test_rarest", "few_rows"]
WASTE = 2  # padded rows may be so many times the real ones


class Stack(NamedTuple):
    """Rows of neighbours in the engine's order, padded to the longest."""

    sites: list[int]  # places in the run's order
    at: slice  # where their models are
    x: Tensor  # [site, row, ...]


class Judge:
    """Sites on this machine. Scores every site's own model on its own rows."""

    def __init__(
        self,
        runner: Engine,
        study: Study,
        data: list[SiteData],
        ask: Ask | None = None,
        at: list[int] | None = None,
    ) -> None:
        """`ask`: how the sites are screened, where a run does that. `at`: where each site's model is among those of the
        engine, where names do not say it."""
        self.runner, self.study, self.data, self._ask = runner, study, data, ask
        self.sizes = sizes_of(study, data)
        self.at = at or [0 if runner.method.pools_rows else runner.names.index(site.name) for site in data]
        self.stacks = {split: self._stacks(split) for split in ("test", "train")}
        self.truth = {split: _padded([truth_of(study, s, split) for s in data]) for split in ("test", "train")}
        self.weights = {split: self._weights(split) for split in ("test", "train")}
        for split in TOLD:
            self.stacks[split], self.truth[split] = self.stacks["test"], self.truth["test"]
        none = np.empty(0)  # the rows are in the stacks now
        self.data = [site._replace(train_x=none, test_x=none) for site in data]

    def screen(self) -> Screening | None:
        """Asked once, and the tables are let go."""
        ask, self._ask = self._ask, None
        return ask() if ask else None

    def rows(self, moment: Moment, splits: tuple[str, ...]) -> list[tuple[Any, ...]]:
        return self.scores(self.runner.settled(moment), moment.stage, moment.round, splits)

    def late(self) -> list[tuple[Any, ...]]:
        return []

    def chance(self) -> list[tuple[Any, ...]]:
        return [row for site in self.data for row in chance_rows(self.study, site.name, chance_of(self.study, site))]

    def models(self, moment: Moment) -> dict[str, dict[str, Tensor]]:
        states = dict(tensors(self.runner.settled(moment)))
        at = zip(self.data, self.at, strict=True)
        return {s.name: {k: v[i].cpu().clone() for k, v in states.items()} for s, i in at}

    def lines(self) -> list[Line]:
        return wire_lines(self.study, self.runner.method)

    def footprints(self) -> dict[str, Footprint]:
        return {}  # all sites are this process

    def encoders(self) -> dict[str, Encoder]:
        return {site.name: site.encoder for site in self.data}

    @torch.no_grad()
    def scores(
        self, settled: Any, stage: int, round_: int, splits: tuple[str, ...], bound: bool = False
    ) -> list[tuple[Any, ...]]:
        """Rows of HISTORY, for settled sites. `bound`: as scores that are rounded have it (core/rounding.py), in which
        no patient's loss or error counts for more than a stated number."""
        out, target = [], self.study.target
        least = {"least": SMALLEST} if bound else {}
        for split in splits:
            said = self.answers(settled, split)
            y, real = self.truth[split]
            if split == COVERAGE:
                scored = {split: score_doubt(y, said[split][..., :-1], said[split][..., -1], real)}
            elif split == AT_BEDSIDE:
                scored = {split: score_bedside(y, said[split], real)}
            elif split == RISK:
                scored = {split: score_risk(y, said[split], real, self.weights["test"])}
            else:
                w = self.weights[split]
                if bound and target.kind == "number":
                    said = {name: bounded(y, p, target.scale) for name, p in said.items()}
                scored = {name: score_all(self.study.metrics, y, p, real, w, **least) for name, p in said.items()}
            for i, site in enumerate(self.data):
                for name, metrics in scored.items():
                    out += [(stage, round_, site.name, name, m, float(v[i])) for m, v in metrics.items()]
        return out

    @torch.no_grad()
    def answers(self, settled: Any, split: str, others: bool = True) -> dict[str, NDArray[np.float64]]:
        """[site, row, answer] by model: what the site's own says, and on hold-out rows what the `others` beside it say.
        For COVERAGE the last answer is how unsure it is."""
        task, method, target = self.runner.task, self.runner.method, self.study.target
        count = target.outputs + (split == COVERAGE)
        y, _ = self.truth[split]

        def said(stack: Stack) -> dict[str, Tensor]:
            mine = each(lambda t: t[stack.at], settled)
            found = {split: method.predict(task, mine, stack.x)}
            if split == COVERAGE:
                assert isinstance(task.loss, Doubts)
                z = found[split].double()
                return {split: torch.cat((task.loss.answers(z), task.loss.doubt(z)[..., None]), -1)}
            if split == "test" and others:
                beside = {k: params for k, params in method.models(task, mine).items() if k != OWN}
                found |= {f"test:{k}": task.output(params, stack.x) for k, params in beside.items()}
            return {k: task.loss.answers(z.double()) for k, z in found.items()}

        pool, stacks = self.runner.pool, self.stacks[split]
        out: dict[str, NDArray[np.float64]] = {}
        for stack, told in zip(stacks, pool.map(said, stacks) if pool else map(said, stacks), strict=True):
            for name, z in told.items():
                whole = out.setdefault(name, np.zeros((*y.shape, count)))
                numbers = z.cpu().numpy()
                numbers = numbers * target.scale + target.center if target.kind == "number" else numbers
                whole[stack.sites, : numbers.shape[1]] = numbers.reshape(len(stack.sites), -1, count)
        return out

    def _weights(self, split: str) -> NDArray[np.float64] | None:
        """[site, row]: for how many each stands, where the study says so."""
        of = [w for s in self.data if (w := getattr(s, f"{split}_w")) is not None]
        return _padded(of)[0] if of else None

    def _stacks(self, split: str) -> list[Stack]:
        rows = [getattr(site, f"{split}_x") for site in self.data]
        like = self.runner.task.like
        order = sorted(range(len(rows)), key=lambda i: self.at[i])
        most = 1 if self.runner.method.pools_rows else -(-len(order) // threads())
        groups: list[list[int]] = []
        for i in order:
            tried = [*groups[-1], i] if groups else []
            longest, real = max((len(rows[k]) for k in tried), default=0), sum(len(rows[k]) for k in tried)
            if not tried or len(tried) > most or longest * len(tried) > WASTE * real:
                groups.append([i])
            else:
                groups[-1] = tried
        out = []
        for group in groups:
            kind = torch.from_numpy(rows[group[0]]).dtype if self.study.images else like.dtype
            x = torch.zeros(len(group), max(len(rows[i]) for i in group), *rows[group[0]].shape[1:], dtype=kind)
            for k, i in enumerate(group):
                x[k, : len(rows[i])] = torch.from_numpy(rows[i])
            first = self.at[group[0]]
            out.append(Stack(group, slice(first, first + len(group)), x.to(like.device)))
        return out


def truth_of(study: Study, site: SiteData, split: str) -> NDArray[Any]:
    """In the target's own unit."""
    y, target = getattr(site, f"{split}_y"), study.target
    if target.kind == "time":
        return np.asarray(y, np.float64)
    return np.asarray(y * target.scale + target.center if target.kind == "number" else y.astype(np.int64))


def chance_metrics(study: Study) -> tuple[str, ...]:
    """Of which a run keeps what always giving the same answer comes to: its own, and accuracy, of which doubt tells."""
    return tuple(dict.fromkeys((*study.metrics, *(("accuracy",) if study.target.levels else ()))))


def chance_of(study: Study, site: SiteData) -> list[float]:
    """What always giving the same answer comes to on a site's hold-out rows, in each of `chance_metrics`."""
    return list(same_answer(study, chance_metrics(study), truth_of(study, site, "test"), site.test_w).values())


def same_answer(
    study: Study, metrics: tuple[str, ...], y: NDArray[Any], w: NDArray[np.float64] | None = None
) -> dict[str, float]:
    """What always giving the same answer comes to on these rows."""
    target = study.target
    return chance(metrics, y, len(target.levels), w, target.outputs if target.kind == "time" else 0)


def chance_rows(study: Study, site: str, said: Sequence[float]) -> list[tuple[Any, ...]]:
    """Rows of HISTORY; `said`: as `chance_of` tells it."""
    return [(0, 0, site, f"test:{MAJORITY}", m, float(v)) for m, v in zip(chance_metrics(study), said, strict=True)]


def counts_of(study: Study, site: SiteData) -> list[int]:
    """Training rows, hold-out rows, and of classes how many of these are of their rarest one; or with the event."""
    return [len(site.train_y), len(site.test_y), *rare_of(study, truth_of(study, site, "test"))]


def rare_of(study: Study, y: NDArray[Any]) -> list[int]:
    """How many rows are of their rarest class, or had the event; nothing of numbers."""
    if study.target.kind == "number":
        return []
    return [events(y) if study.target.kind == "time" else rarest(y)]


def size_row(study: Study, site: str, counts: Sequence[int], target: str) -> tuple[Any, ...]:
    """A row of SIZES."""
    train, test = counts[:2]
    rare = counts[2] if len(counts) > 2 else None
    few = few_rows(test, rare, study.row_word, study.target.kind == "time")
    return site, train, test, target, test if rare is None else rare, few


def few_over(study: Study, folds: Sequence[Sequence[SiteData]]) -> dict[str, str]:
    """Sites whose held-out rows are few, those of all folds together -> how many."""
    held: dict[str, list[NDArray[Any]]] = {}
    for site in (site for fold in folds for site in fold):
        held.setdefault(site.name, []).append(truth_of(study, site, "test"))
    whole = {name: np.concatenate(parts) for name, parts in held.items()}
    counts = {name: next(iter(rare_of(study, y)), None) for name, y in whole.items()}
    timed = study.target.kind == "time"
    said = {name: few_rows(len(y), counts[name], study.row_word, timed) for name, y in whole.items()}
    return {name: words for name, words in said.items() if words}


def _padded(ragged: list[NDArray[Any]]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """[site, row], and which are rows at all."""
    longest = max(len(v) for v in ragged)
    out = np.zeros((len(ragged), longest), dtype=ragged[0].dtype)
    real = np.arange(longest) < np.array([len(v) for v in ragged])[:, None]
    for i, v in enumerate(ragged):
        out[i, : len(v)] = v
    return out, real


def sizes_of(study: Study, data: list[SiteData]) -> pd.DataFrame:
    said = [target_words(study, target_share(study, s)) for s in data]
    told = [size_row(study, s.name, counts_of(study, s), words) for s, words in zip(data, said, strict=True)]
    return pd.DataFrame(told, columns=SIZES)


def target_share(study: Study, site: SiteData) -> NDArray[np.float64]:
    """The share of each class among a site's rows; their mean, in the target's own unit; the share with the event."""
    y, w = np.concatenate([site.train_y, site.test_y]), None
    if site.train_w is not None and site.test_w is not None:
        w = np.concatenate([site.train_w, site.test_w])
    return share_of(study, y * study.target.scale + study.target.center if study.target.kind == "number" else y, w)


def share_of(study: Study, y: NDArray[Any], w: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
    """As `target_share`, of these rows."""
    if study.target.kind != "classes":
        return np.array([np.average(y > 0 if study.target.kind == "time" else y, weights=w)], dtype=np.float64)
    return np.bincount(y.astype(np.int64), w, len(study.target.levels)) / (len(y) if w is None else w.sum())


def shares_said(study: Study, words: str) -> list[float] | None:
    """The share of each class, to a hundredth, as `target_words` said it; nothing where it is not said."""
    levels = study.target.levels
    names = levels[1:] if len(levels) == 2 else levels
    found = re.fullmatch(", ".join(rf"(\d+) % {re.escape(n)}" for n in names), words) if names else None
    if found is None:
        return None
    said = [int(share) / 100 for share in found.groups()]
    return [1 - said[0], *said] if len(levels) == 2 else said


def target_words(study: Study, share: NDArray[np.float64]) -> str:
    if study.target.kind == "number":
        return f"mean {share[0]:.4g} {study.target.unit}".strip()
    if study.target.kind == "time":
        return f"{100 * share[0]:.0f} % with {study.target.column}"
    shown = share[1:] if len(share) == 2 else share
    names = study.target.levels[-len(shown) :]
    return ", ".join(f"{100 * s:.0f} % {n}" for n, s in zip(names, shown, strict=True))
