"""A site that answers with far too much: what the coordinator's processes hold in memory, over real FLARE."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import vitrail as vt
from deploy.federation import Federation
from vitrail.data.datasets import heart_disease, packaged
from vitrail.deploy import enrol
from vitrail.runs.setup import resolve

pytest.importorskip("nvflare")
ROUNDS = 5
LIAR, COUNT = "va", 200 << 20  # bytes of its answers
ALLOWED = 400 << 20  # bytes that a process of FLARE's may hold


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """Three hospitals that are there, one of which answers with too much."""
    heart = vt.Study.load(packaged("heart_disease.toml"))
    study = resolve(heart.with_changes(training={"rounds": ROUNDS}, screen={"ask": False}), "fedavg", None)[0]
    tables = {name: table for name, table in heart_disease().items() if name != "switzerland"}
    made = Federation(tmp_path_factory.mktemp("long"), study, tables)
    try:
        made.enrol()
        for site in [site for site in made.sites if site != LIAR]:
            made.join(site)
        kit, approval = made.kit(LIAR), made.root / LIAR / f"{LIAR}.approval"
        accept = enrol.load_kit(kit).invitation["agreement"]
        words = ["join", kit, "--data", made.data(LIAR), "--accept", accept, "--approval", approval]
        made.run(LIAR, Path(__file__).with_name("long_answers.py"), COUNT, *words)
        yield made
    finally:
        made.close()


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


def test_an_answer_that_is_too_long_is_refused_before_it_is_held(federation: Federation) -> None:
    with Peak(federation) as without:
        weak = federation.serve_without("limits", "--deadline", 60, "--quorum", 2)
        federation.wait_event("trouble", site=LIAR)
        time.sleep(1)
        weak.kill()
        federation.wait("nothing is left of it", lambda: not federation.processes(federation.root / "c"), 10.0)
    before = len(federation.events())
    with Peak(federation) as peak:
        served = federation.serve("--deadline", 10, "--quorum", 2)
        federation.wait_end(served, "serve")
    print(f"without the limit {without.most >> 20} MB, with it {peak.most >> 20} MB")
    assert without.most > 3 * COUNT, "the control"
    assert 50 << 20 < peak.most < ALLOWED
    events = federation.events()[before:]
    trouble = [e for e in events if e["event"] == "trouble"]
    assert {e["site"] for e in trouble} == {LIAR}
    assert "its answer is too long" in trouble[0]["what"]
    assert [e["site"] for e in events if e["event"] == "set aside"] == [LIAR]
    assert not any(e["event"] in ("part lost", "job lost", "transport restarted") for e in events)
    assert max(e["done"] for e in events if e["event"] == "round") == ROUNDS
    assert "its answer is too long" in federation.log("serve").read_text()
