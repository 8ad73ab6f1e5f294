"""Do MOON and Fed-RoD give the numbers of PFLlib's own code?

    git clone https://github.com/TsingZ0/PFLlib           # Apache-2.0; only its folder system/ is used
    python benchmarks/methods/same_as_pfllib.py PFLlib --out benchmarks/methods/results/same_as_pfllib.md

PFLlib's servers and clients run as they are, by their own train(). Given to them are our rows, start and batches, in
double precision; taken from them, before each round, are the shared model and what each client keeps. Nothing of theirs
is in this repository. Two federations: heart disease with an MLP, and pictures drawn from a seed with a CNN; sites
differ in size and in their shares of classes. The exit code is 1 where a difference is above 1e-6.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import importlib
import io
import subprocess
import sys
import time
import types
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import vitrail as vt
from vitrail.core.task import Task
from vitrail.core.tensors import Params
from vitrail.data.encoding import prepare
from vitrail.engine.batches import Sites, gather_sites
from vitrail.engine.local import Engine
from vitrail.engine.rounds import Training
from vitrail.nets import MLP, cnn
from vitrail.runs.setup import training_rows

AFTER, ENOUGH, EPOCHS, SEED = (1, 5, 20), 1e-6, 2, 8273
MU, TEMPERATURE = 1.0, 0.5
CONVENTIONS = """\
- Ours is set to what theirs does: the average is by rows (`weights = "rows"`), the loss of a batch is the mean over its
  rows, steps are plain SGD (no momentum), the rate stays, rows have no class weights.
- Theirs draws its batches from torch's global generator and drops an incomplete last one; `load_train_data` is replaced
  by one that gives our batches, the incomplete one too. Rows and models are double, where it reads files as float32.
- Fed-RoD's own head begins as a copy of the shared one there, and at zero with us: here ours is given their start.
- Fed-RoD counts rows there and adds up their weights with us: the same where all weigh 1. It has no gamma (1).
- MOON's mu and temperature are given ({mu}, {t}: our defaults); theirs are 0 and 1. Both take the common start for the
  model before the first round, and the input of the last layer for the features, without the paper's projection.
- Its evaluation is replaced by a look at the models; results are not written; h5py and matplotlib, which it imports for
  that, are empty modules where they are not installed."""


class World(NamedTuple):
    name: str
    task: Task
    sites: Sites
    twin: Callable[[], nn.Module]  # PFLlib's model with the same start: a base and a head
    ours: Callable[[nn.Module], Params]  # parameters of such a model under our names
    lr: float


def heart() -> World:
    sites = vt.datasets.heart_disease()
    study = vt.Study.infer(sites, target="disease", training={"class_weights": "none"})
    rows = training_rows(prepare(sites, study, SEED), study, vt.methods.FedAvg(), "cpu")
    rows = Sites(rows.names, rows.x.double(), rows.y.double(), rows.w.double(), rows.sizes)
    net = MLP(rows.x.shape[1], 2, (16, 8))
    start = {k: v.double() for k, v in net.init(torch.Generator().manual_seed(SEED)).items()}
    widths = (*net.widths, 2)

    def twin() -> nn.Module:
        base = nn.Sequential(nn.Linear(*widths[:2]), nn.Tanh(), nn.Linear(*widths[1:3]), nn.Tanh())
        model = split(base, nn.Linear(*widths[2:])).double()
        return loaded(model, [start[k].T if k.endswith("weight") else start[k] for k in start])

    def ours(model: nn.Module) -> Params:
        told = [p.detach() for p in model.parameters()]
        return {k: v.T if k.endswith("weight") else v for k, v in zip(start, told, strict=True)}

    return World("heart disease, MLP", Task(net, start), rows, twin, ours, 0.1)


def pictures() -> World:
    g, shape, out = torch.Generator().manual_seed(SEED), (1, 16, 16), []
    marks = torch.randn(3, *shape, generator=g, dtype=torch.double)
    for i, counts in enumerate([(20, 9, 4), (3, 25, 2), (0, 6, 15), (5, 5, 1)]):
        label = torch.arange(3).repeat_interleave(torch.tensor(counts))
        x = torch.randn(len(label), *shape, generator=g, dtype=torch.double) + 0.5 * marks[label]
        out.append((f"site {i}", x, nn.functional.one_hot(label, 3).double(), torch.ones(len(x), 1).double()))
    net = cnn(shape, 3, width=4, units=(16, 8))
    start = {k: v.double() for k, v in net.init(torch.Generator().manual_seed(SEED)).items()}

    def twin() -> nn.Module:
        front, rear, head = net.make().double()
        return loaded(split(nn.Sequential(front, rear), head), list(start.values()))

    def ours(model: nn.Module) -> Params:
        return dict(zip(start, (p.detach() for p in model.parameters()), strict=True))

    return World("pictures, CNN", Task(net, start), gather_sites(out), twin, ours, 0.05)


def split(base: nn.Module, head: nn.Module) -> nn.Module:
    both: nn.Module = importlib.import_module("flcore.trainmodel.models").BaseHeadSplit(base, head)
    return both


def loaded(model: nn.Module, tensors: list[Tensor]) -> nn.Module:
    for p, t in zip(model.parameters(), tensors, strict=True):
        p.data.copy_(t)
    return model


@dataclass
class Feed:
    """Our batches, as PFLlib's data loaders; before the first round all rows at once, which it counts."""

    engine: Engine
    round: int = -1
    drawn: dict[int, Any] = field(default_factory=dict)

    def loader(self, client: Any) -> _Epochs:
        sites, i = self.engine.sites, client.id
        if self.round < 0:
            return _Epochs([[torch.arange(sites.sizes[i]) + sites.starts[i]]], sites)
        if self.round not in self.drawn:
            self.engine.sampler.set(0, self.round)
            self.drawn[self.round] = self.engine.sampler.draw()
        draw, many = self.drawn[self.round], self.engine.sampler.per_epoch[i]
        steps = [rows[real[:, 0] > 0] for rows, real in zip(draw.rows[:, i], draw.real[:, i], strict=True)]
        return _Epochs([steps[e * many : (e + 1) * many] for e in range(EPOCHS)], sites)


class _Epochs:
    """Every pass over it is the next epoch."""

    def __init__(self, epochs: list[list[Tensor]], sites: Sites) -> None:
        self.epochs, self.sites = iter(epochs), sites

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        for at in next(self.epochs):
            yield self.sites.x[at], self.sites.y[at].argmax(1)


def theirs(w: World, case: Case, feed: Feed) -> dict[int, Any]:
    """Round -> the shared model and what each client keeps, by its own train()."""
    base, clients = (importlib.import_module(f"flcore.{m}") for m in ("servers.serverbase", "clients.clientbase"))
    kind = getattr(importlib.import_module(f"flcore.servers.{case.module}"), case.server)
    sites, seen = w.sites, dict[int, Any]()
    base.read_client_data = lambda dataset, i, **_: range(sites.sizes[i])  # only counted
    clients.Client.load_train_data = lambda client, batch_size=None: feed.loader(client)

    class Watched(kind):
        def evaluate(self, acc: Any = None, loss: Any = None) -> None:
            feed.round += 1
            self.rs_test_acc.append(0.0)
            if feed.round in AFTER:
                seen[feed.round] = copy.deepcopy((self.global_model, [getattr(c, case.theirs) for c in self.clients]))

        def save_results(self) -> None: ...
        def save_global_model(self) -> None: ...

    args = {
        "model": w.twin(), "num_classes": w.task.net.outputs, "algorithm": case.server, "device": "cpu", "dataset": "",
        "global_rounds": max(AFTER), "local_epochs": EPOCHS, "batch_size": feed.engine.training.batch,
        "local_learning_rate": w.lr, "num_clients": len(sites.names), "join_ratio": 1.0, "mu": MU, "tau": TEMPERATURE,
        "learning_rate_decay": False, "learning_rate_decay_gamma": 1.0, "time_threthold": 1e9, "eval_gap": 1,
    }  # fmt: skip
    off = ("random_join_ratio", "few_shot", "time_select", "goal", "save_folder_name", "top_cnt", "auto_break")
    off += ("client_drop_rate", "train_slow_rate", "send_slow_rate", "dlg_eval", "dlg_gap", "batch_num_per_client")
    off += ("num_new_clients", "fine_tuning_epoch_new")
    with contextlib.redirect_stdout(io.StringIO()):
        Watched(types.SimpleNamespace(**args, **dict.fromkeys(off, 0)), 0).train()
    return seen


def engine_of(w: World, method: Any) -> Engine:
    training = Training(max(AFTER), EPOCHS, 16, w.lr, 0.0, decays=0, mean=True)
    return Engine(w.task, method, w.sites, training, SEED)


class Case(NamedTuple):
    """A method of ours and PFLlib's of the same name."""

    name: str
    given: dict[str, float]
    server: str
    module: str
    ours: str  # what a site keeps: field of State
    theirs: str  # and attribute of a client


CASES = (
    Case("moon", {"mu": MU, "temperature": TEMPERATURE}, "MOON", "servermoon", "before", "old_model"),
    Case("fed_rod", {}, "FedROD", "serverrod", "head", "head"),
)


def compared(w: World, case: Case) -> Iterator[tuple[float, str]]:
    """The largest difference after so many rounds, and a line of the table."""
    engine = engine_of(w, vt.methods.build(case.name, {"weights": "rows", **case.given}))
    told = theirs(w, case, Feed(engine_of(w, engine.method)))
    plain = {m.round: m.coord.params for m in engine_of(w, vt.methods.build("fedavg", {"weights": "rows"})).run()}
    start = engine.start()
    if case.ours == "head":
        for name, mine in start.state.head.items():
            mine.copy_(head_of(w.twin().head)[name])
    for m in engine.run(start):
        if m.round in AFTER:
            model, kept = told[m.round]
            shared, own = apart(m.coord.params, w.ours(model)), 0.0
            for i, theirs_ in enumerate(kept):
                mine = {k: v[i] for k, v in getattr(m.state, case.ours).items()}
                own = max(own, apart(mine, (head_of if case.ours == "head" else w.ours)(theirs_)))
            cells = w.name, vt.methods.TABLE[case.name].catalogue.title, m.round, f"{shared:.1e}", f"{own:.1e}"
            far = apart(m.coord.params, plain[m.round])
            yield max(shared, own), f"| {' | '.join(map(str, cells))} | {far:.1e} |"


def head_of(layer: Any) -> Params:
    return {"weight": layer.weight.detach().T, "bias": layer.bias.detach()}


def apart(one: Params, other: Params) -> float:
    assert one.keys() == other.keys()
    return max(float((v - other[k]).abs().max()) for k, v in one.items())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("pfllib", type=Path, help="a checkout of TsingZ0/PFLlib")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    sys.path.insert(0, str(args.pfllib / "system"))
    for absent in ("h5py", "matplotlib", "matplotlib.pyplot"):
        try:
            importlib.import_module(absent)
        except ImportError:
            sys.modules[absent] = types.ModuleType(absent)
    commit = subprocess.run(["git", "-C", args.pfllib, "rev-parse", "HEAD"], capture_output=True, text=True).stdout
    found = [line for w in (heart(), pictures()) for case in CASES for line in compared(w, case)]
    head = ["network", "method", "rounds", "shared model", "what sites keep", "FedAvg's shared model is off by"]
    lines = [
        f"# The same numbers as PFLlib, {time.strftime('%Y-%m-%d')}",
        "",
        f"`python benchmarks/methods/same_as_pfllib.py`: PFLlib (commit {commit.strip() or 'unknown'}) run as a program beside "
        f"ours, same rows, start and batches, double precision, torch {torch.__version__}, {EPOCHS} epochs a round. "
        "Largest difference of any parameter. What sites keep: MOON's model of the last round, Fed-RoD's own head. "
        "The last column says how large a difference one method makes.",
        "",
        f"| {' | '.join(head)} |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
        *(line for _, line in found),
        "",
        "Differences of convention:",
        "",
        CONVENTIONS.format(mu=MU, t=TEMPERATURE),
    ]
    print("\n".join(lines))
    if args.out:
        args.out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    sys.exit(int(not max(size for size, _ in found) <= ENOUGH))


if __name__ == "__main__":
    main()
