"""Phase C after a run: what a site needs of it to look at its own rows (explain/look.py)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitrail.core.problems import Problem, VitrailError, nearest
from vitrail.core.tensors import filled
from vitrail.data.encode import fingerprint
from vitrail.data.read import clean
from vitrail.engines.wire import settled_shape
from vitrail.explain.look import Ends, Look, look
from vitrail.explain.shifts import LABEL
from vitrail.runs.fit import LAYERS
from vitrail.runs.run import Run
from vitrail.runs.setup import build_task


def look_behind(run: Run, site: str, frame: pd.DataFrame, features: Sequence[str] = ()) -> Look:
    """The facts about this site's findings and about the columns it names, from its own table."""
    run.shifts()  # says so where the method learns no private layers
    study, problems = run.study, []
    if site not in run.sites:
        problems.append(Problem("--site", f"there is no site {site!r}.", nearest(site, run.sites)))
    elif site not in run.models:
        what = f"the model of {site!r} is on its own machine."
        problems.append(Problem("--site", what, "Look there: vitrail look RUN --kit KIT --data FILE."))
    known = (*study.features, study.target.column, LABEL)
    for name in features:
        if name not in known:
            problems.append(Problem("--feature", f"the study has no column {name!r}.", nearest(name, known[:-1])))
    if problems:
        raise VitrailError("cannot look", problems)
    layers = _others_layers(run, site)
    return look(
        site,
        frame,
        study,
        run.encoders[site],
        [f for f in run.findings() if f.site == run.known_as(site)],
        features,
        ends=_ends(run, site, layers) if layers else None,
        expects=_Expects(run, site, layers) if layers else None,
        same=run.info["fingerprints"].get(site) in (None, fingerprint(clean(frame, study))),
        study=study.name,
    )


def _others_layers(run: Run, site: str) -> dict[str, NDArray[np.float64]]:
    """Layer -> [other site that published, place]; empty where nobody did."""
    table = run.shifts()
    out = {}
    for key, layer in LAYERS.items():
        there = table[(table.layer == layer) & (table.site != run.known_as(site))]
        if len(there):
            wide = there.pivot(index="site", columns="feature", values="value")
            out[key] = wide[list(dict.fromkeys(there.feature))].dropna().to_numpy(dtype=np.float64)
    return out if all(len(v) for v in out.values()) else {}


def _ends(run: Run, site: str, layers: dict[str, NDArray[np.float64]]) -> Ends:
    b, w = (run.models[site][f"params/{key}"].double().numpy().ravel() for key in ("input.shift", "input.scale"))
    others_b, others_w = (layers[key].mean(0) for key in ("input.shift", "input.scale"))
    return Ends(b, w, others_b, others_w, len(layers["input.shift"]))


class _Expects:
    """The shared model, with the others' mean layers, on this site's rows."""

    def __init__(self, run: Run, site: str, layers: dict[str, NDArray[np.float64]]) -> None:
        self.run, self.encoder, self.task = run, run.encoders[site], build_task(run.study, run.method, run.seed)
        params: dict[str, Tensor] = {**run.models[site], **run.shared}
        for key, values in layers.items():
            like = params[f"params/{key}"]
            params[f"params/{key}"] = torch.from_numpy(values.mean(0)).to(like).reshape(like.shape)
        self.state = filled(settled_shape(self.task, run.method), {k: v[None] for k, v in params.items()})

    def __call__(self, rows: pd.DataFrame) -> NDArray[np.float64]:
        x = torch.from_numpy(self.encoder.matrix(rows)).float()[None]
        with torch.no_grad():
            return np.asarray(self.run.method.predict(self.task, self.state, x)[0].double().numpy())
