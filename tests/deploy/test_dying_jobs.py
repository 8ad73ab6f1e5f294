"""A site whose job process dies again and again, over real FLARE: the others' rounds go on, and it is the one named."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator

import pytest

import vitrail as vt
from deploy.federation import Federation
from vitrail.data.datasets import heart_disease, packaged
from vitrail.runs.setup import resolve

pytest.importorskip("nvflare")
ROUNDS = 30
WINDOW = 40.0  # seconds
DYING = "va"


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """Three hospitals that are there, and nobody serves yet."""
    heart = vt.Study.load(packaged("heart_disease.toml"))
    study = resolve(heart.with_changes(training={"rounds": ROUNDS}, screen={"ask": False}), "fedavg", None)[0]
    tables = {name: table for name, table in heart_disease().items() if name != "switzerland"}
    made = Federation(tmp_path_factory.mktemp("dying"), study, tables)
    try:
        made.enrol()
        for site in made.sites:
            made.join(site)
        yield made
    finally:
        made.close()


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


def rounds(federation: Federation) -> int:
    """How many are finished."""
    return max((e["done"] for e in federation.events() if e["event"] == "round"), default=0)


def test_the_others_go_on_without_a_site_whose_job_process_dies(federation: Federation) -> None:
    with Killer(federation, DYING) as killer:
        weak = federation.serve_without("parts", "--deadline", 10, "--quorum", 2)
        federation.wait_event("joined", site=DYING)
        time.sleep(WINDOW)
        assert rounds(federation) == 0, "the control: one dying process holds up all"
        kills, before = killer.kills, len(federation.events())
        assert kills >= 3
        weak.kill()
        federation.wait("nothing is left of it", lambda: not federation.processes(federation.root / "c"), 10.0)

        served = federation.serve("--deadline", 10, "--quorum", 2)
        federation.wait("all rounds", lambda: rounds(federation) == ROUNDS, WINDOW)
        federation.wait_end(served, "serve")
    assert killer.kills >= kills + 2
    events = federation.events()[before:]
    lost = [e for e in events if e["event"] == "part lost"]
    assert {e["site"] for e in lost} == {DYING}
    assert [(e["times"], e["seconds"]) for e in lost][:2] == [(1, 0.0), (2, 30.0)]
    assert not any(e["event"] in ("job lost", "job split", "transport restarted") for e in events)
    assert not any({"cleveland", "hungarian"} & set(e["sites"]) for e in events if e["event"] == "absent")
    said = federation.log("serve").read_text()
    assert f"The connection with {DYING} ended" in said
    assert "Traceback" not in said
