"""Who may say what to whom over FLARE's own channels, decided without FLARE; apps that are none; reports in a flood."""

from __future__ import annotations

import io
import json
import os
import socket
import zipfile
from pathlib import Path
from typing import Any

import pytest

from vitrail.data.datasets.catalogue import packaged
from vitrail.deploy.identity import enrolment
from vitrail.deploy.transport import ipc
from vitrail.deploy.transport.flare.channels import ADMIN_TOPICS, DATA, NEEDED, Peer, problem_of
from vitrail.deploy.transport.flare.channels import MessageHeader as Sent
from vitrail.deploy.transport.refusals import AT_ONCE, RARE, Refusals

WIRE, OTHER = "it did not come over its sender's connection", "messages between these processes are not forwarded"
USELESS, NOBODY = "no study needs this kind of message", "it names a process that does not exist in a study"
ODD = "its header is not in FLARE's format"
SERVER, PRIVATE = Peer("server", inside=False), Peer("basel.j", inside=True)
BASEL = Peer("basel", inside=False, certificate="basel")


def test_what_a_study_needs_passes() -> None:
    for me, line, sent in (
        ("basel", SERVER, Sent("req", "admin", "admin", "server", "basel")),
        ("basel", SERVER, Sent("reply", "task", "heart_beat", "server", "basel")),
        ("basel", PRIVATE, Sent("req", "admin", "train.notify_job_status", "basel.j", "basel")),
        ("basel", SERVER, Sent("req", "aux_communication", "__end_run__", "server.j", "basel.j", DATA)),
        ("basel.j", SERVER, Sent("req", "return_only", "server_command:get_task", "server.j", "basel.j", DATA)),
        ("server", BASEL, Sent("req", "task", "register", "basel", "server")),
        ("server", BASEL, Sent("req", "server_command", "get_task", "basel.j", "server.j", DATA)),
        ("server", Peer("_admin_1", False, "lead@coordinator"),
         Sent("req", "hci_channel", "command", "_admin_1", "server", DATA)),
        ("server.j", Peer("server", True), Sent("req", "server_command", "submit_update", "basel.j", "server.j", DATA)),
        ("server", None, Sent("req", "task", "heart_beat", "basel", "server")),
    ):  # fmt: skip
        assert problem_of(me, line, sent) == "", sent


@pytest.mark.parametrize(
    ("me", "line", "sent", "why"),
    [
        # a site in the coordinator's name, in another site's, in the lead's
        ("server", BASEL, Sent("req", "admin", "admin", "server", "geneva"), WIRE),
        ("server", BASEL, Sent("req", "task", "heart_beat", "geneva", "server"), WIRE),
        ("server", BASEL, Sent("req", "hci_channel", "command", "_admin_1", "server"), WIRE),
        ("server", Peer("_admin_1", False, "basel"), Sent("req", "hci_channel", "command", "_admin_1", "server"), WIRE),
        ("server", Peer("server.j", False, "basel"), Sent("req", "admin", "admin", "server.j", "geneva"), WIRE),
        ("server", Peer("basel", False), Sent("req", "task", "register", "basel", "server"), WIRE),
        # a site to another site, directly and job to job
        ("server", BASEL, Sent("req", "admin", "admin", "basel", "geneva"), OTHER),
        ("server", BASEL, Sent("reply", "admin", "admin", "basel", "geneva"), OTHER),
        ("server", BASEL, Sent("return", "", "", "basel", "geneva"), OTHER),
        ("server", BASEL, Sent("req", "aux_communication", "__end_run__", "basel.j", "geneva.j", DATA), OTHER),
        ("server", BASEL, Sent("req", "server_command", "get_task", "basel.j", "server.k", DATA), OTHER),
        ("server", BASEL, Sent("req", "task", "register", "basel", "_admin_1"), OTHER),
        # at a site: from another site, though the coordinator passes it on
        ("basel", SERVER, Sent("req", "admin", "admin", "geneva", "basel"), WIRE),
        ("basel.j", SERVER, Sent("req", "aux_communication", "__end_run__", "geneva.j", "basel.j", DATA), WIRE),
        ("basel", Peer("geneva", False), Sent("req", "admin", "admin", "server", "basel"), WIRE),
        ("basel", SERVER, Sent("req", "admin", "admin", "server", "geneva"), OTHER),
        # a job in its site's name, or in the coordinator's
        ("basel", PRIVATE, Sent("req", "admin", "admin", "server", "basel"), WIRE),
        ("server", Peer("server.j", True), Sent("req", "admin", "admin", "server", "basel"), WIRE),
        # FLARE's other handlers
        ("basel", SERVER, Sent("req", "_net_manager", "process_info", "server", "basel"), USELESS),
        ("basel", SERVER, Sent("req", "cellnet.channel", "bulk", "server", "basel"), USELESS),
        ("basel", SERVER, Sent("req", "aux_communication", "fed.event", "server", "basel", DATA), USELESS),
        ("basel", SERVER, Sent("req", "aux_communication", "ObjectStreamer.Request", "server", "basel"), USELESS),
        ("basel.j", SERVER, Sent("req", "client_command", "abort", "server.j", "basel.j"), USELESS),
        ("basel.j", SERVER, Sent("req", "download_service__", "download_service__download", "server.j", "basel.j",
                                     DATA), USELESS),
        ("server", BASEL, Sent("req", "server_parent_listener", "get_clients", "basel", "server"), USELESS),
        ("server", BASEL, Sent("req", "aux_communication", "ObjectStreamer.Request", "basel", "server", DATA), USELESS),
        ("server", BASEL, Sent("req", "server_command", "abort", "basel.j", "server.j", DATA), USELESS),
        ("basel", SERVER, Sent("reply", "admin", "admin", "server", "basel"), USELESS),  # nothing was asked there
        ("basel", SERVER, Sent("strange", "admin", "admin", "server", "basel"), USELESS),
        ("server", BASEL, Sent("req", "task", "register", "basel.j.rank", "server"), NOBODY),
        ("server", BASEL, Sent("req", "task", "register", "", "server"), NOBODY),
        ("server", BASEL, Sent("req", ["task"], "register", "basel", "server"), ODD),  # type: ignore[arg-type]
        ("server", BASEL, Sent("req", "task", None, "basel", "server"), ODD),  # type: ignore[arg-type]
    ],
)  # fmt: skip
def test_what_no_study_needs_is_refused(me: str, line: Peer, sent: Sent, why: str) -> None:
    assert problem_of(me, line, sent) == why


def test_nobody_needs_a_shell() -> None:
    topics = set.union(*ADMIN_TOPICS.values())
    assert not [topic for topic in topics if topic.startswith("sys.")]
    assert not {pair for pairs in NEEDED.values() for pair in pairs if pair[0] == "_net_manager"}
    assert not [pair for pair in NEEDED if pair[0] == pair[1]]


def test_who_knocks_is_whose_connection_it_is(tmp_path: Path) -> None:
    """A site that calls itself by another's name at the door keeps nobody out, and one that was removed does not come
    in as another kind of client."""
    pytest.importorskip("nvflare")
    from nvflare.apis.event_type import EventType
    from nvflare.apis.fl_constant import FLContextKey, ReservedKey
    from nvflare.apis.fl_context import FLContext
    from nvflare.apis.fl_exception import NotAuthenticated

    from vitrail.deploy.transport.flare.admission import Doorkeeper
    from vitrail.deploy.transport.flare.components import COPY
    from vitrail.deploy.transport.flare.guard import SENDER

    there = {"approved": True, "removed": False}
    listed = {"basel": there, "geneva": there, "lyon": {**there, "removed": True}}
    (tmp_path / ipc.MEMBERS).write_text(json.dumps(listed))
    door, said = Doorkeeper(str(tmp_path)), list[dict[str, Any]]()
    door._tell = said.append  # type: ignore[method-assign]

    def knock(sender: str, name: str, kind: str = "regular") -> None:
        context, peer = FLContext(), FLContext()
        peer.set_prop(ReservedKey.IDENTITY_NAME, name, private=False, sticky=True)
        peer.set_prop(COPY, f"copy of {sender}", private=False, sticky=True)
        context.set_peer_context(peer)
        context.set_prop(FLContextKey.CLIENT_TYPE, kind, private=False, sticky=False)
        before = SENDER.set(sender)
        door.handle_event(EventType.CLIENT_REGISTER_RECEIVED, context)
        SENDER.reset(before)

    knock("basel", "geneva")
    knock("geneva", "geneva")
    assert door.seen == {"basel": "copy of basel", "geneva": "copy of geneva"}
    with pytest.raises(NotAuthenticated, match="lyon is refused: it was removed"):
        knock("lyon", "basel", "relay")
    knock("_admin_1", "lead@coordinator", "admin")
    assert [event["event"] for event in said] == ["entered", "entered", "refused"]


# apps


def packed(files: dict[str, bytes]) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as file:
        for name, content in files.items():
            file.writestr(name, content)
    return made.getvalue()


def signed(study: Path, name: str, files: dict[str, bytes]) -> dict[str, bytes]:
    """As FLARE signs an app, by whom `name` is of."""
    pytest.importorskip("nvflare")
    from cryptography.hazmat.primitives.serialization import load_pem_private_key
    from nvflare.lighter.utils import sign_content

    key = load_pem_private_key((study / "keys" / f"{name}.key").read_bytes(), None)
    marks = {file: sign_content(content, key) for file, content in files.items()}
    shown = {".__nvfl_sig.json": json.dumps(marks).encode()}
    return {**files, **shown, ".__nvfl_submitter.crt": (study / "keys" / f"{name}.crt").read_bytes()}


def test_an_app_is_looked_at_before_it_is_unpacked(tmp_path: Path) -> None:
    pytest.importorskip("nvflare")
    from vitrail.deploy.transport.flare.guard import MOST_UNPACKED, app_problem

    study = tmp_path / "study.toml"
    study.write_text(packaged("heart_disease.toml").read_text())
    folder = enrolment.invite(study, ["Basel", "Geneva", "Lyon"], "127.0.0.1:8102")
    root = (folder / "authority" / "cert.pem").read_bytes()
    app = {"config.json": b"{}"}
    good = signed(folder, "lead", app)
    assert app_problem(packed(good), root) == ""
    assert "has more than" in app_problem(packed({**good, "bomb": b"\0" * (MOST_UNPACKED + 1)}), root)
    assert "has more than" in app_problem(packed({str(n): b"" for n in range(33)}), root)
    assert "signature is not valid" in app_problem(packed({**good, "config.json": b"[]"}), root)
    assert "signature is not valid" in app_problem(packed({**good, "more.json": b"[]"}), root)
    assert "outside its own folder" in app_problem(packed({**good, "../config.json": b"{}"}), root)
    assert app_problem(packed(signed(folder, "coordinator", app)), root) == "the app is not signed by the lead"
    assert "signature is not valid" in app_problem(packed(app), root)
    for data in (b"", b"no zip", None, packed({})):
        assert app_problem(data, root)


# reports


def test_a_flood_is_counted_and_not_written() -> None:
    now, lines = [0.0], list[str]()
    refusals = Refusals(lines.append, lambda: now[0])
    report = {
        "channel": "admin\x1b[2J\n" + "x" * 500,
        "topic": "sys.shell",
        "origin": "basel",
        "why": "no study needs this kind of message",
    }
    for _ in range(1000):
        refusals.add(report)
    assert len(lines) == AT_ONCE
    now[0] += RARE
    refusals.add({**report, "more": 7})
    refusals.add({"more": "many", "channel": ["x"]})
    assert len(lines) == AT_ONCE + 1
    assert lines[-1].endswith(f" {1000 - AT_ONCE + 7} more since the previous line.")
    assert all("\x1b" not in line and "\n" not in line and len(line) < 500 for line in lines)


def test_a_pipe_does_not_believe_who_writes_to_it(tmp_path: Path) -> None:
    listener = ipc.Listener()

    def received(send: Any, most: int = 100) -> tuple[dict[str, Any], bytes]:
        with ipc.connect(listener.place) as theirs, listener.accept() as ours:
            send(theirs.end)
            return ours.get(most)

    def told(head: bytes, *files: int) -> Any:
        packet = len(head).to_bytes(4, "little") + head
        return lambda end: socket.send_fds(end, [packet], list(files)) if files else end.send(packet)

    try:
        for head in (b"[]", b"{", b"\xff", b"7"):
            with pytest.raises(ValueError, match=r"."):
                received(told(head))
        huge = os.memfd_create("huge")
        os.ftruncate(huge, 1 << 50)  # takes no memory until it is read
        assert received(told(b"{}", huge)) == ({}, bytes(100))
        ends = os.pipe()
        with pytest.raises(ValueError, match="file in memory"):
            received(told(b"{}", ends[0]))
    finally:
        listener.close()


def test_a_long_temporary_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    long = tmp_path / ("x" * 120)
    long.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(long))
    listener = ipc.Listener()
    try:
        with ipc.connect(listener.place) as end:
            end.put({"a": 1})
            assert listener.accept().get() == ({"a": 1}, b"")
    finally:
        listener.close()


def test_a_jobs_command_keeps_its_words_apart() -> None:
    pytest.importorskip("nvflare")
    from nvflare.apis.fl_constant import FLContextKey
    from nvflare.apis.fl_context import FLContext
    from nvflare.apis.job_launcher_spec import JobProcessArgs

    from vitrail.deploy.transport.flare import process as flare_process

    context, begun = FLContext(), list[list[str]]()
    given = {
        JobProcessArgs.EXE_MODULE: ("-m", "nvflare.private.fed.app.client.worker_process"),
        JobProcessArgs.WORKSPACE: ("-m", "/srv/St Mary's Haus/flare"),
        JobProcessArgs.OPTIONS: ("--set", " a=1 b=2"),
        JobProcessArgs.AUTH_TOKEN: ("-t", "secret"),
    }
    context.set_prop(FLContextKey.JOB_PROCESS_ARGS, given, private=True, sticky=False)
    env = dict[str, str]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flare_process, "spawn_process", lambda words, e: (begun.append(words), env.update(e)))
        patch.setattr(flare_process, "ProcessHandle", lambda **_: None)
        flare_process.SiteLauncher().launch_job({}, context)
    assert begun[0][-6:] == [
        "nvflare.private.fed.app.client.worker_process", "-m", "/srv/St Mary's Haus/flare", "--set", "a=1", "b=2"
    ]  # fmt: skip
    assert "secret" in env.values()
    assert "secret" not in begun[0]
