"""Does inDISCO give the numbers of MyTH's own code, and how well do both learn?

    git clone https://github.com/EPFLiGHT/MyTH                          # MIT
    python benchmarks/methods/same_as_myth.py MyTH --out benchmarks/methods/results/same_as_myth.md

First, in double precision: MyTH's ProtoPNet over our small backbone, its train_or_test, Fed_PPNet and push_prototypes,
given our rows, start and batches. Where the two differ on purpose, the difference is switched off on one side; then
each by itself is switched on again, to show its size. Second, in float: its programs run_CheXpert_fed.py and
run_CheXpert_LM.py as they are, beside ours, on the same pictures. How it is made to run here: myth_program.py.

The exit code is 1 where a difference is above 1e-6, or where our last layer ends above theirs.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import multiprocessing as mp
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from myth_beside import KINDS, LONG, SEEDS, all_jobs, page, xrays
from myth_program import federation, found_at, in_order, learned, network, params_of
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

from vitrail.core.exchange import Rows
from vitrail.core.optimizers import SGD
from vitrail.core.task import Batch, Task
from vitrail.core.tensors import Params, to_all
from vitrail.engine.batches import Sites, gather_sites
from vitrail.engine.local import Engine
from vitrail.engine.rounds import Snapshot, Training
from vitrail.methods.blocks.prototypes import pulls, sparse_last
from vitrail.methods.indisco import SLOW, InDISCO
from vitrail.nets.prototype_network import ProtoNet, prototypes, similarity

ENOUGH = 1e-6
ROWS, BATCH, EPOCHS, ROUNDS = 64, 16, 3, 3  # where numbers are compared: pictures of the largest site; of a batch; ...
TRIED = (12, 20, 400)  # epochs of their last layer: MyTH's, ProtoPNet's, many
STILL, SLOWLY = ("head", 0.0), ("features", SLOW)
AS_THEIRS: dict[str, Any] = {"decays": 0, "mean": True, "memory": "kept", "rates": (STILL, SLOWLY)}


def small() -> tuple[ProtoNet, Task, Sites]:
    rows = []
    for i, s in enumerate(xrays(SEEDS[0])):
        take = np.random.default_rng(i).permutation(len(s.train_x))[: ROWS - 9 * i]
        x, y = torch.tensor(s.train_x[take]).double() / 255, torch.tensor(s.train_y[take]).long()
        rows.append((s.name, x, one_hot(y, 2).double(), torch.ones(len(x), 1).double()))
    net = prototypes(rows[0][1].shape[1:], 2)
    start = net.init(torch.Generator().manual_seed(SEEDS[0]))
    return net, Task(net, {k: v.double() for k, v in start.items()}), gather_sites(rows)


def engine_of(task: Task, sites: Sites, share: Any, **other: Any) -> Engine:
    """Set to what theirs does, but for what is given."""
    method = InDISCO(share=share, alone_too=False, travel=False, warm=1)
    training = Training(ROUNDS, EPOCHS, BATCH, 0.0, 0.0, **{**AS_THEIRS, **other})
    return Engine(task, method, sites, training, SEEDS[0])


def ours(engine: Engine) -> Iterator[tuple[Snapshot, list[Params]]]:
    """Every site's model after each round, as far as the push."""
    for m in engine.run():
        if m.stage > 2:
            return
        yield m, [{**{k: v[i] for k, v in m.state.own.items()}, **m.coord.params} for i in range(len(engine.names))]
        for v in m.state.memory.values() if m.stage == 0 else ():
            v.zero_()  # theirs has another Adam for the joint rounds


def apart(one: Params, other: Params) -> float:
    assert one.keys() == other.keys()
    return max(float((v - other[k]).abs().max()) for k, v in one.items())


def one_step(net: ProtoNet, task: Task, x: Tensor, y: Tensor) -> Iterator[tuple[str, float]]:
    """Scores, distances, terms of the loss and their gradients, of one batch."""
    step, usual = importlib.import_module("train_or_test").train_or_test, InDISCO()
    batch = Batch(x[None], one_hot(y, 2)[None].to(x), torch.full((1, len(x), 1), 1 / len(x)).to(x))
    params, model = to_all(task.start, 1), nn.DataParallel(network(net, task.start))
    out = net.forward(params, batch.x)
    with torch.no_grad():
        z, d = model(x)
    yield "scores", float((out.z[0] - z).abs().max())
    yield "distances", float((out.features[0] - d).abs().max())
    mine = {"crs_ent": float(task.loss.rows(out, batch).sum())}
    for name, by in (("clst", (1.0, 0.0)), ("sep", (0.0, 1.0))):  # linear in the distances: slope times distance
        mine[name] = float((pulls(net, out, batch, *by) * out.features).sum())
    mine["l1"] = float((task.start[net.HEAD] * ~net.own(z)).abs().sum())

    def slope(**by: float) -> Params:
        held = {k: v.clone() for k, v in params.items()}
        method = InDISCO(**{"clst": 0.0, "sep": 0.0, "l1": 0.0, **by})
        method.descend(task, held, SGD(1.0).state(held), batch, SGD(1.0))
        return {k: v[0] - held[k][0] for k, v in params.items()}

    def theirs(coefs: dict[str, float] | None) -> tuple[float, Params]:
        told, backward = list[float](), Tensor.backward
        with patch.object(Tensor, "backward", lambda loss: (told.append(float(loss.detach())), backward(loss))):
            step(model, [(x, y)], torch.optim.SGD(model.parameters(), 0.0), coefs, True, use_l1_mask=True)
        found = {k: torch.zeros_like(p) if p.grad is None else p.grad for k, p in learned(model.module).items()}
        return told[0], {k: v.view_as(task.start[k]) for k, v in found.items()}

    plain = slope()
    for name, value in mine.items():
        told, grad = theirs({k: (-1.0 if k == "sep" else 1.0) * (k == name) for k in mine})
        by_itself = plain if name == "crs_ent" else {k: v - plain[k] for k, v in slope(**{name: 1.0}).items()}
        yield f"{name}: value", abs(told - value)
        yield f"{name}: gradient", apart(by_itself, grad)
    yield "whole loss: gradient", apart(slope(clst=usual.clst, sep=usual.sep, l1=usual.l1), theirs(None)[1])


def rounds(net: ProtoNet, task: Task, sites: Sites) -> Iterator[tuple[str, int, float]]:
    """Kind, rounds after the warm-up, largest difference of any site's model; weights decay on both sides."""
    places = list(range(len(sites.names)))
    for kind, share in KINDS.items():
        engine = engine_of(task, sites, share, weight_decay=1e-3)
        if share == "no":  # federations of one site
            each = [federation(engine, net, [i], True, 1e-3, False) for i in places]
            told = [[after[r][0] for after in each] for r in range(ROUNDS + 1)]
        else:
            told = federation(engine, net, places, share == "all", 1e-3, False)
        for m, models in ours(engine):
            if m.stage < 2:
                done = m.round if m.stage else 0
                yield kind, done, max(apart(a, b) for a, b in zip(models, told[done], strict=True))


DIFFERENCES: dict[str, dict[str, Any]] = {
    "none: all are switched off": {},
    "ours moves the last layer in joint rounds too, at 1e-4, as the paper": {"rates": (SLOWLY,)},
    "ours moves convolutions drawn by lot at 3e-3, and only pretrained ones at 1e-4": {"rates": (STILL,)},
    'ours begins each round with a fresh Adam (unless memory = "kept"), theirs goes on with it': {"memory": "fresh"},
    "ours lets the rate decay as the study says, theirs has that commented out": {"decays": 50},
    'ours adds up the loss over rows (unless total = "mean"), theirs takes the mean': {"mean": False},
    "theirs decays the weights of convolutions and add-on layers by 1e-3, ours all or none": {"decay": None},
    "theirs pushes and fits the last layer in every round, ours once in the end": {"ends": True},
}


def differences(net: ProtoNet, task: Task, sites: Sites) -> Iterator[tuple[str, float]]:
    """How far one difference by itself takes a site's model from theirs; prototypes shared."""
    for name, on in DIFFERENCES.items():
        of_theirs = {"decay": 0.0, "ends": False} | {k: v for k, v in on.items() if k in ("decay", "ends")}
        engine = engine_of(task, sites, "prototypes", **{k: v for k, v in on.items() if k not in of_theirs})
        told = federation(engine, net, list(range(len(sites.names))), False, **of_theirs)[-1]
        *_, models = (found for m, found in ours(engine) if m.stage < 2)
        yield name, max(apart(a, b) for a, b in zip(models, told, strict=True))


def endings(net: ProtoNet, task: Task, sites: Sites) -> Iterator[tuple[int, int, float, list[float]]]:
    """Site by site: prototypes of which both took the same picture, of how many, how far they are apart, and the last
    layer's objective: before, theirs after so many epochs (TRIED), ours, ours after LONG steps."""
    loop, push = importlib.import_module("train_or_test"), importlib.import_module("push_prot_chex").push_prototypes
    engine = engine_of(task, sites, "prototypes")
    *_, (m, models) = ours(engine)
    for i, params in enumerate(models):
        model = nn.DataParallel(network(net, params))
        rows = in_order(engine, i, BATCH)
        push(rows, model, root_dir_for_saving_prototypes=".", epoch_number=i, proto_bound_boxes_filename_prefix="b")
        pictures = np.load(f"epoch-{i}/b-receptive_field{i}.npy")[:, 0]
        same = int((m.state.patches[i, 0, :, 0].numpy() == pictures).sum())
        found = params_of(model.module)
        far = float((m.state.ending[net.NAME][i] - found[net.NAME]).abs().max())
        x, y = rows.dataset.tensors
        pushed = {k: v[None] for k, v in {**params, net.NAME: m.state.ending[net.NAME][i]}.items()}
        s = similarity(net.forward(pushed, x[None], tape=False).features[0])

        def objective(weight: Tensor) -> float:
            wrong = (weight * ~net.own(weight)).abs().sum()
            return float(cross_entropy(s @ weight.T, y) + InDISCO.l1 * wrong)  # noqa: B023

        values, weight = [objective(found[net.HEAD])], model.module.last_layer.weight
        loop.mode(model, last=True)
        rule = torch.optim.Adam([weight], importlib.import_module("parameters").last_layer_optimizer_lr)
        for epoch in range(1, max(TRIED) + 1):
            loop.train_or_test(model, rows, rule, class_specific=True, use_l1_mask=True)
            if epoch in TRIED:
                values.append(objective(weight.detach()))
        long = sparse_last(net, pushed, Rows(torch.ones(1), None, lambda: sites.blocks([i])), InDISCO.l1, LONG)  # noqa: B023
        values += [objective(w) for w in (m.state.ending[net.HEAD][i], long[0])]
        yield same, len(pictures), far, values


def numbers(checkout: Path) -> tuple[bool, list[str]]:
    """Whether all is as it should be, and the tables."""
    found_at(checkout)
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.double)
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()):
        return compared(*small())


def compared(net: ProtoNet, task: Task, sites: Sites) -> tuple[bool, list[str]]:
    first = in_order(engine_of(task, sites, "no"), 0, ROWS)
    steps = list(one_step(net, task, *next(iter(first))))
    runs, ends = list(rounds(net, task, sites)), list(endings(net, task, sites))
    sizes = list(differences(net, task, sites))
    equal = max(v for v in (*(v for _, v in steps), *(v for *_, v in runs), *(e[2] for e in ends), sizes[0][1]))
    lower = all(mine <= min(tried) for *_, (_, *tried, mine, _) in ends)
    same, of = sum(e[0] for e in ends), sum(e[1] for e in ends)
    lines = [
        "| one batch | largest difference |",
        "| --- | ---: |",
        *(f"| {name} | {v:.1e} |" for name, v in steps),
        "",
    ]
    lines += [f"| kind | after the warm-up |{' after round {} |' * ROUNDS}".format(*range(1, ROUNDS + 1))]
    lines += ["| --- |" + " ---: |" * (ROUNDS + 1)]
    lines += [f"| {kind} | {' | '.join(f'{v:.1e}' for k, _, v in runs if k == kind)} |" for kind in KINDS]
    lines += [
        "",
        f"Push, prototypes shared, after the last round: {same} of {of} prototypes are taken from the same picture; ",
    ]
    lines[-1] += f"they differ by {max(e[2] for e in ends):.1e} (theirs are rounded to float32 at that place)."
    lines += ["", "Last layer after it, cross-entropy + 1e-4 |weights for other classes|, site by site:", ""]
    names = ("before", *(f"theirs, {n} epochs" for n in TRIED), f"ours, {InDISCO.last} steps", f"ours, {LONG} steps")
    lines += [f"| site | {' | '.join(names)} |", "| --- |" + " ---: |" * len(names)]
    lines += [f"| {n} | {' | '.join(f'{v:.4f}' for v in e[3])} |" for n, e in zip(sites.names, ends, strict=True)]
    lines += ["", "| difference, by itself | takes a site's model away by |", "| --- | ---: |"]
    return equal <= ENOUGH and lower and same == of, lines + [f"| {name} | {v:.1e} |" for name, v in sizes]


PAGE = """\
# Beside MyTH, {day}

`python benchmarks/methods/same_as_myth.py`: MyTH (github.com/EPFLiGHT/MyTH, commit {commit}) beside inDISCO, torch {torch}, on
the shipped chest X-rays (28 x 28, four sites), with our small backbone in place of its densenet121.

## The same numbers

In double precision. Its ProtoPNet holds our backbone and our start; its train_or_test, run_Fed_PPNet and
push_prototypes get our pictures ({rows} or fewer of a site) and our batches of {batch}; {epochs} epochs of warm-up,
then rounds of {epochs}. Where the two differ on purpose, one side is set to the other, mostly ours. Figures
are the largest difference of any number. Of the loss each term is taken by itself, then all with their usual factors.

{numbers}

Not in that list, since they are no matter of rounds:

- Theirs takes |weight|_1 over the whole last layer, ours over the weights for other classes, as ProtoPNet does; theirs
  can do so too (`use_l1_mask`), and is told to here.
- Theirs fits the last layer by {tried} epochs of Adam at 1e-4 (ProtoPNet: 20), ours by {last} proximal steps. These do
  not reach the minimum either where {long} steps end lower.
- Where all is shared, theirs fits the last layer before it averages, and its push changes no prototype.
- Where only prototypes are shared, the add-on layers of its sites start each from another lot; ours from one.
- Prototypes start between 0 and 1 there, between 0.3 and 0.7 here; add-on layers as He et al. there, as torch's here.
- A site without a picture of a class gets prototypes of zeros there; here they stay as they are.
- A prototype that is farther from all of a picture than there are latent dimensions counts as that far in cluster and
  separation there. Where numbers are compared there was none.
- Rows have the same weight here; a study of ours weighs classes inversely to their numbers unless it says otherwise.

{beside}
"""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("myth", type=Path, help="a checkout of EPFLiGHT/MyTH")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--cache", type=Path, help="a file of finished runs of the programs, gone on with")
    parser.add_argument("--processes", type=int, default=1, help="for them")
    args = parser.parse_args()
    with ProcessPoolExecutor(1, mp.get_context("spawn")) as other:  # it is all in double there
        asked = other.submit(numbers, args.myth.resolve())
        done = all_jobs(args.myth.resolve(), args.cache, args.processes)
        right, lines = asked.result()
    commit = subprocess.run(["git", "-C", args.myth, "rev-parse", "HEAD"], capture_output=True, text=True).stdout
    told = PAGE.format(
        day=time.strftime("%Y-%m-%d"), commit=commit.strip() or "unknown", torch=torch.__version__, rows=ROWS,
        batch=BATCH, epochs=EPOCHS, numbers="\n".join(lines), tried=TRIED[0], last=InDISCO.last, long=LONG,
        beside=page(done),
    )  # fmt: skip
    print(told)
    if args.out:
        args.out.write_text(told, encoding="utf-8")
    sys.exit(int(not right))


if __name__ == "__main__":
    main()
