"""Differences by presence: what a coordinator without accomplices finds out by leaving out one site after the other.

    python benchmarks/attacks/attack_presence.py          # writes results/attack_presence.md

The heart study by FedAvg under masks, four hospitals, as drafted (dropout, batches drawn from each site's secret). The
coordinator reads totals only, of three or four sites. It knows who is in each, and solves for what each site reports in
the mean (least squares over all totals, each divided by the learning rate of its round). Reports are those of real
`Site` objects, taken before they are masked. Told are the cosine of what it found with the site's mean report over the
same rounds, and the length of the error in units of that report (1: no better than guessing nothing): in the mean over
the four sites, and of the one that is read best. Seen against what the total of all four tells, a quarter of it each.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import vitrail as vt
from vitrail.core.tensors import flatten
from vitrail.data.datasets.catalogue import heart_disease, packaged
from vitrail.deploy.protocol.agreement import Agreement
from vitrail.deploy.protocol.message import Message
from vitrail.deploy.secure_sum.presence import REPEATS, most_changes
from vitrail.deploy.site import site as site_module
from vitrail.deploy.site.site import Site

RESULTS = Path(__file__).parent / "results"
RUN, ROUNDS = "0123456789abcdef", 60
NAMES = list(heart_disease())
LISTS = [*([n for n in NAMES if n != left] for left in NAMES), NAMES]  # one left out after the other, then all
Word = dict[str, Tensor]
Reports = dict[tuple[str, int], np.ndarray[Any, Any]]


class Caught(Exception):  # noqa: N818 - nothing went wrong
    """A report on its way into a sum."""

    def __init__(self, report: Mapping[str, Tensor]) -> None:
        self.report = dict(report)


class Open:
    """In the place of a site's masked sums."""

    def __init__(self, *given: Any) -> None: ...

    def report(self, asked: Message, up: Callable[[], Mapping[str, Tensor]]) -> None:
        raise Caught(up())


def study_of() -> vt.Study:
    given = {"method": {"name": "fedavg"}, "training": {"rounds": ROUNDS}, "screen": {"ask": False}}
    return vt.Study.load(packaged("heart_disease.toml")).with_changes(**given, protect={"sum": "masked"})


def reports_of(agreed: Agreement, place: Path, moves: float) -> Reports:
    """Of all sites in all rounds. `moves`: how much of the sites' mean change the coordinator adds to its word: 0, it
    says the same word again and again; 1, it trains."""
    sites = {n: Site(n, frame, agreed, place / n) for n, frame in heart_disease().items()}
    for site in sites.values():
        site.answer(Message("prepare", {"run": RUN}))
    turn = agreed.stages[0].stage.turns(0)[0]
    word: Word = {k: v[0].clone() for k, v in flatten(agreed.stages[0].turns[turn].down)}
    out: Reports = {}
    for r in range(ROUNDS):
        said = {n: _caught(site, r, turn, word) for n, site in sites.items()}
        weight = sum(float(up["weight"]) for up in said.values())
        rate = agreed.study.training.decay ** min(r, agreed.study.training.decays)  # everybody knows it
        for name, up in said.items():
            flat = np.concatenate([v.double().numpy().ravel() for k, v in sorted(up.items()) if k != "weight"])
            out[name, r] = flat / rate
        for key in word:
            change = [up[f"change/{key.split('/', 1)[1]}"] for up in said.values()]
            word[key] = word[key] + moves * sum(change) / weight
    return out


def _caught(site: Site, r: int, place: int, word: Word) -> dict[str, Tensor]:
    words = {"run": RUN, "stage": 0, "round": r, "place": place, "score": [], "sum": {}}
    try:
        site.answer(Message("round", words, word))
    except Caught as caught:
        return caught.report
    raise AssertionError("it reported nothing")


def solved(reports: Reports, lists: Sequence[Sequence[str]]) -> dict[str, np.ndarray[Any, Any]]:
    """From the totals of one list for each round, what each site reports in the mean."""
    present = np.array([[n in names for n in NAMES] for names in lists], dtype=float)
    totals = np.stack([sum(reports[n, r] for n in names) for r, names in enumerate(lists)])
    found = np.linalg.lstsq(present, totals, rcond=None)[0]
    return dict(zip(NAMES, found, strict=True))


def told(reports: Reports, lists: Sequence[Sequence[str]]) -> tuple[list[float], int]:
    """Cosine and error in the mean over sites, and of the one that is read best; and how often the list changed."""
    found = solved(reports, lists)
    true = {n: np.mean([reports[n, r] for r in range(len(lists))], 0) for n in NAMES}
    cosines = [found[n] @ true[n] / np.linalg.norm(found[n]) / np.linalg.norm(true[n]) for n in NAMES]
    errors = [np.linalg.norm(found[n] - true[n]) / np.linalg.norm(true[n]) for n in NAMES]
    changes = sum(a != b for a, b in zip([NAMES, *lists], lists, strict=False))
    best = int(np.argmin(errors))
    return [float(v) for v in (np.mean(cosines), np.mean(errors), cosines[best], errors[best])], changes


def in_turn(rounds: int) -> list[list[str]]:
    """Another list in every round."""
    return [LISTS[r % len(LISTS)] for r in range(rounds)]


def in_spells(rounds: int, lists: Sequence[Sequence[str]] = LISTS) -> list[list[str]]:
    """One after the other, each for as long as the others."""
    return [list(lists[r * len(lists) // rounds]) for r in range(rounds)]


def honest(rounds: int) -> list[list[str]]:
    """Each site is away once for three rounds, as faults would have it."""
    away = {start + i: n for n, start in zip(NAMES, (6, 20, 34, 48), strict=True) for i in range(3)}
    return [[n for n in NAMES if n != away.get(r)] for r in range(rounds)]


def main() -> None:
    torch.set_num_threads(1)
    agreed = Agreement.of(study_of(), None, len(NAMES))
    real = site_module.SumSite
    site_module.SumSite = Open  # type: ignore[assignment, misc]
    try:
        with tempfile.TemporaryDirectory(prefix="vitrail-presence-") as made:
            same = reports_of(agreed, Path(made) / "same", 0.0)
            trained = reports_of(agreed, Path(made) / "trained", 1.0)
    finally:
        site_module.SumSite = real  # type: ignore[misc]
    most = most_changes(agreed)
    cases = [
        ("one word, another list in every round (no bound: the control)", same, in_turn(ROUNDS)),
        ("the same until the bound is reached", same, in_turn(most)),
        ("nearly one word, the five lists in turn, three times", same, in_spells(ROUNDS, LISTS * 3)),
        ("nearly one word, the five lists in turn, once", same, in_spells(ROUNDS)),
        (f"exactly one word, {REPEATS} other lists as allowed", same, in_spells(ROUNDS, [NAMES, *LISTS[:REPEATS]])),
        ("nearly one word, one site left out in the second half", same, in_spells(ROUNDS, [NAMES, LISTS[0]])),
        ("trains, another list in every round (no bound)", trained, in_turn(ROUNDS)),
        ("trains, the five lists in turn, three times", trained, in_spells(ROUNDS, LISTS * 3)),
        ("trains, each site away once for three rounds", trained, honest(ROUNDS)),
        ("one word, all four in every round", same, [NAMES] * ROUNDS),
    ]  # fmt: skip
    text = [
        f"# Differences by presence, {time.strftime('%Y-%m-%d')}",
        "",
        "`python benchmarks/attacks/attack_presence.py`: the heart study by FedAvg under masks, four hospitals, totals of",
        "three or four. The coordinator has no accomplice; it chooses whom it leaves out, and solves for each site's",
        "mean report. Cosine with that report, and length of the error in units of it (1: guessing nothing), in the",
        f"mean over the four sites and of the one read best; the bound in a run of {ROUNDS} rounds is {most} changes.",
        "",
        "| what the coordinator does | rounds | changes | within bound | cosine | error | best cosine | best error |",
        "| --- | ---: | ---: | --- | ---: | ---: | ---: | ---: |",
    ]
    for what, reports, lists in cases:
        found, changes = told(reports, lists)
        cells = [str(len(lists)), str(changes), "yes" if changes <= most else "no", *(f"{v:.2f}" for v in found)]
        text.append(f"| {what} | {' | '.join(cells)} |")
        print(text[-1], flush=True)
    single = {n: np.mean([reports_cos(same, n, r) for r in range(ROUNDS)]) for n in NAMES}
    text += [
        "",
        f"One report of a site has the cosine {np.mean(list(single.values())):.3f} with its mean: so much is chance of",
        "batches and dropout, which averages out over rounds.",
        "",
        "What the bound is worth: a coordinator can no longer leave out another site in every round, and every change",
        "is shown at the sites. It does not hide one site's mean report from a coordinator that leaves that site out",
        "for long: of two lists that differ by one site the averages of their totals tell it, with a single change.",
        "Against that only noise helps ([protect] rows or sites), and people who see in the log who is left out.",
        "Honest faults need changes: the long study of benchmarks/deploy/faults.py --masked (450 rounds, 44 faults) has a",
        "bound of 112.",
    ]
    (RESULTS / "attack_presence.md").write_text("\n".join(text) + "\n", encoding="utf-8")


def reports_cos(reports: Reports, name: str, r: int) -> float:
    mean = np.mean([reports[name, i] for i in range(ROUNDS)], 0)
    one = reports[name, r]
    return float(one @ mean / np.linalg.norm(one) / np.linalg.norm(mean))


if __name__ == "__main__":
    main()
