"""What masked reports cost between machines: seconds and bytes of a round, against the same in the open.

    python benchmarks/deploy/masked.py           # writes results/masked.md
    python benchmarks/deploy/masked.py --real    # and by `vitrail serve` and 4 or 16 `vitrail join` over FLARE

The heart study by FedAvg, with 4 sites (its hospitals) and 16 (each cut in four), every message packed to bytes and
read again, keys enrolled as in a study, all sites one after the other in one process on one thread: so a round's
seconds are the work of all ends and what they write to disk, and nothing of a network. Two legs a round under masks,
one in the open.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd
import torch

import vitrail as vt
from vitrail.data.datasets.catalogue import heart_disease, packaged
from vitrail.deploy.coordinator.requests import Responses, SiteRequests
from vitrail.deploy.coordinator.session import conduct
from vitrail.deploy.identity import enrolment
from vitrail.deploy.identity.coordinator_folder import approval_of
from vitrail.deploy.identity.site_identity import SiteIdentity
from vitrail.deploy.protocol.agreement import Agreement
from vitrail.deploy.protocol.message import Message, unpack
from vitrail.deploy.site.site import Site
from vitrail.runs.folder import Folder

RESULTS = Path(__file__).parent / "results"
SUMS = ("plain", "masked")


class Counted:
    """A way to sites in this process; every message is bytes, and they are counted."""

    def __init__(self, sites: dict[str, Site]) -> None:
        self.sites, self.up, self.down, self.legs = sites, 0, 0, 0

    def ask(self, questions: dict[str, Message], deadline: float) -> Responses:
        answers = {}
        rounds = any(q.kind in ("round", "mask") for q in questions.values())
        self.legs += rounds
        for name, question in questions.items():
            asked = question.pack()
            said = self.sites[name].answer(unpack(asked)).pack()
            self.down, self.up = self.down + rounds * len(asked), self.up + rounds * len(said)
            answers[name] = unpack(said)
        return Responses(answers, {})

    def present(self) -> set[str]:
        return set(self.sites)

    def log(self, event: str, **details: Any) -> None:
        assert event != "sum not opened", details


def tables(sites: int) -> dict[str, pd.DataFrame]:
    whole, parts = heart_disease(), sites // 4
    return {f"{n}{i}": f.iloc[i::parts].reset_index(drop=True) for n, f in whole.items() for i in range(parts)}


def study_of(how: str, rounds: int) -> vt.Study:
    given = {"method": {"name": "fedavg"}, "training": {"rounds": rounds}, "screen": {"ask": False}}
    return vt.Study.load(packaged("heart_disease.toml")).with_changes(**given, protect={"sum": how})


def enrolled(place: Path, study: vt.Study, names: list[str]) -> dict[str, SiteIdentity]:
    study.save(place / "study.toml")
    folder = enrolment.invite(place / "study.toml", names, "localhost:8102")
    kits = {}
    for name in names:
        asked = folder / "invitations" / f"{name}.invitation"
        made = enrolment.request(asked, place / f"{name}.kit", place / f"{name}.home")
        enrolment.approve(folder, made.file)
        kits[name] = made.kit
    return {name: SiteIdentity.of(enrolment.accept(kit, approval_of(folder, name))) for name, kit in kits.items()}


def measure(sites: int, how: str, rounds: int) -> dict[str, float]:
    frames, study = tables(sites), study_of(how, rounds)
    with tempfile.TemporaryDirectory(prefix="vitrail-masked-") as made:
        place = Path(made)
        proofs = enrolled(place, study, list(frames))
        agreed = Agreement.of(study, None, next(iter(proofs.values())).roster)
        ends = {n: Site(n, f, agreed, place / f"{n}.home", True, proofs[n]) for n, f in frames.items()}
        way, times = Counted(ends), [time.perf_counter()]
        folder = Folder(place / "run", resume=False)
        call = SiteRequests(way, agreed, list(ends), "0123456789abcdef", sites, 60.0)
        conduct(call, folder, False, lambda done, of: times.append(time.perf_counter()))
        folder.close()
    each = [b - a for a, b in pairwise(times[1:])]  # the first has the whole beginning in it
    per = rounds * sites
    return {"seconds": median(each), "up": way.up / per, "down": way.down / per, "legs": way.legs / rounds}


def real(sites: int, how: str, rounds: int) -> float:
    """Seconds of a round over FLARE, of so many `vitrail join`."""
    from machines import real as between

    with between(study_of(how, rounds), tables(sites)) as (_, run, _):
        events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
        info = json.loads((run / "run.json").read_text())
    assert not any(e["event"] == "sum not opened" for e in events)
    return float(info["seconds"]) / rounds


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--real", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    text = [
        f"# What masked reports cost, {time.strftime('%Y-%m-%d')}",
        "",
        f"The heart study by FedAvg, {args.rounds} rounds, by messages in one process on one thread",
        f"({platform.machine()}, `benchmarks/deploy/masked.py`): the work of all sites and the coordinator in turn,",
        "with what they write to disk, and no network. Bytes are whole messages of a round, with keys and shares,",
        "per site and round. Look at the ratio: the machine is noisy.",
        "",
        "| sites | sum | seconds a round, median | legs a round | bytes from a site | bytes to a site |",
        "| ---: | --- | ---: | ---: | ---: | ---: |",
    ]
    for sites in (4, 16):
        found = {how: measure(sites, how, args.rounds) for how in SUMS}
        for how, told in found.items():
            cells = [f"{told['seconds']:.3f}", f"{told['legs']:.2f}", f"{told['up']:,.0f}", f"{told['down']:,.0f}"]
            text.append(f"| {sites} | {how} | {' | '.join(cells)} |")
        ratio = found["masked"]["seconds"] / found["plain"]["seconds"]
        text.append(f"| {sites} | masked against plain | {ratio:.2f}x | | | |")
        print(text[-3:], flush=True)
    if args.real:
        text += [
            "",
            f"Over FLARE and TLS, `vitrail serve` and `vitrail join` on {os.cpu_count()} cores of this machine,",
        ]
        text += [f"from first to last divided by {args.rounds} rounds:", "", "| sites | in the open | masked | ratio |"]
        text += ["| ---: | ---: | ---: | ---: |"]
        for sites in (4, 16):
            plain, masked = (real(sites, how, args.rounds) for how in SUMS)
            text.append(f"| {sites} | {plain:.2f} s | {masked:.2f} s | {masked / plain:.2f}x |")
            print(text[-1], flush=True)
    (RESULTS / "masked.md").write_text("\n".join(text) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
