"""Vertical k nearest neighbours: squared distances add up over parties.

    d(x, t) = d_host(x, t) + d_1(x, t) + ... + d_G(x, t);     answer: the mean outcome of the k rows t nearest to x

Distances give a guest's columns away: from those among its rows the rows can be drawn to scale, and as many known rows
as it has columns, and one more, say where everything lies. So it is for simulations, or guests who trust the host.

What all 2^p coalitions of features answer needs one distance per feature and training row, on and off. A training row
is among no coalition's k nearest if even the sum of its smaller distances is above the k-th distance: for each half of
a coalition few rows are left to look at.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor

from vitrail.analysis.explanations.rows import MEDIAN, MOST_EXACT, Explanation, explain_worths
from vitrail.core.errors import Problem, VitrailError
from vitrail.core.tensors import medians
from vitrail.stats.shapley import Floats, Masks, Worth, every
from vitrail.vertical.messages import Distances, Wanted
from vitrail.vertical.training.ration import RationAccount
from vitrail.vertical.wire import Wire

GIVES_AWAY = (
    "Distances give the guest's columns away: anyone who knows one more of its rows than it has "
    "columns can work out all the others."
)
AT_ONCE = 16  # rows that a guest is asked about in one message
FIRST = 128  # training rows looked at before it is known how many must be


class KnnGuest:
    """A guest's rows: those trained on, and all in common. `reference`: the row that says "off"."""

    def __init__(
        self,
        name: str,
        columns: Tensor,
        train: Tensor,
        reference: Tensor | None = None,
        *,
        trust: str = "none",
        ration: RationAccount | None = None,
    ) -> None:
        if trust not in ("full", "simulation"):
            hint = 'Use split or vertical_logistic; or write trust = "full" if you accept this.'
            raise VitrailError("nearest neighbours need full trust", [Problem(f"guest {name}", GIVES_AWAY, hint)])
        self.name, self.columns, self.train, self.ration = name, columns.double(), train, ration
        self.reference = medians(self.columns[train]) if reference is None else reference.double()

    def reply(self, wanted: Wanted) -> Distances:
        if self.ration is not None:
            self.ration.answer(len(wanted.rows))
        return Distances(squares(self.columns[wanted.rows], self.columns[self.train]))

    def off(self) -> Distances:
        return Distances(squares(self.reference[None], self.columns[self.train]))


class Knn:
    """The host, its guests, and the wire between them."""

    def __init__(
        self,
        name: str,
        columns: Tensor,
        y: Tensor,
        train: Tensor,
        guests: Sequence[KnnGuest],
        k: int = 5,
        wire: Wire | None = None,
    ) -> None:
        """columns [row, column] of the host, y [row]: 0 or 1, or a number; train: the rows trained on."""
        if not 1 <= k <= len(train):
            raise VitrailError("too many neighbours", [Problem("k", f"expected 1 to {len(train)}, got {k}.")])
        self.name, self.columns, self.y, self.train = name, columns.double(), y.double(), train
        self.guests, self.k, self.wire = list(guests), k, wire or Wire()
        none, some = torch.zeros(1, dtype=torch.int64), torch.zeros(1, len(train), dtype=torch.float64)
        self.wire.declared = {(name, g.name, "Wanted"): Wanted(none) for g in guests}
        self.wire.declared |= {(g.name, name, "Distances"): Distances(some) for g in guests}

    def ask(self, rows: Tensor, without: Iterable[str] = ()) -> list[Tensor]:
        """Each guest's distances; of one that is away, those of its reference."""
        cross, away, out = self.wire.cross, set(without), []
        for g in self.guests:
            if g.name in away:
                out.append(cross(g.name, self.name, g.off()).squares.expand(len(rows), -1))
            else:
                out.append(cross(g.name, self.name, g.reply(cross(self.name, g.name, Wanted(rows)))).squares)
        return out

    def predict(self, rows: Tensor, without: Iterable[str] = ()) -> Tensor:
        """[row]: the mean outcome of the nearest."""
        return self.vote(self.columns[rows], rows, without)

    def vote(self, x: Tensor, rows: Tensor, without: Iterable[str] = ()) -> Tensor:
        """The same for these columns of the host, which may be newer than the match."""
        total = squares(x.double(), self.columns[self.train])
        for d in self.ask(rows, without):
            total = total + d
        near = torch.sort(total, dim=1, stable=True).indices[:, : self.k]
        return self.y[self.train][near].mean(1)

    def explain(
        self,
        rows: Tensor,
        names: Sequence[str],
        groups: Sequence[Sequence[int]] | None = None,
        reference: Tensor | None = None,
    ) -> Explanation:
        """Exact values of the host's features and one united feature of each guest: two answers of each guest a row.

        groups: the host's columns of each feature; reference [column]: the host's "off", else the median."""
        own, trained = self.columns[rows], self.columns[self.train]
        groups = [[i] for i in range(own.shape[1])] if groups is None else groups
        ref = medians(trained) if reference is None else reference.double()
        by_feature = [trained[:, list(g)].T.contiguous().T for g in groups]  # column after column
        off = [squares(ref[None, list(g)], part)[0] for g, part in zip(groups, by_feature, strict=True)]
        off += [self.wire.cross(g.name, self.name, g.off()).squares[0] for g in self.guests]
        united = [g.name for g in self.guests]
        if len(off) > MOST_EXACT:
            what = (
                f"got {len(off)} features; nearest neighbours are explained exactly, for at most {MOST_EXACT} features."
            )
            raise VitrailError("too many features", [Problem("explain", what, "Group some of them.")])
        y, away = self.y[self.train], torch.stack(off)
        parts: list[Worth] = []
        for some in torch.split(rows, AT_ONCE):
            theirs = self.ask(some)
            for r, row in enumerate(some.tolist()):
                x = self.columns[row]
                mine = [squares(x[None, list(g)], part)[0] for g, part in zip(groups, by_feature, strict=True)]
                parts.append(_looked_up(votes(torch.stack([*mine, *(d[r] for d in theirs)]), away, y, self.k)))
        shown = [own[:, g[0]] if len(g) == 1 else own.new_full((len(own),), torch.nan) for g in groups]
        hidden = [own.new_full((len(own),), torch.nan) for _ in united]
        data = torch.stack(shown + hidden, 1).numpy()
        return explain_worths(parts, data, [*names, *united], MEDIAN, united)


def squares(x: Tensor, t: Tensor) -> Tensor:
    """[row, training row]: squared distances, column by column, so that equal rows are at 0 exactly."""
    out = x.new_zeros(len(x), len(t))
    for j in range(x.shape[1]):
        out += (x[:, j, None] - t[:, j]) ** 2
    return out


def votes(on: Tensor, off: Tensor, y: Tensor, k: int) -> Floats:
    """[coalition], as `every` orders them: the mean outcome of the k nearest, of equally near ones the first.

    on, off [feature, training row]: squared distances of each feature where it is as in the row, or the reference."""
    players = len(on)
    order = (on - off).abs().mean(1).argsort(descending=True, stable=True)  # what changes most is summed exactly first
    on, off, head = on[order], off[order], (players + 1) // 2
    first, second = _sums(on[:head], off[:head]), _sums(on[head:], off[head:])  # [half coalition, training row]
    least = torch.minimum(on[head:], off[head:]).sum(0)
    out = torch.empty(len(first), len(second), dtype=torch.float64)
    for i, part in enumerate(first):
        bound = (part + least) * (1 - 1e-12)  # sums in another order may differ in the last digit
        many = min(FIRST, len(y))
        while True:
            limit = torch.kthvalue(bound, many).values
            at = (bound <= limit).nonzero()[:, 0]  # in order
            total = part[at] + second[:, at]
            last = torch.kthvalue(total, k, dim=1, keepdim=True).values
            furthest = last.max()
            if furthest <= limit or len(at) == len(y):  # nobody left out can be nearer
                break
            many = min(len(y), max(2 * many, int((bound <= furthest).sum())))
        nearer, equal = total < last, total == last
        equal &= equal.cumsum(1) <= k - nearer.sum(1, keepdim=True)
        out[i] = (nearer | equal).double() @ y[at] / k
    back = order.argsort().tolist()
    return out.reshape([2] * players).permute(back).flatten().numpy()


def _sums(on: Tensor, off: Tensor) -> Tensor:
    """[coalition, training row] of these features."""
    masks = torch.from_numpy(every(len(on))[0])
    out = on.new_zeros(len(masks), on.shape[1])
    for j in range(len(on)):
        out += torch.where(masks[:, j, None], on[j], off[j])
    return out


def _looked_up(table: Floats) -> Worth:
    """The worth of coalitions of one row, all of which are known."""

    def worth(masks: Masks) -> Floats:
        place = masks @ (1 << np.arange(masks.shape[1])[::-1])
        return table[place][:, None]

    return worth
