"""What benchmarks/faults/relations.py prints of its cases."""

from __future__ import annotations

from typing import Any

import numpy as np
from fault_cases import ALL_KINDS
from fault_kinds import KINDS
from fault_kinds_joint import ONLY_RELATIONS
from fault_kinds_third import THIRD, THIRD_ONLY_RELATIONS
from planted_faults_count import Case, Job, mean_interval, share, table, wilson

JOINT = {*ONLY_RELATIONS, *THIRD_ONLY_RELATIONS}
SMALL = 110  # rows: sites up to so many count as small
RULES = {"screen": "**the third form**", "before": "the second, with its repairs"}


def seen(kept: dict[str, dict[str, Job]], stage: str) -> list[Case]:
    return [Case(t, d["wrong"], d["order"], kept["harm"].get(t, {}), d["differs"]) for t, d in kept[stage].items()]


def counts(cases: list[Case]) -> list[Any]:
    if not cases:
        return [0, "-", "-", "-", "-"]
    others = np.array([len(c.others()) for c in cases], float)
    low, high = mean_interval(others)
    named = [c for c in cases if ALL_KINDS[c.kinds[0]].causes]
    return [
        len(cases),
        share(c.first for c in cases),
        share(c.found(ALL_KINDS) for c in cases),
        f"{others.mean():.3f} ({low:.2f} to {high:.2f})",
        share(c.cause(ALL_KINDS) for c in named),
    ]


def natural(cases: list[Case], clean: dict[str, list[tuple[str, str]]]) -> list[Any]:
    if not cases:
        return [0, "-", "-", "-"]
    told = [any((t[0], t[1]) in c.guilty for t in [*c.said, *c.told]) for c in cases]
    new = np.mean([len(c.others(clean.get(c.data, []))) for c in cases])
    return [len(cases), share(c.found(ALL_KINDS) for c in cases), share(told), f"{new:.2f}"]


GROUPS = {
    "kinds known": lambda c: c.kinds[0] in KINDS,
    "kinds known that only relations show": lambda c: c.kinds[0] in ONLY_RELATIONS,
    "kinds unseen": lambda c: c.kinds[0] in THIRD,
    "kinds unseen that only relations show": lambda c: c.kinds[0] in THIRD_ONLY_RELATIONS,
    "only relations show, all": lambda c: c.kinds[0] in JOINT,
    "a column's own counts or sign show it, all": lambda c: c.kinds[0] not in JOINT,
}


def wanted(name: str, hits: list[float], bound: float, at_least: bool) -> list[Any]:
    if not hits:
        return [name, "-", "-"]
    low, high = wilson(int(sum(hits)), len(hits)) if {*hits} <= {0.0, 1.0} else mean_interval(np.array(hits))
    mean = float(np.mean(hits))
    holds = mean >= bound if at_least else mean <= bound
    told = f"{mean:.3f} ({low:.2f} to {high:.2f}) of {len(hits)}: {'holds' if holds else '**does not hold**'}"
    return [name, f"{'>=' if at_least else '<='} {bound}", told]


def asked(cases: list[Case]) -> list[list[Any]]:
    lots = [c for c in cases if c.cut == "lot" and c.kinds]
    sites = [c for c in cases if c.cut == "natural" and c.kinds]
    known, unseen = ([c for c in lots if GROUPS[g](c)] for g in ("kinds known", "kinds unseen"))
    joint = [c for c in lots if c.kinds[0] in JOINT]
    clean = [c for c in cases if c.cut != "natural" and not c.kinds]
    of = {"first": lambda c: c.first, "cell": lambda c: c.found(ALL_KINDS), "cause": lambda c: c.cause(ALL_KINDS)}
    rows = []
    for name, group, what, bound in (
        ("kinds known: guilty site first", known, "first", 0.97),
        ("kinds known: cell or label found", known, "cell", 0.93),
        ("kinds known: cause right", known, "cause", 0.90),
        ("kinds unseen: guilty site first", unseen, "first", 0.93),
        ("kinds unseen: cell or label found", unseen, "cell", 0.85),
        ("kinds that only relations show: cell or label found", joint, "cell", 0.65),
    ):
        rows.append(wanted(name, [float(of[what](c)) for c in group], bound, True))
    rows.append(wanted("all: other cells a run", [float(len(c.others())) for c in lots], 0.05, False))
    rows.append(wanted("clean: with an alarm", [float(bool(c.said)) for c in clean], 0.05, False))
    for name, group, bound in (
        ("natural, kinds known: called likely wrong", "kinds known", 0.85),
        ("natural, kinds unseen: called likely wrong", "kinds unseen", 0.65),
    ):
        hits = [float(c.found(ALL_KINDS)) for c in sites if GROUPS[group](c)]
        rows.append(wanted(name, hits, bound, True))
    return rows


def by_kind(rules: dict[str, list[Case]], kinds: list[str]) -> list[list[Any]]:
    out = []
    for kind in kinds:
        row: list[Any] = [kind]
        for cases in rules.values():
            some = [c for c in cases if c.cut == "lot" and c.kinds == [kind]]
            row += [len(some), share(c.found(ALL_KINDS) for c in some)]
        if row[1]:
            out.append(row)
    return out


def report(kept: dict[str, dict[str, Job]]) -> str:
    judges = {s: sorted({d["judge"] for d in kept[s].values()}) for s in RULES}
    both = {*kept["screen"]} & {*kept["before"]}
    rules = {s: [c for c in seen(kept, s) if c.tag in both] for s in RULES}
    third = {s: [c for c in cases if c.part == "third"] for s, cases in rules.items()}
    lines = [
        "# Faults that only relations show, and all others: the screening's third form",
        "",
        "Single faults, one at one site; harmful ones alone (fault_harm.py). Shares with a 95 % interval (Wilson), as if",
        "cases were independent: those of one table are not quite. Tables and kinds of the parts below were written down",
        "before the third form was shaped (third.sha256), by the same author; none was screened before it was frozen",
        "(commit f605be15, hash 608e463139fb). After that, and before any result was looked at, four things were changed,",
        "of which docs/decisions/107 tells; judged is what came out (hash "
        f"{', '.join(judges['screen'])}), beside the form before ({', '.join(judges['before'])}), on the same cases:",
        f"{len(both)} of them. What was changed since is its speed.",
        "",
        "## What was asked for, on tables and kinds kept apart",
        "",
    ]
    now, before = asked(third["screen"]), asked(third["before"])
    rows = [[*a, b[2]] for a, b in zip(now, before, strict=True)]
    lines += table("what | asked | the third form | the form before", rows)
    lines += ["## Harmful faults, random cuts, tables kept apart", ""]
    rows = []
    for name, of in GROUPS.items():
        for stage, cases in third.items():
            rows.append([name, RULES[stage], *counts([c for c in cases if c.cut == "lot" and c.kinds and of(c)])])
    lines += table("kinds | rule | cases | guilty site first | cell found | other cells a run | cause right", rows)
    lines += ["## Case by case", "", "Which of the two finds the cell, random cuts, tables kept apart.", ""]
    rows = []
    for name, of in GROUPS.items():
        found = [{c.tag: c.found(ALL_KINDS) for c in third[s] if c.cut == "lot" and c.kinds and of(c)} for s in RULES]
        pairs = [(found[0][t], found[1][t]) for t in found[0]]
        rows.append([name, len(pairs), *(sum(p == w for p in pairs) for w in ((1, 1), (1, 0), (0, 1), (0, 0)))])
    lines += table("kinds | cases | both | only the third | only the form before | neither", rows)
    lines += ["## By kind", ""]
    kinds = [k for k in (*KINDS, *ONLY_RELATIONS, *THIRD) if k not in ("slipped a line", "outcome slipped a line")]
    head = "kind | cases | the third form finds | cases | the form before finds"
    lines += table(head, by_kind(third, list(dict.fromkeys(kinds))))
    lines += ["## Real sites, tables kept apart", ""]
    rows = []
    for stage, cases in third.items():
        clean = {c.data: [(x[0], x[1]) for x in c.said] for c in cases if c.cut == "natural" and not c.kinds}
        for name in ("kinds known", "kinds unseen"):
            some = [c for c in cases if c.cut == "natural" and c.kinds and GROUPS[name](c)]
            rows.append([name, RULES[stage], *natural(some, clean)])
        said = ", ".join(f"{k} {len(v)}" for k, v in sorted(clean.items()))
        rows.append(["without a fault: likely wrong", RULES[stage], said or "-", "-", "-", "-"])
    lines += table("kinds | rule | cases | called likely wrong | or told as differing | new false cells a run", rows)
    lines += ["## Clean federations, tables kept apart", ""]
    rows = []
    for stage, cases in third.items():
        for cut, name in (("lot", "sites of the usual size"), ("small", "sites of 15 to 60 rows")):
            some = [c for c in cases if c.cut == cut and not c.kinds]
            rows.append([name, RULES[stage], len(some), share(bool(c.said) for c in some)])
    lines += table("federations | rule | how many | with an alarm", rows)
    return "\n".join(lines).rstrip() + "\n"
