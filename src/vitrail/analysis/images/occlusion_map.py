"""What changes the answer when it is hidden: a window slides over the pictures of a class, and each time the score of
that class is asked for again, with the window painted over.

    map(v, u) = mean over the class's pictures i of  f_c(x_i) - f_c(x_i with the window at (v, u) painted over)

The strongest window is the one that matters most to the quarter of the pictures to which it matters most, so that a
mark that only some of the class carry is not averaged away:

    much(v, u) = mean of the largest quarter of these falls, over the class's pictures i

f_c is the score of class c less the log of the sum of the others' exponentials (its log-odds); core/occlusion.py says
how it is painted over. What lies at the same place in all pictures of a class (a mark, a text, the corner of a device)
cannot escape the mean, and what lies elsewhere in each of them is thinned out by it. The map knows the model's answers
only, never its inside.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from vitrail.core.occlusion import painted, places

Floats = NDArray[np.float64]
Pictures = NDArray[np.uint8]  # [row, channel, height, width]
Answer = Callable[[Pictures], Floats]  # -> [row, class]: scores

WINDOW = 4  # of these fit into the shorter side
STEPS = 3  # of the window's place, in each window
MOST = 24  # pictures of a class
PART = 4  # of the pictures, one in so many
DECIDES = 0.5  # of the log-odds: so much goes with one place that decides


class OcclusionMap(NamedTuple):
    """Of one class."""

    fall: Floats  # [down, across]: how much the log-odds of the class fall, mean over its pictures
    much: Floats  # likewise, over the quarter of them in which they fall most
    top: NDArray[np.int64]  # [down]: the upper rim of each window
    left: NDArray[np.int64]  # [across]
    window: int  # pixels of a side
    pictures: int
    whole: float  # the log-odds with nothing hidden, mean

    @property
    def strongest(self) -> tuple[int, int, int, int]:
        """Top, left, bottom, right of the window that matters most."""
        v, u = self._place
        y, x = int(self.top[v]), int(self.left[u])
        return y, x, y + self.window, x + self.window

    @property
    def _place(self) -> tuple[int, int]:
        v, u = np.unravel_index(int(self.much.argmax()), self.much.shape)
        return int(v), int(u)

    @property
    def share(self) -> float:
        """Of the log-odds, what goes when the strongest window is hidden; 1 where all of it goes, or more."""
        return min(1.0, max(0.0, float(self.fall[self._place])) / self.whole) if self.whole > 0 else 0.0

    @property
    def decides(self) -> bool:
        """Whether most of the log-odds go with that one place."""
        return self.share > DECIDES

    def over(self, height: int, width: int) -> Floats:
        """[height, width]: each pixel's mean over the windows that cover it, 0 where hiding raises the score."""
        total, count = np.zeros((height, width)), np.zeros((height, width))
        for v, y in enumerate(self.top):
            for u, x in enumerate(self.left):
                at = np.s_[y : y + self.window, x : x + self.window]
                total[at] += self.fall[v, u]
                count[at] += 1
        return np.asarray(np.maximum(total / np.maximum(count, 1), 0.0))


def hide(answer: Answer, pictures: Pictures, label: int, window: int = 0) -> OcclusionMap:
    """`pictures`: of the class, of which MOST are taken, spread over all of them; `window` in pixels."""
    taken = pictures[np.unique(np.linspace(0, len(pictures) - 1, min(MOST, len(pictures))).astype(int))]
    height, width = taken.shape[2:]
    window = window or max(3, min(height, width) // WINDOW)
    top, left = (np.array(places(side, window, window // STEPS)) for side in (height, width))
    whole, numbers = _odds(answer(taken), label), torch.from_numpy(taken).double()
    falls = []  # [down][across, picture]
    for y in top.tolist():
        hidden = np.concatenate([_painted(numbers, y, x, window) for x in left.tolist()])
        falls.append(whole - _odds(answer(hidden), label).reshape(len(left), -1))
    fall = np.array(falls)
    most = np.sort(fall, 2)[..., -max(1, len(taken) // PART) :].mean(2)
    return OcclusionMap(fall.mean(2), most, top, left, window, len(taken), float(whole.mean()))


def _odds(scores: Floats, label: int) -> Floats:
    others = np.delete(scores, label, axis=1)
    high = others.max(1, keepdims=True)
    return np.asarray(scores[:, label] - high[:, 0] - np.log(np.exp(others - high).sum(1)))


def _painted(pictures: torch.Tensor, y: int, x: int, window: int) -> Pictures:
    return np.asarray(painted(pictures, y, x, window).round().to(torch.uint8).numpy())
