"""How much each site's taking part lowered the loss on one user's own test rows.

A run that kept its updates (`keep_updates`) holds what every site reported in every round. From that the model of any
coalition of sites is rebuilt with the method's own merge, without training anything again:

    round by round   the coalition's reports of round t merged at the shared model w_t that the run really had there;
                     worth = loss(w_t) - loss(merged); values summed over rounds (Wang et al. 2020)
    whole run        w_0 + sum over t of (merged at w_t - w_t); worth = loss(w_0) - loss(that) (Song et al. 2019)

In both, nobody changes nothing, and everybody together gives the run's own gain, loss(w_0) - loss(w_T), exactly: that
is what Shapley values sum to. A site that is absent in a round gets nothing for it. Both take the sites' reports as
they were given, in answer to a model that all had made: they are not what the sites would have said in a smaller
federation. `benchmarks/contribution.py` measures what that costs against training again.

Players are all sites, the user too. The user's private layers, where it has any, are those of the end of the run.

Credits: each site's positive Shapley value (round by round), all scaled by one factor so that they sum to the gain;
sites of negative value are shown and get nothing; where there is no gain there are no credits. Money is not handled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from vitrail.core.problems import Problem, VitrailError
from vitrail.core.random import key
from vitrail.data.read import ENDING, read_table
from vitrail.explain.shapley import Floats, Values, Worth, exact, leave_one_out, sampled
from vitrail.runs.folder import write_atomically
from vitrail.runs.run import Run
from vitrail.studies.record import Record, Tell, no_such_user

EXACT = 10  # sites in a round up to which all coalitions are rebuilt
TOLERANCE = 0.01  # of the gain: where an order is left
# gap between the two ways above which sizes are doubted: lies between what the two learning rates of
# benchmarks/contribution.py gave (sizes near those of training again, and far from them); not tried elsewhere
APART = 1 / 3
RESAMPLES = 2000  # of the test rows
ROUND, WHOLE = "round by round", "whole run"
LOO, SHAPLEY = "leave-one-out", "Shapley"
CANNOT = "the contributions cannot be computed"


@dataclass(frozen=True)
class Contribution:
    """What `contribution` found. Gains are positive where a site lowered the loss."""

    study: str
    method: str
    seed: int
    user: str
    rows: int  # the user's test rows
    rounds: int
    unit: str  # of the loss
    start: float  # loss of the model that all started from
    end: float  # loss of the run's shared model
    values: pd.DataFrame  # site, way, rebuilt, value, low, high, sampling
    costs: pd.DataFrame  # way, rebuilt, evaluations, how
    ledger: pd.DataFrame  # site, rounds, value, low, high, credit, credit_low, credit_high; empty without Shapley
    notes: list[str]
    row_word: str = "row"

    @property
    def gain(self) -> float:
        return self.start - self.end

    def main(self, rebuilt: str = ROUND) -> pd.DataFrame:
        """The values that count, by site: Shapley, or leave-one-out where only that was asked for."""
        way = SHAPLEY if (self.values.way == SHAPLEY).any() else LOO
        return self.values[(self.values.way == way) & (self.values.rebuilt == rebuilt)].set_index("site")

    @property
    def gap(self) -> float:
        """How far the two ways of rebuilding are apart, as a share of the values' size: 0 where they agree."""
        one, other = self.main(ROUND).value, self.main(WHOLE).value
        size = float((one.abs() + other.abs()).sum())
        return 2 * float((one - other).abs().sum()) / size if size else 0.0

    def disputed(self) -> list[str]:
        """Sites that helped by one way of rebuilding and did harm by the other, and not by a hair."""
        one, other = self.main(ROUND), self.main(WHOLE)
        clear = (one.low > 0) | (one.high < 0) | (other.low > 0) | (other.high < 0)
        return [str(s) for s in one.index[(one.value * other.value < 0) & clear]]

    def doubt(self) -> str:
        """Why not to rely on the sizes; nothing where the two ways agree well enough."""
        if self.gap <= APART and not self.disputed():
            return ""
        words = f"The two ways of rebuilding are {100 * self.gap:.0f} % apart"
        if self.disputed():
            return f"{words}, and disagree on who helped: {', '.join(self.disputed())}. Do not pay by these numbers."
        return f"{words}. Read the order of the sites at most; do not pay by these numbers."


def contribution(
    path: str | Path,
    user: str,
    frame: pd.DataFrame,
    method: str = "all",
    permutations: int = 200,
    progress: Tell | None = None,
) -> Contribution:
    """Leave-one-out, Shapley or both of the run at `path`, on the test rows of `user`, whose own table `frame` is."""
    if problems := asked_wrongly(method, permutations):
        raise VitrailError(CANNOT, problems)
    record = Record(Run.load(path), Path(path), user, frame)
    tell = progress or (lambda words, done, total: None)
    rng = np.random.default_rng(key(record.run.seed, user, "contribution"))
    found: list[tuple[str, str, Values, int]] = []  # way, rebuilt, values, evaluations
    if method in ("loo", "all"):
        for rebuilt, game in ((ROUND, record.by_round), (WHOLE, record.by_run)):
            found.append((LOO, rebuilt, *record.counted(game, leave_one_out, tell)))
    if method in ("shapley", "all"):

        def by_size(worth: Worth, players: int) -> Values:
            return exact(worth, players) if players <= EXACT else by_lot(worth, players)

        def by_lot(worth: Worth, players: int) -> Values:
            return sampled(worth, players, permutations, TOLERANCE, rng)

        found.append((SHAPLEY, ROUND, *record.counted(record.by_round, by_size, tell)))
        found.append((SHAPLEY, WHOLE, *record.counted(record.by_run, by_lot, tell)))
    return _told(record, found, rng)


def asked_wrongly(method: str, permutations: int) -> list[Problem]:
    problems = []
    if method not in ("loo", "shapley", "all"):
        problems.append(Problem("method", f"expected 'loo', 'shapley' or 'all', got {method!r}.", "Correct it."))
    if permutations < 2:
        what = f"expected at least 2, got {permutations}."
        problems.append(Problem("permutations", what, "Below 2 there is no interval."))
    return problems


def credits_of(values: Floats) -> Floats:
    """[..., site] Shapley values -> credits: the positive ones, scaled to sum to the sum of all; none without a gain.

    >>> credits_of(np.array([0.3, 0.1, -0.1])).round(3).tolist(), credits_of(np.array([0.1, -0.2])).tolist()
    ([0.225, 0.075, 0.0], [0.0, 0.0])
    """
    positive, gain = values.clip(min=0), values.sum(-1, keepdims=True).clip(min=0)
    whole = positive.sum(-1, keepdims=True)
    return np.asarray(positive * gain / np.where(whole > 0, whole, 1.0))


def _told(record: Record, found: list[tuple[str, str, Values, int]], rng: np.random.Generator) -> Contribution:
    run, names, rows = record.run, record.names, record.x.shape[1]
    draws = rng.multinomial(rows, [1 / rows] * rows, RESAMPLES) / rows  # [resample, row]
    values, costs, ledger = [], [], pd.DataFrame()
    order = [names.index(s) for s in run.sites if s in names]  # as the run names them
    for way, rebuilt, got, evaluations in found:
        mean, low, high = _between(got.rows.mean(1), draws @ got.rows.T, got.half)
        values += [(names[i], way, rebuilt, mean[i], low[i], high[i], got.half[i]) for i in order]
        costs.append((way, rebuilt, evaluations, _how(way, got)))
        if (way, rebuilt) == (SHAPLEY, ROUND):
            credit = _between(credits_of(mean), credits_of(draws @ got.rows.T), np.zeros(len(names)))
            columns = {"site": names, "rounds": record.took_part, "value": mean, "low": low, "high": high}
            columns |= dict(zip(("credit", "credit_low", "credit_high"), credit, strict=True))
            ledger = pd.DataFrame(columns).iloc[order].reset_index(drop=True)
    ends = record.losses([record.start, record.final]).mean(1)
    target = run.study.target
    unit = "log loss (nats)" if target.kind == "classes" else f"squared error ({target.unit or 'unit'}²)"
    return Contribution(
        run.study.name,
        run.method.title,
        run.seed,
        record.user,
        rows,
        len(record.files),
        unit,
        float(ends[0]),
        float(ends[1]),
        pd.DataFrame(values, columns=["site", "way", "rebuilt", "value", "low", "high", "sampling"]),
        pd.DataFrame(costs, columns=["way", "rebuilt", "evaluations", "how"]),
        ledger,
        _notes(record),
        run.study.row_word,
    )


def _between(value: Floats, resampled: Floats, half: Floats) -> tuple[Floats, Floats, Floats]:
    """95 % of the resamples of the test rows, widened by what drawing orders adds."""
    low, high = np.quantile(resampled, (0.025, 0.975), axis=0)
    return (
        value,
        value - np.hypot(value - low.clip(max=value), half),
        value + np.hypot(high.clip(min=value) - value, half),
    )


def _how(way: str, got: Values) -> str:
    if way == LOO:
        return "everybody, and everybody but one"
    if not got.orders:
        return "all coalitions"
    return f"{got.orders} orders, left within {100 * TOLERANCE:g} % of the gain ({100 * got.cut:.0f} % of steps saved)"


def _notes(record: Record) -> list[str]:
    method, notes = record.run.method, []
    if record.own_matters:
        notes.append(
            f"{method.title} leaves the user something of its own. It is taken as it is at the end of the run, also "
            "under the model that all started from: what it brings is in no site's value."
        )
    if sum(any(ex.trains for ex in stage.exchanges) for stage in method.plan(1)) > 1:
        notes.append(f"Counted on the shared model, before what {method.title} does to it afterwards at each site.")
    return notes


def user_table(data: Path, run: Run, user: str, beside: Sequence[Problem] = ()) -> pd.DataFrame:
    """The user's own table or pictures: the file itself, or what has its name in a folder. All that is wrong is told at
    once: the user's name first, then what was found `beside`, then the data."""
    problems = [] if user in run.sites else [no_such_user(user, run.sites)]
    others = set(run.sites) - set(run.study.target.levels)  # a folder may be called as a class is
    ours = data.is_dir() and any(_named(place, run) in others for place in data.iterdir())
    try:
        if not problems or not ours:  # what another name would find among the sites says nothing
            frame = read_table(_own(data, run, user, ours), run.study)
    except VitrailError as error:
        if not problems and not beside:
            raise
        beside = [*beside, *error.problems]
    if problems := [*problems, *beside]:
        raise VitrailError(CANNOT, problems)
    if run.study.site_column and run.study.site_column in frame.columns:
        frame = frame[frame[run.study.site_column].map(str) == user]
    return frame


def _own(data: Path, run: Run, user: str, ours: bool) -> Path:
    """`ours`: it is a folder that holds what sites of the run are called."""
    if not data.is_dir() or (run.study.images and not ours):  # a folder of pictures may be the user's own
        return data
    own = [place for place in sorted(data.iterdir()) if _named(place, run) == user]
    if not own or (len(own) > 1 and not run.study.images):
        kind, title = "folder or file" if run.study.images else "file", f"cannot read the user's {run.study.row_word}s"
        what = f"expected one {kind} of the site {user!r} here, got {len(own)}."
        raise VitrailError(title, [Problem(str(data), what, "Name it itself.")])
    return own[0]


def _named(place: Path, run: Run) -> str:
    """The site that this would be of; none, where no site's rows are kept in such a place."""
    if run.study.images:
        return place.name if place.is_dir() else place.stem
    return ENDING.sub("", place.name) if ENDING.search(place.name) else ""


def write_tables(told: Contribution, folder: Path) -> None:
    """values.csv, costs.csv and ledger.csv."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in (("values", told.values), ("costs", told.costs), ("ledger", told.ledger)):
        if len(table):
            write_atomically(folder / f"{name}.csv", table.to_csv(index=False))


def to_text(told: Contribution) -> tuple[str, list[tuple[str, list[str], list[list[Any]]]]]:
    """A sentence, and tables with their captions, for the terminal."""
    said = (
        f"{told.user}, {told.rows} test {told.row_word}s of its own: {told.unit} {told.start:.4f} at the start, "
        f"{told.end:.4f} after {told.rounds} rounds, a gain of {told.gain:.4f}."
    )
    wide = told.values.assign(column=told.values.way + ", " + told.values.rebuilt)
    columns, sites = list(dict.fromkeys(wide.column)), list(dict.fromkeys(wide.site))
    cell = {(r.site, r.column): f"{r.value:+.4f} ({r.low:+.4f} to {r.high:+.4f})" for r in wide.itertuples()}
    tables = [
        (
            f"What each site's taking part brought (95 % interval over the test {told.row_word}s and the orders drawn)",
            ["site", *columns],
            [[s, *(cell[s, c] for c in columns)] for s in sites],
        )
    ]
    if len(told.ledger):
        rows: list[list[Any]] = [
            [r.site, r.rounds, f"{r.value:+.4f}", f"{r.credit:.4f}"] for r in told.ledger.itertuples()
        ]
        rows.append(["sum", "", f"{told.ledger.value.sum():+.4f}", f"{told.ledger.credit.sum():.4f}"])
        words = "Ledger: positive Shapley values, scaled to sum to the gain; negative ones are shown, not paid"
        tables.append((words, ["site", "rounds", "value", "credit"], rows))
    said += f"\n{told.doubt()}" if told.doubt() else ""
    lines = [[c.way, c.rebuilt, c.evaluations, c.how] for c in told.costs.itertuples()]
    tables.append(("Cost", ["way", "rebuilt", "model evaluations", "groups of sites"], lines))
    return said, tables
