"""Attacks on a federation, undefended and under each guard: rebuilding rows, membership, labels of groups, poisoning.

    VITRAIL_DATA=... python benchmarks/attacks/attacks.py                      # all; resumes: finished cases lie in --cache
    VITRAIL_DATA=... python benchmarks/attacks/attacks.py --stage craft honest
    python benchmarks/attacks/attacks.py --report                              # the tables from what is there

What each attack does is said in attack_rebuild.py, attack_members.py and attack_poison.py, and in the report.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import attack_members
import attack_poison
import attack_rebuild
import numpy as np
from attack_poison import ATTACKS, RULES
from guard_worlds import WORLDS, at_most, interval
from kept_cases import Cases, run_cases

HONEST = (  # guard, draws
    ("total of three", "secret"),  # as a study is drafted
    ("plain", "known"),
    ("plain", "secret"),
    ("total of three", "known"),
    ("total of three", "no dropout"),
    ("plain", "no dropout"),
    ("int8", "known"),
    ("rows 10", "known"),
    ("rows 3", "known"),
    ("rank", "known"),
)
PATIENTS = 5  # draws of patients for each
CRAFT = ("plain", "clip", "int8", "total of four", "rows 10", "rows 3")
MEMBERS = (("plain", "usual"), ("plain", "long"), ("rows 3", "long"))
NAMING = [r for r in RULES if r not in ("sum", "groups")]


def wanted(stage: str, seeds: int) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """The cases of a stage: what each is called, and how it is had."""
    if stage == "honest":
        for d in range(1, 1 + PATIENTS):  # a first draw under every guard, then more
            for guard, draws in HONEST:
                made = lambda g=guard, w=draws, i=d: attack_rebuild.case_of(g, w, i)  # noqa: E731
                about = f"{guard}, {'no dropout' if draws == 'no dropout' else f'draws {draws}'}"
                yield f"honest|{about}|{d}", lambda m=made: attack_rebuild.rebuild(m())
    elif stage == "craft":
        for seed in range(1, 1 + seeds):
            for dropout in (0.0, 0.2):
                for guard in CRAFT:
                    key = f"craft|{guard}, {'dropout 0.2' if dropout else 'no dropout'}|{seed}"
                    yield key, lambda g=guard, p=dropout, s=seed: attack_rebuild.crafting(g, p, s)
    elif stage == "labels":
        for seed in range(1, 1 + 2 * seeds):
            yield f"labels|all|{seed}", lambda s=seed: attack_members.labels(s)
    elif stage == "poison":
        for seed in range(1, 1 + seeds):
            for rule in RULES:
                for attack in ATTACKS:
                    key = f"poison|{rule}|{attack}|{seed}"
                    yield key, lambda r=rule, a=attack, s=seed: attack_poison.case(r, a, s)
    elif stage == "names":
        for seed in range(1, 1 + seeds):
            for world in WORLDS:
                for rule in NAMING:
                    yield f"names|{world}|{rule}|{seed}", lambda w=world, r=rule, s=seed: attack_poison.honest(w, r, s)
    elif stage == "members":
        for guard, network in MEMBERS:
            yield (
                f"members|{guard}, {network} training|1",
                lambda g=guard, n=network: attack_members.membership(g, n, 1),
            )


STAGES = ("craft", "honest", "labels", "poison", "names", "members")


def of(cases: Cases, stage: str) -> dict[str, list[dict[str, Any]]]:
    """The cases of a stage by what they are about, without the seed."""
    out: dict[str, list[dict[str, Any]]] = {}
    for key, case in cases.items():
        if key.startswith(f"{stage}|"):
            out.setdefault(key.split("|", 1)[1].rpartition("|")[0], []).append(case)
    return out


def rebuilt_table(cases: Cases) -> list[str]:
    out = [
        "| guard | reports | rows rebuilt | of | cells within 0.1 | best guess |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for stage in ("honest", "craft"):
        for about, found in of(cases, stage).items():
            rows, rebuilt = sum(c["rows"] for c in found), sum(c["rebuilt"] for c in found)
            cells, guess = (np.mean([c[k] for c in found]) for k in ("cells", "guess"))
            told = "- | -" if np.isnan(cells) else f"{cells:.2f} | {guess:.2f}"
            each = f" ({', '.join(str(c['rebuilt']) for c in found)})"
            name = {"honest": "keeps to the rules", "craft": "crafts"}[stage]
            out.append(f"| {name}: {about} | {len(found)} | {rebuilt}{each} | {rows} | {told} |")
    return out


def poison_table(cases: Cases) -> list[str]:
    out = ["| total | attack | AUC mean | AUC worst | called well with the mark | liar named | others named a run |"]
    out += ["| --- | --- | ---: | ---: | ---: | ---: | ---: |"]
    told = of(cases, "poison")
    for rule in RULES:
        for attack in ATTACKS:
            if not (found := told.get(f"{rule}|{attack}")):
                continue
            numbers = f"{interval([c['mean'] for c in found])} | {interval([c['worst'] for c in found])}"
            numbers += f" | {np.mean([c['fooled'] for c in found]):.2f}"
            named = "-" if rule == "sum" or attack == "none" else f"{sum(c['named'] for c in found)} of {len(found)}"
            wrong = [c["others"] + (attack == "none") * c["named"] for c in found]
            out.append(
                f"| {rule} | {attack} | {numbers} | {named} | {'-' if rule == 'sum' else f'{np.mean(wrong):.2f}'} |"
            )
    events = {a: [c["event"] for c in told.get(f"sum|{a}", [])] for a in ATTACKS}
    said = ", ".join(f"{a} {sum(v)} of {len(v)}" for a, v in events.items() if v)
    return [
        *out,
        "",
        f"Under the plain sum, runs in which a change more than 10 times the median left an event: {said}.",
    ]


def names_table(cases: Cases) -> list[str]:
    found = of(cases, "names")
    out = [
        "| federation | rule | runs | with an honest site named | sites named, of all |",
        "| --- | --- | ---: | ---: | ---: |",
    ]
    runs = wrong = 0
    for about, told in found.items():
        world, rule = about.split("|")
        bad = sum(c["named"] > 0 for c in told)
        runs, wrong = runs + len(told), wrong + bad
        named, sites = (sum(c[k] for c in told) for k in ("named", "sites"))
        out.append(f"| {world} | {rule} | {len(told)} | {bad} | {named} of {sites} |")
    if runs:
        out += [
            "",
            f"In {wrong} of {runs} runs without a liar somebody is named: at most {at_most(wrong, runs):.3f} (95 %).",
        ]
    return out


def report(cases: Cases) -> str:
    def words(module: Any) -> str:
        return str(module.__doc__).strip()

    out = ["# Attacks, undefended and under each guard", "", "Printed by `benchmarks/attacks/attacks.py`."]
    out += ["", "## Rebuilding rows", "", words(attack_rebuild), "", *rebuilt_table(cases)]
    out += ["", "## Membership, and labels of groups", "", words(attack_members), ""]
    out += ["| membership | attacked | AUC, LiRA | AUC, loss |", "| --- | ---: | ---: | ---: |"]
    for about, found in of(cases, "members").items():
        numbers = " | ".join(interval([c[k] for c in found]) for k in ("lira", "loss"))
        out.append(f"| {about} | {attack_members.VICTIMS * len(found)} | {numbers} |")
    for found in of(cases, "labels").values():
        out += [
            "",
            f"| labels: what is read, {len(found)} federations | correlation with the true shares |",
            "| --- | ---: |",
        ]
        out += [f"| {k} | {interval([c[k] for c in found])} |" for k in found[0]]
    out += ["", "## Poisoning, and who is named", "", words(attack_poison), ""]
    seeds = {k.rpartition("|")[2] for k in cases if k.startswith("poison|")}
    out += [f"{attack_poison.ROUNDS} rounds, {len(seeds)} seeds (other patients, starts and splits).", ""]
    out += [*poison_table(cases), "", *names_table(cases)]
    planned = {key.rpartition("|")[0] for stage in STAGES for key, _ in wanted(stage, 1)}
    missing = sorted(planned - {key.rpartition("|")[0] for key in cases})
    out += ["", f"Planned and not run: {'; '.join(m.replace('|', ', ') for m in missing)}."] if missing else []
    return "\n".join(out) + "\n"


if __name__ == "__main__":
    run_cases("attacks", __doc__, STAGES, 5, wanted, report)
