"""How much one sender may make a process of FLARE's hold in memory. A message that is longer than what was agreed on is
refused by its announced size, or as soon as it has run over, before it is put together.

FLARE cuts a message into a stream of pieces. A process puts the pieces together, unpacks the whole and only then hands
it to us: an answer of 400 MB cost 2.75 GB. What is limited here, in FLARE 2.9:

    frame      the unit that a connection reads at once                    drivers, MOST_FRAME instead of 2 GB
    stream     one message's pieces, announced and arrived                 RxTask, `limit` instead of 4 GB
    sender     all streams that a site has under way together              RxTask, 2 x `limit`, instead of anything
    queue      frames of a sender that wait to be looked at: beyond it     ConnManager, MOST_WAITING instead of
               its connections are not read, and the network holds it up   anything
    structure  what is unpacked into Python objects, 64 times its size     lobs, MOST_STRUCTURE instead of anything
    elsewhere  parts that would be fetched from another process, or be     lobs, refused: no message of ours has any
               written to a file

FLARE would also end the coordinator's whole job process when a site sends something that cannot be unpacked.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

from nvflare.fuel.f3.cellnet import cell as cells
from nvflare.fuel.f3.cellnet.defs import MessageHeaderKey
from nvflare.fuel.f3.drivers import aio_conn, grpc_driver, socket_conn
from nvflare.fuel.f3.drivers.driver_params import DriverParams
from nvflare.fuel.f3.sfm.conn_manager import ConnManager
from nvflare.fuel.f3.streaming.byte_receiver import RxTask
from nvflare.fuel.f3.streaming.stream_const import StreamHeaderKey
from nvflare.fuel.f3.streaming.stream_types import StreamError
from nvflare.fuel.utils.fobs import datum, lobs

LONGEST = "VITRAIL_LONGEST"  # the environment variable with the bytes that no message of ours is longer than
BESIDE = 1 << 20  # bytes that FLARE adds to a message of ours, at most
MOST_FRAME = 8 << 20
MOST_STRUCTURE = 1 << 20  # bytes of a message without its long values, which go beside them
LONG_VALUE = 1 << 16  # bytes of a value that goes beside
MOST_WAITING = 64 << 20  # bytes of frames of one sender that wait
LONGEST_WAIT = 30.0  # seconds that a connection is not read, so that nothing stands still for good
MOST_STREAMS = 64  # that one sender has under way
UNREADABLE = -1  # instead of a size: it could not be unpacked

Refused = Callable[[str, int], None]  # who sent it, and how many bytes were announced or had come


class Streams:
    """Bytes of each sender's streams that are not complete yet."""

    def __init__(self, limit: int, refused: Refused) -> None:
        self.limit, self.refused = limit + BESIDE, refused
        self.lock = threading.Lock()
        self.sizes: dict[str, dict[tuple[str, int], int]] = {}  # sender -> stream -> bytes

    def too_many(self, origin: str, sid: int, announced: Any, size: int) -> int:
        """Bytes that are too many, or 0, with a piece of this size."""
        if isinstance(announced, int) and announced > self.limit:
            return announced
        with self.lock:
            mine = self.sizes.setdefault(sender_of(origin), {})
            mine[origin, sid] = come = mine.get((origin, sid), 0) + size
            if come > self.limit:
                return come
            if sum(mine.values()) > 2 * self.limit or len(mine) > MOST_STREAMS:
                for key in [key for key in mine if _is_over(key)]:
                    del mine[key]
            total = sum(mine.values())
            return total if total > 2 * self.limit or len(mine) > MOST_STREAMS else 0

    def forget(self, origin: str, sid: int) -> None:
        with self.lock:
            self.sizes.get(sender_of(origin), {}).pop((origin, sid), None)


class Queues:
    """Bytes of frames that were read and not looked at yet, by sender."""

    def __init__(self) -> None:
        self.room = threading.Condition()
        self.waiting: dict[str, int] = {}

    def enter(self, sender: str, size: int) -> None:
        """Waits until there is room."""
        with self.room:
            self.room.wait_for(lambda: self.waiting.get(sender, 0) + size <= MOST_WAITING, LONGEST_WAIT)
            self.waiting[sender] = self.waiting.get(sender, 0) + size

    def leave(self, sender: str, size: int) -> None:
        with self.room:
            self.waiting[sender] = max(0, self.waiting.get(sender, 0) - size)
            self.room.notify_all()


def sender_of(origin: str) -> str:
    """Which site or server, of the name of one of its processes.

    >>> sender_of("s-va.5e1c")
    's-va'
    """
    return str(origin).split(".")[0]


def _is_over(key: tuple[str, int]) -> bool:
    task = RxTask.rx_task_map.get(key)
    return task is None or task.completed or task.failed


def install(limit: int, refused: Refused = lambda who, size: None) -> None:
    """In a process of FLARE's, before it listens; called again it takes the place of the first. `limit`: bytes of our
    longest message; `refused` is told of what was refused."""
    streams = Streams(limit, refused)
    for module in (socket_conn, aio_conn):
        module.MAX_FRAME_SIZE = MOST_FRAME
    options = ("grpc.max_send_message_length", "grpc.max_receive_message_length")
    grpc_driver.GRPC_DEFAULT_OPTIONS[:] = [(name, MOST_FRAME) for name in options]
    datum.TEN_MEGA = LONG_VALUE
    cells._is_server_job_cell = lambda my_info: False  # nothing that a site sends ends the process
    RxTask.process_chunk = _limited(streams, _ORIGINALS["process_chunk"])
    ConnManager.process_frame, ConnManager.process_frame_task = _paced(Queues())
    lobs._get_one_section = _section
    cells.decode_payload = _decoding(streams, _ORIGINALS["decode_payload"])


def install_from_environment(refused: Refused = lambda who, size: None) -> None:
    if longest := os.environ.get(LONGEST):
        install(int(longest), refused)


_ORIGINALS: dict[str, Callable[..., Any]] = {
    "process_chunk": RxTask.process_chunk,
    "process_frame": ConnManager.process_frame,
    "process_frame_task": ConnManager.process_frame_task,
    "section": lobs._get_one_section,
    "decode_payload": cells.decode_payload,
}


def _limited(streams: Streams, original: Callable[..., Any]) -> Callable[[Any, Any], bool]:
    def process_chunk(task: Any, message: Any) -> bool:
        size = len(message.payload) if message.payload else 0
        announced = message.get_header(StreamHeaderKey.SIZE, 0)
        if not task.failed and (count := streams.too_many(task.origin, task.sid, announced, size)):
            task.stop(StreamError(f"a message of {count} bytes or more was refused: the limit is {streams.limit}"))
            task.chunks.clear()
            task.out_seq_chunks.clear()
            streams.refused(sender_of(task.origin), count)
            return False
        new = bool(original(task, message))
        if task.completed or task.failed:
            streams.forget(task.origin, task.sid)
        return new

    return process_chunk


def _paced(queues: Queues) -> tuple[Callable[[Any, Any, Any], None], Callable[[Any, Any, Any], None]]:
    def sender(connection: Any) -> str:
        """By its certificate, if it has one: a site may open many connections."""
        name = (connection.conn.get_conn_properties() or {}).get(DriverParams.PEER_CN.value)
        return str(name) if name and name != "N/A" else connection.get_name()

    def process_frame(manager: Any, connection: Any, frame: Any) -> None:
        queues.enter(sender(connection), len(frame))
        _ORIGINALS["process_frame"](manager, connection, frame)

    def process_frame_task(manager: Any, connection: Any, frame: Any) -> None:
        try:
            _ORIGINALS["process_frame_task"](manager, connection, frame)
        finally:
            queues.leave(sender(connection), len(frame))

    return process_frame, process_frame_task


def _section(stream: Any, expect_datum: bool) -> Any:
    header, datum_id, data = _ORIGINALS["section"](stream, expect_datum)
    if header is not None:
        if not expect_datum and len(data) > MOST_STRUCTURE:
            raise RuntimeError(f"expected at most {MOST_STRUCTURE} bytes besides long values, got {len(data)}")
        if header.dot or header.marker == lobs.MARKER_DATUM_FILE:
            raise RuntimeError("a part stored outside the message was refused")
    return header, datum_id, data


def _decoding(streams: Streams, original: Callable[..., Any]) -> Callable[..., None]:
    def decode_payload(message: Any, *args: Any, **kwargs: Any) -> None:
        try:
            original(message, *args, **kwargs)
        except Exception:
            streams.refused(sender_of(message.get_header(MessageHeaderKey.ORIGIN, "")), UNREADABLE)
            raise

    return decode_payload
