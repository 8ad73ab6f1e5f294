"""Made-up hospitals for which it is known what joining gains: linear models, all data sets and folds at once.

One hospital with n rows asks; seven others hold as many rows each. Features are normal, the target follows a logistic
model. Alone: a ridge logistic model on the hospital's own rows. Joined: on everybody's; a second method, which pulls
harder towards zero, so that there is a choice to make. Every fold is held out at all hospitals at once.

    gain      all hospitals alike: its own rows are few for so many columns
    loss      the others' patients follow a model turned by ANGLE
    nothing   "joined" is the model of one other hospital, alike and with as many rows: by symmetry neither is better
              on average, by whatever yardstick
    choice    two methods, each the model of one other hospital. That which does better elsewhere is truly the better
              of the two, and so better than the own, on average: both learn from a share of their rows only, so small
              that the chosen one's mean log loss is that of the own (SHARE, found by `level` on other data sets)
    trade     what its own rows lack in number the others' lack in likeness: turned by so much that the mean log loss
              of the chosen method is that of the own (TURNED, likewise)
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.data.schema import Split, TableSchema, Target
from vitrail.data.splitting import partition_folds
from vitrail.studies.benefit import Floats, Ints
from vitrail.studies.compare.execution import FOLDS

SITES, STRENGTH, RIDGE, PULL, TESTED = 8, 2.0, 2.0, 10.0, 2000
COLUMNS = {60: 22, 120: 19, 250: 18}
ANGLE = 0.93
MANY = 400  # rows
TURNED = {60: 0.807, 120: 0.562, 250: 0.378}
SHARE = {60: 0.725, 120: 0.796, 250: 0.838}
TABLE = TableSchema(target=Target(column="y", classes=(0, 1)), split=Split(test=0.33, at_least=0))


class Case(NamedTuple):
    kind: str  # gain, loss, nothing, choice, trade
    rows: int

    @property
    def angle(self) -> float:
        return {"loss": ANGLE, "trade": TURNED[self.rows]}.get(self.kind, 0.0)


CASES = [Case(kind, n) for kind in ("gain", "nothing", "choice", "trade") for n in COLUMNS] + [Case("loss", 250)]


class World(NamedTuple):
    """Data sets side by side."""

    x: Tensor  # [set, row, column]: of the hospital that asks
    y: Tensor  # [set, row]
    others_x: Tensor  # [set, other, row, column]
    others_y: Tensor
    test_x: Tensor  # its patients to come
    test_y: Tensor
    share: float  # of the others' rows, how many they learn from where there is a choice between them


def draw(case: Case, sets: int, seed: int, angle: float | None = None, share: float | None = None) -> World:
    rng, d = np.random.default_rng([seed, case.rows]), COLUMNS[case.rows]
    turn = case.angle if angle is None else angle
    true, aside = (on_device(rng.normal(size=(sets, d))) for _ in range(2))
    true = true / true.norm(dim=1, keepdim=True)
    aside = aside - (aside * true).sum(1, keepdim=True) * true
    aside = aside / aside.norm(dim=1, keepdim=True)
    theirs, mine = STRENGTH * true, STRENGTH * (np.cos(turn) * true + np.sin(turn) * aside)

    def patients(model: Tensor, *shape: int) -> tuple[Tensor, Tensor]:
        x = on_device(rng.normal(size=(sets, *shape, d)))
        chance = torch.sigmoid(torch.einsum("b...d,bd->b...", x, model))
        return x, (on_device(rng.random(tuple(chance.shape))) < chance).double()

    own, others = patients(mine, case.rows), patients(theirs, SITES - 1, case.rows)
    used = SHARE[case.rows] if share is None else share
    return World(*own, *others, *patients(mine, TESTED), used)


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


def on_device(values: NDArray[Any]) -> Tensor:
    """Where everything else is: all of this is much faster on a GPU (`--device cuda`)."""
    return torch.as_tensor(values, device=torch.get_default_device())


Models = list[Tensor]  # the hospital's own, and those of the methods


def models(
    world: World, kind: str, mine: Tensor, theirs: Tensor, starts: Sequence[Tensor | None] = (None,) * 3
) -> Models:
    """mine [set, row], theirs [set, other, row]: weight 0 for rows that are held out."""
    alone = fit(world.x, world.y, mine, RIDGE, starts[0])
    if kind in ("nothing", "choice"):
        if kind == "choice":  # a row more or less would be too much: the last one counts in part
            rows = theirs.shape[-1]
            theirs = theirs * (world.share * rows - torch.arange(rows)).clamp(0, 1)
        some = range(1 if kind == "nothing" else 2)
        return [
            alone,
            *(fit(world.others_x[:, i], world.others_y[:, i], theirs[:, i], RIDGE, starts[1 + i]) for i in some),
        ]
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
    """[set, method]: what joining gains on patients to come, in balanced accuracy and in log loss."""
    y, (za, *joined) = world.test_y, [scores(world.test_x, b) for b in whole]
    right, lost = balanced_accuracy(za, y), log_loss(za, y).mean(-1)
    gains = [(balanced_accuracy(z, y) - right, lost - log_loss(z, y).mean(-1)) for z in joined]
    return tuple(torch.stack(part, 1) for part in zip(*gains, strict=True))  # type: ignore[return-value]


def out_of_fold(world: World, kind: str, whole: Models, folds: int, seed: int) -> tuple[Floats, Floats, Ints, Floats]:
    """[set, row] losses alone, [set, method, row] joined, [set, row] the fold of each row, and [set, method] the mean
    loss at the other hospitals: one repeat."""
    lots, theirs = _all_lots(world, folds, seed)
    out = torch.zeros(len(whole), *world.y.shape, dtype=torch.float64)
    elsewhere = torch.zeros(len(world.y), len(whole) - 1).double()
    for k in range(folds):
        made = models(world, kind, (lots != k).double(), (theirs != k).double(), whole)
        for m, b in enumerate(made):
            out[m] = torch.where(lots == k, log_loss(scores(world.x, b), world.y), out[m])
        for m, b in enumerate(made[1:]):
            lost = log_loss(scores(world.others_x, b[:, None]), world.others_y)
            elsewhere[:, m] += torch.where(theirs == k, lost, 0).mean((1, 2))
    return out[0].cpu().numpy(), out[1:].transpose(0, 1).cpu().numpy(), lots.cpu().numpy(), elsewhere.cpu().numpy()


def held_out(world: World, kind: str, whole: Models, seed: int) -> tuple[Floats, Floats]:
    """As before: a third of the rows of every hospital held out. [set] and [set, method]: balanced accuracy."""
    lots, theirs = _all_lots(world, 3, seed)
    made = models(world, kind, (lots != 0).double(), (theirs != 0).double(), whole)
    said = [balanced_accuracy(scores(world.x, b), world.y, (lots == 0).double()).cpu().numpy() for b in made]
    return said[0], np.stack(said[1:], 1)


def _all_lots(world: World, folds: int, seed: int) -> tuple[Tensor, Tensor]:
    """By the product's own way of cutting: [set, row], [set, other, row]"""

    def cut(y: Tensor, who: int) -> Tensor:
        seeds = np.random.default_rng([seed, who]).integers(2**62, size=len(y))
        return on_device(
            np.stack([partition_folds(r, TABLE, int(s), folds) for r, s in zip(y.cpu().numpy(), seeds, strict=True)])
        )

    others = range(world.others_y.shape[1])
    return cut(world.y, 0), torch.stack([cut(world.others_y[:, i], 1 + i) for i in others], 1)


def level() -> None:
    """By how much others must differ, or from how few of their rows they must learn, for what is chosen elsewhere to
    gain nothing in log loss: by secants, on data sets of their own."""
    for kind, what, guesses in (("trade", "angle", TURNED), ("choice", "share", SHARE)):
        for n in COLUMNS:
            tried: list[tuple[float, float]] = []  # value, gain
            for _ in range(4):
                value = guesses[n] * (0.95 if tried else 1.0)
                if len(tried) > 1:
                    (x0, y0), (x1, y1) = tried[-2:]
                    value = x1 - y1 * (x1 - x0) / (y1 - y0)
                world = draw(Case(kind, n), 400, 77, **{what: value})
                whole = of_all_rows(world, kind)
                best = out_of_fold(world, kind, whole, FOLDS, 77)[3].argmin(1)
                tried.append((value, float(truth(world, whole)[1].cpu().numpy()[np.arange(len(best)), best].mean())))
            print(kind, n, *(f"{value:.3f}: {gain:+.4f}" for value, gain in tried), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    torch.set_default_device(parser.parse_args().device)
    torch.set_num_threads(1)
    level()
