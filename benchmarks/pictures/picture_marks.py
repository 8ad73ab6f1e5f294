"""Burned-in marks that tell the class: are they found, and is nothing found where there are none?

    VITRAIL_DATA=... python benchmarks/pictures/picture_marks.py              # resumes; finished cases lie in --cache
    python benchmarks/pictures/picture_marks.py --report                      # the tables from what is there

The rule (src/vitrail/quality/checks/burned_in_marks.py) was shaped on one half of each set's pictures; everything here
is of the other half (`--half shape` gives the first). Pictures: PneumoniaMNIST (28 x 28, grey), CIFAR-10 (32 x 32,
colour), 20 birds of CUB-200 (brought to 96 x 96), and scikit-learn's digits, which are drawn shapes and so marks by
nature.

Exact null: one class, its pictures given two labels by lot; nothing can be there to find. Also with a white letter in
half of all pictures, whatever their label: a mark that is there, and tells nothing.
Clean: real classes, cut into sites alike or with skewed labels; what is found is taken for a false alarm.
Planted: two classes, a mark of some shape and strength at one place drawn for each trial, in a share of one class's
pictures. Found is an alarm for that class whose place meets the mark.

The rival looks at single pixels: the best AUC over all of them against labels drawn anew (199 times, level 0.01);
and, so that nature does not raise it always, the same with an AUC of at least 0.9 asked for.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import re
import zipfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from PIL import Image
from scipy import stats

import vitrail as vt
from vitrail.core.random import key
from vitrail.data.readers.images import decoded, fit_pixels
from vitrail.data.schema import Images
from vitrail.quality.checks.burned_in_marks import ALARMS, FEWEST, find_marks

Job = dict[str, Any]
HERE = Path(__file__).parent
LETTER = np.array([[1, 1, 1, 0], [1, 0, 0, 1], [1, 1, 1, 0], [1, 0, 1, 0], [1, 0, 0, 1]], bool)
SHAPES = {
    "one pixel": np.ones((1, 1), bool),
    "square 2 x 2": np.ones((2, 2), bool),
    "square 6 x 6": np.ones((6, 6), bool),
    "line 1 x 6": np.ones((1, 6), bool),
    "letter R, 5 x 4": LETTER,
}
STRENGTHS = {  # what becomes of the pixels below it
    "white": lambda p: np.full_like(p, 255),
    "black": lambda p: np.zeros_like(p),
    "grey 128": lambda p: np.full_like(p, 128),
    "70 % white": lambda p: 0.3 * p + 0.7 * 255,
    "+ 100": lambda p: np.minimum(p + 100, 255),
}
MARKS = [(shape, "white", 0, 0) for shape in SHAPES]
MARKS += [("letter R, 5 x 4", strength, 0, 0) for strength in STRENGTHS if strength != "white"]
MARKS += [("letter R, 5 x 4", "white", 90, 0), ("letter R, 5 x 4", "white", 75, 0), ("letter R, 5 x 4", "white", 0, 1)]
SHARES, SIZES, TRIALS = (0.2, 0.3, 0.5, 1.0), (60, 200, 800), 20
PERMUTATIONS, HIGH_AUC = 199, 0.9


# --- data -----------------------------------------------------------------------------------------------------------


def folder() -> Path:
    return Path(os.environ["VITRAIL_DATA"])


def pneumonia() -> tuple[Any, Any]:
    file = np.load(folder() / "pneumoniamnist" / "pneumoniamnist.npz")
    x, y = (
        np.concatenate([file[f"{part}_{what}"] for part in ("train", "val", "test")]) for what in ("images", "labels")
    )
    return x[:, None], y[:, 0]


def cifar() -> tuple[Any, Any]:
    file = np.load(folder() / "cifar10_subset" / "cifar10_8k_2k.npz")
    x, y = (np.concatenate([file[f"{what}_{part}"] for part in ("train", "test")]) for what in "xy")
    return x.transpose(0, 3, 1, 2), y


def birds() -> tuple[Any, Any]:
    place, agreed = folder() / "cub200_first20", Images(size=(96, 96), channels=3, fit="resize")
    index = pd.read_csv(place / "index.csv").set_index("file").class_id
    x, y = [], []
    with zipfile.ZipFile(place / "cub200_first20_224.zip") as file:
        for name in file.namelist():
            if name in index.index:
                x.append(fit_pixels(decoded(file.read(name)), agreed))
                y.append(index[name])
    return np.stack(x), np.array(y)


def digits() -> tuple[Any, Any]:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    small = (x.reshape(-1, 8, 8) * 255 / 16).astype(np.uint8)
    return np.repeat(np.repeat(small, 4, 1), 4, 2)[:, None], y


SETS = {"PneumoniaMNIST": pneumonia, "CIFAR-10": cifar, "CUB-200, 20 birds": birds, "digits": digits}


@cache
def half(name: str, which: str) -> tuple[Any, Any]:
    x, y = SETS[name]()
    order = np.random.default_rng(0).permutation(len(y))
    rows = order[: len(y) // 2] if which == "shape" else order[len(y) // 2 :]
    return x[rows], y[rows].astype(np.int64)


# --- jobs -----------------------------------------------------------------------------------------------------------


def jobs() -> Iterator[Job]:
    """Null and clean first: they say whether the rule keeps its promise."""
    for name in ("PneumoniaMNIST", "CIFAR-10"):
        for n in (60, 200, 400):
            for share in (0.5, 0.1):
                for marked in ("", "letter in half of all"):
                    yield {"kind": "null", "set": name, "n": n, "share": share, "marked": marked, "trials": 150}
    for name, counts in (("PneumoniaMNIST", (4, 16, 40)), ("CIFAR-10", (4, 16, 40)), ("CUB-200, 20 birds", (2,))):
        for sites in counts:
            for how in ("alike", "skewed"):
                yield {"kind": "clean", "set": name, "sites": sites, "how": how, "seeds": 3}
    yield {"kind": "clean", "set": "digits", "sites": 4, "how": "alike", "seeds": 1}
    for name in ("PneumoniaMNIST", "CIFAR-10"):
        for n in SIZES:
            for shape, strength, quality, jitter in MARKS:
                for share in SHARES:
                    job = {"kind": "planted", "set": name, "n": n, "shape": shape, "strength": strength}
                    yield {**job, "quality": quality, "jitter": jitter, "share": share, "trials": TRIALS}


def judge(x: Any, y: Any, rng: np.random.Generator) -> dict[str, Any]:
    pixel, high = best_pixel(x, y, rng)
    return {"marks": [(m.label, m.place) for m in find_marks(x, y)], "pixel": pixel, "high pixel": high}


def best_pixel(x: Any, y: Any, rng: np.random.Generator) -> tuple[bool, bool]:
    """The rival: is the best AUC of one pixel higher than labels by lot would make it?"""
    grey = x.mean(1).reshape(len(x), -1)
    ranks = stats.rankdata(grey, axis=0).astype(np.float32).T - (len(y) + 1) / 2  # [pixel, picture]
    best, by_lot = 0.0, np.zeros(PERMUTATIONS)
    for label in np.unique(y) if len(np.unique(y)) > 2 else [y.max()]:
        inside = (y == label).astype(np.float32)
        drawn = np.stack([inside, *(rng.permutation(inside) for _ in range(PERMUTATIONS))], 1)
        aucs = np.abs(ranks @ drawn).max(0) / (inside.sum() * (len(y) - inside.sum())) + 0.5
        best, by_lot = max(best, float(aucs[0])), np.maximum(by_lot, aucs[1:])
    alarm = (1 + (by_lot >= best).sum()) / (1 + PERMUTATIONS) <= ALARMS
    return bool(alarm), bool(alarm and best >= HIGH_AUC)


def do(job: Job, which: str) -> list[dict[str, Any]]:
    x, y = half(job["set"], which)
    rng = np.random.default_rng(key(which, *map(str, job.values())))
    return list(globals()[f"do_{job['kind']}"](job, x, y, rng))


def do_null(job: Job, x: Any, y: Any, rng: np.random.Generator) -> Iterator[dict[str, Any]]:
    for _ in range(job["trials"]):
        of_one = np.flatnonzero(y == rng.choice(np.unique(y)))
        rows = rng.choice(of_one, min(job["n"], len(of_one)), replace=False)
        fake = rng.permutation(np.arange(len(rows)) < max(FEWEST, round(job["share"] * len(rows)))).astype(np.int64)
        some = x[rows]
        if job["marked"]:
            letter = {"shape": "letter R, 5 x 4", "strength": "white", "quality": 0, "jitter": 0, "share": 0.5}
            some, _ = plant(some, np.ones(len(rows), bool), letter, rng)
        yield judge(some, fake, rng)


def do_clean(job: Job, x: Any, y: Any, rng: np.random.Generator) -> Iterator[dict[str, Any]]:
    frame = pd.DataFrame({"label": y})
    for seed in range(job["seeds"]):
        skewed = job["how"] == "skewed"
        cut = (
            vt.partition.dirichlet(frame, "label", job["sites"], 0.5, seed)
            if skewed
            else vt.partition.iid(frame, job["sites"], seed)
        )
        for rows in (part.index.to_numpy() for part in cut.values()):
            enough = [label for label in np.unique(y[rows]) if (y[rows] == label).sum() >= FEWEST]
            if len(enough) > 1:
                yield judge(x[rows], y[rows], rng)


def do_planted(job: Job, x: Any, y: Any, rng: np.random.Generator) -> Iterator[dict[str, Any]]:
    for _ in range(job["trials"]):
        labels = rng.permutation(np.unique(y))[:2]
        rows = np.concatenate([rng.permutation(np.flatnonzero(y == k))[: job["n"] // 2] for k in labels])
        some, place = plant(x[rows], y[rows] == labels[0], job, rng)
        said = judge(some, y[rows], rng)
        yield {**said, "found": any(label == labels[0] and meets(where, place) for label, where in said["marks"])}


def plant(x: Any, inside: Any, job: Job, rng: np.random.Generator) -> tuple[Any, tuple[int, int, int, int]]:
    """The mark in a share of the pictures inside, then all saved as JPEG where a quality is given."""
    x, shape, far = x.copy(), SHAPES[job["shape"]], job["jitter"]
    (h, w), (height, width) = shape.shape, x.shape[2:]
    top, left = (int(rng.integers(far, room + 1 - far)) for room in (height - h, width - w))
    carriers = rng.permutation(np.flatnonzero(inside))[: round(job["share"] * inside.sum())]
    for i in carriers:
        a, b = (at + int(rng.integers(-far, far + 1)) for at in (top, left))
        below = x[i, :, a : a + h, b : b + w].astype(float)
        x[i, :, a : a + h, b : b + w] = np.where(shape, STRENGTHS[job["strength"]](below), below).round()
    if job["quality"]:
        x = np.stack([saved(picture, job["quality"]) for picture in x])
    return x, (top - far, top + h + far, left - far, left + w + far)


def saved(picture: Any, quality: int) -> Any:
    file = io.BytesIO()
    Image.fromarray(picture[0] if len(picture) == 1 else picture.transpose(1, 2, 0)).save(file, "JPEG", quality=quality)
    pixels = decoded(file.getvalue())
    return pixels[None] if pixels.ndim == 2 else pixels.transpose(2, 0, 1)


def meets(where: str, place: tuple[int, int, int, int]) -> bool:
    spans = [[int(n) for n in re.findall(r"\d+", part)] for part in where.split(",")]
    (top, bottom), (left, right) = ((span[0], span[-1]) for span in spans)
    return top < place[1] and bottom >= place[0] and left < place[3] and right >= place[2]


# --- report ---------------------------------------------------------------------------------------------------------


def share(hits: list[bool]) -> str:
    """With Clopper and Pearson's interval."""
    k, n = sum(hits), len(hits)
    low, high = stats.binomtest(k, n).proportion_ci(0.95, "exact") if n else (0, 1)
    return f"{k} of {n} ({low:.1%} to {high:.1%})"


def alarms(trials: list[dict[str, Any]]) -> str:
    ways = ([bool(t["marks"]) for t in trials], [t["pixel"] for t in trials], [t["high pixel"] for t in trials])
    return " | ".join(map(share, ways))


def words_of(job: Job) -> str:
    saved_as = f", JPEG {job['quality']}" * bool(job["quality"])
    return f"{job['shape']}, {job['strength']}{saved_as}" + f", moved by {job['jitter']}" * bool(job["jitter"])


def summary(done: list[tuple[Job, list[dict[str, Any]]]]) -> Iterator[str]:
    """In words, from the numbers below."""
    for kind, words in (("null", "Labels by lot"), ("clean", "Real classes without a mark")):
        trials = [t for job, some in done if job["kind"] == kind and job["set"] != "digits" for t in some]
        rule, pixel, high = alarms(trials).split(" | ")
        yield f"- {words}: alarms at {rule} sites; by the best pixel {pixel}, with an AUC of 0.9 asked for {high}."
    drawn = [bool(t["marks"]) for job, trials in done if job["set"] == "digits" for t in trials]
    yield f"- Against us: digits, which are drawn shapes, raise it at {sum(drawn)} of {len(drawn)} sites."
    most = [(j, some) for j, some in done if j["kind"] == "planted" and (j["n"], j["share"]) == (SIZES[-1], 1.0)]
    rates = [
        (f"{words_of(j)} ({j['set']}", *(np.mean([t[w] for t in some]) for w in ("found", "high pixel")))
        for j, some in most
    ]
    missed = "; ".join(f"{words} {own:.0%}, best pixel {rival:.0%})" for words, own, rival in rates if own < 0.9)
    yield f"- Against us: in all {SIZES[-1] // 2} pictures of a class and found in under 90 %: {missed}."
    yield "- Not tried: marks in pictures of more than 32 x 32 pixels. Both halves may hold one patient's pictures."


def report(done: list[tuple[Job, list[dict[str, Any]]]], which: str) -> str:
    own = "the rule was shaped on" if which == "shape" else "kept apart from those that shaped the rule"
    out = [f"# Burned-in marks that tell the class\n\n`{Path(__file__).name}`, pictures {own}.\n", *summary(done), ""]
    heads = "sites with an alarm (95 % interval) | best pixel | best pixel, AUC >= 0.9"
    for kind, title, about in (
        ("null", "Exact null: two labels by lot within one class", ("set", "n", "share", "marked")),
        ("clean", "Clean: real classes, cut into sites", ("set", "sites", "how")),
    ):
        some = [(job, trials) for job, trials in done if job["kind"] == kind]
        out += [f"## {title}\n", f"| {' | '.join(about)} | {heads} |", f"|{' --- |' * (len(about) + 3)}"]
        out += [f"| {' | '.join(str(job[k]) for k in about)} | {alarms(trials)} |" for job, trials in some]
        everything = [t for job, trials in some for t in trials if job["set"] != "digits"]
        out += [f"| all{' |' * len(about)} {alarms(everything)} |\n"]
    out += ["## Planted: share of trials in which the mark is found, at its place\n"]
    out += [
        "Two classes of equal size; columns: share of one class with the mark. The rival's alarms count anywhere.",
        "",
    ]
    for name in ("PneumoniaMNIST", "CIFAR-10"):
        out += [
            f"### {name}\n",
            f"| mark | pictures | {' | '.join(f'{s:.0%}' for s in SHARES)} | best pixel >= 0.9: 50%, 100% |",
        ]
        out += [f"| --- |{' ---: |' * (len(SHARES) + 2)}"]
        for shape, strength, quality, jitter in MARKS:
            words = words_of({"shape": shape, "strength": strength, "quality": quality, "jitter": jitter})
            for n in SIZES:
                same = {"kind": "planted", "set": name, "n": n, "shape": shape, "strength": strength}
                same |= {"quality": quality, "jitter": jitter}
                row = {job["share"]: trials for job, trials in done if same.items() <= job.items()}

                def rate(s: float, what: str, row: dict[float, Any] = row) -> str:
                    return f"{np.mean([t[what] for t in row[s]]):.2f}" if s in row else "-"

                cells = [rate(s, "found") for s in SHARES]
                rival = f"{rate(0.5, 'high pixel')}, {rate(1.0, 'high pixel')}"
                out.append(f"| {words} | {n} | {' | '.join(cells)} | {rival} |")
        out.append("")
    return "\n".join(out)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--half", choices=("report", "shape"), default="report")
    parser.add_argument("--cache", type=Path, default=Path("picture_marks.cache"))
    parser.add_argument("--report", action="store_true")
    given = parser.parse_args()
    given.cache.mkdir(exist_ok=True)
    done = []
    for job in jobs():
        file = given.cache / f"{key(given.half, *map(str, job.items())):016x}.json"
        if not file.exists() and not given.report:
            file.write_text(json.dumps(do(job, given.half)))
            print(job, flush=True)
        if file.exists():
            done.append((job, json.loads(file.read_text())))
    page = HERE / "results" / "picture_marks.md"
    if given.half == "report":
        page.write_text(report(done, given.half) + "\n")
    else:
        print(report(done, given.half))


if __name__ == "__main__":
    main()
