"""What left a site, and a run between machines, are chained and signed: whoever changes them is seen."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from tests.support.deploy.enrolment import SITES, enrolled
from vitrail.cli import app
from vitrail.data.datasets.catalogue import packaged
from vitrail.deploy.audit.outbox import Outbox
from vitrail.deploy.audit.verification import verify
from vitrail.deploy.identity import enrolment
from vitrail.deploy.identity.signing import Signer, sign_run
from vitrail.deploy.protocol.message import Message
from vitrail.runs.folder import Folder
from vitrail.runs.integrity import LOG, SIGNATURE, add_to_chain
from vitrail.storage.atomic_files import write_atomically
from vitrail.storage.hash_chain import BEFORE, last_digest, line_of

SENT = 5
run_cli = CliRunner().invoke


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A coordinator with a closed run, another study's coordinator, and a site that has sent some messages."""
    folder = tmp_path_factory.mktemp("houses")
    for name in ("heart", "other"):
        shutil.copy(packaged("heart_disease.toml"), folder / f"{name}.toml")
        enrolment.invite(folder / f"{name}.toml", SITES, "localhost:8002")
    kit = enrolled(folder / "heart.coordinator", SITES[0], folder / "site")
    box = Outbox(enrolment.load_kit(kit).home, pen=Signer.of_site(enrolment.load_kit(kit)))
    for number in range(SENT):
        box.received("round", {"run": "x", "round": number}, 12)
        said = Message("round", {"round": number}, {"w": torch.full((3,), float(number))})
        box.record(said, said.pack())
    run = Folder(folder / "heart.coordinator" / "runs" / "one", resume=False)
    for name, text in (("deployed.json", "{}"), ("scores.csv", "a,b\n1,2\n"), ("run.json", '{"finished": true}')):
        write_atomically(run.path / name, text)
    run.log("started")
    run.seal("closed")
    run.close()
    sign_run(run.path, Signer.of_coordinator(enrolment.load_coordinator(folder / "heart.coordinator")))
    return folder


@pytest.fixture
def copy(place: Path, tmp_path: Path) -> Path:
    new = Path(shutil.copytree(place, tmp_path / "copy"))
    (new / "site/Basel.kit/home.txt").write_text(f"{new / 'site/Basel.home'}\n")
    return new


def lines(box: Path) -> list[bytes]:
    return (box / "log.jsonl").read_bytes().splitlines(keepends=True)


def write(box: Path, kept: list[bytes]) -> None:
    (box / "log.jsonl").write_bytes(b"".join(kept))


def forge(box: Path) -> None:
    """A line is changed and all hashes after it made anew, as somebody would who can write here and has no key."""
    before, out = "", []
    for at, line in enumerate(lines(box)):
        told = json.loads(line)
        told.pop(BEFORE)
        if at == 3:
            told["bytes"] += 1
        out.append(line_of(told, before))
        before = last_digest(out[-1])
    write(box, out)


CHANGES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a message": (
        lambda box: (box / "000002.safetensors").write_bytes(b"x"),
        "000002.safetensors: this file is not what was sent",
    ),
    "no message": (lambda box: (box / "000003.safetensors").unlink(), "000003.safetensors: the file is missing"),
    "one more": (lambda box: (box / "000099.safetensors").write_bytes(b"x"), "000099.safetensors: this file was added"),
    "a line": (lambda box: write(box, [lines(box)[0].replace(b"12", b"13"), *lines(box)[1:]]), "line 2: it does not"),
    "a line less": (lambda box: write(box, lines(box)[:4] + lines(box)[6:]), "the lines for message 3 are missing"),
    "made anew": (forge, "lack the site's signature"),
    "no signature": (
        lambda box: write(box, [x.replace(b'"signed"', b'"xigned"') for x in lines(box)]),
        "lack the site's signature",
    ),
    "no certificate": (lambda box: (box / "certificate.pem").unlink(), "certificate.pem: the certificate is missing"),
    "old lines": (lambda box: write(box, [b'{"direction": "in"}\n', *lines(box)]), "not linked to those before"),
}


@pytest.mark.parametrize("what", CHANGES)
def test_what_was_changed_in_an_outbox_is_told(what: str, copy: Path) -> None:
    change, words = CHANGES[what]
    change(copy / "site/Basel.home/outbox")
    told = run_cli(app, ["verify", str(copy / "site/Basel.kit")])
    assert told.exit_code == 1
    assert words in told.output


def test_an_outbox_is_as_it_was_written(place: Path, copy: Path) -> None:
    for at in ("Basel.kit", "Basel.home", "Basel.home/outbox"):
        found = verify(place / "site" / at)
        assert not found.wrong
        assert found.files == SENT
        assert any(note.startswith("Signed by") for note in found.notes)
    # what was being written when the site was stopped did not leave, and is no alarm
    box = copy / "site/Basel.home/outbox"
    for name in (f"{SENT + 1:06d}.safetensors.new", f"{SENT + 1:06d}.safetensors"):
        (box / name).write_bytes(b"x")
        assert not verify(box).wrong
    write(box, [*lines(box), b'{"half'])
    assert not verify(box).wrong
    # what is not kept is not missing
    few = Outbox(copy / "few", keep=2, pen=Signer.of_site(enrolment.load_kit(copy / "site/Basel.kit")))
    for number in range(4):
        said = Message("round", {"round": number}, {})
        few.record(said, said.pack())
    assert not verify(copy / "few").wrong
    (few.folder / "000003.safetensors").unlink()
    assert [p.where for p in verify(copy / "few").wrong] == ["000003.safetensors"]


def test_an_authority_that_did_not_issue_it(place: Path) -> None:
    other = place / "other.coordinator/authority/cert.pem"
    told = run_cli(app, ["verify", str(place / "site/Basel.home"), "--authority", str(other)])
    assert told.exit_code == 1
    assert "this study's authority did not issue this certificate" in told.output
    told = run_cli(app, ["verify", str(place / "heart.coordinator/runs/one"), "--authority", str(other)])
    assert told.exit_code == 1
    assert "another authority" in told.output
    right = place / "heart.coordinator/invitations/Basel.invitation"
    assert run_cli(app, ["verify", str(place / "site/Basel.home"), "--authority", str(right)]).exit_code == 0


def by_site(run: Path) -> None:
    """A site signs the run, with a certificate of the same authority."""
    sign_run(run, Signer.of_site(enrolment.load_kit(run.parents[2] / "site/Basel.kit")))


def anew(run: Path) -> None:
    (run / "scores.csv").write_text("a,b\n9,9\n")
    (run / LOG).unlink()
    folder = Folder(run, resume=True)
    folder.log("started")
    folder.seal("closed")
    folder.close()


def page(run: Path) -> None:
    (run / "report.html").write_text("another page")
    add_to_chain(run / "report.html")


RUNS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "a score": (lambda run: (run / "scores.csv").write_text("a,b\n2,2\n"), "scores.csv: it was changed"),
    "made anew": (anew, "is not the one that was signed"),
    "cut off": (
        lambda run: (run / LOG).write_bytes((run / LOG).read_bytes().splitlines(True)[0]),
        "is not the one",
    ),
    "no signature": (lambda run: (run / SIGNATURE).unlink(), "signature.json: the signature is missing"),
    "damaged": (lambda run: (run / SIGNATURE).write_text("{}"), "the signature is damaged, or not one of Vitrail's"),
    "by a site": (by_site, "the certificate is not that of the coordinator"),
    "afterwards": (page, "report.html: the file was written after the run was signed"),
}


@pytest.mark.parametrize("what", RUNS)
def test_a_run_between_machines_is_signed(what: str, copy: Path) -> None:
    run = copy / "heart.coordinator/runs/one"
    found = verify(run)
    assert not found.wrong
    assert any("certificate is from this study's authority" in note for note in found.notes)
    elsewhere = Path(shutil.copytree(run, copy / "elsewhere"))
    assert any("compare it by phone" in note for note in verify(elsewhere).notes)
    change, words = RUNS[what]
    change(run)
    told = run_cli(app, ["verify", str(run)])
    assert told.exit_code == 1
    assert words in told.output


def test_serve_closes_and_signs(monkeypatch: pytest.MonkeyPatch, place: Path, tmp_path: Path) -> None:
    """Whatever was written after the last round, the page among it, is under the signature."""
    from types import SimpleNamespace

    from vitrail.deploy.coordinator import process as coordinator_process
    from vitrail.deploy.transport.flare import workspace

    folder = Path(shutil.copytree(place / "heart.coordinator", tmp_path / "c.coordinator"))
    who = enrolment.load_coordinator(folder)
    entry = {"fingerprint": "x", "approved": True, "removed": False}
    who = enrolment.Coordinator(
        folder, who.study, who.seed, who.address, {n: {**who.sites[n], **entry} for n in who.sites}
    )

    def conduct(call: Any, into: Folder, resume: bool, **given: Any) -> None:
        write_atomically(into.path / "run.json", json.dumps({"finished": True}))
        write_atomically(into.path / "report.html", "the page")

    way = SimpleNamespace(close=lambda: None, present=lambda: set(who.sites))
    monkeypatch.setattr(workspace, "build_coordinator", lambda folder: None)
    monkeypatch.setattr(coordinator_process, "FlareTransport", lambda who, log, most, sandbox: way)
    monkeypatch.setattr(coordinator_process, "conduct", conduct)
    coordinator_process.serve(who, None, 1.0, lambda event, details: None)
    (run,) = [p for p in (folder / "runs").iterdir() if p.name != "one"]
    found = verify(run)
    assert not found.wrong
    assert found.files == 3  # deployed.json, run.json, report.html
    assert any(note.startswith("Signed by the study's coordinator") for note in found.notes)
