"""Whom to learn from, found out between machines: models travel, losses come back, by bytes in one process."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import vitrail as vt
from tests.support.deploy.federation import Here
from tests.support.deploy.proofs import prove
from vitrail.core.errors import StudyStopped, VitrailError
from vitrail.deploy.coordinator.requests import Responses, SiteRequests
from vitrail.deploy.coordinator.session import conduct
from vitrail.deploy.protocol.agreement import Agreement
from vitrail.deploy.protocol.message import Message
from vitrail.deploy.protocol.run_log import ENDED
from vitrail.deploy.site.private_randomness import draws_of
from vitrail.deploy.site.site import Site
from vitrail.deploy.transfer.shared import TRANSFER, signed_text, transfer_run
from vitrail.runs.folder import Folder
from vitrail.runs.setup import resolve

RUN = "0123456789abcdef"
SIZES = {"north": 80, "south": 70, "west": 60, "odd": 66}


@pytest.fixture(scope="module", autouse=True)
def _no_waiting_for_disks() -> Iterator[None]:
    """What survives a crash of the machine is tested elsewhere."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda file: None)
        yield


def tables(kind: str = "classes") -> dict[str, pd.DataFrame]:
    """One relation everywhere, the other way round at one site."""
    out = {}
    for i, (name, n) in enumerate(SIZES.items()):
        draw = np.random.default_rng(i)
        x = draw.normal(size=(n, 3)).round(3)
        y = (-1 if name == "odd" else 1) * (x @ [1.5, -1.0, 0.5]) + 0.5 * draw.normal(size=n)
        table = pd.DataFrame(x, columns=["a", "b", "c"])
        out[name] = table.assign(y=y.round(3) if kind == "number" else np.where(y > 0, "ill", "well"))
    return out


def study_of(kind: str = "classes", method: str = "fedavg", **changes: Any) -> vt.Study:
    given = {
        "transfer": {"folds": 3, "top": 2, "losses": "exact"},
        "screen": {"ask": False},
        "training": {"rounds": 6, "lr": 0.02},
        "standardise": "local",
        **changes,
    }
    drafted = vt.Study.infer(tables(kind), target="y", network={"hidden": (4,), "dropout": 0.2})
    return resolve(drafted.with_changes(**given), method, None)[0]


class Trial:
    """One study between sites in this process."""

    def __init__(self, root: Path, study: vt.Study, kind: str = "classes", refuse: tuple[str, ...] = ()) -> None:
        self.root, self.tables, self.refuse = root, tables(kind), refuse
        self.agreed = Agreement.of(study, None, len(SIZES))
        self.way = Here({n: self.fresh(n) for n in SIZES})

    def fresh(self, name: str) -> Site:
        proof = prove(name, list(SIZES), self.root / name)
        return Site(name, self.tables[name], self.agreed, self.root / name, name not in self.refuse, proof)

    def conduct(self, way: Here | None = None, quorum: int = 2) -> vt.Run:
        place = self.root / "run"
        folder = Folder(place, resume=place.exists(), about=".lock")
        try:
            call = SiteRequests(way or self.way, self.agreed, list(SIZES), RUN, quorum, 0.01)
            return conduct(call, folder, resume=True, start=len(SIZES))
        finally:
            folder.close()

    def found(self) -> dict[str, Any]:
        return dict(json.loads((self.root / "run" / "transfer" / "transfer.json").read_text()))

    def local(self) -> vt.Transfer:
        """What `vitrail transfer` finds on one machine, with what the sites drew."""
        secrets = {n: draws_of(self.root / n, transfer_run(RUN)) for n in SIZES}
        scales = None
        if self.agreed.shared_scale:
            scales = {n: s.data.encoder for n, s in self.way.sites.items() if s.data}
        return vt.transfer(self.agreed.study, self.tables, 3, secrets=secrets, scales=scales)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Trial:
    trial = Trial(tmp_path_factory.mktemp("whole"), study_of())
    trial.conduct()
    return trial


def same_as_on_one_machine(trial: Trial) -> None:
    found, local = trial.found(), trial.local()
    order = [local.sites.index(n) for n in found["sites"]]
    wanted = local.matrix().to_numpy()[np.ix_(order, order)]
    near = np.array([[np.nan if v is None else v for v in row] for row in found["matrix"]])
    np.testing.assert_allclose(near, wanted, rtol=1e-4, atol=1e-5)
    for part in ("cv_losses", "same"):
        assert found[part] == pytest.approx(getattr(local, part), rel=1e-4)
    assert found["ranking"] == {u: local.ranking(u) for u in found["sites"]}
    rule = trial.agreed.study.transfer.rule  # type: ignore[union-attr]
    assert found["subsets"] == {u: local.choose(u, rule) for u in found["sites"]}


def test_the_same_transfer_as_on_one_machine(whole: Trial) -> None:
    same_as_on_one_machine(whole)
    assert whole.found()["ranking"]["north"][-1] == "odd"
    losses = np.array([v for row in whole.found()["matrix"] for v in row if v is not None])
    assert len({*losses.round(6)}) == len(losses)  # they could have differed
    assert "Whom should each site learn from?" in (whole.root / "run" / "transfer" / "transfer.html").read_text()
