"""The whole thing: separate processes, FLARE between them, TLS on every byte. Everything waits with a deadline.

One federation of the four heart hospitals, in the order of a bad week: strangers knock while the coordinator waits, the
study runs and every packet of it is captured, it runs again while things are killed, then the coordinator itself turns
hostile.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pandas.testing as pdt
import pytest
import torch
from safetensors.torch import load_file

import vitrail as vt
from tests.support.deploy.capture import Capture, Tshark, found, secrets, start_capture
from tests.support.deploy.federation import PATIENCE, Federation, Hostile, knock, without_scores
from tests.support.deploy.forked import Forked
from vitrail.data.datasets.catalogue import heart_disease, packaged
from vitrail.data.readers.tables import read_table
from vitrail.deploy.audit.notices import COMPARED
from vitrail.deploy.audit.outbox import Outbox
from vitrail.deploy.identity import enrolment
from vitrail.deploy.identity.coordinator_folder import invitation_of
from vitrail.deploy.protocol.agreement import FORMAT, Agreement
from vitrail.deploy.protocol.message import Message
from vitrail.deploy.site.privacy_ledger import LEDGER, PLACE
from vitrail.runs.result import ALL_SITES
from vitrail.runs.setup import resolve

pytest.importorskip("nvflare")
ROUNDS = 9
RUN = "0123456789abcdef"
GONE = 10.0  # seconds that processes may take to follow whoever was killed
CLOSE = {"rtol": 0, "atol": 1e-6}


@pytest.fixture(scope="module")
def study() -> vt.Study:
    heart = vt.Study.load(packaged("heart_disease.toml"))
    changed = heart.with_changes(
        standardise="global", training={"rounds": ROUNDS}, protect={"sum": "masked", "scores": "exact"}
    )
    return resolve(changed, "ifedavg", None)[0]


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Capture | Tshark | None]:
    """All that goes over the loopback device, from before anybody is enrolled; none where that is not allowed."""
    made = start_capture(tmp_path_factory.mktemp("captured"))
    yield made
    if made is not None:
        made.stop()


@pytest.fixture(scope="module")
def federation(study: vt.Study, captured: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """Four hospitals, enrolled by command."""
    made = Federation(tmp_path_factory.mktemp("flare"), study, heart_disease())
    try:
        made.enrol()
        yield made
    finally:
        made.close()


@pytest.fixture(scope="module")
def waiting(federation: Federation) -> Any:
    """The coordinator serves and waits for va; the other three are there."""
    served = federation.serve("--quorum", 4)
    there = [site for site in federation.sites if site != "va"]
    for site in there:
        federation.join(site)
    for site in there:
        federation.wait_event("joined", site=site)
    return served


@pytest.fixture(scope="module")
def first(federation: Federation, waiting: Any) -> Path:
    """The folder of a run that nothing disturbed."""
    federation.join("va")
    federation.wait_end(waiting, "serve")
    federation.wait("all sites end", lambda: not federation.processes())
    return federation.runs()[0]


def models(federation: Federation, run: Path) -> dict[str, dict[str, torch.Tensor]]:
    """What the sites keep of it."""
    named = json.loads((run / "deployed.json").read_text())["run"]
    return {site: load_file(federation.home(site) / named / "model.safetensors") for site in federation.sites}


def on_one_machine(federation: Federation, study: vt.Study, run: Path) -> vt.Run:
    """The same, with what the sites drew from in that run."""
    tables = {site: read_table(federation.data(site), study) for site in federation.sites}
    named = json.loads((run / "deployed.json").read_text())["run"]
    return vt.federate(study, tables, engine="looped", secrets=federation.secrets(named))


def told_by_sites(run: vt.Run, key: list[str]) -> pd.DataFrame:
    """Scores that single sites told; during training they add them up under masks."""
    history = run.history[run.history.site != ALL_SITES]
    return history.sort_values(key, ignore_index=True)


# who must not come in


@pytest.fixture(scope="module")
def stranger(federation: Federation, study: vt.Study) -> Iterator[Federation]:
    """A site of the same name in another study."""
    root = federation.root / "other"
    other = study.with_changes(name="Another study", protect={"sum": "plain"})  # one site alone has no sum
    made = Federation(root, other, {"va": heart_disease()["va"]})
    folder = enrolment.invite(made.study, ["va"], federation.who.address)
    asked = enrolment.request(Path(shutil.copy(invitation_of(folder, "va"), root / "va")))
    enrolment.accept(asked.kit, enrolment.approve(folder, asked.file).file)
    yield made
    made.close()


def test_another_authority_is_refused(federation: Federation, waiting: Any, stranger: Federation) -> None:
    """A kit with our invitation and a certificate that somebody else signed."""
    place = federation.root / "forged"
    shutil.copytree(stranger.kit("va"), place / "va.kit")
    shutil.copy(federation.root / "va" / "va.invitation", place / "va.kit" / "invitation.json")
    (place / "va.kit" / "home.txt").write_text(f"{place / 'va.home'}\n")
    said = {"roster": federation.who.roster, "missing": []}
    (place / "va.kit" / "participants.json").write_text(json.dumps(said))
    joined = federation.join("va", place / "va.kit", "forged")
    federation.wait("the forged kit is refused", lambda: joined.poll() is not None)
    said = federation.log("forged").read_text()
    assert joined.returncode == 2
    assert "the authority of this kit's invitation did not sign it" in said
    assert "Traceback" not in said
    # and should it ask without our program: the door itself
    assert not knock(federation, place / "va.kit")
    assert knock(federation, federation.kit("cleveland"))


def test_another_study_is_refused(federation: Federation, waiting: Any, stranger: Federation) -> None:
    joined = stranger.join("va")
    said = stranger.log("va")
    stranger.wait("the stranger is told", lambda: "is not this study's coordinator" in said.read_text())
    stranger.kill()
    joined.wait(10)
    assert not Outbox(stranger.home("va")).entries()


def test_a_copied_kit_is_refused(federation: Federation, waiting: Any) -> None:
    place = federation.root / "copied"
    shutil.copytree(federation.kit("cleveland"), place / "cleveland.kit", ignore=shutil.ignore_patterns("flare"))
    (place / "cleveland.kit" / "home.txt").write_text(f"{place / 'cleveland.home'}\n")
    joined = federation.join("cleveland", place / "cleveland.kit", "copied")
    event = federation.wait_event("refused", site="cleveland")
    assert event["why"] == "its kit is already in use elsewhere"
    federation.wait("the copy ends", lambda: joined.poll() is not None)
    assert joined.returncode == 2
    assert "in use elsewhere" in federation.log("copied").read_text()
    assert not Outbox(place / "cleveland.home").entries()


# the study


def test_the_same_run_as_on_one_machine(federation: Federation, study: vt.Study, first: Path) -> None:
    near, far = on_one_machine(federation, study, first), vt.Run.load(first)
    torch.testing.assert_close(far.shared, near.shared, **CLOSE)
    for site, mine in models(federation, first).items():
        torch.testing.assert_close(mine, near.models[site], **CLOSE)
    key = ["stage", "round", "site", "split", "metric"]
    one, other = (told_by_sites(r, key) for r in (far, near))
    pdt.assert_frame_equal(one, other.merge(one[key]), **CLOSE)
    assert set(one.site) == set(federation.sites)
    pdt.assert_frame_equal(*map(without_scores, (far, near)))
    pdt.assert_frame_equal(far.shifts(), near.shifts(), **CLOSE)
    assert far.screening is not None
    assert near.screening is not None
    pdt.assert_frame_equal(far.screening.cells, near.screening.cells, rtol=1e-5)
    assert [f[:4] for f in far.findings()] == [f[:4] for f in near.findings()]
    assert not {"total not opened", "not screened"} & {e["event"] for e in federation.events(first)}
    marks = {site: enrolment.load_kit(federation.kit(site)).fingerprint for site in federation.sites}
    assert all(enrolment.load_kit(federation.kit(site)).participants == (marks, []) for site in federation.sites)
    assert far.models == {}  # they stay with the sites
    page = (first / "report.html").read_text()
    assert len(page) > 10_000
    assert "switzerland" in page


def test_the_outbox_tells_what_left(federation: Federation, first: Path) -> None:
    for site, model in models(federation, first).items():
        box = Outbox(federation.home(site))
        left = [e for e in box.entries() if e.direction == "out"]
        (compared,) = [e for e in box.entries() if e.kind == COMPARED]
        assert "No signed list" not in compared.words["text"]
        assert all(other in compared.words["text"] for other in federation.sites if other != site)
        asked = [e for e in box.entries() if e.direction == "in" and e.kind != COMPARED]
        assert [e.number for e in left] == list(range(1, len(left) + 1))
        assert len(left) == len(asked)
        assert [e.round for e in left if e.kind == "round" and e.stage == 0] == list(range(ROUNDS))
        assert len(list(box.folder.glob("*.safetensors"))) == len(left)
        for entry in left:
            kept = box.place(entry.number).read_bytes()
            assert (len(kept), hashlib.sha256(kept).hexdigest()) == (entry.bytes, entry.sha256)
        listed = federation.do("outbox", federation.kit(site))
        assert f"{len(left)} messages left" in listed
        # the personal layers of the end are in what was published, and in no report of a round of training
        private = [model[k].numpy().tobytes() for k in model if "input" in k]
        assert private
        shown = [e for e in left if e.kind == "round" and e.stage == 1]
        assert shown
        assert all(any(p in box.place(e.number).read_bytes() for e in shown) for p in private)
        training = [e for e in left if e not in shown]
        assert not any(p in box.place(e.number).read_bytes() for e in training for p in private)


def test_nothing_on_the_line(federation: Federation, captured: Capture | Tshark | None, first: Path) -> None:
    """Nothing that must never be there is in any packet. The same search finds what is planted, so that finding nothing
    means something."""
    if captured is None:
        pytest.skip("capturing packets needs root on Linux")
    secret = secrets(federation)
    with socket.create_server(("127.0.0.1", 0)) as door:  # the positive control: the same bytes without TLS
        port = door.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as line:
            there, _ = door.accept()
            for patterns in secret.values():
                for pattern in patterns:
                    line.sendall(pattern)
                    there.recv(1 << 16)
            there.close()
    captured.stop()
    seen = captured.of(federation.who.port)
    boxes = [federation.home(site) / "outbox" for site in federation.sites]
    sent = sum(len(file.read_bytes()) for box in boxes for file in box.glob("*.safetensors"))
    assert min(map(len, secret.values())) >= len(federation.sites)
    assert len(seen) > sent > 10_000, "the capture missed what was sent"
    assert found(secret, seen) == {"rows": 0, "layers": 0, "names": 0}
    assert found(secret, captured.of(port)) == {kind: len(patterns) for kind, patterns in secret.items()}


def test_nothing_under_the_encryption(federation: Federation, first: Path) -> None:
    """The same search in what was encrypted: every message that left, as the sites kept it."""
    secret = secrets(federation)
    for site in federation.sites:
        box = federation.home(site) / "outbox"
        log = [json.loads(line) for line in (box / "log.jsonl").read_text().splitlines()]
        out = [e for e in log if e["direction"] == "out"]
        sent = {e["number"]: (box / f"{e['number']:06d}.safetensors").read_bytes() for e in out}
        train = b"".join(sent[e["number"]] for e in out if not (e["kind"] == "round" and e["stage"] == 1))
        shown = b"".join(sent[e["number"]] for e in out if e["kind"] == "round" and e["stage"] == 1)
        assert len(train) > 10_000
        assert found(secret, train) == {"rows": 0, "layers": 0, "names": 0}
        assert found(secret, shown)["layers"] > 0, "by consent they are published after training"


def kill_one(federation: Federation, place: str, ours: subprocess.Popen[bytes] | Forked, job: str) -> None:
    """kill -9 of our own process at one end and of nothing else: FLARE's and its job's are there, and then are not."""
    there = federation.processes(federation.root / place)
    ours.kill()
    ours.wait(10)
    assert [line for line in there.values() if job in line], there
    assert len(there) >= 4, there  # ours, the keeper, FLARE's, its job's
    federation.wait(f"nothing is left of {place}", lambda: not federation.processes(federation.root / place), GONE)


def test_killed_and_started_again(federation: Federation, study: vt.Study, first: Path) -> None:
    """kill -9 of the coordinator, then of a site, both in mid-run: FLARE's processes go with them, and started again
    the models are the same as if nothing had happened."""
    joined = {site: federation.join(site) for site in federation.sites}
    served = federation.serve("--quorum", 4)
    run = federation.wait("a second run", lambda: federation.runs()[1:])[0]
    federation.wait_event("checkpoint", round=1)
    kill_one(federation, "c", served, job="runner_process")
    served = federation.serve("--quorum", 4)
    federation.wait_event("checkpoint", round=4)
    kill_one(federation, "hungarian", joined["hungarian"], job="worker_process")
    assert not any(e["event"] == "checkpoint" and e["round"] == ROUNDS for e in federation.events(run)), "too late"
    federation.join("hungarian")
    federation.wait_end(served, "serve", 2 * PATIENCE)
    assert federation.runs() == [first, run]
    events = federation.events(run)
    started = [at for at, e in enumerate(events) if e["event"] == "transport started"]
    assert len(started) == 2
    assert any(e["event"] == "back" and e["site"] == "hungarian" for e in events[started[1] :])
    assert not any(e.get("absent") for e in events)
    near = on_one_machine(federation, study, run)
    torch.testing.assert_close(models(federation, run), near.models, **CLOSE)
    key = ["stage", "round", "site", "split", "metric"]
    one, other = (told_by_sites(r, key) for r in (vt.Run.load(run), near))
    pdt.assert_frame_equal(one, other.merge(one[key]), **CLOSE)
    federation.wait("all sites end", lambda: not federation.processes())
    named = [json.loads((path / "deployed.json").read_text())["run"] for path in (first, run)]
    counted = [json.loads(line) for line in (Path(os.environ[PLACE]) / LEDGER).read_text().splitlines()]
    mine = [(e["file"], e["run"]) for e in counted if Path(e["file"]).is_relative_to(federation.root.resolve())]
    wanted = [(str(federation.data(site).resolve()), name) for site in federation.sites for name in named]
    assert sorted(mine) == sorted(wanted), "each run once at each site, also at the one that was killed in it"


# a hostile coordinator


@pytest.fixture(scope="module")
def hostile(federation: Federation) -> Iterator[Hostile]:
    """Cleveland joined it."""
    made = Hostile(federation)
    try:
        federation.join("cleveland")
        made.wait_event("joined", "cleveland")
        yield made
    finally:
        made.way.close()
        federation.kill(federation.root / "cleveland")


def test_jobs_that_a_site_refuses(hostile: Hostile, tmp_path: Path) -> None:
    """With code, with other classes, in another privacy scope: none of it runs."""
    from vitrail.deploy.transport.flare import components

    federation, marker = hostile.federation, tmp_path / "it ran"
    who = enrolment.identity_of("cleveland")
    touch = {"args": ["touch", str(marker)]}
    jobs = components.Jobs(federation.folder / "flare" / "lead", tmp_path)

    def submit(name: str, executor: dict[str, Any], code: str = "", **more: Any) -> str:
        client = {**components.JOB["app/config/config_fed_client.json"]}
        client["executors"] = [{"tasks": ["*"], "executor": executor}]
        meta = {**components.JOB["meta.json"], "name": name, "deploy_map": {"app": ["server", who]}, **more}
        told = {**components.JOB, "meta.json": meta, "app/config/config_fed_client.json": client}
        files = {file: json.dumps(said) for file, said in told.items()} | ({"app/custom/evil.py": code} if code else {})
        for file, text in files.items():
            path = tmp_path / name / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return str(jobs.session.submit_job(str(tmp_path / name)))

    def deployed(job: str) -> str:
        """What the site answered to being sent this job."""
        said = jobs.session.get_job_meta(job).get("job_deploy_detail", [])
        return next((text for text in said if text.startswith(who)), "")

    def log(job: str) -> str:
        """What the site wrote down about it."""
        place = federation.kit("cleveland") / "flare" / job / "log.txt"
        return place.read_text(errors="replace") if place.exists() else ""

    trainer = "nvflare.app_common.np.np_trainer.NPTrainer"
    ours = {"path": "vitrail.deploy.transport.flare.components.SiteRelay", "args": {}}
    code = f"open({str(marker)!r}, 'w')\nfrom vitrail.deploy.transport.flare.components import SiteRelay as Evil\n"
    asked = (
        ("code", {"path": "evil.Evil", "args": {}}, {"code": code}, deployed, "BYOC not permitted"),
        ("scope", ours, {"scope": "open"}, deployed, "privacy scope 'open' is not allowed"),
        ("trainer", {"path": trainer, "args": {}}, {}, log, f"Component '{trainer}'"),
        ("process", {"path": "subprocess.Popen", "args": touch}, {}, log, "Component 'subprocess.Popen'"),
    )
    try:
        begun = [submit(name, executor, **more) for name, executor, more, _, _ in asked]
        for job, (name, _, _, found, sign) in zip(begun, asked, strict=True):
            said = hostile.wait(f"job {name}", lambda job=job, found=found, sign=sign: sign in (s := found(job)) and s)
            assert found is deployed or "is not in allow_list" in said
            jobs.end(job)
        for job, (name, *_) in zip(begun, asked, strict=True):
            hostile.wait(f"job {name} ends", lambda job=job: "FINISHED" in jobs.session.get_job_meta(job)["status"])
        with pytest.raises(Exception, match=r"(?i)cannot connect|no reply|time"):  # a shell at the site: no answer
            jobs.session.ls_target(who)
        box = Outbox(federation.home("cleveland"))
        hostile.wait("it is written down", lambda: any("topic sys.shell" in e.refused for e in box.entries()))
    finally:
        jobs.close()
    assert not marker.exists()
    assert federation.processes(federation.kit("cleveland"))  # the site is still there


def test_questions_that_a_site_refuses_over_the_line(hostile: Hostile, study: vt.Study) -> None:
    agreed = Agreement.of(study, None, hostile.federation.who.roster)
    box = Outbox(hostile.federation.home("cleveland"))
    before = len(box.entries())

    def ask(**words: Any) -> Message:
        question = Message("hello", {"run": RUN, "format": FORMAT, "agreement": agreed.hash, **words})
        heard = hostile.way.ask({"cleveland": question}, PATIENCE)
        assert not heard.trouble, f"{heard.trouble}\n{hostile.federation.logs()}"
        return heard.answers["cleveland"]

    said = ask(agreement="0" * 24)
    assert (said.kind, said.tensors) == ("error", {})
    assert "this is not what the site agreed to" in said.words["text"]
    assert ask().kind == "hello"  # the same way, what was agreed
    new = box.entries()[before:]
    assert [(e.direction, e.kind) for e in new] == [
        *[("in", "hello"), ("in", "refused"), ("out", "error")], *[("in", "hello"), ("out", "hello")]
    ]  # fmt: skip
    assert "not what the site agreed to" in hostile.federation.log("cleveland").read_text()


def test_a_removed_site_is_refused(hostile: Hostile) -> None:
    federation = hostile.federation
    federation.do("remove", "va", "--study", federation.study, "--yes")
    joined = federation.join("va", name="removed")
    assert hostile.wait_event("refused", "va")["why"] == "it was removed from this study"
    hostile.wait("va ends", lambda: joined.poll() is not None)
    assert joined.returncode == 2
    assert "the coordinator refused this site" in federation.log("removed").read_text()


def test_a_removed_site_is_refused_after_a_restart(federation: Federation) -> None:
    if not federation.who.sites["va"]["removed"]:
        federation.do("remove", "va", "--study", federation.study, "--yes")
    before = len(federation.runs())
    served = federation.serve()
    federation.wait("a new run", lambda: len(federation.runs()) > before)
    joined = federation.join("va", name="removed again")
    assert federation.wait_event("refused", site="va")["why"] == "it was removed from this study"
    federation.wait("va ends", lambda: joined.poll() is not None)
    assert "the coordinator refused this site" in federation.log("removed again").read_text()
    assert not any(e["event"] == "joined" and e["site"] == "va" for e in federation.events())
    served.kill()
    federation.wait("nothing is left of it", lambda: not federation.processes(federation.root / "c"), GONE)
