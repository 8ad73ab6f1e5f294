"""CFL beside FL-bench's own code, run as a program on the same rows, start and batches.

    python benchmarks/methods/rivals_cfl.py --flbench PATH      # a minute on 2 cores

PATH: a checkout of github.com/KarhouTam/FL-bench (GPL-3.0), which is not part of this repository. Its server, trainer
and client run as they are; what sets them up from files (hydra, data sets, ray) is replaced by nothing, and batches are
those that our engine draws. It needs scikit-learn. Everything is in double precision.
"""

from __future__ import annotations

import argparse
import copy
import importlib
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from beside import SHOWN, States, batches, imported, moved, worst, written
from torch import Tensor, nn

import vitrail as vt
from vitrail.core.task import Task
from vitrail.engine.batches import gather_sites
from vitrail.engine.local import Engine
from vitrail.engine.rounds import Training
from vitrail.testing.federation import LOSSES

ROUNDS = max(SHOWN)
LR, BATCH, EPOCHS, AFTER, SMALLEST = 0.3, 8, 2, 3, 2
KINDS = (0, 1, 0, 2, 1, 2, 0)
ONE, TWO = (0.15, 0.8), (0.15, 0.3)  # eps1 and eps2 with which a group is split once, or one of its parts again
OUT = Path(__file__).parent / "results" / "rivals_cfl.md"
UNUSED = ("ray", "ray.actor", "hydra", "hydra.core", "hydra.core.hydra_config", "omegaconf", "torchvision", "pynvml")
UNUSED += (*tuple(f"torchvision.{part}" for part in ("models", "transforms", "io", "io.image")), "PIL", "matplotlib")


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Linear(4, 5), nn.Tanh()), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        z: Tensor = self.head(self.body(x))
        return z


def federation(net: nn.Module, eps1: float, eps2: float, linkage: str) -> Engine:
    """Seven sites of three kinds: the outcome follows x, its opposite, or something else."""
    truth = torch.randn(3, 4, generator=torch.Generator().manual_seed(50))
    truth[1] = -truth[0]
    rows = []
    for i, kind in enumerate(KINDS):
        x = torch.randn(24, 4, generator=torch.Generator().manual_seed(i))
        y = nn.functional.one_hot((x @ truth[kind] > 0).long(), 2).double()
        rows.append((f"site {i}", x, y, torch.ones(24, 1)))
    start = {k: v.detach().clone() for k, v in net.named_parameters()}
    task = Task(vt.nets.Module(copy.deepcopy(net), (4,)), start, LOSSES["classes"])
    training = Training(ROUNDS, EPOCHS, BATCH, LR, 0.0, decays=0, mean=True)
    method = vt.methods.CFL(eps1=eps1, eps2=eps2, after=AFTER, smallest=SMALLEST, linkage=linkage)  # type: ignore[arg-type]
    return Engine(task, method, gather_sites(rows), training, 7)


def ours(engine: Engine) -> tuple[States, list[list[set[int]]]]:
    """The model of each site, and the groups, after each round."""
    states, groups = [], []
    for moment in engine.run():
        states.append({k: v.clone() for k, v in moment.coord.models.items()})
        said = moment.coord.group.tolist()
        groups.append([{i for i, g in enumerate(said) if g == one} for one in sorted(set(said))])
    return states, groups


def flbench(folder: Path, engine: Engine, net: nn.Module, repaired: bool) -> tuple[States, list[list[set[int]]]]:
    """The same of FL-bench; `repaired`: see WORDS."""
    n, method = len(engine.names), engine.method
    with imported(folder, *UNUSED):
        program = importlib.import_module("src.server.cfl")
        fedavg = importlib.import_module("src.client.fedavg")
        trainer = importlib.import_module("src.utils.trainer")
        said = SimpleNamespace(train=False, val=False, test=False)
        common = SimpleNamespace(buffers="global", batch_size=BATCH, local_epoch=1, client_side_evaluation=False)
        common.reset_optimizer_on_global_epoch, common.test = True, SimpleNamespace(client=said, server=said)
        given = SimpleNamespace(common=common)
        assert isinstance(method, vt.methods.CFL)
        given.cfl = SimpleNamespace(eps_1=method.eps1, eps_2=method.eps2)
        given.cfl.min_cluster_size, given.cfl.start_clustering_round = SMALLEST, AFTER

        class Client(fedavg.FedAvgClient):  # type: ignore[name-defined,misc]
            now = 0

            def load_data_indices(self) -> None:
                self.trainloader = batches(engine, Client.now)[self.client_id]

        class Server(program.CFLServer):  # type: ignore[name-defined,misc]
            def __init__(self) -> None:  # theirs reads files
                self.args, self.train_clients, self.verbose = given, list(range(n)), False
                self.selected_clients, self.client_local_epoches = self.train_clients, [1] * n
                states: list[dict[int, Any]] = [{i: {} for i in range(n)} for _ in range(3)]
                self.client_optimizer_states, self.client_lr_scheduler_states, self.client_metrics = states
                self.init_params()
                sgd = partial(torch.optim.SGD, lr=LR)
                sent = {"optimizer_cls": sgd, "lr_scheduler_cls": None, "args": given, "dataset": Rows()}
                sent |= {"model": copy.deepcopy(net), "data_indices": [], "device": torch.device("cpu")}
                sent["return_diff"] = True
                self.trainer = trainer.FLbenchTrainer(self, Client, trainer.MODE.SERIAL, 0, sent)
                self.clients_model_params_diff = [None] * n
                self.similarity_matrix = np.eye(n)
                self.client_clusters = [list(range(n))]

            def init_params(self) -> None:
                self.public_model_params = {k: v.data.clone() for k, v in net.named_parameters()}
                self.public_model_param_names = list(self.public_model_params)
                self.clients_personal_model_params = {i: copy.deepcopy(net.state_dict()) for i in range(n)}

            def cluster_clients(self, similarities: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
                one, other = super().cluster_clients(similarities)
                if not repaired:
                    return one, other
                for c in self.client_clusters:
                    if np.array_equal(self.similarity_matrix[c][:, c], similarities):
                        return np.asarray(c)[one], np.asarray(c)[other]
                raise AssertionError("no group has these similarities")

        server, states, groups = Server(), [], []
        for r in range(ROUNDS):
            Client.now = server.current_epoch = r
            server.train_one_round()
            every = server.clients_personal_model_params
            names = server.public_model_param_names
            states.append({k: torch.stack([every[i][k].clone() for i in range(n)]) for k in names})
            groups.append([set(np.asarray(c).tolist()) for c in server.client_clusters])
    return states, groups


class Rows(torch.utils.data.Dataset[Any]):
    """A data set from which nothing is taken."""

    def __len__(self) -> int:
        return 1

    def train(self) -> None:
        """As theirs."""

    def eval(self) -> None:
        """As theirs."""


WORDS = """
- Split by the least similar pair of two parts (`linkage = "complete"`), as in FL-bench and in the authors' program; the
  paper, and our default, split by the most similar pair across. The last line: on these rows both find the same.
- When FL-bench splits a part again, it takes places within the part for places among all sites, as the authors' program
  does: from then on sites are in two groups or in none. "Repaired" puts the right places there from outside.
- A site that is away in the round of a split is, in FL-bench, as far from all others as an angle of 90 degrees; ours
  waits until all of the group have answered. Nobody is away here.
- Both count rounds from 0 for the first split, average with equal weights, and move a group after it was split.
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--flbench", type=Path, required=True)
    folder = parser.parse_args().flbench
    torch.set_default_dtype(torch.double)
    torch.set_num_threads(1)
    began = time.perf_counter()
    torch.manual_seed(1)
    net = Small()
    rows = []
    for what, eps1, eps2, linkage, repaired in (
        ("no split", 0.0, 1e9, "complete", False),
        ("one split, FL-bench as it is", *ONE, "complete", False),
        ("two splits, FL-bench repaired", *TWO, "complete", True),
        ("two splits, FL-bench as it is", *TWO, "complete", False),
        ("two splits, FL-bench repaired, ours as the paper writes", *TWO, "single", True),
    ):
        engine = federation(net, eps1, eps2, linkage)
        (mine, here), (theirs, there) = ours(engine), flbench(folder, engine, net, repaired)
        counts = [len(g) for g in here]
        first = [r + 1 for r in range(1, ROUNDS) if counts[r] > counts[r - 1]]
        alike = all(sorted(map(sorted, a)) == sorted(map(sorted, b)) for a, b in zip(here, there, strict=True))
        cells = [f"{v:.0e}" for v in worst(mine, theirs, [""])]
        when = ", ".join(map(str, first)) or "never"
        rows.append([what, when, "yes" if alike else "no", *cells, f"{moved(mine):.0e}"])
        print(*rows[-1], sep=" | ", flush=True)
    about = (
        "The largest difference of any number of any site's model after so many rounds, and by how much any number\n"
    )
    about += (
        f"moved. {len(KINDS)} sites of three kinds, double precision, {ROUNDS} rounds of {EPOCHS} epochs, batches of "
    )
    about += f"{BATCH}, {time.perf_counter() - began:.0f} s."
    heads = ["", "ours splits in round", "same groups in all rounds", *(f"round {r}" for r in SHOWN), "moved"]
    written(OUT, "CFL beside FL-bench", about, heads, rows, WORDS)


if __name__ == "__main__":
    main()
