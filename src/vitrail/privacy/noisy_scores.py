"""Scores under noise: what a site tells of how good a model is, as a part of the privacy budget.

A score is a mean over rows, and one row moves it by a known amount: accuracy by 1/n, a loss that is cut off at b for
each row by b/n. All numbers of one answer are divided by what a row can move each, given noise
together, and multiplied again. A run has so many answers, and z is for all of them together:

    noise of number j = z sqrt(answers) together reach_j            1/s^2 of one answer = 1 / (z^2 answers)

How a site calls it (deploy/site/site.py, where scores are made; the budget is that of runs/protection/budget.py):

    z = score_noise(study)
    generator = Generator(draws_of(self.base, self.home.name))   the site's own; after a restart the same noise
    told = noisy_scores(values, 1 / n, z, answers, generator, stage, round, split)
    tensor = torch.from_numpy(told.values)                       leaves; told.deviation is public, and may be shown

`answers` is how often rows are scored in the whole run, as the consent form says; a site that is asked once more
refuses. All answers together cost at most 1/z^2. Only held-out rows are scored, which are in no step of the training.

What is no mean (the area under the curve, balanced accuracy, calibration) is better made from counts: of every cell of
class x (predicted class, or tenth of the predicted risk) how many rows fall into it. A row is in one cell, so that
`reach=1.0, together=1.0, most=inf`; what is computed from noisy counts costs nothing more.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from vitrail.privacy.noise import Generator, blurred


class NoisyScores(NamedTuple):
    values: NDArray[np.float64]
    deviation: NDArray[np.float64]  # of the noise of each; it follows from what is agreed, and tells nothing
    loss: float  # 1/s^2 of this answer: what the accountant adds (privacy/budget.py: epsilon_of)


def noisy_scores(
    values: ArrayLike,
    reach: ArrayLike,
    noise: float,
    answers: int,
    generator: Generator,
    *name: object,
    together: float | None = None,
    least: float = 0.0,
    most: float = 1.0,
) -> NoisyScores:
    """The numbers of one answer under noise. `reach`: how far one removed row moves each of them, or all alike;
    `noise`: z of all `answers` of the run together; `name`: which answer, so that the same question has the same noise;
    `together`: how far one row moves the numbers, each in units of its reach, as a length (the root of how many there
    are, unless the caller knows better). What leaves lies between `least` and `most`.

    >>> told = noisy_scores([0.8, 0.7], 1 / 500, 1.0, 10, Generator("secret"), "stage", 0, "round", 3)
    >>> told.deviation.round(4).tolist(), round(told.loss, 3)
    ([0.0089, 0.0089], 0.1)
    """
    plain = np.atleast_1d(np.asarray(values, dtype=np.float64))
    by = np.broadcast_to(np.asarray(reach, dtype=np.float64), plain.shape)
    if not np.isfinite(plain).all() or not (by > 0).all() or answers < 1 or noise <= 0:
        raise ValueError("expected finite scores, a reach and noise above 0, and at least one answer")
    length = math.sqrt(plain.size) if together is None else together
    z = noise * math.sqrt(answers)
    noisy = blurred(torch.from_numpy(plain / by), length, z, generator, "scores", *name).numpy()
    return NoisyScores((noisy * by).clip(least, most), z * length * by, 1 / z**2)
