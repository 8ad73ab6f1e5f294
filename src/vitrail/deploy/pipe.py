"""Two processes of one machine talk: a small head in JSON and a body of bytes, over a socket in a private folder.

A long body goes by a file in memory that only the two can open: through the socket it would go in small pieces.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
from typing import Any, Self

from vitrail.core.scratch import ScratchFolder

PLACE = "VITRAIL_SOCKET"  # the environment variable that tells a child where
SCHEME = "vitrail"  # of addresses in the folder of such a socket, which FLARE's own processes dial
SHORT, PACKET = 1 << 16, 1 << 17  # bytes of a body that goes in one packet with its head, and of such a packet


class Pipe:
    """One end of it."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end

    def put(self, head: dict[str, Any], body: bytes = b"") -> None:
        told = json.dumps(head).encode()
        packet = len(told).to_bytes(4, "little") + told
        if len(body) <= SHORT:
            self.end.send(packet + body)
            return
        with open(os.memfd_create("vitrail"), "wb", buffering=0) as file:
            view = memoryview(body)
            while view:
                view = view[file.write(view) :]
            socket.send_fds(self.end, [packet], [file.fileno()])

    def get(self) -> tuple[dict[str, Any], bytes]:
        packet, files, _, _ = socket.recv_fds(self.end, PACKET, 1, socket.MSG_CMSG_CLOEXEC)
        if not packet:
            raise EOFError
        size = 4 + int.from_bytes(packet[:4], "little")
        body = packet[size:]
        if files:
            with open(files[0], "rb", buffering=0) as file:
                file.seek(0)
                body = file.readall()
        return json.loads(packet[4:size]), body

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
        self.folder = ScratchFolder()
        self.place = str(self.folder.path / "s")
        self.end = _socket()
        self.end.bind(self.place)
        self.end.listen(64)

    def accept(self) -> Pipe:
        return Pipe(self.end.accept()[0])

    def close(self) -> None:
        Pipe(self.end).close()
        self.folder.close()


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
