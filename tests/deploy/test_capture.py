"""Every packet of a run, captured on its way and searched for what must never be on it. The same search finds what is
planted there, so that finding nothing means something."""

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
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

import vitrail as vt
from deploy.federation import Federation
from vitrail.data.datasets import heart_disease, packaged
from vitrail.data.encode import prepare
from vitrail.runs.setup import resolve

pytest.importorskip("nvflare")
pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux") or os.geteuid() != 0, reason="capturing packets needs root on Linux"
)
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
        time.sleep(1)  # for what is on its way
        self.ended = True

    def of(self, port: int) -> bytes:
        return b"".join(bytes(data) for ports, data in self.streams.items() if port in ports)


class Tshark:
    """The same, by tshark."""

    def __init__(self, file: Path) -> None:
        self.file, self.streams = file, dict[tuple[int, int], bytearray]()

    def start(self) -> None:
        words = ["tshark", "-q", "-i", "lo", "-f", "tcp", "-B", "64", "-w", str(self.file)]
        self.process = subprocess.Popen(words, stderr=subprocess.DEVNULL)
        while not self.file.exists() or not self.file.stat().st_size:
            assert self.process.poll() is None, "tshark ended"
            time.sleep(0.1)

    def stop(self) -> None:
        time.sleep(1)
        self.process.send_signal(signal.SIGINT)
        self.process.wait(30)
        words = ["tshark", "-r", str(self.file), "-Y", "tcp.len > 0", "-T", "fields"]
        words += [w for name in ("tcp.srcport", "tcp.dstport", "tcp.payload") for w in ("-e", name)]
        said = subprocess.run(words, capture_output=True, check=True, text=True).stdout
        for line in said.splitlines():
            one, other, payload = line.split("\t")
            self.streams.setdefault((int(one), int(other)), bytearray()).extend(bytes.fromhex(payload))

    of = Capture.of


@pytest.fixture(scope="module")
def captured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Federation, Capture | Tshark]]:
    """By tshark where it is installed."""
    heart = vt.Study.load(packaged("heart_disease.toml")).with_changes(training={"rounds": 3})
    tables = {n: t for n, t in heart_disease().items() if n != "switzerland"}
    made = Federation(tmp_path_factory.mktemp("capture"), resolve(heart, "ifedavg", None)[0], tables)
    capture = Tshark(tmp_path_factory.mktemp("tshark") / "all.pcapng") if shutil.which("tshark") else Capture()
    capture.start()
    try:
        made.enrol()
        served = made.serve()
        for site in made.sites:
            made.join(site)
        made.wait_end(served, "serve")
        yield made, capture
    finally:
        made.close()


def secrets(made: Federation) -> dict[str, list[bytes]]:
    """What must not leave: rows as text and as numbers, private layers, names of files."""
    study, run = vt.Study.load(made.study), json.loads((made.runs()[0] / "deployed.json").read_text())["run"]
    out: dict[str, list[bytes]] = {"rows": [], "layers": [], "names": []}
    for site in made.sites:
        lines = made.data(site).read_bytes().splitlines()[1:]
        out["rows"] += [line for line in lines if len(line) > 20]
        (data,) = prepare({site: heart_disease()[site]}, study, study.seeds[0])
        for kind in (np.float32, np.float64):
            out["rows"] += [row[:4].astype(kind).tobytes() for row in data.train_x if len(set(row[:4])) == 4]
        model = load_file(made.home(site) / run / "model.safetensors")
        layers = [model[f"params/input.{k}"].numpy() for k in ("shift", "scale")]
        out["layers"] += [layer[i : i + 4].tobytes() for layer in layers for i in range(0, len(layer) - 3, 4)]
        out["names"] += [made.data(site).name.encode(), str(made.data(site)).encode(), made.home(site).name.encode()]
    return out


def found(secret: dict[str, list[bytes]], data: bytes) -> dict[str, int]:
    return {kind: sum(pattern in data for pattern in patterns) for kind, patterns in secret.items()}


def test_nothing_on_the_line(captured: tuple[Federation, Capture | Tshark]) -> None:
    made, capture = captured
    secret = secrets(made)
    with socket.create_server(("127.0.0.1", 0)) as door:  # the positive control: the same bytes without TLS
        port = door.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as line:
            there, _ = door.accept()
            for patterns in secret.values():
                for pattern in patterns:
                    line.sendall(pattern)
                    there.recv(1 << 16)
            there.close()
    capture.stop()
    seen = capture.of(made.who.port)
    sent = sum(len(f.read_bytes()) for site in made.sites for f in (made.home(site) / "outbox").glob("*.safetensors"))
    assert min(map(len, secret.values())) >= len(made.sites)
    assert len(seen) > sent > 10_000, "the capture missed what was sent"
    assert found(secret, seen) == {"rows": 0, "layers": 0, "names": 0}
    assert found(secret, capture.of(port)) == {kind: len(patterns) for kind, patterns in secret.items()}


def test_nothing_under_the_encryption(captured: tuple[Federation, Capture | Tshark]) -> None:
    """The same search in what was encrypted: every message that left, as the sites kept it."""
    made, _ = captured
    secret = secrets(made)
    for site in made.sites:
        log = [json.loads(line) for line in (made.home(site) / "outbox" / "log.jsonl").read_text().splitlines()]
        out = [e for e in log if e["direction"] == "out"]
        sent = {
            e["number"]: Path(made.home(site) / "outbox" / f"{e['number']:06d}.safetensors").read_bytes() for e in out
        }
        train = b"".join(sent[e["number"]] for e in out if not (e["kind"] == "round" and e["stage"] == 1))
        shown = b"".join(sent[e["number"]] for e in out if e["kind"] == "round" and e["stage"] == 1)
        assert len(train) > 10_000
        assert found(secret, train) == {"rows": 0, "layers": 0, "names": 0}
        assert found(secret, shown)["layers"] > 0, "by consent they are published after training"
