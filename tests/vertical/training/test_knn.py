"""Vertical nearest neighbours are scikit-learn's on the joined columns, and need full trust."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier

from tests.support.vertical.talks import naive
from vitrail.core.errors import VitrailError
from vitrail.stats.shapley import every
from vitrail.vertical.messages import Wanted
from vitrail.vertical.training.knn import Knn, KnnGuest, votes


def parties(n: int = 400) -> tuple[Knn, torch.Tensor, torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(1)
    x = torch.randn(n, 7, generator=g, dtype=torch.float64)
    y = (x[:, 0] * x[:, 4] + x[:, 6] > 0).double()
    train = torch.arange(n)[: n - 50]
    guests = [KnnGuest("lab", x[:, 3:6], train, trust="simulation"), KnnGuest("insurer", x[:, 6:], train, trust="full")]
    return Knn("clinic", x[:, :3], y, train, guests), x, y, train


def test_the_same_as_scikit_learn() -> None:
    knn, x, y, train = parties()
    model = KNeighborsClassifier(5, algorithm="kd_tree").fit(x[train].numpy(), y[train].numpy())
    rows = torch.arange(350, 400)
    assert np.allclose(knn.predict(rows).numpy(), model.predict_proba(x[rows].numpy())[:, 1])


def test_exact_values_by_two_answers_a_row() -> None:
    knn, x, y, train = parties()
    rows = torch.tensor([380, 2, 390])
    e = knn.explain(rows, ["a", "b", "c"])
    model = KNeighborsClassifier(5).fit(x[train].numpy(), y[train].numpy())
    off = np.median(x[train].numpy(), 0)
    groups = [[0], [1], [2], [3, 4, 5], [6]]
    for i, r in enumerate(rows):
        slow = naive(lambda a: model.predict_proba(a)[:, 1], x[r].numpy(), off, groups)
        assert np.allclose(e.values[i], slow, atol=1e-12)
    assert np.allclose(e.values.sum(1) + e.base_values, knn.predict(rows).numpy())
    assert knn.wire.ledger["lab", "clinic", "Distances"].rows == 3 + 1 + 3, "explained: on, off; predicted"


def test_every_coalition_finds_its_nearest() -> None:
    """Where on and off are unlike, few rows can be ruled out beforehand."""
    g = torch.Generator().manual_seed(3)
    on, off = torch.rand(2, 8, 1000, generator=g, dtype=torch.float64)
    y = torch.rand(1000, generator=g, dtype=torch.float64)
    masks = torch.from_numpy(every(8)[0])
    far = torch.where(masks[:, :, None], on, off).sum(1)
    slow = y[far.argsort(1)[:, :40]].mean(1)
    assert np.allclose(votes(on, off, y, 40), slow.numpy(), atol=1e-12)


def test_many_rows_at_the_same_distance() -> None:
    """Of equally near rows the first count, also where nearly all are equally near."""
    x = torch.zeros(600, 3, dtype=torch.float64)
    x[:4] = 1.0
    y = (torch.arange(600) % 2).double()
    knn = Knn("clinic", x[:, :2], y, torch.arange(600), [KnnGuest("lab", x[:, 2:], torch.arange(600), trust="full")])
    e = knn.explain(torch.tensor([0]), ["a", "b"])
    assert float(knn.predict(torch.tensor([0]))[0]) == 0.4  # rows 0 to 4
    assert np.allclose(e.values.sum(1) + e.base_values, 0.4)


def test_without_full_trust_it_is_refused_with_the_reason() -> None:
    x = torch.zeros(10, 2)
    with pytest.raises(VitrailError, match="give the guest's columns away"):
        KnnGuest("lab", x, torch.arange(10))
    knn, *_ = parties()
    with pytest.raises(VitrailError, match="expected 1 to 350"):
        Knn("clinic", knn.columns, knn.y, knn.train, knn.guests, k=351)


def test_distances_do_give_columns_away() -> None:
    """The sentence is true: drawn to scale from distances, fixed by four known rows of three columns."""
    knn, x, _, train = parties()
    some = train[:100]
    d = knn.guests[0].reply(Wanted(some)).squares
    squares = d[:, :100].numpy()
    centre = np.eye(100) - 1 / 100
    w, v = np.linalg.eigh(-centre @ squares @ centre / 2)
    drawn = np.c_[v[:, -3:] * np.sqrt(w[-3:]), np.ones(100)]
    true = x[some, 3:6].numpy()
    map_, *_ = np.linalg.lstsq(drawn[:4], true[:4], rcond=None)
    assert np.abs(drawn @ map_ - true).max() < 1e-6
