"""MyTH's programs run_CheXpert_fed.py and run_CheXpert_LM.py, as they are, beside ours on the shipped X-rays: how well
each tells its own site's hold-out pictures. Part of same_as_myth.py."""

from __future__ import annotations

import contextlib
import io
import json
import multiprocessing as mp
import statistics
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from itertools import product
from pathlib import Path

import torch
from myth_program import MEAN, PICTURES, SPREAD, found_at, program
from torch import Tensor
from torch.nn.functional import one_hot

import vitrail as vt
from vitrail.core.exchange import Rows
from vitrail.core.task import Task
from vitrail.core.tensors import Params
from vitrail.data.datasets.catalogue import packaged
from vitrail.data.encoding import SiteData, prepare
from vitrail.engine.batches import gather_sites
from vitrail.engine.local import Engine
from vitrail.engine.rounds import Training
from vitrail.methods.blocks.prototypes import net_of, sparse_last
from vitrail.methods.indisco import InDISCO
from vitrail.nets.prototype_network import ProtoNet, prototypes
from vitrail.runs.setup import build_task, training_of, training_rows

SEEDS, STUDY = (1, 2, 3), vt.Study.load(packaged("prototypes.toml"))
KINDS = {"local": "no", "prototypes shared": "prototypes", "all shared": "all"}
WARM, JOINT, TURNS = 5, 10, 2  # epochs of the warm-up, and of a round after it; such rounds: what theirs has by -nr 3
LONG = 10000  # steps of our last layer, where they are as many as it takes
Judged = tuple[float, float]  # accuracy and balanced accuracy, the mean over sites
Job = tuple[str, str, int]  # whose, kind, seed


def xrays(seed: int) -> list[SiteData]:
    return prepare(vt.datasets.pneumonia(), STUDY, seed)


def picture(x: object) -> Tensor:
    """As theirs reads a grey file."""
    return (torch.as_tensor(x).float() / 255).expand(-1, 3, -1, -1)


def judged(data: list[SiteData], scores: Iterable[Tensor]) -> Judged:
    plain, balanced = [], []
    for s, z in zip(data, scores, strict=True):
        y = torch.tensor(s.test_y).long()
        right = (z.argmax(1) == y).double()
        plain.append(float(right.mean()))
        balanced.append(statistics.fmean(float(right[y == k].mean()) for k in (0, 1)))
    return statistics.fmean(plain), statistics.fmean(balanced)


def theirs(checkout: Path, kind: str, seed: int, rate: float, batch: int) -> list[Judged]:
    data = xrays(seed)
    for i, s in enumerate(data):
        for part, x, y in (
            ("train", s.train_x, s.train_y),
            ("push", s.train_x, s.train_y),
            ("test", s.test_x, s.test_y),
        ):
            PICTURES[f"client_{i}/{part}"] = picture(x), torch.tensor(y).long()
    torch.manual_seed(seed)
    backbone = prototypes((3, 28, 28), 2).make().features
    run = partial(program, checkout, seed=seed, backbone=backbone, rate=rate, batch=batch)
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder), contextlib.redirect_stdout(io.StringIO()):
        if kind == "local":
            said = f"-c xrays -e {WARM + TURNS * JOINT} -t"
            models = [run("run_CheXpert_LM.py", f"{said} {i}")["ppnet"] for i in range(len(data))]
        else:
            more = " -agc" if kind == "all shared" else ""
            models = list(run("run_CheXpert_fed.py", f"-c xrays -nr {TURNS + 1}{more}")["model_dict"].values())
    with torch.no_grad():
        return [judged(data, (m((picture(s.test_x) - MEAN) / SPREAD)[0] for m, s in zip(models, data, strict=True)))]


def ours(_: Path, kind: str, seed: int, like_theirs: int = 0) -> list[Judged]:
    """Before and after the push. `like_theirs`: with batches of so many; else also with a last layer of LONG steps."""
    data, given = xrays(seed), {"share": KINDS[kind], "alone_too": False, "travel": False}
    if like_theirs:  # theirs averages after 5 epochs, then after 10 each; with us all rounds are as long
        method = InDISCO(**given, warm=1)
        named = [(s.name, (picture(s.train_x) - MEAN) / SPREAD, torch.tensor(s.train_y).long()) for s in data]
        sites = gather_sites([(n, x, one_hot(y, 2).float(), torch.ones(len(x), 1)) for n, x, y in named])
        net = prototypes((3, 28, 28), 2, latent=128)
        task = Task(net, net.init(torch.Generator().manual_seed(seed)))
        training = Training(
            TURNS * JOINT // WARM, WARM, like_theirs, decays=0, mean=True, memory="kept", weight_decay=1e-3
        )
    else:
        study = STUDY.with_changes(training={"rounds": TURNS * JOINT})
        method = InDISCO(**given, warm=WARM)
        task, sites = build_task(study, method, seed), training_rows(data, study, method, "cpu")
        training = training_of(study)
    engine = Engine(task, method, sites, training, seed)
    *_, last = (m for m in engine.run() if m.stage < 3)
    before = {**last.state.own, **last.state.shared}
    after = {**before, **last.state.ending}
    models = [before, after]
    if not like_theirs:
        rows = Rows(engine.counts, None, lambda: sites.blocks(range(len(data))))
        models.append(after | {ProtoNet.HEAD: sparse_last(net_of(task), after, rows, method.l1, LONG)})

    def scores(params: Params, s: SiteData) -> Tensor:
        x = (picture(s.test_x) - MEAN) / SPREAD if like_theirs else picture(s.test_x)[:, :1]
        i = sites.names.index(s.name)
        return task.output({k: v[i : i + 1] for k, v in params.items()}, x[None])[0]

    return [judged(data, (scores(p, s) for s in data)) for p in models]


WHO: dict[str, Callable[[Path, str, int], list[Judged]]] = {
    "MyTH": partial(theirs, rate=1e-4, batch=80),
    "MyTH, convolutions at 3e-3": partial(theirs, rate=3e-3, batch=80),
    "MyTH, so and batches of 32": partial(theirs, rate=3e-3, batch=32),
    "ours, set like it": partial(ours, like_theirs=80),
    "ours, so and batches of 32": partial(ours, like_theirs=32),
    "ours, as shipped": ours,
}


def one(checkout: Path, job: Job) -> tuple[Job, list[Judged]]:
    found_at(checkout)
    torch.set_num_threads(1)
    return job, WHO[job[0]](checkout, *job[1:])


def all_jobs(checkout: Path, cache: Path | None, processes: int) -> dict[Job, list[Judged]]:
    """Each finished one is a line of `cache`: what was stopped goes on with what is missing."""
    lines = cache.read_text(encoding="utf-8").splitlines() if cache and cache.exists() else []
    done: dict[Job, list[Judged]] = {tuple(job): told for job, told in map(json.loads, lines)}
    missing = [job for job in product(WHO, KINDS, SEEDS) if job not in done]
    with ProcessPoolExecutor(processes, mp.get_context("spawn")) as pool:
        for future in as_completed([pool.submit(one, checkout, job) for job in missing]):
            job, told = future.result()
            done[job] = told
            if cache:
                with cache.open("a", encoding="utf-8") as file:
                    file.write(json.dumps([job, told]) + "\n")
    return done


PAGE = """\
## How well both learn

In float, {seeds} seeds, each with another split and start: accuracy on the hold-out pictures of a site, the mean over
the four sites, in percent, ± standard deviation over seeds; in brackets balanced accuracy. {total} epochs each.

{table}

How it was run, and what differs:

- MyTH: `run_CheXpert_fed.py -nr {nr}` (with `-agc` where all is shared), that is {warm} epochs of warm-up, averaged,
  and {turns} rounds of {joint}; and `run_CheXpert_LM.py -e {total}` at each site. Its files run as they are but for
  the seed in their text. torchvision, cv2, matplotlib and torcheval are stand-ins: folders hold our pictures, which
  stay at 28 pixels, have three channels and are normalised as it does; nothing is drawn. Data loaders start no
  processes.
- So few epochs were chosen to save time, after one seed had been run with a round more, in which MyTH with all shared
  did clearly better than with these: its figures here are not the best it can do.
- Its weights of ImageNet cannot be had here. The backbone is drawn by lot, one for all sites of a run. Its rate of
  1e-4 is made for pretrained convolutions: hence the second row, where it is 3e-3, that of the other layers. Its
  batches of 80 are made for more pictures: hence the third; at the smallest site 80 is one step an epoch.
  All rows with batches of 80, ours too, are short of steps: compare them with each other, not with those of 32.
- It saves each model that is above some accuracy on the test pictures, for a person to choose; here the last is judged.
  Where prototypes are shared that is one after push and last layer, else one before.
- Ours, set like it: its input, batches of 80, 128 latent dimensions, loss by mean, weight decay 1e-3 (of all weights),
  Adam's memory kept, rows unweighted, convolutions at 3e-3, start by our lot. Rounds of {warm} epochs, one of warm-up
  and {often} after it, so that it averages twice as often. The last layer moves in joint rounds.
- Ours, as shipped: the study of `vitrail demo prototypes` without the mark, {total} rounds of one epoch, {warm} of
  them warm-up."""


def page(done: dict[Job, list[Judged]]) -> str:
    lines = [f"| program | model | {' | '.join(KINDS)} |", "| --- | --- |" + " ---: |" * len(KINDS)]
    for who in WHO:
        ours = ("before push", "after push", f"after push, last layer by {LONG} steps")
        many = len(done[who, "local", SEEDS[0]])
        for at, stage in enumerate(ours[:many] if many > 1 else ("as it ends",)):
            cells = [_cell([done[who, kind, seed][at] for seed in SEEDS]) for kind in KINDS]
            lines.append(f"| {who} | {stage} | {' | '.join(cells)} |")
    return PAGE.format(
        seeds=len(SEEDS), total=WARM + TURNS * JOINT, table="\n".join(lines), nr=TURNS + 1, warm=WARM, joint=JOINT,
        turns=TURNS, often=TURNS * JOINT // WARM,
    )  # fmt: skip


def _cell(each: list[Judged]) -> str:
    accuracy, balanced = ([100 * v for v in values] for values in zip(*each, strict=True))
    return f"{statistics.fmean(accuracy):.1f} ± {statistics.stdev(accuracy):.1f} ({statistics.fmean(balanced):.1f})"
