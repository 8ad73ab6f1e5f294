"""A scale that all sites share, under masks: of counts, sums and squares only what all sites add up to is opened.

It is one secure sum (deploy/secure_sum/) before the first round, of each numeric column's known values, their sum and
the sum of their squares. The last two are exact (privacy/secure_sum/limbs.py): so the spread about the mean follows
from one sum, and no second one over another list of sites tells by its difference what a single site has. In a study
without masks the sites are asked twice, the second time with the mean.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitrail.data.encoding import numeric
from vitrail.privacy.secure_sum.limbs import LARGEST, LIMBS

if TYPE_CHECKING:
    from vitrail.deploy.protocol.agreement import Agreement

MOST_ROWS = 1e9  # of a site


def has_masked_scale(agreed: Agreement) -> bool:
    return agreed.shared_scale and agreed.study.protect.sum == "masked"


def summed_shapes(agreed: Agreement) -> dict[str, tuple[tuple[int, ...], float]]:
    """What each site adds: shapes, and how large a number may be."""
    count = len(numeric(agreed.study))
    limbs = (count, LIMBS), LARGEST
    return {"rows": ((count,), MOST_ROWS), "total": limbs, "squares": limbs}
