"""APPLE beside the authors' own program and beside PFLlib's, run as programs on the same rows, start and batches.

    python benchmarks/methods/rivals_apple.py --authors PATH --pfllib PATH      # about a minute on 2 cores

PATH: a checkout of github.com/ljaiverson/pFL-APPLE and of github.com/TsingZ0/PFLlib (Apache-2.0). Neither is part of
this repository. What they import and do not need here (PySyft, torchvision, plots) is replaced by nothing. Everything
is in double precision; batches are those that our engine draws.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import torch
from beside import SHOWN, States, batches, imported, moved, worst, written
from torch import Tensor, nn

import vitrail as vt
from vitrail.core.exchange import SiteContext
from vitrail.core.task import Batch, Task
from vitrail.core.tensors import dot, scaled, subtract, tree_map
from vitrail.engine.batches import gather_sites
from vitrail.engine.local import Engine
from vitrail.engine.rounds import Training
from vitrail.methods.apple import TURN, Work, mixture, project, random_order
from vitrail.testing.federation import LOSSES

ROUNDS = max(SHOWN)
LR, RATE, BATCH, EPOCHS, CLASSES = 0.01, 0.1, 4, 2, 3
OUT = Path(__file__).parent / "results" / "rivals_apple.md"
Row = tuple[str, Tensor, Tensor, Tensor]


def rows_of(sizes: tuple[int, ...], shape: tuple[int, ...]) -> list[Row]:
    out = []
    for i, n in enumerate(sizes):
        g = torch.Generator().manual_seed(i)
        x = torch.randn(n, *shape, generator=g).double()  # exact in single precision, in which PFLlib reads rows
        label = torch.randint(0, CLASSES, (n,), generator=g)
        out.append((f"site {i}", x, nn.functional.one_hot(label, CLASSES).double(), torch.ones(n, 1).double()))
    return out


class Federation:
    """One run of ours, and what others need to repeat it."""

    def __init__(self, method: vt.methods.APPLE, net: nn.Module, rows: list[Row], momentum: float) -> None:
        self.method, self.net, self.rows = method, copy.deepcopy(net), rows
        shape = tuple(rows[0][1].shape[1:])
        start = {k: v.detach().clone() for k, v in net.named_parameters()}
        task = Task(vt.nets.Module(copy.deepcopy(net), shape), start, LOSSES["classes"])
        training = Training(ROUNDS, EPOCHS, BATCH, LR, momentum, decays=0, mean=True)
        self.engine = Engine(task, method, gather_sites(rows), training, 7)
        self.names = self.engine.names

    def states(self) -> States:
        """Cores and mixtures after each round."""
        out = []
        place = random_order(self.engine.roster(self.engine.everyone, 0, 0, 0)).argsort()
        for moment in self.engine.run():
            if moment.stage == 0:
                p = self.method.begins(moment.coord) + moment.state.turn[TURN][:, place]
                cores = {k: v.clone() for k, v in moment.coord.cores.items()}
                out.append({f"core {k}": v for k, v in cores.items()} | {"p": p})
        return out


def stacked(models: list[nn.Module], p: Any) -> dict[str, Tensor]:
    every = [dict(m.named_parameters()) for m in models]
    cores = {f"core {k}": torch.stack([one[k].detach().clone() for one in every]) for k in every[0]}
    return cores | {"p": torch.tensor(p, dtype=torch.double)}


# the authors' program


def authors(folder: Path, schedule: str) -> tuple[States, States]:
    """Theirs and ours. Their network (two convolutions, two linear layers), their optimiser, their loss."""
    sizes, mu, fades = (12, 8, 10), 0.7, 0.5
    with imported(folder, "syft", "torchvision", "torchvision.datasets", "matplotlib", "matplotlib.pyplot"):
        program = importlib.import_module("train_APPLE")
        nets = importlib.import_module("utils.models")
        torch.manual_seed(1)
        net = nets.Net(1, CLASSES)
        method = vt.methods.APPLE(mu=2 * mu, rate=RATE, fades=int(fades * ROUNDS), schedule=schedule)  # type: ignore[arg-type]
        ours = Federation(method, net, rows_of(sizes, (1, 28, 28)), momentum=0.9)
        nn.Module.send, nn.Module.get = lambda self, *_: self, lambda self: self  # type: ignore[attr-defined]
        counts = list(ours.engine.sites.sizes)
        n, p = len(counts), importlib.import_module("utils.apple").init_pss(counts)
        servers = [copy.deepcopy(net) for _ in counts]
        clients = [nets.ClientNet(n, 1, CLASSES, p[i]) for i in range(n)]
        given = SimpleNamespace(lr_net=LR, lr_coef=RATE * LR, decay=1.0, num_local_epochs=1, log_step=10**9)
        given.mu, given.scheduler, given.num_rounds = mu, schedule, ROUNDS
        given.reg_last_round_over_total_round, given.limit_downloaded_models = fades, 10**4
        out = []
        for r in range(ROUNDS):
            loaders = [(None, taken) for taken in batches(ours.engine, r)]
            rest = (None, r, nn.CrossEntropyLoss(), torch.device("cpu"), None, loaders)
            servers, p, clients = program.train_one_round(given, servers, clients, p, counts, *rest)
            out.append(stacked(servers, p))
        del nn.Module.send, nn.Module.get
        torch.autograd.set_detect_anomaly(False)  # which their program turns on
    return out, ours.states()


# PFLlib's


@dataclass(frozen=True)
class AsPFLlib(vt.methods.APPLE):
    """What PFLlib takes for the gradient of p: the mean over the network's tensors of the mean over their entries,
    after the core's step; and the schedule of the round before."""

    def step(self, site: SiteContext, work: Work, batch: Batch) -> None:
        turn, down, moved = work.turn[TURN], work.down, subtract(work.core, work.received)
        p = down.begin + turn
        mine = (p * down.own).sum(1)
        mixed = tree_map(lambda w, m: w + mine.view(-1, *[1] * (m.dim() - 1)) * m, mixture(p, down.cores), moved)
        slope = site.task.grad(mixed, batch)
        site.optimizer.apply(work.core, work.memory, scaled(mine, slope))
        means = {k: v / (v[0].numel() * len(slope)) for k, v in slope.items()}
        toward = project(means, down.cores) + down.own * dot(subtract(work.core, work.received), means)[:, None]
        pull = self.mu * down.pull[:, None] * turn
        site.optimizer.at(site.optimizer.lr * self.rate).apply(work.turn, work.turn_memory, {TURN: toward + pull})

    def pulls(self, rounds: Tensor) -> Tensor:
        return super().pulls((rounds - 1).clamp(min=0))


class Small(nn.Module):
    """Given to both; PFLlib hands it rows in single precision."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(6, 5), nn.Tanh()), nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.head(self.body(x.double()))
        return z


def pfllib(folder: Path, repaired: bool, ours: Federation, mu: float) -> States:
    """PFLlib's server and clients; `repaired`: without two faults, see WORDS."""
    n = len(ours.names)
    with imported(folder / "system", "h5py", "matplotlib", "matplotlib.pyplot"):
        program = importlib.import_module("flcore.servers.serverapple")
        base = importlib.import_module("flcore.servers.serverbase")
        out: States = []
        now = {"round": -1}

        class Client(program.clientAPPLE):  # type: ignore[name-defined,misc]
            def load_train_data(self, batch_size: int | None = None) -> Any:
                return batches(ours.engine, now["round"])[self.id]

        class Repaired(Client):
            kept: nn.Module | None = None
            training = False

            def set_models(self, models: list[nn.Module]) -> None:
                self.model_cs = copy.deepcopy(models)

            def train(self, round_: int) -> None:
                self.training = True
                super().train(round_)
                self.training = False

            @property
            def model_c(self) -> nn.Module:
                if self.training:  # asked for once, when all steps are done
                    self.kept, self.training = copy.deepcopy(self.model_cs[self.id]), False
                assert self.kept is not None
                return self.kept

            @model_c.setter
            def model_c(self, model: nn.Module) -> None:
                self.kept = self.kept or model

        class Server(program.APPLE):  # type: ignore[name-defined,misc]
            def evaluate(self) -> None:
                """Called when cores have been sent and before anybody trains."""
                now["round"] += 1
                self.rs_test_acc.append(0.0)
                out.append(stacked([c.model_c for c in self.clients], [list(c.ps) for c in self.clients]))

            def save_results(self) -> None:
                """Nothing is kept."""

        sizes = {name: len(x) for name, x, *_ in ours.rows}
        base.read_client_data = lambda _, i, **__: [None] * sizes[ours.names[i]]
        program.clientAPPLE = Repaired if repaired else Client
        given = MagicMock(model=ours.net, num_clients=n, join_ratio=1.0, random_join_ratio=False, few_shot=0)
        given.configure_mock(device="cpu", local_learning_rate=LR / n, dr_learning_rate=RATE * LR, mu=mu, L=0.5)
        given.configure_mock(global_rounds=ROUNDS, local_epochs=1, batch_size=BATCH, eval_gap=1, dlg_eval=False)
        given.configure_mock(learning_rate_decay=False, learning_rate_decay_gamma=0.99, auto_break=False)
        given.configure_mock(train_slow_rate=0.0, send_slow_rate=0.0, num_new_clients=0)
        Server(given, 0).train()
    return out[1 : ROUNDS + 1]


WORDS = """
- The authors' program runs as it is, PySyft replaced by nothing. Settings, not code, make it the same: all cores start
  alike (its own main draws each anew); its penalty is mu |p - p0|^2, so that our mu is twice its own.
- PFLlib's program is another method in two places, which is why its numbers are far from ours and from the authors'.
  (1) What a client sends is its mixture of before the last step; the core that it trained is lost. (2) A core that a
  client has trained is seen by the clients that train after it in the same round, since all share one list and what is
  put back is the list's own object: the order of clients matters. "Repaired" takes out these two from outside (a client
  gets copies, and sends its trained core) and leaves all else as it is.
- Then it differs by convention: its rate for cores is lr times the number of clients (given lr/N here); p starts at 1/N
  and is pulled to n_i/n (sites of one size here, so that these are the same); the schedule is one round late; the
  gradient of p is no gradient but the mean over the network's tensors of the mean over their entries of g c_j, with the
  own core as it is after its step. The last three are a subclass in the benchmark (AsPFLlib); the rest is the method as
  it is shipped.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--authors", type=Path, required=True)
    parser.add_argument("--pfllib", type=Path, required=True)
    given = parser.parse_args()
    torch.set_default_dtype(torch.double)
    torch.set_num_threads(1)
    began = time.perf_counter()
    rows: list[list[str]] = []

    def tell(what: str, one: States, other: States) -> None:
        both = zip(worst(one, other, ["core"]), worst(one, other, ["p"]), strict=True)
        cells = [f"{core:.0e} / {p:.0e}" for core, p in both]
        rows.append([what, *cells, f"{moved(other):.0e}"])
        print(*rows[-1], sep=" | ", flush=True)

    for schedule in ("cosine", "exponential"):
        tell(f"authors' program as it is, {schedule}: the shipped method", *authors(given.authors, schedule))
    torch.manual_seed(2)
    net, same = Small(), {"weights": "uniform", "mu": 0.7, "fades": ROUNDS // 2, "schedule": "cosine", "rate": RATE}
    ours, plain = (
        Federation(kind(**same), net, rows_of((12,) * 4, (6,)), momentum=0.0)  # type: ignore[arg-type]
        for kind in (AsPFLlib, vt.methods.APPLE)
    )
    mine, shipped = ours.states(), plain.states()
    tell("PFLlib repaired: with its conventions", pfllib(given.pfllib, True, ours, 0.7), mine)
    tell("PFLlib repaired: the shipped method", pfllib(given.pfllib, True, ours, 0.7), shipped)
    tell("PFLlib as it is: with its conventions", pfllib(given.pfllib, False, ours, 0.7), mine)
    tell("PFLlib as it is: the shipped method", pfllib(given.pfllib, False, ours, 0.7), shipped)
    about = (
        "The largest difference of any number, in cores / in mixtures p, after so many rounds; and by how much any\n"
    )
    about += f"number moved. Double precision, {ROUNDS} rounds of {EPOCHS} epochs, batches of {BATCH}, "
    about += f"{time.perf_counter() - began:.0f} s."
    heads = ["", *(f"round {r}" for r in SHOWN), "moved"]
    written(OUT, "APPLE beside other programs", about, heads, rows, WORDS)


if __name__ == "__main__":
    main()
