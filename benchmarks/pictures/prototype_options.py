"""inDISCO's options on features of a frozen EfficientNet-Lite0: a part of one's own prototypes, cosine similarity,
undersampling, and prototypes shown under a privacy budget.

    VITRAIL_DATA=... python benchmarks/pictures/prototype_options.py prepare scratch/maps.npz
    python benchmarks/pictures/prototype_options.py run scratch/maps.npz [--device cuda] [--budget 1000] [--only xray]
    python benchmarks/pictures/prototype_options_report.py            # the tables from what is in --cache

Birds: the first CLASSES classes of CUB-200-2011 at 224 x 224, 7 x 7 cells. X-rays: PneumoniaMNIST, 28 pixels brought to
128, 4 x 4 cells; "rare" keeps a ninth as many healthy as sick in training. 4 sites that hold every class. A finished
job is a line of a file in --cache. `run` needs torch and numpy; `prepare` Pillow.
"""

from __future__ import annotations

import argparse
import dataclasses
import io
import os
import sys
import tempfile
import time
import zipfile
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))  # a GPU machine may have torch but not us
sys.path.insert(0, str(Path(__file__).parent))
sys.path.append(str(Path(__file__).parents[1] / "support"))

import job_lines
from biased_pictures import dealt, weights
from job_lines import arguments, wanted

from vitrail.core.exchange import Release, Rows
from vitrail.core.facts import OWN, SHARED
from vitrail.core.random import normals
from vitrail.core.task import Task
from vitrail.core.tensors import Params
from vitrail.engine.batches import Sites, gather_sites, undersampled
from vitrail.engine.local import Engine
from vitrail.engine.rounds import Training
from vitrail.methods.blocks.prototypes import sparse_last
from vitrail.methods.indisco import InDISCO
from vitrail.nets.prototype_network import MIDDLE, ProtoNet, prototypes
from vitrail.privacy.release import released

RESULTS = Path(__file__).parent / "results" / "prototype_options"
CLASSES, SITES, SIDES, SEEDS = 10, 4, {"birds": 224, "xray": 128}, (1, 2, 3)
ROUNDS, EPOCHS, BATCH, WARM, DECAY, DECAYS = 4, 5, 30, 1, 0.2, 2
XRAY_TRAIN, XRAY_TEST, RARE = 200, 600, 9  # pictures of a site, of all; of the sick for one of the healthy
BUDGETS = (8.0, 64.0, 4096.0, 65536.0)
CLIP, DELTA, DRAWS = 2.0, 1e-5, 1
COUNTS = (1, 10)  # prototypes of a class that are shown


class Job(NamedTuple):
    seed: int
    data: str  # birds, xray, xray rare
    share: str
    option: str  # "", distance, half, cosine, cosine strong, inverse, undersample


def jobs() -> list[Job]:
    """The most telling first."""
    out = []
    for seed in SEEDS:
        out += [Job(seed, "xray", "no", "")]
        out += [Job(seed, "xray", "prototypes", o) for o in ("", "distance", "half", "inverse", "undersample")]
        out += [Job(seed, "birds", "no", "")]
        out += [Job(seed, "birds", "prototypes", o) for o in ("", "distance", "half", "cosine")]
        out += [Job(seed, "xray rare", "prototypes", o) for o in ("", "inverse", "undersample")]
        out += [Job(seed, "birds", "add-on", o) for o in ("", "cosine", "distance", "cosine strong")]
    for seed in SEEDS:
        out += [Job(seed, "xray", "add-on", o) for o in ("", "distance", "half")]
        out += [Job(seed, "xray rare", "no", o) for o in ("", "inverse", "undersample")]
        out += [Job(seed, "birds", "add-on", "half"), Job(seed, "birds", "no", "cosine")]
    return out


def prepare(path: Path) -> None:
    """Maps of all pictures at half precision, and the weights they were made with."""
    from PIL import Image

    held = Path(os.environ["VITRAIL_DATA"])
    arrays: dict[str, Any] = {"weights": weights(held / "efficientnet_lite0")}
    file = Path(tempfile.mkdtemp()) / "efficientnet.pth"
    file.write_bytes(arrays["weights"].tobytes())
    pictures, labels, test = [], [], []
    with zipfile.ZipFile(held / "cub200_first20" / "cub200_first20_224.zip") as z:
        for name in sorted(n for n in z.namelist() if n.endswith(".jpg")):
            part, kind = name.split("/")[-3:-1]
            label = int(kind.split(".")[0]) - 1
            if label < CLASSES:
                picture = Image.open(io.BytesIO(z.read(name))).convert("RGB").resize((224, 224))
                pictures.append(np.asarray(picture).transpose(2, 0, 1))
                labels.append(label)
                test.append(part == "test")
    arrays |= {"birds labels": np.array(labels), "birds test": np.array(test)}
    arrays["birds"] = maps("birds", np.stack(pictures), file)
    with np.load(held / "pneumoniamnist" / "pneumoniamnist.npz") as z:
        some = np.concatenate([z[f"{p}_images"] for p in ("train", "val", "test")])
        sick = np.concatenate([z[f"{p}_labels"][:, 0] for p in ("train", "val", "test")]).astype(np.int64)
    chosen = np.sort(np.random.default_rng(7).permutation(len(some))[: 2 * (SITES * XRAY_TRAIN + XRAY_TEST)])
    arrays |= {"xray labels": sick[chosen]}
    large = torch.nn.functional.interpolate(
        torch.from_numpy(some[chosen][:, None]).float(), size=(SIDES["xray"],) * 2, mode="bilinear"
    )
    arrays["xray"] = maps("xray", large.round().clamp(0, 255).byte().numpy(), file)
    np.savez(path, **arrays)


def maps(data: str, pictures: Any, file: Path) -> Any:
    began, out = time.time(), []
    net = made_net(data, 3 if data == "birds" else 1, 2, file)
    for few in np.array_split(pictures, max(1, len(pictures) // 64)):
        out.append(net.features_of(torch.from_numpy(np.ascontiguousarray(few))).half().numpy())
    print(f"{data}: {len(pictures)} pictures, {time.time() - began:.0f} s", flush=True)
    return np.concatenate(out)


def made_net(data: str, channels: int, classes: int, file: Path, measure: Any = "log") -> ProtoNet:
    side = SIDES[data]
    net = prototypes((channels, side, side), classes, weights=str(file), frozen=True, measure=measure)
    return dataclasses.replace(net, normalise="centred")


class Maps:
    """What a process holds."""

    capture = False

    def __init__(self, given: argparse.Namespace) -> None:
        with np.load(given.data) as z:
            self.held = {k: z[k] for k in z.files}
        self.device = given.device
        self.file = Path(tempfile.mkdtemp()) / "efficientnet.pth"
        self.file.write_bytes(self.held["weights"].tobytes())

    def cut(self, job: Job) -> tuple[list[Any], Any]:
        """Rows of each site, and those that all are judged by."""
        rng, data = np.random.default_rng([job.seed, 31]), job.data.split()[0]
        labels = self.held[f"{data} labels"]
        if data == "birds":
            test = self.held["birds test"]
            return dealt(labels, np.flatnonzero(~test), SITES, rng), np.flatnonzero(test)
        order = rng.permutation(len(labels))
        held, rest = order[:XRAY_TEST], order[XRAY_TEST:]
        healthy, sick = (rest[labels[rest] == k] for k in (0, 1))
        many = SITES * XRAY_TRAIN
        few = many // (1 + RARE) if job.data == "xray rare" else round(many * (labels == 0).mean())
        return dealt(labels, np.concatenate([healthy[:few], sick[: many - few]]), SITES, rng), held

    def sites(self, job: Job, parts: list[Any]) -> Sites:
        data, named = job.data.split()[0], []
        labels = torch.from_numpy(self.held[f"{data} labels"])
        classes = int(labels.max()) + 1
        for i, rows in enumerate(parts):
            y = torch.nn.functional.one_hot(labels[rows], classes).float()
            w = torch.ones(len(rows), 1)
            if job.option == "inverse":  # as `class_weights` of data/encoding.py
                inverse = 1 / y.sum(0)
                w = (y @ (inverse * classes / inverse.sum()))[:, None]
            x = torch.from_numpy(self.held[data][rows]).float()
            named.append((f"site {i}", x, y, w))
        gathered = gather_sites(named)
        return undersampled(gathered, job.seed) if job.option == "undersample" else gathered


def method_of(job: Job) -> InDISCO:
    personal = job.option if job.option in ("distance", "half") else "no"
    strong = {"clst": 2.0, "sep": 0.4, "lr": 1e-2} if job.option == "cosine strong" else {}
    return InDISCO(
        warm=WARM,
        share=job.share,
        alone_too=False,
        travel=False,
        personal=personal,
        **strong,  # type: ignore[arg-type]
    )


def carried_out(held: Maps, job: Job) -> dict[str, Any]:
    began, data = time.perf_counter(), job.data.split()[0]
    parts, test = held.cut(job)
    sites, labels = held.sites(job, parts).to(held.device), held.held[f"{data} labels"]
    classes = int(labels.max()) + 1
    measure = "cosine" if job.option.startswith("cosine") else "log"
    net = made_net(data, 3 if data == "birds" else 1, classes, held.file, measure)
    start = {k: v.to(held.device) for k, v in net.init(torch.Generator().manual_seed(job.seed)).items()}
    how = Training(ROUNDS, EPOCHS, BATCH, decay=DECAY, decays=DECAYS, mean=True)
    engine = Engine(Task(net, start), method_of(job), sites, how, job.seed, chunk=SITES)
    *_, last = engine.run()
    state = engine.settled(last)
    models = engine.method.models(engine.task, state)
    judge = partial(judged, engine.task, torch.from_numpy(held.held[data][test]).float(), labels[test])
    found: dict[str, Any] = {"after": judge(models[OWN])}
    if SHARED in models:
        found["before"] = judge(models[SHARED])
    if not job.option and job.share != "no" and job.data != "xray rare":
        found["released"] = under_budgets(engine, models[OWN], judge, job.seed)
    return found | {"seconds": round(time.perf_counter() - began, 1)}


def judged(task: Task, x: Tensor, y: Any, params: Params) -> dict[str, list[float]]:
    """[site] each."""
    out: dict[str, list[float]] = {"accuracy": [], "balanced": []}
    for i in range(len(next(iter(params.values())))):
        mine = {k: v[i : i + 1] for k, v in params.items()}
        said = task.output(mine, x.to(task.like.device)[None]).argmax(-1)[0].cpu().numpy()
        out["accuracy"].append(float((said == y).mean()))
        out["balanced"].append(float(np.mean([(said[y == k] == k).mean() for k in np.unique(y)])))
    return out


def under_budgets(engine: Engine, own: Params, judge: Any, seed: int) -> dict[str, float]:
    """Accuracy with prototypes as they would be shown, the last layer fitted anew at each site. `own`: a site's own
    prototypes; `mean`: the mean of what all sites show, so that somebody learns from it; `first`: those that training
    began with, which are drawn from the seed and tell nothing of any picture."""
    net, found = engine.task.net, dict[str, float]()
    assert isinstance(net, ProtoNet)
    rows = Rows(engine.counts, None, lambda: engine.sites.blocks(range(len(engine.names))))
    exact = own[net.NAME]

    def scored(prototypes: Tensor) -> float:
        made = own | {net.NAME: prototypes}
        fitted = made | {net.HEAD: sparse_last(net, made, rows, 1e-4, 100)}
        return float(np.mean(judge(fitted)["accuracy"]))

    found["first"] = scored(engine.task.start[net.NAME].expand_as(exact))
    for count in COUNTS:
        first = torch.arange(net.outputs * net.per_class) % net.per_class < count
        for epsilon in (*BUDGETS, None):
            values: dict[str, list[float]] = {"own": [], "mean": []}
            for draw in range(DRAWS if epsilon else 1):
                keys = torch.tensor([seed, draw, count, int(epsilon or 0)]).sum() * 7919 + torch.arange(len(exact))
                shown = exact[:, first] - MIDDLE
                if epsilon:
                    shown = released({"shown": shown}, Release(CLIP, epsilon, DELTA), partial(drawn, keys))["shown"]
                of = torch.arange(net.outputs).repeat_interleave(net.per_class)
                at = of * count + torch.arange(len(of)) % count  # where fewer are shown, each stands for several
                values["own"].append(scored(MIDDLE + shown[:, at]))
                values["mean"].append(scored((MIDDLE + shown.mean(0, keepdim=True)[:, at]).expand_as(exact)))
            for what, v in values.items():
                found[f"{what}, {count}, {epsilon:g}" if epsilon else f"{what}, {count}, exact"] = float(np.mean(v))
    return found


def drawn(keys: Tensor, rows: Tensor, clip: float, noise: float) -> Tensor:
    return rows + normals(keys, rows.shape[1]).to(rows) * (noise * clip)


def said(told: dict[str, Any]) -> str:
    return f"{100 * np.mean(told['after']['accuracy']):.1f}, balanced {100 * np.mean(told['after']['balanced']):.1f}"


def main() -> None:
    parser = arguments(__doc__, ["prepare", "run"], RESULTS)
    given = parser.parse_args()
    if given.verb == "prepare":
        prepare(given.data)
    else:
        job_lines.run(given, wanted(given, jobs(), given.cache), Maps, carried_out, said)


if __name__ == "__main__":
    main()
