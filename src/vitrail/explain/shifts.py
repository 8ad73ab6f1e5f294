"""Whose data does not fit: marks on published private layers, and a test that keeps its promise about false alarms.

Rule `paper` (Roschewitz et al. 2021) looks at the published layers, one number per site, feature and layer:
    O   |value - mean over sites| > 2 SD over sites, where that SD exceeds 0.05
    x   the feature's SD over sites > mean + 2 SD of those SDs over features
With population SD no site of four or fewer can reach 2 SD: the O mark cannot appear there.

Rule `calibrated` asks each site about all its rows, with the shared model held fixed and the ends at the others' mean.
For each cell (site x feature; the label is a cell too) a row r answers with a few numbers s_r:
    d loss_r / d b          in which direction would you shift this feature?     (numeric and binary features, label)
    d loss_r / d w          would you stretch it?                                (each category has its own)
    loss_r without - with   what is it worth to you?                             (numeric features)
The first two see what a shift or a factor could repair, the third what nothing repairs: values lost, clipped or mixed
up. A site says only the mean, the covariance and n_eff = (sum s^2)^2 / sum s^4, the rows that carry the variance. If
its rows come from where the others' come from, its mean differs from theirs by chance alone:
    T = (m_i - m_others)' C^-1 (m_i - m_others) / (1/n_i + 1/n_others) / phi      ~ q F(q, 2 n_eff)
C is the covariance of the other sites' rows, without its narrowest directions (NARROW). phi >= 1 is how much more than
by chance the others differ among each other anyway: Cochran's Q over its degrees of freedom, of this cell, drawn to the
median of all cells, so that four sites can say it too. The alarm level is shared among all cells (Bonferroni), so that
at most `alpha` of all runs without any fault raise an alarm.

The site with the strongest cell below the level then fits the shift and factor of each of its doubtful cells on its own
rows and says its means again. Flagged is the cell that leaves nothing doubtful elsewhere once fitted (of several the
strongest; if there is none, the one that explains the rows best by Schwarz's criterion), so that one swapped label does
not accuse every feature; and the site is no longer a yardstick for the others, so that it does not accuse every other
site. Repeat until nothing is left.

A feature with one and the same value, or none, in every row of a site, while it varies elsewhere, needs no test.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.core.task import Batch, Out, Task
from vitrail.core.tensors import Params
from vitrail.nets.mlp import MLP, replaced

Floats = NDArray[np.float64]
LABEL = "(label)"
MOST_PER_SITE = 4  # a site with more does not fit at all
FURTHER = 1e-3  # of the level, for a site's second cell: what a fit cannot repair leaks into related features
MOST_TRIED = 6  # cells that a site fits to see which explains most
SHRINK = 20.0  # degrees of freedom that the median dispersion counts for
RIDGE = 1e-3
NARROW = 1e-2  # of the widest: a direction narrower than that is second order, with tails that no formula gives


class Cell(NamedTuple):
    """A feature (all its columns), or the label."""

    name: str
    columns: tuple[int, ...]  # empty for the label
    kind: str  # of the feature: numeric, binary, categorical; or label

    def size(self, outputs: int) -> int:
        """How many numbers a row answers with."""
        return {"numeric": 3, "binary": 2, "label": max(2, outputs)}.get(self.kind, len(self.columns))


class SiteRows(NamedTuple):
    """One site's rows, those held out too; they stay there."""

    name: str
    x: Tensor  # [row, column]
    y: Tensor  # [row, output]
    w: Tensor  # [row, 1]


class Evidence(NamedTuple):
    """What a site says of each cell."""

    rows: int
    mean: list[Floats]  # [q]
    cov: list[Floats]  # [q, q]
    carriers: list[float]  # n_eff
    varies: list[bool]  # has more than one value here


class Alarm(NamedTuple):
    """One cell that does not fit, and what the site's rows would do to it."""

    site: str
    cell: str
    score: float
    p_value: float
    shift: float  # of the column that moves most, in the model's units
    factor: float
    measured: bool = True  # False: one value for every row here, while it varies at most other sites


class Verdicts(NamedTuple):
    score: Floats  # [site, cell], before anything was fitted
    p_value: Floats  # [site, cell]
    alarms: list[Alarm]
    level: float  # a cell's alarm level
    said: list[Evidence]  # of each site, with the ends at the others' mean


class Fit(NamedTuple):
    """A site's ends: what the others have, except for the cells it was asked to fit."""

    b: Tensor
    w: Tensor
    out_b: Tensor
    out_w: Tensor


class Answer(NamedTuple):
    """All that a site says when asked."""

    fit: Fit  # as given, but for the cells that it was asked to fit
    said: Evidence
    misfit: float  # how badly these ends explain its rows


class Witness(Protocol):
    """A site that can be asked, here or far away."""

    @property
    def name(self) -> str: ...

    def answer(self, fit: Fit, fitted: Sequence[int]) -> Answer:
        """Fit these cells, all else as given, and say what the rows then say."""


class Here:
    """A site whose rows are at hand."""

    def __init__(self, task: Task, shared: Params, rows: SiteRows, cells: Sequence[Cell]) -> None:
        self.task, self.cells, self.name = task, cells, rows.name
        self.net = {k: v.double()[None] for k, v in shared.items()}
        self.rows = SiteRows(rows.name, rows.x.double(), rows.y.double(), rows.w.double())

    def answer(self, fit: Fit, fitted: Sequence[int]) -> Answer:
        task, net, rows = self.task, self.net, self.rows
        if fitted:
            fit = refit(task, net, fit, rows, [self.cells[c] for c in fitted])
        price = misfit(task, net, fit, rows, self.cells[fitted[-1]]) if fitted else 0.0
        return Answer(fit, evidence(task, net, fit, rows, self.cells), price)


def paper_marks(values: Floats) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """[site, feature] -> O marks [site, feature] and x marks [feature]; sites that did not publish are NaN."""
    mean, sd = np.nanmean(values, 0), np.nanstd(values, 0)
    with np.errstate(invalid="ignore"):
        o = (np.abs(values - mean) > 2 * sd) & (sd > 0.05)
    return o, sd > sd.mean() + 2 * sd.std()


def judge(sites: Sequence[Witness], ends: Params, cells: Sequence[Cell], outputs: int, alpha: float) -> Verdicts:
    """The calibrated rule. `ends` are the published layers, stacked over the sites that can be asked."""
    fits = [mean_ends(ends, [k for k in range(len(sites)) if k != i], outputs) for i in range(len(sites))]
    said = [site.answer(fit, ()).said for site, fit in zip(sites, fits, strict=True)]
    first, level = list(said), alpha / (len(sites) * len(cells))
    score, p_value = weigh(said)
    before = score, p_value
    alarms: list[Alarm] = []
    unmeasured: list[Alarm] = []  # no test is needed for these
    flagged: dict[int, list[int]] = {}
    varies = np.array([e.varies for e in said])
    # one value for every row here, while the feature varies at more than half of the other sites
    for i, c in np.argwhere(~varies & (varies.sum(0) > (len(said) - 1) / 2)):
        moved = _moved(fits[i], sites[i].answer(fits[i], [int(c)]).fit, cells[c])
        unmeasured.append(Alarm(sites[i].name, cells[c].name, float(score[i, c]), 0.0, *moved, measured=False))
    silent: set[int] = set()  # sites that have no more to say
    while True:
        waiting = np.where(varies, p_value, 1.0)
        waiting[list(silent)] = 1.0
        for i, done in flagged.items():
            waiting[i] /= FURTHER
            waiting[i, done] = 1.0
            if len(done) >= MOST_PER_SITE or any(cells[c].kind == "label" for c in done):
                waiting[i] = 1.0  # with a wrong label nothing can be said about its features
        i = int(np.lexsort((-score.max(1), waiting.min(1)))[0])
        if waiting[i].min() >= level:
            break
        done = flagged.setdefault(i, [])
        tried = {}
        for c in [int(k) for k in np.argsort(waiting[i], kind="stable")[:MOST_TRIED] if waiting[i, k] < level]:
            answer = sites[i].answer(fits[i], [*done, c])
            # a label that only wants to be less sure is no fault of the label: any wrong feature makes it so
            if cells[c].kind != "label" or bool((answer.fit.out_w < 0).any()):
                again = [*said[:i], answer.said, *said[i + 1 :]]
                left = np.delete(weigh(again, set(flagged) - {i}, [i])[1][i], [*done, c]).min()
                tried[c] = answer, again, left
        if not tried:
            silent.add(i)
            continue
        clear = {k: float(waiting[i, k]) for k, (_, _, left) in tried.items() if left >= level}
        unlike = clear or {k: answer.misfit for k, (answer, _, _) in tried.items()}
        c = min(unlike, key=unlike.__getitem__)
        answer, said, _ = tried[c]
        done.append(c)
        moved = _moved(fits[i], answer.fit, cells[c])
        alarms.append(Alarm(sites[i].name, cells[c].name, float(score[i, c]), float(p_value[i, c]), *moved))
        score, p_value = weigh(said, set(flagged))
    return Verdicts(*before, [*alarms, *unmeasured], level, first)


def mean_ends(ends: Params, of: list[int], outputs: int) -> Fit:
    """The mean of these sites' layers; the identity where there is no f_out."""
    b, w = (ends[f"input.{n}"][of].double().mean(0) for n in ("shift", "scale"))
    zero = torch.zeros(outputs, dtype=torch.double)
    if "output.shift" not in ends:
        return Fit(b, w, zero, zero + 1)
    return Fit(b, w, *(ends[f"output.{n}"][of].double().mean(0).expand(outputs) for n in ("shift", "scale")))


def misfit(task: Task, net: Params, fit: Fit, rows: SiteRows, cell: Cell) -> float:
    """How badly these ends explain a site's rows: loss, and a price for each number fitted (Schwarz)."""
    numbers = 1 + (len(cell.columns) or rows.y.shape[1])  # dummies of one feature share a shift
    with torch.no_grad():
        loss = _loss(task, _output(task, net, fit, rows), rows).sum()
    return float(loss / rows.w.mean()) + 0.5 * numbers * math.log(len(rows.x))


def _moved(before: Fit, after: Fit, cell: Cell) -> tuple[float, float]:
    if cell.kind == "label":
        k = int((after.out_w / before.out_w - 1).abs().argmax())
        return float((after.out_b - before.out_b)[k]), float((after.out_w / before.out_w)[k])
    at = list(cell.columns)
    shift, factor = (after.b - before.b)[at], (after.w / before.w)[at]
    k = int((shift.abs() + (factor - 1).abs()).argmax())
    return float(shift[k]), float(factor[k])


def row_scores(task: Task, net: Params, fit: Fit, rows: SiteRows) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradient of each row's loss to b_in, w_in [row, column], b_out [row, output] and one w_out for all [row, 1].

    One factor for all classes: a swapped label is then a negative one, and nothing else is.
    """
    x = ((rows.x + fit.b) * fit.w).requires_grad_()
    u = task.output({**net, **_identity(task, net, x.shape[1])}, x[None])[0]
    z = (u + fit.out_b) * fit.out_w
    (dx,) = torch.autograd.grad(_loss(task, z, rows).sum(), x)
    with torch.no_grad():
        slope = _slope(task, z, rows)
        return dx * fit.w, dx * (rows.x + fit.b), slope * fit.out_w, (slope * (u + fit.out_b)).sum(1, keepdim=True)


def _identity(task: Task, net: Params, width: int) -> Params:
    """The network's own ends switched off: they are applied here."""
    outputs = task.net.outputs
    like = next(iter(net.values()))
    ends: Params = {}
    if "input" in task.net.groups:
        ends["input.shift"], ends["input.scale"] = like.new_zeros(1, width), like.new_ones(1, width)
    if "output" in task.net.groups:
        ends["output.shift"], ends["output.scale"] = like.new_zeros(1, outputs), like.new_ones(1, outputs)
    return ends


def _loss(task: Task, z: Tensor, rows: SiteRows) -> Tensor:
    return task.loss.rows(Out(z, z), Batch(rows.x, rows.y, rows.w))


def _slope(task: Task, z: Tensor, rows: SiteRows) -> Tensor:
    return task.loss.slope(Out(z, z), Batch(rows.x, rows.y, rows.w))


def evidence(task: Task, net: Params, fit: Fit, rows: SiteRows, cells: Sequence[Cell]) -> Evidence:
    """At the site: mean, covariance and number of carriers of its rows' answers, for each cell."""
    b, w, out_b, out_w = (t.numpy() for t in row_scores(task, net, fit, rows))
    worth = dict(_worth(task, net, fit, rows, [cell.columns[0] for cell in cells if cell.kind == "numeric"]))
    mean, cov, carriers, varies = [], [], [], []
    flat = (rows.x == rows.x[:1]).all(0).numpy()
    for cell in cells:
        at = list(cell.columns)
        if cell.kind == "label":
            s = np.concatenate([out_b[:, : max(1, out_b.shape[1] - 1)], out_w], 1)  # the last class follows
        elif cell.kind == "categorical":
            s = w[:, at]
        else:
            s = np.concatenate([b[:, at], w[:, at]], 1)
        if cell.kind == "numeric":
            s = np.concatenate([s, worth[at[0]]], 1)
        centred = s - s.mean(0)
        square, fourth = (centred**2).sum(0), (centred**4).sum(0)
        mean.append(s.mean(0))
        cov.append(centred.T @ centred / max(1, len(s) - 1))
        alive = square > 1e-12 * max(float(square.max()), 1e-300)
        carriers.append(float((square[alive] ** 2 / fourth[alive]).min()) if alive.any() and square.max() > 0 else 0.0)
        varies.append(not at or not flat[at].all())
    return Evidence(len(rows.x), mean, cov, carriers, varies)


def _worth(task: Task, net: Params, fit: Fit, rows: SiteRows, columns: list[int]) -> Iterator[tuple[int, Floats]]:
    """For each column [row, 1]: loss with the column taken for missing, less the loss."""
    with torch.no_grad():
        x, missing, loss = (rows.x + fit.b) * fit.w, fit.b * fit.w, _loss(task, _output(task, net, fit, rows), rows)
        for k in range(0, len(columns), 32):
            at = columns[k : k + 32]
            assert isinstance(task.net, MLP)
            z = replaced(task.net, net, x, at, missing[at])
            without = _loss(task, (z + fit.out_b) * fit.out_w, rows)  # [column, row]
            yield from zip(at, (without - loss)[:, :, None].numpy(), strict=True)


def _output(task: Task, net: Params, fit: Fit, rows: SiteRows) -> Tensor:
    """[row, output]: what a site with these ends would say."""
    z = task.output({**net, **_identity(task, net, rows.x.shape[1])}, ((rows.x + fit.b) * fit.w)[None])[0]
    return (z + fit.out_b) * fit.out_w


def weigh(
    said: Sequence[Evidence], accused: Collection[int] = (), which: Sequence[int] | None = None
) -> tuple[Floats, Floats]:
    """At the coordinator: T and its p-value for every cell; accused sites are no yardstick for the others."""
    from scipy.special import fdtrc

    n, cells = len(said), len(said[0].mean)
    rows, carriers = np.array([e.rows for e in said]), np.array([e.carriers for e in said])
    groups = []  # cells of one size are weighed together
    for size in sorted({len(m) for m in said[0].mean}):
        at = [c for c in range(cells) if len(said[0].mean[c]) == size]
        means, covs = (
            np.array([[part[c] for c in at] for part in parts])
            for parts in ([e.mean for e in said], [e.cov for e in said])
        )
        groups.append((at, means, covs))
    score, p_value = np.zeros((n, cells)), np.ones((n, cells))
    for i in range(n) if which is None else which:
        others = [k for k in range(n) if k != i and k not in accused]
        if len(others) < 2:
            continue  # of two that differ, who is to say which is wrong
        q, spread = np.zeros(cells), np.zeros(cells)  # numbers, and Cochran's Q of the others
        for at, means, covs in groups:
            whiten = _whitener(np.average(covs[others], axis=0, weights=rows[others]))
            centre = means[others].mean(0)
            q[at] = whiten.any(1).sum(1)
            score[i, at] = (np.einsum("cj,cjk->ck", means[i] - centre, whiten) ** 2).sum(1)
            among = np.einsum("ocj,cjk->ock", means[others] - centre, whiten)
            spread[at] = np.einsum("ock,o->c", among**2, rows[others])
        alive, free = q > 0, (len(others) - 1) * q
        if not alive.any():
            continue
        usual = np.median(spread[alive] / free[alive])
        phi = np.maximum(1.0, (SHRINK * usual + spread) / (SHRINK + free))
        score[i] /= (1 / rows[i] + (1 / rows[others]).sum() / len(others) ** 2) * phi
        tail = np.maximum(2 * carriers[i] - q + 1, 1.0)
        p_value[i, alive] = fdtrc(q[alive], tail[alive], score[i, alive] / q[alive])
    return score, p_value


def _whitener(cov: Floats) -> Floats:
    """[cell, number, direction]: makes numbers of this covariance uncorrelated, of variance 1; dead ones 0."""
    sd = np.sqrt(np.diagonal(cov, axis1=1, axis2=2))
    alive = sd > 1e-9 * np.maximum(sd.max(1, keepdims=True), 1e-150)
    inverse = np.where(alive, 1 / np.where(alive, sd, 1.0), 0.0)
    value, vector = np.linalg.eigh(cov * inverse[:, :, None] * inverse[:, None, :])
    kept = value > np.maximum(NARROW * value.max(1, keepdims=True), 1e-12)
    return np.asarray(inverse[:, :, None] * vector * (kept / np.sqrt(np.where(kept, value, 1.0)))[:, None, :])


def refit(task: Task, net: Params, start: Fit, rows: SiteRows, cells: Sequence[Cell]) -> Fit:
    """At the site: the shift and factor of these cells that its own rows ask for; all else as it was."""
    at = sorted({c for cell in cells for c in cell.columns})
    label = any(cell.kind == "label" for cell in cells)
    free = [torch.zeros(len(at), dtype=torch.double) for _ in range(2)]
    free += [torch.zeros(rows.y.shape[1], dtype=torch.double), torch.zeros(1, dtype=torch.double)] if label else []
    for t in free:
        t.requires_grad_()

    def apply() -> Fit:
        b, w = start.b.clone(), start.w.clone()
        if at:
            b[at], w[at] = start.b[at] + free[0], start.w[at] + free[1]
        if not label:
            return Fit(b, w, start.out_b, start.out_w)
        return Fit(b, w, start.out_b + free[2], start.out_w + free[3])

    optimiser = torch.optim.LBFGS(free, max_iter=60, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = _loss(task, _output(task, net, apply(), rows), rows).sum() / rows.w.sum() + RIDGE * sum(
            (t**2).sum() for t in free
        )
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimiser.step(closure)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        fit = apply()
        return fit._replace(w=torch.where(fit.w.abs() < 1e-6, 1e-6, fit.w))


def describe(alarm: Alarm, kind: str, level: float, alpha: float, unit: str) -> tuple[str, float, float, str]:
    """kind of trouble, strength, confidence and a plain sentence: what the federation does to it, why that may be,
    what to ask, and how often chance alone would say so.
    """
    doubt = min(1.0, alarm.p_value / level * alpha) if level else 1.0
    shift, factor = alarm.shift, alarm.factor
    times = f"multiplies it by {factor:.2f}"
    if not alarm.measured:
        what = f"the same value in every row, or none; the federation treats it as a shift of {shift:+.2f}"
        cause, ask = "not measured here, or missing values written as a number", "whether it is measured"
        text = f"{alarm.site}, {alarm.cell}: {what}; likely {cause}; ask the site {ask}."
        return "not measured", abs(shift), 1.0, text
    if alarm.cell == LABEL:
        trouble, what = "swapped label", f"the outcome works the other way round here: the shared model {times}"
        cause, ask = "yes and no are swapped", "how the outcome is coded"
    elif kind == "categorical":
        most = f"the shared model moves one by {shift:+.2f} and {times}"
        trouble, what = "recoded", f"its categories mean something else here: {most}"
        cause, ask = "another code book, or missing values written as a category", "for its code book"
    elif factor < -0.1:
        trouble, what = "reversed", f"it works the other way round here: the shared model {times}"
        cause, ask = "a swapped sign or code", "how low and high are written"
    elif abs(factor) < 0.5 and abs(shift) < 1:
        trouble, what = "uninformative", f"it tells little here: the shared model {times}"
        cause, ask = "not measured, or filled in by default", "how its values come about"
    elif kind == "binary" or abs(factor - 1) >= abs(shift):
        more = "more" if abs(factor) > 1 else "less"
        trouble, what = "stretched", f"it counts {more} here than at the other sites: the shared model {times}"
        cause, ask = "another unit, or values missing or filled in, here or there", "for the unit"
        if kind == "binary":
            cause, ask = "another definition, or asked of other patients", "whom it was asked, and how"
    else:
        low, add = ("low", "adds") if shift > 0 else ("high", "takes away")
        trouble = "shifted"
        what = f"its values are too {low} for the shared model, which {add} {abs(shift):.2f} {unit}"
        what += f", then {times}" if abs(factor - 1) >= 0.1 else ""
        cause, ask = "another way of measuring, or missing values written as a number", "how it is measured"
    if kind == "numeric" and trouble in ("stretched", "shifted"):
        ask += " and how missing values are written"
    strength = abs(factor - 1) if alarm.cell == LABEL else max(abs(shift), abs(factor - 1))
    cell = "label" if alarm.cell == LABEL else alarm.cell
    odds = f"by chance less than once in {_round_number(1 / max(doubt, 1e-12))} runs"
    return trouble, strength, 1 - doubt, f"{alarm.site}, {cell}: {what}; likely {cause}; ask the site {ask} ({odds})."


def _round_number(x: float) -> str:
    """Down to 1, 2 or 5 times a power of ten."""
    if x >= 1e6:
        return "a million"
    ten = 10 ** int(math.log10(max(x, 1)))
    return f"{max(m * ten for m in (1, 2, 5) if m * ten <= max(x, 1)):,}"
