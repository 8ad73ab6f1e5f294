"""The federations on which guards are measured: heart disease, GUSTO, Adult, HAR."""

from __future__ import annotations

from typing import Any

import numpy as np

import vitrail as vt

WORLDS = ("heart", "gusto", "adult", "har")
RATES = {"heart": 0.002, "gusto": 0.004, "adult": 0.004, "har": 0.002}


def world_of(name: str, seed: int, sites: int = 10, most: int = 400) -> tuple[vt.Study, dict[str, Any]]:
    """A study and tables: hospitals; the largest regions; a random cut; people. Others of their rows for each seed."""
    if name == "heart":
        frames, target = vt.datasets.heart_disease(), "disease"
    elif name == "gusto":
        frames = dict(sorted(vt.datasets.gusto().items(), key=lambda kv: -len(kv[1]))[:sites])
        frames, target = {k: _some(f, most, seed) for k, f in frames.items()}, "day30"
    elif name == "har":
        everybody = vt.datasets.har()
        chosen = np.random.default_rng(seed).permutation(list(everybody))[:sites]
        frames, target = {k: everybody[k] for k in sorted(chosen)}, "activity"
    else:
        frame = vt.datasets.adult().drop(columns=["fnlwgt", "education", "country"])
        frame = frame.sample(sites * most, random_state=seed).reset_index(drop=True)
        frames, target = {f"part {i}": frame.iloc[i::sites].reset_index(drop=True) for i in range(sites)}, "target"
    study = vt.Study.infer(frames, target, name=name, screen={"ask": False})
    return study.with_changes(training={"lr": RATES[name]}), frames


def _some(frame: Any, most: int, seed: int) -> Any:
    return frame.sample(min(most, len(frame)), random_state=seed).reset_index(drop=True)


def interval(values: list[float]) -> str:
    """Mean with a 95 % interval over seeds (Student's t)."""
    from scipy.stats import t

    v = np.array(values, dtype=float)
    if len(v) < 2:
        return f"{v.mean():.3f}"
    half = float(t.ppf(0.975, len(v) - 1) * v.std(ddof=1) / np.sqrt(len(v)))
    return f"{v.mean():.3f} ± {half:.3f}"


def at_most(k: int, n: int) -> float:
    """The largest rate that k of n do not speak against (Clopper and Pearson, 95 % one-sided)."""
    from scipy.stats import beta

    return 1.0 if k >= n else float(beta.ppf(0.95, k + 1, n - k))
