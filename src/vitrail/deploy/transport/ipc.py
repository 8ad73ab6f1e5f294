"""Two processes of one machine talk: a small head in JSON and a body of bytes, over a socket in a private folder.

A long body goes by a file in memory that only the two can open: through the socket it would go in small pieces.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import select
import socket
import stat
import tempfile
from typing import Any, Self

from vitrail.storage.temporary_folders import TemporaryFolder

PLACE = "VITRAIL_SOCKET"  # the environment variable that tells a child where
SCHEME = "vitrail"  # of addresses in the folder of such a socket, which FLARE's own processes dial
MEMBERS = "members.json"  # in FLARE's workspace at the coordinator: who may come in
NOT_OURS = "not ours"  # the event by which FLARE's process reports that it refused a message
MOST = 1 << 32  # bytes of a body, where whoever reads it says nothing else
LONGEST_PATH = 90  # bytes of a socket's path; Linux takes 107, and FLARE's own are a little longer than ours
SHORT, PACKET = 1 << 16, 1 << 17  # bytes of a body that goes in one packet with its head, and of such a packet


class Pipe:
    """One end of it."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end

    def put(self, head: dict[str, Any], body: bytes = b"") -> None:
        header = json.dumps(head).encode()
        packet = len(header).to_bytes(4, "little") + header
        if len(body) <= SHORT:
            self.end.send(packet + body)
            return
        with open(os.memfd_create("vitrail"), "wb", buffering=0) as file:
            view = memoryview(body)
            while view:
                view = view[file.write(view) :]
            socket.send_fds(self.end, [packet], [file.fileno()])

    def get(self, most: int = MOST) -> tuple[dict[str, Any], bytes]:
        """The next message, of which no more than so many bytes are read. Whoever sent it may be in wrong hands: what
        is no message raises ValueError."""
        packet, files, _, _ = socket.recv_fds(self.end, PACKET, 1, socket.MSG_CMSG_CLOEXEC)
        if not packet:
            raise EOFError
        size = 4 + int.from_bytes(packet[:4], "little")
        body = packet[size:]
        if files:
            with open(files[0], "rb", buffering=0) as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    raise ValueError("expected a file in memory")
                file.seek(0)
                body = _read(file, most)
        head = json.loads(packet[4:size])
        if not isinstance(head, dict):
            raise ValueError("expected a head")
        return head, body

    def poll(self, seconds: float) -> bool:
        """Whether something can be read, or the other end is gone."""
        waiting = select.poll()
        waiting.register(self.end, select.POLLIN)
        return bool(waiting.poll(1000 * seconds))

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self.end.shutdown(socket.SHUT_RDWR)  # wakes a thread that waits here
        self.end.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Listener:
    """A socket that only this user can reach; its path is short, as sockets' must be."""

    def __init__(self) -> None:
        crowded = len(os.fsencode(tempfile.gettempdir())) >= LONGEST_PATH - 20
        self.folder = TemporaryFolder("/tmp" if crowded else None)
        self.place = str(self.folder.path / "s")
        self.end = _socket()
        self.end.bind(self.place)
        self.end.listen(64)

    def accept(self) -> Pipe:
        return Pipe(self.end.accept()[0])

    def close(self) -> None:
        Pipe(self.end).close()
        self.folder.close()


def _read(file: io.FileIO, most: int) -> bytes:
    parts, left = list[bytes](), most
    while left and (part := file.read(min(left, 1 << 30))):
        parts.append(part)
        left -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def connect(place: str) -> Pipe:
    end = _socket()
    try:
        end.connect(place)
    except OSError:
        end.close()
        raise
    return Pipe(end)


def _socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # packets, kept apart
