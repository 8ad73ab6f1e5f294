"""The host: its columns, the outcomes, and a model of its columns and the guests' answers.

    s = model(x, z_1, ..., z_G)            scores of a batch's rows
    w <- rule(w, mean slope);  g_i = rows * slope of the mean loss at z_i

g_i stays with the host, or leaves it in shares (triples.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from vitrail.core.errors import Problem, VitrailError
from vitrail.core.losses import CrossEntropy, Loss
from vitrail.core.optimizers import Optimizer
from vitrail.core.task import Batch, Out
from vitrail.core.tensors import Params, clone, medians
from vitrail.vertical.messages import BareSlope, HostTriple, Levels, Masked, Numbers, Slope
from vitrail.vertical.training.terms import Terms
from vitrail.vertical.training.triples import shared


class JointModel(Protocol):
    """A model of the host's columns and the guests' answers."""

    def scores(self, params: Params, x: Tensor, answers: Tensor) -> Tensor:
        """[row, column], [row, answer of all guests] -> [row, output]; autograd goes through it."""


@runtime_checkable
class LayeredModel(Protocol):
    """One that begins with a linear layer."""

    def parts(self, params: Params) -> tuple[Tensor, Callable[[Tensor], Tensor]]: ...


def answer_scores(answer: Levels | Numbers, rows: int | None = None) -> Tensor:
    """[row, answer]: the numbers that an answer about so many rows stands for."""
    z = answer.values if isinstance(answer, Numbers) else answer.level
    what = f"expected answers for {rows} rows, got {len(z)}." if rows not in (None, len(z)) else ""
    if isinstance(answer, Levels) and bool((answer.level >= len(answer.values)).any()):
        what = f"expected levels below {len(answer.values)}, got {int(answer.level.max())}."
    if what:
        raise VitrailError("an answer was refused", [Problem("guest", what, "The answer was not used.")])
    return z if isinstance(answer, Numbers) else answer.values.gather(0, answer.level.to(torch.int64))


class Host:
    def __init__(
        self,
        name: str,
        terms: Terms,
        columns: Tensor,
        y: Tensor,
        joint: JointModel,
        start: Params,
        rule: Optimizer,
        loss: Loss | None = None,
        w: Tensor | None = None,
    ) -> None:
        """columns [row, column], y [row, output] and weights w [row] in the order of the match."""
        self.name, self.terms, self.joint, self.rule = name, terms, joint, rule
        self.columns, self.y, self.loss = columns, y, loss or CrossEntropy()
        self.w = (columns.new_ones(terms.rows) if w is None else w)[:, None]
        if not len(columns) == len(y) == len(self.w) == terms.rows:
            what = f"expected {terms.rows} rows, got {len(columns)} with {len(y)} outcomes and {len(self.w)} weights."
            raise VitrailError("the host's rows do not fit", [Problem(name, what, "Match again.")])
        self.params = clone({k: v[None] for k, v in start.items()})
        self.memory = rule.state(self.params)
        # what guests said of each training row when they were asked last
        self.said = {o.name: columns.new_zeros(terms.rows, o.answer) for o in terms.offers}
        self.slopes: dict[str, Tensor] = {}  # of this step's rows at each guest's answers; not before it is asked for
        self.masked: dict[tuple[str, int], Masked] = {}  # guests' columns under masks, by batch

    def hear(self, step: int, answers: Mapping[str, Levels | Numbers]) -> None:
        """What guests say about the rows of this step."""
        rows = self.terms.rows_at(step)
        for name, answer in answers.items():
            self.said[name][rows] = answer_scores(answer, len(rows)).to(self.columns)

    def learn(self, step: int) -> None:
        """One step down; keeps the slopes at the guests' answers."""
        rows = self.terms.rows_at(step)
        parts = torch.split(self._descend(rows) * len(rows), [o.answer for o in self.terms.offers], 1)
        self.slopes = {o.name: part for o, part in zip(self.terms.offers, parts, strict=True)}

    def train_alone(self) -> None:
        """Epochs that ask nobody: guests' answers are as they were said last, 0 before the first."""
        for step in range(self.terms.alone * len(self.terms.batches)):
            self._descend(self.terms.rows_at(step))

    def _descend(self, rows: Tensor) -> Tensor:
        """One step down the mean loss of these rows; its slope at the guests' answers."""
        z = self._joined({}, rows).requires_grad_()
        leaves = {k: v.detach().requires_grad_() for k, v in self.params.items()}
        with torch.enable_grad():
            s = self.joint.scores({k: v[0] for k, v in leaves.items()}, self.columns[rows], z)
        batch = Batch(self.columns[rows][None], self.y[rows][None], self.w[rows][None])
        slope = self.loss.grad(Out(s.detach()[None], s.detach()[None]), batch)[0] / self.w[rows].sum()
        *mine, at_answers = torch.autograd.grad(s, [*leaves.values(), z], slope)
        self.rule.apply(self.params, self.memory, dict(zip(leaves, mine, strict=True)))
        return at_answers

    def share(self, guest: str, step: int, mine: HostTriple, masked: Masked | None) -> Slope:
        """This step's slopes at a guest's answers, for its sums alone."""
        place = (guest, self.terms.batch_at(step))
        if masked is not None:
            self.masked[place] = masked
        return shared(self.slopes.pop(guest), self.masked[place], mine)

    def bare(self, guest: str) -> BareSlope:
        """The same, as they are: tells the guest the outcomes."""
        return BareSlope(self.slopes.pop(guest))

    def usual(self, guest: str) -> Tensor:
        """[answer]: the median of what this guest answered about the training rows, for when it is away."""
        return medians(self.said[guest][self.terms.train])

    def predict(self, rows: Tensor, answers: Mapping[str, Levels | Numbers]) -> Tensor:
        """[row, output] scores; a guest that said nothing is taken at its usual answer."""
        now = {name: answer_scores(answer, len(rows)).to(self.columns) for name, answer in answers.items()}
        return self.scores(torch.cat([self.columns[rows], self._joined(now, rows, usual=True)], 1))

    def scores(self, x: Tensor) -> Tensor:
        """[row, output] of the host's columns with the guests' answers beside them."""
        own = self.columns.shape[1]
        with torch.no_grad():
            return self.joint.scores({k: v[0] for k, v in self.params.items()}, x[:, :own], x[:, own:])

    def parts(self) -> tuple[Tensor, Callable[[Tensor], Tensor]] | None:
        """The model's first layer and the rest of it, where it begins with a linear one."""
        own = {k: v[0] for k, v in self.params.items()}
        return self.joint.parts(own) if isinstance(self.joint, LayeredModel) else None

    def state(self) -> Params:
        kinds = {"params": self.params, "memory": self.memory, "said": self.said}
        return {f"{kind}/{k}": v for kind, tree in kinds.items() for k, v in tree.items()}

    def load(self, state: Params) -> None:
        self.params = {k: state[f"params/{k}"].clone() for k in self.params}
        self.memory = {k: state[f"memory/{k}"].clone() for k in self.memory}
        self.said = {k: state[f"said/{k}"].clone() for k in self.said}
        self.slopes, self.masked = {}, {}

    def _joined(self, now: Mapping[str, Tensor], rows: Tensor, *, usual: bool = False) -> Tensor:
        """[row, answer of all guests], what is not in `now` as it was said last."""
        parts = []
        for o in self.terms.offers:
            last = self.usual(o.name).expand(len(rows), -1) if usual else self.said[o.name][rows]
            parts.append(now.get(o.name, last))
        return torch.cat(parts, 1) if parts else self.columns.new_zeros(len(rows), 0)
