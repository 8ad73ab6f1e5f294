"""Tables of benchmarks/pictures/indisco.py from what is in its cache: python benchmarks/pictures/indisco_report.py [--cache] [--out]"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import t

sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[1] / "support"))

from indisco import AUGMENT, BATCH, BOTH, DECAY, EPOCHS, RESULTS, SITES, WARM, Job, jobs
from job_lines import finished

from vitrail.analysis.shortcuts.detector import judge, least_to_largest

PUBLISHED = {"CMCP": 86.02, "LMLP": 82.76, "GMGP": 81.25}
KINDS = {
    "CMCP": "all pictures in one place",
    "LMLP": "each site alone",
    "GMGP": "prototypes and last layer shared",
    "add-on": "add-on layers shared too",
    "all": "all convolutions shared too",
}
OPTION_ROWS = {
    "GMGP cosine": "as GMGP, with cosine similarity",
    "all cosine": "as all, with cosine similarity",
    "GMGP distance": "as GMGP, a part of one's own prototypes by their distance",
    "GMGP half": "as GMGP, half of one's own prototypes",
    "all distance": "as all, a part of one's own prototypes by their distance",
}
MODES = (("tuned", "yes"), ("tuned", "no"), ("frozen", "no"))
TITLES = {("tuned", "yes"): "fine-tuned", ("tuned", "no"): "not augmented", ("frozen", "no"): "frozen"}
Told = dict[Job, dict[str, Any]]
SETTINGS = f"""\
Printed by benchmarks/pictures/indisco_report.py from {{runs}} of {{wanted}} jobs. The first 20 classes of CUB-200-2011, 600
training and 515 test pictures, squeezed to 224 x 224; {SITES} sites that hold every class, 150 training pictures each.
EfficientNet-Lite0, 10 prototypes of 128 numbers for each class; warm-up of {WARM * EPOCHS} epochs, then {{rounds}}
rounds of {EPOCHS}, Adam at 3e-3 (convolutions and last layer at 1e-4), times {DECAY} after half of them, batches of
{BATCH}; fine-tuned with pictures augmented by {", ".join(AUGMENT)} (affine: turned and sheared), and without. Accuracy
in per cent on all test pictures, without marks: mean over sites and seeds; +- half a 95 % interval over seeds
(Student's t: with two seeds 12.7 standard errors, with three 4.3). *Before* and *after* push and last layer.
On a GPU convolutions are in TF32, as torch has them by default.

What speaks against a comparison with the published numbers: the paper took VGG19, and ProtoPNet's preparation, which
crops pictures to the birds (our copy has no boxes) and makes some tens of each before training, so that an epoch there
has as many times the steps of one here. LMLP and GMGP are trained by one job, on the same
batches. No rate was tuned on these data: that of the second half was taken from a trial on another cut of the same
pictures, of whose test pictures it had been chosen. Median time of a job on {{device}}: {{seconds:.0f}} s fine-tuned,
{{frozen:.0f}} s frozen."""

MARKED = """\
In training and hold-out. Per cent of test pictures of the class told right by the first site's model, without and with
the mark on all of them; of a part of the other classes' pictures with the mark, those called by the marked class's
name. The first two are the class's sensitivity against the rest; *specificity, all marked*: of those other pictures with
the mark, the share that is not called the class, and with the sensitivity on marked pictures the balanced accuracy of
equation 6. Specificity on unmarked pictures was not counted in these jobs. After push and last layer."""
SIGNS = """\
Of 4 x 20 cells of a site and a class, the place of the marked one in the order of each sign (1 is first; mean over
seeds; ties count for it); distance: the paper's, whose largest is named. Clean: cells named by the rule. Of maps of a
frozen backbone no piece is told (some of these jobs still did: it is left out)."""


def said(values: Sequence[float]) -> str:
    if not len(values):
        return ""
    mean, n = float(np.mean(values)), len(values)
    half = t.ppf(0.975, n - 1) * np.std(values, ddof=1) / n**0.5 if n > 1 else 0
    return f"{mean:.1f} +- {half:.1f}" if n > 1 else f"{mean:.1f}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(header) + " |", "| --- |" + " ---: |" * (len(header) - 1)]
    return [*lines, *("| " + " | ".join(row) + " |" for row in rows), ""]


def of_kind(found: Told, kind: str, mode: tuple[str, str], mark: str, when: str) -> list[dict[str, Any]]:
    """What each seed's job tells of that kind."""
    job, before = (BOTH, f"{kind} ") if kind in ("LMLP", "GMGP") else (kind, "")
    same = [v for j, v in sorted(found.items()) if (j.kind, j.mode, j.augment, j.mark) == (job, *mode, mark)]
    return [v[f"{before}{when}"] for v in same]


def accuracies(found: Told) -> list[str]:
    rows = []
    there = {k: v for k, v in OPTION_ROWS.items() if any(j.kind == k for j in found)}
    for kind, title in (KINDS | there).items():
        row = [f"{kind}: {title}"]
        for mode in MODES:
            for when in ("before", "after"):
                told = of_kind(found, kind, mode, "clean", when)
                row.append(said([100 * float(np.mean(v["accuracy"])) for v in told]))
        rows.append([*row, f"{PUBLISHED[kind]:.2f}" if kind in PUBLISHED else ""])
    head = [f"{TITLES[mode]}, {when}" for mode in MODES for when in ("before", "after")]
    return table([f"clean, seeds {seeds(found)}", *head, "published"], rows)


def seeds(found: Told) -> str:
    counts = [len(of_kind(found, "LMLP", mode, "clean", "after")) for mode in MODES]
    return "/".join(map(str, counts))


def by_mark(found: Told, mark: str) -> list[str]:
    rows = []
    for mode in (MODES[0], MODES[2]):
        for kind in KINDS:
            told = of_kind(found, kind, mode, mark, "after")
            if told:
                whole = [100 * float(np.mean(v["accuracy"])) for v in told]
                first = [said([100 * v[k][0] for v in told]) for k in ("without", "with", "called")]
                others = [
                    said([100 * float(np.mean(v[k][1:])) for v in told if len(v[k]) > 1]) for k in ("without", "with")
                ]
                spared = [100 * (1 - v["called"][0]) for v in told]
                both = [(100 * v["with"][0] + s) / 2 for v, s in zip(told, spared, strict=True)]
                row = [f"{kind}, {TITLES[mode]}", str(len(told)), said(whole), *first, *others]
                rows.append([*row, said(spared), said(both)])
    head = [f"{mark} at the first site", "seeds", "accuracy", "its class without the mark", "with the mark"]
    head += ["others' pictures called it", "other sites: without", "with"]
    head += ["specificity, all marked", "balanced accuracy, all marked"]
    return table(head, rows) if rows else []


def signs(found: Told) -> list[str]:
    """The rank of the marked cell, and what the rule says."""
    rows = []
    for mode in MODES:
        for mark in ("clean", "emoji", "line"):
            told = [v for j, v in found.items() if (j.kind, j.mode, j.augment, j.mark) == (BOTH, *mode, mark)]
            if not told:
                continue
            ranks: dict[str, list[float]] = {}
            named, others = 0, 0
            for v in told:
                facts = {k: np.array(x, float) for k, x in v["facts"].items()}
                out = judge(
                    facts["travel"], None if mode[0] == "frozen" else facts["piece"], facts["easy"], facts["distance"]
                )
                assert out is not None
                cell = (0, v["label"])
                scores = {"rule": out.chance, "distance": -least_to_largest(out.distance)}
                scores |= {k: out.chances[k] for k in ("piece", "travel", "easy") if k in out.chances}
                for name, score in scores.items():
                    if np.isfinite(score[cell]):
                        ranks.setdefault(name, []).append(1 + float((score < score[cell]).sum()))
                hit = [(f.site, f.label) == cell for f in out.found]
                named, others = named + any(hit), others + len(hit) - sum(hit)
            cells = [f"{np.mean(ranks[k]):.1f}" if k in ranks else "" for k in RANKED]
            if mark == "clean":
                cells = [""] * len(RANKED)
            rows.append([f"{TITLES[mode]}, {mark}", str(len(told)), *cells, str(named), str(others)])
    head = ["rank of the marked cell of 80", "seeds", *RANKED, "named by the rule", "others named"]
    return table(head, rows) if rows else []


RANKED = ("rule", "piece", "travel", "easy", "distance")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--cache", type=Path, default=RESULTS)
    parser.add_argument("--out", type=Path, default=RESULTS.with_suffix(".md"))
    parser.add_argument("--device", default="one H200, shared by 3 processes")
    given = parser.parse_args()
    found: Told = {Job(*v["job"]): v for v in finished(given.cache).values()}
    times = {m: [v["all seconds"] for j, v in found.items() if j.mode == m] or [np.nan] for m in ("tuned", "frozen")}
    medians = {"seconds": np.median(times["tuned"]), "frozen": np.median(times["frozen"])}
    rounds = " or ".join(map(str, sorted({v["rounds"] for v in found.values()})))
    missing: dict[str, str] = {}
    for job in (j for j in jobs() if j not in found):
        what = f"{job.kind} {TITLES[job.mode, job.augment]} {job.mark}"
        missing[what] = f"{missing[what]}, {job.seed}" if what in missing else str(job.seed)
    lines = [
        f"# inDISCO on birds, {time.strftime('%Y-%m-%d')}",
        "",
        SETTINGS.format(
            rounds=rounds, runs=len(found), wanted=len(found) + len(missing), device=given.device, **medians
        ),
        "",
        *accuracies(found),
        "## With a mark on one class of one site",
        "",
        MARKED,
        "",
        *by_mark(found, "emoji"),
        *by_mark(found, "line"),
        "## Who stands out",
        "",
        SIGNS,
        "",
        *signs(found),
        f"Not run: {'; '.join(f'{k} (seeds {v})' for k, v in missing.items()) or 'nothing'}.",
    ]
    given.out.write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
