"""Algorithm 1 of Wang (2019) prints a plain mean over coalitions, its formula weighs them: how far apart are the values?

    VITRAIL_DATA=... nice -n 15 python benchmarks/vertical/plain_mean.py    # a few minutes on one core

Nearest neighbours on Adult as in benchmarks/vertical/federated_shap.py: the first rows that are trained on, twelve
columns, a guest of three or of five of them united into one. Both values are of one and the same table of all
coalitions. A plain mean gives a coalition of any size the same weight; it is known as the Banzhaf value, and does not
sum to f(row) - f(reference).
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from adult_parties import COLUMNS, GUEST
from federated_shap import coded
from sklearn.model_selection import train_test_split

from vitrail.core.tensors import medians
from vitrail.stats.shapley import every, exact
from vitrail.vertical.training.knn import squares, votes

NEAREST = 5
HEAD = """\
# Algorithm 1's plain mean against the formula's weights, {day}

Printed by benchmarks/vertical/plain_mean.py: nearest neighbours (k = {k}) on Adult, first {rows} training rows; values are
shares of the class above 50K. Both values of a line are of the same worths.

| united | features | largest difference of a value | mean difference | mean size, formula | largest error of the sum, formula | plain mean |
| --- | ---: | ---: | ---: | ---: | ---: | ---: |"""


def plain_mean(worths: np.ndarray) -> np.ndarray:
    """[player] of the worths of all coalitions, as `every` orders them: line 6 of the paper's algorithm 1."""
    masks = every(int(np.log2(len(worths))))[0]
    return np.array([worths[masks[:, j]].mean() - worths[~masks[:, j]].mean() for j in range(masks.shape[1])])


def by_the_formula(worths: np.ndarray) -> np.ndarray:
    players = int(np.log2(len(worths)))

    def worth(masks: np.ndarray) -> np.ndarray:
        return worths[masks @ (1 << np.arange(players)[::-1])][:, None]

    return exact(worth, players).rows[:, 0]


def main() -> None:
    ask = argparse.ArgumentParser()
    ask.add_argument("--rows", type=int, default=200)
    ask.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "plain_mean.md")
    given = ask.parse_args()
    torch.set_num_threads(1)
    raw, y = coded()
    rows, _, outcomes, _ = train_test_split(raw, y, test_size=0.2, random_state=7)
    x = torch.tensor(((pd.DataFrame(rows) - pd.DataFrame(rows).mean()) / pd.DataFrame(rows).std()).to_numpy())
    y_all, off = torch.from_numpy(outcomes), medians(x)
    lines = [HEAD.format(day=time.strftime("%Y-%m-%d"), k=NEAREST, rows=given.rows)]
    for count in GUEST:
        own = len(COLUMNS) - count
        groups = [*([i] for i in range(own)), list(range(own, len(COLUMNS)))]
        far = torch.stack([squares(off[None, g], x[:, g])[0] for g in groups])
        plain, weighed, error = [], [], []
        for row in range(given.rows):
            near = torch.stack([squares(x[row : row + 1, g], x[:, g])[0] for g in groups])
            worths = votes(near, far, y_all, NEAREST)
            both, change = (plain_mean(worths), by_the_formula(worths)), worths[-1] - worths[0]
            plain.append(both[0])
            weighed.append(both[1])
            error.append([abs(values.sum() - change) for values in both])
        one, other = np.array(plain), np.array(weighed)
        worst = np.array(error).max(0)
        cells = [f"{np.abs(one - other).max():.3f}", f"{np.abs(one - other).mean():.4f}", f"{np.abs(other).mean():.4f}"]
        cells += [f"{worst[1]:.1e}", f"{worst[0]:.3f}"]
        lines.append(f"| guest of {count} | {len(groups)} | " + " | ".join(cells) + " |")
        print(lines[-1], flush=True)
    given.out.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
