"""What host and guest can find out of each other's columns, if they try: attacks with the defaults, and without.

    VITRAIL_DATA=... python benchmarks/vertical/vertical_leaks.py         # about ten minutes on one core

Labels: a guest keeps all it is told in training (sums over a batch; bare slopes without protection), works out the
slope of each row that explains it (least squares within each batch and epoch), takes the direction that parts 200
known outcomes in each epoch, adds the epochs up, and fits a logistic model to that, its own answer and its columns.
It gains what that adds to the AUC of the same fit to its columns alone; what goes beyond a fit of its columns to all
outcomes is about single rows.

Columns: a host keeps all answers of all epochs, knows the guest's category of 500 rows, and guesses it for 5000 others
by the best of nearest neighbour, logistic model and forest; against the best of the three on its own columns.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score
from sklearn.neighbors import KNeighborsClassifier
from torch import Tensor

from vitrail.vertical.messages import BareSlope, Levels, Numbers
from vitrail.vertical.training.dialogue import Dialogue
from vitrail.vertical.training.guest import Guest
from vitrail.vertical.training.host import answer_scores


class Notes:
    """What a curious guest and a curious host keep of one training."""

    def __init__(self, d: Dialogue) -> None:
        terms = d.terms
        self.d, self.guest = d, d.guests[0]
        shape = (terms.asked, terms.rows, terms.offers[0].answer)
        self.slopes, self.answers = torch.zeros(shape), torch.zeros(shape)
        self.step = 0
        listen(self.guest, self.told)
        d.wire.watch = self.crossed

    def told(self, columns: Tensor, slope: Any, total: Tensor) -> None:
        """At the guest: the smallest slopes of the rows that add up to these sums."""
        step = self.d.step
        rows, epoch = self.d.terms.rows_at(step), step // len(self.d.terms.batches)
        if isinstance(slope, BareSlope):
            self.slopes[epoch, rows] = slope.slope.float()
            return
        a = columns.double()
        inner = a.T @ a + 1e-3 * torch.eye(a.shape[1], dtype=torch.float64)
        self.slopes[epoch, rows] = (a @ torch.linalg.solve(inner, total.double())).float()

    def crossed(self, sender: str, receiver: str, message: Any) -> None:
        """At the host."""
        if isinstance(message, Levels | Numbers) and sender == self.guest.name and self.d.step < self.d.terms.steps:
            rows, epoch = self.d.terms.rows_at(self.d.step), self.d.step // len(self.d.terms.batches)
            if len(rows) == len(answer_scores(message)):
                self.answers[epoch, rows] = answer_scores(message).float()


def listen(guest: Guest, note: Callable[[Tensor, Any, Tensor], None]) -> None:
    plain = guest.sums

    def sums(columns: Tensor, slope: Any, mine: Any) -> Tensor:
        total = plain(columns, slope, mine)
        note(columns, slope, total)
        return total

    guest.sums = sums  # type: ignore[method-assign]


class Labels(NamedTuple):
    """AUC over the rows whose outcome is not known."""

    every: float  # of the guest's columns, had it been told all outcomes to fit them: what columns can tell at all
    own: float  # of its columns and the known outcomes
    told: float  # of what it was told in training
    both: float

    @property
    def gain(self) -> float:
        return max(self.told, self.both) - self.own

    @property
    def beyond(self) -> float:
        """What it learned of single rows: more than its columns can tell."""
        return max(self.told, self.both) - max(self.own, self.every)


def label_attack(notes: Notes, y: Tensor, known: int = 200, seed: int = 0) -> Labels:
    train = notes.d.terms.train
    x, t = notes.guest.columns[train].double().numpy(), y[train].numpy()
    slopes = notes.slopes[:, train].double().numpy()  # [epoch, row, answer]
    rng = np.random.default_rng(seed)
    k = rng.choice(len(t), known, replace=False)
    rest = np.setdiff1d(np.arange(len(t)), k)
    score = np.zeros(len(t))
    for g in slopes:
        way = g[k][t[k] == 1].mean(0) - g[k][t[k] == 0].mean(0)
        part = g @ way
        score += part / max(part.std(), 1e-12)
    answer = notes.guest.scores(notes.guest.columns[train]).double().numpy()
    told = np.c_[score, answer]
    told = told / np.maximum(told.std(0), 1e-12)

    def fitted(a: np.ndarray, by: np.ndarray = k) -> float:
        p = LogisticRegression(max_iter=500).fit(a[by], t[by]).predict_proba(a[rest])[:, 1]
        return float(roc_auc_score(t[rest], p))

    alone = max(float(roc_auc_score(t[rest], score[rest])), fitted(told))
    return Labels(fitted(x, np.arange(len(t))), fitted(x), alone, fitted(np.c_[x, told]))


class Category(NamedTuple):
    common: float  # share of the commonest category
    own: float  # accuracy of the best guess by the host's columns
    both: float  # by its columns and the answers

    @property
    def gain(self) -> float:
        return self.both - self.own


def category_attack(
    notes: Notes, category: Tensor, known: int = 500, tried: int = 5000, seed: int = 0, own: Tensor | None = None
) -> Category:
    train = notes.d.terms.train
    x = (notes.d.host.columns if own is None else own)[train].double().numpy()
    said = notes.answers[:, train].permute(1, 0, 2).flatten(1).double()
    said = torch.cat([said, notes.d.host.said[notes.guest.name][train].double()], 1).numpy()
    said = said / np.maximum(said.std(0), 1e-12)
    t = category[train].numpy()
    places = np.random.default_rng(seed).permutation(len(t))
    k, rest = places[:known], places[known : known + tried]

    def best(a: np.ndarray) -> float:
        models = (
            KNeighborsClassifier(1),
            LogisticRegression(max_iter=1000),
            RandomForestClassifier(200, min_samples_leaf=2, random_state=0),
        )
        return max(float(m.fit(a[k], t[k]).score(a[rest], t[rest])) for m in models)

    both = max(best(np.c_[x, said]), best(said))
    return Category(float(np.bincount(t[rest]).max() / len(rest)), best(x), both)


def main() -> None:
    from adult_parties import GUEST, LOGISTIC, parties  # only the data: the attacks are for any parties

    ask = argparse.ArgumentParser()
    ask.add_argument("--seeds", type=int, default=3)
    ask.add_argument("--only", default="", help="cases by name, with commas between them and ; within")
    given = ask.parse_args()
    torch.set_num_threads(1)
    began = time.process_time()
    cases: dict[str, dict[str, Any]] = {
        "defaults": {},
        "no protection": {"protect": False, "bits": 0, "noise": 0.0},
        "no protection, 16 numbers": {"protect": False, "bits": 0, "noise": 0.0, "answer": 16},
        "not rounded, no noise": {"bits": 0, "noise": 0.0},
        "no noise": {"noise": 0.0},
        "1 bit, no noise": {"bits": 1, "noise": 0.0},
        "not rounded": {"bits": 0},
        "half the noise": {"noise": 0.5},
        "4 numbers": {"answer": 4},
        "8 epochs, all with the guest": {"epochs": 8, "alone": 0},
        "16 bends": {"bends": 16},
        "logistic": {"kind": "logistic", **LOGISTIC},
    }
    print("| guest's columns | training | model's AUC |", end=" ")
    print("outcomes: columns, all known | columns, 200 known | told | both | gain | beyond columns |", end=" ")
    print("occupation: commonest | host's columns | with answers | gain |", end=" ")
    print("workclass: host's columns | with answers | gain |")
    print("| ---: | --- |" + " ---: |" * 14, flush=True)
    for count in GUEST:
        for name, options in cases.items():
            if given.only and name.replace(",", ";") not in given.only.split(","):
                continue
            rows = []
            for seed in range(1, given.seeds + 1):
                d, data = parties(count, seed, **options)
                notes = Notes(d)
                d.train()
                codes = [torch.tensor(data.frame[c].astype("category").cat.codes.to_numpy().copy()).long() + 1
                         for c in ("occupation", "workclass")]  # fmt: skip
                labels = label_attack(notes, data.y, seed=seed)
                job, work = (category_attack(notes, c, seed=seed) for c in codes)
                test = d.terms.test
                good = float(roc_auc_score(data.y[test], d.predict(test).answers[:, 1]))
                last = [work.own, work.both, work.gain]
                rows.append([good, *labels, labels.gain, labels.beyond, *job, job.gain, *last])
            mean = np.mean(rows, 0)
            print(f"| {count} | {name} | " + " | ".join(f"{v:.3f}" for v in mean) + " |", flush=True)
    print(f"\n{given.seeds} seeds, {time.process_time() - began:.0f} CPU seconds.")


if __name__ == "__main__":
    main()
