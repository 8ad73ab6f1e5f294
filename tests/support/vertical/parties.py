"""A study with parties and tables for it, small enough to match in a blink."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

import vitrail as vt


def study(guests: Sequence[str] = ("lab",), match: Mapping[str, Any] | None = None, **given: Any) -> vt.Study:
    said: dict[str, Any] = {
        "name": "two companies",
        "target": {"column": "sick", "classes": ["no", "yes"], "positive": "yes"},
        "features": {"age": {"kind": "numeric"}},
        "parties": {
            "hospital": {"role": "host", "id": "patient"},
            **{guest: {"role": "guest", "id": "pid"} for guest in guests},
        },
        "match": {"at_least": 1, **(match or {})},
    }
    return vt.Study.parse({**said, **given})


def host_table(ids: Sequence[object], seed: int = 0) -> pd.DataFrame:
    draw = np.random.default_rng(seed)
    ages, sick = draw.integers(20, 90, len(ids)), draw.choice(["no", "yes"], len(ids))
    return pd.DataFrame({"patient": list(ids), "age": ages, "sick": sick})


def guest_table(ids: Sequence[object], seed: int = 1) -> pd.DataFrame:
    return pd.DataFrame({"pid": list(ids), "crp": np.random.default_rng(seed).random(len(ids))})


def names(first: int, last: int) -> list[str]:
    return [f"CH-{i:05d}" for i in range(first, last)]
