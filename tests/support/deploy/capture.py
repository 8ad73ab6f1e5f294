"""Packets on their way over the loopback device, what must never be on one, and the search for it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
from safetensors.torch import load_file

import vitrail as vt
from tests.support.deploy.federation import Federation
from vitrail.data.encoding import prepare
from vitrail.data.readers.tables import read_table
from vitrail.deploy.transport import supervisor

TCP, IP = 6, 0x0800


class Capture(threading.Thread):
    """All TCP payloads that go over the loopback device, by (from port, to port)."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.socket = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 20)
        self.socket.bind(("lo", 0))
        self.socket.settimeout(0.2)
        self.streams: dict[tuple[int, int], bytearray] = {}
        self.ended = False

    def run(self) -> None:
        while not self.ended:
            try:
                frame, about = self.socket.recvfrom(1 << 17)
            except TimeoutError:
                continue
            if about[1] != IP or about[2] == socket.PACKET_OUTGOING or frame[14 + 9] != TCP:
                continue
            start = 14 + 4 * (frame[14] & 15)
            ports = tuple(int.from_bytes(frame[start + k : start + k + 2]) for k in (0, 2))
            self.streams.setdefault(ports, bytearray()).extend(frame[start + 4 * (frame[start + 12] >> 4) :])  # type: ignore[arg-type]

    def stop(self) -> None:
        if not self.ended:
            time.sleep(1)  # for what is on its way
            self.ended = True

    def of(self, port: int) -> bytes:
        return b"".join(bytes(data) for ports, data in self.streams.items() if port in ports)


class Tshark:
    """The same, by tshark."""

    def __init__(self, file: Path) -> None:
        self.file, self.streams, self.ended = file, dict[tuple[int, int], bytearray](), False

    def start(self) -> None:
        words = ["tshark", "-q", "-i", "lo", "-f", "tcp", "-B", "64", "-w", str(self.file)]
        self.process = subprocess.Popen(supervisor.tied(words), stderr=subprocess.DEVNULL)
        while not self.file.exists() or not self.file.stat().st_size:
            assert self.process.poll() is None, "tshark ended"
            time.sleep(0.1)

    def stop(self) -> None:
        if self.ended:
            return
        time.sleep(1)
        self.ended = True
        self.process.send_signal(signal.SIGINT)
        self.process.wait(30)
        words = ["tshark", "-r", str(self.file), "-Y", "tcp.len > 0", "-T", "fields"]
        words += [w for name in ("tcp.srcport", "tcp.dstport", "tcp.payload") for w in ("-e", name)]
        said = subprocess.run(words, capture_output=True, check=True, text=True).stdout
        for line in said.splitlines():
            one, other, payload = line.split("\t")
            self.streams.setdefault((int(one), int(other)), bytearray()).extend(bytes.fromhex(payload))

    of = Capture.of


def start_capture(folder: Path) -> Capture | Tshark | None:
    """By tshark where it is installed; by nothing where it is not allowed, which needs root on Linux."""
    if not sys.platform.startswith("linux") or os.geteuid() != 0:
        return None
    made = Tshark(folder / "all.pcapng") if shutil.which("tshark") else Capture()
    made.start()
    return made


def secrets(made: Federation) -> dict[str, list[bytes]]:
    """What must not leave: rows as text and as numbers, private layers, names of files."""
    study, run = vt.Study.load(made.study), json.loads((made.runs()[0] / "deployed.json").read_text())["run"]
    out: dict[str, list[bytes]] = {"rows": [], "layers": [], "names": []}
    tables = {site: read_table(made.data(site), study) for site in made.sites}
    for site, data in zip(made.sites, prepare(tables, study, study.seeds[0]), strict=True):
        lines = made.data(site).read_bytes().splitlines()[1:]
        out["rows"] += [line for line in lines if len(line) > 20]
        for kind in (np.float32, np.float64):
            out["rows"] += [row[:4].astype(kind).tobytes() for row in data.train_x if len(set(row[:4])) == 4]
        model = load_file(made.home(site) / run / "model.safetensors")
        layers = [model[f"params/input.{k}"].numpy() for k in ("shift", "scale")]
        out["layers"] += [layer[i : i + 4].tobytes() for layer in layers for i in range(0, len(layer) - 3, 4)]
        out["names"] += [made.data(site).name.encode(), str(made.data(site)).encode(), made.home(site).name.encode()]
    return out


def found(secret: dict[str, list[bytes]], data: bytes) -> dict[str, int]:
    return {kind: sum(pattern in data for pattern in patterns) for kind, patterns in secret.items()}
