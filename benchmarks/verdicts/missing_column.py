"""Which column should a site begin to record? The estimate against the truth, in cases where the column is there.

    python benchmarks/verdicts/missing_column.py train TABLE --cache FOLDER   # heart, titanic, ...: minutes each
    python benchmarks/verdicts/missing_column.py shape --cache FOLDER         # the prior and ridge, on design tables
    python benchmarks/verdicts/missing_column.py report --cache FOLDER        # results/missing_column.md, and its cases
    python benchmarks/verdicts/missing_column.py report                       # the report again, from the cases

A column is hidden at one site at a time. The estimate (studies/missing_columns.py) uses the other sites' rows and the
site's other columns and outcomes. The truth is what the site's own rows, out of fold, gain when all sites including it
train with the column, against all without it. A column of noise is added to every table. Needs VITRAIL_DATA, but for
heart and titanic. The rule was shaped on the design tables, before the test tables were looked at.
"""

from __future__ import annotations

import argparse
import itertools
import os
import pickle
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import pandas as pd
import torch

import vitrail as vt
from vitrail.data.encoding import clean_sites
from vitrail.runs.setup import resolve
from vitrail.stats import density_ratio, random_effects
from vitrail.studies.missing_columns import RECORDS, ColumnTrial

RESULTS = Path(__file__).parent / "results"
CASES, PAGE = RESULTS / "missing_column.csv", RESULTS / "missing_column.md"
SEED, FOLDS, NOISE = 11, 5, "noise"
TRAINING = {"rounds": 15, "batch": 32, "lr": 0.02}
PRIORS, SITES, RIDGES = (0.0, 0.25, 0.5), (1, 2, 4), (3.0, 10.0, 30.0, 100.0, 1e9)
Tables = dict[str, pd.DataFrame]


class Source(NamedTuple):
    make: Callable[[], Tables]
    target: str
    columns: tuple[str, ...]  # that are hidden; all of them are features
    part: str  # design or test
    most: int = 800  # rows of a site
    sites: int = 10


def outside(name: str) -> pd.DataFrame:
    root = os.environ.get("VITRAIL_DATA")
    if not root:
        raise SystemExit(f"{name}: set VITRAIL_DATA to the folder that holds it")
    return pd.read_csv(Path(root) / name, keep_default_na=False, na_values=[""])


def parted(frame: pd.DataFrame, column: str) -> Tables:
    return {str(k): part.drop(columns=column).reset_index(drop=True) for k, part in frame.groupby(column)}


def titanic() -> Tables:
    return parted(vt.datasets.titanic().drop(columns=["minor"]).dropna(subset=["embarked"]), "embarked")


def adult() -> Tables:
    names = ["age", "education_num", "marital_status", "sex", "hours_per_week", "capital_gain", "race"]
    return parted(vt.datasets.adult()[[*names, "occupation", "target"]].dropna(subset=["occupation"]), "occupation")


def gusto() -> Tables:
    names = ["age", "Killip", "pulse", "sysbp", "miloc", "pmi", "hyp", "ttr", "day30"]
    return {name: frame[names] for name, frame in vt.datasets.gusto().items()}


def impact() -> Tables:
    frame = outside("impact_tbi/impact_tbi.csv")
    return parted(frame.drop(columns=["type"]).replace({"pupil": {"None": "neither"}}), "study")


def covid() -> Tables:
    frame = outside("covid_testing_chop/covid_testing.csv")
    frame = frame[frame.result.isin(["positive", "negative"])]
    names = ["gender", "pan_day", "demo_group", "age", "drive_thru_ind", "payor_group", "patient_class", "clinic_name"]
    parts = parted(frame[[*names, "result"]], "clinic_name")
    return {name: part for name, part in parts.items() if (part.result == "positive").sum() >= 10}


def isic() -> Tables:
    frame = outside("fed_isic2019_table/fed_isic2019.csv").drop_duplicates("lesion_id")
    frame = frame.assign(melanoma=np.where(frame.diagnosis == "MEL", "yes", "no"))
    return parted(frame[["center", "age_approx", "gender", "anatom_site_general", "melanoma"]], "center")


SOURCES = {
    "heart": Source(
        vt.datasets.heart_disease, "disease", ("age", "sex", "cp", "trestbps", "thalach", "exang", "oldpeak"), "design"
    ),
    "titanic": Source(titanic, "survived", ("sex", "age", "pclass", "fare", "alone"), "design", 1000),
    "adult": Source(
        adult,
        "target",
        ("age", "education_num", "marital_status", "sex", "hours_per_week", "capital_gain"),
        "design",
    ),
    "gusto": Source(gusto, "day30", ("age", "Killip", "pulse", "sysbp", "pmi"), "test"),
    "impact": Source(impact, "mort", ("age", "motor_score", "pupil", "ct", "tsah"), "test", 500, 15),
    "covid": Source(covid, "result", ("pan_day", "age", "payor_group", "gender"), "test"),
    "isic": Source(isic, "melanoma", ("age_approx", "gender", "anatom_site_general"), "test", 1500),
}


def load(name: str) -> tuple[vt.Study, Tables]:
    """Up to so many sites, the largest, of up to so many rows; the column of noise depends on nothing."""
    source, rng = SOURCES[name], np.random.default_rng(SEED)
    largest = sorted(source.make().items(), key=lambda item: (-len(item[1]), item[0]))[: source.sites]
    sites = {}
    for site, frame in sorted(largest):
        some = frame.sample(min(len(frame), source.most), random_state=SEED).reset_index(drop=True)
        sites[site] = some.assign(**{NOISE: rng.normal(size=len(some)).round(3)})
    study = vt.Study.infer(sites, source.target, network={"kind": "linear"}, training=TRAINING)
    return study.with_changes(screen={"ask": False}, method={"name": vt.methods.DEFAULT}), sites


def trial_of(name: str) -> ColumnTrial:
    study, sites = load(name)
    study, method = resolve(study, study.build_method(), None)
    return ColumnTrial(study, clean_sites(sites, study), method, SEED, FOLDS)


def pairs(name: str, trial: ColumnTrial) -> Iterator[tuple[str, str]]:
    """Each site that has the column, and at least two others with it."""
    for site, column in itertools.product(trial.cleaned, (*SOURCES[name].columns, NOISE)):
        if trial.share[site][column] >= RECORDS and len(trial.donors(site, column)) >= 2:
            yield site, column


def truth(trial: ColumnTrial, site: str, column: str) -> tuple[float, float]:
    """What the site's own rows gain, and its standard error."""
    features = [c for c in trial.study.features if c != column and not trial.lacks(site, c)]
    together = [name for name in trial.cleaned if name == site or name in trial.donors(site, column)]
    saved = trial.saved(features, column, together)[site]
    return float(saved.mean()), float(saved.std(ddof=1) / np.sqrt(len(saved)))


def train(name: str, cache: Path) -> None:
    """What was stopped goes on with what is missing."""
    cache.mkdir(parents=True, exist_ok=True)
    file, trial = cache / f"{name}.pkl", trial_of(name)
    stored = pickle.loads(file.read_bytes()) if file.exists() else {"losses": {}, "seconds": 0.0}
    trial._losses = stored["losses"]
    sizes = ", ".join(f"{site} {len(frame)}" for site, frame in trial.cleaned.items())
    print(f"{name}: {sizes}; columns {', '.join(trial.study.features)}", flush=True)
    for done, (site, column) in enumerate(pairs(name, trial), 1):
        began = time.process_time()
        gain, (value, error) = trial.gain(site, column), truth(trial, site, column)
        stored["seconds"] += time.process_time() - began
        file.write_bytes(pickle.dumps(stored))
        words = f"{gain.gain:+.4f} ({gain.low:+.4f} to {gain.high:+.4f}), unweighted {gain.unweighted:+.4f}"
        print(f"{done} {site}, {column}: {words}; truth {value:+.4f} +- {error:.4f}", flush=True)
    print(f"{name}: {done} cases in {stored['seconds']:.0f} s", flush=True)


def cases(cache: Path, part: str) -> pd.DataFrame:
    rows = []
    for name, source in SOURCES.items():
        if source.part != part or not (file := cache / f"{name}.pkl").exists():
            continue
        trial, stored = trial_of(name), pickle.loads(file.read_bytes())
        trial._losses = stored["losses"]
        for site, column in pairs(name, trial):
            value, error = truth(trial, site, column)
            naive = naive_interval(trial, site, column)
            about = {"part": part, "table": name, "own_rows": len(trial.cleaned[site]), "seconds": stored["seconds"]}
            gain = trial.gain(site, column)._asdict()
            rows.append(
                {**about, **gain, "truth": value, "error": error, "naive_low": naive[0], "naive_high": naive[1]}
            )
    return pd.DataFrame(rows)


def naive_interval(trial: ColumnTrial, site: str, column: str) -> tuple[float, float]:
    """All rows of the other sites as if they were of one site: 1.96 standard errors around their plain mean."""
    features = [c for c in trial.study.features if c != column and not trial.lacks(site, c)]
    saved = np.concatenate(list(trial.saved(features, column, trial.donors(site, column)).values()))
    half = 1.96 * saved.std(ddof=1) / np.sqrt(len(saved))
    return float(saved.mean() - half), float(saved.mean() + half)


def holds(t: pd.DataFrame, low: str = "low", high: str = "high") -> pd.Series:
    return (t[low] <= t.truth) & (t.truth <= t[high])


def holds_with_error(t: pd.DataFrame, low: str = "low", high: str = "high") -> pd.Series:
    """The truth is measured on few rows, too: its own standard error is added to the interval."""
    half = np.hypot((t[high] - t[low]) / 2, 1.96 * t.error)
    return ((t[high] + t[low]) / 2 - t.truth).abs() <= half


def shape(cache: Path) -> None:
    print("ridge, prior, prior sites: cases, coverage, with the truth's error, median width, yes, MAE, MAE unweighted")
    for ridge, prior, sites in itertools.product(RIDGES, PRIORS, SITES):
        with (
            patch.object(density_ratio, "RIDGE", ridge),
            patch.object(random_effects, "PRIOR", prior),
            patch.object(random_effects, "PRIOR_SITES", sites),
        ):
            t = cases(cache, "design").dropna(subset=["gain"])
        mae = [(t[c] - t.truth).abs().mean() for c in ("gain", "unweighted")]
        numbers = [
            holds(t).mean(),
            holds_with_error(t).mean(),
            (t.high - t.low).median(),
            (t.verdict == "yes").mean(),
            *mae,
        ]
        print(ridge, prior, sites, len(t), *(f"{v:.4f}" for v in numbers), flush=True)


def wilson(k: int, n: int) -> str:
    z, p = 1.96, k / n
    middle, half = p + z**2 / (2 * n), z * np.sqrt(p * (1 - p) / n + z**2 / (4 * n**2))
    return f"{p:.3f} ({(middle - half) / (1 + z**2 / n):.3f} to {(middle + half) / (1 + z**2 / n):.3f})"


def first_column(t: pd.DataFrame, by: str) -> tuple[int, int, float]:
    """At how many sites the column with the largest estimate is the one with the largest truth; of how many; and how
    many of them guessing would find."""
    groups = [g for _, g in t.groupby(["table", "site"]) if len(g) > 1]
    return sum(g[by].idxmax() == g.truth.idxmax() for g in groups), len(groups), sum(1 / len(g) for g in groups)


def table_of(t: pd.DataFrame) -> list[str]:
    lines = [
        "| table | cases | interval holds the truth | with the truth's own error | naive interval holds it | "
        "with the truth's own error | "
        "median width | MAE: weighted | unweighted | always zero | rank correlation: weighted | unweighted |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, g in [*t.groupby("table", sort=False), ("all", t)]:
        maes = [(g.gain - g.truth).abs().mean(), (g.unweighted - g.truth).abs().mean(), g.truth.abs().mean()]
        ranks = [g[c].corr(g.truth, method="spearman") for c in ("gain", "unweighted")]
        lines.append(
            f"| {name} | {len(g)} | {wilson(int(holds(g).sum()), len(g))} | "
            f"{wilson(int(holds_with_error(g).sum()), len(g))} | "
            f"{wilson(int(holds(g, 'naive_low', 'naive_high').sum()), len(g))} | "
            f"{wilson(int(holds_with_error(g, 'naive_low', 'naive_high').sum()), len(g))} | {(g.high - g.low).median():.4f} | "
            + " | ".join(f"{v:.4f}" for v in maes)
            + " | "
            + " | ".join(f"{v:.2f}" for v in ranks)
            + " |"
        )
    return lines


def verdicts_of(t: pd.DataFrame) -> list[str]:
    lines = ["| verdict | cases | truth above 0 | truth more than 2 errors above 0 | more than 2 errors below 0 |"]
    lines += ["| --- | ---: | ---: | ---: | ---: |"]
    for verdict in ("yes", "no", "cannot tell"):
        g = t[t.verdict == verdict]
        counts = [(g.truth > 0).sum(), (g.truth > 2 * g.error).sum(), (g.truth < -2 * g.error).sum()]
        lines.append(f"| {verdict} | {len(g)} | " + " | ".join(map(str, counts)) + " |")
    return lines


def report(cache: Path | None) -> None:
    if cache:
        pd.concat([cases(cache, part) for part in ("design", "test")]).round(6).to_csv(CASES, index=False)
    t = pd.read_csv(CASES, keep_default_na=False, na_values=["", "nan"])
    lines = [
        "# Which column should a site begin to record?",
        "",
        *(__doc__ or "").strip().split("\n\n")[2].splitlines(),
    ]
    lines += [
        "",
        f"{time.strftime('%Y-%m-%d')}. FedAvg, a linear model, {TRAINING['rounds']} rounds, {FOLDS} folds. Losses are log losses per case, in nats. "
        "Naive interval: all rows of the other sites as if of one site. With the truth's own error: the truth is measured "
        "on the site's own few rows, and 1.96 of its standard errors are added (in squares) to the half width. In parentheses Wilson's 95 % interval, as if "
        "cases were independent; cases of one table are not.",
    ]
    for part, words in (("test", "Test tables, on which nothing was chosen"), ("design", "Design tables")):
        mine = t[(t.part == part) & t.gain.notna()]
        lines += ["", f"## {words}", "", *table_of(mine), "", *verdicts_of(mine), ""]
        hits = {by: first_column(mine, by) for by in ("gain", "unweighted")}
        (weighted, of, guessed), (unweighted, *_) = hits["gain"], hits["unweighted"]
        lines.append(
            f"The column named first is the one that truly gains most at {weighted} of {of} sites (weighted) and "
            f"{unweighted} of {of} (unweighted); guessing finds {guessed:.1f}."
        )
        quiet = mine[mine.column == NOISE]
        lines += ["", "The column of noise: " + ", ".join(f"{v} {n}" for v, n in quiet.verdict.value_counts().items())]
        lines[-1] += f" of {len(quiet)}."
    seconds = t.drop_duplicates("table").set_index("table").seconds
    lines += ["", "Processor seconds: " + ", ".join(f"{name} {s:.0f}" for name, s in seconds.items()) + "."]
    PAGE.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(PAGE.read_text(encoding="utf-8"))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("train", "shape", "report"))
    parser.add_argument("table", nargs="?", choices=SOURCES)
    parser.add_argument("--cache", type=Path)
    given: Any = parser.parse_args()
    torch.set_num_threads(1)
    if given.what == "train":
        train(given.table, given.cache)
    elif given.what == "shape":
        shape(given.cache)
    else:
        report(given.cache)


if __name__ == "__main__":
    main()
