"""The iFedAvg paper's marks on published private layers (Roschewitz et al. 2021): one number per site, feature, layer.

    O   |value - mean over sites| > 2 SD over sites, where that SD exceeds 0.05
    x   the feature's SD over sites > mean + 2 SD of those SDs over features

With population SD no site of four or fewer can reach 2 SD: the O mark cannot appear there. What a layer learned is
what the shared model does about a difference; whose data does not fit is told by what sites publish (screen/).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def paper_flags(values: NDArray[np.float64]) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """[site, feature] -> O marks [site, feature] and x marks [feature]; sites that did not publish are NaN."""
    mean, sd = np.nanmean(values, 0), np.nanstd(values, 0)
    with np.errstate(invalid="ignore"):
        o = (np.abs(values - mean) > 2 * sd) & (sd > 0.05)
    return o, sd > sd.mean() + 2 * sd.std()
