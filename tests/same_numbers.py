"""Scores of every method on the shipped data. `python tests/same_numbers.py` writes them to same_numbers.json; the
committed file is from release 0.1.0 before optimisers, losses and networks became values (commit e51864d); Ditto is of
the day when its lambda was scaled like the loss."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd

import vitrail as vt
from vitrail.data.splitting import split_rows
from vitrail.metrics.scores import score

METRICS = ("auc", "f1", "log_loss")
KEPT = Path(__file__).with_name("same_numbers.json")
CASES: dict[str, dict[str, Any]] = {
    **{name: {"method": name} for name in ("local", "centralized", "fedavg", "fedprox", "fedper", "apfl", "scaffold")},
    **{name: {"method": name} for name in ("ditto", "fine_tune", "ifedavg", "weight_erosion", "influence")},
    "fedavg by rows": {"method": "fedavg", "given": {"weights": "rows"}},
    "fedavg, some away": {"method": "fedavg", "dropout_rate": 0.4},
    "scaffold, some away": {"method": "scaffold", "dropout_rate": 0.4, "given": {"server_lr": 0.7}},
    "ifedavg with ends": {"method": "ifedavg", "given": {"output": "each", "identity": 0.3}},
    "ifedavg, one factor": {"method": "ifedavg", "given": {"output": "scalar"}, "dropout_rate": 0.2},
    "weight erosion, local": {
        "method": "weight_erosion",
        "given": {"update": "local", "validation": 0.2, "patience": 2, "p_d": 0.05, "size": "weight"},
        "linear": True,
    },
    "weight erosion, some away": {"method": "weight_erosion", "dropout_rate": 0.3, "linear": True},
    "apfl, fixed": {"method": "apfl", "given": {"adaptive": False, "alpha": 0.3}},
    "fedavg, two epochs, mean": {"method": "fedavg", "training": {"epochs": 2, "total": "mean", "lr": 0.02}},
}


def scores(case: str) -> dict[str, float]:
    """site, split and metric -> value."""
    told = CASES[case]
    study = vt.Study.infer(vt.datasets.heart_disease(), target="disease", metrics=METRICS, paper="ifedavg")
    features = {n: {**f.model_dump(), "indicator": False, "missing": ()} for n, f in study.features.items()}
    study = study.with_changes(features=features, training={"weight_decay": 0.0})
    training = {"rounds": 12, "lr": 0.01, **told.get("training", {})}
    if "memory" in type(study.training).model_fields:
        training["memory"] = "fresh"
    if "at_most" in type(study.split).model_fields:
        study = study.with_changes(split={"at_most": 0.5})  # as it was
    study = study.with_changes(training=training, **({"network": {"kind": "linear"}} if told.get("linear") else {}))
    method = vt.methods.build(told["method"], told.get("given"))
    run = vt.federate(study, vt.datasets.heart_disease(), method, seed=8273, dropout_rate=told.get("dropout_rate", 0.0))
    return {f"{site}, {k}": v for site, frame in vt.datasets.heart_disease().items() for k, v in bare(run, site, frame)}


def bare(run: vt.Run, site: str, frame: pd.DataFrame) -> Iterator[tuple[str, float]]:
    """Split and metric, value: of the model as it was trained, without the site's own constant and threshold."""
    mine, y = run.model_of(site), frame.disease.to_numpy()
    p = mine._replace(encoder=replace(mine.encoder, constants={})).predict(frame)[["0", "1"]].to_numpy(float)
    train, test = split_rows(y, run.study, run.seed, site)
    for split, rows in (("test", test), ("train", train)):
        yield from ((f"{split}, {m}", v) for m, v in score(METRICS, y[rows], p[rows]).items())


if __name__ == "__main__":
    KEPT.write_text(json.dumps({case: scores(case) for case in CASES}, indent=1) + "\n")
