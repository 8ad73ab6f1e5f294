"""A study of pictures by message: the same run as on one machine, what a site agrees to, and what stays with it."""

from __future__ import annotations

import io
import threading
from pathlib import Path

import numpy as np
import pandas as pd
import pandas.testing as pdt
import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

import vitrail as vt
from tests.support.deploy.federation import Here, drawn, without_scores
from tests.support.stripes import STUDY, stripes, write_folders
from vitrail.cli import app
from vitrail.data.readers.tables import read_table
from vitrail.deploy.audit.outbox import Outbox
from vitrail.deploy.consent.form import contract_text
from vitrail.deploy.coordinator.requests import Responses, SiteRequests
from vitrail.deploy.coordinator.session import conduct
from vitrail.deploy.doctor import at_site
from vitrail.deploy.identity import enrolment
from vitrail.deploy.protocol.agreement import Agreement
from vitrail.deploy.protocol.message import Message, unpack
from vitrail.deploy.site.private_randomness import draws_of
from vitrail.deploy.site.process import SiteProcess
from vitrail.deploy.site.site import Site
from vitrail.runs.folder import Folder
from vitrail.runs.setup import resolve

RUN = "0123456789abcdef"
SITES = stripes()
BIG = {"width": 32, "hidden": (4800, 1000)}  # a model of 20 MB


def far_run(study: vt.Study, place: Path, kind: type[Here] = Here) -> tuple[vt.Run, dict[str, Site]]:
    agreed = Agreement.of(study, None, len(SITES))
    sites = {n: Site(n, frame, agreed, place / "sites" / n) for n, frame in SITES.items()}
    folder = Folder(place / "run", resume=False)
    far = conduct(SiteRequests(kind(sites), agreed, list(sites), RUN, len(sites), 60.0), folder, resume=False)
    folder.close()
    return far, sites


@pytest.mark.parametrize("method", ["fedavg", "fedper", "fine_tune", "ifedavg", "ditto", "indisco"])
def test_same_run(method: str, tmp_path: Path) -> None:
    study, _ = resolve(STUDY.with_changes(protect={"scores": "exact"}), method, None)
    far, sites = far_run(study, tmp_path)
    near = vt.federate(study, SITES, engine="looped", secrets=drawn(tmp_path / "sites", SITES, RUN))
    for name in sites:
        mine = load_file(tmp_path / "sites" / name / RUN / "model.safetensors")
        torch.testing.assert_close(mine, near.models[name], rtol=0, atol=0)
    torch.testing.assert_close(far.shared, near.shared, rtol=0, atol=0)
    key = ["stage", "round", "site", "split", "metric"]
    one, other = (r.history.sort_values(key, ignore_index=True) for r in (far, near))
    other = other.merge(one[key])  # between machines scores are told less often
    pdt.assert_frame_equal(one, other, rtol=0, atol=0)
    pdt.assert_frame_equal(*map(without_scores, (far, near)))
    pdt.assert_frame_equal(far.sizes, near.sizes)


class Doors(Here):
    """Every question passes a site's door, where its length is looked at and its answer is recorded."""

    longest = 0  # bytes of a question

    def __init__(self, sites: dict[str, Site]) -> None:
        super().__init__(sites)
        self.doors = {name: self.door(site) for name, site in sites.items()}

    @staticmethod
    def door(site: Site) -> SiteProcess:
        made = object.__new__(SiteProcess)  # its kit and FLARE's process are not needed to answer
        made.site, made.say, made.outbox = site, lambda text: None, Outbox(site.base, keep=1)
        made.busy, made.finished = threading.Lock(), threading.Event()
        return made

    def ask(self, questions: dict[str, Message], deadline: float) -> Responses:
        packed = {name: question.pack() for name, question in questions.items()}
        Doors.longest = max([Doors.longest, *map(len, packed.values())])
        return Responses({name: unpack(self.doors[name].answer(data)) for name, data in packed.items()}, {})


def test_a_model_of_20_megabytes_passes_every_limit(tmp_path: Path) -> None:
    study = STUDY.with_changes(network=BIG, training={"rounds": 1, "lr": 0.001})
    far, _ = far_run(study, tmp_path, Doors)
    size = sum(v.numel() * 4 for v in far.shared.values())
    assert 20_000_000 < size < Doors.longest < Agreement.of(study, None, 3).longest
    near = vt.federate(study, SITES, engine="looped", secrets=drawn(tmp_path / "sites", SITES, RUN))
    torch.testing.assert_close(far.shared, near.shared, rtol=0, atol=0)
    assert (far.ledger[far.ledger.stage == "train"].bytes > 20_000_000).all()


def test_the_consent_form_speaks_of_pictures() -> None:
    for method in ("fedper", "ifedavg"):
        study, _ = resolve(STUDY.with_changes(protect={"scores": "exact"}), method, None)
        form = " ".join(contract_text(Agreement.of(study, None, 3), "north", list(SITES), True).split())
        assert "from pictures (16 x 16 pixels, grey)" in form
        assert "your pictures as such (b) the files of your pictures, their names and their places" in form
        assert "pictures were rebuilt" in form
        assert "the standard deviation of each column" not in form
        assert "0 columns" not in form
        assert "rows[3]" in form  # a name is not a word
        assert 'with weights = "rows"' in form
    alone = contract_text(Agreement.of(STUDY.with_changes(method={"name": "local"}), None, 3), "north", ["north"], True)
    assert "each site trains alone on its own pictures" in " ".join(alone.split())
    table = vt.Study.load(vt.datasets.packaged("heart_disease.toml"))
    assert "picture" not in contract_text(Agreement.of(table, None, 4), "va", ["va", "cleveland"], True)


# what stays with a site


@pytest.fixture(scope="module")
def kit(tmp_path_factory: pytest.TempPathFactory) -> enrolment.Kit:
    """Of north, after the study; its pictures are in data/north beside it."""
    place = tmp_path_factory.mktemp("kit")
    STUDY.save(place / "stripes.toml")
    folder = enrolment.invite(place / "stripes.toml", list(SITES), "localhost:8002")
    made = enrolment.request(folder / "invitations" / "north.invitation", place / "north.kit", place / "north.home")
    own = enrolment.load_kit(made.kit)
    agreed = Agreement.of(own.study, own.seed, len(SITES))
    homes = {n: own.home if n == "north" else place / "homes" / n for n in SITES}
    sites = {n: Site(n, frame, agreed, homes[n]) for n, frame in SITES.items()}
    run = Folder(place / "run", resume=False)
    conduct(SiteRequests(Here(sites), agreed, list(sites), RUN, len(sites), 60.0), run, resume=False)
    run.close()
    write_folders(place / "data", SITES)
    write_folders(place, {"new": SITES["south"].iloc[12:18]}, labels=False)
    return own


def do(*words: object) -> str:
    done = CliRunner().invoke(app, [*map(str, words)])
    assert done.exit_code == 0, f"vitrail {words}: {done.output}{done.exception!r}"
    return done.output


def test_a_site_predicts_by_its_kit(kit: enrolment.Kit, tmp_path: Path) -> None:
    new = kit.folder.parent / "new"
    told = pd.read_csv(io.StringIO(CliRunner().invoke(app, ["predict", str(kit.folder), "--data", str(new)]).stdout))
    assert list(told.picture) == [f"{i:03d}.png" for i in range(12, 18)]
    homes = {n: kit.home if n == "north" else kit.home.parent / "homes" / n for n in SITES}
    own = {n: draws_of(home, RUN) for n, home in homes.items()}
    near = vt.federate(STUDY, SITES, engine="looped", secrets=own).predict("north", read_table(new, STUDY))
    np.testing.assert_allclose(told[["plain", "stripes"]], near[["plain", "stripes"]], atol=1e-6)


@pytest.mark.parametrize(("where", "same"), [("north", True), ("south", False)])
def test_a_site_looks_by_its_kit(kit: enrolment.Kit, where: str, same: bool, tmp_path: Path) -> None:
    """Whatever the method; and it knows whether these are the pictures that it trained on."""
    page = tmp_path / "look.html"
    told = do("look", "--kit", kit.folder, "--data", kit.folder.parent / "data" / where, "--out", page)
    assert "This stays at north." in told
    assert ("that were not used in training" in told) == same
    assert ("not the pictures that the run used" in told) == (not same)
    assert "data:image/png;base64" in page.read_text()


def test_the_doctor_reads_pictures(kit: enrolment.Kit) -> None:
    data = kit.folder.parent / "data"
    seen = [found.what for found in at_site(kit, data / "north")]
    assert any("north was checked against the study: 0 errors" in what for what in seen)
    seen = [f for f in at_site(kit, kit.folder.parent / "new") if not f.well]
    assert not any("Traceback" in f.what + f.to_do for f in seen)
    missing = next(f for f in at_site(kit, data / "nowhere") if "cannot be read" in f.what)
    assert "nowhere" in missing.to_do
