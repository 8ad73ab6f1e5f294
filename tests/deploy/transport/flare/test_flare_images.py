"""A tiny study of pictures with a model of 20 MB between real processes: FLARE, TLS, two sites. The same as on one
machine, and each site has its private page in the end. Two sites: more of them are in test_flare.py."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import vitrail as vt
from tests.support.deploy.federation import PATIENCE, Federation
from tests.support.stripes import STUDY, stripes
from vitrail.deploy.audit.outbox import Outbox

pytest.importorskip("nvflare")
SITES = stripes({"east": 24, "north": 40})
BIG = STUDY.with_changes(network={"width": 32, "hidden": (4800, 1000)}, training={"rounds": 2, "lr": 0.001})


def test_pictures_and_a_large_model_between_machines(tmp_path: Path) -> None:
    federation = Federation(tmp_path / "flare", BIG, SITES)
    try:
        federation.enrol()
        served = federation.serve("--quorum", 2)
        for site in SITES:
            federation.join(site)
        federation.wait_end(served, "serve", 2 * PATIENCE)
        federation.wait("all sites end", lambda: not federation.processes())
        (run,) = federation.runs()
        named = json.loads((run / "deployed.json").read_text())["run"]
        near = vt.federate(BIG, SITES, engine="looped", secrets=federation.secrets(named))
        assert sum(v.numel() * v.itemsize for v in near.shared.values()) > 20_000_000
        for site in SITES:
            mine = load_file(federation.home(site) / named / "model.safetensors")
            torch.testing.assert_close(mine, near.models[site], rtol=0, atol=1e-6)
            assert "data:image/png;base64" in (federation.home(site) / named / "look.html").read_text()
            sent = sum(e.bytes for e in Outbox(federation.home(site)).entries() if e.direction == "out")
            assert 40_000_000 < sent < 42_000_000  # the change of two rounds, and little else
        torch.testing.assert_close(vt.Run.load(run).shared, near.shared, rtol=0, atol=1e-6)
        assert "hold-out pictures" in (run / "report.html").read_text()
    finally:
        federation.close()
