"""Pieces and messages as a hostile sender might send them, at FLARE's receiver in this process. Over the wire:
test_flare_long_answers.py."""

from __future__ import annotations

import importlib.util
import io
import threading
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("nvflare")
from nvflare.apis.shareable import Shareable
from nvflare.fuel.f3.cellnet import cell as cells
from nvflare.fuel.f3.cellnet.defs import Encoding, MessageHeaderKey
from nvflare.fuel.f3.drivers import aio_conn, grpc_driver, socket_conn
from nvflare.fuel.f3.drivers.driver_params import DriverParams
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.sfm.conn_manager import ConnManager
from nvflare.fuel.f3.streaming.byte_receiver import RxTask
from nvflare.fuel.f3.streaming.stream_const import StreamDataType, StreamHeaderKey
from nvflare.fuel.utils import fobs
from nvflare.fuel.utils.fobs import datum, lobs

from vitrail.deploy.transport.flare import limits as flare_limits

LIMIT = 4 << 20
PIECE = bytes(1 << 20)


class Cell:
    """Where errors and receipts go."""

    def __init__(self) -> None:
        self.sent: list[Any] = []

    def fire_and_forget(self, channel: str, topic: str, targets: str, message: Message, **_: Any) -> dict[str, str]:
        self.sent.append(message.get_header(StreamHeaderKey.ERROR_MSG))
        return {}


@pytest.fixture
def untouched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is changed in FLARE is undone."""
    for place, name in (
        *((module, "MAX_FRAME_SIZE") for module in (socket_conn, aio_conn)),
        *((cells, "_is_server_job_cell"), (cells, "decode_payload"), (datum, "TEN_MEGA")),
        *((RxTask, "process_chunk"), (lobs, "_get_one_section")),
        *((ConnManager, "process_frame"), (ConnManager, "process_frame_task")),
    ):
        monkeypatch.setattr(place, name, getattr(place, name))
    monkeypatch.setattr(grpc_driver, "GRPC_DEFAULT_OPTIONS", list(grpc_driver.GRPC_DEFAULT_OPTIONS))
    monkeypatch.setattr(RxTask, "rx_task_map", {})


@pytest.fixture
def refusals(untouched: None) -> list[tuple[str, int]]:
    """With the limit."""
    told = list[tuple[str, int]]()
    flare_limits.install(LIMIT, lambda who, size: told.append((who, size)))
    return told


def send(sid: int, seq: int, size: int | None = None, last: bool = False, origin: str = "s-va.job") -> RxTask | None:
    """A piece of a stream."""
    headers = {
        StreamHeaderKey.STREAM_ID: sid,
        StreamHeaderKey.SEQUENCE: seq,
        StreamHeaderKey.DATA_TYPE: StreamDataType.FINAL if last else StreamDataType.CHUNK,
        MessageHeaderKey.ORIGIN: origin,
        **({} if size is None else {StreamHeaderKey.SIZE: size}),
    }
    message = Message(headers, bytes(PIECE))
    task = RxTask.find_or_create_task(message, Cell())
    if task is not None:
        task.process_chunk(message)
    return task


def held() -> int:
    """Bytes that wait in all streams."""
    tasks = RxTask.rx_task_map.values()
    return sum(len(data) for t in tasks for _, data in [*t.chunks, *t.out_seq_chunks.values()])


def announced() -> None:
    send(1, 0, size=400 << 20)
    for seq in range(1, 30):
        send(1, seq)


def running() -> None:
    """Nothing, or less, was announced."""
    for seq in range(30):
        send(1, seq, size=len(PIECE) if seq == 0 else None)


def headless() -> None:
    """The first piece never comes."""
    for seq in range(1, 15):
        send(1, seq)


def crowd() -> None:
    """Each of many streams is short enough, and none ends."""
    for sid in range(200):
        send(sid, 0, origin=f"s-va.{sid}")


@pytest.mark.parametrize("attack", [announced, running, headless, crowd])
def test_what_is_too_much_is_refused_as_it_comes(attack: Callable[[], None], refusals: list[tuple[str, int]]) -> None:
    attack()
    assert held() <= 2 * (LIMIT + flare_limits.BESIDE)
    assert {who for who, _ in refusals} == {"s-va"}
    assert refusals[0][1] > LIMIT
    before = len(refusals)
    assert send(900, 0, size=2 << 20, origin="s-other.job") is not None
    assert len(refusals) == before, "another site's message is taken"


def test_an_announced_size_is_refused_with_the_first_piece(refusals: list[tuple[str, int]]) -> None:
    send(1, 0, size=400 << 20)
    assert refusals == [("s-va", 400 << 20)]
    assert held() == 0


@pytest.mark.parametrize("attack", [announced, running, headless, crowd])
def test_without_the_limit_it_is_held(attack: Callable[[], None], untouched: None) -> None:
    """The control."""
    attack()
    assert held() > 2 * (LIMIT + flare_limits.BESIDE)


def test_many_messages_one_after_the_other_are_taken(refusals: list[tuple[str, int]]) -> None:
    for sid in range(100):
        for seq in range(4):
            send(sid, seq, size=4 << 20 if seq == 0 else None, last=seq == 3)
        task = RxTask.rx_task_map.pop(("s-va.job", sid), None)
        assert task is None or task.completed
    assert refusals == []


class Connection:
    """One of a site's, by its certificate."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.conn = self

    def get_conn_properties(self) -> dict[str, str]:
        return {DriverParams.PEER_CN.value: "s-va"}

    def get_name(self) -> str:
        return self.name


class Slow:
    """FLARE's manager of connections, whose workers are busy: frames wait in its queue."""

    stopped = False

    def __init__(self) -> None:
        self.queue: list[tuple[Any, Any, Any]] = []
        self.frame_mgr_executor = self

    def submit(self, task: Any, connection: Any, frame: Any) -> None:
        self.queue.append((task, connection, frame))

    def process_frame_task(self, connection: Any, frame: Any) -> None:
        ConnManager.process_frame_task(self, connection, frame)  # type: ignore[arg-type]


def flood(manager: Slow) -> list[threading.Thread]:
    """Frames of one site over four connections, 160 MB in all."""

    def send(connection: Connection) -> None:
        for _ in range(5):
            ConnManager.process_frame(manager, connection, bytes(8 << 20))  # type: ignore[arg-type]

    threads = [threading.Thread(target=send, args=(Connection(str(at)),), daemon=True) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(0.5)
    return threads


def test_a_flood_is_not_read_further_than_there_is_room(
    refusals: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(flare_limits._ORIGINALS, "process_frame_task", lambda *_: None)
    manager = Slow()
    threads = flood(manager)
    assert sum(len(frame) for _, _, frame in manager.queue) == flare_limits.MOST_WAITING
    assert any(thread.is_alive() for thread in threads), "its connections are not read"
    seen, until = 0, time.monotonic() + 20
    while seen < 20 and time.monotonic() < until:
        while manager.queue:
            task, connection, frame = manager.queue.pop()
            task(connection, frame)
            seen += 1
        time.sleep(0.01)
    assert seen == 20, "nothing is lost"


def test_without_the_limit_a_flood_waits_in_memory(untouched: None) -> None:
    """The control."""
    manager = Slow()
    flood(manager)
    assert sum(len(frame) for _, _, frame in manager.queue) == 160 << 20


def load(data: bytes) -> Message:
    message = Message({MessageHeaderKey.PAYLOAD_ENCODING: Encoding.FOBS, MessageHeaderKey.ORIGIN: "s-va.job"}, data)
    cells.decode_payload(message)
    return message


def packed(marker: int, body: bytes, dot: int = 0) -> bytes:
    return lobs._Header(marker, dot, len(body)).to_bytes() + body


def test_a_message_of_ours_is_read(refusals: list[tuple[str, int]]) -> None:
    whole = Shareable()
    whole["vitrail"] = bytes(range(256)) * (3 << 12)
    assert load(fobs.dumps(whole)).payload["vitrail"] == whole["vitrail"]
    assert refusals == []


BOMB = packed(lobs.MARKER_MAIN, b"\xdd" + (3 << 20).to_bytes(4, "big") + b"\x90" * (3 << 20))  # empty lists
FILE = packed(lobs.MARKER_MAIN, b"\xc0") + packed(lobs.MARKER_DATUM_FILE, bytes(16) + b"text")
AWAY = packed(lobs.MARKER_MAIN, b"\xc0") + packed(lobs.MARKER_DATUM_TEXT, bytes(16) + b"{}", dot=1)


@pytest.mark.parametrize("data", [BOMB, FILE, AWAY, b"nothing of FLARE's"])
def test_what_would_be_unpacked_into_more_or_lies_elsewhere_is_refused(
    data: bytes, refusals: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lobs, "get_datum_dir", lambda: pytest.fail("a file would be written"))
    tracemalloc.start()
    try:
        with pytest.raises(Exception):  # noqa: B017, PT011  FLARE's own, of many kinds
            load(data)
        assert tracemalloc.get_traced_memory()[1] < 30 << 20
    finally:
        tracemalloc.stop()
    assert refusals == [("s-va", flare_limits.UNREADABLE)]


def test_without_the_limit_a_small_message_becomes_large(untouched: None) -> None:
    """The control: 3 MB of empty lists."""
    tracemalloc.start()
    try:
        lobs.load_from_stream(io.BytesIO(BOMB))
        assert tracemalloc.get_traced_memory()[1] > 100 << 20
    finally:
        tracemalloc.stop()


def test_what_cannot_be_read_does_not_end_the_process(refusals: list[tuple[str, int]]) -> None:
    class Info:
        fqcn = "server.5e1c"

    assert not cells._is_server_job_cell(Info())


def test_without_it_would() -> None:
    """The control: FLARE's module as it is installed, whatever other tests changed in this process."""
    spec = importlib.util.find_spec(cells.__name__)
    assert spec is not None
    assert spec.loader is not None
    fresh = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fresh)

    class Info:
        fqcn = "server.5e1c"

    assert fresh._is_server_job_cell(Info())


def test_frames_are_bounded(refusals: list[tuple[str, int]]) -> None:
    assert dict(grpc_driver.GRPC_DEFAULT_OPTIONS)["grpc.max_receive_message_length"] == flare_limits.MOST_FRAME
    assert socket_conn.MAX_FRAME_SIZE == flare_limits.MOST_FRAME
