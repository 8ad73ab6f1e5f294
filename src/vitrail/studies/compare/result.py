"""What a comparison found, as tidy tables: scores, summaries, and for each site whether joining is worth it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from vitrail.core.display import Plottable
from vitrail.core.text import size
from vitrail.methods import TABLE
from vitrail.metrics.scores import metric_name
from vitrail.metrics.skill import no_better, worst_site
from vitrail.quality.screening.result import Screening
from vitrail.runs.result import mark_small_samples
from vitrail.stats.intervals import BELOW, interval, level_of
from vitrail.studies.benefit import HARM, NO_HARM, YES, BenefitAnswer, Floats, Ints, SiteLosses, decide, why
from vitrail.studies.compare.budget import FixedBudget, Spent
from vitrail.studies.cross_validation import yardstick
from vitrail.studies.leave_one_site_out import LEFT_OUT
from vitrail.study.model import LOWER_IS_BETTER, SHARES, Study

SCORES = ["method", "seed", "site", "split", "metric", "value"]
CHANCE = ["seed", "site", "metric", "value"]  # what always giving the same answer comes to
SPREAD = ["method", "seed", "site", "metric", "fold", "value"]
SUMMARY = ["method", "metric", "mean", "mean_low", "mean_high", "worst_site", "worst", "worst_low", "worst_high"]
VERDICTS = ["site", "metric", "method", "alone", "joined", "gain", "low", "high", "verdict", "why"]
VERDICTS += ["harm", "least", "rows", "needed", "same", "harm_share"]
VERDICTS += ["brier_alone", "brier_joined", "brier_same"]  # of classes and times: beside the yardstick

NO_BUDGET = FixedBudget()


@dataclass(frozen=True)
class OutOfFold:
    """What verdicts rest on: every row of every site, judged under every seed by a model not trained on it."""

    losses: dict[tuple[str, int], dict[str, Floats]] = field(default_factory=dict)  # (method, seed) -> site -> [row]
    lots: dict[int, dict[str, Ints]] = field(default_factory=dict)  # seed -> site -> [row]: its fold
    same: dict[str, float] = field(default_factory=dict)  # site -> the loss of one answer to every row
    brier: dict[tuple[str, int], dict[str, float]] = field(default_factory=dict)  # (method, seed) -> site -> score
    same_brier: dict[str, float] = field(default_factory=dict)  # site -> that of one answer to every row


@dataclass(repr=False)
class Comparison(Plottable):
    """Tidy tables; `scores` is comparison.csv. A seed is a repeat of the cross-validation."""

    study: Study
    methods: list[str]
    seeds: list[int]
    scores: pd.DataFrame  # method, seed, site, split, metric, value
    curves: pd.DataFrame  # method, seed, round, site, metric, value
    ledger: pd.DataFrame  # method, site, stage, direction, messages, bytes
    sites: pd.DataFrame
    info: dict[str, Any]
    chance: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=CHANCE))  # see CHANCE
    screening: Screening | None = None  # whose data does not fit: one for all methods
    spread: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=SPREAD))  # what each fold adds to a score
    rows: OutOfFold = field(default_factory=OutOfFold)  # empty: scores are of a hold-out drawn anew for each seed
    harm: float = HARM  # what a site may lose without harm, a share of the loss of one answer to every row
    look: tuple[int, int] = (1, 1)  # which time of how many the verdicts are looked at
    left_out: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=LEFT_OUT))  # where it was asked for
    budget: FixedBudget = NO_BUDGET  # of bytes or steps, the same for every method
    spent: dict[str, Spent] = field(default_factory=dict)  # by method: the rounds that it paid; empty: no budget

    def __repr__(self) -> str:
        sites, seeds = (
            f"{n} {word}{'s' * (n != 1)}" for n, word in ((len(self.sites), "site"), (len(self.seeds), "seed"))
        )
        return f"<comparison of {self.study.name!r}: {', '.join(self.methods)}; {sites}, {seeds}>"

    def results(self) -> pd.DataFrame:
        """`scores`, and beside each on rows not trained on what always giving the same answer comes to; `few_rows` says
        where they are few."""
        beside = self.chance.rename(columns={"value": "chance"}).assign(split="test")
        wide = self.scores.merge(
            beside.astype({"seed": self.scores.seed.dtype}), "left", ["seed", "site", "split", "metric"]
        )
        return mark_small_samples(wide, self.sites)

    def rounds_of(self, method: str) -> int:
        """How many rounds it trained."""
        return self.spent[method].rounds if method in self.spent else self.study.training.rounds

    def budget_table(self) -> list[tuple[str, str, str, str]]:
        """For each method what the budget paid: its title, rounds, bytes and gradient steps; empty without a budget."""
        most = self.study.training.rounds
        return [
            (
                TABLE[name].catalogue.title,
                str(spent.rounds) if spent.rounds < most else f"{most} (all)",
                size(spent.bytes),
                f"{spent.steps:,}",
            )
            for name, spent in self.spent.items()
        ]

    def summary(self) -> pd.DataFrame:
        """For each method and metric: mean over sites, and the site served worst by its skill against its own baseline
        (metrics/skill.py), with intervals."""
        out = []
        test = self.scores[self.scores.split == "test"]
        for (method, metric), part in test.groupby(["method", "metric"], sort=False):
            table = part.pivot(index="seed", columns="site", values="value")
            by_site = {str(site): float(value) for site, value in table.mean(axis=0).items()}
            who = worst_site(by_site, self.baselines(str(metric)), metric in LOWER_IS_BETTER) or ""
            mean = self.between(str(method), str(metric), table)
            worst = self.between(str(method), str(metric), table[[who]]) if who else (math.nan,) * 3
            out.append((method, metric, *mean, who, *worst))
        return pd.DataFrame(out, columns=SUMMARY)

    def between(self, method: str, metric: str, table: pd.DataFrame) -> tuple[float, float, float]:
        """The mean over these sites [seed, site] and its interval: over folds where there are any, else over seeds."""
        within = (0.0, 1.0) if metric in SHARES else (-math.inf, math.inf)
        mine = self.spread
        if len(mine):
            mine = mine[(mine.method == method) & (mine.metric == metric) & mine.site.isin(table.columns)]
            folds = mine.pivot_table(index=["seed", "fold"], columns="site", values="value").mean(axis=1)
            count = int(mine.fold.max()) + 1
            center = float(table.mean(axis=1).mean())
            mean, low, high = interval(folds.tolist(), 1 / count)
            return center, max(center - (mean - low), within[0]), min(center + (high - mean), within[1])
        return interval(table.mean(axis=1).tolist(), self._share, within)

    def means(self, metric: str) -> dict[tuple[str, str], float]:
        """(method, site) -> mean over seeds on rows that were not trained on."""
        test = self.scores[(self.scores.split == "test") & (self.scores.metric == metric)]
        return {(str(m), str(s)): float(part.value.mean()) for (m, s), part in test.groupby(["method", "site"])}

    def baselines(self, metric: str) -> dict[str, float]:
        """Site -> what one answer to every row comes to, mean over seeds."""
        mine = self.chance[self.chance.metric == metric]
        return {str(site): float(part.value.mean()) for site, part in mine.groupby("site")}

    @property
    def _share(self) -> float:
        return float(self.sites.test_rows.sum() / (self.sites.test_rows.sum() + self.sites.train_rows.sum()))

    @property
    def yardstick(self) -> str:
        """What verdicts are about."""
        if not self.rows.losses:
            return self.study.metrics[0]
        return yardstick(self.study)

    def verdicts(self) -> pd.DataFrame:
        """Is joining worth it, for each site? A federated method against training alone (studies/benefit.py)."""
        out, word, metric = [], self.study.unit_word, self.yardstick
        sign = 1 if self.rows.losses or metric in LOWER_IS_BETTER else -1
        federated, alone = [m for m in self.methods if TABLE[m].catalogue.federated], self._alone
        for site, answer in self.answers().items():
            rows, harm = self._units(site), self._harm(site)
            if self.study.person_column:
                answer = answer._replace(needed=answer.needed * rows / self._rows(site))
            title = TABLE[federated[answer.best]].catalogue.title
            text = why(answer, title, metric_name(metric), word, rows, harm, len(self.seeds), bool(self.rows.losses))
            means = sign * answer.alone, sign * answer.joined
            same = self.rows.same.get(site, math.nan)
            if answer.verdict in (YES, NO_HARM) and no_better(means[1], same, lower=True):
                text += (
                    f" Still, it is no better here than the baseline, the same answer for every {word}, "
                    f"which has {same:.3f}."
                )
            interval = (
                answer.gain,
                answer.low,
                answer.high,
                answer.verdict,
                text,
                harm,
                answer.least,
                rows,
                answer.needed,
            )
            share = same, self.harm if self.rows.losses else 0.0
            brier = self._brier(alone, site), self._brier(federated[answer.best], site)
            baseline = self.rows.same_brier.get(site, math.nan)
            out.append((site, metric, federated[answer.best], *means, *interval, *share, *brier, baseline))
        return pd.DataFrame(out, columns=VERDICTS)

    @property
    def judged_words(self) -> str:
        """Which rows are scored and by which models, after "each site's own"."""
        study, day = self.study, self.study.split.test_from
        if study.split.by == "date" and self.rows.losses:
            return (
                f"{study.row_word}s from {day} on, each judged by a model trained on {study.row_word}s before that day"
            )
        whom = "the patient" if study.person_column else "it"
        return f"{study.row_word}s, each judged by a model that was not trained on {whom}"

    def settled(self) -> bool:
        """Whether every site's answer is clear, so that more seeds would hardly change it."""
        answers = self.answers()
        return bool(answers) and all(a.settled(self._harm(site)) for site, a in answers.items())

    def answers(self) -> dict[str, BenefitAnswer]:
        """By site; none without a method that trains alone and a federated one."""
        federated = [m for m in self.methods if TABLE[m].catalogue.federated]
        alone = self._alone
        if alone is None or not federated:
            return {}
        level, below = level_of(*self.look), BELOW if self.rows.losses else 0.5
        of = self._judged if self.rows.losses else self._held_out
        sites = [str(s) for s in self.sites.site]
        return {site: decide(of(site, alone, federated), self._harm(site), level, below) for site in sites}

    @property
    def _alone(self) -> str | None:
        return next((m for m in self.methods if TABLE[m].catalogue.alone), None)

    def _brier(self, method: str | None, site: str) -> float:
        """Mean over seeds; none of numbers, and of what was compared before there was one."""
        scores = [of.get(site, math.nan) for (m, _), of in self.rows.brier.items() if m == method]
        return float(np.mean(scores)) if scores else math.nan

    def _judged(self, site: str, alone: str, federated: list[str]) -> SiteLosses:
        losses = self.rows.losses
        lots = np.stack([self.rows.lots[seed][site] for seed in self.seeds])
        own = np.stack([losses[alone, seed][site] for seed in self.seeds])
        joined = np.stack([np.stack([losses[m, seed][site] for seed in self.seeds]) for m in federated])
        others = [str(s) for s in self.sites.site if str(s) != site]
        elsewhere = (
            np.array([np.mean([self._lost(m, other) for other in others]) for m in federated]) if others else None
        )
        return SiteLosses(own, joined, lots, 1 / (int(lots.max()) + 1), elsewhere)

    def _lost(self, method: str, site: str) -> float:
        """Mean loss, as a share of that of one answer to every row, so that sites count alike."""
        mean = np.mean([self.rows.losses[method, seed][site].mean() for seed in self.seeds])
        return float(mean / max(self.rows.same[site], 1e-12))

    def _held_out(self, site: str, alone: str, federated: list[str]) -> SiteLosses:
        """Each seed's score on its own hold-out stands for a fold."""
        metric = self.study.metrics[0]
        sign = 1 if metric in LOWER_IS_BETTER else -1
        mine = self.scores[(self.scores.split == "test") & (self.scores.metric == metric) & (self.scores.site == site)]
        table = sign * mine.pivot(index="seed", columns="method", values="value").astype(float)
        size = self.sites[self.sites.site == site].iloc[0]
        share = float(size.test_rows / (size.test_rows + size.train_rows))
        own, joined = table[alone].to_numpy()[None], table[federated].to_numpy().T[:, None]
        return SiteLosses(own, joined, np.arange(len(table))[None], share)

    def _harm(self, site: str) -> float:
        return self.harm * self.rows.same[site] if self.rows.losses else 0.0

    def _units(self, site: str) -> int:
        """Rows, or persons where the study names them."""
        size = self.sites[self.sites.site == site].iloc[0]
        return int(size.test_persons) if "test_persons" in size else int(size.test_rows)

    def _rows(self, site: str) -> int:
        return int(self.sites[self.sites.site == site].iloc[0].test_rows)
