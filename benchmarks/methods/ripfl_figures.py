"""Table 2, figures 4 and 5, CIFAR-100 and the site's own model in RIPFL's mix, from the caches of benchmarks/methods/ripfl.py.

python benchmarks/methods/ripfl_figures.py            # of full runs: results/ripfl_figures.md
python benchmarks/methods/ripfl_figures.py --short    # of short ones: results/ripfl_short.md
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from ripfl import BATCH, LAMS, MIDDLE, MOMENTS, PAPER_RATE, RESULTS, RIVALS, SETS, SIGMAS, Job, finished, ways
from ripfl_report import Found, said, table

SPLITS = {"ripfl": ("15 and 5", 74.18), "10/10": ("10 and 10", 72.25), "5/15": ("5 and 15", 71.30)}  # table 2
HUNDRED = {  # table 1, CIFAR-100: 30 sites with 40, 50, 60 classes, then 50 sites
    "fedavg": (65.97, 63.89, 61.29, 62.45, 59.56, 56.41),
    "fedper": (60.05, 55.20, 50.94, 50.05, 46.15, 43.70),
    "fedprox": (67.27, 64.41, 62.03, 62.94, 60.42, 58.10),
    "moon": (67.65, 65.32, 62.40, 62.36, 61.04, 58.50),
    "cfl": (57.10, 56.93, 56.38, 50.77, 51.48, 52.81),
    "fed_rod": (65.88, 63.50, 61.72, 60.45, 56.73, 53.01),
    "ripfl": (68.73, 66.84, 64.54, 63.65, 62.51, 61.05),
}
SHORT = """\
**These runs are short. They show that the program gives this table or figure by one command; which way is better they
cannot show.** The full commands are in benchmarks/methods/ripfl.py."""
SETTINGS = f"""\
Printed by benchmarks/methods/ripfl_figures.py. Parts of the pictures (8,000 of CIFAR-10, 4,500 of CIFAR-100 for training),
not 60,000: an order can be compared with the paper, not a number. Adam, batches of {BATCH}; learning rates as chosen in
results/ripfl.md, of CIFAR-100 the paper's {PAPER_RATE:g}. Accuracy in per cent, mean over sites, on test pictures of a site's
own classes; +- half a 95 % interval over seeds (Student's t). "Trained": the model that a site predicts with, for
FedAvg and its like after one more round alone. "Received": the model before; of Fed-RoD and Local, which have one model,
that one. Which of the two the paper prints it does not say."""


def cells(found: Found, kind: str, way: str, sites: int, sigma: int, when: str) -> list[float]:
    """[seed]"""
    runs = [v for j, v in found.items() if j[:4] == (kind, way, sites, sigma) and when in v]
    return [100 * float(np.mean(v[when])) for v in runs]


def both(found: Found, kind: str, way: str, sites: int, sigma: int) -> list[str]:
    return [said(cells(found, kind, way, sites, sigma, when)) for when in reversed(MOMENTS)]


def length_of(found: Found, kind: str) -> str:
    runs = [v for j, v in found.items() if j.kind == kind]
    seeds = sorted({j.seed for j in found if j.kind == kind})
    rounds, epochs = (sorted({v[k] for v in runs}) for k in ("rounds", "epochs"))
    few = sorted({v["rows"] for v in runs if "rows" in v})
    seconds = np.median([v["seconds"] for v in runs])
    words = f"Rounds: {listed(rounds)}; local epochs: {listed(epochs)}; seeds: {listed(seeds)}"
    cells = {(j.way, j.sites, j.sigma) for j in found if j.kind == kind}
    short = sorted(c for c in cells if len({j.seed for j in found if j.kind == kind and j[1:4] == c}) < len(seeds))
    words += "".join(f"; of '{way}', {n} sites, {s} classes: fewer seeds" for way, n, s in short)
    words += f"; at most {listed(few)} rows and test pictures a site" if few else ""
    return f"{words}; median time of a run {seconds:.0f} s."


def listed(values: Sequence[Any]) -> str:
    return ", ".join(map(str, values))


def at(found: Found, kind: str) -> list[tuple[int, int]]:
    """Sites and classes of a site that this kind was run with."""
    return sorted({(j.sites, j.sigma) for j in found if j.kind == kind})


def part(found: Found, kind: str, title: str, lines: Sequence[str]) -> list[str]:
    return [f"## {title}", "", length_of(found, kind), "", *lines] if at(found, kind) else []


def table_2(found: Found) -> list[str]:
    head = ["chosen of the 15 surer and of the 15 others", "trained", "received", "published"]
    rows = [
        [words, *both(found, "table2", way, MIDDLE, 6), f"{published:.2f}"]
        for way, (words, published) in SPLITS.items()
    ]
    title = "Table 2: how many of the surer half and of the others are chosen"
    return part(found, "table2", f"{title} ({MIDDLE} sites, 6 classes)", table(head, rows))


def itself(found: Found) -> list[str]:
    head = ["in a site's mix may be"] + [f"{n} sites, {s} classes: {w}" for n, s in at(found, "self") for w in WHEN]
    names = {"ripfl": "its own model too (default)", "others": "the remaining sites' models alone (the paper's words)"}
    rows = [
        [words, *(c for n, s in at(found, "self") for c in both(found, "self", way, n, s))]
        for way, words in names.items()
    ]
    return part(found, "self", "Its own model counted or not", table(head, rows))


WHEN = ("trained", "received")


def figure_5(found: Found) -> list[str]:
    head = ["lambda"] + [f"{s} classes: {w}" for s in SIGMAS for w in WHEN]
    rows, sizes = [], sorted({n for n, _ in at(found, "figure5")})
    for n in sizes:
        for lam in LAMS:
            way = "ripfl" if lam == 0.3 else f"lam {lam:g}"
            rows.append([f"{lam:g}", *(c for s in SIGMAS for c in both(found, "figure5", way, n, s))])
    title = f"Figure 5: lambda and the number of classes ({listed(sizes)} sites)"
    return part(found, "figure5", title, table(head, rows))


def figure_4(found: Found) -> list[str]:
    lines = []
    for n, s in at(found, "figure4"):
        runs = {j.way: v["curve"] for j, v in found.items() if j[0] == "figure4" and j[2:4] == (n, s)}
        rounds = sorted({int(r) for curve in runs.values() for r in curve})
        for when, name in zip(reversed(MOMENTS), WHEN, strict=True):
            rows = []
            for way, curve in runs.items():
                scores = [curve.get(str(r), {}).get(when) for r in rounds]
                if any(v is not None for v in scores):
                    rows.append([ways()[way].title, *("" if v is None else f"{100 * v:.1f}" for v in scores)])
            lines += table([f"{n} sites, {s} classes, {name}; round", *map(str, rounds)], rows)
    return part(found, "figure4", "Figure 4: accuracy by round", lines)


def cifar_100(found: Found) -> list[str]:
    places, lines = [(n, s) for n in SETS["cifar100"][0][1:] for s in SETS["cifar100"][1]], []
    for n, s in at(found, "cifar100"):
        rows = []
        for way in dict.fromkeys((*RIVALS, *(j.way for j in found if j.kind == "cifar100"))):
            printed = HUNDRED[way][places.index((n, s))] if way in HUNDRED and (n, s) in places else None
            row = [ways()[way].title, *both(found, "cifar100", way, n, s), "" if printed is None else f"{printed:.2f}"]
            rows += [row] if any(row[1:3]) else []
        lines += table([f"{n} sites, {s} classes", "trained", "received", "published"], rows)
    return part(found, "cifar100", "CIFAR-100 with ResNet18 (table 1)", lines)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--short", action="store_true")
    args = parser.parse_args()
    cache = RESULTS.with_name("ripfl_short") if args.short else RESULTS
    out = RESULTS.with_name("ripfl_short.md" if args.short else "ripfl_figures.md")
    found: Found = {Job(*v["job"]): v for v in finished(cache).values()}
    lines = [f"# RIPFL's tables and figures{', short runs' * args.short}, {time.strftime('%Y-%m-%d')}", ""]
    lines += [SHORT, ""] * args.short + [SETTINGS, ""]
    for one in (table_2, itself, figure_5, figure_4, cifar_100):
        lines += one(found)
    text = "\n".join(lines).rstrip() + "\n"
    out.write_text(text)
    print(text)


if __name__ == "__main__":
    main()
