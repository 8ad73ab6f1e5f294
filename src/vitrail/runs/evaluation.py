"""How good every site's own model is on its own rows, all sites at once; and what a run says of its sites."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.core.facts import OWN
from vitrail.core.losses import UncertaintyLoss
from vitrail.core.tensors import flatten, map_tensors
from vitrail.data.encoding import Encoder, SiteData
from vitrail.data.persons import how_many, most_rows, rarest_persons
from vitrail.engine.contract import WireEntry
from vitrail.engine.local import Engine
from vitrail.engine.resource_usage import Footprint
from vitrail.engine.rounds import Snapshot
from vitrail.engine.threads import threads
from vitrail.metrics.calibration import score_bedside
from vitrail.metrics.holdout_summary import HeldOutAnswers
from vitrail.metrics.recalibration import fit_constant, placed
from vitrail.metrics.scores import (
    FEWEST,
    baseline_scores,
    events,
    rarest,
    score_all,
    score_risk,
    score_uncertainty,
    small_sample,
)
from vitrail.privacy.score_rounding import SMALLEST, bounded
from vitrail.quality.screening.result import Screening
from vitrail.runs.plan import Plan
from vitrail.runs.screening import Ask
from vitrail.runs.setup import AT_BEDSIDE, COVERAGE, MAJORITY, RISK, TOLD, as_outputs
from vitrail.runs.site.answers import collect_answers
from vitrail.study.model import Study

SIZES = ["site", "train_rows", "test_rows", "target", "test_rarest", "few_rows"]
PERSONS = ["train_persons", "test_persons"]  # where the study names them; test_rarest and few_rows then count persons
WASTE = 2  # padded rows may be so many times the real ones


class PaddedRows(NamedTuple):
    """Rows of neighbours in the engine's order, padded to the longest."""

    sites: list[int]  # places in the run's order
    at: slice  # where their models are
    x: Tensor  # [site, row, ...]


class Evaluator:
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
        self.class_shares = class_shares(study, {site.name: target_share(study, site) for site in data})
        self.at = at or [0 if runner.method.catalogue.pools_rows else runner.names.index(site.name) for site in data]
        self.stacks = {split: self._stacks(split) for split in ("test", "train")}
        self.truth = {split: _padded([truth_of(study, s, split) for s in data]) for split in ("test", "train")}
        self.weights = {split: self._weights(split) for split in ("test", "train")}
        self.thresholds = thresholds_of(study, data)
        self.most = {k: [most_rows(getattr(s, f"{k}_persons")) for s in data] for k in ("test", "train")}
        self.least = [FEWEST * most for most in self.most["test"]]  # rows, so that they are of FEWEST persons or more
        for split in TOLD:
            self.stacks[split], self.truth[split] = self.stacks["test"], self.truth["test"]
        self.outcomes = None if study.protect.rows else [trained_on(study, site) for site in data]
        none = np.empty(0)  # the rows are in the stacks now
        self.data = [site._replace(train_x=none, test_x=none) for site in data]

    def screen(self) -> Screening | None:
        """Asked once, and the tables are let go."""
        ask, self._ask = self._ask, None
        return ask() if ask else None

    def rows(self, moment: Snapshot, splits: tuple[str, ...]) -> list[tuple[Any, ...]]:
        return self.scores(self.runner.settled(moment), moment.stage, moment.round, splits) if splits else []

    def baseline(self) -> list[tuple[Any, ...]]:
        return [
            row for site in self.data for row in baseline_rows(self.study, site.name, site_baseline(self.study, site))
        ]

    def models(self, moment: Snapshot) -> dict[str, dict[str, Tensor]]:
        states = dict(flatten(self.runner.settled(moment)))
        at = zip(self.data, self.at, strict=True)
        return {s.name: {k: v[i].cpu().clone() for k, v in states.items()} for s, i in at}

    def lines(self, plan: Plan) -> list[WireEntry]:
        return plan.wire()

    def footprints(self) -> dict[str, Footprint]:
        return {}  # all sites are this process

    def held_out(self) -> dict[str, list[int | str]]:
        return {site.name: list(site.held_out) for site in self.data}

    def held_answers(self, moment: Snapshot) -> dict[str, HeldOutAnswers]:
        return collect_answers(self, self.runner.settled(moment))

    def encoders(self, moment: Snapshot) -> dict[str, Encoder]:
        return self.settled_encoders(self.runner.settled(moment))

    def settled_encoders(self, settled: Any) -> dict[str, Encoder]:
        """Each site's scale, with its own constants of these models and the thresholds of its decisions."""
        constants = self.constants(settled)
        shares = self.thresholds.tolist() if self.thresholds is not None else [[]] * len(self.data)
        return {
            site.name: replace(
                site.encoder, constants={k: c[i].tolist() for k, c in constants.items()}, thresholds=shares[i]
            )
            for i, site in enumerate(self.data)
        }

    @torch.no_grad()
    def scores(
        self, settled: Any, stage: int, round_: int, splits: tuple[str, ...], bound: bool = False
    ) -> list[tuple[Any, ...]]:
        """Rows of HISTORY, for settled sites. `bound`: as scores that are rounded have it (privacy/score_rounding.py),
        in which no patient's loss or error counts for more than a stated number."""
        out, target = [], self.study.target
        least: dict[str, Any] = {"least": SMALLEST} if bound else {}
        for split in splits:
            predictions = self.answers(settled, split)
            y, real = self.truth[split]
            if split == COVERAGE:
                doubt = predictions[split][..., -1]
                scored = {
                    split: score_uncertainty(y, predictions[split][..., :-1], doubt, real, self.thresholds, self.least)
                }
            elif split == AT_BEDSIDE:
                scored = {split: score_bedside(y, predictions[split], real, self.least)}
            elif split == RISK:
                scored = {split: score_risk(y, predictions[split], real, self.weights["test"], self.least)}
            else:
                w = self.weights[split]
                if bound and target.kind == "number":
                    predictions = {name: bounded(y, p, target.scale) for name, p in predictions.items()}
                how = {**least, "thresholds": self.thresholds}
                scored = {name: score_all(self.study.metrics, y, p, real, w, **how) for name, p in predictions.items()}
            for i, site in enumerate(self.data):
                for name, metrics in scored.items():
                    out += [(stage, round_, site.name, name, m, float(v[i])) for m, v in metrics.items()]
        return out

    @torch.no_grad()
    def answers(self, settled: Any, split: str, others: bool = True) -> dict[str, NDArray[np.float64]]:
        """[site, row, answer] by model: what the site's own says, and on hold-out rows what the `others` beside it say.
        Each with the site's own constant (metrics/recalibration.py). For COVERAGE the last answer is how unsure it
        is."""
        task, target = self.runner.task, self.study.target
        beside = others and split == "test"
        constants = self.constants(settled, beside)
        out: dict[str, NDArray[np.float64]] = {}
        for name, z in self._scores(settled, split, beside).items():
            loss = placed(task.loss, constants[name][:, None] if name in constants else None)
            numbers = loss.predictions(z)
            if split == COVERAGE:
                assert isinstance(loss, UncertaintyLoss)
                numbers = torch.cat((numbers, loss.uncertainty(z)[..., None]), -1)
            numbers = numbers * target.scale + target.center if target.kind == "number" else numbers
            out[split if name == OWN else f"test:{name}"] = numbers.numpy()
        return out

    @torch.no_grad()
    def constants(self, settled: Any, others: bool = True) -> dict[str, Tensor]:
        """[site, output] by model, fitted to the rows trained on; none where rows have a privacy budget, which a
        constant fitted to them would exceed."""
        if self.outcomes is None:
            return {}
        constants_of: dict[str, Tensor] = {}
        for name, z in self._scores(settled, "train", others).items():
            pairs = zip(z, self.outcomes, strict=True)
            fitted = [fit_constant(self.runner.task.loss, own[: len(y)], y, w) for own, (y, w) in pairs]
            if constants := [c for c in fitted if c is not None]:
                constants_of[name] = torch.from_numpy(np.stack(constants))
        return constants_of

    def _scores(self, settled: Any, split: str, others: bool) -> dict[str, Tensor]:
        """[site, row, output] by model, in double precision; zero where there is no row."""
        task, method = self.runner.task, self.runner.method
        y, _ = self.truth[split]

        def scores(stack: PaddedRows) -> dict[str, Tensor]:
            mine = map_tensors(lambda t: t[stack.at], settled)
            logits = {OWN: method.predict(task, mine, stack.x)}
            if others:
                models = method.models(task, mine).items()
                logits |= {k: task.output(params, stack.x) for k, params in models if k != OWN}
            return {k: z.double().cpu() for k, z in logits.items()}

        pool, stacks = self.runner.pool, self.stacks[split]
        out: dict[str, Tensor] = {}
        for stack, of_stack in zip(stacks, pool.map(scores, stacks) if pool else map(scores, stacks), strict=True):
            for name, z in of_stack.items():
                whole = out.setdefault(name, torch.zeros(*y.shape, self.study.target.outputs, dtype=torch.float64))
                whole[stack.sites, : z.shape[1]] = z.reshape(len(stack.sites), -1, z.shape[-1])
        return out

    def _weights(self, split: str) -> NDArray[np.float64] | None:
        """[site, row]: for how many each stands, where the study says so."""
        of = [w for s in self.data if (w := getattr(s, f"{split}_w")) is not None]
        return _padded(of)[0] if of else None

    def _stacks(self, split: str) -> list[PaddedRows]:
        rows = [getattr(site, f"{split}_x") for site in self.data]
        like = self.runner.task.like
        order = sorted(range(len(rows)), key=lambda i: self.at[i])
        most = 1 if self.runner.method.catalogue.pools_rows else -(-len(order) // threads())
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
            out.append(PaddedRows(group, slice(first, first + len(group)), x.to(like.device)))
        return out


def thresholds_of(study: Study, data: list[SiteData]) -> NDArray[np.float64] | None:
    """[site, class]: see `decision_thresholds`. None where the target is no class."""
    if not study.target.levels:
        return None
    return np.stack([decision_thresholds(study, s.train_y, s.train_w) for s in data])


def decision_thresholds(study: Study, y: NDArray[Any], w: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
    """[class]: a row is predicted to be of the class whose probability exceeds its threshold by the largest factor.
    Of two classes: the event is predicted from that risk on. By default the site's own shares of the classes among
    these rows; or the threshold that the study states. Where rows have a privacy budget, the most probable class is
    predicted: shares counted without noise would exceed the budget as soon as a score leaves the site."""
    if study.target.threshold is not None:
        return np.array([1 - study.target.threshold, study.target.threshold])
    if study.protect.rows:
        return np.full(len(study.target.levels), 1 / len(study.target.levels))
    counts = np.bincount(y.astype(np.int64), w, len(study.target.levels))
    return np.asarray((counts + 0.5) / (counts.sum() + len(counts) / 2), np.float64)


def truth_of(study: Study, site: SiteData, split: str) -> NDArray[Any]:
    """In the target's own unit."""
    y, target = getattr(site, f"{split}_y"), study.target
    if target.kind == "time":
        return np.asarray(y, np.float64)
    return np.asarray(y * target.scale + target.center if target.kind == "number" else y.astype(np.int64))


def baseline_metrics(study: Study) -> tuple[str, ...]:
    """Of which a run keeps what always giving the same answer comes to: its own, and accuracy, of which doubt tells."""
    return tuple(dict.fromkeys((*study.metrics, *(("accuracy",) if study.target.levels else ()))))


def site_baseline(study: Study, site: SiteData) -> list[float]:
    """What always giving the same answer comes to on a site's hold-out rows, in each of `baseline_metrics`."""
    return list(constant_scores(study, baseline_metrics(study), truth_of(study, site, "test"), site.test_w).values())


def constant_scores(
    study: Study, metrics: tuple[str, ...], y: NDArray[Any], w: NDArray[np.float64] | None = None
) -> dict[str, float]:
    """What always giving the same answer comes to on these rows."""
    target = study.target
    return baseline_scores(metrics, y, len(target.levels), w, target.outputs if target.kind == "time" else 0)


def baseline_rows(study: Study, site: str, values: Sequence[float]) -> list[tuple[Any, ...]]:
    """Rows of HISTORY; `said`: as `site_baseline` tells it."""
    return [(0, 0, site, f"test:{MAJORITY}", m, float(v)) for m, v in zip(baseline_metrics(study), values, strict=True)]


def counts_of(study: Study, site: SiteData) -> list[int]:
    """Training rows, hold-out rows, and of classes how many of these are of their rarest one; or with the event. Where
    the study names persons, this last number is of persons, and then come those trained on and those held out."""
    rows = [len(site.train_y), len(site.test_y)]
    rows += rare_of(study, truth_of(study, site, "test"), site.test_persons)
    if site.train_persons is None or site.test_persons is None:
        return rows
    return [*rows, how_many(site.train_persons), how_many(site.test_persons)]


def rare_of(study: Study, y: NDArray[Any], persons: NDArray[np.int64] | None = None) -> list[int]:
    """How many rows, or persons, are of their rarest class, or had the event; nothing of numbers."""
    if study.target.kind == "number":
        return []
    if persons is not None:
        return [rarest_persons(y, persons, study.target.kind == "time")]
    return [events(y) if study.target.kind == "time" else rarest(y)]


def size_row(study: Study, site: str, counts: Sequence[int], target: str) -> tuple[Any, ...]:
    """A row of SIZES."""
    train, test = counts[:2]
    persons = list(counts[-2:]) if study.person_column else []
    rare = None if study.target.kind == "number" else counts[2]
    many = persons[1] if persons else test
    few = small_sample(many, rare, study.unit_word, study.target.kind == "time")
    return site, train, test, target, many if rare is None else rare, few, *persons


def sizes_table(study: Study, rows: Sequence[tuple[Any, ...]]) -> pd.DataFrame:
    """Of rows of SIZES."""
    return pd.DataFrame(rows, columns=[*SIZES, *(PERSONS if study.person_column else [])])


def small_held_out(study: Study, folds: Sequence[Sequence[SiteData]]) -> dict[str, str]:
    """Sites whose held-out rows are few, those of all folds together -> how many."""
    held: dict[str, list[NDArray[Any]]] = {}
    whose: dict[str, list[NDArray[np.int64]]] = {}
    for site in (site for fold in folds for site in fold):
        held.setdefault(site.name, []).append(truth_of(study, site, "test"))
        if (persons := site.test_persons) is not None:  # nobody is in two folds
            before = sum(how_many(p) for p in whose.get(site.name, []))
            whose.setdefault(site.name, []).append(np.unique(persons, return_inverse=True)[1] + before)
    whole = {name: np.concatenate(parts) for name, parts in held.items()}
    people = {name: np.concatenate(parts) for name, parts in whose.items()}
    counts = {name: next(iter(rare_of(study, y, people.get(name))), None) for name, y in whole.items()}
    timed, many = study.target.kind == "time", {name: how_many(p) for name, p in people.items()}
    warnings_of = {
        name: small_sample(many.get(name, len(y)), counts[name], study.unit_word, timed) for name, y in whole.items()
    }
    return {name: words for name, words in warnings_of.items() if words}


def trained_on(study: Study, site: SiteData) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Of the rows trained on: outcomes as a loss takes them, and for how many each row stands."""
    y = as_outputs(study, site.train_y).double().numpy()
    return y, np.ones(len(y)) if site.train_w is None else site.train_w


def _padded(ragged: list[NDArray[Any]]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """[site, row], and which are rows at all."""
    longest = max(len(v) for v in ragged)
    out = np.zeros((len(ragged), longest), dtype=ragged[0].dtype)
    real = np.arange(longest) < np.array([len(v) for v in ragged])[:, None]
    for i, v in enumerate(ragged):
        out[i, : len(v)] = v
    return out, real


def sizes_of(study: Study, data: list[SiteData]) -> pd.DataFrame:
    rows = [size_row(study, s.name, counts_of(study, s), target_words(study, target_share(study, s))) for s in data]
    return sizes_table(study, rows)


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


def class_shares(study: Study, shares: Mapping[str, NDArray[np.float64]]) -> dict[str, list[float]]:
    """Site -> the share of each class, to a hundredth as `target_words` has it; nothing where no class is predicted."""
    return {site: [round(float(v), 2) for v in share] for site, share in shares.items() if study.target.levels}


def target_words(study: Study, share: NDArray[np.float64]) -> str:
    if study.target.kind == "number":
        return f"mean {share[0]:.4g} {study.target.unit}".strip()
    if study.target.kind == "time":
        return f"{100 * share[0]:.0f} % with {study.target.column}"
    shown = share[1:] if len(share) == 2 else share
    names = study.target.levels[-len(shown) :]
    return ", ".join(f"{100 * s:.0f} % {n}" for n, s in zip(names, shown, strict=True))
