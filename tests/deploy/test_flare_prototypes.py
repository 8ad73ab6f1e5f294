"""A tiny study with prototypes between real processes: FLARE, TLS, two sites. The same as on one machine; of the
pictures, whose patches the prototypes are, no pixel leaves; a private page shows them, the coordinator's none."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save

import vitrail as vt
from deploy.federation import PATIENCE, Federation
from stripes import STUDY, stripes
from vitrail.runs.setup import resolve

pytest.importorskip("nvflare")
SITES = stripes({"east": 24, "north": 40})  # more of them are in test_flare.py
RUN_OF = 6  # pixels in a row: that many alike by chance are none


def pixels_in(data: bytes, pictures: list[np.ndarray]) -> int:
    """Of how many pictures a run of pixels stands in there, as bytes or as numbers of 0 to 1 or 0 to 255."""
    found = 0
    for picture in pictures:
        row = picture.reshape(-1)[5 * 16 + 2 : 5 * 16 + 2 + RUN_OF]
        forms = [row.astype(kind) / by for kind in (np.float32, np.float16, np.float64) for by in (1, 255)]
        found += any(form.tobytes() in data for form in [row, *(f.astype(f.dtype) for f in forms)])
    return found


def test_prototypes_between_machines(tmp_path: Path) -> None:
    study, _ = resolve(STUDY, "indisco", None)
    federation = Federation(tmp_path / "flare", study, SITES)
    try:
        federation.enrol()
        served = federation.serve("--quorum", 2)
        for site in SITES:
            federation.join(site)
        federation.wait_end(served, "serve", 2 * PATIENCE)
        federation.wait("all sites end", lambda: not federation.processes())
        (run,) = federation.runs()
        named = json.loads((run / "deployed.json").read_text())["run"]
        near = vt.federate(study, SITES, engine="looped", secrets=federation.secrets(named))
        far = vt.Run.load(run)
        for site, frame in SITES.items():
            home = federation.home(site)
            mine = load_file(home / named / "model.safetensors")
            torch.testing.assert_close(mine, near.models[site], rtol=0, atol=1e-6)
            pictures = list(frame.picture)
            left = [file.read_bytes() for file in (home / "outbox").glob("*.safetensors")]
            assert len(left) > study.training.rounds
            assert sum(pixels_in(data, pictures) for data in left) == 0
            leak = {"leak": torch.from_numpy(pictures[3].astype(np.float32) / 255)}
            assert pixels_in(save(leak), pictures) == 1  # had there been any, it would have been found
            private = (home / named / "look.html").read_text()
            assert "data:image/png;base64" in private
            assert "This looks like that" in private
        for name, fact in near.facts.items():
            torch.testing.assert_close(far.facts[name].value, fact.value, rtol=0, atol=1e-6, equal_nan=True)
        page = (run / "report.html").read_text()
        assert "data:image/png" not in page
        assert "<img" not in page
    finally:
        federation.close()
