"""Times to an event: scores against slow versions written out, the likelihood against a logistic regression over the
intervals that rows lived through, and methods that know nothing of it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.support.small import gap, make_sites, make_task, models, train
from vitrail import methods
from vitrail.core.errors import VitrailError
from vitrail.core.losses import Hazard
from vitrail.core.task import Batch, Out
from vitrail.metrics import survival
from vitrail.metrics.scores import baseline_scores, score, score_all
from vitrail.testing.federation import LOSSES, task_of

K = 5
NAMES = ("c_index", "uno_c", "integrated_brier", "time_log_loss")


def rows(n: int, seed: int, ties: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Outcomes and answers; with ties in times, in risks, and at the ends of intervals."""
    rng = np.random.default_rng(seed)
    time = rng.uniform(0.01, K + 2, n)
    time = np.ceil(2 * time) / 2 if ties else time
    y = np.where((rng.random(n) < 0.5) & (time <= K), time, -time)
    hazard = rng.uniform(0.02, 0.5, (n, K))
    hazard = hazard.round(1) if ties else hazard
    return y, np.cumprod(1 - hazard, 1)


def left_at(y: np.ndarray, t: float, w: np.ndarray) -> float:
    """G(t-), Kaplan-Meier of leaving, by hand: the share that stays of those still there when events are gone."""
    out = 1.0
    for c in sorted({-v for v in y if v < 0 and -v < t}):
        there = sum(b for v, b in zip(y, w, strict=True) if abs(v) > c or v == -c)
        out *= 1 - sum(b for v, b in zip(y, w, strict=True) if v == -c) / there
    return out


def slow_c(y: np.ndarray, risk: np.ndarray, w: np.ndarray, uno: bool) -> float:
    won = pairs = 0.0
    for i in range(len(y)):
        for j in range(len(y)):
            if y[i] > 0 and (abs(y[j]) > y[i] or y[j] == -y[i]):
                by = w[i] * w[j] * (left_at(y, y[i], w) ** -2 if uno else 1)
                pairs += by
                won += by * ((risk[i] > risk[j]) + 0.5 * (risk[i] == risk[j]))
    return won / pairs


def slow_brier(y: np.ndarray, p: np.ndarray, w: np.ndarray) -> float:
    out = []
    for k in range(p.shape[1]):
        end, total = k + 1, 0.0
        for v, s, b in zip(y, p[:, k], w, strict=True):
            if 0 < v <= end:
                total += b * s**2 / left_at(y, v, w)
            elif -v >= end or v > end:
                total += b * (1 - s) ** 2 / left_at(y, end, w)
        out.append(total / w.sum())
    return float(np.mean(out))


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
def test_scores_are_those_of_slow_versions(ties: bool, weighted: bool) -> None:
    y, p = rows(60, 1, ties)
    w = np.random.default_rng(2).uniform(0.2, 3, 60) if weighted else np.ones(60)
    found = score(NAMES, y, p, w if weighted else None)
    assert found["c_index"] == pytest.approx(slow_c(y, 1 - p[:, -1], w, uno=False), abs=1e-12)
    assert found["uno_c"] == pytest.approx(slow_c(y, 1 - p[:, -1], w, uno=True), abs=1e-12)
    assert found["integrated_brier"] == pytest.approx(slow_brier(y, p, w), abs=1e-12)
    assert abs(found["c_index"] - found["uno_c"]) > 1e-4, "two scores that cannot be told apart test one"


def test_whole_weights_are_rows_that_come_more_than_once() -> None:
    y, p = rows(40, 3, ties=True)
    w = np.random.default_rng(4).integers(1, 4, 40)
    one, other = score(NAMES, y, p, w.astype(float)), score(NAMES, np.repeat(y, w), np.repeat(p, w, 0))
    # a row that comes twice is no pair with itself: neither has the event before the other
    assert one == pytest.approx(other, abs=1e-12)


def test_a_site_is_scored_the_same_whoever_else_is() -> None:
    parts = [rows(n, n) for n in (7, 30, 12)]
    y, p, real = np.zeros((3, 30)), np.zeros((3, 30, K)), np.zeros((3, 30), bool)
    for i, (a, b) in enumerate(parts):
        y[i, : len(a)], p[i, : len(a)], real[i, : len(a)] = a, b, True
    together = score_all(NAMES, y, p, real)
    for i, (a, b) in enumerate(parts):
        assert {m: v[i] for m, v in together.items()} == score(NAMES, a, b)


def test_known_numbers() -> None:
    """Three rows by hand: events at 1 and 3, somebody leaves at 2."""
    y = np.array([1.0, -2.0, 3.0])
    good, bad = np.array([[0.1], [0.5], [0.9]]), np.array([[0.9], [0.5], [0.1]])
    assert (score(("c_index",), y, good)["c_index"], score(("c_index",), y, bad)["c_index"]) == (1.0, 0.0)
    assert survival.survival_curve(y)[1].tolist() == pytest.approx([2 / 3, 0])
    assert survival.followed(y, np.ones(3)).tolist() == pytest.approx(
        [1, 1, 0.5]
    )  # who leaves at 2 was still seen then


def test_everybody_followed_to_the_horizon_and_no_further_is_known_there() -> None:
    """A trial with a fixed end: all leave at once, and the last Brier score is the plain one."""
    y, p = np.array([0.5, -2.0, -2.0, 1.5]), np.full((4, 2), 0.5)
    assert survival.brier_at_ends(y, p, np.ones(4)).tolist() == [0.25, 0.25]
    assert np.isnan(survival.brier_at_ends(np.array([-0.5, 0.3]), p[:2], np.ones(2))[1])  # nobody was followed so long


def test_without_an_event_scores_are_none() -> None:
    y, p = -np.arange(1.0, 6), np.full((5, K), 0.9)
    found = score(NAMES, y, p)
    assert [np.isnan(found[m]) for m in NAMES] == [True, True, False, False]


def test_the_same_answer_is_half_right_and_no_single_answer_loses_less() -> None:
    y, _ = rows(200, 5)
    same = baseline_scores(NAMES, y, 0, intervals=K)
    assert same["c_index"] == same["uno_c"] == 0.5
    table = survival.life_table(y, K)
    for change in (0.9, 1.05):
        other = score(NAMES, y, np.tile(np.clip(table * change, 0, 1), (200, 1)))
        assert other["time_log_loss"] > same["time_log_loss"]


def test_the_loss_is_the_likelihood_and_its_slope() -> None:
    y, _ = rows(30, 6, ties=True)
    z = torch.randn(1, 30, K, dtype=torch.double, generator=torch.Generator().manual_seed(1), requires_grad=True)
    w = torch.rand(1, 30, 1, dtype=torch.double, generator=torch.Generator().manual_seed(2)) + 0.5
    batch = Batch(torch.zeros(1, 30, 0), torch.from_numpy(survival.periods(y, K))[None], w)
    loss, out = Hazard(), Out(z, z)
    told = loss.rows(out, batch)
    by_hand = survival.losses(y, loss.predictions(z[0]).detach().numpy())
    torch.testing.assert_close(told[0].detach(), torch.from_numpy(by_hand) * w[0, :, 0])
    (slope,) = torch.autograd.grad(told.sum(), z)
    torch.testing.assert_close(loss.grad(out._replace(z=z.detach()), batch), slope)


def test_hazards_are_a_logistic_regression_over_intervals() -> None:
    """A linear model with a bias for each interval, fitted by our loss, and by scikit-learn on a row for each interval
    that somebody lived through."""
    from sklearn.linear_model import LogisticRegression

    rng = np.random.default_rng(7)
    x = rng.normal(size=(150, 2))
    time = rng.exponential(np.exp(-x[:, 0]) * 2)
    leave = rng.uniform(0, 6, 150)
    y = survival.in_intervals(np.minimum(time, leave), time <= leave, tuple(map(float, range(1, K + 1))))
    told = survival.periods(y, K)
    who, when = np.nonzero(told >= 0)
    long = np.hstack([x[who], np.eye(K)[when]])
    theirs = LogisticRegression(C=1e6, fit_intercept=False, tol=1e-10, max_iter=2000).fit(long, told[who, when])
    weight, bias = torch.zeros(2, dtype=torch.double), torch.zeros(K, dtype=torch.double)
    for v in (weight, bias):
        v.requires_grad_()
    step = torch.optim.LBFGS([weight, bias], max_iter=200, tolerance_grad=1e-9, line_search_fn="strong_wolfe")
    batch = Batch(torch.zeros(0), torch.from_numpy(told)[None], torch.ones(1, 150, 1, dtype=torch.double))

    def cost() -> torch.Tensor:
        step.zero_grad()
        z = (torch.from_numpy(x) @ weight)[None, :, None] + bias
        total = Hazard().rows(Out(z, z), batch).sum()
        total.backward()
        return total

    step.step(cost)
    found = np.append(weight.detach(), bias.detach())
    assert found == pytest.approx(theirs.coef_[0], abs=2e-3)
    assert abs(theirs.coef_[0][0] - 1) < 0.4  # and what was put in is found


@pytest.mark.parametrize("name", ["fedavg", "ifedavg", "scaffold", "ditto", "apple", "agreed_mix", "ripfl"])
def test_methods_learn_times_as_they_are(name: str) -> None:
    """Sites stacked or one after the other; one of them never sees an event. Who cannot says why."""
    method = methods.build(name, {"folds": 2, "tuned": (1,)} if name == "agreed_mix" else {})
    net = make_task("time").net.framed(method.needs.adapters)
    task = task_of(net, LOSSES["time"])
    if why := method.incompatibilities(task):
        assert name == "ripfl", why  # it goes by doubt, of which hazards say nothing
        return
    sites = make_sites("time")
    one, other = (train(method, task, sites, looped=looped) for looped in (False, True))
    assert gap(models(*one), models(*other)) < 1e-10


def test_words_of_clashes() -> None:
    with pytest.raises(VitrailError, match="classes"):
        train(methods.build("fed_rod", {}), make_task("time"), make_sites("time"))


def test_kaplan_meier_by_hand() -> None:
    """Freireich's 21 patients under 6-MP (weeks of remission): shares and Greenwood's errors as in textbooks."""
    weeks = np.array([6, 6, 6, 7, 10, 13, 16, 22, 23, 6, 9, 10, 11, 17, 19, 20, 25, 32, 32, 34, 35], float)
    curve = survival.kaplan_meier(weeks, np.arange(21) < 9, 40.0)
    assert curve.times.tolist() == [6, 7, 10, 13, 16, 22, 23, 35]
    assert curve.free[:-1] == pytest.approx([0.857, 0.807, 0.753, 0.690, 0.627, 0.538, 0.448], abs=5e-4)
    greenwood = [0.0764, 0.0869, 0.0963, 0.1068, 0.1141, 0.1282, 0.1346]
    for share, low, high, error in zip(curve.free, curve.low, curve.high, greenwood, strict=False):
        half = 1.959964 * error / (share * abs(np.log(share)))
        assert (low, high) == (
            pytest.approx(share ** np.exp(half), abs=5e-4),
            pytest.approx(share ** np.exp(-half), abs=5e-4),
        )
    assert (curve.free[-1], curve.times[-1]) == (curve.free[-2], 35.0), "level until nobody is followed"
    at_risk = dict(zip(curve.at.tolist(), curve.left.tolist(), strict=True))
    assert (at_risk[0.0], at_risk[8.0], at_risk[20.0], at_risk[36.0]) == (21, 16, 8, 0)


def test_kaplan_meier_at_its_ends() -> None:
    none = survival.kaplan_meier(np.array([3.0, 9.0]), np.array([False, False]), 8.0)
    assert none.at_time(8.0) == (1.0, 1.0, 1.0)
    all_ = survival.kaplan_meier(np.array([1.0, 2.0, 9.0]), np.array([True, True, True]), 8.0)
    assert all_.at_time(0.5) == (1.0, 1.0, 1.0)
    assert all_.free.tolist() == pytest.approx([2 / 3, 1 / 3, 1 / 3]), "what comes after the horizon is not seen"
    gone = survival.kaplan_meier(np.array([1.0, 2.0]), np.array([True, True]), 8.0)
    assert (gone.free[-1], gone.low[-1]) == (0.0, 0.0)
    assert np.isfinite(gone.high[-1])
    weighed = survival.kaplan_meier(
        np.array([1.0, 2.0, 3.0]), np.array([True, False, True]), 8.0, np.array([2.0, 1, 1])
    )
    assert weighed.free[0] == pytest.approx(0.5)
    assert np.isnan(weighed.low).all(), "Greenwood's variance does not hold"
