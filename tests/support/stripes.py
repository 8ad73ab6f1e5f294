"""A tiny study of pictures: are there stripes? As frames, and as the folders of PNG files that these are read from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd

import vitrail as vt
from vitrail.data.readers.images import png

SIZES = {"east": 24, "north": 40, "south": 30}
STUDY = vt.Study.parse(
    {
        "name": "stripes",
        "seeds": (1, 2, 3),
        "target": {"column": "finding", "classes": ("plain", "stripes"), "positive": "stripes"},
        "images": {"size": (16, 16)},
        "split": {"at_least": 0},
        "network": {"width": 2, "hidden": (8, 4)},
        "training": {"rounds": 3, "batch": 8, "lr": 0.01, "optimiser": "adam"},
    }
)


def stripes(sizes: Mapping[str, int] = SIZES) -> dict[str, pd.DataFrame]:
    """Half of each site's pictures have stripes."""
    out = {}
    for at, (site, count) in enumerate(sizes.items()):
        draw = np.random.default_rng(at)
        cells, labels = [], ["plain"] * (count // 2) + ["stripes"] * (count // 2)
        for label in labels:
            picture = draw.integers(60, 140, (16, 16))
            picture[:, ::4] += 60 * (label == "stripes")
            cells.append(picture.astype(np.uint8)[None])
        names = [f"{label}/{i:03d}.png" for i, label in enumerate(labels)]
        out[site] = pd.DataFrame({"picture": pd.Series(cells, names, dtype=object), "finding": labels}, index=names)
    return out


def write_folders(root: Path, sites: Mapping[str, pd.DataFrame], labels: bool = True) -> Path:
    """ROOT/SITE/CLASS/*.png; or, without labels, ROOT/SITE/*.png."""
    for site, frame in sites.items():
        for name, picture in frame.picture.items():
            file = root / site / (str(name) if labels else Path(str(name)).name)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(png(picture))
    return root
