"""What benchmarks/faults/planted_faults.py counts, from the cases that were kept.

- guilty site first: the site that is named first, or scored highest where none is named
- cell found: the wrong column, or the outcome, is called likely wrong there (a column that is not measured: is told)
- other cells: called likely wrong, and innocent; in the sites as they are in the data, new ones only
- cause right: of all cases, found and with the right cause
Shares come with a 95 % interval (Wilson), as if cases were independent: those of one table are not quite, so the truth
is wider. A rival's bar: 1 in 20 clean federations of the design tables exceeds it.
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import NormalDist
from typing import Any

import numpy as np
from fault_kinds import Kind

Job = dict[str, Any]
Cases = dict[str, Job]
Stages = dict[str, Cases]
ALARM = 0.05
SAID = {
    "screen": "**the screening**",
    "first": "its first form",
    "summaries": "column summaries",
    "margins": "margins alone",
}
SAID |= {"released": "row gradients (release before)", "paper": "the iFedAvg paper's marks"}


def wilson(k: int, n: int) -> tuple[float, float]:
    z = NormalDist().inv_cdf(0.975)
    if not n:
        return 0.0, 1.0
    middle, half = (k + z * z / 2) / (n + z * z), z / (n + z * z) * (k * (n - k) / n + z * z / 4) ** 0.5
    return max(0.0, middle - half), min(1.0, middle + half)


def share(hits: Iterable[bool]) -> str:
    hits = list(hits)
    if not hits:
        return "-"
    low, high = wilson(sum(hits), len(hits))
    return f"{np.mean(hits):.2f} ({low:.2f} to {high:.2f})"


def mean_interval(values: np.ndarray) -> tuple[float, float]:
    """95 %, of a share (Wilson) or of a mean number of cells (normal)."""
    if {*values} <= {0, 1}:
        return wilson(int(values.sum()), len(values))
    half = NormalDist().inv_cdf(0.975) * float(values.std(ddof=1)) / len(values) ** 0.5 if len(values) > 1 else np.inf
    return max(0.0, float(values.mean()) - half), float(values.mean()) + half


def table(head: str, rows: list[list[Any]]) -> list[str]:
    names = head.split("|")
    lines = [f"| {' | '.join(n.strip() for n in names)} |", f"| {' | '.join('---' for _ in names)} |"]
    return [*lines, *(f"| {' | '.join(map(str, r))} |" for r in rows), ""]


class Case:
    """One case as one rule sees it."""

    def __init__(self, tag: str, said: list[list[Any]], order: list[str], harm: Job, told: list[list[Any]]) -> None:
        self.tag = tag
        self.part, self.cut, self.data, self.seed, kinds = tag.split("|")
        self.kinds = kinds.split("+") if kinds else []
        self.said, self.order, self.harm, self.told = said, order, harm, told
        self.guilty = {(site, cell): k for k, (site, cells) in enumerate(harm.get("guilty", [])) for cell in cells}

    @property
    def first(self) -> bool:
        return bool(self.order) and self.order[0] in {site for site, _ in self.guilty}

    def cells(self, kinds: dict[str, Kind]) -> list[list[Any]]:
        """What counts as found, of the guilty cells."""
        lenient = {k for k, name in enumerate(self.kinds) if kinds[name].told}
        told = [c for c in self.told if self.guilty.get((c[0], c[1])) in lenient]
        return [c for c in [*self.said, *told] if (c[0], c[1]) in self.guilty]

    def found(self, kinds: dict[str, Kind]) -> bool:
        return bool(self.cells(kinds))

    def cause(self, kinds: dict[str, Kind]) -> bool:
        return any(c[2] in kinds[self.kinds[self.guilty[c[0], c[1]]]].causes for c in self.cells(kinds))

    def others(self, before: Iterable[tuple[str, str]] = ()) -> list[list[Any]]:
        known = {*self.guilty, *before}
        return [c for c in self.said if (c[0], c[1]) not in known]


def bar(cases: Cases, rule: str) -> float:
    """Exceeded in 1 of 20 clean federations of the design tables."""
    clean = [d[rule][0][2] for t, d in cases.items() if t.startswith("design|lot|") and t.endswith("|") and d[rule]]
    return float(np.quantile(clean, 1 - ALARM)) if clean else float("inf")


def seen(stages: Stages, rule: str) -> list[Case]:
    """All cases that a rule judged."""
    harm, out = stages["harm"], []
    if rule in ("screen", "first"):
        for t, d in stages[rule].items():
            out.append(Case(t, d["wrong"], d["order"], harm.get(t, {}), d["differs"]))
        return out
    stage = "released" if rule in ("released", "paper") else "rivals"
    height = bar(stages[stage], rule)
    for t, d in stages[stage].items():
        said: list[list[Any]] = []
        for cell in d[rule]:
            if cell[2] <= height:
                break
            said.append([cell[0], cell[1], ""])
        out.append(Case(t, said, list(dict.fromkeys(c[0] for c in d[rule])), harm.get(t, {}), []))
    return out


def one_fault(cases: list[Case], kinds: dict[str, Kind]) -> list[Any]:
    others = [len(c.others()) for c in cases]
    firsts, founds = [c.first for c in cases], [c.found(kinds) for c in cases]
    return [len(cases), share(firsts), share(founds), f"{np.mean(others):.2f}" if others else "-"]


def harmful(c: Case) -> bool:
    return bool(c.harm.get("harmful"))


def kappa(a: np.ndarray, b: np.ndarray, weight: np.ndarray) -> tuple[float, float]:
    """Share of agreement and Cohen's kappa of two yes or no [case]."""
    w = weight / weight.sum()
    agree, p, q = float((w * (a == b)).sum()), float((w * a).sum()), float((w * b).sum())
    chance = p * q + (1 - p) * (1 - q)
    return agree, (agree - chance) / max(1e-12, 1 - chance)
