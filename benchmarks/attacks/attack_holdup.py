"""Can one site hold up all the others? Over real FLARE on this machine, three hospitals, two sites needed in a round.

    python benchmarks/attacks/attack_holdup.py             # about five minutes; writes results/attack_holdup.md

dying     the job process of one site is killed as soon as there is one, for a minute: rounds finished meanwhile
long      one site answers every question with 400 MB: memory that a process of FLARE's at the coordinator holds

Each once without the defence (the control, which must show the attack at work) and once with it.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[0] = str(HERE.parents[1])

from tests.support.deploy.attackers import Killer, Peak, finished_rounds, join_with_long_answers, three_hospitals  # noqa: E402
from tests.support.deploy.federation import Federation  # noqa: E402

SECONDS, MANY, COUNT, SITE = 60.0, 5000, 400 << 20, "va"
WORDS = ("--deadline", 20, "--quorum", 2)


def named(federation: Federation, since: int) -> str:
    """Sites of which the coordinator says that something is wrong, from that event on."""
    kinds = ("part lost", "trouble", "set aside", "silent")
    found = sorted({e["site"] for e in federation.events()[since:] if e["event"] in kinds})
    return ", ".join(found) or "nobody"


def wait_for_all(federation: Federation, since: int) -> None:
    """Until every site is there, after that event."""

    def there() -> bool:
        return {e["site"] for e in federation.events()[since:] if e["event"] == "joined"} == set(federation.sites)

    federation.wait("all sites", there)


def stop(federation: Federation, served: object) -> None:
    served.kill()  # type: ignore[attr-defined]
    federation.wait("nothing is left of it", lambda: not federation.processes(federation.root / "c"), 20.0)


def dying(root: Path) -> list[str]:
    federation, rows = three_hospitals(root, MANY), []
    try:
        for site in federation.sites:
            federation.join(site)
        for defence in ("off", "on"):
            before, rounds = len(federation.events()), finished_rounds(federation)
            off = defence == "off"
            served = federation.serve_without("parts", *WORDS) if off else federation.serve(*WORDS)
            with Killer(federation, SITE) as killer:
                wait_for_all(federation, before)
                time.sleep(SECONDS)
            rows.append(
                f"| dying job process | {defence} | {killer.kills} kills in {SECONDS:.0f} s | "
                f"{finished_rounds(federation) - rounds} rounds | {named(federation, before)} |"
            )
            stop(federation, served)
    finally:
        federation.close()
    return rows


def long(root: Path) -> list[str]:
    federation, rows = three_hospitals(root, MANY), []
    try:
        for site in [site for site in federation.sites if site != SITE]:
            federation.join(site)
        join_with_long_answers(federation, SITE, COUNT)
        for defence in ("off", "on"):
            before, rounds = len(federation.events()), finished_rounds(federation)
            off = defence == "off"
            with Peak(federation) as peak:
                served = federation.serve_without("limits", *WORDS) if off else federation.serve(*WORDS)
                wait_for_all(federation, before)
                federation.wait("rounds", lambda rounds=rounds: finished_rounds(federation) > rounds + 10, 200.0)
            rows.append(
                f"| answer of {COUNT >> 20} MB | {defence} | every question | {peak.most >> 20} MB held | "
                f"{named(federation, before)} |"
            )
            stop(federation, served)
    finally:
        federation.close()
    return rows


def main() -> None:
    with tempfile.TemporaryDirectory() as place:
        rows = dying(Path(place) / "dying") + long(Path(place) / "long")
    text = [
        "# Can one site hold up all the others?",
        "",
        "Printed by `python benchmarks/attacks/attack_holdup.py`: `vitrail serve` and three `vitrail join` over FLARE on one "
        "machine, FedAvg on the heart study, two of three sites needed in a round. `va` is the attacker. Off: the "
        "control, the same coordinator without that defence.",
        "",
        "| attack | defence | how often | what came of it | named |",
        "| --- | --- | --- | --- | --- |",
        *rows,
        "",
        "Held: the most memory of any process of FLARE's at the coordinator (VmHWM), an idle job process included.",
        "",
    ]
    print("\n".join(text))
    (HERE / "results" / "attack_holdup.md").write_text("\n".join(text))


if __name__ == "__main__":
    main()
