"""The default model of times to an event beside the simple models that it must not be worse than (decision 054)."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray

import vitrail as vt
from vitrail.data.drafting.features import infer_table
from vitrail.data.readers.tables import clean
from vitrail.metrics import survival
from vitrail.metrics.scores import score

Floats = NDArray[np.float64]
FACTORS = np.array([0.7, -0.5, 0.3, 0.0])
SMALL = dict.fromkeys("abcdef", 80)  # rows of each site
NEAR = {"c_index": 0.003, "integrated_brier": 0.0015, "time_log_loss": 0.012}  # how far from the best simple model
OLD = {"network": {"hazards": "free"}, "training": {"epochs": 1}}
SEEDS = (1, 2, 3)


def made(rows: int, seed: int) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(rows, len(FACTORS)))
    happens, leaves = rng.exponential(500 * np.exp(-x @ FACTORS)), rng.uniform(0, 1200, rows)
    days, died = np.ceil(np.minimum(happens, leaves)), (happens <= leaves).astype(int)
    return pd.DataFrame(x, columns=["w", "x", "y", "z"]).assign(days=days, died=died)


def drafted(sites: dict[str, pd.DataFrame], **changes: Any) -> vt.Study:
    draft = infer_table(sites, "died", "", "days").content
    draft["target"]["horizon"] = 365.0
    metrics = tuple(NEAR)
    study = vt.Study.parse({**draft, "screen": {"ask": False}, "metrics": metrics, "split": {"test": 0.1}})
    return study.with_changes(**changes)


def by_ridge(x: Floats, y: Floats, new: Floats, intervals: int, ridge: float = 4.0) -> Floats:
    """[row, interval]: of a logistic regression over intervals with one coefficient for each column."""
    shown = survival.periods(y, intervals)
    row, k = np.nonzero(shown >= 0)
    long, happened = np.c_[np.eye(intervals)[k], x[row]], shown[row, k]
    penalty, beta = np.r_[np.full(intervals, 0.3), np.full(x.shape[1], ridge)], np.zeros(intervals + x.shape[1])
    for _ in range(20):
        h = 1 / (1 + np.exp(-long @ beta))
        curvature = (long.T * (h * (1 - h))) @ long + np.diag(penalty)
        beta -= np.linalg.solve(curvature, long.T @ (h - happened) + penalty * beta)
    z = beta[:intervals] + (new @ beta[intervals:])[:, None]
    return np.exp(-np.logaddexp(0, z).cumsum(1))


class Scores(NamedTuple):
    ours: dict[str, float]
    ridge: dict[str, float]
    table: dict[str, float]


def on_fresh_rows(**changes: Any) -> Scores:
    """Means over seeds of the scores on rows that nobody trained on."""
    found: list[list[dict[str, float]]] = []
    for seed in SEEDS:
        sites = {name: made(rows, 100 * seed + i) for i, (name, rows) in enumerate(SMALL.items())}
        study, fresh = drafted(sites, **changes), made(3000, 9000 + seed)
        run = vt.federate(study, sites, method="fedavg", seed=seed)
        answers = [run.predict(s, fresh).filter(like="free of died").to_numpy() for s in sites]
        known, ends = clean(pd.concat(sites.values()), study), study.target.outputs
        columns = list("wxyz")
        y, new = known["died"].to_numpy(np.float64), fresh[columns].to_numpy()
        ridge = by_ridge(known[columns].to_numpy(np.float64), y, new, ends)
        table = np.tile(survival.life_table(y, ends), (len(fresh), 1))
        truth = clean(fresh, study)["died"].to_numpy()
        each = [score(study.metrics, truth, p) for p in answers]
        mean = {m: float(np.mean([e[m] for e in each])) for m in study.metrics}
        found.append([mean, score(study.metrics, truth, ridge), score(study.metrics, truth, table)])
    return Scores(*({m: float(np.mean([f[i][m] for f in found])) for m in NEAR} for i in range(3)))


def shortfalls(scores: Scores) -> dict[str, float]:
    """Metric -> how much worse ours is than the best simple model, of those that are further off than NEAR."""
    worse = {}
    for m, near in NEAR.items():
        sign = 1 if m == "c_index" else -1
        gap = max(sign * scores.ridge[m], sign * scores.table[m]) - sign * scores.ours[m]
        if gap > near:
            worse[m] = gap
    return worse


def test_the_default_is_near_the_best_simple_model() -> None:
    """Pooled discrete-time ridge has all rows in one place and the right form of the hazards."""
    assert shortfalls(on_fresh_rows()) == {}


def test_what_was_the_default_before_was_not() -> None:
    """The control: the test above sees a worse model."""
    assert set(shortfalls(on_fresh_rows(**OLD))) == set(NEAR)


TARGET = {"kind": "time", "time": "days", "event": "died", "horizon": 365.0}
PLAIN = {"target": TARGET, "features": {"w": {"kind": "numeric"}}}


def test_a_plain_study_has_the_defaults_of_times() -> None:
    study = vt.Study.parse(PLAIN)
    assert (study.network.hazards, study.training.epochs, study.training.weight_decay) == ("proportional", 4, 0.1)
    assert vt.Study.parse(tomllib.loads(study.to_toml())) == study
    free = vt.Study.parse({**PLAIN, "network": {"hazards": "free"}, "training": {"epochs": 2}})
    assert (free.network.hazards, free.training.epochs) == ("free", 2)
    noisy = vt.Study.parse({**PLAIN, "protect": {"rows": {"epsilon": 4.0}, "clip": 1.0}})
    assert noisy.training.epochs == 1  # every further step would cost noise


def test_older_files_keep_what_times_were_then(tmp_path: Path) -> None:
    study = vt.Study.parse({"format": "1.2", **PLAIN})
    assert (study.network.hazards, study.training.epochs, study.training.weight_decay) == ("free", 1, 0.0)
    assert vt.Study.parse({"paper": "ifedavg", **PLAIN}).network.hazards == "free"
    (tmp_path / "old.toml").write_text(study.to_toml().replace(f'format = "{study.format}"', 'format = "1.2"'))
    text = (tmp_path / "old.toml").read_text().replace('hazards = "free"\n', "")
    (tmp_path / "old.toml").write_text(text)
    with pytest.warns(match='network.hazards = "free"'):
        assert vt.Study.load(tmp_path / "old.toml").network.hazards == "free"


def test_hazards_are_for_times() -> None:
    classes = {"target": {"column": "died", "classes": (0, 1)}, "features": PLAIN["features"]}
    assert "hazards" not in vt.Study.parse(classes).to_toml()
    with pytest.raises(vt.VitrailError, match="hazards are for a time to an event"):
        vt.Study.parse({**classes, "network": {"hazards": "free"}})


@pytest.mark.parametrize("kind", ["mlp", "linear"])
def test_a_patients_hazards_are_anothers_times_one_factor_of_odds(kind: str) -> None:
    sites = {name: made(60, i) for i, name in enumerate("ab")}
    study = drafted(sites, network={"kind": kind}, training={"rounds": 3})
    run = vt.federate(study, sites, method="fedavg")
    free = run.predict("a", made(20, 7)).filter(like="free of died").to_numpy()
    hazard = 1 - free / np.c_[np.ones(len(free)), free[:, :-1]]
    odds = np.log(hazard / (1 - hazard))
    assert np.allclose(np.ptp(odds - odds[:1], axis=1), 0, atol=1e-3)
    assert np.ptp(odds[:, 0]) > 0.01
