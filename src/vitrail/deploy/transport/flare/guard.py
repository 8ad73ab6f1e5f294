"""The one place through which every message passes that a FLARE process of ours receives, before FLARE looks into it.

`install` puts it around FLARE's core cell: what `flare_channels` does not name is dropped unread and unanswered, and
reported to `vitrail join` or `vitrail serve`. At a site it also leaves FLARE only the requests about jobs that a study
needs, and looks at an app's size and signature before a byte of it is unpacked.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import os
import queue
import threading
import time
import zipfile
from contextvars import ContextVar
from pathlib import Path, PurePosixPath
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from nvflare.fuel.f3.cellnet import cell as flare_cell
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.streaming.stream_const import StreamHeaderKey
from nvflare.lighter.tool_consts import NVFLARE_SIG_FILE, NVFLARE_SUBMITTER_CRT_FILE
from nvflare.lighter.utils import verify_content
from nvflare.private.admin_defs import error_reply
from nvflare.private.fed.client.admin import FedAdminAgent
from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors
from nvflare.private.fed.client.training_cmds import DeployProcessor

from vitrail.deploy.transport import ipc
from vitrail.deploy.transport.flare.channels import (
    ADMIN_TOPICS,
    DATA,
    LEAD_NAME,
    MOST_ADMIN,
    ROOT,
    STREAM,
    MessageHeader,
    Peer,
    problem_of,
    role_of,
)

MOST_FILES, MOST_UNPACKED = 32, 1 << 20  # of an app; ours has four files of a few hundred bytes
PAUSE = 0.2  # seconds between two reports


class Reporter:
    """Tells our own process what was refused. A flood is counted, not told one by one."""

    def __init__(self) -> None:
        self.waiting: queue.Queue[dict[str, Any]] = queue.Queue(50)
        self.more = 0

    def start(self) -> None:
        if os.environ.get(ipc.PLACE):
            threading.Thread(target=self._run, daemon=True).start()

    def add(self, sent: MessageHeader, peer: str, why: str) -> None:
        words = {key: str(value)[:100] for key, value in sent._asdict().items()}
        try:
            self.waiting.put_nowait({"event": ipc.NOT_OURS, **words, "peer": peer[:100], "why": why})
        except queue.Full:
            self.more += 1

    def _run(self) -> None:
        while True:
            report = self.waiting.get()
            more, self.more = self.more, 0
            with contextlib.suppress(OSError), ipc.connect(os.environ[ipc.PLACE]) as end:
                end.put({**report, "more": more})
            time.sleep(PAUSE)


REPORTER = Reporter()
# whose message is being handled: the name that fits its connection, not what the message says of itself further in
SENDER: ContextVar[str] = ContextVar("sender", default="")


def too_long(who: str, size: int) -> None:
    """What deploy/transport/flare/limits.py refused; a size below 0 stands for what cannot be unpacked."""
    why = f"it has {size} bytes or more, more than any agreed message" if size > 0 else "it cannot be unpacked"
    REPORTER.add(MessageHeader("", "stream", "", who, ""), who, why)


def install() -> None:
    """In this process, before FLARE begins; a second time changes nothing."""
    receive = CoreCell.process_message
    if hasattr(receive, "__wrapped__"):
        return

    @functools.wraps(receive)
    def process_message(self: CoreCell, endpoint: Any, connection: Any, app_id: int, message: Any) -> None:
        sent, line = _envelope(message), _line(endpoint, connection)
        why = problem_of(self.my_info.fqcn, line, sent)
        if not why and sent.channel == "admin" and len(message.payload or b"") > MOST_ADMIN:
            why = f"it has {len(message.payload)} bytes, but a request about a job has at most {MOST_ADMIN}"
        if why:
            REPORTER.add(sent, line.peer if line else "", why)
            return
        before = SENDER.set(sent.origin)
        try:
            receive(self, endpoint, connection, app_id, message)
        finally:
            SENDER.reset(before)

    CoreCell.process_message = process_message
    # FLARE ends the coordinator's job when a site sends what cannot be decoded, or says that something was too large
    flare_cell._is_server_job_cell = lambda _: False
    _trim_requests()
    REPORTER.start()


def _envelope(message: Any) -> MessageHeader:
    headers = message.headers or {}
    kind, channel, topic, origin, destination = (
        headers.get(key)
        for key in (
            *(MessageHeaderKey.MSG_TYPE, MessageHeaderKey.CHANNEL, MessageHeaderKey.TOPIC),
            *(MessageHeaderKey.ORIGIN, MessageHeaderKey.DESTINATION),
        )
    )
    if kind == "return":  # it has neither
        channel, topic = channel or "", topic or ""
    if kind == "req" and (channel, topic) == (STREAM, DATA):
        inner = headers.get(StreamHeaderKey.CHANNEL), headers.get(StreamHeaderKey.TOPIC)
        return MessageHeader(kind, *inner, origin, destination, DATA)  # type: ignore[arg-type]
    return MessageHeader(kind, channel, topic, origin, destination)  # type: ignore[arg-type]


def _line(endpoint: Any, connection: Any) -> Peer | None:
    """None: from this very process."""
    connector = getattr(connection, "connector", None)
    if connector is None or connector.driver is None:
        return None
    certificate = connection.get_conn_properties().get("peer_cn")
    return Peer(endpoint.name, connector.params.get("scheme") == ipc.SCHEME, certificate or "")


def _trim_requests() -> None:
    """At a site, requests about jobs: those that a study needs, each from whom it needs it."""
    wanted = set.union(*ADMIN_TOPICS.values())
    processors = [p for p in ClientRequestProcessors.request_processors if set(p.get_topics()) <= wanted]
    processors = [CheckedDeploy() if isinstance(p, DeployProcessor) else p for p in processors]
    ClientRequestProcessors.request_processors[:] = processors
    dispatch = FedAdminAgent._dispatch_request

    @functools.wraps(dispatch)
    def dispatch_request(self: FedAdminAgent, request: Any) -> Any:
        topic = getattr(request.payload, "topic", "")
        if topic not in ADMIN_TOPICS.get(role_of(_envelope(request).origin), ()):
            REPORTER.add(_envelope(request)._replace(topic=str(topic)), "", "no study needs this kind of message")
            return None
        return dispatch(self, request)

    FedAdminAgent._dispatch_request = dispatch_request


class CheckedDeploy(DeployProcessor):
    """An app is unpacked only if it is small, of plain files, and signed by this study's lead."""

    def process(self, req: Any, app_ctx: Any) -> Any:
        root = Path(app_ctx.args.workspace) / "startup" / "rootCA.pem"
        if why := app_problem(req.body, root.read_bytes()):
            REPORTER.add(MessageHeader("req", "admin", "train.deploy", ROOT, ""), ROOT, why)
            return error_reply(why)
        return super().process(req, app_ctx)


def app_problem(data: object, root: bytes) -> str:
    """Why this app is not unpacked; empty where it may be. It is read in memory, each file up to its stated size."""
    try:
        if not isinstance(data, bytes):
            return "the app is not a file"
        with zipfile.ZipFile(io.BytesIO(data)) as packed:
            listed = packed.infolist()
            if len(listed) > MOST_FILES or sum(entry.file_size for entry in listed) > MOST_UNPACKED:
                return f"the app has more than {MOST_FILES} files or {MOST_UNPACKED} bytes"
            files = {PurePosixPath(e.filename): packed.read(e) for e in listed if not e.is_dir()}
        if len({e.filename for e in listed}) < len(listed) or any(".." in name.parts for name in files):
            return "the app has files outside its own folder"
        return "" if _is_signed(files, x509.load_pem_x509_certificate(root)) else "the app is not signed by the lead"
    except (ValueError, KeyError, TypeError, AttributeError, InvalidSignature, zipfile.BadZipFile, RuntimeError,
            NotImplementedError, OSError, EOFError):  # fmt: skip
        return "the app cannot be read, or its signature is not valid"


def _is_signed(files: dict[PurePosixPath, bytes], root: x509.Certificate) -> bool:
    """Each file, by a certificate of the lead's that this study's authority signed."""
    if not files:
        return False
    for name, content in files.items():
        if name.name in (NVFLARE_SIG_FILE, NVFLARE_SUBMITTER_CRT_FILE):
            continue
        signer = x509.load_pem_x509_certificate(files[name.parent / NVFLARE_SUBMITTER_CRT_FILE])
        signer.verify_directly_issued_by(root)
        named = signer.subject.get_attributes_for_oid(x509.NameOID.COMMON_NAME)
        if [n.value for n in named] != [LEAD_NAME]:
            return False
        signature = json.loads(files[name.parent / NVFLARE_SIG_FILE])[name.name]
        verify_content(content=content, signature=signature, public_key=signer.public_key())
    return True
