"""Whom to learn from, between real processes: FLARE, TLS, four sites. The matrix is that of `vitrail transfer` on one
machine; a site withdraws by an option of its own, one that was not chosen ends, and the user trains with the rest."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

import vitrail as vt
from tests.support.deploy.federation import PATIENCE, Federation
from vitrail.data.readers.tables import read_table
from vitrail.deploy.audit.outbox import Outbox
from vitrail.deploy.site.private_randomness import draws_of
from vitrail.deploy.transfer.shared import transfer_run
from vitrail.runs.setup import resolve

pytest.importorskip("nvflare")
SIZES = {"east": 40, "north": 48, "south": 44, "west": 36}


def tables() -> dict[str, pd.DataFrame]:
    out = {}
    for i, (name, n) in enumerate(SIZES.items()):
        draw = np.random.default_rng(i)
        x = draw.normal(size=(n, 3)).round(3)
        sick = (-1 if name == "east" else 1) * (x @ [1.5, -1.0, 0.5]) + draw.normal(size=n) > 0
        out[name] = pd.DataFrame(x, columns=["a", "b", "c"]).assign(sick=np.where(sick, "yes", "no"))
    return out


def study_of() -> vt.Study:
    drafted = vt.Study.infer(tables(), target="sick", network={"hidden": (4,)})
    changes = {"transfer": {"folds": 2, "top": 2, "losses": "exact", "user": "north"}, "standardise": "local"}
    return resolve(drafted.with_changes(**changes, training={"rounds": 3}), "fedavg", None)[0]


def test_a_transfer_between_machines(tmp_path: Path) -> None:
    study = study_of()
    federation = Federation(tmp_path / "flare", study, tables())
    try:
        federation.enrol()
        served = federation.serve("--quorum", 2)
        for site in SIZES:
            federation.join(site, words=("--fewest-together", 9) if site == "west" else ())
        federation.wait_end(served, "serve", 2 * PATIENCE)
        federation.wait("all sites end", lambda: not federation.processes())
        (run,) = federation.runs()
        named = json.loads((run / "deployed.json").read_text())["run"]
        found = json.loads((run / "transfer" / "transfer.json").read_text())
        read = {site: read_table(federation.data(site), study) for site in SIZES}
        secrets = {site: draws_of(federation.home(site), transfer_run(named)) for site in SIZES}
        local = vt.transfer(study, read, 2, secrets=secrets)
        order = [local.sites.index(site) for site in found["sites"]]
        far = np.array([[np.nan if v is None else v for v in row] for row in found["matrix"]])
        np.testing.assert_allclose(far, local.matrix().to_numpy()[np.ix_(order, order)], rtol=1e-4, atol=1e-5)
        assert sorted(found["subsets"]["north"]) == ["south", "west"]
        assert found["withdrew"] == ["west"]
        assert vt.Run.load(run).info["sites"] == ["north", "south"]
        for site in ("west", "east"):
            assert "did not train in this run" in federation.log(site).read_text()
            assert not (federation.home(site) / named / "model.safetensors").exists()
        left = [e for e in Outbox(federation.home("west")).entries() if e.direction == "out"]
        assert [e.kind for e in left].count("transfer") == 3
        assert left[-1].words == {"stays": False}
        assert "round" not in {e.kind for e in left}
        pair = vt.federate(
            study.with_changes(transfer=None),
            {site: read[site] for site in ("north", "south")},
            secrets=federation.secrets(named),
            engine="looped",
        )
        for site in ("north", "south"):
            mine = load_file(federation.home(site) / named / "model.safetensors")
            torch.testing.assert_close(mine, pair.models[site], rtol=0, atol=1e-5)
    finally:
        federation.close()
