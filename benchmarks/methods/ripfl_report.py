"""Tables of benchmarks/methods/ripfl.py from what is in its cache: python benchmarks/methods/ripfl_report.py [--cache] [--out]"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import rankdata, t

sys.path.insert(0, str(Path(__file__).parent))

from ripfl import (
    ATTACKED,
    BATCH,
    DOUBTED,
    EPOCHS,
    MIDDLE,
    MOMENTS,
    PARTS,
    RATES,
    ROUNDS,
    SEEDS,
    SIGMAS,
    SIZES,
    TUNING_ROUNDS,
    WAYS,
    Job,
    chosen,
    finished,
    ways,
)

PUBLISHED = {  # table 1 of the paper, CIFAR-10; (sites, sigma) -> accuracy of all clients
    "fedavg": (78.19, 74.75, 71.27, 75.49, 72.42, 71.14),
    "fedper": (78.31, 75.32, 72.45, 76.88, 74.81, 71.05),
    "fedprox": (76.38, 73.58, 70.16, 74.32, 72.02, 70.75),
    "moon": (78.84, 74.29, 72.54, 76.17, 73.89, 71.11),
    "cfl": (64.33, 67.73, 67.48, 57.23, 60.37, 60.05),
    "apple": (77.14, 72.64, 69.58, 70.48, 67.17, 66.22),
    "fed_rod": (77.65, 74.67, 70.95, 75.04, 69.02, 65.90),
    "ripfl": (79.11, 76.43, 74.52, 78.57, 76.16, 73.21),
}
PLACES = [(n, s) for n in (30, 50) for s in SIGMAS]  # of the numbers above
Found = dict[Job, dict[str, Any]]
PROCESSES = 12  # that shared the GPU
SETTINGS = f"""\
Printed by benchmarks/methods/ripfl_report.py from {{runs}} runs. 8000 training and 2000 test pictures, not 60,000: the order
can be compared with the paper, not the numbers. LeNet-like CNN (6 and 16 channels; 120, 84 units), {ROUNDS} rounds of
{EPOCHS} local epochs, Adam, batches of {BATCH}; every site holds exactly so many classes, and is judged on all test
pictures of these. Accuracy in per cent: mean over sites, worst site; +- half a 95 % interval over seeds (Student's t:
with three seeds 4.3 standard errors, with two 12.7, so that little can be told from zero). Learning rate ({len(RATES)}
values), and whether sites train one more round alone in the end (*), are chosen for every way alike on a fifth of the
rows, under another seed and cut ({MIDDLE} sites, 5 classes, {TUNING_ROUNDS} rounds). RIPFL's model before is the one it
is given (front of the mix, rear its own), after is the one it predicts with. Median time of a run, {PROCESSES} at once
on one H200: {{seconds:.1f}} s."""
DOUBT = """\
RIPFL and ways with evidence: K / S; the others: the entropy of the shares. AUROC: how often doubt is higher for the odd
one of a pair; mean over sites, interval over seeds. Noise: normal with sd 64 of 255."""


def spread(values: Sequence[float]) -> float:
    """Half the 95 % interval of a mean over seeds, Student's t."""
    n = len(values)
    return float(t.ppf(0.975, n - 1) * np.std(values, ddof=1) / n**0.5) if n > 1 else float("nan")


def said(values: Sequence[float], sign: bool = False) -> str:
    if not len(values):
        return ""
    mean = float(np.mean(values))
    return f"{mean:{'+' if sign else ''}.1f} +- {spread(values):.1f}" if len(values) > 1 else f"{mean:.1f}"


def scores(
    found: Found, kind: str, way: str, sites: int, sigma: int, when: str, over: Callable[..., Any]
) -> list[float]:
    """One number for each seed: over the honest sites, in per cent."""
    out = []
    for seed in SEEDS:
        told = next((v for j, v in found.items() if j[:5] == (kind, way, sites, sigma, seed)), None)
        if told is not None and when in told:
            out.append(100 * float(over(np.array(told[when])[np.array(told["honest"])])))
    return out


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(header) + " |", "| --- |" + " ---: |" * (len(header) - 1)]
    return [*lines, *("| " + " | ".join(row) + " |" for row in rows), ""]


def main_tables(found: Found, best: dict[str, tuple[float, str, float]]) -> list[str]:
    lines = []
    for sites in SIZES:
        rows = []
        for way, named in WAYS.items():
            when = best[way][1] if way in best else "before"
            row = [named.title + ("" if when == "before" else " *")]
            for sigma in SIGMAS:
                row += [said(scores(found, "main", way, sites, sigma, when, np.mean))]
                row += [said(scores(found, "main", way, sites, sigma, when, np.min))]
            if sites in (30, 50):
                row += [f"{PUBLISHED[way][PLACES.index((sites, s))]:.1f}" if way in PUBLISHED else "" for s in SIGMAS]
            if any(row[1:7]):
                rows.append(row)
        if not rows:
            continue
        head = [f"{sites} sites, {counted(found, sites)}"] + [
            f"{what} {s}" for s in SIGMAS for what in ("mean", "worst")
        ]
        head += [f"published {s}" for s in SIGMAS] if sites in (30, 50) else []
        lines += table(head, rows)
    return lines


def counted(found: Found, sites: int) -> str:
    """How many seeds are done."""
    count = [len({j.seed for j in found if j[:4] == ("main", "ripfl", sites, s)}) for s in SIGMAS]
    return "seeds " + "/".join(map(str, count))


def verdict(found: Found, best: Any) -> list[str]:
    """RIPFL against the simplest rivals, where they can be compared."""
    lines = []
    for sigma in SIGMAS:
        for rival in ("fedavg", "fine_tune", "local"):
            gap = paired(found, best, ("main", "ripfl"), ("main", rival), MIDDLE, sigma)
            if gap:
                also = " and one more round alone" if best[rival][1] == "after" else ""
                each = ", ".join(f"{g:+.1f}" for g in gap)
                lines.append(
                    f"- {MIDDLE} sites, {sigma} classes: RIPFL less {WAYS[rival].title}{also}: {each} (by seed)"
                )
    return [*lines, ""]


def moments(found: Found) -> list[str]:
    rows = []
    for way, named in WAYS.items():
        row = [named.title]
        row += [said(scores(found, "main", way, MIDDLE, s, when, np.mean)) for s in (4, 6) for when in MOMENTS]
        rows.append(row)
    head = [f"{MIDDLE} sites"] + [f"{s} classes, {w} one more round alone" for s in (4, 6) for w in MOMENTS]
    return table(head, rows)


def paired(found: Found, best: Any, a: tuple[str, str], b: tuple[str, str], sites: int, sigma: int) -> list[float]:
    """a - b by seed; each (kind, way)."""
    one, other = (
        scores(found, kind, way, sites, sigma, best[ways()[way].rate_of or way][1], np.mean) for kind, way in (a, b)
    )
    return [x - y for x, y in zip(one, other, strict=False)] if len(one) == len(other) else []


def against(found: Found, best: Any, rival: str) -> list[str]:
    rows = []
    for way, named in WAYS.items():
        if way != rival and way in best:
            places = [(n, s) for n in SIZES for s in SIGMAS]
            cells = [said(paired(found, best, ("main", way), ("main", rival), n, s), sign=True) for n, s in places]
            rows.append([named.title, *cells])
    done = [i for i in range(len(SIZES) * len(SIGMAS)) if any(row[1 + i] for row in rows)]
    head = [f"{n} sites, {s}" for n in SIZES for s in SIGMAS]
    return table(
        [f"less {WAYS[rival].title}", *(head[i] for i in done)], [[row[0], *(row[1 + i] for i in done)] for row in rows]
    )


def parts(found: Found, best: Any) -> list[str]:
    rows = []
    for way, named in PARTS.items():
        cells = [said(paired(found, best, ("part", way), ("main", "ripfl"), MIDDLE, s), sign=True) for s in (4, 6)]
        rows.append([named.title, *cells])
    return table([f"RIPFL with ... instead, less RIPFL; {MIDDLE} sites", "4 classes", "6 classes"], rows)


def attack(found: Found, best: Any) -> list[str]:
    rows = []
    for way in ("fedavg", "fine_head", "ripfl", "by lot"):
        kind = "main" if way in WAYS else "part"
        when = best[ways()[way].rate_of or way][1]
        clean = honest_only(found, kind, way, when)
        spoilt = scores(found, "attack", way, MIDDLE, 6, when, np.mean)
        rows.append(
            [
                ways()[way].title,
                said(clean),
                said(spoilt),
                said([b - a for a, b in zip(clean, spoilt, strict=False)], True),
            ]
        )
    return table([f"{MIDDLE} sites, 6 classes", "clean", "attacked", "difference"], rows)


def honest_only(found: Found, kind: str, way: str, when: str) -> list[float]:
    """The clean run's mean over those sites that are honest under attack."""
    out = []
    for seed in SEEDS:
        clean, spoilt = (
            next((v for j, v in found.items() if j[:5] == (k, way, MIDDLE, 6, seed)), None) for k in (kind, "attack")
        )
        if clean and spoilt:
            out.append(100 * float(np.mean(np.array(clean[when])[np.array(spoilt["honest"])])))
    return out


def doubt(found: Found, best: Any) -> list[str]:
    rows = []
    for way in DOUBTED:
        row = [WAYS[way].title]
        for kind, sigma in (("main", 6), ("varied", 0)):
            told = [v for j, v in found.items() if (j.kind, j.way, j.sites, j.sigma) == (kind, way, MIDDLE, sigma)]
            told = [v for v in told if "doubt" in v]
            when = "after" if way == "ripfl" else "before"
            row.append(said100([rank(v["doubt"], v[when]) for v in told]))
        told = [v for j, v in found.items() if j[:4] == ("main", way, MIDDLE, 6) and "doubt" in v]
        row += [said100([float(np.nanmean(v[k])) for v in told]) for k in ("errors", "unseen", "noisy", "inverted")]
        rows.append(row)
    head = ["way", "rank correlation with accuracy over sites, 6 classes", "2 to 6 classes"]
    return table([*head, "AUROC: own errors", "classes never seen", "noisy", "inverted"], rows)


def said100(values: Sequence[float]) -> str:
    return f"{np.mean(values):.2f} +- {spread(values):.2f}" if len(values) > 1 else ""


def rank(a: Sequence[float], b: Sequence[float]) -> float:
    return float(np.corrcoef(rankdata(a), rankdata(b))[0, 1])


def rates(best: Any) -> list[str]:
    rows = []
    for way, (lr, when, value) in best.items():
        end = "at the end of the grid" if lr in (RATES[0], RATES[-1]) else ""
        rows.append([ways()[way].title, f"{lr:g}", when, f"{100 * value:.1f}", end])
    return table(["way", "learning rate", "one more round alone", "accuracy on rows kept aside", ""], rows)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cache", type=Path, default=Path(__file__).parent / "results" / "ripfl")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "ripfl.md")
    args = parser.parse_args()
    done = finished(args.cache)
    best = chosen(done)
    found: Found = {Job(*v["job"]): v for v in done.values()}
    seconds = [v["seconds"] for j, v in found.items() if j.kind == "main"]
    lines = [
        f"# RIPFL and its rivals on CIFAR-10, {time.strftime('%Y-%m-%d')}",
        "",
        SETTINGS.format(runs=len(found), seconds=np.median(seconds) if seconds else float("nan")),
        "",
        *verdict(found, best),
        "## Who is best",
        "",
        *main_tables(found, best),
        "## Before and after one more round of training alone",
        "",
        *moments(found),
        "## Less FedAvg + fine-tuning of the head, paired by seed",
        "",
        *against(found, best, "fine_head"),
        "## Less RIPFL, paired by seed",
        "",
        *against(found, best, "ripfl"),
        "## What each part of RIPFL is worth",
        "",
        *parts(found, best),
        f"## {100 * ATTACKED:.0f} % of the sites with labels drawn at random among their classes",
        "",
        "Scored are the honest sites, with and without the attack.",
        "",
        *attack(found, best),
        "## What doubt knows",
        "",
        DOUBT,
        "",
        *doubt(found, best),
        "## Learning rates",
        "",
        *rates(best),
    ]
    args.out.write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
