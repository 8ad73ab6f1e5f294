"""How much each site's taking part lowered the loss on one user's own test rows.

A coalition of sites is worth what its model lowers the user's loss by, from the baseline: one answer to every row,
which the user can give alone. Counted from the first model, which is drawn at random, a site would be paid for teaching
what everybody knows (benchmarks/verdicts/credits.py). Shapley values share the worth of everybody, the gain. What a
coalition's model would have been is had in four ways:

    trained again    with all sites' rows at hand: every coalition is trained, from several seeds (retraining.py). This
                     is what the others try to tell. The interval holds the noise of the seeds.
    carried over     from what every site reported in every round (a run that kept its updates) and the user's own rows:
                     v_S <- v_S + [merged reports of S at w_t - w_t] + [T(v_S) - v_S] - [T(w_t) - w_t]
                     where T is a round of training at the user: how reports change with the model is taken from its own
    round by round   the coalition's reports of round t merged at the run's own w_t;
                     worth = loss(w_t) - loss(merged), summed over rounds (Wang et al. 2020)
    whole run        w_0 + sum over t of (merged at w_t - w_t) (Song et al. 2019)

In all, nobody is worth nothing, and everybody together gives the gain, loss of the baseline - loss(w_T). Without
training again, what loss(w_0) is above the baseline is shared equally by all who ever answered. The last two take
reports as they were given, in answer to a model that all had made; sizes are mostly wrong
(benchmarks/verdicts/contribution.py measures all of them against training again). A site that is absent in a round gets
nothing for it.

Players are all sites, the user too. The user's private layers, where it has any, are those of the end of the run; then
neither training again nor carrying over is offered: layers of its own would be others under another shared model.

Credits: see ledger.py. Money is not handled.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from vitrail.core.errors import Problem, VitrailError
from vitrail.core.random import key
from vitrail.metrics.skill import no_better
from vitrail.runs.result import Run
from vitrail.runs.setup import check_keeping, unguarded
from vitrail.stats.shapley import Floats, Values, Worth, exact, leave_one_out, paired_mean
from vitrail.storage.atomic_files import write_atomically
from vitrail.storage.csv_files import to_csv
from vitrail.studies.contribution.coalition_loss import CoalitionLoss, Tell, no_such_user
from vitrail.studies.contribution.ledger import between, disagreement, ledger_of, spans_of
from vitrail.studies.contribution.reliability import AS_GIVEN, SEED_NOISE, SPOT, STRAIN, ReliabilityRule, spot, strain
from vitrail.studies.contribution.replay import UpdateReplay
from vitrail.studies.contribution.retraining import CoalitionRetraining
from vitrail.studies.contribution.rewards import RULES, reward_table

EXACT = 10  # sites up to which all coalitions are looked at
FEW = 6  # sites up to which they are trained again, unless told otherwise
SEEDS = 5  # of training again
PATIENCE = 60  # minutes that it may take without being asked for
COALITIONS = 512  # looked at of more sites, in pairs
RESAMPLES = 2000  # of the test rows
AGAIN, CARRIED, ROUND, WHOLE = "trained again", "carried over", "round by round", "whole run"
LOO, SHAPLEY = "leave-one-out", "Shapley"
CANNOT = "the contributions cannot be computed"
Tables = pd.DataFrame | Mapping[str, pd.DataFrame]


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
    end: float  # loss of everybody's shared model; of several seeds the mean
    same: float  # loss of the one answer to every row that fits the user's training rows best
    values: pd.DataFrame  # site, way, kind, value, low, high, chance: half of the interval that is not the test rows'
    costs: pd.DataFrame  # way, kind, evaluations, how
    ledger: pd.DataFrame  # site, rounds, value, low, high, credit, credit_low, credit_high; or empty: see `unpaid`
    notes: list[str]
    seeds: int = 0  # that coalitions were trained again from
    strain: float = 0.0  # see reliability.py
    spot: float | None = None
    row_word: str = "row"
    rewards: pd.DataFrame = field(default_factory=pd.DataFrame)  # site, and its share by each rule of rewards.py

    @property
    def gain(self) -> float:
        return self.same - self.end

    @property
    def by_shapley(self) -> bool:
        """Whether Shapley values were asked for, which sum to the gain."""
        return bool((self.values.way == SHAPLEY).any())

    def unpaid(self) -> str:
        """Why no credits were computed although Shapley values were; "" where they were."""
        if not self.by_shapley or not no_better(self.end, self.same, lower=True):
            return ""
        return (
            "No credits were computed, because the model of "
            f"all sites is no better for {self.user} than the "
            "baseline, which gives the same answer for every "
            f"{self.row_word} ({self.unit} {self.end:.4f} against {self.same:.4f}). The values show "
            "which sites changed the loss, but there is no "
            "gain to pay for."
        )

    @property
    def kind(self) -> str:
        """How the values that count were had."""
        return next(k for k in (AGAIN, CARRIED, ROUND) if (self.values.kind == k).any())

    def disagreement(self) -> str:
        """Where Shapley values and leave-one-out, both asked for, say different things."""
        result = {way: spans_of(self.values, way, self.kind) for way in (SHAPLEY, LOO)}
        return disagreement(result[SHAPLEY], result[LOO], self.user) if all(result.values()) else ""

    def main(self, kind: str = "") -> pd.DataFrame:
        """The values that count, by site: Shapley, or leave-one-out where only that was asked for."""
        way = SHAPLEY if self.by_shapley else LOO
        return self.values[(self.values.way == way) & (self.values.kind == (kind or self.kind))].set_index("site")

    @property
    def rule(self) -> ReliabilityRule | None:
        """By what is judged whether to rely on the sizes; nothing where they were trained again."""
        if self.kind == AGAIN:
            return None
        return AS_GIVEN if self.kind == ROUND else STRAIN if self.spot is None else SPOT

    def over(self) -> str:
        """What the intervals of the values that count are over."""
        drawn = len(set(self.values.site)) > EXACT and (self.values.way == SHAPLEY).any()
        beside = [f"the test {self.row_word}s", *["seeds"] * (self.seeds > 1), *["the groups drawn"] * bool(drawn)]
        return " and ".join([", ".join(beside[:-1]), beside[-1]] if len(beside) > 1 else beside)

    def doubt(self) -> str:
        """Why not to rely on the sizes; nothing where there is no reason."""
        rule, signal = self.rule, self.strain if self.spot is None else self.spot
        if rule is None or signal < rule.limit:
            return ""
        why = {
            AS_GIVEN: "These values use the reports as they were sent, and sizes computed in this way are mostly wrong",
            STRAIN: (
                "The sites' reports point in very different directions, or change differently from the user's "
                f"own (strain {signal:.2g}, limit {rule.limit:g})"
            ),
            SPOT: (
                "Training the other sites alone did not give what the replay gave (a difference of "
                f"{100 * signal:.0f} % of the values' size, limit {100 * rule.limit:.0f} %)"
            ),
        }[rule]
        return f"{why}: {rule.said(True)}. Do not base payments on these numbers."

    def reliance(self) -> str:
        """What is known about how far the values that count can be relied on."""
        if self.kind == AGAIN:
            many = (
                f"{self.seeds} seeds; the interval includes their noise"
                if self.seeds > 1
                else "one seed; the noise of the seed is unknown"
            )
            return f"Groups of sites were trained again, from {many}."
        text = "" if self.doubt() else f"No warning: {STRAIN.said(False) if self.spot is None else SPOT.said(False)}. "
        return (
            f"{text}One run has one seed. In the median test case, training again with another seed changed the "
            f"values by {100 * SEED_NOISE:.0f} %, and no interval here includes that."
        )


def contribution(
    path: str | Path,
    user: str,
    tables: Tables,
    method: str = "all",
    *,
    retrain: bool | None = None,
    seeds: int = SEEDS,
    coalitions: int = COALITIONS,
    progress: Tell | None = None,
    cluster: str = "",
) -> Contribution:
    """What each site contributed to the model of one site: leave-one-out, Shapley or both (`method`) of the run at
    `path`, on the test rows of `user`.

    `tables`: the user's own, or those of all sites by name. With all of them, coalitions are trained again: in any case
    where `retrain` says so, else up to 6 sites and an hour, from so many `seeds`. Otherwise the run must have kept its
    updates. More than 10 sites are judged by so many sampled `coalitions`. progress(what, done, of) is called.
    `cluster`: the scheduler whose machines train them, up to 10 sites."""
    if problems := asked_wrongly(method, coalitions, seeds):
        raise VitrailError(CANNOT, problems)
    run = Run.load(path)
    if user not in run.sites:
        raise VitrailError("there is no such user", [no_such_user(user, run.sites)])
    frames = {user: tables} if isinstance(tables, pd.DataFrame) else dict(tables)
    tell = progress or (lambda words, done, total: None)
    rng = np.random.default_rng(key(run.seed, user, "contribution"))
    trained_from = [run.seed, *(key(run.seed, "again", k) for k in range(1, seeds))]
    why_not = cannot_retrain(run, frames)
    again = None if why_not or retrain is False else CoalitionRetraining(run, user, frames, trained_from)
    if again and again.own_matters:
        what = "gives the user a part of its own, which would differ in every group of sites."
        why_not, again = [Problem(f"method {run.method.catalogue.title}", what, "Omit --retrain.")], None
    if retrain and why_not:
        raise VitrailError("the coalitions cannot be trained again", why_not)

    def by_size(worth: Worth, players: int) -> Values:
        return exact(worth, players) if players <= EXACT else paired_mean(worth, players, coalitions, rng)

    ways = [(LOO, leave_one_out)] * (method != "shapley") + [(SHAPLEY, by_size)] * (method != "loo")
    minutes = run.info["seconds"] * 2 ** (len(run.sites) - 1) * seeds / 60  # one after the other; stacked it is less
    if again and (retrain or (len(run.sites) <= FEW and minutes <= PATIENCE)):
        if cluster and len(run.sites) <= EXACT:
            again.train_far(cluster, frames, tell)
        results = [(way, AGAIN, *again.counted(again.by_seed, solve, tell)) for way, solve in ways]
        return _rewarded(run, _summarise(again, results, rng, again.end(), seeds=seeds), frames)
    record = UpdateReplay(run, Path(path), user, frames[user])
    games = {ROUND: record.by_round, WHOLE: record.by_run}
    if not record.own_matters:
        games = {CARRIED: record.by_own_rows} | games
    results = [(way, kind, *record.counted(game, solve, tell)) for way, solve in ways for kind, game in games.items()]
    first, last = record.losses([record.start, record.final])
    results_shown = [
        (way, kind, _from_baseline(got, way, first - record.baseline(), record.took_part), asked)
        for way, kind, got, asked in results
    ]
    if CARRIED not in games:
        return _rewarded(run, _summarise(record, results_shown, rng, last.mean()), None)
    (size,) = [float(np.abs(got.mean).sum()) for way, kind, got, _ in results if (way, kind) == (ways[-1][0], CARRIED)]
    checked = spot(record, again, size) if again else None
    return _rewarded(
        run, _summarise(record, results_shown, rng, last.mean(), strain=strain(record), spot=checked), None
    )


def _from_baseline(got: Values, way: str, above: Floats, took_part: NDArray[np.int64]) -> Values:
    """Values counted from the first model, which is worse than the baseline by `above` [row], counted from there:
    whoever comes first loses it, and everybody is first equally often. Without one site all others are still there."""
    here = took_part > 0
    if way != SHAPLEY or not here.any():
        return got
    return got._replace(rows=got.rows - np.where(here, 1 / here.sum(), 0.0)[:, None] * above)


def _rewarded(run: Run, result: Contribution, frames: Mapping[str, pd.DataFrame] | None) -> Contribution:
    """With the shares that other rules give, where there is something to share."""
    if not len(result.ledger):
        return result
    ledger = result.ledger
    rounds, credits = (dict(zip(ledger.site, ledger[k].astype(float), strict=True)) for k in ("rounds", "credit"))
    return replace(result, rewards=reward_table(run, result.user, rounds, credits, frames))


def asked_wrongly(method: str, coalitions: int, seeds: int) -> list[Problem]:
    problems = []
    if method not in ("loo", "shapley", "all"):
        problems.append(Problem("method", f"expected 'loo', 'shapley' or 'all', got {method!r}.", "Correct it."))
    if coalitions < 80:
        what = f"expected at least 80, got {coalitions}."
        problems.append(Problem("coalitions", what, "Fewer give no interval."))
    if seeds < 1:
        problems.append(
            Problem("seeds", f"expected at least 1, got {seeds}.", "Give at least 2 for an interval over seeds.")
        )
    return problems


def cannot_retrain(run: Run, frames: Mapping[str, pd.DataFrame]) -> list[Problem]:
    """Why coalitions of this run's sites cannot be trained again."""
    missing = [s for s in run.sites if s not in frames]
    if missing:
        some = f"{', '.join(missing[:3])}{', ...' if len(missing) > 3 else ''}"
        what = f"the {run.study.row_word}s of {len(missing)} of {len(run.sites)} sites are not available here ({some})."
        return [Problem("--data", what, "Give a folder with the data of all sites, or omit --retrain.")]
    try:
        check_keeping(run.plan, "")
    except VitrailError as error:
        return list(error.problems)
    return unguarded(run.study)


def _summarise(
    tested: UpdateReplay | CoalitionRetraining,
    results: list[tuple[str, str, Values, int]],
    rng: np.random.Generator,
    end: float,
    seeds: int = 0,
    **beside: Any,
) -> Contribution:
    run, names, rows = tested.run, tested.names, tested.x.shape[1]
    draws = rng.multinomial(rows, [1 / rows] * rows, RESAMPLES) / rows  # [resample, row]
    values, costs, ledger, same = [], [], pd.DataFrame(), float(tested.baseline().mean())
    order = [names.index(s) for s in run.sites if s in names]  # as the run names them
    for way, kind, got, evaluations in results:
        mean, low, high = between(got.rows.mean(1), draws @ got.rows.T, got.half)
        values += [(names[i], way, kind, mean[i], low[i], high[i], got.half[i]) for i in order]
        costs.append((way, kind, evaluations, _how(way, len(names)) + (f", {seeds} seeds" if seeds else "")))
        if way == SHAPLEY and kind == results[0][1] and not no_better(end, same, lower=True):
            ledger = ledger_of(names, tested.took_part, got, draws).iloc[order].reset_index(drop=True)
    target = run.study.target
    unit = "log loss per case" if target.kind != "number" else f"squared error ({target.unit or 'unit'}²)"
    return Contribution(
        run.study.name,
        run.method.catalogue.title,
        run.seed,
        tested.user,
        rows,
        run.method.plan(run.study.training.rounds)[0].rounds,
        unit,
        float(end),
        same,
        pd.DataFrame(values, columns=["site", "way", "kind", "value", "low", "high", "chance"]),
        pd.DataFrame(costs, columns=["way", "kind", "evaluations", "how"]),
        ledger,
        _notes(tested),
        seeds,
        row_word=run.study.row_word,
        **beside,
    )


def _share(part: float) -> str:
    return "not known" if np.isnan(part) else f"{100 * part:.0f} %"


def _how(way: str, sites: int) -> str:
    if way == LOO:
        return "everybody, and everybody but one"
    return "all groups" if sites <= EXACT else "groups drawn at random, each with its complement"


def _notes(tested: CoalitionLoss) -> list[str]:
    method, notes = tested.run.method, []
    if tested.own_matters:
        notes.append(
            f"{method.catalogue.title} gives the user a part of its own. All models, even the initial one, "
            "are scored with that part as it is at the end of the run, so its "
            "benefit is in no site's value."
        )
    if sum(any(ex.trains for ex in stage.exchanges) for stage in method.plan(1)) > 1:
        notes.append(f"The values are for the shared model, before {method.catalogue.title} adapts it at each site.")
    return notes


def write_tables(result: Contribution, folder: Path) -> None:
    """values.csv, costs.csv and, where there are credits, ledger.csv and rewards.csv; one of before is removed."""
    folder.mkdir(parents=True, exist_ok=True)
    tables = {"values": result.values, "costs": result.costs, "ledger": result.ledger, "rewards": result.rewards}
    for name, table in tables.items():
        if len(table):
            write_atomically(folder / f"{name}.csv", to_csv(table))
        else:
            (folder / f"{name}.csv").unlink(missing_ok=True)


def to_text(result: Contribution) -> tuple[str, list[tuple[str, list[str], list[list[Any]]]]]:
    """Sentences, and tables with their captions, for the terminal."""
    mean = f" (mean of {result.seeds} seeds)" if result.seeds > 1 else ""
    text = (
        f"Site {result.user}, {result.rows} test {result.row_word}s of its own: {result.unit} {result.end:.4f} after "
        f"{result.rounds} rounds{mean}. The baseline, the same answer for every {result.row_word}, has "
        f"{result.same:.4f}: a gain of {result.gain:.4f}."
    )
    wide = result.values.assign(column=result.values.way + ", " + result.values.kind)
    columns, sites = list(dict.fromkeys(wide.column)), list(dict.fromkeys(wide.site))
    cell = {(r.site, r.column): f"{r.value:+.4f} ({r.low:+.4f} to {r.high:+.4f})" for r in wide.itertuples()}
    tables = [
        (
            f"What the participation of each site contributed; 0 means nothing (95 % interval over {result.over()})",
            ["site", *columns],
            [[s, *(cell[s, c] for c in columns)] for s in sites],
        )
    ]
    if len(result.ledger):
        rows: list[list[Any]] = [
            [r.site, r.rounds, f"{r.value:+.4f}", f"{r.credit:.4f}"] for r in result.ledger.itertuples()
        ]
        rows.append(["sum", "", f"{result.ledger.value.sum():+.4f}", f"{result.ledger.credit.sum():.4f}"])
        words = (
            f"Ledger, {result.kind}: Shapley values that are surely positive, scaled to add up to the gain; the "
            "other sites get no credit"
        )
        tables.append((words, ["site", "rounds", "value", "credit"], rows))
    if len(result.rewards):
        rows = [[r["site"], *(_share(r[rule]) for rule in RULES)] for r in result.rewards.to_dict("records")]
        words = f"Share of a reward among the sites other than {result.user}, by rule"
        tables.append((words, ["site", *(rule.name for rule in RULES.values())], rows))
    sentences = (text, result.unpaid(), result.doubt(), result.disagreement(), result.reliance())
    text = "\n".join(words for words in sentences if words)
    lines = [[c.way, c.kind, c.evaluations, c.how] for c in result.costs.itertuples()]
    tables.append(("Cost", ["way", "kind", "model evaluations", "groups of sites"], lines))
    return text, tables
