"""Guards between machines: what a site does to its report there is what the simulation says, also after restarts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

import vitrail as vt
from tests.support.deploy.federation import Here, drawn, without_scores
from tests.support.deploy.proofs import prove
from vitrail.data.datasets.catalogue import heart_disease, packaged
from vitrail.deploy.coordinator.requests import Responses, SiteRequests
from vitrail.deploy.coordinator.session import conduct
from vitrail.deploy.protocol.agreement import Agreement
from vitrail.deploy.protocol.message import Message
from vitrail.deploy.site.site import Site
from vitrail.runs.folder import Folder
from vitrail.runs.setup import resolve

RUN = "0123456789abcdef"
FRAMES = heart_disease()
GUARDS: dict[str, dict[str, Any]] = {
    "int8": {"compress": "int8"},
    "rank": {"compress": "rank"},
    "sites": {"sites": {"epsilon": 20.0, "delta": 0.01}, "clip": 0.2, "least": 4},
    "rows": {"rows": {"epsilon": 8.0, "delta": 1e-3}, "clip": 0.5},
}


def agreement(protect: dict[str, Any]) -> Agreement:
    study = vt.Study.load(packaged("heart_disease.toml"))
    changes: dict[str, Any] = {"training": {"rounds": 2}, "screen": {"ask": False}, "network": {"hidden": (12,)}}
    changes["standardise"] = "local" if "rows" in protect else "global"
    return Agreement.of(resolve(study.with_changes(**changes, protect=protect), "fedavg", None)[0], None, len(FRAMES))


class Restarted(Here):
    """Every site is started anew before each question."""

    def __init__(self, root: Path, agreed: Agreement) -> None:
        self.root, self.agreed = root, agreed
        super().__init__({n: self.fresh(n) for n in FRAMES})

    def fresh(self, name: str) -> Site:
        home = self.root / "sites" / name
        return Site(name, FRAMES[name], self.agreed, home, True, prove(name, list(FRAMES), home))

    def ask(self, questions: dict[str, Message], deadline: float) -> Responses:
        self.sites = {n: self.fresh(n) for n in FRAMES}
        return super().ask(questions, deadline)


@pytest.mark.parametrize("guard", GUARDS)
def test_the_same_as_in_one_place_also_after_restarts(guard: str, tmp_path: Path) -> None:
    agreed = agreement(GUARDS[guard])
    folder = Folder(tmp_path / "run", resume=False)
    call = SiteRequests(Restarted(tmp_path, agreed), agreed, list(FRAMES), RUN, len(FRAMES), 60.0)
    far = conduct(call, folder, resume=False)
    folder.close()
    secrets = drawn(tmp_path / "sites", FRAMES, RUN)
    near = vt.federate(agreed.study, FRAMES, engine="looped", secrets=secrets)
    for name in FRAMES:
        mine = load_file(tmp_path / "sites" / name / RUN / "model.safetensors")
        torch.testing.assert_close(mine, near.models[name], rtol=0, atol=1e-6)
    pd.testing.assert_frame_equal(*map(without_scores, (far, near)))
    plain = agreed.study.with_changes(protect={"compress": "no", "sites": None, "rows": None, "clip": None})
    other = vt.federate(plain, FRAMES, engine="looped", secrets=secrets)
    assert any(not torch.equal(v, other.shared[k]) for k, v in far.shared.items()), "the guard did something"
