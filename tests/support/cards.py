"""The table of a made-up site for its model card."""

from __future__ import annotations

import numpy as np
import pandas as pd

ODD = "<script>x</script>|`a`"


def make_table(seed: int, rows: int = 120) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    x, z = rng.standard_normal((2, rows))
    frame = pd.DataFrame({ODD: x, "dose": z, "sick": np.where(x - z + rng.standard_normal(rows) > 0, "yes", "no")})
    frame.loc[: rows // 2, "dose"] = np.nan
    return frame
