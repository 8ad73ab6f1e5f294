"""FLARE's own channels, over real FLARE: what a site or the coordinator sends there reaches nobody's files.

One federation in a folder with spaces and umlauts, behind a very long path. `St Mary` and `late` run what we ship. Of
the other two FLARE's processes are as they were before: `open` without guard and box, `boxed` without the guard. So
each defence is seen to be the one that holds. `evil` attacks; first the coordinator does, too.
"""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

import vitrail as vt
from tests.support.deploy.channels import VICTIMS, Stolen, attack, on, requests
from tests.support.deploy.federation import PATIENCE, Federation
from vitrail.deploy.audit.outbox import Outbox
from vitrail.deploy.identity import enrolment
from vitrail.deploy.transport import ipc
from vitrail.deploy.transport.flare import channels as flare_channels
from vitrail.deploy.transport.flare.channels import COORDINATOR, HANDLERS, JOB, NEEDED, SITE, SITE_JOB

pytest.importorskip("nvflare")
PROCESSES = {"client_train": SITE, "worker_process": SITE_JOB, "server_train": COORDINATOR, "runner_process": JOB}
AT_COORDINATOR = (
    ("_net_manager", "cells"), ("server_parent_listener", "get_clients"), ("hci_channel", "command"),
    ("aux_communication", "ObjectStreamer.Request"), ("server_command", "abort"), ("cellnet.channel", "bulk"),
)  # fmt: skip


def refused(federation: Federation, site: str) -> str:
    return "\n".join(e.refused for e in Outbox(federation.home(site)).entries() if e.kind == ipc.NOT_OURS)


def check_stolen(federation: Federation, stolen: Stolen, bomb_refused: bool) -> None:
    """From `open` the rows; from `boxed` no file, though FLARE answers; from a site as we ship it nothing at all, but
    to whom it may get jobs from, that this is none."""
    rows = federation.data("open").read_text().splitlines()
    assert rows[1] in stolen["open", "sys.shell cat"][1]
    assert "sys.info" in {what for (v, what), (code, _) in stolen.items() if v == "open" and code == "ok"}
    assert "Permission denied" in stolen["boxed", "sys.shell cat"][1]
    assert stolen["boxed", "sys.report_env"][0] == "ok"
    boxed = [answer for (v, _), (_, answer) in stolen.items() if v == "boxed"]
    assert not any(line in answer for line in federation.data("boxed").read_text().splitlines() for answer in boxed)
    ours = {what: (code, answer) for (v, what), (code, answer) in stolen.items() if v == "St Mary"}
    answers = {what: answer for what, (code, answer) in ours.items() if code != "timeout"}
    assert answers == ({"bomb": "the app has more than 32 files or 1048576 bytes"} if bomb_refused else {})


def test_an_evil_coordinator_reads_nothing(federation: Federation, waiting: Any) -> None:
    workspace = federation.folder / "flare" / "coordinator"
    check_stolen(federation, attack(federation, workspace, on(federation, *VICTIMS)), bomb_refused=True)
    written = refused(federation, "St Mary")
    assert "topic sys.shell, from server" in written
    assert "channel _net_manager, topic process_info, from server" in written
    assert "Refused a message that belongs to no study" in federation.log("St Mary").read_text()
    assert "came over FLARE's own channels" in federation.do("outbox", federation.kit("St Mary"))


def test_an_evil_site_reads_nothing_through_an_evil_coordinator(federation: Federation, waiting: Any) -> None:
    workspace = federation.kit("evil") / "flare"
    plans = on(federation, *VICTIMS)
    check_stolen(federation, attack(federation, workspace, plans), bomb_refused=False)
    assert f"from {enrolment.identity_of('evil')}" in refused(federation, "St Mary")


def test_what_is_not_shut_in_is_written_down(federation: Federation, waiting: Any) -> None:
    for site in VICTIMS:
        kinds = [e.kind for e in Outbox(federation.home(site)).entries()]
        assert ("no sandbox" in kinds) == (site == "open")
        assert ("are not confined (--no-sandbox)" in federation.log(site).read_text()) == (site == "open")
        assert json.loads((federation.home(site) / "accepted.json").read_text()).get("sandbox", True) == (
            site != "open"
        )


def test_an_honest_coordinator_passes_nothing_on(federation: Federation, honest: Any) -> None:
    """Not even to sites that would answer; in nobody's name; and it answers no questions about itself."""
    workspace = federation.kit("evil") / "flare"
    told, shut = requests(federation, "open")["sys.shell cat"], requests(federation, "St Mary")["sys.info"]
    forged = {("open", f"as {name}"): {**told, "claimed": name} for name in ("server", "server.job", "late-1")}
    forged["St Mary", "shutdown"] = {**shut, "admin": ["train.shutdown", ""], "claimed": "server"}
    for (_, topic), (code, _) in attack(federation, workspace, forged).items():
        assert code == "timeout", topic
    found = federation.wait("serve says so", lambda: strange(federation)[3:])
    assert all("did not come over its sender's connection" in text for text in found)

    plans = on(federation, *VICTIMS)
    for victim in VICTIMS:
        there = {"channel": "credential_manager", "topic": "key_exchange", "target": enrolment.identity_of(victim)}
        plans[victim, "certificate"] = there
    for channel, topic in AT_COORDINATOR:
        plans["coordinator", channel] = {"target": "server", "channel": channel, "topic": topic}
    stolen = attack(federation, workspace, plans)
    assert {key for key, (code, _) in stolen.items() if code != "timeout"} == set(), stolen
    assert any("are not forwarded" in text for text in strange(federation))
    assert len(federation.processes(federation.kit("St Mary"))) >= 2  # FLARE's and its keeper


def strange(federation: Federation) -> list[str]:
    return [e["text"] for e in federation.events() if e["event"] == ipc.NOT_OURS]


@pytest.fixture(scope="module")
def ended(federation: Federation, honest: subprocess.Popen[bytes]) -> Path:
    """The study, among such neighbours: one of them tries to end the others' jobs and to read from them."""
    federation.join("late")
    workspace = federation.kit("evil") / "flare"
    job = federation.wait("a job", lambda: [p.name for p in workspace.glob("????????-*-????????????")])[0]
    at = {"St Mary": f"{enrolment.identity_of('St Mary')}.{job}", "coordinator": f"server.{job}"}
    tried = (("client_command", "abort"), ("server_command", "abort"), ("aux_communication", "__end_run__"),
             ("download_service__", "download_service__download"), ("_net_manager", "stop_cell"))  # fmt: skip
    plans = {(whose, f"{channel} {topic}"): {"channel": channel, "topic": topic, "target": target}
             for whose, target in at.items() for channel, topic in tried}  # fmt: skip
    assert {code for code, _ in attack(federation, workspace, plans).values()} == {"timeout"}
    federation.wait_end(honest, "serve", 2 * PATIENCE)
    federation.wait("all sites end", lambda: not federation.processes())
    return federation.runs()[-1]


def test_a_study_ends_in_such_a_folder(federation: Federation, ended: Path) -> None:
    run = vt.Run.load(ended)
    assert sorted(run.sites) == sorted(federation.sites)
    assert "Not ours" not in federation.log("late").read_text(), "what a study needs was refused"


def test_everything_that_flare_registers_is_on_the_list(federation: Federation, ended: Path) -> None:
    """In the processes of `late` and of the coordinator."""
    places = [federation.kit("late") / "flare", federation.folder / "flare" / "coordinator"]
    lines = [json.loads(line) for p in places for line in (p / "registered.jsonl").read_text().splitlines()]
    seen = {(PROCESSES[module.rpartition(".")[2]], channel, topic) for module, channel, topic in lines}
    assert {process for process, *_ in seen} == set(PROCESSES.values())
    assert {s for s in seen if s[1:] not in HANDLERS[s[0]]} == set(), "FLARE has a new handler: decide on it"
    assert len(seen) > 100
    needed = {pair for pairs in NEEDED.values() for pair in pairs if pair[0] != "aux_communication"}
    listed = {pair for pairs in HANDLERS.values() for pair in pairs}
    assert {(c, t) for c, t in needed if (c, t) not in listed and (c, "*") not in listed} == set()


REGISTERED = {  # file of nvflare 2.9 -> lines that register a handler, in parts that a process of ours may load
    "fuel/f3/cellnet/cell.py": 3,
    "fuel/f3/cellnet/core_cell.py": 4,
    "fuel/f3/cellnet/net_agent.py": 21,
    "fuel/f3/communicator.py": 1,
    "fuel/f3/stream_cell.py": 1,
    "fuel/f3/streaming/blob_streamer.py": 1,
    "fuel/f3/streaming/byte_receiver.py": 1,
    "fuel/f3/streaming/byte_streamer.py": 2,
    "fuel/f3/streaming/download_service.py": 2,
    "fuel/f3/streaming/tools/receiver.py": 1,
    "fuel/hci/client/api.py": 3,
    "fuel/hci/server/hci.py": 2,
    "private/fed/app/client/sub_worker_process.py": 1,
    "private/fed/client/admin.py": 1,
    "private/fed/client/client_engine.py": 3,
    "private/fed/client/client_run_manager.py": 2,
    "private/fed/client/client_runner.py": 5,
    "private/fed/client/command_agent.py": 2,
    "private/fed/client/communicator.py": 2,
    "private/fed/server/fed_server.py": 6,
    "private/fed/server/server_command_agent.py": 2,
    "private/fed/server/server_engine.py": 3,
    "private/fed/server/server_runner.py": 3,
    "private/stream_runner.py": 2,
    "apis/aux_spec.py": 1,
    "apis/utils/reliable_message.py": 3,
    "widgets/fed_event.py": 1,
}


def test_the_source_registers_what_was_read() -> None:
    """By counting: a new version of FLARE that registers more, or elsewhere, has to be read again."""
    import nvflare

    root, found = Path(nvflare.__file__).parent, dict[str, int]()
    call = re.compile(
        r"(?<!def )\b(register_request_cb|register_aux_message_handler|register_stream_processing|register_blob_cb"
        r"|register_callback|register_objects_cb|register_message_receiver|register_cb)\("
    )
    for part in ("fuel", "private", "apis", "widgets"):
        for file in sorted((root / part).rglob("*.py")):
            if count := sum(bool(call.search(line)) for line in file.read_text().splitlines()):
                found[str(file.relative_to(root))] = count
    assert found == REGISTERED


def test_the_leads_name(federation: Federation) -> None:
    assert enrolment.LEAD == flare_channels.LEAD_NAME
