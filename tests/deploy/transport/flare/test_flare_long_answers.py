"""A site that answers with far too much: what the coordinator's processes hold in memory, over real FLARE."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.support.deploy.attackers import Peak, join_with_long_answers, three_hospitals
from tests.support.deploy.federation import Federation

pytest.importorskip("nvflare")
ROUNDS = 5
LIAR, COUNT = "va", 200 << 20  # bytes of its answers
ALLOWED = 400 << 20  # bytes that a process of FLARE's may hold


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Federation]:
    """One of three hospitals answers with too much."""
    made = three_hospitals(tmp_path_factory.mktemp("long"), ROUNDS)
    try:
        for site in [site for site in made.sites if site != LIAR]:
            made.join(site)
        join_with_long_answers(made, LIAR, COUNT)
        yield made
    finally:
        made.close()


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
