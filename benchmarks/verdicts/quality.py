"""How good the default model's risks are on tables, fold by fold beside what a statistician would use.

    python benchmarks/verdicts/quality.py                       # writes results/quality.md; about 15 minutes of one core
    python benchmarks/verdicts/quality.py --tables heart,IMPACT --repeats 1 --cache done.json
    python benchmarks/verdicts/quality.py --tables "heart,Titanic by age,vehicle,IMPACT" --skip 2 --repeats 6 \\
        --out benchmarks/verdicts/results/quality_fresh_folds.md

The defaults were chosen on the first two repeats, so that these flatter them. --skip leaves repeats out: what follows
are the same rows in folds that nothing was chosen on.

What is finished is kept in the file of --cache, if one is named, and is not computed again as long as the study that
`vitrail init` drafts is the same.

Needs the tables of VITRAIL_DATA (heart and Titanic come with Vitrail). xgboost is used where it is installed; it is no
part of Vitrail. Twice three folds within each site, the same for everybody; every row is predicted by models that were
not trained on it. The study is what `vitrail init` drafts, the method that of a study which names none.

    twice the rounds     Vitrail's default, trained for twice as many rounds
    network, alone       the same network, trained at each site by itself (the method `local`)
    site's own rate      the share of events among the site's training rows, for every patient
    ridge, alone         logistic regression on the site's own rows, penalty chosen by cross-validation in them
    ridge, pooled        the same on all sites' rows in one place, with a constant for each site
    xgboost, pooled      boosted trees on all sites' rows in one place, with the site as a column

Columns: AUC within sites (mean weighted by rows), log loss and Brier score over all held-out rows; calibration alarms:
sites at which intercept and slope of the calibration line differ from 0 and 1 at the 5 % level; net benefit of acting
at a risk of 10 %, in rightly treated patients per 1000.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

import vitrail as vt
from vitrail.analysis.calibration import LEVEL, fit_line
from vitrail.data.encoding import clean_sites
from vitrail.metrics.scores import score
from vitrail.runs.setup import resolve
from vitrail.studies.cross_validation import train_folds
from vitrail.studies.folds import FoldedRows

try:
    import xgboost
except ImportError:
    xgboost = None

Floats = NDArray[np.float64]
Sites = dict[str, pd.DataFrame]
FOLDS, SEED, ACT = 3, 1, 0.1
PENALTIES = (0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0)
SITE_PENALTY = 1.0  # of a site's constant
SMALLEST = 1e-6  # risk
DEFAULT, TWICE, LONE = "Vitrail's default", "twice the rounds", "network, alone"
RATE, ALONE, POOLED, TREES = "site's own rate", "ridge, alone", "ridge, pooled", "xgboost, pooled"


def outside(name: str) -> pd.DataFrame:
    return pd.read_csv(Path(os.environ["VITRAIL_DATA"]) / name, keep_default_na=False, na_values=[""])


def by_site(frame: pd.DataFrame, column: str, fewest: int = 1) -> Sites:
    groups = sorted(frame.groupby(column), key=lambda pair: str(pair[0]))
    return {str(k): f.drop(columns=column).reset_index(drop=True) for k, f in groups if len(f) >= fewest}


def ebola() -> tuple[Sites, str]:
    cases = outside("ebola_sierraleone_2014/ebola_sierraleone_2014.csv.gz")
    onset, sample = pd.to_datetime(cases.date_of_onset), pd.to_datetime(cases.date_of_sample)
    cases["onset_day"] = (onset - pd.Timestamp("2014-05-01")).dt.days.astype(float)
    cases["delay"], cases["weekday"] = (sample - onset).dt.days.astype(float), sample.dt.weekday.astype(float)
    cases["confirmed"] = (cases.status == "confirmed").astype(int)
    kept = cases[["age", "sex", "onset_day", "delay", "weekday", "confirmed", "district"]]
    return by_site(kept, "district"), "confirmed"


def impact() -> tuple[Sites, str]:
    patients = outside("impact_tbi/impact_tbi.csv").drop(columns="type")
    patients["pupil"] = patients.pupil.replace("None", "neither")  # a level, and not a missing value
    return by_site(patients, "study"), "mort"


def adult() -> tuple[Sites, str]:
    people = vt.datasets.adult().drop(columns=["fnlwgt", "education", "country"])
    return by_site(people, "occupation", 601), "target"


TABLES: dict[str, Callable[[], tuple[Sites, str]]] = {
    "heart": lambda: (vt.datasets.heart_disease(), "disease"),
    "GUSTO": lambda: (vt.datasets.gusto(), "day30"),
    "Adult by occupation": adult,
    "Titanic by age": lambda: (vt.partition.age_strict(vt.datasets.titanic()), "survived"),
    "vehicle": lambda: (vt.datasets.vehicle(), "label"),
    "Ebola line list": ebola,
    "IMPACT": impact,
}


def dealt(y: NDArray[Any], folds: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """[row]: its fold; classes are spread evenly."""
    order = rng.permutation(len(y))
    out = np.empty(len(y), np.int64)
    out[order[np.argsort(y[order], kind="stable")]] = np.arange(len(y)) % folds
    return out


def ridge(x: Floats, y: Floats, penalty: Floats, steps: int = 60) -> Floats:
    """Logistic regression by Newton's method; penalty: of each column."""
    beta, loss = np.zeros(x.shape[1]), np.inf
    for _ in range(steps):
        z = x @ beta
        now = float((np.logaddexp(0, z) - y * z).sum() + (penalty * beta**2).sum() / 2)
        if loss - now < 1e-8 * (1 + abs(now)):
            break
        p, loss = 1 / (1 + np.exp(-z.clip(-35, 35))), now
        bend = (x * np.maximum(p * (1 - p), 1e-8)[:, None]).T @ x + np.diag(penalty)
        beta = beta - np.linalg.solve(bend, x.T @ (p - y) + penalty * beta)
    return beta


def chosen_ridge(x: Floats, constants: Floats, y: Floats, strata: NDArray[Any]) -> Floats:
    """Coefficients of `constants` and x; the penalty of x by the log loss of rows left out."""
    free = np.where(np.arange(constants.shape[1]) == 0, 1e-6, SITE_PENALTY)
    both, rng = np.c_[constants, x], np.random.default_rng(0)
    lots = dealt(strata * 2 + y, 5, rng)
    if min(y.sum(), len(y) - y.sum()) < 5:
        return ridge(both, y, np.r_[free, np.full(x.shape[1], PENALTIES[-1])])
    losses = []
    for amount in PENALTIES:
        penalty, total = np.r_[free, np.full(x.shape[1], amount)], 0.0
        for k in range(5):
            z = both[lots == k] @ ridge(both[lots != k], y[lots != k], penalty)
            total += float((np.logaddexp(0, z) - y[lots == k] * z).sum())
        losses.append(total)
    return ridge(both, y, np.r_[free, np.full(x.shape[1], PENALTIES[int(np.argmin(losses))])])


def boosted(x: Floats, y: Floats, new: Floats) -> Floats:
    """Risks of new rows; depth and number of trees by the log loss of rows left out."""
    given = {"objective": "binary:logistic", "eta": 0.06, "min_child_weight": 3, "lambda": 2.0, "subsample": 0.8}
    given |= {"colsample_bytree": 0.7, "tree_method": "hist", "max_bin": 64, "nthread": 1, "seed": 3}
    whole, best = xgboost.DMatrix(x, y), (np.inf, {}, 0)
    for depth in (2, 4):
        found = xgboost.cv(
            given | {"max_depth": depth}, whole, 400, nfold=3, stratified=True, early_stopping_rounds=25, seed=1
        )
        loss = found["test-logloss-mean"]
        if loss.min() < best[0]:
            best = float(loss.min()), given | {"max_depth": depth}, int(loss.argmin()) + 1
    return np.asarray(xgboost.train(best[1], whole, best[2]).predict(xgboost.DMatrix(new)), np.float64)


def models(study: vt.Study, cut: FoldedRows) -> Iterator[tuple[str, Floats, float]]:
    """Name, [row] risks of all sites' rows one after the other, seconds of one fit."""
    names, sizes = list(cut.cleaned), [len(f) for f in cut.cleaned.values()]
    lots, site = np.concatenate([cut.lots[n] for n in names]), np.repeat(np.arange(len(names)), sizes)
    y = np.concatenate([f[study.target.column].to_numpy(float) for f in cut.cleaned.values()])
    kinds = [DEFAULT, TWICE, LONE, RATE, ALONE, POOLED] + [TREES] * bool(xgboost)
    risks, spent = {k: np.zeros(len(y)) for k in kinds}, dict.fromkeys(kinds, 0.0)
    rounds = study.training.rounds
    trained = {DEFAULT: (None, rounds), TWICE: (None, 2 * rounds), LONE: ("local", rounds)}
    for kind, (method, lasting) in trained.items():
        began = time.process_time()
        resolved = resolve(study, method, lasting)
        answers = train_folds(*resolved, cut, SEED, "vectorised", "cpu", lambda done, of: None).last
        risks[kind], spent[kind] = np.concatenate([p[:, 1] for p in answers]), time.process_time() - began
    for k in range(FOLDS):
        data = cut.fold(k)
        train, test = np.concatenate([s.train_x for s in data]), np.concatenate([s.test_x for s in data])
        at, aside = np.flatnonzero(lots != k), np.flatnonzero(lots == k)
        known, where = y[at], site[at]
        one = np.c_[np.ones(len(y)), np.eye(len(names))[site]]
        for j in range(len(names)):
            mine, new = where == j, site[aside] == j
            risks[RATE][aside[new]] = (known[mine].sum() + 0.5) / (mine.sum() + 1)
            began = time.process_time()
            beta = chosen_ridge(train[mine], np.ones((mine.sum(), 1)), known[mine], np.zeros(mine.sum(), int))
            risks[ALONE][aside[new]] = 1 / (1 + np.exp(-(beta[0] + test[new] @ beta[1:])))
            spent[ALONE] += time.process_time() - began
        began = time.process_time()
        beta = chosen_ridge(train, one[at], known, where)
        risks[POOLED][aside] = 1 / (1 + np.exp(-(np.c_[one[aside], test] @ beta)))
        spent[POOLED] += time.process_time() - began
        if xgboost:
            began = time.process_time()
            risks[TREES][aside] = boosted(np.c_[train, one[at, 1:]], known, np.c_[test, one[aside, 1:]])
            spent[TREES] += time.process_time() - began
    yield from ((k, risks[k].clip(SMALLEST, 1 - SMALLEST), spent[k] / FOLDS) for k in kinds)


def judged(y: NDArray[np.int64], risk: Floats, site: NDArray[np.int64]) -> dict[str, float]:
    both = np.c_[1 - risk, risk]
    found = score(("log_loss", "brier"), y, both)
    ranks, rows, alarms = [], [], 0
    for j in np.unique(site):
        at = site == j
        if 0 < y[at].sum() < at.sum():
            ranks.append(score(("auc",), y[at], both[at])["auc"])
            rows.append(at.sum())
            line = fit_line(risk[at], y[at].astype(bool))
            alarms += int(line is not None and line.p < LEVEL)
    act = risk >= ACT
    benefit = (y[act].sum() - (1 - y[act]).sum() * ACT / (1 - ACT)) / len(y)
    return {"auc": float(np.average(ranks, weights=rows)), **found, "alarms": alarms, "benefit": 1000 * float(benefit)}


class Cache:
    """Rows of results by table, study and repeat, in one JSON file; only in memory where no file is named."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.rows: dict[str, list[dict[str, Any]]] = json.loads(path.read_text()) if path and path.exists() else {}

    def keep(self, key: str, rows: list[dict[str, Any]]) -> None:
        self.rows[key] = rows
        if self.path:
            self.path.write_text(json.dumps(self.rows, indent=1))


def one_table(name: str, skip: int, repeats: int, cache: Cache) -> pd.DataFrame:
    sites, target = TABLES[name]()
    study = vt.Study.infer(sites, target=target, screen={"ask": False})
    if name == "heart":
        chol = {**study.features["chol"].model_dump(), "missing": (0,), "indicator": True}
        study = study.with_changes(features={**study.model_dump()["features"], "chol": chol})
    cleaned = clean_sites(sites, study)
    truth = {n: f[target].to_numpy(np.int64) for n, f in cleaned.items()}
    y = np.concatenate(list(truth.values()))
    site = np.repeat(np.arange(len(truth)), [len(v) for v in truth.values()])
    mark, out = hashlib.sha256(study.to_toml().encode()).hexdigest()[:12], []
    for r in range(skip, skip + repeats):
        key = f"{name}, study {mark}, repeat {r + 1}"
        if key not in cache.rows:
            lots = {n: dealt(v, FOLDS, np.random.default_rng([7, r, i])) for i, (n, v) in enumerate(truth.items())}
            rows = models(study, FoldedRows(FOLDS, lots, cleaned, study))
            cache.keep(key, [{"model": m, **judged(y, risk, site), "seconds": seconds} for m, risk, seconds in rows])
        out += cache.rows[key]
        print(key, {row["model"]: round(row["log_loss"], 4) for row in cache.rows[key]}, flush=True)
    return pd.DataFrame(out).groupby("model", sort=False).mean().assign(sites=len(sites), rows=len(y))


def lines_of(found: Mapping[str, pd.DataFrame], skip: int, repeats: int) -> list[str]:
    lines = [
        f"# How good the default model's risks are, {time.strftime('%Y-%m-%d')}",
        "",
        f"{repeats} x {FOLDS} folds within each site (`benchmarks/verdicts/quality.py`, which says what the columns are).",
        f"The first {skip} repeats are left out: defaults were chosen on them, and on none of these folds."
        if skip
        else "Learning rate and penalty were chosen on these folds of heart, Titanic and vehicle, and settings "
        "were tried on those of Ebola and IMPACT before: the margins there flatter us. "
        "[Fresh folds](quality_fresh_folds.md).",
    ]
    for name, table in found.items():
        first = table.iloc[0]
        lines += ["", f"## {name}: {int(first.sites)} sites, {int(first.rows)} rows", ""]
        lines += ["| | AUC | log loss | Brier | calibration alarms | net benefit at 10 % | seconds of a fit |"]
        lines += ["| --- | ---: | ---: | ---: | ---: | ---: | ---: |"]
        for model, row in table.iterrows():
            numbers = f"{row.auc:.3f} | {row.log_loss:.4f} | {row.brier:.4f} | {row.alarms:.1f} of {int(row.sites)}"
            lines.append(f"| {model} | {numbers} | {row.benefit:+.0f} | {row.seconds:.2f} |")
    return lines + goal_lines(found)


def goal_lines(found: Mapping[str, pd.DataFrame]) -> list[str]:
    """Every goal on every table, and in a sentence where each is missed."""
    goals = {
        "beats the site's own rate": "better than the site's own rate",
        "beats ridge alone": "better than ridge alone, on tables where ridge pooled is",
        "within .01 of ridge pooled": "log loss at most .01 above that of ridge pooled",
        "no more alarms than ridge pooled": "calibration alarms at no more sites than ridge pooled has",
        "twice the rounds gain less than .001": "twice the rounds lower the log loss by less than .001",
    }
    lines = ["", "## What was asked", "", f"| table | {' | '.join(goals)} |", "| --- |" + " --- |" * len(goals)]
    missed: dict[str, list[str]] = {goal: [] for goal in goals}
    for name, table in found.items():
        loss, ours, pooled = table.log_loss, table.loc[DEFAULT], table.loc[POOLED]
        expected = loss[ALONE] > pooled.log_loss
        gain = ours.log_loss - loss[TWICE]
        cells = [
            (ours.log_loss < loss[RATE], f"{ours.log_loss - loss[RATE]:+.4f}"),
            (
                ours.log_loss < loss[ALONE] or not expected,
                f"{ours.log_loss - loss[ALONE]:+.4f}" + ("" if expected else "; ridge pooled does not"),
            ),
            (ours.log_loss < pooled.log_loss + 0.01, f"{ours.log_loss - pooled.log_loss:+.4f}"),
            (ours.alarms <= pooled.alarms, f"{ours.alarms:.1f}, ridge pooled {pooled.alarms:.1f}"),
            (gain < 0.001, f"{-gain:+.4f}"),
        ]
        for goal, (holds, _) in zip(goals, cells, strict=True):
            missed[goal] += [] if holds else [name]
        words = [f"{'yes' if holds else '**no**'} ({numbers})" for holds, numbers in cells]
        lines.append(f"| {name} | {' | '.join(words)} |")
    lines.append("")
    for goal, meaning in goals.items():
        where = f"**missed on {', '.join(missed[goal])}**" if missed[goal] else "holds on every table"
        lines.append(f"- {meaning}: {where}.")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--tables", default=",".join(TABLES))
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--skip", type=int, default=0)
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "quality.md")
    given = parser.parse_args()
    cache = Cache(given.cache)
    found = {name: one_table(name, given.skip, given.repeats, cache) for name in given.tables.split(",")}
    given.out.write_text("\n".join(lines_of(found, given.skip, given.repeats)) + "\n")


if __name__ == "__main__":
    main()
