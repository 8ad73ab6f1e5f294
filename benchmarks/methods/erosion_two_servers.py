"""Weight Erosion where two servers open distances only: is it the open run, what does it cost, what does it tell? And
can RIPFL's similarity and Influence be had in the same way?

    VITRAIL_DATA=... python benchmarks/methods/erosion_two_servers.py    # about five minutes on one core

Equality: heart disease, four hospitals, a linear model, every site a user once, with shares as two servers would hold
them (privacy/two_server/distances.py). Cost: by the number of sites and of parameters, random updates, one user. What it
tells: with every site a user the totals of round 1 are solved for each site's update; with one user the best guess of
another's update is compared. RIPFL: sites of a world with two groups; a server that opened what the method needs, the
mixture of every site, solves for the models. Influence: whether distances between models say what the losses say by
which it weighs them.
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from scipy.stats import spearmanr
from torch import Tensor

import vitrail as vt

sys.path.insert(0, str(Path(__file__).parents[2]))
from tests.support.shared_erosion import SharedErosion
from vitrail.core.task import Task
from vitrail.core.tensors import Params, map_tensors
from vitrail.core.text import size
from vitrail.data.encoding import prepare
from vitrail.engine.batches import Sites, gather_sites
from vitrail.engine.local import Engine
from vitrail.engine.rounds import Training
from vitrail.nets import MLP
from vitrail.privacy.two_server.distances import dealt_squares, open_distances, open_total, square_deck, with_shares
from vitrail.privacy.two_server.protocol import ShareServer, dealt, deck_of, halves_of
from vitrail.runs.setup import build_task, training_rows

SEEDS, ROUNDS, CLIP = (1, 2, 3), 40, 0.5
GIVEN = {"p_d": 0.005, "p_s": 0.2, "beside": False}
TRAINING = Training(rounds=ROUNDS, batch=32, lr=0.1, mean=True)
SIZES = ((4, 28), (4, 1_500), (30, 1_500), (30, 62_000))
LETTER = 32 + 32 + 16  # bytes: a sealed seed with the key and the mark of its box
CUTS = (1e-6, 1e-3, 1e-2, 3e-2, 0.1, 0.3)  # of directions in least squares, as a share of the largest
RIPFL_SITES, RIPFL_ROUNDS = 30, 10


def heart(seed: int) -> tuple[Task, Sites]:
    study = vt.Study.load(vt.datasets.packaged("heart_disease.toml"))
    study = study.with_changes(network={"kind": "linear"}, standardise="global")
    method, data = vt.methods.build("weight_erosion"), prepare(vt.datasets.heart_disease(), study, seed)
    return build_task(study, method, seed), training_rows(data, study, method, "cpu")


def flat(tree: Params) -> np.ndarray:
    """[first axis, number]"""
    return torch.cat([v.flatten(1) for v in tree.values()], 1).double().numpy()


def compared(seed: int) -> dict[str, float]:
    """Differences to the open run, and to the distances of the exact updates."""
    task, sites = heart(seed)
    shared = SharedErosion(**GIVEN, clip=CLIP)
    engines = [Engine(task, m, sites, TRAINING, seed) for m in (vt.methods.build("weight_erosion", GIVEN), shared)]
    models = alphas = stated = 0.0
    for a, b in zip(*(engine.run() for engine in engines), strict=True):
        models = max(models, *(float((v - b.coord.models[k]).abs().max()) for k, v in a.coord.models.items()))
        alphas = max(alphas, float((a.coord.alpha - b.coord.alpha).abs().max()))
        stated = max(stated, float(shared.seen["errors"].max()))
        last = a
    return {"models": models, "alphas": alphas, "stated": stated, "eroded": float(1 - last.coord.alpha.mean())}


# --- what is told ----------------------------------------------------------------------------------------------------


def solved(seed: int) -> tuple[float, float]:
    """Relative error of each site's update in round 1: from the totals of all users; from those of one user."""
    task, sites = heart(seed)
    kept: dict[str, Any] = {}

    def listen(names: tuple[str, ...], ex: Any, up: Any) -> Any:
        if "update" in getattr(up, "_fields", ()):
            kept.setdefault("update", map_tensors(torch.clone, up.update))
        return up

    method = SharedErosion(**GIVEN, clip=CLIP)
    engine = Engine(task, method, sites, TRAINING, seed, lies=listen, chunk=len(sites.names))
    moment = next(iter(engine.run()))
    alpha = moment.coord.alpha.double().numpy()
    totals = np.stack([method.seen["totals"][u] for u in range(len(alpha))])
    true = flat({k: v[:, 0] for k, v in kept["update"].items()})  # in round 1 the models of all users are one
    weights = alpha / alpha.sum(1, keepdims=True)
    read = np.linalg.solve(weights, totals)
    length = np.linalg.norm(true, axis=1)
    guess = np.linalg.norm(true - totals[0], axis=1)[1:] / length[1:]  # of one user's run there is one total
    return float(np.median(np.linalg.norm(read - true, axis=1) / length)), float(np.median(guess))


def gathered(seed: int) -> float:
    """Relative error of a site's mean update over all rounds, from one user's totals of all rounds: as many equations
    as rounds, solved as if updates did not change, with the cut of small directions that in hindsight is best. Median over the
    other sites; the user's own is known."""
    task, sites = heart(seed)
    rounds: list[np.ndarray] = []

    def listen(names: tuple[str, ...], ex: Any, up: Any) -> Any:
        if "update" in getattr(up, "_fields", ()):
            rounds.append(flat({k: v[:, 0] for k, v in up.update.items()}))
        return up

    method = SharedErosion(**GIVEN, clip=CLIP)
    engine = Engine(task, method, sites, TRAINING, seed, lies=listen, chunk=len(sites.names))
    weights, totals = [], []
    for moment in engine.run():
        alpha = moment.coord.alpha[0].double().numpy()
        weights.append(alpha / alpha.sum())
        totals.append(method.seen["totals"][0])
    true = np.stack(rounds)  # [round, site, number]
    known, w = true[:, 0], np.array(weights)
    rest = np.array(totals) - w[:, :1] * known
    mean, errors = true[:, 1:].mean(0), []
    for cut in CUTS:
        read = np.linalg.lstsq(w[:, 1:], rest, rcond=cut)[0]
        errors.append(float(np.median(np.linalg.norm(read - mean, axis=1) / np.linalg.norm(mean, axis=1))))
    return min(errors)


def mixtures(seed: int) -> dict[str, list[float]]:
    """RIPFL in rounds 2 and on: how many models a server that opens every site's mixture can solve for, and what it
    can rebuild of a model from inner products alone, if it knows half of the models."""
    engine = Engine(*world(seed, RIPFL_SITES), Training(RIPFL_ROUNDS, 1, 32, 0.05, momentum=0.9, mean=True), seed)
    out: dict[str, list[float]] = {"rank": [], "read": [], "known": [], "two": []}
    for moment in engine.run():
        share, models = moment.coord.share.double().numpy(), flat(moment.coord.models)
        if np.allclose(share, np.eye(len(share))):
            continue
        opened = share @ models
        found = np.linalg.lstsq(share, opened, rcond=None)[0]
        off = np.linalg.norm(found - models, axis=1) / np.linalg.norm(models, axis=1)
        half = len(models) // 2
        centre = models[:half].mean(0)
        part = np.linalg.lstsq((models[:half] - centre).T, (models[half:] - centre).T, rcond=None)[0]
        rebuilt = centre + (models[:half] - centre).T.dot(part).T
        rest = np.linalg.norm(rebuilt - models[half:], axis=1) / np.linalg.norm(models[half:] - centre, axis=1)
        out["rank"].append(float(np.linalg.matrix_rank(share)))
        out["read"].append(float((off < 1e-3).mean()))
        out["known"].append(float(np.median(rest)))
        out["two"].append(float(((share > 0).sum(1) <= 2).mean()))
    return out


def world(seed: int, sites: int) -> tuple[Task, Any, Sites]:
    """Two groups with opposite truths; RIPFL and its task."""
    g = np.random.default_rng([seed, 41])
    net, rows = MLP(10, 2, (16,)), []
    truth = g.normal(size=10)
    for i in range(sites):
        x = g.normal(size=(int(g.integers(60, 120)), 10))
        y = torch.tensor((x @ truth * (1 if i % 2 else -1) + 0.5 * g.normal(size=len(x)) > 0).astype(int))
        labels = torch.nn.functional.one_hot(y, 2).float()
        rows.append((f"{i:02}", torch.tensor(x).float(), labels, torch.ones(len(x), 1)))
    task = Task(net, net.init(torch.Generator().manual_seed(seed)))
    method = vt.methods.build("ripfl", {"evidence": False, "rear": 1})
    return task, method, gather_sites(rows)


def influence(seed: int) -> dict[str, float]:
    """In the rounds of Influence on heart disease: rank correlation, over the others, of how much a model lowers a
    user's loss and how near it is; how often the model that helps most is the nearest; 1 / 3 by chance."""
    task, sites = heart(seed)
    method = vt.methods.build("influence")
    engine = Engine(task, method, sites, Training(rounds=15, batch=32, lr=0.1, mean=True), seed)
    rank, first = list[float](), list[float]()
    for moment in engine.run():
        models, n = moment.coord.models, len(sites.names)
        at = flat(models)
        for u in range(n):
            start, size = sites.starts[u], sites.sizes[u]
            x, y = sites.x[start : start + size][None].float(), sites.y[start : start + size]
            loss = [log_loss(task, map_tensors(lambda t: t[j : j + 1], models), x, y) for j in range(n)]  # noqa: B023
            others = [j for j in range(n) if j != u]
            far = [float(np.linalg.norm(at[j] - at[u])) for j in others]
            rank.append(float(spearmanr([loss[j] for j in others], far).statistic))
            first.append(float(np.argmin([loss[j] for j in others]) == np.argmin(far)))
    return {"rank": float(np.nanmean(rank)), "first": float(np.mean(first))}


def log_loss(task: Task, params: Params, x: Tensor, y: Tensor) -> float:
    return float(-(task.output(params, x)[0].log_softmax(-1) * y).sum(1).mean())


# --- cost ------------------------------------------------------------------------------------------------------------


def cost(sites: int, numbers: int) -> dict[str, float]:
    """Seconds of every part, and bytes, of one round: for one user; and of all inner products."""
    g = np.random.default_rng(0)
    x = g.normal(size=(sites, numbers)) / np.sqrt(numbers) / 4
    out, present = dict[str, float](), list(range(sites))

    def timed(name: str, began: float) -> float:
        now = time.process_time()
        out[name] = now - began
        return time.process_time()

    at = time.process_time()
    halves_of(x[0], 1.0)
    at = timed("site", at)
    one, other, table = dealt_squares(sites, numbers)
    at = timed("dealer", at)
    square_deck(one, sites, numbers), square_deck(other, sites, numbers, table)
    servers = with_shares(x, present, 0, 1.0)
    at = time.process_time()
    open_distances(servers, present)
    open_total(servers, present, np.ones(sites), 3)
    at = timed("servers", at)  # both, one after the other
    seeds = dealt(sites, numbers)
    at = timed("dealer of pairs", at)
    decks = deck_of(seeds[0], sites, numbers), deck_of(seeds[1], sites, numbers, seeds[2])
    pairs = [ShareServer(i == 0, 1.0, deck) for i, deck in enumerate(decks)]
    for i in present:
        for server, whole in zip(pairs, servers, strict=True):
            server.take(i, whole.halves[i])
    at = time.process_time()
    blinded = [server.blinded(present) for server in pairs]
    pairs[0].products(present, blinded[0], blinded[1])
    pairs[1].products(present, blinded[1], blinded[0])
    timed("servers of pairs", at)
    out["up"] = 8 * numbers + LETTER  # from a site: a half for the first server, a letter for the second
    out["open"] = 4 * numbers
    out["between"] = 2 * 8 * sites * numbers  # what is blinded, both ways
    out["opened"] = 2 * 8 * sites + 8 * numbers  # squares both ways, and the total
    out["all users"] = sites * (out["between"] + out["opened"])
    out["mixtures"] = 2 * 8 * sites * sites + 8 * sites * numbers  # RIPFL: products, and a mixture for each site
    return out


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "erosion_two_servers.md")
    args = parser.parse_args()
    torch.set_num_threads(1)
    runs, read = [compared(s) for s in SEEDS], [solved(s) for s in SEEDS]
    collected = [gathered(s) for s in SEEDS]
    worst = {k: max(run[k] for run in runs) for k in runs[0]}
    mixed = [mixtures(s) for s in SEEDS]
    every = {k: [v for m in mixed for v in m[k]] for k in mixed[0]}
    likes = [influence(s) for s in SEEDS]
    costs = {size: cost(*size) for size in SIZES}
    lines = [
        "# Weight Erosion where two servers open distances only", "",
        f"`python benchmarks/methods/erosion_two_servers.py`. Heart disease, 4 hospitals, linear model, {ROUNDS} rounds, "
        f"{len(SEEDS)} seeds; a clip of {CLIP:g}, which no update reaches.", "",
        "| against the open run, every site a user | largest over seeds |", "| --- | --- |",
        f"| difference of any parameter of any user's model in any round | {worst['models']:.1e} |",
        f"| difference of any alpha | {worst['alphas']:.1e} |",
        f"| error that is stated of a distance in any round | {worst['stated']:.1e} |",
        f"| trust lost in the open run, mean over pairs, at least | {min(run['eroded'] for run in runs):.2f} |", "",
        "## What the opened totals tell", "",
        "Round 1, all models alike. Relative error of a site's update, median over sites, largest of the seeds; an error "
        "of 1 is a guess of nothing.", "",
        "| what is opened | error |", "| --- | --- |",
        f"| every site is a user: as many totals as updates, solved | {max(r[0] for r in read):.1e} |",
        f"| one user: its total taken for another site's update, smallest of the seeds | "
        f"{min(r[1] for r in read):.2f} |",
        f"| one user, all {ROUNDS} rounds: totals solved for mean updates by who knows the user's, smallest of the seeds "
        f"| {min(collected):.2f} |", "",
        "So only runs about one user protect updates. Other attacks on one user's totals were not tried.", "",
        "## Cost of one round", "",
        "One user. Processor milliseconds of one core, once; both servers one after the other. Sites send one number of 8 bytes where they "
        "send one of 4 in the open.", "",
        "| sites x parameters | from a site | in the open | between the servers | site, ms | dealer, ms | servers, ms |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        *(f"| {n} x {d} | {size(c['up'])} | {size(c['open'])} | {size(c['between'] + c['opened'])} | "
          f"{1e3 * c['site']:.3g} | {1e3 * c['dealer']:.3g} | {1e3 * c['servers']:.3g} |" for (n, d), c in costs.items()), "",
        "Every site a user, or all pairs (RIPFL; bytes with the mixture of each site).", "",
        "| sites x parameters | every site a user, between | all pairs, between | dealer, ms | servers, ms |",
        "| --- | --- | --- | --- | --- |",
        *(f"| {n} x {d} | {size(c['all users'])} | {size(c['between'] + c['mixtures'])} | "
          f"{1e3 * c['dealer of pairs']:.3g} | {1e3 * c['servers of pairs']:.3g} |" for (n, d), c in costs.items()), "",
        "## RIPFL's similarity", "",
        f"{RIPFL_SITES} sites in two groups, network of 16 units, all layers every round, {RIPFL_ROUNDS} rounds, "
        f"{len(SEEDS)} seeds. Means over rounds.", "",
        "| what is opened | measured | |", "| --- | --- | --- |",
        f"| the mixture of each site | rank of the table of mixtures, of {RIPFL_SITES} | {np.mean(every['rank']):.1f} |",
        f"| the mixture of each site | share of models that are solved to 0.1 % | {np.mean(every['read']):.2f} |",
        f"| inner products of all pairs, half of the models known | relative error of the others' models, less the "
        f"known mean | {np.mean(every['known']):.2f} |",
        f"| the mixture, to its site alone | share of sites whose mixture is of two models at most | "
        f"{np.mean(every['two']):.2f} |", "",
        "## Influence", "",
        "Heart disease, 15 rounds: can distances take the place of the losses by which a site weighs the others' models?",
        "", "| measured | mean | seeds |", "| --- | --- | --- |",
        row("rank correlation of loss and distance, over the other three", [v["rank"] for v in likes]),
        row("the model with the lowest loss is the nearest (chance: 0.33)", [v["first"] for v in likes]), "",
        f"{os.cpu_count()} cores ({platform.machine()}), Python {platform.python_version()}, "
        f"torch {torch.__version__}.", "",
    ]  # fmt: skip
    args.out.write_text("\n".join(lines))
    print("\n".join(lines))


def row(title: str, values: list[float]) -> str:
    return f"| {title} | {np.mean(values):.2f} | {', '.join(f'{v:.2f}' for v in values)} |"


if __name__ == "__main__":
    main()
