"""What benchmarks/planted_faults.py counts, from the cases that were kept.

- guilty site first: the site that is named first, or scored highest where none is named
- cell found: the wrong column, or the outcome, is called likely wrong there (a column that is not measured: is told)
- other cells: called likely wrong, and innocent; in the sites as they are in the data, new ones only
- cause right: of all cases, found and with the right cause
Shares come with a 95 % interval (Wilson). A rival's bar: 1 in 20 clean federations of the design tables exceeds it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from statistics import NormalDist
from typing import Any

import numpy as np
from fault_harm import HARM
from fault_kinds import KINDS, Kind

Job = dict[str, Any]
Cases = dict[str, Job]
Stages = dict[str, Cases]
ALARM = 0.05
SAID = {"screen": "**the screening**", "summaries": "column summaries", "margins": "margins alone"}
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
    if rule == "screen":
        for t, d in stages["screen"].items():
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


Pick = Callable[[Case], bool]


def compare(stages: Stages, kinds: dict[str, Kind], pick: Pick, rules: tuple[str, ...], causes: bool) -> list[str]:
    rows: list[list[Any]] = []
    judged = set.intersection(*({c.tag for c in seen(stages, rule)} for rule in rules))  # the same cases for all
    for rule in rules:
        cases = [c for c in seen(stages, rule) if len(c.kinds) == 1 and pick(c) and c.tag in judged]
        right = share(c.cause(kinds) for c in cases) if causes and rule == "screen" else "-"
        rows.append([SAID[rule], *one_fault(cases, kinds), right])
    return table("rule | cases | guilty site first | cell found | other cells a run | cause right", rows)


def by_group(
    stages: Stages, kinds: dict[str, Kind], pick: Pick, group: Callable[[Case], str], causes: bool
) -> list[str]:
    cases = [c for c in seen(stages, "screen") if len(c.kinds) == 1 and pick(c)]
    rows = []
    for name in dict.fromkeys(map(group, cases)):
        mine = [c for c in cases if group(c) == name]
        right = share(c.cause(kinds) for c in mine) if causes else "-"
        rows.append([name, *one_fault(mine, kinds), right])
    return table("| cases | guilty site first | cell found | other cells a run | cause right", rows)


def harmful(c: Case) -> bool:
    return bool(c.harm.get("harmful"))


def clean_rows(stages: Stages, rules: Iterable[str]) -> list[str]:
    rows = []
    words = {"lot": "sites of the usual size", "small": "sites of 15 to 60 rows, rare binary columns"}
    for part in ("design", "test"):
        for cut, said in words.items():
            for rule in rules:
                cases = [c for c in seen(stages, rule) if not c.kinds and (c.part, c.cut) == (part, cut)]
                alarms = [bool(c.said) for c in cases]
                if cases:
                    rows.append([part, said, SAID[rule], len(cases), sum(alarms), share(alarms)])
    return table("tables | federations | rule | how many | with an alarm | share", rows)


def clean_alarms(stages: Stages) -> list[str]:
    """Every alarm in a clean federation, and each table's count."""
    cases = [c for c in seen(stages, "screen") if not c.kinds and c.cut != "natural"]
    rows = []
    for name in dict.fromkeys(c.data or "small sites" for c in cases):
        mine = [c for c in cases if (c.data or "small sites") == name]
        said = [f"{c[1]} ({c[2]}, {c[3]:g})" for case in mine for c in case.said]
        rows.append([name, len(mine), sum(bool(c.said) for c in mine), "; ".join(said[:8]) or "none"])
    return table("data | federations | with an alarm | what is said (cause, times the bar), the first eight", rows)


def two_faults(stages: Stages, kinds: dict[str, Kind], rules: Iterable[str]) -> list[str]:
    rows = []
    for part in ("design", "test"):
        for rule in rules:
            cases = [c for c in seen(stages, rule) if len(c.kinds) == 2 and harmful(c) and c.part == part]
            both = [{site for site, _ in c.guilty} == {*c.order[:2]} for c in cases]
            cells = [len({c.guilty[x[0], x[1]] for x in c.cells(kinds)}) == 2 for c in cases]
            others = np.mean([len(c.others()) for c in cases]) if cases else 0
            rows.append([part, SAID[rule], len(cases), share(both), share(cells), f"{others:.2f}"])
    return table("tables | rule | cases | both sites first | both cells found | other cells a run", rows)


def natural_rows(stages: Stages, kinds: dict[str, Kind], known: bool) -> list[str]:
    """The sites as they are in the data: what is found beyond what is said without any fault."""
    rows = []
    for rule in ("screen", "summaries", "margins"):
        every = [c for c in seen(stages, rule) if c.cut == "natural"]
        base = {c.data: {(x[0], x[1]) for x in c.said} for c in every if not c.kinds}
        for part in ("design", "test"):
            names = [*dict.fromkeys(c.data for c in every if c.part == part), "all"]
            for name in names if rule == "screen" else ["all"]:
                cases = [c for c in every if c.kinds and harmful(c) and c.part == part and name in (c.data, "all")]
                cases = [c for c in cases if (c.kinds[0] in KINDS) == known and c.data in base]
                if not cases:
                    continue
                new = np.mean([len(c.others(base[c.data])) for c in cases])
                wrong = [c.found(kinds) for c in cases]
                either = [c.found(kinds) or any((x[0], x[1]) in c.guilty for x in c.told) for c in cases]
                silent = np.mean([len(base[n]) for n in base if name in (n, "all") and n in names])
                cells = [part, name, SAID[rule], len(cases), share(wrong), share(either), f"{new:.2f}", f"{silent:.1f}"]
                rows.append(cells)
    head = "tables | data | rule | cases | called likely wrong | or told as differing | new false cells a run | "
    return table(head + "likely wrong without a fault, a federation", rows)


def natural_names(stages: Stages) -> list[str]:
    rows = []
    for c in seen(stages, "screen"):
        if c.cut == "natural" and not c.kinds:
            said = "; ".join(f"{x[0]}: {x[1]} ({x[2]}, {x[3]:g})" for x in c.said)
            rows.append([c.data, len(c.said), said or "none", stages["screen"][c.tag]["others differ"]])
    return table("data | likely wrong | which (cause, times the bar) | told as differing", rows)


def goals(stages: Stages, kinds: dict[str, Kind]) -> list[str]:
    """What was asked for, against what was counted."""
    every = seen(stages, "screen")
    rows: list[list[Any]] = []

    def put(
        words: str, least: float | None, most: float | None, value: Callable[[list[Case]], float], pick: Pick
    ) -> None:
        cells: list[str] = []
        for part in ("design", "test"):
            cases = [c for c in every if c.part == part and pick(c)]
            got = value(cases) if cases else float("nan")
            good = got >= least - 1e-9 if least is not None else got <= (most or 0) + 1e-9
            cells.append("-" if not cases else f"{got:.3f} of {len(cases)}: {'holds' if good else '**does not hold**'}")
        rows.append([words, f">= {least}" if least is not None else f"<= {most}", *cells])

    def mean(what: Callable[[Case], Any]) -> Callable[[list[Case]], float]:
        return lambda cases: float(np.mean([what(c) for c in cases]))

    base = {c.data: {(x[0], x[1]) for x in c.said} for c in every if c.cut == "natural" and not c.kinds}
    for words, known, bounds in (("kinds known", True, (0.97, 0.95, 0.05)), ("made up later", False, (0.9, 0.85, 0.1))):

        def pick(c: Case, known: bool = known) -> bool:
            return len(c.kinds) == 1 and c.cut == "lot" and harmful(c) and (c.kinds[0] in KINDS) == known

        put(f"{words}: guilty site first", bounds[0], None, mean(lambda c: c.first), pick)
        put(f"{words}: cell or label found", bounds[1], None, mean(lambda c: c.found(kinds)), pick)
        put(f"{words}: other cells a run", None, bounds[2], mean(lambda c: len(c.others())), pick)
        if known:
            put(f"{words}: cause right", 0.9, None, mean(lambda c: c.cause(kinds)), pick)
    both = mean(lambda c: {site for site, _ in c.guilty} == {*c.order[:2]})
    put("two faulty sites: both first", 0.85, None, both, lambda c: len(c.kinds) == 2 and harmful(c))
    for cut, words in (("lot", "clean, usual size: with an alarm"), ("small", "clean, small sites: with an alarm")):
        put(words, None, ALARM, mean(lambda c: bool(c.said)), lambda c, cut=cut: c.cut == cut and not c.kinds)
    natural: Pick = lambda c: c.cut == "natural" and len(c.kinds) == 1 and harmful(c) and c.kinds[0] in KINDS  # noqa: E731
    put("natural: called likely wrong", 0.8, None, mean(lambda c: c.found(kinds)), natural)
    put("natural: new false cells a run", None, 0.2, mean(lambda c: len(c.others(base.get(c.data, ())))), natural)
    alone: Pick = lambda c: c.cut == "natural" and not c.kinds  # noqa: E731
    put(
        "natural, no fault: likely wrong, most of a federation", None, 1, lambda cs: max(len(c.said) for c in cs), alone
    )
    return table("harmful faults, unless said otherwise | asked | design tables | tables kept apart", rows)


def versus(stages: Stages, kinds: dict[str, Kind], rival: str) -> list[str]:
    """Case by case: which faults does one find and the other miss?"""
    theirs, rows = {c.tag: c for c in seen(stages, rival)}, []
    for words, known in (("kinds known", True), ("made up later", False)):
        cases = [c for c in seen(stages, "screen") if len(c.kinds) == 1 and c.cut == "lot" and c.part == "test"]
        cases = [c for c in cases if harmful(c) and c.tag in theirs and (c.kinds[0] in KINDS) == known]
        both = [(c.found(kinds), theirs[c.tag].found(kinds)) for c in cases]
        rows.append(
            [words, len(both), *(both.count(k) for k in ((True, True), (True, False), (False, True), (False, False)))]
        )
    head = (
        f"tables kept apart, harmful | cases | both find the cell | only the screening | only {SAID[rival]} | neither"
    )
    return table(head, rows)


def fedavg_rows(stages: Stages) -> list[str]:
    pairs = [(stages["harm"][t]["harm"][0], d["harm"]) for t, d in stages["fedavg"].items() if t in stages["harm"]]
    if len(pairs) < 5:
        return []
    a, b = np.array(pairs).T
    here, there = a >= HARM, b >= HARM
    return [
        f"The stand-in against FedAvg itself (30 rounds, 32-16, 3 splits and starts) on {len(pairs)} of these faults: "
        f"of {here.sum()} harmful here {share(there[here])} are so under FedAvg, of {(~here).sum()} harmless here "
        f"{share(~there[~here])}; correlation of the two losses {np.corrcoef(a, b)[0, 1]:.2f}.",
        "",
    ]


def report(stages: Stages, kinds: dict[str, Kind], judges: dict[str, int], more: list[str]) -> str:
    rules, trained = ("screen", "summaries", "margins"), ("screen", "summaries", "margins", "released", "paper")
    sample = {t for t in stages["released"] if not t.endswith("|")}
    counted = [h for t, h in stages["harm"].items() if "+" not in t]
    lines = [
        "# Planted faults: does the screening name site, cell and cause, and stay silent otherwise?",
        "",
        *(__doc__ or "").split("\n", 2)[2].rstrip().split("\n"),
        "",
        f"{len(counted)} single faults were planted, {sum(h['harmful'] for h in counted)} of them "
        "harmful (benchmarks/fault_harm.py says how; no rule is asked). Rule versions (hash of src/vitrail/screen): "
        + ", ".join(f"{k}: {v} cases" for k, v in judges.items())
        + ".",
        "",
        *fedavg_rows(stages),
    ]
    broke = [t for t, d in stages["screen"].items() if "broke" in d]
    lines += (
        [f"The rule broke with an error in {len(broke)} cases, which count as not found: {', '.join(broke[:5])}.", ""]
        if broke
        else []
    )

    lines += ["## What was asked for", "", *goals(stages, kinds)]

    def section(title: str, said: str, *parts: list[str]) -> None:
        lines.extend([f"## {title}", "", *([said, ""] if said else []), *(x for p in parts for x in p)])

    for part, words in (("design", "Tables the rule was shaped on"), ("test", "Tables kept apart")):

        def pick(c: Case, part: str = part) -> bool:
            return c.part == part and c.cut == "lot" and harmful(c) and c.kinds[0] in KINDS

        section(f"{words}: harmful faults of the kinds known", "", compare(stages, kinds, pick, rules, True))
        section("By kind", "", by_group(stages, kinds, pick, lambda c: c.kinds[0], True))
        section("By table", "", by_group(stages, kinds, pick, lambda c: c.data, True))

        def unseen(c: Case, part: str = part) -> bool:
            return c.part == part and c.cut == "lot" and harmful(c) and c.kinds[0] not in KINDS

        section(f"{words}: harmful faults of kinds made up later", "", compare(stages, kinds, unseen, rules, False))
        section("By kind", "", by_group(stages, kinds, unseen, lambda c: c.kinds[0], False))
    section("Case by case against the simplest rival", "", versus(stages, kinds, "summaries"))
    if sample:
        said = "A sample of the harmful cases by lot, for training takes its time; the two last rules train iFedAvg."
        section(
            "With the rules that need training", said, compare(stages, kinds, lambda c: c.tag in sample, trained, True)
        )
    said = "For completeness, some of the faults that cost their site less than the bound."
    pick_all: Pick = lambda c: c.cut == "lot" and not harmful(c) and bool(c.harm)  # noqa: E731
    section("Harmless faults", said, compare(stages, kinds, pick_all, rules, True))
    section("Two faulty sites, both faults harmful, kinds known", "", two_faults(stages, kinds, rules))
    section("Clean federations by lot", "", clean_rows(stages, rules), clean_alarms(stages))
    said = "Sites as they are in the data. `test`: federations that the rule's author did not have."
    section("Natural federations, harmful faults of the kinds known", said, natural_rows(stages, kinds, True))
    section("Natural federations, kinds made up later", "", natural_rows(stages, kinds, False))
    said = "Nothing was planted here. A reader may judge which of these a hospital would want to hear of."
    section("Natural federations without a fault: what is called likely wrong", said, natural_names(stages))
    return "\n".join([*lines, *more]).rstrip() + "\n"
