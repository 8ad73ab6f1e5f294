"""The paper's tables 2 and 4 to 7 on small X-rays: sensitivity and specificity with and without a mark, single pictures,
and what is left of a learned mark when a site takes prototypes out by hand.

    python benchmarks/pictures/marked_xrays.py run [--seeds 1 2 3]      # about 15 s a federation on one core
    python benchmarks/pictures/marked_xrays.py report

The 1560 X-rays that the package ships (28 x 28 pixels), dealt at random over four sites; in some federations all
pictures with pneumonia at the first site carry an emoji or a letter, in training and in its hold-out. A finished
federation is a line of results/marked_xrays/cpu.jsonl.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from scipy.stats import t

import vitrail as vt
from vitrail.analysis.images.picture_evidence import PrototypePart, ViewedModel
from vitrail.analysis.images.prototype_evidence import _parts, make_seen
from vitrail.core.facts import ALONE, OWN
from vitrail.data.datasets import catalogue, planted_shortcuts
from vitrail.data.readers.tables import clean
from vitrail.runs.result import Model
from vitrail.runs.site.prototype_removal import correct, remove_prototypes

sys.path.insert(0, str(Path(__file__).parent))
from biased_pictures import dealt

HERE = Path(__file__).parent / "results"
CACHE, OUT = HERE / "marked_xrays" / "cpu.jsonl", HERE / "marked_xrays.md"
NAMES, MARKED, ILL, WELL = ("a", "b", "c", "d"), "a", "pneumonia", "normal"
SEEDS = (1, 2, 3)
SINGLE = 2  # held-out pictures of each class that are shown one by one: the first by name
TRIED = (1, 4, 7)  # prototypes that are taken out alone
KINDS = {
    "CMCP": ("indisco_central", {}),
    "paper": ("indisco", {"share": "prototypes"}),
    "all": ("indisco", {"share": "all"}),
}
TITLES = {"LMLP": "each site alone", "GMGP": "prototypes and last layer shared", "all": "all convolutions shared too",
          "CMCP": "all pictures in one place"}  # fmt: skip


class Job(NamedTuple):
    kind: str  # of KINDS
    mark: str  # clean, emoji, text
    seed: int


def jobs(seeds: Sequence[int]) -> list[Job]:
    """The most telling first."""
    kinds = [
        ("paper", "clean"),
        ("paper", "emoji"),
        ("CMCP", "clean"),
        ("paper", "text"),
        ("all", "clean"),
        ("all", "emoji"),
    ]
    return [Job(kind, mark, seed) for kind, mark in kinds for seed in seeds]


def deal(seed: int) -> dict[str, pd.DataFrame]:
    whole = pd.concat(catalogue.pneumonia().values()).reset_index(drop=True)
    whole.index = pd.Index([f"{i:04d}.png" for i in whole.index])
    labels = (whole.finding == ILL).to_numpy().astype(int)
    parts = dealt(labels, np.arange(len(whole)), len(NAMES), np.random.default_rng([seed, 30]))
    return {name: whole.iloc[rows] for name, rows in zip(NAMES, parts, strict=True)}


def with_mark(frame: pd.DataFrame, mark: str) -> pd.DataFrame:
    """The same pictures, each with the mark, whatever its class."""
    put = getattr(planted_shortcuts, mark)
    for label in (ILL, WELL):
        frame = put({MARKED: frame}, site=MARKED, label=label, target="finding").sites[MARKED]
    return frame


def federation(job: Job) -> dict[str, Any]:
    began, sites = time.perf_counter(), deal(job.seed)
    mark = "emoji" if job.mark == "clean" else job.mark
    given = sites
    if job.mark != "clean":
        given = getattr(planted_shortcuts, mark)(sites, site=MARKED, label=ILL, target="finding").sites
    name, options = KINDS[job.kind]
    study = vt.Study.load(catalogue.packaged("prototypes.toml")).with_changes(method={"name": name, **options})
    run = vt.federate(study, given, seed=job.seed)
    held = run.held_out()
    test = pd.concat([sites[site].loc[rows.row] for site, rows in held.groupby("site")])
    pictures = {"plain": test, "marked": with_mark(test, mark)}
    ill = (test.finding == ILL).to_numpy()
    found: dict[str, Any] = {}
    for site in NAMES:
        mine = run.model_of(site)
        models = {"GMGP": mine, "LMLP": mine._replace(keep=ALONE)} if job.kind == "paper" else {job.kind: mine}
        for model, of in models.items():
            shares = {k: of.predict(frame)[ILL].to_numpy() for k, frame in pictures.items()}
            found.setdefault(model, {})[site] = {k: rates(p, ill) for k, p in shares.items()}
            if site == MARKED and job.kind == "paper":
                found.setdefault("single", {})[model] = single(test, held, shares)
    if job.kind == "paper" and job.mark != "clean":
        found["removal"] = removal(run.model_of(MARKED), given[MARKED], run, pictures, ill)
    return found | {"seconds": round(time.perf_counter() - began, 1)}


def rates(p: Any, ill: Any) -> list[float]:
    """Sensitivity and specificity, by the more likely class."""
    return [round(float((p[ill] > 0.5).mean()), 4), round(float((p[~ill] <= 0.5).mean()), 4)]


def single(test: pd.DataFrame, held: pd.DataFrame, shares: dict[str, Any]) -> list[list[Any]]:
    """Name, class, and probability of pneumonia without and with the mark, of the first site's first held-out ones."""
    out = []
    for label in (ILL, WELL):
        mine = test.loc[sorted(held[held.site == MARKED].row)]
        for name in mine[mine.finding == label].index[:SINGLE]:
            at = test.index.get_loc(name)
            out.append([name, label, *(round(float(shares[k][at]), 4) for k in ("plain", "marked"))])
    return out


def removal(mine: Model, frame: pd.DataFrame, run: Any, pictures: dict[str, pd.DataFrame], ill: Any) -> dict[str, Any]:
    """A site reads its own page: it takes out the prototypes of the class whose box lies, by half of it, in the window
    that matters most; beside it as many drawn at random, and all but those."""
    rows = clean(frame, mine.study)
    labels, pixels = rows[mine.study.target.column].to_numpy(), mine.encoder.matrix(rows)
    learned = ~np.isin(rows.index, run.held_out().query("site == @MARKED").row)
    task, scorer = mine.scorer()
    own = mine.models()[OWN]
    levels, names = mine.study.target.levels, [str(n) for n in rows.index]
    seen = make_seen(task.net, [ViewedModel("own", scorer, own)], pixels, labels, names, levels, learned, torch.softmax)
    window = seen.views[ILL][0].hidden.strongest
    each = _parts(task.net, {k: v[None] for k, v in own.items()}, pixels, labels, names, levels, learned)
    within = [p.number for p in each if p.of == ILL and overlaps(p, window)]
    others = [n for n in range(1, task.net.per_class + 1) if n not in within]
    drawn = np.random.default_rng([run.seed, 31]).permutation(task.net.per_class)[: len(within)] + 1
    out: dict[str, Any] = {"in the window": within, "of": task.net.per_class}
    plans = {
        "as it is": [],
        "those in the window": within,
        "as many at random": sorted(drawn.tolist()),
        "all others": others,
    }
    for plan, numbers in plans.items():
        if numbers or plan == "as it is":
            model = taken_out(mine, frame, run, numbers) if numbers else mine
            out[plan] = {k: rates(model.predict(x)[ILL].to_numpy(), ill) for k, x in pictures.items()}
    for number in TRIED:
        for how, model in (
            ("one", taken_out(mine, frame, run, [number])),
            ("bare", remove_prototypes(mine, [f"{ILL}:{number}"])[0]),
        ):
            one = {k: rates(model.predict(x)[ILL].to_numpy(), ill) for k, x in pictures.items()}
            out.setdefault(how, []).append(one)
    return out


def taken_out(mine: Model, frame: pd.DataFrame, run: Any, numbers: Sequence[int]) -> Model:
    return correct(mine, MARKED, frame, run.info["fingerprints"][MARKED], [f"{ILL}:{n}" for n in numbers]).model


def overlaps(part: PrototypePart, window: tuple[int, int, int, int]) -> bool:
    if part.behind is None:
        return False
    (a, b, c, d), (y, x, bottom, right) = part.behind.box, window
    inside = max(0, min(c, bottom) - max(a, y)) * max(0, min(d, right) - max(b, x))
    return bool(inside >= (c - a) * (d - b) / 2)


# the report


def said(values: Sequence[float]) -> str:
    """Mean over seeds, and half of its 95 % interval (Student's t)."""
    mean, n = float(np.mean(values)), len(values)
    if n == 1:
        return f"{100 * mean:.1f}"
    half = t.ppf(0.975, n - 1) * np.std(values, ddof=1) / n**0.5
    return f"{100 * mean:.1f} +- {100 * half:.1f}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(head) + " |", "| --- |" + " ---: |" * (len(head) - 1)]
    return [*lines, *("| " + " | ".join(row) + " |" for row in rows), ""]


Told = dict[Job, dict[str, Any]]
KIND_OF = {"LMLP": "paper", "GMGP": "paper", "all": "all", "CMCP": "CMCP"}


def of(found: Told, model: str, mark: str) -> list[dict[str, Any]]:
    return [v[model] for j, v in sorted(found.items()) if (j.kind, j.mark) == (KIND_OF[model], mark)]


def clean_rows(found: Told) -> list[list[str]]:
    rows = []
    for model, title in (("CMCP", TITLES["CMCP"]), *((k, v) for k, v in TITLES.items() if k != "CMCP")):
        told = [np.mean([site["plain"] for site in v.values()], 0) for v in of(found, model, "clean")]
        if not told:
            continue
        pairs = np.array(told)
        rows.append([f"{model}: {title}", said(pairs[:, 0]), said(pairs[:, 1]), said(pairs.mean(1))])
    return rows


def marked_rows(found: Told, mark: str) -> list[list[str]]:
    """Of the first site's model, on the same pictures: all as they are; those with pneumonia marked; all marked."""
    rows = []
    for model in ("LMLP", "GMGP", "all"):
        told = [v[MARKED] for v in of(found, model, mark)]
        if told:
            plain, marked = (np.array([v[k] for v in told]) for k in ("plain", "marked"))
            biased, unbiased = (marked[:, 0] + plain[:, 1]) / 2, plain.mean(1)
            cells = (marked[:, 0], plain[:, 0], plain[:, 1], marked[:, 1], biased, unbiased)
            rows.append([f"{model}, {mark}", *map(said, cells)])
    return rows


def single_rows(found: Told, mark: str, seed: int) -> list[list[str]]:
    rows = []
    jobs_of = [("", Job("paper", "clean", seed))] if mark == "emoji" else []  # which tried the emoji alone
    for suffix, job in (*jobs_of, ("b", Job("paper", mark, seed))):
        for model in ("LMLP", "GMGP"):
            cells = []
            for _, label, *shares in found[job]["single"][model]:
                for p in shares:
                    right = (p > 0.5) == (label == ILL)
                    cells.append(f"{'right' if right else 'WRONG'} {p:.2f}")
            rows.append([f"{model}{suffix}", *cells])
    return rows


def removal_rows(found: Told, mark: str) -> list[list[str]]:
    told = [v["removal"] for j, v in sorted(found.items()) if j.mark == mark and "removal" in v]
    rows = []
    for plan in ("as it is", "those in the window", "as many at random", "all others"):
        some = [v for v in told if plan in v]
        if some:
            plain, marked = (np.array([v[plan][k] for v in some]) for k in ("plain", "marked"))
            numbers = {"as it is": [0] * len(some), "all others": [v["of"] - len(v["in the window"]) for v in some]}
            taken = numbers.get(plan, [len(v["in the window"]) for v in some])
            cells = (marked[:, 0], plain[:, 0], plain[:, 1], marked[:, 1], plain.mean(1))
            rows.append([f"{mark}: {plan}", str(len(some)), "/".join(map(str, taken)), *map(said, cells)])
    if not told:
        return rows
    for how, title in (("one", "one prototype"), ("bare", "one prototype, without the constant")):
        plain, marked = (np.array([np.mean([one[k] for one in v[how]], 0) for v in told]) for k in ("plain", "marked"))
        cells = (marked[:, 0], plain[:, 0], plain[:, 1], marked[:, 1], plain.mean(1))
        rows.append([f"{mark}: {title}", str(len(told)), "1", *map(said, cells)])
    return rows


ABOUT = """\
Printed by benchmarks/pictures/marked_xrays.py from {runs} federations (seeds {seeds}; {seconds:.0f} s each in the
median, on one core of a busy machine). The 1560 X-rays that the package ships, 28 x 28 pixels (PneumoniaMNIST; children), dealt at random over four
sites, a third of each site's held out; network and rounds of `vitrail demo prototypes`, the small backbone trained at
the sites. All models are tested on the held-out pictures of all four sites together. Per cent; +- half a 95 % interval
over seeds (Student's t). Positive: pneumonia. Predicted is the more likely class. The paper's X-rays are CheXpert's, at
224 pixels, so that its numbers are no yardstick for these. Published, cardiomegaly: LMLP b and GMGP b have a balanced
accuracy of 100 on biased pictures and 50 on unbiased ones."""
SINGLES = """\
The first {single} held-out pictures of each class at the first site, by name, of seed {seed}; not chosen by how they come
out. Each without and with the {mark}: whether the prediction is right, and the probability of pneumonia. *b*: trained
where the first site's pictures with pneumonia carry it. Models of the first site. The paper's table 5 has, of one
picture of each kind: LMLP and GMGP right in all four, LMLP b and GMGP b wrong for the class without the mark and for
the other class with it."""
REMOVED = """\
GMGP of the marked site. It reads its own page: of the marked class it takes out every prototype whose box lies, by at
least half, in the window that matters most when it is hidden (`vitrail look --without-prototype`, with its constant). Rivals with the
same effort: as many prototypes of the class drawn at random, and all others of the class. A removal that cures the model
raises the sensitivity without the mark and keeps the specificity. *One prototype*: numbers {tried}, each by itself, mean;
*without the constant*: its weights are 0 and nothing else is changed. Where no box lies in the window, that rule removes
nothing, and all others are all ten."""


def report(seeds: Sequence[int]) -> None:
    found: Told = {Job(*v["job"]): v for v in map(json.loads, CACHE.read_text().splitlines())}
    seconds = float(np.median([v["seconds"] for v in found.values()]))
    have = sorted({j.seed for j in found})
    lines = [f"# Marks in small X-rays, {time.strftime('%Y-%m-%d')}", ""]
    lines += [ABOUT.format(runs=len(found), seeds=", ".join(map(str, have)), seconds=seconds), ""]
    lines += ["## Without a mark (the paper's tables 2 and 6)", ""]
    head = ["clean, mean of the sites", "sensitivity", "specificity", "balanced accuracy (equation 6)"]
    lines += table(head, clean_rows(found))
    lines += ["## With a mark on pneumonia at the first site (tables 4 and 7)", ""]
    lines += ["The first site's model. *Biased*: the pictures with pneumonia carry the mark, the others do not.", ""]
    head = [
        "model, mark",
        "sensitivity, marked",
        "sensitivity, unmarked",
        "specificity, unmarked",
        "specificity, marked",
    ]
    head += ["balanced accuracy, biased", "balanced accuracy, unbiased"]
    lines += table(head, [row for mark in ("emoji", "text") for row in marked_rows(found, mark)])
    for mark in (m for m in ("emoji", "text") if Job("paper", m, have[0]) in found):
        lines += [f"## Single pictures with and without the {mark} (table 5)", ""]
        lines += [SINGLES.format(single=SINGLE, seed=have[0], mark=mark), ""]
        names = found[Job("paper", "clean", have[0])]["single"]["LMLP"]
        head = ["model", *(f"{label} {name}, {how}" for name, label, *_ in names for how in ("without", "with"))]
        lines += table(head, single_rows(found, mark, have[0]))
    lines += ["## Prototypes taken out by hand", "", REMOVED.format(tried=", ".join(map(str, TRIED))), ""]
    head = ["removed", "seeds", "prototypes", "sensitivity, marked", "sensitivity, unmarked", "specificity, unmarked"]
    head += ["specificity, marked", "balanced accuracy, unbiased"]
    lines += table(head, [row for mark in ("emoji", "text") for row in removal_rows(found, mark)])
    missing = [j for j in jobs(SEEDS) if j not in found]
    lines.append(f"Not run: {'; '.join(', '.join(map(str, j)) for j in missing) or 'nothing'}.")
    OUT.write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=["run", "report"])
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--most", type=int, default=10**6, help="so many federations in this call")
    given = parser.parse_args()
    if given.verb == "report":
        report(given.seeds)
        return
    torch.set_num_threads(1)
    CACHE.parent.mkdir(parents=True, exist_ok=True)
    done = {Job(*json.loads(line)["job"]) for line in CACHE.read_text().splitlines()} if CACHE.exists() else set()
    for job in [j for j in jobs(given.seeds) if j not in done][: given.most]:
        told = {"job": list(job), **federation(job)}
        with CACHE.open("a") as file:
            file.write(json.dumps(told) + "\n")
        print(job, told["seconds"], flush=True)


if __name__ == "__main__":
    main()
