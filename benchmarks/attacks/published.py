"""What a coordinator can find out about one person from what a site publishes in a screening: the questions as they
follow from what was published, and questions of its own choosing, with and without the site's guard against these.

*Is this person among the rows?* Whoever knows all of a person's values and how often each is in the population takes,
for every count that tells of one of them, how much likelier the count is if the person is there. *What is this
person's outcome?* Whoever knows the values of a person who is there sends a made-up total for which the "prediction"
singles that person out. Sites are drawn from all heart patients; half of the persons asked about are there. AUC over
persons, with twice its standard error (Hanley and McNeil).

python benchmarks/attacks/published.py [--persons 300] [--seeds 6] [--only there|outcome|price]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pandas as pd
from scipy.stats import binom, rankdata

import vitrail as vt
from vitrail.core.text import print_table
from vitrail.data.datasets.catalogue import heart_disease, packaged
from vitrail.data.readers.tables import clean
from vitrail.quality.screening import Said, ScreeningCoordinator, ScreeningSite, screen
from vitrail.quality.screening import site as screening_site
from vitrail.quality.screening.request_validation import FEWEST, NARROW, check_asked
from vitrail.quality.screening.schema import CUTS, FENCES, RELATED, VALUES, ScreeningSchema
from vitrail.study.model import Study

SIZES = (20, 50, 100, 220)
OTHERS = 3  # sites beside, for questions as they follow from what was published
CENTRE = [CUTS.tolist().index(c) + 1 for c in (4, 14)]  # places of the quartiles' cuts, which small sites publish too


def plain_below(x: np.ndarray, cuts: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(cuts), np.searchsorted(x, cuts, side="right"), np.nan)


def plain_with(x: np.ndarray, values: np.ndarray) -> np.ndarray:
    same = np.searchsorted(x, values, "right") - np.searchsorted(x, values, "left")
    return np.where(np.isfinite(values), same, np.nan)


@contextmanager
def guard(on: bool) -> Iterator[None]:
    kept = (
        screening_site.rows_below,
        screening_site.rows_with,
        screening_site.clip_predictions,
        screening_site.rare_answers,
    )
    if not on:
        screening_site.rows_below, screening_site.rows_with, screening_site.clip_predictions = (
            plain_below,
            plain_with,
            lambda told: told,
        )
        screening_site.rare_answers = lambda values, is_number: np.zeros(len(is_number), dtype=bool)
    try:
        yield
    finally:
        (
            screening_site.rows_below,
            screening_site.rows_with,
            screening_site.clip_predictions,
            screening_site.rare_answers,
        ) = kept


class Attacker:
    """Knows the population and the agreed study; `person` is [column]."""

    def __init__(self, study: Study, people: np.ndarray) -> None:
        self.study, self.layout, self.people = study, ScreeningSchema(study), people

    def question(self, sketch: Said, person: np.ndarray, width: float) -> Said:
        """Cuts on either side of each of the person's numbers, and the number itself; `width`: of the middle half."""
        at = self.layout
        cuts, values = (
            np.full((len(at.numbers), len(CUTS) + len(FENCES)), np.nan),
            np.full((len(at.numbers), VALUES), np.nan),
        )
        for i, column in enumerate(at.column[at.numbers]):
            x, q = person[column], sketch["quantiles"][i]
            if np.isnan(x):
                continue
            half = max(1e-9, width * (q[14] - q[4]) / 2) if np.isfinite(q[[4, 14]]).all() else 1e-9
            cuts[i, CENTRE], values[i, 0] = (x - half, x + half), x
        asked = {"cuts": cuts, "values": values, "chosen": np.arange(at.wide, dtype=np.float64)}
        check_asked(self.study, "counts", asked)  # it keeps to the rules
        return asked

    def evidence(self, sketch: Said, asked: Said, said: Said, person: np.ndarray) -> float:
        """Log of how much likelier all of this is if the person is there."""
        at, n, out = self.layout, int(sketch["rows"][0]), 0.0
        for i, v in enumerate(at.yesno):
            x = person[at.column[v]]
            if np.isfinite(x) and x == at.level[v] and np.isfinite(sketch["levels"][i]):
                out += self._exactly(sketch["levels"][i], n, self.people[:, at.column[v]] == x)
        for i, v in enumerate(at.numbers):
            x, every = person[at.column[v]], self.people[:, at.column[v]]
            if np.isnan(x):
                continue
            told, cuts = said["below"][i], asked["cuts"][i]
            known = np.flatnonzero(np.isfinite(told))
            place = int(np.searchsorted(cuts[known], x))
            if np.isfinite(said["same"][i, 0]) and asked["values"][i, 0] == x and said["same"][i, 0] >= FEWEST:
                out += self._exactly(said["same"][i, 0], n, every == x)
            elif 0 < place < len(known):
                a, b = known[place - 1], known[place]
                inside = (every > cuts[a]) & (every <= cuts[b])
                out += self._exactly(told[b] - told[a], n, inside)
            elif np.isfinite(said["same"][i, 0]) and asked["values"][i, 0] == x:
                p = (every == x).mean()
                few = binom.cdf([FEWEST - 2, FEWEST - 1], [n - 1, n], p)
                out += float(np.log(few[0] / few[1]))
            elif len(known):
                side = every <= cuts[known[0]] if place == 0 else every > cuts[known[-1]]
                count = told[known[0]] if place == 0 else sketch["known"][at.column[v]] - told[known[-1]]
                out += self._exactly(count, n, side)
        return out

    @staticmethod
    def _exactly(count: float, n: int, there: np.ndarray) -> float:
        """A person who is there is one of the rows that were counted."""
        return float(np.log(max(count, 1e-3) / (n * max(there.mean(), 1e-3))))


def auc(scores: np.ndarray, truth: np.ndarray) -> tuple[float, float]:
    a, b = int(truth.sum()), int((~truth).sum())
    found = (rankdata(scores)[truth].sum() - a * (a + 1) / 2) / (a * b)
    q, r = found / (2 - found), 2 * found**2 / (1 + found)
    return found, 2 * np.sqrt((found * (1 - found) + (a - 1) * (q - found**2) + (b - 1) * (r - found**2)) / (a * b))


def membership(study: Study, frame: pd.DataFrame, n: int, persons: int) -> list[str]:
    """Questions that follow from what was published; chosen ones without the guard; chosen ones with it."""
    people = frame.to_numpy(np.float64)
    attacker, draw = Attacker(study, people), np.random.default_rng(n)
    there, scores = np.arange(persons) % 2 == 0, np.zeros((3, persons))
    for k in range(persons):
        rows = draw.permutation(len(frame))[: n * (OTHERS + 1) + 1]
        person, own = people[rows[0] if there[k] else rows[-1]], ScreeningSite(frame.iloc[rows[:n]], study)
        others = {str(s): ScreeningSite(frame.iloc[rows[n * s : n * (s + 1)]], study) for s in range(1, OTHERS + 1)}
        sketch = own.sketch()
        honest = ScreeningCoordinator(study).hear_sketch(
            {"own": sketch, **{s: other.sketch() for s, other in others.items()}}
        )
        scores[0, k] = attacker.evidence(sketch, honest, own.counts(honest)[0], person)
        for row, (on, width) in enumerate(((False, 0.0), (True, 1.001 * NARROW)), 1):
            with guard(on):
                asked = attacker.question(sketch, person, width)
                scores[row, k] = attacker.evidence(sketch, asked, own.counts(asked)[0], person)
    return [f"{found:.2f} ± {off:.2f}" for found, off in (auc(s, there) for s in scores)]


def outcomes(study: Study, frame: pd.DataFrame, n: int, persons: int) -> list[str]:
    """The outcome of a person, from a total that is made up for that person: there, without the guard and with it; not
    there, which tells what is guessed from others alike; and the same guess from the population alone."""
    at, draw = ScreeningSchema(study), np.random.default_rng(n)
    truth, told = np.zeros(persons, dtype=bool), np.zeros((4, persons))
    every, outcome = ScreeningSite(frame, study), frame[study.target.column].to_numpy() == 1
    x = np.nan_to_num(every.scores[:, at.inputs])
    spread = np.cov(x.T) + 0.02 * np.eye(len(at.inputs))
    for k in range(persons):
        rows = draw.permutation(len(frame))[: n + 1]
        there, gone = ScreeningSite(frame.iloc[rows[:-1]], study), ScreeningSite(frame.iloc[rows[1:]], study)
        weights = np.linalg.solve(spread, x[rows[0]])
        weights /= np.sqrt(weights @ spread @ weights)
        cross = (spread @ weights)[:, None]
        products = 1e6 * np.block([[spread, cross], [cross.T, np.ones((1, 1))]])
        related = np.full((len(at.inputs), RELATED), np.nan)
        asked = {"products": products, "chosen": np.arange(at.wide, dtype=np.float64), "related": related}
        check_asked(study, "ties", asked)
        for row, (seat_, on) in enumerate(((there, False), (there, True), (gone, True))):
            with guard(on):
                told[row, k] = seat_.ties(asked)["predicted"][0, 0]
        others = np.delete(np.arange(len(frame)), rows[0])
        told[3, k] = x[rows[0]] @ np.linalg.solve(spread, np.cov(x[others].T, outcome[others])[-1, :-1])
        truth[k] = outcome[rows[0]]
    return ["not told" if np.isnan(t).any() else "{:.2f} ± {:.2f}".format(*auc(t, truth)) for t in told]


FAULTS: dict[str, Callable[[np.ndarray, np.random.Generator], np.ndarray]] = {  # of one column at one site
    "none": lambda x, draw: x,
    "ten times": lambda x, draw: x * 10,
    "a tenth": lambda x, draw: x / 10,
    "one spread more": lambda x, draw: x + np.nanstd(x),
    "half a spread more": lambda x, draw: x + 0.5 * np.nanstd(x),
    "0 in 15 % of rows": lambda x, draw: np.where(draw.random(len(x)) < 0.15, 0, x),
    "the 80 % quantile in 15 % of rows": lambda x, draw: np.where(
        draw.random(len(x)) < 0.15, np.nanquantile(x, 0.8), x
    ),
    "cut off at 60 %": lambda x, draw: np.minimum(x, np.nanquantile(x, 0.6)),
    "constant": lambda x, draw: np.full(len(x), np.nanmedian(x)),
}


def price(study: Study, frame: pd.DataFrame, seeds: int) -> list[list[object]]:
    """What the guard costs: all patients in 6, 12 and 30 parts by lot, a fault at the first of them."""
    numbers = [name for name, feature in study.features.items() if feature.kind == "numeric"]
    rows: list[list[object]] = []
    for fault, plant in FAULTS.items():
        found, others = [0, 0], [0, 0]
        for seed in range(seeds):
            for parts in (6, 12, 30):
                cut = np.array_split(np.random.default_rng(seed).permutation(len(frame)), parts)
                tables = {f"part {i}": frame.iloc[some].reset_index(drop=True) for i, some in enumerate(cut)}
                column, first = numbers[seed % len(numbers)], tables["part 0"].copy()
                first[column] = plant(first[column].to_numpy(np.float64), np.random.default_rng(seed))
                for on in (False, True):
                    with guard(on):
                        wrong = {(f.site, f.feature) for f in screen({**tables, "part 0": first}, study).wrong}
                    found[on] += ("part 0", column) in wrong
                    others[on] += len(wrong - {("part 0", column)})
        rows.append([fault, 3 * seeds, *found, *others])
    return rows


def main() -> None:
    given = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    given.add_argument("--persons", type=int, default=300)
    given.add_argument("--seeds", type=int, default=6)
    given.add_argument("--only", choices=("there", "outcome", "price"))
    asked = given.parse_args()
    study = vt.Study.load(packaged("heart_disease.toml"))
    frame = pd.concat([clean(f, study) for f in heart_disease().values()], ignore_index=True)
    if asked.only in (None, "there"):
        there = [[n, *membership(study, frame, n, asked.persons)] for n in SIZES]
        print("Is this person among the rows?")
        print_table(["rows", "questions as they follow", "chosen, no guard", "chosen, guard"], there)
    if asked.only in (None, "outcome"):
        told = [[n, *outcomes(study, frame, n, asked.persons)] for n in SIZES]
        print("What is this person's outcome, from a made-up total?")
        print_table(["rows", "there, no guard", "there, guard", "not there", "from the population alone"], told)
    if asked.only in (None, "price"):
        print("What the guard costs: screenings with the faulty cell found, and other cells, without guard and with it")
        header = [
            "fault",
            "screenings",
            "found, no guard",
            "found, guard",
            "other cells, no guard",
            "other cells, guard",
        ]
        print_table(header, price(study, frame, asked.seeds))


if __name__ == "__main__":
    main()
