"""Tables and figures of benchmarks/verdicts/whom_to_learn_from.py, from what is in its cache."""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from whom_to_learn_from import (
    DATA,
    LADDERS,
    METRICS,
    TOP,
    WAYS,
    WIDENINGS,
    Case,
    Search,
    names_of,
    plan,
    read,
    search,
)

from vitrail.stats.intervals import interval

WORDS = {"balanced_accuracy": "balanced accuracy", "f1": "F1", "auc": "AUC"}
YARDS = ("global", "local")
CHOOSE = ("weight_erosion", TOP, "influence", "centres")  # whom to learn from; the others only how much
KINDS = {  # who is better than both yardsticks
    "better than both by choosing whom": CHOOSE,
    "better than both otherwise": [w for w in WAYS if w not in (*CHOOSE, *YARDS)],
}
COUNTED = ("gradients", "evaluations")  # of rows
SETTINGS = """\
Every site is a user once and keeps its own hold-out: a third of its rows, at least 100 where that is not more than half
(heart disease: a third), stratified. Titanic and GUSTO: a linear softmax model, as in the Weight Erosion report; heart
disease: the shipped study's network of 32 and 16 units; HAR: linear. Numbers are standardised per site, on Titanic over
all sites, since per site would undo the cut by age. AGE_SOME is cut anew by each seed. Control: a world in which a
method can win, 8 sites of 60 training rows in two hidden groups with different truths, 3000 test rows each, drawn anew
by each seed (benchmarks/verdicts/worlds.py; more such worlds, and by log loss, in benchmarks/verdicts/choose.py). Loss: the mean over a
batch, class-weighted (inverse prevalence at the site). For every method one local epoch a round, no momentum, the
learning rate times 0.9 twenty times over the run, sites weighted equally. Weight Erosion erodes by these local updates
(`update = "local"`): with one gradient a round, its other form, it would have had a small part of everybody's steps.
Fine-tuning's epochs come after the rounds and start again at the full learning rate; they may be many times those that
Global and Local have, so below each table Local has as many. Influence trains without the rows that it judges by. Ndoye
top-k ranks with Local's tuned learning rate, then trains FedAvg with the k chosen at FedAvg's; k stays below all others
(that would be Global). Centres chooses groups and shares itself, by rows left out: only its learning rate is tuned.

Tuned on training rows only, by balanced accuracy, mean over sites; the seeds' training rows are drawn from the same
tables as the hold-outs of the comparison, for all methods alike. Each setting has a ladder of values; a coarse grid is
tried first, then, up to {widenings} times, what lies one rung from the best so far and was not tried. So a tuned value
has none that is better next to it, unless it is named below its table; ends beyond which there is nothing (no penalty,
one epoch, one site, all but one) are not named. It is a search from one start: a better place far away may be missed.

Less Global, less Local: the gain, paired by seed. In brackets the 95 % interval of `vitrail compare` (Nadeau and
Bengio: widened, since seeds redraw the test rows from the same rows; in the control, where every seed draws a world of
its own, Student's t over seeds); **bold**, and above `better` or `worse`, where it excludes zero. A star, and `on these
rows`, where only the plain t interval over seeds does. Nothing is corrected for the many comparisons, and who is best
was picked after the fact. `nobody` means that no gain was shown, not that there is none: a gain as large as the upper
end of an interval may have been missed. Worst user: the site that is worst in the mean over seeds, each method's own.

Sent: all bytes of the engine's ledger, both directions, all sites, for all users' models, with standardising and, for
Ndoye, the models and losses of its ranking. Row gradients: one row through one gradient of one model, counted where
every method computes them (`Task.accumulate`), over all sites. Evaluations: one row through one model to judge it by
(Influence's validation rows, Ndoye's ranking, Centres' groups); hold-out scores, the same for all, are not counted, nor
is tuning.

Cut, so that one process does it in about an hour beside others: whole grids (147 settings of Weight Erosion alone on
GUSTO; 94 % of their time was training, scores are taken once) became the search above; seeds to tune with, 2 where 4
were planned (GUSTO 1 where 2 were); seeds to compare with, 20 where 30 were (GUSTO 10 where 12); HAR has every second
of its 30 people. All rows of those who take part and all rounds are in."""


class Gain(NamedTuple):
    """Over seeds; `sure` and `here`: the sign if the wide and the plain interval exclude zero, else 0."""

    mean: float
    low: float
    high: float
    sure: int
    here: int

    def __str__(self) -> str:
        text = f"{self.mean:+.3f} ({self.low:+.3f} to {self.high:+.3f})"
        return f"**{text}**" if self.sure else f"{text} *" if self.here else text


class Result(NamedTuple):
    """One data set, under the seeds that every way has."""

    data: str
    sizes: dict[str, list[int]]  # site -> training and test rows
    seeds: list[int]
    scores: dict[tuple[str, str], Any]  # way, metric -> [seed, site]
    runs: dict[str, list[Case]]  # way -> a run for each seed

    def score(self, way: str, user: str, metric: str = METRICS[0]) -> float:
        """Mean over seeds, of the mean user or the worst."""
        by_site = np.nanmean(self.scores[way, metric], 0)
        return float(by_site.mean() if user == "mean" else by_site.min())

    def worst(self, way: str, metric: str) -> int:
        return int(np.nanmean(self.scores[way, metric], 0).argmin())

    def gain(self, way: str, rival: str, user: str | int, metric: str = METRICS[0]) -> Gain:
        """For the mean user, the worst one (each way's own), or that of this number."""
        one, two = self.scores[way, metric], self.scores[rival, metric]
        if user == "mean":
            apart = np.nanmean(one - two, 1)
        else:
            at = [self.worst(w, metric) if user == "worst" else int(user) for w in (way, rival)]
            apart = one[:, at[0]] - two[:, at[1]]
        train, test = np.sum(list(self.sizes.values()), 0)
        again = 0.0 if DATA[self.data].worlds else test / (train + test)  # rows that other seeds test on too
        (mean, low, high), (_, a, b) = (interval(apart.tolist(), share) for share in (again, 0.0))
        return Gain(mean, low, high, (low > 0) - (high < 0), (a > 0) - (b < 0))

    def beats_both(self, way: str, user: str, surely: bool = True) -> bool:
        return all((g.sure if surely else g.here) > 0 for g in (self.gain(way, v, user) for v in YARDS))

    def told(self, way: str, what: str) -> Any:
        """[seed, site]: scores of another model that a way's runs were made with."""
        return np.array([[run[what][site] for site in self.sizes] for run in self.runs[way]])

    def cost(self, way: str, what: str) -> float:
        return float(np.mean([run[what] for run in self.runs[way]]))

    def times(self, way: str) -> list[float]:
        return [self.cost(way, what) / self.cost("global", what) for what in ("bytes", "gradients")]


def gather(jobs: list[Case], folder: Path) -> list[Result]:
    out = []
    for d in dict.fromkeys(j["data"] for j in jobs):
        there = {w: read([j for j in jobs if (j["data"], j["way"]) == (d, w)], folder) for w in WAYS}
        seeds = sorted(set.intersection(*({c["seed"] for c in cases} for cases in there.values())))
        if len(seeds) < 2:
            print(f"{d}: too few cases are there")
            continue
        runs = {w: [c for c in cases if c["seed"] in seeds] for w, cases in there.items()}  # read in order of seeds
        sizes = runs["global"][0]["sizes"]
        scores = {
            (w, m): np.array([[c["scores"][m][site] for site in sizes] for c in runs[w]], float)
            for w, m in itertools.product(WAYS, METRICS)
        }
        out.append(Result(d, sizes, seeds, scores, runs))
    return out


def listed(words: Sequence[str], none: str = "nobody") -> str:
    return ", ".join(words[:-1]) + " and " + words[-1] if len(words) > 1 else "".join(words) or none


def answer(r: Result) -> list[str]:
    """The plain answer for one data set."""
    lines = [f"- **{DATA[r.data].title}**"]
    for user in ("mean", "worst"):
        score = {w: r.score(w, user) for w in WAYS}
        top = max(score, key=lambda w: score[w])
        sent, computed = (f"{v:.3g}" for v in r.times(top))
        said = [
            f"  - {user.title()} user: {WAYS[top].title} is best, {score[top]:.3f} (Global {score['global']:.3f}, "
            f"Local {score['local']:.3f}), for {sent} times Global's bytes and {computed} times its gradients."
        ]
        for rival in YARDS:
            found = {WAYS[w].title: r.gain(w, rival, user) for w in WAYS if w != rival}
            parts = []
            for sign, word in ((1, "better"), (-1, "worse")):
                parts.append((word, [w for w, g in found.items() if g.sure == sign]))
                parts.append((f"{word} on these rows", [w for w, g in found.items() if g.here == sign and not g.sure]))
            told = "; ".join(f"{word} {listed(ways)}" for word, ways in parts if ways)
            said.append(f"Against {rival.title()}: {told or 'nobody differs'}.")
        lines.append(" ".join(said))
    return lines


def who_beats_both(r: Result, user: str, ways: Sequence[str]) -> str:
    sure = [WAYS[w].title for w in ways if r.beats_both(w, user)]
    here = [f"({WAYS[w].title})" for w in ways if r.beats_both(w, user, surely=False) and not r.beats_both(w, user)]
    return listed(sure + here)


def question(results: list[Result], user: str) -> list[str]:
    """A row for each data set: the best of those who choose whom to learn from, and who is better than both."""
    lines = [[f"{user} user", "best by choosing whom", *(f"less {v.title()}" for v in YARDS), *KINDS], ["---"] * 6]
    for r in results:
        top = max(CHOOSE, key=lambda w: r.score(w, user))
        cells = [DATA[r.data].title, f"{WAYS[top].title} {r.score(top, user):.3f}"]
        cells += [str(r.gain(top, v, user)) for v in YARDS]
        lines.append([*cells, *(who_beats_both(r, user, ways) for ways in KINDS.values())])
    return ["", *("| " + " | ".join(line) + " |" for line in lines)]


def known(r: Result) -> str:
    """What is there to be found, where that is known."""
    scores = r.told("global", "known")
    apart = [(scores - r.scores[v, METRICS[0]]).mean(1).tolist() for v in YARDS]
    gains = [interval(values, 0.0) for values in apart]
    told = " and ".join("{:+.3f} ({:+.3f} to {:+.3f})".format(*gain) for gain in gains)
    parts = [f"{WAYS[w].title} {r.gain(w, 'local', 'mean').mean / gains[1][0]:.0%}" for w in CHOOSE]
    have = f"FedAvg within the true groups, which nobody is told, has {scores.mean():.3f}"
    return f"{DATA[r.data].title}: {have}, {told} over Global and over Local. Found of the latter: {listed(parts)}."


def longer(r: Result) -> str:
    """Fine-tuning against Local with as many epochs."""
    scores = {**r.scores, ("local", METRICS[0]): r.told("fine_tune", "alone")}
    gain, alone = r._replace(scores=scores).gain("fine_tune", "local", "mean"), np.nanmean(r.told("fine_tune", "alone"))
    epochs = DATA[r.data].rounds + r.runs["fine_tune"][0]["settings"]["epochs"]
    return f"Local with Fine-tuning's {epochs} epochs and learning rate has {alone:.3f}; Fine-tuning less that: {gain}."


def overall(results: list[Result]) -> list[str]:
    """Over all data sets: who beats both yardsticks, mean ranks, cost."""
    real = [r for r in results if not DATA[r.data].worlds]
    wins = [r for r in real if any(r.beats_both(w, "mean") for w in CHOOSE)]
    lines = ["Is anybody better than both Global and Local, by choosing whom to learn from? For the mean user, of"]
    lines += [f"{len(real)} cuts of real tables: {listed([DATA[r.data].title for r in wins], 'on none')}."]
    lines += [known(r) for r in results if r not in real]
    lines += [
        f"{DATA[r.data].title}: Fine-tuning beats both, with more epochs. {longer(r)}"
        for r in real
        if r.beats_both("fine_tune", "mean")
    ]
    lines += ["In brackets, and with a star: on these rows only, see below."]
    lines += [
        *question(results, "mean"),
        *question(real, "worst"),
        "",
    ]  # in a world of its own a seed has its own worst
    lines += ["In short, by balanced accuracy:", ""]
    for user in ("mean", "worst") if real else ():
        score = pd.DataFrame([[r.score(w, user) for w in WAYS] for r in real], columns=list(WAYS))
        ranks = score.rank(axis=1, ascending=False).mean().sort_values()
        told = ", ".join(f"{WAYS[str(w)].title} {v:.1f}" for w, v in ranks.items())
        lines.append(f"- For the {user} user, mean rank without the control: {told}.")
    costs = []
    for w in (w for w in WAYS if w not in YARDS):
        pairs = np.array([r.times(w) for r in results])
        spans = [sorted({f"{v:.3g}" for v in times}, key=float) for times in pairs.T]
        costs.append(f"{WAYS[w].title} {' and '.join(' to '.join([s[0], *s[1:][-1:]]) for s in spans)}")
    return [*lines, f"- Cost, as a multiple of Global's bytes and row gradients: {'; '.join(costs)}."]


def at_an_end(searches: dict[str, Search]) -> list[str]:
    """Tuned values that might be better beyond their ladder, or have a neighbour that was not tried."""
    found = []
    for w, s in searches.items():
        for name, value in s.best.items():
            rungs, _, ends = LADDERS[name]
            last = value in (rungs[0], rungs[-1]) and value not in ends
            why = "the ladder's end" if last else f"after {WIDENINGS} widenings" if name in s.left else ""
            found += [f"{WAYS[w].title} {name} {value:g} ({why})"] if why else []
    return found


def table_of(r: Result, metric: str, tried: dict[str, int]) -> list[str]:
    """One row for each way; the first table also says what was tuned, for how many users it is above, and the cost."""
    first = metric == METRICS[0]
    head = [f"{WORDS[metric]} (tuned)" if first else WORDS[metric]]
    head += [h for user in ("mean", "worst") for h in (f"{user} user", "less Global", "less Local")]
    head += ["users above Global, Local", "sent, kB", *(f"row {k}, thousand" for k in COUNTED)] if first else []
    lines = [head, ["---", *["---:"] * (len(head) - 1)]]
    for w in WAYS:
        lost = int(np.isnan(r.scores[w, METRICS[0]]).any(1).sum())
        cells = [WAYS[w].title + (f", {lost} runs diverged" if lost else "")]
        for user in ("mean", "worst"):
            where = f" ({list(r.sizes)[r.worst(w, metric)]})" if user == "worst" else ""
            cells.append(f"{r.score(w, user, metric):.3f}{where}")
            cells += ["" if w == v else str(r.gain(w, v, user, metric)) for v in YARDS]
        if first:
            by_site = {v: np.nanmean(r.scores[v, metric], 0) for v in (w, *YARDS)}
            above = ", ".join(str((by_site[w] > by_site[v]).sum()) for v in YARDS)
            chosen = ", ".join(f"{k} {v:g}" for k, v in r.runs[w][0]["settings"].items())
            cells[0] += f" ({chosen}; of {tried[w]})"
            cells += [f"{above} of {len(r.sizes)}", *(f"{r.cost(w, k) / 1e3:,.0f}" for k in ("bytes", *COUNTED))]
        lines.append(cells)
    return ["", *("| " + " | ".join(line) + " |" for line in lines)]


STYLE = """
svg { --paper: #fdfdfb; --ink: #1d2126; --soft: #5a626b; --grid: #e6e8e8; --zero: #8b939c; --u0: #0072b2; --u1: #d55e00;
  --u2: #009e73; --u3: #c0659a; font: 13px system-ui, "Liberation Sans", Arial, sans-serif }
@media (prefers-color-scheme: dark) { svg { --paper: #16191d; --ink: #e7e9eb; --soft: #a7b0b9; --grid: #2a2f36;
  --zero: #7d868f; --u0: #4aa3e0; --u1: #f0803c; --u2: #2fc79a; --u3: #de93bf } }
rect { fill: var(--paper) } text { fill: var(--ink) } .soft { fill: var(--soft); font-size: 12px }
.head { font-size: 15px; font-weight: 600 } .grid { stroke: var(--grid) } .zero { stroke: var(--zero) }
g { stroke-width: 1.8 } .mean { fill: var(--ink); stroke: var(--ink) } .dot { fill: var(--u0); opacity: .7 }
.u0 { fill: var(--u0); stroke: var(--u0) } .u1 { fill: var(--u1); stroke: var(--u1) }
.u2 { fill: var(--u2); stroke: var(--u2) } .u3 { fill: var(--u3); stroke: var(--u3) }
"""


def figure(r: Result) -> str:
    """Gain over Global: every user with its interval where they are few, else dots; and the mean user's interval."""
    from vitrail.core.text import signed
    from vitrail.report.charts.svg import AxisScale, line, swarm, tag, text, ticks, written

    ways, sites = [w for w in WAYS if w != "global"], list(r.sizes)
    few = len(sites) <= 4
    gains = {w: [r.gain(w, "global", i) for i in range(len(sites))] for w in ways}
    means = {w: r.gain(w, "global", "mean") for w in ways}
    ends = [v for w in ways for g in gains[w] for v in (g[1:3] if few else g[:1])] + [0.0]
    ends += [v for g in means.values() for v in g[1:3]]
    step, left, right, top = 15.0 * len(sites) + 28 if few else 60.0, 120.0, 816.0, 58.0
    bottom, air = top + step * len(ways), 0.03 * (max(ends) - min(ends))
    x = AxisScale(min(ends) - air, max(ends) + air, left, right)
    parts = [
        tag("rect", width=832, height=bottom + 48),
        text(8, 22, f"{DATA[r.data].title}: gain over Global", "head"),
    ]
    keys = {f"u{i}": site for i, site in enumerate(sites)} if few else {"dot": "a user, mean over seeds"}
    for i, (kind, who) in enumerate({**keys, "mean": "the mean user"}.items()):
        at = left + 5 + (130 if few else 190) * i
        parts += [tag("circle", cx=at, cy=42, r=4.5, class_=kind), text(at + 10, 46, who, "soft")]
    for value, said in written(ticks(x.low, x.high, 7), signed):
        parts.append(line(x(value), top, x(value), bottom, "grid" if value else "zero"))
        parts.append(text(x(value), bottom + 16, said, "soft", "middle"))
    words = f"{WORDS[METRICS[0]]} less Global's, same seeds; lines: 95 % intervals"
    parts.append(text((left + right) / 2, bottom + 36, words, "soft", "middle"))
    for n, w in enumerate(ways):
        base = top + n * step
        parts += [text(8, base + step / 2 + 4, WAYS[w].title, "name"), line(8, base, right, base, "grid")]
        away = swarm([x(g.mean) for g in gains[w]], 8, 16)
        drawn = [(f"u{i}" if few else "dot", 14 + 15 * i if few else 22 + away[i]) for i in range(len(sites))]
        drawn.append(("mean", step - 13))
        for (kind, down), g, who in zip(drawn, [*gains[w], means[w]], [*sites, "the mean user"], strict=True):
            reach = [line(x(g.low), base + down, x(g.high), base + down, kind)] if few or kind == "mean" else []
            tip = tag("title", f"{WAYS[w].title}, {who}: {g}".replace("*", "").strip())
            parts.append(tag("g", tip, *reach, tag("circle", cx=x(g.mean), cy=base + down, r=4, class_=kind)))
    size = {"viewBox": f"0 0 832 {bottom + 48:g}", "xmlns": "http://www.w3.org/2000/svg"}
    return str(tag("svg", tag("title", "Gain over Global"), tag("style", STYLE), *parts, width=832, **size))


def write(names: Sequence[str], folder: Path, out: Path) -> None:
    todo = plan(names, folder)
    results = gather(todo.compare, folder)
    searches: dict[str, dict[str, Search]] = {r.data: {} for r in results}
    for job in todo.search:
        if job["data"] in searches and (one := search(job, folder)):
            searches[job["data"]][job["way"]] = one
    tuning = [c for found in searches.values() for one in found.values() for c in one.cases]
    done = [*tuning, *read(todo.rank, folder), *read(todo.compare, folder)]
    minutes = {step: sum(c["s"] for c in done if c["step"] == step) / 60 for step in ("tune", "compare")}
    ladders = [f"{k} {list(ladder.rungs)} from {list(ladder.start)}" for k, ladder in LADDERS.items()]
    lines = [f"# Whom to learn from, {time.strftime('%Y-%m-%d')}", "", *overall(results)]
    lines += [*(line for r in results for line in answer(r)), "", "## What was done", ""]
    lines += [SETTINGS.format(widenings=WIDENINGS), "", f"Ladders: {'; '.join(ladders)}.", ""]
    lines += [f"CPU minutes: tuning {minutes['tune']:.0f}, comparison {minutes['compare']:.0f}."]
    lines += ["Computed on: " + "; ".join(sorted({c["where"] for c in done})) + "."]
    out.with_suffix("").mkdir(exist_ok=True)
    for r in results:
        source, found = DATA[r.data], searches[r.data]
        tried = {w: len(one.tried) for w, one in found.items()} | {TOP: len(source.ks)}
        lines += ["", f"## {source.title}", "", f"{len(r.sizes)} users, {int(np.sum(list(r.sizes.values())))} rows,"]
        lines += [f"{source.rounds} rounds, batches of {source.batch}. Tuned with seeds 1 to {source.tuning},"]
        lines += [f"{source.folds} folds each, Ndoye's k of {list(source.ks)}; compared with {len(r.seeds)} seeds,"]
        lines += [f"{r.seeds[0]} to {r.seeds[-1]}. In brackets what was tuned, of how many settings tried."]
        lines += [*(line for m in METRICS for line in table_of(r, m, tried)), ""]
        lines += [longer(r), ""]
        lines += [f"May be better beyond what was tried: {'; '.join(at_an_end(found)) or 'nothing'}.", ""]
        lines += [f"![{source.title}: gain over Global for each user and method]({out.stem}/{r.data}.svg)"]
        (out.with_suffix("") / f"{r.data}.svg").write_text(figure(r) + "\n")
    out.write_text("\n".join(lines) + "\n")
    print(out)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default=",".join(DATA))
    parser.add_argument("--cache", type=Path, default=Path("scratch/whom_to_learn_from"))
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "whom_to_learn_from.md")
    args = parser.parse_args()
    write(names_of(parser, args.data), args.cache, args.out)


if __name__ == "__main__":
    main()
