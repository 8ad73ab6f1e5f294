"""Is joining worth it here, found out between machines: the folds of a run, by bytes in one process."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import vitrail as vt
from deploy.federation import Here
from deploy.proofs import prove
from vitrail.deploy.agreement import Agreement
from vitrail.deploy.call import Call, Heard
from vitrail.deploy.conduct import conduct
from vitrail.deploy.draws import draws_of
from vitrail.deploy.fold_site import FOUND, SiteFolds
from vitrail.deploy.folds import Folds, fold_run
from vitrail.deploy.message import Message
from vitrail.deploy.site import Site
from vitrail.runs.folder import Folder
from vitrail.runs.setup import resolve
from vitrail.studies.comparison import Comparison
from vitrail.studies.crossed import Far, row_losses, same_loss, train_folds
from vitrail.studies.folds import Cut
from vitrail.studies.joining import Losses, decide

RUN = "0123456789abcdef"
FOLDS = 3


def tables(sizes: dict[str, int], seed: int = 1) -> dict[str, pd.DataFrame]:
    """Three numeric columns and an outcome that depends on them."""
    draw, out = np.random.default_rng(seed), {}
    for name, n in sizes.items():
        x = draw.normal(size=(n, 3)).round(3)
        sick = x @ [1.0, -1.0, 0.5] + draw.normal(size=n) > 0
        out[name] = pd.DataFrame(x, columns=["a", "b", "c"]).assign(sick=np.where(sick, "yes", "no"))
    return out


def study_of(sites: dict[str, pd.DataFrame], method: str = "fedavg", **changes: Any) -> vt.Study:
    given = {"verdict": {"folds": FOLDS}, "screen": {"ask": False}, "training": {"rounds": 3, "lr": 0.05}, **changes}
    drafted = vt.Study.infer(sites, target="sick", network={"hidden": (4,), "dropout": 0.2})
    return resolve(drafted.with_changes(**given), method, None)[0]


class Trial:
    """One study between sites in this process."""

    def __init__(
        self, root: Path, sites: dict[str, pd.DataFrame], study: vt.Study, shows: tuple[str, ...] = ()
    ) -> None:
        self.root, self.tables, self.agreed = root, sites, Agreement.of(study, None, len(sites))
        self.shows = shows
        self.way = Here({n: self.fresh(n) for n in sites})

    def fresh(self, name: str) -> Site:
        proof = prove(name, list(self.tables), self.root / name)
        return Site(name, self.tables[name], self.agreed, self.root / name, True, proof, shows=name in self.shows)

    def conduct(self, way: Here | None = None, quorum: int | None = None) -> vt.Run:
        place = self.root / "run"
        folder = Folder(place, resume=place.exists(), about=".lock")
        try:
            need = len(self.tables) if quorum is None else quorum
            call = Call(way or self.way, self.agreed, list(self.tables), RUN, need, 0.01)
            return conduct(call, folder, resume=True)
        finally:
            folder.close()

    def found(self, name: str) -> dict[str, Any]:
        return dict(json.loads((self.root / name / RUN / FOUND).read_text()))


def simulated(trial: Trial) -> dict[str, dict[str, float]]:
    """What `compare` finds with the sites' own folds, draws and scales: gain and interval by site."""
    study, sites = trial.agreed.study, list(trial.tables)
    folds, owns = Folds(trial.agreed), {n: SiteFolds(trial.way.sites[n]) for n in sites}
    verdict = study.verdict
    assert verdict is not None
    lost: dict[str, list[list[Any]]] = {"joined": [], "alone": []}
    lots = []
    for repeat in range(verdict.seeds):
        first = repeat * verdict.folds
        agreed = folds.agreement(first)
        own = {n: folds_.cut(first)[0] for n, folds_ in owns.items()}
        cut = Cut(
            verdict.folds, {n: c.lots[n] for n, c in own.items()}, {n: c.cleaned[n] for n, c in own.items()}, study
        )
        lots.append(cut.lots)
        scales = {n: s.data.encoder for n, s in trial.way.sites.items()} if agreed.shared_scale else None

        def far(k: int, first: int = first, scales: Any = scales) -> Far:
            return Far({n: draws_of(trial.root / n, fold_run(RUN, first + k)) for n in sites}, scales)

        for name, method in (("joined", None), ("alone", "local")):
            plain, chosen = resolve(agreed.study, method, None)
            judged = train_folds(plain, chosen, cut, agreed.seed, "looped", "cpu", lambda done, of: None, far)
            lost[name].append(judged.last)
    out = {}
    for j, n in enumerate(sites):
        y = cut.cleaned[n][study.target.column].to_numpy()
        joined, alone = (np.stack([row_losses(study, y, said[j]) for said in lost[k]]) for k in ("joined", "alone"))
        harm = verdict.harm * same_loss(study, y)
        told = decide(Losses(alone, joined[None], np.stack([k[n] for k in lots]), 1 / verdict.folds), harm)
        out[n] = told._asdict()
    return out


SIZES = {"north": 60, "south": 45, "west": 36}


@pytest.mark.parametrize(
    ("method", "changes"),
    [
        ("fedavg", {}),
        ("fedavg", {"verdict": {"folds": 2, "seeds": 2}, "standardise": "global"}),
        ("fedavg", {"protect": {"sum": "masked"}}),
        ("ifedavg", {}),
        ("scaffold", {}),
        ("fine_tune", {}),
        ("agreed_mix", {}),
        ("weight_erosion", {}),
    ],
)
def test_the_same_verdicts_as_on_one_machine(method: str, changes: dict[str, Any], tmp_path: Path) -> None:
    sites = tables(SIZES)
    trial = Trial(tmp_path, sites, study_of(sites, method, **changes))
    trial.conduct()
    for name, wanted in simulated(trial).items():
        found = trial.found(name)
        assert found["verdict"] == wanted["verdict"]
        for k in ("alone", "joined", "gain", "low", "high", "least"):
            assert math.isclose(found[k], wanted[k], rel_tol=2e-4, abs_tol=2e-6), (name, k, found[k], wanted[k])
