"""Marks on one class of one site: does the rule find them, does it stay quiet without, does occlusion show them?

    VITRAIL_DATA=... python benchmarks/pictures/planted_bias.py prepare scratch/biased.npz
    python benchmarks/pictures/planted_bias.py run scratch/biased.npz [--only xray] [--device cuda --processes 4]
    python benchmarks/pictures/planted_bias_report.py            # the tables from what is in --cache

Federations of X-rays (28 px, 2 classes), CIFAR-10 (32 px, 10 classes), both with the small backbone trained there, and
birds (224 px, 20 classes, features of a frozen EfficientNet-Lite0), at 4 or 8 sites that hold every class, drawn at
random. In some, a share of one site's pictures of one class carries a mark, in training and in its hold-out pictures.
The method is inDISCO as the paper has it (prototypes and last layer shared), with a model trained alone beside it. A
finished federation is a line of a file in --cache; `run` needs torch and numpy (birds: Pillow or torchvision).
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))  # a GPU machine may have torch but not us
sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[1] / "support"))

import job_lines
from biased_pictures import MARKS, SHAPES, Pictures, dealt, decoded, load, marked, prepare
from indisco import trained
from job_lines import arguments, wanted

from vitrail.analysis.images.occlusion_map import OcclusionMap, hide
from vitrail.analysis.images.picture_evidence import box_of
from vitrail.core.facts import ALONE, OWN
from vitrail.core.task import Task
from vitrail.core.tensors import Params
from vitrail.engine.batches import Sites, gather_sites
from vitrail.engine.local import Engine
from vitrail.engine.rounds import Training
from vitrail.methods.indisco import InDISCO
from vitrail.nets.prototype_network import ProtoNet, prototypes

RESULTS = Path(__file__).parent / "results" / "planted_bias"
SHARES = (0.3, 0.6, 1.0)  # of the site's pictures of the class
# The rule was shaped on others: 200 to 206, 11 to 30 and 340 to 360.
SEEDS = {"xray": range(501, 511), "cifar": range(501, 511), "cub": range(521, 531)}
KIND = {"xray": 1, "cifar": 2, "cub": 3}  # in seeds


class Data(NamedTuple):
    classes: int
    train: int  # pictures of a class at a site
    held: int
    sites: tuple[int, ...]
    rounds: int
    epochs: int
    batch: int
    width: int = 16
    most: tuple[int, int] = (10**6, 10**6)  # of train and held, of a class at all sites together


DATA = {
    "xray": Data(2, 60, 40, (4, 8), 6, 4, 40, 8),
    "cifar": Data(10, 80, 20, (4, 8), 6, 3, 50, 8, (320, 80)),
    "cub": Data(20, 7, 6, (4,), 6, 5, 30),  # at 8 sites there would be 3 hold-out pictures of a class: too few
}


class Job(NamedTuple):
    data: str
    sites: int
    mark: str  # clean, or one of MARKS
    share: float
    seed: int


def jobs() -> list[Job]:
    """Of each seed a clean federation, and each mark at one share; by the third seed each mark had each share. Then the
    shares that are left."""
    first, rest = [], []
    places = [(data, sites) for data, about in DATA.items() for sites in about.sites]
    for i in range(10):
        for data, sites in places:
            seed = SEEDS[data][i]
            first.append(Job(data, sites, "clean", 0.0, seed))
            for m, mark in enumerate(MARKS):
                for s, share in enumerate(SHARES):
                    turn = (seed + m + s) % len(SHARES) == 0
                    (first if turn else rest).append(Job(data, sites, mark, share, seed))
    return first + rest


class Pack:
    """What a process holds: the file, and the networks."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.held, self.device, self.tiny, self.chunk = load(given.data), given.device, given.tiny, given.chunk
        self.capture = given.device == "cuda"
        self.nets: dict[str, ProtoNet] = {}
        self.birds: Pictures | None = None
        self.maps: dict[int, torch.Tensor] = {}  # of birds without a mark

    def net(self, data: str) -> ProtoNet:
        if data not in self.nets:
            about, weights = DATA[data], ""
            if data == "cub":
                file = Path(tempfile.mkdtemp()) / "efficientnet.pth"
                file.write_bytes(self.held["weights"].tobytes())
                weights = str(file)
            made = prototypes(SHAPES[data], about.classes, about.width, weights=weights, frozen=bool(weights))
            self.nets[data] = dataclasses.replace(made, normalise="centred")
        return self.nets[data]

    def pictures(self, data: str) -> Pictures:
        if data != "cub":
            return self.held[data]
        if self.birds is None:
            self.birds = decoded(self.held, np.arange(len(self.held["cub labels"])))
        return self.birds

    def rows(self, data: str, pictures: Pictures, numbers: NDArray[Any] | None = None) -> torch.Tensor:
        """Pictures as the network is trained on them; `numbers` of pictures without marks, whose maps are kept."""
        x = torch.from_numpy(np.ascontiguousarray(pictures)).to(self.device)
        if data != "cub":
            return x
        if numbers is None:
            return self.net(data).features_of(x)
        lack = [i for i, n in enumerate(numbers) if int(n) not in self.maps]
        if lack:
            new = self.net(data).features_of(x[torch.tensor(lack, device=x.device)])
            self.maps |= {int(numbers[i]): m for i, m in zip(lack, new, strict=True)}
        return torch.stack([self.maps[int(n)] for n in numbers])


class Part(NamedTuple):
    """One site's pictures, of one kind."""

    rows: NDArray[Any]  # among all
    pictures: Pictures
    masks: NDArray[np.bool_]  # [row, height, width]: where the mark is
    x: torch.Tensor

    @property
    def carries(self) -> NDArray[np.bool_]:
        return self.masks.any((1, 2))


class World:
    """A federation; site and label are those of the mark, or would be."""

    def __init__(self, pack: Pack, job: Job) -> None:
        self.pack, self.job, about = pack, job, DATA[job.data]
        self.labels = pack.held[f"{job.data} labels"]
        rng = np.random.default_rng([job.seed, job.sites, KIND[job.data]])
        self.site, self.label = int(rng.integers(job.sites)), int(rng.integers(about.classes))
        if job.data == "cub":  # as they were parted, and a class with enough test pictures
            test = pack.held["cub test"]
            enough = np.flatnonzero(np.bincount(self.labels[test])[: about.classes] >= about.held * job.sites)
            self.label = int(rng.choice(enough))
            known = self.labels < about.classes
            pools = [np.flatnonzero(known & ~test), np.flatnonzero(known & test)]
        else:
            pools = self._pools(about, rng)
        parts = [dealt(self.labels, rows, job.sites, rng) for rows in pools]
        self.train, self.held = ([self._part(i, rows, rng) for i, rows in enumerate(part)] for part in parts)
        of_class = np.concatenate([p.rows[self.labels[p.rows] == self.label] for p in self.held])
        self.plain = pack.pictures(job.data)[of_class]
        self.mark = job.mark if job.mark != "clean" else MARKS[job.seed % len(MARKS)]
        self.inked = marked(pack.held, job.data, self.mark, self.plain, of_class)[0]

    def _pools(self, about: Data, rng: np.random.Generator) -> list[NDArray[Any]]:
        few = 5 if self.pack.tiny else 1
        found: list[list[Any]] = [[], []]
        for k in range(about.classes):
            order = rng.permutation(np.flatnonzero(self.labels == k))
            wanted = [n // few * self.job.sites for n in (about.train, about.held)]
            ends = np.cumsum(np.minimum(wanted, about.most))
            found[0].append(order[: ends[0]])
            found[1].append(order[ends[0] : ends[1]])
        return [np.concatenate(f) for f in found]

    def _part(self, site: int, rows: NDArray[Any], rng: np.random.Generator) -> Part:
        data, pictures = self.job.data, self.pack.pictures(self.job.data)[rows]
        masks = np.zeros((len(rows), *SHAPES[data][1:]), bool)
        x = self.pack.rows(data, pictures, rows)
        at = np.flatnonzero(self.labels[rows] == self.label)
        at = np.sort(rng.permutation(at)[: round(self.job.share * len(at))])
        if site == self.site and self.job.mark != "clean" and len(at):
            pictures[at], masks[at] = marked(self.pack.held, data, self.job.mark, pictures[at], rows[at])
            x[torch.from_numpy(at).to(x.device)] = self.pack.rows(data, pictures[at])
        return Part(rows, pictures, masks, x)

    def sites(self, parts: list[Part]) -> Sites:
        classes, named = DATA[self.job.data].classes, []
        for i, part in enumerate(parts):
            hot = torch.nn.functional.one_hot(torch.from_numpy(self.labels[part.rows]), classes).float()
            named.append((f"site {i}", part.x, hot.to(part.x.device), torch.ones(len(hot), 1).to(part.x.device)))
        return gather_sites(named)


def carried_out(pack: Pack, job: Job) -> dict[str, Any]:
    """Train; what tells of a bias; how the marked class fares with and without the mark; where it is seen."""
    began = time.perf_counter()
    world, about, net = World(pack, job), DATA[job.data], pack.net(job.data)
    rounds, epochs = (2, 1) if pack.tiny else (about.rounds, about.epochs)
    training = Training(rounds, epochs, about.batch, decay=0.2, decays=2, mean=True)
    start = {k: v.to(pack.device) for k, v in net.init(torch.Generator().manual_seed(job.seed)).items()}
    sites, held = world.sites(world.train), world.sites(world.held)
    method = InDISCO(warm=1, share="prototypes")
    engine = Engine(Task(net, start), method, sites, training, job.seed, chunk=pack.chunk or None, held=held)
    last = trained(engine, pack.capture)
    state, task = engine.settled(last), engine.task
    order = [engine.names.index(name) for name in sorted(engine.names)]
    facts = {k: f.value[order].tolist() for k, f in last.facts.items() if f.axes[:1] == ("site",) and k != "agreed"}
    facts |= {k: last.facts[k].value[order][:, order].tolist() for k in ("travel", "margin")}
    at = order[world.site]
    models = {name: {k: v[at : at + 1] for k, v in p.items()} for name, p in method.models(task, state).items()}
    found: dict[str, Any] = {"facts": facts, "site": world.site, "label": world.label, "of": world.mark}
    for name in (ALONE, OWN):
        whole = torch.cat([p.x for p in world.held])
        labels = torch.from_numpy(np.concatenate([world.labels[p.rows] for p in world.held])).to(whole.device)
        found[name] = {
            "accuracy": share(task, models[name], whole, labels),
            "without": share(task, models[name], pack.rows(job.data, world.plain), world.label),
            "with": share(task, models[name], pack.rows(job.data, world.inked), world.label),
        }
    if job.mark != "clean":
        patches = method.patches(state)[ALONE][at].cpu().numpy()
        found |= seen(task, net, models[ALONE], world, patches)
    elif job.data == "xray":
        whole = method.models(task, state)[ALONE]
        each = [{k: v[i : i + 1] for k, v in whole.items()} for i in order]
        found["gone"] = [
            hidden(task, each[i], world, i, label).share for i in range(job.sites) for label in range(about.classes)
        ]
    return found | {"seconds": round(time.perf_counter() - began, 2)}


def share(task: Task, params: Params, x: torch.Tensor, label: Any) -> float:
    return float((task.output(params, x[None])[0].argmax(-1) == label).float().mean())


def hidden(task: Task, params: Params, world: World, site: int, label: int) -> OcclusionMap:
    """What changes the answer about the site's training pictures of a class."""
    part, device = world.train[site], next(iter(params.values())).device

    def answer(pictures: Pictures) -> NDArray[np.float64]:
        x = torch.from_numpy(np.ascontiguousarray(pictures)).to(device)
        return np.asarray(task.output(params, x[None])[0].double().cpu().numpy())

    return hide(answer, part.pictures[world.labels[part.rows] == label], label)


def seen(task: Task, net: ProtoNet, params: Params, world: World, patches: NDArray[Any]) -> dict[str, Any]:
    """Whether the strongest window covers the mark, as often as any window would by chance, and how many boxes of the
    class's prototypes lie on it."""
    part, told = world.train[world.site], hidden(task, params, world, world.site, world.label)
    masks = part.masks[part.carries]
    own = range(world.label * net.per_class, (world.label + 1) * net.per_class)
    near = {k: v.cpu() for k, v in params.items()}
    boxes = []
    for p in own:
        row = int(patches[p][0])
        if row >= 0:
            y, x, bottom, right = box_of(net, near, part.pictures[row], p)
            inside = part.masks[row, y:bottom, x:right].sum()
            area, mark = (bottom - y) * (right - x), part.masks[row].sum()
            boxes.append(bool(mark) and bool(inside >= min(area, mark) / 2))
    by_mean = told._replace(much=told.fall)
    windows = [(y, x, y + told.window, x + told.window) for y in told.top for x in told.left]
    return {
        "covers": covers(told.strongest, masks, world.mark),
        "covers by mean": covers(by_mean.strongest, masks, world.mark),
        "by chance": float(np.mean([covers(w, masks, world.mark) for w in windows])),
        "boxes": float(np.mean(boxes)) if boxes else 0.0,
        "gone": told.share,
        "window": list(told.strongest),
    }


def covers(window: tuple[int, int, int, int], masks: NDArray[np.bool_], mark: str) -> bool:
    """At least half of the mark; of a line, which runs elsewhere in every picture: it passes through half of them."""
    y, x, bottom, right = window
    inside = masks[:, y:bottom, x:right].sum((1, 2))
    held = inside > 0 if mark == "line" else inside >= masks.sum((1, 2)) / 2
    return bool(held.mean() >= 0.5)


def said(told: dict[str, Any]) -> str:
    alone = told[ALONE]
    shown = f", covers {told['covers']} ({told['by chance']:.2f})" if "covers" in told else ""
    return f"{alone['accuracy']:.2f}, without {alone['without']:.2f}, with {alone['with']:.2f}{shown}"


def run(given: argparse.Namespace) -> None:
    missing = wanted(given, jobs(), *([] if given.tiny else [RESULTS]), given.cache)
    missing = missing[:6] if given.tiny else missing
    job_lines.run(given, missing, Pack, carried_out, said)


def main() -> None:
    given = arguments(__doc__, ["prepare", "run"], RESULTS).parse_args()
    if given.tiny and given.cache == RESULTS:
        given.cache = Path(tempfile.mkdtemp())
    {"prepare": lambda g: prepare(g.data), "run": run}[given.verb](given)


if __name__ == "__main__":
    main()
