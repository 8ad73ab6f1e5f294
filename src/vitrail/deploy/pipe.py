"""Two processes of one machine talk: a small head in JSON and a body of bytes, over a socket in a private folder."""

from __future__ import annotations

import json
import shutil
import tempfile
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from typing import Any

PLACE = "VITRAIL_SOCKET"  # the environment variable that tells a child where


def listen() -> tuple[Listener, str]:
    """A socket that only this user can reach; its path is short, as sockets' must be."""
    place = str(Path(tempfile.mkdtemp(prefix="vitrail-")) / "s")
    return Listener(place, family="AF_UNIX", backlog=64), place


def close(listener: Listener, place: str) -> None:
    listener.close()
    shutil.rmtree(Path(place).parent, ignore_errors=True)


def call(place: str) -> Connection:
    return Client(place, family="AF_UNIX")


def put(line: Connection, head: dict[str, Any], body: bytes = b"") -> None:
    told = json.dumps(head).encode()
    line.send_bytes(len(told).to_bytes(4, "little") + told + body)


def get(line: Connection) -> tuple[dict[str, Any], bytes]:
    data = line.recv_bytes()
    size = int.from_bytes(data[:4], "little")
    return json.loads(data[4 : 4 + size]), data[4 + size :]
