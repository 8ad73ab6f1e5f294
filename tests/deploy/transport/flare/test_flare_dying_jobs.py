"""A site whose job process dies again and again, over real FLARE: the others' rounds go on, and it is the one named."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest

from tests.support.deploy.attackers import Killer, finished_rounds, three_hospitals
from tests.support.deploy.federation import Federation

pytest.importorskip("nvflare")
ROUNDS = 30
WINDOW = 40.0  # seconds
DYING = "va"


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """Three hospitals that are there, and nobody serves yet."""
    made = three_hospitals(tmp_path_factory.mktemp("dying"), ROUNDS)
    try:
        for site in made.sites:
            made.join(site)
        yield made
    finally:
        made.close()


def test_the_others_go_on_without_a_site_whose_job_process_dies(federation: Federation) -> None:
    with Killer(federation, DYING) as killer:
        weak = federation.serve_without("parts", "--deadline", 10, "--quorum", 2)
        federation.wait_event("joined", site=DYING)
        time.sleep(WINDOW)
        assert finished_rounds(federation) == 0, "the control: one dying process holds up all"
        kills, before = killer.kills, len(federation.events())
        assert kills >= 3
        weak.kill()
        federation.wait("nothing is left of it", lambda: not federation.processes(federation.root / "c"), 10.0)

        served = federation.serve("--deadline", 10, "--quorum", 2)
        federation.wait("all rounds", lambda: finished_rounds(federation) == ROUNDS, WINDOW)
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
    assert f"Round {ROUNDS} of {ROUNDS}" in said
    assert not re.search("Traceback|nvflare|WARNING|ERROR|Connecting to FLARE", said), "FLARE's lines are in its files"
