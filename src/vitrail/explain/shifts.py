"""Whose data does not fit: marks on iFedAvg's private layers, and a test that keeps its promise about false alarms.

Rule `paper` (Roschewitz et al. 2021) looks at the published layers, one number per site, feature and layer:
    O   |value - mean over sites| > 2 SD over sites, where that SD exceeds 0.05
    x   the feature's SD over sites > mean + 2 SD of those SDs over features
With population SD no site of four or fewer can reach 2 SD: the O mark cannot appear there.

Rule `calibrated` asks each site, with the shared model held fixed and the ends at the others' mean: in which direction
would your rows move this feature's shift and factor? A row's answer is the gradient of its loss,
    s_r = d loss_r / d (b, w)              one vector for each cell (site x feature; the label is a cell too)
and a site says only its mean and, for the variance, its covariance. If the site's rows come from where the others'
come from, its mean differs from theirs by chance alone:
    T = (m_i - m_others)' [C/n_i + C_others + B]^-1 (m_i - m_others)      ~ q F(q, 2 n_eff)
C is the covariance of the other sites' rows; n_eff = (sum s^2)^2 / sum s^4 counts the rows that carry a cell's
variance, so that a rare category gets the heavy tail it has; B is how much sites differ anyway, estimated from
the others in federations of more than eight. The alarm level is shared among all cells (Bonferroni), so that at most
`alpha` of all runs without any fault raise an alarm.

The site with the strongest cell below the level fits the shift and factor of each of its doubtful cells on its own
rows; the one that explains them best is flagged. The site says its means again with that cell fitted, and is no longer
a yardstick for the others; so one swapped label does not accuse every feature, nor every other site. Repeat until
nothing is left.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.core.task import Task
from vitrail.core.tensors import Params

Floats = NDArray[np.float64]
LABEL = "(label)"
MOST_PER_SITE = 4  # a site with more does not fit at all
MOST_TRIED = 6  # cells that a site fits to see which explains most
YARDSTICKS = 8  # so many other sites before their own differences can be estimated
RIDGE = 1e-3


class Cell(NamedTuple):
    """A feature (all its columns), or the label."""

    name: str
    columns: tuple[int, ...]  # empty for the label


class SiteRows(NamedTuple):
    """One site's training rows; they stay there."""

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


class Alarm(NamedTuple):
    """One cell that does not fit, and what the site's rows would do to it."""

    site: str
    cell: str
    score: float
    p_value: float
    shift: float  # of the column that moves most, in the model's units
    factor: float


class Verdicts(NamedTuple):
    score: Floats  # [site, cell], before anything was fitted
    p_value: Floats  # [site, cell]
    alarms: list[Alarm]
    level: float  # a cell's alarm level


class _Fit(NamedTuple):
    """A site's ends: what the others have, except for the cells it was asked to fit."""

    b: Tensor
    w: Tensor
    out_b: Tensor
    out_w: Tensor


def paper_marks(values: Floats) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """[site, feature] -> O marks [site, feature] and x marks [feature]; sites that did not publish are NaN."""
    mean, sd = np.nanmean(values, 0), np.nanstd(values, 0)
    with np.errstate(invalid="ignore"):
        o = (np.abs(values - mean) > 2 * sd) & (sd > 0.05)
    return o, sd > sd.mean() + 2 * sd.std()


def judge(
    task: Task, shared: Params, ends: Params, sites: Sequence[SiteRows], cells: Sequence[Cell], alpha: float
) -> Verdicts:
    """The calibrated rule. `shared` are the averaged parameters, `ends` the published layers stacked over sites."""
    net = {k: v.double()[None] for k, v in shared.items()}
    rows = [SiteRows(s.name, s.x.double(), s.y.double(), s.w.double()) for s in sites]
    outputs = rows[0].y.shape[1]
    fits = []
    for i in range(len(rows)):
        others = [k for k in range(len(rows)) if k != i]
        b, w = (ends[f"input.{n}"][others].double().mean(0) for n in ("shift", "scale"))
        zero = torch.zeros(outputs, dtype=torch.double)
        out_b = ends["output.shift"][others].double().mean(0) if "output.shift" in ends else zero
        out_w = ends["output.scale"][others].double().mean(0).expand(outputs) if "output.scale" in ends else zero + 1
        fits.append(_Fit(b, w, out_b, out_w))
    said = [evidence(task, net, fit, row, cells) for fit, row in zip(fits, rows, strict=True)]
    level = alpha / (len(rows) * len(cells))
    score, p_value = _test(said, set())
    first = score.copy(), p_value.copy()
    alarms: list[Alarm] = []
    flagged: dict[int, list[int]] = {}
    silent: set[int] = set()  # sites that have no more to say
    while True:
        open_cells = p_value.copy()
        open_cells[list(silent)] = 1.0
        for i, done in flagged.items():
            open_cells[i, done] = 1.0
            if len(done) >= MOST_PER_SITE or any(not cells[c].columns for c in done):
                open_cells[i] = 1.0  # with a wrong label nothing can be said about its features
        best = np.lexsort((-score.ravel(), open_cells.ravel()))[0]
        i, c = divmod(int(best), len(cells))
        if open_cells[i, c] >= level:
            break
        # of the site's cells below the level, the one that explains its rows best once fitted
        done = flagged.setdefault(i, [])
        doubtful = [k for k in np.argsort(open_cells[i], kind="stable") if open_cells[i, k] < level][:MOST_TRIED]
        tried = {int(k): refit(task, net, fits[i], rows[i], [cells[j] for j in (*done, k)]) for k in doubtful}
        # a label that only wants to be less sure is no fault of the label: any wrong feature makes it so
        tried = {k: f for k, f in tried.items() if cells[k].columns or bool((f.out_w < 0).any())}
        if not tried:
            silent.add(i)
            continue
        c = min(tried, key=lambda k: misfit(task, net, tried[k], rows[i], cells[k]))
        fit = tried[c]
        done.append(c)
        said[i] = evidence(task, net, fit, rows[i], cells)
        alarms.append(
            Alarm(
                rows[i].name, cells[c].name, float(score[i, c]), float(p_value[i, c]), *_moved(fits[i], fit, cells[c])
            )
        )
        score, p_value = _test(said, set(flagged))
    return Verdicts(*first, alarms, level)


def misfit(task: Task, net: Params, fit: _Fit, rows: SiteRows, cell: Cell) -> float:
    """How badly these ends explain a site's rows: loss, and a price for each number fitted (Schwarz)."""
    with torch.no_grad():
        _, tape = task.net.forward({**net, **_identity(task, net, rows.x.shape[1])}, ((rows.x + fit.b) * fit.w)[None])
        z = (tape.z[0] + fit.out_b) * fit.out_w
        numbers = 1 + (len(cell.columns) or rows.y.shape[1])  # dummies of one feature share a shift
        return float(_loss(task, z, rows).sum() / rows.w.mean()) + 0.5 * numbers * math.log(len(rows.x))


def _moved(before: _Fit, after: _Fit, cell: Cell) -> tuple[float, float]:
    if not cell.columns:
        k = int((after.out_w / before.out_w - 1).abs().argmax())
        return float((after.out_b - before.out_b)[k]), float((after.out_w / before.out_w)[k])
    at = list(cell.columns)
    shift, factor = (after.b - before.b)[at], (after.w / before.w)[at]
    k = int((shift.abs() + (factor - 1).abs()).argmax())
    return float(shift[k]), float(factor[k])


def row_scores(task: Task, net: Params, fit: _Fit, rows: SiteRows) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradient of each row's loss to b_in, w_in [row, column], b_out [row, output] and one w_out for all [row, 1].

    One factor for all classes: a swapped label is then a negative one, and nothing else is.
    """
    x = ((rows.x + fit.b) * fit.w).requires_grad_()
    _, tape = task.net.forward({**net, **_identity(task, net, x.shape[1])}, x[None])
    u = tape.z[0]
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
    each = (z - rows.y) ** 2 if task.kind == "number" else -z.log_softmax(1) * rows.y
    return (each * rows.w).sum(1)


def _slope(task: Task, z: Tensor, rows: SiteRows) -> Tensor:
    return (2 * (z - rows.y) if task.kind == "number" else z.softmax(1) - rows.y) * rows.w


def evidence(task: Task, net: Params, fit: _Fit, rows: SiteRows, cells: Sequence[Cell]) -> Evidence:
    """At the site: mean, covariance and number of carriers of the row scores, for each cell."""
    b, w, out_b, out_w = (t.numpy() for t in row_scores(task, net, fit, rows))
    mean, cov, carriers = [], [], []
    for cell in cells:
        at = list(cell.columns)
        s = np.concatenate([b[:, at], w[:, at]] if at else [out_b, out_w], 1)
        centred = s - s.mean(0)
        square = (centred**2).sum(0)
        mean.append(s.mean(0))
        cov.append(centred.T @ centred / max(1, len(s) - 1))
        alive = square > 1e-12 * max(float(square.max()), 1e-300)
        fourth = (centred**4).sum(0)
        carriers.append(float((square[alive] ** 2 / fourth[alive]).min()) if alive.any() and square.max() > 0 else 0.0)
    return Evidence(len(rows.x), mean, cov, carriers)


def _test(said: Sequence[Evidence], accused: set[int]) -> tuple[Floats, Floats]:
    """At the coordinator: T and its p-value for every cell; accused sites are no yardstick for the others."""
    from scipy.special import fdtrc

    n, cells = len(said), len(said[0].mean)
    score, p_value = np.zeros((n, cells)), np.ones((n, cells))
    for i, own in enumerate(said):
        others = [said[k] for k in range(n) if k != i and k not in accused]
        if not others:
            continue
        for c in range(cells):
            means = np.stack([o.mean[c] for o in others])
            weights = [o.rows for o in others]
            cov = np.average([o.cov[c] for o in others], axis=0, weights=weights)
            noise = cov * (1 / own.rows + sum(1 / n for n in weights) / len(others) ** 2)
            if n > YARDSTICKS and len(others) >= 3:
                noise = noise + _between(means, cov, others) * (1 + 1 / len(others))
            score[i, c], q = _distance(own.mean[c] - means.mean(0), noise)
            if q:
                p_value[i, c] = float(fdtrc(q, max(2 * own.carriers[c] - q + 1, 1.0), score[i, c] / q))
    return score, p_value


def _between(means: Floats, cov: Floats, others: Sequence[Evidence]) -> Floats:
    """How much the others' means differ beyond chance: a covariance, or nothing."""
    excess = np.cov(means.T).reshape(cov.shape) - cov * np.mean([1 / o.rows for o in others])
    value, vector = np.linalg.eigh((excess + excess.T) / 2)
    return np.asarray((vector * value.clip(min=0)) @ vector.T)


def _distance(d: Floats, noise: Any) -> tuple[float, int]:
    value, vector = np.linalg.eigh((noise + noise.T) / 2)
    kept = value > 1e-9 * max(float(value.max()), 1e-300)
    if not kept.any() or value.max() <= 0:
        return 0.0, 0
    return float((((vector.T @ d)[kept]) ** 2 / value[kept]).sum()), int(kept.sum())


def refit(task: Task, net: Params, start: _Fit, rows: SiteRows, cells: Sequence[Cell]) -> _Fit:
    """At the site: the shift and factor of these cells that its own rows ask for; all else as it was."""
    at = sorted({c for cell in cells for c in cell.columns})
    label = any(not cell.columns for cell in cells)
    free = [torch.zeros(len(at), dtype=torch.double) for _ in range(2)]
    free += [torch.zeros(rows.y.shape[1], dtype=torch.double), torch.zeros(1, dtype=torch.double)] if label else []
    for t in free:
        t.requires_grad_()
    ends = _identity(task, net, rows.x.shape[1])

    def apply() -> _Fit:
        b, w = start.b.clone(), start.w.clone()
        if at:
            b[at], w[at] = start.b[at] + free[0], start.w[at] + free[1]
        if not label:
            return _Fit(b, w, start.out_b, start.out_w)
        return _Fit(b, w, start.out_b + free[2], start.out_w + free[3])

    optimiser = torch.optim.LBFGS(free, max_iter=60, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        fit = apply()
        _, tape = task.net.forward({**net, **ends}, ((rows.x + fit.b) * fit.w)[None])
        z = (tape.z[0] + fit.out_b) * fit.out_w
        loss = _loss(task, z, rows).sum() / rows.w.sum() + RIDGE * sum((t**2).sum() for t in free)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss

    optimiser.step(closure)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        fit = apply()
        return fit._replace(w=torch.where(fit.w.abs() < 1e-6, 1e-6, fit.w))


def describe(alarm: Alarm, kind: str, level: float) -> tuple[str, float, float, str]:
    """kind of trouble, strength, confidence and a plain sentence."""
    doubt = min(1.0, alarm.p_value / level * 0.05) if level else 1.0
    odds = f"by chance less than once in {_round_number(1 / max(doubt, 1e-12))} runs"
    if alarm.cell == LABEL:
        text = f"{alarm.site}: the labels look swapped ({odds}); ask whether yes and no are coded the other way round."
        return "swapped label", abs(alarm.factor - 1), 1 - doubt, text
    if kind == "categorical":
        trouble, what = "recoded", "its categories mean something else here"
        ask = "ask for the code book"
    elif alarm.factor < -0.1:
        trouble, what = "reversed", f"it works the other way round here (factor {alarm.factor:.2f})"
        ask = "ask whether a sign or a code is swapped"
    elif abs(alarm.factor) < 0.5 and abs(alarm.shift) < 1:
        trouble, what = "uninformative", f"it tells little here (factor {alarm.factor:.2f})"
        ask = "ask whether it was measured, or filled in"
    elif kind == "binary":
        more = "more" if abs(alarm.factor) > 1 else "less"
        trouble, what = "stretched", f"it weighs {more} here than for the others (factor {alarm.factor:.2f})"
        ask = "ask whom it was asked, and how"
    elif abs(alarm.factor - 1) >= abs(alarm.shift):
        trouble, what = "stretched", f"the shared model wants it times {alarm.factor:.2f}"
        ask = "ask for the unit, and for values coded as a number"
    else:
        trouble, what = "shifted", f"the shared model wants it moved by {alarm.shift:+.2f} standard deviations"
        ask = "ask how it is measured, and for missing values coded as a number"
    strength = max(abs(alarm.shift), abs(alarm.factor - 1))
    return trouble, strength, 1 - doubt, f"{alarm.site}, {alarm.cell}: {what} ({odds}); {ask}."


def _round_number(x: float) -> str:
    return "a million" if x >= 1e6 else f"{10 ** int(math.log10(max(x, 1))):,}"
