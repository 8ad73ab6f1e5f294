"""Who contributed what: values that were rebuilt against training every coalition again, and when to doubt them.

    python benchmarks/verdicts/contribution.py run --cache FOLDER     # about two hours on one core; what was stopped goes on
    python benchmarks/verdicts/contribution.py time                   # all 2^6 coalitions: stacked, and one after the other
    python benchmarks/verdicts/contribution.py report --cache FOLDER  # results/contribution.md, and its cases

Needs VITRAIL_DATA for four of the six tables. `report` without a cache prints the report of results/contribution again.
contribution_cases.py says which federations these are. The warnings' limits (studies/contribution/reliability.py) were
set on the design federations, of three tables, before any test federation was looked at; three more tables are only
among the latter.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import torch

sys.path.append(str(Path(__file__).parents[1] / "support"))

from contribution_cases import RATES, SEEDS, carry
from job_lines import arguments, finished, name_of, run

import vitrail as vt
from vitrail.core.tensors import flatten
from vitrail.data.encoding import prepare
from vitrail.engine.coalitions import Coalitions
from vitrail.engine.local import Engine
from vitrail.runs.setup import build_task, training_of, training_rows
from vitrail.stats.shapley import Floats, every
from vitrail.studies.contribution.reliability import OFF, SPOT, STRAIN

JOBS = [("design", k) for k in range(80)] + [("test", k) for k in range(120)]
RESULTS = Path(__file__).parent / "results"
CASES, TIMES = RESULTS / "contribution" / "cases.csv.gz", RESULTS / "contribution" / "time.csv"
NEW = ("gusto", "har", "adult")  # tables that no limit was set on
GAP = 1 / 3  # what was warned of before
KINDS = {"carried": "carried over", "round": "round by round", "whole": "whole run"}


def make(given: argparse.Namespace) -> Any:
    return SimpleNamespace(capture=False)


def say(told: dict[str, Any]) -> str:
    return ", ".join(map(str, told["about"].values()))


def off(values: Floats, right: Floats) -> float:
    return float(np.abs(values - right).sum() / np.abs(right).sum())


def case_of(told: dict[str, Any], case: dict[str, Any]) -> dict[str, Any]:
    """A line of the table of cases."""
    n, (part, number), user = told["about"]["sites"], told["job"], case["user"]
    weights = every(n)[1]
    worth = {k: np.array(case[k]) - case[k][0] for k in KINDS}
    worth = {k: v if k == "round" else -v for k, v in worth.items()}  # of rounds it is no loss
    again = [case["again"][s][0] - np.array(case["again"][s]) for s in range(SEEDS)]
    values, right = {k: weights.T @ v for k, v in worth.items()}, [weights.T @ v for v in again]
    one, other = values["round"], values["whole"]
    alone = [2 ** (n - 1 - i) for i in range(n) if i != case["at"]]
    spot = np.abs(worth["carried"] - again[0])[alone].mean() / np.abs(values["carried"]).sum()
    return {
        "part": part,
        "number": number,
        **told["about"],
        "user": user,
        "rows": case["rows"],
        "gain": again[0][-1],
        **{f"off {k}": off(v, right[0]) for k, v in values.items()},
        "off carried, mean of seeds": off(values["carried"], np.mean(right, axis=0)),
        "off another seed": float(np.mean([off(v, right[0]) for v in right[1:]])),
        "spread of seeds": float(np.std(right, axis=0, ddof=1).sum() / np.abs(np.mean(right, axis=0)).sum()),
        "gap": 2 * np.abs(one - other).sum() / (np.abs(one) + np.abs(other)).sum(),
        "disputed": bool((one * other < 0).any()),
        "strain": case["strain"],
        "spot": spot,
    }


def wilson(k: int, n: int) -> tuple[float, float]:
    z, p = 1.96, k / n
    middle, half = p + z**2 / (2 * n), z * np.sqrt(p * (1 - p) / n + z**2 / (4 * n**2))
    return float((middle - half) / (1 + z**2 / n)), float((middle + half) / (1 + z**2 / n))


def rate(bad: pd.Series, beside: bool = True) -> str:
    k, n = int(bad.sum()), len(bad)
    low, high = wilson(k, n) if n else (0, 1)
    return f"{k} of {n}: {100 * k / max(n, 1):.1f} %" + (f" ({100 * low:.1f} to {100 * high:.1f})" if beside else "")


def rules(t: pd.DataFrame) -> list[tuple[str, pd.Series, pd.Series]]:
    """Words, how far off, whether it warns."""
    before = (t.gap > GAP) | t.disputed
    return [
        ("round by round, no warning", t["off round"], before & False),
        ("round by round, warned where the two ways disagree (before)", t["off round"], before),
        ("whole run, warned where the two ways disagree (before)", t["off whole"], before),
        ("carried over, no warning", t["off carried"], before & False),
        ("carried over, warned where the two ways disagree", t["off carried"], before),
        ("**carried over, strain** (reports and the user's rows)", t["off carried"], t.strain >= STRAIN.limit),
        ("**carried over, spot check** (every site trained alone)", t["off carried"], t.spot >= SPOT.limit),
    ]


def table(t: pd.DataFrame) -> list[str]:
    lines = [
        f"| values and warning | warns | silent and off by more than {100 * OFF:.0f} %, of all | of those silent | "
        "federations with such a case | warned: off |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for words, how_far, warns in rules(t):
        bad = how_far > OFF
        many = t[bad & ~warns].number.nunique()
        warned = rate(bad[warns], False) if warns.any() else ""
        lines.append(
            f"| {words} | {100 * warns.mean():.0f} % | {rate(bad & ~warns)} | {rate(bad[~warns])} | "
            f"{many} of {t.number.nunique()} | {warned} |"
        )
    return lines


def split(t: pd.DataFrame, by: Any) -> list[str]:
    lines = [
        "| | cases | off, median: carried over | round by round | whole run | another seed | off by more than 40 %: "
        "carried over | round by round | strain: warns, silent and off | spot: warns, silent and off |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for words, g in t.groupby(by, observed=True):
        bad, names = g["off carried"] > OFF, ("off carried", "off round", "off whole", "off another seed")
        both = [(g.strain >= STRAIN.limit), (g.spot >= SPOT.limit)]
        lines.append(
            f"| {words} | {len(g)} | "
            + " | ".join(f"{g[k].median():.2f}" for k in names)
            + f" | {100 * bad.mean():.0f} %"
            f" | {100 * (g['off round'] > OFF).mean():.0f} % | "
            + " | ".join(f"{100 * w.mean():.0f} %, {(bad & ~w).sum()}" for w in both)
            + " |"
        )
    return lines


def report(t: pd.DataFrame, times: pd.DataFrame, diverged: int) -> str:
    design, test = t[t.part == "design"], t[t.part == "test"]
    new = test[test.data.isin(NEW)]
    decade = pd.cut(test.lr, [RATES[0] * 0.99, 1e-3, 3e-3, 1e-2, RATES[1] * 1.01])
    seed, carried = test["off another seed"], test["off carried, mean of seeds"]
    lines = [
        f"# Contribution: what is rebuilt against training every coalition again, {time.strftime('%Y-%m-%d')}",
        "",
        f"{test.number.nunique()} test federations of six tables, {len(test)} cases (up to three users each); 4 to 8 "
        f"sites, learning rates {RATES[0]:g} to {RATES[1]:g}, 5 to 40 rounds of one or two epochs, FedAvg, a linear "
        "model or one hidden layer of 16; sites as in the data, cut by lot, or with skewed labels, in a third of the "
        f"federations one with labels by lot. {design.number.nunique()} design federations ({len(design)} cases) of "
        f"three of the tables, drawn apart. {diverged} cases diverged and are left out. Truth: all coalitions trained "
        "from scratch with the run's own seed. Off: sum over sites of |value - truth|, over the sum of |truth|.",
        "",
        "## Silent and wrong, test federations",
        "",
        *table(test),
        "",
        "In parentheses Wilson's 95 % interval, as if cases were independent; users of one federation are not, hence "
        "the count of federations. `before`: gap over a third, or a site whose sign differs (here whatever its "
        "interval, in favour of that warning). The spot check needs all sites' rows, as training again does.",
        "",
        f"The three tables on which no limit was set ({', '.join(NEW)}):",
        "",
        *table(new),
        "",
        "Design federations, on which the limits were set:",
        "",
        *table(design),
        "",
        "## Where it is off, test federations",
        "",
        *split(test, "data"),
        "",
        *split(test, decade.rename("learning rate")),
        "",
        *split(test, "rounds"),
        "",
        *split(test, "cut"),
        "",
        "## Training again is not exact either",
        "",
        f"One seed against another, the same rows: off by {seed.median():.2f} in the median case (quarters "
        f"{seed.quantile(0.25):.2f} and {seed.quantile(0.75):.2f}); the standard deviation over {SEEDS} seeds is "
        f"{test['spread of seeds'].median():.2f} of the values' size in the median. Values carried over from one run, "
        f"against the mean of the seeds: off by {carried.median():.2f} in the median, more than {100 * OFF:.0f} % in "
        f"{rate(carried > OFF)}; where the strain was silent, in {rate(carried[test.strain < STRAIN.limit] > OFF)}. No "
        "warning about rebuilding knows the noise of the seed: hence several seeds where coalitions are trained again, "
        "and the sentence on the page where they are not.",
        "",
        "## Time of all 2^6 coalitions",
        "",
        f"{os.cpu_count()} cores. Heart disease, six sites by lot of 153 rows each, 40 rounds, measured in turns in "
        "one process while others used the machine too: read the ratio. Median seconds of each.",
        "",
        "| network | one after the other | stacked | times faster | largest difference of a parameter |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for network, g in times.groupby("network", sort=False):
        one, stacked = g.one.median(), g.stacked.median()
        lines.append(f"| {network} | {one:.1f} | {stacked:.2f} | {one / stacked:.1f} | {g.difference.max():.1e} |")
    return "\n".join(lines) + "\n"


def timed() -> pd.DataFrame:
    base = vt.Study.load(vt.datasets.packaged("heart_disease.toml")).with_changes(training={"rounds": 40})
    sites = vt.partition.iid(pd.concat(vt.datasets.heart_disease().values(), ignore_index=True), 6, 1)
    masks, out = torch.from_numpy(every(6)[0][1:]), []
    for hidden in ((16,), (128, 64)):
        study = base.with_changes(network={"hidden": list(hidden)}, method={"name": "fedavg"})
        method, seed = study.build_method(), base.seeds[0]
        data, task, training = prepare(sites, study, seed), build_task(study, method, seed), training_of(study)
        rows = training_rows(data, study, method, "cpu")
        for _ in range(3):
            began = time.perf_counter()
            stack = Coalitions(task, method, rows, training, seed, masks)
            made, stacked = stack.train(), time.perf_counter() - began
            began, one = time.perf_counter(), []
            for names in stack.names:
                mine = training_rows([d for d in data if d.name in names], study, method, "cpu")
                *_, last = Engine(task, method, mine, training, seed).run()
                one.append(last.coord)
            taken = time.perf_counter() - began
            pairs = [
                (a, b)
                for x, y in zip(made, one, strict=True)
                for (_, a), (_, b) in zip(flatten(x), flatten(y), strict=True)
            ]
            gap = max(float((a - b).abs().max()) for a, b in pairs)
            out.append({"network": str(hidden), "one": taken, "stacked": stacked, "difference": gap})
            print(out[-1], flush=True)
    return pd.DataFrame(out)


def main() -> None:
    given = arguments(__doc__, ("run", "time", "report"), Path(".cache/contribution")).parse_args()
    done = finished(given.cache)
    if given.verb == "run":
        run(given, [j for j in JOBS if name_of(j) not in done], make, carry, say)
        return
    CASES.parent.mkdir(exist_ok=True)
    if given.verb == "time":
        timed().to_csv(TIMES, index=False)
        return
    if done:
        told = [(d, c) for d in done.values() for c in d["cases"]]
        lost = sum("diverged" in c for _, c in told)
        cases = pd.DataFrame([case_of(d, c) for d, c in told if "diverged" not in c]).assign(diverged=lost)
        cases.to_csv(CASES, index=False, float_format="%.6g")
    cases = pd.read_csv(CASES, keep_default_na=False)
    text = report(cases, pd.read_csv(TIMES), int(cases.diverged.iloc[0]))
    print(text)
    (RESULTS / "contribution.md").write_text(text)


if __name__ == "__main__":
    main()
