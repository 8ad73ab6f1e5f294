"""Does the rule "this site's class stands out" keep its promise? Made-up federations, no pictures.

    python benchmarks/pictures/planted_bias_rule.py                 # resumes; finished cases lie in --cache
    python benchmarks/pictures/planted_bias_rule.py --report        # the tables from what is there

The rule (src/vitrail/analysis/shortcuts/detector.py) sees counts and losses only; here these are drawn from worlds of
which we know whether anybody has a shortcut. A model's chance to be right on a picture has, in log odds: the class's
own level, how skilled the site's model is in it, how hard the site's pictures are, how hard this picture is (to all
models alike), and what it is better at home. In the world `alike` sites differ in nothing; in `at home` every model is
better at home; in `natural` sites, and the classes of a site, differ in all of this, in sizes and in labels, and the
signals of a cell go together; `strong` has twice as much of it, and is meant to show where the promise ends. In `one
odd site` all classes of one site travel badly (another device), which is no shortcut of one class.

Planted: the model of one site gets its marked pictures of one class right at home and fails elsewhere. The rivals are
each signal alone, and the prototypes' distance from its least to its largest, as the paper has it: it names a cell in
every federation, clean or not.
"""

from __future__ import annotations

import argparse
import json
import time
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy import special, stats

from vitrail.analysis.shortcuts.detector import LEVEL, judge, least_to_largest
from vitrail.core.facts import CUT

HERE = Path(__file__).parent
ALONE = ("piece", "margin", "travel", "easy", "distance")


class World(NamedTuple):
    """How clean sites differ. Numbers are standard deviations of log odds or logs, unless said otherwise."""

    home: float = 0.0  # not a deviation: how much better each model is at home
    site: float = 0.0  # of sites: better at home, harder pictures, skill
    cell: float = 0.0  # of the classes of a site: the same, and where is looked
    classes: float = 0.8
    picture: float = 1.0
    skew: float = 0.0  # of labels and sizes
    related: float = 0.0  # a correlation: of the cell's own part in travel, piece and loss
    piece: float = 0.3  # not a deviation: how much further a piece convinces the model at home; cells differ by as much
    odd: float = 0.0  # not a deviation: how much better the first site's model is at home, in all classes


class Mark(NamedTuple):
    """Of class 1 at site 0."""

    home: float = 0.95  # right at home where the mark is
    away: float = 0.1  # and without it
    share: float = 1.0  # of the pictures that carry it
    piece: float = 3.0  # how much further a piece with the mark convinces the site's own model, in log-odds
    easy: float = 0.6  # of the loss that is left
    distance: float = 1.3  # times the prototypes' usual one


WORLDS = {
    "alike": World(),
    "at home": World(home=0.7),
    "natural": World(home=0.5, site=0.3, cell=0.3, skew=0.5, related=0.3),
    "strong": World(home=0.7, site=0.6, cell=0.6, skew=0.7, related=0.5, piece=0.8),
    "one odd site": World(home=0.5, site=0.3, cell=0.3, skew=0.5, related=0.3, odd=1.5),
}
MARKS = {
    "0.95 / 0.10": Mark(),
    "0.80 / 0.10": Mark(home=0.8),
    "0.95 / 0.10, half of the pictures": Mark(share=0.5),
    "0.95 / 0.40": Mark(away=0.4, piece=2.0, easy=0.8),
    "0.95 / 0.10, in no piece": Mark(piece=0.0),
}
# sites, classes, hold-out pictures of a class at a site, trials
SHAPES = (
    (3, 2, 12, 400),
    (3, 2, 60, 400),
    (4, 2, 60, 400),
    (8, 2, 30, 400),
    (8, 5, 12, 400),
    (4, 20, 7, 200),
    (4, 20, 12, 200),
    (8, 20, 12, 100),
    (30, 2, 10, 200),
    (100, 5, 8, 25),
    (5, 200, 6, 10),
)


def simulate(
    rng: np.random.Generator, sites: int, classes: int, rows: float, world: World, mark: Mark | None = None
) -> dict[str, Any]:
    """The facts of one federation, as `judge` takes them."""
    w, both = world, (sites, classes)

    def draw(sd: float, *shape: int) -> Any:
        return sd * rng.normal(size=shape)

    held = rng.gamma(w.skew**-2, w.skew**2, both) if w.skew else np.ones(both)
    held = np.maximum(held * np.exp(draw(w.skew, sites, 1)), 0.02)
    tested, trained = rng.poisson(rows * held), np.maximum(np.round(2.5 * rows * held), 2).astype(int)
    level = 0.8 + draw(w.classes, classes)
    skill = draw(w.site, sites, 1) + draw(w.cell, *both) + 0.3 * np.log(held)
    hard = draw(w.site, sites, 1) + draw(w.cell, *both)
    shared = draw(1.0, *both)  # what the signals of a cell have in common

    def own(sd: float) -> Any:
        return sd * (np.sqrt(w.related) * shared + draw(np.sqrt(1 - w.related), *both))

    better = w.home + draw(w.site, sites, 1) + own(w.cell)
    better[0] += w.odd
    lead = w.piece * (1 + draw(0.5, classes) + draw(0.5, sites, 1) + own(0.7) + 0.7 * rng.standard_t(5, both))
    log_loss = draw(0.3, classes) + draw(0.2, sites, 1) - own(0.15) - 0.3 * np.log(held)
    log_loss += rng.normal(size=both) * 0.5 / np.sqrt(trained)
    far = np.exp(draw(0.2, classes) + draw(0.2, sites, 1) + draw(0.15, *both))
    travel = np.full((sites, sites, classes, 2), np.nan)
    margin = travel.copy()
    for s, c in np.ndindex(both):
        here = mark is not None and c == 1 and s == 0
        if (n := tested[s, c]) >= 5:
            picture = draw(w.picture, n)
            z = (level[c] + skill[:, c] - hard[s, c])[:, None] + picture
            z[s] += better[s, c]
            chance = special.expit(z)
            if mark is not None and c == 1:
                without = special.expit(special.logit(mark.away) + picture)
                chance[0] = np.where(rng.random(n) < mark.share, mark.home, without) if here else without
            travel[:, s, c, 0], travel[:, s, c, 1] = (rng.random(chance.shape) < chance).sum(1), n
            sure = np.clip(special.logit(chance), -CUT, CUT)
            margin[:, s, c, 0], margin[:, s, c, 1] = ((sure + CUT) / (2 * CUT)).sum(1), n
    if mark is not None:
        log_loss[0, 1] += mark.share * np.log(mark.easy)
        far[0, 1] *= mark.distance
        lead[0, 1] += mark.piece
    rises = np.abs(draw(0.5, sites, sites, classes)) + 0.1  # natural pieces convince everybody, some more
    at = np.arange(sites)
    rises[at, at] = lead + (rises.sum(1) - rises[at, at]) / max(1, sites - 1)
    return {"travel": travel, "margin": margin, "piece": rises, "easy": np.exp(log_loss), "distance": far}


def trial(seed: int, job: dict[str, Any]) -> dict[str, Any]:
    """Who is named, by each rule; [site, class]."""
    shape = job["sites"], job["classes"], job["rows"]
    mark = MARKS[job["mark"]] if job["mark"] else None
    facts = simulate(np.random.default_rng(seed), *shape, WORLDS[job["world"]], mark)
    told = judge(**facts)
    assert told is not None
    named = {"rule": [(f.site, f.label) for f in told.found]}
    for name in ALONE:
        p = told.chances.get(name, np.full(told.chance.shape, np.nan))
        named[name] = np.argwhere(p * np.isfinite(p).sum() <= LEVEL).tolist()
    first = np.argwhere(least_to_largest(told.distance) == 1)[0]
    by = [f.by for f in told.found if (f.site, f.label) == (0, 1)]
    likely = np.unravel_index(int(np.nanargmin(told.chance)), told.chance.shape)
    return {
        "named": {k: [[int(i) for i in cell] for cell in v] for k, v in named.items()},
        "largest": [int(i) for i in first],
        "first": [int(i) for i in likely],
        "by": list(by[0]) if by else [],
    }


def jobs() -> list[dict[str, Any]]:
    out = []
    for sites, classes, rows, trials in SHAPES:
        shape = {"sites": sites, "classes": classes, "rows": rows}
        out += [{**shape, "world": world, "mark": "", "trials": trials} for world in WORLDS]
        many = trials >= 100
        for mark in MARKS if many else ["0.95 / 0.10"]:
            out.append({**shape, "world": "natural", "mark": mark, "trials": min(trials, 100)})
        for world in ("alike", "strong") if many else ():
            out.append({**shape, "world": world, "mark": "0.95 / 0.10", "trials": 100})
    return sorted(out, key=lambda job: job["sites"] * job["classes"] * job["trials"])


def place_of(cache: Path, job: dict[str, Any]) -> Path:
    return cache / f"{zlib.crc32(json.dumps(job).encode()):08x}.json"


def run(cache: Path) -> None:
    cache.mkdir(parents=True, exist_ok=True)
    for job in jobs():
        if not (file := place_of(cache, job)).exists():
            start = time.monotonic()
            seeds = np.random.SeedSequence(zlib.crc32(json.dumps(job).encode())).generate_state(job["trials"])
            done = [trial(int(seed), job) for seed in seeds]
            file.write_text(json.dumps({**job, "done": done}))
            print(f"{job} {time.monotonic() - start:.0f} s", flush=True)


def upper(hits: int, trials: int) -> float:
    """The 95 % upper limit of a share (Clopper and Pearson)."""
    return 1.0 if hits == trials else float(stats.beta.ppf(0.95, hits + 1, trials - hits))


CLEAN = """
## Clean: federations in which somebody is named

Promised: at most {level} for the rule. Limit: the 95 % upper limit of the rule's share. The largest distance names a
cell in every federation (1.000) and is left out. Rows: mean hold-out pictures of a class at a site; below 5 none are
told. `strong` and `one odd site` are outside the promise's assumptions or at their edge.

| sites x classes | rows | world | trials | rule | limit | piece alone | margin alone | travel alone | easy alone | distance alone |
| --- | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
"""
PLANTED = """
## Planted: is the cell found?

Mark: right at home / without the mark. Site first: the smallest chance of all cells is at the marked site. Others:
other cells named, per federation. By: how often each signal said so alone, of those found (or, where only all together
did, was below 0.05).

| sites x classes | rows | world | mark | trials | site first | found | piece | travel | largest | others | by |
| --- | ---: | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | --- |
"""


def report(cache: Path) -> str:
    clean, planted = [], []
    for job in sorted(
        jobs(), key=lambda job: [s[:3] for s in SHAPES].index((job["sites"], job["classes"], job["rows"]))
    ):
        if not (file := place_of(cache, job)).exists():
            continue
        done = json.loads(file.read_text())["done"]
        head = [f"{job['sites']} x {job['classes']}", str(job["rows"]), job["world"]]
        if job["mark"]:
            planted.append([*head, job["mark"], str(len(done)), *planted_cells(done)])
        else:
            some = [sum(bool(t["named"][name]) for t in done) for name in ("rule", *ALONE)]
            shares = [f"{hits / len(done):.3f}" for hits in some]
            clean.append([*head, str(len(done)), shares[0], f"{upper(some[0], len(done)):.3f}", *shares[1:]])
    tables = ["\n".join(f"| {' | '.join(row)} |" for row in rows) for rows in (clean, planted)]
    title = "# The rule for planted shortcuts, on made-up federations\n\n`python benchmarks/pictures/planted_bias_rule.py`\n"
    return f"{title}{CLEAN.format(level=LEVEL)}{tables[0]}\n{PLANTED}{tables[1]}\n"


def planted_cells(done: list[dict[str, Any]]) -> list[str]:
    cell = [0, 1]
    shares = [np.mean([t["first"][0] == 0 for t in done])]
    shares += [np.mean([cell in t["named"][name] for t in done]) for name in ("rule", "piece", "travel")]
    shares += [np.mean([t["largest"] == cell for t in done])]
    shares += [np.mean([sum(other != cell for other in t["named"]["rule"]) for t in done])]
    found = [t["by"] for t in done if cell in t["named"]["rule"]]
    by = ", ".join(f"{name} {np.mean([name in said for said in found]):.2f}" for name in ALONE[:3] if found)
    return [*(f"{share:.2f}" for share in shares), by]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cache", type=Path, default=Path("planted_bias_rule.cache"))
    parser.add_argument("--report", action="store_true")
    given = parser.parse_args()
    if not given.report:
        run(given.cache)
    text = report(given.cache)
    (HERE / "results" / "planted_bias_rule.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
