"""What FLARE's processes may say to each other in a study, and what FLARE would answer besides.

A FLARE process dispatches a message by channel and topic, whoever sent it. `problem_of` decides before that: from
whom, over which connection, to whom and about what. NEEDED is what a study was seen to need; HANDLERS is everything
that nvflare 2.9 registers in any process of ours, read from its source and seen in a run. Whatever is in HANDLERS and
not in NEEDED is refused. A test compares HANDLERS with what the installed nvflare registers.
"""

from __future__ import annotations

from typing import NamedTuple

SITE, SITE_JOB, COORDINATOR, JOB, LEAD = "site", "site job", "coordinator", "coordinator job", "lead"
ROOT = "server"  # FLARE's name of the coordinator's process
LEAD_NAME = "lead@coordinator"  # in the lead's certificate (deploy/identity/enrolment.py)
LEAD_CELL = "_admin_"  # how FLARE's name of an admin's session begins
STREAM, DATA, ACK, ERROR, ANSWERS = "sm__STREAM", "sm__DATA", "sm__ACK", "sm__ERROR", "return_only"
BYE = ("cellnet.channel", "bye")  # takes leave of the connection that it came over, of no other
MOST_ADMIN = 1 << 18  # bytes of a message about jobs; ours have some thousand

_TASK = {("task", topic) for topic in ("challenge", "register", "heart_beat", "quit", "report_job_failure")}
_RECEIPTS = {(STREAM, ACK), (STREAM, ERROR)}
NEEDED: dict[tuple[str, str], set[tuple[str, str]]] = {  # from whom, to whom -> channel and topic
    (SITE, COORDINATOR): {BYE, *_TASK},
    (COORDINATOR, SITE): {BYE, ("admin", "admin")},
    (SITE, JOB): {(STREAM, ERROR)},  # a job of the site is gone, and what was for it cannot be passed on
    (SITE, SITE_JOB): {BYE, ("client_command", "abort")},
    (SITE_JOB, SITE): {BYE, ("admin", "train.notify_job_status")},
    (SITE_JOB, COORDINATOR): {BYE},
    (COORDINATOR, SITE_JOB): {BYE},
    (SITE_JOB, JOB): {
        *_RECEIPTS, ("server_command", "get_task"), ("server_command", "submit_update"),
        *(("aux_communication", topic) for topic in ("__sync_runner__", "__job_heartbeat__", "__task_check__")),
    },
    (JOB, SITE_JOB): {*_RECEIPTS, ("aux_communication", "__end_run__")},
    (JOB, COORDINATOR): {
        BYE, *(("server_parent_listener", topic) for topic in ("get_clients", "heartbeat", "update_run_status")),
    },
    (COORDINATOR, JOB): {BYE, ("server_command", "abort"), ("server_command", "handle_dead_job")},
    (LEAD, COORDINATOR): {
        *_RECEIPTS, BYE, ("task", "challenge"), ("task", "register"), ("hci_channel", "command"),
        ("aux_communication", "ObjectStreamer.Request"), ("aux_communication", "ObjectStreamer.Abort"),
    },
    (COORDINATOR, LEAD): {*_RECEIPTS, BYE, ("hci_channel", "SESSION_EXPIRED")},
}  # fmt: skip

# requests about jobs, which FLARE sends to a site on one channel under one topic: who may send which
ADMIN_TOPICS = {
    COORDINATOR: {"train.deploy", "train.start_job", "train.abort", "scheduler.check_resource",
                  "scheduler.cancel_resource"},
    SITE_JOB: {"train.notify_job_status"},
}  # fmt: skip

_NET = (
    "bulk_item", "bulk_test", "cells", "change_root", "comm_config", "config_vars", "conns", "echo", "heartbeat",
    "list_pools", "msg_stats", "peers", "process_info", "route", "show_pool", "speed", "start_route", "stop",
    "stop_cell", "stress", "url_use",
)  # fmt: skip
_ANYWHERE = {
    BYE, ("cellnet.channel", "bulk"), ("credential_manager", "key_exchange"), (STREAM, DATA), (STREAM, ACK),
    (STREAM, ERROR), ("aux_communication", "*"), (ANSWERS, "*"),
    *(("aux", topic) for topic in ("ObjectStreamer.Request", "ObjectStreamer.Abort", "fed.event")),
}  # fmt: skip
_TASKS = {("server_command", "get_task"), ("server_command", "submit_update")}
_RUNNING = {("aux", topic) for topic in ("RM.RELIABLE_REQUEST", "RM.RELIABLE_REPLY", "__sync_runner__",
            "__job_heartbeat__", "__task_check__")}  # fmt: skip
_CELLS = {("_net_manager", topic) for topic in _NET}
_DOWNLOADS = {("download_service__", f"download_service__{topic}") for topic in ("download", "source_failure")}
HANDLERS: dict[str, set[tuple[str, str]]] = {  # process -> channel and topic; "aux": topics of the auxiliary channel
    SITE: {*_ANYWHERE, *_CELLS, *_TASKS, ("admin", "*")},
    SITE_JOB: {*_ANYWHERE, *_CELLS, *_TASKS, *_RUNNING, *_DOWNLOADS, ("client_command", "*"), ("aux", "__do_task__"),
               ("aux", "__end_run__")},
    COORDINATOR: {*_ANYWHERE, *_CELLS, *_TASK, ("server_parent_listener", "*"), ("hci_channel", "*")},
    JOB: {*_ANYWHERE, *_CELLS, *_RUNNING, *_DOWNLOADS, ("server_command", "*")},
    LEAD: {*_ANYWHERE, *_CELLS, ("hci_channel", "SESSION_EXPIRED")},
}  # fmt: skip


class Peer(NamedTuple):
    """The connection over which a message came."""

    peer: str  # FLARE's name of the process at the other end, as it said
    inside: bool  # by the socket of this machine's own user
    certificate: str = ""  # the name in the certificate of whoever dialled us


class MessageHeader(NamedTuple):
    """What the sender wrote on a message. Of a stream: channel and topic of what is in it."""

    kind: str  # req, reply, return
    channel: str
    topic: str
    origin: str
    destination: str
    stream: str = ""  # DATA, where it is a part of a stream


def role_of(name: str) -> str:
    """
    >>> role_of("server"), role_of("server.j"), role_of("basel-1"), role_of("basel-1.j"), role_of("a.b.c")
    ('coordinator', 'coordinator job', 'site', 'site job', '')
    """
    root, *rest = name.split(".")
    if not root or len(rest) > 1 or not all(rest):
        return ""
    if root.startswith(LEAD_CELL):
        return "" if rest else LEAD
    if root == ROOT:
        return JOB if rest else COORDINATOR
    return SITE_JOB if rest else SITE


def problem_of(me: str, line: Peer | None, sent: MessageHeader) -> str:
    """Why a message is refused by the process `me`; empty where it may pass. `line`: None within one process."""
    if not all(isinstance(word, str) for word in sent):
        return "its header is not in FLARE's format"
    sender, receiver = role_of(sent.origin), role_of(sent.destination)
    if not sender or not receiver:
        return "it names a process that does not exist in a study"
    if line is not None and not _is_senders(me, line, sent.origin):
        return "it did not come over its sender's connection"
    if not _is_on_its_way(me, sent):
        return "messages between these processes are not forwarded"
    if not _is_needed(sender, receiver, sent):
        return "no study needs this kind of message"
    return ""


def _is_senders(me: str, line: Peer, origin: str) -> bool:
    """Whether the process at the other end may speak in this name."""
    own, root, mine = role_of(me), _root(origin), _root(me)
    if line.inside:
        if own in (SITE, COORDINATOR):  # from a job of this machine, in its own name
            return _root(line.peer) == mine and origin == line.peer != me
        return line.peer == mine and (origin == mine or (root != mine and (own == JOB or root == ROOT)))
    if own == COORDINATOR:  # TLS has shown whose key it is
        if role_of(origin) == LEAD:
            return line.certificate == LEAD_NAME and origin == line.peer
        return line.certificate == root == _root(line.peer) != ROOT
    return own != JOB and line.peer == ROOT == root  # a site and the lead dial nobody else; TLS has shown it is there


def _is_on_its_way(me: str, sent: MessageHeader) -> bool:
    """For this process, or to be passed on between a site and the coordinator, in one job."""
    sender, receiver = role_of(sent.origin), role_of(sent.destination)
    if {sender, receiver} == {SITE_JOB, JOB} and _job(sent.origin) != _job(sent.destination):
        return False
    if sent.destination == me:
        return True
    if role_of(me) == COORDINATOR:
        return (sender in (SITE, SITE_JOB) and receiver == JOB) or (sender == JOB and receiver in (SITE, SITE_JOB))
    if role_of(me) != SITE:
        return False
    ends = _root(sent.origin), _root(sent.destination)
    return ends in ((ROOT, me), (me, ROOT))


def _is_needed(sender: str, receiver: str, sent: MessageHeader) -> bool:
    there, back = NEEDED.get((sender, receiver), set()), NEEDED.get((receiver, sender), set())
    if sent.kind == "return":  # what could not be passed on comes back; it ends a wait and does no more
        return bool(there or back)
    if sent.kind == "reply":
        return (sent.channel, sent.topic) in back
    if sent.kind != "req":
        return False
    if sent.stream == DATA and sent.channel == ANSWERS:
        channel, _, topic = sent.topic.partition(":")
        return (channel, topic) in back
    return (sent.channel, sent.topic) in there


def _root(name: str) -> str:
    return name.split(".")[0]


def _job(name: str) -> str:
    return name.partition(".")[2]
