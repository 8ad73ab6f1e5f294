"""Three clinics that do not exist, made of the 920 heart patients: one gains by joining, one loses, one is unclear.

Semi-synthetic. The patients are real. We dealt them to the clinics at random and gave every patient a visit before or
after 2020: the study trains on the earlier and judges on the later ones. At `surgery` we changed outcomes too.
`benchmarks/verdicts/demo_verdicts.py` counts how often which verdict comes out.
"""

from __future__ import annotations

from itertools import islice
from typing import NamedTuple

import numpy as np
import pandas as pd

from vitrail.core.random import key
from vitrail.data.datasets.catalogue import heart_disease

EARLIER, LATER = "2019-06-01", "2020-06-01"  # the day of a visit: invented
SIGN, OUTCOME = "exang", "disease"


class Clinic(NamedTuple):
    """How many patients it has, and what is special about it."""

    earlier: int  # to learn from
    later: int  # to judge on
    words: str


CLINICS = {
    "newcomer": Clinic(8, 240, "has just opened: it has 8 patients to learn from, and 240 follow."),
    "surgery": Clinic(
        75,
        230,
        "operates at once on everyone with angina on exercise: the sign that means a narrowed artery elsewhere means "
        "an open one here. We wrote that into its outcomes.",
    ),
    "city": Clinic(317, 50, "is an ordinary clinic of 317 patients, and is judged on only 50 more."),
}


def three_clinics(seed: int = 1) -> dict[str, pd.DataFrame]:
    """A table for each clinic; `visit` is the invented day. Another seed deals the patients anew."""
    whole = pd.concat(heart_disease().values(), ignore_index=True)
    rows = iter(np.random.default_rng(key(seed, "three clinics")).permutation(len(whole)))
    clinics = {}
    for name, (earlier, later, _) in CLINICS.items():
        mine = whole.iloc[list(islice(rows, earlier + later))].reset_index(drop=True)
        clinics[name] = mine.assign(visit=[EARLIER] * earlier + [LATER] * later)
    surgery = clinics["surgery"]
    surgery.loc[surgery[SIGN] == 1, OUTCOME] = 0
    return clinics
