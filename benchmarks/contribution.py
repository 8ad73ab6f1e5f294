"""Contribution by reconstruction from stored updates, against training again without each site.

    python benchmarks/contribution.py            # about seven minutes on 2 cores; needs no data from outside

The packaged heart disease rows, all hospitals mixed and cut by lot into five sites of equal size: A, B, C, D, and one
whose labels are replaced by coin flips (`random`); a sixth, `B copy`, trains on B's training rows again. FedAvg, a
small network. Users: A, C and D, each on its own test rows. Truth: every coalition of the six sites is trained from
scratch with the same seeds, and leave-one-out and Shapley values are computed from those models. Two learning rates: a
gentle one, and that of the study, under which sites move far within a round.
"""

from __future__ import annotations

import argparse
import itertools
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import spearmanr

import vitrail as vt
from vitrail.core.random import key
from vitrail.core.tensors import filled
from vitrail.data.encode import prepare, split_rows
from vitrail.engines.local import Engine
from vitrail.explain.shapley import Floats, Masks, exact, leave_one_out
from vitrail.runs.setup import build_task, training_of, training_rows
from vitrail.studies.contribution import LOO, ROUND, SHAPLEY, WHOLE, contribution
from vitrail.studies.intervals import interval
from vitrail.studies.record import Record

USERS = ("A", "C", "D")
SITES = ("A", "B", "B copy", "C", "D", "random")
RETRAINED = "trained again"


def federation(study: vt.Study, seed: int) -> dict[str, pd.DataFrame]:
    rows = pd.concat(vt.datasets.heart_disease().values(), ignore_index=True)
    a, b, c, d, noise = vt.cut.iid(rows, 5, seed).values()
    labels = np.random.default_rng(key(seed, "random labels")).integers(0, 2, len(noise))
    twin = copied(b, study, seed, "B", "B copy")
    return {"A": a, "B": b, "B copy": twin, "C": c, "D": d, "random": noise.assign(disease=labels)}


def copied(frame: pd.DataFrame, study: vt.Study, seed: int, name: str, twin: str) -> pd.DataFrame:
    """The same rows, ordered so that the site named `twin` trains on those that the site `name` trains on."""
    y = frame.disease.to_numpy()
    take = np.arange(len(y))
    for mine, its in zip(split_rows(y, study, seed, name), split_rows(y, study, seed, twin), strict=True):
        for k in np.unique(y):  # labels stay in their places, and with them the split
            take[its[y[its] == k]] = mine[y[mine] == k]
    return frame.iloc[take]


def trained_again(study: vt.Study, sites: dict[str, pd.DataFrame], seed: int) -> dict[frozenset[str], Any]:
    """Coalition -> the coordinator's model after training with these sites only."""
    method = study.build_method()
    data, task = prepare(sites, study, seed), build_task(study, method, seed)
    out: dict[frozenset[str], Any] = {frozenset(): method.coord(task, 1)}
    for size in range(1, len(SITES) + 1):
        for names in itertools.combinations(SITES, size):
            rows = training_rows([d for d in data if d.name in names], study, method, "cpu")
            *_, last = Engine(task, method, rows, training_of(study), seed).run()
            out[frozenset(names)] = last.coord
    return out


def truth(record: Record, models: dict[frozenset[str], Any]) -> dict[str, Floats]:
    names = list(models)
    loss = dict(zip(names, record.losses([models[n] for n in names]), strict=True))

    def worth(masks: Masks) -> Floats:
        return np.array([-loss[frozenset(s for s, here in zip(SITES, m, strict=True) if here)] for m in masks])

    return {LOO: leave_one_out(worth, len(SITES)).mean, SHAPLEY: exact(worth, len(SITES)).mean}


def cases(study: vt.Study, seeds: list[int]) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Values by seed, user, site, way and rebuilt; credits; costs."""
    values, credits, costs = [], [], []
    for seed in seeds:
        sites = federation(study, seed)
        began = time.perf_counter()
        again = trained_again(study, sites, seed)
        costs.append(("every coalition", RETRAINED, 0, time.perf_counter() - began))
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "run"
            vt.federate(study, sites, seed=seed, out=out, keep_updates=True)
            for user in USERS:
                record = Record(vt.Run.load(out), out, user, sites[user])
                doubled = {
                    k: filled(record.start, {f"params/{n}": v for n, v in m.params.items()}) for k, m in again.items()
                }
                for way, got in truth(record, doubled).items():
                    values += [(seed, user, s, way, RETRAINED, v, 0.0, 0.0) for s, v in zip(SITES, got, strict=True)]
                told = contribution(out, user, sites[user])
                wide = told.values.assign(seed=seed, user=user)
                values += wide[["seed", "user", "site", "way", "rebuilt", "value", "low", "high"]].to_numpy().tolist()
                paid = told.ledger[["credit", "value"]].sum()
                credits.append((seed, user, told.gain, paid.credit, paid.value, told.gap, bool(told.doubt())))
                for method, way in (("loo", LOO), ("shapley", SHAPLEY)):
                    began = time.perf_counter()
                    alone = contribution(out, user, sites[user], method)
                    taken = time.perf_counter() - began
                    costs += [(way, c.rebuilt, c.evaluations, taken) for c in alone.costs.itertuples()]
        print(f"lr {study.training.lr}, seed {seed}: done", flush=True)
    columns = ["seed", "user", "site", "way", "rebuilt", "value", "low", "high"]
    return (
        pd.DataFrame(values, columns=columns),
        pd.DataFrame(credits, columns=["seed", "user", "gain", "credit", "value", "gap", "doubt"]),
        pd.DataFrame(costs, columns=["way", "rebuilt", "evaluations", "seconds"]),
    )


def agreement(values: pd.DataFrame) -> list[str]:
    lines = [
        "| values | rebuilt | mean abs. difference | mean abs. value, trained again | times too large | "
        "rank correlation, mean (worst) | `random` last | trained again: `random` last |",
        "| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for way in (LOO, SHAPLEY):
        wide = values[values.way == way].pivot(index=["seed", "user", "site"], columns="rebuilt", values="value")
        last = {c: f"{sum(g[c].idxmin()[2] == 'random' for _, g in wide.groupby(level=[0, 1]))}" for c in wide}
        runs = wide.groupby(level=[0, 1]).ngroups
        for rebuilt in (ROUND, WHOLE):
            one, other = wide[rebuilt], wide[RETRAINED]
            slope = (one * other).sum() / (other**2).sum()
            ranks = [spearmanr(g[rebuilt], g[RETRAINED]).statistic for _, g in wide.groupby(level=[0, 1])]
            lines.append(
                f"| {way} | {rebuilt} | {(one - other).abs().mean():.4f} | {other.abs().mean():.4f} | {slope:.2f} | "
                f"{np.mean(ranks):.2f} ({min(ranks):.2f}) | {last[rebuilt]} of {runs} | {last[RETRAINED]} of {runs} |"
            )
    return lines


def in_short(values: pd.DataFrame, lr: float) -> str:
    """The stated error: each rebuilt leave-one-out value against the one trained again."""
    wide = values[values.way == LOO].pivot(index=["seed", "user", "site"], columns="rebuilt", values="value")
    said = []
    for rebuilt in (WHOLE, ROUND):
        gap = (wide[rebuilt] - wide[RETRAINED]).abs()
        said.append(f"{gap.mean():.4f} on average and {gap.quantile(0.95):.4f} in 95 of 100 ({rebuilt})")
    size = f"{wide[RETRAINED].abs().mean():.4f}"
    return f"Learning rate {lr}: leave-one-out misses training again, which gives {size} in size, by {', '.join(said)}."


def by_site(values: pd.DataFrame) -> list[str]:
    columns = [(w, r) for w in (LOO, SHAPLEY) for r in (RETRAINED, ROUND, WHOLE)]
    mean = values[values.site != values.user].groupby(["site", "way", "rebuilt"]).value.mean()
    lines = [
        "| site | " + " | ".join(f"{w}, {r}" for w, r in columns) + " |",
        "| --- |" + " ---: |" * len(columns),
    ]
    return lines + [f"| {s} | " + " | ".join(f"{mean[s, w, r]:+.4f}" for w, r in columns) + " |" for s in SITES]


def pair(values: pd.DataFrame) -> list[str]:
    """B and its copy, and for comparison the other honest sites that are not the user."""
    lines = []
    for rebuilt in (RETRAINED, ROUND, WHOLE):
        there = values[(values.way == SHAPLEY) & (values.rebuilt == rebuilt)]
        wide = there.pivot(index=["seed", "user"], columns="site", values="value")
        gap = wide["B"] - wide["B copy"]
        mean, low, high = interval(gap.groupby(level=0).mean().tolist(), 0.33)
        others = [abs(row[a] - row[b]) for (_, user), row in wide.iterrows() for a, b in [set("ACD") - {user}]]
        lines.append(
            f"- Shapley, {rebuilt}: B less its copy {mean:+.4f} (95 % interval over seeds {low:+.4f} to {high:+.4f}), "
            f"in size {gap.abs().mean():.4f} a case; two other honest sites differ by {np.mean(others):.4f} a case."
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "contribution.md")
    args = parser.parse_args()
    base = vt.Study.load(vt.datasets.packaged("heart_disease.toml"))
    base = base.with_changes(network={"hidden": [16]}, training={"rounds": args.rounds})
    seeds, began = list(base.seeds[: args.seeds]), time.time()
    parts: list[str] = []
    short: list[str] = []
    for words, lr in (("gentle", 0.001), ("the study's own", base.training.lr)):
        values, credits, costs = cases(base.with_changes(training={"lr": lr}), seeds)
        runs, n = len(credits), len(SITES)
        off = (credits.credit - credits.gain.clip(lower=0)).abs().max()
        short.append(f"- {in_short(values, lr)}")
        parts += [
            f"## Learning rate {lr} ({words})",
            "",
            f"Gain (fall in log loss on the user's test rows): mean {credits.gain.mean():.4f}, from "
            f"{credits.gain.min():.4f} to {credits.gain.max():.4f} over {runs} cases (seeds x users).",
            "",
            *agreement(values),
            "",
            "Mean value of each site where it is not the user itself:",
            "",
            *by_site(values),
            "",
            "Do B and its copy share equal values?",
            "",
            *pair(values),
            "",
            f"The two ways of rebuilding (Shapley) are {100 * credits.gap.median():.0f} % apart in the median, from "
            f"{100 * credits.gap.min():.0f} to {100 * credits.gap.max():.0f} %; the page warns in "
            f"{credits.doubt.sum()} of {runs} cases.",
            "",
            f"Credits: the sum differs from the gain by at most {off:.1e}; the Shapley values' sum by at most "
            f"{(credits.value - credits.gain).abs().max():.1e}.",
            "",
            f"Cost of one case, {n} sites, {args.rounds} rounds: "
            + "; ".join(
                f"{w}, {r} {g.evaluations.mean():.0f} model evaluations"
                for (w, r), g in costs[costs.rebuilt != RETRAINED].groupby(["way", "rebuilt"], sort=False)
            )
            + f". In seconds: leave-one-out both ways {costs[costs.way == LOO].seconds.mean():.1f}, Shapley both ways "
            f"{costs[costs.way == SHAPLEY].seconds.mean():.1f}. Training again: leave-one-out {n} runs, "
            f"{n * (n - 1) * args.rounds} site-rounds; Shapley {2**n - 1} runs, {n * 2 ** (n - 1) * args.rounds} "
            f"site-rounds, {costs[costs.rebuilt == RETRAINED].seconds.mean():.1f} s a seed.",
            "",
        ]
    lines = [
        f"# Contribution: reconstruction against training again, {time.strftime('%Y-%m-%d')}",
        "",
        f"{os.cpu_count()} cores, {time.time() - began:.0f} s. Heart disease rows cut by lot: A, B, C, D, a copy of B, "
        f"and one site with random labels. FedAvg, one hidden layer of 16, {args.rounds} rounds, seeds {seeds}. Users "
        "A, C and D in turn. Trained again: all coalitions from scratch, same seeds. `times too large`: the slope "
        "through zero of the rebuilt values on those trained again. `random` last: in how many cases it has the lowest "
        "value.",
        "",
        *short,
        "",
        *parts,
    ]
    text = "\n".join(lines).rstrip()
    print(text)
    args.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
