"""The page of a run or of a comparison: tables in, one self-contained HTML file out.

Nothing is trained or chosen here. What a page works out is in `tables`, what it says in `findings`, and what it is made
of, piece by piece, in the table of sections (sections/registry.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import pandas as pd

from vitrail.quality.screening.result import Screening
from vitrail.report.charts.tables import ScoreTable, score_table, sites_of, where
from vitrail.report.pages.frame import fill
from vitrail.report.sections.registry import chosen, fill_sections
from vitrail.report.sections.scores.findings import headline
from vitrail.runs.result import Run
from vitrail.runs.site.holdout import summaries_of
from vitrail.stats.intervals import LEAST
from vitrail.study.validation import CLASS_METRICS, TIME_METRICS


@dataclass(frozen=True)
class Page:
    """All that a page shows. Low and high are 95 % intervals, NaN with one seed. The ledger is of one seed.
    A gain is positive where joining is better, also for metrics of which less is better.
    """

    title: str  # study name
    kind: Literal["run", "compare"]
    description: str
    about: list[tuple[str, str]]  # what was run: label, value
    rounds: int
    metric: str  # the primary one
    lower_is_better: bool
    titles: dict[str, str]  # method key -> its name on pages, in the order of methods
    federated: tuple[str, ...]  # method keys, in the order of the table of methods; the others are yardsticks
    alone: str | None  # the method that trains each site by itself: the yardstick of joining
    pooled: tuple[str, ...]  # methods that take all rows to one place
    scores: pd.DataFrame  # method, seed, site, split ("test"/"train"), metric, value
    curves: pd.DataFrame  # method, seed, round, site, metric, value: on each site's own hold-out
    summary: pd.DataFrame  # method, metric, mean, mean_low, mean_high, worst_site, worst, worst_low/high
    verdicts: pd.DataFrame  # site, metric, method, alone, joined, gain, low, high, verdict, why, harm, ...
    ledger: pd.DataFrame  # method, site, stage, direction ("to site"/"from site"), messages, bytes
    wire: pd.DataFrame  # method, stage, direction, name, shape, dtype, bytes, rounds, seen ("each"/"sum")
    sites: pd.DataFrame  # site, train_rows, test_rows, then anything as text
    notes: list[str]  # attribution, what the page left out
    row_word: str = "row"  # what a row of a site is called
    event: str = ""  # of two classes: a sentence that says which one is the event
    newcomers: Sequence[str] = ()  # sites that came after training
    chance: pd.DataFrame = field(default_factory=pd.DataFrame)  # site, metric, value: of always the same answer
    folds: pd.DataFrame = field(
        default_factory=pd.DataFrame
    )  # method, seed, site, metric, fold, value; empty: hold-out
    run: Run | None = None  # where the page is of one run: its facts, and what was made of them
    screening: Screening | None = None  # whose data does not fit, where sites were asked
    test_from: str = ""  # the first day of the test rows, where the study splits by date
    budget: str = ""  # of a comparison in which every method had the same: of what, in words
    spent: list[tuple[str, str, str, str]] = field(default_factory=list)  # method, rounds, bytes, gradient steps

    @property
    def yardsticks(self) -> tuple[str, ...]:
        """Method keys that are not federated."""
        return tuple(m for m in self.titles if m not in self.federated)

    @property
    def seeds(self) -> int:
        return 0 if self.scores.empty else self.scores["seed"].nunique()

    @property
    def has_intervals(self) -> bool:
        """Whether there are seeds or folds enough for intervals that say something."""
        return self.draws >= LEAST

    @property
    def crossed(self) -> int:
        """Folds into which each site's rows were cut; 0 where scores are of a hold-out."""
        return 0 if self.folds.empty else int(self.folds["fold"].max()) + 1

    @property
    def draws(self) -> int:
        """How many values an interval is made of."""
        return self.seeds * (self.crossed or 1)

    @property
    def rounded(self) -> bool:
        """Whether scores left their sites as counts of patients that were rounded (privacy/score_rounding.py)."""
        run = self.run
        return run is not None and run.info["engine"] == "deployed" and run.study.protect.scores == "rounded"

    @property
    def simulated(self) -> bool:
        """Whether it is of one run whose sites were all on this machine, and of what only then can be drawn."""
        return self.run is not None and bool(summaries_of(self.run))

    @property
    def yardstick(self) -> str:
        """What the verdicts are about."""
        return self.metric if self.verdicts.empty else str(self.verdicts["metric"].iloc[0])

    @property
    def classes(self) -> bool:
        """Whether the target is one of some classes, and no number."""
        return self.metric in CLASS_METRICS

    @property
    def timed(self) -> bool:
        """Whether it is the time to an event."""
        return self.metric in TIME_METRICS

    @property
    def unit_word(self) -> str:
        """What is held out and counted: a patient, where the study names them, or a row."""
        return "patient" if "test_persons" in self.sites else self.row_word

    @property
    def few(self) -> dict[str, str]:
        """Sites whose scores stand on few hold-out rows -> how many."""
        counts = self.sites.get("few_rows", ())
        return {site: words for site, words in zip(self.sites.get("site", ()), counts, strict=False) if words}

    def chance_in(self, metric: str) -> dict[str, float]:
        """Site -> what always giving the same answer comes to on its hold-out rows."""
        same = where(self.chance, metric=metric)
        return {} if same.empty else dict(zip(same["site"], same["value"].astype(float), strict=True))

    @property
    def site_names(self) -> list[str]:
        return sites_of(self)

    @cached_property
    def table(self) -> ScoreTable:
        """The primary metric: site x method."""
        return score_table(self, self.metric)


def render(page: Page) -> str:
    """One HTML file that needs no network."""
    return fill(
        "page.html",
        heat=any(section.heat for section in chosen(page)),
        page=page,
        headline=headline(page),
        sections=fill_sections(page),
    )
