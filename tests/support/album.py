"""The pictures of a made-up site's private page."""

from __future__ import annotations

import numpy as np

from vitrail.analysis.images.gallery import Album, make_album

NAME = "St. <b>Mary's</b> & Söhne"
CLASSES = ("plain", "stripes")


def album(
    labels: list[int], towards: list[float], held_out: list[bool] | None, shape: tuple[int, ...] = (1, 4, 4)
) -> Album:
    """`towards`: the probability of the second class; doubt is least where it is surest."""
    p = np.array(towards)
    pictures = np.arange(len(p), dtype=np.uint8)[:, None, None, None] * np.ones(shape, np.uint8)
    names = [f"<i>{i}</i>.png" for i in range(len(p))]
    held = None if held_out is None else np.array(held_out)
    unsure = 1 - np.abs(2 * p - 1)
    return make_album(
        NAME, "study", "finding", CLASSES, names, pictures, np.array(labels), np.stack([1 - p, p], 1), unsure, held
    )
