"""The four sites of vt.datasets.pneumonia(), drawn from PneumoniaMNIST: writes
src/vitrail/data/datasets/files/pneumonia.npz.

VITRAIL_DATA=FOLDER python benchmarks/pictures/make_pneumonia.py [OUT]

All pictures are of one hospital; the sites differ in how many they have, in how many of these show pneumonia, and in
whether they are of the part that the collectors put aside to test on. Nothing is changed in any picture or label. Of
pictures that are the same to the last pixel the first is taken.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd

import vitrail as vt

SEED = 0
SITES = {  # parts that the pictures are drawn from, and how many of each finding
    "large": (("train", "val"), {"normal": 450, "pneumonia": 450}),
    "referral": (("train", "val"), {"normal": 45, "pneumonia": 255}),
    "screening": (("train", "val"), {"normal": 204, "pneumonia": 36}),
    "small": (("test",), {"normal": 60, "pneumonia": 60}),
}


def cut(whole: pd.DataFrame) -> pd.DataFrame:
    """picture, finding, site: one site after the other, each in the order of the whole."""
    left = whole[~whole.picture.map(bytes).duplicated()]
    draw, taken = np.random.default_rng(SEED), []
    for site, (parts, counts) in SITES.items():
        rows: list[int] = []
        for finding, count in counts.items():
            there = left.index[left.part.isin(parts) & (left.finding == finding)]
            rows += draw.permutation(there)[:count].tolist()
        taken.append(left.loc[sorted(rows)].assign(site=site))
        left = left.drop(index=rows)
    return pd.concat(taken, ignore_index=True)


def main(out: Path) -> None:
    frame = cut(vt.datasets.pneumoniamnist())
    np.savez_compressed(
        out,
        picture=np.stack(list(frame.picture)),
        finding=frame.finding.to_numpy(dtype="U9"),
        site=frame.site.to_numpy(dtype="U9"),
    )
    print(f"{out}: {len(frame)} pictures, {out.stat().st_size} bytes")
    print(frame.groupby("site", sort=False).finding.value_counts().unstack())


if __name__ == "__main__":
    shipped = Path(str(vt.datasets.packaged("pneumonia.npz")))
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else shipped)
