"""Federations for benchmarks/verdicts/contribution.py: what every coalition is worth, trained again and rebuilt from reports.

Each is drawn by its number: one of six tables (three of them only among the test federations), 4 to 8 sites as they are
in the data, cut by lot or with skewed labels, in a third of them one site whose labels are drawn by lot; FedAvg, a
linear model or one hidden layer, 5 to 40 rounds of one or two epochs, and a learning rate log-uniform over two decades.
"""

from __future__ import annotations

import tempfile
import time
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

import vitrail as vt
from vitrail.core.random import key
from vitrail.stats.shapley import Floats, Masks, Values, Worth, every, exact
from vitrail.studies.contribution.reliability import strain
from vitrail.studies.contribution.replay import UpdateReplay
from vitrail.studies.contribution.retraining import CoalitionRetraining

DESIGN, TEST = ("heart", "titanic", "vehicle"), ("gusto", "har", "adult", "heart", "titanic", "vehicle")
TARGET = {"heart": "disease", "titanic": "survived", "vehicle": "label"}
TARGET |= {"gusto": "day30", "har": "activity", "adult": "target"}
MOST, LEAST = 250, 40  # rows of a site
RATES = (3e-4, 3e-2)
SEEDS = 3  # of training, the run's own first
USERS = 3
WIDE = 40  # columns, of tables that have more


class Federation(NamedTuple):
    about: dict[str, Any]
    study: vt.Study
    sites: dict[str, pd.DataFrame]
    users: list[str]
    seed: int


@cache
def table(name: str) -> dict[str, pd.DataFrame]:
    """By the sites that the data has, or all rows under one name."""
    if name == "adult":
        rows = vt.datasets.adult().drop(columns=["fnlwgt", "education", "country"])
        return {str(k): part.drop(columns="occupation") for k, part in rows.groupby("occupation") if len(part) > MOST}
    if name == "titanic":
        return {str(k): part for k, part in vt.datasets.titanic().groupby("pclass")}
    return {"heart": vt.datasets.heart_disease, "vehicle": vt.datasets.vehicle, "gusto": vt.datasets.gusto}.get(
        name, vt.datasets.har
    )()


def federation(part: str, number: int) -> Federation:
    rng, names = np.random.default_rng(key(number, part, "contribution")), DESIGN if part == "design" else TEST
    data, n = names[number % len(names)], int(rng.integers(4, 9))
    natural = {k: v for k, v in table(data).items() if len(v) >= LEAST}
    cut = str(rng.choice(["as in the data", "by lot", "skewed"]))
    target, seed = TARGET[data], int(rng.integers(1, 2**31))
    if cut == "as in the data":
        n = min(n, len(natural))
        cut, n = ("by lot", 4) if n < 4 else (cut, n)
    if cut == "as in the data":
        sites = {k: natural[k] for k in sorted(rng.choice(sorted(natural), n, replace=False))}
    else:
        rows = pd.concat(natural.values(), ignore_index=True)
        rows = rows.sample(min(len(rows), n * MOST), random_state=seed % 2**31)
        while True:
            sites = (
                vt.partition.iid(rows, n, seed)
                if cut == "by lot"
                else vt.partition.dirichlet(rows, target, n, 1.0, seed)
            )
            if min(map(len, sites.values())) >= LEAST:
                break
            seed += 1
    sites = {k: v.sample(min(len(v), MOST), random_state=seed % 2**31) for k, v in sites.items()}
    first = next(iter(sites.values()))
    columns = [c for c in first if c != target]
    if len(columns) > WIDE:
        columns = sorted(rng.choice(columns, WIDE, replace=False))
    sites = {k: v[[*columns, target]].reset_index(drop=True) for k, v in sites.items()}
    wrong = str(rng.choice(list(sites))) if rng.random() < 1 / 3 else ""
    if wrong:
        labels = pd.concat(sites.values())[target].to_numpy()
        sites[wrong] = sites[wrong].assign(**{target: rng.permutation(rng.choice(labels, len(sites[wrong])))})
    lr = float(np.exp(rng.uniform(*np.log(RATES))))
    hidden = int(rng.choice([0, 16]))
    training = {"lr": lr, "rounds": int(rng.choice([5, 10, 20, 40])), "epochs": int(rng.choice([1, 2]))}
    network = (
        {"kind": "mlp", "hidden": [hidden], "dropout": float(rng.choice([0, 0.2]))} if hidden else {"kind": "linear"}
    )
    study = vt.Study.infer(sites, target, network=network, standardise="global", split={"test": 0.3})
    weights = str(rng.choice(["uniform", "rows"]))
    study = study.with_changes(training=training, method={"name": "fedavg", "weights": weights})
    honest = [s for s in sites if s != wrong]
    users = sorted(rng.choice(honest, min(USERS, len(honest)), replace=False).tolist())
    about = {
        "data": data,
        "cut": cut,
        "sites": len(sites),
        "wrong": wrong,
        "hidden": hidden,
        "weights": weights,
        **training,
    }
    return Federation(about, study, sites, users, seed)


def carry(_: Any, job: tuple[str, int]) -> dict[str, Any]:
    began, made = time.perf_counter(), federation(*job)
    told: dict[str, Any] = {"about": made.about, "cases": []}
    seeds = [made.seed + k for k in range(SEEDS)]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        run = vt.federate(made.study, made.sites, seed=made.seed, out=out, keep_updates=True)
        run = vt.Run.load(out)
        masks = every(len(made.sites))[0]
        models = None
        for user in made.users:
            try:
                again = CoalitionRetraining(run, user, made.sites, seeds)
                models = models or [again.models(masks, seed) for seed in seeds]
                truth = [again.losses(m).mean(1) for m in models]
                record = UpdateReplay(run, out, user, made.sites[user])
                assert record.names == again.names
                case = {"user": user, "at": record.at, "rows": record.x.shape[1]}
                case |= {"again": [plain(v) for v in truth]}
                case |= {
                    "whole": plain(record.losses(record.rebuilt(masks)).mean(1)),
                    "round": plain(summed(record, masks)),
                }
                case |= {"carried": plain(record.losses(record.carried(masks)).mean(1))}
                case |= {"strain": strain(record)}
                told["cases"].append(case)
            except vt.VitrailError as error:
                told["cases"].append({"user": user, "diverged": error.title})
    return told | {"seconds": round(time.perf_counter() - began, 2)}


def summed(record: UpdateReplay, masks: Masks) -> Floats:
    """What each coalition is worth, summed over the rounds."""
    total = np.zeros(len(masks))

    def solve(worth: Worth, players: int) -> Values:
        def kept(asked: Masks) -> Floats:
            nonlocal total
            got = worth(asked)
            total = total + got.mean(1) - got[0].mean()
            return got

        return exact(kept, players)

    record.by_round(solve, lambda *_: None)
    return total


def plain(values: Any) -> list[float]:
    return [float(f"{v:.6g}") for v in np.asarray(values).ravel()]
