"""At the coordinator's door, in FLARE's parent process: who may come in, and whose part of a job ended."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from pathlib import Path
from typing import Any

from nvflare.apis.event_type import EventType
from nvflare.apis.fl_component import FLComponent
from nvflare.apis.fl_context import FLContext
from nvflare.apis.fl_exception import NotAuthenticated
from nvflare.fuel.f3.cellnet.defs import CellChannel, CellChannelTopic
from nvflare.fuel.f3.cellnet.defs import ReturnCode as CellReturnCode
from nvflare.fuel.f3.cellnet.utils import make_reply as make_cellnet_reply
from nvflare.fuel.f3.message import Message as CellMessage
from nvflare.private.defs import CellMessageHeaderKeys, JobFailureMsgKey

from vitrail.deploy.transport import ipc
from vitrail.deploy.transport.flare import guard as flare_guard
from vitrail.deploy.transport.flare.channels import SITE, role_of
from vitrail.deploy.transport.flare.components import COPY
from vitrail.deploy.transport.ipc import Pipe

RUNNING = "its kit is already in use elsewhere"


class Doorkeeper(FLComponent):
    """At the coordinator, in FLARE's parent process: who may come in, told to `vitrail serve` as it happens. Who knocks
    is whose connection it is: a name or a kind of client that a message states is not believed."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self.folder = folder
        self.end: Pipe | None = None
        self.lock = threading.Lock()
        self.seen: dict[str, str] = {}  # who -> which copy of its kit came first: no other, as long as this runs
        self.starts: dict[str, list[str]] = {}  # who -> its processes that registered, in this order
        self.seconds: set[str] = set()  # processes of a kit that was running already

    def handle_event(self, event_type: str, fl_ctx: FLContext) -> None:
        if event_type == EventType.SYSTEM_START:
            self._hear_of_ends(fl_ctx.get_engine())
        if event_type not in (EventType.CLIENT_REGISTER_RECEIVED, EventType.CLIENT_HEARTBEAT_RECEIVED):
            return
        peer, who = fl_ctx.get_peer_context(), flare_guard.SENDER.get()
        if role_of(who) != SITE:  # not the lead, who logs in by its role
            return
        copy = str(peer.get_prop(COPY, "")) if peer else ""
        if event_type == EventType.CLIENT_REGISTER_RECEIVED:
            self._enters(who, copy)
        elif who in self.seen:
            self._tell({"event": "alive", "site": who})
        else:  # it was let in before this process was started anew, and FLARE takes it back by its token
            with contextlib.suppress(NotAuthenticated):
                self._enters(who, copy)

    def _hear_of_ends(self, engine: Any) -> None:
        """A site that says that its part of a job ended takes itself out of that job. FLARE would end the whole job,
        for all sites. Who says so is known by the token that it got when it registered, and by nothing it says."""
        server = engine.server

        def ended(request: CellMessage) -> CellMessage:
            client = server.client_manager.clients.get(request.get_header(CellMessageHeaderKeys.TOKEN))
            if client is None:
                return make_cellnet_reply(CellReturnCode.UNAUTHENTICATED, "", None)
            report = request.payload if isinstance(request.payload, dict) else {}
            self._part_ended(engine, str(report.get(JobFailureMsgKey.JOB_ID)), client.name)
            return make_cellnet_reply(CellReturnCode.OK, "", None)

        server.cell.register_request_cb(
            channel=CellChannel.SERVER_MAIN, topic=CellChannelTopic.REPORT_JOB_FAILURE, cb=ended
        )
        # FLARE's own notice, when a site's signs of life no longer name the job
        engine.notify_dead_job = lambda job_id, client_name, reason: self._part_ended(engine, job_id, client_name)

    def _part_ended(self, engine: Any, job: str, who: str) -> None:
        engine.job_runner.resolve_client_outcome(job, who)  # FLARE waits for it before it closes the job
        self._tell({"event": "part ended", "site": who, "job": job})

    def _enters(self, who: str, copy: str) -> None:
        mine = json.loads((Path(self.folder) / ipc.MEMBERS).read_text()).get(who)
        home, _, start = copy.partition(".")
        why, new = "", start not in self.starts.get(who, [])
        if not mine or not mine["approved"]:
            why = "it was not enrolled in this study"
        elif mine["removed"]:
            why = "it was removed from this study"
        elif (self.seen.get(who) or home) != home or self._is_second(who, start):
            why = RUNNING  # not "unless quiet": whoever knocks cuts the first one's connection
        if why:
            self._tell({"event": "refused", "site": who, "why": why})
            raise NotAuthenticated(f"{who} is refused: {why}")
        self.seen[who] = home
        self._tell({"event": "entered", "site": who, "new": new})

    def _is_second(self, who: str, start: str) -> bool:
        """Whether this process runs beside an earlier one of the same kit and home. A new process may be a restart;
        when an earlier one comes back after it, both are running, and the later one is not let in again."""
        starts = self.starts.setdefault(who, [])
        if start in self.seconds:
            return True
        if start not in starts:
            starts.append(start)
        later = starts[starts.index(start) + 1 :]
        self.seconds.update(later)
        del starts[starts.index(start) + 1 :]
        return False

    def _tell(self, head: dict[str, Any]) -> None:
        with self.lock, contextlib.suppress(OSError):
            if self.end is None:
                self.end = ipc.connect(os.environ[ipc.PLACE])
                self.end.put({"event": "door"})
            self.end.put(head)
