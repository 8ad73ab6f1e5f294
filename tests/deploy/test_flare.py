"""The whole thing: separate processes, FLARE between them, TLS on every byte. Everything waits with a deadline.

One federation of the four heart hospitals, in the order of a bad week: strangers knock while the coordinator waits, the
study runs, it runs again while things are killed, then the coordinator itself turns hostile.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import pickle
import shutil
import signal
import socket
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas.testing as pdt
import pytest
import torch
from safetensors.torch import load_file

import vitrail as vt
from deploy.federation import PATIENCE, Federation
from vitrail.data.datasets import heart_disease, packaged
from vitrail.data.read import read_table
from vitrail.deploy import enrol, kits
from vitrail.deploy.agreement import FORMAT, Agreement
from vitrail.deploy.join import Door
from vitrail.deploy.message import MOST_WORDS, Message, unpack
from vitrail.deploy.outbox import Outbox
from vitrail.deploy.site import Site
from vitrail.runs.setup import resolve

pytest.importorskip("nvflare")
ROUNDS = 12
RUN = "0123456789abcdef"
CLOSE = {"rtol": 0, "atol": 1e-6}


@pytest.fixture(scope="module")
def study() -> vt.Study:
    heart = vt.Study.load(packaged("heart_disease.toml"))
    return resolve(heart.with_changes(standardise="global", training={"rounds": ROUNDS}), "ifedavg", None)[0]


@pytest.fixture(scope="module")
def federation(study: vt.Study, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
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


# who must not come in


def knock(federation: Federation, kit: Path) -> bytes:
    """The first bytes that the coordinator says to whoever shows this kit's certificate; none if it hangs up."""
    context = ssl.create_default_context(cafile=str(federation.folder / "authority" / "cert.pem"))
    context.load_cert_chain(kit / "certificate.pem", kit / "key.pem")
    context.set_alpn_protocols(["h2"])
    who = federation.who
    with (
        socket.create_connection((who.host, who.port), timeout=20) as raw,
        context.wrap_socket(raw, server_hostname=who.host) as line,
        contextlib.suppress(ssl.SSLError, ConnectionError),
    ):
        return line.recv(9)
    return b""


@pytest.fixture(scope="module")
def stranger(federation: Federation, study: vt.Study) -> Iterator[Federation]:
    """A site of the same name in another study."""
    root = federation.root / "other"
    made = Federation(root, study.with_changes(name="Another study"), {"va": heart_disease()["va"]})
    folder = enrol.invite(made.study, ["va"], federation.who.address)
    asked = enrol.request(Path(shutil.copy(enrol.invitation_of(folder, "va"), root / "va")))
    enrol.accept(asked.kit, enrol.approve(folder, asked.file).file)
    yield made
    made.close()


def test_another_authority_is_refused(federation: Federation, waiting: Any, stranger: Federation) -> None:
    """A kit with our invitation and a certificate that somebody else signed."""
    place = federation.root / "forged"
    shutil.copytree(stranger.kit("va"), place / "va.kit")
    shutil.copy(federation.root / "va" / "va.invitation", place / "va.kit" / "invitation.json")
    (place / "va.kit" / "home.txt").write_text(f"{place / 'va.home'}\n")
    joined = federation.join("va", place / "va.kit", "forged")
    federation.wait("the forged kit is refused", lambda: joined.poll() is not None)
    said = federation.log("forged").read_text()
    assert joined.returncode == 2
    assert "not signed by the authority of this kit's invitation" in said
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
    assert event["why"] == "its kit is in use elsewhere"
    federation.wait("the copy ends", lambda: joined.poll() is not None)
    assert joined.returncode == 2
    assert "in use in another place" in federation.log("copied").read_text()
    assert not Outbox(place / "cleveland.home").entries()


# the study


def test_the_same_run_as_on_one_machine(federation: Federation, study: vt.Study, first: Path) -> None:
    tables = {site: read_table(federation.data(site), study) for site in federation.sites}
    near, far = vt.federate(study, tables, engine="looped"), vt.Run.load(first)
    torch.testing.assert_close(far.shared, near.shared, **CLOSE)
    for site, mine in models(federation, first).items():
        torch.testing.assert_close(mine, near.models[site], **CLOSE)
    key = ["stage", "round", "site", "split", "metric"]
    one, other = (r.history.sort_values(key, ignore_index=True) for r in (far, near))
    pdt.assert_frame_equal(one, other, **CLOSE)
    pdt.assert_frame_equal(far.ledger, near.ledger)
    pdt.assert_frame_equal(far.shifts(), near.shifts(), **CLOSE)
    assert far.models == {}  # they stay with the sites
    page = (first / "report.html").read_text()
    assert len(page) > 10_000
    assert "switzerland" in page


def test_the_outbox_tells_what_left(federation: Federation, first: Path) -> None:
    for site, model in models(federation, first).items():
        box = Outbox(federation.home(site))
        left = [e for e in box.entries() if e.direction == "out"]
        asked = [e for e in box.entries() if e.direction == "in"]
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
        training = [e for e in left if e not in shown and e.kind != "evidence"]
        assert not any(p in box.place(e.number).read_bytes() for e in training for p in private)


def test_killed_and_started_again(federation: Federation, first: Path) -> None:
    """kill -9 of the coordinator, then of a site, both in mid-run: the same models as if nothing had happened."""
    for site in federation.sites:
        federation.join(site)
    served = federation.serve("--quorum", 4)
    run = federation.wait("a second run", lambda: federation.runs()[1:])[0]
    federation.wait_event("checkpoint", round=1)
    served.send_signal(signal.SIGKILL)
    served.wait(10)
    served = federation.serve("--quorum", 4)
    federation.wait_event("checkpoint", round=4)
    federation.kill(federation.root / "hungarian")
    assert not any(e["event"] == "checkpoint" and e["round"] == ROUNDS for e in federation.events(run)), "too late"
    federation.join("hungarian")
    federation.wait_end(served, "serve", 2 * PATIENCE)
    assert federation.runs() == [first, run]
    events = federation.events(run)
    started = [at for at, e in enumerate(events) if e["event"] == "transport started"]
    assert len(started) == 2
    assert any(e["event"] == "back" and e["site"] == "hungarian" for e in events[started[1] :])
    assert not any(e.get("absent") for e in events)
    torch.testing.assert_close(models(federation, run), models(federation, first), **CLOSE)
    key = ["stage", "round", "site", "split", "metric"]
    one, other = (vt.Run.load(r).history.sort_values(key, ignore_index=True) for r in (first, run))
    pdt.assert_frame_equal(one, other, **CLOSE)
    federation.wait("all sites end", lambda: not federation.processes())


# a hostile coordinator


class Hostile:
    """Whoever holds the coordinator's folder, and asks for what it likes."""

    def __init__(self, federation: Federation) -> None:
        from vitrail.deploy.line import FlareLine

        kits.build_coordinator(federation.folder)
        local = federation.folder / "flare" / "coordinator" / "local"
        rights = json.loads((local / "authorization.json").read_text())  # its own policy would still refuse
        rights["permissions"]["lead"] = "any"
        (local / "authorization.json").write_text(json.dumps(rights))
        self.federation, self.events = federation, list[tuple[str, dict[str, Any]]]()
        self.line = FlareLine(federation.who, lambda event, **told: self.events.append((event, told)))

    def wait(self, what: str, found: Callable[[], Any]) -> Any:
        def look() -> Any:
            self.line.watch(0.1)
            return found()

        return self.federation.wait(what, look)

    def wait_event(self, event: str, site: str) -> dict[str, Any]:
        return self.wait(event, lambda: next((t for e, t in self.events if e == event and t.get("site") == site), None))


@pytest.fixture(scope="module")
def hostile(federation: Federation) -> Iterator[Hostile]:
    """Cleveland joined it."""
    made = Hostile(federation)
    try:
        federation.join("cleveland")
        made.wait_event("joined", "cleveland")
        yield made
    finally:
        made.line.close()
        federation.kill(federation.root / "cleveland")


def test_jobs_that_a_site_refuses(hostile: Hostile, tmp_path: Path) -> None:
    """With code, with other classes, in another privacy scope: none of it runs."""
    from vitrail.deploy import adapter

    federation, marker = hostile.federation, tmp_path / "it ran"
    who = enrol.identity("cleveland")
    touch = {"args": ["touch", str(marker)]}
    jobs = adapter.Jobs(federation.folder / "flare" / "lead", tmp_path)

    def submit(name: str, executor: dict[str, Any], code: str = "", **more: Any) -> str:
        client = {**adapter.JOB["app/config/config_fed_client.json"]}
        client["executors"] = [{"tasks": ["*"], "executor": executor}]
        meta = {**adapter.JOB["meta.json"], "name": name, "deploy_map": {"app": ["server", who]}, **more}
        told = {**adapter.JOB, "meta.json": meta, "app/config/config_fed_client.json": client}
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
    ours = {"path": "vitrail.deploy.adapter.SiteRelay", "args": {}}
    code = f"open({str(marker)!r}, 'w')\nfrom vitrail.deploy.adapter import SiteRelay as Evil\n"
    try:
        for name, executor, more, found, sign in (
            ("code", {"path": "evil.Evil", "args": {}}, {"code": code}, deployed, "BYOC not permitted"),
            ("scope", ours, {"scope": "open"}, deployed, "privacy scope 'open' is not allowed"),
            ("trainer", {"path": trainer, "args": {}}, {}, log, f"Component '{trainer}'"),
            ("process", {"path": "subprocess.Popen", "args": touch}, {}, log, "Component 'subprocess.Popen'"),
        ):
            job = submit(name, executor, **more)
            said = hostile.wait(f"job {name}", lambda job=job, found=found, sign=sign: sign in (s := found(job)) and s)
            assert found is deployed or "is not in allow_list" in said
            jobs.end(job)
            hostile.wait(f"job {name} ends", lambda job=job: "FINISHED" in jobs.session.get_job_meta(job)["status"])
        for look in (jobs.session.ls_target, jobs.session.tail_target_log):  # a shell at the site
            with pytest.raises(Exception, match=r"(?i)not authorized|not permitted|denied"):
                look(who)
    finally:
        jobs.close()
    assert not marker.exists()
    assert federation.processes(federation.kit("cleveland"))  # the site is still there


def test_questions_that_a_site_refuses_over_the_line(hostile: Hostile, study: vt.Study) -> None:
    agreed = Agreement.of(study, None, 4)
    box = Outbox(hostile.federation.home("cleveland"))
    before = len(box.entries())

    def ask(**words: Any) -> Message:
        question = Message("hello", {"run": RUN, "format": FORMAT, "agreement": agreed.hash, **words})
        heard = hostile.line.ask({"cleveland": question}, PATIENCE)
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
    federation.kill(federation.root / "c")
    served.wait(10)


# the same without FLARE: bytes at a site's door

SECRET = 77.7123


@pytest.fixture
def door(study: vt.Study, tmp_path: Path) -> Door:
    frame = heart_disease()["va"]
    frame["age"] = frame["age"].astype(float)
    frame.loc[0, "age"] = SECRET
    kit = SimpleNamespace(home=tmp_path / "home")
    kit.home.mkdir()
    said: list[str] = []
    made = Door(kit, Site("va", frame, Agreement.of(study, None, 4), kit.home), said.append)  # type: ignore[arg-type]
    made.said = said  # type: ignore[attr-defined]
    return made


def prepared(door: Door) -> Door:
    """As after a good beginning."""
    agreed = door.site.agreed
    count = agreed.numbers[0]
    scale = {"mean": torch.zeros(count, dtype=torch.float64), "sd": torch.ones(count, dtype=torch.float64)}
    for kind, words, tensors in (
        ("hello", {"format": FORMAT, "agreement": agreed.hash}, {}),
        ("prepare", {}, scale),
        ("round", {"stage": 0, "round": 0, "score": []}, down(door)),
    ):
        assert unpack(door.answer(Message(kind, {"run": RUN, **words}, tensors).pack())).kind == kind
    return door


def down(door: Door, **changed: torch.Tensor) -> dict[str, torch.Tensor]:
    """What a round of training may send to a site."""
    declared = door.site.agreed.contracts[0].down
    return {k: torch.full(shape, 0.01, dtype=kind) for k, (shape, kind) in declared.items()} | changed


def a_round(door: Door, tensors: dict[str, torch.Tensor] | None = None, **words: Any) -> bytes:
    told = {"run": RUN, "stage": 0, "round": 1, "score": [], **words}
    return Message("round", told, down(door) if tensors is None else tensors).pack()


def spoiled(door: Door, change: Callable[[torch.Tensor], torch.Tensor]) -> bytes:
    name = next(iter(door.site.agreed.contracts[0].down))
    return a_round(door, down(door, **{name: change(down(door)[name])}))


def filled(value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    def change(tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.clone()
        tensor.view(-1)[0] = value
        return tensor

    return change


def ends(door: Door) -> dict[str, torch.Tensor]:
    return {k: torch.ones(shape, dtype=kind) for k, (shape, kind) in door.site.agreed.ends.items()}


BAD: dict[str, Callable[[Door], bytes]] = {
    "another agreement": lambda d: Message("hello", {"run": RUN, "format": FORMAT, "agreement": "0" * 24}).pack(),
    "another format": lambda d: (
        Message("hello", {"run": RUN, "format": FORMAT + 1, "agreement": d.site.agreed.hash}).pack()
    ),
    "a tensor too large": lambda d: spoiled(d, lambda t: torch.zeros(2000, 2000)),
    "a tensor too many": lambda d: a_round(d, down(d, more=torch.zeros(3))),
    "a tensor too few": lambda d: a_round(d, {}),
    "another type": lambda d: spoiled(d, lambda t: t.double()),
    "not a number": lambda d: spoiled(d, filled(math.nan)),
    "infinite": lambda d: spoiled(d, filled(-math.inf)),
    "no bytes": lambda d: b"",
    "noise": lambda d: bytes(range(256)) * 40,
    "cut short": lambda d: a_round(d)[:-7],
    "too long": lambda d: a_round(d) + b"\0" * 8,
    "a header without end": lambda d: (MOST_WORDS + 1).to_bytes(8, "little") + b"{" * (MOST_WORDS + 1),
    "deep JSON": lambda d: (200_000).to_bytes(8, "little") + b"[" * 200_000,
    "a pickle": lambda d: pickle.dumps({"kind": "hello"}),
    "no kind of ours": lambda d: Message("shell", {"run": RUN}).pack(),
    "a method's name": lambda d: Message("answer", {"run": RUN}).pack(),
    "a word too many": lambda d: a_round(d, path="/etc/passwd"),
    "a word of another type": lambda d: a_round(d, round="1"),
    "a run that is a path": lambda d: Message("hello", {"run": "../../x", "format": FORMAT, "agreement": ""}).pack(),
    "no such stage": lambda d: a_round(d, stage=7),
    "a stage before the first": lambda d: a_round(d, stage=-1),
    "a round before the first": lambda d: a_round(d, round=-1),
    "a round after the last": lambda d: a_round(d, round=ROUNDS),
    "scores nobody knows": lambda d: a_round(d, score=["rows"]),
    "scores without end": lambda d: a_round(d, score=["test"] * 10_000),
    "scores that are no words": lambda d: a_round(d, score=[["test"]]),
    "a step nobody knows": lambda d: Message("standardise", {"run": RUN, "step": 3}).pack(),
    "evidence of no cell": lambda d: Message("evidence", {"run": RUN, "fitted": [10**9]}, ends(d)).pack(),
}  # fmt: skip


@pytest.mark.parametrize("what", BAD)
def test_questions_that_a_site_refuses(what: str, door: Door) -> None:
    prepared(door)
    kept = {f: f.read_bytes() for f in (door.kit.home / RUN).iterdir()}
    before = len(door.outbox.entries())
    refused(door, BAD[what](door), before)
    assert {f: f.read_bytes() for f in (door.kit.home / RUN).iterdir()} == kept  # nothing was learned from it
    assert unpack(door.answer(a_round(door))).kind == "round"  # and it goes on


def test_a_round_before_anything_is_prepared(door: Door) -> None:
    refused(door, a_round(door), 0)


def test_an_accident_tells_no_data(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(question: Message) -> Message:
        raise ValueError(f"could not convert {SECRET}")

    monkeypatch.setattr(door.site, "answer", fails)
    refused(door, a_round(door), 0)
    assert str(SECRET) in door.outbox.entries()[-2].refused  # at the site itself it is told in full


def refused(door: Door, question: bytes, before: int) -> None:
    """Nothing but an error text leaves, it holds no data, and the site can read what happened."""
    sent = door.answer(question)
    said = unpack(sent)
    assert (said.kind, list(said.words), said.tensors) == ("error", ["text"], {})
    assert len(said.words["text"]) < 2000
    told = sent.decode(errors="replace")
    assert str(SECRET) not in told
    assert not [c for c in ("trestbps", str(door.kit.home)) if c in told]
    new = door.outbox.entries()[before:]
    assert [e.kind for e in new if e.direction == "out"] == ["error"]
    assert next(e.refused for e in new if e.kind == "refused")
    assert door.said[-1]  # type: ignore[attr-defined]
