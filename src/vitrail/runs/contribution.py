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

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from torch import Tensor

from vitrail.core.exchange import Pace, Roster, Rows
from vitrail.core.problems import Problem, VitrailError, nearest
from vitrail.core.random import key
from vitrail.core.tensors import each, filled, per_site, tensors
from vitrail.data.encode import prepare
from vitrail.data.read import ENDING, read_table
from vitrail.engines.wire import settled_shape
from vitrail.explain.shapley import Floats, Masks, Values, Worth, exact, leave_one_out, sampled
from vitrail.runs.folder import UPDATES, write_atomically
from vitrail.runs.run import Run
from vitrail.runs.setup import build_task

EXACT = 10  # sites in a round up to which all coalitions are rebuilt
TOLERANCE = 0.01  # of the gain: where an order is left
# gap between the two ways above which sizes are doubted: lies between what the two learning rates of
# benchmarks/contribution.py gave (sizes near those of training again, and far from them); not tried elsewhere
APART = 1 / 3
RESAMPLES = 2000  # of the test rows
CHUNK = 64  # coalitions evaluated at once
HELD = 1 << 29  # bytes of updates that are kept in memory
Solve = Callable[[Worth, int], Values]  # a game and its number of players -> their values
Tell = Callable[[str, int, int], None]  # words, done, in all
ROUND, WHOLE = "round by round", "whole run"
LOO, SHAPLEY = "leave-one-out", "Shapley"


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
    _check(method, permutations)
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


def _check(method: str, permutations: int) -> None:
    problems = []
    if method not in ("loo", "shapley", "all"):
        problems.append(Problem("method", f"expected 'loo', 'shapley' or 'all', got {method!r}.", "Correct it."))
    if permutations < 2:
        what = f"expected at least 2, got {permutations}."
        problems.append(Problem("permutations", what, "Below 2 there is no interval."))
    if problems:
        raise VitrailError("the contributions cannot be computed", problems)


class Said(NamedTuple):
    """One round: where the shared model stood, what each site reported, who did."""

    coord: Any
    up: Any  # stacked over all sites; zero for those absent
    present: Masks


class Record:
    """A run with its updates and one user's test rows: the loss there of what any coalition would have made."""

    def __init__(self, run: Run, path: Path, user: str, frame: pd.DataFrame) -> None:
        self.run, self.user, self.evaluations = run, user, 0
        self.files = _files(run, path)
        with safe_open(self.files[0], "pt") as file:
            self.names: tuple[str, ...] = tuple(json.loads(file.metadata()["sites"]))
        if user not in self.names:
            what = f"no site {user!r} took part in the run."
            raise VitrailError("there is no such user", [Problem("--user", what, nearest(user, self.names))])
        (data,) = prepare({user: frame}, run.study, run.seed, run.encoders[user])
        if data.fingerprint != run.info["fingerprints"][user]:
            what = f"these are not the rows that the run had from {user!r} (fingerprint {data.fingerprint})."
            raise VitrailError(
                "these are other rows", [Problem("--data", what, "Give the file that the run was given.")]
            )
        task = build_task(run.study, run.method, run.seed)
        self.task = replace(task, start={k: v.double() for k, v in task.start.items()})
        self.ex = run.method.plan(run.study.training.rounds)[0].exchange
        self.everyone = Roster(self.names, torch.ones(len(self.names), dtype=torch.bool))
        self.at = self.names.index(user)
        model = {k: v[None].double() for k, v in run.models[user].items()}
        self.state = filled(settled_shape(self.task, run.method), model)
        self.x, self.y = torch.from_numpy(data.test_x)[None], torch.from_numpy(np.ascontiguousarray(data.test_y))
        self.start = run.method.coord(self.task, len(self.names))
        self.took_part = np.zeros(len(self.names), dtype=np.int64)
        self._held: list[Said] | None = None
        self.final = self._replay()

    def _replay(self) -> Any:
        """Go through the run once; its last shared model must come out."""
        held: list[Said] = []
        small = sum(f.stat().st_size for f in self.files) * 2 <= HELD  # double precision
        coord = self.start
        for said in self.rounds():
            self.took_part += said.present
            held += [said] if small else []
            (coord,) = self._merged(said, said.present[None])
        got = dict(tensors(coord))
        if any(not torch.allclose(got[k], v.double(), rtol=1e-3, atol=1e-4) for k, v in self.run.shared.items()):
            what = "they do not lead to the run's last shared model."
            raise VitrailError("the updates do not fit", [Problem(str(self.files[0].parent), what, "Run it anew.")])
        if not self.took_part.any():
            raise VitrailError(
                "there is nothing to share", [Problem("the run", "no site ever answered.", "Run it anew.")]
            )
        self._held = held if small else None
        return coord

    def rounds(self) -> Iterator[Said]:
        if self._held is not None:
            yield from self._held
            return
        coord, shape = self.start, self._shape()
        for path in self.files:
            with safe_open(path, "pt") as file:
                present = file.get_tensor("present")
                up = each(lambda t: t.new_zeros((len(present), *t.shape[1:])), shape)  # noqa: B023
                for name, whole in tensors(up) if bool(present.any()) else ():
                    whole[present] = file.get_tensor(f"report/{name}").to(whole)
            said = Said(coord, up, present.numpy())
            yield said
            (coord,) = self._merged(said, said.present[None])

    def _shape(self) -> Any:
        """One site's report, as far as names and shapes go."""
        state, one = self.run.method.state(self.task, 1), Roster(("site",), torch.ones(1, dtype=torch.bool))
        down = self.ex.send(self.task, self.run.method.coord(self.task, 1), one)
        work = self.ex.begin(self.task, state, down)
        rows = Rows(torch.ones(1, dtype=torch.double))
        return self.ex.report(self.task, state, work, down, rows, Pace(0.1, 0.0))[1]

    def _merged(self, said: Said, masks: Masks) -> Iterator[Any]:
        """The coordinator after this round, had only these sites answered."""
        who = torch.from_numpy(masks & said.present)
        sums = each(lambda t: torch.tensordot(who.to(t), t, 1), said.up) if self.ex.sees == "sum" else None
        for c, here in enumerate(who):
            if not bool(here.any()):
                yield said.coord
                continue
            if self.ex.sees == "sum":
                heard = each(lambda t: t[c], sums)  # noqa: B023
            else:
                heard = each(lambda t: t * per_site(here.to(t), t), said.up)  # noqa: B023
            yield self.ex.merge(self.task, said.coord, heard, Roster(self.names, here))[0]

    @torch.no_grad()
    def losses(self, coords: Sequence[Any]) -> Floats:
        """[model, test row]: the user's loss under each of these shared models."""
        out = []
        for i in range(0, len(coords), CHUNK):
            told = [self.ex.send(self.task, c, self.everyone) for c in coords[i : i + CHUNK]]
            flat = [dict(tensors(each(lambda t: t[self.at : self.at + 1], d))) for d in told]
            down = filled(told[0], {k: torch.cat([f[k] for f in flat]) for k in flat[0]})
            n = len(flat)
            state = self.ex.settle(self.task, each(lambda t: t.expand(n, *t.shape[1:]), self.state), down)  # noqa: B023
            z = self.run.method.predict(self.task, state, self.x.expand(n, *self.x.shape[1:]))
            out.append(self._loss(z).numpy())
            self.evaluations += n
        got = np.concatenate(out)
        if not np.isfinite(got).all():
            what = f"a rebuilt model's loss on the test rows of {self.user!r} is no number."
            raise VitrailError("the run diverged", [Problem("the run", what, "Train it with a lower learning rate.")])
        return got

    def _loss(self, z: Tensor) -> Tensor:
        """[model, row]"""
        target = self.run.study.target
        if target.kind == "number":
            return ((z[..., 0] - self.y) * target.scale) ** 2
        return -z.log_softmax(2).gather(2, self.y.long().view(1, -1, 1).expand(len(z), -1, 1))[..., 0]

    @property
    def own_matters(self) -> bool:
        """Whether the user predicts with anything that was not sent to it."""
        mine, other = self.state, each(lambda t: t + 1, self.state)
        self.state, under_mine = other, self.losses([self.final])
        under_other, self.state = self.losses([self.final]), mine
        return not np.array_equal(under_mine, under_other)

    def by_round(self, solve: Solve, tell: Tell) -> Values:
        """The game of each round among those who answered, summed."""
        n, rows = len(self.names), self.x.shape[1]
        total, half, asked, orders = np.zeros((n, rows)), np.zeros(n), 0, 0
        cuts: list[float] = []
        for r, said in enumerate(self.rounds()):
            players = np.flatnonzero(said.present)
            if len(players):

                def worth(masks: Masks, said: Said = said, players: NDArray[np.int64] = players) -> Floats:
                    return self._worth(lambda part: list(self._merged(said, part)), masks, players)

                got = solve(worth, len(players))
                total[players] += got.rows
                half[players] = np.hypot(half[players], got.half)
                asked, orders = asked + got.asked, max(orders, got.orders)
                cuts.append(got.cut)
            tell("rounds", r + 1, len(self.files))
        return Values(total, half, asked, orders, float(np.mean(cuts or [0.0])))

    def by_run(self, solve: Solve, tell: Tell) -> Values:
        """One game of the whole run, among those who ever answered."""
        players = np.flatnonzero(self.took_part)

        def worth(masks: Masks) -> Floats:
            return self._worth(self.rebuilt, masks, players)

        got = solve(worth, len(players))
        rows, half = np.zeros((len(self.names), self.x.shape[1])), np.zeros(len(self.names))
        rows[players], half[players] = got.rows, got.half
        return got._replace(rows=rows, half=half)

    def _worth(self, make: Callable[[Masks], list[Any]], masks: Masks, players: NDArray[np.int64]) -> Floats:
        """[coalition, player] -> [coalition, row]: less loss is worth more. Models may be large: not all at once."""
        wide = np.zeros((len(masks), len(self.names)), dtype=bool)
        wide[:, players] = masks
        parts = (wide[i : i + CHUNK] for i in range(0, len(wide), CHUNK))
        return -np.concatenate([self.losses(make(part)) for part in parts])

    def rebuilt(self, masks: Masks) -> list[Any]:
        """What each coalition's reports alone would have added up to over the run."""
        sums = [{k: v.clone() for k, v in tensors(self.start)} for _ in masks]
        for said in self.rounds():
            before = dict(tensors(said.coord))
            for total, after in zip(sums, self._merged(said, masks), strict=True):
                for k, v in tensors(after):
                    total[k] += v - before[k]
        return [filled(self.start, total) for total in sums]

    def counted(self, game: Callable[[Solve, Tell], Values], solve: Solve, tell: Tell) -> tuple[Values, int]:
        """And how many models it took to evaluate."""
        before = self.evaluations
        return game(solve, tell), self.evaluations - before


def _files(run: Run, path: Path) -> list[Path]:
    rounds = run.method.plan(run.study.training.rounds)[0].rounds
    files = [path / UPDATES / f"round-{r:05d}.safetensors" for r in range(1, rounds + 1)]
    missing = [f.name for f in files if not f.exists()]
    if missing:
        what = f"{len(missing)} of {rounds} rounds have none ({missing[0]}{', ...' if len(missing) > 1 else ''})."
        hint = "Train it with `vitrail run ... --keep-updates`; updates cannot be had afterwards."
        raise VitrailError("the run kept no updates", [Problem(str(path / UPDATES), what, hint)])
    return files


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
    if len([s for s in method.plan(1) if s.exchange.trains]) > 1:
        notes.append(f"Counted on the shared model, before what {method.title} does to it afterwards at each site.")
    return notes


def user_table(data: Path, study: Any, user: str) -> pd.DataFrame:
    """The user's own table: the file itself, or the one of its name in a folder."""
    if data.is_dir():
        files = [f for f in sorted(data.iterdir()) if ENDING.search(f.name) and ENDING.sub("", f.name) == user]
        if len(files) != 1:
            what = f"expected one file of the site {user!r} here, got {len(files)}."
            raise VitrailError("cannot read the user's rows", [Problem(str(data), what, "Name the file itself.")])
        data = files[0]
    frame = read_table(data, study)
    if study.site_column and study.site_column in frame.columns:
        frame = frame[frame[study.site_column].map(str) == user]
    return frame


def write_tables(told: Contribution, folder: Path) -> None:
    """values.csv, costs.csv and ledger.csv."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in (("values", told.values), ("costs", told.costs), ("ledger", told.ledger)):
        if len(table):
            write_atomically(folder / f"{name}.csv", table.to_csv(index=False))


def to_text(told: Contribution) -> tuple[str, list[tuple[str, list[str], list[list[Any]]]]]:
    """A sentence, and tables with their captions, for the terminal."""
    said = (
        f"{told.user}, {told.rows} test rows of its own: {told.unit} {told.start:.4f} at the start, {told.end:.4f} "
        f"after {told.rounds} rounds, a gain of {told.gain:.4f}."
    )
    wide = told.values.assign(column=told.values.way + ", " + told.values.rebuilt)
    columns, sites = list(dict.fromkeys(wide.column)), list(dict.fromkeys(wide.site))
    cell = {(r.site, r.column): f"{r.value:+.4f} ({r.low:+.4f} to {r.high:+.4f})" for r in wide.itertuples()}
    tables = [
        (
            "What each site's taking part brought (95 % interval over the test rows and the orders drawn)",
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
