"""The rivals that Vitrail's engine is timed against: the same federated round, written in other tools.

One round: every site starts from the shared parameters, trains one epoch on its own rows (shuffled, batches of
``batch``, cross-entropy summed over the batch, SGD with momentum that starts at zero each round, dropout before
each linear layer, tanh between layers), then the parameters are averaged with equal weights. Every rival gets
the arrays of ``make_data`` and the starting parameters of ``make_parameters``, runs ``WARMUP`` rounds that are
not reported (compilation and start-up fall there) and returns the seconds of each round after them. With a list
as ``final``, the parameters after the last round are appended to it ([out, in] weight, bias, weight, ...), so
that rivals can be compared: ``python rivals.py --check`` does it on a shape in which shuffling has no effect.

Each rival imports its library when called; this module alone needs only numpy.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import importlib.metadata
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

WARMUP = 3
SEED = 0
Arrays = list[np.ndarray]


@dataclasses.dataclass(frozen=True)
class Shape:
    """The sizes and settings of the timed round."""

    sites: int = 30
    rows: int = 240
    features: int = 561
    classes: int = 6
    hidden: tuple[int, ...] = (128, 64)
    batch: int = 16
    lr: float = 0.002
    momentum: float = 0.5
    dropout: float = 0.2

    @property
    def widths(self) -> tuple[int, ...]:
        return (self.features, *self.hidden, self.classes)


def make_data(shape: Shape, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Normal float32 features [site, row, feature] and random int64 labels [site, row]."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((shape.sites, shape.rows, shape.features), dtype=np.float32)
    return x, rng.integers(0, shape.classes, (shape.sites, shape.rows))


def make_parameters(shape: Shape, seed: int) -> Arrays:
    """Starting parameters: an [out, in] weight and a bias for each layer."""
    rng = np.random.default_rng([seed, 1])
    arrays: Arrays = []
    for fan_in, fan_out in zip(shape.widths[:-1], shape.widths[1:], strict=True):
        arrays.append(rng.standard_normal((fan_out, fan_in), dtype=np.float32) / np.float32(fan_in**0.5))
        arrays.append(np.zeros(fan_out, np.float32))
    return arrays


def _timed(one_round: Callable[[], Any], rounds: int, wait: Callable[[], Any] = lambda: None) -> list[float]:
    """Seconds per round; ``wait`` returns when the device has nothing left to do."""
    seconds = []
    for _ in range(WARMUP + rounds):
        wait()
        start = time.perf_counter()
        one_round()
        wait()
        seconds.append(time.perf_counter() - start)
    return seconds[WARMUP:]


# ------------------------------------------------------------------------------------------------- PyTorch


def _network(shape: Shape) -> Any:
    """The network as an ``nn.Sequential``, holding the starting parameters."""
    import torch
    from torch import nn

    layers: list[nn.Module] = []
    for fan_in, fan_out in zip(shape.widths[:-1], shape.widths[1:], strict=True):
        layers += [nn.Dropout(shape.dropout), nn.Linear(fan_in, fan_out), nn.Tanh()]
    net = nn.Sequential(*layers[:-1])
    with torch.no_grad():
        for parameter, array in zip(net.parameters(), make_parameters(shape, SEED), strict=True):
            parameter.copy_(torch.from_numpy(array))
    return net


def _train_site(shape: Shape, net: Any, x: Any, y: Any) -> None:
    """One epoch of one site, as one would write it for speed: tensors instead of a DataLoader, fused SGD."""
    import torch
    from torch.nn.functional import cross_entropy

    optimizer = torch.optim.SGD(net.parameters(), lr=shape.lr, momentum=shape.momentum, fused=True)
    order = torch.randperm(shape.rows, device=x.device)
    for features, labels in zip(x[order].split(shape.batch), y[order].split(shape.batch), strict=True):
        optimizer.zero_grad()
        cross_entropy(net(features), labels, reduction="sum").backward()
        optimizer.step()


def _waiter(device: str) -> Callable[[], Any]:
    import torch

    return torch.cuda.synchronize if device.startswith("cuda") else lambda: None


def plain_loop(
    shape: Shape, rounds: int, threads: int, device: str = "cpu", *, final: Arrays | None = None
) -> list[float]:
    """PyTorch, site after site: an ``nn.Module``, ``torch.optim.SGD`` and autograd.

    One module serves all the sites in turn (cheaper than one module each, the same arithmetic); the data lie on
    the device from the start. ``fused=True`` was the fastest SGD here: 0.59 s a round on 1 thread and 0.50 s on 2,
    against 0.70 s and 0.61 s for the default and 0.69 s and 0.58 s for ``foreach=True``.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    torch.manual_seed(SEED)
    x, y = (torch.from_numpy(a).to(device) for a in make_data(shape, SEED))
    net = _network(shape).to(device)
    shared = [p.detach().clone() for p in net.parameters()]

    def one_round() -> None:
        totals = [torch.zeros_like(s) for s in shared]
        for site in range(shape.sites):
            with torch.no_grad():
                for p, s in zip(net.parameters(), shared, strict=True):
                    p.copy_(s)
            _train_site(shape, net, x[site], y[site])
            with torch.no_grad():
                for t, p in zip(totals, net.parameters(), strict=True):
                    t += p
        for s, t in zip(shared, totals, strict=True):
            torch.div(t, shape.sites, out=s)

    try:
        seconds = _timed(one_round, rounds, _waiter(device))
    finally:
        torch.set_num_threads(before)
    if final is not None:
        final.extend(s.cpu().numpy() for s in shared)
    return seconds


def stacked_autograd(
    shape: Shape, rounds: int, device: str = "cpu", *, final: Arrays | None = None
) -> list[float]:
    """PyTorch, all sites at once: ``vmap(grad(loss))`` over stacked parameters, SGD out of place.

    Runs with the process's number of torch threads. The shared parameters enter the first step as an expanded
    view, not a copy of them per site.
    """
    import torch
    from torch.func import functional_call, grad, vmap
    from torch.nn.functional import cross_entropy

    torch.manual_seed(SEED)
    x, y = (torch.from_numpy(a).to(device) for a in make_data(shape, SEED))
    net = _network(shape).to(device)
    shared = {name: p.detach().clone() for name, p in net.named_parameters()}
    sites = torch.arange(shape.sites, device=device)[:, None]

    def loss(parameters: dict[str, Any], features: Any, labels: Any) -> Any:
        return cross_entropy(functional_call(net, parameters, (features,)), labels, reduction="sum")

    gradients = vmap(grad(loss), randomness="different")

    def one_round() -> None:
        order = torch.rand(shape.sites, shape.rows, device=device).argsort(1)
        parameters = {name: s.expand(shape.sites, *s.shape) for name, s in shared.items()}
        velocity: dict[str, Any] | None = None
        for rows in order.split(shape.batch, 1):
            g = gradients(parameters, x[sites, rows], y[sites, rows])
            velocity = {n: g[n].add(velocity[n], alpha=shape.momentum) for n in g} if velocity else g
            parameters = {n: p.sub(velocity[n], alpha=shape.lr) for n, p in parameters.items()}
        shared.update({name: p.mean(0) for name, p in parameters.items()})

    seconds = _timed(one_round, rounds, _waiter(device))
    if final is not None:
        final.extend(s.cpu().numpy() for s in shared.values())
    return seconds


# ----------------------------------------------------------------------------------------------------- JAX


def jax_compiled(shape: Shape, rounds: int, *, final: Arrays | None = None) -> list[float]:
    """JAX, one jitted round: the sites spread over the devices, permutations and dropout masks drawn inside.

    JAXDOC
    """
    import jax
    import jax.numpy as jnp
    from jax import lax
    from jax.sharding import NamedSharding, PartitionSpec

    try:
        jax.config.update("jax_num_cpu_devices", os.cpu_count())
    except RuntimeError:  # JAX has started already in this process: keep the devices it has
        print("jax_compiled: JAX was started before; its CPU devices stay", jax.device_count(), file=sys.stderr)
    devices = jax.devices()
    one_by_one = devices[0].platform == "cpu"
    steps, keep = shape.rows // shape.batch, 1 - shape.dropout
    full = steps * shape.batch
    cuts = np.cumsum(shape.widths[:-1])

    def loss(parameters: list[Any], features: Any, labels: Any, key: Any) -> Any:
        h = features
        if shape.dropout:
            bits = jax.random.bits(key, (len(features), int(cuts[-1])))
            masks = jnp.split(bits < np.uint32(keep * 2**32), cuts[:-1], axis=1)
        for layer in range(len(cuts)):
            if shape.dropout:
                h = jnp.where(masks[layer], h * (1 / keep), 0)
            h = h @ parameters[2 * layer] + parameters[2 * layer + 1]
            h = jnp.tanh(h) if layer < len(cuts) - 1 else h
        return -jnp.take_along_axis(jax.nn.log_softmax(h), labels[:, None], 1).sum()

    def step(state: Any, batch: Any) -> tuple[Any, None]:
        parameters, velocity = state
        g = jax.grad(loss)(parameters, *batch)
        velocity = [shape.momentum * v + d for v, d in zip(velocity, g, strict=True)]
        return ([p - shape.lr * v for p, v in zip(parameters, velocity, strict=True)], velocity), None

    def train_site(parameters: list[Any], x: Any, y: Any, key: Any) -> list[Any]:
        shuffle, tail, *drops = jax.random.split(key, 2 + steps)
        order = jax.random.permutation(shuffle, shape.rows)
        x, y = x[order], y[order]
        batches = (
            x[:full].reshape(steps, shape.batch, -1),
            y[:full].reshape(steps, shape.batch),
            jnp.stack(drops),
        )
        state, _ = lax.scan(step, (parameters, [jnp.zeros_like(p) for p in parameters]), batches)
        if full < shape.rows:
            state, _ = step(state, (x[full:], y[full:], tail))
        return state[0]

    def train_sites(parameters: list[Any], x: Any, y: Any, keys: Any, weights: Any) -> list[Any]:
        run = functools.partial(train_site, parameters)
        trained = lax.map(lambda a: run(*a), (x, y, keys)) if one_by_one else jax.vmap(run)(x, y, keys)
        return [lax.psum(jnp.tensordot(weights, t, 1), "site") for t in trained]

    mesh = jax.make_mesh((len(devices),), ("site",), axis_types=(jax.sharding.AxisType.Auto,))
    split, whole = PartitionSpec("site"), PartitionSpec()
    spread = jax.shard_map(
        train_sites, mesh=mesh, in_specs=(whole, split, split, split, split), out_specs=whole, check_vma=False
    )
    idle = -shape.sites % len(devices)  # copies of site 0, of weight 0, that make the shares equal

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def one_jitted_round(parameters: list[Any], key: Any, x: Any, y: Any, weights: Any) -> tuple[Any, Any]:
        keys = jax.random.split(key, shape.sites + idle + 1)
        return spread(parameters, x, y, keys[1:], weights), keys[0]

    def padded(a: np.ndarray) -> Any:
        return jax.device_put(np.concatenate([a, a[:1].repeat(idle, 0)]), NamedSharding(mesh, split))

    x, y = (padded(a) for a in make_data(shape, SEED))
    weights = np.repeat(np.float32([1 / shape.sites, 0]), [shape.sites, idle])
    weights = jax.device_put(weights, NamedSharding(mesh, split))
    start = ([a.T for a in make_parameters(shape, SEED)], jax.random.key(SEED))
    state = jax.device_put(start, NamedSharding(mesh, whole))

    def one_round() -> None:
        nonlocal state
        state = one_jitted_round(*state, x, y, weights)

    seconds = _timed(one_round, rounds, lambda: jax.block_until_ready(state))
    if final is not None:
        final.extend(np.asarray(a).T for a in state[0])
    return seconds


# -------------------------------------------------------------------------------------------------- Flower


@functools.lru_cache(maxsize=1)
def _flower_worker(shape: Shape) -> tuple[Any, Any, Any]:
    """What one Ray worker holds from its first message on: all sites' data and a network."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(os.getpid())
    x, y = (torch.from_numpy(a) for a in make_data(shape, SEED))
    return x, y, _network(shape)


def _flower_train(shape: Shape, message: Any, context: Any) -> Any:
    """The client's answer to a train message: load the parameters, train one epoch, send them back."""
    import torch
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

    x, y, net = _flower_worker(shape)
    site = context.node_config["partition-id"]
    with torch.no_grad():
        for p, array in zip(net.parameters(), message.content["arrays"].to_numpy_ndarrays(), strict=True):
            p.copy_(torch.from_numpy(array))
    _train_site(shape, net, x[site], y[site])
    arrays = ArrayRecord([p.detach().numpy() for p in net.parameters()])
    metrics = MetricRecord({"num-examples": shape.rows})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


def flower_simulation(shape: Shape, rounds: int, *, final: Arrays | None = None) -> list[float]:
    """Flower's ``run_simulation`` on Ray: the message API, ``FedAvg``, every site each round, no evaluation.

    FLOWERDOC
    """
    os.environ.setdefault("FLWR_TELEMETRY_ENABLED", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import logging

    from flwr.app import ArrayRecord, MetricRecord
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    logging.getLogger("flwr").setLevel(logging.ERROR)
    here = str(Path(__file__).resolve().parent)
    if here not in sys.path:  # Flower hands sys.path on to its workers, which import this file as ``rivals``
        sys.path.append(here)
    settings = dataclasses.astuple(shape)
    client, server = ClientApp(), ServerApp()
    stamps: list[float] = []

    @client.train()
    def train(message: Any, context: Any) -> Any:
        import rivals  # by name, so that the worker's copy keeps its data between messages

        return rivals._flower_train(rivals.Shape(*settings), message, context)

    def stamp(server_round: int, arrays: Any) -> None:
        stamps.append(time.perf_counter())

    def all_answered(replies: list[Any], weight: str) -> Any:
        if len(replies) != shape.sites:
            raise RuntimeError(f"{len(replies)} of {shape.sites} Flower clients answered")
        return MetricRecord()

    @server.main()
    def main(grid: Any, context: Any) -> None:
        grid.pull_interval = 0.02
        strategy = FedAvg(
            fraction_evaluate=0.0,
            min_train_nodes=shape.sites,
            min_available_nodes=shape.sites,
            train_metrics_aggr_fn=all_answered,
        )
        arrays = ArrayRecord(make_parameters(shape, SEED))
        result = strategy.start(grid, arrays, num_rounds=WARMUP + rounds, evaluate_fn=stamp)
        if final is not None:
            final.extend(result.arrays.to_numpy_ndarrays())

    workers = min(os.cpu_count() or 1, shape.sites)
    resources = {"init_args": {"num_cpus": workers}, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server, client, num_supernodes=shape.sites, backend_config=resources)
    return [float(s) for s in np.diff(stamps)[WARMUP:]]


# ---------------------------------------------------------------------------------------------------- main


def machine() -> str:
    """The processor, its cores and the versions of what is compared."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    model = next((s.split(":")[1].strip() for s in lines if s.startswith("model name")), platform.processor())
    found = [f"Python {platform.python_version()}"]
    for name in ("numpy", "torch", "jax", "flwr", "ray"):
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            found.append(f"{name} absent")
    return f"{model}, {os.cpu_count()} cores\n{', '.join(found)}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Time the rivals.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cpu", help="for the two PyTorch rivals")
    parser.add_argument("--only", help="one rival by name")
    parser.add_argument("--check", action="store_true", help="compare the rivals' parameters instead of speed")
    options = parser.parse_args()
    rivals: dict[str, Callable[..., list[float]]] = {
        "plain_loop_1": functools.partial(plain_loop, threads=1, device=options.device),
        "plain_loop_2": functools.partial(plain_loop, threads=2, device=options.device),
        "stacked_autograd": functools.partial(stacked_autograd, device=options.device),
        "flower_simulation": flower_simulation,
        "jax_compiled": jax_compiled,
    }
    chosen = {name: rival for name, rival in rivals.items() if options.only in (None, name)}
    if not chosen:
        parser.error(f"--only takes one of {', '.join(rivals)}")
    print(machine(), flush=True)
    if options.check:  # whole-site batches and no dropout: nothing random is left
        shape = Shape(sites=5, rows=32, features=20, batch=32, lr=0.02, dropout=0.0)
        reference: Arrays = []
        plain_loop(shape, 2, threads=1, final=reference)
        start = make_parameters(shape, SEED)
        print("moved by", max(np.abs(a - b).max() for a, b in zip(reference, start, strict=True)))
        for name, rival in chosen.items():
            final: Arrays = []
            rival(shape, 2, final=final)
            gap = max(np.abs(a - b).max() for a, b in zip(final, reference, strict=True))
            print(f"{name:20s} largest difference from plain_loop {gap:.1e}", flush=True)
        return
    print(f"{Shape()}\n{'rival':20s} {'median s':>10s} {'min s':>10s}", flush=True)
    for name, rival in chosen.items():
        seconds = rival(Shape(), options.rounds)
        print(f"{name:20s} {statistics.median(seconds):10.4f} {min(seconds):10.4f}", flush=True)


if __name__ == "__main__":
    main()
