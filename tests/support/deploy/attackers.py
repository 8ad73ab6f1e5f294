"""What an attacker does to a federation, and what follows: for tests and benchmarks/attacks/attack_holdup.py."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from pathlib import Path

import vitrail as vt
from tests.support.deploy.federation import Federation
from vitrail.data.datasets.catalogue import heart_disease, packaged
from vitrail.runs.setup import resolve


def three_hospitals(root: Path, rounds: int) -> Federation:
    """Enrolled; FedAvg on the heart study, without its smallest site."""
    heart = vt.Study.load(packaged("heart_disease.toml"))
    study = resolve(heart.with_changes(training={"rounds": rounds}, screen={"ask": False}), "fedavg", None)[0]
    made = Federation(root, study, {name: table for name, table in heart_disease().items() if name != "switzerland"})
    made.enrol()
    return made


def join_with_long_answers(federation: Federation, site: str, count: int) -> None:
    """A site that answers every question with so many bytes."""
    kit, approval = federation.kit(site), federation.root / site / f"{site}.approval"
    accept = federation.accepted(site)
    words = ["join", kit, "--data", federation.data(site), "--accept", accept, "--approval", approval]
    federation.run(site, Path(__file__).with_name("long_answers.py"), count, *words)


def finished_rounds(federation: Federation) -> int:
    """Of training, in the newest run."""
    return max((e["done"] for e in federation.events() if e["event"] == "round"), default=0)


class Killer:
    """Kills the job process of one site whenever there is one."""

    def __init__(self, federation: Federation, site: str) -> None:
        self.federation, self.place, self.kills = federation, federation.kit(site), 0
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)

    def run(self) -> None:
        while not self.over.wait(0.1):
            for pid, line in self.federation.processes(self.place).items():
                if "worker_process" in line:
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
                        self.kills += 1

    def __enter__(self) -> Killer:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.thread.join(10)


class Peak:
    """The most memory that a process of FLARE's at the coordinator has held so far."""

    def __init__(self, federation: Federation) -> None:
        self.federation, self.most = federation, 0
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.run, daemon=True)

    def run(self) -> None:
        while not self.over.wait(0.2):
            for pid, line in self.federation.processes(self.federation.root / "c").items():
                if "nvflare.private" in line:
                    with contextlib.suppress(OSError, IndexError):
                        text = Path(f"/proc/{pid}/status").read_text().split("VmHWM:")[1]
                        self.most = max(self.most, 1024 * int(text.split()[0]))

    def __enter__(self) -> Peak:
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.thread.join(10)
