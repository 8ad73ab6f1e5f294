"""Whether numbers of a site are found in the bytes of a message, whole or in part."""

from __future__ import annotations

import copy
from typing import Any

import torch

from tests.support.small import make_rows
from vitrail.core.exchange import AnyExchange
from vitrail.core.task import Task
from vitrail.core.tensors import flatten, map_tensors, subtract
from vitrail.engine.batches import gather_sites
from vitrail.engine.local import Engine
from vitrail.engine.rounds import Training
from vitrail.nets import MLP

WINDOW = 4  # consecutive numbers: 16 bytes
AWAY = "site 2"  # in the first round
TOLD = "params/output.shift"  # moves by as much as the shared last offset: see the last test


def make_task(method: Any, dropout: float = 0.2) -> Task:
    net = MLP(10, 9, (9, 8), dropout, *method.needs.adapters)  # no end is too short to be searched for
    return Task(net, net.init(torch.Generator().manual_seed(3)))


def make_engine(method: Any, dropout: float = 0.2, **given: Any) -> Engine:
    rows = []
    for name, x, y, w in make_rows():
        wide = torch.cat([x, x[:, :4] ** 2], 1)
        rows.append((name, wide.float(), torch.cat([y, y[:, :3].roll(1, 1), y.roll(2, 1)], 1).float() / 3, w.float()))
    away = torch.tensor([name == AWAY for name in gather_sites(rows).names])
    return Engine(
        make_task(method, dropout),
        method,
        gather_sites(rows),
        # two batches at least: after a single one Ditto's own model is still the one it sends
        Training(rounds=3, batch=4, lr=0.05),
        5,
        absent=lambda s, r: away if (s, r) == (0, 0) else torch.zeros_like(away),
        **given,
    )


class Recorder:
    """Stands on the wire: the bytes of every tensor, as the engine hands them over."""

    def __init__(self, engine: Engine) -> None:
        self.sent: dict[str, list[bytes]] = {}
        engine.stages = tuple(
            stage._replace(exchanges=tuple(self.on(stage.name, ex) for ex in stage.exchanges))
            for stage in engine.stages
        )

    def on(self, stage: str, exchange: AnyExchange) -> AnyExchange:
        record = self.sent.setdefault(stage, [])

        def send(*a: Any) -> Any:
            down = exchange.send(*a)
            record.extend(as_bytes(t) for _, t in flatten(down))
            return down

        def report(*a: Any) -> Any:
            state, up = exchange.report(*a)
            record.extend(as_bytes(t) for _, t in flatten(up))
            return state, up

        tapped = copy.copy(exchange)
        for name, heard in (("send", send), ("report", report)):
            object.__setattr__(tapped, name, heard)  # methods are frozen
        return tapped


def as_bytes(tensor: torch.Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().numpy().tobytes()


def searchable(state: Any, names: set[str]) -> list[torch.Tensor]:
    """Every site's own tensors of these names, where they are long enough to be told from chance."""
    own = [mine.clone() for name, stacked in flatten(state) if name in names for mine in stacked]
    return [t for t in own if t.unique().numel() >= 8]


def windows(private: list[torch.Tensor]) -> set[bytes]:
    """All runs of WINDOW consecutive numbers that are not all the same number."""
    out = set()
    for tensor in private:
        flat = tensor.flatten()
        out |= {as_bytes(w) for w in flat.unfold(0, WINDOW, 1) if w.unique().numel() > 1}
    return out


def found(sent: list[bytes], private: list[torch.Tensor]) -> int:
    """How many private tensors, and windows of them, are anywhere in these messages."""
    whole = sum(any(as_bytes(t) in message for message in sent) for t in private)
    wanted, size = windows(private), WINDOW * 4
    seen = {m[i : i + size] for m in sent for i in range(0, len(m) - size + 1, 4)}
    return whole + len(wanted & seen)


def search(method: Any) -> tuple[dict[str, int], int]:
    """How often private bytes were found, by stage; and how many private tensors were looked for."""
    engine = make_engine(method)
    recorder = Recorder(engine)
    before = engine.start().state
    names = {name for name, _ in flatten(before)}  # what a site keeps while training
    known = windows(searchable(before, names))  # everyone knows where everyone starts
    kept, changes = [], []
    for moment in engine.run():
        kept += [t for t in searchable(moment.state, names) if not windows([t]) & known]
        if moment.stage == 0:  # afterwards nothing is trained, and states hold what the sites were told
            changes += searchable(subtract(dict(flatten(moment.state)), dict(flatten(before))), names - {TOLD})
            before = map_tensors(torch.clone, moment.state)
    return {stage: found(sent, kept + changes) for stage, sent in recorder.sent.items()}, len(kept)
