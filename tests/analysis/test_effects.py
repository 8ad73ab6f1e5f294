"""The mean answer when a feature is given other values, against doing it to the table itself."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import vitrail as vt
from vitrail.analysis.effects import MOST_FEATURES, change, mean_effects, size
from vitrail.metrics.holdout_summary import FeatureEffect
from vitrail.runs.site.holdout import summaries_of


def table(rows: int, seed: int) -> pd.DataFrame:
    """`age` is skewed, so that its mean Shapley value would have the wrong sign; the outcome falls with `dose`."""
    rng = np.random.default_rng(seed)
    age, dose = rng.lognormal(3, 0.6, rows).round(1), rng.normal(5, 2, rows).round(2)
    ward, smoker = rng.choice(["a", "b", "c"], rows), rng.choice(["no", "yes"], rows)
    logit = 0.06 * (age - 22) - 0.5 * (dose - 5) + 1.5 * (ward == "b") + 1.0 * (smoker == "yes") - 1
    sick = (rng.random(rows) < 1 / (1 + np.exp(-logit))).astype(int)
    dose[rng.random(rows) < 0.2] = np.nan
    return pd.DataFrame({"age": age, "dose": dose, "ward": ward, "smoker": smoker, "sick": sick})


@pytest.fixture(scope="module")
def run() -> vt.Run:
    study = vt.Study.parse(
        {
            "target": {"column": "sick", "classes": [0, 1], "positive": 1},
            "features": {
                "age": {"kind": "numeric", "unit": "years"},
                "dose": {"kind": "numeric", "indicator": True},
                "ward": {"kind": "categorical", "categories": ["a", "b", "c"]},
                "smoker": {"kind": "binary", "categories": ["no", "yes"]},
            },
            "network": {"kind": "linear"},
            "training": {"rounds": 30},
            "screen": {"ask": False},
        }
    )
    return vt.federate(study, {"north": table(400, 1), "south": table(300, 2)}, "fedavg")


def held(run: vt.Run, site: str) -> pd.DataFrame:
    rows = run.held_out()
    return table(*{"north": (400, 1), "south": (300, 2)}[site]).loc[rows[rows.site == site].row]


@pytest.mark.parametrize("site", ["north", "south"])
def test_it_is_the_mean_prediction_of_the_changed_table(run: vt.Run, site: str) -> None:
    rows, effects = held(run, site), {e.feature: e for e in summaries_of(run)[site].effects}
    assert set(effects) == {"age", "dose", "ward", "smoker"}
    for name, effect in effects.items():
        levels = effect.values
        if effect.ordered:
            mean, spread = rows[name].mean(), rows[name].std(ddof=0)
            levels = [mean - spread, mean, mean + spread]
            assert [f"{v:.3g}" for v in levels] == list(effect.values)
        for value, told in zip(levels, effect.answers, strict=True):
            assert told == pytest.approx(run.predict(site, rows.assign(**{name: value}))["1"].mean(), abs=1e-5)


def test_the_direction_follows_the_value_and_not_the_skewness(run: vt.Run) -> None:
    for site in ("north", "south"):
        effects = {e.feature: e for e in summaries_of(run)[site].effects}
        assert change(effects["age"]) > 0
        assert change(effects["dose"]) < 0
        assert change(effects["smoker"]) > 0
        assert max(range(3), key=effects["ward"].answers.__getitem__) == 1


def test_nothing_is_said_of_few_rows_and_of_what_does_not_vary(run: vt.Run) -> None:
    encoder = run.encoders["north"]
    x = run.answers["north"].x.copy()

    def answer(rows: np.ndarray) -> np.ndarray:
        return rows.sum(1).astype(np.float64)

    assert mean_effects(x[:9], encoder, answer) == ()
    x[:, 0] = 1.0
    assert "age" not in {e.feature for e in mean_effects(x, encoder, answer)}
    assert MOST_FEATURES < 1000


def test_size_of_what_bends() -> None:
    bent = FeatureEffect("x", ("1", "2", "3"), (0.1, 0.5, 0.2), True)
    assert size(bent) == pytest.approx(0.4)
    assert change(bent) == pytest.approx(0.1)
