"""The layers that sites keep for themselves, after a run: those published, as a table with the paper's marks."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from vitrail.analysis.private_layers import paper_flags
from vitrail.core.facts import AGREED, Facts, find_value, in_order, private_layers_of
from vitrail.data.encoding import columns
from vitrail.engine.rounds import Rounds, Snapshot
from vitrail.study.model import Study

SYMBOLS = {"input.shift": "b_in", "input.scale": "w_in", "output.shift": "b_out", "output.scale": "w_out"}  # symbols


def read_shifts(
    runner: Rounds, study: Study, moment: Snapshot, pseudonyms: Mapping[str, str]
) -> tuple[pd.DataFrame, Facts]:
    """The table of `Run.shifts`, and what was published.

    All under the published names and in their order: the engine's (largest first) would tell who a pseudonym is.
    """
    public_names = [pseudonyms.get(n, n) for n in runner.names]
    order = sorted(range(len(public_names)), key=lambda i: public_names[i])
    names, at = tuple(public_names[i] for i in order), torch.tensor(order)
    facts = {k: in_order(f._replace(value=f.value.cpu()), at) for k, f in moment.facts.items()}
    published, layers = agreed(facts).numpy(), {k: v.double() for k, v in private_layers_of(facts).items()}
    outputs = [f"{study.target.column}={level}" for level in study.target.levels] or [study.target.column]
    frames = []
    for key, layer in SYMBOLS.items():
        if key not in layers:
            continue
        values = np.where(published[:, None], layers[key].numpy(), np.nan)
        places = list(columns(study)) if key.startswith("input") else outputs
        places = places if len(places) == values.shape[1] else ["all classes"]
        o, x = paper_flags(values)
        for j, column in enumerate(places):
            marks = [("O" if mark else "") + ("x" if x[j] else "") for mark in o[:, j]]
            frame = {"site": names, "feature": column, "layer": layer, "value": values[:, j], "flagged_paper": marks}
            frames.append(pd.DataFrame(frame))
    return (pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()), facts


def agreed(facts: Facts) -> Tensor:
    """[site] bool: who showed what was asked for."""
    value = find_value(facts, AGREED)
    assert value is not None
    return value
