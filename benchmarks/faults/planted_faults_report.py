"""The tables of benchmarks/faults/results/planted_faults.md, from the cases that were kept (planted_faults_count.py)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import planted_faults_count as count
from fault_harm import HARM
from fault_kinds import KINDS, Kind
from planted_faults_count import ALARM, SAID, Case, Stages, harmful, kappa, mean_interval, one_fault, seen, share, table

PARTS = {
    "design": "tables the first form was shaped on",
    "test": "first kept apart (known to the second form's author)",
    "fresh": "fresh",
}
Pick = Callable[[Case], bool]


def compare(stages: Stages, kinds: dict[str, Kind], pick: Pick, rules: tuple[str, ...], causes: bool) -> list[str]:
    rows: list[list[Any]] = []
    rules = tuple(r for r in rules if seen(stages, r))
    judged = set.intersection(*({c.tag for c in seen(stages, rule)} for rule in rules))  # the same cases for all
    for rule in rules:
        cases = [c for c in seen(stages, rule) if len(c.kinds) == 1 and pick(c) and c.tag in judged]
        right = share(c.cause(kinds) for c in cases) if causes and rule in ("screen", "first") else "-"
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


def clean_rows(stages: Stages, rules: Iterable[str]) -> list[str]:
    rows = []
    words = {"lot": "sites of the usual size", "small": "sites of 15 to 60 rows, rare binary columns"}
    for part in PARTS:
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
    for part in PARTS:
        for rule in rules:
            cases = [c for c in seen(stages, rule) if len(c.kinds) == 2 and harmful(c) and c.part == part]
            both = [{site for site, _ in c.guilty} == {*c.order[:2]} for c in cases]
            cells = [len({c.guilty[x[0], x[1]] for x in c.cells(kinds)}) == 2 for c in cases]
            others = np.mean([len(c.others()) for c in cases]) if cases else 0
            if cases:
                rows.append([part, SAID[rule], len(cases), share(both), share(cells), f"{others:.2f}"])
    return table("tables | rule | cases | both sites first | both cells found | other cells a run", rows)


def natural_rows(stages: Stages, kinds: dict[str, Kind], known: bool) -> list[str]:
    """The sites as they are in the data: what is found beyond what is said without any fault."""
    rows = []
    for rule in ("screen", "first", "summaries", "margins"):
        every = [c for c in seen(stages, rule) if c.cut == "natural"]
        base = {c.data: {(x[0], x[1]) for x in c.said} for c in every if not c.kinds}
        for part in PARTS:
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


def goals(stages: Stages, kinds: dict[str, Kind], rule: str) -> list[str]:
    """What was asked for, against what was counted."""
    every = seen(stages, rule)
    rows: list[list[Any]] = []

    def put(words: str, least: float | None, most: float, value: Callable[[Case], float], pick: Pick) -> None:
        cells: list[str] = []
        for part in PARTS:
            got = np.array([float(value(c)) for c in every if c.part == part and pick(c)])
            if not len(got):
                cells.append("-")
                continue
            good = got.mean() >= least - 1e-9 if least is not None else got.mean() <= most + 1e-9
            low, high = mean_interval(got)
            verdict = "holds" if good else "**does not hold**"
            cells.append(f"{got.mean():.3f} ({low:.2f} to {high:.2f}) of {len(got)}: {verdict}")
        rows.append([words, f">= {least}" if least is not None else f"<= {most}", *cells])

    base = {c.data: {(x[0], x[1]) for x in c.said} for c in every if c.cut == "natural" and not c.kinds}
    for words, known, bounds in (
        ("kinds known", True, (0.97, 0.95, 0.05)),
        ("kinds made up later", False, (0.9, 0.85, 0.1)),
    ):

        def pick(c: Case, known: bool = known) -> bool:
            return len(c.kinds) == 1 and c.cut == "lot" and harmful(c) and (c.kinds[0] in KINDS) == known

        put(f"{words}: guilty site first", bounds[0], 0, lambda c: c.first, pick)
        put(f"{words}: cell or label found", bounds[1], 0, lambda c: c.found(kinds), pick)
        put(f"{words}: other cells a run", None, bounds[2], lambda c: len(c.others()), pick)
        if known:
            put(f"{words}: cause right", 0.9, 0, lambda c: c.cause(kinds), pick)
    both = lambda c: {site for site, _ in c.guilty} == {*c.order[:2]}  # noqa: E731
    put("two faulty sites: both first", 0.85, 0, both, lambda c: len(c.kinds) == 2 and harmful(c))
    for cut, words in (("lot", "clean, usual size: with an alarm"), ("small", "clean, small sites: with an alarm")):
        put(words, None, ALARM, lambda c: bool(c.said), lambda c, cut=cut: c.cut == cut and not c.kinds)

    def natural(c: Case) -> bool:  # where it is also known what is said without a fault
        return c.cut == "natural" and harmful(c) and len(c.kinds) == 1 and c.kinds[0] in KINDS and c.data in base

    put("natural: called likely wrong", 0.8, 0, lambda c: c.found(kinds), natural)
    put("natural: new false cells a run", None, 0.2, lambda c: len(c.others(base.get(c.data, ()))), natural)
    alone = {p: [len(c.said) for c in every if c.part == p and c.cut == "natural" and not c.kinds] for p in PARTS}
    said = [
        f"{max(n)} of {len(n)}: {'holds' if max(n) <= 1 else '**does not hold**'}" if n else "-" for n in alone.values()
    ]
    rows.append(["natural, no fault: likely wrong, most of a federation", "<= 1", *said])
    return table(f"harmful faults, unless said otherwise | asked | {' | '.join(PARTS.values())}", rows)


def versus(stages: Stages, kinds: dict[str, Kind], rival: str) -> list[str]:
    """Case by case: which faults does one find and the other miss?"""
    theirs, rows = {c.tag: c for c in seen(stages, rival)}, []
    for part in ("test", "fresh"):
        for words, known in (("known", True), ("made up later", False)):
            cases = [c for c in seen(stages, "screen") if len(c.kinds) == 1 and c.cut == "lot" and c.part == part]
            cases = [c for c in cases if harmful(c) and c.tag in theirs and (c.kinds[0] in KINDS) == known]
            both = [(c.found(kinds), theirs[c.tag].found(kinds)) for c in cases]
            ways = ((True, True), (True, False), (False, True), (False, False))
            rows.append([PARTS[part], words, len(both), *(both.count(k) for k in ways)])
    head = f"tables, harmful | kinds | cases | both find the cell | only the screening | only {SAID[rival]} | neither"
    return table(head, rows)


def weak_points(stages: Stages, kinds: dict[str, Kind]) -> list[str]:
    """What speaks against the rule on the fresh tables, worst first: where a fault of six or more goes unseen."""
    cases = [c for c in seen(stages, "screen") if c.part == "fresh" and c.cut == "lot" and len(c.kinds) == 1]
    cases, theirs = [c for c in cases if harmful(c)], {c.tag: c for c in seen(stages, "summaries")}
    groups: dict[str, list[Case]] = {}
    for c in cases:
        for name in (f"fault: {c.kinds[0]}", f"table: {c.data}"):
            groups.setdefault(name, []).append(c)
    rows = []
    for name, mine in groups.items():
        found, others = [c.found(kinds) for c in mine], np.mean([len(c.others()) for c in mine])
        if len(mine) >= 6 and (np.mean(found) < 0.85 or others > 0.2):
            missed = [c for c, got in zip(mine, found, strict=True) if not got]
            rival = sum(theirs[c.tag].found(kinds) for c in missed if c.tag in theirs)
            rows.append([name, len(mine), share(found), f"{others:.2f}", f"{rival} of {len(missed)}"])
    rows.sort(key=lambda r: r[2])
    return table("| cases | cell found | other cells a run | missed, but found by column summaries", rows)


def fedavg_rows(stages: Stages) -> list[str]:
    """How well the stand-in for harm agrees with FedAvg."""
    pairs = [(stages["harm"][t], d) for t, d in stages["fedavg"].items() if t in stages["harm"]]
    if len(pairs) < 5:
        return []
    a, b = np.array([h["harm"][0] for h, _ in pairs]), np.array([d["harm"] for _, d in pairs])
    every, se = (np.array([d[k] for _, d in pairs], float) for k in ("every", "se"))
    here, there, clear = a >= HARM, b >= HARM, np.abs(b - HARM) > 2 * se
    (agree, k), (as_all, k_all) = kappa(here, there, np.ones(len(a))), kappa(here, there, every)
    sure = kappa(here[clear], there[clear], every[clear])
    return [
        "## The stand-in for harm against FedAvg itself",
        "",
        "FedAvg (30 rounds, hidden layers of 32 and 16 units, 3 other splits and starts) on a sample of the single "
        f"faults in tables of classes, by lot: one in {every.min():.0f} of those harmful here, one in "
        f"{every.max():.0f} of the others. It tells whether `harmful` in this file means harm to a federation that "
        "trains; it cannot tell what a larger network or another method would lose.",
        "",
        *table(
            "| harmful under FedAvg | not harmful under FedAvg",
            [
                ["harmful here", (here & there).sum(), (here & ~there).sum()],
                ["not harmful here", (~here & there).sum(), (~here & ~there).sum()],
            ],
        ),
        f"Of {len(a)} cases the two agree in {agree:.2f} (kappa {k:.2f}); weighted as all faults are, in {as_all:.2f} "
        f"(kappa {k_all:.2f}). Where FedAvg's loss lies more than 2 standard errors from the bound ({clear.sum()} "
        f"cases): {sure[0]:.2f} (kappa {sure[1]:.2f}). Of the harmful here {share(there[here])} are so under FedAvg, "
        f"of the others {share(~there[~here])} are not. Correlation of the two losses: {np.corrcoef(a, b)[0, 1]:.2f}; "
        f"mean loss of the harmful {a[here].mean():.3f} here, {b[here].mean():.3f} under FedAvg.",
        "",
    ]


def judged_rows(stages: Stages) -> list[str]:
    """What the second form judged, and what only the first did."""
    rows = []
    for part, words in PARTS.items():
        for cut in ("lot", "small", "natural"):
            both = [{t for t in stages[k] if t.startswith(f"{part}|{cut}|")} for k in ("screen", "first")]
            if any(both):
                rows.append([words, cut, len(both[0]), len(both[1]), len(both[1] - both[0])])
    said = "What only the first form judged was not judged again, for want of time: of the earlier tables, which the "
    said += "second form's author had seen, there is a sample (--every 10)."
    more = [said, ""] if any(r[4] for r in rows) else []
    return table("tables | sites | judged by the second form | by the first | by the first only", rows) + more


def report(stages: Stages, kinds: dict[str, Kind], judges: dict[str, dict[str, int]], more: list[str]) -> str:
    rules = ("screen", "first", "summaries", "margins")
    trained = (*rules, "released", "paper")
    sample = {t for t in stages["released"] if not t.endswith("|")}
    counted = [h for t, h in stages["harm"].items() if "+" not in t]
    forms = {k: ", ".join(f"{h} ({n} cases)" for h, n in v.items()) for k, v in judges.items()}
    lines = [
        "# Planted faults: does the screening name site, cell and cause, and stay silent otherwise?",
        "",
        *(count.__doc__ or "").split("\n", 2)[2].rstrip().split("\n"),
        "",
        f"{len(counted)} single faults were planted, {sum(h['harmful'] for h in counted)} of them "
        "harmful (benchmarks/faults/fault_harm.py says how; no rule is asked).",
        "",
        f"The screening is its second form (hash of src/vitrail/screen: {forms['screen']}). Its author had seen the "
        "tables and kinds of the first two columns below; the fresh ones nobody but the judge, who put them aside "
        f"before that form was frozen (fresh.sha256). The first form ({forms['first']}) is counted beside it.",
        "",
        *judged_rows(stages),
    ]
    broke = [t for t, d in stages["screen"].items() if "broke" in d]
    if broke:
        said = f"The rule broke with an error in {len(broke)} cases, which count as not found: {', '.join(broke[:5])}."
        lines += [said, ""]

    def section(title: str, said: str, *parts: list[str]) -> None:
        lines.extend([f"## {title}", "", *([said, ""] if said else []), *(x for p in parts for x in p)])

    section("What was asked for", "", goals(stages, kinds, "screen"))
    said = (
        "Fresh tables by lot: every table or kind with six or more harmful faults of which less than 85 % were found "
    )
    said += "or with more than 0.2 innocent cells a run."
    section("What speaks against it", said, weak_points(stages, kinds))
    section("What was asked for: the first form", "On all that it judged.", goals(stages, kinds, "first"))
    lines += fedavg_rows(stages)
    for part, words in reversed(PARTS.items()):

        def pick(c: Case, part: str = part, known: bool = True) -> bool:
            return c.part == part and c.cut == "lot" and harmful(c) and (c.kinds[0] in KINDS) == known

        def unseen(c: Case, pick: Callable[..., bool] = pick) -> bool:
            return pick(c, known=False)

        def kind(c: Case) -> str:
            return c.kinds[0]

        def data(c: Case) -> str:
            return c.data

        name = words[0].upper() + words[1:]
        if not any(pick(c) or unseen(c) for c in seen(stages, "screen")):
            section(name, "Not judged again by the second form; the first form's figures stand above.")
            continue
        section(f"{name}: harmful faults of the kinds known", "", compare(stages, kinds, pick, rules, True))
        section("By kind", "", by_group(stages, kinds, pick, kind, True))
        section("By table", "", by_group(stages, kinds, pick, data, True))
        section(f"{name}: harmful faults of kinds made up later", "", compare(stages, kinds, unseen, rules, False))
        section("By kind", "", by_group(stages, kinds, unseen, kind, False))
        if part == "fresh":
            section("By table", "", by_group(stages, kinds, unseen, data, False))
    section("Case by case against the simplest rival", "", versus(stages, kinds, "summaries"))
    section("Case by case against the first form", "", versus(stages, kinds, "first"))
    if sample & {*stages["screen"]}:
        said = "A sample of the harmful cases by lot, for training takes its time; the two last rules train iFedAvg."
        picked: Pick = lambda c: c.tag in sample  # noqa: E731
        section("With the rules that need training", said, compare(stages, kinds, picked, trained, False))
    said = "For completeness, some of the faults that cost their site less than the bound."
    pick_all: Pick = lambda c: c.cut == "lot" and not harmful(c) and bool(c.harm)  # noqa: E731
    section("Harmless faults", said, compare(stages, kinds, pick_all, rules, False))
    section("Two faulty sites, both faults harmful, kinds known", "", two_faults(stages, kinds, rules))
    section("Clean federations by lot", "", clean_rows(stages, rules), clean_alarms(stages))
    said = "Sites as in the data. `test`: federations the first form's author did not have; `fresh`: nor the second's."
    section("Natural federations, harmful faults of the kinds known", said, natural_rows(stages, kinds, True))
    section("Natural federations, kinds made up later", "", natural_rows(stages, kinds, False))
    said = "Nothing was planted here. A reader may judge which of these a hospital would want to hear of."
    section("Natural federations without a fault: what is called likely wrong", said, natural_names(stages))
    return "\n".join([*lines, *more]).rstrip() + "\n"
