"""The model that a site uses after the run: all sites train once more, on all of their rows.

Scores, cards and verdicts stay those of the run, whose models never saw the held-out rows: nobody could score a model
that has seen them all. `vitrail predict`, `explain` and `export` use the refitted one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import pandas as pd
from torch import Tensor

from vitrail.data.encoding import Encoder, encode_sites
from vitrail.data.splitting import split_sites
from vitrail.engine.local import Engine
from vitrail.runs.backbone_features import as_rows
from vitrail.runs.evaluation import Evaluator
from vitrail.runs.protection.budget import guards_of
from vitrail.runs.setup import training_of, training_rows
from vitrail.study.model import Study


class Final(NamedTuple):
    """A site's model, trained on all of its rows."""

    tensors: dict[str, Tensor]  # its settled state
    encoder: Encoder


class Refit(NamedTuple):
    models: dict[str, Final]  # by site
    crossed: dict[str, int]  # bytes between machines, by site


def refit(
    first: Engine,
    study: Study,
    seed: int,
    cleaned: Mapping[str, pd.DataFrame],
    scales: Mapping[str, Encoder],
    how: Mapping[str, Any],
    tell: Callable[[int], None],
) -> Refit:
    """Train again as `first` did; `scales`: those of the run, which are kept where all sites share one. `how`: further
    arguments of the engine. `tell` gets the number of rounds done."""
    task, method = first.task, first.method
    agreed_scales = scales if study.standardise == "global" else None
    splits = split_sites(cleaned, study, seed, whole=True)
    data = as_rows(encode_sites(cleaned, study, splits, agreed_scales), task.net, str(task.like.device))
    rows = training_rows(data, study, method, str(task.like.device))
    engine = Engine(
        task, method, rows, training_of(study), seed, **how, guards=guards_of(study), contracts=first.contracts
    )
    judge = Evaluator(engine, study, data)
    for done, last in enumerate(engine.run(), 1):  # noqa: B007
        tell(done)
    states, encoders = judge.models(last), judge.encoders(last)
    crossed = dict.fromkeys(cleaned, 0)
    for line in engine.ledger.rows():
        crossed[line["site"]] = crossed.get(line["site"], 0) + line["bytes"]
    return Refit({name: Final(states[name], encoders[name]) for name in cleaned}, crossed)
