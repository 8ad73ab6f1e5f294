"""What one site that lies does to the others, and who names it: poisoning under every way of making a total.

    VITRAIL_DATA=... python benchmarks/attacks.py            # resumes; finished cases lie in --cache
    python benchmarks/attacks.py --report                    # the table from what is there

GUSTO, the ten largest regions with 400 patients each, FedAvg; the largest region lies. `sign`: ten times the negative
of its change; `scale`: a hundred times its change; `labels`: its outcomes are turned round, and its change is sent ten
times as long; `backdoor`: its patients with a mark in one column are called well, and its change is sent ten times as
long; `within`: each number of its report one standard deviation of the honest sites' to the wrong side of their mean,
which no rule that looks at one round can tell from a site that differs (it sees the others' reports: the worst case).

Honest sites' AUC on their own hold-out rows: mean and worst. `named`: the liar, as the page of a run names it
(report/protected.py); `others`: honest sites named. Without an attack `others` is the rate of being wrong.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import vitrail as vt
from vitrail import methods
from vitrail.core.facts import OUTLYING
from vitrail.core.metrics import score_all
from vitrail.core.tensors import each
from vitrail.data.encode import columns, prepare
from vitrail.engines.local import Engine
from vitrail.protect import Guards
from vitrail.report.protected import outlying
from vitrail.runs.setup import build_task, training_of, training_rows

RULES = ("sum", "median", "trimmed", "multikrum", "clipping")
ATTACKS = ("none", "sign", "scale", "labels", "backdoor", "within")
REGIONS, ROWS, ROUNDS, LR = 10, 400, 30, 0.004
RESULTS = Path(__file__).parent / "results"
MARK = 4.0  # standard deviations


def tables(seed: int) -> tuple[vt.Study, dict[str, Any]]:
    frames = dict(sorted(vt.datasets.gusto().items(), key=lambda kv: -len(kv[1]))[:REGIONS])
    frames = {n: f.sample(ROWS, random_state=seed).reset_index(drop=True) for n, f in frames.items()}
    study = vt.Study.infer(frames, "day30", name="gusto")
    return study.with_changes(training={"rounds": ROUNDS, "lr": LR}), frames


class Lie:
    def __init__(self, attack: str, liar: str) -> None:
        self.attack, self.liar = attack, liar

    def __call__(self, names: tuple[str, ...], ex: Any, up: Any) -> Any:
        if self.attack == "none" or self.liar not in names:
            return up
        at = names.index(self.liar)
        others = [i for i in range(len(names)) if i != at]
        by = {"sign": -10.0, "scale": 100.0, "labels": 10.0, "backdoor": 10.0}.get(self.attack)

        def turned(t: Tensor) -> Tensor:
            if t.dim() < 2:  # what it counts
                return t
            t = t.clone()
            mean, sd = t[others].mean(0), t[others].std(0)
            t[at] = t[at] * by if by is not None else mean - sd * mean.sign()
            return t

        return each(turned, up)


def case(rule: str, attack: str, seed: int) -> dict[str, Any]:
    study, frames = tables(seed)
    liar, method = next(iter(frames)), methods.build("fedavg")
    data = prepare(frames, study, seed)
    mark = next(i for i, c in enumerate(columns(study)) if c == "pulse")
    for site in data:
        if site.name == liar and attack == "labels":
            site.train_y[:] = 1 - site.train_y
        if site.name == liar and attack == "backdoor":
            site.train_x[:, mark], site.train_y[:] = MARK, 0
    guards = Guards(robust=None if rule == "sum" else rule)  # type: ignore[arg-type]
    rows = training_rows(data, study, method, "cpu")
    task = build_task(study, method, seed)
    given = {"guards": guards, "lies": Lie(attack, liar), "chunk": len(frames)}
    engine = Engine(task, method, rows, training_of(study), seed, **given)
    path = []
    for last in engine.run():
        path += [f.value.numpy() for f in last.facts.values() if f.means == OUTLYING]
    settled, aucs, fooled = engine.settled(last), [], []
    for site in data:
        if site.name == liar:
            continue
        i = engine.names.index(site.name)
        mine = each(lambda t: t[i : i + 1], settled)  # noqa: B023

        def said(x: Any, mine: Any = mine) -> Any:
            z = method.predict(engine.task, mine, torch.from_numpy(x).float()[None])
            return engine.task.loss.answers(z.double()).numpy()

        y = site.test_y.astype(np.int64)
        aucs.append(float(score_all(["auc"], y[None], said(site.test_x), np.ones((1, len(y)), bool))["auc"][0]))
        ill = site.test_x[y == 1].copy()
        if len(ill):
            ill[:, mark] = MARK
            fooled.append(float((said(ill)[0].argmax(1) == 0).mean()))
    named = {engine.names[i] for i in outlying(np.array(path))} if path else set()
    named |= set(engine.outcasts)
    told = {"mean": float(np.mean(aucs)), "worst": float(np.min(aucs)), "fooled": float(np.mean(fooled))}
    return told | {"named": liar in named, "others": len(named - {liar}), "event": liar in engine.unusual}


def report(cases: dict[str, dict[str, Any]], seeds: int) -> str:
    out = ["# One site that lies", "", (__doc__ or "").split("\n\n", 2)[2].strip(), ""]
    out.append(
        f"{ROUNDS} rounds, {seeds} seeds (other patients, starts and splits). Printed by `benchmarks/attacks.py`."
    )
    out += [
        "",
        "| total | attack | AUC mean | AUC worst | called well with the mark | liar named | others named a run |",
    ]
    out += ["| --- | --- | ---: | ---: | ---: | ---: | ---: |"]
    for rule in RULES:
        for attack in ATTACKS:
            found = [c for k, c in cases.items() if k.startswith(f"{rule}|{attack}|")]
            if not found:
                continue
            mean = {k: np.array([float(c[k]) for c in found]) for k in found[0]}
            numbers = f"{mean['mean'].mean():.3f} | {mean['worst'].mean():.3f} | {mean['fooled'].mean():.2f}"
            named = "-" if rule == "sum" or attack == "none" else f"{mean['named'].sum():.0f} of {len(found)}"
            others = (
                "-" if rule == "sum" else f"{mean['others'].mean() + (attack == 'none') * mean['named'].mean():.2f}"
            )
            out.append(f"| {rule} | {attack} | {numbers} | {named} | {others} |")
    plain = {a: [c["event"] for k, c in cases.items() if k.startswith(f"sum|{a}|")] for a in ATTACKS}
    told = ", ".join(f"{a} {sum(v)} of {len(v)}" for a, v in plain.items() if v)
    out += ["", f"Under the plain sum, runs in which a change more than 10 times the median left an event: {told}.", ""]
    return "\n".join(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, default=RESULTS / "attacks.json")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--report", action="store_true")
    given = parser.parse_args()
    cases: dict[str, dict[str, Any]] = json.loads(given.cache.read_text()) if given.cache.exists() else {}
    for seed in range(1, 1 + given.seeds) if not given.report else ():
        for rule in RULES:
            for attack in ATTACKS:
                if (key := f"{rule}|{attack}|{seed}") not in cases:
                    cases[key] = case(rule, attack, seed)
                    print(key, cases[key], flush=True)
                    given.cache.write_text(json.dumps(cases, indent=0))
    text = report(cases, len({k.split("|")[2] for k in cases}))
    (RESULTS / "attacks.md").write_text(text, encoding="utf-8")
    print(text)


if __name__ == "__main__":
    main()
