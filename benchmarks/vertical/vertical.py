"""What a guest's columns are worth: Adult, a guest of 3 or 5 columns, AUC on held-out rows.

    VITRAIL_DATA=... python benchmarks/vertical/vertical.py             # about five minutes on one core

Each seed redraws held-out rows, start and batches; intervals are of Student's t over seeds, widened for overlapping
test rows (stats/intervals.py). "guest away": the split model, the guest's median answer for everybody.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import torch
from adult_parties import COLUMNS, GUEST, HIDDEN, LOGISTIC, SPLIT, parties, rows
from sklearn.metrics import roc_auc_score

from vitrail.core.optimizers import Adam
from vitrail.stats.intervals import interval
from vitrail.vertical.training.dialogue import Dialogue
from vitrail.vertical.training.host import Host
from vitrail.vertical.training.logistic import Logistic
from vitrail.vertical.training.split_network import SplitNetwork
from vitrail.vertical.training.terms import Terms


def in_one_place(names: tuple[str, ...], seed: int, kind: str, epochs: int, alone: int, lr: float) -> float:
    """One place holds these columns."""
    held = rows(Terms(30000, (), seed=seed).train[:2])  # only for the number of rows
    terms = Terms(len(held.y), (), seed=seed, epochs=epochs, alone=alone)
    data = rows(terms.train)
    x = data.of(names)
    joint: Any = SplitNetwork(x.shape[1], 0, 2, HIDDEN) if kind == "split" else Logistic(x.shape[1])
    start = joint.init(seed) if kind == "split" else joint.init()
    y = torch.nn.functional.one_hot(data.y, 2).float()
    d = Dialogue(Host("bank", terms, x, y, joint, start, Adam(lr)), [])
    d.train()
    return auc(d, data.y)


def auc(d: Dialogue, y: torch.Tensor, without: tuple[str, ...] = ()) -> float:
    test = d.terms.test
    return float(roc_auc_score(y[test], d.predict(test, without).answers[:, 1]))


def main() -> None:
    ask = argparse.ArgumentParser()
    ask.add_argument("--seeds", type=int, default=5)
    given = ask.parse_args()
    torch.set_num_threads(1)
    began = time.process_time()
    print("| guest's columns | model | AUC | 95 % interval | against host alone |")
    print("| ---: | --- | ---: | --- | --- |", flush=True)
    crossed: list[str] = []
    for count, theirs in GUEST.items():
        found: dict[str, list[float]] = {}
        own = tuple(c for c in COLUMNS if c not in theirs)
        for seed in range(1, given.seeds + 1):
            got = {"host alone": in_one_place(own, seed, "split", **SPLIT)}
            began_one = time.process_time()
            d, data = parties(count, seed)
            d.train()
            took = time.process_time() - began_one
            got |= {"split": auc(d, data.y), "guest away": auc(d, data.y, ("registry",))}
            d, data = parties(count, seed, bits=0, noise=0.0)
            d.train()
            got["split, answers as they are"] = auc(d, data.y)
            got["central network"] = in_one_place(COLUMNS, seed, "split", **SPLIT)
            got["host alone, logistic"] = in_one_place(own, seed, "logistic", **LOGISTIC)
            for name, options in (
                ("vertical logistic", {}),
                ("vertical logistic, answers as they are", {"bits": 0, "noise": 0.0}),
            ):
                d, data = parties(count, seed, kind="logistic", **LOGISTIC, **options)
                d.train()
                got[name] = auc(d, data.y)
            got["central logistic"] = in_one_place(COLUMNS, seed, "logistic", **LOGISTIC)
            for k, v in got.items():
                found.setdefault(k, []).append(v)
        d, _ = parties(count, 1)
        d.train()
        total, many = (sum(r[what] for r in d.wire.rows()) for what in ("bytes", "messages"))
        what = f"guest of {count}: {len(d.terms.train)} rows x {d.terms.epochs} epochs in one process"
        crossed.append(f"{what}: {took:.1f} CPU s, {total / 1e6:.1f} MB crossed in {many} messages")
        for name, values in found.items():
            mean, low, high = interval(values, 0.2, (0.0, 1.0))
            gain = interval(np.subtract(values, found["host alone"]).tolist(), 0.2)
            more = "" if name == "host alone" else f"{gain[0]:+.4f} [{gain[1]:+.4f}, {gain[2]:+.4f}]"
            print(f"| {count} | {name} | {mean:.4f} | [{low:.4f}, {high:.4f}] | {more} |", flush=True)
    print("\n" + "\n".join(f"- {line}" for line in crossed))
    print(f"- {given.seeds} seeds, {time.process_time() - began:.0f} CPU seconds")


if __name__ == "__main__":
    main()
