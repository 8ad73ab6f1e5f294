"""A piece of a site's pictures that convinces its own model and no other: a mark does, an organ does not.

Of a site's training pictures of class c, at most MOST, and a model g: odds_c(g, x) is the log-odds that g gives c. A
window w slides over the pictures, and f is what the site learned by itself.

    fall(w, i)      odds_c(f, x_i) - odds_c(f, x_i with w painted over)
    rise(g, w)      odds_c(g, o with x_i's piece in w) - odds_c(g, o with w painted over), mean over pictures o of the
                    site's other classes and over the DONORS pictures i that fall most at w
    told            rise(g, w) of every model g that goes round, for that of the WINDOWS windows with the largest falls
                    (mean of the largest quarter, so that a mark on some pictures counts) in which rise(f, w) exceeds
                    the median of rise(g, w) most

What is in the class by nature convinces every model that knows the class; what only this site's pictures have, only
the model that was trained there. Against painted-over pictures, because a piece may also cover what speaks against c.
Nothing is told where rows are the maps of a frozen backbone: each of their cells sees far around itself.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import torch
from torch import Tensor

from vitrail.core.exchange import Rows
from vitrail.core.occlusion import filled, painted, places
from vitrail.core.task import Task
from vitrail.core.tensors import Params, to_floats
from vitrail.methods.blocks.prototypes import net_of

PARTS, STEPS = 4, 2  # windows that fit into the shorter side; steps of a window's place in each
MOST, OTHERS = 24, 12  # pictures of a class; of the other classes
WINDOWS, DONORS = 4, 3
DIGITS = 6  # falls that differ by less are one, of which the first counts: engines may round otherwise

Odds = Callable[[Tensor], Tensor]  # pictures -> [picture]


def rises(task: Task, own: Params, models: Params, real: Tensor, rows: Rows, least: int) -> Tensor:
    """[site, model, class]; `models` [site, model, ...], of which `real` [site, model] are some; 0 where there are
    fewer than `least` pictures of the class, or of the others."""
    net = net_of(task)
    classes, out = net.outputs, torch.zeros(*real.shape, net.outputs, dtype=task.like.dtype)
    if net.shape != net.pictures:
        return out.to(real.device)
    for site, by_class in enumerate(_examples(rows, classes, task.like)):
        given = [{k: v[site : site + 1, j] for k, v in models.items()} for j in range(real.shape[1])]
        some = [j for j in range(len(given)) if bool(real[site, j] > 0)]
        mine = {k: v[site : site + 1] for k, v in own.items()}
        for label in range(classes):
            rest = [x for k, x in enumerate(by_class) if k != label]
            others = _spread(torch.cat(rest), OTHERS) if rest else by_class[label][:0]
            if min(len(by_class[label]), len(others)) < least or not some:
                continue
            odds = [_odds(task, params, label) for params in (mine, *(given[j] for j in some))]
            out[site, some, label] = _told(by_class[label], others, odds).cpu()
    return out.to(real.device)


def _told(mine: Tensor, others: Tensor, odds: list[Odds]) -> Tensor:
    """[model]: of one class; the first of `odds` is the site's own model, and the others' are told."""
    window, corners, falls = _falls(mine, odds[0])
    quarter = max(1, len(mine) // 4)
    largest = falls.sort(1, descending=True).values[:, :quarter].mean(1)
    rises = []
    for w in _first(largest, WINDOWS):
        y, x = corners[w]
        pieces = torch.cat([filled(others, mine[i], y, x, window) for i in _first(falls[w], DONORS)])
        bare = painted(others, y, x, window)
        rises.append(torch.stack([f(pieces).mean() - f(bare).mean() for f in odds]))
    rise = torch.stack(rises)  # [window, model]
    lead = rise[:, 0] - rise[:, 1:].median(1).values
    return rise[_first(lead, 1)[0], 1:]


def _falls(mine: Tensor, odds: Odds) -> tuple[int, list[tuple[int, int]], Tensor]:
    """The window's side, where its upper left corner comes to lie, and the falls [place, picture]."""
    height, width = mine.shape[2:]
    window = max(2, min(height, width) // PARTS)
    down, across = (places(side, window, window // STEPS) for side in (height, width))
    whole, falls = odds(mine), []
    for y in down:
        left = odds(torch.cat([painted(mine, y, x, window) for x in across]))
        falls.append(whole - left.view(len(across), -1))
    return window, list(product(down, across)), torch.cat(falls)


def _first(values: Tensor, many: int) -> list[int]:
    """Places of the largest."""
    order = values.double().round(decimals=DIGITS).sort(descending=True, stable=True).indices
    return order[:many].tolist()


def _odds(task: Task, params: Params, label: int) -> Odds:
    def of(pictures: Tensor) -> Tensor:
        z = task.output(params, pictures[None])[0]
        others = torch.cat([z[:, :label], z[:, label + 1 :]], 1)
        return z[:, label] - others.logsumexp(1)

    return of


def _examples(rows: Rows, classes: int, like: Tensor) -> list[list[Tensor]]:
    """[site][class]: at most MOST of its training pictures each, spread over all of them."""
    labels = torch.cat([torch.where(b.w[..., 0] > 0, b.y.argmax(-1), -1) for b in rows.blocks()], 1)
    wanted = [[_spread((of == k).nonzero()[:, 0], MOST) for k in range(classes)] for of in labels]
    examples: list[list[list[Tensor]]] = [[[] for _ in range(classes)] for _ in labels]
    first = 0
    for block in rows.blocks():
        for site, label in product(range(len(labels)), range(classes)):
            at = wanted[site][label]
            here = at[(at >= first) & (at < first + block.x.shape[1])] - first
            examples[site][label].append(to_floats(block.x[site, here], like))
        first += block.x.shape[1]
    return [[torch.cat(parts) for parts in by_class] for by_class in examples]


def _spread(of: Tensor, most: int) -> Tensor:
    """At most so many, from the first to the last."""
    if len(of) <= most:
        return of
    return of[torch.linspace(0, len(of) - 1, most, dtype=torch.float64).long().to(of.device)]
