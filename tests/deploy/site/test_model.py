"""After a run: a site predicts with its own model, looks behind its findings, and leaves with what is its own."""

from __future__ import annotations

import fcntl
import io
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import vitrail as vt
from tests.support.deploy.federation import Here
from vitrail.cli import app
from vitrail.data.datasets.catalogue import heart_disease, packaged
from vitrail.data.readers.tables import read_table
from vitrail.deploy.audit.outbox import Outbox
from vitrail.deploy.coordinator.requests import SiteRequests
from vitrail.deploy.coordinator.session import conduct
from vitrail.deploy.identity import enrolment
from vitrail.deploy.protocol.agreement import Agreement
from vitrail.deploy.protocol.message import unpack
from vitrail.deploy.site.model import check_not_left, load_model
from vitrail.deploy.site.private_randomness import draws_of
from vitrail.deploy.site.site import Site
from vitrail.runs.folder import Folder
from vitrail.runs.setup import resolve
from vitrail.runs.site.inspection import look_behind
from vitrail.runs.site.inspection_text import to_text

RUN = "0123456789abcdef"
MINE = "va"
run_cli = CliRunner().invoke


class Recorded(Here):
    """What leaves the site with a kit is recorded first."""

    def __init__(self, sites: dict[str, Site], box: Outbox) -> None:
        super().__init__(sites)
        self.box = box

    def left(self, site: str, data: bytes) -> None:
        if site == MINE:
            self.box.record(unpack(data), data)


@pytest.fixture(scope="module")
def heart() -> tuple[vt.Study, dict[str, pd.DataFrame]]:
    study = vt.Study.load(packaged("heart_disease.toml")).with_changes(training={"rounds": 3})
    return resolve(study, "ifedavg", None)[0], heart_disease()


@pytest.fixture(scope="module")
def ran(heart: tuple, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder after a study: the coordinator's run, one site's kit, and its home."""
    place = tmp_path_factory.mktemp("study")
    heart[0].save(place / "heart.toml")
    folder = enrolment.invite(place / "heart.toml", list(heart[1]), "localhost:8002")
    made = enrolment.request(folder / "invitations" / f"{MINE}.invitation", place / "va.kit", place / "va.home")
    (made.kit / "certificate.pem").write_text("as if approved")
    (made.kit / "flare" / "startup").mkdir(parents=True)
    (made.kit / "flare" / "startup" / "client.key").write_text("a copy of the key")
    kit = enrolment.load_kit(made.kit)
    agreed = Agreement.of(kit.study, kit.seed, len(heart[1]))
    homes = {n: kit.home if n == MINE else place / "homes" / n for n in heart[1]}
    sites = {n: Site(n, frame, agreed, homes[n]) for n, frame in heart[1].items()}
    run = Folder(place / "run", resume=False)
    conduct(
        SiteRequests(Recorded(sites, Outbox(kit.home)), agreed, list(sites), RUN, len(sites), 60.0), run, resume=False
    )
    run.close()
    return place


@pytest.fixture
def kit(ran: Path, tmp_path: Path) -> enrolment.Kit:
    """A copy for each test."""
    for name in ("va.kit", "va.home"):
        shutil.copytree(ran / name, tmp_path / name)
    (tmp_path / "va.kit" / "home.txt").write_text(f"{tmp_path / 'va.home'}\n")
    return enrolment.load_kit(tmp_path / "va.kit")


@pytest.fixture
def done(ran: Path) -> vt.Run:
    return vt.Run.load(ran / "run")


@pytest.fixture(scope="module")
def near(heart: tuple, ran: Path) -> vt.Run:
    """The same study on one machine."""
    homes = {n: ran / "va.home" if n == MINE else ran / "homes" / n for n in heart[1]}
    return vt.federate(*heart, engine="looped", secrets={n: draws_of(home, RUN) for n, home in homes.items()})


def new_rows(frame: pd.DataFrame, path: Path, study: vt.Study) -> Path:
    frame.head(7).drop(columns=study.target.column).to_csv(path, index=False)
    return path


def test_a_site_explains_its_own_model(ran: Path, kit: enrolment.Kit, heart: tuple, tmp_path: Path) -> None:
    frame, page = heart[1][MINE], tmp_path / "own.html"
    frame.to_csv(tmp_path / "va.csv", index=False)
    done = run_cli(
        app, ["explain", str(kit.folder), "--data", str(tmp_path / "va.csv"), "--out", str(page), "--rows", "20"]
    )
    assert done.exit_code == 0, done.output
    assert "This stays at va" in page.read_text()
    assert "over the site’s training rows" in page.read_text()
    with pytest.raises(vt.VitrailError, match="Explain there: vitrail explain"):
        vt.Run.load(ran / "run").explain(MINE, frame)


def test_it_predicts_as_on_one_machine(
    kit: enrolment.Kit, done: vt.Run, near: vt.Run, heart: tuple, tmp_path: Path
) -> None:
    rows = new_rows(heart[1][MINE], tmp_path / "new.csv", kit.study)
    told = run_cli(app, ["predict", str(kit.folder), "--data", str(rows)])
    assert told.exit_code == 0, told.exception
    got = pd.read_csv(io.StringIO(told.stdout), index_col="line")
    want = near.predict(MINE, read_table(rows, kit.study))
    assert list(got.columns) == [*kit.study.target.levels, "unsure", "outside"]
    got = got.drop(columns="outside")
    assert told.stderr.startswith("unsure: from 0 (sure) to 1 (knows nothing): how evenly the probability is spread")
    assert list(got.index) == list(range(2, 9))  # the lines of the file
    np.testing.assert_allclose(got.to_numpy(), want.to_numpy(), rtol=0, atol=1e-6)
    assert np.abs(got.to_numpy() - near.predict("cleveland", read_table(rows, kit.study)).to_numpy()).max() > 1e-3
    with pytest.raises(vt.VitrailError, match="on its own machine"):
        done.predict(MINE, read_table(rows, kit.study))
    out = tmp_path / "out.csv"
    filed = run_cli(app, ["predict", str(kit.folder), "--data", str(rows), "--out", str(out)])
    assert filed.exit_code == 0
    assert out.read_text() == told.stdout
    assert told.stderr.strip() in filed.output
    again = run_cli(app, ["predict", str(kit.folder), "--data", str(rows), "--out", str(out)])
    assert "File exists" in str(again.exception)


def test_without_a_run_there_is_no_model(kit: enrolment.Kit, heart: tuple, tmp_path: Path) -> None:
    shutil.rmtree(kit.home / RUN)
    rows = new_rows(heart[1][MINE], tmp_path / "new.csv", kit.study)
    told = run_cli(app, ["predict", str(kit.folder), "--data", str(rows)])
    assert isinstance(told.exception, vt.VitrailError)
    assert "no run has ended" in str(told.exception)
    assert "vitrail join" in str(told.exception)


def test_the_run_that_ended_last(kit: enrolment.Kit) -> None:
    assert load_model(kit).run == RUN
    later = kit.home / ("f" * 16)
    later.mkdir()
    assert load_model(kit).run == RUN  # it has begun and not ended
    for name in ("model.safetensors", "encoder.json"):
        (later / name).write_bytes((kit.home / RUN / name).read_bytes())
    assert load_model(kit).run == later.name
    assert load_model(kit, RUN).run == RUN
    with pytest.raises(vt.VitrailError, match=RUN):
        load_model(kit, "0" * 16)


def test_a_model_of_another_method_is_refused(kit: enrolment.Kit) -> None:
    other = enrolment.Kit(**{**vars(kit), "study": resolve(kit.study, "apfl", None)[0]})
    with pytest.raises(vt.VitrailError, match="does not fit"):
        load_model(other)


def test_it_looks_behind_its_findings(
    kit: enrolment.Kit, done: vt.Run, near: vt.Run, heart: tuple, ran: Path, tmp_path: Path
) -> None:
    frame = heart[1][MINE]
    with pytest.raises(vt.VitrailError, match="on its own machine"):
        look_behind(done, MINE, frame, ["chol"])
    want = to_text(look_behind(near, MINE, frame, ["chol"]))
    assert to_text(load_model(kit).look(frame, ["chol"])) == want
    frame.to_csv(tmp_path / "va.csv", index=False)
    page = tmp_path / "look.html"
    given = ["--data", str(tmp_path / "va.csv"), "--feature", "chol", "--out", str(page)]
    told = run_cli(app, ["look", "--kit", str(kit.folder), *given])
    assert told.exit_code == 0, told.exception
    assert page.exists()
    both = run_cli(app, ["look", str(ran / "run"), "--kit", str(kit.folder), *given])
    assert "expected a run folder with --site, or --kit" in str(both.exception)


def test_what_it_looks_behind_is_of_no_other_site_alone(kit: enrolment.Kit, near: vt.Run) -> None:
    """It is sent the mean of the others' layers, and the findings about itself."""
    told = load_model(kit).behind
    assert told is not None
    table = near.shifts()
    others = table[(table.site != MINE) & (table.layer == "b_in")]
    assert told.others == others.site.nunique() == 3
    want = others.groupby("feature", sort=False).value.mean().to_numpy()
    np.testing.assert_allclose(told.layers["input.shift"].numpy(), want, atol=1e-6)
    assert told.findings == [f for f in near.findings() if f.site == MINE]


def test_without_private_layers_there_is_nothing_to_look_behind(kit: enrolment.Kit, heart: tuple) -> None:
    (kit.home / RUN / "behind.safetensors").unlink()
    with pytest.raises(vt.VitrailError, match="no results to inspect"):
        load_model(kit).look(heart[1][MINE])


def test_leaving(kit: enrolment.Kit, heart: tuple, tmp_path: Path) -> None:
    rows = new_rows(heart[1][MINE], tmp_path / "new.csv", kit.study)
    predict = ["predict", str(kit.folder), "--data", str(rows)]
    before, sent = run_cli(app, predict).output, Outbox(kit.home).entries()
    kept = {p: p.read_bytes() for p in kit.home.rglob("*") if p.is_file()}
    no = run_cli(app, ["leave", str(kit.folder)], input="n\n")
    assert no.exit_code == 1
    assert (kit.folder / "key.pem").exists()
    check_not_left(kit.folder)
    key = (kit.folder / "key.pem").read_bytes()
    assert run_cli(app, ["leave", str(kit.folder), "--yes"]).exit_code == 0
    holds = [p.read_bytes() for p in kit.folder.rglob("*") if p.is_file()]
    assert not [1 for data in holds if key.strip() in data or b"a copy of the key" in data or b"as if" in data]
    joined = run_cli(app, ["join", str(kit.folder), "--data", str(rows)])
    assert "left the study" in str(joined.exception)
    assert {p: p.read_bytes() for p in kit.home.rglob("*") if p.is_file()} == kept
    assert run_cli(app, predict).output == before
    assert sent
    assert f"{len(sent)} messages left" in run_cli(app, ["outbox", str(kit.folder)]).output
    assert run_cli(app, ["leave", str(kit.folder), "--yes"]).exit_code == 0  # again is no mistake


def test_nobody_leaves_while_joined(kit: enrolment.Kit) -> None:
    with (kit.home / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        told = run_cli(app, ["leave", str(kit.folder), "--yes"])
    assert "taking part at the moment" in str(told.exception)
    assert (kit.folder / "key.pem").exists()
