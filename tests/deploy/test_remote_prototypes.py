"""A tiny study with prototypes by message: the same facts as on one machine; of the pictures, whose patches the
prototypes are, no pixel leaves; a private page shows them, the coordinator's none. Pictures between real processes are
in test_flare_images.py."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save

import vitrail as vt
from tests.support.deploy.federation import Here, drawn
from tests.support.stripes import STUDY, stripes
from vitrail.core.facts import PROTOTYPES_KEPT, RELEASED, find_value
from vitrail.deploy.coordinator.requests import SiteRequests
from vitrail.deploy.coordinator.session import conduct
from vitrail.deploy.identity import enrolment
from vitrail.deploy.identity.coordinator_folder import invitation_of
from vitrail.deploy.protocol.agreement import Agreement
from vitrail.deploy.site.model import load_model
from vitrail.deploy.site.site import Site
from vitrail.report.pages.builder import page_of
from vitrail.report.pages.run import render
from vitrail.report.pages.site import write_look
from vitrail.runs.folder import Folder
from vitrail.runs.setup import resolve

RUN = "0123456789abcdef"
SITES = stripes({"east": 24, "north": 40})
RUN_OF = 6  # pixels in a row: that many alike by chance are none


def pixels_in(data: bytes, pictures: list[np.ndarray]) -> int:
    """Of how many pictures a run of pixels stands in there, as bytes or as numbers of 0 to 1 or 0 to 255."""
    found = 0
    for picture in pictures:
        row = picture.reshape(-1)[5 * 16 + 2 : 5 * 16 + 2 + RUN_OF]
        forms = [row.astype(kind) / by for kind in (np.float32, np.float16, np.float64) for by in (1, 255)]
        found += any(form.tobytes() in data for form in [row, *(f.astype(f.dtype) for f in forms)])
    return found


class Kept(Here):
    """Every byte that left a site."""

    def __init__(self, sites: dict[str, Site]) -> None:
        super().__init__(sites)
        self.sent: dict[str, list[bytes]] = {name: [] for name in sites}

    def left(self, site: str, data: bytes) -> None:
        self.sent[site].append(data)


def by_message(tmp_path: Path, study: vt.Study, sites: Any = SITES) -> tuple[Any, Any, Kept, dict[str, Any]]:
    """The run far and near, all that left a site, and the kits."""
    study.save(tmp_path / "stripes.toml")
    invited = enrolment.invite(tmp_path / "stripes.toml", list(sites), "localhost:8002")
    kits = {}
    for name in sites:
        asked = enrolment.request(invitation_of(invited, name), tmp_path / f"{name}.kit", tmp_path / "homes" / name)
        kits[name] = enrolment.load_kit(asked.kit)
    agreed = Agreement.of(study, kits["east"].seed, len(sites))
    way = Kept({name: Site(name, frame, agreed, kits[name].home) for name, frame in sites.items()})
    folder = Folder(tmp_path / "run", resume=False)
    far = conduct(SiteRequests(way, agreed, list(sites), RUN, len(sites), 60.0), folder, resume=False)
    folder.close()
    near = vt.federate(study, sites, engine="looped", secrets=drawn(tmp_path / "homes", sites, RUN))
    for name in sites:
        mine = load_file(kits[name].home / RUN / "model.safetensors")
        torch.testing.assert_close(mine, near.models[name], rtol=0, atol=1e-6)
    for name, fact in near.facts.items():
        torch.testing.assert_close(far.facts[name].value, fact.value, rtol=0, atol=1e-6, equal_nan=True)
    return far, near, way, kits


def test_prototypes_by_message(tmp_path: Path) -> None:
    study, _ = resolve(STUDY.with_changes(protect={"scores": "exact"}), "indisco", None)
    far, _, way, kits = by_message(tmp_path, study)
    for name, frame in SITES.items():
        pictures = list(frame.picture)
        assert len(way.sent[name]) > study.training.rounds
        assert sum(pixels_in(data, pictures) for data in way.sent[name]) == 0
        leak = {"leak": torch.from_numpy(pictures[3].astype(np.float32) / 255)}
        assert pixels_in(save(leak), pictures) == 1  # had there been any, it would have been found
        own = load_model(kits[name], RUN)
        private = write_look(own.look(frame), tmp_path / f"{name}.html", own.joining).read_text()
        assert "data:image/png;base64" in private
        assert "This looks like that" in private
    page = render(page_of(far))
    assert "data:image/png" not in page
    assert "<img" not in page
    assert "convolutions stay at the sites: the paper’s method." in page, "which setting it is"


def sent_in(messages: list[bytes], numbers: torch.Tensor) -> bool:
    return any(numbers.float().numpy().tobytes() in data for data in messages)


def test_options_by_message(tmp_path: Path) -> None:
    """The same rows are left out, the same part is kept, and the same noise is added, at each site by itself; and no
    prototype of a site's pictures is in anything that it sent."""
    settings = {"release": "noise", "release_epsilon": 50.0, "personal": "distance", "warm": 1, "travel": False}
    plain = STUDY.with_changes(training={"rounds": 2, "class_weights": "undersample"}, protect={"scores": "exact"})
    study, _ = resolve(plain.with_changes(method={"name": "indisco", **settings}), None, None)
    frames = {name: frame.iloc[: -(len(frame) // 4)] for name, frame in SITES.items()}  # fewer with stripes
    far, _, way, kits = by_message(tmp_path, study, frames)
    assert [find_value(far.facts, k) is not None for k in (RELEASED, PROTOTYPES_KEPT)] == [True, True]
    for name in frames:
        exact = load_file(kits[name].home / RUN / "model.safetensors")["ending/prototypes"].flatten(0, -2)
        assert not any(sent_in(way.sent[name], v[0]) for v in (exact, exact - 0.5))
        told = find_value(far.facts, RELEASED)[list(frames).index(name)]  # type: ignore[index]
        assert sent_in(way.sent[name], told[0]), "had they been sent, they would have been found"
