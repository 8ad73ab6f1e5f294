"""inDISCO on birds: the paper's table, clean and with a mark on one class of one site.

    VITRAIL_DATA=... python benchmarks/pictures/indisco.py prepare scratch/biased.npz
    python benchmarks/pictures/indisco.py run scratch/biased.npz --device cuda --processes 3 --budget 500 --cache $OUT
    python benchmarks/pictures/indisco_report.py                 # the tables from what is in --cache

20 classes of CUB-200-2011, 4 sites that hold every class, 224 x 224 pixels, EfficientNet-Lite0 fine-tuned or frozen. A
finished job is a line of a file in --cache; what is known there or in benchmarks/pictures/results/indisco is not done again.
The jobs that tell most come first. `run` needs torch, numpy, and Pillow or torchvision. --tiny: 2 classes, few
pictures, 1 epoch, to see that everything works; `trial` times a round with all sites at once and one after the other.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))  # a GPU machine may have torch but not us
sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[1] / "support"))

import job_lines
from biased_pictures import SIDE, dealt, decoded, load, marked, prepare
from job_lines import arguments, wanted

from vitrail.core.facts import ALONE, OWN, SHARED
from vitrail.core.task import Task
from vitrail.core.tensors import Params
from vitrail.engine.batches import Sites, gather_sites
from vitrail.engine.local import Engine
from vitrail.engine.rounds import Snapshot, Training
from vitrail.methods.indisco import InDISCO, InDISCOCentral
from vitrail.nets.prototype_network import ProtoNet, Similarity, prototypes

RESULTS = Path(__file__).parent / "results" / "indisco"
SITES, SEEDS = 4, (1, 2, 3)
ROUNDS, EPOCHS, BATCH, WARM = (
    8,
    5,
    30,
    1,
)  # warm-up of 5 epochs, then 40, averaged every 5; the paper's are 30 or 60
DECAY, DECAYS = 0.2, 2  # of the rate, after half of the rounds
AUGMENT = ("flip", "affine", "skew")  # ProtoPNet's
WELL_TESTED = 24  # test pictures of the marked class, at least: six at each site
PER_CLASS = 10
SHARES = {"GMGP": "prototypes", "add-on": "add-on", "all": "all"}
OPTIONS = {  # fine-tuned on clean pictures: what is shared, and the option
    "GMGP cosine": ("prototypes", "cosine"),
    "all cosine": ("all", "cosine"),
    "GMGP distance": ("prototypes", "distance"),
    "GMGP half": ("prototypes", "half"),
    "all distance": ("all", "distance"),
}
BOTH = "LMLP, GMGP"  # one job: a site's own model is trained beside the shared one, on the same batches


class Job(NamedTuple):
    kind: str  # BOTH, add-on, all, CMCP, or one of OPTIONS
    mode: str  # tuned, frozen
    mark: str  # clean, emoji, line
    seed: int
    augment: str = "yes"


def jobs() -> list[Job]:
    """The most telling first."""
    kinds = (BOTH, "all", "add-on", "CMCP")
    out = []
    for seed in SEEDS:
        out += [Job(k, "tuned", "clean", seed) for k in kinds]
        out += [Job(k, "tuned", "emoji", seed) for k in kinds]
        out += [Job(k, "frozen", m, seed, "no") for m in ("clean", "emoji") for k in kinds if k != "all"]
        out += [Job(BOTH, "tuned", "clean", seed, "no")]
    out += [Job(k, "frozen", "line", seed, "no") for seed in SEEDS for k in kinds if k != "all"]
    out += [Job(k, "tuned", "line", seed) for seed in SEEDS for k in kinds]
    out += [Job(k, "tuned", "clean", seed, "no") for seed in SEEDS for k in kinds if k != BOTH]
    return out + [Job(k, "tuned", "clean", seed) for seed in SEEDS for k in OPTIONS]


class Sizes(NamedTuple):
    """Of a run; --tiny has its own."""

    classes: int = 20
    rounds: int = ROUNDS
    epochs: int = EPOCHS
    batch: int = BATCH
    most: int = 1000  # pictures of a class, of each part
    step: int = 1  # pixels from one that is taken to the next


TINY = Sizes(2, 2, 1, 4, 16, 4)


class Birds:
    """Pictures, frozen maps of them, and the networks: made once in a process."""

    def __init__(self, path: Path, device: str, sizes: Sizes, chunk: int = 0) -> None:
        self.pack, self.device, self.sizes, self.chunk = load(path), device, sizes, chunk
        self.capture = device == "cuda"
        labels, test = self.pack["cub labels"], self.pack["cub test"]
        parts = [np.flatnonzero((labels == k) & (test == t)) for k in range(sizes.classes) for t in (False, True)]
        rows = np.sort(np.concatenate([p[: sizes.most] for p in parts]))
        self.labels, self.test, self.pictures = labels[rows], test[rows], decoded(self.pack, rows)
        self.file = Path(tempfile.mkdtemp()) / "efficientnet.pth"
        self.file.write_bytes(self.pack["weights"].tobytes())

    @cache  # noqa: B019
    def net(self, frozen: bool, measure: Similarity = "log") -> ProtoNet:
        side, given = SIDE // self.sizes.step, {"weights": str(self.file), "frozen": frozen}
        made = prototypes((3, side, side), self.sizes.classes, per_class=PER_CLASS, measure=measure, **given)  # type: ignore[arg-type]
        return dataclasses.replace(made, normalise="centred")

    @cache  # noqa: B019
    def plain(self, frozen: bool) -> Tensor:
        """All pictures, as rows of that network."""
        return self.rows(self.pictures, frozen)

    def rows(self, pictures: Any, frozen: bool) -> Tensor:
        step = self.sizes.step
        x = torch.from_numpy(np.ascontiguousarray(pictures[..., ::step, ::step])).to(self.device)
        return self.net(True).features_of(x) if frozen else x


class World:
    """A federation: who holds which pictures, and which of them carry a mark."""

    def __init__(self, birds: Birds, job: Job) -> None:
        self.birds, self.frozen = birds, job.mode == "frozen"
        rng = np.random.default_rng([job.seed, 13])
        train, test = np.flatnonzero(~birds.test), np.flatnonzero(birds.test)
        self.train, self.held = (dealt(birds.labels, rows, SITES, rng) for rows in (train, test))
        enough = np.flatnonzero(np.bincount(birds.labels[test]) >= min(WELL_TESTED, birds.sizes.most // 2))
        self.test, self.label = test, int(rng.choice(enough))  # at the first site
        self.mark = "emoji" if job.mark == "clean" else job.mark
        at_site = np.concatenate([self.train[0], self.held[0]]) if job.mark != "clean" else np.array([], int)
        self.carry = {int(i) for i in at_site if birds.labels[i] == self.label}

    def marked(self, rows: Any) -> Tensor:
        pictures = marked(self.birds.pack, "cub", self.mark, self.birds.pictures[rows], rows)[0]
        return self.birds.rows(pictures, self.frozen)

    def sites(self, parts: list[Any]) -> Sites:
        named = []
        for i, rows in enumerate(parts):
            x = self.birds.plain(self.frozen)[torch.from_numpy(rows).to(self.birds.device)]
            with_mark = [at for at, row in enumerate(rows) if i == 0 and int(row) in self.carry]
            if with_mark:
                x[torch.tensor(with_mark, device=x.device)] = self.marked(rows[with_mark])
            hot = torch.nn.functional.one_hot(torch.from_numpy(self.birds.labels[rows]), self.birds.sizes.classes)
            named.append((f"site {i}", x, hot.float().to(x.device), torch.ones(len(rows), 1, device=x.device)))
        return gather_sites(named)


def method_of(job: Job) -> InDISCO:
    if job.kind == "CMCP":
        return InDISCOCentral(warm=WARM)
    if job.kind == BOTH:
        return InDISCO(warm=WARM, share="prototypes")
    share, option = OPTIONS.get(job.kind) or (SHARES[job.kind], "")
    personal = option if option in ("distance", "half") else "no"
    return InDISCO(warm=WARM, share=share, alone_too=False, travel=False, personal=personal)  # type: ignore[arg-type]


def engine_of(birds: Birds, world: World, job: Job, rounds: int) -> Engine:
    sites, held, method = world.sites(world.train), world.sites(world.held), method_of(job)
    if method.catalogue.pools_rows:
        sites, held = sites.pooled(sites.w), held.pooled(held.w)
    augment = AUGMENT if job.augment == "yes" else ()
    training = Training(
        rounds, birds.sizes.epochs, birds.sizes.batch, decay=DECAY, decays=DECAYS, mean=True, augment=augment
    )
    net = birds.net(world.frozen, "cosine" if job.kind.endswith("cosine") else "log")
    start = {k: v.to(birds.device) for k, v in net.init(torch.Generator().manual_seed(job.seed)).items()}
    return Engine(Task(net, start), method, sites, training, job.seed, chunk=birds.chunk or None, held=held)


def trained(engine: Engine, capture: bool, tell: Callable[[Snapshot], None] = lambda moment: None) -> Snapshot:
    """`capture`: joint rounds as a graph. The warm-up is held once, and capturing it would take as long as two more: a
    round of which it is said that nobody is absent is not captured."""
    nobody = torch.zeros(len(engine.names), dtype=torch.bool)
    engine.absent = lambda stage, round_: nobody
    torch.backends.cudnn.benchmark = True
    for last in engine.run():
        if capture:
            engine.absent = None
        if (last.stage, last.round) == (1, engine.training.rounds):  # what follows has many shapes, each met once
            torch.backends.cudnn.benchmark = False
        tell(last)
    return last


def carried_out(birds: Birds, job: Job) -> dict[str, Any]:
    """Train, push, and score each site's model on all test pictures, and on those of the marked class with and without
    the mark."""
    began = time.perf_counter()
    world = World(birds, job)
    engine = engine_of(birds, world, job, birds.sizes.rounds)
    last = trained(engine, birds.capture)
    took = time.perf_counter() - began
    task, method, state = engine.task, engine.method, engine.settled(last)
    order = [engine.names.index(name) for name in sorted(engine.names)]
    held = method.models(task, state)
    models = {"": (method.apart(state) if job.kind == "CMCP" else held[SHARED], held[OWN])}
    if ALONE in held:
        models = {"GMGP ": models[""], "LMLP ": (state.alone, held[ALONE])}
    judged = Judge(world, task, order)
    found: dict[str, Any] = {"label": world.label, "rounds": birds.sizes.rounds, "seconds": round(took, 2)}
    for kind, (before, after) in models.items():
        found |= {f"{kind}before": judged(before), f"{kind}after": judged(after)}
    facts = {k: f.value[order].tolist() for k, f in last.facts.items() if f.axes[:1] == ("site",) and k != "agreed"}
    if "travel" in last.facts:
        facts["travel"] = last.facts["travel"].value[order][:, order].tolist()
    found["facts"] = facts
    if birds.device == "cuda":
        found["peak GB"] = round(torch.cuda.max_memory_allocated() / 1e9, 1)
    return found


class Judge:
    def __init__(self, world: World, task: Task, order: list[int]) -> None:
        self.world, self.task, self.order, birds = world, task, order, world.birds
        labels = birds.labels[world.test]
        of_class, others = world.test[labels == world.label], world.test[labels != world.label][::5]
        self.y = torch.from_numpy(labels).to(birds.device)
        every = torch.from_numpy(world.test).to(birds.device)
        self.x = birds.plain(world.frozen)[every]
        self.of_class, self.others = world.marked(of_class), world.marked(others)

    def __call__(self, params: Params) -> dict[str, list[float]]:
        """[site] each. accuracy; of the marked class without and with the mark; `called`: of other classes' pictures
        with the mark, those that are called the marked class."""
        said, mine = self.said(params, self.x), self.y == self.world.label
        found = {
            "accuracy": said == self.y,
            "without": said[:, mine] == self.world.label,
            "with": self.said(params, self.of_class) == self.world.label,
            "called": self.said(params, self.others) == self.world.label,
        }
        return {k: v.float().mean(1)[self.order].tolist() for k, v in found.items()}

    def said(self, params: Params, x: Tensor) -> Tensor:
        sites = len(next(iter(params.values())))
        return self.task.output(params, x.expand(sites, *x.shape)).argmax(-1)


def made(given: argparse.Namespace) -> Birds:
    sizes = TINY if given.tiny else Sizes(rounds=given.rounds)
    return Birds(given.data, given.device, sizes, given.chunk)


def said(told: dict[str, Any]) -> str:
    return ", ".join(f"{k} {100 * np.mean(v['accuracy']):.1f}" for k, v in told.items() if k.endswith("after"))


def run(given: argparse.Namespace) -> None:
    missing = wanted(given, jobs(), *([] if given.tiny else [RESULTS]), given.cache)
    if given.tiny:  # of each kind and mode one
        missing = list({j[:2]: j for j in missing if j.mark == "emoji" or j.kind in OPTIONS}.values())
    job_lines.run(given, missing, made, carried_out, said)


def trial(given: argparse.Namespace) -> None:
    """One round of each stage, for all sites at once and one after the other; so that --chunk can be chosen."""
    birds, job = made(given), Job("all", "tuned", "clean", 1)
    for chunk in (SITES, 1):
        birds.chunk = chunk
        engine, began = engine_of(birds, World(birds, job), job, 2), [time.perf_counter()]
        engine.training = dataclasses.replace(engine.training, decays=0)  # the second joint round is only replayed

        def tell(moment: Snapshot, chunk: int = chunk, began: list[float] = began) -> None:
            if given.device == "cuda":
                torch.cuda.synchronize()
            began.append(time.perf_counter())
            print(f"--chunk {chunk}, stage {moment.stage}: {began[-1] - began[-2]:.1f} s", flush=True)

        trained(engine, birds.capture, tell)


def main() -> None:
    parser = arguments(__doc__, ["prepare", "run", "trial"], RESULTS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    given = parser.parse_args()
    if given.tiny and given.cache == RESULTS:
        given.cache = Path(tempfile.mkdtemp())
    {"prepare": lambda g: prepare(g.data), "run": run, "trial": trial}[given.verb](given)


if __name__ == "__main__":
    main()
