"""Is joining worth it? How often the verdict is right where the truth is known, and what it says of real tables.

    python benchmarks/verdicts/verdicts.py worlds   # made-up hospitals (verdict_worlds.py); what was stopped goes on
    python benchmarks/verdicts/verdicts.py tables   # heart, GUSTO, HAR, Titanic: before and after; needs VITRAIL_DATA
    python benchmarks/verdicts/verdicts.py time     # the demo's study: five hold-outs against four times ten folds, one thread
    python benchmarks/verdicts/verdicts.py report   # results/verdicts.md from results/verdicts/*.csv

Before: five hold-outs of a third of the rows, balanced accuracy, an interval over the five. After: what `vt.compare`
does. Both by the product's own code (studies/benefit.py, stats/intervals.py). In the made-up worlds linear models
stand for networks. The rule was chosen on data sets of seeds 5, 1000, 2000 and 30000 and on; those here are of seeds
from 50000 on. Beside them a simple rival with the same losses: a t test over rows, as if they were judged by
independent models.
"""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy import stats
from verdict_worlds import CASES, Case, draw, held_out, of_all_rows, out_of_fold, truth

import vitrail as vt
from vitrail.stats.intervals import BELOW, LEVEL, level_of
from vitrail.studies.benefit import HARM, NO, UNSURE, YES, SiteLosses, decide
from vitrail.studies.compare.execution import FIRST_LOOK, FOLDS, SEEDS
from vitrail.studies.compare.result import SCORES, Comparison

RESULTS = Path(__file__).parent / "results"
CACHE = RESULTS / "verdicts"
BEFORE, AT_ONCE = 5, 100  # hold-outs, data sets
SETS = {"gain": 400, "loss": 400}  # of all others
MANY = 1000  # where nothing is gained: mistakes are rare
SAME = ("nothing", "choice", "trade")
TAILS = ((1.8, 2.7), (2.025, 2.25), (2.25, 2.25), (1.8, 2.25), (1.8, 2.0), (2.25, 1.8), (1.8, 1.8))  # first: the rule
RULES = {
    "before": f"before: {BEFORE} hold-outs",
    "after": f"after: {SEEDS} x {FOLDS} folds",
    "rows": "rival: t test over rows, of the method that does best on them",
}


# made-up hospitals


def judge_sets(case: Case, first: int, sets: int) -> list[dict[str, Any]]:
    """A line for each data set."""
    world = draw(case, sets, 50000 + first)
    whole = of_all_rows(world, case.kind)
    accuracy, loss = (part.cpu().numpy() for part in truth(world, whole))  # [set, method]
    repeats = [out_of_fold(world, case.kind, whole, FOLDS, 7919 * (50000 + first) + 100 * r) for r in range(SEEDS)]
    holds = [held_out(world, case.kind, whole, 104729 * (50000 + first) + 100 * s) for s in range(BEFORE)]
    out = []
    for b in range(sets):
        alone, joined, fold = (np.stack([r[i][b] for r in repeats], int(i == 1)) for i in range(3))
        losses = SiteLosses(alone, joined, fold, 1 / FOLDS, np.mean([r[3][b] for r in repeats], 0))
        share = float(world.y[b].mean())
        harm = -HARM * (share * math.log(share) + (1 - share) * math.log(1 - share))
        looks = (FIRST_LOOK, SEEDS)
        for look, used in enumerate(looks, 1):
            after = decide(losses.first(used), harm, level_of(look, len(looks)))
            if after.settled(harm):
                break
        own = -np.array([[alone for alone, _ in holds]])[..., b]
        both = -np.stack([joined[b] for _, joined in holds], 1)[:, None]
        before = decide(SiteLosses(own, both, np.arange(BEFORE)[None], 1 / 3), below=0.5)
        best = losses.joined.mean((1, 2)).argmin()
        t = stats.ttest_1samp((losses.alone - losses.joined[best]).mean(0), 0.0)
        rival = UNSURE if t.pvalue > LEVEL else YES if t.statistic > 0 else NO
        line = {"kind": case.kind, "n": case.rows, "set": first + b, "accuracy": accuracy[b, after.best]}
        line |= {"loss": loss[b, after.best], "before": before.verdict, "after": after.verdict, "rows": rival}
        out.append(line | {"seeds": used, "low": after.low, "high": after.high, "harm": harm})
    return out


def worlds(kinds: Sequence[str]) -> None:
    """A file for each kind of case; what is there is not done again."""
    CACHE.mkdir(exist_ok=True)
    for case in (c for c in CASES if c.kind in kinds):
        place = CACHE / f"worlds_{case.kind}.csv"
        lines = pd.read_csv(place).to_dict("records") if place.exists() else []
        for first in range(0, SETS.get(case.kind, MANY), AT_ONCE):
            if any((x["kind"], x["n"], x["set"]) == (*case, first) for x in lines):
                continue
            began = time.process_time()
            lines += judge_sets(case, first, AT_ONCE)
            pd.DataFrame(lines).to_csv(place, index=False, float_format="%.4f")
            print(*case, first, f"{time.process_time() - began:.0f} s", flush=True)


# real tables

ROUNDS = {"heart": 60, "titanic": 40, "har": 8, "gusto": 6}
SEVERAL, ONE = ["local", "fedavg", "fedper"], ["local", "fedavg"]
METHODS = {"heart": SEVERAL, "titanic": SEVERAL, "har": ONE, "gusto": ONE}


def table(name: str) -> tuple[vt.Study, dict[str, pd.DataFrame]]:
    if name == "heart":
        sites, study = vt.datasets.heart_disease(), vt.Study.load(vt.datasets.packaged("heart_disease.toml"))
    elif name == "titanic":
        one = vt.datasets.titanic()
        sites = {str(port): part.drop(columns="embarked") for port, part in one.groupby("embarked")}
        study = vt.Study.infer(sites, "survived")
    else:
        sites = {"gusto": vt.datasets.gusto, "har": vt.datasets.har}[name]()
        study = vt.Study.infer(sites, {"gusto": "day30", "har": "activity"}[name])
    return study.with_changes(training={"rounds": ROUNDS[name]}), sites


def before_of(study: vt.Study, sites: Mapping[str, pd.DataFrame], methods: list[str]) -> Comparison:
    """What `vt.compare` was: a hold-out for each seed."""
    study, scores, sizes = study.with_changes(split={"at_most": 0.5}), [], pd.DataFrame()
    for seed in study.seeds[:BEFORE]:
        for method in methods:
            run = vt.federate(study, sites, method, seed=seed)
            scores.append(run.scores().assign(method=method, seed=seed, split="test"))
            sizes = run.sizes
    none = pd.DataFrame()
    return Comparison(study, methods, list(study.seeds[:BEFORE]), pd.concat(scores)[SCORES], none, none, sizes, {})


def tables() -> None:
    CACHE.mkdir(exist_ok=True)
    for name in ROUNDS:
        place = CACHE / f"{name}.csv"
        if place.exists():
            continue
        study, sites = table(name)
        began = time.process_time()
        before = before_of(study, sites, METHODS[name]).verdicts()
        middle = time.process_time()
        after = vt.compare(study, sites, METHODS[name], study.seeds[:SEEDS])
        found = after.verdicts().merge(before, on="site", suffixes=("", "_before"))
        seconds = {"seconds": time.process_time() - middle, "seconds_before": middle - began}
        told = found.assign(table=name, seeds=len(after.seeds), **seconds).drop(columns=["why", "why_before"])
        told.to_csv(place, index=False, float_format="%.5f")
        print(name, seconds, flush=True)


# time


def clock() -> None:
    """CPU seconds, one thread: what `vt.compare` was and is, of the methods of the demo, without the early look."""
    study, sites = vt.Study.load(vt.datasets.packaged("heart_disease.toml")), vt.datasets.heart_disease()
    study = study.with_changes(screen={"ask": False})  # what it costs is another matter, and was not there before
    names = vt.methods.named(lambda kind: not kind.catalogue.tune_first and not kind.catalogue.required_net)
    lines = []
    for name in names:
        began = time.process_time()
        for seed in study.seeds[:BEFORE]:
            vt.federate(study, sites, name, seed=seed)
        middle = time.process_time()
        vt.compare(study, sites, [name], study.seeds[:SEEDS], every_seed=True)
        lines.append((name, middle - began, time.process_time() - middle, SEEDS))
        pd.DataFrame(lines, columns=["method", "before", "after", "seeds"]).to_csv(CACHE / "time.csv", index=False)
        print(lines[-1], flush=True)


# the report


def rate(hits: int, of: int) -> str:
    """A share with its 95 % interval (Clopper and Pearson)."""
    ends = stats.binomtest(hits, of).proportion_ci()
    return f"{100 * hits / of:.1f} % ({100 * ends.low:.1f} to {100 * ends.high:.1f})"


def worlds_report(told: pd.DataFrame) -> list[str]:
    right = {"gain": YES, "loss": NO}
    out = [
        "| case | rows | true gain of the method chosen: balanced accuracy, log loss | "
        + " | ".join(RULES.values())
        + " |"
    ]
    out.append("| --- | --- | --- | " + " | ".join("---" for _ in RULES) + " |")
    for kind, n in told[["kind", "n"]].drop_duplicates().itertuples(index=False):
        part = told[(told.kind == kind) & (told.n == n)]
        cells = []
        for rule in RULES:
            yes, no = (int((part[rule] == side).sum()) for side in (YES, NO))
            if kind in right:
                hits, wrong = (yes, no) if kind == "gain" else (no, yes)
                cells.append(f"right {rate(hits, len(part))}; wrong {100 * wrong / len(part):.1f} %")
            else:
                cells.append(f"yes {rate(yes, len(part))}; no {rate(no, len(part))}")
        out.append(f"| {kind} | {n} | {part.accuracy.mean():+.3f}, {part.loss.mean():+.3f} | {' | '.join(cells)} |")
    return out


def tails_report(told: pd.DataFrame) -> list[str]:
    """What other shares of the level on either end would have made of the same data sets, from gain and error."""
    degrees, used = SEEDS * FOLDS - 1, level_of(2, 2)
    whole = told[told.seeds == SEEDS]  # the few that ended early stay as they are
    ends = [float(stats.t.ppf(1 - used * part, degrees)) for part in (BELOW, 1 - BELOW)]
    error = (whole.high - whole.low) / sum(ends)
    gain = whole.low + ends[0] * error
    cases = list(told[["kind", "n"]].drop_duplicates().itertuples(index=False))
    out = ["| in 100: below, above | " + " | ".join(f"{kind} {n}" for kind, n in cases) + " |"]
    out += ["| --- " * (len(cases) + 1) + "|"]
    for below, above in TAILS:
        low, high = (gain + s * float(stats.t.ppf(1 - p / 100, degrees)) * error for s, p in ((-1, below), (1, above)))
        yes, no = told.after == YES, told.after == NO
        at = (told.seeds == SEEDS).to_numpy()
        yes, no = yes.to_numpy().copy(), no.to_numpy().copy()
        yes[at], no[at] = low > 0, (high < 0) & (low <= -whole.harm)
        cells = []
        for kind, n in cases:
            mine = ((told.kind == kind) & (told.n == n)).to_numpy()
            cells.append(f"{100 * yes[mine].mean():.1f}, {100 * no[mine].mean():.1f}")
        out.append(f"| {below}, {above} | " + " | ".join(cells) + " |")
    return out


def report() -> None:
    worlds = pd.concat([pd.read_csv(CACHE / f"worlds_{k}.csv") for k in dict.fromkeys(c.kind for c in CASES)])
    sets = worlds.groupby(["kind", "n"]).size()
    nothing = worlds[worlds.kind.isin(SAME)]
    out = [
        "# Is joining worth it: how often the verdict is right",
        "",
        f"Printed by `{Path(__file__).name} report`.",
        "",
    ]
    out += [
        f"Made-up hospitals (verdict_worlds.py), {sets.min()} to {sets.max()} data sets a case. Right: it says so.",
        "",
    ]
    out += worlds_report(worlds)
    early = (worlds.seeds < SEEDS).groupby(worlds.kind).mean()
    harm = worlds[worlds.kind == "loss"]
    small = nothing[nothing.after == "no harm"]
    out += [
        "",
        f"All cases without a difference together ({len(nothing)} data sets), after: "
        f"yes {rate(int((nothing.after == YES).sum()), len(nothing))}, "
        f"no {rate(int((nothing.after == NO).sum()), len(nothing))}; "
        f"t test over rows: yes {rate(int((nothing['rows'] == YES).sum()), len(nothing))}, "
        f"no {rate(int((nothing['rows'] == NO).sum()), len(nothing))}.",
        "",
        "In a single data set one of two models is a little better on patients to come, also where on average neither "
        "is. Said against that: "
        f"yes where joining loses {rate(int(((nothing.after == YES) & (nothing.loss <= 0)).sum()), len(nothing))}, "
        f"no where it gains {rate(int(((nothing.after == NO) & (nothing.loss >= 0)).sum()), len(nothing))}.",
        "",
        f'"No harm" (harm: {100 * HARM:.0f} % of what a guess would lose): said of {len(small)} of the {len(nothing)} '
        f"without a difference, and of {int((harm.after == 'no harm').sum())} of the {len(harm)} that lose.",
        "",
        f"Ended after {FIRST_LOOK} of {SEEDS} seeds: "
        + ", ".join(f"{kind} {100 * share:.0f} %" for kind, share in early.items())
        + " of the data sets.",
    ]
    out += ["", "## Other tails", ""]
    out += [
        "The same data sets, told yes and no in 100, had the last look spent other shares of the level on the ends. "
        "The first is the rule, fixed before; the others were looked at afterwards, all that were tried are here, and "
        "none was taken: the best of several on the same sets would be flattered.",
        "",
    ]
    out += tails_report(worlds)
    for name in ROUNDS:
        place = CACHE / f"{name}.csv"
        if not place.exists():
            out += ["", f"## {name}", "", "Not run."]
            continue
        t = pd.read_csv(place)
        counts = [t[c].value_counts() for c in ("verdict_before", "verdict")]
        words = ["; ".join(f"{k} {v}" for k, v in c.items()) for c in counts]
        first = t.iloc[0]
        out += ["", f"## {name}: {len(t)} sites, {ROUNDS[name]} rounds, {', '.join(METHODS[name])}", ""]
        out += [f"Before: {words[0]}. After: {words[1]}, with {first.seeds} seeds."]
        out += [f"CPU seconds: {first.seconds_before:.0f} before, {first.seconds:.0f} after.", ""]
        if first.seeds > SEEDS:
            out += ["Run when five seeds and equal tails were the rule; not done again since.", ""]
        out += [
            "| site | rows | before: gain in "
            + first.metric_before.replace("_", " ")
            + " | after: saved log loss | harm |"
        ]
        out += ["| --- | --- | --- | --- | --- |"]
        for r in t.itertuples():
            was = f"{r.verdict_before}, {r.gain_before:+.3f} ({r.low_before:+.3f} to {r.high_before:+.3f})"
            now = f"{r.verdict}, {r.gain:+.3f} ({r.low:+.3f} to {r.high:+.3f})"
            out.append(f"| {r.site} | {r.rows} | {was} | {now} | {r.harm:.3f} |")
    if (CACHE / "time.csv").exists():
        t = pd.read_csv(CACHE / "time.csv")
        ratio = t.after.sum() / t.before.sum()
        out += ["", "## Time", "", "The demo's study, CPU seconds of one thread, no early end.", ""]
        out += [f"| method | {BEFORE} hold-outs | {t.seeds[0]} x {FOLDS} folds | ratio |", "| --- | --- | --- | --- |"]
        out += [f"| {r.method} | {r.before:.1f} | {r.after:.1f} | {r.after / r.before:.1f} |" for r in t.itertuples()]
        out += [f"| all | {t.before.sum():.1f} | {t.after.sum():.1f} | {ratio:.2f} |"]
    (RESULTS / "verdicts.md").write_text("\n".join(out) + "\n", encoding="utf-8")
    print("\n".join(out))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=("worlds", "tables", "time", "report"))
    parser.add_argument("--kind", nargs="*", default=[c.kind for c in CASES], help="worlds: of these cases only")
    parser.add_argument("--device", default="cpu", help="worlds: where models are fitted")
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_default_device(given.device)
    verbs = {"worlds": lambda: worlds(given.kind), "tables": tables, "time": clock, "report": report}
    verbs[given.verb]()
