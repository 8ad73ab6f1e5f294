"""One answer under a budget of its own: how far answers can lie apart, and how loud the noise is."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from vitrail.core.exchange import Release
from vitrail.privacy.budget import spent
from vitrail.privacy.release import released


class Heard:
    """Noise that is none, and what was asked for."""

    def __init__(self) -> None:
        self.rows, self.clip, self.noise = torch.zeros(0), 0.0, 0.0

    def __call__(self, rows: Tensor, clip: float, noise: float) -> Tensor:
        self.rows, self.clip, self.noise = rows, clip, noise
        return rows


@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 1e-5), (8.0, 1e-6), (200.0, 1e-5)])
def test_the_noise_is_that_of_the_two_answers_farthest_apart(epsilon: float, delta: float) -> None:
    """By the definition: a look at a sum that one site moves by its whole diameter, within the budget."""
    heard = Heard()
    one = torch.ones(1, 6, 4, dtype=torch.double) * 9
    for values in (one, -one):
        released({"v": values}, Release(0.5, epsilon, delta), heard)
        assert heard.rows.norm() == pytest.approx(heard.clip)
    diameter = 2 * heard.clip
    assert diameter == pytest.approx(2 * 0.5 * 6**0.5)
    z = heard.noise * heard.clip / diameter
    assert spent(z, 1, delta) == pytest.approx(epsilon, rel=1e-6)
    assert spent(z, 1, delta) <= epsilon * (1 + 1e-12)


def test_only_what_is_too_long_is_shortened() -> None:
    values = torch.tensor([[[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]]])
    got = released({"v": values}, Release(1.0, 8.0, 1e-5), Heard())["v"]
    assert torch.allclose(got, torch.tensor([[[0.6, 0.8], [0.3, 0.4], [0.0, 0.0]]]))


def test_no_two_tensors_are_drawn_the_same_noise() -> None:
    with pytest.raises(AssertionError, match="same noise"):
        released({"a": torch.ones(1, 2, 2), "b": torch.ones(1, 2, 2)}, Release(1.0, 8.0, 1e-5), Heard())
