"""The rivals that Vitrail's engine is timed against: the same federated round, written in other tools.

One round: every site starts from the shared parameters and trains one epoch on its own rows (shuffled,
batches of ``batch``, cross-entropy summed over the batch, SGD whose momentum starts at zero each round,
dropout before each linear layer, tanh between), then the parameters are averaged with equal weights. Every
rival gets the same data and starting parameters, runs ``WARMUP`` rounds that are not reported (compilation
and start-up fall there) and returns the seconds of each round after them. A list given as ``final`` receives
the parameters after the last round ([out, in] weight, bias, ...): ``--check`` compares them on a shape that
leaves nothing to chance. Each rival imports its library when called; this module alone needs only numpy.
Times in the docstrings: default ``Shape``, 2 busy cores of a 2.8 GHz Xeon, torch 2.13, jax 0.10.2, flwr 1.41.
"""

from __future__ import annotations

import argparse
import dataclasses
import functools
import importlib.metadata
import logging
import os
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

WARMUP, SEED = 3, 0
Arrays = list[np.ndarray]
Final = Arrays | None
Seconds = list[float]


@dataclasses.dataclass(frozen=True)
class Shape:
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
    for fan_in, fan_out in pairwise(shape.widths):
        arrays.append(rng.standard_normal((fan_out, fan_in), dtype=np.float32) / np.float32(fan_in**0.5))
        arrays.append(np.zeros(fan_out, np.float32))
    return arrays


def _timed(one_round: Callable, rounds: int, final: Final, result: Callable) -> Seconds:
    """Seconds per round, where each round ends when the device has nothing left to do; fills ``final``."""
    seconds = []
    for _ in range(WARMUP + rounds):
        start = time.perf_counter()
        one_round()
        seconds.append(time.perf_counter() - start)
    if final is not None:
        final.extend(result())
    return seconds[WARMUP:]


def _torch_setup(shape: Shape, device: str) -> tuple[Any, Any, Any, Callable[[], Any]]:
    """Features and labels on the device, a network with the starting parameters, and how to wait."""
    import torch

    layers: list[torch.nn.Module] = []
    for fan_in, fan_out in pairwise(shape.widths):
        layers += [torch.nn.Dropout(shape.dropout), torch.nn.Linear(fan_in, fan_out), torch.nn.Tanh()]
    net = torch.nn.Sequential(*layers[:-1]).to(device)
    _load(net, [torch.from_numpy(a) for a in make_parameters(shape, SEED)])
    x, y = (torch.from_numpy(a).to(device) for a in make_data(shape, SEED))
    return x, y, net, torch.cuda.synchronize if device.startswith("cuda") else lambda: None


def _load(net: Any, tensors: list[Any]) -> None:
    for parameter, tensor in zip(net.parameters(), tensors, strict=True):
        parameter.data.copy_(tensor)


def _train_site(shape: Shape, net: Any, x: Any, y: Any) -> None:
    """One epoch of one site, as one would write it for speed: tensors instead of a DataLoader, fused SGD."""
    import torch

    optimizer = torch.optim.SGD(net.parameters(), lr=shape.lr, momentum=shape.momentum, fused=True)
    order = torch.randperm(shape.rows, device=x.device)
    for features, labels in zip(x[order].split(shape.batch), y[order].split(shape.batch), strict=True):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(features), labels, reduction="sum").backward()
        optimizer.step()


def plain_loop(shape: Shape, rounds: int, threads: int, device: str = "cpu", final: Final = None) -> Seconds:
    """PyTorch, site after site: an ``nn.Module``, ``torch.optim.SGD`` and autograd.

    One module serves all the sites in turn (the same arithmetic as one each, and cheaper). Fused SGD is the
    fastest: 0.59 s a round on 1 thread and 0.50 s on 2, against 0.70 and 0.61 s by default.
    """
    import torch

    x, y, net, wait = _torch_setup(shape, device)
    shared = [p.detach().clone() for p in net.parameters()]

    def one_round() -> None:
        totals = [torch.zeros_like(s) for s in shared]
        for site in range(shape.sites):
            _load(net, shared)
            _train_site(shape, net, x[site], y[site])
            for t, p in zip(totals, net.parameters(), strict=True):
                t += p.detach()
        for s, t in zip(shared, totals, strict=True):
            torch.div(t, shape.sites, out=s)
        wait()

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    seconds = _timed(one_round, rounds, final, lambda: [s.cpu().numpy() for s in shared])
    torch.set_num_threads(before)
    return seconds


def stacked_autograd(shape: Shape, rounds: int, device: str = "cpu", final: Final = None) -> Seconds:
    """PyTorch, all sites at once: ``vmap(grad(loss))`` over stacked parameters, SGD out of place.

    Runs on the process's number of torch threads. ``torch.autograd.grad`` of the summed vmapped losses, tried
    as well, took 0.26 to 0.30 s a round against 0.29 to 0.31 s; ``torch.compile`` was not tried.
    """
    import torch
    from torch.func import functional_call, grad, vmap

    x, y, net, wait = _torch_setup(shape, device)
    shared = {name: p.detach().clone() for name, p in net.named_parameters()}
    sites = torch.arange(shape.sites, device=device)[:, None]

    def loss(parameters: dict[str, Any], features: Any, labels: Any) -> Any:
        logits = functional_call(net, parameters, (features,))
        return torch.nn.functional.cross_entropy(logits, labels, reduction="sum")

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
        wait()

    return _timed(one_round, rounds, final, lambda: [s.cpu().numpy() for s in shared.values()])


def jax_compiled(shape: Shape, rounds: int, tuned: bool = True, final: Final = None) -> Seconds:
    """JAX, one jitted round: scan over steps, permutations and dropout masks drawn inside.

    Not tuned: one device, vmap over sites, as it is usually written. Tuned, on a CPU: every core is made a JAX
    device (possible only before JAX starts in the process), and each device takes its sites one after another:
    ``lax.map`` over sites, ``lax.scan`` over steps. On a GPU the sites are vmapped.
    Also tried and slower or equal: vmap outside of scan, steps unrolled, groups of sites, other generators.
    """
    import jax
    import jax.numpy as jnp
    from jax.sharding import NamedSharding, PartitionSpec

    try:
        jax.config.update("jax_num_cpu_devices", os.cpu_count() if tuned else 1)
    except RuntimeError:
        print(f"JAX had started: it keeps {jax.device_count()} device(s)", file=sys.stderr)
    steps, keep = shape.rows // shape.batch, 1 - shape.dropout
    one_by_one, full, cuts = (
        tuned and jax.default_backend() == "cpu",
        steps * shape.batch,
        np.cumsum(shape.widths[:-1]),
    )

    def loss(parameters: list[Any], h: Any, labels: Any, key: Any) -> Any:
        draw = jax.random.bits if shape.dropout else lambda _key, size: jnp.zeros(size, jnp.uint32)
        bits = draw(key, (len(h), int(cuts[-1])))
        masks = jnp.split(bits <= np.uint32(keep * (2**32 - 1)), cuts[:-1], axis=1)
        for layer, mask in enumerate(masks):
            h = jnp.tanh(h) if layer else h
            h = jnp.where(mask, h * (1 / keep), 0) @ parameters[2 * layer] + parameters[2 * layer + 1]
        return -jnp.take_along_axis(jax.nn.log_softmax(h), labels[:, None], 1).sum()

    def step(state: Any, batch: Any) -> tuple[Any, None]:
        parameters, velocity = state
        g = jax.grad(loss)(parameters, *batch)
        velocity = [shape.momentum * v + d for v, d in zip(velocity, g, strict=True)]
        return ([p - shape.lr * v for p, v in zip(parameters, velocity, strict=True)], velocity), None

    def train_site(parameters: list[Any], x: Any, y: Any, key: Any) -> list[Any]:
        keys = jax.random.split(key, 2 + steps)
        order = jax.random.permutation(keys[0], shape.rows)
        x, y = x[order], y[order]
        xs, ys = x[:full].reshape(steps, shape.batch, -1), y[:full].reshape(steps, shape.batch)
        start = (parameters, [jnp.zeros_like(p) for p in parameters])
        state, _ = jax.lax.scan(step, start, (xs, ys, keys[2:]))
        if full < shape.rows:
            state, _ = step(state, (x[full:], y[full:], keys[1]))
        return state[0]

    def train_sites(parameters: list[Any], x: Any, y: Any, keys: Any, weights: Any) -> list[Any]:
        run = functools.partial(train_site, parameters)
        trained = jax.lax.map(lambda a: run(*a), (x, y, keys)) if one_by_one else jax.vmap(run)(x, y, keys)
        return [jax.lax.psum(jnp.tensordot(weights, t, 1), "site") for t in trained]

    mesh = jax.make_mesh((jax.device_count(),), ("site",), axis_types=(jax.sharding.AxisType.Auto,))
    whole, split = PartitionSpec(), PartitionSpec("site")
    specs = (whole, split, split, split, split)
    spread = jax.shard_map(train_sites, mesh=mesh, in_specs=specs, out_specs=whole, check_vma=False)
    idle = -shape.sites % jax.device_count()  # copies of site 0, of weight 0, that make the shares equal

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def jitted(parameters: list[Any], key: Any, x: Any, y: Any, weights: Any) -> tuple[Any, Any]:
        keys = jax.random.split(key, shape.sites + idle + 1)
        return spread(parameters, x, y, keys[1:], weights), keys[0]

    shares = np.full(shape.sites, 1 / shape.sites, np.float32)
    padded = [np.concatenate([a, a[:1].repeat(idle, 0)]) for a in make_data(shape, SEED)]
    fixed = jax.device_put((*padded, np.pad(shares, (0, idle))), NamedSharding(mesh, split))
    start = ([a.T for a in make_parameters(shape, SEED)], jax.random.key(SEED))
    state = jax.device_put(start, NamedSharding(mesh, whole))

    def one_round() -> None:
        nonlocal state
        state = jitted(*state, *fixed)
        jax.block_until_ready(state)

    return _timed(one_round, rounds, final, lambda: [np.asarray(a).T for a in state[0]])


_flower_worker = functools.lru_cache(maxsize=1)(_torch_setup)  # what a worker keeps between messages


def _flower_train(shape: Shape, message: Any, context: Any) -> Any:
    """The client's answer to a train message: load the parameters, train one epoch, send them back."""
    import torch
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict

    torch.set_num_threads(1)
    x, y, net, _ = _flower_worker(shape, "cpu")
    _load(net, [torch.from_numpy(a) for a in message.content["arrays"].to_numpy_ndarrays()])
    _train_site(shape, net, *(a[context.node_config["partition-id"]] for a in (x, y)))
    arrays = ArrayRecord([p.detach().numpy() for p in net.parameters()])
    answer = {"arrays": arrays, "metrics": MetricRecord({"num-examples": shape.rows})}
    return Message(RecordDict(answer), reply_to=message)


def flower_simulation(shape: Shape, rounds: int, final: Final = None) -> Seconds:
    """Flower's ``run_simulation`` on Ray: the message API, ``FedAvg``, every site each round, no evaluation.

    One Ray worker per core (``num_cpus=1`` per client), each with one torch thread, which keeps the data and
    the network between messages, so that only parameters travel. A round is the time between two calls of the
    strategy's ``evaluate_fn`` at the server, which only reads the clock. Medians a round of what was tried:
    this 0.84 to 1.14 s (1.98 s once), two workers per core 0.95 s, one worker with both cores 1.7 s, the
    ``NumPyClient`` API 1.2 to 1.7 s, a server that polls each 0.02 s, not Flower's 0.1 s, 0.9 to 1.7 s.
    """
    for name in ("FLWR_TELEMETRY_ENABLED", "RAY_USAGE_STATS_ENABLED", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"):
        os.environ.setdefault(name, "0")
    from flwr import app, clientapp, serverapp, simulation

    logging.getLogger("flwr").setLevel(logging.ERROR)
    sys.path.append(str(Path(__file__).resolve().parent))  # passed on to the workers, which import ``rivals``
    settings, stamps = dataclasses.astuple(shape), []
    client, server = clientapp.ClientApp(), serverapp.ServerApp()

    @client.train()
    def train(message: Any, context: Any) -> Any:
        import rivals  # by name, so that the worker's copy keeps its data between messages

        return rivals._flower_train(rivals.Shape(*settings), message, context)

    def all_answered(replies: list[Any], _weight: str) -> Any:
        assert len(replies) == shape.sites, f"{len(replies)} of {shape.sites} Flower clients answered"
        return app.MetricRecord()

    @server.main()
    def main(grid: Any, _context: Any) -> None:
        every = {"min_train_nodes": shape.sites, "min_available_nodes": shape.sites, "fraction_evaluate": 0.0}
        strategy = serverapp.strategy.FedAvg(**every, train_metrics_aggr_fn=all_answered)
        clock = {"evaluate_fn": lambda _round, _arrays: stamps.append(time.perf_counter())}
        start = app.ArrayRecord(make_parameters(shape, SEED))
        result = strategy.start(grid, start, num_rounds=WARMUP + rounds, **clock)
        if final is not None:
            final.extend(result.arrays.to_numpy_ndarrays())

    backend = {"init_args": {"num_cpus": os.cpu_count()}, "client_resources": {"num_cpus": 1, "num_gpus": 0}}
    simulation.run_simulation(server, client, num_supernodes=shape.sites, backend_config=backend)
    return [float(s) for s in np.diff(stamps)[WARMUP:]]


def machine() -> str:
    """The processor, its cores and the versions of what is compared."""
    model = Path("/proc/cpuinfo").read_text().partition("model name")[2].partition("\n")[0].strip("\t :")
    installed = {d.name.lower(): d.version for d in importlib.metadata.distributions()}
    versions = [f"{name} {installed.get(name)}" for name in ("numpy", "torch", "jax", "flwr", "ray")]
    return f"{model}, {os.cpu_count()} cores\nPython {sys.version.split()[0]}, {', '.join(versions)}"


def main() -> None:
    parser = argparse.ArgumentParser(description="Time the rivals.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cpu", help="for the PyTorch rivals")
    parser.add_argument("--only", help="one rival by name")
    parser.add_argument("--check", action="store_true", help="compare results; no dropout, one batch a site")
    options = parser.parse_args()
    rivals: dict[str, Callable[..., Seconds]] = {
        "plain_loop_1": functools.partial(plain_loop, threads=1, device=options.device),
        "plain_loop_2": functools.partial(plain_loop, threads=2, device=options.device),
        "stacked_autograd": functools.partial(stacked_autograd, device=options.device),
        "flower_simulation": flower_simulation,
        "jax_compiled": jax_compiled,
    }
    shape = Shape(5, 32, 20, batch=32, lr=0.02, dropout=0.0) if options.check else Shape()
    reference: Arrays = []
    print(f"{machine()}\n{shape}\n{'rival':20s} {'median s':>10s} {'min s':>10s}", flush=True)
    for name in [options.only] if options.only else rivals:
        final: Arrays = []
        seconds = rivals[name](shape, options.rounds, final=final)
        reference = reference or final
        gap = max(np.abs(a - b).max() for a, b in zip(final, reference, strict=True))
        note = f"   differs from the first rival by at most {gap:.0e}" if options.check else ""
        print(f"{name:20s} {np.median(seconds):10.4f} {min(seconds):10.4f}{note}", flush=True)


if __name__ == "__main__":
    main()
