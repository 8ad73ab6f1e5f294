"""Made-up hospitals for which it is known what joining gains: linear models, all data sets and folds at once.

One hospital with n rows asks; seven others hold as many rows each. Features are normal, the target follows a logistic
model. Alone: a ridge logistic model on the hospital's own rows. Joined: on everybody's; a second method, which pulls
harder towards zero, so that there is a choice to make. Every fold is held out at all hospitals at once.

    gain      all hospitals alike: its own rows are few for so many columns
    loss      the others' patients follow a model turned by ANGLE
    nothing   "joined" is the model of one other hospital (the second method: of another), alike and with as many
              rows: by symmetry neither is better on average, by whatever yardstick
    trade     what its own rows lack in number the others' lack in likeness: turned by so much that the mean log loss
              is the same (TURNED, found by `turned` on other data sets)
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitrail.data.schema import Split, Table, Target
from vitrail.studies.folds import cut_folds
from vitrail.studies.joining import Floats, Ints

SITES, STRENGTH, RIDGE, PULL, TESTED = 8, 2.0, 2.0, 10.0, 2000
COLUMNS = {60: 22, 120: 19, 250: 18}
ANGLE = 0.93
MANY = 400  # rows
TURNED = {60: 0.8, 120: 0.55, 250: 0.371}
TABLE = Table(target=Target(column="y", classes=(0, 1)), split=Split(test=0.33, at_least=0))


class Case(NamedTuple):
    kind: str  # gain, loss, nothing, trade
    rows: int

    @property
    def angle(self) -> float:
        return {"loss": ANGLE, "trade": TURNED[self.rows]}.get(self.kind, 0.0)


CASES = [Case(kind, n) for kind in ("gain", "nothing", "trade") for n in COLUMNS] + [Case("loss", 250)]


class World(NamedTuple):
    """Data sets side by side."""

    x: Tensor  # [set, row, column]: of the hospital that asks
    y: Tensor  # [set, row]
    others_x: Tensor  # [set, other, row, column]
    others_y: Tensor
    test_x: Tensor  # its patients to come
    test_y: Tensor


def draw(case: Case, sets: int, seed: int, angle: float | None = None) -> World:
    rng, d = np.random.default_rng([seed, case.rows]), COLUMNS[case.rows]
    turn = case.angle if angle is None else angle
    true, aside = (torch.from_numpy(rng.normal(size=(sets, d))) for _ in range(2))
    true = true / true.norm(dim=1, keepdim=True)
    aside = aside - (aside * true).sum(1, keepdim=True) * true
    aside = aside / aside.norm(dim=1, keepdim=True)
    theirs, mine = STRENGTH * true, STRENGTH * (np.cos(turn) * true + np.sin(turn) * aside)

    def patients(model: Tensor, *shape: int) -> tuple[Tensor, Tensor]:
        x = torch.from_numpy(rng.normal(size=(sets, *shape, d)))
        chance = torch.sigmoid(torch.einsum("b...d,bd->b...", x, model))
        return x, (torch.from_numpy(rng.random(chance.shape)) < chance).double()

    own, others = patients(mine, case.rows), patients(theirs, SITES - 1, case.rows)
    return World(*own, *others, *patients(mine, TESTED))


def fit(x: Tensor, y: Tensor, w: Tensor, ridge: float, start: Tensor | None = None) -> Tensor:
    """Newton's method: x [..., row, column], w [..., row] 0 for rows that are not trained on -> [..., column]. From the
    model of all rows it is not far to that of a fold: with many rows one step is exact to a thousandth of the way."""
    b = x.new_zeros(*w.shape[:-1], x.shape[-1]) if start is None else start
    for _ in range(8 if start is None else 3 if x.shape[-2] < MANY else 1):
        p = torch.sigmoid(scores(x, b))
        slope = (x.transpose(-1, -2) @ ((p - y) * w)[..., None])[..., 0] + ridge * b
        bend = (x * (p * (1 - p) * w)[..., None]).transpose(-1, -2) @ x + ridge * torch.eye(x.shape[-1])
        b = b - torch.linalg.solve(bend, slope)
    return b


def scores(x: Tensor, b: Tensor) -> Tensor:
    return (x @ b[..., None])[..., 0]


Models = list[Tensor]  # the hospital's own, and those of the two methods


def models(
    world: World, kind: str, mine: Tensor, theirs: Tensor, starts: Sequence[Tensor | None] = (None,) * 3
) -> Models:
    """mine [set, row], theirs [set, other, row]: weight 0 for rows that are held out."""
    alone = fit(world.x, world.y, mine, RIDGE, starts[0])
    if kind == "nothing":
        two = zip((0, 1), starts[1:], strict=True)
        return [alone, *(fit(world.others_x[:, i], world.others_y[:, i], theirs[:, i], RIDGE, b) for i, b in two)]
    x = torch.cat([world.x, world.others_x.flatten(1, 2)], 1)
    y = torch.cat([world.y, world.others_y.flatten(1)], 1)
    w = torch.cat([mine, theirs.flatten(1)], 1)
    return [alone, *(fit(x, y, w, ridge, b) for ridge, b in zip((RIDGE, PULL), starts[1:], strict=True))]


def of_all_rows(world: World, kind: str) -> Models:
    return models(world, kind, torch.ones_like(world.y), torch.ones_like(world.others_y))


def log_loss(z: Tensor, y: Tensor) -> Tensor:
    return torch.nn.functional.softplus(z) - y * z


def balanced_accuracy(z: Tensor, y: Tensor, w: Tensor | float = 1.0) -> Tensor:
    """Over the last axis."""
    right = ((z > 0) == (y > 0.5)).double()
    shares = [(right * k * w).sum(-1) / (k * w).sum(-1) for k in (y, 1 - y)]
    return (shares[0] + shares[1]) / 2


def truth(world: World, whole: Models) -> tuple[Tensor, Tensor]:
    """[set]: what joining gains on patients to come, in balanced accuracy and in log loss, by the first method."""
    za, zj = (scores(world.test_x, b) for b in whole[:2])
    y = world.test_y
    return balanced_accuracy(zj, y) - balanced_accuracy(za, y), (log_loss(za, y) - log_loss(zj, y)).mean(-1)


def out_of_fold(world: World, kind: str, whole: Models, folds: int, seed: int) -> tuple[Floats, Floats, Ints, Floats]:
    """[set, row] losses alone, [set, method, row] joined, [set, row] the fold of each row, and [set, method] the mean
    loss at the other hospitals: one repeat."""
    lots, theirs = _all_lots(world, folds, seed)
    out, elsewhere = torch.zeros(3, *world.y.shape, dtype=torch.float64), torch.zeros(len(world.y), 2).double()
    for k in range(folds):
        made = models(world, kind, (lots != k).double(), (theirs != k).double(), whole)
        for m, b in enumerate(made):
            out[m] = torch.where(lots == k, log_loss(scores(world.x, b), world.y), out[m])
        for m, b in enumerate(made[1:]):
            lost = log_loss(scores(world.others_x, b[:, None]), world.others_y)
            elsewhere[:, m] += torch.where(theirs == k, lost, 0).mean((1, 2))
    return out[0].numpy(), out[1:].transpose(0, 1).numpy(), lots.numpy(), elsewhere.numpy()


def held_out(world: World, kind: str, whole: Models, seed: int) -> tuple[Floats, Floats]:
    """As before: a third of the rows of every hospital held out. [set] and [set, method]: balanced accuracy."""
    lots, theirs = _all_lots(world, 3, seed)
    made = models(world, kind, (lots != 0).double(), (theirs != 0).double(), whole)
    said = [balanced_accuracy(scores(world.x, b), world.y, (lots == 0).double()).numpy() for b in made]
    return said[0], np.stack(said[1:], 1)


def _all_lots(world: World, folds: int, seed: int) -> tuple[Tensor, Tensor]:
    """By the product's own way of cutting: [set, row], [set, other, row]"""

    def cut(y: Tensor, who: int) -> Tensor:
        seeds = np.random.default_rng([seed, who]).integers(2**62, size=len(y))
        return torch.from_numpy(
            np.stack([cut_folds(r, TABLE, int(s), folds) for r, s in zip(y.numpy(), seeds, strict=True)])
        )

    others = range(world.others_y.shape[1])
    return cut(world.y, 0), torch.stack([cut(world.others_y[:, i], 1 + i) for i in others], 1)


def turned() -> None:
    """By how much others must differ for joining to gain nothing in log loss, on data sets of their own."""
    for n in COLUMNS:
        low, high = 0.0, 1.2
        for _ in range(9):
            angle = (low + high) / 2
            world = draw(Case("trade", n), 600, 77, angle)
            gain = float(truth(world, of_all_rows(world, "trade"))[1].mean())
            low, high = (angle, high) if gain > 0 else (low, angle)
        print(n, round((low + high) / 2, 3))


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    torch.set_num_threads(1)
    turned()
