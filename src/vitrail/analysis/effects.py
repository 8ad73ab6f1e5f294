"""In which direction, and how far, a feature moves a model's answer: the mean answer over a site's rows when the
feature is given one value after the other, all others as they are (partial dependence; Friedman 2001).

    a number      its mean less one standard deviation, its mean, and one more, over the rows of which it is known
    two levels    each of them
    more levels   each of them

Rows are those that a network takes (data/encoding.py). A value that is missing in a row is given, too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from vitrail.data.encoding import NO_LEVEL, Encoder, MatrixLayout
from vitrail.data.schema import Feature
from vitrail.metrics.holdout_summary import FeatureEffect

Floats = NDArray[np.float64]
Answer = Callable[[NDArray[np.float32]], Floats]  # [row, column] -> [row]
FEWEST = 10  # rows
ROWS = 4_000  # with all values of all features, of one site, that the model is given; never fewer rows than FEWEST
AT_ONCE = 4_000_000  # numbers
MOST_FEATURES = 200  # of more, nothing is worked out


def mean_effects(x: NDArray[np.float32], encoder: Encoder, answer: Answer) -> tuple[FeatureEffect, ...]:
    """Of every feature that differs between these rows; nothing of fewer rows than FEWEST."""
    features = list(encoder.table.features.items())
    if len(x) < FEWEST or len(features) > MOST_FEATURES:
        return ()
    given = [list(_settings(x, encoder.layout, place, feature)) for place, (_, feature) in enumerate(features)]
    settings = [columns for of_one in given for _, columns in of_one]
    step = -(-len(x) * len(settings) // ROWS) or 1
    some = x[::step] if len(x[::step]) >= FEWEST else x[:FEWEST]
    means = iter(_mean_answers(some, settings, answer))
    return tuple(
        FeatureEffect(
            name, tuple(words for words, _ in of_one), tuple(next(means) for _ in of_one), feature.kind == "numeric"
        )
        for (name, feature), of_one in zip(features, given, strict=True)
        if of_one
    )


def _mean_answers(x: NDArray[np.float32], settings: list[dict[int, float]], answer: Answer) -> Iterator[float]:
    """The mean answer over the rows, for each setting of some of their columns."""
    step = max(1, AT_ONCE // x.size)
    for first in range(0, len(settings), step):
        some = settings[first : first + step]
        rows = np.tile(x, (len(some), 1, 1))
        for k, columns in enumerate(some):
            for column, value in columns.items():
                rows[k, :, column] = value
        yield from answer(rows.reshape(-1, x.shape[1])).reshape(len(some), -1).mean(1).tolist()


def _settings(
    x: NDArray[np.float32], layout: MatrixLayout, place: int, feature: Feature
) -> Iterator[tuple[str, dict[int, float]]]:
    """The values that a feature is given: in words, and as columns of a row."""
    hot = dict(zip(layout.hot.tolist(), layout.level.tolist(), strict=True))
    columns = np.flatnonzero(layout.source == place).tolist()
    flags = {c: 0.0 for c in columns if hot.get(c) == NO_LEVEL}  # the value is not missing
    own = [c for c in columns if c not in flags]
    if (x[:, columns] == x[:1, columns]).all():
        return
    if feature.kind == "numeric":
        (column,) = own
        known = x[:, column] if not flags else x[x[:, next(iter(flags))] == 0, column]
        middle, spread = (float(known.mean()), float(known.std())) if len(known) >= FEWEST else (0.0, 0.0)
        if spread > 0:
            for value in (middle - spread, middle, middle + spread):
                raw = value * layout.sd[column] + layout.mean[column]
                yield f"{raw:.3g}", {column: value, **flags}
    elif feature.kind == "binary":
        yield from ((level, {own[0]: float(k), **flags}) for k, level in enumerate(feature.levels))
    else:
        for k, level in enumerate(feature.levels):
            yield level, {**{c: float(hot[c] == k) for c in own}, **flags}


def size(effect: FeatureEffect) -> float:
    """How far apart the highest and the lowest of the answers are."""
    return max(effect.answers) - min(effect.answers)


def change(effect: FeatureEffect) -> float:
    """From the lowest value to the highest; of two levels from the first to the second."""
    return effect.answers[-1] - effect.answers[0]
