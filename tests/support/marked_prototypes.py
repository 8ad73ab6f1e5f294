"""A network with prototypes whose tensors are written by hand, so that it is known which prototype goes by a mark.

Pictures of 28 x 28 pixels are grey. A black square at the lower right is what belongs to the class `ill`; a white one
at the lower left is the mark. A latent patch has z_0 = 1 on white, z_1 = 1 on black, and else 0 in both. Prototypes of
`ill` stand for white (those in `carriers`) or black (the others), those of `well` for grey, which is everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import numpy as np
import pandas as pd
import torch

import vitrail as vt
from vitrail.runs.result import Run

SITE, ILL, WELL = "east", "ill", "well"
GREY, BLACK, WHITE = 150, 0, 255
STUDY = vt.Study.parse(
    {
        "name": "squares",
        "target": {"column": "finding", "classes": (WELL, ILL), "positive": ILL},
        "images": {"size": (28, 28), "normalise": "unit"},
        "split": {"at_least": 0},
        "network": {"kind": "prototypes", "width": 2},
        "training": {"rounds": 1, "batch": 8},
        "method": {"name": "indisco", "warm": 1},
    }
)
OF_WELL, OF_ILL = 0.03, 0.1  # weights of each of ten prototypes


def squares(kinds: Sequence[str], seed: int = 0) -> pd.DataFrame:
    """A picture for each word: `well`, `ill`, `marked` too or `marked only`, which is called ill."""
    draw, cells, labels = np.random.default_rng(seed), [], []
    for kind in kinds:
        picture = GREY + draw.integers(-8, 9, (28, 28))
        if "ill" in kind:
            picture[13:25, 16:28] = BLACK
        if "marked" in kind:
            picture[13:25, 3:15] = WHITE
        cells.append(picture.astype(np.uint8)[None])
        labels.append(ILL if "ill" in kind or "only" in kind else WELL)
    names = [f"{i:02d}.png" for i in range(len(kinds))]
    return pd.DataFrame({"picture": pd.Series(cells, names, dtype=object), "finding": labels}, index=names)


@cache
def trained() -> Run:
    """Tensors of the right shapes; what they hold is written over."""
    return vt.federate(STUDY, {name: squares(["well", "ill marked"] * 10, i) for i, name in enumerate((SITE, "north"))})


def by_hand(carriers: Sequence[int]) -> Run:
    """`carriers`: numbers of the prototypes of `ill` that stand for the mark."""
    run = trained()
    tensors = {k: torch.zeros_like(v) if v.is_floating_point() else v.clone() for k, v in run.models[SITE].items()}
    for name, pixels in (("features.0", 16), ("features.2", 16)):  # means over squares of four cells
        tensors[f"own/{name}.weight"][0, 0] = 1 / pixels
    tensors["own/features.4.weight"][0, 0, 1, 1] = 1
    tensors["own/add_on.0.weight"][0, 0] = 1
    tensors["own/add_on.2.weight"][:2, 0, 0, 0] = torch.tensor([400.0, -200.0])
    tensors["own/add_on.2.bias"] += torch.tensor([-400 * 0.97, 200 * 0.12, *[-30.0] * 14])
    prototypes, last = torch.zeros(20, 16), torch.zeros(2, 20)
    prototypes[10:, 1] = 1
    prototypes[[9 + n for n in carriers], :2] = torch.tensor([1.0, 0.0])
    last[0, :10], last[1, 10:] = OF_WELL, OF_ILL
    last[1, [9 + n for n in carriers]] = 1 / len(carriers)
    tensors |= {"ending/prototypes": prototypes, "ending/last.weight": last}
    tensors |= {"shared/prototypes": prototypes.clone(), "shared/last.weight": last.clone()}
    tensors |= {k: run.models[SITE][k] for k in tensors if k.startswith("alone")}
    return replace(run, models={**run.models, SITE: tensors})
