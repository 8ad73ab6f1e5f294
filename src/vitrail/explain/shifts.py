"""Whose data does not fit: marks on published private layers, and a test that keeps its promise about false alarms.

Rule `paper` (Roschewitz et al. 2021) looks at the published layers, one number per site, feature and layer:
    O   |value - mean over sites| > 2 SD over sites, where that SD exceeds 0.05
    x   the feature's SD over sites > mean + 2 SD of those SDs over features
With population SD no site of four or fewer can reach 2 SD: the O mark cannot appear there.

Rule `calibrated` asks each site about all its rows, with the shared model held fixed and the ends at the others' mean.
For each variable (a feature, or the label) a row r answers with a few numbers s_r:
    d loss_r / d b          in which direction would you shift this feature?     (numeric and binary features, label)
    d loss_r / d w          would you stretch it?                                (each category has its own)
    loss_r without - with   what is it worth to you?                             (numeric features)
The first two see what a shift or a factor could repair, the third what nothing repairs: values lost, clipped or mixed
up. A site says only the mean, the covariance and n_eff = (sum s^2)^2 / sum s^4, the rows that carry the variance. If
its rows come from where the others' come from, its mean differs from theirs by chance alone:
    T = (m_i - m_others)' C^-1 (m_i - m_others) / (1/n_i + 1/n_others) / phi      ~ q F(q, 2 n_eff)
C is the covariance of the other sites' rows, without its narrowest directions (NARROW). phi >= 1 is how much more than
by chance the others differ among each other anyway: Cochran's Q over its degrees of freedom, of this variable, drawn
to the median of all variables, so that four sites can say it too. The alarm level is shared among all variables of all
sites (Bonferroni), so that at most `alpha` of all runs without any fault raise an alarm.

The site with the strongest variable below the level then fits the shift and factor of each of its doubtful variables
on its own rows and says its means again. Flagged is the variable that leaves nothing doubtful elsewhere once fitted (of
several the strongest; if there is none, the one that explains the rows best by Schwarz's criterion), so that one
swapped label does not accuse every feature; and the site is no longer a yardstick for the others, so that it does not
accuse every other site. Repeat until nothing is left.

A feature with one and the same value, or none, in every row of a site, while it varies elsewhere, needs no test.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from vitrail.core.tensors import Params
from vitrail.explain.evidence import Answer, Evidence, Fit, Floats, Variable

MOST_PER_SITE = 4  # a site with more does not fit at all
FURTHER = 1e-3  # of the level, for a site's second variable: what a fit cannot repair leaks into related features
MOST_TRIED = 6  # variables that a site fits to see which explains most
SHRINK = 20.0  # degrees of freedom that the median dispersion counts for
NARROW = 1e-2  # of the widest: a direction narrower than that is second order, with tails that no formula gives


class Alarm(NamedTuple):
    """One variable of one site that does not fit, and what the site's rows would do to it."""

    site: str
    variable: str
    score: float
    p_value: float
    shift: float  # of the column that moves most, in the model's units
    factor: float
    measured: bool = True  # False: one value for every row here, while it varies at most other sites


class Verdicts(NamedTuple):
    score: Floats  # [site, variable], before anything was fitted
    p_value: Floats  # [site, variable]
    alarms: list[Alarm]
    level: float  # a variable's alarm level
    said: list[Evidence]  # of each site, with the ends at the others' mean


class Witness(Protocol):
    """A site that can be asked, here or far away."""

    @property
    def name(self) -> str: ...

    def answer(self, fit: Fit, fitted: Sequence[int]) -> Answer:
        """Fit these variables, all else as given, and say what the rows then say."""


def paper_marks(values: Floats) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """[site, feature] -> O marks [site, feature] and x marks [feature]; sites that did not publish are NaN."""
    mean, sd = np.nanmean(values, 0), np.nanstd(values, 0)
    with np.errstate(invalid="ignore"):
        o = (np.abs(values - mean) > 2 * sd) & (sd > 0.05)
    return o, sd > sd.mean() + 2 * sd.std()


def judge(
    sites: Sequence[Witness], ends: Params, variables: Sequence[Variable], outputs: int, alpha: float
) -> Verdicts:
    """The calibrated rule. `ends` are the published layers, stacked over the sites that can be asked."""
    fits = [mean_ends(ends, [k for k in range(len(sites)) if k != i], outputs) for i in range(len(sites))]
    said = [site.answer(fit, ()).said for site, fit in zip(sites, fits, strict=True)]
    first, level = list(said), alpha / (len(sites) * len(variables))
    score, p_value = weigh(said)
    before = score, p_value
    alarms: list[Alarm] = []
    unmeasured: list[Alarm] = []  # no test is needed for these
    flagged: dict[int, list[int]] = {}
    varies = np.array([e.varies for e in said])
    # one value for every row here, while the feature varies at more than half of the other sites
    for i, c in np.argwhere(~varies & (varies.sum(0) > (len(said) - 1) / 2)):
        moved = _moved(fits[i], sites[i].answer(fits[i], [int(c)]).fit, variables[c])
        unmeasured.append(Alarm(sites[i].name, variables[c].name, float(score[i, c]), 0.0, *moved, measured=False))
    silent: set[int] = set()  # sites that have no more to say
    while True:
        waiting = np.where(varies, p_value, 1.0)
        waiting[list(silent)] = 1.0
        for i, done in flagged.items():
            waiting[i] /= FURTHER
            waiting[i, done] = 1.0
            if len(done) >= MOST_PER_SITE or any(variables[c].kind == "label" for c in done):
                waiting[i] = 1.0  # with a wrong label nothing can be said about its features
        i = int(np.lexsort((-score.max(1), waiting.min(1)))[0])
        if waiting[i].min() >= level:
            break
        done = flagged.setdefault(i, [])
        tried = {}
        for c in [int(k) for k in np.argsort(waiting[i], kind="stable")[:MOST_TRIED] if waiting[i, k] < level]:
            answer = sites[i].answer(fits[i], [*done, c])
            # a label that only wants to be less sure is no fault of the label: any wrong feature makes it so
            if variables[c].kind != "label" or bool((answer.fit.out_w < 0).any()):
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
        moved = _moved(fits[i], answer.fit, variables[c])
        alarms.append(Alarm(sites[i].name, variables[c].name, float(score[i, c]), float(p_value[i, c]), *moved))
        score, p_value = weigh(said, set(flagged))
    return Verdicts(*before, [*alarms, *unmeasured], level, first)


def mean_ends(ends: Params, of: list[int], outputs: int) -> Fit:
    """The mean of these sites' layers; the identity where there is no f_out."""
    b, w = (ends[f"input.{n}"][of].double().mean(0) for n in ("shift", "scale"))
    zero = torch.zeros(outputs, dtype=torch.double)
    if "output.shift" not in ends:
        return Fit(b, w, zero, zero + 1)
    return Fit(b, w, *(ends[f"output.{n}"][of].double().mean(0).expand(outputs) for n in ("shift", "scale")))


def _moved(before: Fit, after: Fit, variable: Variable) -> tuple[float, float]:
    if variable.kind == "label":
        k = int((after.out_w / before.out_w - 1).abs().argmax())
        return float((after.out_b - before.out_b)[k]), float((after.out_w / before.out_w)[k])
    at = list(variable.columns)
    shift, factor = (after.b - before.b)[at], (after.w / before.w)[at]
    k = int((shift.abs() + (factor - 1).abs()).argmax())
    return float(shift[k]), float(factor[k])


def weigh(
    said: Sequence[Evidence], accused: Collection[int] = (), which: Sequence[int] | None = None
) -> tuple[Floats, Floats]:
    """At the coordinator: T and its p-value for every variable; accused sites are no yardstick for the others."""
    from scipy.special import fdtrc

    n, variables = len(said), len(said[0].mean)
    rows, carriers = np.array([e.rows for e in said]), np.array([e.carriers for e in said])
    groups = []  # variables of one size are weighed together
    for size in sorted({len(m) for m in said[0].mean}):
        at = [c for c in range(variables) if len(said[0].mean[c]) == size]
        means, covs = (
            np.array([[part[c] for c in at] for part in parts])
            for parts in ([e.mean for e in said], [e.cov for e in said])
        )
        groups.append((at, means, covs))
    score, p_value = np.zeros((n, variables)), np.ones((n, variables))
    for i in range(n) if which is None else which:
        others = [k for k in range(n) if k != i and k not in accused]
        if len(others) < 2:
            continue  # of two that differ, who is to say which is wrong
        q, spread = np.zeros(variables), np.zeros(variables)  # numbers, and Cochran's Q of the others
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
    """[variable, number, direction]: makes numbers of this covariance uncorrelated, of variance 1; dead ones 0."""
    sd = np.sqrt(np.diagonal(cov, axis1=1, axis2=2))
    alive = sd > 1e-9 * np.maximum(sd.max(1, keepdims=True), 1e-150)
    inverse = np.where(alive, 1 / np.where(alive, sd, 1.0), 0.0)
    value, vector = np.linalg.eigh(cov * inverse[:, :, None] * inverse[:, None, :])
    kept = value > np.maximum(NARROW * value.max(1, keepdims=True), 1e-12)
    return np.asarray(inverse[:, :, None] * vector * (kept / np.sqrt(np.where(kept, value, 1.0)))[:, None, :])
