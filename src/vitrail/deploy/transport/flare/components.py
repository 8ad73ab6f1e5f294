"""What runs in NVIDIA FLARE's processes, and how they are started (only this file, admission.py and those called
flare_* know FLARE). They carry bytes between two of ours and look into none of them.

    vitrail serve  --socket--  Relay in FLARE's job  ==TLS==  SiteRelay in FLARE's job  --socket--  vitrail join

Rows, models and private state are in our processes only. FLARE's processes are shut in (deploy/transport/sandbox.py),
and what they receive passes a guard (deploy/transport/flare/guard.py). At a site three files of the site's own
(deploy/transport/flare/workspace.py) let FLARE run nothing but SiteRelay, force Outgoing on whatever it answers, and
refuse code, shells and log streaming. Doorkeeper (deploy/transport/flare/admission.py) stands at the coordinator's
door.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from socketserver import ThreadingUnixStreamServer
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from nvflare.apis.controller_spec import ClientTask, Task
from nvflare.apis.event_type import EventType
from nvflare.apis.executor import Executor
from nvflare.apis.filter import Filter
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.impl.controller import Controller
from nvflare.apis.shareable import Shareable, make_reply
from nvflare.apis.signal import Signal
from nvflare.fuel.f3.drivers.base_driver import BaseDriver
from nvflare.fuel.f3.drivers.connector_info import ConnectorInfo
from nvflare.fuel.f3.drivers.socket_conn import ConnectionHandler, SocketConnection

from vitrail.deploy.transport import ipc, sandbox, supervisor
from vitrail.deploy.transport.flare import guard as flare_guard
from vitrail.deploy.transport.flare import limits as flare_limits
from vitrail.deploy.transport.flare import log as flare_log
from vitrail.deploy.transport.flare import process as flare_process
from vitrail.deploy.transport.ipc import Pipe
from vitrail.storage.atomic_files import private_folder

BODY = "vitrail"  # the one key of a message that holds anything
PERIOD = 0.08  # seconds between looks for something to do; each costs the processor, also while nobody asks
BEAT = 3.0  # seconds between signs of life of a site
QUIET = 4 * BEAT  # after so long a site counts as gone
REFUSED = "REFUSED"  # the code of an answer that was refused before it was read
COPY = "VITRAIL_COPY"  # HOME.START: which copy of a kit this is, known to the site's home, and which start of it


class Relay(Controller):
    """At the coordinator, in FLARE's job: carries questions out and answers back."""

    def __init__(self) -> None:
        super().__init__(task_check_period=PERIOD)
        self.end: Pipe | None = None
        self.lock = threading.Lock()
        self.standing: dict[str, tuple[int, Task]] = {}  # site -> the number of its question, and its task
        flare_limits.install_from_environment(self._refuse)

    def start_controller(self, fl_ctx: FLContext) -> None:
        self.communicator._task_check_period = PERIOD  # FLARE 2.9.0 sets another attribute than it reads

    def stop_controller(self, fl_ctx: FLContext) -> None:
        """Nothing is held."""

    def control_flow(self, abort_signal: Signal, fl_ctx: FLContext) -> None:
        with ipc.connect(os.environ[ipc.PLACE]) as self.end:
            self._tell({"event": "relay", "job": fl_ctx.get_job_id()})
            with contextlib.suppress(EOFError, OSError):  # whoever asked is gone
                while not abort_signal.triggered:
                    if self.end.poll(0.2):
                        head, body = self.end.get()
                        if head["do"] == "end":
                            return
                        self._ask(head["site"], head["number"], body, fl_ctx)

    def _ask(self, site: str, number: int, body: bytes, fl_ctx: FLContext) -> None:
        self._give_up(site)
        data = Shareable()
        data[BODY] = body

        def heard(client_task: ClientTask, fl_ctx: FLContext) -> None:
            result = client_task.result
            code = result.get_return_code() if result is not None else ReturnCode.ERROR
            answer = result.get(BODY) if result is not None else None
            client_task.result = None
            self._tell({"site": site, "number": number, "code": str(code)}, answer or b"")

        task = Task(name="ask", data=data, result_received_cb=heard)
        self.standing[site] = number, task
        self.send(task, fl_ctx, targets=[site])

    def _give_up(self, site: str) -> None:
        _, task = self.standing.pop(site, (0, None))
        if task is not None and task.completion_status is None:
            self.cancel_task(task)

    def _refuse(self, site: str, size: int) -> None:
        """What a site sent is longer than any answer, or cannot be unpacked."""
        if site in self.standing:
            number, _ = self.standing[site]
            self._give_up(site)  # or it would send the same again and again
            self._tell({"site": site, "number": number, "code": REFUSED, "bytes": size})

    def _tell(self, head: dict[str, Any], body: bytes = b"") -> None:
        with self.lock, contextlib.suppress(OSError):
            assert self.end is not None
            self.end.put(head, body)

    def process_result_of_unknown_task(
        self, client: Any, task_name: str, client_task_id: str, result: Shareable, fl_ctx: FLContext
    ) -> None:
        """A late answer to a question that was given up: nobody waits for it."""


class SiteRelay(Executor):
    """At a site, in FLARE's job: hands a question to the site's own process and its answer back."""

    def __init__(self) -> None:
        super().__init__()
        flare_limits.install_from_environment()

    def execute(self, task_name: str, shareable: Shareable, fl_ctx: FLContext, abort_signal: Signal) -> Shareable:
        body = shareable.get(BODY)
        if task_name != "ask" or not isinstance(body, bytes):
            return make_reply(ReturnCode.BAD_TASK_DATA)
        try:
            with ipc.connect(os.environ[ipc.PLACE]) as end:
                end.put({"job": fl_ctx.get_job_id()}, body)
                while not end.poll(0.2):
                    if abort_signal.triggered:
                        return make_reply(ReturnCode.TASK_ABORTED)
                _, answer = end.get()
        except (OSError, EOFError):
            return make_reply(ReturnCode.EXECUTION_EXCEPTION)
        reply = make_reply(ReturnCode.OK)
        reply[BODY] = answer
        return reply


class Outgoing(Filter):
    """At a site, forced on every job by the site's own privacy.json: only our bytes leave, and nothing beside them."""

    def process(self, shareable: Shareable, fl_ctx: FLContext) -> Shareable:
        code, body = shareable.get_return_code(), shareable.get(BODY)
        out = make_reply(code if isinstance(code, str) else ReturnCode.ERROR)
        if isinstance(body, bytes):
            out[BODY] = body
        return out


class Doorbell(FLComponent):
    """At a site: says which copy of the kit is at the door."""

    def __init__(self) -> None:
        super().__init__()
        flare_limits.install_from_environment()

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.BEFORE_CLIENT_REGISTER:
            fl_ctx.set_prop(COPY, os.environ.get(COPY, ""), private=False, sticky=True)


class PrivateLine(BaseDriver):
    """Between FLARE's own processes of one machine. FLARE would listen on a port that every user and process of the
    machine can dial; this is a socket in the folder of ours (deploy/transport/ipc.py), which only this user can
    open."""

    @staticmethod
    def supported_transports() -> list[str]:
        return [ipc.SCHEME]

    @staticmethod
    def capabilities() -> dict[str, Any]:
        return {}

    @staticmethod
    def get_urls(scheme: str, resources: dict[str, Any]) -> tuple[str, str]:
        place = Path(os.environ[ipc.PLACE]).parent / f"{os.getpid()}"
        return (f"{scheme}://0{quote(str(place))}",) * 2

    def listen(self, connector: ConnectorInfo) -> None:
        self.connector = connector
        place = _place(connector)
        place.unlink(missing_ok=True)  # of a process that had this number before
        with ThreadingUnixStreamServer(str(place), ConnectionHandler) as self.server:
            self.server.daemon_threads = True
            # what FLARE's handler of a connection looks for
            self.server.driver, self.server.connector, self.server.ssl_context = self, connector, None  # type: ignore[attr-defined]
            self.server.serve_forever()

    def connect(self, connector: ConnectorInfo) -> None:
        self.connector = connector
        end = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        end.connect(str(_place(connector)))
        line = SocketConnection(end, connector)
        self.add_connection(line)
        line.read_loop()
        self.close_connection(line)

    def shutdown(self) -> None:
        self.close_all()
        if (server := getattr(self, "server", None)) is not None:
            server.shutdown()


def _place(connector: ConnectorInfo) -> Path:
    return Path(unquote(connector.params["path"]))


def start_coordinator(
    workspace: Path, socket: str, longest: int | None = None, *, boxed: bool = True
) -> subprocess.Popen[bytes]:
    """FLARE's process at the coordinator, which listens on the study's port and dials nobody. `longest`: bytes that no
    answer is longer than."""
    words = ["-s", "fed_server.json", "--set", "secure_train=true", "org=coordinator", "config_folder=config"]
    port, store = _port(workspace / "startup" / "fed_server.json"), str(workspace.resolve().parent / "store")
    box = sandbox.Sandbox((), (store,), bind=(port,)) if boxed else None
    return _start(
        "nvflare.private.fed.app.server.server_train", workspace, words, {ipc.PLACE: socket} | _longest(longest), box
    )


def start_site(
    workspace: Path, who: str, socket: str, copy: str, longest: int | None = None, *, boxed: bool = True
) -> subprocess.Popen[bytes]:
    """FLARE's process at a site, which dials the coordinator's port, or a proxy's, and listens on none. `longest`:
    bytes that no question is longer than."""
    words = ["-s", "fed_client.json", "--set", "secure_train=true", f"uid={who}", "org=site", "config_folder=config"]
    words.append(f"heart_beat_interval={BEAT}")
    ports = {_port(workspace / "startup" / "fed_client.json"), *_proxies()}
    box = sandbox.Sandbox((), (), connect=tuple(sorted(ports))) if boxed else None
    environment = {ipc.PLACE: socket, COPY: copy} | _longest(longest)
    return _start("nvflare.private.fed.app.client.client_train", workspace, words, environment, box)


def _longest(count: int | None) -> dict[str, str]:
    return {} if count is None else {flare_limits.LONGEST: str(count)}


def _start(
    module: str, workspace: Path, words: list[str], environment: dict[str, str], box: sandbox.Sandbox | None
) -> subprocess.Popen[bytes]:
    """It ends with this process, and so do its own children; its words go to a file."""
    workspace = workspace.resolve()
    supervisor.end_left(workspace)
    transfer = private_folder(workspace / "transfer")
    env = {k: v for k, v in os.environ.items() if k in PASSED} | environment | SPEED | {"TMPDIR": str(transfer)}
    command = flare_process.command(module, ["-m", str(workspace), *words])
    if box is not None:
        own = str(workspace), str(Path(environment[ipc.PLACE]).parent)
        box = box._replace(read=sandbox.python_places(workspace), write=(*box.write, *own))
        command = sandbox.command(box, command)
    return supervisor.start(command, workspace, env, workspace / "console.txt")


def _port(startup: Path) -> int:
    return int(json.loads(startup.read_text())["servers"][0]["service"]["target"].rpartition(":")[2])


def _proxies() -> set[int]:
    """The ports of the proxies that are passed on."""
    addresses = [urlsplit(os.environ[name]) for name in ("http_proxy", "https_proxy") if os.environ.get(name)]
    return {proxy.port or (443 if proxy.scheme == "https" else 80) for proxy in addresses}


# memory that was had for one message is kept for the next, but not by every thread apart; messages go in larger pieces
SPEED = {"MALLOC_ARENA_MAX": "1", "MALLOC_MMAP_THRESHOLD_": str(32 << 20), "MALLOC_TRIM_THRESHOLD_": str(64 << 20)}
SPEED |= {"NVFLARE_STREAMING_CHUNK_SIZE": str(2 << 20), "OMP_NUM_THREADS": "1"}
PASSED = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "PYTHONPATH", "VIRTUAL_ENV", "http_proxy", "https_proxy", "no_proxy")
JOB = {
    "meta.json": {"name": "vitrail", "resource_spec": {}, "min_clients": 1},
    "app/config/config_fed_server.json": {
        "format_version": 2,
        "server": {"task_request_interval": PERIOD},
        "workflows": [{"id": "relay", "path": "vitrail.deploy.transport.flare.components.Relay", "args": {}}],
        "components": [],
    },
    "app/config/config_fed_client.json": {
        "format_version": 2,
        "executors": [
            {"tasks": ["*"], "executor": {"path": "vitrail.deploy.transport.flare.components.SiteRelay", "args": {}}}
        ],
        "task_result_filters": [],
        "task_data_filters": [],
        "components": [],
    },
}


class Jobs:
    """Jobs are submitted and ended by the lead's kit."""

    def __init__(self, workspace: Path, place: Path) -> None:
        """`place`: where job folders are written before they are submitted."""
        from nvflare.fuel.flare_api.flare_api import new_secure_session

        flare_guard.install()
        self.place = place
        flare_log.redirect(workspace / "log.txt")
        self.session = new_secure_session("lead@coordinator", str(workspace), timeout=20.0)

    def submit(self, sites: Sequence[str]) -> str:
        meta = {**JOB["meta.json"], "deploy_map": {"app": ["server", *sites]}}
        for name, content in {**JOB, "meta.json": meta}.items():
            path = self.place / "vitrail" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(content))
        return str(self.session.submit_job(str(self.place / "vitrail")))

    def end(self, job: str) -> None:
        with contextlib.suppress(Exception):  # it may have ended by itself
            self.session.abort_job(job)

    def shut_out(self, who: str) -> None:
        self.session.disable_client(who)

    def close(self) -> None:
        with contextlib.suppress(Exception):
            self.session.close()
